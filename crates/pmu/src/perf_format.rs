//! The output of `perf stat`, read (text, `-x`, `-j`) and written (`-x`).
//! Three states are kept apart: counted (which may be zero), not counted (never scheduled), not
//! supported (never opened).
//! Grammar: Linux tools/perf/util/stat-display.c of 6.1, 6.12 and 7.2. CSV does not quote event
//! names, which contain commas. CSV and JSON give the share as an integer division, and times as
//! sums over CPUs and instances. Rates therefore come from the time steps alone.

use std::collections::HashMap;
use std::time::Duration;

use daqmeter_harness::Fault;
use daqmeter_record::Observations;
use daqmeter_record::observed::{EventStatus, ObservedEvent};
use daqmeter_record::units::whole;
use serde_json::Value;

#[derive(Clone, Debug, PartialEq)]
struct Row {
    /// Time stamp in seconds; `None` without -I.
    time: Option<f64>,
    value: Option<Printed>,
    is_supported: bool,
    unit: String,
    /// Event behind its place, such as `CPU0 page-faults`.
    event: String,
    running_ns: Option<u64>,
    /// Share in percent.
    share: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Printed {
    digits: u64,
    decimals: u32,
}

impl Printed {
    /// Returns the digits with so many decimals.
    fn with(self, decimals: u32) -> u64 {
        let tens = 10_u64.checked_pow(decimals.saturating_sub(self.decimals));
        self.digits.saturating_mul(tens.unwrap_or(u64::MAX))
    }
}

/// Returns true for marks of thousands: perf prints them as the locale has them.
fn is_mark(letter: char) -> bool {
    matches!(letter, '.' | ',' | '\'' | '\u{2019}' | '\u{a0}' | '\u{202f}')
}

/// Reads a value. perf writes two decimals or six, never three (`abs_printout` and `nsec_printout`
/// of stat-display.c), so that three digits after a mark are thousands.
fn printed(text: &str) -> Option<Printed> {
    let (whole, decimals) = match text.rsplit_once(['.', ',']) {
        Some((whole, decimals)) if decimals.len() != 3 => (whole, decimals),
        _ => (text, ""),
    };
    if !whole.split(is_mark).skip(1).all(|group| group.len() == 3) {
        return None;
    }
    let decimals = decimals.trim_end_matches('0');
    let digits: String = whole.split(is_mark).chain([decimals]).collect();
    let is_number = !whole.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let decimals = u32::try_from(decimals.len()).ok()?;
    is_number.then(|| Some(Printed { digits: digits.parse().ok()?, decimals }))?
}

fn number(text: &str) -> Option<f64> {
    let value: f64 = text.replace(',', ".").parse().ok()?;
    value.is_finite().then_some(value)
}

const NOT_COUNTED: &str = "<not counted>";
const NOT_SUPPORTED: &str = "<not supported>";

fn is_value(field: &str) -> bool {
    field == NOT_COUNTED || field == NOT_SUPPORTED || printed(field).is_some()
}

/// Returns true for lines of perf's output without a count.
fn is_beside(line: &str) -> bool {
    let begins = [
        "#",
        "Performance counter stats",
        "Warning:",
        "WARNING:",
        "Weak group",
        "Some events weren't counted",
        "The events in group",
        "Try '",
        "echo ",
        "perf stat ",
    ];
    line.is_empty()
        || begins.iter().any(|begin| line.starts_with(begin))
        || ["seconds user", "seconds sys"].iter().any(|end| line.ends_with(end))
        || line.contains(" -> ")
}

/// Returns true for a stamp, which has nine decimals.
fn is_stamp(word: &str) -> bool {
    word.split_once('.').is_some_and(|(_, decimals)| decimals.len() == 9)
}

/// Returns true for `CPU0`, `S0-D0-C1`, `N0`.
fn is_place(word: &str) -> bool {
    word.split('-').all(|part| {
        let bare = part.trim_start_matches(|c: char| c.is_ascii_uppercase());
        bare.len() < part.len() && bare.parse::<u32>().is_ok()
    })
}

/// Parses ` 1.000089438    0   unit arm_cmn/x,nodeid=8/   #  metric   ( +- 1.00% )  (50.00%)`.
fn parse_text(line: &str) -> Result<Row, String> {
    let (rest, share) = match line.rsplit_once('(') {
        Some((rest, share)) if share.ends_with("%)") && !share.contains("+-") => {
            let share = number(share.trim_end_matches("%)").trim());
            (rest, Some(share.ok_or("a share that is not a number")?))
        }
        _ => (line, None),
    };
    let rest = rest.split("( +-").next().unwrap_or("").split('#').next().unwrap_or("");
    // The marks hold a blank: they become one word each while the line is split.
    let rest = rest.replace(NOT_COUNTED, "<not-counted>").replace(NOT_SUPPORTED, "<not-supported>");
    let mut words: Vec<&str> = rest.split_ascii_whitespace().collect();
    let is_value = |word: &&str| word.starts_with("<not-") || printed(word).is_some();
    let mut time = None;
    if words.len() > 2 && is_stamp(words[0]) {
        time = number(words.remove(0));
    }
    let mut place = String::new();
    if words.len() > 2 && is_place(words[0]) {
        place = format!("{} ", words.remove(0));
        // The number of CPUs at the place.
        if words.len() > 2 && is_value(&words[1]) {
            words.remove(0);
        }
    }
    let [shown, names @ ..] = words.as_slice() else {
        return Err("no count at the beginning".to_owned());
    };
    if !is_value(shown) {
        return Err("no count at the beginning".to_owned());
    }
    let (unit, event) = match names {
        [] => return Err("no event".to_owned()),
        [event] => ("", event),
        // Linux 6.12 appends the PMU to an event that several could have.
        [event, pmu] if pmu.starts_with('[') => ("", event),
        [unit, event, ..] => (*unit, event),
    };
    Ok(Row {
        time,
        value: printed(shown),
        is_supported: *shown != "<not-supported>",
        unit: unit.to_owned(),
        event: format!("{place}{event}"),
        running_ns: None,
        share,
    })
}

/// Usual separators of `-x`.
const SEPARATORS: [char; 4] = [';', '\t', '|', ','];

/// Message for fields before the value that are numbers: the value itself is cut in two.
const AMBIGUOUS: &str = "fields before the value that are no place: a decimal comma and -x, cannot be told apart; \
                         write it with -x';' or with LC_ALL=C perf stat";

/// Returns the separator of `-x`, when the line is of that kind.
fn csv_separator(line: &str) -> Option<char> {
    SEPARATORS.into_iter().find(|separator| {
        line.matches(*separator).count() >= 4
            && parse_csv(line, *separator).map_or_else(|wrong| wrong == AMBIGUOUS, |_| true)
    })
}

/// Parses `[TS SEP] [place SEP [CPUs SEP]] value SEP unit SEP event SEP [variance% SEP] run_ns SEP
/// pct SEP metric SEP unit`.
fn parse_csv(line: &str, separator: char) -> Result<Row, String> {
    // Separators within the slashes of an event belong to it.
    let mut in_slashes = false;
    let is_end = |letter: char| {
        in_slashes ^= letter == '/';
        letter == separator && !in_slashes
    };
    let fields: Vec<&str> = line.split(is_end).map(str::trim).collect();
    let begin = usize::from(is_stamp(fields[0]));
    let time_at = |value_at: usize| {
        let has_variance = fields.get(value_at + 3).is_some_and(|field| field.ends_with('%'));
        value_at + 3 + usize::from(has_variance)
    };
    let running_ns = |value_at: usize| fields.get(time_at(value_at))?.parse::<u64>().ok();
    // The event's name is the first field behind a value and a unit that is neither empty nor a
    // number.
    let is_row = |at: &usize| {
        let event = fields[at + 2];
        is_value(fields[*at])
            && !event.is_empty()
            && number(event).is_none()
            && running_ns(*at).is_some()
    };
    let value_at = (begin..fields.len().saturating_sub(3))
        .find(is_row)
        .ok_or("no value, unit, event and time")?;
    let places = fields[begin..value_at].iter().filter(|place| **place != "summary");
    let place = match places.copied().collect::<Vec<&str>>().as_slice() {
        [] | [""] => String::new(),
        [place] if is_place(place) => format!("{place} "),
        [place, cpus] if is_place(place) && cpus.parse::<u32>().is_ok() => format!("{place} "),
        _ => return Err(AMBIGUOUS.to_owned()),
    };
    let event = fields[value_at + 2].split(" [").next().unwrap_or("");
    let share = fields.get(time_at(value_at) + 1);
    Ok(Row {
        time: number(fields[0]).filter(|_| begin == 1),
        value: printed(fields[value_at]),
        is_supported: fields[value_at] != NOT_SUPPORTED,
        unit: fields[value_at + 1].to_owned(),
        event: format!("{place}{event}"),
        running_ns: running_ns(value_at),
        share: share.and_then(|share| number(share)),
    })
}

/// Parses an object of `-j`; `None` for one without an event.
fn parse_json(line: &str) -> Result<Option<Row>, String> {
    // perf writes `nan` for metrics without a value, which is not JSON.
    let line = line.trim_end_matches(',').replace(": nan", ": null").replace(": -nan", ": null");
    let object: Value = serde_json::from_str(&line.replace(": inf", ": null"))
        .map_err(|error| format!("{error} (a decimal comma? LC_ALL=C perf stat)"))?;
    let text = |name: &str| match &object[name] {
        Value::String(text) => Some(text.trim().to_owned()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let Some(event) = text("event") else {
        return Ok(None);
    };
    let place = ["cpu", "socket", "die", "core", "node"].into_iter().find_map(text);
    let place = place.map_or(String::new(), |place| match place.parse::<u32>() {
        Ok(cpu) => format!("CPU{cpu} "),
        Err(_) => format!("{place} "),
    });
    let value = text("counter-value").filter(|value| is_value(value));
    let value = value.ok_or("no counter-value, or one that is not a number")?;
    let running_ns = text("event-runtime").and_then(|text| number(&text));
    Ok(Some(Row {
        time: text("interval").and_then(|text| number(&text)),
        value: printed(&value),
        is_supported: value != NOT_SUPPORTED,
        unit: text("unit").unwrap_or_default(),
        event: format!("{place}{event}"),
        running_ns: running_ns.map(|ns| self::ns(ns * 1e-9)),
        share: text("pcnt-running").and_then(|text| number(&text)),
    }))
}

fn ns(seconds: f64) -> u64 {
    whole((seconds.max(0.0) * 1e9).round())
}

/// Most counts that are kept: events times intervals.
const MAX_COUNTS: usize = 1 << 25;

/// Lines as rows, in the format of the first line.
#[derive(Debug, Default)]
struct Output {
    rows: Vec<Row>,
    elapsed_s: Option<f64>,
    has_title: bool,
}

impl Output {
    fn of(text: &str) -> Result<Output, Fault> {
        let mut output = Output::default();
        let mut format: Option<Option<char>> = None;
        for (number, line) in text.lines().map(str::trim).enumerate() {
            let wrong = |problem: String| {
                let text: String = line.chars().take(60).collect();
                Fault::new(format!("line {}: {problem}: `{text}`", number + 1))
            };
            // `0.000984 +- 0.000186 seconds time elapsed  ( +- 18.94% )` with -r.
            if line.contains("seconds time elapsed") {
                output.elapsed_s = line.split_ascii_whitespace().next().and_then(self::number);
                continue;
            }
            output.has_title |= line.starts_with('#') && line.ends_with("events");
            if is_beside(line) {
                continue;
            }
            let row = if line.starts_with('{') {
                parse_json(line)
            } else if let Some(separator) = *format.get_or_insert_with(|| csv_separator(line)) {
                parse_csv(line, separator).map(Some)
            } else {
                parse_text(line).map(Some)
            };
            let Some(row) = row.map_err(wrong)? else {
                continue;
            };
            let before = output.rows.last().and_then(|before| before.time);
            // After intervals, --summary prints the whole run again, without a stamp.
            if before.is_some() && row.time.is_none() {
                continue;
            }
            if row.time < before {
                return Err(wrong("the time goes back: read one output at a time".to_owned()));
            }
            output.rows.push(row);
        }
        Ok(output)
    }
}

/// Reads a whole output. `length` is that of an interval, 1 s by default, if the output does not
/// give it: for one stamp that does not begin at 0, and for a run without stamps and without a
/// time.
pub fn parse(text: &str, length: Option<Duration>) -> Result<Observations, Fault> {
    let output = Output::of(text)?;
    let length_s = length.map(|length| length.as_secs_f64());
    let mut decimals: HashMap<&str, u32> = HashMap::new();
    let mut ends: Vec<f64> = Vec::new();
    for row in &output.rows {
        let own = row.value.unwrap_or_default().decimals;
        let most = decimals.entry(&row.event).or_default();
        *most = own.max(*most);
        ends.extend(row.time.filter(|time| ends.last() != Some(time)));
    }
    let begin_s = begin_of(&ends, output.has_title, length_s.unwrap_or(1.0));
    let mut observed = Observations {
        what: "perf stat".to_owned(),
        begin_ns: ns(begin_s),
        ..Observations::default()
    };
    // A name may occur several times, in groups.
    let mut by_name: HashMap<&str, Vec<usize>> = HashMap::new();
    let mut time = None;
    for row in &output.rows {
        if observed.end_ns.is_empty() || time != row.time {
            fill(&mut observed);
            let end_s = row.time.or(output.elapsed_s).or(length_s);
            observed.end_ns.push(ns(end_s.unwrap_or(0.0)));
            time = row.time;
        }
        let intervals = observed.end_ns.len();
        let passed_ns = ns(observed.seconds(intervals - 1));
        let events = &mut observed.events;
        let same = by_name.entry(&row.event).or_default();
        let free = same.iter().copied().find(|at| events[*at].count.len() < intervals);
        let at = free.unwrap_or(events.len());
        if free.is_none() {
            same.push(at);
            if (at + 1).saturating_mul(intervals) > MAX_COUNTS {
                let what = "count fewer events, or in longer intervals";
                return Err(Fault::new(format!("more than {MAX_COUNTS} counts: {what}")));
            }
            events.push(blank(row, intervals - 1, decimals[row.event.as_str()]));
        }
        add(&mut events[at], row, passed_ns, decimals[row.event.as_str()]);
    }
    fill(&mut observed);
    if observed.events.is_empty() {
        return Err(Fault::new("it holds no counts of perf stat (text, -x or -j)"));
    }
    Ok(observed)
}

/// Fills the intervals in which an event has no row.
fn fill(observed: &mut Observations) {
    let intervals = observed.end_ns.len();
    for event in &mut observed.events {
        for values in [&mut event.count, &mut event.enabled_ns, &mut event.running_ns] {
            values.resize(intervals, 0);
        }
    }
}

fn blank(row: &Row, before: usize, decimals: u32) -> ObservedEvent {
    let pmu = row.event.split_once('/').map_or("", |(pmu, _)| pmu);
    ObservedEvent {
        name: row.event.clone(),
        pmu: pmu.to_owned(),
        unit: row.unit.clone(),
        scale: 10_f64.powi(-i32::try_from(decimals).unwrap_or(0)),
        places: 1,
        is_scaled: true,
        count: vec![0; before],
        enabled_ns: vec![0; before],
        running_ns: vec![0; before],
        ..ObservedEvent::default()
    }
}

fn add(event: &mut ObservedEvent, row: &Row, passed_ns: u64, decimals: u32) {
    if !row.is_supported {
        event.status = EventStatus::NotSupported("perf could not open it".to_owned());
    }
    event.count.push(row.value.unwrap_or_default().with(decimals));
    let is_counted = row.value.is_some();
    let share = row.share.map_or(1.0, |percent| percent / 100.0);
    // perf adds up the times of CPUs and instances; -x and -j cut the share to whole percents.
    let (enabled, running) = match row.running_ns {
        Some(running) if share > 0.0 => (ns(running as f64 / share * 1e-9), running),
        Some(running) => (running.max(passed_ns), running),
        None => (passed_ns, ns(passed_ns as f64 * share * 1e-9)),
    };
    event.enabled_ns.push(enabled.max(u64::from(is_counted)));
    event.running_ns.push(if is_counted { running.max(1) } else { 0 });
}

/// Returns the start of the first interval, from the length of the others.
fn begin_of(ends: &[f64], has_title: bool, interval_s: f64) -> f64 {
    let Some(first) = ends.first() else {
        return 0.0;
    };
    let mut lengths: Vec<f64> = ends.windows(2).map(|pair| pair[1] - pair[0]).collect();
    if lengths.len() > 1 {
        lengths.pop();
    }
    lengths.sort_by(f64::total_cmp);
    let length = match lengths.as_slice() {
        [] => interval_s,
        // A short last interval hardly divides the first.
        [second] if ends.len() == 2 => {
            let times = first / second;
            if has_title || (times - times.round()).abs() > 0.02 {
                return 0.0;
            }
            *second
        }
        sorted => sorted[sorted.len() / 2],
    };
    // Stamps are late by up to some milliseconds, never by half an interval.
    if length <= 0.0 || *first <= 1.5 * length { 0.0 } else { first - length }
}

/// Writes an interval as perf does with `-x`; the share is an integer division, as in perf.
pub fn csv_interval(observed: &Observations, interval: usize, separator: char) -> String {
    let end_ns = observed.end_ns.get(interval).copied().unwrap_or(0);
    let stamp = format!("{}.{:09}", end_ns / 1_000_000_000, end_ns % 1_000_000_000);
    let line = |event: &ObservedEvent| {
        let decimals = if event.scale == 1.0 { 0 } else { 2 };
        let value = match (&event.status, event.scaled(interval)) {
            (EventStatus::NotSupported(_), _) => NOT_SUPPORTED.to_owned(),
            (EventStatus::Counted, None) => NOT_COUNTED.to_owned(),
            (EventStatus::Counted, Some(value)) => format!("{value:.decimals$}"),
        };
        let (place, name) = event.name.rsplit_once(' ').unwrap_or(("", &event.name));
        let running = event.running_ns.get(interval).copied().unwrap_or(0).to_string();
        let share = event.share(interval).map_or(100.0, |share| (100.0 * share).floor());
        let share = format!("{share:.2}");
        let fields = [&value, &event.unit, name, &running, &share, "", ""];
        let places = [stamp.as_str(), place].into_iter().filter(|field| !field.is_empty());
        let fields: Vec<&str> = places.chain(fields).collect();
        fields.join(&separator.to_string()) + "\n"
    };
    observed.events.iter().map(line).collect()
}

#[cfg(test)]
mod tests;
