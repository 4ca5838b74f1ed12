//! Barrier of the lanes.
//!
//! A [`std::sync::Barrier`] waits for a fixed number of threads, for ever if one never comes. Here
//! each participant holds a [`Participant`]; its drop, even by unwinding, reduces the count. So no
//! thread waits for one that has panicked or was never started.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Polls of [`Participant::meet`] before it yields its CPU, which another lane may need.
const LOOKS: u32 = 20_000;

#[derive(Debug, Default)]
pub(crate) struct Barrier {
    state: Mutex<State>,
    changed: Condvar,
    /// Number of past rounds; a waiting thread continues if it changes.
    round: AtomicU64,
    is_late: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    participants: usize,
    waiting: usize,
    sleeping: usize,
    is_called_off: bool,
}

impl Barrier {
    /// Adds a participant. The first to join must be the last to wait, or the barrier may open
    /// before all have joined.
    pub(crate) fn join(&self) -> Participant<'_> {
        self.state().participants += 1;
        Participant(self)
    }

    fn pass_if_complete(&self, state: &mut State) {
        if state.waiting == state.participants {
            state.waiting = 0;
            self.round.fetch_add(1, Ordering::AcqRel);
            if std::mem::take(&mut state.sleeping) > 0 {
                self.changed.notify_all();
            }
        }
    }

    /// Counts a thread that arrived; returns the round for whose end it waits.
    fn arrive(&self) -> (MutexGuard<'_, State>, u64) {
        let mut state = self.state();
        let round = self.round.load(Ordering::Acquire);
        state.waiting += 1;
        self.pass_if_complete(&mut state);
        (state, round)
    }

    fn is_over(&self, round: u64) -> bool {
        self.round.load(Ordering::Acquire) != round
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Code under the lock never panics, and the counts are valid at any time.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub(crate) struct Participant<'a>(&'a Barrier);

impl Participant<'_> {
    pub(crate) fn wait(&self) {
        let (mut state, round) = self.0.arrive();
        state.sleeping += usize::from(!self.0.is_over(round));
        let met = self.0.changed.wait_while(state, |_| !self.0.is_over(round));
        drop(met.unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits without sleep, so that all continue at once, with warm caches.
    pub(crate) fn meet(&self) {
        let (state, round) = self.0.arrive();
        drop(state);
        let mut looks = 0;
        while !self.0.is_over(round) {
            looks += 1;
            if looks % LOOKS == 0 {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Says before a wait that the time of a stage is over; all see it after that wait.
    pub(crate) fn set_late(&self) {
        self.0.is_late.store(true, Ordering::Release);
    }

    pub(crate) fn is_late(&self) -> bool {
        self.0.is_late.load(Ordering::Acquire)
    }

    /// Cancels the run; the others see it after the next round.
    pub(crate) fn call_off(&self) {
        self.0.state().is_called_off = true;
    }

    pub(crate) fn is_called_off(&self) -> bool {
        self.0.state().is_called_off
    }
}

impl Drop for Participant<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.participants -= 1;
        if state.waiting > 0 {
            self.0.pass_if_complete(&mut state);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn nobody_goes_on_before_the_last_has_come() {
        let (barrier, arrived) = (Barrier::default(), AtomicUsize::new(0));
        let own = barrier.join();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let (participant, arrived) = (barrier.join(), &arrived);
                scope.spawn(move || {
                    for round in 1..=50 {
                        arrived.fetch_add(1, Ordering::SeqCst);
                        participant.meet();
                        assert!(arrived.load(Ordering::SeqCst) >= 4 * round);
                        participant.wait();
                    }
                });
            }
            for round in 1..=50 {
                arrived.fetch_add(1, Ordering::SeqCst);
                own.meet();
                assert_eq!(arrived.load(Ordering::SeqCst), 4 * round);
                own.wait();
            }
        });
    }
}
