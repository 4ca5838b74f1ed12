//! Records of many hosts, reduced to the levels of their points as each file is read.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use daqmeter_record::{Host, RunRecord};
use daqmeter_stats::{Level, Place, Unit, median};

use super::groups::PointKind;
use crate::groups::in_groups;
use crate::levels::{Finding, Invocation, Levels, Others, PointUse, slowed_among};
use crate::names::Names;
use crate::points::StagePoint;
use crate::rate::undone;

/// Hosts with the runs of their points.
#[derive(Default)]
pub struct Farm {
    /// True if each host is compared before and after a change.
    pub(crate) is_paired: bool,
    pub(crate) hosts: Vec<FarmHost>,
    pub(crate) points: Vec<FarmPoint>,
    known: HashMap<(StagePoint, Finding), usize>,
    /// First record of each request without its samples, for the names of points.
    examples: Vec<RunRecord>,
    /// Files that hold no record, with the reason.
    pub(crate) unread: Vec<(String, String)>,
}

#[derive(Clone)]
pub(crate) struct FarmPoint {
    pub(crate) identity: StagePoint,
    pub(crate) used: PointUse,
}

#[derive(Clone)]
pub(crate) struct FarmHost {
    pub(crate) name: String,
    /// Name by the records: several hosts may have one.
    label: String,
    pub(crate) facts: Arc<Host>,
    pub(crate) program: String,
    pub(crate) files: Vec<String>,
    /// Runs with their first and last time, in the order of the files.
    runs: Vec<(String, [String; 2])>,
    /// By the number of the point.
    pub(crate) points: HashMap<usize, Vec<FarmRun>>,
    /// Points that failed or were not possible, with the reason.
    pub(crate) undone: Vec<(&'static str, String, String)>,
    /// Problems of its files.
    pub(crate) problems: Vec<String>,
}

/// Run of a host at a point.
#[derive(Clone, Debug)]
pub(crate) struct FarmRun {
    side: FarmSide,
    level: Level,
    pub(crate) others: Others,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FarmSide {
    #[default]
    Before,
    After,
}

impl Farm {
    pub fn paired() -> Farm {
        Farm { is_paired: true, ..Farm::default() }
    }

    /// Adds the records of a file, and the problems of its lines. `stem` names a host whose own
    /// name says nothing, or that shares it with another.
    pub fn add(
        &mut self,
        (file, side): (&str, FarmSide),
        stem: &str,
        records: &[RunRecord],
        problems: &[String],
    ) {
        let by_host = in_groups(records.iter().map(|record| (record.host.label(), record)));
        if by_host.is_empty() {
            let why = problems.first().map_or("holds no record", String::as_str);
            self.unread.push((file.to_owned(), why.to_owned()));
        }
        for (label, own) in by_host {
            let mut own: Vec<RunRecord> = own.into_iter().cloned().collect();
            let runs = times(&own);
            let at = self.host(&label, stem, &own[0], &runs);
            let host = &mut self.hosts[at];
            // A copy of a file says nothing new.
            let known: HashSet<String> = host.runs.iter().map(|(run, _)| run.clone()).collect();
            own.retain(|record| !known.contains(&record.run_id));
            host.runs.extend(runs.into_iter().filter(|(run, _)| !known.contains(run)));
            host.files.push(file.to_owned());
            host.problems.extend(problems.iter().map(|line| format!("{file}: {line}")));
            self.take(at, side, &own);
        }
    }

    /// Adds the records of one host as the last one, in place of those that the farm has of it.
    pub fn add_own(&mut self, file: &str, stem: &str, records: &[RunRecord]) {
        let label = records.first().map_or(String::new(), |record| record.host.label());
        self.hosts.retain(|host| host.label != label);
        self.add((file, FarmSide::Before), stem, records, &[]);
    }

    /// Returns the number of the host that these records are of. Hosts of one name differ by their
    /// CPU, or by runs at one time.
    fn host(
        &mut self,
        label: &str,
        stem: &str,
        first: &RunRecord,
        runs: &[(String, [String; 2])],
    ) -> usize {
        let is_name = !["", "localhost", "(none)"].contains(&label) && first.host.is_known();
        let is_same = |host: &FarmHost| {
            let is_beside = |(run, [begin, end]): &(String, [String; 2])| {
                host.runs.iter().any(|(other, [from, to])| run != other && begin < to && from < end)
            };
            host.label == label
                && host.facts.cpu_model == first.host.cpu_model
                && host.facts.logical_cpus == first.host.logical_cpus
                && !runs.iter().any(is_beside)
        };
        if let Some(at) = self.hosts.iter().position(is_same).filter(|_| is_name) {
            self.hosts[at].facts = Arc::clone(&first.host);
            return at;
        }
        let is_taken = self.hosts.iter().any(|host| host.label == label);
        let name = match (is_name, is_taken) {
            (false, _) => stem.to_owned(),
            (true, true) => format!("{label} ({stem})"),
            (true, false) => label.to_owned(),
        };
        self.hosts.push(FarmHost {
            name,
            label: label.to_owned(),
            facts: Arc::clone(&first.host),
            program: format!("{} ({})", first.tool.version, first.tool.git_revision),
            files: Vec::new(),
            runs: Vec::new(),
            points: HashMap::new(),
            undone: Vec::new(),
            problems: Vec::new(),
        });
        self.hosts.len() - 1
    }

    fn take(&mut self, at: usize, side: FarmSide, records: &[RunRecord]) {
        let host = &mut self.hosts[at];
        for record in records {
            if let Some((how, why)) = undone(&record.outcome) {
                let point = (how, StagePoint::of(record, 0, "").workload, why.to_owned());
                if !host.undone.contains(&point) {
                    host.undone.push(point);
                }
            }
        }
        let mut seen = HashSet::new();
        for ((mut identity, finding), found) in Levels::of(records, &[records]).findings() {
            identity.host.clear();
            let next = self.points.len();
            let point = *self.known.entry((identity.clone(), finding)).or_insert(next);
            let example = found[0].first;
            if point == next {
                self.points.push(FarmPoint { identity, used: found[0].used });
                if seen.insert(std::ptr::from_ref(example)) {
                    self.examples.push(without_samples(example));
                }
            }
            let run = |Invocation { level, others, .. }| FarmRun { side, level, others };
            let runs = found.into_iter().map(run);
            host.points.entry(point).or_default().extend(runs);
        }
    }

    /// Returns the names of the points for people.
    pub fn names(&self) -> Vec<String> {
        let names = Names::of(&self.examples);
        self.points.iter().map(|point| names.of_stage(&point.identity).to_owned()).collect()
    }

    /// Returns the places of these hosts at a point, in its steadier unit.
    pub(crate) fn places(&self, point: usize, hosts: &[usize]) -> Vec<Option<Place>> {
        let used = self.points[point].used;
        let runs =
            |host: &usize| self.hosts[*host].points.get(&point).map_or(&[][..], Vec::as_slice);
        let all = || hosts.iter().flat_map(runs);
        let levels = all().map(|run| &run.level);
        let clocked: Vec<&Level> = levels.filter(|level| level.chain.is_some()).collect();
        // A host of another version may not know its clock.
        let is_clocked = clocked.len() * 5 >= all().count() * 4 && !clocked.is_empty();
        let unit = if is_clocked { Level::steadier(clocked) } else { Unit::Ns };
        let usual = median(&all().map(|run| run.others.beside).collect::<Vec<_>>()).unwrap_or(0.0);
        let place = |own: &[&FarmRun]| {
            let levels: Vec<&Level> = own.iter().map(|run| &run.level).collect();
            let others: Vec<Others> = own.iter().map(|run| run.others).collect();
            Place::of(&levels, unit, used.beyond(), slowed_among(used, &others, usual))
        };
        hosts.iter().map(|host| self.place(runs(host).iter(), place)).collect()
    }

    /// Returns a farm of hosts that are drawn from those of this one, for simulations: each with its
    /// name, its facts and the hosts whose runs it has. `log` gives the logarithm of the factor by
    /// which a run of a host is slower at a point.
    pub fn drawn(
        &self,
        hosts: &[(String, Arc<Host>, Vec<usize>)],
        log: impl Fn(usize, usize, usize) -> f64,
    ) -> Farm {
        let host = |(at, (name, facts, runs)): (usize, &(String, Arc<Host>, Vec<usize>))| {
            let mut points: HashMap<usize, Vec<FarmRun>> = HashMap::new();
            for (number, from) in runs.iter().enumerate() {
                for (point, own) in &self.hosts[*from].points {
                    let level = own[0].level.slower(log(at, number, *point));
                    points.entry(*point).or_default().push(FarmRun { level, ..own[0].clone() });
                }
            }
            let runs = runs.iter().map(|run| (run.to_string(), Default::default())).collect();
            let (name, facts) = (name.clone(), Arc::clone(facts));
            FarmHost { name, facts, runs, points, ..self.hosts[0].clone() }
        };
        let hosts = hosts.iter().enumerate().map(host).collect();
        let (points, examples) = (self.points.clone(), self.examples.clone());
        Farm { hosts, points, examples, ..Farm::default() }
    }

    /// Returns the kind of each point, with the logarithms of its times by host.
    pub fn logs(&self) -> Vec<(PointKind, Vec<Option<f64>>)> {
        let all: Vec<usize> = (0..self.hosts.len()).collect();
        let point = |(at, point): (usize, &FarmPoint)| {
            let places = self.places(at, &all).into_iter();
            (PointKind::of(point.used), places.map(|place| Some(place?.log)).collect())
        };
        self.points.iter().enumerate().map(point).collect()
    }

    /// Returns the places of the clocks of these hosts, by the points of one CPU.
    pub(crate) fn clocks(&self, hosts: &[usize]) -> Vec<Option<Place>> {
        let place = |host: &usize| {
            let points = self.hosts[*host].points.iter();
            let runs = points.clone().map(|(_, runs)| runs.len()).max().unwrap_or(0);
            let core = points.filter(|(point, _)| self.points[**point].used == PointUse::Cpu);
            self.place(core.flat_map(|(_, runs)| runs), |own| {
                Place::of_clock(&own.iter().map(|run| &run.level).collect::<Vec<_>>(), runs)
            })
        };
        hosts.iter().map(place).collect()
    }

    /// Returns the place of a host by its runs, or by those after over those before.
    fn place<'a>(
        &self,
        runs: impl Iterator<Item = &'a FarmRun>,
        place: impl Fn(&[&FarmRun]) -> Option<Place>,
    ) -> Option<Place> {
        let (before, after): (Vec<_>, Vec<_>) = runs.partition(|run| run.side == FarmSide::Before);
        if !self.is_paired {
            return place(&before);
        }
        let (before, after) = (place(&before)?, place(&after)?);
        Some(Place {
            log: after.log - before.log,
            noise: before.noise + after.noise,
            scatter: before.scatter + after.scatter,
            runs: before.runs.min(after.runs),
            slowed: after.slowed,
        })
    }
}

impl FarmHost {
    pub(crate) fn runs(&self) -> usize {
        self.runs.len()
    }
}

/// Returns the runs of records with the times of their first and last one.
fn times(records: &[RunRecord]) -> Vec<(String, [String; 2])> {
    let all = in_groups(records.iter().map(|record| (record.run_id.clone(), &record.time_utc)));
    let ends = |times: Vec<&String>| {
        let [first, last] = [times.iter().min(), times.iter().max()];
        [first, last].map(|time| time.map_or(String::new(), |time| (*time).clone()))
    };
    all.into_iter().map(|(run, times)| (run, ends(times))).collect()
}

fn without_samples(record: &RunRecord) -> RunRecord {
    let mut example = record.clone();
    for stage in example.lanes.iter_mut().flat_map(|lane| &mut lane.stages) {
        (stage.sample_ns, stage.slices) = Default::default();
    }
    (example.series, example.sections) = Default::default();
    example
}
