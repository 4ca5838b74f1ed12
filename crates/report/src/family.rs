//! Contributions of a family of measurements to tables and the page: figures, answers, advice. The
//! list of families is in `families`.

use daqmeter_record::{RunRecord, Stage};
use serde::Serialize;

use crate::figures::Figure;

pub(crate) type Maker<T> = fn(&[RunRecord]) -> Option<T>;

/// Family of measurements. Its functions select their records by engine and workload, and return
/// nothing without any.
pub(crate) struct Family {
    pub(crate) engines: &'static [(&'static str, Work)],
    /// Figures, in the order of the page, from records that were done and verified.
    pub(crate) figures: &'static [Maker<Figure>],
    /// Answers, in the order of the page, from usable records, as for advice.
    pub(crate) answers: &'static [Maker<PlainAnswer>],
    pub(crate) advice: &'static [Maker<Advice>],
    pub(crate) label: fn(&RunRecord, &Stage) -> String,
    pub(crate) in_label: &'static [&'static str],
    pub(crate) footnote: fn(&RunRecord) -> Option<String>,
}

impl Family {
    /// Family without contributions: the default of a new one.
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

/// Kind of an engine's work, which selects the compared statistic of its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Data on its way: disturbances are part of it.
    Path,
    /// Work of this CPU and its memory alone: disturbances come from outside.
    Cpu,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlainAnswer {
    pub question: &'static str,
    pub answer: String,
    pub figure: Option<&'static str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Advice {
    pub what: String,
    pub evidence: String,
}

pub(crate) fn of_engine<'a>(
    records: &'a [RunRecord],
    engine: &'a str,
) -> impl Iterator<Item = &'a RunRecord> + Clone {
    records.iter().filter(move |record| record.engine.name == engine && !record.lanes.is_empty())
}
