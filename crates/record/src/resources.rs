//! Use of each resource by a block of a path, and the rate that the resources allow (operational
//! analysis: Denning and Buzen, "The Operational Analysis of Queueing Network Models", Computing
//! Surveys 10(3), 1978: the utilisation law, and bottlenecks).
//!
//! A resource is a row of threads, CPUs that threads share, or a link. Its *demand* is its
//! work time for one block of the whole path. Demand over capacity is the least time per block that
//! it allows. The resource with the largest such time is the bottleneck. Its *utilisation* in a run
//! is that time over the time per block of the run.

use std::collections::{BTreeMap, BTreeSet};

use crate::RunRecord;
use crate::border::sum;
pub use crate::path::What;
use crate::path::{End, PathLink, PathRun, PathThread};

#[derive(Clone, Debug, PartialEq)]
pub struct Resource {
    pub what: What,
    /// Number of threads or CPUs; 1 for a connection and a link.
    pub capacity: f64,
    /// Nanoseconds for one block of the whole path, by element.
    pub uses: BTreeMap<usize, f64>,
    /// Nanoseconds for one block in which its threads were ready without a CPU.
    pub preempted_ns: f64,
}

impl Resource {
    pub fn least_ns(&self) -> f64 {
        self.uses.values().sum::<f64>() / self.capacity
    }

    /// Returns the least nanoseconds per block beside other threads: one that waits for a CPU does
    /// not work, but delays the next block. Above the time per block if threads wait for CPUs.
    pub fn least_beside_others_ns(&self) -> f64 {
        self.least_ns() + self.preempted_ns / self.capacity
    }

    /// Returns the growth of the path's time per block per added nanosecond of an element, while
    /// this resource is the bottleneck. An element with several threads gets the addition for each
    /// block of a thread.
    pub fn slope(&self, element: usize, threads: usize) -> f64 {
        match self.what {
            What::Threads { .. } | What::Cpu(_) | What::AllCpus
                if self.uses.contains_key(&element) =>
            {
                threads as f64 / self.capacity
            }
            _ => 0.0,
        }
    }
}

/// Returns the resources of a path's run: threads of each part, connections, CPUs, known links.
/// Empty for a run without blocks, or with threads that name no part. Runs of one path give equal
/// resources in equal order.
pub fn resources(record: &RunRecord) -> Vec<Resource> {
    let Some(run) = record.sections.path.as_deref() else {
        return Vec::new();
    };
    let blocks = run.blocks as f64;
    if run.blocks == 0 || run.threads.iter().any(|thread| thread.part.is_empty()) {
        return Vec::new();
    }
    let same = |a: &PathThread, b: &PathThread| a.element == b.element && a.part == b.part;
    let rows: Vec<&[PathThread]> = run.threads.chunk_by(same).collect();
    let threads = rows.iter().map(|row| threads(row, blocks));
    let between = rows.windows(2).filter_map(|pair| between(pair[0], pair[1], blocks));
    let links = run.links.iter().map(link);
    threads.chain(between).chain(shared(run, &stolen(record, run))).chain(links).collect()
}

/// Returns the resource of threads of one part. They work if they do not wait for a neighbour: on a
/// CPU, or for their device. The system calls of a socket's end wait for the other end.
fn threads(row: &[PathThread], blocks: f64) -> Resource {
    let first = &row[0];
    let worked_ns = |thread: &PathThread| match thread.end {
        None => thread.busy_ns.saturating_add(thread.elsewhere_ns),
        Some(_) => thread.busy_ns,
    };
    let mut uses: BTreeMap<usize, f64> = BTreeMap::new();
    for thread in row {
        add_uses(&mut uses, thread, worked_ns(thread), blocks);
    }
    let preempted_ns = sum(row.iter().filter_map(|thread| thread.preempted_ns));
    Resource {
        what: What::Threads { element: first.element, name: first.part.clone() },
        capacity: row.len() as f64,
        uses,
        preempted_ns: preempted_ns as f64 / blocks,
    }
}

/// Adds the work of a thread for one block: its own and that of the elements in it.
fn add_uses(uses: &mut BTreeMap<usize, f64>, thread: &PathThread, worked_ns: u64, blocks: f64) {
    let all_ns = worked_ns as f64 / blocks;
    let within = thread.within.iter().map(|within| within.ns as f64 / blocks);
    // Their time may include waits for a CPU: they cannot work longer than their thread.
    let share = (all_ns / within.sum::<f64>().max(f64::MIN_POSITIVE)).min(1.0);
    let mut own_ns = all_ns;
    for within in &thread.within {
        let ns = within.ns as f64 / blocks * share;
        *uses.entry(within.element).or_default() += ns;
        own_ns -= ns;
    }
    *uses.entry(thread.element).or_default() += own_ns.max(0.0);
}

/// Returns a connection: both ends wait in system calls only if it is slow.
fn between(from: &[PathThread], to: &[PathThread], blocks: f64) -> Option<Resource> {
    let (from, to) = (from.first()?, to.first()?);
    let is_pair = from.end == Some(End::Out) && to.end == Some(End::In);
    let waited_ns = from.elsewhere_ns.min(to.elsewhere_ns) as f64;
    is_pair.then(|| Resource {
        what: What::Between {
            element: from.element,
            name: from.part.trim_end_matches(" out").to_owned(),
        },
        capacity: 1.0,
        uses: BTreeMap::from([(from.element, waited_ns / blocks)]),
        preempted_ns: 0.0,
    })
}

/// Returns each CPU with its pinned threads; all CPUs if a thread is free and their number is
/// known. `stolen` is the share of each CPU that the hypervisor took.
fn shared(run: &PathRun, stolen: &BTreeMap<u32, f64>) -> Vec<Resource> {
    let of = |what, capacity, is_its: &dyn Fn(&PathThread) -> bool| {
        let (mut uses, mut preempted_ns, blocks) = (BTreeMap::new(), 0.0, run.blocks as f64);
        for thread in run.threads.iter().filter(|thread| is_its(thread)) {
            // A thread that polls in a wait leaves its CPU to others: no block needs that.
            add_uses(&mut uses, thread, thread.busy_ns, blocks);
            preempted_ns += thread.preempted_ns.unwrap_or(0) as f64 / blocks;
        }
        Resource { what, capacity, uses, preempted_ns }
    };
    let cpus: BTreeSet<Option<u32>> = run.threads.iter().map(|thread| thread.cpu).collect();
    let is_free = cpus.contains(&None) && run.cpus > 0.0;
    let pinned = cpus.into_iter().flatten().map(|cpu| {
        let capacity = left(1.0, stolen.get(&cpu).copied().unwrap_or(0.0));
        of(What::Cpu(cpu), capacity, &|thread| thread.cpu == Some(cpu))
    });
    let all = || of(What::AllCpus, left(run.cpus, stolen.values().sum()), &|_| true);
    pinned.chain(is_free.then(all)).collect()
}

/// Returns the share of its time that the hypervisor took from each CPU that the process may use.
/// Empty if a quota gives the process less than its CPUs: the hypervisor may take from the rest.
fn stolen(record: &RunRecord, run: &PathRun) -> BTreeMap<u32, f64> {
    let allowed = &record.host.allowed_cpus;
    if run.cpus < allowed.len() as f64 {
        return BTreeMap::new();
    }
    let share = |cpu: &u32| {
        let ns = *record.host_cpu.steal_by_cpu_ns.get(cpu)?;
        Some((*cpu, ns as f64 / record.wall_ns.max(1) as f64))
    };
    allowed.iter().filter_map(share).collect()
}

/// Returns the CPUs less the share of the hypervisor. Threads' CPU time excludes stolen time
/// (`update_rq_clock_task`, kernel/sched/core.c), so a CPU that never idles works only that much.
fn left(cpus: f64, stolen: f64) -> f64 {
    (cpus - stolen).max(MIN_LEFT * cpus)
}

/// Lower limit: the kernel counts in ticks, which may exceed the time of a short run.
const MIN_LEFT: f64 = 0.1;

fn link(link: &PathLink) -> Resource {
    let ns = link.bytes_per_block / link.bytes_per_s.max(f64::MIN_POSITIVE) * 1e9;
    Resource {
        what: What::Link { element: link.element, name: link.name.clone(), by: link.by },
        capacity: 1.0,
        uses: BTreeMap::from([(link.element, ns)]),
        preempted_ns: 0.0,
    }
}

pub fn bottleneck(resources: &[Resource]) -> Option<(&Resource, f64)> {
    let each = resources.iter().map(|resource| (resource, resource.least_ns()));
    each.max_by(|a, b| a.1.total_cmp(&b.1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::{LinkBy, PathWithin};
    use crate::{Host, Sections};

    fn thread(element: usize, part: &str, cpu: Option<u32>, busy_ns: u64) -> PathThread {
        PathThread {
            element,
            part: part.to_owned(),
            cpu,
            busy_ns,
            cpu_ns: busy_ns,
            ..PathThread::default()
        }
    }

    fn record(blocks: u64, cpus: f64, threads: Vec<PathThread>) -> RunRecord {
        let run = PathRun { blocks, cpus, threads, ..PathRun::default() };
        let sections = Sections { path: Some(Box::new(run)), ..Sections::default() };
        RunRecord { sections, ..RunRecord::default() }
    }

    fn least_of(all: &[Resource], text: &str) -> f64 {
        let found = all.iter().find(|resource| resource.what.text() == text);
        let found = found.unwrap_or_else(|| panic!("{text}: {all:?}"));
        found.least_ns()
    }

    #[test]
    fn cpus_carry_less_by_what_the_hypervisor_took() {
        let threads = |cpu| {
            vec![thread(0, "memory", Some(cpu), 80_000_000), thread(1, "read", None, 90_000_000)]
        };
        // CPU 1 never idles: it works 80 ms, and 20 were stolen. Of two CPUs 1.7 are left. Beside a
        // quota and on CPUs of others nothing is taken off. Ticks may exceed the time of the run.
        for (allowed, cpus, stolen_ns, wanted) in [
            (vec![0, 1], 2.0, [10, 20], [1_000_000.0, 1_000_000.0]),
            (vec![0, 1], 1.5, [10, 20], [800_000.0, 1_700_000.0 / 1.5]),
            (vec![1, 7], 2.0, [10, 20], [1_000_000.0, 1_700_000.0 / 1.8]),
            (vec![0, 1], 2.0, [0, 200], [8_000_000.0, 8_500_000.0]),
        ] {
            let mut record = record(100, cpus, threads(1));
            record.wall_ns = 100_000_000;
            record.host = Host { allowed_cpus: allowed, ..Host::default() }.into();
            let stolen_ns = (0..).zip(stolen_ns.map(|ms| ms * 1_000_000));
            record.host_cpu.steal_by_cpu_ns = stolen_ns.collect();
            let all = resources(&record);
            let found = ["CPU 1", "all CPUs together"].map(|text| least_of(&all, text));
            let is_close = found.iter().zip(wanted).all(|(ns, wanted)| (ns - wanted).abs() < 1.0);
            assert!(is_close, "{found:?} {wanted:?}");
        }
    }

    #[test]
    fn threads_share_the_work_and_cpus_carry_all_of_it() {
        // 100 blocks: the board waits for its device, two threads convert.
        let board = PathThread { elsewhere_ns: 40_000, ..thread(0, "board", None, 10_000) };
        let threads = vec![
            board,
            thread(1, "convert", None, 60_000),
            thread(1, "convert", None, 60_000),
            thread(2, "read", None, 30_000),
        ];
        let all = resources(&record(100, 4.0, threads.clone()));
        assert_eq!(least_of(&all, "board"), 500.0);
        assert_eq!(least_of(&all, "convert"), 600.0);
        assert_eq!(least_of(&all, "read"), 300.0);
        assert_eq!(least_of(&all, "all CPUs together"), 400.0);
        let (limit, ns) = bottleneck(&all).unwrap();
        assert_eq!((limit.what.text().as_str(), ns), ("convert", 600.0));
        let all = resources(&record(100, 1.0, threads));
        let (limit, ns) = bottleneck(&all).unwrap();
        assert_eq!((&limit.what, ns), (&What::AllCpus, 1600.0));
        assert_eq!((limit.slope(0, 1), limit.slope(1, 2)), (1.0, 2.0));
    }

    #[test]
    fn elements_in_the_thread_of_another_share_its_time_and_move_it_alike() {
        let within = |element, ns| PathWithin { element, ns, ..PathWithin::default() };
        let reader = PathThread {
            within: vec![within(0, 100), within(2, 500)],
            ..thread(1, "to-host", None, 1000)
        };
        let run_of = |reader: &PathThread| {
            let receiver = thread(3, "receiver", None, 700);
            resources(&record(1, 2.0, vec![reader.clone(), receiver]))
        };
        let all = run_of(&reader);
        assert_eq!(all[0].uses, BTreeMap::from([(0, 100.0), (1, 400.0), (2, 500.0)]));
        let slopes: Vec<f64> = (0..4).map(|element| all[0].slope(element, 1)).collect();
        assert_eq!(slopes, [1.0, 1.0, 1.0, 0.0]);
        assert_eq!(least_of(&all, "all CPUs together"), 850.0);
        // A thread that waited for its CPU meanwhile counts no more than its work.
        let preempted = PathThread { within: vec![within(0, 1000), within(2, 1000)], ..reader };
        let uses = &run_of(&preempted)[0].uses;
        assert_eq!((uses[&0], uses[&1], uses[&2]), (500.0, 0.0, 500.0));
    }

    #[test]
    fn a_thread_that_waits_for_a_cpu_keeps_the_next_block_waiting() {
        let preempted = PathThread { preempted_ns: Some(300), ..thread(0, "memory", None, 500) };
        let all = resources(&record(1, 2.0, vec![preempted]));
        assert_eq!(least_of(&all, "memory"), 500.0);
        assert_eq!(all[0].least_beside_others_ns(), 800.0);
    }

    /// Regression: threads that wait for the CPUs of one another looked busier than those CPUs.
    #[test]
    fn cpus_are_wanted_by_what_works_and_by_what_waits_for_one_but_not_by_polls_and_timers() {
        let mut source = PathThread { preempted_ns: Some(600), ..thread(0, "memory", None, 500) };
        (source.cpu_ns, source.due_cpu_ns) = (800, 200);
        let all = resources(&record(1, 2.0, vec![source.clone(), source]));
        assert_eq!(least_of(&all, "all CPUs together"), 500.0);
        assert_eq!(all[1].least_beside_others_ns(), 1100.0);
    }

    #[test]
    fn pinned_threads_load_their_own_cpu() {
        let pinned = vec![
            thread(0, "memory", Some(0), 500),
            thread(1, "copy", Some(1), 400),
            thread(2, "read", Some(1), 300),
        ];
        let all = resources(&record(1, 2.0, pinned));
        let (limit, ns) = bottleneck(&all).unwrap();
        assert_eq!((&limit.what, ns), (&What::Cpu(1), 700.0));
        assert!(!all.iter().any(|resource| resource.what == What::AllCpus));
        assert_eq!((limit.slope(0, 1), limit.slope(2, 1)), (0.0, 1.0));
    }

    #[test]
    fn a_full_socket_is_not_the_work_of_its_writer() {
        let threads = |to_ns| {
            let out = PathThread {
                end: Some(End::Out),
                elsewhere_ns: 700,
                ..thread(1, "tcp out", None, 200)
            };
            let inward = PathThread {
                end: Some(End::In),
                elsewhere_ns: to_ns,
                ..thread(1, "tcp in", None, 250)
            };
            let read = thread(2, "read", None, 900);
            vec![thread(0, "memory", None, 100), out, inward, read]
        };
        let all = resources(&record(1, 8.0, threads(20)));
        assert_eq!(least_of(&all, "tcp out"), 200.0);
        assert_eq!(least_of(&all, "tcp, between its ends"), 20.0);
        assert_eq!(bottleneck(&all).unwrap().0.what.text(), "read");
        // If both ends wait, the connection is slow.
        let all = resources(&record(1, 8.0, threads(990)));
        assert_eq!(least_of(&all, "tcp, between its ends"), 700.0);
    }

    #[test]
    fn links_that_carry_a_known_rate_are_resources() {
        let mut record = record(10, 2.0, vec![thread(0, "board", None, 500)]);
        record.sections.path.as_mut().unwrap().links = vec![PathLink {
            element: 0,
            name: "PCIe of a board".to_owned(),
            bytes_per_s: 2e9,
            bytes_per_block: 4000.0,
            by: LinkBy::Sysfs,
        }];
        let all = resources(&record);
        assert_eq!(least_of(&all, "PCIe of a board, by sysfs"), 2000.0);
        assert_eq!(all[2].slope(0, 1), 0.0);
    }

    #[test]
    fn records_from_before_say_nothing_about_resources() {
        assert!(resources(&record(10, 2.0, vec![thread(0, "", None, 5)])).is_empty());
        assert!(resources(&record(0, 2.0, vec![thread(0, "memory", None, 5)])).is_empty());
    }
}
