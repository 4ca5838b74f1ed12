//! Barrier of the lanes.
//!
//! A [`std::sync::Barrier`] waits for a fixed number of threads, for ever if one never comes. Here
//! each participant holds a [`Participant`]; its drop, even by unwinding, reduces the count. So no
//! thread waits for one that has panicked or was never started.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
pub(crate) struct Barrier {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    participants: usize,
    waiting: usize,
    /// Number of past rounds; a sleeping thread continues if it changes.
    round: u64,
    is_called_off: bool,
}

impl State {
    fn pass_if_complete(&mut self, changed: &Condvar) {
        if self.waiting == self.participants {
            self.waiting = 0;
            self.round += 1;
            changed.notify_all();
        }
    }
}

impl Barrier {
    /// Adds a participant. The first to join must be the last to wait, or the barrier may open
    /// before all have joined.
    pub(crate) fn join(&self) -> Participant<'_> {
        self.state().participants += 1;
        Participant(self)
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
        let mut state = self.0.state();
        let round = state.round;
        state.waiting += 1;
        state.pass_if_complete(&self.0.changed);
        let met = self.0.changed.wait_while(state, |state| state.round == round);
        drop(met.unwrap_or_else(PoisonError::into_inner));
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
            state.pass_if_complete(&self.0.changed);
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
                        participant.wait();
                        assert!(arrived.load(Ordering::SeqCst) >= 4 * round);
                        participant.wait();
                    }
                });
            }
            for round in 1..=50 {
                arrived.fetch_add(1, Ordering::SeqCst);
                own.wait();
                assert_eq!(arrived.load(Ordering::SeqCst), 4 * round);
                own.wait();
            }
        });
    }
}
