//! The threads of a card that is read out live: they run a reader and a receiver of the read-out, as `readout run` does.
//!
//! A reader's thread also does the work of the emulated card and of the publisher. No block is copied for the path's sake, and
//! nothing is done for each block or chunk.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use daqmeter_harness::Fault;
use daqmeter_readout::chain::{Load, Reader, ReaderDone, Receiving};
use daqmeter_readout::receive::Report;
use daqmeter_record::path::PathThread;

use crate::account::Account;
use crate::shared::Shared;

/// The card's side of a path, in a reader's thread.
pub(crate) struct FromCard {
    pub(crate) reader: Reader,
    pub(crate) failed: Arc<AtomicBool>,
    /// What came of it.
    pub(crate) done: Option<ReaderDone>,
}

/// The other side.
pub(crate) struct IntoReceiver {
    pub(crate) receiving: Receiving,
    pub(crate) failed: Arc<AtomicBool>,
    /// What came of it.
    pub(crate) done: Option<(Report, Load)>,
}

impl FromCard {
    /// Reads until the card has finished and all was acknowledged.
    pub(crate) fn run(&mut self, shared: &Shared, account: &mut Account) {
        let failed = &self.failed;
        let quit = || shared.is_over.load(Ordering::Relaxed) || failed.load(Ordering::Relaxed);
        let done = self.reader.read(None, &quit);
        account.blocks = done.stats.blocks;
        self.done = Some(done);
        if !self.reader.tohost.has_begun() {
            // It was stopped before its receiver had come, which would look for it for seconds.
            failed.store(true, Ordering::Relaxed);
        }
    }
}

impl IntoReceiver {
    /// Connects, and receives until the publishers have ended.
    pub(crate) fn run(&mut self, account: &mut Account) -> Result<(), Fault> {
        let failed = &self.failed;
        let quit = || failed.load(Ordering::Relaxed);
        let done = self.receiving.receive(failed, &quit)?;
        account.blocks = done.0.pages;
        self.done = Some(done);
        Ok(())
    }
}

/// Readers and receivers sleep until they look again, or until the network has something: that is a wait for input.
pub(crate) fn waits_for_input(thread: PathThread) -> PathThread {
    PathThread {
        input_ns: thread.input_ns + thread.elsewhere_ns,
        elsewhere_ns: 0,
        ..thread
    }
}
