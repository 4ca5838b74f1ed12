//! The monotonic clock and the cost of reading it.

use std::time::Instant;

/// Returns nanoseconds of `CLOCK_MONOTONIC`. The vDSO takes a few tens of nanoseconds without
/// entering the kernel.
#[inline]
pub fn monotonic_ns() -> u64 {
    read_ns(libc::CLOCK_MONOTONIC)
}

/// Returns nanoseconds of `CLOCK_BOOTTIME`, which also counts while the host is suspended.
pub fn boot_ns() -> u64 {
    read_ns(libc::CLOCK_BOOTTIME)
}

#[inline]
fn read_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec; our clocks exist on every Linux since 2.6.39.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    // No clock is negative.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// CPU time of the calling thread in nanoseconds. Excludes stolen time if the guest's kernel knows
/// of it (CONFIG_PARAVIRT_TIME_ACCOUNTING).
pub fn thread_cpu_ns() -> u64 {
    read_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// State of the wall clock as the kernel knows it (adjtimex(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Synchronisation {
    /// Largest error by the kernel's own estimate.
    pub max_error_ns: u64,
    /// True if a program such as chrony keeps the clock at another one.
    pub is_synchronised: bool,
}

/// Reads the state of the wall clock; `None` where the call is forbidden.
pub fn synchronisation() -> Option<Synchronisation> {
    // SAFETY: a timex is plain numbers. With `modes` 0 the call reads the clock and fills it.
    let (state, time) = unsafe {
        let mut time: libc::timex = std::mem::zeroed();
        (libc::adjtimex(&raw mut time), time)
    };
    let max_error_us = u64::try_from(time.maxerror).ok().filter(|_| state >= 0)?;
    let is_synchronised = state != libc::TIME_ERROR && time.status & libc::STA_UNSYNC == 0;
    Some(Synchronisation { max_error_ns: max_error_us.saturating_mul(1000), is_synchronised })
}

/// Measures the clock in about a millisecond. Returns its resolution, which is the smallest
/// difference between two different readings, and the median cost of a reading, from batches of
/// 64; both in nanoseconds.
pub fn measure() -> (f64, f64) {
    let mut resolution = u64::MAX;
    let mut last = monotonic_ns();
    for _ in 0..2000 {
        let now = monotonic_ns();
        if now > last {
            resolution = resolution.min(now - last);
        }
        last = now;
    }
    let mut batches: Vec<f64> = (0..101)
        .map(|_| {
            let begin = Instant::now();
            for _ in 0..64 {
                std::hint::black_box(monotonic_ns());
            }
            begin.elapsed().as_nanos() as f64 / 64.0
        })
        .collect();
    batches.sort_by(f64::total_cmp);
    (resolution as f64, batches[batches.len() / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_never_goes_back_and_has_a_cost() {
        let first = monotonic_ns();
        assert!(monotonic_ns() >= first);
        let (resolution_ns, overhead_ns) = measure();
        assert!(overhead_ns > 0.0 && resolution_ns >= 1.0);
    }

    #[test]
    fn the_error_of_the_wall_clock_is_known_where_it_is_synchronised() {
        let Some(state) = synchronisation() else { return };
        // The kernel gives up at 16 s (NTP_PHASE_LIMIT, include/linux/timex.h).
        assert!(!state.is_synchronised || state.max_error_ns < 16_000_000_000, "{state:?}");
    }
}
