//! Holds `daqmeter hosts` to its promises: farms are drawn from files of unchanged hosts.
//!
//! `cargo bench -p daqmeter-report --bench farms -- FOLDER [FARMS]`: each file of the folder is one
//! run of `daqmeter survey`. A host of a farm has the runs of files drawn by lot, its own speed (0.5
//! % by kind of points, 0.3 % by point), and in a second setting tails of its runs as heavy as
//! Student's with four degrees of freedom. Half of a farm is of another kind of machine. Hosts that are not told at
//! once are measured again, up to four runs.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints and may stop")]

use std::sync::Arc;

use daqmeter_record::{Host, jsonl};
use daqmeter_report::hosts::{
    Farm, FarmFile, FarmSide, HostVerdict, JudgedFarm, PointKind, judged,
};
use daqmeter_stats::{Random, median};

const IGNORE: f64 = 0.02;
const MOST_RUNS: usize = 4;
const OWN: (f64, f64) = (0.005, 0.003);

/// Files of one host, and what they are drawn with.
struct Base {
    farm: Farm,
    /// Kind of each point, and the distance of each file from the middle.
    points: Vec<(PointKind, Vec<f64>)>,
    facts: [Arc<Host>; 2],
}

/// A drawn host.
struct Drawn {
    is_second: bool,
    runs: Vec<usize>,
    /// Tails of each run by kind, and logarithms of its own factor by kind and by point.
    tails: Vec<[f64; 6]>,
    own: [f64; 6],
    points: Vec<f64>,
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let Some(folder) = words.first() else { return println!("name a folder of files") };
    let farms: usize = words.get(1).and_then(|count| count.parse().ok()).unwrap_or(100);
    let base = Base::read(folder);
    if words.get(1).is_some_and(|word| word == "spread") {
        let named = base.farm.logs();
        for ((kind, off), (name, _)) in base
            .points
            .iter()
            .zip(base.farm.names().iter().zip(named))
            .map(|(a, (n, b))| (a, (n.clone(), b)))
        {
            let mut sorted: Vec<f64> = off.iter().map(|x| x.abs() * 100.0).collect();
            sorted.sort_by(f64::total_cmp);
            let at = |q: f64| sorted[(q * (sorted.len() - 1) as f64) as usize];
            println!(
                "{kind:?} {name}: {:.1} {:.1} {:.1} {:.1} n {}",
                at(0.5),
                at(0.68),
                at(0.9),
                at(1.0),
                off.len()
            );
        }
        let all: Vec<_> = (0..base.files())
            .map(|at| (format!("n{at}"), Arc::clone(&base.facts[0]), vec![at]))
            .collect();
        let farm = base.farm.drawn(&all, |_, _, _| 0.0);
        println!("{}", judged(&farm, &[], IGNORE).frame().text(None));
        return;
    }
    for is_heavy in [false, true] {
        for hosts in [16, 32, 100, 500] {
            let farms = farms.min(farms * 100 / hosts).max(10);
            println!(
                "{hosts} hosts, {farms} farms, {} tails",
                ["measured", "heavy"][usize::from(is_heavy)]
            );
            let kinds = [
                None,
                Some(PointKind::Core),
                Some(PointKind::Memory),
                Some(PointKind::Disk),
                Some(PointKind::Network),
            ];
            for slow in kinds {
                let mut counts = [0; 6];
                for seed in 0..farms {
                    let one = base.farm_of(hosts, slow, is_heavy, seed as u64);
                    counts.iter_mut().zip(one).for_each(|(sum, is)| *sum += usize::from(is));
                }
                let [alarm, found, named, groups, first, again] = counts;
                println!(
                    "  {slow:?}: false alarm {alarm}, found {found}, named {named}, groups right {groups}, found by one run {first}, farms with more than two healthy hosts measured again {again}"
                );
            }
        }
    }
}

impl Base {
    fn read(folder: &str) -> Base {
        let mut farm = Farm::default();
        let mut paths: Vec<_> =
            std::fs::read_dir(folder).unwrap().map(|it| it.unwrap().path()).collect();
        paths.retain(|path| path.extension().is_some_and(|end| end == "jsonl"));
        paths.sort();
        let mut facts = Host::default();
        for path in paths {
            let file = std::io::BufReader::new(std::fs::File::open(&path).unwrap());
            let mut records = jsonl::read(file).unwrap().records;
            let name = path.display().to_string();
            let host = Arc::new(Host { name: name.clone(), ..(*records[0].host).clone() });
            records.iter_mut().for_each(|record| record.host = Arc::clone(&host));
            facts = (*host).clone();
            farm.add(FarmFile::of(&name, &name, FarmSide::Before, records, Vec::new()));
        }
        let logs = farm.logs().into_iter().map(|(kind, logs)| {
            let known: Vec<f64> = logs.iter().copied().flatten().collect();
            let middle = median(&known).unwrap();
            (kind, logs.iter().map(|log| log.map_or(0.0, |log| log - middle)).collect())
        });
        let points = logs.collect();
        let second = Host { cpu_model: "another".to_owned(), ..facts.clone() };
        Base { farm, points, facts: [Arc::new(facts), Arc::new(second)] }
    }

    fn files(&self) -> usize {
        self.points[0].1.len()
    }

    fn drawn(&self, random: &mut Random, is_second: bool, is_heavy: bool) -> Drawn {
        let own = std::array::from_fn(|_| OWN.0 * random.normal());
        let points = self.points.iter().map(|_| OWN.1 * random.normal()).collect();
        let mut host = Drawn { is_second, runs: Vec::new(), tails: Vec::new(), own, points };
        self.measured(&mut host, random, is_heavy);
        host
    }

    /// Adds a run.
    fn measured(&self, host: &mut Drawn, random: &mut Random, is_heavy: bool) {
        // No two runs of a host are the same file.
        let drawn = std::iter::repeat_with(|| (random.uniform() * self.files() as f64) as usize);
        let next = drawn.into_iter().find(|file| !host.runs.contains(file)).unwrap();
        host.runs.push(next);
        let mut tail = |_| {
            let squares: f64 = (0..4).map(|_| random.normal().powi(2)).sum();
            if is_heavy { (4.0 / squares).sqrt() } else { (0.3 * random.normal()).exp() }
        };
        host.tails.push(std::array::from_fn(&mut tail));
    }

    /// Judges a farm; one host is 5 % slower at a kind of points.
    fn farm_of(
        &self,
        count: usize,
        slow: Option<PointKind>,
        is_heavy: bool,
        seed: u64,
    ) -> [bool; 6] {
        let mut random = Random::new(seed * 7919 + count as u64);
        let mut hosts: Vec<Drawn> =
            (0..count).map(|at| self.drawn(&mut random, at % 2 == 1, is_heavy)).collect();
        let slow_one = (random.uniform() * count as f64) as usize;
        let second: Vec<f64> = self.points.iter().map(|_| 0.3 * random.normal()).collect();
        let is = |at: usize, found: &JudgedFarm, verdict| found.hosts[at].verdict == verdict;
        let mut first = false;
        for round in 0.. {
            let named = |(at, host): (usize, &Drawn)| {
                let facts = Arc::clone(&self.facts[usize::from(host.is_second)]);
                (format!("n{at:03}"), facts, host.runs.clone())
            };
            let all: Vec<_> = hosts.iter().enumerate().map(named).collect();
            let farm = self.farm.drawn(&all, |at, run, point| {
                let (kind, off) = &self.points[point];
                let host = &hosts[at];
                let off = off[host.runs[run]] * (host.tails[run][*kind as usize] - 1.0);
                let by = if at == slow_one && slow == Some(*kind) { 0.05_f64.ln_1p() } else { 0.0 };
                let machine = if host.is_second { second[point] } else { 0.0 };
                off + by + machine + host.own[*kind as usize] + host.points[point]
            });
            let found = judged(&farm, &[], IGNORE);
            let doubtful = |at: &usize| {
                [HostVerdict::Suspect, HostVerdict::Unconfirmed]
                    .iter()
                    .any(|own| is(*at, &found, *own))
            };
            let again: Vec<usize> = (0..count).filter(doubtful).collect();
            if round == 0 {
                first = is(slow_one, &found, HostVerdict::Different);
            }
            let is_last = round + 1 == MOST_RUNS || again.is_empty();
            if !is_last {
                again.iter().for_each(|at| self.measured(&mut hosts[*at], &mut random, is_heavy));
                continue;
            }
            let own = slow.map(|_| slow_one);
            for at in 0..count {
                if Some(at) != own && is(at, &found, HostVerdict::Different) {
                    let one = &found.hosts[at];
                    println!(
                        "    {} {} runs {:?} {:?}: {:?} {:?} {:?} z {}",
                        one.name,
                        one.runs,
                        hosts[at].runs,
                        one.group,
                        one.findings[0].kind,
                        one.findings[0].point,
                        one.findings[0].interval,
                        one.findings[0].z
                    );
                }
            }
            let alarm =
                (0..count).any(|at| Some(at) != own && is(at, &found, HostVerdict::Different));
            let is_found = own.is_some_and(|at| is(at, &found, HostVerdict::Different));
            let named = is_found && found.hosts[slow_one].findings[0].kind == slow.unwrap();
            let groups = found.groups.len() == 2
                && found
                    .hosts
                    .iter()
                    .zip(&hosts)
                    .all(|(host, drawn)| (host.group == "B") == drawn.is_second);
            let measured =
                (0..count).filter(|at| Some(*at) != own && hosts[*at].runs.len() > 1).count();
            return [alarm, is_found, named, groups, first, measured > 2];
        }
        unreachable!("a farm has a last round")
    }
}
