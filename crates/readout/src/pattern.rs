//! BUSY from outside: times at which another detector holds the trigger.
//!
//! Either `PERIOD/SHARE%`, asserted for the last part of each period, or a file: a line holds a
//! time since the start, in seconds or with a unit, and `on` or `off`, in turns from `on`; `#`
//! begins a comment.

use std::path::Path;
use std::time::Duration;

use daqmeter_harness::text_file;
use daqmeter_record::units;

/// Shortest period: the card is carried from edge to edge.
const MIN_PERIOD_NS: u64 = 1_000;
/// Latest edge, and longest period: eleven days, far from overflow.
const MAX_NS: u64 = 1_000_000_000_000_000;

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Pattern {
    edges: Edges,
    done: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
enum Edges {
    #[default]
    None,
    Listed(Vec<u64>),
    Periodic {
        period_ns: u64,
        off_ns: u64,
    },
}

impl Pattern {
    /// Reads a period with a share, or a file. The error names the line of the file.
    pub(crate) fn read(text: &str) -> Result<Pattern, String> {
        let edges = match text.strip_suffix('%') {
            Some(short) => periodic(short).ok_or_else(|| {
                format!(
                    "`{text}` is not a period of 1us or more and the share of it with BUSY, above 0 and below 100 %, such as 10ms/5%"
                )
            })?,
            None => Edges::Listed(listed(text)?),
        };
        Ok(Pattern { edges, done: 0 })
    }

    /// Next edge up to a time, once: its time, and the state of BUSY from there.
    pub(crate) fn next_edge(&mut self, now_ns: u64) -> Option<(u64, bool)> {
        let is_on = self.done.is_multiple_of(2);
        let at_ns = match &self.edges {
            Edges::None => return None,
            Edges::Listed(times_ns) => *times_ns.get(usize::try_from(self.done).ok()?)?,
            Edges::Periodic { period_ns, off_ns } => {
                let begin_ns = self.done / 2 * period_ns;
                begin_ns + if is_on { *off_ns } else { *period_ns }
            }
        };
        (at_ns <= now_ns).then(|| {
            self.done += 1;
            (at_ns, is_on)
        })
    }
}

fn nanos(time: Duration) -> Option<u64> {
    let ns = u64::try_from(time.as_nanos()).ok()?;
    (ns <= MAX_NS).then_some(ns)
}

/// Parses `10ms/5`, in percent.
fn periodic(text: &str) -> Option<Edges> {
    let (period, percent) = text.split_once('/')?;
    let period_ns = units::parse_duration(period).ok().and_then(nanos)?;
    let percent: f64 = percent.trim().parse().ok()?;
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a part of a period"
    )]
    let on_ns = (period_ns as f64 * percent / 100.0).round() as u64;
    let is_pattern = period_ns >= MIN_PERIOD_NS
        && percent > 0.0
        && percent < 100.0
        && (1..period_ns).contains(&on_ns);
    is_pattern.then(|| Edges::Periodic { period_ns, off_ns: period_ns - on_ns })
}

fn listed(path: &str) -> Result<Vec<u64>, String> {
    let text = text_file(Path::new(path)).map_err(|error| format!("{path}: {error}"))?;
    let times_ns = edges_of(&text).map_err(|(line, what)| format!("{path}:{line}: {what}"))?;
    if times_ns.is_empty() {
        return Err(format!("{path}: there is no BUSY in it"));
    }
    Ok(times_ns)
}

fn edges_of(text: &str) -> Result<Vec<u64>, (usize, String)> {
    let mut times_ns: Vec<u64> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or("").trim();
        if line.is_empty() {
            continue;
        }
        let wrong = |what: String| (at + 1, what);
        let wanted = if times_ns.len().is_multiple_of(2) { "on" } else { "off" };
        let time = line.split_whitespace().next().unwrap_or("");
        let state = line[time.len()..].trim();
        let ns = units::parse_duration(time).ok().and_then(nanos);
        let ns = ns.ok_or_else(|| {
            wrong(format!("`{time}` is not a time since the start, such as 1.5 (seconds) or 20ms"))
        })?;
        if state != wanted {
            return Err(wrong(format!(
                "`{state}` where `{wanted}` is wanted: BUSY is off at the start and goes on and off in turns"
            )));
        }
        if times_ns.last().is_some_and(|before| ns <= *before) {
            return Err(wrong(format!("{time} is not later than the line before")));
        }
        times_ns.push(ns);
    }
    Ok(times_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges(pattern: &mut Pattern, until_ns: u64) -> Vec<(u64, bool)> {
        std::iter::from_fn(|| pattern.next_edge(until_ns)).collect()
    }

    #[test]
    fn a_period_is_busy_in_its_last_part() {
        let mut pattern = Pattern::read("10us/25%").unwrap();
        let expected = [(7_500, true), (10_000, false), (17_500, true)];
        assert_eq!(edges(&mut pattern, 19_999), expected);
        assert_eq!(edges(&mut pattern, 20_000), [(20_000, false)]);
    }

    #[test]
    fn a_file_says_when_it_goes_on_and_off() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "# another detector\n 0.001 on\n2ms\toff # again\n\n1 on\n";
        std::fs::write(file.path(), text).unwrap();
        let mut pattern = Pattern::read(file.path().to_str().unwrap()).unwrap();
        assert_eq!(edges(&mut pattern, 999_999), []);
        let expected = [(1_000_000, true), (2_000_000, false), (1_000_000_000, true)];
        assert_eq!(edges(&mut pattern, u64::MAX), expected);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, line, wanted) in [
            ("1ms off\n", 1, "`off` where `on` is wanted"),
            ("1ms on\n\n2ms on\n", 3, "`on` where `off` is wanted"),
            ("1ms on\n1ms off\n", 2, "1ms is not later"),
            ("soon on\n", 1, "`soon` is not a time"),
            ("1 on off\n", 1, "`on off` where"),
            ("1\n", 1, "`` where `on` is wanted"),
        ] {
            let (at, what) = edges_of(text).unwrap_err();
            assert!(at == line && what.contains(wanted), "{text}: {at} {what}");
        }
        for short in ["10ms/0%", "10ms/100%", "1ns/50%", "10ms%", "x/5%", "10ms/NaN%", "20d/5%"] {
            let error = Pattern::read(short).unwrap_err();
            assert!(error.contains("such as 10ms/5%"), "{short}: {error}");
        }
        assert!(Pattern::read("/dev/null").unwrap_err().contains("not a regular file"));
    }
}
