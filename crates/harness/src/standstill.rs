//! Times in which no thread of this process ran although it measured: Ctrl-Z, a frozen control
//! group, a suspended host. A thread of its own looks at the clock ten times a second, and at the
//! time for which it waited for a CPU: beside a load it is late, but it did not stand still.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once};
use std::time::Duration;

use daqmeter_sys::clock;
use daqmeter_sys::cpu_time::ThreadTimes;

use crate::locked;

const PERIOD_NS: u64 = 100_000_000;
/// Delay beyond the period and the wait for a CPU from which on it is a standstill. It is two
/// periods, so that one late timer is none; beside seven other busy threads none was found.
const MIN_STILL_NS: u64 = 200_000_000;

/// End and length of each standstill.
static FOUND: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());
/// Last look at the clock.
static LOOKED_NS: AtomicU64 = AtomicU64::new(0);

/// Times of one look: the clock, and the waits for a CPU so far.
#[derive(Clone, Copy)]
struct Look {
    now_ns: u64,
    waited_ns: u64,
}

impl Look {
    fn now(own: &ThreadTimes) -> Look {
        Look { now_ns: clock::boot_ns(), waited_ns: own.delay_ns().unwrap_or(0) }
    }

    /// Returns the time in which nothing ran between two looks.
    fn still_ns(self, next: Look) -> Option<u64> {
        let waited_ns = next.waited_ns.saturating_sub(self.waited_ns);
        let late_ns = next.now_ns.saturating_sub(self.now_ns).checked_sub(PERIOD_NS)?;
        late_ns.checked_sub(waited_ns).filter(|still_ns| *still_ns > MIN_STILL_NS)
    }
}

/// Begins to look, once for the process, and returns the time of the clock of [`since`].
pub(crate) fn watch() -> u64 {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        LOOKED_NS.store(clock::boot_ns(), Ordering::Relaxed);
        let thread = std::thread::Builder::new().name("standstill".to_owned());
        if thread.spawn(look_on).is_err() {
            // Nothing is found then, and no record waits for a look.
            LOOKED_NS.store(u64::MAX, Ordering::Relaxed);
        }
    });
    clock::boot_ns()
}

fn look_on() {
    let own = ThreadTimes::of_this_thread();
    let mut last = Look::now(&own);
    loop {
        std::thread::sleep(Duration::from_nanos(PERIOD_NS));
        let next = Look::now(&own);
        if let Some(still_ns) = last.still_ns(next) {
            let mut found = locked(&FOUND);
            found.push((next.now_ns, still_ns));
        }
        LOOKED_NS.store(next.now_ns, Ordering::Release);
        last = next;
    }
}

/// Returns the time that stood still since then. Right after a standstill it waits for the next
/// look, for at most one period.
pub(crate) fn since(begin_ns: u64) -> u64 {
    let looked_ns = || LOOKED_NS.load(Ordering::Acquire);
    let is_late = || clock::boot_ns().saturating_sub(looked_ns()) > PERIOD_NS + MIN_STILL_NS;
    for _ in 0..100 {
        if !is_late() {
            break;
        }
        std::thread::sleep(Duration::from_nanos(PERIOD_NS / 100));
    }
    let found = locked(&FOUND);
    let after = found.iter().filter(|(end_ns, _)| *end_ns > begin_ns);
    after.map(|&(end_ns, still_ns)| still_ns.min(end_ns - begin_ns)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standstill_is_a_late_look_that_waited_for_no_cpu() {
        let at = |ms: u64, waited_ms: u64| Look {
            now_ns: ms * 1_000_000,
            waited_ns: waited_ms * 1_000_000,
        };
        let still_ms = |next| at(0, 0).still_ns(next).map(|ns| ns / 1_000_000);
        assert_eq!(still_ms(at(100, 0)), None);
        assert_eq!(still_ms(at(280, 0)), None);
        assert_eq!(still_ms(at(4100, 5)), Some(3995));
        assert_eq!(still_ms(at(4100, 3990)), None, "beside a load");
    }

    #[test]
    fn only_time_since_the_begin_counts() {
        let begin_ns = clock::boot_ns() + 1_000_000_000_000;
        FOUND.lock().unwrap().push((begin_ns + 300, 1000));
        LOOKED_NS.store(u64::MAX, Ordering::Release);
        assert_eq!((since(begin_ns), since(begin_ns + 300)), (300, 0));
    }
}
