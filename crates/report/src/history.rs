//! A point over time: one value a run, its trend, where it took a step, and what looks like one and is none.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::ops::Range;

use daqmeter_record::RunRecord;
use daqmeter_record::units::show_ns;
use daqmeter_stats::{Change, Level, Occasion, explained, median, row, sorted};
use serde::Serialize;

use crate::aligned::numbers_from;
use crate::cmp::{Again, Confirmation, Gate};
use crate::dates::seconds;
use crate::families::level_name;
use crate::figures::{Axis, Curve, Figure, Texts, lines};
use crate::occasions::{ControlBy, Runs, moments, side};
use crate::points::{Point, runs_by_point};

/// One run of a point.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Run {
    /// When it began, RFC 3339.
    pub time_utc: String,
    /// Its number.
    pub run_id: String,
    /// Revision of the tool.
    pub revision: String,
    /// Time of one operation, see [`Trend::level`].
    pub time_ns: f64,
}

/// A step: from this run on the point takes another time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// Place of the first run of the new level.
    pub at: usize,
    /// First and last place at which the new level may have begun, with 95 % confidence.
    pub between: (usize, usize),
    /// Time after over time before.
    pub ratio: f64,
    /// The step in standard errors of the difference of its levels, the row's own correlation included.
    pub z: f64,
    /// The last revision that is surely of the old level, and the first that is surely of the new one.
    pub revisions: (String, String),
}

/// Runs that took another time than those before and after them: the host's, not the program's.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BadHour {
    /// Places of its first and last run.
    pub runs: (usize, usize),
    /// Their time over that of all other runs.
    pub ratio: f64,
}

/// A point on one host.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trend {
    /// The host: CPU model and number of CPUs.
    pub host: String,
    /// Study, engine, parameters, stage.
    pub point: String,
    /// Study alone.
    pub study: String,
    /// What of a run's samples its time is: `mean` of what data takes on its way, `median` of an operation.
    pub level: &'static str,
    /// Runs in the order of their time: one for each invocation.
    pub runs: Vec<Run>,
    /// Time of the control of each run.
    #[serde(skip)]
    pub(crate) controls: Vec<Option<f64>>,
    /// Part of its control's movement that was taken from the times before steps were sought; none where a run has no control.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control_share: Option<f64>,
    /// Steps.
    pub steps: Vec<Step>,
    /// Short excursions that came back.
    pub bad_hours: Vec<BadHour>,
    /// Times go back and forth between two levels: neither is a step.
    pub has_two_modes: bool,
    /// A slope explains the times better than any step.
    pub drifts: bool,
    /// What measuring the point again with a program of before and one of after its steps said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confirmation: Option<Confirmation>,
}

/// Trends of all points that were run at least twice on a host. Steps up to `ignore` (0.02 is 2 %) are passed over; their border holds for
/// all points together.
pub fn trends(records: &[RunRecord], ignore: f64) -> Vec<Trend> {
    let mut hosts: BTreeMap<String, Vec<RunRecord>> = BTreeMap::new();
    for record in records {
        hosts.entry(host_of(record)).or_default().push(record.clone());
    }
    let rows = hosts.iter().flat_map(|(host, records)| of_host(host, records));
    let mut found: Vec<Trend> = rows.collect();
    let rows = found.len();
    found.iter_mut().for_each(|trend| judge(trend, ignore, rows));
    found
}

fn host_of(record: &RunRecord) -> String {
    let host = &record.host;
    format!("{}, {} CPUs", host.cpu_model, host.logical_cpus)
}

impl Trend {
    /// Whether a record is of the trend's host.
    pub fn is_of(&self, record: &RunRecord) -> bool {
        host_of(record) == self.host
    }

    /// Time of its present level over that of its fastest level before, by its steps.
    fn slowdown(&self) -> f64 {
        let since = self.steps.iter().rev().scan(1.0, |since, step| {
            *since *= step.ratio;
            Some(*since)
        });
        since.fold(1.0, f64::max)
    }

    /// Time of its newest run over the median of those before.
    fn newest(&self) -> f64 {
        let times: Vec<f64> = self.runs.iter().map(|run| run.time_ns).collect();
        times.split_last().map_or(1.0, |(newest, before)| newest / median(before))
    }

    /// True if the repeated measurement showed that nothing became slower.
    fn is_refuted(&self) -> bool {
        let again = self.confirmation.as_ref().map(|again| again.verdict);
        matches!(again, Some(Again::Same | Again::Faster))
    }
}

/// Result of a gate at that fraction. It fails if a step made a point slower by as much and none
/// made up for it. It has no power if the newest run of a point is slower by as much, and is
/// neither a sure step nor refuted.
pub fn gate(trends: &[Trend], by: f64) -> Gate {
    let in_doubt = || trends.iter().filter(|trend| !trend.is_refuted());
    let is_slower = |trend: &Trend| trend.slowdown() >= 1.0 + by;
    if in_doubt().any(is_slower) {
        return Gate::Failed;
    }
    match in_doubt().filter(|trend| trend.newest() >= 1.0 + by).count() {
        0 => Gate::Passed,
        points => Gate::NoPower(points),
    }
}

/// The points of a host with their runs, not judged yet.
fn of_host(host: &str, records: &[RunRecord]) -> Vec<Trend> {
    let invocations = invocations(records);
    let moments = moments(records.iter());
    let trends = runs_by_point(records).into_iter();
    trends
        .map(|(point, found)| trend(host, point, &found, &moments, &invocations))
        .filter(|trend| trend.runs.len() >= 2)
        .collect()
}

fn trend(
    host: &str,
    point: Point,
    found: &Runs<'_>,
    moments: &HashMap<&str, f64>,
    invocations: &[Run],
) -> Trend {
    let side = side(found, moments, ControlBy::of(found.iter()));
    let mut occasions = side.occasions;
    occasions.sort_by(|a, b| a.at.total_cmp(&b.at));
    let run = |occasion: Occasion| {
        let time_ns = time_ns(&occasion.repetitions, side.level);
        let run = Run { time_ns, ..invocations[occasion.at as usize].clone() };
        let is_time = time_ns.is_finite() && time_ns > 0.0;
        is_time.then_some((run, occasion.control))
    };
    let (runs, controls) = occasions.into_iter().filter_map(run).unzip();
    Trend {
        host: host.to_owned(),
        point: point.to_string(),
        study: point.study,
        level: level_name(side.level),
        runs,
        controls,
        control_share: None,
        steps: Vec::new(),
        bad_hours: Vec::new(),
        has_two_modes: false,
        drifts: false,
        confirmation: None,
    }
}

/// Time of the middle repetition.
fn time_ns(repetitions: &[Vec<f64>], level: Level) -> f64 {
    let times: Vec<f64> = repetitions.iter().map(|samples| level.of(samples)).collect();
    median(&times)
}

/// Every invocation in the order of time, as [`moments`] numbers them, still without a time of an operation.
fn invocations(records: &[RunRecord]) -> Vec<Run> {
    let mut first: HashMap<&str, &RunRecord> = HashMap::new();
    for record in records {
        let known = first.entry(&record.run_id).or_insert(record);
        if record.time_utc < known.time_utc {
            *known = record;
        }
    }
    let run = |record: &&RunRecord| Run {
        time_utc: record.time_utc.clone(),
        run_id: record.run_id.to_string(),
        revision: record.tool.git_revision.to_string(),
        time_ns: f64::NAN,
    };
    let mut runs: Vec<Run> = first.values().map(run).collect();
    runs.sort_by(|a, b| (&a.time_utc, &a.run_id).cmp(&(&b.time_utc, &b.run_id)));
    runs
}

/// Finds the steps of a point, one of so many that are looked at together.
fn judge(trend: &mut Trend, ignore: f64, rows: usize) {
    let times: Vec<f64> = trend.runs.iter().map(|run| run.time_ns).collect();
    let without_control = explained(&times, &trend.controls);
    trend.control_share = without_control.as_ref().map(|found| found.share);
    let values = without_control.map_or(times, |found| found.times);
    let found = row(&values, ignore, rows);
    let runs = &trend.runs;
    let step = |change: Change| Step {
        at: change.at,
        between: change.between,
        ratio: change.ratio,
        z: change.z,
        revisions: (
            runs[change.between.0.saturating_sub(1)].revision.clone(),
            runs[change.between.1].revision.clone(),
        ),
    };
    trend.steps = found.changes.into_iter().map(step).collect();
    let hour = |range: Range<usize>| bad_hour(&values, range);
    trend.bad_hours = found.excursions.into_iter().map(hour).collect();
    (trend.has_two_modes, trend.drifts) = (found.has_two_modes, found.drifts);
}

fn bad_hour(values: &[f64], range: Range<usize>) -> BadHour {
    let others = [&values[..range.start], &values[range.end..]].concat();
    BadHour { runs: (range.start, range.end - 1), ratio: median(&values[range]) / median(&others) }
}

/// Eight heights, from the fastest run to the slowest; a middle line where all are alike to 1 %.
fn spark(runs: &[Run]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    /// The newest runs that fit into a column.
    const MAX_RUNS: usize = 24;
    let shown = &runs[runs.len().saturating_sub(MAX_RUNS)..];
    let least = shown.iter().map(|run| run.time_ns).fold(f64::INFINITY, f64::min);
    let most = shown.iter().map(|run| run.time_ns).fold(0.0, f64::max);
    let height = |run: &Run| {
        if most / least < 1.01 {
            BARS[3]
        } else {
            BARS[((run.time_ns - least) / (most - least) * 7.0).round() as usize]
        }
    };
    shown.iter().map(height).collect()
}

/// For people: a line a point, and below it its steps.
pub fn text(trends: &[Trend]) -> String {
    let mut out = String::new();
    let mut hosts: Vec<&String> = trends.iter().map(|trend| &trend.host).collect();
    hosts.dedup();
    for host in hosts {
        let own: Vec<&Trend> = trends.iter().filter(|trend| &trend.host == host).collect();
        let _ = writeln!(out, "{host}\n{}", table(&own));
        let steps =
            own.iter().flat_map(|trend| trend.steps.iter().map(|step| step_text(trend, step)));
        steps.for_each(|step| out.push_str(&step));
        for trend in &own {
            let again = trend.confirmation.as_ref();
            out.extend(again.map(|again| again.line(&trend.point)));
        }
        out.push_str(&bad_hours_text(&own));
    }
    let steps: usize = trends.iter().map(|trend| trend.steps.len()).sum();
    let _ = writeln!(out, "{} points, {steps} steps", trends.len());
    out
}

const HEADINGS: [&str; 8] =
    ["point", "time", "slower is higher", "runs", "first", "last", "last/first", "found"];

fn table(trends: &[&Trend]) -> String {
    let rows = trends.iter().map(|trend| {
        let time = |run: Option<&Run>| run.map_or(0.0, |run| run.time_ns);
        let (first, last) = (time(trend.runs.first()), time(trend.runs.last()));
        vec![
            trend.point.clone(),
            trend.level.to_owned(),
            spark(&trend.runs),
            trend.runs.len().to_string(),
            show_ns(first),
            show_ns(last),
            format!("{:.3}", last / first),
            found_text(trend),
        ]
    });
    numbers_from(3, &HEADINGS, rows)
}

/// What a point shows, in a few words.
pub(crate) fn found_text(trend: &Trend) -> String {
    let counted = |count: usize, what: &str| match count {
        0 => None,
        1 => Some(format!("1 {what}")),
        _ => Some(format!("{count} {what}s")),
    };
    let words = [
        counted(trend.steps.len(), "step"),
        trend.drifts.then(|| "drift".to_owned()),
        trend.has_two_modes.then(|| "two modes".to_owned()),
        counted(trend.bad_hours.len(), "bad hour"),
    ];
    let words: Vec<String> = words.into_iter().flatten().collect();
    if words.is_empty() { "-".to_owned() } else { words.join(", ") }
}

/// To the minute.
fn minute(run: &Run) -> &str {
    run.time_utc.get(..16).unwrap_or(&run.time_utc)
}

fn how_much(ratio: f64) -> String {
    let what = if ratio > 1.0 { "slower" } else { "faster" };
    format!("{:.1} % {what}", (ratio - 1.0).abs() * 100.0)
}

fn revisions_text(step: &Step) -> String {
    let (before, after) = &step.revisions;
    if before == after {
        format!("revision {after} before and after")
    } else {
        format!("between {before} and {after}")
    }
}

fn step_text(trend: &Trend, step: &Step) -> String {
    format!(
        "step  {}: {} from {} on ({}; z {:.1})\n",
        trend.point,
        how_much(step.ratio),
        minute(&trend.runs[step.at]),
        revisions_text(step),
        step.z
    )
}

/// What a point's findings are, a line each.
pub(crate) fn lines_of(trend: &Trend) -> Vec<String> {
    let step = |step: &Step| {
        format!(
            "{} from {} on ({}; z {:.1})",
            how_much(step.ratio),
            minute(&trend.runs[step.at]),
            revisions_text(step),
            step.z
        )
    };
    let hour = |hour: &BadHour| {
        let (from, to) = (&trend.runs[hour.runs.0], &trend.runs[hour.runs.1]);
        format!("bad hour {}: {}", when(minute(from), minute(to)), how_much(hour.ratio))
    };
    let steps = trend.steps.iter().map(step);
    steps.chain(trend.bad_hours.iter().map(hour)).collect()
}

fn when(from: &str, to: &str) -> String {
    if from == to { from.to_owned() } else { format!("{from} to {to}") }
}

/// Bad hours of a host, a line each: those of many points that are the same runs come together.
fn bad_hours_text(trends: &[&Trend]) -> String {
    let mut hours: BTreeMap<(&str, &str), Vec<f64>> = BTreeMap::new();
    for trend in trends {
        for hour in &trend.bad_hours {
            let (from, to) = (&trend.runs[hour.runs.0], &trend.runs[hour.runs.1]);
            hours.entry((minute(from), minute(to))).or_default().push(hour.ratio);
        }
    }
    let line = |((from, to), ratios): (&(&str, &str), &Vec<f64>)| {
        let points = if ratios.len() == 1 {
            "1 point".to_owned()
        } else {
            format!("{} points", ratios.len())
        };
        format!("bad hour  {}: {points}, typically {}\n", when(from, to), how_much(median(ratios)))
    };
    hours.iter().map(line).collect()
}

/// A figure for each study with a step, the largest step first: its points over time, as a ratio to their first run, so that points of
/// all sizes share an axis. Where nothing took a step, the first study has one.
pub fn figures(trends: &[Trend], command: &str) -> Vec<Figure> {
    let of = |trend: &Trend| (trend.host.clone(), trend.study.clone());
    let mut stepped: Vec<&Trend> = trends.iter().filter(|trend| largest(trend) > 0.0).collect();
    stepped.sort_by(|a, b| largest(b).total_cmp(&largest(a)));
    if stepped.is_empty() {
        stepped.extend(trends.first());
    }
    let mut studies: Vec<(String, String)> = Vec::new();
    for study in stepped.into_iter().map(of) {
        if !studies.contains(&study) && studies.len() < MAX_FIGURES {
            studies.push(study);
        }
    }
    let figure = |(host, study): (String, String)| {
        let own = trends.iter().filter(|trend| trend.host == host && trend.study == study);
        Figure {
            title: format!("{study} over time"),
            caption: format!(
                "{host}. Each run's time over that of the point's first run: above 1 is slower. Of many points, the eight that changed most."
            ),
            command: command.to_owned(),
            ..changed_most(own.collect())
        }
    };
    studies.into_iter().map(figure).collect()
}

/// As many large figures as a page has; every point has a small one.
const MAX_FIGURES: usize = 4;

/// The largest step of a point: the logarithm of its ratio, 0 without a step.
fn largest(trend: &Trend) -> f64 {
    let sizes = trend.steps.iter().map(|step| step.ratio.ln().abs());
    sizes.fold(0.0, f64::max)
}

/// Curves of the points that changed most.
fn changed_most(mut own: Vec<&Trend>) -> Figure {
    /// As many curves as colours can be told from one another.
    const MAX_CURVES: usize = 8;
    let range = |trend: &Trend| {
        let values = sorted(&trend.runs.iter().map(|run| run.time_ns).collect::<Vec<_>>());
        values[values.len() - 1] / values[0]
    };
    own.sort_by(|a, b| {
        let by_range = || range(b).total_cmp(&range(a));
        b.steps.len().cmp(&a.steps.len()).then_with(by_range)
    });
    own.truncate(MAX_CURVES);
    let date = |run: &Run| seconds(&run.time_utc);
    let are_dates = own.iter().flat_map(|trend| &trend.runs).all(|run| date(run).is_some());
    let place = |at: usize, run: &Run| {
        let date = date(run).filter(|_| are_dates);
        date.unwrap_or((at + 1) as f64)
    };
    let curve = |trend: &&Trend| {
        let label = trend.point.strip_prefix(trend.study.as_str());
        let first_ns = trend.runs[0].time_ns;
        let runs = trend.runs.iter().enumerate();
        let ratios = runs.map(|(at, run)| (place(at, run), run.time_ns / first_ns));
        Curve::new(label.unwrap_or(&trend.point).trim(), ratios.collect())
    };
    let texts = Texts { id: "history", title: "", caption: "" };
    let x = if are_dates {
        Axis::dates("time (UTC)", own.iter().flat_map(|trend| &trend.runs).filter_map(date))
    } else {
        Axis::linear("run")
    };
    let y = Axis::linear("time over first run");
    lines(texts, x, y, own.iter().map(curve).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::example;

    /// Twelve runs; the last six take 10 % longer at one stage.
    fn twelve_runs() -> Vec<RunRecord> {
        let run = |at: u64| {
            let mut record = example();
            record.time_utc = format!("2026-11-{:02}T03:00:00.000Z", at + 1);
            record.run_id = format!("run-{at}").into();
            record.tool.git_revision = if at < 6 { "aaaa" } else { "bbbb" }.into();
            for stage in record.lanes.iter_mut().flat_map(|lane| &mut lane.stages) {
                let slower = if at >= 6 && stage.name == "func_readout" { 110 } else { 100 };
                stage.sample_ns.iter_mut().for_each(|ns| *ns = *ns * (slower * 10 + at % 3) / 1000);
            }
            record
        };
        // Files need not be in the order of time.
        (0..12).rev().map(run).collect()
    }

    #[test]
    fn a_step_is_named_with_the_revisions_around_it() {
        let found = trends(&twelve_runs(), 0.02);
        assert_eq!(found.len(), 4);
        let step = &found[0].steps[0];
        assert_eq!(
            (step.at, step.between, &step.revisions),
            (6, (6, 6), &("aaaa".to_owned(), "bbbb".to_owned()))
        );
        assert!(step.z > 4.0);
        assert!(found[1].steps.is_empty());
        insta::assert_snapshot!(text(&found));
        assert_eq!(figures(&found, "daqmeter history x")[0].series.len(), 4);
    }

    /// Forty runs of one level that scatter by 1 %, some of them slower by a factor.
    fn forty_runs(slower: impl Fn(usize) -> f64) -> Vec<RunRecord> {
        use daqmeter_stats::simulated::{Kind, Random, null_row};
        // The simulated noise is 2 %.
        let scatter = null_row(Kind::Independent, 40, &mut Random::new(40));
        let run = |(at, scatter): (usize, &f64)| {
            let mut record = example();
            record.time_utc = format!("2026-11-{:02}T{:02}:00:00.000Z", at / 24 + 1, at % 24);
            record.run_id = format!("run-{at}").into();
            let factor = scatter.sqrt() * slower(at);
            for stage in record.lanes.iter_mut().flat_map(|lane| &mut lane.stages) {
                let times = stage.sample_ns.iter_mut();
                times.for_each(|ns| *ns = (*ns as f64 * factor) as u64);
            }
            record
        };
        scatter.iter().enumerate().map(run).collect()
    }

    #[test]
    fn a_bad_hour_is_said_once_for_all_points_and_is_no_step() {
        let bad = |at: usize| if (20..24).contains(&at) { 1.3 } else { 1.0 };
        let found = trends(&forty_runs(bad), 0.02);
        for trend in &found {
            let runs: Vec<(usize, usize)> = trend.bad_hours.iter().map(|hour| hour.runs).collect();
            assert_eq!((trend.steps.len(), runs), (0, vec![(20, 23)]));
        }
        let text = text(&found);
        let line = "bad hour  2026-11-01T20:00 to 2026-11-01T23:00: 4 points, typically";
        assert_eq!(text.matches(line).count(), 1, "{text}");
    }

    #[test]
    fn two_modes_and_a_drift_are_named_and_are_no_steps() {
        let modes = |at: usize| if at * 7919 % 10 < 4 { 1.15 } else { 1.0 };
        let modes = trends(&forty_runs(modes), 0.02);
        let are_modes = |trend: &Trend| trend.has_two_modes && trend.steps.is_empty();
        assert!(modes.iter().all(are_modes), "{}", text(&modes));
        let drift = trends(&forty_runs(|at| (0.004 * at as f64).exp()), 0.02);
        let is_drift = |trend: &Trend| trend.drifts && trend.steps.is_empty();
        assert!(drift.iter().all(is_drift), "{}", text(&drift));
        assert!(text(&drift).contains("drift"));
    }

    #[test]
    fn a_gate_fails_at_a_step_that_nothing_made_up_for_and_cannot_tell_of_a_single_run() {
        let of = |time: fn(usize) -> f64| gate(&trends(&forty_runs(time), 0.02), 0.05);
        assert_eq!(of(|_| 1.0), Gate::Passed);
        assert_eq!(of(|at| if at < 20 { 1.0 } else { 1.2 }), Gate::Failed);
        assert_eq!(of(|at| if at < 20 { 1.2 } else { 1.0 }), Gate::Passed);
        let mended = |at| if (13..26).contains(&at) { 1.2 } else { 1.0 };
        assert_eq!(of(mended), Gate::Passed);
        // An old gain does not compensate a new loss of speed.
        let later = |at| [1.0, 0.5, 0.6][at / 14];
        assert_eq!(of(later), Gate::Failed);
        assert_eq!(of(|at| if at < 39 { 1.0 } else { 1.2 }), Gate::NoPower(4));
        assert_eq!(
            gate(&trends(&forty_runs(|at| if at < 20 { 1.0 } else { 1.2 }), 0.02), 0.5),
            Gate::Passed
        );
    }

    /// Repetitions are of one invocation, wherever they stand in the files.
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
    fn a_run_that_failed_is_no_value_of_a_point() {
        let mut records = twelve_runs();
        for record in records.iter_mut().take(3) {
            record.outcome = daqmeter_record::Outcome::Failed("bytes differ".into());
            record.lanes[0].stages[0].sample_ns = vec![1; 3];
        }
        let found = trends(&records, 0.02);
        assert!(found.iter().all(|trend| trend.runs.len() == 9), "{found:?}");
        assert!(found[0].runs.iter().all(|run| run.time_ns > 1e6));
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
