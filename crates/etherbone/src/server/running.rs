//! A server that runs in another thread, and its end.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::EbError;
use crate::slave::SlaveCounts;

#[derive(Clone, Debug)]
pub struct Stopper {
    pub(super) stop: Arc<AtomicBool>,
    pub(super) waker: Arc<UnixStream>,
}

impl Stopper {
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        // The byte only wakes the loop; when the buffer is full it is awake already.
        let _ = io::Write::write(&mut &*self.waker, &[1]);
    }
}

#[derive(Debug)]
pub struct Running {
    pub port: u16,
    pub(super) stopper: Stopper,
    pub(super) thread: Option<JoinHandle<Result<SlaveCounts, EbError>>>,
}

impl Running {
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
            let _ = thread.join();
        }
    }
}
