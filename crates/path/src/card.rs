//! The threads of a card that is read out live: they run a reader and a receiver of the read-out.
//!
//! A reader's thread also does the work of the emulated card and of the publisher, and that of its
//! receiver if the layout is `fused`. No block is copied for the path's sake, and nothing is done
//! for each block or chunk.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use daqmeter_harness::{Fault, StopFlag};
use daqmeter_readout::card::CardState;
use daqmeter_readout::chain::{ReaderDone, Receiving};
use daqmeter_readout::receive::Report;
use daqmeter_readout::{Card, ToHost};
use daqmeter_record::path::PathThread;
use daqmeter_sys::clock::monotonic_ns;

use crate::account::Account;
use crate::shared::Shared;

pub(crate) struct FromCard {
    pub(crate) reader: ToHost,
    /// Receiver that works in its thread.
    pub(crate) fused: Option<Receiving>,
    pub(crate) card: Arc<Mutex<Card>>,
    pub(crate) stop: StopFlag,
    pub(crate) done: Option<ReaderDone>,
}

pub(crate) struct IntoReceiver {
    pub(crate) receiving: Receiving,
    pub(crate) done: Option<Report>,
}

/// Time after which a card that has not started does not start any more: another reader failed.
const START_WITHIN_NS: u64 = 10_000_000_000;

impl FromCard {
    pub(crate) fn run(&mut self, shared: &Shared, account: &mut Account) -> Result<(), Fault> {
        if let Some(receiving) = &self.fused {
            self.reader.fuse(receiving)?;
        }
        let late_ns = monotonic_ns().saturating_add(START_WITHIN_NS);
        let (card, stop) = (&self.card, &self.stop);
        let is_idle = || {
            let card = card.lock().unwrap_or_else(PoisonError::into_inner);
            card.state() == CardState::Idle
        };
        let probing = Mutex::new(&mut *account);
        let quit = || {
            probing.lock().unwrap_or_else(PoisonError::into_inner).look();
            shared.is_over.load(Ordering::Relaxed)
                || stop.is_set()
                || monotonic_ns() > late_ns && is_idle()
        };
        let done = self.reader.read(&quit);
        account.thread.blocks = done.stats.blocks;
        self.done = Some(done);
        if !self.reader.begun {
            // It was stopped before its receiver had come, which would retry for seconds.
            shared.is_over.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl IntoReceiver {
    pub(crate) fn run(&mut self, shared: &Shared, account: &mut Account) -> Result<(), Fault> {
        let probing = Mutex::new(&mut *account);
        let quit = || {
            probing.lock().unwrap_or_else(PoisonError::into_inner).look();
            shared.is_over.load(Ordering::Relaxed)
        };
        let done = self.receiving.receive(&shared.is_over, &quit)?;
        account.thread.blocks = done.pages;
        self.done = Some(done);
        Ok(())
    }
}

/// Books the sleep of readers and receivers as a wait for input: they wait for the next look or for
/// the network.
pub(crate) fn waits_for_input(thread: PathThread) -> PathThread {
    PathThread { input_ns: thread.input_ns + thread.elsewhere_ns, elsewhere_ns: 0, ..thread }
}
