//! Signals that ask the process to end.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use rustix::event::EventfdFlags;

use crate::{SysError, failed};

/// Count of the signals that came and were not taken yet.
static COME: OnceLock<OwnedFd> = OnceLock::new();

extern "C" fn count(_signal: libc::c_int) {
    if let Some(come) = COME.get() {
        // Only a counter at 2^64 - 2 refuses.
        let _ = rustix::io::write(come, &1_u64.to_ne_bytes());
    }
}

/// Calls `asked` in a thread of its own, once for each SIGINT, SIGTERM and SIGHUP. Programs that
/// this process starts keep the default actions. Called once in a process.
///
/// # Errors
/// There is no descriptor or no thread left.
pub fn on_end(asked: impl Fn() + Send + 'static) -> Result<(), SysError> {
    // A semaphore: each read takes one signal.
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE;
    let come = rustix::event::eventfd(0, flags).map_err(failed("eventfd"))?;
    let come = COME.get_or_init(|| come);
    let take = move || {
        loop {
            if rustix::io::read(come, &mut [0_u8; 8]).is_ok() {
                asked();
            }
        }
    };
    let thread = std::thread::Builder::new().name("signals".to_owned()).spawn(take);
    thread.map_err(failed("start a thread"))?;
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only reads a static and writes to a descriptor that is never closed,
        // both of which signal-safety(7) allows. Calls of other threads are restarted.
        let old = unsafe { libc::signal(signal, count as extern "C" fn(libc::c_int) as usize) };
        if old == libc::SIG_ERR {
            return Err(SysError::last("signal"));
        }
    }
    Ok(())
}
