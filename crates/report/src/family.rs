//! Contributions of a family of measurements to tables and the page: figures and answers. The list
//! of families is in `families`.

use daqmeter_record::RunRecord;
use daqmeter_record::units::significant;
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
    /// Lines of the survey's screen, in its order, for usable records.
    pub(crate) briefs: &'static [BriefOf],
    pub(crate) footnote: fn(&RunRecord) -> Option<String>,
    /// Sentence that begins the screen of a verb: what its records came to, without losses.
    pub(crate) headline: fn(&[RunRecord]) -> Option<String>,
}

/// Question, the figure that shows its answer, and the answer in words.
pub(crate) type Question = (&'static str, Option<&'static str>, fn(&[RunRecord]) -> Option<String>);

impl Family {
    /// Family without contributions: the default of a new one.
    pub(crate) const EMPTY: Family = Family {
        engines: &[],
        plots: &[],
        questions: &[],
        briefs: &[],
        footnote: |_| None,
        headline: |_| None,
    };
}

pub(crate) type BriefOf = fn(&[RunRecord]) -> Option<Brief>;

/// Line of the survey's screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Brief {
    /// Rate or time of this host, as a short text.
    Host(String),
    /// A change that pays here: what to do, and its gain.
    Change { what: String, gain: String },
}

/// Least gain, as a factor, of a change that is worth a line.
pub(crate) const WORTH_A_CHANGE: f64 = 1.05;

/// Names all CPUs of a host in words.
pub(crate) fn all_cpus(cpus: f64) -> String {
    match significant(cpus, 3).as_str() {
        "1" => "the CPU".to_owned(),
        "2" => "both CPUs".to_owned(),
        cpus => format!("all {cpus} CPUs"),
    }
}

/// Writes a rate with three digits and a decimal prefix: `14.2 GB/s`, `116 M events/s`.
pub(crate) fn prefixed(per_s: f64, unit: &str) -> String {
    let prefixes = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    let (scale, prefix) =
        prefixes.into_iter().find(|(least, _)| per_s >= *least).unwrap_or((1.0, ""));
    let (value, is_word) = (significant(per_s / scale, 3), !["B/s", "Hz"].contains(&unit));
    let blank = if is_word && !prefix.is_empty() { " " } else { "" };
    format!("{value} {prefix}{blank}{unit}")
}

/// Resources of an engine's work, which decide how its times are compared and who may disturb
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// One CPU and its memory: disturbances come from outside.
    Cpu,
    /// One CPU and the kernel, for data on its way: disturbances are part of it.
    Calls,
    /// One CPU and the kernel, with a socket between two ends.
    Sockets,
    /// Several threads, for data on its way.
    Threads,
    /// Two threads with sockets between them, for data on its way.
    Streams,
    /// A disk, for data on its way.
    Disk,
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
