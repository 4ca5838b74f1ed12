//! How a reader reaches its DMA channel: an emulated card in this process, or one in another.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::ring::Consumer;
use daqmeter_sys::wait::IrqLine;

use crate::card::words::{self, Words};
use crate::card::{Card, CardView, State};
use crate::scenario::ScenarioError;

/// One DMA channel, from the host's side.
pub trait Port: Send {
    /// The ring.
    fn consumer(&self) -> &Consumer;

    /// Lets an emulated device catch up with the clock; a real one needs nothing.
    fn refresh(&mut self);

    /// Brings up to `most` bytes that came into what the ring lends, where the card is in another process.
    fn take(&mut self, _most: usize) {}

    /// Gives bytes of the ring back.
    fn release(&mut self, bytes: usize);

    /// Sleeps until the card's interrupt says that there is data, at most so long.
    fn wait(&mut self, timeout: Duration);

    /// Ends the triggers of a card of ours, because the reader was told to stop. A card of others goes on.
    fn stop(&mut self) {}

    /// Whether what is in the ring is all that will come, or will be soon.
    fn ends(&self) -> bool {
        self.state() == State::Finished
    }

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

/// A card in this process, shared by the readers of its channels: whoever looks carries it to the present. Its work is done in their
/// time, and is little for replayed blocks.
#[derive(Debug)]
pub struct InlinePort {
    card: Arc<Mutex<Card>>,
    consumer: Consumer,
    line: IrqLine,
}

impl InlinePort {
    /// For one channel of the card.
    ///
    /// # Errors
    /// When the process has no descriptors left.
    pub fn new(card: Arc<Mutex<Card>>, consumer: Consumer) -> Result<InlinePort, ScenarioError> {
        let line = IrqLine::timer().map_err(|error| ScenarioError(error.to_string()))?;
        Ok(InlinePort {
            card,
            consumer,
            line,
        })
    }

    fn with_card<T>(&self, work: impl FnOnce(&mut Card) -> T) -> T {
        // A reader that panicked has left the card as it was between two events.
        work(&mut self.card.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Port for InlinePort {
    fn consumer(&self) -> &Consumer {
        &self.consumer
    }

    fn stop(&mut self) {
        self.with_card(|card| {
            let now_ns = monotonic_ns().saturating_sub(card.start_ns());
            card.source().end_at(now_ns);
        });
    }

    fn ends(&self) -> bool {
        // It is carried by its readers: told to stop, it ends at the next look.
        true
    }

    fn refresh(&mut self) {
        self.with_card(|card| {
            if card.state() == State::Idle && card.may_go() {
                card.start(monotonic_ns());
            }
            card.advance(monotonic_ns().saturating_sub(card.start_ns()));
        });
    }

    fn release(&mut self, bytes: usize) {
        // What was held until now filled the ring until now.
        self.refresh();
        self.consumer.release(bytes);
    }

    fn wait(&mut self, timeout: Duration) {
        let at_ns = self.with_card(|card| card.next_event_ns().saturating_add(card.start_ns()));
        let end_ns =
            monotonic_ns().saturating_add(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        self.line.fire_at(at_ns.min(end_ns));
        // The line fires in any case; what woke us shows in the ring.
        let _ = self.line.wait(timeout);
    }
}

/// Words of the interrupt: the reader waits.
const ARMED: usize = 26;

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
        Ok(SharedPort {
            consumer,
            line,
            connection,
            looked_ns: 0,
            is_gone: false,
        })
    }
}

impl Port for SharedPort {
    fn consumer(&self) -> &Consumer {
        &self.consumer
    }

    fn refresh(&mut self) {
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
        if self.is_gone {
            State::Finished
        } else {
            words::state(&self.consumer)
        }
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
        arm(&self.consumer, true);
        // Data that came before the card could see that we wait does not signal.
        if self.consumer.filled() < self.consumer.unit_bytes() && self.state() != State::Finished {
            let _ = self.line.wait(timeout);
        }
        arm(&self.consumer, false);
    }
}

/// The reader waits, or no longer.
fn arm(ring: &impl Words, on: bool) {
    // SeqCst on both sides: either the card sees the flag, or we see its data.
    ring.word(ARMED)
        .store(u64::from(on), std::sync::atomic::Ordering::SeqCst);
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// Whether the reader of a ring waits for an interrupt.
pub(crate) fn is_armed(ring: &impl Words) -> bool {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    ring.word(ARMED).load(std::sync::atomic::Ordering::SeqCst) == 1
}
