//! Effects of SIGINT, SIGTERM and SIGHUP on every verb.
//!
//! The first signal asks. A verb that measures or serves has registered a reaction ([`on_signal`]):
//! it stops, keeps and reports its results. A verb that only reads and prints has nothing to keep
//! and ends at once. A verb that does not end in time is ended, after its finished part was kept
//! ([`keep_at_end`]). The second signal ends the program at once. After a signal the exit code is
//! 130.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::failure::{Failure, INTERRUPTED, program_name, tell};

/// Time for an asked verb to end by itself: a little less than the 2 s that are promised.
const GRACE: Duration = Duration::from_millis(1900);
/// Time while the main thread is at work on tables and a page, which take longer on a busy host.
const GRACE_AT_WORK: Duration = Duration::from_secs(8);
const GRACE_TO_KEEP: Duration = Duration::from_secs(4);
const LOOK: Duration = Duration::from_millis(100);

struct State {
    is_asked: bool,
    asks: Vec<Box<dyn Fn() + Send>>,
    unfinished: Option<PathBuf>,
    keep: Keep,
}

enum Keep {
    Nothing,
    Ready(Box<dyn FnOnce() + Send>),
    Begun,
}

static STATE: Mutex<State> =
    Mutex::new(State { is_asked: false, asks: Vec::new(), unfinished: None, keep: Keep::Nothing });

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the signals over, once, before the verb begins.
pub(crate) fn take_over() -> Result<(), Failure> {
    ctrlc::set_handler(asked)
        .map_err(|error| Failure::refused(format!("cannot take over Ctrl-C: {error}")))
}

/// Calls `ask` at the first signal, in another thread; at once if there was one already. From then
/// on the verb has to end by itself.
pub(crate) fn on_signal(ask: impl Fn() + Send + 'static) {
    let mut state = state();
    if state.is_asked {
        ask();
    }
    state.asks.push(Box::new(ask));
}

/// Sets the action that another thread takes if the verb does not end in time after a signal and
/// has not begun its own end.
pub(crate) fn keep_at_end(keep: impl FnOnce() + Send + 'static) {
    state().keep = Keep::Ready(Box::new(keep));
}

pub(crate) fn ends_by_itself() {
    let mut state = state();
    if !matches!(state.keep, Keep::Begun) {
        state.keep = Keep::Nothing;
        return;
    }
    drop(state);
    loop {
        std::thread::park();
    }
}

fn keep_what_is_finished() {
    let mut state = state();
    let Keep::Ready(keep) = std::mem::replace(&mut state.keep, Keep::Nothing) else {
        return;
    };
    state.keep = Keep::Begun;
    drop(state);
    let (done, wait) = channel();
    let work = move || {
        keep();
        // The receiver is gone if this took too long.
        let _ = done.send(());
    };
    // The channel is closed at once if the thread cannot be started.
    let _ = std::thread::Builder::new().name("keep".to_owned()).spawn(work);
    let _ = wait.recv_timeout(GRACE_TO_KEEP);
}

pub(crate) fn is_asked() -> bool {
    state().is_asked
}

/// Returns the exit code of a verb: 130 after a signal, regardless of other results.
pub(crate) fn exit_code(otherwise: ExitCode) -> ExitCode {
    if is_asked() { ExitCode::from(INTERRUPTED) } else { otherwise }
}

/// Remembers an incomplete file during its writing; an end of the program removes it.
pub(crate) fn writing<T>(unfinished: Option<PathBuf>, work: impl FnOnce() -> T) -> T {
    state().unfinished = unfinished;
    let done = work();
    state().unfinished = None;
    done
}

fn asked() {
    let mut state = state();
    let is_first = !std::mem::replace(&mut state.is_asked, true);
    if !is_first {
        end(&mut state);
    }
    if state.asks.is_empty() {
        say("interrupted");
        end(&mut state);
    }
    state.asks.iter().for_each(|ask| ask());
    drop(state);
    let watched = std::thread::Builder::new().name("grace".to_owned()).spawn(end_after_grace);
    if watched.is_err() {
        // Without a thread for it this one waits; a second signal then has to wait, too.
        end_after_grace();
    }
}

fn end_after_grace() {
    let (began, mut at_work, mut before) = (Instant::now(), Instant::now(), main_thread_ns());
    while began.elapsed() < GRACE
        || (at_work.elapsed() < 3 * LOOK && began.elapsed() < GRACE_AT_WORK)
    {
        std::thread::sleep(LOOK);
        let now = main_thread_ns();
        if now.saturating_sub(before) > LOOK.as_nanos() / 2 {
            at_work = Instant::now();
        }
        before = now;
    }
    keep_what_is_finished();
    say(
        "interrupted; what was in progress did not end in time and is lost, what was finished before it is complete",
    );
    end(&mut state());
}

/// Returns the time for which the main thread ran, or waited for a CPU: the first two fields of its
/// schedstat (Documentation/scheduler/sched-stats.rst). It does neither while it waits for lanes,
/// or for a reader of its output.
fn main_thread_ns() -> u128 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    text.split_whitespace().take(2).filter_map(|field| field.parse::<u128>().ok()).sum()
}

/// Prints a line on stderr, and gives up if its reader blocks.
fn say(what: &'static str) {
    let (said, wait) = channel();
    let line = move || {
        tell(&format!("{}: {what}", program_name()));
        // The receiver is gone after a timeout.
        let _ = said.send(());
    };
    // The channel is closed at once if there is no thread for it.
    let _ = std::thread::Builder::new().name("last-word".to_owned()).spawn(line);
    let _ = wait.recv_timeout(LOOK);
}

fn end(state: &mut State) -> ! {
    if let Some(path) = state.unfinished.take() {
        // The file may be gone already.
        let _ = std::fs::remove_file(path);
    }
    std::process::exit(i32::from(INTERRUPTED));
}
