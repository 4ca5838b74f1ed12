//! Times of a file: of triggers, as of bunch trains and bursts, or of BUSY from outside.

use daqmeter_harness::{Loaded, Shipped, TomlText};
use daqmeter_record::border::MAX_WHOLE;
use daqmeter_record::units::parse_duration;

/// Ascending times, one or more a line, with a unit or in ns. A last line `every TIME` repeats
/// them. Text behind `#` is a comment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pattern {
    times_ns: Vec<u64>,
    every_ns: Option<u64>,
}

impl Loaded for Pattern {
    const SHIPPED: Shipped =
        Shipped { kind: "times", files: &[("trains", include_str!("../patterns/trains.txt"))] };
    const HAS_TABLES: bool = false;

    fn read(file: &TomlText) -> Result<Pattern, String> {
        let mut pattern = Pattern::default();
        for (line, text) in (1..).zip(file.text.lines()) {
            let wrong = |what: &str| format!("{}:{line}: {what}", file.name);
            let mut words = text.split('#').next().unwrap_or_default().split_whitespace();
            while let Some(word) = words.next() {
                let is_period = word == "every";
                let word = if is_period { words.next().unwrap_or_default() } else { word };
                let ns = time_ns(word).ok_or_else(|| {
                    wrong(&format!("`{word}` is not a time such as 250 (ns), 1.5us or 2s"))
                })?;
                let last_ns = pattern.times_ns.last().copied();
                if pattern.every_ns.is_some() || last_ns.is_some_and(|last_ns| ns <= last_ns) {
                    return Err(wrong("times are in ascending order, `every` is the last one"));
                }
                match is_period {
                    true => pattern.every_ns = Some(ns),
                    false => pattern.times_ns.push(ns),
                }
            }
        }
        match (pattern.times_ns.last(), pattern.every_ns) {
            (Some(1..), _) | (Some(_), Some(_)) => Ok(pattern),
            _ => Err(format!("{}: no time above 0 is in this file", file.name)),
        }
    }
}

fn time_ns(word: &str) -> Option<u64> {
    let with_unit = || Some(parse_duration(word).ok()?.as_nanos());
    let plain = word.parse::<u64>().ok().map(u128::from);
    let ns = plain.or_else(with_unit)?;
    u64::try_from(ns).ok().filter(|ns| *ns <= MAX_WHOLE)
}

impl Pattern {
    /// Time with this number, from 0. `None` behind the end.
    pub(crate) fn at(&self, number: u64) -> Option<u64> {
        let count = self.times_ns.len() as u64;
        let own_ns = self.times_ns.get(usize::try_from(number % count).ok()?)?;
        match (number / count, self.every_ns) {
            (0, _) => Some(*own_ns),
            (turn, every_ns) => every_ns?.checked_mul(turn)?.checked_add(*own_ns),
        }
    }

    /// Number of times in all.
    pub(crate) fn count(&self) -> u64 {
        self.every_ns.map_or(self.times_ns.len() as u64, |_| u64::MAX)
    }

    /// Tests if it is a list of intervals: begins and ends.
    pub(crate) fn is_of_intervals(&self) -> bool {
        self.times_ns.len().is_multiple_of(2)
    }

    /// Mean rate.
    pub(crate) fn rate_hz(&self) -> f64 {
        let ns = self.every_ns.or(self.times_ns.last().copied()).unwrap_or_default();
        self.times_ns.len() as f64 / ns.max(1) as f64 * 1e9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Pattern, String> {
        Pattern::read(&TomlText::new("f", text))
    }

    #[test]
    fn times_have_units_and_a_period() {
        let once = read("# two\n250\n1.5us # later\n").unwrap();
        assert_eq!([0, 1, 2].map(|at| once.at(at)), [Some(250), Some(1500), None]);
        let turns = read("0 100\nevery 1us\n").unwrap();
        assert_eq!([1, 2, 7].map(|at| turns.at(at)), [Some(100), Some(1000), Some(3100)]);
        assert!((turns.rate_hz() - 2e6).abs() < 1e-6);
    }

    #[test]
    fn what_is_no_list_of_times_is_refused_by_its_line() {
        for (text, wanted) in [
            ("1us\nus\n", "f:2: `us` is not a time"),
            ("2us\n1us\n", "f:2: times are in ascending order"),
            ("1us\nevery 1us\n", "f:2: times are in ascending order"),
            ("every 1us\n2us\n", "f:2: times are in ascending order"),
            ("every\n", "f:1: `` is not a time"),
            ("# nothing\n0\n", "f: no time above 0"),
            ("9e99s\n", "f:1: `9e99s`"),
        ] {
            let found = read(text).unwrap_err();
            assert!(found.starts_with(wanted), "{text}: {found}");
        }
    }
}
