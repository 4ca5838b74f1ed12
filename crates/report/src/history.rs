//! Point over time: one value for each run, and the runs with sudden changes.

use std::fmt::Write;

use daqmeter_record::RunRecord;
use daqmeter_record::units::{percent, show_ns};
use daqmeter_stats::{
    Change, Level, MIN_STEP_VALUES, Point, Terms, Unit, change_points, compare, median,
};
use serde::Serialize;

use crate::aligned::{TextColumn, paragraphs, table};
use crate::cmp::COMPARABLE;
use crate::levels::{Invocation, Levels, slowed};
use crate::names::Names;
use crate::points::StagePoint;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HistoryRun {
    /// Start of the invocation, RFC 3339.
    pub time_utc: String,
    pub run_id: String,
    pub revision: String,
    /// Time of one operation, see [`Trend::time`].
    pub time_ns: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SuddenChange {
    pub at: usize,
    /// First and last index at which the new level may have begun, with 95 % confidence.
    pub between: (usize, usize),
    pub ratio: f64,
    /// Size in standard errors of the difference of its levels, with correlation of the runs.
    pub z: f64,
    /// Last revision certainly of the old level, and first of the new one.
    pub revisions: (String, String),
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trend {
    /// Study, engine, workload, lane and stage for programs; host: name, or CPU model and number
    /// of CPUs.
    #[serde(flatten)]
    pub(crate) identity: StagePoint,
    /// Name for people.
    pub point: String,
    /// What is shown: `level` or `sustained`, the mean of all time.
    pub time: &'static str,
    /// Run of each invocation, in the order of time.
    pub runs: Vec<HistoryRun>,
    /// Number of runs that are left out, because their core was shared all the time.
    pub shared: usize,
    /// Largest slowdown of the last run against those before that is not excluded, as a fraction.
    pub bound: f64,
    pub changes: Vec<SuddenChange>,
}

impl Trend {
    /// Returns the times of the first and the last run.
    pub(crate) fn ends_ns(&self) -> [f64; 2] {
        [0, self.runs.len() - 1].map(|at| self.runs[at].time_ns)
    }

    pub(crate) fn shown_bound(&self) -> String {
        match self.bound {
            bound if bound <= COMPARABLE => format!("{} %", percent(bound, 2)),
            _ => "-".to_owned(),
        }
    }
}

/// Returns the trends of all points with at least two runs on a host. Steps up to `ignore` (0.02 is
/// 2 %) are left out; the threshold holds for all points together.
pub fn trends(records: &[RunRecord], ignore: f64) -> Vec<Trend> {
    let names = Names::of(records);
    let (mut found, mut compared) = (Vec::new(), Vec::new());
    for ((point, finding), all) in Levels::of(records, &[records]).findings() {
        let is_shared = |own: &Invocation<'_>| own.level.is_shared;
        let shared = all.iter().filter(|own| is_shared(own)).count();
        let shared = if all.len() - shared < MIN_STEP_VALUES { 0 } else { shared };
        let mut invocations = all;
        invocations.retain(|own| shared == 0 || !is_shared(own));
        let trend = Trend {
            point: names.of_stage(&point).to_owned(),
            identity: point,
            time: finding.name(),
            runs: runs_of(&invocations),
            shared,
            bound: f64::INFINITY,
            changes: Vec::new(),
        };
        if trend.runs.len() >= 2 {
            found.push(trend);
            compared.push(last_of(&invocations));
        }
    }
    let terms = Terms { ignore, looks: 1.0, in_turn: false };
    for (trend, effect) in found.iter_mut().zip(compare(&compared, terms)) {
        trend.bound = effect.map_or(f64::INFINITY, |effect| effect.joint.1 - 1.0);
    }
    found.sort_by(|a, b| a.identity.host.cmp(&b.identity.host));
    let points = found.len();
    found.iter_mut().for_each(|trend| trend.changes = sudden_changes(&trend.runs, ignore, points));
    found
}

/// Compares the last invocation with those before.
fn last_of(invocations: &[Invocation<'_>]) -> Point {
    let (last, before) = invocations.split_at(invocations.len() - 1);
    let levels = |side: &[Invocation<'_>]| side.iter().map(|own| own.level).collect();
    Point {
        a: levels(before),
        b: levels(last),
        history: Vec::new(),
        beyond: last[0].used.beyond(),
        slowed: slowed([before, last]),
    }
}

/// Returns the runs with their times at the clock that they had in the middle.
fn runs_of(invocations: &[Invocation<'_>]) -> Vec<HistoryRun> {
    let levels = || invocations.iter().map(|invocation| &invocation.level);
    let unit = Level::steadier(levels().collect::<Vec<_>>());
    let clocks: Vec<f64> = levels().filter_map(|level| level.chain).collect();
    let scale = median(&clocks).filter(|_| unit == Unit::Chains).unwrap_or(0.0);
    let run = |Invocation { first, level, .. }: &Invocation<'_>| {
        Some(HistoryRun {
            time_utc: first.time_utc.clone(),
            run_id: first.run_id.clone(),
            revision: first.tool.git_revision.clone(),
            time_ns: (level.located(unit)?.log + scale).exp(),
        })
    };
    invocations.iter().filter_map(run).collect()
}

fn sudden_changes(runs: &[HistoryRun], ignore: f64, points: usize) -> Vec<SuddenChange> {
    let times: Vec<f64> = runs.iter().map(|run| run.time_ns).collect();
    let revision = |at: usize| runs[at].revision.clone();
    let change = |Change { at, between, ratio, z }| {
        let revisions = (revision(between.0.saturating_sub(1)), revision(between.1));
        SuddenChange { at, between, ratio, z, revisions }
    };
    change_points(&times, ignore, points).into_iter().map(change).collect()
}

const COLUMNS: [TextColumn<Trend>; 8] = [
    ("point", |trend| trend.point.clone()),
    ("time", |trend| trend.time.to_owned()),
    ("runs", |trend| trend.runs.len().to_string()),
    ("first", |trend| show_ns(trend.ends_ns()[0])),
    ("last", |trend| show_ns(trend.ends_ns()[1])),
    ("last/first", |trend| {
        let [first_ns, last_ns] = trend.ends_ns();
        format!("{:.3}", last_ns / first_ns)
    }),
    ("not slower by", Trend::shown_bound),
    ("changes", |trend| trend.changes.len().to_string()),
];

pub fn text(trends: &[Trend]) -> String {
    let mut out = String::new();
    for own in trends.chunk_by(|a, b| a.identity.host == b.identity.host) {
        let _ = writeln!(out, "{}{}", paragraphs(&own[0].identity.host), table(2, &COLUMNS, own));
        for trend in own {
            out.extend(trend.changes.iter().map(|change| paragraphs(&change_text(trend, change))));
        }
    }
    let changes: usize = trends.iter().map(|trend| trend.changes.len()).sum();
    let _ = write!(out, "{} points, {changes} sudden changes", trends.len());
    let shared: usize = trends.iter().map(|trend| trend.shared).sum();
    if shared > 0 {
        let _ = write!(
            out,
            "; {shared} values not used: other programs shared the core during the whole run"
        );
    }
    out + "\n"
}

fn change_text(trend: &Trend, change: &SuddenChange) -> String {
    let time = &trend.runs[change.at].time_utc;
    let (before, after) = &change.revisions;
    let revisions = if before == after {
        format!("same revision {after}")
    } else {
        format!("between {before} and {after}")
    };
    format!(
        "sudden change  {}: {:.1} % {} since {} ({revisions}; z {:.1})\n",
        trend.point,
        (change.ratio - 1.0).abs() * 100.0,
        if change.ratio > 1.0 { "slower" } else { "faster" },
        time.get(..16).unwrap_or(time),
        change.z
    )
}

#[cfg(test)]
mod tests {
    use daqmeter_record::Slices;

    use super::*;
    use crate::examples::example;

    /// Twelve runs; the last six take 10 % longer at one stage.
    fn twelve_runs() -> Vec<RunRecord> {
        let run = |at: u64| {
            let mut record = example();
            record.engine.name = "convert".into();
            record.time_utc = format!("2026-11-{:02}T03:00:00.000Z", at + 1);
            record.run_id = format!("run-{at}");
            record.tool.git_revision = if at < 6 { "aaaa" } else { "bbbb" }.into();
            for stage in record.lanes.iter_mut().flat_map(|lane| &mut lane.stages) {
                let slower = if at >= 6 && stage.name == "func_readout" { 110 } else { 100 };
                stage.sample_ns.iter_mut().for_each(|ns| *ns = *ns * (slower * 10 + at % 3) / 1000);
            }
            record
        };
        // Files may be in any order of time.
        (0..12).rev().map(run).collect()
    }

    #[test]
    fn a_sudden_change_is_named_with_the_revisions_around_it() {
        let found = trends(&twelve_runs(), 0.02);
        assert_eq!(found.len(), 4);
        let change = &found[0].changes[0];
        assert_eq!((change.at, change.between), (6, (6, 6)));
        assert_eq!(change.revisions, ("aaaa".to_owned(), "bbbb".to_owned()));
        assert!(change.z > 4.0);
        assert!(found[1].changes.is_empty());
        insta::assert_snapshot!(text(&found));
    }

    #[test]
    fn runs_that_shared_their_core_all_the_time_are_left_out_if_enough_others_remain() {
        let mut records = twelve_runs();
        for (at, record) in records.iter_mut().enumerate() {
            let all = |value| vec![value; 24];
            // Two runs have a busy sibling, and take half as long again.
            let (sibling_ns, ns) = if at < 2 { (2600, 450_000) } else { (1500, 300_000) };
            for stage in record.lanes.iter_mut().flat_map(|lane| &mut lane.stages) {
                stage.sample_ns = vec![ns; 24];
                stage.slices = Slices {
                    samples: all(1),
                    gap_ns: all(9000),
                    chain_ns: all(3000),
                    sibling_ns: all(sibling_ns),
                    lost: Vec::new(),
                };
            }
        }
        let some = trends(&records, 0.02).remove(0);
        assert_eq!((some.runs.len(), some.shared), (12, 0), "ten others are too few");
        let mut more = records[11].clone();
        more.run_id = "one more".to_owned();
        more.time_utc = "2026-11-20T03:00:00.000Z".to_owned();
        records.push(more);
        let found = trends(&records, 0.02);
        assert_eq!((found[0].runs.len(), found[0].shared), (11, 2));
        assert!(text(&found).ends_with(
            "; 8 values not used: other programs shared the core during the whole run\n"
        ));
    }

    #[test]
    fn an_invocation_is_one_run_at_the_time_of_its_first_record() {
        let mut records = twelve_runs();
        let mut again = records.clone();
        for record in &mut again {
            record.time_utc = record.time_utc.replace("T03:00", "T03:05");
        }
        again.append(&mut records);
        let found = trends(&again, 0.02);
        assert!(found.iter().all(|trend| trend.runs.len() == 12));
        assert!(found[0].runs.iter().all(|run| run.time_utc.contains("T03:00")));
    }

    #[test]
    fn hosts_are_kept_apart_and_single_runs_have_no_trend() {
        let mut records = twelve_runs();
        let host = daqmeter_record::Host { cpu_model: "another".into(), ..Default::default() };
        records.truncate(3);
        records[0].host = host.into();
        let found = trends(&records, 0.02);
        assert_eq!((found.len(), found[0].runs.len()), (4, 2));
        assert!(trends(&records[..1], 0.02).is_empty());
    }
}
