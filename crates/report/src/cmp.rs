//! Comparison of two sets of records, point by point: slower and faster points, and points without
//! a verdict.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write;

use daqmeter_record::units::{show_ns, significant};
use daqmeter_record::{Outcome, RunRecord};
use daqmeter_stats::{Effect, Occasion, Side, Verdict, compare};
use serde::Serialize;

use crate::aligned::numbers_from;
use crate::families::{level, level_name};
use crate::points::{Runs, StagePoint, points_of, runs_by_point};
use crate::rate::is_done;
use crate::samples::compared_ns;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedPoint {
    /// Study, engine, parameters, stage.
    pub point: String,
    /// Compared statistic of a run's samples: `mean` for data on its way, `median` for an
    /// operation.
    pub level: &'static str,
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
    pub occasions: (usize, usize),
    pub history: usize,
    pub in_turn: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Conclusion {
    /// Every point is the same within the ignored fraction.
    Same,
    /// A point, or all together, differs, or B failed but A did not.
    Different,
    CannotTell,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gate {
    /// No point is slower by the gate's fraction.
    Passed,
    /// B is slower by that fraction at a point or overall, or broken.
    Failed,
    /// Number of points at which such a slowdown could be missed.
    NoPower(usize),
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    pub conclusion: Conclusion,
    /// Points of both sides, in the order of A.
    pub points: Vec<ComparedPoint>,
    pub overall: Option<ComparedPoint>,
    pub only_a: Vec<String>,
    pub only_b: Vec<String>,
    pub broken: Vec<String>,
    /// Number of records of A and of B that failed or were waived; they are not compared.
    pub left_out: (usize, usize),
    pub ignore: f64,
}

/// Compares records A with records B. The history, of other invocations on one host, shows their
/// variation.
pub fn cmp(a: &[RunRecord], b: &[RunRecord], history: &[RunRecord], ignore: f64) -> Compared {
    let moments = moments(a.iter().chain(b).chain(history));
    let of_a = runs_by_point(a);
    let of_b: HashMap<StagePoint, Runs> = runs_by_point(b).into_iter().collect();
    let of_history: HashMap<StagePoint, Runs> = runs_by_point(history).into_iter().collect();
    let sides: HashSet<&str> = a.iter().chain(b).map(|record| &*record.run_id).collect();
    let host = |record: &RunRecord| (record.host.cpu_model.clone(), record.host.logical_cpus);
    let hosts: HashSet<_> = a.iter().chain(b).map(host).collect();
    let is_history = |record: &RunRecord| {
        hosts.len() == 1 && hosts.contains(&host(record)) && !sides.contains(&*record.run_id)
    };
    let mut groups: HashMap<(&str, &str, &str), usize> = HashMap::new();
    let (mut names, mut pairs) = (Vec::new(), Vec::new());
    for (point, runs) in &of_a {
        let Some(others) = of_b.get(point) else { continue };
        let (record, stage) = runs[0];
        let level = level(record, stage);
        let side = |runs: &Runs| Side { occasions: occasions(runs, &moments), level };
        let mut before = of_history.get(point).cloned().unwrap_or_default();
        before.retain(|(record, _)| is_history(record));
        let number = groups.len();
        names.push((point.to_string(), level_name(level)));
        pairs.push(daqmeter_stats::Point {
            a: side(runs),
            b: side(others),
            history: occasions(&before, &moments),
            group: *groups.entry((&point.study, &point.engine, &point.workload)).or_insert(number),
        });
    }
    let found = compare(&pairs, ignore);
    let rows = names.into_iter().zip(&found.effects);
    let rows = rows.filter(|(_, effect)| effect.verdict != Verdict::Missing);
    let left_out = |records: &[RunRecord]| records.iter().filter(|record| !is_done(record)).count();
    let overall = found.overall.as_ref();
    let mut compared = Compared {
        conclusion: Conclusion::CannotTell,
        points: rows.map(|((point, level), effect)| described(point, level, effect)).collect(),
        overall: overall.map(|effect| described("all points together".to_owned(), "", effect)),
        only_a: only(a, b),
        only_b: only(b, a),
        broken: broken(a, b),
        left_out: (left_out(a), left_out(b)),
        ignore,
    };
    compared.conclusion = compared.concluded();
    compared
}

/// Numbers the invocations in the order of their first records.
fn moments<'a>(records: impl Iterator<Item = &'a RunRecord>) -> HashMap<&'a str, f64> {
    let mut first: BTreeMap<&str, &str> = BTreeMap::new();
    for record in records {
        let time = first.entry(&record.run_id).or_insert(&record.time_utc);
        *time = (*time).min(&record.time_utc);
    }
    let mut order: Vec<(&str, &str)> = first.into_iter().map(|(id, time)| (time, id)).collect();
    order.sort_unstable();
    order.into_iter().enumerate().map(|(at, (_, id))| (id, at as f64)).collect()
}

/// Groups runs to occasions: runs of one invocation are its repetitions.
fn occasions(runs: &Runs, moments: &HashMap<&str, f64>) -> Vec<Occasion> {
    let mut found: BTreeMap<&str, Occasion> = BTreeMap::new();
    for (record, stage) in runs {
        let occasion = found.entry(&record.run_id).or_default();
        occasion.at = moments.get(record.run_id.as_str()).copied().unwrap_or(0.0);
        occasion.repetitions.push(compared_ns(stage));
    }
    found.into_values().collect()
}

/// Returns the points of one set that the other lacks; a failed point is not lacking.
fn only(records: &[RunRecord], others: &[RunRecord]) -> Vec<String> {
    let known: HashSet<StagePoint> =
        others.iter().flat_map(points_of).map(|(point, _)| point).collect();
    let own = runs_by_point(records).into_iter().map(|(point, _)| point);
    own.filter(|point| !known.contains(point)).map(|point| point.to_string()).collect()
}

fn described(point: String, level: &'static str, effect: &Effect) -> ComparedPoint {
    ComparedPoint {
        point,
        level,
        a_ns: effect.a,
        b_ns: effect.b,
        ratio: effect.ratio,
        interval: effect.interval,
        joint: effect.joint,
        visible: effect.visible,
        verdict: match effect.verdict {
            Verdict::Slower => "slower",
            Verdict::Faster => "faster",
            Verdict::Same => "same",
            Verdict::Unclear | Verdict::Missing => "unclear",
        },
        occasions: effect.occasions,
        history: effect.history,
        in_turn: effect.in_turn,
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

const HEADINGS: [&str; 9] =
    ["verdict", "point", "time", "A", "B", "B/A", "95 %", "counts from", "runs"];

impl ComparedPoint {
    fn differs(&self) -> bool {
        matches!(self.verdict, "slower" | "faster")
    }

    fn row(&self) -> Vec<String> {
        // The interval of two single runs is wide.
        let ratio = |ratio: f64| match ratio {
            0.01..100.0 => format!("{ratio:.3}"),
            _ => significant(ratio, 2),
        };
        vec![
            self.verdict.to_owned(),
            self.point.clone(),
            self.level.to_owned(),
            show_ns(self.a_ns),
            show_ns(self.b_ns),
            format!("{:.3}", self.ratio),
            format!("{} - {}", ratio(self.interval.0), ratio(self.interval.1)),
            match self.visible {
                ..100.0 => format!("{} %", per_cent(self.visible)),
                _ => "nothing".to_owned(),
            },
            format!("{}, {}", self.occasions.0, self.occasions.1),
        ]
    }
}

fn per_cent(fraction: f64) -> String {
    significant(fraction * 100.0, 2)
}

impl Compared {
    pub fn count(&self, verdict: &str) -> usize {
        self.points.iter().filter(|point| point.verdict == verdict).count()
    }

    fn judged(&self) -> impl Iterator<Item = &ComparedPoint> {
        self.points.iter().chain(&self.overall)
    }

    fn concluded(&self) -> Conclusion {
        let differs = self.judged().any(ComparedPoint::differs);
        let same = !self.points.is_empty() && self.count("same") == self.points.len();
        match () {
            () if differs || !self.broken.is_empty() => Conclusion::Different,
            () if same => Conclusion::Same,
            () => Conclusion::CannotTell,
        }
    }

    /// Judges a gate at that fraction: failed if B is slower by it for certain, passed if no point
    /// can be.
    pub fn gate(&self, by: f64) -> Gate {
        let is_worse = |point: &ComparedPoint| point.verdict == "slower" && point.ratio >= 1.0 + by;
        if self.judged().any(is_worse) || !self.broken.is_empty() {
            return Gate::Failed;
        }
        match self.points.iter().filter(|point| point.joint.1 >= 1.0 + by).count() {
            0 => Gate::Passed,
            missed => Gate::NoPower(missed),
        }
    }

    pub fn text(&self, all: bool) -> String {
        let shown = self.points.iter().filter(|point| all || point.differs());
        let rows: Vec<Vec<String>> = shown.map(ComparedPoint::row).collect();
        let mut out = match rows.is_empty() {
            true => String::new(),
            false => numbers_from(3, &HEADINGS, rows) + "\n",
        };
        for broken in &self.broken {
            let _ = writeln!(out, "broken   {broken}");
        }
        let _ = writeln!(
            out,
            "{} points: {} slower, {} faster, {} the same within {} %, {} where that cannot be told",
            self.points.len(),
            self.count("slower"),
            self.count("faster"),
            self.count("same"),
            per_cent(self.ignore),
            self.count("unclear")
        );
        if let Some(ComparedPoint { ratio, interval: (low, high), .. }) = &self.overall {
            let _ = writeln!(out, "all points together: B/A {ratio:.3} ({low:.3} - {high:.3})");
        }
        for note in self.notes() {
            let _ = writeln!(out, "note: {note}");
        }
        let _ = writeln!(out, "\nverdict: {}", self.verdict());
        out
    }

    fn notes(&self) -> Vec<String> {
        let unclear = self.points.iter().filter(|point| point.verdict == "unclear");
        let is_by_hours = unclear.clone().any(|point| !point.in_turn);
        let left_out = self.left_out.0 + self.left_out.1;
        let first = |points: &[String]| points.first().cloned().unwrap_or_default();
        let notes = [
            (
                is_by_hours,
                "the sides were not recorded in turn, so an hour of the host may be the difference: record A, B, A, B, ten times \
                 each, or give other runs of this host by --history"
                    .to_owned(),
            ),
            (
                !self.only_a.is_empty(),
                format!("{} points are only in A: {}", self.only_a.len(), first(&self.only_a)),
            ),
            (
                !self.only_b.is_empty(),
                format!("{} points are only in B: {}", self.only_b.len(), first(&self.only_b)),
            ),
            (left_out > 0, format!("{left_out} records that failed or were waived are left out")),
        ];
        notes.into_iter().filter(|(applies, _)| *applies).map(|(_, note)| note).collect()
    }

    fn verdict(&self) -> String {
        let overall = self.overall.as_ref().filter(|all| all.differs());
        match self.conclusion {
            _ if !self.broken.is_empty() => "B is broken where A was not".to_owned(),
            _ if self.points.is_empty() => "cannot tell: no point is in both".to_owned(),
            Conclusion::Same => format!("same, within {} % everywhere", per_cent(self.ignore)),
            Conclusion::CannotTell => format!(
                "cannot tell: nothing differs by enough to count, and {} of {} points could hide more than {} %",
                self.count("unclear"),
                self.points.len(),
                per_cent(self.ignore)
            ),
            Conclusion::Different => match overall {
                Some(all) => format!("different: B is {} overall", all.verdict),
                None => format!(
                    "different: B is slower at {} points and faster at {}",
                    self.count("slower"),
                    self.count("faster")
                ),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::{chain, example};

    /// Ten invocations of the example in turn with those of the other parity. Their times have a
    /// factor and scatter by a per mille.
    fn runs(factor: f64, parity: u32) -> Vec<RunRecord> {
        let run = |at: u32| {
            let mut record = example();
            let minute = 2 * at + parity;
            record.run_id = format!("run {minute}");
            record.time_utc = format!("2026-11-21T03:{minute:02}:00.000Z");
            let factor = factor * (1.0 + f64::from(at * 3 % 5) * 1e-3);
            for stage in record.lanes.iter_mut().flat_map(|lane| &mut lane.stages) {
                stage.sample_ns.iter_mut().for_each(|ns| *ns = (*ns as f64 * factor) as u64);
            }
            record
        };
        (0..10).map(run).collect()
    }

    fn plain(a: &[RunRecord], b: &[RunRecord]) -> Compared {
        cmp(a, b, &[], 0.02)
    }

    #[test]
    fn five_per_cent_are_found_and_a_gate_fails_on_them() {
        let found = plain(&runs(1.0, 0), &runs(1.05, 1));
        assert_eq!((found.count("slower"), found.conclusion), (4, Conclusion::Different));
        assert_eq!((found.gate(0.04), found.gate(0.08)), (Gate::Failed, Gate::Passed));
        let back = plain(&runs(1.05, 0), &runs(1.0, 1));
        assert_eq!((back.count("faster"), back.gate(0.02)), (4, Gate::Passed));
        assert_eq!(plain(&runs(1.0, 0), &runs(1.0, 1)).conclusion, Conclusion::Same);
    }

    #[test]
    fn one_invocation_a_side_tells_nothing_and_a_gate_says_that_it_had_no_power() {
        let found = plain(&runs(1.0, 0)[..1], &runs(1.05, 1)[..1]);
        assert_eq!((found.count("unclear"), found.conclusion), (4, Conclusion::CannotTell));
        assert_eq!(found.gate(0.05), Gate::NoPower(4));
        assert!(found.text(false).contains("verdict: cannot tell"), "{}", found.text(false));
        let twenty = plain(&runs(1.0, 0)[..1], &runs(20.0, 1)[..1]);
        assert_eq!(twenty.conclusion, Conclusion::Different);
    }

    /// Repetitions share their invocation: ten of them are not ten runs.
    #[test]
    fn repetitions_of_one_invocation_are_one_occasion() {
        let once = |parity: u32, factor: f64| {
            let mut records = runs(factor, parity);
            records.iter_mut().for_each(|record| record.run_id = format!("run {parity}"));
            records
        };
        let found = plain(&once(0, 1.0), &once(1, 1.05));
        assert_eq!((found.points[0].occasions, found.conclusion), ((1, 1), Conclusion::CannotTell));
    }

    #[test]
    fn a_history_narrows_what_one_invocation_a_side_can_tell() {
        let (a, b) = (runs(1.0, 0), runs(1.0, 1));
        let history: Vec<RunRecord> = [&a[1..], &b[1..]].concat();
        let with = cmp(&a[..1], &b[..1], &history, 0.02);
        let without = cmp(&a[..1], &b[..1], &[], 0.02);
        assert_eq!(with.points[0].history, 18);
        assert!(with.points[0].joint.1 < 1.02 && without.points[0].joint.1 > 1.3);
        assert_eq!(with.conclusion, Conclusion::Same);
        // Runs of the sides are no history of them, nor are those of another host.
        let mut elsewhere = history;
        for record in &mut elsewhere {
            let mut host = (*record.host).clone();
            host.cpu_model = "another".into();
            record.host = host.into();
        }
        assert_eq!(cmp(&a[..1], &b[..1], &elsewhere, 0.02).points[0].history, 0);
        assert_eq!(cmp(&a[..1], &b[..1], &[a[0].clone()], 0.02).points[0].history, 0);
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

    #[test]
    fn a_run_that_failed_is_not_compared_and_its_point_is_not_missing() {
        let a = runs(1.0, 0);
        let mut b = runs(1.0, 1);
        for record in &mut b[..2] {
            record.outcome = Outcome::Failed("bytes differ".into());
            record.lanes[0].stages[0].sample_ns = vec![1; 3];
        }
        let found = plain(&a, &b);
        let is_same = |point: &ComparedPoint| point.occasions == (10, 8) && point.verdict == "same";
        assert!(found.points.iter().all(is_same), "{found:?}");
        assert_eq!((found.left_out, found.broken.len()), ((0, 2), 1));
        b.iter_mut().for_each(|record| record.outcome = Outcome::Failed("bytes differ".into()));
        let found = plain(&a, &b);
        assert_eq!((found.conclusion, found.gate(0.5)), (Conclusion::Different, Gate::Failed));
        assert_eq!((found.points.len(), found.only_a.len(), found.left_out), (0, 0, (0, 10)));
        let text = found.text(true);
        assert!(text.contains("verdict: B is broken where A was not"), "{text}");
    }

    #[test]
    fn samples_that_are_no_times_are_never_printed_as_numbers() {
        let mut b = runs(1.0, 1);
        for stage in
            b.iter_mut().flat_map(|record| &mut record.lanes).flat_map(|lane| &mut lane.stages)
        {
            stage.sample_ns = vec![0; 3];
        }
        let text = plain(&runs(1.0, 0), &b).text(true);
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    }

    #[test]
    fn nothing_in_common_is_said() {
        let mut b = runs(1.0, 1);
        b.iter_mut().for_each(|record| record.study = "another".into());
        let found = plain(&runs(1.0, 0), &b);
        assert!(found.text(false).contains("no point is in both"), "{found:?}");
        assert_eq!((found.only_a.len(), found.only_b.len()), (4, 4));
    }
}
