//! Progress of a point, for people who wait.
//!
//! The waiting thread that called [`crate::measure`] reports; lanes only leave counts. A point that
//! ends within two seconds reports nothing.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time to the first report: most points end before, and a fast change of the line is unreadable.
const FIRST: Duration = Duration::from_secs(2);
/// Time between reports; each costs the waiting thread about ten microseconds of CPU time.
const EVERY: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Number of lanes that are ready: pinned, prepared, verified, warm.
    Preparing(usize),
    Timed,
    /// Number of lanes that have verified and given their accounts.
    Ending(usize),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    pub limit: Option<String>,
    pub phase: Phase,
    pub lanes: usize,
}

#[derive(Clone, Default)]
pub struct Progress {
    listener: Option<Arc<Listener>>,
    limit: Option<String>,
}

struct Listener {
    tell: Box<dyn Fn(&Look) + Send + Sync>,
    every: Duration,
    next: Mutex<Instant>,
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_wanted = self.listener.is_some();
        f.debug_struct("Progress").field("is_wanted", &is_wanted).finish_non_exhaustive()
    }
}

impl Listener {
    fn next(&self) -> Instant {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell_again_in(&self, time: Duration) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now() + time;
    }
}

impl Progress {
    /// Calls `tell` for a point that lasts longer than 2 s, once a second, in the thread that
    /// measures.
    pub fn new(tell: impl Fn(&Look) + Send + Sync + 'static) -> Progress {
        let listener =
            Listener { tell: Box::new(tell), every: EVERY, next: Mutex::new(Instant::now()) };
        Progress { listener: Some(Arc::new(listener)), limit: None }
    }

    pub(crate) fn begins(&self) {
        if let (Some(listener), None) = (&self.listener, &self.limit) {
            listener.tell_again_in(FIRST);
        }
    }

    #[must_use]
    pub(crate) fn of_limit(&self, name: &str) -> Progress {
        Progress { listener: self.listener.clone(), limit: Some(name.to_owned()) }
    }

    pub(crate) fn due_in(&self) -> Option<Duration> {
        let listener = self.listener.as_ref()?;
        Some(listener.next().saturating_duration_since(Instant::now()))
    }

    pub(crate) fn look(&self, phase: Phase, lanes: usize) {
        let Some(listener) = &self.listener else {
            return;
        };
        if self.due_in() != Some(Duration::ZERO) {
            return;
        }
        (listener.tell)(&Look { limit: self.limit.clone(), phase, lanes });
        listener.tell_again_in(listener.every);
    }
}

#[cfg(test)]
impl Progress {
    pub(crate) fn at_each_opportunity(tell: impl Fn(&Look) + Send + Sync + 'static) -> Progress {
        let mut progress = Progress::new(tell);
        if let Some(listener) = progress.listener.as_mut().and_then(Arc::get_mut) {
            listener.every = Duration::ZERO;
        }
        progress
    }

    /// Reports at once, so that a test need not wait.
    fn impatient(&self) {
        self.listener.iter().for_each(|listener| listener.tell_again_in(Duration::ZERO));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listened() -> (Progress, Arc<Mutex<Vec<Look>>>) {
        let told = Arc::new(Mutex::new(Vec::new()));
        let into = told.clone();
        let progress = Progress::new(move |look| into.lock().unwrap().push(look.clone()));
        (progress, told)
    }

    #[test]
    fn a_point_is_silent_at_first_and_then_told_once_a_second() {
        let (progress, told) = listened();
        progress.begins();
        progress.look(Phase::Preparing(1), 3);
        assert!(told.lock().unwrap().is_empty());
        let wait = progress.due_in().unwrap();
        assert!(wait > FIRST / 2 && wait <= FIRST, "{wait:?}");
        progress.impatient();
        progress.look(Phase::Preparing(2), 3);
        progress.look(Phase::Timed, 3);
        let looks = told.lock().unwrap().clone();
        assert_eq!(looks.len(), 1);
        assert_eq!((looks[0].phase, looks[0].lanes), (Phase::Preparing(2), 3));
        assert!(progress.due_in().unwrap() <= EVERY);
    }

    #[test]
    fn the_measurement_of_a_limit_does_not_begin_the_silence_anew() {
        let (progress, told) = listened();
        progress.begins();
        progress.impatient();
        let limit = progress.of_limit("link");
        limit.begins();
        limit.look(Phase::Timed, 1);
        let looks = told.lock().unwrap();
        assert_eq!(looks[0].limit.as_deref(), Some("link"));
    }

    #[test]
    fn nobody_is_told_by_default() {
        let nobody = Progress::default();
        assert_eq!(nobody.due_in(), None);
        nobody.begins();
        nobody.look(Phase::Timed, 1);
    }
}
