//! Calibrated arithmetic that an experiment adds to each block of a part of a path.

use daqmeter_record::units::whole;
use daqmeter_sys::probe::{CHAIN_CYCLES, probe, spend};

use crate::element::Work;

/// Probes of the calibration; the fastest counts, which nothing disturbed.
const PROBES: usize = 15;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Spin {
    cycles: f64,
}

impl Spin {
    /// Calibrates work of `ns` nanoseconds on this CPU at its present clock. It is counted in
    /// cycles and not in time: a preemption does not shorten it.
    pub(crate) fn of_ns(ns: f64) -> Spin {
        if ns <= 0.0 {
            return Spin::default();
        }
        let fastest_ns = (0..PROBES).map(|_| probe().chain_ns).min().unwrap_or(1).max(1);
        Spin { cycles: ns * CHAIN_CYCLES as f64 / fastest_ns as f64 }
    }

    #[inline]
    pub(crate) fn work(self) {
        self.work_times(1.0);
    }

    #[inline]
    pub(crate) fn work_times(self, times: f64) {
        spend(whole(self.cycles * times));
    }
}

/// Work of a step that takes a time for each block.
pub(crate) fn spinning(ns: f64) -> Work {
    let spin = Spin::of_ns(ns);
    Work::Inspect(Box::new(move |_| {
        spin.work();
        Ok(0)
    }))
}

#[cfg(test)]
mod tests {
    use daqmeter_sys::clock::monotonic_ns;

    use super::*;

    #[test]
    fn short_and_long_work_takes_the_time_that_was_asked_for_and_none_takes_none() {
        assert_eq!(Spin::of_ns(0.0), Spin::default());
        for ns in [2_000.0, 100_000.0] {
            let spin = Spin::of_ns(ns);
            let time = |_| {
                let begin = monotonic_ns();
                spin.work();
                monotonic_ns() - begin
            };
            let fastest = (0..500).map(time).min().unwrap() as f64;
            assert!((0.7..1.5).contains(&(fastest / ns)), "{ns}: {fastest}");
        }
    }
}
