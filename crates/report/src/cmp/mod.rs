//! Comparison of two sets of records, point by point: slower and faster points, changes of the
//! hosts, and points without a verdict.

mod facts;
mod matching;
mod occasions;
mod text;

use std::collections::{HashMap, HashSet};

use daqmeter_record::{Outcome, RunRecord};
use daqmeter_stats::{Asked, Effect, Verdict, compare};
use serde::Serialize;

use crate::families::level_name;
use crate::families::pmu::tables;
use crate::points::{StagePoint, points_of, runs_by_point};
use crate::rate::is_done;
use facts::fact_changes;
use matching::{Matched, matched};
use occasions::{ControlBy, moments, occasions, side};

pub use facts::FactChange;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedPoint {
    /// Study, engine, parameters, stage.
    pub point: String,
    /// Compared statistic of a run's samples: `mean` for data on its way, `median` for an
    /// operation.
    pub level: &'static str,
    pub a_ns: f64,
    pub b_ns: f64,
    /// B over A, above 1 for slower, without the effect of the limit that was measured beside them.
    pub ratio: f64,
    /// Subtracted effect as a ratio: 1 for none.
    pub corrected: f64,
    /// 95 % interval of the ratio of this point.
    pub interval: (f64, f64),
    /// Interval of the verdict: all of a comparison hold together with 99 %.
    pub joint: (f64, f64),
    /// Smallest slowdown that would count here, as a fraction.
    pub visible: f64,
    /// `slower`, `faster`, `same`, `unclear`.
    pub verdict: &'static str,
    /// True if a control of the same resource moved with the point and removes a difference that
    /// would have counted.
    pub explained: bool,
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
    /// Points that were measured at other places (CPUs, or free) in A than in B; they are not
    /// compared.
    pub apart: Vec<String>,
    /// Number of runs that were left out for lack of a counterpart at their place.
    pub misplaced: usize,
    pub broken: Vec<String>,
    /// Number of records of A and of B that failed or were waived; they are not compared.
    pub left_out: (usize, usize),
    /// Rates of counters of both sides, without a verdict.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub counters: Vec<ComparedCounter>,
    pub facts: Vec<FactChange>,
    pub ignore: f64,
    /// Speed of a fixed piece of arithmetic, B over A in time: the difference of the hosts
    /// themselves.
    pub reference: Option<f64>,
}

/// Compares records A with records B. The history, of other invocations on one host, shows their
/// variation.
pub fn cmp(a: &[RunRecord], b: &[RunRecord], history: &[RunRecord], asked: Asked) -> Compared {
    let matching = matched(a, b, history);
    let moments = moments(a.iter().chain(b).chain(history));
    let mut groups: Vec<(&str, &str, &str)> = Vec::new();
    let sides = matching.points.iter().map(|found| {
        let StagePoint { study, engine, workload, .. } = &found.point;
        let record = (study.as_str(), engine.as_str(), workload.as_str());
        let known = groups.iter().position(|group| *group == record);
        let group = known.unwrap_or_else(|| {
            groups.push(record);
            groups.len() - 1
        });
        let control = ControlBy::of(found.a.iter().chain(&found.b).chain(&found.history));
        daqmeter_stats::Point {
            a: side(&found.a, &moments, control),
            b: side(&found.b, &moments, control),
            history: occasions(&found.history, &moments, control),
            group,
        }
    });
    let sides: Vec<daqmeter_stats::Point> = sides.collect();
    let found = compare(&sides, asked);
    let rows = matching.points.iter().zip(&sides).zip(&found.effects);
    let rows = rows.filter(|(_, effect)| effect.verdict != Verdict::Missing);
    let points = rows.map(|((matched, sides), effect)| {
        described(name(matched), level_name(sides.a.level), effect)
    });
    let overall = found.overall.as_ref();
    let left_out = |records: &[RunRecord]| records.iter().filter(|record| !is_done(record)).count();
    let mut compared = Compared {
        conclusion: Conclusion::CannotTell,
        points: points.collect(),
        overall: overall.map(|effect| described("all points together".to_owned(), "", effect)),
        only_a: only(a, b),
        only_b: only(b, a),
        apart: matching.apart,
        misplaced: matching.misplaced,
        broken: broken(a, b),
        left_out: (left_out(a), left_out(b)),
        counters: compared_counters(a, b),
        facts: fact_changes(a, b),
        ignore: asked.ignore,
        reference: reference(a).zip(reference(b)).map(|(a, b)| b / a),
    };
    compared.conclusion = compared.concluded();
    compared
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedCounter {
    pub point: String,
    pub counter: String,
    pub unit: String,
    pub a: f64,
    pub b: f64,
}

type CounterName = (String, String, String);

/// Returns the rates of the counters by their names, in order, with those of all runs.
fn rates(records: &[RunRecord]) -> Vec<(CounterName, Vec<f64>)> {
    let mut places: HashMap<CounterName, usize> = HashMap::new();
    let mut all: Vec<(CounterName, Vec<f64>)> = Vec::new();
    for record in records.iter().filter(|record| is_done(record)) {
        let point = format!("{} {} {}", record.study, record.engine.name, record.workload);
        let observed = record.observed.as_deref();
        for (counter, unit, rate) in observed.map(tables::rates).unwrap_or_default() {
            let name = (point.clone(), counter, unit);
            let at = *places.entry(name.clone()).or_insert(all.len());
            if at == all.len() {
                all.push((name, Vec::new()));
            }
            all[at].1.push(rate);
        }
    }
    all
}

fn compared_counters(a: &[RunRecord], b: &[RunRecord]) -> Vec<ComparedCounter> {
    let mean = |rates: &[f64]| rates.iter().sum::<f64>() / rates.len() as f64;
    let of_b: HashMap<CounterName, Vec<f64>> = rates(b).into_iter().collect();
    let both = rates(a).into_iter().filter_map(|(name, of_a)| {
        let b = mean(of_b.get(&name)?);
        let (point, counter, unit) = name;
        let a = mean(&of_a);
        Some(ComparedCounter { point, counter, unit, a, b })
    });
    both.collect()
}

fn name(matched: &Matched<'_>) -> String {
    matched.point.to_string()
}

/// Returns the points of one set that the other lacks; a failed point is not lacking.
fn only(records: &[RunRecord], others: &[RunRecord]) -> Vec<String> {
    let known: HashSet<StagePoint> =
        others.iter().flat_map(|record| points_of(record).map(|(point, _)| point)).collect();
    let own = runs_by_point(records).into_iter().map(|(point, _)| point);
    own.filter(|point| !known.contains(point)).map(|point| point.to_string()).collect()
}

fn described(point: String, level: &'static str, effect: &Effect) -> ComparedPoint {
    let verdict = match effect.verdict {
        Verdict::Slower => "slower",
        Verdict::Faster => "faster",
        Verdict::Same => "same",
        Verdict::Unclear | Verdict::Missing => "unclear",
    };
    let Effect { ratio, corrected, interval, joint, visible, explained, .. } = *effect;
    ComparedPoint {
        point,
        level,
        a_ns: effect.a,
        b_ns: effect.b,
        ratio,
        corrected,
        interval,
        joint,
        visible,
        verdict,
        explained,
        occasions: effect.occasions,
        history: effect.history,
        in_turn: effect.in_turn,
    }
}

impl ComparedPoint {
    fn differs(&self) -> bool {
        matches!(self.verdict, "slower" | "faster")
    }
}

impl Compared {
    pub fn count(&self, verdict: &str) -> usize {
        let with = self.points.iter().filter(|point| point.verdict == verdict);
        with.count()
    }

    fn judged(&self) -> impl Iterator<Item = &ComparedPoint> {
        self.points.iter().chain(&self.overall)
    }

    fn concluded(&self) -> Conclusion {
        let differs = self.judged().any(ComparedPoint::differs);
        let same = !self.points.is_empty() && self.count("same") == self.points.len();
        match () {
            () if differs || !self.broken.is_empty() => Conclusion::Different,
            () if same && self.apart.is_empty() => Conclusion::Same,
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
        let could_be = |point: &&ComparedPoint| point.joint.1 >= 1.0 + by;
        let missed = self.points.iter().filter(could_be).count() + self.apart.len();
        if missed == 0 { Gate::Passed } else { Gate::NoPower(missed) }
    }
}

fn broken(a: &[RunRecord], b: &[RunRecord]) -> Vec<String> {
    let name = |record: &RunRecord| format!("{} {}", record.study, record.workload);
    let done: std::collections::HashSet<String> =
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

fn reference(records: &[RunRecord]) -> Option<f64> {
    let times: Vec<f64> =
        records.iter().map(|record| record.noise.reference_ns).filter(|&ns| ns > 0.0).collect();
    (!times.is_empty()).then(|| daqmeter_stats::quantile(&daqmeter_stats::sorted(&times), 0.5))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::{chain, example};

    /// Ten invocations of the example in turn with those of the other parity. Their times have a
    /// factor and scatter by a per mille.
    pub(super) fn runs(factor: f64, parity: u32) -> Vec<RunRecord> {
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

    pub(super) fn plain(a: &[RunRecord], b: &[RunRecord]) -> Compared {
        cmp(a, b, &[], Asked::ignoring(0.02))
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
        let asked = Asked::ignoring(0.02);
        let with = cmp(&a[..1], &b[..1], &history, asked);
        let without = cmp(&a[..1], &b[..1], &[], asked);
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
        assert_eq!(cmp(&a[..1], &b[..1], &elsewhere, asked).points[0].history, 0);
        assert_eq!(cmp(&a[..1], &b[..1], &[a[0].clone()], asked).points[0].history, 0);
    }

    #[test]
    fn a_difference_that_the_limit_beside_it_shows_as_well_does_not_count() {
        let mut b = runs(1.3, 1);
        for record in &mut b {
            record.limits[1].rate_bytes_per_s /= 1.3;
        }
        let found = plain(&runs(1.0, 0), &b);
        let explained: Vec<bool> = found.points.iter().map(|point| point.explained).collect();
        // The other limit is given, not measured.
        assert_eq!(explained, [false, true, false, true]);
        assert_eq!((found.count("slower"), found.count("unclear")), (2, 2));
    }

    #[test]
    fn other_cpus_are_not_compared() {
        let pinned = |mut records: Vec<RunRecord>, cpu: u32, seen: u32| {
            for lane in records.iter_mut().flat_map(|record| &mut record.lanes) {
                (lane.requested_cpu, lane.seen_cpus) = (Some(cpu), vec![seen]);
            }
            records
        };
        let a = pinned(runs(1.0, 0), 1, 1);
        let found = plain(&a, &pinned(runs(1.0, 1), 0, 0));
        assert_eq!((found.points.len(), found.apart.len()), (0, 4));
        assert_eq!(found.conclusion, Conclusion::CannotTell);
        let mut b = pinned(runs(1.0, 1), 1, 1);
        b.extend(pinned(runs(3.0, 1), 0, 0));
        b.extend(pinned(runs(3.0, 1), 1, 0));
        let found = plain(&a, &b);
        assert_eq!((found.conclusion, found.misplaced), (Conclusion::Same, 80));
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
    fn what_changed_of_the_host_is_named_and_what_broke_is_a_regression() {
        let mut b = runs(1.0, 1);
        for record in &mut b {
            let mut host = (*record.host).clone();
            host.governor = Some("powersave".into());
            host.huge_pages.push(Default::default());
            record.host = host.into();
        }
        b[3].outcome = Outcome::Failed("bytes differ".into());
        let found = plain(&runs(1.0, 0), &b);
        let powersave =
            FactChange { name: "governor".into(), a: "-".into(), b: "powersave".into() };
        assert_eq!(found.facts, [powersave]);
        assert_eq!((found.broken.len(), found.gate(0.5)), (1, Gate::Failed));
        assert_eq!(found.conclusion, Conclusion::Different);
        insta::assert_snapshot!(found.text(true));
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
        assert_eq!((found.points.len(), found.only_a.len(), found.left_out), (0, 0, (0, 10)));
        let text = found.text(true);
        assert!(text.contains("verdict: B is broken where A was not"), "{text}");
    }

    #[test]
    fn a_disk_whose_slow_reads_got_slower_is_slower_although_its_median_is_not() {
        let disk = |slow_ns: u64, parity: u32| {
            let mut records = runs(1.0, parity);
            for (at, record) in records.iter_mut().enumerate() {
                record.lanes.truncate(1);
                record.lanes[0].stages.truncate(1);
                let slow_ns = slow_ns + at as u64 * 1000;
                record.lanes[0].stages[0].sample_ns =
                    (0..200).map(|at| if at % 5 < 3 { 100_000 } else { slow_ns }).collect();
            }
            records
        };
        let found = plain(&disk(10_000_000, 0), &disk(20_000_000, 1));
        let point = &found.points[0];
        assert_eq!((point.verdict, point.level), ("slower", "mean"));
    }

    #[test]
    fn nothing_in_common_is_said() {
        let mut b = runs(1.0, 1);
        b.iter_mut().for_each(|record| record.study = "another".into());
        let found = plain(&runs(1.0, 0), &b);
        let text = found.text(false);
        assert!(text.contains("no point is in both"), "{text}");
        assert_eq!((found.only_a.len(), found.only_b.len()), (4, 4));
        assert!(plain(&[], &[]).text(true).contains("no point is in both"));
    }

    #[test]
    fn samples_that_are_no_times_are_never_printed_as_numbers() {
        let mut b = runs(1.0, 1);
        for stage in
            b.iter_mut().flat_map(|record| &mut record.lanes).flat_map(|lane| &mut lane.stages)
        {
            stage.sample_ns = vec![0; 3];
        }
        b[0].noise.reference_ns = f64::NAN;
        let text = plain(&runs(1.0, 0), &b).text(true);
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    }
}
