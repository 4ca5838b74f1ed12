//! Axes of time: round dates in UTC, as many as have room.

use std::time::{Duration, UNIX_EPOCH};

/// Seconds since 1970 of an RFC 3339 time; none for what is no time.
pub(crate) fn seconds(time_utc: &str) -> Option<f64> {
    let time = humantime::parse_rfc3339(time_utc).ok()?;
    Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs_f64())
}

/// A time as RFC 3339 has it.
fn text(seconds: f64) -> String {
    // The latest time that can be written.
    const LAST_S: f64 = 253_402_300_799.0;
    let since = Duration::from_secs_f64(seconds.clamp(0.0, LAST_S));
    humantime::format_rfc3339_seconds(UNIX_EPOCH + since).to_string()
}

/// A time to the minute.
pub(crate) fn minute(seconds: f64) -> String {
    text(seconds)[..16].replace('T', " ")
}

/// A step from one tick to the next.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    /// Of a fixed length.
    Seconds(u64),
    /// Of calendar months.
    Months(u64),
}

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// Every step that is round to a reader of clocks and calendars.
const STEPS: [Step; 25] = [
    Step::Seconds(1),
    Step::Seconds(5),
    Step::Seconds(15),
    Step::Seconds(MINUTE),
    Step::Seconds(5 * MINUTE),
    Step::Seconds(15 * MINUTE),
    Step::Seconds(30 * MINUTE),
    Step::Seconds(HOUR),
    Step::Seconds(3 * HOUR),
    Step::Seconds(6 * HOUR),
    Step::Seconds(12 * HOUR),
    Step::Seconds(DAY),
    Step::Seconds(2 * DAY),
    Step::Seconds(4 * DAY),
    Step::Seconds(7 * DAY),
    Step::Seconds(14 * DAY),
    Step::Months(1),
    Step::Months(3),
    Step::Months(6),
    Step::Months(12),
    Step::Months(24),
    Step::Months(60),
    Step::Months(120),
    Step::Months(240),
    Step::Months(1200),
];

/// 1970-01-05, the first Monday: weeks begin there, and days, hours and minutes do, too.
const MONDAY_S: u64 = 4 * DAY;

/// A date on an axis.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tick {
    /// Seconds since 1970.
    pub(crate) at_s: f64,
    /// As short as the step allows: a time of day, a day, a month, a year.
    pub(crate) label: String,
}

/// Round dates within these bounds, at most so many: the smallest step that has room. Their labels have 10 characters at most.
pub(crate) fn ticks(from_s: f64, to_s: f64, most: usize) -> Vec<Tick> {
    let fits = |step: &Step| {
        let length_s = match step {
            Step::Seconds(seconds) => *seconds as f64,
            // The shortest months in a row have 28 days.
            Step::Months(months) => *months as f64 * 28.0 * DAY as f64,
        };
        ((to_s - from_s) / length_s).floor() + 1.0 <= most as f64
    };
    let step = *STEPS.iter().find(|step| fits(step)).unwrap_or(&STEPS[STEPS.len() - 1]);
    let places: Vec<f64> = match step {
        Step::Seconds(seconds) => multiples(from_s, to_s, seconds),
        Step::Months(months) => firsts(from_s, to_s, months),
    };
    let tick = |at_s: f64| Tick { at_s, label: label(at_s, step) };
    places.into_iter().take(most).map(tick).collect()
}

fn multiples(from_s: f64, to_s: f64, step: u64) -> Vec<f64> {
    let offset = (MONDAY_S % step) as f64;
    let step = step as f64;
    let first = ((from_s - offset) / step).ceil();
    let at = |nth: u64| offset + (first + nth as f64) * step;
    (0..).map(at).take_while(|at| *at <= to_s).collect()
}

/// First days of months.
fn firsts(from_s: f64, to_s: f64, step: u64) -> Vec<f64> {
    let from = text(from_s);
    let number = |range: std::ops::Range<usize>| from[range].parse().unwrap_or(0);
    let month: u64 = number(0..4) * 12 + number(5..7) - 1;
    let at = |nth: u64| {
        let month = (month.div_ceil(step) + nth) * step;
        seconds(&format!("{:04}-{:02}-01T00:00:00Z", month / 12, month % 12 + 1))
    };
    let all = (0..).map_while(at).take_while(|at| *at <= to_s);
    all.filter(|at| *at >= from_s).collect()
}

fn label(at_s: f64, step: Step) -> String {
    let text = text(at_s);
    let is_midnight = text.ends_with("T00:00:00Z");
    let range = match step {
        Step::Months(months) if months % 12 == 0 => 0..4,
        Step::Months(_) => 0..7,
        // Where a day begins, the day; it says where the times around it are.
        Step::Seconds(_) if is_midnight => 0..10,
        Step::Seconds(step) if step < MINUTE => 11..19,
        Step::Seconds(_) => 11..16,
    };
    text[range].to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn labels(from: &str, to: &str, most: usize) -> Vec<String> {
        let second = |text: &str| seconds(text).unwrap();
        let ticks = ticks(second(from), second(to), most);
        ticks.into_iter().map(|tick| tick.label).collect()
    }

    #[test]
    fn dates_are_round_and_as_short_as_their_step_allows() {
        let check = |from, to, most, wanted: &[&str]| {
            assert_eq!(labels(from, to, most), wanted, "{from} to {to}");
        };
        let (first, last) = ("2026-11-01T03:00:00Z", "2026-11-12T03:00:00Z");
        check(first, last, 5, &["2026-11-03", "2026-11-07", "2026-11-11"]);
        let (first, last) = ("2026-11-01T22:10:00Z", "2026-11-02T03:00:00Z");
        check(first, last, 6, &["23:00", "2026-11-02", "01:00", "02:00", "03:00"]);
        let (first, last) = ("2025-11-20T00:00:00Z", "2026-04-02T00:00:00Z");
        check(first, last, 4, &["2026-01", "2026-04"]);
        let (first, last) = ("1999-05-01T00:00:00Z", "2026-04-02T00:00:00Z");
        check(first, last, 7, &["2000", "2005", "2010", "2015", "2020", "2025"]);
        let (first, last) = ("2026-11-01T22:10:03Z", "2026-11-01T22:10:09Z");
        check(first, last, 3, &["22:10:05"]);
    }

    #[test]
    fn what_is_no_time_has_no_place() {
        assert_eq!(seconds("yesterday"), None);
        assert_eq!(seconds("1970-01-02T00:00:00.500Z"), Some(86_400.5));
    }

    proptest! {
        #[test]
        fn ticks_lie_within_the_axis_in_order_and_have_room(
            from in 0.0..4e9_f64, length in 0.0..4e9_f64, most in 2_usize..12
        ) {
            let found = ticks(from, from + length, most);
            prop_assert!(found.len() <= most);
            prop_assert!(found.iter().all(|tick| tick.at_s >= from && tick.at_s <= from + length));
            prop_assert!(found.windows(2).all(|pair| pair[0].at_s < pair[1].at_s));
            prop_assert!(found.iter().all(|tick| tick.label.len() <= 10));
        }
    }
}
