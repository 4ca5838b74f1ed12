//! Contributions of a family of measurements to tables and the page: figures and answers. The list
//! of families is in `families`.

use daqmeter_record::{RunRecord, Stage};
use serde::Serialize;

use crate::figures::Plot;

/// Family of measurements. Its functions select their records by engine and workload, and return
/// nothing without any.
pub(crate) struct Family {
    pub(crate) engines: &'static [(&'static str, Work)],
    /// Figures, in the order of the page, from records that were done and verified.
    pub(crate) plots: &'static [Plot],
    /// Questions, in the order of the page, for usable records.
    pub(crate) questions: &'static [Question],
    pub(crate) label: fn(&RunRecord, &Stage) -> String,
    pub(crate) in_label: &'static [&'static str],
    pub(crate) footnote: fn(&RunRecord) -> Option<String>,
}

/// Question, the figure that shows its answer, and the answer in words.
pub(crate) type Question = (&'static str, Option<&'static str>, fn(&[RunRecord]) -> Option<String>);

impl Family {
    /// Family without contributions: the default of a new one.
    pub(crate) const EMPTY: Family = Family {
        engines: &[],
        plots: &[],
        questions: &[],
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
pub(crate) struct PlainAnswer {
    pub(crate) question: &'static str,
    pub(crate) answer: String,
    pub(crate) figure: Option<&'static str>,
}

pub(crate) fn of_engine<'a>(
    records: &'a [RunRecord],
    engine: &'a str,
) -> impl Iterator<Item = &'a RunRecord> + Clone {
    records.iter().filter(move |record| record.engine.name == engine && !record.lanes.is_empty())
}
