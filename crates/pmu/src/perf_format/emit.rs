use daqmeter_record::Observations;
use daqmeter_record::observed::{EventStatus, ObservedEvent};
use serde_json::Value;

use super::rows::{NOT_COUNTED, NOT_SUPPORTED, is_place, place_and_event};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerfFormat {
    Text,
    Csv(char),
    /// Output of `-j`: one object per line.
    Json,
}

pub fn emit_interval(observed: &Observations, interval: usize, format: PerfFormat) -> String {
    let mut out = String::new();
    if format == PerfFormat::Text && interval == 0 {
        out.push_str("#           time             counts unit events\n");
    }
    let end_ns = observed.end_ns.get(interval).copied().unwrap_or(0);
    let stamp = format!("{}.{:09}", end_ns / 1_000_000_000, end_ns % 1_000_000_000);
    for event in &observed.events {
        let line = match format {
            PerfFormat::Text => text(event, interval, &stamp),
            PerfFormat::Csv(separator) => csv(event, interval, &stamp, separator),
            PerfFormat::Json => json(event, interval, &stamp),
        };
        out.push_str(line.trim_end_matches(' '));
        out.push('\n');
    }
    out
}

fn value(event: &ObservedEvent, interval: usize, decimals: usize) -> String {
    match (&event.status, event.scaled(interval)) {
        (EventStatus::NotSupported(_), _) => NOT_SUPPORTED.to_owned(),
        (EventStatus::Counted, None) => NOT_COUNTED.to_owned(),
        (EventStatus::Counted, Some(value)) => format!("{value:.decimals$}"),
    }
}

fn decimals(event: &ObservedEvent) -> usize {
    if event.scale == 1.0 { 0 } else { 2 }
}

fn running(event: &ObservedEvent, interval: usize) -> u64 {
    event.running_ns.get(interval).copied().unwrap_or(0)
}

fn percent(event: &ObservedEvent, interval: usize) -> f64 {
    event.share(interval).map_or(100.0, |share| 100.0 * share)
}

fn text(event: &ObservedEvent, interval: usize, stamp: &str) -> String {
    let value = value(event, interval, decimals(event));
    let is_whole = event.enabled_ns.get(interval) == event.running_ns.get(interval);
    let share = if is_whole || running(event, interval) == 0 {
        String::new()
    } else {
        format!("  ({:.2}%)", percent(event, interval))
    };
    let (place, name) = place_and_event(&event.name);
    let place = if place.is_empty() { String::new() } else { format!(" {place}") };
    format!("{stamp:>16}{place} {value:>18} {:<4} {name:<32}{share}", event.unit)
}

/// Writes a line of `-x`; its share is an integer division, as in perf.
fn csv(event: &ObservedEvent, interval: usize, stamp: &str, separator: char) -> String {
    let (place, name) = place_and_event(&event.name);
    let fields = [
        value(event, interval, decimals(event)),
        event.unit.clone(),
        name.to_owned(),
        running(event, interval).to_string(),
        format!("{:.2}", percent(event, interval).floor()),
        String::new(),
        String::new(),
    ];
    let places = [stamp, place].into_iter().filter(|field| !field.is_empty());
    let fields: Vec<&str> = places.chain(fields.iter().map(String::as_str)).collect();
    fields.join(&separator.to_string())
}

fn json(event: &ObservedEvent, interval: usize, stamp: &str) -> String {
    let quoted = |text: &str| Value::String(text.to_owned()).to_string();
    let (place, name) = place_and_event(&event.name);
    let place = match place.strip_prefix("CPU") {
        _ if place.is_empty() => String::new(),
        Some(cpu) => format!("\"cpu\" : {}, ", quoted(cpu)),
        None if is_place(place) => format!("\"socket\" : {}, ", quoted(place)),
        None => format!("\"thread\" : {}, ", quoted(place)),
    };
    format!(
        "{{\"interval\" : {stamp}, {place}\"counter-value\" : {}, \"unit\" : {}, \"event\" : {}, \"event-runtime\" : {}, \"pcnt-running\" : {:.2}}}",
        quoted(&value(event, interval, 6)),
        quoted(&event.unit),
        quoted(name),
        running(event, interval),
        percent(event, interval).floor()
    )
}
