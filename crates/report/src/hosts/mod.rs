//! Many hosts: which differ from others of their kind, in what, and by how much.
//!
//! A file is reduced as it is read ([`Farm::add`]). [`judged`] groups alike hosts and compares each
//! with the others of its group, at whole kinds of points and at single ones.

mod farm;
mod groups;
mod kinds;
mod page;
mod rank;
mod text;

use std::collections::HashMap;

use daqmeter_record::units::{joined, show_ns};
use daqmeter_stats::{Borders, NEAR, Spread, Standing, between};
use serde::Serialize;

pub use farm::{Farm, FarmFile, FarmSide};
use groups::{HostColumn, HostTable, divided};
pub use kinds::PointKind;
pub use rank::{RankedHost, ranked};

use crate::points::StagePoint;

/// Answer for all hosts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JudgedFarm {
    pub groups: Vec<JudgedGroup>,
    /// In the order of their files.
    pub hosts: Vec<JudgedHost>,
    /// Expected hosts without any record, and files without one, with the reason.
    pub missing: Vec<(String, String)>,
    /// True if each host is compared before and after.
    pub is_paired: bool,
    pub ignore: f64,
    /// Names of all kinds, then of all points.
    #[serde(skip)]
    pub(crate) columns: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JudgedGroup {
    pub letter: String,
    pub name: String,
    pub hosts: usize,
    /// Smallest slowdown of a host that would be named, as a fraction, for each kind of points.
    pub visible: Vec<(PointKind, f64)>,
    /// Differences from the first group, or of paired hosts from before.
    pub differences: Vec<GroupDifference>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupDifference {
    /// Kind of points, or name of a point.
    pub what: String,
    /// Time over that of the first group, or of before.
    pub ratio: f64,
    /// Its interval: all hold together with 99 %.
    pub interval: (f64, f64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostVerdict {
    /// Not visibly different.
    Alike,
    /// Of no group that could show a difference.
    NotSeen,
    /// Far out. More runs tell.
    Suspect,
    /// It lies apart in too few runs. More confirm or clear it.
    Unconfirmed,
    Different,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JudgedHost {
    pub name: String,
    /// Letter of its group.
    pub group: String,
    pub files: Vec<String>,
    /// Command that measures it again.
    pub command: String,
    pub runs: usize,
    pub verdict: HostVerdict,
    /// The farthest first.
    pub findings: Vec<HostFinding>,
    /// Points that others of its group have, and it lacks; and the number of theirs.
    pub lacks: (usize, usize),
    /// Largest share of its CPUs that others had during a run.
    pub others: f64,
    /// Why its points may be missing, or doubtful.
    pub notes: Vec<String>,
    /// Times over those of the group, by column: kinds first, then points.
    #[serde(skip)]
    pub(crate) standings: Vec<Option<Standing>>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HostFinding {
    pub kind: PointKind,
    /// Point with its name for people; `None` for all points of the kind.
    pub point: Option<String>,
    #[serde(flatten)]
    pub identity: Option<StagePoint>,
    pub verdict: HostVerdict,
    /// Time over that of the others, above 1 for slower.
    pub ratio: f64,
    /// 95 % interval of this ratio.
    pub interval: (f64, f64),
    /// Distance in standard deviations.
    pub z: f64,
    pub runs: usize,
    /// Runs that would tell, of a suspect.
    pub runs_wanted: Option<usize>,
}

/// Fewest hosts of a group in which one can be called different.
const MIN_HOSTS: usize = 3;
/// Fewest runs by which a host differs at a kind of points, and at a single point.
const MIN_RUNS: (usize, usize) = (2, 3);
/// Kinds and points share the chance of a false alarm, each over two looks: before and after hosts
/// in doubt were measured again.
const SHARES: f64 = 4.0;
/// Delay of a start that is said: a survey takes a minute.
const LATE_NS: u64 = 1_000_000_000;
/// Share of the points of its group that a host may lack without a word.
const LACKS: f64 = 0.1;

/// Judges all hosts. Differences up to `ignore` are none. `expected` are names of hosts that should
/// be there.
pub fn judged(farm: &Farm, expected: &[String], ignore: f64) -> JudgedFarm {
    let names = farm.names();
    let groups = divided(farm);
    let tables: Vec<&HostTable> = groups.iter().map(|group| &group.table).collect();
    let seen = || tables.iter().filter(|table| table.hosts.len() >= MIN_HOSTS);
    let count = |columns: fn(&HostTable) -> &[HostColumn]| {
        let places = seen().flat_map(|table| columns(table)).flat_map(|column| &column.places);
        SHARES * places.flatten().count().max(1) as f64
    };
    let tests = [count(|table| &table.kinds), count(|table| &table.points)];
    let borders = tests.map(|tests| Borders::of(tests, ignore));
    let letters: Vec<String> = (0..groups.len()).map(letter).collect();
    let mut hosts: Vec<Option<JudgedHost>> = farm.hosts.iter().map(|_| None).collect();
    for (table, letter) in tables.iter().zip(&letters) {
        let common = common(table);
        for (at, host) in table.hosts.iter().enumerate() {
            let judge = Judge { farm, names: &names, table, borders: &borders, at };
            hosts[*host] = Some(judge.host(letter, &common));
        }
    }
    let judged_group = |(group, letter): (usize, &String)| {
        let table = tables[group];
        let differences = match (farm.is_paired, group) {
            (true, _) => since_before(table, &names, ignore),
            (false, 0) => Vec::new(),
            (false, _) => from_first(farm, tables[0], table, ignore),
        };
        JudgedGroup {
            letter: letter.clone(),
            name: groups[group].name.clone(),
            hosts: table.hosts.len(),
            visible: table.kinds.iter().filter_map(|kind| visible(kind, &borders[0])).collect(),
            differences,
        }
    };
    let is_there = |name: &&String| !farm.hosts.iter().any(|host| host.name == **name);
    let absent = expected.iter().filter(is_there);
    let absent = absent.map(|name| (name.clone(), "expected, and has no file".to_owned()));
    JudgedFarm {
        groups: letters.iter().enumerate().map(judged_group).collect(),
        hosts: hosts.into_iter().flatten().collect(),
        missing: absent.chain(farm.unread.iter().cloned()).collect(),
        is_paired: farm.is_paired,
        ignore,
        columns: PointKind::ALL.iter().map(|(_, name)| (*name).to_owned()).chain(names).collect(),
    }
}

/// Returns A to Z, then A1 and so on.
fn letter(at: usize) -> String {
    let letter = char::from(b'A' + (at % 26) as u8);
    if at < 26 { letter.to_string() } else { format!("{letter}{}", at / 26) }
}

/// Returns the points that at least half of the hosts of a table have.
fn common(table: &HostTable) -> Vec<usize> {
    let is_common =
        |column: &&HostColumn| column.places.iter().flatten().count() * 2 >= table.hosts.len();
    table.points.iter().filter(is_common).filter_map(|column| column.point).collect()
}

/// Returns the smallest slowdown that shows in the middle of the hosts.
fn visible(kind: &HostColumn, borders: &Borders) -> Option<(PointKind, f64)> {
    let all = (0..kind.places.len()).filter_map(|at| kind.standing(at, borders));
    let all: Vec<f64> = all.map(|standing| standing.visible).collect();
    Some((kind.kind, daqmeter_stats::median(&all)?))
}

/// Returns how a group differs from the first one.
fn from_first(
    farm: &Farm,
    first: &HostTable,
    own: &HostTable,
    ignore: f64,
) -> Vec<GroupDifference> {
    let both: Vec<usize> = first.hosts.iter().chain(&own.hosts).copied().collect();
    let table = HostTable::of(farm, &both);
    let border = first.hosts.len();
    let tests = table.kinds.len() as f64;
    let difference = |column: &HostColumn| {
        let (first, own) = column.places.split_at(border);
        let [first, own] =
            [first, own].map(|side| side.iter().copied().flatten().collect::<Vec<_>>());
        let (log, half) = between(&own, &first, tests)?;
        group_difference(column.kind.name(), log, half, ignore)
    };
    table.kinds.iter().filter_map(difference).collect()
}

/// Returns how all hosts of a group differ from before: kinds, and points of other kinds.
fn since_before(table: &HostTable, names: &[String], ignore: f64) -> Vec<GroupDifference> {
    let tests = (table.kinds.len() + table.points.len()) as f64;
    let difference = |column: &HostColumn| {
        let own: Vec<_> = column.places.iter().copied().flatten().collect();
        let (log, half) = Spread::of(&own, NEAR)?.centre_interval(tests);
        let name = column.point.map_or(column.kind.name(), |point| &names[point]);
        group_difference(name, log, half, ignore)
    };
    let mut points: Vec<_> = table.points.iter().filter_map(difference).collect();
    points.sort_by(|a, b| b.ratio.ln().abs().total_cmp(&a.ratio.ln().abs()));
    table.kinds.iter().filter_map(difference).chain(points).collect()
}

fn group_difference(what: &str, log: f64, half: f64, ignore: f64) -> Option<GroupDifference> {
    let differs = log.abs() > half && log.abs() > ignore.ln_1p();
    let interval = ((log - half).exp(), (log + half).exp());
    differs.then(|| GroupDifference { what: what.to_owned(), ratio: log.exp(), interval })
}

struct Judge<'a> {
    farm: &'a Farm,
    names: &'a [String],
    table: &'a HostTable,
    /// Borders of kinds and of points.
    borders: &'a [Borders; 2],
    /// Number of the host in the table.
    at: usize,
}

impl Judge<'_> {
    fn host(&self, letter: &str, common: &[usize]) -> JudgedHost {
        let host = &self.farm.hosts[self.table.hosts[self.at]];
        let [kinds, points] = [&self.table.kinds, &self.table.points];
        let [of_kinds, of_points] = self.borders;
        let columns = kinds.iter().map(|kind| (kind, of_kinds));
        let columns = columns.chain(points.iter().map(|point| (point, of_points)));
        let is_seen = self.table.hosts.len() >= MIN_HOSTS;
        let standings = columns
            .clone()
            .map(|(column, borders)| column.standing(self.at, borders).filter(|_| is_seen));
        let standings: Vec<Option<Standing>> = standings.collect();
        let found = columns.zip(&standings).filter_map(|((column, _), own)| {
            // One run does not say how those of its host differ. A single point may be in one of
            // two states for a whole run, and there are many; half of those of a kind are not.
            let is_one = column.point.is_some() && !self.is_mostly_apart(column.kind, &standings);
            self.finding(column, (*own)?, if is_one { MIN_RUNS.1 } else { MIN_RUNS.0 })
        });
        let mut findings: Vec<HostFinding> = found.collect();
        // Points say nothing more than their kind, where this lies apart as surely.
        let kinds: HashMap<PointKind, HostVerdict> = findings
            .iter()
            .filter(|found| found.point.is_none())
            .map(|found| (found.kind, found.verdict))
            .collect();
        findings.retain(|found| {
            found.point.is_none() || kinds.get(&found.kind).is_none_or(|kind| *kind < found.verdict)
        });
        findings.sort_by(|a, b| b.verdict.cmp(&a.verdict).then(b.z.total_cmp(&a.z)));
        let worst = findings.iter().map(|found| found.verdict).max();
        let is_there = standings.iter().any(Option::is_some);
        let broken = self.broken();
        let verdict = match worst {
            _ if !broken.is_empty() => HostVerdict::Different,
            Some(verdict) => verdict,
            None if is_there => HostVerdict::Alike,
            None => HostVerdict::NotSeen,
        };
        let lacks = common.iter().filter(|point| host.at(**point).is_empty()).count();
        JudgedHost {
            name: host.name.clone(),
            group: letter.to_owned(),
            files: host.files.clone(),
            command: host.command.clone(),
            runs: host.runs.len(),
            verdict,
            findings,
            lacks: (lacks, common.len()),
            others: host.others(),
            notes: broken.into_iter().chain(self.notes(lacks, common.len())).collect(),
            standings,
        }
    }

    /// Tests if two points of a kind lie apart on one side, and half of all are far out there. One
    /// steady point may decide the middle of a kind.
    fn is_mostly_apart(&self, kind: PointKind, standings: &[Option<Standing>]) -> bool {
        let points = self.table.points.iter().zip(&standings[self.table.kinds.len()..]);
        let own = points.filter(|(column, _)| column.kind == kind);
        let own: Vec<Standing> = own.filter_map(|(_, standing)| *standing).collect();
        [1.0, -1.0].into_iter().any(|side| {
            let out = own.iter().filter(|it| it.is_suspect && it.log * side > 0.0);
            out.clone().filter(|it| it.is_apart).count() >= 2 && out.count() * 2 >= own.len()
        })
    }

    /// Returns what lies apart, which is known by `enough` runs.
    fn finding(
        &self,
        column: &HostColumn,
        standing: Standing,
        enough: usize,
    ) -> Option<HostFinding> {
        let place = column.places[self.at]?;
        let is_known = place.runs >= enough;
        let verdict = match standing {
            Standing { is_apart: true, .. } if is_known => HostVerdict::Different,
            Standing { is_apart: true, .. } => HostVerdict::Unconfirmed,
            // Of many points, some are far out.
            Standing { is_suspect: true, .. } if column.point.is_none() => HostVerdict::Suspect,
            _ => return None,
        };
        let wanted = standing.runs_wanted.filter(|_| verdict == HostVerdict::Suspect);
        Some(HostFinding {
            kind: column.kind,
            point: column.point.map(|point| self.names[point].clone()),
            identity: column.point.map(|point| self.farm.points[point].identity.clone()),
            verdict,
            ratio: standing.log.exp(),
            interval: standing.interval,
            z: standing.z,
            runs: place.runs,
            runs_wanted: if verdict == HostVerdict::Unconfirmed { Some(enough) } else { wanted },
        })
    }

    /// Returns points that failed here, and not on most others.
    fn broken(&self) -> Vec<String> {
        let hosts = || self.table.hosts.iter().map(|host| &self.farm.hosts[*host]);
        let failed = self.farm.hosts[self.table.hosts[self.at]].undone.iter();
        let failed = failed.filter(|(how, point, _)| {
            let same = |(other, name, _): &(&str, String, String)| other == how && name == point;
            let others = hosts().filter(|host| host.undone.iter().any(same)).count();
            *how == "failed" && others * 2 < self.table.hosts.len().max(2)
        });
        failed.map(|(_, point, why)| format!("{point} failed: {why}")).collect()
    }

    /// Says why points may be missing or doubtful.
    fn notes(&self, lacks: usize, of: usize) -> Vec<String> {
        let host = &self.farm.hosts[self.table.hosts[self.at]];
        let mut notes = host.problems.clone();
        if lacks as f64 > of as f64 * LACKS {
            notes.insert(0, format!("lacks {lacks} of {of} points"));
        }
        let programs = self.table.hosts.iter().map(|host| &self.farm.hosts[*host].program);
        let most = crate::groups::counted(programs);
        let most = most.into_iter().max_by_key(|(_, count)| *count).map(|(program, _)| program);
        if most.is_some_and(|most| *most != host.program) {
            notes.push(format!("was measured by daqmeter {}", host.program));
        }
        let (hosts, kinds) = (self.table.hosts.len(), self.table.kinds.iter());
        let is_seen = kinds.clone().any(|kind| kind.places[self.at].is_some());
        let unseen = kinds.filter(|kind| {
            let seen = kind.places.iter().flatten().count();
            is_seen && kind.places[self.at].is_none() && seen * 2 > hosts
        });
        if let Some(kinds) = joined(unseen.map(|kind| kind.kind.name()), ", ") {
            notes.push(format!(
                "not compared, since others shared its core or points lack: {kinds}"
            ));
        }
        if host.has_foreign_files() {
            let why = "if they are of several hosts, give each a name with --label";
            notes.push(format!("has {} files, none with its name: {why}", host.files.len()));
        }
        for (side, word) in [(FarmSide::Before, "after"), (FarmSide::After, "before")] {
            if self.farm.is_paired && !host.has(side) {
                notes.push(format!("has records of {word} only"));
            }
        }
        if host.late_ns > LATE_NS {
            notes.push(format!("began {} late", show_ns(host.late_ns as f64)));
        }
        notes
    }
}

impl JudgedFarm {
    /// Returns the hosts with that verdict, the farthest first.
    pub fn of(&self, verdict: HostVerdict) -> Vec<&JudgedHost> {
        let mut found: Vec<&JudgedHost> =
            self.hosts.iter().filter(|host| host.verdict == verdict).collect();
        let z = |host: &JudgedHost| host.findings.first().map_or(f64::INFINITY, |found| found.z);
        found.sort_by(|a, b| z(b).total_cmp(&z(a)));
        found
    }

    /// Tests if a host differs, or paired hosts are all slower than before.
    pub fn differs(&self) -> bool {
        let is_slower =
            |group: &JudgedGroup| group.differences.iter().any(|difference| difference.ratio > 1.0);
        !self.of(HostVerdict::Different).is_empty()
            || (self.is_paired && self.groups.iter().any(is_slower))
    }

    /// Tests if a host could not be judged: it is missing, incomplete, alone, or unconfirmed.
    pub fn is_unseen(&self) -> bool {
        let is_unseen = |host: &JudgedHost| {
            matches!(host.verdict, HostVerdict::NotSeen | HostVerdict::Unconfirmed)
                || host.lacks.0 as f64 > host.lacks.1 as f64 * LACKS
        };
        !self.missing.is_empty() || self.hosts.iter().any(is_unseen)
    }
}

#[cfg(test)]
mod tests;
