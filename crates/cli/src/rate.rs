//! Rates of stages beside their limits, and which records may be used for an answer.
//!
//! The definition itself is [`daqmeter_stats::sustained`]: all bytes over all time. Every table, figure and answer takes its rates from here.

use std::borrow::Cow;
use std::collections::BTreeSet;

use daqmeter_record::units::significant;
use daqmeter_record::{Limit, LimitBasis, Outcome, RunRecord, Stage, conditions};
use daqmeter_stats::{Rate, Share, at_median, share, sustained};
use serde::Serialize;

/// Why a number is shown and not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Doubt {
    /// The rate is above its limit by more than both intervals allow: one of the two was measured wrongly.
    AboveLimit,
}

impl Doubt {
    /// As in the columns of exports.
    pub fn name(self) -> &'static str {
        match self {
            Doubt::AboveLimit => "above-limit",
        }
    }

    /// Of a share of a limit.
    pub fn of(share: Share) -> Option<Doubt> {
        share.is_above.then_some(Doubt::AboveLimit)
    }
}

/// A stage beside its limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Held {
    /// The limit.
    pub limit: Rate,
    /// What of it the stage reaches.
    pub share: Share,
}

/// The sustained rate of a stage; none where it moved nothing.
pub fn of(stage: &Stage) -> Option<Rate> {
    sustained(stage.bytes_per_sample(), &stage.sample_ns)
}

/// The limit of a stage, if its record has one.
pub(crate) fn limit_of<'a>(record: &'a RunRecord, stage: &Stage) -> Option<&'a Limit> {
    record.limit(stage.limit.as_deref()?).filter(|limit| limit.rate_bytes_per_s > 0.0)
}

/// A limit as a rate with its interval.
pub(crate) fn limit_rate(limit: &Limit) -> Rate {
    Rate {
        per_s: limit.rate_bytes_per_s,
        interval: limit.low_bytes_per_s.zip(limit.high_bytes_per_s),
    }
}

/// A stage beside its limit, both by one definition: sustained. Limits of older records are rates at the median; stages are held
/// against those by their own median.
pub fn held(record: &RunRecord, stage: &Stage) -> Option<Held> {
    let limit = limit_of(record, stage)?;
    let rate = by_basis(stage, limit.basis)?;
    let limit = limit_rate(limit);
    Some(Held { limit, share: share(rate, limit)? })
}

/// Whether a stage is above its limit, without a look at the intervals where even its fastest sample is not.
fn is_above(record: &RunRecord, stage: &Stage) -> bool {
    let Some(limit) = limit_of(record, stage) else {
        return false;
    };
    let fastest_ns = stage.sample_ns.iter().copied().min().unwrap_or(0);
    let fastest = stage.bytes_per_sample() / fastest_ns as f64 * 1e9;
    fastest > limit.rate_bytes_per_s && held(record, stage).is_some_and(|held| held.share.is_above)
}

/// The rate of a stage by the definition of a limit.
pub(crate) fn by_basis(stage: &Stage, basis: LimitBasis) -> Option<Rate> {
    match basis {
        LimitBasis::Median => at_median(stage.bytes_per_sample(), &stage.sample_ns),
        LimitBasis::Sustained | LimitBasis::Given => of(stage),
    }
}

/// Whether the work of a record was done and verified.
pub fn is_done(record: &RunRecord) -> bool {
    record.outcome.is_ok() && record.lanes.iter().all(|lane| lane.outcome.is_ok())
}

/// How a record that was not done ended, in one word, and why.
pub fn undone(outcome: &Outcome) -> Option<(&'static str, &str)> {
    match outcome {
        Outcome::Ok => None,
        Outcome::Waived(reason) => Some(("waived", reason)),
        Outcome::Failed(reason) => Some(("failed", reason)),
    }
}

/// Ending of a record that was not done: `failed`, also where only a lane failed.
pub(crate) fn undone_word(record: &RunRecord) -> Option<&'static str> {
    (!is_done(record)).then(|| undone(&record.outcome).map_or("failed", |(how, _)| how))
}

/// The share of its limit that a stage reaches for a table, or that the work was not done.
pub(crate) fn shown_share_of(record: &RunRecord, stage: &Stage) -> String {
    let share = held(record, stage).map(|held| held.share);
    let shown = || shown_share(share.map(|share| share.fraction), share.and_then(Doubt::of));
    undone_word(record).map_or_else(shown, str::to_uppercase)
}

/// Stages that are above their limit: a line each.
fn exceeded(record: &RunRecord) -> BTreeSet<String> {
    let above =
        record.lanes.iter().flat_map(|lane| &lane.stages).filter(|stage| is_above(record, stage));
    above.filter_map(|stage| Some(limit_of(record, stage)?.exceeded(&stage.name))).collect()
}

/// What must be known to believe a record: its warnings, what is above its limit, and what disturbed it, where the record does not say
/// so itself.
pub(crate) fn warnings(record: &RunRecord) -> Vec<String> {
    let disturbances = conditions::of(record);
    let more = exceeded(record)
        .into_iter()
        .chain(disturbances.iter().map(ToString::to_string))
        .filter(|line| !record.warnings.contains(line));
    record.warnings.iter().cloned().chain(more).collect()
}

/// The records that answers, advice and figures may use: what was done and verified, with no rate above its limit.
pub(crate) fn usable(records: &[RunRecord]) -> Cow<'_, [RunRecord]> {
    let is_usable = |record: &RunRecord| is_done(record) && !is_doubtful(record);
    if records.iter().all(is_usable) {
        return Cow::Borrowed(records);
    }
    Cow::Owned(records.iter().filter(|record| is_usable(record)).cloned().collect())
}

/// The records that may be compared and drawn: what was done and verified.
pub(crate) fn done(records: &[RunRecord]) -> Cow<'_, [RunRecord]> {
    if records.iter().all(is_done) {
        return Cow::Borrowed(records);
    }
    Cow::Owned(records.iter().filter(|record| is_done(record)).cloned().collect())
}

/// Whether any of its rates is above its limit.
pub(crate) fn is_doubtful(record: &RunRecord) -> bool {
    record.lanes.iter().flat_map(|lane| &lane.stages).any(|stage| is_above(record, stage))
}

/// A share of a limit for a table, with a mark where it cannot be.
pub(crate) fn shown_share(fraction: Option<f64>, doubt: Option<Doubt>) -> String {
    let mark = if doubt.is_some() { "!" } else { "" };
    let digits = |fraction: f64| {
        if fraction < 0.095 { significant(fraction, 2) } else { format!("{fraction:.2}") }
    };
    fraction.map_or("-".to_owned(), |fraction| format!("{}{mark}", digits(fraction)))
}

/// A rate in a sentence, with its interval: `1196 MB/s (1180 - 1210)`.
pub(crate) fn spoken(rate: Rate) -> String {
    let shown = significant(rate.per_s / 1e6, 4);
    format!("{shown} MB/s ({})", interval_or_none(rate.times(1e-6).interval, 4))
}

/// One rate over another, with the widest interval that theirs allow: `1.23 (1.20 - 1.26)`.
pub(crate) fn ratio(rate: Rate, of: Rate) -> Rate {
    let ends = rate.interval.zip(of.interval);
    Rate {
        per_s: rate.per_s / of.per_s,
        interval: ends.map(|((low, high), (of_low, of_high))| (low / of_high, high / of_low)),
    }
}

/// An interval in a sentence, or that there is none.
pub(crate) fn interval_or_none(interval: Option<(f64, f64)>, digits: i32) -> String {
    interval.map_or("too few samples for an interval".to_owned(), |(low, high)| {
        format!("{} - {}", significant(low, digits), significant(high, digits))
    })
}

/// Says that a value is the best or worst of several: `, the fastest of 3`; nothing of one alone.
pub(crate) fn of_several(which: &str, count: usize) -> String {
    match count {
        0 | 1 => String::new(),
        _ => format!(", the {which} of {count}"),
    }
}

/// A number in a sentence, with its interval: `1.23 (1.20 - 1.26)`.
pub(crate) fn spoken_number(number: Rate, digits: i32) -> String {
    let shown = significant(number.per_s, digits);
    format!("{shown} ({})", interval_or_none(number.interval, digits))
}

/// An interval of a rate in MB/s for a table.
pub(crate) fn shown_interval(interval: Option<(f64, f64)>) -> String {
    let mb = |rate: f64| significant(rate / 1e6, 4);
    interval.map_or("-".to_owned(), |(low, high)| format!("{} - {}", mb(low), mb(high)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::{above_its_limit, example};
    use crate::samples::mean_ns;

    #[test]
    fn one_definition_for_a_rate_and_its_limit() {
        let mut record = example();
        let stage = &mut record.lanes[0].stages[0];
        // Two reads in five take a hundred times as long.
        stage.sample_ns =
            (0..100).map(|at| if at % 5 < 3 { 100_000 } else { 10_000_000 }).collect();
        let stage = stage.clone();
        let sustained = 6e6 / 4.06e-3;
        record.limits[0] = Limit::given("link", 2.0 * sustained, "profile");
        assert!((held(&record, &stage).unwrap().share.fraction - 0.5).abs() < 1e-9);
        // Limits of older records were at the median, and the stage then is, too.
        record.limits[0] =
            Limit { basis: LimitBasis::Median, ..Limit::given("link", 6e6 / 1e-4, "measured") };
        assert!((held(&record, &stage).unwrap().share.fraction - 1.0).abs() < 1e-9);
        assert!((mean_ns(&stage).unwrap() - 4.06e6).abs() < 1.0);
    }

    #[test]
    fn what_is_above_its_limit_or_failed_is_used_for_nothing() {
        let mut failed = example();
        failed.outcome = Outcome::Failed("bytes differ".into());
        let mut lane = example();
        lane.lanes[1].outcome = Outcome::Failed("board gone".into());
        let records = [example(), above_its_limit(), failed, lane];
        assert_eq!((usable(&records).len(), done(&records).len()), (1, 2));
        assert!(matches!(usable(&records[..1]), Cow::Borrowed(_)));
    }

    #[test]
    fn a_rate_above_its_limit_is_warned_of_once() {
        let mut record = above_its_limit();
        assert_eq!(warnings(&record).len(), 1, "{:?}", warnings(&record));
        assert!(
            warnings(&record)[0].starts_with("func_readout is above its limit `link`"),
            "{:?}",
            warnings(&record)
        );
        record.warnings = warnings(&record);
        assert_eq!(warnings(&record).len(), 1);
        assert!(warnings(&example()).is_empty());
    }
}
