//! Contributions of a family of measurements to tables and the page: figures, answers, advice. The families themselves, and the list
//! of them, are in `families`.

use daqmeter_record::{RunRecord, Stage};
use serde::Serialize;

use crate::figures::Figure;

/// Makes one thing from records, if they have what it needs.
pub(crate) type Maker<T> = fn(&[RunRecord]) -> Option<T>;

/// One family. Its functions find their records by engine and workload, and return nothing where there are none.
pub(crate) struct Family {
    /// Engines whose records belong to it, and the kind of their work.
    pub(crate) engines: &'static [(&'static str, Work)],
    /// Figures, in the order of the page. They see records that were done and verified.
    pub(crate) figures: &'static [Maker<Figure>],
    /// Answers, in the order of the page. They see usable records, as advice does.
    pub(crate) answers: &'static [Maker<Answer>],
    pub(crate) advice: &'static [Maker<Advice>],
    /// A stage in the words of its users.
    pub(crate) label: fn(&RunRecord, &Stage) -> String,
    /// Parameters that the label shows.
    pub(crate) in_label: &'static [&'static str],
    /// A line below the table of one record.
    pub(crate) footnote: fn(&RunRecord) -> Option<String>,
}

impl Family {
    /// A family that contributes nothing: what a new one leaves out.
    pub(crate) const EMPTY: Family = Family {
        engines: &[],
        figures: &[],
        answers: &[],
        advice: &[],
        label: |_, stage| stage.name.to_string(),
        in_label: &[],
        footnote: |_| None,
    };
}

/// Kind of an engine's work, which decides what of its times is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Data on its way: what others do meanwhile is part of it.
    Path,
    /// Of this CPU and its memory alone: what disturbs it is foreign to it.
    Cpu,
}

/// One statement and the figure that it rests on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Answer {
    pub question: &'static str,
    /// The answer, with its numbers.
    pub answer: String,
    /// Anchor of the figure, if there is one.
    pub figure: Option<&'static str>,
}

/// One piece of advice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// What to do.
    pub what: String,
    /// Measurement of these records that speaks for it.
    pub evidence: String,
}

/// Records of an engine that measured something, in their order.
pub(crate) fn of_engine<'a>(
    records: &'a [RunRecord],
    engine: &'a str,
) -> impl Iterator<Item = &'a RunRecord> + Clone {
    records.iter().filter(move |record| record.engine.name == engine && !record.lanes.is_empty())
}
