//! Rates of stages beside their limits, and the records that answers may use.
//!
//! The definition is [`Stage::rate`]: all bytes over all time. Every table, figure and answer takes
//! its rates from there.

use std::borrow::Cow;
use std::hash::Hash;
use std::sync::Arc;

use daqmeter_record::units::{joined, plural, significant};
use daqmeter_record::{Limit, Outcome, RunRecord, Stage, Workload};
use daqmeter_stats::{Rate, Share, share};

use crate::groups::{counted, in_groups};
use crate::samples::stages;

/// Returns the rate of lanes that ran one stage at the same time: the bytes of all over the time
/// from the first begin to the last end, less the lanes' mean share of time between samples.
///
/// The sum of their rates would be more than was moved where some ended earlier than others. The
/// time between samples belongs to the measurement, so that it is in no lane's rate either. The
/// interval is as wide, by ratio, as that of the lanes' mean.
pub(crate) fn together(stages: &[&Stage]) -> Option<Rate> {
    let first_ns = stages.iter().map(|stage| stage.start_ns).min()?;
    let last_ns = stages.iter().map(|stage| stage.end_ns).max()?;
    let sum = |of: fn(&Stage) -> f64| stages.iter().map(|stage| of(stage)).sum::<f64>();
    let span_ns = sum(|stage| stage.end_ns.saturating_sub(stage.start_ns) as f64);
    let own_ns = sum(|stage| stage.sample_ns.iter().map(|ns| *ns as f64).sum());
    let all_ns = last_ns.saturating_sub(first_ns) as f64 * (own_ns / span_ns).min(1.0);
    let per_s = sum(|stage| stage.bytes()) / (all_ns * 1e-9);
    let of_each: Option<Vec<Rate>> = stages.iter().map(|stage| stage.rate()).collect();
    let mean = Rate::mean_of(&of_each?)?;
    (all_ns > 0.0).then(|| mean.times(per_s / mean.per_s))
}

pub(crate) fn limit_of<'a>(record: &'a RunRecord, stage: &Stage) -> Option<&'a Limit> {
    record.limit(stage.limit.as_deref()?).filter(|limit| limit.rate_bytes_per_s > 0.0)
}

pub(crate) fn held(record: &RunRecord, stage: &Stage) -> Option<Share> {
    share(stage.rate()?, limit_of(record, stage)?.rate())
}

/// Tests if a stage exceeds its limit. If even its fastest sample does not, the intervals are not
/// computed.
fn is_above(record: &RunRecord, stage: &Stage) -> bool {
    let Some(limit) = limit_of(record, stage) else {
        return false;
    };
    let fastest_ns = stage.sample_ns.iter().copied().min().unwrap_or(0);
    let fastest = stage.bytes_per_sample() / fastest_ns as f64 * 1e9;
    fastest > limit.rate_bytes_per_s && held(record, stage).is_some_and(|share| share.is_above)
}

pub fn is_done(record: &RunRecord) -> bool {
    record.outcome.is_ok() && record.lanes.iter().all(|lane| lane.outcome.is_ok())
}

/// Returns the ending of a record that was not done, in one word, and the reason.
pub fn undone(outcome: &Outcome) -> Option<(&'static str, &str)> {
    match outcome {
        Outcome::Ok => None,
        Outcome::Waived(reason) => Some(("waived", reason)),
        // The harness begins the reason so, of a lane behind its name; it is no fault.
        Outcome::Failed(reason) if reason.split(": ").any(|it| it.starts_with("interrupted")) => {
            Some(("interrupted", reason))
        }
        Outcome::Failed(reason) => Some(("failed", reason)),
    }
}

/// Returns the ending of a record that was not done: `failed`, also if only a lane failed.
pub(crate) fn undone_word(record: &RunRecord) -> Option<&'static str> {
    (!is_done(record)).then(|| undone(&record.outcome).map_or("failed", |(how, _)| how))
}

pub(crate) fn shown_share_of(record: &RunRecord, stage: &Stage) -> String {
    let shown = || shown_share(held(record, stage));
    undone_word(record).map_or_else(shown, str::to_uppercase)
}

/// Returns one note on all stages that exceed their limits, by their labels; `None` without any.
pub(crate) fn above_limits(
    records: &[RunRecord],
    label: impl Fn(&Workload, &str) -> String,
) -> Option<String> {
    let above = records.iter().filter(|record| is_done(record)).flat_map(|record| {
        let above = stages(record).filter(|stage| is_above(record, stage));
        above.filter_map(|stage| {
            let limit = &limit_of(record, stage)?.name;
            Some(format!("{} (`{limit}`)", label(&record.workload, &stage.name)))
        })
    });
    let named = counted(above).into_iter().map(|(name, times)| match times {
        1 => name,
        times => format!("{name} {times} times"),
    });
    let names = joined(named, ", ")?;
    Some(format!(
        "above their limits, the best of measurements before and after the run: {names}. The answers do not use these runs"
    ))
}

/// Returns the records for answers: done and verified, with no rate above its
/// limit.
pub(crate) fn usable(records: &[RunRecord]) -> Cow<'_, [RunRecord]> {
    only(records, |record| is_done(record) && !is_doubtful(record))
}

pub(crate) fn done(records: &[RunRecord]) -> Cow<'_, [RunRecord]> {
    only(records, is_done)
}

/// Most hosts of a page or a screen; `daqmeter hosts` compares more of them.
const MAX_HOSTS: usize = 6;

/// Returns the records of each host behind its label, in the order of their first ones.
pub(crate) fn runs_by_host(records: &[RunRecord]) -> Vec<(String, Vec<&[RunRecord]>)> {
    // Records of one run share their host.
    let runs = records.chunk_by(|a, b| Arc::ptr_eq(&a.host, &b.host));
    in_groups(runs.map(|run| (run[0].host.label(), run)))
}

/// Returns the records of the first hosts, each behind its label. It is empty for a single host.
pub(crate) fn by_host(records: &[RunRecord]) -> Vec<(String, Cow<'_, [RunRecord]>)> {
    let hosts = runs_by_host(records);
    if hosts.len() < 2 {
        return vec![(String::new(), records.into())];
    }
    let first = hosts.into_iter().take(MAX_HOSTS);
    first.map(|(host, runs)| (host, runs.concat().into())).collect()
}

/// Returns the records of the first hosts, and a line on the others.
pub(crate) fn first_hosts(records: &[RunRecord]) -> (Cow<'_, [RunRecord]>, Option<String>) {
    let left = runs_by_host(records).len().saturating_sub(MAX_HOSTS) as u64;
    let first = || by_host(records).into_iter().flat_map(|(_, own)| own.into_owned()).collect();
    let more = (left > 0).then(|| format!("{}: daqmeter hosts", plural(left, "more host")));
    (if more.is_some() { first() } else { records.into() }, more)
}

/// Returns what each of the first hosts gives; values of one key stand side by side.
pub(crate) fn side_by_side<K: Clone + Eq + Hash, T>(
    records: &[RunRecord],
    of_host: impl Fn(&str, &[RunRecord]) -> Vec<(K, T)>,
) -> Vec<(K, Vec<T>)> {
    in_groups(by_host(records).iter().flat_map(|(host, own)| of_host(host, own)))
}

/// Returns the lines of each of the first hosts, see [`on_host`].
pub(crate) fn of_hosts<T: IntoIterator<Item = String>>(
    records: &[RunRecord],
    lines: impl Fn(&[RunRecord]) -> T,
) -> Vec<String> {
    let hosts = by_host(records);
    let lines = hosts
        .iter()
        .flat_map(|(host, own)| lines(own).into_iter().map(move |line| on_host(host, &line)));
    lines.collect()
}

/// Writes text behind the label of its host, if there are several.
pub(crate) fn on_host(host: &str, text: &str) -> String {
    if host.is_empty() { text.to_owned() } else { format!("{host}: {text}") }
}

fn only(records: &[RunRecord], is_wanted: impl Fn(&RunRecord) -> bool) -> Cow<'_, [RunRecord]> {
    match records.iter().all(&is_wanted) {
        true => Cow::Borrowed(records),
        false => records.iter().filter(|record| is_wanted(record)).cloned().collect(),
    }
}

pub(crate) fn is_doubtful(record: &RunRecord) -> bool {
    stages(record).any(|stage| is_above(record, stage))
}

/// Writes a share of a limit for a table, with a mark if it is impossible.
pub(crate) fn shown_share(share: Option<Share>) -> String {
    share.map_or("-".to_owned(), |Share { fraction, is_above }| {
        let mark = if is_above { "!" } else { "" };
        match fraction {
            ..0.095 => format!("{}{mark}", significant(fraction, 2)),
            _ => format!("{fraction:.2}{mark}"),
        }
    })
}

/// Writes one rate over another, with the widest interval of both: `1.23 (1.20 - 1.26)`.
pub(crate) fn ratio(rate: Rate, of: Rate) -> Rate {
    let ends = rate.interval.zip(of.interval);
    Rate {
        per_s: rate.per_s / of.per_s,
        interval: ends.map(|((low, high), (of_low, of_high))| (low / of_high, high / of_low)),
    }
}

/// Writes a number in a sentence, with its interval: `1.23 (1.20 - 1.26)`.
pub(crate) fn spoken_number(number: Rate, digits: i32) -> String {
    let shown = significant(number.per_s, digits);
    let interval = number.interval.map_or("too few samples for an interval".to_owned(), |ends| {
        format!("{} - {}", significant(ends.0, digits), significant(ends.1, digits))
    });
    format!("{shown} ({interval})")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::{above_its_limit, example};
    use crate::words::label;

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

    /// Regression: notes named `func_no_decsca` where the table says `cast`, one for each record.
    #[test]
    fn all_rates_above_their_limits_are_in_one_note_by_the_names_of_the_table() {
        let mut cast = example();
        cast.limits[1].rate_bytes_per_s = 1e9;
        let note = above_limits(&[above_its_limit(), cast, above_its_limit()], label).unwrap();
        let wanted = "the run: read-out (`link`) 4 times, cast (`memory 1:2`) 2 times. The answers";
        assert!(note.contains(wanted), "{note}");
        assert_eq!(above_limits(&[example()], label), None);
    }
}
