//! Holds `daqmeter hosts` to its promises: farms are drawn from files of unchanged hosts.
//!
//! `cargo bench -p daqmeter-report --bench farms -- FOLDER [FARMS] [RUNS]`: each file of the folder is
//! one run of `daqmeter survey` or `run quick`. A host of a farm has the runs of files drawn by lot
//! and its own speed (0.5 % by kind of points, 0.3 % by point). The distance of a run from the
//! middle has a factor for each kind: log-normal with 0.3, or in a second setting as heavy as
//! Student's tails with four degrees of freedom. Half of a farm is of another kind of machine. Hosts
//! that are in doubt are measured again, up to three times.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a benchmark prints and may stop; numbers drawn are far below 2^53"
)]

use std::sync::Arc;

use daqmeter_record::{Host, jsonl};
use daqmeter_report::hosts::{
    Farm, FarmFile, FarmSide, HostVerdict, JudgedFarm, PointKind, judged,
};
use daqmeter_stats::{Random, median};

const IGNORE: f64 = 0.02;
const MAX_RUNS: usize = 4;
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
    let number = |at: usize, usual| words.get(at).map_or(usual, |word| word.parse().unwrap());
    let (farms, runs): (usize, usize) = (number(1, 100), number(2, 1));
    let base = Base::read(folder);
    println!("{} files; farms with 1 host 5 % slower; runs of each host {runs}", base.files());
    println!("tails hosts slow farms: alarm, found, named, groups right, most measured again");
    for (is_heavy, hosts) in [false, true].into_iter().flat_map(|is| SIZES.map(|size| (is, size))) {
        let farms = (farms * 100 / hosts).clamp(10, farms);
        let kinds = [PointKind::Core, PointKind::Memory, PointKind::Disk, PointKind::Network];
        let is_there = |kind: &PointKind| base.points.iter().any(|(own, _)| own == kind);
        let slow = kinds.into_iter().filter(is_there).map(Some);
        for slow in std::iter::once(None).chain(slow) {
            let mut counts = [0; 4];
            let mut again = 0;
            for seed in 0..farms {
                let drawn = Draw { hosts, slow, is_heavy, runs, seed: seed as u64 };
                let (one, measured) = base.judge(drawn);
                counts.iter_mut().zip(one).for_each(|(sum, is)| *sum += usize::from(is));
                again = again.max(measured);
            }
            let tails = if is_heavy { "heavy" } else { "measured" };
            println!("{tails:8} {hosts:3} {slow:?} {farms}: {counts:?} {again}");
        }
    }
}

const SIZES: [usize; 4] = [16, 32, 100, 500];

/// A farm to draw.
#[derive(Clone, Copy)]
struct Draw {
    hosts: usize,
    slow: Option<PointKind>,
    is_heavy: bool,
    runs: usize,
    seed: u64,
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

    fn drawn(&self, random: &mut Random, is_second: bool, draw: Draw) -> Drawn {
        let own = std::array::from_fn(|_| OWN.0 * random.normal());
        let points = self.points.iter().map(|_| OWN.1 * random.normal()).collect();
        let mut host = Drawn { is_second, runs: Vec::new(), tails: Vec::new(), own, points };
        (0..draw.runs).for_each(|_| self.measured(&mut host, random, draw.is_heavy));
        host
    }

    /// Adds a run, of another file than the others of this host.
    fn measured(&self, host: &mut Drawn, random: &mut Random, is_heavy: bool) {
        let mut files =
            std::iter::repeat_with(|| (random.uniform() * self.files() as f64) as usize);
        host.runs.push(files.find(|file| !host.runs.contains(file)).unwrap());
        let mut tail = |_| {
            let squares: f64 = (0..4).map(|_| random.normal().powi(2)).sum();
            if is_heavy { (4.0 / squares).sqrt() } else { (0.3 * random.normal()).exp() }
        };
        host.tails.push(std::array::from_fn(&mut tail));
    }

    /// Judges a farm, and measures doubtful hosts again. Returns if a host within 2 % was
    /// called different, if the slow one was, and rightly named, if the groups were right; and the number
    /// of healthy hosts that were measured again.
    fn judge(&self, draw: Draw) -> ([bool; 4], usize) {
        let mut random = Random::new(draw.seed * 7919 + draw.hosts as u64);
        let drawn = (0..draw.hosts).map(|at| self.drawn(&mut random, at % 2 == 1, draw));
        let mut hosts: Vec<Drawn> = drawn.collect();
        let slow_one = (random.uniform() * draw.hosts as f64) as usize;
        let second: Vec<f64> = self.points.iter().map(|_| 0.3 * random.normal()).collect();
        loop {
            let found = self.found(&hosts, draw.slow.map(|kind| (slow_one, kind)), &second);
            let is = |at: usize, verdict| found.hosts[at].verdict == verdict;
            let is_doubtful = |at: usize| {
                let has_left = hosts[at].runs.len() < MAX_RUNS + draw.runs - 1;
                has_left && (is(at, HostVerdict::Suspect) || is(at, HostVerdict::Unconfirmed))
            };
            let again: Vec<usize> = (0..draw.hosts).filter(|at| is_doubtful(*at)).collect();
            if !again.is_empty() {
                let more = |at| self.measured(&mut hosts[at], &mut random, draw.is_heavy);
                again.into_iter().for_each(more);
                continue;
            }
            let slow = draw.slow.map(|_| slow_one);
            let healthy = || (0..draw.hosts).filter(|at| Some(*at) != slow);
            let is_found = slow.is_some_and(|at| is(at, HostVerdict::Different));
            let kind = found.hosts[slow_one].findings.first().map(|finding| finding.kind);
            let is_group = |at: usize| (found.hosts[at].group == "B") == hosts[at].is_second;
            let groups = found.groups.len() == 2 && (0..draw.hosts).all(is_group);
            let is_alarm = |at: usize| is(at, HostVerdict::Different) && !self.differs(&hosts[at]);
            let alarm = healthy().any(is_alarm);
            let measured = healthy().filter(|at| hosts[*at].runs.len() > draw.runs).count();
            return ([alarm, is_found, is_found && kind == draw.slow, groups], measured);
        }
    }

    /// Tests if the own factors of a host are more than is ignored, so that it may be named.
    fn differs(&self, host: &Drawn) -> bool {
        (0..host.own.len()).any(|kind| {
            let points = self.points.iter().zip(&host.points);
            let own = points.filter(|((it, _), _)| *it as usize == kind).map(|(_, log)| *log);
            let middle = median(&own.collect::<Vec<_>>());
            middle.is_some_and(|middle| (host.own[kind] + middle).abs() > IGNORE.ln_1p())
        })
    }

    /// Judges these hosts, of which one may be 5 % slower at a kind.
    fn found(
        &self,
        hosts: &[Drawn],
        slow: Option<(usize, PointKind)>,
        second: &[f64],
    ) -> JudgedFarm {
        let named = |(at, host): (usize, &Drawn)| {
            let facts = Arc::clone(&self.facts[usize::from(host.is_second)]);
            (format!("n{at:03}"), facts, host.runs.clone())
        };
        let all: Vec<_> = hosts.iter().enumerate().map(named).collect();
        let farm = self.farm.drawn(&all, |at, run, point| {
            let (kind, off) = &self.points[point];
            let host = &hosts[at];
            let off = off[host.runs[run]] * (host.tails[run][*kind as usize] - 1.0);
            let by = if slow == Some((at, *kind)) { 0.05_f64.ln_1p() } else { 0.0 };
            let machine = if host.is_second { second[point] } else { 0.0 };
            off + by + machine + host.own[*kind as usize] + host.points[point]
        });
        judged(&farm, &[], IGNORE)
    }
}
