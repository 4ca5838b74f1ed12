//! CPUs for the threads of a path while it is explained.

use daqmeter_harness::placement;
use daqmeter_path::{Path, PathRequest, device_node};
use daqmeter_record::path::PathThread;
use daqmeter_record::{Host, sanitise};
use daqmeter_sys::host::Files;

use super::max::{probe_quietly, run_of};
use crate::measure::Bench;
use crate::output::Failure;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Placed {
    /// CPUs of the path's file or of `--pin`.
    AsGiven,
    /// Each thread on a core of its own.
    OwnCores {
        threads: Vec<(String, u32)>,
        /// NUMA node of the device, whose cores were taken first.
        near: Option<u32>,
    },
    /// More threads than cores: the scheduler places them.
    Free { threads: usize, cores: usize },
}

impl Placed {
    /// Chooses CPUs by their shared resources, if the user chose none and each thread can have a
    /// core; the request then has those CPUs.
    pub(super) fn choose(
        bench: &Bench,
        path: &Path,
        request: &mut PathRequest,
    ) -> Result<Placed, Failure> {
        let record = probe_quietly(bench, request)?;
        let near = device_node(path, &Files::default());
        let placed = Placed::of(&bench.runner.context.host, near, &run_of(&record)?.threads);
        if let Placed::OwnCores { threads, .. } = &placed {
            request.cpus = threads.iter().map(|(_, cpu)| *cpu).collect();
        }
        Ok(placed)
    }

    fn of(host: &Host, near: Option<u32>, threads: &[PathThread]) -> Placed {
        let cores = placement::cores(host);
        if threads.iter().any(|thread| thread.cpu.is_some()) {
            return Placed::AsGiven;
        }
        if threads.len() > cores {
            let threads = threads.len();
            return Placed::Free { threads, cores };
        }
        let busy_ns: Vec<f64> = threads.iter().map(|thread| thread.busy_ns as f64).collect();
        let cpus = placement::spread(host, near, &busy_ns);
        let names = threads.iter().map(|thread| thread.name.clone());
        Placed::OwnCores {
            threads: names.zip(cpus).collect(),
            // Nearness says nothing with a single node.
            near: near.filter(|_| host.numa.len() > 1),
        }
    }

    pub(super) fn text(&self) -> String {
        match self {
            Placed::AsGiven => "as the file or --pin says".to_owned(),
            Placed::OwnCores { threads, near } => {
                let one = |(name, cpu): &(String, u32)| format!("{name} on CPU {cpu}");
                let all: Vec<String> = threads.iter().map(one).collect();
                let near =
                    near.map(|node| format!(", first those of node {node}, where the device is"));
                let near = near.unwrap_or_default();
                let text = format!("a core for each thread{near}: {}", all.join(", "));
                sanitise::text(&text).into_owned()
            }
            Placed::Free { threads, cores } => format!(
                "{threads} threads, but {cores} {}: left to the scheduler",
                if *cores == 1 { "core" } else { "cores" }
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threads(busy_ns: &[u64]) -> Vec<PathThread> {
        let thread = |(at, &busy_ns): (usize, &u64)| PathThread {
            name: format!("part {at}"),
            busy_ns,
            ..PathThread::default()
        };
        busy_ns.iter().enumerate().map(thread).collect()
    }

    fn host(siblings: &[[u32; 2]], slower: &[u32]) -> Host {
        Host {
            allowed_cpus: (0..4).collect(),
            siblings: siblings.iter().map(|core| core.to_vec()).collect(),
            slower_cpus: slower.to_vec(),
            ..Host::default()
        }
    }

    #[test]
    fn each_thread_gets_a_core_and_the_busiest_a_fast_one() {
        let placed = Placed::of(&host(&[], &[0, 3]), None, &threads(&[5, 90, 80]));
        assert_eq!(
            placed.text(),
            "a core for each thread: part 0 on CPU 3, part 1 on CPU 2, part 2 on CPU 1"
        );
    }

    #[test]
    fn where_threads_would_share_a_core_the_scheduler_places_them() {
        let two_cores = host(&[[0, 1], [2, 3]], &[]);
        let placed = Placed::of(&two_cores, None, &threads(&[5, 90, 80]));
        assert_eq!(placed.text(), "3 threads, but 2 cores: left to the scheduler");
        assert!(matches!(
            Placed::of(&two_cores, None, &threads(&[5, 90])),
            Placed::OwnCores { .. }
        ));
    }

    #[test]
    fn cpus_that_somebody_chose_are_kept() {
        let mut chosen = threads(&[5, 90]);
        chosen[1].cpu = Some(0);
        assert_eq!(Placed::of(&host(&[], &[]), None, &chosen), Placed::AsGiven);
    }
}
