//! Timestamps of 64 bits out of two 32-bit reads that nothing latches, and the windows of the study
//! of 2018 by these stamps.

use daqmeter_record::Counter;

/// Combines the words of timestamps and keeps the times in order. The high word is read before the
/// low word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unroller {
    pub(crate) last_ns: Option<u64>,
    pub(crate) rollovers: u64,
}

const ROLLOVER_NS: u64 = 1 << 32;

impl Unroller {
    pub(crate) fn time_ns(&mut self, high: u64, low: u64) -> u64 {
        let raw_ns = high << 32 | low;
        let time_ns = match self.last_ns {
            Some(last_ns) if raw_ns < last_ns && last_ns - raw_ns > ROLLOVER_NS / 2 => {
                self.rollovers += 1;
                raw_ns.saturating_add(ROLLOVER_NS)
            }
            _ => raw_ns,
        };
        self.last_ns = Some(time_ns);
        time_ns
    }
}

/// Share by which the clocks of host and slave may differ: NTP changes the rate of
/// `CLOCK_MONOTONIC` by at most 500 ppm (`MAXFREQ`, include/linux/timex.h), and oscillators are
/// within 100 ppm.
const CLOCK_RATE: f64 = 1e-3;

/// Returns the difference of what a slave counted from what the host did between a read within two
/// of its times and another within two more.
pub(crate) fn unlike_the_host(
    slave_ns: u64,
    started_ns: (u64, u64),
    ended_ns: (u64, u64),
) -> Option<String> {
    let least_ns = ended_ns.0.saturating_sub(started_ns.1);
    let most_ns = ended_ns.1.saturating_sub(started_ns.0);
    let (least, most) = (least_ns as f64 * (1.0 - CLOCK_RATE), most_ns as f64 * (1.0 + CLOCK_RATE));
    (!(least..=most).contains(&(slave_ns as f64)))
        .then(|| format!("it counted {slave_ns} ns where the host counted {least_ns} to {most_ns}"))
}

/// Samples that were kept, one after the other, and the single timestamp before them. A lost cycle
/// ends a run.
#[derive(Clone, Copy, Debug)]
struct Run {
    start_ns: u64,
    first_ns: Option<u64>,
    last_ns: u64,
    /// Host's times before and after the single timestamp, and of the sample with the last one.
    started_ns: (u64, u64),
    ended_ns: (u64, u64),
}

/// Windows by the slave's clock: sums over the runs.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    pub(crate) unroller: Unroller,
    run: Option<Run>,
    /// First and last stamp of the sample that is measured.
    sample: Option<(u64, u64)>,
    realistic_ns: u64,
    underestimated_ns: u64,
    /// Sum of the gaps between the stamps of each cycle, and the number of gaps.
    gaps_ns: u64,
    gaps: u64,
    /// Why the windows are not used.
    pub(crate) fault: Option<String>,
}

impl Windows {
    /// Begins a run with a single timestamp, read between two times of the host.
    pub(crate) fn begin(&mut self, start_ns: u64, started_ns: (u64, u64)) {
        let (last_ns, ended_ns) = (start_ns, started_ns);
        self.run = Some(Run { start_ns, first_ns: None, last_ns, started_ns, ended_ns });
    }

    /// Takes the words of a cycle, whose stamps must go forward.
    pub(crate) fn cycle(&mut self, words: &[u64]) {
        let mut cycle: Option<(u64, u64)> = None;
        for pair in words.chunks_exact(2) {
            let ns = self.unroller.time_ns(pair[0], pair[1]);
            if let Some((_, before_ns)) = cycle {
                self.check_forward(before_ns, ns);
                self.gaps_ns += ns.saturating_sub(before_ns);
                self.gaps += 1;
            }
            cycle = Some((cycle.map_or(ns, |(first_ns, _)| first_ns), ns));
        }
        // Answers of one sample may overtake each other.
        let all = self.sample.zip(cycle).map(|(a, b)| (a.0.min(b.0), a.1.max(b.1)));
        self.sample = all.or(cycle);
    }

    fn check_forward(&mut self, before_ns: u64, ns: u64) {
        if ns <= before_ns {
            let why = || format!("it went from {before_ns} to {ns} ns between two stamps");
            self.fault.get_or_insert_with(why);
        }
    }

    /// Adds the sample between two times of the host to the run.
    pub(crate) fn keep(&mut self, ended_ns: (u64, u64)) {
        let (Some(run), Some((first_ns, last_ns))) = (&mut self.run, self.sample.take()) else {
            return;
        };
        let before_ns = std::mem::replace(&mut run.last_ns, last_ns);
        run.first_ns.get_or_insert(first_ns);
        run.ended_ns = ended_ns;
        self.check_forward(before_ns, first_ns);
    }

    /// Ends a run. Its time by the slave lies between two times of the host: from the return of the
    /// single timestamp to the begin of the last sample, and from before the one to the end of the
    /// other.
    pub(crate) fn end(&mut self) {
        self.sample = None;
        let Some(run) = self.run.take() else { return };
        let Some(first_ns) = run.first_ns else { return };
        let window_ns = run.last_ns.saturating_sub(run.start_ns);
        let why = unlike_the_host(window_ns, run.started_ns, run.ended_ns);
        self.fault = self.fault.take().or(why);
        self.realistic_ns += window_ns;
        self.underestimated_ns += run.last_ns.saturating_sub(first_ns);
    }

    /// Returns the windows, unless the slave's clock is at fault.
    pub(crate) fn counters(&self) -> Vec<Counter> {
        if self.realistic_ns == 0 || self.fault.is_some() {
            return Vec::new();
        }
        let measured = |name, ns| Counter::measured(name, ns, "ns");
        let gap_ns = self.gaps_ns as f64 / self.gaps as f64;
        let gap = (self.gaps > 0).then(|| measured("eca-in-cycle-gap", gap_ns));
        let windows = [
            measured("eca-window-realistic", self.realistic_ns as f64),
            measured("eca-window-underestimated", self.underestimated_ns as f64),
            Counter::count("eca-rollovers-mended", self.unroller.rollovers),
        ];
        windows.into_iter().chain(gap).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_rollover_between_the_reads_is_mended() {
        let mut unroller = Unroller::default();
        assert_eq!(unroller.time_ns(5, 0xFFFF_FF00), 0x5_FFFF_FF00);
        assert_eq!(unroller.time_ns(5, 0x10), 0x6_0000_0010);
        assert_eq!(unroller.time_ns(6, 0x20), 0x6_0000_0020);
        assert_eq!(unroller.rollovers, 1);
    }

    /// Measures three cycles by a slave's clock. The host's times are in us: a single timestamp
    /// from 0 to 10, and the cycles from 10 to 20, 20 to 30, and 30 to 40. A lost one may come
    /// before the last, with a deadline of a second.
    fn windows(stamps_us: [u64; 4], loses: bool) -> Result<Vec<f64>, String> {
        let ([start, cycles @ ..], mut windows) = (stamps_us, Windows::default());
        windows.begin(start * 1000, (0, 10_000));
        for (at, us) in (1..).zip(cycles) {
            let mut begin_ns = at * 10_000;
            if loses && at == 3 {
                windows.end();
                begin_ns += 1_000_000_000;
                windows.begin((us - 10) * 1000, (begin_ns - 10_000, begin_ns));
            }
            windows.cycle(&[(us * 1000) >> 32, (us * 1000) & 0xFFFF_FFFF]);
            windows.keep((begin_ns, begin_ns + 10_000));
        }
        windows.end();
        let values = windows.counters().iter().take(2).map(|counter| counter.value).collect();
        windows.fault.map_or(Ok(values), Err)
    }

    /// Regression: a clock that stands or jumps gave windows of 0 or of 37 s, and a lost cycle its
    /// deadline.
    #[test]
    fn windows_are_those_of_delivered_cycles_by_a_clock_that_goes_as_the_host_s() {
        assert_eq!(windows([5, 15, 25, 35], false), Ok(vec![30_000.0, 20_000.0]));
        assert_eq!(windows([5, 15, 25, 1_000_035], true), Ok(vec![30_000.0, 10_000.0]));
        for (stamps_us, why) in [
            ([5, 5, 5, 5], "it went from 5000 to 5000 ns"),
            ([9_000_005, 9_000_015, 8_000_025, 8_000_035], "it went from 9000015000 to 8000025000"),
            ([5, 15, 37_000_025, 37_000_035], "it counted 37000030000 ns where the host counted"),
            ([5, 6, 7, 8], "it counted 3000 ns where the host counted 20000 to 40000"),
        ] {
            let fault = windows(stamps_us, false).unwrap_err();
            assert!(fault.contains(why), "{fault}");
        }
    }

    proptest! {
        #[test]
        fn times_read_in_two_words_come_out_right(start_ns in 0..u64::MAX / 2, steps in prop::collection::vec((1..1_000_000_u64, 1..10_000_u64), 1..200)) {
            let mut unroller = Unroller::default();
            let mut now_ns = start_ns;
            unroller.time_ns(now_ns >> 32, now_ns & 0xFFFF_FFFF);
            for (gap_ns, access_ns) in steps {
                now_ns += gap_ns;
                let high = now_ns >> 32;
                now_ns += access_ns;
                prop_assert_eq!(unroller.time_ns(high, now_ns & 0xFFFF_FFFF), now_ns);
            }
        }
    }
}
