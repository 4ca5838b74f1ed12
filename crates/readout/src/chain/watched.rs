//! Parts of a chain that are watched: how long each works in its reader's thread, and work that an experiment adds to one of them.
//!
//! A part is wrapped where it is handed over, as a port, a pump, an outlet or a transport: the reader and the receiver do not know.
//! Work is added for each block of the ring; pages are counted as the blocks that they were made of, by all that came so far.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::ring::Consumer;
use daqmeter_wire::felix::page::FelixFrame;

use crate::card::words::{CardView, State};
use crate::port::{Port, Pump};
use crate::scenario::Publish;
use crate::transport::{
    Hello, Inlet, Outlet, OutletEvent, Received, Sent, Subscription, Transport, TransportError,
};

/// A part of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The emulated card, in the threads of its readers.
    Card,
    /// Reads the ring and makes pages.
    ToHost,
    /// Publishes pages, in the threads of the readers.
    Publisher,
    /// Receives pages and checks each chunk.
    Receiver,
}

/// Work for so many blocks.
pub type Added = Arc<dyn Fn(f64) + Send + Sync>;

/// What is added to which parts.
#[derive(Clone, Default)]
pub struct Experiment(pub Vec<(Part, Added)>);

impl Experiment {
    fn of(&self, part: Part) -> Option<Added> {
        let (_, added) = self.0.iter().find(|(own, _)| *own == part)?;
        Some(added.clone())
    }
}

/// Bytes of a chain so far.
#[derive(Default)]
pub(super) struct Bytes {
    block_bytes: f64,
    /// Given back to the rings.
    read: AtomicU64,
    /// Of pages that were sent.
    sent: AtomicU64,
}

impl Bytes {
    pub(super) fn new(block_bytes: usize) -> Arc<Bytes> {
        Arc::new(Bytes { block_bytes: block_bytes as f64, ..Bytes::default() })
    }

    /// How many blocks so many bytes of pages are: not more than as many bytes of blocks, for the head of a chunk in a page is longer than
    /// its trailer in a block. What was read and waits to be sent is not in the pages yet: early in a run the count is too high.
    fn blocks_of_pages(&self, bytes: u32) -> f64 {
        let [read, sent] =
            [&self.read, &self.sent].map(|count| count.load(Ordering::Relaxed) as f64);
        f64::from(bytes) * (read / sent.max(1.0)).min(1.0) / self.block_bytes
    }
}

/// What a reader's thread did beside reading.
#[derive(Debug, Default)]
pub(super) struct Times {
    pub(super) card_ns: AtomicU64,
    pub(super) publisher_ns: AtomicU64,
}

/// Adds the time of some work.
fn timed<T>(ns: &AtomicU64, work: impl FnOnce() -> T) -> T {
    let begin_ns = monotonic_ns();
    let done = work();
    ns.fetch_add(monotonic_ns() - begin_ns, Ordering::Relaxed);
    done
}

/// What one reader's parts are wrapped with.
#[derive(Clone)]
pub(super) struct Watch {
    pub(super) experiment: Experiment,
    pub(super) bytes: Arc<Bytes>,
    pub(super) times: Arc<Times>,
    /// Bytes of the ring that were given back since the card was last carried on.
    returned: Arc<AtomicU64>,
}

impl Watch {
    pub(super) fn new(experiment: &Experiment, bytes: &Arc<Bytes>) -> Watch {
        Watch {
            experiment: experiment.clone(),
            bytes: bytes.clone(),
            times: Arc::default(),
            returned: Arc::default(),
        }
    }

    pub(super) fn port(&self, inner: Box<dyn Port>) -> Box<dyn Port> {
        Box::new(WatchedPort {
            inner,
            added: self.experiment.of(Part::ToHost),
            watch: self.clone(),
        })
    }

    pub(super) fn pump(&self, inner: Box<dyn Pump>) -> Box<dyn Pump> {
        Box::new(WatchedPump { inner, added: self.experiment.of(Part::Card), watch: self.clone() })
    }

    pub(super) fn outlet(&self, inner: Box<dyn Outlet>) -> Box<dyn Outlet> {
        Box::new(WatchedOutlet {
            inner,
            added: self.experiment.of(Part::Publisher),
            watch: self.clone(),
        })
    }
}

/// A transport whose receivers get work added, where that is the experiment.
pub(super) fn transport(
    inner: Box<dyn Transport>,
    experiment: &Experiment,
    bytes: &Arc<Bytes>,
) -> Box<dyn Transport> {
    match experiment.of(Part::Receiver) {
        Some(added) => Box::new(SlowedTransport { inner, added, bytes: bytes.clone() }),
        None => inner,
    }
}

struct WatchedPort {
    inner: Box<dyn Port>,
    added: Option<Added>,
    watch: Watch,
}

impl Port for WatchedPort {
    fn consumer(&self) -> &Consumer {
        self.inner.consumer()
    }

    fn look(&mut self) {
        self.inner.look();
    }

    fn take(&mut self, most: usize) {
        self.inner.take(most);
    }

    fn release(&mut self, bytes: usize) {
        let Watch { bytes: all, returned, .. } = &self.watch;
        all.read.fetch_add(bytes as u64, Ordering::Relaxed);
        returned.fetch_add(bytes as u64, Ordering::Relaxed);
        if let Some(added) = &self.added {
            added(bytes as f64 / all.block_bytes);
        }
        self.inner.release(bytes);
    }

    fn wait(&mut self, timeout: Duration) {
        self.inner.wait(timeout);
    }

    fn is_lost(&self) -> bool {
        self.inner.is_lost()
    }

    fn view(&self) -> CardView {
        self.inner.view()
    }

    fn state(&self) -> State {
        self.inner.state()
    }

    fn start_ns(&self) -> u64 {
        self.inner.start_ns()
    }

    fn go(&self) {
        self.inner.go();
    }
}

struct WatchedPump {
    inner: Box<dyn Pump>,
    added: Option<Added>,
    watch: Watch,
}

impl Pump for WatchedPump {
    fn advance(&mut self) {
        let Watch { bytes, times, returned, .. } = &self.watch;
        timed(&times.card_ns, || {
            self.inner.advance();
            // What was given back is what the card fills again.
            if let Some(added) = &self.added {
                added(returned.swap(0, Ordering::Relaxed) as f64 / bytes.block_bytes);
            }
        });
    }

    fn arm(&mut self, timeout: Duration) {
        self.inner.arm(timeout);
    }

    fn is_ours(&self) -> bool {
        self.inner.is_ours()
    }

    fn stop(&mut self) {
        self.inner.stop();
    }
}

struct WatchedOutlet {
    inner: Box<dyn Outlet>,
    added: Option<Added>,
    watch: Watch,
}

impl Outlet for WatchedOutlet {
    fn address(&self) -> String {
        self.inner.address()
    }

    fn facts(&self) -> Vec<(String, String)> {
        self.inner.facts()
    }

    fn poll(&mut self, events: &mut Vec<OutletEvent>) {
        timed(&self.watch.times.publisher_ns, || self.inner.poll(events));
    }

    fn send(&mut self, dest: usize, frame: &FelixFrame, body: &[IoSlice<'_>]) -> Sent {
        let Watch { bytes, times, .. } = &self.watch;
        timed(&times.publisher_ns, || {
            let body_bytes = u64::from(frame.body_bytes);
            // Before its receiver has it, who counts by it.
            bytes.sent.fetch_add(body_bytes, Ordering::Relaxed);
            let sent = self.inner.send(dest, frame, body);
            match (sent, &self.added) {
                (Sent::Done, Some(added)) => added(bytes.blocks_of_pages(frame.body_bytes)),
                (Sent::Done, None) => {}
                (Sent::Blocked | Sent::Gone, _) => {
                    bytes.sent.fetch_sub(body_bytes, Ordering::Relaxed);
                }
            }
            sent
        })
    }

    fn close(&mut self, dest: usize) {
        self.inner.close(dest);
    }

    fn is_per_elink(&self) -> bool {
        self.inner.is_per_elink()
    }
}

struct SlowedTransport {
    inner: Box<dyn Transport>,
    added: Added,
    bytes: Arc<Bytes>,
}

impl Transport for SlowedTransport {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn publish(
        &self,
        settings: &Publish,
        hello: &Hello,
    ) -> Result<Box<dyn Outlet>, TransportError> {
        self.inner.publish(settings, hello)
    }

    fn subscribe(
        &self,
        settings: &Publish,
        subscription: &Subscription,
        last_page_of: &dyn Fn(u64) -> u64,
        quit: &dyn Fn() -> bool,
    ) -> Result<Box<dyn Inlet>, TransportError> {
        let inner = self.inner.subscribe(settings, subscription, last_page_of, quit)?;
        Ok(Box::new(SlowedInlet { inner, added: self.added.clone(), bytes: self.bytes.clone() }))
    }
}

struct SlowedInlet {
    inner: Box<dyn Inlet>,
    added: Added,
    bytes: Arc<Bytes>,
}

impl Inlet for SlowedInlet {
    fn hello(&self) -> &Hello {
        self.inner.hello()
    }

    fn receive(&mut self, wait: Duration) -> Result<Received<'_>, TransportError> {
        let received = self.inner.receive(wait)?;
        if let Received::Frame(frame, _) = &received {
            (self.added)(self.bytes.blocks_of_pages(frame.body_bytes));
        }
        Ok(received)
    }

    fn acknowledge(&mut self, sequence: u64) -> Result<(), TransportError> {
        self.inner.acknowledge(sequence)
    }
}
