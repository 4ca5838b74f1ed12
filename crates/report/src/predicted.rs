//! Predictions of paths beside measurements of the path, with the verdict of each interval.

use std::collections::BTreeMap;
use std::fmt::Write;

use daqmeter_record::conditions;
use daqmeter_record::path::PathRun;
use daqmeter_record::prediction::{Predicted, Prediction};
use daqmeter_record::units::{plural, show_mb_per_s, significant};
use daqmeter_record::{RunRecord, sanitise};
use serde::Serialize;

use crate::aligned::{numbers_from, wrapped};
use crate::families::path::name;
use crate::rate;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct PredictedPath {
    name: String,
    about: String,
    notes: Vec<String>,
    /// Cells in the order of [`HEADINGS`].
    lines: Vec<[String; 7]>,
}

const HEADINGS: [&str; 7] = ["figure", "predicted", "90 % from", "to", "measured", "runs", ""];

/// Explanation of the intervals, for the page and the terminal.
pub(crate) const ABOUT: &str = "Each interval holds the measured value with 90 % probability, for paths like those of the calibration on an unchanged host.";

pub(crate) fn predictions(records: &[RunRecord]) -> Vec<PredictedPath> {
    let usable = rate::usable(records);
    let newest: BTreeMap<(String, String), (&RunRecord, &Prediction)> = usable
        .iter()
        .filter_map(|record| {
            let found = record.prediction.as_deref()?;
            Some(((record.workload.key(), record.host.label()), (record, found)))
        })
        .collect();
    newest.into_values().map(|(record, found)| beside(record, found, &usable)).collect()
}

pub fn text(records: &[RunRecord]) -> String {
    let all = predictions(records).into_iter().map(|path| {
        let mut out = format!(
            "predicted: {}\n{}\n\n{}",
            sanitise::text(&path.name),
            wrapped(&sanitise::text(&path.about), 2),
            numbers_from(1, &HEADINGS, path.lines.into_iter().map(Vec::from))
        );
        for note in &path.notes {
            let _ = writeln!(out, "{}", wrapped(&format!(" {}", sanitise::text(note)), 3));
        }
        out
    });
    all.collect::<Vec<_>>().join("\n")
}

fn beside(record: &RunRecord, found: &Prediction, all: &[RunRecord]) -> PredictedPath {
    let (here, disturbed) = runs(record, all, &[]);
    let (free, _) = runs(record, all, &["rate_hz", "unpaced", "lossy"]);
    let hz = |run: &PathRun| run.per_s(run.blocks);
    let mb = found.block_bytes as f64 * 1e-6;
    let us = |share: f64| move |run: &&PathRun| Some(run.latency_ns(share)? as f64 * 1e-3);
    let free = free.into_iter().filter(|run| !run.is_paced);
    let mut lines = vec![
        line("largest rate [MB/s]", found.largest_hz.scaled(mb), free.map(|run| hz(run) * mb)),
        line("latency, median [us]", found.p50_ns.scaled(1e-3), here.iter().filter_map(us(0.5))),
        line("latency, p99 [us]", found.p99_ns.scaled(1e-3), here.iter().filter_map(us(0.99))),
    ];
    if let Some(offered_hz) = found.offered_hz {
        let lost = |run: &&PathRun| (1.0 - hz(run) / offered_hz).max(0.0) * 100.0;
        lines.push(line("lost or delayed [%]", found.lost.scaled(100.0), here.iter().map(lost)));
    }
    lines.extend(found.parts.iter().map(|part| {
        let cpu = |run: &&PathRun| {
            let own = run.threads.iter().filter(|thread| thread.part == part.name);
            let own: Vec<f64> = own.map(|thread| thread.cpu_ns as f64).collect();
            let all_ns = run.time_ns() as f64 * own.len() as f64;
            (!own.is_empty()).then(|| own.iter().sum::<f64>() / all_ns * 100.0)
        };
        let name = format!("CPU of {} [%]", part.name);
        line(&name, part.cpu.scaled(100.0), here.iter().filter_map(cpu))
    }));
    let outside = lines.iter().filter(|line| line[6] == "OUTSIDE").count();
    let compared = lines.iter().filter(|line| !line[6].is_empty()).count() as u64;
    let outcome = format!("{outside} of {} outside", plural(compared, "measured figure"));
    let mut notes = found.notes.clone();
    notes.extend(disturbed);
    let at = found.offered_hz.map(|hz| format!(", at {} MB/s", show_mb_per_s(hz * mb * 1e6)));
    PredictedPath {
        name: name(record).unwrap_or_else(|| found.line.clone()) + &at.unwrap_or_default(),
        about: format!(
            "{}; layout {}; limit: {}; {outcome}",
            found.line,
            if found.layout.is_empty() { "pipeline" } else { &found.layout },
            found.limit
        ),
        notes,
        lines,
    }
}

/// Returns sound runs with a record's request, except for parameters of these names, and a note on
/// other runs.
fn runs<'a>(
    record: &RunRecord,
    all: &'a [RunRecord],
    but: &[&str],
) -> (Vec<&'a PathRun>, Vec<String>) {
    let key = record.workload.key_without(but);
    let (mut sound, mut notes) = (Vec::new(), Vec::new());
    let is_alike = |run: &&RunRecord| run.role.is_point() && run.workload.key_without(but) == key;
    // Those of the prediction's host, or else of the first one.
    let is_own = |run: &&RunRecord| run.host.label() == record.host.label();
    let own = all.iter().filter(is_alike).find(is_own).or(all.iter().find(is_alike));
    let host = own.map(|run| run.host.label());
    for other in all.iter().filter(is_alike).filter(|run| Some(run.host.label()) == host) {
        let Some(run) = other.path.as_deref() else { continue };
        let layout = record.prediction.as_ref().map_or("", |found| &found.layout);
        // The layout, without the CPUs of its threads.
        let here = run.layout.split(" on CPU").next().unwrap_or_default();
        match conditions::disturbance(other) {
            Some(disturbance) => notes.push(format!("one run is not compared: {disturbance}")),
            None if ![layout, ""].contains(&here) => {
                notes.push(format!("one run is not compared: it had the layout {here}"));
            }
            None => sound.push(run),
        }
        let (there, here) = (&record.host.cpu_model, &other.host.cpu_model);
        if there != here {
            notes.push(format!("predicted for {there}, measured on {here}"));
        }
    }
    notes.sort();
    notes.dedup();
    (sound, notes)
}

fn line(name: &str, predicted: Predicted, measured: impl Iterator<Item = f64>) -> [String; 7] {
    let measured: Vec<f64> = measured.collect();
    let middle = daqmeter_stats::median(&measured);
    let show = |value: f64| significant(value, 3);
    let verdict = match middle.map(|middle| predicted.holds(middle)) {
        Some(true) => "within",
        Some(false) => "OUTSIDE",
        None => "",
    };
    [
        name.to_owned(),
        show(predicted.value),
        show(predicted.low),
        show(predicted.high),
        middle.map_or("-".to_owned(), show),
        measured.len().to_string(),
        verdict.to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use daqmeter_record::Role;
    use daqmeter_record::path::{Bucket, PathThread};
    use daqmeter_record::prediction::PartPrediction;

    use super::*;

    fn around(value: f64) -> Predicted {
        Predicted { value, low: 0.8 * value, high: 1.25 * value }
    }

    fn record(rate_hz: Option<f64>) -> RunRecord {
        let mut record = RunRecord::default();
        record.set_param("path", "pattern");
        if let Some(hz) = rate_hz {
            record.set_param("rate_hz", hz);
        }
        record
    }

    fn predicted(rate_hz: Option<f64>) -> RunRecord {
        let part = |name: &str| {
            let name = name.to_owned();
            PartPrediction { name, cpu: around(0.4), ..PartPrediction::default() }
        };
        let prediction = Prediction {
            line: "memory -> <read>".to_owned(),
            block_bytes: 1_000_000,
            largest_hz: around(100.0),
            limit: "read".to_owned(),
            offered_hz: rate_hz,
            p50_ns: around(1e5),
            p99_ns: around(2e5),
            parts: ["memory", "read"].map(part).into(),
            ..Prediction::default()
        };
        let mut record = record(rate_hz);
        record.role = Role::Prediction;
        record.prediction = Some(Box::new(prediction));
        record
    }

    fn measured(rate_hz: Option<f64>, blocks: u64) -> RunRecord {
        let thread = |part: &str| {
            let part = part.to_owned();
            PathThread { part, cpu_ns: 450_000_000, ..PathThread::default() }
        };
        let bucket = |from_ns, count| Bucket { from_ns, count };
        let mut record = record(rate_hz);
        record.path = Some(Box::new(PathRun {
            wall_ns: 1_000_000_000,
            blocks,
            is_paced: rate_hz.is_some(),
            threads: ["memory", "read"].map(thread).into(),
            latency: vec![bucket(90_000, 90), bucket(900_000, 10)],
            ..PathRun::default()
        }));
        record
    }

    #[test]
    fn each_figure_is_beside_the_median_of_the_runs_and_has_its_verdict() {
        let runs = [110, 90, 300].map(|blocks| measured(None, blocks));
        let records: Vec<RunRecord> = [predicted(None)].into_iter().chain(runs).collect();
        insta::assert_snapshot!(text(&records));
    }

    #[test]
    fn the_largest_rate_is_that_of_free_runs_and_other_figures_need_the_load() {
        let paced = Some(50.0);
        let other = measured(Some(60.0), 60);
        let records = [predicted(paced), measured(None, 100), measured(paced, 50), other];
        let found = predictions(&records);
        assert!(found[0].lines.iter().all(|line| line[5] == "1"), "{found:?}");
        assert_eq!(found[0].lines[3][4], "0");
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
        assert!(found.contains("one run is not compared: other programs used"), "{found}");
        assert!(found.contains("0 of 0 measured figures outside"), "{found}");
    }
}
