//! A server that runs in another thread, and how it is ended.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::EbError;
use crate::slave::SlaveCounts;

/// Ends a server's loop.
#[derive(Clone, Debug)]
pub struct Stopper {
    pub(super) stop: Arc<AtomicBool>,
    pub(super) waker: Arc<UnixStream>,
}

impl Stopper {
    /// Ends it.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        // The byte only wakes the loop; when the buffer is full it is awake already.
        let _ = io::Write::write(&mut &*self.waker, &[1]);
    }
}

/// A server in a thread of its own; ends when dropped.
#[derive(Debug)]
pub struct Running {
    /// The port that it listens on.
    pub port: u16,
    pub(super) stopper: Stopper,
    pub(super) thread: Option<JoinHandle<Result<SlaveCounts, EbError>>>,
}

impl Running {
    /// Ends it and tells what it did.
    pub fn stop(mut self) -> Result<SlaveCounts, EbError> {
        self.stopper.stop();
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            _ => Err(EbError::Unsupported(
                "the server's thread panicked: a bug in daqmeter, please report it".to_owned(),
            )),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            // Its result was not asked for.
            let _ = thread.join();
        }
    }
}
