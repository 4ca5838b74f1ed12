//! Capacity of CPUs and memory, by shared hardware: a core of each kind, the threads of one core,
//! all CPUs together, and memory of each NUMA node from each node. It is measured in turn with the
//! runs of a path. Each kind that a host has once has one row.
//!
//! It does not decide the limit of a path: the CPU time of a block is already longer on a slower or
//! shared CPU.

use std::sync::Barrier;

use daqmeter_harness::{Fault, placement};
use daqmeter_record::Host;
use daqmeter_sys::affinity;
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::memory::{Buffer, Pages};

use crate::added_work::steps;
use crate::evidence::Interval;
use crate::sum::sum;

/// Time of one measurement; memory is read once at least.
const TIME_NS: u64 = 5_000_000;
const STEPS: u64 = 20_000;
const MAX_NODES: usize = 8;
/// Bytes that are read of a node, in last-level caches.
const FOOTPRINT: u64 = 2;
const MAX_BYTES: u64 = 256 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ceiling {
    pub name: String,
    pub cpus: Vec<u32>,
    pub kind: CeilingKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CeilingKind {
    /// Arithmetic in registers, relative to the first core, which is a fast one.
    Arithmetic,
    /// Reads of memory of the node at this place in the host's list, in bytes per second.
    Memory {
        /// Place of the node.
        node: usize,
    },
}

pub fn ceilings(host: &Host) -> Vec<Ceiling> {
    let mut all = arithmetic(host);
    all.extend(memory(host));
    all
}

fn arithmetic(host: &Host) -> Vec<Ceiling> {
    let row = |name: String, cpus: Vec<u32>| Ceiling { name, cpus, kind: CeilingKind::Arithmetic };
    let order = placement::order(host);
    let is_slow = |cpu: &&u32| host.slower_cpus.contains(cpu);
    let (slow, fast): (Vec<u32>, Vec<u32>) = order.iter().partition(is_slow);
    let kinds = match (fast.first(), slow.first()) {
        (Some(&fast), Some(&slow)) => vec![("a fast core", fast), ("a slow core", slow)],
        (Some(&one), None) | (None, Some(&one)) => vec![("a core", one)],
        (None, None) => Vec::new(),
    };
    let kinds = kinds.into_iter();
    let mut all: Vec<Ceiling> = kinds.map(|(name, cpu)| row(name.to_owned(), vec![cpu])).collect();
    let shared = host.siblings.iter().map(|core| allowed(host, core));
    if let Some(core) = shared.into_iter().find(|core| core.len() > 1) {
        all.push(row("the threads of a core".to_owned(), core));
    }
    if order.len() > 1 {
        all.push(row("all CPUs together".to_owned(), order));
    }
    all
}

fn memory(host: &Host) -> Vec<Ceiling> {
    let nodes = nodes(host);
    let mut all = Vec::new();
    for (from, (number, cpus)) in nodes.iter().enumerate() {
        for (node, (of, _)) in nodes.iter().enumerate() {
            let name = match nodes.len() {
                1 => "memory from a core".to_owned(),
                _ if from == node => format!("memory of node {of} from its cores"),
                _ => format!("memory of node {of} from node {number}"),
            };
            let cpus = match nodes.len() {
                1 => cpus[..1].to_vec(),
                _ => cpus.clone(),
            };
            let kind = CeilingKind::Memory { node };
            all.push(Ceiling { name, cpus, kind });
        }
    }
    all
}

/// Nodes with CPUs that may be used, and one CPU of each of their cores. A host that names none is
/// one node.
fn nodes(host: &Host) -> Vec<(u32, Vec<u32>)> {
    let order = placement::order(host);
    let cores = &order[..placement::cores(host)];
    let of = |cpus: &[u32]| -> Vec<u32> {
        let cores = cores.iter().copied();
        cores.filter(|cpu| cpus.contains(cpu)).collect()
    };
    let named = host.numa.iter().map(|node| (node.node, of(&node.cpus)));
    let named: Vec<_> = named.filter(|(_, cpus)| !cpus.is_empty()).collect();
    match named.len() {
        0 if cores.is_empty() => Vec::new(),
        0 => vec![(0, cores.to_vec())],
        _ => named.into_iter().take(MAX_NODES).collect(),
    }
}

fn allowed(host: &Host, cpus: &[u32]) -> Vec<u32> {
    let cpus = cpus.iter().copied();
    cpus.filter(|cpu| host.allowed_cpus.contains(cpu)).collect()
}

pub struct Ceilings {
    rows: Vec<(Ceiling, Vec<f64>)>,
    memory: Vec<Buffer>,
    bytes: usize,
}

impl Ceilings {
    /// Allocates memory of each node: twice the last-level cache.
    pub fn new(host: &Host) -> Result<Ceilings, Fault> {
        let bytes = (FOOTPRINT * host.last_level_cache_bytes()).clamp(1 << 20, MAX_BYTES);
        let bytes = usize::try_from(bytes).unwrap_or(1 << 20);
        let nodes = nodes(host).into_iter();
        let memory: Result<Vec<Buffer>, Fault> = nodes
            .map(|(_, cpus)| on_cpu(cpus[0], || Ok(Buffer::new(bytes, Pages::Transparent)?)))
            .collect();
        let rows = ceilings(host).into_iter();
        Ok(Ceilings { rows: rows.map(|row| (row, Vec::new())).collect(), memory: memory?, bytes })
    }

    /// Measures each ceiling once more. Fails if a CPU cannot be used any more.
    pub fn measure(&mut self) -> Result<(), Fault> {
        let mut core = None;
        for (row, values) in &mut self.rows {
            let value = match row.kind {
                CeilingKind::Arithmetic => {
                    let rate = together(&row.cpus, |_| {
                        steps(STEPS);
                        STEPS
                    })?;
                    rate / *core.get_or_insert(rate)
                }
                CeilingKind::Memory { node } => {
                    // Each thread has its own part: it would find the bytes of other readers in the
                    // cache.
                    let each = self.bytes / row.cpus.len();
                    let bytes = self.memory[node].slice::<u8>(self.bytes);
                    together(&row.cpus, |at| read(&bytes[at * each..][..each]))?
                }
            };
            values.push(value);
        }
        Ok(())
    }

    pub fn found(&self) -> impl Iterator<Item = (&Ceiling, Interval)> {
        let rows = self.rows.iter().skip(1);
        rows.map(|(row, values)| (row, of_rates(values)))
    }
}

/// Interval of rates, by their logarithms: no rate is below zero.
fn of_rates(values: &[f64]) -> Interval {
    let logarithms: Vec<f64> = values.iter().map(|value| value.ln()).collect();
    let Interval { mean, low, high } = Interval::of(&logarithms);
    Interval { mean: mean.exp(), low: low.exp(), high: high.exp() }
}

fn read(bytes: &[u8]) -> u64 {
    std::hint::black_box(sum(bytes));
    bytes.len() as u64
}

/// Runs `work` in a thread on a CPU: memory is of the node of the CPU that touches it first.
fn on_cpu<T: Send>(cpu: u32, work: impl FnOnce() -> Result<T, Fault> + Send) -> Result<T, Fault> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            affinity::pin_to(cpu)?;
            work()
        });
        thread.join().expect("it returns its fault")
    })
}

/// Amount of work that CPUs do in a second, all at once; each is given its place.
fn together(cpus: &[u32], piece: impl Fn(usize) -> u64 + Sync) -> Result<f64, Fault> {
    let barrier = Barrier::new(cpus.len());
    let one = |at: usize, cpu: u32| -> Result<f64, Fault> {
        let placed = affinity::pin_to(cpu);
        // Others wait for this thread, whether it can work or not.
        barrier.wait();
        placed?;
        Ok(rate(|| piece(at)))
    };
    std::thread::scope(|scope| {
        let one = &one;
        let cpus = cpus.iter().enumerate();
        let threads: Vec<_> = cpus.map(|(at, &cpu)| scope.spawn(move || one(at, cpu))).collect();
        let rates = threads.into_iter();
        rates.map(|thread| thread.join().expect("it returns its fault")).sum()
    })
}

fn rate(piece: impl Fn() -> u64) -> f64 {
    let (begin_ns, mut done) = (monotonic_ns(), 0);
    loop {
        done += piece();
        let passed_ns = monotonic_ns() - begin_ns;
        if passed_ns >= TIME_NS {
            return done as f64 / passed_ns as f64 * 1e9;
        }
    }
}

#[cfg(test)]
mod tests {
    use daqmeter_record::host::NumaNode;

    use super::*;

    fn host(cpus: u32, siblings: &[[u32; 2]], nodes: &[&[u32]], slower: &[u32]) -> Host {
        let node = |(node, cpus): (u32, &&[u32])| NumaNode { node, cpus: cpus.to_vec() };
        Host {
            allowed_cpus: (0..cpus).collect(),
            siblings: siblings.iter().map(|core| core.to_vec()).collect(),
            numa: (0..).zip(nodes).map(node).collect(),
            slower_cpus: slower.to_vec(),
            ..Host::default()
        }
    }

    fn rows(host: &Host) -> Vec<(String, Vec<u32>)> {
        let all = ceilings(host).into_iter();
        all.map(|row| (row.name, row.cpus)).collect()
    }

    fn row(name: &str, cpus: &[u32]) -> (String, Vec<u32>) {
        (name.to_owned(), cpus.to_vec())
    }

    #[test]
    fn one_cpu_is_a_core_with_its_memory() {
        let wanted = [row("a core", &[0]), row("memory from a core", &[0])];
        assert_eq!(rows(&host(1, &[], &[], &[])), wanted);
        assert_eq!(rows(&host(1, &[], &[&[0]], &[])), wanted);
        assert_eq!(rows(&Host::default()), []);
    }

    #[test]
    fn kinds_of_cores_and_threads_of_a_core_are_rows_where_there_are_several() {
        let hybrid = host(4, &[[0, 1]], &[&[0, 1, 2, 3]], &[2, 3]);
        let wanted = [
            row("a fast core", &[1]),
            row("a slow core", &[3]),
            row("the threads of a core", &[0, 1]),
            row("all CPUs together", &[1, 3, 2, 0]),
            row("memory from a core", &[1]),
        ];
        assert_eq!(rows(&hybrid), wanted);
        // A sibling that may not be used shares nothing.
        let alone = Host { allowed_cpus: vec![1, 2], slower_cpus: Vec::new(), ..hybrid };
        assert_eq!(rows(&alone)[1], row("all CPUs together", &[2, 1]));
    }

    #[test]
    fn each_pair_of_nodes_is_a_row_with_one_thread_for_each_core() {
        let pairs = [[0, 1], [2, 3], [4, 5], [6, 7]];
        let two = host(8, &pairs, &[&[0, 1, 2, 3], &[4, 5, 6, 7]], &[]);
        let wanted = [
            row("memory of node 0 from its cores", &[3, 1]),
            row("memory of node 1 from node 0", &[3, 1]),
            row("memory of node 0 from node 1", &[7, 5]),
            row("memory of node 1 from its cores", &[7, 5]),
        ];
        assert_eq!(rows(&two)[3..], wanted);
    }

    #[test]
    fn what_is_measured_is_positive_and_the_first_core_is_left_out() {
        let cpu = affinity::allowed_cpus().unwrap()[0];
        let here = Host { allowed_cpus: vec![cpu], ..Host::default() };
        let mut found = Ceilings::new(&here).unwrap();
        found.measure().unwrap();
        found.measure().unwrap();
        let values: Vec<Interval> = found.found().map(|(_, value)| value).collect();
        assert!(values.len() == 1 && values[0].mean > 1e6, "{values:?}");
    }

    #[test]
    fn no_end_of_an_interval_of_rates_is_below_zero() {
        let found = of_rates(&[1.0, 1e4]);
        assert!(found.low > 0.0 && found.high > 1e4, "{found:?}");
        assert!((found.mean - 100.0).abs() < 1e-9);
        assert_eq!(of_rates(&[7.0]).low, 0.0);
    }
}
