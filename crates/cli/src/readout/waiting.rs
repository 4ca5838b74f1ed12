//! A wait for others: says what is waited for and for how long, and has an end.

use std::time::{Duration, Instant};

use daqmeter_record::units::show_ns;

use crate::output::tell;

/// Nothing is said of shorter waits.
const SILENT: Duration = Duration::from_secs(1);
/// Then it is said again so often.
const AGAIN: Duration = Duration::from_secs(30);

/// A wait that has begun.
pub(super) struct Waiting {
    begun: Instant,
    limit: Duration,
    said: Option<Instant>,
}

impl Waiting {
    /// From now on, for so long.
    pub(super) fn new(limit: Duration) -> Waiting {
        Waiting { begun: Instant::now(), limit, said: None }
    }

    /// Whether it has lasted long enough.
    pub(super) fn is_over(&self) -> bool {
        self.begun.elapsed() >= self.limit
    }

    /// Says what is waited for, when it is time to.
    pub(super) fn say(&mut self, what: impl FnOnce() -> String) {
        let now = Instant::now();
        let is_due = match self.said {
            None => self.begun.elapsed() >= SILENT,
            Some(said) => now.duration_since(said) >= AGAIN,
        };
        if is_due {
            self.said = Some(now);
            let left = self.limit.saturating_sub(self.begun.elapsed());
            tell(&format!("daqmeter: waiting for {}; gives up in {}", what(), show(left)));
        }
    }

    /// The whole time that it may last.
    pub(super) fn limit_text(&self) -> String {
        show(self.limit)
    }
}

fn show(time: Duration) -> String {
    // Whole seconds, unless it is short.
    let ns = if time < SILENT { time.as_nanos() as f64 } else { time.as_secs() as f64 * 1e9 };
    show_ns(ns)
}
