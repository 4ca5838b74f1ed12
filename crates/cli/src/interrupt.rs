//! Effects of SIGINT, SIGTERM and SIGHUP on every verb.
//!
//! The first signal asks. A verb that measures or serves has registered a reaction ([`on_signal`]):
//! it stops, keeps and reports its results. A verb that only reads and prints has nothing to keep
//! and ends at once. A verb that does not end in time is ended. The second signal ends the program
//! at once. After a signal the exit code is 130.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use daqmeter_harness::{StopFlag, locked};

use crate::failure::{Failure, INTERRUPTED, tell};

/// Time for an asked verb to end by itself: the page of a long survey takes some seconds.
const GRACE: Duration = Duration::from_secs(8);

struct State {
    is_asked: bool,
    asks: Vec<Box<dyn Fn() + Send>>,
    unfinished: Option<PathBuf>,
}

static STATE: Mutex<State> =
    Mutex::new(State { is_asked: false, asks: Vec::new(), unfinished: None });

/// Takes the signals over, once, before the verb begins.
pub(crate) fn take_over() -> Result<(), Failure> {
    daqmeter_sys::signals::on_end(asked)
        .map_err(|error| Failure::refused(format!("cannot take over Ctrl-C: {error}")))
}

/// Calls `ask` at the first signal, in another thread; at once if there was one already. From then
/// on the verb has to end by itself.
pub(crate) fn on_signal(ask: impl Fn() + Send + 'static) {
    let mut state = locked(&STATE);
    if state.is_asked {
        ask();
    }
    state.asks.push(Box::new(ask));
}

/// Returns a flag that the first signal sets.
pub(crate) fn flag() -> StopFlag {
    let flag = StopFlag::default();
    let asked = flag.clone();
    on_signal(move || asked.set());
    flag
}

/// Waits until the first signal has set the flag.
pub(crate) fn wait_for(flag: &StopFlag) {
    const LOOK: Duration = Duration::from_millis(100);
    while !flag.is_set() {
        std::thread::park_timeout(LOOK);
    }
}

pub(crate) fn is_asked() -> bool {
    locked(&STATE).is_asked
}

/// Returns the exit code of a verb: 130 after a signal, regardless of other results.
pub(crate) fn exit_code(otherwise: ExitCode) -> ExitCode {
    if is_asked() { ExitCode::from(INTERRUPTED) } else { otherwise }
}

/// Remembers an incomplete file during its writing; an end of the program removes it.
pub(crate) fn writing<T>(unfinished: Option<PathBuf>, work: impl FnOnce() -> T) -> T {
    locked(&STATE).unfinished = unfinished;
    let done = work();
    locked(&STATE).unfinished = None;
    done
}

fn asked() {
    let mut state = locked(&STATE);
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
    std::thread::sleep(GRACE);
    say("interrupted; the unfinished measurement is lost, finished ones are complete");
    end(&mut locked(&STATE));
}

/// Prints a line on stderr, and gives up if its reader blocks.
fn say(line: &'static str) {
    const PATIENCE: Duration = Duration::from_millis(100);
    let (said, wait) = channel();
    let print = move || {
        tell(&format!("daqmeter: {line}"));
        // The receiver is gone after a timeout.
        let _ = said.send(());
    };
    // The channel is closed at once if there is no thread for it.
    let _ = std::thread::Builder::new().name("last-word".to_owned()).spawn(print);
    let _ = wait.recv_timeout(PATIENCE);
}

fn end(state: &mut State) -> ! {
    if let Some(path) = state.unfinished.take() {
        // The file may be gone already.
        let _ = std::fs::remove_file(path);
    }
    std::process::exit(i32::from(INTERRUPTED));
}
