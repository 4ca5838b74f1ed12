//! Records of many hosts, reduced to the levels of their points as each file is read.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use daqmeter_record::{Host, RunRecord};
use daqmeter_stats::{Level, Place, Unit, median};

use super::kinds::PointKind;
use crate::families;
use crate::groups::in_groups;
use crate::levels::{Finding, Invocation, Levels, Others, PointUse, slowed_among};
use crate::names::Names;
use crate::points::StagePoint;
use crate::rate::undone;
use crate::samples::drop_samples;

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
    pub(crate) kind: PointKind,
}

#[derive(Clone)]
pub(crate) struct FarmHost {
    pub(crate) name: String,
    /// Name by the records: several hosts may have one.
    label: String,
    pub(crate) facts: Arc<Host>,
    pub(crate) program: String,
    /// Command of its last file.
    pub(crate) command: String,
    pub(crate) files: Vec<String>,
    pub(crate) runs: Vec<TimedRun>,
    /// By the number of the point.
    points: Vec<Vec<FarmRun>>,
    /// Points that failed or were not possible, with the reason.
    pub(crate) undone: Vec<(&'static str, String, String)>,
    /// Problems of its files.
    pub(crate) problems: Vec<String>,
    /// Largest delay of a start at a given time.
    pub(crate) late_ns: u64,
}

/// A run with the times of its first and its last record.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TimedRun {
    id: String,
    first: String,
    last: String,
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

/// A file reduced to what a farm keeps of it.
pub struct FarmFile {
    name: String,
    /// Name of a host whose own name says nothing, or that shares it with another.
    stem: String,
    problems: Vec<String>,
    hosts: Vec<HostOfFile>,
}

struct HostOfFile {
    label: String,
    runs: Vec<TimedRun>,
    found: Vec<FoundPoint>,
    /// Records without their samples.
    records: Vec<RunRecord>,
}

struct FoundPoint {
    key: (StagePoint, Finding),
    used: PointUse,
    /// Number of a record of it.
    example: usize,
    /// Each with the name of its run.
    runs: Vec<(String, FarmRun)>,
}

impl FarmFile {
    /// Reduces the records of a file. `problems` are those of its lines.
    pub fn of(
        name: &str,
        stem: &str,
        side: FarmSide,
        records: Vec<RunRecord>,
        problems: Vec<String>,
    ) -> FarmFile {
        let by_host = in_groups(records.into_iter().map(|record| (record.host.label(), record)));
        let hosts = by_host.into_iter().map(|(label, own)| HostOfFile::of(label, side, own));
        let (name, stem) = (name.to_owned(), stem.to_owned());
        FarmFile { name, stem, problems, hosts: hosts.collect() }
    }
}

impl HostOfFile {
    fn of(label: String, side: FarmSide, mut records: Vec<RunRecord>) -> HostOfFile {
        let point = |((mut identity, finding), found): ((StagePoint, _), Vec<Invocation<'_>>)| {
            identity.host.clear();
            let first = found[0].first;
            let example = records.iter().position(|record| std::ptr::eq(record, first));
            let run = |Invocation { first, level, others, .. }: &Invocation<'_>| {
                (first.run_id.clone(), FarmRun { side, level: *level, others: *others })
            };
            FoundPoint {
                key: (identity, finding),
                used: found[0].used,
                example: example.unwrap_or_default(),
                runs: found.iter().map(run).collect(),
            }
        };
        let found = Levels::of(&records, &[&records]).findings().into_iter().map(point).collect();
        let runs = timed(&records);
        records.iter_mut().for_each(drop_samples);
        HostOfFile { label, runs, found, records }
    }
}

impl Farm {
    pub fn paired() -> Farm {
        Farm { is_paired: true, ..Farm::default() }
    }

    pub fn add(&mut self, file: FarmFile) {
        let FarmFile { name, stem, problems, hosts, .. } = file;
        if hosts.is_empty() {
            let why = problems.first().map_or("holds no record", String::as_str);
            self.unread.push((name.clone(), why.to_owned()));
        }
        for own in hosts {
            let at = self.host(&stem, &own);
            let host = &mut self.hosts[at];
            host.files.push(name.clone());
            host.problems.extend(problems.iter().map(|line| format!("{name}: {line}")));
            self.take(at, own);
        }
    }

    /// Adds the file of one host as the last one, in place of what the farm has of it.
    pub fn add_own(&mut self, file: FarmFile) {
        self.hosts.retain(|host| file.hosts.iter().all(|own| host.label != own.label));
        self.add(file);
    }

    /// Returns the number of the host that these records are of. Hosts of one name differ by their
    /// CPU, or by runs at one time.
    fn host(&mut self, stem: &str, own: &HostOfFile) -> usize {
        let (label, first) = (own.label.as_str(), &own.records[0]);
        let is_name = !["", "localhost", "(none)"].contains(&label) && first.host.is_known();
        let is_same = |host: &FarmHost| {
            let is_beside = |run: &TimedRun| {
                let other =
                    |it: &TimedRun| it.id != run.id && run.first < it.last && it.first < run.last;
                host.runs.iter().any(other)
            };
            host.label == label
                && host.facts.cpu_model == first.host.cpu_model
                && host.facts.logical_cpus == first.host.logical_cpus
                && !own.runs.iter().any(is_beside)
        };
        if let Some(at) = self.hosts.iter().position(is_same).filter(|_| is_name) {
            self.hosts[at].facts = Arc::clone(&first.host);
            self.hosts[at].command = again(&first.command);
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
            command: again(&first.command),
            files: Vec::new(),
            runs: Vec::new(),
            points: Vec::new(),
            undone: Vec::new(),
            problems: Vec::new(),
            late_ns: 0,
        });
        self.hosts.len() - 1
    }

    fn take(&mut self, at: usize, own: HostOfFile) {
        let host = &mut self.hosts[at];
        // A copy of a file says nothing new.
        let is_known = |id: &str, host: &FarmHost| host.runs.iter().any(|run| run.id == id);
        let new: HashSet<String> = own.runs.iter().map(|run| run.id.clone()).collect();
        let new: HashSet<String> = new.into_iter().filter(|id| !is_known(id, host)).collect();
        host.runs.extend(own.runs.into_iter().filter(|run| new.contains(&run.id)));
        for record in own.records.iter().filter(|record| new.contains(&record.run_id)) {
            let late_ns = record.start.as_ref().map_or(0, |start| start.late_ns);
            host.late_ns = host.late_ns.max(late_ns);
            if let Some((how, why)) = undone(&record.outcome) {
                let point = (how, StagePoint::of(record, 0, "").workload, why.to_owned());
                if !host.undone.contains(&point) {
                    host.undone.push(point);
                }
            }
        }
        for FoundPoint { key, used, example, runs } in own.found {
            let next = self.points.len();
            let point = *self.known.entry(key.clone()).or_insert(next);
            if point == next {
                let example = own.records[example].clone();
                let kind = PointKind::of(used, families::work(&example));
                self.points.push(FarmPoint { identity: key.0, used, kind });
                self.examples.push(example);
            }
            host.points.resize(host.points.len().max(point + 1), Vec::new());
            let runs = runs.into_iter().filter(|(id, _)| new.contains(id));
            host.points[point].extend(runs.map(|(_, run)| run));
        }
    }

    /// Returns the names of the points for people.
    pub(crate) fn names(&self) -> Vec<String> {
        let names = Names::of(&self.examples);
        self.points.iter().map(|point| names.of_stage(&point.identity).to_owned()).collect()
    }

    /// Returns the places of these hosts at a point, in its steadier unit.
    pub(crate) fn places(&self, point: usize, hosts: &[usize]) -> Vec<Option<Place>> {
        let used = self.points[point].used;
        let own: Vec<&[FarmRun]> = hosts.iter().map(|host| self.hosts[*host].at(point)).collect();
        let all = || own.iter().copied().flatten();
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
        own.iter().map(|own| self.place(own.iter(), place)).collect()
    }

    /// Returns the places of the clocks of these hosts, by the points of one CPU.
    pub(crate) fn clocks(&self, hosts: &[usize]) -> Vec<Option<Place>> {
        let place = |host: &usize| {
            let points = || self.hosts[*host].points.iter().zip(&self.points);
            let runs = points().map(|(runs, _)| runs.len()).max().unwrap_or(0);
            let core = points().filter(|(_, point)| point.used == PointUse::Cpu);
            self.place(core.flat_map(|(runs, _)| runs), |own| {
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
            hastened: before.slowed,
        })
    }

    /// Returns a farm of hosts drawn from those of this one, for simulations: each with its name,
    /// its facts and the hosts whose runs it has. `log` gives the logarithm of the factor by which
    /// a run of a host is slower at a point.
    pub fn drawn(
        &self,
        hosts: &[(String, Arc<Host>, Vec<usize>)],
        log: impl Fn(usize, usize, usize) -> f64,
    ) -> Farm {
        let host = |(at, (name, facts, runs)): (usize, &(String, Arc<Host>, Vec<usize>))| {
            let run = &|(point, number): (usize, usize)| {
                let own = self.hosts[runs[number]].at(point).first()?.clone();
                Some(FarmRun { level: own.level.slower(log(at, number, point)), ..own })
            };
            let of_point = |point| (0..runs.len()).filter_map(move |number| run((point, number)));
            let points = (0..self.points.len()).map(|point| of_point(point).collect()).collect();
            let runs = vec![TimedRun::default(); runs.len()];
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
            (point.kind, places.map(|place| Some(place?.log)).collect())
        };
        self.points.iter().enumerate().map(point).collect()
    }
}

impl FarmHost {
    /// Returns the runs at a point.
    pub(crate) fn at(&self, point: usize) -> &[FarmRun] {
        self.points.get(point).map_or(&[], Vec::as_slice)
    }

    /// Tests if it has several files, and none is called as it is: clones may have one name.
    pub(crate) fn has_foreign_files(&self) -> bool {
        self.files.len() > 2 && !self.files.iter().any(|file| file.contains(&self.label))
    }

    /// Tests if it has runs of that side.
    pub(crate) fn has(&self, side: FarmSide) -> bool {
        self.points.iter().flatten().any(|run| run.side == side)
    }

    /// Returns the largest share of the CPUs that others had during a run.
    pub(crate) fn others(&self) -> f64 {
        self.points.iter().flatten().map(|run| run.others.cpus).fold(0.0, f64::max)
    }
}

/// Returns a command without its time to start, which has passed.
fn again(command: &str) -> String {
    let at = command.split_once(" --at ").or_else(|| command.split_once(" --at="));
    let Some((before, at)) = at else { return command.to_owned() };
    let rest = at.split_once(' ').map_or("", |(_, rest)| rest);
    format!("{before} {rest}").trim_end().to_owned()
}

/// Returns the runs of records.
fn timed(records: &[RunRecord]) -> Vec<TimedRun> {
    let all = in_groups(records.iter().map(|record| (record.run_id.clone(), &record.time_utc)));
    let run = |(id, times): (String, Vec<&String>)| {
        let [first, last] = [times.iter().min(), times.iter().max()]
            .map(|time| time.map_or(String::new(), |time| (*time).clone()));
        TimedRun { id, first, last }
    };
    all.into_iter().map(run).collect()
}
