//! Meetings of lanes.
//!
//! A [`std::sync::Barrier`] waits for a fixed number of threads, for ever if one never comes. Here
//! each participant holds a [`Party`]; its drop, even by unwinding, reduces the count. So no thread
//! waits for one that has panicked or was never started.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[derive(Debug, Default)]
pub(crate) struct Meeting {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    parties: usize,
    waiting: usize,
    /// Number of past meetings; a sleeping thread continues if it changes.
    round: u64,
    is_called_off: bool,
}

impl State {
    fn meet_if_complete(&mut self, changed: &Condvar) {
        if self.waiting == self.parties {
            self.waiting = 0;
            self.round += 1;
            changed.notify_all();
        }
    }
}

impl Meeting {
    /// Adds a party. The first to join must be the last to wait, or a meeting may take place before
    /// all have joined.
    pub(crate) fn join(&self) -> Party<'_> {
        self.state().parties += 1;
        Party(self)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Code under the lock never panics, and the counts are valid at any time.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub(crate) struct Party<'a>(&'a Meeting);

impl Party<'_> {
    pub(crate) fn wait(&self) {
        self.wait_looking(|| None, || ());
    }

    /// Waits like [`Party::wait`], and looks up after the time that `due_in` gives.
    pub(crate) fn wait_looking(&self, due_in: impl Fn() -> Option<Duration>, look: impl Fn()) {
        let mut state = self.0.state();
        let round = state.round;
        state.waiting += 1;
        state.meet_if_complete(&self.0.changed);
        while state.round == round {
            let Some(time) = due_in() else {
                let changed = self.0.changed.wait(state);
                state = changed.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let changed = self.0.changed.wait_timeout(state, time);
            let (awake, timeout) = changed.unwrap_or_else(PoisonError::into_inner);
            state = awake;
            if timeout.timed_out() && state.round == round {
                drop(state);
                look();
                state = self.0.state();
            }
        }
    }

    /// Cancels the run; the others see it after the next meeting.
    pub(crate) fn call_off(&self) {
        self.0.state().is_called_off = true;
    }

    pub(crate) fn is_called_off(&self) -> bool {
        self.0.state().is_called_off
    }
}

impl Drop for Party<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.parties -= 1;
        if state.waiting > 0 {
            state.meet_if_complete(&self.0.changed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn nobody_goes_on_before_the_last_has_come() {
        let (meeting, arrived) = (Meeting::default(), AtomicUsize::new(0));
        let own = meeting.join();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let (party, arrived) = (meeting.join(), &arrived);
                scope.spawn(move || {
                    for round in 1..=50 {
                        arrived.fetch_add(1, Ordering::SeqCst);
                        party.wait();
                        assert!(arrived.load(Ordering::SeqCst) >= 4 * round);
                        party.wait();
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

    #[test]
    fn who_looks_up_while_it_waits_still_meets_the_others() {
        let meeting = Meeting::default();
        let own = meeting.join();
        let (looks, goes_on) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let (party, goes_on) = (meeting.join(), &goes_on);
            scope.spawn(move || {
                while goes_on.load(Ordering::SeqCst) == 0 {
                    std::thread::yield_now();
                }
                party.wait();
            });
            let look = || {
                looks.fetch_add(1, Ordering::SeqCst);
                goes_on.store(1, Ordering::SeqCst);
            };
            own.wait_looking(|| Some(Duration::ZERO), look);
        });
        assert!(looks.load(Ordering::SeqCst) > 0);
    }

    #[test]
    fn who_leaves_or_panics_is_not_waited_for() {
        let meeting = Meeting::default();
        let own = meeting.join();
        std::thread::scope(|scope| {
            let (leaves, panics, stays) = (meeting.join(), meeting.join(), meeting.join());
            let leaver = scope.spawn(move || drop(leaves));
            let panicker = scope.spawn(move || {
                let _party = panics;
                std::panic::resume_unwind(Box::new("test"));
            });
            scope.spawn(move || stays.wait());
            own.wait();
            assert!(leaver.join().is_ok() && panicker.join().is_err());
        });
        own.wait();
    }
}
