//! Comparison of two sets of records, point by point: differences, and for each other point the
//! slowdown that is excluded.

use std::collections::{HashMap, HashSet};

use daqmeter_record::units::{joined, percent, plural, show_ns, significant};
use daqmeter_record::{Outcome, RunRecord};
use daqmeter_stats::{Doubt, Effect, MIN_INSTANCES, Point, Terms, Unit, Verdict as Found, compare};
use serde::Serialize;

use crate::aligned::{asks_all, numbers_from, wrapped};
use crate::frame::Frame;
use crate::groups::in_groups;
pub use crate::levels::PointUse;
use crate::levels::{Finding, Invocation, Levels, MANY, slowed};
use crate::losses::{self, ComparedLoss};
use crate::names::Names;
use crate::points::{StagePoint, points_of};
use crate::rate::{is_done, runs_by_host};

/// Answer of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PointVerdict {
    Slower,
    Faster,
    /// Not slower by more than its bound.
    Bounded,
    /// Its bound is above 30 %.
    NotComparable,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedPoint {
    /// Name for people.
    pub point: String,
    #[serde(flatten)]
    pub identity: StagePoint,
    /// What is compared: `level`, `sustained`, the mean of all time, or `cpu`, CPU time in a
    /// second.
    pub time: &'static str,
    /// Resource that others may disturb.
    pub uses: PointUse,
    /// `cycles` if times were compared in cycles of the CPU's clock, else `ns`.
    pub unit: &'static str,
    pub a_ns: f64,
    pub b_ns: f64,
    /// B over A, above 1 for slower.
    pub ratio: f64,
    /// 95 % interval of the ratio of this point.
    pub interval: (f64, f64),
    /// Interval of the verdict: all of a comparison hold together with 99 %.
    pub joint: (f64, f64),
    /// Smallest slowdown that would count here, as a fraction.
    pub visible: f64,
    /// Largest slowdown that is not excluded, as a fraction.
    pub bound: f64,
    pub verdict: PointVerdict,
    /// Why it is not comparable; empty otherwise.
    pub why: String,
    /// Side that is unlike the history, which the other resembles.
    pub odd: Option<&'static str>,
    /// True if its nights differ too much for the gate, which then asks for a proven slowdown only.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_ungated: bool,
    pub invocations: (usize, usize),
    pub history: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Conclusion {
    NoDifference,
    /// No point can be compared.
    NotComparable,
    /// A point differs, or B failed but A did not.
    Different,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gate {
    /// No point is slower by the gate's fraction.
    Passed,
    /// B is slower by that fraction at a point, or broken.
    Failed,
    /// Points at which such a slowdown is not excluded, with the number of runs a side that would.
    Open(Vec<(String, usize)>),
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    pub conclusion: Conclusion,
    /// Points of both sides, in the order of A.
    pub points: Vec<ComparedPoint>,
    /// Losses of programs that were watched.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub losses: Vec<ComparedLoss>,
    pub only_a: Vec<String>,
    pub only_b: Vec<String>,
    pub broken: Vec<String>,
    /// Number of records of A and of B that failed or were waived; they are not compared.
    pub left_out: (usize, usize),
    pub ignore: f64,
    pub in_turn: bool,
}

/// Bound from which a point is not comparable: it tells nothing about an update.
pub(crate) const COMPARABLE: f64 = 0.3;

/// Compares records A with records B. The history, of other invocations on the host of both, shows
/// how much these differ.
pub fn cmp(a: &[RunRecord], b: &[RunRecord], history: &[RunRecord], ignore: f64) -> Compared {
    compared([a, b, history], Terms { ignore, looks: 1.0, in_turn: false })
}

/// Compares records of sides that were measured in turn, at one of a number of looks.
pub fn in_turn(a: &[RunRecord], b: &[RunRecord], ignore: f64, looks: f64) -> Compared {
    compared([a, b, &[]], Terms { ignore, looks, in_turn: true })
}

/// Point of both sides, and what is said about it.
struct BothSides<'a> {
    point: StagePoint,
    finding: Finding,
    sides: [Vec<Invocation<'a>>; 2],
}

fn compared(all: [&[RunRecord]; 3], terms: Terms) -> Compared {
    let [a, b, _] = all;
    let names = Names::of(a.iter().chain(b));
    // In turn neighbours slow both sides alike, so that no slice is left out.
    let telling = if terms.in_turn { &[][..] } else { &all };
    let [of_a, of_b, before] = all.map(|records| Levels::of(records, telling).findings());
    let sides: HashSet<&str> = a.iter().chain(b).map(|record| &*record.run_id).collect();
    let hosts: HashSet<String> = a.iter().chain(b).map(|record| record.host.label()).collect();
    // Where a side has several hosts, each has its own points.
    let is_by_host = [a, b].iter().any(|side| runs_by_host(side).len() > 1);
    let named = |mut point: StagePoint| {
        if !is_by_host {
            point.host.clear();
        }
        point
    };
    let [of_a, of_b, before] = [of_a, of_b, before].map(|found| {
        let all = found.into_iter().flat_map(|((point, finding), invocations)| {
            let point = named(point);
            invocations.into_iter().map(move |own| ((point.clone(), finding), own))
        });
        in_groups(all)
    });
    let [mut of_b, before]: [HashMap<(StagePoint, Finding), Vec<Invocation>>; 2] =
        [of_b, before].map(|found| found.into_iter().collect());
    let is_history = |invocation: &&Invocation| {
        let RunRecord { run_id, host, .. } = invocation.first;
        (is_by_host || hosts.len() == 1)
            && hosts.contains(&host.label())
            && !sides.contains(&**run_id)
    };
    let pairs = of_a.into_iter().filter_map(|(key, a)| {
        let (b, history) = (of_b.remove(&key)?, before.get(&key).map_or(&[][..], Vec::as_slice));
        let levels = |own: &[Invocation]| own.iter().map(|it| it.level).collect();
        let point = Point {
            a: levels(&a),
            b: levels(&b),
            history: history.iter().filter(is_history).map(|it| it.level).collect(),
            beyond: a[0].used.beyond(),
            slowed: if terms.in_turn { [0.0; 2] } else { slowed([&a, &b]) },
        };
        let (point_of, finding) = key;
        Some((BothSides { point: point_of, finding, sides: [a, b] }, point))
    });
    let (pairs, points): (Vec<BothSides>, Vec<Point>) = pairs.unzip();
    // In turn more pairs are all that could be had.
    let most = if terms.in_turn { f64::INFINITY } else { COMPARABLE.max(terms.ignore) };
    let effects = compare(&points, terms).into_iter().zip(&pairs);
    let described =
        effects.filter_map(|(effect, pair)| Some(described(pair, &effect?, &names, most)));
    let left_out = |records: &[RunRecord]| records.iter().filter(|record| !is_done(record)).count();
    let mut compared = Compared {
        conclusion: Conclusion::NotComparable,
        points: described.collect(),
        losses: losses::compared(a, b),
        only_a: only(a, b, &names, named),
        only_b: only(b, a, &names, named),
        broken: broken(a, b, &names),
        left_out: (left_out(a), left_out(b)),
        ignore: terms.ignore,
        in_turn: terms.in_turn,
    };
    compared.conclusion = compared.concluded();
    compared
}

/// Returns the points of one set that the other lacks; a failed point is not lacking.
fn only(
    records: &[RunRecord],
    others: &[RunRecord],
    names: &Names,
    named: impl Fn(StagePoint) -> StagePoint,
) -> Vec<String> {
    let points = |record| points_of(record).into_iter().map(|(point, _)| named(point));
    let known: HashSet<StagePoint> = others.iter().flat_map(points).collect();
    let mut seen = HashSet::new();
    let own = records.iter().filter(|record| is_done(record)).flat_map(points);
    let own = own.filter(|point| !known.contains(point) && seen.insert(point.clone()));
    own.map(|point| name(names, &point)).collect()
}

/// Writes a point, with its host if each has its own.
fn name(names: &Names, point: &StagePoint) -> String {
    let on = if point.host.is_empty() { "" } else { " on " };
    format!("{}{on}{}", names.of_stage(point), point.host)
}

fn described(pair: &BothSides<'_>, effect: &Effect, names: &Names, most: f64) -> ComparedPoint {
    let bound = effect.joint.1 - 1.0;
    let verdict = match effect.verdict {
        Found::Slower => PointVerdict::Slower,
        Found::Faster => PointVerdict::Faster,
        Found::Bounded if bound <= most => PointVerdict::Bounded,
        Found::Bounded => PointVerdict::NotComparable,
    };
    ComparedPoint {
        point: name(names, &pair.point),
        identity: pair.point.clone(),
        time: pair.finding.name(),
        uses: pair.sides[0][0].used,
        unit: if effect.unit == Unit::Chains { "cycles" } else { "ns" },
        a_ns: effect.a,
        b_ns: effect.b,
        ratio: effect.ratio,
        interval: effect.interval,
        joint: effect.joint,
        visible: effect.visible,
        bound,
        verdict,
        why: if verdict == PointVerdict::NotComparable {
            doubt(pair, effect)
        } else {
            String::new()
        },
        odd: effect.odd.map(|side| SIDES[side]),
        is_ungated: false,
        invocations: (effect.invocations.0, effect.invocations.1),
        history: effect.invocations.2,
    }
}

const SIDES: [&str; 2] = ["A", "B"];

/// Says what makes a bound large.
fn doubt(pair: &BothSides<'_>, effect: &Effect) -> String {
    let others = |side: &[Invocation<'_>]| {
        side.iter().map(|own| own.others.of(own.used)).fold(1.0, f64::min)
    };
    let others = pair.sides.each_ref().map(|side| others(side));
    let worst = usize::from(others[1] > others[0]);
    let used = pair.sides[worst][0].used;
    let (share, side) = (percent(others[worst], 2), SIDES[worst]);
    match effect.doubt {
        Doubt::Shared => "others used the CPU or its core nearly all the time".to_owned(),
        Doubt::Clock => "the CPU clock was not measured".to_owned(),
        Doubt::Once => {
            "a run measures it once, and only --history shows how runs differ".to_owned()
        }
        _ if others[worst] > MANY && used == PointUse::Memory => {
            format!("other programs or machines used the memory {share} % of the time in {side}")
        }
        _ if others[worst] > MANY => {
            format!("other programs or machines had {share} % of the CPUs in {side}")
        }
        Doubt::Spread => "its own repetitions differ too much".to_owned(),
    }
}

fn broken(a: &[RunRecord], b: &[RunRecord], names: &Names) -> Vec<String> {
    let name = |record: &RunRecord| names.of_record(record).to_owned();
    let done: HashSet<String> =
        a.iter().filter(|record| record.outcome.is_ok()).map(name).collect();
    let failed = b.iter().filter_map(|record| {
        let Outcome::Failed(why) = &record.outcome else { return None };
        let name = name(record);
        done.contains(&name).then(|| format!("{name}: {why}"))
    });
    let mut failed: Vec<String> = failed.collect();
    failed.dedup();
    failed
}

const HEADINGS: [&str; 8] =
    ["verdict", "point", "A", "B", "B/A", "95 %", "slower at most", "faster at most"];

impl ComparedPoint {
    fn differs(&self) -> bool {
        matches!(self.verdict, PointVerdict::Slower | PointVerdict::Faster)
    }

    fn row(&self) -> Vec<String> {
        let verdict = match self.verdict {
            PointVerdict::Slower => "slower",
            PointVerdict::Faster => "faster",
            PointVerdict::Bounded => "not slower",
            PointVerdict::NotComparable => "not comparable",
        };
        vec![
            verdict.to_owned(),
            self.point.clone(),
            show_ns(self.a_ns),
            show_ns(self.b_ns),
            shown_ratio(self.ratio),
            format!("{} - {}", shown_ratio(self.interval.0), shown_ratio(self.interval.1)),
            percents(self.bound),
            percents(1.0 - self.joint.0),
        ]
    }

    /// Returns how many runs a side exclude a slowdown by that fraction, if they differ as now.
    fn runs_for(&self, by: f64) -> usize {
        let now = self.invocations.0.min(self.invocations.1) as f64;
        let times = (self.joint.1 / self.ratio).ln() / by.ln_1p();
        if times.is_finite() { (now * times.powi(2)).ceil() as usize } else { MIN_INSTANCES }
    }

    /// Tests if B is slower by that fraction, and not because A is the odd side.
    pub(crate) fn is_slower_by(&self, by: f64) -> bool {
        self.verdict == PointVerdict::Slower && self.ratio >= 1.0 + by && self.odd != Some("A")
    }

    /// Says the answer: `slower by 3.1 % (2.6 to 3.6)`.
    pub(crate) fn said(&self) -> String {
        let (low, high) = self.interval;
        let by = |word: &str, ratios: [f64; 3]| {
            let [by, from, to] = ratios.map(|ratio| percent((ratio - 1.0).abs(), 2));
            format!("{word} by {by} % ({from} to {to})")
        };
        match self.verdict {
            PointVerdict::Slower => by("slower", [self.ratio, low, high]),
            PointVerdict::Faster => by("faster", [self.ratio, high, low]),
            PointVerdict::Bounded => format!("not slower by more than {}", percents(self.bound)),
            PointVerdict::NotComparable => format!("not comparable here: {}", self.why),
        }
    }
}

fn shown_ratio(ratio: f64) -> String {
    match ratio {
        0.01..100.0 => format!("{ratio:.3}"),
        _ => significant(ratio, 2),
    }
}

/// Upper ends of the groups of bounds that the screen shows.
const GROUPS: [f64; 3] = [0.03, 0.1, COMPARABLE];
/// Most differences of the screen, and most names of a group.
const MAX_DIFFERENCES: usize = 8;
const MAX_NAMES: usize = 4;

impl Compared {
    pub fn count(&self, verdict: PointVerdict) -> usize {
        self.of(verdict).count()
    }

    fn of(&self, verdict: PointVerdict) -> impl Iterator<Item = &ComparedPoint> {
        self.points.iter().filter(move |point| point.verdict == verdict)
    }

    fn concluded(&self) -> Conclusion {
        let is_comparable = |point: &ComparedPoint| point.verdict != PointVerdict::NotComparable;
        match () {
            () if !self.broken.is_empty() || self.points.iter().any(ComparedPoint::differs) => {
                Conclusion::Different
            }
            () if self.losses.iter().any(ComparedLoss::differs) => Conclusion::Different,
            () if !self.losses.is_empty() => Conclusion::NoDifference,
            () if self.points.iter().any(is_comparable) => Conclusion::NoDifference,
            () => Conclusion::NotComparable,
        }
    }

    /// Tests if every point has an answer: a difference, or none above the ignored fraction.
    pub fn is_decided(&self) -> bool {
        let ignored = 1.0 + self.ignore;
        let is_same = |(low, high): (f64, f64)| low >= 1.0 / ignored && high <= ignored;
        self.points.iter().all(|point| point.differs() || is_same(point.joint))
    }

    /// Judges a gate at that fraction: failed if B is slower by it and not A the odd side, passed
    /// if no point can be.
    pub fn gate(&self, by: f64) -> Gate {
        let loses_more = self.losses.iter().any(|loss| loss.more_at_least() >= by);
        if self.points.iter().any(|point| point.is_slower_by(by))
            || !self.broken.is_empty()
            || loses_more
        {
            return Gate::Failed;
        }
        let is_judged = |point: &&ComparedPoint| {
            !(point.is_ungated && self.points.iter().any(|other| !other.is_ungated))
                && point.odd != Some("A")
        };
        let could = |point: &&ComparedPoint| {
            is_judged(point) && (point.bound >= by || point.verdict == PointVerdict::NotComparable)
        };
        let open = self.points.iter().filter(could);
        let open = open.map(|point| (point.point.clone(), point.runs_for(by)));
        let losses = self.losses.iter().filter(|loss| loss.more_at_most() >= by);
        let open: Vec<_> = open.chain(losses.map(|loss| (loss.target.clone(), 2))).collect();
        if open.is_empty() { Gate::Passed } else { Gate::Open(open) }
    }

    /// Leaves to a gate at that fraction the points at which the usual comparison of this host has
    /// the power for it.
    #[must_use]
    pub fn gated_by(mut self, usual: &Compared, by: f64) -> Compared {
        let known: HashMap<&StagePoint, f64> =
            usual.points.iter().map(|point| (&point.identity, point.bound)).collect();
        for point in &mut self.points {
            point.is_ungated = known.get(&point.identity).is_some_and(|usual| *usual >= by);
        }
        self
    }

    /// Shows the answer, the differences, the bounds in groups, and what was not compared; or a
    /// table of all points.
    pub fn frame(&self, all: bool) -> Frame {
        let rows = || self.points.iter().map(ComparedPoint::row).collect::<Vec<_>>();
        let is_all = all || asks_all();
        let tables = if is_all { numbers_from(2, &HEADINGS, rows()) } else { self.groups() };
        let broken = self.broken.iter().map(|broken| wrapped(&format!("broken   {broken}"), 9));
        let losses = self.losses.iter().map(ComparedLoss::text);
        let tables = losses.chain([tables]).chain(broken.map(|line| line + "\n")).collect();
        let answer = [Some(self.answer()), self.odd()].into_iter().flatten().collect();
        Frame { answer, tables, notes: self.notes() }
    }

    fn groups(&self) -> String {
        let mut differing: Vec<&ComparedPoint> =
            self.points.iter().filter(|point| point.differs()).collect();
        differing.sort_by(|a, b| b.ratio.ln().abs().total_cmp(&a.ratio.ln().abs()));
        let more = differing.len().saturating_sub(MAX_DIFFERENCES);
        let shown = differing
            .iter()
            .take(MAX_DIFFERENCES)
            .map(|point| format!("{}: {}", point.point, point.said()));
        let more = (more > 0).then(|| format!("{more} more: --all"));
        let groups = self.bounds().into_iter().map(|(bound, points)| {
            let own = |point: &&ComparedPoint| (point.point.clone(), Some(point.bound));
            let names = listed(points.iter().map(own).collect());
            format!("not slower by more than {}: {names}", percents(bound))
        });
        let not_comparable = self.of(PointVerdict::NotComparable);
        let reasons = in_groups(not_comparable.map(|point| (&point.why, point.point.clone())));
        let reasons = reasons.into_iter().map(|(why, names)| {
            let names = listed(names.into_iter().map(|name| (name, None)).collect());
            format!("not comparable here, {why}: {names}")
        });
        let lines = shown.chain(more).chain(groups).chain(reasons);
        lines.map(|line| wrapped(&format!(" {line}"), 3) + "\n").collect()
    }

    /// Returns the points without a difference in groups, with the largest bound of each.
    fn bounds(&self) -> Vec<(f64, Vec<&ComparedPoint>)> {
        let group = |point: &ComparedPoint| GROUPS.iter().position(|to| point.bound <= *to);
        let all = in_groups(self.of(PointVerdict::Bounded).map(|point| (group(point), point)));
        let mut groups: Vec<(f64, Vec<&ComparedPoint>)> = all
            .into_iter()
            .map(|(_, mut own)| {
                own.sort_by(|a, b| b.bound.total_cmp(&a.bound));
                (own[0].bound, own)
            })
            .collect();
        groups.sort_by(|a, b| a.0.total_cmp(&b.0));
        groups
    }

    fn notes(&self) -> Vec<String> {
        let left_out = self.left_out.0 + self.left_out.1;
        let first = |points: &[String]| points.first().cloned().unwrap_or_default();
        let only = |points: &[String], side| {
            let of = plural(points.len() as u64, "point");
            (!points.is_empty()).then(|| format!("only in {side}: {of}, {}", first(points)))
        };
        let left_out = (left_out > 0)
            .then(|| format!("not compared: {left_out} records that failed or were skipped"));
        let ungated = self.points.iter().filter(|point| point.is_ungated);
        let ungated = joined(ungated.map(|point| &*point.point), "; ");
        let ungated = ungated.map(|names| {
            format!("judged by --fail-on only if slower for certain, since nights differ: {names}")
        });
        let only = [only(&self.only_a, "A"), only(&self.only_b, "B")];
        [ungated].into_iter().chain(only).chain([left_out]).flatten().collect()
    }

    /// Says the result in a sentence.
    pub(crate) fn answer(&self) -> String {
        let count = |verdict| self.count(verdict);
        let (slower, faster) = (count(PointVerdict::Slower), count(PointVerdict::Faster));
        let all = plural(self.points.len() as u64, "point");
        let differing = match (slower, faster) {
            _ if !self.broken.is_empty() => "B failed at points where A did not".to_owned(),
            _ if self.points.is_empty() && !self.losses.is_empty() => {
                let differ = self.losses.iter().filter(|loss| loss.differs()).count();
                let all = self.losses.len();
                return format!("the loss differs for {differ} of {all} watched programs");
            }
            _ if self.points.is_empty() => return "A and B have no point in common".to_owned(),
            (0, 0) if self.conclusion == Conclusion::NotComparable => {
                return format!("nothing can be compared: none of {all}");
            }
            (0, 0) => "nothing is slower".to_owned(),
            (slower, 0) => format!("B is slower at {slower} of {all}"),
            (0, faster) => format!("nothing is slower, and B is faster at {faster} of {all}"),
            (slower, faster) => format!("B is slower at {slower} and faster at {faster} of {all}"),
        };
        let bounds = self.bounds().into_iter().map(|(bound, points)| {
            let points = plural(points.len() as u64, "point");
            format!("{points} by no more than {}", percents(bound))
        });
        let rest = count(PointVerdict::NotComparable);
        let rest = (rest > 0).then(|| format!("{rest} not comparable here"));
        match joined(bounds.chain(rest), ", ") {
            Some(others) if slower + faster > 0 => format!("{differing}; others slower: {others}"),
            Some(others) => format!("{differing}: {others}"),
            None => differing,
        }
    }

    /// Says which side the history shows to be the odd one.
    fn odd(&self) -> Option<String> {
        let count = |side| self.points.iter().filter(|point| point.odd == Some(side)).count();
        let counts = SIDES.map(count);
        let odd = usize::from(counts[1] > counts[0]);
        let (side, other, points) = (SIDES[odd], SIDES[1 - odd], counts[odd]);
        let history = self.points.iter().map(|point| point.history).max()?;
        (points > 0).then(|| {
            format!(
                "{side} is the odd one: at {} {other} is as {history} other runs of this host",
                plural(points as u64, "point")
            )
        })
    }
}

fn percents(share: f64) -> String {
    format!("{} %", percent(share, 2))
}

/// Lists names with their bounds, as many as the screen has room for.
fn listed(names: Vec<(String, Option<f64>)>) -> String {
    let left = names.len().saturating_sub(MAX_NAMES);
    let more = (left > 0).then(|| format!("and {left} more (--all)"));
    let shown = |(name, bound): (String, Option<f64>)| match bound {
        Some(bound) => format!("{name} {}", percents(bound)),
        None => name,
    };
    let names = names.into_iter().take(MAX_NAMES).map(shown);
    joined(names.chain(more), "; ").unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use daqmeter_record::Slices;

    use super::*;
    use crate::examples::{chain, example};

    /// Invocations of conversions of six repetitions each, with slices. Their times have a factor.
    fn runs(factor: f64, name: &str, count: usize) -> Vec<RunRecord> {
        let repetition = |run: usize, at: u32| {
            let mut record = example();
            record.engine.name = "convert".into();
            record.run_id = format!("{name} {run}");
            record.time_utc = format!("2026-11-21T03:{run:02}:00.000Z");
            for stage in record.lanes.iter_mut().flat_map(|lane| &mut lane.stages) {
                let own = factor * (1.0 + f64::from(at) * 1e-4 + run as f64 * 1e-5);
                stage.sample_ns = vec![(stage.sample_ns[0] as f64 * own) as u64; 20];
                let all = |value| vec![value; 20];
                let (chain_ns, sibling_ns) = (all(3000), all(1500));
                stage.slices = Slices {
                    samples: all(1),
                    gap_ns: all(9000),
                    chain_ns,
                    sibling_ns,
                    lost: vec![],
                };
            }
            record
        };
        (0..count).flat_map(|run| (0..6).map(move |at| repetition(run, at))).collect()
    }

    fn plain(a: &[RunRecord], b: &[RunRecord]) -> Compared {
        cmp(a, b, &[], 0.02)
    }

    #[test]
    fn five_per_cent_are_found_with_one_invocation_a_side_and_a_gate_fails_on_them() {
        let (a, b) = (runs(1.0, "a", 1), runs(1.05, "b", 1));
        let found = plain(&a, &b);
        assert_eq!(
            (found.count(PointVerdict::Slower), found.conclusion),
            (4, Conclusion::Different),
            "{found:?}"
        );
        assert_eq!((found.gate(0.04), found.gate(0.08)), (Gate::Failed, Gate::Passed));
        let back = plain(&b, &a);
        assert_eq!((back.count(PointVerdict::Faster), back.gate(0.02)), (4, Gate::Passed));
        let same = plain(&a, &runs(1.0, "b", 1));
        assert_eq!(same.conclusion, Conclusion::NoDifference);
        assert!(
            same.frame(false)
                .text(None)
                .starts_with("nothing is slower: 4 points by no more than "),
            "{}",
            same.frame(false).text(None)
        );
        assert_eq!(found.points[0].invocations, (1, 1));
    }

    #[test]
    fn times_without_a_clock_tell_factors_only_and_a_gate_says_that_it_had_no_power() {
        let old = |factor, name| {
            let mut records = runs(factor, name, 1);
            let stages = records.iter_mut().flat_map(|record| &mut record.lanes);
            let stages = stages.flat_map(|lane| &mut lane.stages);
            stages.for_each(|stage| stage.slices = Slices::default());
            records
        };
        let found = plain(&old(1.0, "a"), &old(1.05, "b"));
        assert_eq!(
            (found.count(PointVerdict::NotComparable), found.conclusion),
            (4, Conclusion::NotComparable)
        );
        assert!(matches!(found.gate(0.05), Gate::Open(open) if open.len() == 4));
        let said = "nothing can be compared: none of 4 points";
        assert!(found.frame(false).text(None).contains(said), "{}", found.frame(false).text(None));
        assert_eq!(plain(&old(1.0, "a"), &old(5.0, "b")).conclusion, Conclusion::Different);
    }

    #[test]
    fn a_summary_for_programs_has_the_answer_of_each_point() {
        let (a, b) = (runs(1.0, "a", 1), runs(1.05, "b", 1));
        let mut found = plain(&a, &b);
        (found.points[1].verdict, found.points[1].why) =
            (PointVerdict::NotComparable, "a < b".into());
        found.broken = vec!["c".to_owned()];
        let text = crate::nightly::junit(&found, Some(0.04));
        assert!(text.contains(r#"tests="5" failures="4" skipped="1""#), "{text}");
        assert!(text.contains("not comparable here: a &lt; b"), "{text}");
        assert!(!crate::nightly::junit(&plain(&a, &b), Some(0.1)).contains("<failure"));
        let text = crate::nightly::markdown(&found);
        assert_eq!(text.matches("slower by 5 % (").count(), 3, "{text}");
        assert!(text.contains("\nbroken: c\n"), "{text}");
    }

    fn on(host: &str, mut records: Vec<RunRecord>) -> Vec<RunRecord> {
        for record in &mut records {
            let name = host.to_owned();
            record.host = daqmeter_record::Host { name, ..(*record.host).clone() }.into();
        }
        records
    }

    #[test]
    fn two_hosts_in_one_set_are_compared_each_with_itself() {
        let both = |name: &str, factor: f64| {
            let slow = on("slow", runs(2.0 * factor, &format!("{name} slow"), 1));
            [on("quick", runs(1.0, name, 1)), slow].concat()
        };
        let found = plain(&both("a", 1.0), &both("b", 1.1));
        assert_eq!(
            (found.count(PointVerdict::Slower), found.count(PointVerdict::Bounded)),
            (4, 4),
            "{found:?}"
        );
        let is_right = |at: &&ComparedPoint| {
            at.point.ends_with(if at.differs() { " on slow" } else { " on quick" })
        };
        assert_eq!(found.points.iter().filter(is_right).count(), 8, "{found:?}");
        let only_a = plain(&both("a", 1.0), &on("quick", runs(1.0, "b", 1))).only_a;
        assert!(
            only_a.len() == 4 && only_a.iter().all(|at| at.ends_with(" on slow")),
            "{only_a:?}"
        );
    }

    #[test]
    fn a_history_is_of_the_host_of_both_sides_and_of_other_invocations() {
        let (a, b, history) = (runs(1.0, "a", 1), runs(1.0, "b", 1), runs(1.0, "before", 18));
        assert_eq!(cmp(&a, &b, &history, 0.02).points[0].history, 18);
        let elsewhere = on("another", history);
        assert_eq!(cmp(&a, &b, &elsewhere, 0.02).points[0].history, 0);
        assert_eq!(cmp(&a, &b, &a, 0.02).points[0].history, 0);
    }

    #[test]
    fn a_history_shows_which_side_is_the_odd_one_and_no_gate_fails_by_an_odd_a() {
        let (usual, odd) = (runs(1.0, "a", 1), runs(0.5, "b", 1));
        let history = runs(1.0, "before", 6);
        for (a, b, side) in [(&odd, &usual, "A"), (&usual, &odd, "B")] {
            let found = cmp(a, b, &history, 0.02);
            assert_eq!(found.points[0].odd, Some(side));
            let text = found.frame(false).text(None);
            assert!(text.contains(&format!("{side} is the odd one: at 4 points")), "{text}");
            assert_eq!(found.gate(0.1), Gate::Passed);
        }
        assert_eq!(cmp(&odd, &usual, &[], 0.02).gate(0.1), Gate::Failed);
    }

    /// Time that others took from A may hide that B is slower; taken from B it is no slowdown.
    #[test]
    fn a_point_of_several_threads_is_compared_only_as_far_as_others_left_the_cpus() {
        let beside = |name: &str, factor: f64, share: f64| {
            let mut records = runs(factor, name, 1);
            for record in &mut records {
                record.engine.name = "digitizer".into();
                std::sync::Arc::make_mut(&mut record.host).logical_cpus = 2;
                let own_ns = record.process_cpu.total_ns();
                record.wall_ns = 10_000_000_000;
                let foreign_ns = (2.0 * share * record.wall_ns as f64) as u64;
                record.host_cpu.busy_by_cpu_ns = [(0, own_ns + foreign_ns)].into();
            }
            records
        };
        let (quiet, busy) = (beside("a", 1.0, 0.0), beside("b", 1.8, 0.5));
        let found = plain(&quiet, &busy);
        assert_eq!(
            (found.conclusion, found.count(PointVerdict::NotComparable)),
            (Conclusion::NotComparable, 4)
        );
        assert!(found.points[0].why.contains(" % of the CPUs in B"), "{}", found.points[0].why);
        assert_eq!(plain(&quiet, &beside("b", 1.0, 0.5)).count(PointVerdict::Bounded), 4);
        assert_eq!(plain(&quiet, &beside("b", 3.0, 0.5)).count(PointVerdict::Slower), 4);
        assert_eq!(plain(&busy, &quiet).conclusion, Conclusion::NotComparable);
        // Regression: streams between two CPUs were "3.7 times faster" beside load, which kept the
        // CPUs awake.
        let mut sides = [quiet, beside("b", 0.6, 0.5)];
        assert_eq!(plain(&sides[0], &sides[1]).count(PointVerdict::Faster), 4);
        sides.iter_mut().flatten().for_each(|record| record.set_param("peer_cpu", 0_u64));
        let found = plain(&sides[0], &sides[1]);
        assert_eq!(found.count(PointVerdict::NotComparable), 4, "{found:?}");
    }

    /// Regression: a chain with half of its triggers stopped looked equally fast.
    #[test]
    fn a_chain_that_carries_less_is_slower() {
        let chains = |carried: u64, parity: u64| -> Vec<RunRecord> {
            let run = |at: u64| {
                let mut record = chain(carried + at * 100);
                record.run_id = format!("{}", 2 * at + parity);
                record.time_utc = format!("2026-11-21T03:{:02}", 2 * at + parity);
                record
            };
            (0..5).map(run).collect()
        };
        let found = plain(&chains(900_000, 0), &chains(450_000, 1));
        assert_eq!(found.count(PointVerdict::Slower), 1);
        assert!((found.points[0].ratio - 2.0).abs() < 0.01);
    }

    /// What was delivered is compared: samples with a lost cycle are not in the records.
    #[test]
    fn a_point_that_lost_cycles_is_compared_by_what_was_delivered() {
        let (a, mut b) = (runs(1.0, "a", 1), runs(1.0, "b", 1));
        let mut ledger = daqmeter_record::Ledger { issued: 9000, ..Default::default() };
        ledger.lose("timeout", 1);
        b.iter_mut().for_each(|record| record.ledgers = vec![ledger.clone()]);
        assert_eq!(plain(&a, &b).points, plain(&a, &runs(1.0, "b", 1)).points);
    }

    #[test]
    fn a_run_that_failed_is_not_compared_and_its_point_is_not_missing() {
        let a = runs(1.0, "a", 1);
        let mut b = runs(1.0, "b", 1);
        for record in &mut b[..1] {
            record.outcome = Outcome::Failed("bytes differ".into());
            record.lanes[0].stages[0].sample_ns = vec![1; 3];
        }
        let found = plain(&a, &b);
        let is_same = |point: &ComparedPoint| point.verdict == PointVerdict::Bounded;
        assert!(found.points.iter().all(is_same), "{found:?}");
        assert_eq!((found.left_out, found.broken.len()), ((0, 1), 1));
        b.iter_mut().for_each(|record| record.outcome = Outcome::Failed("bytes differ".into()));
        let found = plain(&a, &b);
        assert_eq!((found.conclusion, found.gate(0.5)), (Conclusion::Different, Gate::Failed));
        assert_eq!((found.points.len(), found.only_a.len(), found.left_out), (0, 0, (0, 6)));
        let text = found.frame(true).text(None);
        assert!(text.contains("B failed at points where A did not"), "{text}");
    }

    #[test]
    fn samples_that_are_no_times_are_never_printed_as_numbers() {
        let mut b = runs(1.0, "b", 1);
        for stage in
            b.iter_mut().flat_map(|record| &mut record.lanes).flat_map(|lane| &mut lane.stages)
        {
            stage.sample_ns = vec![0; 3];
        }
        let text = plain(&runs(1.0, "a", 1), &b).frame(true).text(None);
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    }

    #[test]
    fn nothing_in_common_is_said() {
        let mut b = runs(1.0, "b", 1);
        b.iter_mut().for_each(|record| record.study = "another".into());
        let found = plain(&runs(1.0, "a", 1), &b);
        assert!(found.frame(false).text(None).contains("no point in common"), "{found:?}");
        assert_eq!((found.only_a.len(), found.only_b.len()), (4, 4));
    }
}
