//! Predictions of paths beside what was measured of the same path: each figure with its interval, and whether what was measured lies in it.

use daqmeter_record::border::sum;
use std::collections::BTreeMap;
use std::fmt::Write;

use daqmeter_record::conditions::{self, Disturbance};
use daqmeter_record::path::{PathRun, PathThread};
use daqmeter_record::prediction::{PartPrediction, Predicted, Prediction};
use daqmeter_record::units::{plural, show_mb_per_s, significant};
use daqmeter_record::{RunRecord, sanitise};
use serde::Serialize;

use crate::aligned::{numbers_from, wrapped};
use crate::families::path::name;
use crate::rate;
use crate::svg::escaped;

/// A predicted path beside its runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Beside {
    name: String,
    about: String,
    notes: Vec<String>,
    lines: Vec<Line>,
    svg: String,
}

/// A figure of a path.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Line {
    figure: String,
    predicted: String,
    low: String,
    high: String,
    measured: String,
    runs: String,
    verdict: &'static str,
    is_outside: bool,
}

/// A figure before it is shown.
struct Figure {
    name: String,
    unit: &'static str,
    predicted: Predicted,
    /// Of each run.
    measured: Vec<f64>,
    axis: Axis,
}

/// How a figure is drawn.
#[derive(Clone, Copy)]
enum Axis {
    /// By its ratio to the prediction.
    Ratio,
    /// From 0 to this value at least.
    Upto(f64),
}

/// What the intervals are, for a page and for a terminal.
pub(crate) const ABOUT: &str = "An interval holds the measured value with 90 %, for paths like those that the calibration of the host held back, while the host is as it was then.";

/// Every prediction of the records, the newest of each path and load, beside the runs of the same path.
pub(crate) fn predictions(records: &[RunRecord]) -> Vec<Beside> {
    if records.iter().all(|record| record.prediction.is_none()) {
        return Vec::new();
    }
    let usable = rate::usable(records);
    let newest: BTreeMap<String, (&RunRecord, &Prediction)> = usable
        .iter()
        .filter_map(|record| {
            let found = record.prediction.as_deref()?;
            Some((record.workload.key(), (record, found)))
        })
        .collect();
    let beside = newest.into_values().map(|(record, found)| beside(record, found, &usable));
    beside.collect()
}

/// Every prediction as text.
pub fn text(records: &[RunRecord]) -> String {
    let all: Vec<String> = predictions(records).iter().map(Beside::text).collect();
    all.join("\n")
}

fn beside(record: &RunRecord, found: &Prediction, all: &[RunRecord]) -> Beside {
    let figures = figures(record, found, all);
    let lines: Vec<Line> = figures.iter().map(line).collect();
    let outside = lines.iter().filter(|line| line.is_outside).count();
    let compared = lines.iter().filter(|line| !line.verdict.is_empty()).count();
    let outcome = match compared {
        0 => "nothing was measured of it".to_owned(),
        n => format!("{} of {} outside", outside, plural(n as u64, "figure")),
    };
    let mut notes = found.notes.clone();
    notes.extend(other_host(record, all));
    notes.extend(not_compared(record, all));
    Beside {
        name: name_at(record, found),
        about: format!("{}; limit: {}; {outcome}", found.line, found.limit),
        svg: svg(&figures),
        notes,
        lines,
    }
}

/// The path, and the rate at which its blocks are due where there is one.
fn name_at(record: &RunRecord, found: &Prediction) -> String {
    let name = name(record).unwrap_or_else(|| found.line.clone());
    match found.offered_hz {
        None => name,
        Some(hz) => {
            let mb_per_s = show_mb_per_s(hz * found.block_bytes as f64);
            format!("{name}, at {mb_per_s} MB/s")
        }
    }
}

/// A profile of a host may be used for another: where the runs are of another one, that is shown.
fn other_host(record: &RunRecord, all: &[RunRecord]) -> Option<String> {
    let runs = runs(record, all, &[]);
    let other = runs.iter().find(|(run, _)| run.host.cpu_model != record.host.cpu_model)?;
    Some(format!("predicted for {}, measured on {}", record.host.cpu_model, other.0.host.cpu_model))
}

/// What was measured beside something that disturbed it says nothing of a prediction.
fn not_compared(record: &RunRecord, all: &[RunRecord]) -> Option<String> {
    let disturbed = of_path(record, all, &[]).filter_map(|(run, _)| conditions::of(run).pop());
    let disturbed: Vec<Disturbance> = disturbed.collect();
    let last = disturbed.last()?;
    let runs = plural(disturbed.len() as u64, "run");
    Some(format!("{runs} not compared: {last}"))
}

/// Sound runs that ask the same as a record, but for the parameters of these names.
fn runs<'a>(
    record: &RunRecord,
    all: &'a [RunRecord],
    but: &'a [&str],
) -> Vec<(&'a RunRecord, &'a PathRun)> {
    let runs = of_path(record, all, but);
    runs.filter(|(run, _)| conditions::of(run).is_empty()).collect()
}

/// All runs that ask the same.
fn of_path<'a>(
    record: &RunRecord,
    all: &'a [RunRecord],
    but: &'a [&str],
) -> impl Iterator<Item = (&'a RunRecord, &'a PathRun)> + use<'a> {
    let key = record.workload.key_without(but);
    let runs = all.iter().filter(|run| run.role.is_point());
    let runs = runs.filter_map(|run| Some((run, run.path.as_deref()?)));
    runs.filter(move |(run, _)| run.workload.key_without(but) == key)
}

/// What says at which rate blocks are due.
const LOAD: [&str; 3] = ["rate_hz", "unpaced", "lossy"];

fn figures(record: &RunRecord, found: &Prediction, all: &[RunRecord]) -> Vec<Figure> {
    let free = runs(record, all, &LOAD);
    let free = free.iter().map(|(_, run)| *run).filter(|run| !run.is_paced);
    let here: Vec<&PathRun> = runs(record, all, &[]).iter().map(|(_, run)| *run).collect();
    let mb_per_block = found.block_bytes as f64 * 1e-6;
    let ratio = |name: &str, unit, predicted, measured| Figure {
        name: name.to_owned(),
        unit,
        predicted,
        measured,
        axis: Axis::Ratio,
    };
    let latency = |share: f64| -> Vec<f64> {
        let ns = here.iter().filter_map(|run| run.latency_ns(share));
        ns.map(|ns| ns as f64 * 1e-3).collect()
    };
    let mut figures = vec![
        ratio(
            "largest rate",
            "MB/s",
            found.largest_hz.scaled(mb_per_block),
            free.map(|run| blocks_hz(run) * mb_per_block).collect(),
        ),
        ratio("latency, median", "us", found.p50_ns.scaled(1e-3), latency(0.5)),
        ratio("latency, p99", "us", found.p99_ns.scaled(1e-3), latency(0.99)),
    ];
    if let Some(offered_hz) = found.offered_hz {
        let lost = |run: &&PathRun| (1.0 - blocks_hz(run) / offered_hz).max(0.0) * 100.0;
        figures.push(Figure {
            name: "lost or held back".to_owned(),
            unit: "%",
            predicted: found.lost.scaled(100.0),
            measured: here.iter().map(lost).collect(),
            axis: Axis::Upto(100.0),
        });
    }
    figures.extend(found.parts.iter().map(|part| cpu(part, &here)));
    figures.extend(found.parts.iter().filter_map(|part| depth(part, &here)));
    figures
}

fn blocks_hz(run: &PathRun) -> f64 {
    run.blocks as f64 / run.wall_ns.max(1) as f64 * 1e9
}

/// CPU of each thread of a part.
fn cpu(part: &PartPrediction, runs: &[&PathRun]) -> Figure {
    let of = |run: &&PathRun| {
        let own = run.threads.iter().filter(|thread| thread.part == part.name);
        let own: Vec<&PathThread> = own.collect();
        let cpu_ns = sum(own.iter().map(|thread| thread.cpu_ns));
        let all_ns = run.wall_ns.max(1) as f64 * own.len() as f64;
        (!own.is_empty()).then(|| cpu_ns as f64 / all_ns * 100.0)
    };
    Figure {
        name: format!("CPU of {}", part.name),
        unit: "%",
        predicted: part.cpu.scaled(100.0),
        measured: runs.iter().filter_map(of).collect(),
        axis: Axis::Upto(100.0),
    }
}

/// Blocks in the queues before a part.
fn depth(part: &PartPrediction, runs: &[&PathRun]) -> Option<Figure> {
    let predicted = part.depth?;
    let of = |run: &&PathRun| {
        let own = run.threads.iter().filter(|thread| thread.part == part.name);
        let own: Vec<&str> = own.map(|thread| thread.name.as_str()).collect();
        let queues = run.queues.iter().filter(|queue| own.contains(&&*queue.to));
        let means: Vec<f64> = queues.filter_map(|queue| queue.mean()).collect();
        (!means.is_empty()).then(|| means.iter().sum::<f64>() / means.len() as f64)
    };
    Some(Figure {
        name: format!("queue before {}", part.name),
        unit: "blocks",
        predicted,
        measured: runs.iter().filter_map(of).collect(),
        axis: Axis::Upto(1.0),
    })
}

impl Figure {
    /// The median of the runs; none without runs.
    fn middle(&self) -> Option<f64> {
        (!self.measured.is_empty()).then(|| daqmeter_stats::median(&self.measured))
    }

    /// Whether what was measured lies outside; none where nothing was.
    fn is_outside(&self) -> Option<bool> {
        self.middle().map(|measured| !self.predicted.holds(measured))
    }

    fn verdict(&self) -> &'static str {
        match self.is_outside() {
            Some(true) => "OUTSIDE",
            Some(false) => "within",
            None => "",
        }
    }
}

fn line(figure: &Figure) -> Line {
    let show = |value: f64| significant(value, 3);
    Line {
        figure: format!("{} [{}]", figure.name, figure.unit),
        predicted: show(figure.predicted.value),
        low: show(figure.predicted.low),
        high: show(figure.predicted.high),
        measured: figure.middle().map_or("-".to_owned(), show),
        runs: figure.measured.len().to_string(),
        verdict: figure.verdict(),
        is_outside: figure.is_outside() == Some(true),
    }
}

const HEADINGS: [&str; 7] = ["figure", "predicted", "90 % from", "to", "measured", "runs", ""];

impl Beside {
    fn text(&self) -> String {
        let rows = self.lines.iter().map(|line| {
            let cells =
                [&line.figure, &line.predicted, &line.low, &line.high, &line.measured, &line.runs];
            let cells = cells.into_iter().cloned();
            cells.chain([line.verdict.to_owned()]).collect()
        });
        let mut out = format!(
            "predicted: {}\n{}\n\n{}",
            sanitise::text(&self.name),
            wrapped(&sanitise::text(&self.about), 2),
            numbers_from(1, &HEADINGS, rows)
        );
        for note in &self.notes {
            let _ = writeln!(out, "{}", wrapped(&format!(" {}", sanitise::text(note)), 3));
        }
        out
    }
}

/// Distance of two rows of the picture, which is 460 wide, so that it is legible on a telephone.
const ROW: usize = 58;
/// Where the axis begins and how long it is.
const LEFT: f64 = 6.0;
const WIDTH: f64 = 448.0;
/// The ends of an axis of ratios: a quarter of the prediction, and four times as much.
const MAX_RATIO: f64 = 4.0;

fn svg(figures: &[Figure]) -> String {
    let height = figures.len() * ROW + 4;
    let spoken: Vec<String> = figures.iter().map(spoken).collect();
    let mut out = format!(
        "<svg class=\"path predicted\" viewBox=\"0 0 460 {height}\" role=\"img\" aria-label=\"{}\">",
        escaped(&spoken.join(". "))
    );
    for (at, figure) in figures.iter().enumerate() {
        write_row(&mut out, at * ROW, figure);
    }
    out.push_str("</svg>");
    out
}

fn spoken(figure: &Figure) -> String {
    let Line { figure: name, predicted, low, high, measured, verdict, .. } = line(figure);
    let measured = match verdict {
        "" => String::new(),
        verdict => format!(", measured {measured}: {verdict}"),
    };
    format!("{name}: predicted {predicted} ({low} to {high}){measured}")
}

/// Where a value is on the axis of its figure; what is beyond an end is at that end.
fn place(figure: &Figure, value: f64) -> f64 {
    let share = match figure.axis {
        Axis::Ratio => {
            let ratio = (value / figure.predicted.value.max(f64::MIN_POSITIVE)).max(1e-9);
            0.5 + 0.5 * ratio.ln() / MAX_RATIO.ln()
        }
        Axis::Upto(least) => {
            let most = figure.middle().unwrap_or(0.0).max(figure.predicted.high);
            value / most.max(least)
        }
    };
    LEFT + WIDTH * share.clamp(0.0, 1.0)
}

fn write_row(out: &mut String, y: usize, figure: &Figure) {
    let shown = line(figure);
    let of = |value: f64| place(figure, value);
    let (low, high) = (of(figure.predicted.low), of(figure.predicted.high));
    let class = if shown.is_outside { " outside" } else { "" };
    let measured = match shown.verdict {
        "" => String::new(),
        _ => format!(", measured {}", shown.measured),
    };
    // Strings take all that is written.
    let _ = write!(
        out,
        "<text class=\"strong\" x=\"{LEFT}\" y=\"{0}\">{1}</text><text class=\"verdict{class}\" x=\"{2}\" y=\"{0}\">{3}</text>",
        y + 14,
        escaped(&shown.figure),
        LEFT + WIDTH,
        shown.verdict
    );
    let _ = write!(
        out,
        "<text class=\"number\" x=\"{LEFT}\" y=\"{}\">{} ({} to {}){measured}</text>",
        y + 30,
        shown.predicted,
        shown.low,
        shown.high
    );
    let _ = write!(
        out,
        "<path class=\"axis\" d=\"M{LEFT} {0} H{1}\"/><rect class=\"interval\" x=\"{low:.1}\" y=\"{2}\" width=\"{3:.1}\" height=\"9\"/><path class=\"value\" d=\"M{4:.1} {2} v9\"/>",
        y + 42,
        LEFT + WIDTH,
        y + 37,
        (high - low).max(1.0),
        of(figure.predicted.value)
    );
    if let Some(middle) = figure.middle() {
        let _ = write!(
            out,
            "<circle class=\"measured{class}\" cx=\"{:.1}\" cy=\"{}\" r=\"4.5\"/>",
            of(middle),
            y + 42
        );
    }
}

#[cfg(test)]
mod tests {
    use daqmeter_record::path::{Bucket, PathQueue};
    use daqmeter_record::{EngineInfo, Role, Workload};

    use super::*;

    fn around(value: f64) -> Predicted {
        Predicted { value, low: 0.8 * value, high: 1.25 * value }
    }

    fn record(rate_hz: Option<f64>) -> RunRecord {
        let engine = EngineInfo { name: "path".into(), ..EngineInfo::default() };
        let mut record = RunRecord::new(engine, Workload::default());
        record.set_param("path", "pattern");
        record.set_param("seconds", 1.0);
        if let Some(hz) = rate_hz {
            record.set_param("rate_hz", hz);
        }
        record
    }

    fn predicted(rate_hz: Option<f64>) -> RunRecord {
        let part = |name: &str, depth| PartPrediction {
            name: name.to_owned(),
            threads: 1,
            cost_ns: 1e3,
            cpu: around(0.4),
            depth,
        };
        let prediction = Prediction {
            line: "memory -> <read>".to_owned(),
            block_bytes: 1_000_000,
            largest_hz: around(100.0),
            limit: "read".to_owned(),
            offered_hz: rate_hz,
            p50_ns: around(1e5),
            p99_ns: around(2e5),
            parts: vec![part("memory", None), part("read", Some(around(2.0)))],
            ..Prediction::default()
        };
        let mut record = record(rate_hz);
        record.role = Role::Prediction;
        record.prediction = Some(Box::new(prediction));
        record
    }

    fn measured(rate_hz: Option<f64>, blocks: u64) -> RunRecord {
        let thread = |name: &str| PathThread {
            name: name.to_owned(),
            part: name.to_owned(),
            cpu_ns: 450_000_000,
            ..PathThread::default()
        };
        let bucket = |from_ns, count| Bucket { from_ns, count };
        let run = PathRun {
            wall_ns: 1_000_000_000,
            blocks,
            is_paced: rate_hz.is_some(),
            threads: ["memory", "read"].map(thread).into(),
            queues: vec![PathQueue {
                from: "memory".to_owned(),
                to: "read".to_owned(),
                seen: vec![0, 0, 1],
            }],
            latency: vec![bucket(90_000, 90), bucket(900_000, 10)],
            ..PathRun::default()
        };
        let mut record = record(rate_hz);
        record.path = Some(Box::new(run));
        record
    }

    #[test]
    fn each_figure_is_beside_what_was_measured_and_what_lies_outside_is_marked() {
        let runs = [110, 90, 300].map(|blocks| measured(None, blocks));
        let records: Vec<RunRecord> = [predicted(None)].into_iter().chain(runs).collect();
        insta::assert_snapshot!(text(&records));
        let picture = &predictions(&records)[0].svg;
        assert_eq!(picture.matches("OUTSIDE</text>").count(), 1, "{picture}");
        assert_eq!(picture.matches("<circle").count(), 6, "{picture}");
        // The prediction is in the middle of an axis of ratios.
        assert!(picture.contains("d=\"M230.0 37 v9\""), "{picture}");
    }

    #[test]
    fn only_runs_at_the_same_load_count_but_the_largest_rate_is_that_of_any_free_run() {
        let paced = Some(50.0);
        let records =
            [predicted(paced), measured(None, 100), measured(paced, 50), measured(Some(60.0), 60)];
        let found = predictions(&records);
        let runs: Vec<&str> = found[0].lines.iter().map(|line| &*line.runs).collect();
        assert_eq!(runs, ["1"; 7], "{found:?}");
        assert_eq!(found[0].lines[3].measured, "0");
    }

    #[test]
    fn a_disturbed_run_is_not_compared_and_the_reason_is_shown() {
        let example = crate::examples::disturbed();
        let mut disturbed = measured(None, 10);
        disturbed.lanes = example.lanes;
        disturbed.host_cpu = example.host_cpu;
        disturbed.process_cpu = example.process_cpu;
        (disturbed.wall_ns, disturbed.host) = (example.wall_ns, example.host);
        let found = text(&[predicted(None), disturbed]);
        assert!(!found.contains("OUTSIDE"), "{found}");
        assert!(found.contains("1 run not compared: other programs took"), "{found}");
    }

    #[test]
    fn a_prediction_without_runs_says_that_nothing_was_measured() {
        let found = text(&[predicted(None)]);
        assert!(found.contains("nothing was measured of it"), "{found}");
        assert!(!found.contains("within"), "{found}");
    }
}
