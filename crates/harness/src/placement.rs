//! CPUs of busy threads, by the resources that the CPUs share. Memory is not placed: threads touch
//! their buffers themselves.

use std::cmp::Reverse;

use daqmeter_record::Host;
use daqmeter_sys::affinity;

use crate::Fault;
use crate::settings::cpu_list;

/// Pins this thread to a CPU.
pub fn pin(cpu: u32) -> Result<(), Fault> {
    let why = match affinity::pin_to(cpu) {
        Ok(allowed) if allowed == [cpu] => return Ok(()),
        Ok(allowed) => {
            format!("pinned to CPU {cpu}, but the kernel allows {}", cpu_list(&allowed))
        }
        Err(error) => format!("CPU {cpu} does not exist or is taken from us: {error}"),
    };
    Err(Fault::new(why))
}

/// Returns the allowed CPUs in the order of busy threads. Each thread gets a core while one is
/// free: fast cores before slow ones, one NUMA node before the next. Otherwise the last CPU comes
/// first, because CPU 0 takes most interrupts.
pub fn order(host: &Host) -> Vec<u32> {
    order_near(host, None)
}

/// Returns the order with the cores of that NUMA node first: elsewhere, data of a device on it
/// cross the link between sockets.
pub fn order_near(host: &Host, near: Option<u32>) -> Vec<u32> {
    let near = host.numa.iter().find(|node| Some(node.node) == near);
    let mut cpus = host.allowed_cpus.clone();
    cpus.sort_by_cached_key(|&cpu| {
        let is_slow = host.slower_cpus.contains(&cpu);
        (
            rank(host, cpu),
            is_slow,
            near.is_some_and(|near| !near.cpus.contains(&cpu)),
            Reverse(node(host, cpu)),
            Reverse(cpu),
        )
    });
    cpus
}

/// Returns the number of cores that the process may use.
pub fn cores(host: &Host) -> usize {
    host.allowed_cpus.iter().filter(|&&cpu| rank(host, cpu) == 0).count()
}

/// Returns the number of CPUs of its core before this one, the last one first.
fn rank(host: &Host, cpu: u32) -> usize {
    let core = core(host, cpu);
    let later = |other: &&u32| **other > cpu && self::core(host, **other) == core;
    host.allowed_cpus.iter().filter(later).count()
}

fn core(host: &Host, cpu: u32) -> u32 {
    let mut cores = host.siblings.iter();
    let own = cores.find(|core| core.contains(&cpu));
    own.and_then(|core| core.first()).copied().unwrap_or(cpu)
}

fn node(host: &Host, cpu: u32) -> u32 {
    let mut nodes = host.numa.iter();
    let own = nodes.find(|node| node.cpus.contains(&cpu));
    let allowed = |cpu: &&u32| host.allowed_cpus.contains(cpu);
    own.and_then(|node| node.cpus.iter().filter(allowed).max()).copied().unwrap_or(cpu)
}

#[cfg(test)]
mod tests {
    use daqmeter_record::host::NumaNode;

    use super::*;

    fn host(cpus: u32, siblings: &[&[u32]], nodes: &[&[u32]]) -> Host {
        let node = |(node, cpus): (u32, &&[u32])| NumaNode { node, cpus: cpus.to_vec() };
        Host {
            allowed_cpus: (0..cpus).collect(),
            siblings: siblings.iter().map(|core| core.to_vec()).collect(),
            numa: (0..).zip(nodes).map(node).collect(),
            ..Host::default()
        }
    }

    /// Two sockets of two cores of two threads, whose siblings are numbered apart.
    fn apart() -> Host {
        host(8, &[&[0, 4], &[1, 5], &[2, 6], &[3, 7]], &[&[0, 2, 4, 6], &[1, 3, 5, 7]])
    }

    /// Two sockets of two cores of two threads, whose siblings have neighbouring numbers.
    fn beside() -> Host {
        host(8, &[&[0, 1], &[2, 3], &[4, 5], &[6, 7]], &[&[0, 1, 2, 3], &[4, 5, 6, 7]])
    }

    fn hybrid() -> Host {
        let cores = host(6, &[&[0, 1], &[2, 3]], &[&[0, 1, 2, 3, 4, 5]]);
        Host { slower_cpus: vec![4, 5], ..cores }
    }

    #[test]
    fn a_thread_gets_a_core_of_its_own_while_there_is_one_and_its_neighbours_node() {
        assert_eq!(order(&beside()), [7, 5, 3, 1, 6, 4, 2, 0]);
        assert_eq!(order(&apart()), [7, 5, 6, 4, 3, 1, 2, 0]);
        // A CPU that the process may not use is left out, and its siblings are then alone.
        let some = Host { allowed_cpus: vec![0, 1, 2, 6], ..beside() };
        assert_eq!(order(&some), [6, 2, 1, 0]);
    }

    #[test]
    fn fast_cores_come_first_and_slow_ones_before_a_shared_core() {
        assert_eq!(order(&hybrid()), [3, 1, 5, 4, 2, 0]);
        assert_eq!(order(&host(3, &[], &[])), [2, 1, 0]);
        assert_eq!(order(&Host::default()), [0_u32; 0]);
    }

    #[test]
    fn threads_are_put_on_the_node_of_the_device_while_it_has_cores() {
        let two_nodes = apart();
        assert_eq!(order_near(&two_nodes, Some(0)), [6, 4, 7, 5, 2, 0, 3, 1]);
        assert_eq!(order_near(&two_nodes, Some(1)), order(&two_nodes));
        // A node that the kernel does not show changes nothing.
        assert_eq!(order_near(&two_nodes, Some(9)), order(&two_nodes));
        assert_eq!(cores(&two_nodes), 4);
    }
}
