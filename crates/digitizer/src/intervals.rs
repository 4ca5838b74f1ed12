//! Triggers inferred from the times at which acquisitions ended, for boards that count none.

use std::time::Duration;

use daqmeter_record::units::{significant, whole};

/// Periods between the ends of acquisitions, and how well the ends fit the given rate.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Intervals {
    pub(crate) period: Duration,
    /// Time of the first end.
    pub(crate) first_ns: Option<u64>,
    /// Time of the last end that is known well enough to count periods from it.
    anchor_ns: u64,
    /// Acquisitions since then.
    pub(crate) since: u64,
    /// Acquisitions and periods from the first to that end.
    acquisitions: u64,
    periods: u64,
    /// Ends that are more than a quarter from a whole number of periods, or came too early.
    misfits: u64,
    /// Periods of an acquisition; `None` if they differ.
    multiple: Option<u64>,
}

/// Ends of which one may be a misfit. Beside compilers on both CPUs the inferred triggers of
/// emulated sources of 14 Hz to 15 kHz were within 1 % of the issued ones, and within 2.4 % by
/// polling at 10 kHz, where this accepted them.
const ENDS_A_MISFIT: u64 = 10;

impl Intervals {
    pub(crate) fn new(period: Duration) -> Intervals {
        Intervals { period, ..Intervals::default() }
    }

    /// Counts an acquisition that ended at `now_ns`, or up to `unsure_ns` before it. With
    /// `unsure_ns` above a quarter of a period it counts only at the next better-known end. Returns
    /// the number of its trigger after the first one's, if it is known.
    pub(crate) fn ended(&mut self, now_ns: u64, unsure_ns: u64) -> Option<u64> {
        self.since += 1;
        let period_ns = self.period.as_nanos() as f64;
        if unsure_ns as f64 > period_ns / 4.0 {
            return None;
        }
        if self.first_ns.is_none() {
            (self.first_ns, self.anchor_ns, self.since) = (Some(now_ns), now_ns, 0);
            return Some(0);
        }
        let passed = now_ns.saturating_sub(self.anchor_ns) as f64 / period_ns;
        let is_early = passed < self.since as f64 - 0.25;
        let is_misfit = is_early || (passed - passed.round()).abs() > 0.25;
        self.misfits += u64::from(is_misfit);
        // A thread wakes up late and never early: this end is late, or else the anchor was.
        if is_misfit && !is_early {
            return None;
        }
        let (since, periods) = (self.since, whole(passed.round()).max(self.since));
        let multiple = periods.is_multiple_of(since).then_some(periods / since);
        self.multiple = multiple.filter(|_| self.periods == 0 || self.multiple == multiple);
        (self.anchor_ns, self.since) = (now_ns, 0);
        self.acquisitions += since;
        self.periods += periods;
        (since == 1).then_some(self.periods)
    }

    /// Returns the missed triggers between the first and the last end.
    ///
    /// # Errors
    /// The reason for which they are unknown.
    pub(crate) fn missed(&self) -> Result<u64, String> {
        let hz = |periods: f64| significant(1.0 / self.period.as_secs_f64() / periods, 4);
        let all = self.acquisitions + self.since;
        match self.multiple {
            _ if self.periods == 0 || (self.misfits + self.since) * ENDS_A_MISFIT > all => {
                Err(format!(
                    "the ends of acquisitions do not fit a source of {} Hz to a quarter of a period: give its rate with --rate",
                    hz(1.0)
                ))
            }
            Some(multiple @ 2..) => Err(format!(
                "all intervals are {multiple} periods of {} Hz: the source has {} Hz, or the board takes one trigger of {multiple}",
                hz(1.0),
                hz(multiple as f64)
            )),
            _ => Ok(self.periods - self.acquisitions),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what is inferred from ends in milliseconds, each with its uncertainty towards
    /// earlier times. The period is 100 ms.
    fn missed(ends: &[(u64, u64)]) -> Result<u64, String> {
        let mut intervals = Intervals::new(Duration::from_millis(100));
        for &(at_ms, unsure_ms) in ends {
            intervals.ended(at_ms * 1_000_000, unsure_ms * 1_000_000);
        }
        intervals.missed()
    }

    /// Regression: each lost interrupt counted as a missed trigger, because its end was found one
    /// and a half periods later.
    #[test]
    fn an_end_that_was_found_late_is_no_missed_trigger() {
        let late: Vec<(u64, u64)> = (1..20).map(|at| (at * 100 + 40 / at, 0)).collect();
        for (ends, wanted) in [
            (&[(100, 0), (250, 150), (300, 0), (400, 0)][..], 0),
            (&[(150, 150), (201, 1), (301, 1), (401, 1)], 0),
            (&[(100, 0), (200, 0), (500, 0)], 2),
            (&[(100, 0), (350, 150), (500, 0), (600, 0)], 2),
            // The first thread woke up late.
            (&late[..], 0),
        ] {
            assert_eq!(missed(ends), Ok(wanted), "{ends:?}");
        }
    }

    /// A rate of twice or half the source's gave 13 or 0 missed triggers, and wake-ups that take
    /// longer than a period gave any number.
    #[test]
    fn a_rate_or_ends_that_do_not_fit_give_no_number() {
        let every = |ms: u64| (1..30).map(|at| (at * ms, 0)).collect::<Vec<_>>();
        let woken = (1..60_u64).map(|at| (at * 400 + at * at * 37 % 100, 0)).collect::<Vec<_>>();
        for (ends, says) in [
            (every(200), "all intervals are 2 periods of 10 Hz: the source has 5 Hz"),
            (every(50), "do not fit a source of 10 Hz"),
            (every(143), "to a quarter of a period"),
            (woken, "to a quarter of a period"),
            (vec![(100, 0), (200, 150), (300, 150)], "to a quarter of a period"),
            (vec![(100, 0)], "to a quarter of a period"),
        ] {
            let said = missed(&ends).unwrap_err();
            assert!(said.contains(says), "{ends:?}: {said}");
        }
    }
}
