//! The threads of a path. Each takes, works and hands on until the ring before it or behind it
//! ends. A failure is one fault; its ends close, so that the others end, too.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, TryRecvError, TrySendError};

use daqmeter_harness::{Fault, StopFlag};
use daqmeter_readout::chain::{CpuLoad, ReaderDone};
use daqmeter_readout::receive::Report;
use daqmeter_record::path::PathThread;
use daqmeter_record::{Counter, Ledger};
use daqmeter_stats::LogHistogram;
use daqmeter_sys::affinity;
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::wait::{sleep_until, without_timer_slack};

use crate::account::{Account, Side};
use crate::added_work::Change;
use crate::card::{FromCard, IntoReceiver, waits_for_input};
use crate::element::{
    Block, BlockReceiver, BlockSender, Confirmed, ConnectionStats, Label, Labels, Sink, Source,
    StageWork,
};
use crate::ring::Found;
use crate::ring::{Inlet, Outlet};
use crate::shared::Shared;

pub(crate) enum Role {
    Source(FromSource),
    Stage(StageWork),
    Out(Box<dyn BlockSender>, Option<SyncSender<Label>>),
    In(FromReceiver),
    Sink(IntoSink),
    Card(Box<FromCard>),
    Receiver(Box<IntoReceiver>),
}

pub(crate) struct FromSource {
    pub(crate) source: Box<dyn Source>,
    pub(crate) stream: usize,
    pub(crate) block_bytes: usize,
    /// Index of this stream's first contents among all that are known.
    pub(crate) first_key: usize,
    pub(crate) issued: u64,
    pub(crate) lost: u64,
    room: Room,
}

/// Duration for which due blocks found no room.
#[derive(Clone, Copy, Debug, Default)]
struct Room {
    /// Due time of the first block that was lost since there was room.
    lost_since_ns: Option<u64>,
    longest_ns: u64,
}

impl Room {
    fn found(&mut self, due_ns: u64, has_waited: bool) {
        self.lost_since_ns = None;
        if has_waited {
            self.add(due_ns);
        }
    }

    fn lost(&mut self, due_ns: u64) {
        let since_ns = *self.lost_since_ns.get_or_insert(due_ns);
        self.add(since_ns);
    }

    fn add(&mut self, since_ns: u64) {
        let missing_ns = monotonic_ns().saturating_sub(since_ns);
        self.longest_ns = self.longest_ns.max(missing_ns);
    }
}

pub(crate) struct FromReceiver {
    pub(crate) inward: Box<dyn BlockReceiver>,
    pub(crate) labels: Labels,
    lost: Vec<u64>,
}

pub(crate) struct IntoSink {
    pub(crate) sink: Box<dyn Sink>,
    pub(crate) arrived: Arrived,
    next: Vec<u64>,
    /// True if blocks may be missing, for which others account.
    may_miss: bool,
    /// Reason for which blocks that it took are not delivered.
    missing: Option<&'static str>,
    /// Blocks of each stream that it took and that are not delivered.
    lost: Vec<u64>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Arrived {
    pub(crate) delivered: Vec<u64>,
    /// All blocks, also without a confirmation.
    pub(crate) blocks: u64,
    pub(crate) payload_bytes: u64,
    pub(crate) events: u64,
    pub(crate) verified: u64,
    pub(crate) latency_ns: LogHistogram,
}

pub(crate) struct Worker {
    pub(crate) thread: PathThread,
    pub(crate) role: Role,
    pub(crate) inlet: Option<Inlet>,
    pub(crate) outlet: Option<Outlet>,
    /// Blocks that it makes for the ring behind it, and their bytes.
    pub(crate) makes: (usize, usize),
    pub(crate) change: Change,
}

#[derive(Default)]
pub(crate) struct Remainder {
    pub(crate) seen: Vec<Vec<u64>>,
    pub(crate) issued: Option<Issued>,
    pub(crate) arrived: Option<Arrived>,
    pub(crate) sink: Option<Box<dyn Sink>>,
    /// Reason for which blocks were lost on the way, and the number of each stream.
    pub(crate) lost: Option<(&'static str, Vec<u64>)>,
    pub(crate) remarks: ConnectionStats,
    pub(crate) read: Option<Box<ReaderDone>>,
    pub(crate) received: Option<Box<(Report, CpuLoad)>>,
}

#[derive(Debug)]
pub(crate) struct Issued {
    pub(crate) stream: usize,
    pub(crate) issued: u64,
    pub(crate) lost: u64,
    pub(crate) ledger: Option<Ledger>,
    pub(crate) counters: Vec<Counter>,
}

impl Worker {
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
            Role::Stage(StageWork::Inspect(inspect)) => {
                inspect.prepare();
                Ok(())
            }
            Role::Card(from) => {
                from.stop = stop.clone();
                Ok(())
            }
            Role::Out(out, _) => out.prepare(),
            Role::Stage(_) | Role::In(_) | Role::Receiver(_) => Ok(()),
        }
    }

    fn place(&mut self) -> Result<(), Fault> {
        match (self.thread.cpu, &self.role) {
            (Some(cpu), _) => drop(affinity::pin_to(cpu)?),
            // It works in a lane, which has its CPU.
            (None, Role::Card(_)) => {
                if let [cpu] = affinity::allowed_cpus()?[..] {
                    self.thread.cpu = Some(cpu);
                }
            }
            // Threads inherit the mask of the thread that made them.
            (None, _) => affinity::unpin(),
        }
        Ok(())
    }

    pub(crate) fn run(&mut self, shared: &Shared, account: &mut Account) -> Result<(), Fault> {
        let change = self.change;
        match (&mut self.role, &mut self.inlet, &mut self.outlet) {
            (Role::Source(from), _, Some(outlet)) => from.run(outlet, shared, account, change),
            (Role::Stage(work), Some(inlet), Some(outlet)) => {
                run_stage(work, inlet, outlet, account, change)
            }
            (Role::Out(out, labels), Some(inlet), _) => {
                run_out(out.as_mut(), labels, inlet, account, change)
            }
            (Role::In(back), _, Some(outlet)) => back.run(outlet, shared, account),
            (Role::Sink(into), Some(inlet), _) => into.run(inlet, shared, account, change),
            (Role::Card(from), ..) => {
                from.run(shared, account);
                Ok(())
            }
            (Role::Receiver(into), ..) => into.run(shared, account),
            _ => Err(Fault::new("a thread without its ends: a bug in daqmeter")),
        }
    }

    /// Returns the counts, and the ends of the rings, which close when they are dropped.
    pub(crate) fn left(self) -> (Remainder, (Option<Inlet>, Option<Outlet>)) {
        let seen = self.inlet.as_ref().map(|inlet| inlet.seen.clone());
        let mut left = Remainder { seen: seen.unwrap_or_default(), ..Remainder::default() };
        match self.role {
            Role::Source(mut from) => {
                left.issued = Some(Issued {
                    stream: from.stream,
                    issued: from.issued,
                    lost: from.lost,
                    ledger: from.source.ledger(),
                    counters: from.source.counters(),
                });
            }
            Role::Sink(into) => {
                left.arrived = Some(into.arrived);
                left.lost = into.missing.map(|why| (why, into.lost));
                left.remarks = into.sink.remarks();
                left.sink = Some(into.sink);
            }
            Role::Out(out, _) => left.remarks = out.remarks(),
            Role::In(back) => {
                left.lost = back.inward.loses().map(|why| (why, back.lost));
                left.remarks = back.inward.remarks();
            }
            Role::Card(from) => left.read = from.done.map(Box::new),
            Role::Receiver(into) => left.received = into.done.map(Box::new),
            Role::Stage(_) => {}
        }
        (left, (self.inlet, self.outlet))
    }

    pub(crate) fn accounted(&self, account: &Account) -> PathThread {
        let thread = account.end(self.thread.clone());
        match &self.role {
            Role::Card(_) | Role::Receiver(_) => waits_for_input(thread),
            Role::Source(from) => PathThread { no_room_ns: from.room.longest_ns, ..thread },
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
            // A late thread makes one block at least.
            if self.issued > 0 && due_ns.unwrap_or_else(monotonic_ns) >= end_ns {
                break;
            }
            if let Some(due_ns) = due_ns.filter(|&due_ns| monotonic_ns() < due_ns) {
                account.wait(Side::Due, || wait_until(due_ns, &shared.is_over));
            }
            // The block was due: a wait from now on is in its latency, or it is lost.
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
            self.room.found(due_ns, has_waited && shared.rate_hz.is_some());
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

/// Due time of the next block, if there is a rate.
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

/// Runs a stage in place: it waits for room after its work, and hands its block on for an empty
/// one.
fn run_stage(
    work: &mut StageWork,
    inlet: &mut Inlet,
    outlet: &mut Outlet,
    account: &mut Account,
    change: Change,
) -> Result<(), Fault> {
    while let Some((at, mut block)) = inlet.next(account) {
        if let StageWork::Inspect(inspect) = work {
            if !change.is_left_out {
                block.label.events += inspect.inspect(block.bytes())?;
            }
            change.added.work();
        }
        let Some(mut empty) = outlet.empty(account) else {
            break;
        };
        if let StageWork::Transform(transform) = work {
            // A buffer that was filled before holds the output for the block with that key.
            let (bytes, key) = match change.is_left_out && empty.label.bytes > 0 {
                true => (empty.label.bytes, empty.label.key),
                false => {
                    let (from, bytes) = (&block.buffer, block.label.bytes);
                    (transform.transform(from, bytes, &mut empty.buffer)?, block.label.key)
                }
            };
            empty.label = Label { bytes, key, ..block.label };
            change.added.work();
            std::mem::swap(&mut block, &mut empty);
        }
        inlet.give_back(at, empty);
        account.blocks += 1;
        if outlet.send(block).is_err() {
            break;
        }
    }
    Ok(())
}

fn run_out(
    out: &mut dyn BlockSender,
    labels: &mut Option<SyncSender<Label>>,
    inlet: &mut Inlet,
    account: &mut Account,
    change: Change,
) -> Result<(), Fault> {
    let labels = labels.take();
    let mut held = VecDeque::new();
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
        held.push_back((at, block));
        let most = inlet.most_held();
        give_back(&mut held, out.unfinished(most)?, inlet);
        account.blocks += 1;
    }
    give_back(&mut held, out.unfinished(0)?, inlet);
    out.end();
    Ok(())
}

/// Gives back blocks that are not read any more, the oldest first: all but `unfinished`.
fn give_back(held: &mut VecDeque<(usize, Block)>, unfinished: usize, inlet: &mut Inlet) {
    let done = held.len().saturating_sub(unfinished);
    for (at, block) in held.drain(..done) {
        inlet.give_back(at, block);
    }
}

fn count(of: &mut Vec<u64>, stream: usize, blocks: u64) {
    if of.len() <= stream {
        of.resize(stream + 1, 0);
    }
    of[stream] += blocks;
}

impl FromReceiver {
    pub(crate) fn new(inward: Box<dyn BlockReceiver>, labels: Labels) -> FromReceiver {
        FromReceiver { inward, labels, lost: Vec::new() }
    }

    fn run(
        &mut self,
        outlet: &mut Outlet,
        shared: &Shared,
        account: &mut Account,
    ) -> Result<(), Fault> {
        // Room for a block that did not come is room for the next.
        let mut room = None;
        while let Some(label) = self.label(account) {
            let Some(mut block) = room.take().or_else(|| outlet.empty(account)) else {
                break;
            };
            if !self.inward.read(block.buffer.slice_mut(label.bytes))? {
                self.is_lost(&label, shared)?;
                room = Some(block);
                continue;
            }
            block.label = label;
            account.blocks += 1;
            if outlet.send(block).is_err() {
                break;
            }
        }
        Ok(())
    }

    fn label(&mut self, account: &mut Account) -> Option<Label> {
        match self.labels.try_recv() {
            Ok(label) => Some(label),
            Err(TryRecvError::Disconnected) => None,
            Err(TryRecvError::Empty) => account.wait(Side::Input, || self.labels.recv()).ok(),
        }
    }

    fn is_lost(&mut self, label: &Label, shared: &Shared) -> Result<(), Fault> {
        count(&mut self.lost, label.stream, 1);
        match shared.lossless {
            false => Ok(()),
            true => Err(lost(1, self.inward.loses().unwrap_or("lost"))),
        }
    }
}

/// Fault of a loss on a path that must not lose anything.
fn lost(blocks: u64, why: &str) -> Fault {
    Fault::new(format!(
        "blocks were {why}, {blocks} so far: give the path a lower rate, or write lossless = false where losses are to be counted"
    ))
}

impl IntoSink {
    pub(crate) fn new(sink: Box<dyn Sink>, streams: usize, may_miss: bool) -> IntoSink {
        IntoSink {
            missing: sink.loses(),
            sink,
            arrived: Arrived { delivered: vec![0; streams], ..Arrived::default() },
            next: vec![0; streams],
            may_miss,
            lost: Vec::new(),
        }
    }

    fn run(
        &mut self,
        inlet: &mut Inlet,
        shared: &Shared,
        account: &mut Account,
        change: Change,
    ) -> Result<(), Fault> {
        let ran = self.take_all(inlet, shared, account, change).and_then(|()| self.sink.confirm());
        match (ran, self.sink.unconfirmed()) {
            (Ok(confirmed), _) => self.close(&confirmed, shared),
            (Err(fault), Some(why)) => {
                // They were sent: their bytes and times stay.
                self.missing = Some(why);
                self.lost = std::mem::take(&mut self.arrived.delivered);
                self.arrived.delivered = vec![0; self.lost.len()];
                Err(fault)
            }
            (Err(fault), None) => Err(fault),
        }
    }

    fn take_all(
        &mut self,
        inlet: &mut Inlet,
        shared: &Shared,
        account: &mut Account,
        change: Change,
    ) -> Result<(), Fault> {
        let mut held = VecDeque::new();
        while let Some((at, block)) = inlet.next(account) {
            let expected = block.label.key;
            let expected = expected.and_then(|key| shared.expected.all.get(key).copied());
            let sum = match change.is_left_out {
                true => None,
                false => self.sink.take(&block, expected)?,
            };
            change.added.work();
            self.is_next(&block.label)?;
            self.arrived.book(&block.label, sum, expected)?;
            held.push_back((at, block));
            let most = inlet.most_held();
            give_back(&mut held, self.sink.unfinished(most)?, inlet);
            account.blocks += 1;
        }
        give_back(&mut held, self.sink.unfinished(0)?, inlet);
        Ok(())
    }

    fn is_next(&mut self, label: &Label) -> Result<(), Fault> {
        let next = &mut self.next[label.stream];
        let (stream, sequence) = (label.stream, label.sequence);
        if sequence < *next || (sequence > *next && !self.may_miss) {
            return Err(Fault::new(format!(
                "stream {stream}: block {sequence} came where {next} was next"
            )));
        }
        *next = sequence + 1;
        Ok(())
    }

    /// Subtracts the blocks lost behind the sink from those that arrived.
    fn close(&mut self, confirmed: &Confirmed, shared: &Shared) -> Result<(), Fault> {
        let arrived = &mut self.arrived;
        arrived.verified += confirmed.verified;
        // All blocks of a path have the same payload.
        let each_bytes = arrived.payload_bytes / arrived.blocks.max(1);
        let streams = confirmed.lost.iter().enumerate();
        for (stream, &(blocks, events)) in streams.filter(|(_, (blocks, _))| *blocks > 0) {
            count(&mut self.lost, stream, blocks);
            arrived.delivered[stream] -= blocks;
            arrived.blocks -= blocks;
            arrived.events -= events;
            arrived.payload_bytes -= blocks * each_bytes;
        }
        let all: u64 = self.lost.iter().sum();
        match all > 0 && shared.lossless {
            true => Err(lost(all, self.missing.unwrap_or("lost"))),
            false => Ok(()),
        }
    }
}

impl Arrived {
    fn book(
        &mut self,
        label: &Label,
        sum: Option<u64>,
        expected: Option<u64>,
    ) -> Result<(), Fault> {
        let Label { stream, sequence, .. } = *label;
        if let Some((found, expected)) = sum.zip(expected) {
            if found != expected {
                return Err(Fault::new(format!(
                    "stream {stream}: block {sequence} has wrong bytes: their sum is {found:#x}, not {expected:#x}"
                )));
            }
            self.verified += 1;
        }
        self.delivered[stream] += 1;
        self.blocks += 1;
        self.payload_bytes += label.payload_bytes;
        self.events += label.events;
        let late_ns = monotonic_ns().saturating_sub(label.due_ns);
        self.latency_ns.add(late_ns);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc::sync_channel;
    use std::sync::{Arc, Mutex};

    use daqmeter_sys::memory::{Buffer, Pages};

    use super::*;
    use crate::ring::ring;

    /// Reads blocks long after they were written: the oldest only when it must.
    #[derive(Default)]
    struct Late {
        unfinished: usize,
        finished: Arc<AtomicUsize>,
        asked: Arc<Mutex<Vec<usize>>>,
    }

    impl BlockSender for Late {
        fn write(&mut self, _bytes: &[u8]) -> Result<(), Fault> {
            self.unfinished += 1;
            Ok(())
        }

        fn unfinished(&mut self, most: usize) -> Result<usize, Fault> {
            let done = self.unfinished.saturating_sub(most);
            self.unfinished -= done;
            self.finished.fetch_add(done, Ordering::Relaxed);
            self.asked.lock().unwrap().push(most);
            Ok(self.unfinished)
        }

        fn end(&mut self) {}
    }

    #[test]
    fn a_block_is_used_again_only_when_nobody_reads_it_any_more() {
        const BUFFERS: usize = 3;
        const BLOCKS: usize = 20;
        let (mut producer, consumer) = ring(BUFFERS);
        for _ in 0..BUFFERS {
            let buffer = Buffer::new(64, Pages::Base).unwrap();
            let label = Label { bytes: 64, ..Label::default() };
            producer.put_in(Block { buffer, label });
        }
        let mut late = Late::default();
        let (finished, asked) = (late.finished.clone(), late.asked.clone());
        let sends = std::thread::spawn(move || {
            for sent in 0..BLOCKS {
                let block = match producer.try_empty() {
                    Found::Block(block) => block,
                    _ => producer.wait_empty().unwrap(),
                };
                // All blocks sent so far, less those in the ring or still read.
                let again = (sent + 1).saturating_sub(BUFFERS);
                assert!(finished.load(Ordering::Relaxed) >= again, "block {sent}");
                producer.send(block).unwrap();
            }
        });
        let (labels_in, labels) = sync_channel(BLOCKS);
        let mut inlet = Inlet::new(vec![consumer], BUFFERS);
        let (mut account, mut out) = (Account::begin(), Some(labels_in));
        let change = Change::default();
        run_out(&mut late, &mut out, &mut inlet, &mut account, change).unwrap();
        sends.join().unwrap();
        assert_eq!((account.blocks, late.unfinished), (BLOCKS as u64, 0));
        assert_eq!(labels.iter().count(), BLOCKS);
        // While there are more blocks one goes round, and at the end none is read.
        let asked = asked.lock().unwrap();
        assert!(asked[..BLOCKS].iter().all(|most| *most == BUFFERS - 1));
        assert_eq!(asked[BLOCKS], 0);
    }

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
