//! BUSY from outside: `PERIOD/SHARE%`, another detector that holds the trigger for the last part of
//! each period.

use daqmeter_record::units;

/// Periods: the card is carried from edge to edge, and eleven days are far from overflow.
const PERIOD_NS: std::ops::RangeInclusive<u64> = 1_000..=1_000_000_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pattern {
    period_ns: u64,
    off_ns: u64,
    done: u64,
}

impl Pattern {
    pub(crate) fn parse(text: &str) -> Result<Pattern, String> {
        Pattern::of(text).ok_or_else(|| {
            format!(
                "`{text}` is not a period of 1us or more and the share of it with BUSY, above 0 and below 100 %, such as 10ms/5%"
            )
        })
    }

    fn of(text: &str) -> Option<Pattern> {
        let (period, percent) = text.strip_suffix('%')?.split_once('/')?;
        let period_ns = u64::try_from(units::parse_duration(period).ok()?.as_nanos()).ok()?;
        let share = percent.trim().parse::<f64>().ok()? / 100.0;
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a part of a period"
        )]
        let on_ns = (period_ns as f64 * share).round() as u64;
        let is_pattern = PERIOD_NS.contains(&period_ns)
            && share > 0.0
            && share < 1.0
            && (1..period_ns).contains(&on_ns);
        is_pattern.then(|| Pattern { period_ns, off_ns: period_ns - on_ns, done: 0 })
    }

    /// Next edge up to a time, once: its time, and the state of BUSY from there.
    pub(crate) fn next_edge(&mut self, now_ns: u64) -> Option<(u64, bool)> {
        let is_on = self.done.is_multiple_of(2);
        let in_period_ns = if is_on { self.off_ns } else { self.period_ns };
        let at_ns = self.done / 2 * self.period_ns + in_period_ns;
        (at_ns <= now_ns).then(|| {
            self.done += 1;
            (at_ns, is_on)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_is_busy_in_its_last_part() {
        let mut pattern = Pattern::parse("10us/25%").unwrap();
        let mut edges = |until_ns: u64| -> Vec<(u64, bool)> {
            std::iter::from_fn(|| pattern.next_edge(until_ns)).collect()
        };
        assert_eq!(edges(19_999), [(7_500, true), (10_000, false), (17_500, true)]);
        assert_eq!(edges(20_000), [(20_000, false)]);
        let wrong =
            ["10ms/0%", "10ms/100%", "1ns/50%", "10ms%", "x/5%", "10ms/NaN%", "20d/5%", "file"];
        for text in wrong {
            let error = Pattern::parse(text).unwrap_err();
            assert!(error.contains("such as 10ms/5%"), "{text}: {error}");
        }
    }
}
