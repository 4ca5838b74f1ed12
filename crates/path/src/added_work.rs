//! Calibrated arithmetic that an experiment adds to each block of a part of a path.

use std::hint::black_box;

use daqmeter_record::units::whole;
use daqmeter_sys::clock::monotonic_ns;

/// Rounds of the calibration; the fastest counts, which nothing disturbed.
const ROUNDS: usize = 15;
const STEPS: u64 = 200_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spin {
    steps: u64,
}

impl Spin {
    /// Calibrates work of `ns` nanoseconds on this CPU at its present speed. It is counted in steps
    /// and not in time: a preemption does not shorten it.
    pub(crate) fn of_ns(ns: f64) -> Spin {
        if ns <= 0.0 {
            return Spin::default();
        }
        let fastest_ns = (0..ROUNDS).map(|_| time_ns(STEPS)).min().unwrap_or(1).max(1);
        let steps = ns * STEPS as f64 / fastest_ns as f64;
        Spin { steps: whole(steps) }
    }

    #[inline]
    pub(crate) fn work(self) {
        steps(self.steps);
    }

    pub(crate) fn work_times(self, times: f64) {
        steps(whole(self.steps as f64 * times));
    }
}

pub(crate) fn steps(count: u64) {
    let mut x = 1_u64;
    for _ in 0..count {
        x = black_box(x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1));
    }
    black_box(x);
}

fn time_ns(count: u64) -> u64 {
    let before = monotonic_ns();
    steps(count);
    monotonic_ns() - before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twice_the_time_is_twice_the_work_and_none_is_none() {
        assert_eq!(Spin::of_ns(0.0), Spin::default());
        let (one, two) = (Spin::of_ns(1e6).steps, Spin::of_ns(8e6).steps);
        assert!(one > 0 && two > 2 * one, "{one} {two}");
    }
}
