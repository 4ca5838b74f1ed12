//! Tables of observations. Every value has its unit, its share if it was scaled, and its error.

use std::fmt::Write;

use daqmeter_record::Observations;
use daqmeter_record::RunRecord;
use daqmeter_record::observed::{EventStatus, MetricTotal, ObservedEvent, ObservedMetric};
use daqmeter_record::units::{plural, significant};

use super::end_s;
use crate::aligned::{numbers_from, paragraphs};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateUnit {
    /// Powers of 1000.
    Mb,
    /// Powers of 1024.
    Mib,
    Both,
}

/// Writes digits in groups of three, as in the document: `121,713,206`.
pub fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut out = if value < 0.0 { "-".to_owned() } else { String::new() };
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Writes a rate or a ratio, or the reason why there is none.
fn metric_text(
    observed: &Observations,
    metric: &ObservedMetric,
    at: Option<usize>,
    bytes: RateUnit,
) -> String {
    let all = 0..observed.end_ns.len();
    let intervals = at.map_or(all, |at| at..at + 1);
    let of = intervals.len();
    let MetricTotal { value, intervals } = observed.metric_over(metric, intervals);
    match value {
        Some(value) if intervals == of => value_text(value, &metric.unit, bytes),
        Some(value) => {
            format!("{}, of {intervals} of {of} intervals", value_text(value, &metric.unit, bytes))
        }
        None if intervals == 0 => "not counted".to_owned(),
        None if !metric.over.is_empty() => "0 of 0".to_owned(),
        None => "no time in this output: count duration_time, too, or give -I TIME".to_owned(),
    }
}

fn value_text(value: f64, unit: &str, bytes: RateUnit) -> String {
    let mb = |rate: f64| format!("{} MB/s", significant(rate / 1e6, 6));
    let mib = |rate: f64| format!("{} MiB/s", significant(rate / f64::from(1 << 20), 6));
    match (unit, bytes) {
        ("B/s", RateUnit::Mb) => mb(value),
        ("B/s", RateUnit::Mib) => mib(value),
        ("B/s", RateUnit::Both) => format!("{} = {}", mb(value), mib(value)),
        ("bit/s", _) => format!("{} Mbit/s", significant(value / 1e6, 6)),
        ("", _) => significant(value, 4),
        (unit, _) => format!("{} {unit}", significant(value, 5)),
    }
}

/// Returns the cells of an event in an interval or in the whole run. `half` is half the width of
/// the 95 % interval of a scaled count.
fn cells(
    observed: &Observations,
    event: &ObservedEvent,
    at: Option<usize>,
    half: Option<f64>,
) -> Vec<String> {
    let (counted, rate) = match at {
        Some(at) => (event.scaled(at).zip(event.share(at)), observed.rate_at(event, at)),
        None => (event.total_scaled(), observed.rate_of(event)),
    };
    let count = match (&event.status, counted) {
        (EventStatus::NotSupported(_), _) => "not supported".to_owned(),
        (EventStatus::Counted, None) => "not counted".to_owned(),
        (EventStatus::Counted, Some((count, _))) if event.scale == 1.0 => grouped(count),
        (EventStatus::Counted, Some((count, _))) => significant(count, 6),
    };
    let has_decimals = |half| event.scale != 1.0 && half < 10.0;
    let shown = |half| if has_decimals(half) { significant(half, 2) } else { grouped(half) };
    let half = half.filter(|half| *half > 0.0).map(|half| format!("+- {}", shown(half)));
    let half = event.deviation_percent.map(|percent| format!("+- {percent:.2} % (SD)")).or(half);
    // A share of 100 % is not shown.
    let share = counted.map(|(_, share)| share).filter(|share| *share < 0.9999);
    vec![
        event.name.clone(),
        count,
        event.unit.clone(),
        half.unwrap_or_default(),
        share.map_or(String::new(), |share| format!("{:.2} %", share * 100.0)),
        rate.map_or(String::new(), |rate| significant(rate, 4)),
    ]
}

const HEADINGS: [&str; 6] = ["event", "count", "unit", "95 %", "counted", "per second"];

/// Writes one interval, or the whole run: its events with error, then its metrics. `error` gives
/// half the width of the 95 % interval of a scaled count.
pub fn text(
    observed: &Observations,
    at: Option<usize>,
    bytes: RateUnit,
    error: impl Fn(&ObservedEvent) -> Option<f64>,
) -> String {
    let (intervals, seconds) = (observed.end_ns.len(), observed.total_seconds());
    let mut out = match at {
        Some(at) => format!("{:.3} s\n", end_s(observed, at)),
        None if seconds > 0.0 => {
            format!("{}, {seconds:.3} s\n", plural(intervals as u64, "interval"))
        }
        None => "a whole run, no time\n".to_owned(),
    };
    let rows = observed.events.iter().map(|event| cells(observed, event, at, error(event)));
    out.push_str(&numbers_from(1, &HEADINGS, rows));
    let mut below = metrics(observed, at, bytes);
    for event in observed.events.iter().filter(|_| at.is_none()) {
        if let EventStatus::NotSupported(reason) = &event.status {
            let _ = writeln!(below, " {}: {reason}", event.name);
        }
    }
    out + &paragraphs(&below)
}

/// Writes the metrics of an interval, or of the whole run with what must be known of each.
pub fn metrics(observed: &Observations, at: Option<usize>, bytes: RateUnit) -> String {
    let mut out = String::new();
    for (number, metric) in observed.metrics.iter().enumerate() {
        let _ = writeln!(out, " {}: {}", metric.name, metric_text(observed, metric, at, bytes));
        let next = observed.metrics.get(number + 1);
        let is_last = next.is_none_or(|next| next.caveat != metric.caveat);
        if at.is_none() && !metric.caveat.is_empty() && is_last {
            let _ = writeln!(out, "   {}", metric.caveat);
        }
    }
    out
}

/// Returns the line of what was counted beside a record.
pub(crate) fn counted(record: &RunRecord) -> Vec<String> {
    record.sections.observed.as_deref().map(footnote).into_iter().collect()
}

pub(crate) fn footnote(observed: &Observations) -> String {
    let metric = |metric: &ObservedMetric| {
        format!("{} {}", metric.name, metric_text(observed, metric, None, RateUnit::Mb))
    };
    let event = |event: &ObservedEvent| {
        let count = event.total_scaled().map(|(count, _)| grouped(count));
        format!("{} {}", event.name, count.unwrap_or("not counted".to_owned()))
    };
    let parts: Vec<String> = match observed.metrics.is_empty() {
        true => observed.events.iter().map(event).collect(),
        false => observed.metrics.iter().map(metric).collect(),
    };
    format!("meanwhile ({}): {}", observed.what, parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::pmu::heat::tests::example;

    #[test]
    fn intervals_and_the_whole_have_units_shares_and_errors() {
        let mut observed = example();
        observed.events.push(ObservedEvent {
            name: "cycles".into(),
            status: EventStatus::NotSupported("this host does not have it".into()),
            ..ObservedEvent::default()
        });
        let [first, second] = [(0, 0.0), (1, 1_500_000.0)]
            .map(|(at, error)| text(&observed, Some(at), RateUnit::Both, |_| Some(error)));
        let whole = text(&observed, None, RateUnit::Mb, |_| None);
        insta::assert_snapshot!(format!("{first}{second}\n{whole}\n{}", footnote(&observed)));
    }

    #[test]
    fn the_documents_memory_bandwidth_has_the_unit_that_it_is_in() {
        let both = value_text(31_158_854_336.0, "B/s", RateUnit::Both);
        assert_eq!(both, "31158.9 MB/s = 29715.4 MiB/s");
        assert_eq!(value_text(1.030_144e9, "bit/s", RateUnit::Mb), "1030.14 Mbit/s");
    }
}
