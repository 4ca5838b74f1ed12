//! Files of triggers: their times and numbers.
//!
//! A line holds a time since the start, in ns or with a unit (`12.5us`), and the number of the
//! trigger: its L1 id. `#` begins a comment. Times do not go back, and numbers go on by one; a file
//! without numbers counts from 0.

use std::path::Path;

use daqmeter_harness::text_file_up_to;
use daqmeter_record::units;

/// Longest file: more than ten million triggers.
pub const MAX_TRIGGERS_BYTES: u64 = 256 << 20;
/// Latest trigger: eleven days, far from overflow.
const MAX_NS: u64 = 1_000_000_000_000_000;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) times_ns: Vec<u64>,
    pub(crate) first: u64,
}

struct Line {
    ns: u64,
    number: Option<u64>,
}

impl Listed {
    /// Reads a file. The error names the file and the line.
    pub(crate) fn read(path: &str) -> Result<Listed, String> {
        let text = text_file_up_to(Path::new(path), MAX_TRIGGERS_BYTES)
            .map_err(|error| format!("{path}: {error}"))?;
        Listed::parse(&text).map_err(|(line, what)| match line {
            Some(line) => format!("{path}:{line}: {what}"),
            None => format!("{path}: {what}"),
        })
    }

    fn parse(text: &str) -> Result<Listed, (Option<usize>, String)> {
        let mut times_ns = Vec::new();
        let mut last: Option<Line> = None;
        let mut first = 0;
        for (at, text) in text.lines().enumerate() {
            let text = text.split('#').next().unwrap_or("").trim();
            if text.is_empty() {
                continue;
            }
            let wrong = |what: String| (Some(at + 1), what);
            let line = Line::parse(text).map_err(wrong)?;
            match &last {
                Some(before) => line.follows(before).map_err(wrong)?,
                None => first = line.number.unwrap_or(0),
            }
            times_ns.push(line.ns);
            last = Some(line);
        }
        if times_ns.is_empty() {
            return Err((None, "there are no triggers in it".to_owned()));
        }
        Ok(Listed { times_ns, first })
    }

    pub(crate) fn period_ns(&self) -> f64 {
        let last = self.times_ns.last().copied().unwrap_or(0).max(1);
        last as f64 / self.times_ns.len() as f64
    }
}

impl Line {
    fn parse(text: &str) -> Result<Line, String> {
        let mut words = text.split_whitespace();
        let (time, number) = (words.next().unwrap_or(""), words.next());
        if words.next().is_some() {
            return Err(format!("`{text}`: a time and a number are wanted, such as `12.5us 7`"));
        }
        Ok(Line { ns: time_ns(time)?, number: number.map(trigger_number).transpose()? })
    }

    fn follows(&self, before: &Line) -> Result<(), String> {
        if self.ns < before.ns {
            return Err(format!(
                "{} ns is earlier than the trigger before, which is at {} ns",
                self.ns, before.ns
            ));
        }
        match (before.number, self.number) {
            (None, None) => Ok(()),
            (Some(before), Some(number)) if number == before + 1 => Ok(()),
            (Some(before), Some(number)) if number > before => Err(format!(
                "trigger {number} follows {before}: {} are missing",
                number - before - 1
            )),
            (Some(before), Some(number)) => {
                Err(format!("trigger {number} follows {before}: numbers go on by one"))
            }
            (Some(_), None) => Err("no number, where the line before has one".to_owned()),
            (None, Some(_)) => Err("a number, where the line before has none".to_owned()),
        }
    }
}

fn time_ns(text: &str) -> Result<u64, String> {
    let whole = text.parse::<u64>().ok();
    let with_unit = || {
        let is_number = text.parse::<f64>().is_ok();
        let time = units::parse_duration(text).ok().filter(|_| !is_number)?;
        u64::try_from(time.as_nanos()).ok()
    };
    whole
        .or_else(with_unit)
        .filter(|ns| *ns <= MAX_NS)
        .ok_or_else(|| format!("`{text}` is not a time since the start: whole ns, or with a unit such as 12.5us, at most {MAX_NS} ns"))
}

/// The trigger system counts in 32 bits (L0ID).
fn trigger_number(text: &str) -> Result<u64, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse::<u32>().ok(),
    };
    number
        .map(u64::from)
        .ok_or_else(|| format!("`{text}` is not the number of a trigger: 0 to {}", u32::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_and_numbers_are_read_and_comments_left_out() {
        let text = "# written by a run\n1000 16 # first\n\n  2.5us\t0x11\n2500 18\n";
        let expected = Listed { times_ns: vec![1000, 2500, 2500], first: 16 };
        assert_eq!(Listed::parse(text), Ok(expected));
        assert_eq!(Listed::parse("5\n7\n").unwrap().first, 0);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let wrong = |text: &str| Listed::parse(text).unwrap_err();
        for (text, line, wanted) in [
            ("", None, "no triggers"),
            ("1 1\n2 3\n", Some(2), "trigger 3 follows 1: 1 are missing"),
            ("1 1\n\n2 1\n", Some(3), "trigger 1 follows 1: numbers go on"),
            ("1 5\n2 4\n", Some(2), "trigger 4 follows 5"),
            ("9\n8\n", Some(2), "8 ns is earlier than"),
            ("1 1\n2\n", Some(2), "no number, where"),
            ("1\n2 1\n", Some(2), "a number, where"),
            ("1 2 3\n", Some(1), "a time and a number"),
            ("x\n", Some(1), "`x` is not a time"),
            ("-1\n", Some(1), "`-1` is not a time"),
            ("1.5\n", Some(1), "`1.5` is not a time"),
            ("20d\n", Some(1), "`20d` is not a time"),
            ("1 y\n", Some(1), "`y` is not the number"),
            ("1 4294967296\n", Some(1), "is not the number"),
        ] {
            let (at, what) = wrong(text);
            assert!(at == line && what.contains(wanted), "{text}: {at:?} {what}");
        }
    }

    proptest! {
        #[test]
        fn any_triggers_are_read_as_they_were_written(gaps in prop::collection::vec(0..5000_u64, 1..60), first in any::<u32>()) {
            let mut ns = 0;
            let times_ns: Vec<u64> = gaps.iter().map(|gap| { ns += gap; ns }).collect();
            let first = u64::from(first).min(u64::from(u32::MAX) - 60);
            let lines: Vec<String> = times_ns.iter().zip(first..).map(|(ns, number)| format!("{ns} {number}")).collect();
            prop_assert_eq!(Listed::parse(&lines.join("\n")), Ok(Listed { times_ns, first }));
        }

        #[test]
        fn no_text_breaks_the_reader(text in "[0-9a-z#. \n\t-]{0,80}") {
            let _ = Listed::parse(&text);
        }
    }
}
