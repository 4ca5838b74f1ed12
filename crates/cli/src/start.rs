//! `--at`: a start at a time that many hosts share.

use std::time::{Duration, Instant};

use daqmeter_harness::StopFlag;
use daqmeter_harness::facts::{after_1970_of, since_1970, utc_after_1970};
use daqmeter_record::Start;
use daqmeter_sys::clock;

use crate::arguments::duration;
use crate::output::{Failure, tell};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Reads the time of a start, as the time after the begin of 1970.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    parsed(text, since_1970())
}

fn parsed(text: &str, now: Duration) -> Result<Duration, String> {
    let at = match text.strip_prefix('+') {
        Some(wait) => now.saturating_add(duration(wait)?),
        None => after_1970_of(text).or_else(|| of_day(text, now)).ok_or_else(|| {
            format!("`{text}` is no time such as 14:30 (UTC), +20s or 2026-11-30T14:30:00Z")
        })?,
    };
    let ago = now.saturating_sub(at);
    match at.saturating_sub(now) {
        _ if !ago.is_zero() => {
            let (at, ago_s) = (utc_after_1970(at), ago.as_secs_f64());
            Err(format!("{at} was {ago_s:.1} s ago: name a later time"))
        }
        wait if wait > DAY => Err("more than 24 h ahead: name an earlier time".to_owned()),
        _ => Ok(at),
    }
}

/// Returns the nearest time of that hour of the day, so that a host that is late does not wait for
/// the next day.
fn of_day(text: &str, now: Duration) -> Option<Duration> {
    let seconds = if text.len() == "14:30".len() { ":00" } else { "" };
    let of_day = after_1970_of(&format!("1970-01-01T{text}{seconds}Z"))?;
    let today = Duration::from_secs(now.as_secs() / DAY.as_secs() * DAY.as_secs()) + of_day;
    let days = [today.saturating_sub(DAY), today, today + DAY];
    days.into_iter().min_by_key(|at| at.abs_diff(now))
}

/// Waits until a time after the begin of 1970, and tells what came.
///
/// # Errors
/// A signal came before.
pub(crate) fn wait_until(at: Duration, stop: &StopFlag, is_quiet: bool) -> Result<Start, Failure> {
    // The clock may be set meanwhile.
    const LOOK: Duration = Duration::from_millis(100);
    let (asked_utc, began) = (utc_after_1970(at), Instant::now());
    if !is_quiet {
        tell(&format!("daqmeter: starts at {asked_utc}"));
    }
    let left = || at.saturating_sub(since_1970());
    while !left().is_zero() && began.elapsed() < DAY {
        if stop.is_set() {
            return Err(Failure::refused("interrupted before the start: nothing was measured"));
        }
        std::thread::sleep(left().min(LOOK));
    }
    let late_ns = since_1970().saturating_sub(at).as_nanos();
    let clock = clock::synchronisation();
    Ok(Start {
        asked_utc,
        late_ns: u64::try_from(late_ns).unwrap_or(u64::MAX),
        clock_error_ns: clock.map(|clock| clock.max_error_ns),
        is_synchronised: clock.is_some_and(|clock| clock.is_synchronised),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-30T23:50:00Z.
    fn now() -> Duration {
        after_1970_of("2026-11-30T23:50:00Z").unwrap()
    }

    #[test]
    fn a_start_is_a_time_of_the_day_a_whole_time_or_a_wait() {
        for (text, expected) in [
            ("23:50", "2026-11-30T23:50:00.000Z"),
            ("23:50:05", "2026-11-30T23:50:05.000Z"),
            ("00:05", "2026-12-01T00:05:00.000Z"),
            ("11:45", "2026-12-01T11:45:00.000Z"),
            ("+20s", "2026-11-30T23:50:20.000Z"),
            ("+1m30", "2026-11-30T23:51:30.000Z"),
            ("2026-12-01T14:30:00Z", "2026-12-01T14:30:00.000Z"),
        ] {
            assert_eq!(parsed(text, now()).map(utc_after_1970).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn a_start_that_has_passed_is_far_or_is_no_time_is_refused() {
        for (text, says) in [
            ("23:49:48", "2026-11-30T23:49:48.000Z was 12.0 s ago"),
            ("11:55", "2026-11-30T11:55:00.000Z was 42900.0 s ago"),
            ("2026-11-30T23:49:59.500Z", "was 0.5 s ago"),
            ("2026-12-02T00:00:00Z", "more than 24 h ahead"),
            ("+25h", "more than 24 h ahead"),
            ("+584542046090y", "a time such as 60"),
            ("+1844674407370955161s", "more than 24 h ahead"),
            ("24:00", "is no time such as 14:30 (UTC)"),
            ("2026-12-01T14:30:00+02:00", "is no time such as"),
            ("1:30", "is no time such as"),
            ("soon", "is no time such as"),
            ("", "is no time such as"),
        ] {
            let refused = parsed(text, now()).unwrap_err();
            assert!(refused.contains(says), "{text}: {refused}");
        }
    }

    #[test]
    fn a_start_says_how_late_it_was_and_a_signal_ends_the_wait() {
        let stop = StopFlag::default();
        let at = since_1970() + Duration::from_millis(2);
        let start = wait_until(at, &stop, true).unwrap();
        assert_eq!(start.asked_utc, utc_after_1970(at));
        assert!(since_1970() >= at + Duration::from_nanos(start.late_ns));
        stop.set();
        assert!(wait_until(at + DAY, &stop, true).is_err());
    }
}
