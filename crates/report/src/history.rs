//! A point over time: one value a run, its trend, and where it took a step.

use std::collections::BTreeMap;
use std::fmt::Write;

use daqmeter_record::units::show_ns;
use daqmeter_record::{RunRecord, Stage};
use daqmeter_stats::{Change, change_points, quantile, sorted};
use serde::Serialize;

use crate::aligned::numbers_from;
use crate::families::{level, level_name};
use crate::figures::{Axis, Curve, Figure, Texts, lines};
use crate::points::{Point, runs_by_point};
use crate::samples::compared_ns;

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
    /// Time after over time before.
    pub ratio: f64,
    /// Revision before and after.
    pub revisions: (String, String),
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
    /// Runs in the order of their time.
    pub runs: Vec<Run>,
    /// Steps.
    pub steps: Vec<Step>,
}

/// Trends of all points that were run at least twice on a host. Steps up to `ignore` (0.02 is 2 %) are passed over.
pub fn trends(records: &[RunRecord], ignore: f64) -> Vec<Trend> {
    let mut hosts: BTreeMap<String, Vec<RunRecord>> = BTreeMap::new();
    for record in records {
        let host = format!(
            "{}, {} CPUs",
            record.host.cpu_model, record.host.logical_cpus
        );
        hosts.entry(host).or_default().push(record.clone());
    }
    hosts
        .iter()
        .flat_map(|(host, records)| of_host(host, records, ignore))
        .collect()
}

fn of_host(host: &str, records: &[RunRecord], ignore: f64) -> Vec<Trend> {
    let trends = runs_by_point(records).into_iter();
    trends
        .map(|(point, found)| trend(host, point, &found, ignore))
        .filter(|trend| trend.runs.len() >= 2)
        .collect()
}

fn trend(host: &str, point: Point, found: &[(&RunRecord, &Stage)], ignore: f64) -> Trend {
    let name = found
        .first()
        .map_or("median", |(record, stage)| level_name(level(record, stage)));
    let runs = runs(found);
    let values: Vec<f64> = runs.iter().map(|run| run.time_ns).collect();
    let step = |change: Change| Step {
        at: change.at,
        ratio: change.ratio,
        revisions: (
            runs[change.at - 1].revision.clone(),
            runs[change.at].revision.clone(),
        ),
    };
    Trend {
        host: host.to_owned(),
        point: point.to_string(),
        study: point.study,
        level: name,
        steps: change_points(&values, ignore)
            .into_iter()
            .map(step)
            .collect(),
        runs,
    }
}

/// One value for each run: they have numbers, and stand in the order of their first records.
fn runs(found: &[(&RunRecord, &Stage)]) -> Vec<Run> {
    let mut by_run: BTreeMap<(String, String), (String, Vec<f64>)> = BTreeMap::new();
    for (record, stage) in found {
        let time_ns = level(record, stage).of(&compared_ns(stage));
        if time_ns.is_nan() || time_ns <= 0.0 {
            continue;
        }
        let known = by_run.keys().find(|(_, run_id)| *run_id == record.run_id);
        let new = || (record.time_utc.clone(), record.run_id.clone());
        let key = known.cloned().unwrap_or_else(new);
        let run = by_run.entry(key);
        let (_, times) = run.or_insert_with(|| (record.tool.git_revision.clone(), Vec::new()));
        times.push(time_ns);
    }
    let runs = by_run.into_iter();
    runs.map(|((time_utc, run_id), (revision, times))| Run {
        time_utc,
        run_id,
        revision,
        time_ns: quantile(&sorted(&times), 0.5),
    })
    .collect()
}

/// Eight heights, from the fastest run to the slowest; a middle line where all are alike to 1 %.
fn spark(runs: &[Run]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    /// The newest runs that fit into a column.
    const MAX_RUNS: usize = 24;
    let shown = &runs[runs.len().saturating_sub(MAX_RUNS)..];
    let least = shown
        .iter()
        .map(|run| run.time_ns)
        .fold(f64::INFINITY, f64::min);
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
        let steps = own
            .iter()
            .flat_map(|trend| trend.steps.iter().map(|step| step_text(trend, step)));
        steps.for_each(|step| out.push_str(&step));
    }
    let steps: usize = trends.iter().map(|trend| trend.steps.len()).sum();
    let _ = writeln!(out, "{} points, {steps} steps", trends.len());
    out
}

const HEADINGS: [&str; 8] = [
    "point",
    "time",
    "slower is higher",
    "runs",
    "first",
    "last",
    "last/first",
    "steps",
];

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
            trend.steps.len().to_string(),
        ]
    });
    numbers_from(3, &HEADINGS, rows)
}

fn step_text(trend: &Trend, step: &Step) -> String {
    let what = if step.ratio > 1.0 { "slower" } else { "faster" };
    let run = &trend.runs[step.at];
    let (before, after) = &step.revisions;
    let revisions = if before == after {
        format!("revision {after} before and after")
    } else {
        format!("{before} -> {after}")
    };
    format!(
        "step  {}: {:.1} % {what} from {} on ({revisions})\n",
        trend.point,
        (step.ratio - 1.0).abs() * 100.0,
        run.time_utc.get(..16).unwrap_or(&run.time_utc)
    )
}

/// A figure a study: every point over its runs, as a ratio to its first run, so that points of all sizes share an axis.
pub fn figures(trends: &[Trend], command: &str) -> Vec<Figure> {
    let of = |trend: &'_ Trend| (trend.host.clone(), trend.study.clone());
    let mut studies: Vec<(String, String)> = trends.iter().map(of).collect();
    studies.dedup();
    let figure = |(host, study): (String, String)| {
        let own = trends
            .iter()
            .filter(|trend| trend.host == host && trend.study == study);
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
    let curve = |trend: &&Trend| {
        let label = trend.point.strip_prefix(trend.study.as_str());
        let first_ns = trend.runs[0].time_ns;
        let runs = trend.runs.iter().enumerate();
        let ratios = runs.map(|(at, run)| ((at + 1) as f64, run.time_ns / first_ns));
        Curve::new(label.unwrap_or(&trend.point).trim(), ratios.collect())
    };
    let texts = Texts {
        id: "history",
        title: "",
        caption: "",
    };
    let (x, y) = (Axis::linear("run"), Axis::linear("time over first run"));
    lines(texts, x, y, own.iter().map(curve).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::example;

    /// Ten runs; the last five take 10 % longer at one stage.
    fn ten_runs() -> Vec<RunRecord> {
        let run = |at: u64| {
            let mut record = example();
            record.time_utc = format!("2026-11-{:02}T03:00:00.000Z", at + 1);
            record.run_id = format!("run-{at}");
            record.tool.git_revision = if at < 5 { "aaaa" } else { "bbbb" }.into();
            for stage in record.lanes.iter_mut().flat_map(|lane| &mut lane.stages) {
                let slower = if at >= 5 && stage.name == "func_readout" {
                    110
                } else {
                    100
                };
                stage
                    .sample_ns
                    .iter_mut()
                    .for_each(|ns| *ns = *ns * (slower * 10 + at % 3) / 1000);
            }
            record
        };
        // Files need not be in the order of time.
        (0..10).rev().map(run).collect()
    }

    #[test]
    fn a_step_is_named_with_the_revisions_around_it() {
        let found = trends(&ten_runs(), 0.02);
        assert_eq!(found.len(), 4);
        let step = &found[0].steps[0];
        assert_eq!(
            (step.at, &step.revisions),
            (5, &("aaaa".to_owned(), "bbbb".to_owned()))
        );
        assert!(found[1].steps.is_empty());
        insta::assert_snapshot!(text(&found));
        assert_eq!(figures(&found, "daqmeter history x")[0].series.len(), 4);
    }

    #[test]
    fn a_run_that_failed_is_no_value_of_a_point() {
        let mut records = ten_runs();
        for record in records.iter_mut().take(3) {
            record.outcome = daqmeter_record::Outcome::Failed("bytes differ".into());
            record.lanes[0].stages[0].sample_ns = vec![1; 3];
        }
        let found = trends(&records, 0.02);
        assert!(found.iter().all(|trend| trend.runs.len() == 7), "{found:?}");
        assert!(found[0].runs.iter().all(|run| run.time_ns > 1e6));
    }

    #[test]
    fn hosts_are_kept_apart_and_single_runs_have_no_trend() {
        let mut records = ten_runs();
        let host = daqmeter_record::Host {
            cpu_model: "another".into(),
            ..Default::default()
        };
        records.truncate(3);
        records[0].host = host.into();
        let found = trends(&records, 0.02);
        assert_eq!((found.len(), found[0].runs.len()), (4, 2));
        assert!(trends(&records[..1], 0.02).is_empty());
    }
}
