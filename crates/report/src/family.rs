//! What a family of measurements contributes to tables and the page: its figures, answers, stages and advice. The
//! families themselves, and the list of them, are in `families`.

use daqmeter_record::{RunRecord, Stage};
use daqmeter_stats::{Rate, share};
use serde::Serialize;

use crate::figures::Figure;
use crate::rate;

/// Makes one thing from records, if they have what it needs.
pub(crate) type Maker<T> = fn(&[RunRecord]) -> Option<T>;

/// One family. Its functions find their records by engine and workload, and return nothing where there are none.
pub(crate) struct Family {
    /// Engines whose records belong to it, and what their work is.
    pub(crate) engines: &'static [(&'static str, Work)],
    /// Figures, in the order of the page. They see what was done and verified.
    pub(crate) figures: &'static [Maker<Figure>],
    /// Answers, in the order of the page.
    pub(crate) answers: &'static [fn(&Measured<'_>) -> Option<Answer>],
    /// Its stages, each measured by itself. They see usable records.
    pub(crate) segments: &'static [Maker<Segment>],
    /// What to change. They see usable records.
    pub(crate) advice: &'static [Maker<Advice>],
    /// A stage in the words of its users.
    pub(crate) label: fn(&RunRecord, &Stage) -> String,
    /// Parameters that the label shows.
    pub(crate) in_label: &'static [&'static str],
    /// A line below the table of one record.
    pub(crate) footnote: fn(&RunRecord) -> Option<String>,
}

impl Family {
    /// A family that contributes nothing yet: what a new one leaves out.
    pub(crate) const EMPTY: Family = Family {
        engines: &[],
        figures: &[],
        answers: &[],
        segments: &[],
        advice: &[],
        label: |_, stage| stage.name.to_string(),
        in_label: &[],
        footnote: |_| None,
    };
}

/// What the work of an engine is, which decides what of its times is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Data on its way: what others do meanwhile is part of it.
    Path,
    /// Of this CPU and its memory alone: what disturbs it is foreign to it.
    Cpu,
}

/// The records that answers are made from.
pub(crate) struct Measured<'a> {
    /// Done, verified, and no rate above its limit.
    pub(crate) usable: &'a [RunRecord],
    /// All of them, for answers that say themselves what failed.
    pub(crate) all: &'a [RunRecord],
}

/// One statement and the figure that it rests on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Answer {
    /// What was asked.
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
    /// What was measured here that speaks for it; none where this run has nothing to say.
    pub evidence: Option<String>,
}

impl Advice {
    pub(crate) fn measured(what: &str, evidence: String) -> Advice {
        Advice { what: what.to_owned(), evidence: Some(evidence) }
    }

    pub(crate) fn unproven(what: String) -> Advice {
        Advice { what, evidence: None }
    }
}

/// Where data is behind a stage, in the order in which it comes there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// Memory that devices write.
    HostBuffer,
    /// The same, replayed from disk: beside the device, not behind it.
    Replay,
    /// Memory of the program.
    UserBuffer,
    /// Converted samples.
    Samples,
    /// Decoded chunks.
    Chunks,
    /// Another host.
    Network,
    /// What uses the data.
    Consumer,
}

impl Place {
    /// For the table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Place::HostBuffer => "host buffer",
            Place::Replay => "or from disk",
            Place::UserBuffer => "user buffer",
            Place::Samples => "samples",
            Place::Chunks => "chunks",
            Place::Network => "network",
            Place::Consumer => "consumer",
        }
    }
}

/// A stage that was measured by itself.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Segment {
    /// Where data is afterwards.
    pub(crate) into: Place,
    /// What moves it.
    pub(crate) by: String,
    /// Bytes per second that one thread, or all boards together, move.
    pub(crate) rate_bytes_per_s: f64,
    /// 95 % interval of the rate, where there are enough samples.
    pub(crate) rate_interval_bytes_per_s: Option<(f64, f64)>,
    /// The physical limit measured beside it.
    pub(crate) limit_bytes_per_s: Option<f64>,
    /// Rate over limit, both by one definition.
    pub(crate) fraction: Option<f64>,
    /// True where a model of hardware moves it: that says nothing of this host.
    pub(crate) emulated: bool,
}

impl Segment {
    pub(crate) fn new(into: Place, by: String, found: Found) -> Segment {
        Segment {
            into,
            by,
            rate_bytes_per_s: found.rate,
            rate_interval_bytes_per_s: found.interval,
            limit_bytes_per_s: found.limit,
            fraction: found.fraction,
            emulated: false,
        }
    }
}

/// A rate, its limit, and their ratio.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) rate: f64,
    pub(crate) interval: Option<(f64, f64)>,
    pub(crate) limit: Option<f64>,
    pub(crate) fraction: Option<f64>,
}

impl Found {
    /// Of a rate and a limit that are by one definition.
    pub(crate) fn new(rate: f64, limit: Option<f64>) -> Found {
        let share = limit.and_then(|limit| share(Rate::exactly(rate), Rate::exactly(limit)));
        Found { rate, interval: None, limit, fraction: share.map(|share| share.fraction) }
    }

    /// Sustained rate of a stage, and its limit; none where it moved nothing.
    pub(crate) fn of(record: &RunRecord, stage: &Stage) -> Option<Found> {
        let held = rate::held(record, stage);
        let rate = rate::of(stage)?;
        Some(Found {
            rate: rate.per_s,
            interval: rate.interval,
            limit: held.map(|held| held.limit.per_s),
            fraction: held.map(|held| held.share.fraction),
        })
    }
}

/// Records of an engine that measured something, in their order.
pub(crate) fn of_engine<'a>(
    records: &'a [RunRecord],
    engine: &'a str,
) -> impl Iterator<Item = &'a RunRecord> + Clone {
    records.iter().filter(move |record| record.engine.name == engine && !record.lanes.is_empty())
}
