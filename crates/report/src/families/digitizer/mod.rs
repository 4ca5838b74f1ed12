//! Digitizers: boards read in parallel, read-out fused with conversion, polling or interrupts, every sample, the original's table.

pub mod classic;
mod completion;
mod fusion;
mod readout;
mod records;
mod trace;

use daqmeter_record::RunRecord;

use super::functions;
use crate::family::{Family, Work};

pub(super) const FAMILY: Family = Family {
    engines: &[(records::ENGINE, Work::Path)],
    figures: &[readout::figure, fusion::figure, completion::figure, trace::figure],
    answers: &[readout::answer, fusion::answer, completion::answer, fusion::boards],
    segments: &[readout::segment],
    advice: &[completion::advice],
    label: functions::label,
    in_label: functions::IN_LABEL,
    footnote: counted,
};

/// What the program counted on the board.
fn counted(record: &RunRecord) -> Option<String> {
    let names = ["register-reads", "interrupts", "lost-interrupts"];
    let counts: Vec<String> =
        names.iter().filter_map(|name| Some(format!("{name} {}", record.counter(name)?))).collect();
    (!counts.is_empty()).then(|| format!("counted: {}", counts.join(", ")))
}
