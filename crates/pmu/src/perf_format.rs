//! The output of `perf stat`, read and written: text, `-x`, `-j`. Three states are kept apart everywhere: counted (which may be
//! zero), not counted (never scheduled), not supported (never opened).
//!
//! Grammar: Linux tools/perf/util/stat-display.c of 6.1, 6.12 and 7.2. Two traps: CSV does not quote event names, which contain
//! commas; and CSV and JSON give the share as an integer division, so that the enabled time cannot be had back from them.

use std::fmt::Write;

use daqmeter_record::Observations;
use daqmeter_record::observed::{EventStatus, ObservedEvent};
use serde_json::Value;

/// Which of the three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerfFormat {
    /// What perf prints for people.
    Text,
    /// `-x SEPARATOR`.
    Csv(char),
    /// `-j`: one object per line.
    Json,
}

/// What is wrong with the input.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PerfError {
    /// A line that is none of perf's.
    #[error("line {line}: {problem}: `{text}`")]
    Line {
        /// Number, from 1.
        line: usize,
        /// What is wrong.
        problem: String,
        /// The line's beginning.
        text: String,
    },
    /// Nothing in it.
    #[error("it holds no counts of perf stat (text, -x or -j)")]
    Empty,
}

/// One row of perf's output.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    /// Time stamp in seconds; none without -I.
    time: Option<f64>,
    /// The value as printed, scaled; none when it was not counted.
    value: Option<Printed>,
    is_supported: bool,
    unit: String,
    event: String,
    running_ns: Option<u64>,
    /// Percent.
    share: Option<f64>,
}

/// A value as printed: all its digits, and how many of them are decimals.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Printed {
    digits: u64,
    decimals: usize,
}

fn printed(text: &str) -> Option<Printed> {
    let bare: String = text.chars().filter(|c| !is_grouping(*c)).collect();
    let (whole, fraction) = bare.split_once('.').unwrap_or((&bare, ""));
    // perf's JSON has six decimals, all zero for a count.
    let fraction = fraction.trim_end_matches('0');
    let digits = format!("{whole}{fraction}").parse().ok()?;
    Some(Printed {
        digits,
        decimals: fraction.len(),
    })
}

const NOT_COUNTED: &str = "<not counted>";
const NOT_SUPPORTED: &str = "<not supported>";

/// Reads any of the three.
///
/// # Errors
/// Names the first line that is none of perf's.
pub fn parse(text: &str) -> Result<Observations, PerfError> {
    let first = text
        .lines()
        .map(str::trim)
        .find(|line| !line.is_empty() && !line.starts_with('#'))
        .ok_or(PerfError::Empty)?;
    let rows = if first.starts_with('{') {
        rows(text, parse_json)?
    } else if let Some(separator) = csv_separator(text) {
        rows(text, |line| parse_csv(line, separator))?
    } else {
        rows(text, parse_text)?
    };
    build(rows)
}

fn rows(
    text: &str,
    parse: impl Fn(&str) -> Result<Option<Row>, String>,
) -> Result<(Vec<Row>, Option<f64>), PerfError> {
    let (mut rows, mut elapsed) = (Vec::new(), None);
    for (at, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        // `0.000984 +- 0.000186 seconds time elapsed  ( +- 18.94% )` with -r.
        if trimmed.contains("seconds time elapsed") {
            elapsed = trimmed.split_ascii_whitespace().next().and_then(number);
            continue;
        }
        let is_said = trimmed.ends_with("seconds user") || trimmed.ends_with("seconds sys");
        if trimmed.is_empty()
            || trimmed.starts_with('#')
            || trimmed.starts_with("Performance counter stats")
            || is_said
        {
            continue;
        }
        let wrong = |problem: String| PerfError::Line {
            line: at + 1,
            problem,
            text: line.chars().take(60).collect(),
        };
        rows.extend(parse(line).map_err(wrong)?);
    }
    Ok((rows, elapsed))
}

/// Locales group thousands with commas, apostrophes and blanks of several kinds.
fn is_grouping(letter: char) -> bool {
    matches!(letter, ',' | '\'' | '\u{a0}' | '\u{202f}')
}

fn number(text: &str) -> Option<f64> {
    let bare: String = text.chars().filter(|c| !is_grouping(*c)).collect();
    bare.parse().ok().filter(|value: &f64| value.is_finite())
}

/// ` 1.000089438    0   unit arm_cmn/x,nodeid=8/   #  metric   ( +- 1.00% )  (50.00%)`.
fn parse_text(line: &str) -> Result<Option<Row>, String> {
    let mut rest = line.trim();
    let mut share = None;
    // The share is the last thing in parentheses that has no plus-minus.
    if let Some((head, tail)) = rest.rsplit_once('(')
        && let Some(percent) = tail.strip_suffix("%)")
        && !percent.contains("+-")
    {
        share = Some(number(percent.trim()).ok_or("a share that is no number")?);
        rest = head.trim_end();
    }
    if let Some((head, _)) = rest.rsplit_once("( +-") {
        rest = head.trim_end();
    }
    rest = rest.split('#').next().unwrap_or("").trim();
    // The marks hold a blank: one word each while the line is taken apart.
    let marked = rest
        .replace(NOT_COUNTED, "<not-counted>")
        .replace(NOT_SUPPORTED, "<not-supported>");
    let mut words: Vec<&str> = marked.split_ascii_whitespace().collect();
    let is_value = |word: &str| word.starts_with("<not-") || printed(word).is_some();
    // A stamp has nine decimals; a value, or who it is of, follows.
    let is_stamp = |word: &str| {
        word.split_once('.')
            .is_some_and(|(_, decimals)| decimals.len() == 9)
    };
    let mut time = None;
    if words.len() > 2 && is_stamp(words[0]) {
        time = words.remove(0).parse().ok();
    }
    let mut place = String::new();
    if words.len() > 2 && is_place(words[0]) {
        place = format!("{} ", words.remove(0));
        // The number of CPUs that are added up there.
        if words.len() > 2 && is_value(words[0]) && is_value(words[1]) {
            words.remove(0);
        }
    }
    if words.first().is_none_or(|word| !is_value(word)) {
        return Err("no count at the beginning".to_owned());
    }
    let shown = words.remove(0);
    let (value, is_supported) = (printed(shown), shown != "<not-supported>");
    // 6.12 names the PMU behind the event where it might be several.
    if words.len() > 1
        && words
            .last()
            .is_some_and(|word| word.starts_with('[') && word.ends_with(']'))
    {
        words.pop();
    }
    let (unit, event) = match words.as_slice() {
        [] => return Err("no event".to_owned()),
        [event] => ("", format!("{place}{event}")),
        // Units are one word; an event with blanks does not exist.
        [unit, event, ..] => (*unit, format!("{place}{event}")),
    };
    Ok(Some(Row {
        time,
        value,
        is_supported,
        unit: unit.to_owned(),
        event,
        running_ns: None,
        share,
    }))
}

/// Who a row is of, with -A and --per-*: `CPU0`, `S0-D0-C1`, `N0`.
fn is_place(word: &str) -> bool {
    let part = |part: &str| {
        let bare = part.trim_start_matches(|c: char| c.is_ascii_uppercase());
        bare.len() < part.len()
            && !bare.is_empty()
            && bare.bytes().all(|byte| byte.is_ascii_digit())
    };
    word.split('-').all(part)
}

/// The separator of `-x`, when the text is of that kind: the character behind the first value that also stands behind `ns,pct`.
fn csv_separator(text: &str) -> Option<char> {
    let line = text
        .lines()
        .map(str::trim)
        .find(|line| !line.is_empty() && !line.starts_with('#'))?;
    [';', '\t', '|', ',', ':'].into_iter().find(|separator| {
        // Value, unit, event, time, share and two columns of metrics: at least six separators.
        line.matches(*separator).count() >= 6
            && parse_csv(line, *separator).is_ok_and(|row| row.is_some())
    })
}

/// `[TS SEP] [aggregation SEP] value SEP unit SEP event SEP run_ns SEP pct SEP metric SEP unit`.
fn parse_csv(line: &str, separator: char) -> Result<Option<Row>, String> {
    // An event of a PMU is one token whatever it holds: blank its separators out while splitting.
    let hidden = '\u{1}';
    let mut masked = String::with_capacity(line.len());
    let mut in_slashes = false;
    for letter in line.chars() {
        in_slashes ^= letter == '/';
        masked.push(if in_slashes && letter == separator {
            hidden
        } else {
            letter
        });
    }
    let fields: Vec<String> = masked
        .split(separator)
        .map(|field| field.trim().replace(hidden, &separator.to_string()))
        .collect();
    let is_value =
        |field: &str| field == NOT_COUNTED || field == NOT_SUPPORTED || printed(field).is_some();
    let is_stamp = |field: &str| {
        field
            .split_once('.')
            .is_some_and(|(_, decimals)| decimals.len() == 9)
    };
    let stamp = fields
        .first()
        .filter(|field| is_stamp(field))
        .and_then(|field| field.parse::<f64>().ok());
    let begin = usize::from(stamp.is_some());
    // The event's name is the first field that is neither empty, nor a number, nor a mark, behind a value and a unit.
    let value_at = (begin..fields.len().saturating_sub(3))
        .find(|at| {
            let (event, time) = (&fields[at + 2], &fields[at + 3]);
            is_value(&fields[*at])
                && !event.is_empty()
                && number(event).is_none()
                && time.parse::<u64>().is_ok()
        })
        .ok_or("no value, unit, event and time")?;
    let value = fields[value_at].as_str();
    let place = fields[begin..value_at]
        .first()
        .filter(|place| is_place(place));
    let place = place.map_or(String::new(), |place| format!("{place} "));
    Ok(Some(Row {
        time: stamp,
        value: printed(value),
        is_supported: value != NOT_SUPPORTED,
        unit: fields[value_at + 1].clone(),
        event: format!(
            "{place}{}",
            fields[value_at + 2].split(" [").next().unwrap_or("")
        ),
        running_ns: fields[value_at + 3].parse().ok(),
        share: fields.get(value_at + 4).and_then(|share| number(share)),
    }))
}

fn parse_json(line: &str) -> Result<Option<Row>, String> {
    // perf writes `nan` for metrics without a value, which is no JSON.
    let line = line
        .trim()
        .trim_end_matches(',')
        .replace(": nan", ": null")
        .replace(": -nan", ": null")
        .replace(": inf", ": null");
    let object: Value = serde_json::from_str(&line).map_err(|error| error.to_string())?;
    let text = |name: &str| match &object[name] {
        Value::String(text) => Some(text.trim().to_owned()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    // A line of a metric alone.
    let Some(event) = text("event") else {
        return Ok(None);
    };
    let place = ["cpu", "socket", "die", "core", "node"]
        .iter()
        .find_map(|name| text(name));
    let event = place.map_or(event.clone(), |place| {
        format!(
            "{}{place} {event}",
            if place.starts_with(|c: char| c.is_ascii_digit()) {
                "CPU"
            } else {
                ""
            }
        )
    });
    let value = text("counter-value").ok_or("no counter-value")?;
    if value != NOT_COUNTED && value != NOT_SUPPORTED && printed(&value).is_none() {
        return Err("a counter-value that is no number".to_owned());
    }
    Ok(Some(Row {
        time: text("interval").and_then(|text| text.parse().ok()),
        value: printed(&value),
        is_supported: value != NOT_SUPPORTED,
        unit: text("unit").unwrap_or_default(),
        event,
        running_ns: text("event-runtime")
            .and_then(|text| number(&text))
            .map(|ns| ns.max(0.0))
            .and_then(|ns| format!("{ns:.0}").parse().ok()),
        share: text("pcnt-running").and_then(|text| number(&text)),
    }))
}

const NS: f64 = 1e9;

fn ns(seconds: f64) -> u64 {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a time stamp of a run, not negative"
    )]
    let ns = (seconds.max(0.0) * NS).round() as u64;
    ns
}

fn build((rows, elapsed): (Vec<Row>, Option<f64>)) -> Result<Observations, PerfError> {
    if rows.is_empty() {
        return Err(PerfError::Empty);
    }
    let mut observed = Observations {
        what: "perf stat".to_owned(),
        ..Observations::default()
    };
    let mut stamps: Vec<Option<f64>> = Vec::new();
    // The n-th occurrence of an event within an interval is an event of its own (several in groups).
    let mut seen: Vec<usize> = Vec::new();
    let mut names: Vec<(String, usize)> = Vec::new();
    let mut finest = std::collections::BTreeMap::new();
    for row in &rows {
        let is_new = stamps.last() != Some(&row.time) || (row.time.is_none() && stamps.is_empty());
        if is_new {
            stamps.push(row.time);
            seen.iter_mut().for_each(|count| *count = 0);
        }
        let interval = stamps.len() - 1;
        let nth = names
            .iter()
            .zip(&seen)
            .filter(|((name, _), count)| *name == row.event && **count > 0)
            .count();
        let at = names
            .iter()
            .position(|(name, number)| *name == row.event && *number == nth)
            .unwrap_or_else(|| {
                names.push((row.event.clone(), nth));
                seen.push(0);
                observed.events.push(ObservedEvent {
                    name: row.event.clone(),
                    pmu: row
                        .event
                        .split_once('/')
                        .map_or("", |(pmu, _)| pmu)
                        .to_owned(),
                    unit: row.unit.clone(),
                    scale: 1.0,
                    places: 1,
                    is_scaled: true,
                    ..ObservedEvent::default()
                });
                names.len() - 1
            });
        seen[at] = 1;
        let event = &mut observed.events[at];
        // Intervals in which it was not printed were not counted.
        event.count.resize(interval, 0);
        event.enabled_ns.resize(interval, 0);
        event.running_ns.resize(interval, 0);
        if !row.is_supported {
            event.status = EventStatus::NotSupported("perf could not open it".to_owned());
        }
        let before = if interval == 0 {
            0.0
        } else {
            stamps[interval - 1].unwrap_or(0.0)
        };
        let passed = row.time.or(elapsed).map_or(0.0, |end| end - before);
        let share = row.share.map_or(1.0, |percent| percent / 100.0);
        let enabled = row.running_ns.map_or(passed * NS, |running| {
            if share > 0.0 {
                running as f64 / share
            } else {
                passed * NS
            }
        });
        let counted = row.value.is_some();
        let Printed { digits, decimals } = row.value.unwrap_or(Printed {
            digits: 0,
            decimals: 0,
        });
        // One scale for all intervals of an event: the finest seen.
        let finest = finest.entry(at).or_insert(0_usize);
        if decimals > *finest {
            let factor = 10_u64.pow(u32::try_from(decimals - *finest).unwrap_or(0).min(18));
            event
                .count
                .iter_mut()
                .for_each(|count| *count = count.saturating_mul(factor));
            *finest = decimals;
            event.scale = 10_f64.powi(-i32::try_from(decimals).unwrap_or(0));
        }
        let factor = 10_u64
            .checked_pow(u32::try_from(*finest - decimals).unwrap_or(0))
            .unwrap_or(1);
        event.count.push(digits.saturating_mul(factor));
        event
            .enabled_ns
            .push(ns(enabled / NS).max(u64::from(counted)));
        event.running_ns.push(if counted {
            ns(enabled * share / NS).max(1)
        } else {
            0
        });
    }
    let count = stamps.len();
    for event in &mut observed.events {
        event.count.resize(count, 0);
        event.enabled_ns.resize(count, 0);
        event.running_ns.resize(count, 0);
    }
    observed.end_ns = stamps
        .iter()
        .map(|stamp| ns(stamp.or(elapsed).unwrap_or(0.0)))
        .collect();
    Ok(observed)
}

/// Writes one interval of observations as perf would.
pub fn emit_interval(observed: &Observations, interval: usize, format: PerfFormat) -> String {
    let mut out = String::new();
    if format == PerfFormat::Text && interval == 0 {
        out.push_str("#           time             counts unit events\n");
    }
    let end_ns = observed
        .end_ns
        .get(interval)
        .copied()
        .unwrap_or(0)
        .saturating_sub(observed.begin_ns);
    let stamp = format!("{}.{:09}", end_ns / 1_000_000_000, end_ns % 1_000_000_000);
    for event in &observed.events {
        let (enabled, running) = (
            event.enabled_ns.get(interval).copied().unwrap_or(0),
            event.running_ns.get(interval).copied().unwrap_or(0),
        );
        let value = match (&event.status, event.scaled(interval)) {
            (EventStatus::NotSupported(_), _) => NOT_SUPPORTED.to_owned(),
            (EventStatus::Counted, None) => NOT_COUNTED.to_owned(),
            (EventStatus::Counted, Some(value)) if event.scale == 1.0 => format!("{value:.0}"),
            (EventStatus::Counted, Some(value)) => format!("{value:.2}"),
        };
        let counted = running > 0;
        let percent = if enabled == 0 {
            100.0
        } else {
            100.0 * running as f64 / enabled as f64
        };
        let done = match format {
            PerfFormat::Text => {
                let share = if counted && running != enabled {
                    format!("  ({percent:.2}%)")
                } else {
                    String::new()
                };
                writeln!(
                    out,
                    "{stamp:>16} {value:>18} {:<4} {:<32}{share}",
                    event.unit, event.name
                )
            }
            // As perf has it: an integer division.
            PerfFormat::Csv(separator) => {
                let s = separator;
                writeln!(
                    out,
                    "{stamp}{s}{value}{s}{}{s}{}{s}{running}{s}{:.2}{s}{s}",
                    event.unit,
                    event.name,
                    percent.floor()
                )
            }
            PerfFormat::Json => {
                let quoted = |text: &str| Value::String(text.to_owned()).to_string();
                let value = if value.starts_with('<') {
                    quoted(&value)
                } else {
                    format!("\"{value}.000000\"").replace("..", ".")
                };
                writeln!(
                    out,
                    "{{\"interval\" : {stamp}, \"counter-value\" : {value}, \"unit\" : {}, \"event\" : {}, \"event-runtime\" : {running}, \"pcnt-running\" : {:.2}}}",
                    quoted(&event.unit),
                    quoted(&event.name),
                    percent.floor()
                )
            }
        };
        done.expect("a String takes everything");
    }
    out.lines().fold(String::new(), |mut text, line| {
        text.push_str(line.trim_end());
        text.push('\n');
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The document's own output.
    const DOCUMENT: &str = "\
#           time             counts unit events
     1.000089438                  0      arm_cmn/rnid_txdat_flits,nodeid=8/                                     (50.00%)
     1.000089438                  0      arm_cmn/rnid_txdat_flits,nodeid=12/                                     (50.00%)
     2.000231897                 79      arm_cmn/rnid_txdat_flits,nodeid=8/                                     (50.01%)
     2.000231897      <not counted>      arm_cmn/rnid_txdat_flits,nodeid=12/
";

    fn values(observed: &Observations, event: usize) -> Vec<Option<f64>> {
        (0..observed.end_ns.len())
            .map(|at| observed.events[event].scaled(at).map(f64::round))
            .collect()
    }

    #[test]
    fn the_documents_output_is_read_with_shares_and_gaps() {
        let observed = parse(DOCUMENT).unwrap();
        assert_eq!(observed.end_ns, [1_000_089_438, 2_000_231_897]);
        assert_eq!(values(&observed, 0), [Some(0.0), Some(79.0)]);
        assert_eq!(
            values(&observed, 1),
            [Some(0.0), None],
            "zero is not `not counted`"
        );
        assert!((observed.events[0].share(1).unwrap() - 0.5001).abs() < 1e-4);
        assert!((observed.events[0].seconds(1).unwrap() - 1.000_142_459).abs() < 1e-6);
    }

    #[test]
    fn thousands_are_read_whatever_the_locale() {
        let text = "     2.000394365        121,713,206      arm_cmn/hnf_mc_reqs,nodeid=0x24/\n     2.000394365   121\u{202f}715\u{202f}680      arm_cmn/hnf_mc_reqs,nodeid=0x28/\n";
        let observed = parse(text).unwrap();
        assert_eq!(
            (values(&observed, 0), values(&observed, 1)),
            (vec![Some(121_713_206.0)], vec![Some(121_715_680.0)])
        );
    }

    #[test]
    fn csv_of_every_version_is_read_though_names_hold_commas() {
        for text in [
            // 6.1 pads the stamp.
            "     1.000089438;79;;arm_cmn/rnid_txdat_flits,nodeid=8,bynodeid=1/;1000089438;79.00;;\n",
            "1.000089438,79,,arm_cmn/rnid_txdat_flits,nodeid=8,bynodeid=1/,1000089438,100.00,,\n",
            "1.000089438;S0;1;79;;arm_cmn/rnid_txdat_flits/;1000089438;100.00;;\n",
            "79;;arm_cmn/rnid_txdat_flits/;1000089438;100.00;;\n",
        ] {
            let observed = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert!(
                observed.events[0].name.contains("arm_cmn/rnid_txdat_flits"),
                "{text}"
            );
            let value = observed.events[0].scaled(0).unwrap();
            assert!((value - 79.0).abs() < 1.0, "{text}: {value}");
        }
        let text = "1.0;<not supported>;;arm_cmn/x/;0;100.00;;\n".replace("1.0;", "1.000000000;");
        let observed = parse(&text).unwrap();
        assert!(matches!(
            observed.events[0].status,
            EventStatus::NotSupported(_)
        ));
        let observed = parse("1.000000000;<not counted>;;arm_cmn/x/;0;0.00;;\n").unwrap();
        assert_eq!(
            (observed.events[0].scaled(0), &observed.events[0].status),
            (None, &EventStatus::Counted)
        );
    }

    #[test]
    fn json_of_every_version_is_read() {
        for tail in [
            // 6.1, 6.12, 7.2.
            ", \"metric-value\" : 0.000000, \"metric-unit\" : \"(null)\"}",
            ", \"metric-value\" : \"0.000000\", \"metric-unit\" : \"x\"}",
            "}",
            ", \"metric-value\" : nan, \"metric-unit\" : \"x\"}",
        ] {
            let line = format!(
                "{{\"interval\" : 1.000089438, \"counter-value\" : \"79.000000\", \"unit\" : \"\", \"event\" : \"arm_cmn/x,nodeid=8/\", \"event-runtime\" : 500044719, \"pcnt-running\" : 50.00{tail}\n"
            );
            let observed = parse(&line).unwrap();
            assert!((observed.events[0].scaled(0).unwrap() - 79.0).abs() <= 1.0);
            assert_eq!(observed.events[0].running_ns, [500_044_719]);
        }
    }

    #[test]
    fn a_run_without_intervals_takes_the_elapsed_time() {
        let text = " Performance counter stats for 'system wide':\n\n       486857099      arm_cmn/hnf_mc_reqs/\n\n       1.000250043 seconds time elapsed\n";
        let observed = parse(text).unwrap();
        assert_eq!(
            (values(&observed, 0), observed.end_ns[0]),
            (vec![Some(486_857_099.0)], 1_000_250_043)
        );
    }

    #[test]
    fn what_is_not_perfs_is_refused_with_its_line() {
        for (text, part) in [
            ("hello world\n", "line 1"),
            ("# x\n\n", "no counts"),
            ("", "no counts"),
            ("{\"a\": }\n", "line 1"),
            ("1.000000000 5 x/y/ (abc%)\n", "line 1"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }

    #[test]
    fn recorded_output_of_three_versions_is_read_with_its_three_states() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/perf");
        let mut files = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            let observed = parse(&std::fs::read_to_string(&path).unwrap())
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            files += 1;
            let per_cpu = if name.contains("cpus") { 2 } else { 1 };
            assert_eq!(
                observed.events.len(),
                4 * per_cpu,
                "{name}: {:?}",
                observed.events
            );
            let of = |event: &str| {
                let found = observed
                    .events
                    .iter()
                    .find(|found| found.name.ends_with(event));
                found.unwrap_or_else(|| panic!("{name}: no {event} in {:?}", observed.events))
            };
            assert!(
                matches!(of("cycles").status, EventStatus::NotSupported(_)),
                "{name}"
            );
            assert_eq!(of("cpu-clock").unit, "msec", "{name}");
            let (faults, clock) = (of("page-faults"), of("cpu-clock"));
            assert!(
                faults
                    .scaled(0)
                    .is_some_and(|count| count >= 1.0 && count.fract() == 0.0),
                "{name}: {faults:?}"
            );
            assert!(
                clock.scaled(0).is_some_and(|ms| ms > 0.0 && ms < 500.0),
                "{name}: {clock:?}"
            );
            if name.contains("interval") {
                assert_eq!(observed.end_ns.len(), 3, "{name}");
                // The command sleeps in the second interval: never scheduled there.
                assert_eq!(
                    (faults.scaled(1), faults.scaled(2)),
                    (None, Some(0.0)),
                    "{name}"
                );
            }
            if name.contains("cpus") {
                assert!(observed.events[0].name.starts_with("CPU0 "), "{name}");
            }
        }
        assert_eq!(files, 21);
    }

    fn observed() -> impl Strategy<Value = Observations> {
        let row = (0_u64..1 << 40, 1_u64..1_000_000_000, any::<bool>());
        proptest::collection::vec(proptest::collection::vec(row, 1..4), 1..4).prop_map(|events| {
            let intervals = events[0].len();
            let events = events.into_iter().enumerate().map(|(at, rows)| {
                let rows: Vec<_> = rows.into_iter().cycle().take(intervals).collect();
                ObservedEvent {
                    name: format!("pmu/event,nodeid={at}/"),
                    pmu: "pmu".into(),
                    scale: 1.0,
                    places: 1,
                    count: rows.iter().map(|(count, ..)| *count).collect(),
                    enabled_ns: rows.iter().map(|(_, ns, _)| *ns).collect(),
                    running_ns: rows
                        .iter()
                        .map(|(_, ns, ran)| if *ran { *ns } else { 0 })
                        .collect(),
                    ..ObservedEvent::default()
                }
            });
            let end_ns = (1..=intervals as u64)
                .map(|at| at * 1_000_000_007)
                .collect();
            Observations {
                what: "perf stat".into(),
                begin_ns: 0,
                end_ns,
                events: events.collect(),
                ..Observations::default()
            }
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(observed in observed()) {
            for format in [PerfFormat::Text, PerfFormat::Csv(';'), PerfFormat::Csv(','), PerfFormat::Json] {
                let text: String = (0..observed.end_ns.len()).map(|at| emit_interval(&observed, at, format)).collect();
                let back = parse(&text).unwrap();
                prop_assert_eq!(&back.end_ns, &observed.end_ns);
                for (event, read) in observed.events.iter().zip(&back.events) {
                    prop_assert_eq!(&event.name, &read.name);
                    for at in 0..observed.end_ns.len() {
                        prop_assert_eq!(event.scaled(at), read.scaled(at), "{:?}", format);
                    }
                }
            }
        }

        #[test]
        fn no_text_makes_it_panic(text in "[ -~\n]{0,200}") {
            let _ = parse(&text);
        }
    }
}
