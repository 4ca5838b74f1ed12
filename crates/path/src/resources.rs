//! What a block of a path needs of each resource, and the rate that the resources allow (operational analysis: Denning and Buzen,
//! "The Operational Analysis of Queueing Network Models", Computing Surveys 10(3), 1978: the utilisation law, and bottlenecks).
//!
//! A resource is a row of threads, or CPUs that threads share. Its *demand* is the time that it works for one block of the whole path; over
//! its capacity this is the time per block below which the path cannot come. The resource with the largest such time is the
//! bottleneck. Its *utilisation* in a run is that time over the time per block of the run.

use std::collections::BTreeMap;

use daqmeter_record::PathRun;

/// The threads of an element that do the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Station {
    /// The element's number; 0 is the source.
    pub element: usize,
    /// Its name; the ends of a stage with two are named apart.
    pub name: String,
    /// Threads, each of which takes its share of the blocks.
    pub threads: usize,
    /// How its time is read.
    pub kind: Kind,
}

/// How the time of a thread is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It works when it does not wait for a neighbour: on a CPU, or for its device.
    Whole,
    /// It writes to a socket or a pipe: what it waits for in there is the other end.
    Out,
    /// It reads from one.
    In,
}

/// A resource and what one block of the whole path takes of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Resource {
    /// What it is.
    pub what: What,
    /// Threads or CPUs.
    pub capacity: f64,
    /// Nanoseconds for one block of the whole path, by element.
    pub uses: BTreeMap<usize, f64>,
}

/// Which resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// Threads of one element.
    Threads {
        /// The element.
        element: usize,
        /// Their name.
        name: String,
    },
    /// What lies between the two ends of a stage: a socket, a pipe, a program.
    Between {
        /// The element.
        element: usize,
        /// Its name.
        name: String,
    },
    /// A CPU that threads are pinned to.
    Cpu(u32),
    /// All CPUs that may be used.
    AllCpus,
}

impl What {
    /// As it is called in answers.
    pub fn text(&self) -> String {
        match self {
            What::Threads { name, .. } => name.clone(),
            What::Between { name, .. } => format!("{name}, between its ends"),
            What::Cpu(cpu) => format!("CPU {cpu}"),
            What::AllCpus => "all CPUs together".to_owned(),
        }
    }
}

impl Resource {
    /// Nanoseconds per block below which the path cannot come for it.
    pub fn least_ns(&self) -> f64 {
        self.uses.values().sum::<f64>() / self.capacity
    }

    /// The same if one element took nothing of it.
    pub fn least_without_ns(&self, element: usize) -> f64 {
        let rest = self.uses.iter().filter(|(at, _)| **at != element);
        rest.map(|(_, ns)| ns).sum::<f64>() / self.capacity
    }

    /// By how much the time per block of the path grows for a nanosecond that is added to the time per block of an element, while
    /// this resource is the bottleneck; an element with several threads gets as many nanoseconds for each block of a thread.
    pub fn slope(&self, element: usize, threads: usize) -> f64 {
        match self.what {
            What::Threads { element: own, .. } if own == element => 1.0,
            What::Cpu(_) | What::AllCpus if self.uses.contains_key(&element) => {
                threads as f64 / self.capacity
            }
            _ => 0.0,
        }
    }
}

/// What a run says about its resources. `cpus` is how many CPUs the process may use.
pub fn resources(run: &PathRun, stations: &[Station], cpus: f64) -> Vec<Resource> {
    let blocks = run.blocks.max(1) as f64;
    let mut rest = &run.threads[..];
    let mut rows = Vec::new();
    for station in stations {
        let (own, others) = rest.split_at(station.threads.min(rest.len()));
        rows.push((station, own));
        rest = others;
    }
    let mut all = Vec::new();
    let mut by_cpu: BTreeMap<Option<u32>, BTreeMap<usize, f64>> = BTreeMap::new();
    for (station, threads) in &rows {
        let service_ns: u64 = match station.kind {
            Kind::Whole => threads.iter().map(|t| t.busy_ns + t.elsewhere_ns).sum(),
            Kind::Out | Kind::In => threads.iter().map(|t| t.busy_ns).sum(),
        };
        all.push(Resource {
            what: What::Threads {
                element: station.element,
                name: station.name.clone(),
            },
            capacity: station.threads as f64,
            uses: BTreeMap::from([(station.element, service_ns as f64 / blocks)]),
        });
        for thread in *threads {
            let uses = by_cpu.entry(thread.cpu).or_default();
            *uses.entry(station.element).or_default() += thread.cpu_ns as f64 / blocks;
        }
    }
    all.extend(between(&rows, blocks));
    all.extend(shared(&by_cpu, cpus));
    all
}

type Row<'a> = (&'a Station, &'a [daqmeter_record::path::PathThread]);

/// Both ends of a stage wait in system calls only where what lies between them is slow.
fn between<'a>(rows: &'a [Row<'a>], blocks: f64) -> impl Iterator<Item = Resource> + 'a {
    rows.windows(2).filter_map(move |pair| {
        let ((out, from), (inward, to)) = (pair[0], pair[1]);
        let is_pair = out.kind == Kind::Out && inward.kind == Kind::In;
        let (from, to) = (from.first()?, to.first()?);
        let waited_ns = from.elsewhere_ns.min(to.elsewhere_ns) as f64;
        is_pair.then(|| Resource {
            what: What::Between {
                element: out.element,
                name: out.name.trim_end_matches(" out").to_owned(),
            },
            capacity: 1.0,
            uses: BTreeMap::from([(out.element, waited_ns / blocks)]),
        })
    })
}

/// Each CPU with its pinned threads; all CPUs where a thread is free.
fn shared(by_cpu: &BTreeMap<Option<u32>, BTreeMap<usize, f64>>, cpus: f64) -> Vec<Resource> {
    let mut all = BTreeMap::new();
    for uses in by_cpu.values() {
        for (element, ns) in uses {
            *all.entry(*element).or_insert(0.0) += ns;
        }
    }
    let pinned = by_cpu.iter().filter_map(|(cpu, uses)| {
        Some(Resource {
            what: What::Cpu((*cpu)?),
            capacity: 1.0,
            uses: uses.clone(),
        })
    });
    let free = by_cpu.contains_key(&None).then_some(Resource {
        what: What::AllCpus,
        capacity: cpus,
        uses: all,
    });
    pinned.chain(free).collect()
}

/// The bottleneck and the time per block that it allows; none of no resources.
pub fn bottleneck(resources: &[Resource]) -> Option<(&Resource, f64)> {
    let each = resources
        .iter()
        .map(|resource| (resource, resource.least_ns()));
    each.max_by(|a, b| a.1.total_cmp(&b.1))
}

/// The time per block that would be left if an element took no time at all.
pub fn least_without_ns(resources: &[Resource], element: usize) -> f64 {
    let each = resources
        .iter()
        .map(|resource| resource.least_without_ns(element));
    each.fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use daqmeter_record::path::PathThread;

    use super::*;

    fn station(element: usize, name: &str, threads: usize, kind: Kind) -> Station {
        Station {
            element,
            name: name.to_owned(),
            threads,
            kind,
        }
    }

    fn thread(cpu: Option<u32>, busy_ns: u64, elsewhere_ns: u64) -> PathThread {
        PathThread {
            cpu,
            busy_ns,
            elsewhere_ns,
            cpu_ns: busy_ns,
            ..PathThread::default()
        }
    }

    fn run(blocks: u64, threads: Vec<PathThread>) -> PathRun {
        PathRun {
            blocks,
            threads,
            ..PathRun::default()
        }
    }

    fn least_of<'a>(all: &'a [Resource], text: &str) -> (&'a Resource, f64) {
        let found = all.iter().find(|resource| resource.what.text() == text);
        let found = found.unwrap_or_else(|| panic!("{text}: {all:?}"));
        (found, found.least_ns())
    }

    #[test]
    fn threads_share_the_work_and_cpus_carry_all_of_it() {
        let stations = [
            station(0, "board", 1, Kind::Whole),
            station(1, "convert", 2, Kind::Whole),
            station(2, "read", 1, Kind::Whole),
        ];
        // 100 blocks: the board waits for its device, two threads convert.
        let run = run(
            100,
            vec![
                thread(None, 10_000, 40_000),
                thread(None, 60_000, 0),
                thread(None, 60_000, 0),
                thread(None, 30_000, 0),
            ],
        );
        let all = resources(&run, &stations, 4.0);
        assert_eq!(least_of(&all, "board").1, 500.0);
        assert_eq!(least_of(&all, "convert").1, 600.0);
        assert_eq!(least_of(&all, "read").1, 300.0);
        assert_eq!(least_of(&all, "all CPUs together").1, 400.0);
        let (limit, ns) = bottleneck(&all).unwrap();
        assert_eq!((limit.what.text().as_str(), ns), ("convert", 600.0));
        assert_eq!(least_without_ns(&all, 1), 500.0);
        // With one CPU they share that.
        let all = resources(&run, &stations, 1.0);
        let (limit, ns) = bottleneck(&all).unwrap();
        assert_eq!((&limit.what, ns), (&What::AllCpus, 1600.0));
        assert_eq!((limit.slope(0, 1), limit.slope(1, 2)), (1.0, 2.0));
    }

    #[test]
    fn pinned_threads_load_their_own_cpu() {
        let stations = [
            station(0, "memory", 1, Kind::Whole),
            station(1, "copy", 1, Kind::Whole),
            station(2, "read", 1, Kind::Whole),
        ];
        let pinned = vec![
            thread(Some(0), 500, 0),
            thread(Some(1), 400, 0),
            thread(Some(1), 300, 0),
        ];
        let all = resources(&run(1, pinned), &stations, 2.0);
        let (limit, ns) = bottleneck(&all).unwrap();
        assert_eq!((&limit.what, ns), (&What::Cpu(1), 700.0));
        assert!(!all.iter().any(|resource| resource.what == What::AllCpus));
        assert_eq!((limit.slope(0, 1), limit.slope(2, 1)), (0.0, 1.0));
    }

    #[test]
    fn a_full_socket_is_not_the_work_of_its_writer() {
        let stations = [
            station(0, "memory", 1, Kind::Whole),
            station(1, "tcp out", 1, Kind::Out),
            station(1, "tcp in", 1, Kind::In),
            station(2, "read", 1, Kind::Whole),
        ];
        let threads = |to_ns| {
            vec![
                thread(None, 100, 0),
                thread(None, 200, 700),
                thread(None, 250, to_ns),
                thread(None, 900, 0),
            ]
        };
        let all = resources(&run(1, threads(20)), &stations, 8.0);
        assert_eq!(least_of(&all, "tcp out").1, 200.0);
        assert_eq!(least_of(&all, "tcp, between its ends").1, 20.0);
        assert_eq!(bottleneck(&all).unwrap().0.what.text(), "read");
        // Where both ends wait, what lies between them is slow.
        let all = resources(&run(1, threads(990)), &stations, 8.0);
        assert_eq!(least_of(&all, "tcp, between its ends").1, 700.0);
    }
}
