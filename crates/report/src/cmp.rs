//! Comparison of two sets of records, point by point: slower and faster points, and points without
//! a verdict.

use std::collections::{HashMap, HashSet};

use daqmeter_record::units::{percent, plural, show_ns, significant};
use daqmeter_record::{Outcome, RunRecord};
use daqmeter_stats::{Doubt, Effect, Point, Terms, Unit, Verdict, compare};
use serde::Serialize;

use crate::aligned::{numbers_from, wrapped};
use crate::families::etherbone::lost;
use crate::frame::Frame;
use crate::groups::in_groups;
use crate::levels::{Finding, Invocation, Levels};
use crate::points::{StagePoint, points_of};
use crate::rate::{is_done, other_hosts};

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedPoint {
    /// Study, engine, parameters, stage.
    pub point: String,
    /// What is compared: `level` or `sustained`, the mean of all time.
    pub time: &'static str,
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
    /// `slower`, `faster`, `same`, `unclear`.
    pub verdict: &'static str,
    /// Why it is unclear; empty otherwise.
    pub why: &'static str,
    pub invocations: (usize, usize),
    pub history: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Conclusion {
    /// Every point is the same within the ignored fraction.
    Same,
    CannotTell,
    /// A point differs, or B failed but A did not.
    Different,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gate {
    /// No point is slower by the gate's fraction.
    Passed,
    /// B is slower by that fraction at a point, or broken.
    Failed,
    /// Number of points at which such a slowdown could be missed.
    NoPower(usize),
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    pub conclusion: Conclusion,
    /// Points of both sides, in the order of A.
    pub points: Vec<ComparedPoint>,
    pub only_a: Vec<String>,
    pub only_b: Vec<String>,
    pub broken: Vec<String>,
    /// Number of records of A and of B that failed or were waived; they are not compared.
    pub left_out: (usize, usize),
    pub ignore: f64,
    pub in_turn: bool,
}

/// Reason of points with losses: a slow way loses cycles, so that the rest is too fast.
const LOST: &str = "cycles were lost";

/// Compares records A with records B. The history, of other invocations on the host of both, shows
/// how much these differ.
pub fn cmp(a: &[RunRecord], b: &[RunRecord], history: &[RunRecord], ignore: f64) -> Compared {
    compared([a, b, history], Terms { ignore, looks: 1.0, in_turn: false })
}

/// Compares records of sides that were measured in turn, at one of a number of looks.
pub fn in_turn(a: &[RunRecord], b: &[RunRecord], ignore: f64, looks: f64) -> Compared {
    compared([a, b, &[]], Terms { ignore, looks, in_turn: true })
}

fn compared(all: [&[RunRecord]; 3], terms: Terms) -> Compared {
    let [a, b, _] = all;
    // In turn neighbours slow both sides alike, so that no slice is left out.
    let telling = if terms.in_turn { &[][..] } else { &all };
    let [of_a, of_b, before] = all.map(|records| Levels::of(records, telling).findings());
    let sides: HashSet<&str> = a.iter().chain(b).map(|record| &*record.run_id).collect();
    let hosts: HashSet<String> = a.iter().chain(b).map(|record| record.host.label()).collect();
    // Where a side has several hosts, each has its own points.
    let is_by_host = [a, b].iter().any(|side| !other_hosts(side).is_empty());
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
    let others: [HashMap<(StagePoint, Finding), Vec<Invocation>>; 2] =
        [of_b, before].map(|found| found.into_iter().collect());
    let is_history = |invocation: &&Invocation| {
        let RunRecord { run_id, host, .. } = invocation.first;
        (is_by_host || hosts.len() == 1)
            && hosts.contains(&host.label())
            && !sides.contains(&**run_id)
    };
    let level = |invocation: &Invocation| invocation.level.clone();
    let pairs = of_a.iter().filter_map(|(key, invocations)| {
        let [b, before] = &others;
        let (b, history) = (b.get(key)?, before.get(key).map_or(&[][..], Vec::as_slice));
        let point = Point {
            a: invocations.iter().map(level).collect(),
            b: b.iter().map(level).collect(),
            history: history.iter().filter(is_history).map(level).collect(),
            bound: invocations.iter().chain(b).map(|own| own.bound).fold(0.0, f64::max),
        };
        Some((key.clone(), point))
    });
    let (names, pairs): (Vec<_>, Vec<Point>) = pairs.unzip();
    let effects = compare(&pairs, terms).into_iter().zip(names);
    let lossy = a.iter().chain(b).filter(|record| lost(record).is_some());
    let lossy: HashSet<_> = lossy.flat_map(points_of).map(|(point, _)| named(point)).collect();
    let described = |(effect, (point, finding)): (Option<Effect>, (StagePoint, Finding))| {
        let mut compared = described(name(&point), finding, &effect?);
        if lossy.contains(&point) {
            (compared.verdict, compared.why) = ("unclear", LOST);
        }
        Some(compared)
    };
    let left_out = |records: &[RunRecord]| records.iter().filter(|record| !is_done(record)).count();
    let mut compared = Compared {
        conclusion: Conclusion::CannotTell,
        points: effects.filter_map(described).collect(),
        only_a: only(a, b, named),
        only_b: only(b, a, named),
        broken: broken(a, b),
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
    named: impl Fn(StagePoint) -> StagePoint,
) -> Vec<String> {
    let points = |record| points_of(record).into_iter().map(|(point, _)| named(point));
    let known: HashSet<StagePoint> = others.iter().flat_map(points).collect();
    let mut seen = HashSet::new();
    let own = records.iter().filter(|record| is_done(record)).flat_map(points);
    let own = own.filter(|point| !known.contains(point) && seen.insert(point.clone()));
    own.map(|point| name(&point)).collect()
}

/// Writes a point, with its host if each has its own.
fn name(point: &StagePoint) -> String {
    let on = if point.host.is_empty() { "" } else { " on " };
    format!("{point}{on}{}", point.host)
}

fn described(point: String, finding: Finding, effect: &Effect) -> ComparedPoint {
    let (verdict, why) = match (effect.verdict, effect.doubt) {
        (Verdict::Slower, _) => ("slower", ""),
        (Verdict::Faster, _) => ("faster", ""),
        (Verdict::Same, _) => ("same", ""),
        (Verdict::Unclear, Doubt::Shared) => {
            ("unclear", "other programs used the CPU or its core during all runs of one side")
        }
        (Verdict::Unclear, Doubt::Clock) => ("unclear", "the CPU clock was not measured"),
        (Verdict::Unclear, Doubt::Spread) => ("unclear", "repeats of one side differ too much"),
    };
    ComparedPoint {
        point,
        time: finding.name(),
        unit: if effect.unit == Unit::Chains { "cycles" } else { "ns" },
        a_ns: effect.a,
        b_ns: effect.b,
        ratio: effect.ratio,
        interval: effect.interval,
        joint: effect.joint,
        visible: effect.visible,
        verdict,
        why,
        invocations: (effect.invocations.0, effect.invocations.1),
        history: effect.invocations.2,
    }
}

fn broken(a: &[RunRecord], b: &[RunRecord]) -> Vec<String> {
    let name = |record: &RunRecord| format!("{} {}", record.study, record.workload);
    let done: HashSet<String> =
        a.iter().filter(|record| record.outcome.is_ok()).map(name).collect();
    let failed = b.iter().filter_map(|record| match &record.outcome {
        Outcome::Failed(why) if done.contains(&name(record)) => {
            Some(format!("{}: {why}", name(record)))
        }
        _ => None,
    });
    let mut failed: Vec<String> = failed.collect();
    failed.dedup();
    failed
}

const HEADINGS: [&str; 8] = ["verdict", "point", "time", "A", "B", "B/A", "95 %", "counts from"];

impl ComparedPoint {
    fn differs(&self) -> bool {
        matches!(self.verdict, "slower" | "faster")
    }

    fn row(&self) -> Vec<String> {
        vec![
            self.verdict.to_owned(),
            self.point.clone(),
            self.time.to_owned(),
            show_ns(self.a_ns),
            show_ns(self.b_ns),
            shown_ratio(self.ratio),
            format!("{} - {}", shown_ratio(self.interval.0), shown_ratio(self.interval.1)),
            format!("{} %", percent(self.visible, 2)),
        ]
    }
}

fn shown_ratio(ratio: f64) -> String {
    match ratio {
        0.01..100.0 => format!("{ratio:.3}"),
        _ => significant(ratio, 2),
    }
}

impl Compared {
    pub fn count(&self, verdict: &str) -> usize {
        self.points.iter().filter(|point| point.verdict == verdict).count()
    }

    fn levels(&self) -> impl Iterator<Item = &ComparedPoint> {
        self.points.iter().filter(|point| point.time == "level")
    }

    fn concluded(&self) -> Conclusion {
        let differs = self.points.iter().any(ComparedPoint::differs);
        // Sustained rates scatter too much to be the same.
        let mut levels = self.levels().peekable();
        if differs || !self.broken.is_empty() {
            return Conclusion::Different;
        }
        let is_same = levels.peek().is_some() && levels.all(|point| point.verdict == "same");
        if is_same { Conclusion::Same } else { Conclusion::CannotTell }
    }

    /// Tests if every level has an answer.
    pub fn is_decided(&self) -> bool {
        self.levels().all(|point| point.verdict != "unclear")
    }

    /// Judges a gate at that fraction: failed if B is slower by it for certain, passed if no point
    /// can be.
    pub fn gate(&self, by: f64) -> Gate {
        let is_worse = |point: &ComparedPoint| point.verdict == "slower" && point.ratio >= 1.0 + by;
        if self.points.iter().any(is_worse) || !self.broken.is_empty() {
            return Gate::Failed;
        }
        let could = |point: &&ComparedPoint| point.joint.1 >= 1.0 + by || point.why == LOST;
        match self.levels().filter(could).count() {
            0 => Gate::Passed,
            missed => Gate::NoPower(missed),
        }
    }

    /// Shows the verdict, the differing points, or all, and what was not compared.
    pub fn frame(&self, all: bool) -> Frame {
        let shown = self.points.iter().filter(|point| all || point.differs());
        let rows: Vec<Vec<String>> = shown.map(ComparedPoint::row).collect();
        let mut tables = numbers_from(3, &HEADINGS, rows);
        let broken = self.broken.iter().map(|broken| wrapped(&format!("broken   {broken}"), 9));
        tables.extend(broken.map(|line| line + "\n"));
        Frame { answer: vec![self.verdict()], tables, notes: self.notes() }
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
        [only(&self.only_a, "A"), only(&self.only_b, "B"), left_out].into_iter().flatten().collect()
    }

    /// Says the result in a sentence.
    fn verdict(&self) -> String {
        let unclear = self.levels().filter(|point| point.verdict == "unclear").count();
        let all = self.levels().count();
        let worst = self.levels().map(|point| point.joint.1.max(1.0 / point.joint.0) - 1.0);
        let differing = || self.points.iter().filter(|point| point.differs());
        match self.conclusion {
            _ if !self.broken.is_empty() => "B failed at points where A did not".to_owned(),
            _ if self.points.is_empty() => {
                "cannot tell: A and B have no point in common".to_owned()
            }
            Conclusion::Same => format!(
                "same within {} % at {}",
                percent(worst.fold(0.0, f64::max), 2),
                plural(all as u64, "point")
            ),
            Conclusion::CannotTell => {
                let mut reasons = self.levels().map(|point| point.why);
                let why = reasons.find(|why| !why.is_empty()).unwrap_or_default();
                let next = match self.in_turn {
                    true => "Use a longer --time",
                    false => "Repeat both sides, or use daqmeter ab",
                };
                format!(
                    "cannot tell at {unclear} of {all} points, no difference at the others: {why}. {next}"
                )
            }
            Conclusion::Different if differing().count() == 1 => {
                let point = differing().next().expect("one point differs");
                format!(
                    "different: B is {}, {} times the time of A ({} to {}), at {}",
                    point.verdict,
                    shown_ratio(point.ratio),
                    shown_ratio(point.interval.0),
                    shown_ratio(point.interval.1),
                    point.point.trim_end()
                )
            }
            Conclusion::Different => format!(
                "different: B is slower at {} and faster at {} of {}",
                self.count("slower"),
                self.count("faster"),
                plural(self.points.len() as u64, "time")
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use daqmeter_record::Slices;

    use super::*;
    use crate::examples::{chain, example};

    /// Invocations of the example of six repetitions each, with slices. Their times have a factor.
    fn runs(factor: f64, name: &str, count: usize) -> Vec<RunRecord> {
        let repetition = |run: usize, at: u32| {
            let mut record = example();
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
            (found.count("slower"), found.conclusion),
            (4, Conclusion::Different),
            "{found:?}"
        );
        assert_eq!((found.gate(0.04), found.gate(0.08)), (Gate::Failed, Gate::Passed));
        let back = plain(&b, &a);
        assert_eq!((back.count("faster"), back.gate(0.02)), (4, Gate::Passed));
        let same = plain(&a, &runs(1.0, "b", 1));
        assert_eq!(same.conclusion, Conclusion::Same);
        assert!(
            same.frame(false).text(None).starts_with("same within 0.5"),
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
        assert_eq!((found.count("unclear"), found.conclusion), (4, Conclusion::CannotTell));
        assert_eq!(found.gate(0.05), Gate::NoPower(4));
        let said = "cannot tell at 4 of 4 points";
        assert!(found.frame(false).text(None).contains(said), "{}", found.frame(false).text(None));
        assert_eq!(plain(&old(1.0, "a"), &old(5.0, "b")).conclusion, Conclusion::Different);
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
        assert_eq!((found.count("slower"), found.count("same")), (4, 4), "{found:?}");
        let is_right = |at: &&ComparedPoint| {
            at.point.ends_with(if at.verdict == "slower" { " on slow" } else { " on quick" })
        };
        let levels = found.points.iter().filter(|at| at.time == "level");
        assert_eq!(levels.filter(is_right).count(), 8, "{found:?}");
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
        assert_eq!(found.count("slower"), 1);
        assert!((found.points[0].ratio - 2.0).abs() < 0.01);
    }

    /// Regression: with a lost cycle of 9000 a side B was "17 times slower".
    #[test]
    fn of_a_point_that_lost_cycles_nothing_is_told() {
        let (mut a, mut b) = (runs(1.0, "a", 1), runs(1.05, "b", 1));
        a.iter_mut().chain(&mut b).for_each(|record| record.engine.name = "etherbone".into());
        let mut ledger = daqmeter_record::Ledger { issued: 9000, ..Default::default() };
        ledger.lose("timeout", 1);
        b.iter_mut().for_each(|record| record.ledgers = vec![ledger.clone()]);
        let found = plain(&a, &b);
        // Levels and means of four stages.
        assert_eq!((found.count("unclear"), found.conclusion), (8, Conclusion::CannotTell));
        assert_eq!((found.gate(0.5), found.points[0].why), (Gate::NoPower(4), LOST));
    }

    #[test]
    fn a_run_that_failed_is_not_compared_and_its_point_is_not_missing() {
        let a = runs(1.0, "a", 1);
        let mut b = runs(1.0, "b", 1);
        for record in &mut b[..2] {
            record.outcome = Outcome::Failed("bytes differ".into());
            record.lanes[0].stages[0].sample_ns = vec![1; 3];
        }
        let found = plain(&a, &b);
        let is_same = |point: &ComparedPoint| point.verdict == "same" || point.time != "level";
        assert!(found.points.iter().all(is_same), "{found:?}");
        assert_eq!((found.left_out, found.broken.len()), ((0, 2), 1));
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
