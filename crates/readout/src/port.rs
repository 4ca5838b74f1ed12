//! One DMA channel from the host's side: its ring, and the card behind it, in this process or
//! another.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use daqmeter_harness::locked;
use daqmeter_sys::SysError;
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::ring::Consumer;
use daqmeter_sys::wait::IrqLine;

use crate::card::Card;
use crate::card::words::{self, CardState, CardView, Wish};
use crate::slowed::SlowedReader;

pub struct Port {
    consumer: Consumer,
    line: IrqLine,
    card: Side,
    pub(crate) slowed: Option<SlowedReader>,
}

enum Side {
    /// A card in this process, shared by the readers of its channels. It has no thread: the reader
    /// carries it to the present, which takes little time for replayed blocks.
    Here(Arc<Mutex<Card>>),
    /// A card in another process. The connection is open while that lives and the channel is ours.
    Elsewhere { connection: UnixStream, looked_ns: u64, is_gone: bool },
}

/// Interval at which the card's process is checked.
const ALIVE_NS: u64 = 100_000_000;

/// Tests if the other end of a connection, which says nothing, has closed it.
pub(crate) fn has_ended(mut connection: &UnixStream) -> bool {
    let heard = connection.read(&mut [0]);
    !matches!(heard, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

impl Port {
    /// Opens a channel of a card in this process. Fails if the process has no descriptors left.
    pub fn here(card: Arc<Mutex<Card>>, consumer: Consumer) -> Result<Port, SysError> {
        Ok(Port { consumer, line: IrqLine::timer()?, card: Side::Here(card), slowed: None })
    }

    /// Opens a channel of a card in another process, from the objects that it passed.
    pub(crate) fn elsewhere(
        consumer: Consumer,
        line: IrqLine,
        connection: UnixStream,
    ) -> io::Result<Port> {
        connection.set_nonblocking(true)?;
        let card = Side::Elsewhere { connection, looked_ns: 0, is_gone: false };
        Ok(Port { consumer, line, card, slowed: None })
    }

    pub fn consumer(&self) -> &Consumer {
        &self.consumer
    }

    pub fn advance(&mut self) {
        let Side::Here(card) = &self.card else { return };
        let work = || {
            // A reader that panicked has left the card as it was between two events.
            locked(card).carry(monotonic_ns());
        };
        match &self.slowed {
            Some(slowed) => slowed.card(work),
            None => work(),
        }
    }

    /// Does as [`Port::advance`]; for another process, checks that it still lives.
    pub(crate) fn look(&mut self) {
        if let Side::Elsewhere { connection, looked_ns, is_gone } = &mut self.card {
            let now_ns = monotonic_ns();
            if now_ns >= *looked_ns + ALIVE_NS {
                *looked_ns = now_ns;
                *is_gone = has_ended(connection);
            }
        }
        self.advance();
    }

    /// Copies up to `most` bytes that came from another process into the space that the ring lends.
    pub(crate) fn take(&mut self, most: usize) {
        if let Side::Elsewhere { .. } = self.card {
            self.consumer.take(most);
        }
    }

    pub fn release(&mut self, bytes: usize) {
        if let Some(slowed) = &self.slowed {
            slowed.read(bytes);
        }
        self.consumer.release(bytes);
    }

    /// Sleeps until the card's interrupt says that there is data, at most for this time.
    pub(crate) fn wait(&mut self, timeout: Duration) {
        // The ring shows the reason of the wake-up: errors of the line are those of a past time.
        match &self.card {
            Side::Here(card) => {
                let mut card = locked(card);
                let at_ns = card.next_event_ns().saturating_add(card.start_ns());
                drop(card);
                let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
                self.line.fire_at(at_ns.min(monotonic_ns().saturating_add(timeout_ns)));
                let _ = self.line.wait(timeout);
            }
            Side::Elsewhere { .. } => {
                words::arm(&self.consumer, true);
                // Data that came before the card could see that we wait does not signal.
                let is_empty = self.consumer.filled() < self.consumer.unit_bytes();
                if is_empty && self.state() != CardState::Finished {
                    let _ = self.line.wait(timeout);
                }
                words::arm(&self.consumer, false);
            }
        }
    }

    /// Asks the card to end its triggers.
    pub(crate) fn stop(&self) {
        words::say(&self.consumer, Wish::End);
    }

    pub fn view(&self) -> CardView {
        words::view(&self.consumer)
    }

    /// Time since the start at which the triggers of a card in this process end.
    pub(crate) fn end_ns(&self) -> u64 {
        match &self.card {
            Side::Here(card) => locked(card).source.end_ns,
            Side::Elsewhere { .. } => u64::MAX,
        }
    }

    /// State of the card. A card without its process sends no more.
    pub fn state(&self) -> CardState {
        match self.card {
            Side::Elsewhere { is_gone: true, .. } => CardState::Finished,
            _ => words::state(&self.consumer),
        }
    }

    /// True if the card went away before it had finished: no more data comes, and its last counts
    /// may be missing.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self.card, Side::Elsewhere { is_gone: true, .. })
            && words::state(&self.consumer) != CardState::Finished
    }

    /// Monotonic clock at the card's start.
    pub(crate) fn start_ns(&self) -> u64 {
        words::start_ns(&self.consumer)
    }

    pub fn go(&self) {
        words::say(&self.consumer, Wish::Go);
    }
}
