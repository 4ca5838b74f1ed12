//! Digitizers: boards read in parallel, read-out fused with conversion, polling or interrupts,
//! every sample, the original's table.

pub mod classic;
mod completion;
mod fusion;
mod readout;
mod trace;

use daqmeter_record::RunRecord;

use super::functions;
use crate::family::{Family, Work, of_engine};

pub(super) const FAMILY: Family = Family {
    engines: &[(ENGINE, Work::Path)],
    figures: &[readout::figure, fusion::figure, completion::figure, trace::figure],
    answers: &[readout::answer, fusion::answer, completion::answer, fusion::boards],
    advice: &[completion::advice],
    label: functions::label,
    in_label: functions::IN_LABEL,
    footnote: counted,
};

const ENGINE: &str = "digitizer";

fn all(records: &[RunRecord]) -> impl Iterator<Item = &RunRecord> + Clone {
    of_engine(records, ENGINE)
}

/// True for reads that wait for triggers, which then set the rate.
fn is_triggered(record: &RunRecord) -> bool {
    let rate_hz = record.workload.float("trigger_rate_hz").unwrap_or(0.0);
    rate_hz > 0.0 || record.workload.int("passes").unwrap_or(0) > 0
}

fn counted(record: &RunRecord) -> Option<String> {
    let names = ["register-reads", "interrupts", "lost-interrupts"];
    let counts: Vec<String> =
        names.iter().filter_map(|name| Some(format!("{name} {}", record.counter(name)?))).collect();
    (!counts.is_empty()).then(|| format!("counted: {}", counts.join(", ")))
}
