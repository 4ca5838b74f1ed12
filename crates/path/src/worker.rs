//! The threads of a path. Each takes, works and hands on until what is before it or behind it ends; what it cannot do is one fault,
//! and its ends close, so that the others come to their end, too.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, TryRecvError, TrySendError};

use daqmeter_harness::{Fault, StopFlag};
use daqmeter_readout::chain::{Load, ReaderDone};
use daqmeter_readout::receive::Report;
use daqmeter_record::path::PathThread;
use daqmeter_record::{Counter, Ledger};
use daqmeter_stats::LogHistogram;
use daqmeter_sys::affinity;
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::wait::{sleep_until, without_timer_slack};

use crate::account::{Account, Side};
use crate::card::{FromCard, IntoReceiver, waits_for_input};
use crate::element::{Block, Inward, Label, Labels, Look, Outward, Sink, Source, Turn};
use crate::ends::{Inlet, Outlet};
use crate::ring::Found;
use crate::shared::Shared;
use crate::spin::Change;

/// What one thread does.
pub(crate) enum Role {
    Source(FromSource),
    Look(Box<dyn Look>),
    Turn(Box<dyn Turn>),
    Out(Box<dyn Outward>, Option<SyncSender<Label>>),
    In(Box<dyn Inward>, Labels),
    Sink(IntoSink),
    Card(Box<FromCard>),
    Receiver(Box<IntoReceiver>),
}

/// The source's side of the ledger.
pub(crate) struct FromSource {
    pub(crate) source: Box<dyn Source>,
    pub(crate) stream: usize,
    pub(crate) block_bytes: usize,
    /// Where the contents of this stream begin among all that are known.
    pub(crate) first_key: usize,
    pub(crate) issued: u64,
    pub(crate) lost: u64,
    room: Room,
}

/// How long blocks that were due found no room.
#[derive(Clone, Copy, Debug, Default)]
struct Room {
    /// When the first block that was lost since there was room was due.
    lost_since_ns: Option<u64>,
    longest_ns: u64,
}

impl Room {
    /// A block that was due then has room now, after a wait or at once.
    fn found(&mut self, due_ns: u64, has_waited: bool) {
        self.lost_since_ns = None;
        if has_waited {
            self.add(due_ns);
        }
    }

    /// A block that was due then is lost.
    fn lost(&mut self, due_ns: u64) {
        let since_ns = *self.lost_since_ns.get_or_insert(due_ns);
        self.add(since_ns);
    }

    fn add(&mut self, since_ns: u64) {
        let missing_ns = monotonic_ns().saturating_sub(since_ns);
        self.longest_ns = self.longest_ns.max(missing_ns);
    }
}

/// The sink's side.
pub(crate) struct IntoSink {
    pub(crate) sink: Box<dyn Sink>,
    pub(crate) arrived: Arrived,
}

/// What came to the sink.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arrived {
    /// Blocks of each stream.
    pub(crate) delivered: Vec<u64>,
    pub(crate) payload_bytes: u64,
    pub(crate) events: u64,
    pub(crate) verified: u64,
    pub(crate) latency_ns: LogHistogram,
}

/// A thread before it runs, and what it leaves.
pub(crate) struct Worker {
    /// What is known of its thread before it runs.
    pub(crate) thread: PathThread,
    pub(crate) role: Role,
    pub(crate) inlet: Option<Inlet>,
    pub(crate) outlet: Option<Outlet>,
    /// Blocks that it makes for the ring behind it, and their bytes.
    pub(crate) makes: (usize, usize),
    pub(crate) change: Change,
}

/// What a thread leaves.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// How full its rings were.
    pub(crate) seen: Vec<Vec<u64>>,
    pub(crate) issued: Option<Issued>,
    pub(crate) arrived: Option<Arrived>,
    /// Of a card that is read out.
    pub(crate) read: Option<Box<ReaderDone>>,
    pub(crate) received: Option<Box<(Report, Load)>>,
}

/// What a source brings to the ledger.
#[derive(Debug)]
pub(crate) struct Issued {
    pub(crate) stream: usize,
    pub(crate) issued: u64,
    pub(crate) lost: u64,
    pub(crate) ledger: Option<Ledger>,
    pub(crate) counters: Vec<Counter>,
}

impl Worker {
    /// In its thread, before the path is released.
    pub(crate) fn prepare(&mut self, stop: &StopFlag) -> Result<(), Fault> {
        self.place()?;
        if let Some(outlet) = &mut self.outlet {
            outlet.prepare(self.makes.0, self.makes.1)?;
        }
        match &mut self.role {
            Role::Source(from) => {
                from.source.heed(stop);
                without_timer_slack();
                from.source.prepare()
            }
            Role::Sink(into) => into.sink.prepare(),
            Role::Look(look) => {
                look.prepare();
                Ok(())
            }
            Role::Card(from) => {
                from.stop = stop.clone();
                Ok(())
            }
            Role::Turn(_) | Role::Out(..) | Role::In(..) | Role::Receiver(_) => Ok(()),
        }
    }

    /// Goes to its CPU, where it has one.
    fn place(&mut self) -> Result<(), Fault> {
        match (self.thread.cpu, &self.role) {
            (Some(cpu), _) => drop(affinity::pin_to(cpu)?),
            // It works in a lane, which is where it is to be.
            (None, Role::Card(_)) => {
                if let [cpu] = affinity::allowed_cpus()?[..] {
                    self.thread.cpu = Some(cpu);
                }
            }
            // Threads inherit the mask of the one that made them.
            (None, _) => affinity::unpin(),
        }
        Ok(())
    }

    /// Until there is nothing more to do.
    pub(crate) fn run(&mut self, shared: &Shared, account: &mut Account) -> Result<(), Fault> {
        let change = self.change;
        match (&mut self.role, &mut self.inlet, &mut self.outlet) {
            (Role::Source(from), _, Some(outlet)) => from.run(outlet, shared, account, change),
            (Role::Look(look), Some(inlet), Some(outlet)) => {
                run_look(look.as_mut(), inlet, outlet, account, change)
            }
            (Role::Turn(turn), Some(inlet), Some(outlet)) => {
                run_turn(turn.as_mut(), inlet, outlet, account, change)
            }
            (Role::Out(out, labels), Some(inlet), _) => {
                run_out(out.as_mut(), labels, inlet, account, change)
            }
            (Role::In(inward, labels), _, Some(outlet)) => {
                run_in(inward.as_mut(), labels, outlet, account)
            }
            (Role::Sink(into), Some(inlet), _) => into.run(inlet, shared, account, change),
            (Role::Card(from), ..) => {
                from.run(shared, account);
                Ok(())
            }
            (Role::Receiver(into), ..) => into.run(shared, account),
            _ => Err(Fault::new("a thread without its ends: a bug in daqmeter")),
        }
    }

    /// What it counted.
    pub(crate) fn left(&mut self) -> Left {
        let seen = self.inlet.as_ref().map(|inlet| inlet.seen.clone());
        let mut left = Left {
            seen: seen.unwrap_or_default(),
            ..Left::default()
        };
        match &mut self.role {
            Role::Source(from) => {
                left.issued = Some(Issued {
                    stream: from.stream,
                    issued: from.issued,
                    lost: from.lost,
                    ledger: from.source.ledger(),
                    counters: from.source.counters(),
                });
            }
            Role::Sink(into) => left.arrived = Some(into.arrived.clone()),
            Role::Card(from) => left.read = from.done.take().map(Box::new),
            Role::Receiver(into) => left.received = into.done.take().map(Box::new),
            Role::Look(_) | Role::Turn(_) | Role::Out(..) | Role::In(..) => {}
        }
        left
    }

    /// The thread with its times.
    pub(crate) fn accounted(&self, account: &Account) -> PathThread {
        let thread = account.end(self.thread.clone());
        match &self.role {
            Role::Card(_) | Role::Receiver(_) => waits_for_input(thread),
            Role::Source(from) => PathThread {
                no_room_ns: from.room.longest_ns,
                ..thread
            },
            _ => thread,
        }
    }
}

impl FromSource {
    pub(crate) fn new(
        source: Box<dyn Source>,
        stream: usize,
        block_bytes: usize,
        first_key: usize,
    ) -> FromSource {
        FromSource {
            source,
            stream,
            block_bytes,
            first_key,
            issued: 0,
            lost: 0,
            room: Room::default(),
        }
    }

    fn run(
        &mut self,
        outlet: &mut Outlet,
        shared: &Shared,
        account: &mut Account,
        change: Change,
    ) -> Result<(), Fault> {
        let begin_ns = shared.begin_ns.load(Ordering::Acquire);
        let end_ns = begin_ns.saturating_add(shared.time_ns);
        let mut sequence = 0;
        while self.issued < shared.most_blocks && !shared.is_over.load(Ordering::Relaxed) {
            let due_ns = due(begin_ns, self.issued, shared.rate_hz);
            // However late its thread runs, there is one block at least.
            if self.issued > 0 && due_ns.unwrap_or_else(monotonic_ns) >= end_ns {
                break;
            }
            if let Some(due_ns) = due_ns.filter(|&due_ns| monotonic_ns() < due_ns) {
                account.wait(Side::Due, || wait_until(due_ns, &shared.is_over));
            }
            // Whatever waits from now on, the block was due: that is in its latency, or it is lost.
            let due_ns = due_ns.unwrap_or_else(monotonic_ns);
            let tried = outlet.try_empty();
            let has_waited = matches!(tried, Found::Nothing);
            let block = match tried {
                Found::Nothing if !shared.lossless && shared.rate_hz.is_some() => {
                    self.issued += 1;
                    self.lost += 1;
                    self.room.lost(due_ns);
                    continue;
                }
                Found::Block(block) => Some(block),
                Found::Closed => None,
                Found::Nothing => outlet.empty(account),
            };
            let Some(mut block) = block else { break };
            self.room
                .found(due_ns, has_waited && shared.rate_hz.is_some());
            // A stream without a rate that waited too long for room has no block due any more.
            if self.issued > 0 && shared.rate_hz.is_none() && monotonic_ns() >= end_ns {
                break;
            }
            block.label.sequence = sequence;
            block.label.due_ns = due_ns;
            self.fill(&mut block, change)?;
            change.added.work();
            self.issued += 1;
            sequence += 1;
            account.blocks += 1;
            if outlet.send(block).is_err() {
                break;
            }
        }
        Ok(())
    }

    fn fill(&mut self, block: &mut Block, change: Change) -> Result<(), Fault> {
        if change.is_left_out && block.label.bytes > 0 {
            block.label.events = 0;
            block.label.stream = self.stream;
            return Ok(());
        }
        let bytes = self.block_bytes;
        let filled = self.source.fill(block.buffer.slice_mut(bytes))?;
        block.label = Label {
            bytes,
            payload_bytes: bytes as u64,
            events: filled.events,
            key: filled.key.map(|key| self.first_key + key),
            due_ns: filled.ready_ns.unwrap_or(block.label.due_ns),
            stream: self.stream,
            sequence: block.label.sequence,
        };
        Ok(())
    }
}

/// When the next block is due, where there is a rate.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a time of a run, in nanoseconds"
)]
fn due(begin_ns: u64, at: u64, rate_hz: Option<f64>) -> Option<u64> {
    rate_hz.map(|hz| begin_ns.saturating_add((at as f64 / hz * 1e9) as u64))
}

/// Longest sleep, so that a signal is seen.
const LONGEST_SLEEP_NS: u64 = 50_000_000;

fn wait_until(due_ns: u64, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        let now_ns = monotonic_ns();
        if now_ns >= due_ns {
            return;
        }
        sleep_until(due_ns.min(now_ns + LONGEST_SLEEP_NS));
    }
}

/// The block goes on as it is; an empty one from behind goes back in its place.
fn run_look(
    look: &mut dyn Look,
    inlet: &mut Inlet,
    outlet: &mut Outlet,
    account: &mut Account,
    change: Change,
) -> Result<(), Fault> {
    while let Some((at, mut block)) = inlet.next(account) {
        if !change.is_left_out {
            block.label.events += look.look(block.bytes())?;
        }
        change.added.work();
        let Some(empty) = outlet.empty(account) else {
            break;
        };
        inlet.give_back(at, empty);
        account.blocks += 1;
        if outlet.send(block).is_err() {
            break;
        }
    }
    Ok(())
}

fn run_turn(
    turn: &mut dyn Turn,
    inlet: &mut Inlet,
    outlet: &mut Outlet,
    account: &mut Account,
    change: Change,
) -> Result<(), Fault> {
    while let Some((at, block)) = inlet.next(account) {
        let Some(mut out) = outlet.empty(account) else {
            break;
        };
        // A buffer that was filled before holds what was made of the block with that key.
        let (bytes, key) = match change.is_left_out && out.label.bytes > 0 {
            true => (out.label.bytes, out.label.key),
            false => {
                let bytes = turn.turn(&block.buffer, block.label.bytes, &mut out.buffer)?;
                (bytes, block.label.key)
            }
        };
        out.label = Label {
            bytes,
            key,
            ..block.label
        };
        change.added.work();
        inlet.give_back(at, block);
        account.blocks += 1;
        if outlet.send(out).is_err() {
            break;
        }
    }
    Ok(())
}

fn run_out(
    out: &mut dyn Outward,
    labels: &mut Option<SyncSender<Label>>,
    inlet: &mut Inlet,
    account: &mut Account,
    change: Change,
) -> Result<(), Fault> {
    let labels = labels.take();
    while let (Some((at, block)), Some(labels)) = (inlet.next(account), &labels) {
        let label = block.label;
        let is_known = match labels.try_send(label) {
            Ok(()) => true,
            Err(TrySendError::Full(label)) => {
                account.wait(Side::Output, || labels.send(label).is_ok())
            }
            Err(TrySendError::Disconnected(_)) => false,
        };
        if !is_known {
            break;
        }
        out.write(block.bytes())?;
        change.added.work();
        inlet.give_back(at, block);
        account.blocks += 1;
    }
    out.end();
    Ok(())
}

fn run_in(
    inward: &mut dyn Inward,
    labels: &mut Labels,
    outlet: &mut Outlet,
    account: &mut Account,
) -> Result<(), Fault> {
    loop {
        let label = match labels.try_recv() {
            Ok(label) => label,
            Err(TryRecvError::Disconnected) => break,
            Err(TryRecvError::Empty) => match account.wait(Side::Input, || labels.recv()) {
                Ok(label) => label,
                Err(_) => break,
            },
        };
        let Some(mut block) = outlet.empty(account) else {
            break;
        };
        inward.read(block.buffer.slice_mut(label.bytes))?;
        block.label = label;
        account.blocks += 1;
        if outlet.send(block).is_err() {
            break;
        }
    }
    Ok(())
}

impl IntoSink {
    pub(crate) fn new(sink: Box<dyn Sink>, streams: usize) -> IntoSink {
        IntoSink {
            sink,
            arrived: Arrived {
                delivered: vec![0; streams],
                ..Arrived::default()
            },
        }
    }

    fn run(
        &mut self,
        inlet: &mut Inlet,
        shared: &Shared,
        account: &mut Account,
        change: Change,
    ) -> Result<(), Fault> {
        while let Some((at, block)) = inlet.next(account) {
            let sum = match change.is_left_out {
                true => None,
                false => self.sink.take(&block)?,
            };
            change.added.work();
            self.arrived.book(&block.label, sum, shared)?;
            inlet.give_back(at, block);
            account.blocks += 1;
        }
        self.arrived.verified += self.sink.check(&shared.expected.all)?;
        Ok(())
    }
}

impl Arrived {
    fn book(&mut self, label: &Label, sum: Option<u64>, shared: &Shared) -> Result<(), Fault> {
        let Label {
            stream, sequence, ..
        } = *label;
        if sequence != self.delivered[stream] {
            return Err(Fault::new(format!(
                "stream {stream}: block {sequence} came where {} was next",
                self.delivered[stream]
            )));
        }
        let expected = label.key.and_then(|key| shared.expected.all.get(key));
        if let (Some(found), Some(&expected)) = (sum, expected) {
            if found != expected {
                return Err(Fault::new(format!(
                    "stream {stream}: block {sequence} has wrong bytes: their sum is {found:#x}, not {expected:#x}"
                )));
            }
            self.verified += 1;
        }
        self.delivered[stream] += 1;
        self.payload_bytes += label.payload_bytes;
        self.events += label.events;
        let late_ns = monotonic_ns().saturating_sub(label.due_ns);
        self.latency_ns.add(late_ns);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_time_without_room_counts_from_the_first_block_that_found_none() {
        let ago = |ns: u64| monotonic_ns() - ns;
        let mut room = Room::default();
        room.found(ago(9_000_000_000), false);
        assert_eq!(room.longest_ns, 0, "late, but there was room at once");
        room.found(ago(1_000_000), true);
        let waited_ns = room.longest_ns;
        assert!(waited_ns >= 1_000_000);
        room.lost(ago(3_000_000_000));
        room.lost(ago(0));
        assert!(room.longest_ns >= 3_000_000_000);
        room.found(ago(0), false);
        let longest_ns = room.longest_ns;
        room.lost(ago(0));
        assert_eq!(room.longest_ns, longest_ns, "there was room in between");
    }
}
