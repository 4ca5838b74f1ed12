//! A chain with a thread for each part.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::done::{Done, joined};
use super::parts::{Chain, ChainError, Placement, pin, turn_of};
use crate::scenario::Scenario;

/// Sets the flag when its thread panics: the others then end, too.
struct Watch<'a>(&'a AtomicBool);

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

type Started<'scope, T> =
    Result<std::thread::ScopedJoinHandle<'scope, Result<T, ChainError>>, ChainError>;

/// Starts a thread of the chain. One that cannot be started, or that panics, sets the flag.
fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    failed: &'scope AtomicBool,
    work: impl FnOnce() -> Result<T, ChainError> + Send + 'scope,
) -> Started<'scope, T> {
    let watched = move || {
        let _watch = Watch(failed);
        work()
    };
    std::thread::Builder::new()
        .spawn_scoped(scope, watched)
        .map_err(|error| {
            failed.store(true, Ordering::Relaxed);
            ChainError::System(format!("cannot start a thread: {error}"))
        })
}

fn joined_thread<T>(started: Started<'_, T>) -> Result<T, ChainError> {
    let panicked =
        |_| ChainError::System("a thread panicked: a bug in daqmeter, please report it".to_owned());
    started?.join().map_err(panicked)?
}

/// Runs a chain for so long, or for so many triggers.
///
/// # Errors
/// When it cannot be set up. What goes wrong later is in the ledgers.
pub fn run(
    scenario: &Scenario,
    placement: &Placement,
    duration: Duration,
    triggers: Option<u64>,
    stop: &AtomicBool,
) -> Result<Done, ChainError> {
    let Chain {
        readers,
        receivers,
        facts,
        ..
    } = Chain::open(scenario, placement, duration, triggers)?;
    let failed = &AtomicBool::new(false);
    let quit = &|| stop.load(Ordering::Relaxed) || failed.load(Ordering::Relaxed);
    let (read, received) = std::thread::scope(|scope| {
        let reading: Vec<_> = readers
            .into_iter()
            .enumerate()
            .map(|(at, mut reader)| {
                let cpu = turn_of(&placement.reader_cpus, at);
                spawn(scope, failed, move || {
                    pin(cpu).inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
                    Ok(reader.read(cpu, quit))
                })
            })
            .collect();
        let receiving: Vec<_> = receivers
            .into_iter()
            .map(|receiving| spawn(scope, failed, move || receiving.receive(failed, quit)))
            .collect();
        // All are waited for before the first fault is reported.
        let read: Vec<_> = reading.into_iter().map(joined_thread).collect();
        let received: Vec<_> = receiving.into_iter().map(joined_thread).collect();
        (read, received)
    });
    let readers = read.into_iter().collect::<Result<Vec<_>, _>>()?;
    let receivers = received.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(Done {
        ledgers: joined(&readers, &receivers),
        readers,
        receivers,
        facts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Issue 14: the other threads of a chain waited for one that had panicked.
    #[test]
    fn a_thread_that_panics_ends_the_others_and_is_reported() {
        let failed = AtomicBool::new(false);
        let (broken, waiting) = std::thread::scope(|scope| {
            let broken = spawn(scope, &failed, || -> Result<(), ChainError> {
                panic!("as a test wants it")
            });
            let waiting = spawn(scope, &failed, || {
                while !failed.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                Ok(())
            });
            (joined_thread(broken), joined_thread(waiting))
        });
        assert!(broken.unwrap_err().to_string().contains("panicked"));
        waiting.unwrap();
    }
}
