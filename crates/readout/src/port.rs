//! How a reader reaches its DMA channel, and what makes an emulated card of this process go on meanwhile.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use daqmeter_sys::SysError;
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::ring::Consumer;
use daqmeter_sys::wait::IrqLine;

use crate::card::Card;
use crate::card::words::{self, CardView, State};

/// One DMA channel, from the host's side.
pub trait Port: Send {
    /// The ring.
    fn consumer(&self) -> &Consumer;

    /// Looks whether the card is still there.
    fn look(&mut self) {}

    /// Brings up to `most` bytes that came into what the ring lends, where the card is in another process.
    fn take(&mut self, _most: usize) {}

    /// Gives bytes of the ring back.
    fn release(&mut self, bytes: usize);

    /// Sleeps until the card's interrupt says that there is data, at most so long.
    fn wait(&mut self, timeout: Duration);

    /// Whether the card went away before it had finished: nothing more will come, and what it counted last may be missing.
    fn is_lost(&self) -> bool {
        false
    }

    /// What the card counts.
    fn view(&self) -> CardView {
        words::view(self.consumer())
    }

    /// What the card is doing.
    fn state(&self) -> State {
        words::state(self.consumer())
    }

    /// The monotonic clock at the card's start.
    fn start_ns(&self) -> u64 {
        words::start_ns(self.consumer())
    }

    /// Says that the reader is ready.
    fn go(&self) {
        words::say_go(self.consumer());
    }
}

/// What makes a card go on while its reader runs. A card in a process of its own needs nothing.
pub trait Pump: Send {
    /// Carries the card to the present.
    fn advance(&mut self) {}

    /// Sets the card's interrupt to its next data, or to the end of this time.
    fn arm(&mut self, _timeout: Duration) {}

    /// Whether the card is the chain's own: it ends with the reader. One of others goes on.
    fn is_ours(&self) -> bool {
        false
    }

    /// Ends the triggers of a card that is the chain's own.
    fn stop(&mut self) {}
}

/// For a card that goes on by itself.
#[derive(Clone, Copy, Debug)]
pub struct Unpumped;

impl Pump for Unpumped {}

/// A channel of a card in this process.
#[derive(Debug)]
pub struct InlinePort {
    consumer: Consumer,
    line: Arc<IrqLine>,
}

/// A card in this process, shared by the readers of its channels. It has no thread: whoever runs a reader carries it to the present, in
/// the reader's time, which is little for replayed blocks.
#[derive(Debug)]
pub struct CardPump {
    card: Arc<Mutex<Card>>,
    line: Arc<IrqLine>,
}

/// Both sides of one channel of a card.
///
/// # Errors
/// When the process has no descriptors left.
pub fn inline(
    card: Arc<Mutex<Card>>,
    consumer: Consumer,
) -> Result<(InlinePort, CardPump), SysError> {
    let line = Arc::new(IrqLine::timer()?);
    let port = InlinePort { consumer, line: line.clone() };
    Ok((port, CardPump { card, line }))
}

impl CardPump {
    fn with_card<T>(&self, work: impl FnOnce(&mut Card) -> T) -> T {
        // A reader that panicked has left the card as it was between two events.
        work(&mut self.card.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Pump for CardPump {
    fn advance(&mut self) {
        self.with_card(|card| {
            if card.state() == State::Idle && card.may_go() {
                card.start(monotonic_ns());
            }
            card.advance(monotonic_ns().saturating_sub(card.start_ns()));
        });
    }

    fn arm(&mut self, timeout: Duration) {
        let at_ns = self.with_card(|card| card.next_event_ns().saturating_add(card.start_ns()));
        let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let end_ns = monotonic_ns().saturating_add(timeout_ns);
        self.line.fire_at(at_ns.min(end_ns));
    }

    fn is_ours(&self) -> bool {
        true
    }

    fn stop(&mut self) {
        self.with_card(|card| {
            let now_ns = monotonic_ns().saturating_sub(card.start_ns());
            card.source().end_at(now_ns);
        });
    }
}

impl Port for InlinePort {
    fn consumer(&self) -> &Consumer {
        &self.consumer
    }

    fn release(&mut self, bytes: usize) {
        self.consumer.release(bytes);
    }

    fn wait(&mut self, timeout: Duration) {
        // The line fires in any case; what woke us shows in the ring.
        let _ = self.line.wait(timeout);
    }
}

/// A card in another process.
#[derive(Debug)]
pub struct SharedPort {
    consumer: Consumer,
    line: IrqLine,
    /// Open as long as the other process lives, and the channel is ours.
    connection: UnixStream,
    looked_ns: u64,
    is_gone: bool,
}

/// Whether the card's process lives is looked at so often.
const ALIVE_NS: u64 = 100_000_000;

impl SharedPort {
    /// From what the other process passed.
    ///
    /// # Errors
    /// When the connection cannot be made non-blocking.
    pub fn new(
        consumer: Consumer,
        line: IrqLine,
        connection: UnixStream,
    ) -> io::Result<SharedPort> {
        connection.set_nonblocking(true)?;
        Ok(SharedPort { consumer, line, connection, looked_ns: 0, is_gone: false })
    }
}

impl Port for SharedPort {
    fn consumer(&self) -> &Consumer {
        &self.consumer
    }

    fn look(&mut self) {
        let now_ns = monotonic_ns();
        if now_ns >= self.looked_ns + ALIVE_NS {
            self.looked_ns = now_ns;
            let heard = self.connection.read(&mut [0]);
            self.is_gone =
                !matches!(heard, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
        }
    }

    fn state(&self) -> State {
        // A card whose process is gone sends no more.
        if self.is_gone { State::Finished } else { words::state(&self.consumer) }
    }

    fn is_lost(&self) -> bool {
        self.is_gone && words::state(&self.consumer) != State::Finished
    }

    fn take(&mut self, most: usize) {
        self.consumer.take(most);
    }

    fn release(&mut self, bytes: usize) {
        self.consumer.release(bytes);
    }

    fn wait(&mut self, timeout: Duration) {
        words::arm(&self.consumer, true);
        // Data that came before the card could see that we wait does not signal.
        if self.consumer.filled() < self.consumer.unit_bytes() && self.state() != State::Finished {
            let _ = self.line.wait(timeout);
        }
        words::arm(&self.consumer, false);
    }
}
