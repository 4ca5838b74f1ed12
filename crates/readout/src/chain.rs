//! Parts of a chain in this process: card, readers, receivers, and the accounts of every trigger.
//!
//! [`Chain::open`] makes them; a path gives each its thread.

mod counters;

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use daqmeter_harness::{Fault, placement};
use daqmeter_record::Ledger;
use daqmeter_sys::clock::{monotonic_ns, thread_cpu_ns};
use daqmeter_sys::memory::Pages;

pub use self::counters::*;
use crate::accounts::FinalAccount;
use crate::card::{Card, CardState, CardView, channel_ids};
use crate::port::Port;
use crate::receive::{Receiver, Report, StreamReport};
use crate::scenario::{Publish, Scenario};
use crate::slowed::{Experiment, Slowed, SlowedReader};
use crate::tohost::{Stats, ToHost};
use crate::transport::{self, PublisherHello, TransportError};

impl From<TransportError> for Fault {
    fn from(error: TransportError) -> Self {
        Fault::new(error.to_string())
    }
}

/// Pins this thread to a CPU, if one is given.
pub fn pin(cpu: Option<u32>) -> Result<(), Fault> {
    cpu.map_or(Ok(()), placement::pin)
}

/// Does work in this thread; returns the share of a CPU that it took, too.
fn loaded<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let (cpu_ns, wall_ns) = (thread_cpu_ns(), monotonic_ns());
    let done = work();
    let wall_ns = (monotonic_ns() - wall_ns).max(1);
    (done, (thread_cpu_ns() - cpu_ns) as f64 / wall_ns as f64)
}

pub struct Chain {
    pub scenario: Scenario,
    pub card: Arc<Mutex<Card>>,
    pub readers: Vec<ToHost>,
    pub receivers: Vec<Receiving>,
}

impl Chain {
    /// Makes the parts. Readers are dealt out to the receivers; triggers come for a time, or up to
    /// a number. With an experiment the parts in a reader's thread are timed.
    pub fn open(
        scenario: &Scenario,
        receivers: usize,
        duration: Duration,
        triggers: Option<u64>,
        experiment: Option<&Experiment>,
    ) -> Result<Chain, Fault> {
        let fits = scenario.check_memory(channel_ids(scenario).len(), true);
        fits.map_err(Fault::too_large)?;
        let (mut card, consumers) = Card::new(scenario)?;
        card.source.limit(Some(duration), triggers);
        let scenario = card.scenario().clone();
        let card = Arc::new(Mutex::new(card));
        let slowed =
            experiment.map(|experiment| SlowedReader::new(experiment, scenario.card.block.0));
        let mut readers = Vec::new();
        for (at, consumer) in consumers.into_iter().enumerate() {
            let mut port = Port::here(card.clone(), consumer)?;
            port.slowed = slowed.as_ref().map(SlowedReader::another);
            readers.push(reader_of(&scenario, port, at, &hello(&scenario, at))?);
        }
        let count = receivers.clamp(1, readers.len().max(1));
        let publisher = |reader: &ToHost| {
            let publish = Publish { address: reader.address(), ..scenario.publish.clone() };
            (publish, Vec::new())
        };
        let receiving = |at| Receiving {
            slowed: slowed.as_ref().and_then(SlowedReader::receiver),
            publishers: readers.iter().skip(at).step_by(count).map(publisher).collect(),
        };
        Ok(Chain { receivers: (0..count).map(receiving).collect(), scenario, card, readers })
    }
}

/// Makes the reader of a channel, which greets so. Its port is that of the first channel and its
/// number, unless the host chooses.
pub fn reader_of(
    scenario: &Scenario,
    port: Port,
    at: usize,
    hello: &PublisherHello,
) -> Result<ToHost, Fault> {
    let mut publish = scenario.publish.clone();
    let parts = publish.address.rsplit_once(':');
    let first = parts.and_then(|(host, number)| Some((host, number.parse::<u16>().ok()?)));
    if let Some((host, number @ 1..)) = first {
        publish.address = format!("{host}:{}", usize::from(number) + at);
    }
    let outlet = transport::publish(&publish, hello)?;
    Ok(ToHost::new(port, outlet, scenario, channel_ids(scenario)[at]))
}

#[derive(Clone, Debug)]
pub struct ReaderDone {
    pub stats: Stats,
    pub account: FinalAccount,
    /// Share of a CPU that the reader took.
    pub cpu: f64,
    /// Times of the emulated card's work and of the publisher's in its thread; `None` if they were
    /// not timed.
    pub within: Option<(u64, u64)>,
    /// Report of the receiver in its thread, and its time in ns.
    pub received: Option<(Report, u64)>,
    pub notes: Vec<String>,
    pub ring_bytes: usize,
    /// Pages of the ring; `None` if another process made it.
    pub ring_pages: Option<Pages>,
    /// Counts of the card at the end.
    pub view: CardView,
    /// Time for which triggers came: without that in which a FIFO was emptied.
    pub triggers_ns: u64,
    /// Every 10 ms or so while triggers came: the card's time, the bytes in the ring, and the bytes
    /// from the card's FIFO on that no subscriber has acknowledged.
    pub filling: Vec<(u64, [u64; 2])>,
}

impl ToHost {
    /// Connects a receiver that works in the reader's thread from then on.
    pub fn fuse(&mut self, receiving: &Receiving) -> Result<(), Fault> {
        let publisher = RefCell::new(&mut *self);
        let greets = || {
            publisher.borrow_mut().serve(monotonic_ns());
            // It waits for this publisher alone, which answers now.
            false
        };
        let receiver = receiving.connect(&greets)?;
        self.fused = Some((receiver, 0));
        Ok(())
    }

    /// Runs the reader in this thread to its end, or until `quit` is true.
    pub fn read(&mut self, quit: &(impl Fn() -> bool + Sync)) -> ReaderDone {
        let stop = AtomicBool::new(false);
        let mut filling = Vec::with_capacity(1 << 14);
        let begin_ns = monotonic_ns();
        let (account, mut cpu) = loaded(|| {
            self.run(&stop, true, |reader| {
                let (state, start_ns) = (reader.port.state(), reader.port.start_ns());
                let now_ns = monotonic_ns().saturating_sub(start_ns);
                let comes = state == CardState::Running && now_ns <= reader.port.end_ns();
                if comes && filling.len() < filling.capacity() {
                    let bytes = [reader.filled_bytes() as u64, reader.backlog_bytes()];
                    filling.push((now_ns, bytes));
                }
                if quit() {
                    stop.store(true, Ordering::Relaxed);
                }
            })
        });
        let view = self.port.view();
        let report = |(receiver, ns): (Receiver, u64)| {
            let cpu = cpu.min(ns as f64 / (monotonic_ns() - begin_ns).max(1) as f64);
            (Report { cpu, ..receiver.report() }, ns)
        };
        let received = self.fused.take().map(report);
        cpu -= received.as_ref().map_or(0.0, |(report, _)| report.cpu);
        ReaderDone {
            stats: self.stats,
            account,
            cpu,
            received,
            within: self.port.slowed.as_ref().map(SlowedReader::times_ns),
            notes: std::mem::take(&mut self.notes),
            ring_bytes: self.port.consumer().ring_bytes(),
            ring_pages: self.port.consumer().pages(),
            triggers_ns: view.now_ns.min(self.port.end_ns()),
            view,
            filling,
        }
    }
}

pub fn hello(scenario: &Scenario, at: usize) -> PublisherHello {
    let id = channel_ids(scenario)[at];
    PublisherHello {
        stream: monotonic_ns() ^ u64::from(std::process::id()) << 40 ^ (at as u64) << 32,
        tags: scenario.elinks(id.device, id.channel).iter().map(|elink| elink.tag).collect(),
    }
}

#[derive(Clone)]
pub struct Receiving {
    slowed: Option<Slowed>,
    publishers: Vec<(Publish, Vec<u64>)>,
}

impl Receiving {
    fn connect(&self, quit: &dyn Fn() -> bool) -> Result<Receiver, TransportError> {
        let mut receiver = Receiver::connect(&self.publishers, quit)?;
        receiver.slowed.clone_from(&self.slowed);
        Ok(receiver)
    }

    /// Connects, and runs in this thread to the end of the publishers. An error also sets the flag.
    pub fn receive(
        &self,
        failed: &AtomicBool,
        quit: &(impl Fn() -> bool + Sync),
    ) -> Result<Report, Fault> {
        let give_up = || quit() || failed.load(Ordering::Relaxed);
        let connected = self.connect(&give_up);
        let mut receiver = connected.inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
        let stop = AtomicBool::new(false);
        let (report, cpu) = loaded(|| {
            receiver.run(&stop, |_| {
                if quit() {
                    stop.store(true, Ordering::Relaxed);
                }
            })
        });
        Ok(Report { cpu, ..report })
    }
}

/// Ledgers of the E-links of readers, with what their receivers had.
pub fn joined(readers: &[ReaderDone], receivers: &[Report]) -> Vec<(u64, Ledger)> {
    let mut ledgers: Vec<_> = readers.iter().flat_map(|reader| reader.account.ledgers()).collect();
    for (tag, ledger) in &mut ledgers {
        let streams = receivers.iter().flat_map(|report| &report.streams);
        let own = streams.filter(|stream| stream.tag == *tag);
        ledger.delivered = own.map(StreamReport::clean).sum();
    }
    ledgers
}
