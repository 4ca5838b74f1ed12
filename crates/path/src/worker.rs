//! The threads of a path. Each takes, works and hands on until the ring before it or behind it
//! ends. A failure is one fault; its ends close, so that the others end, too.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, TrySendError};

use daqmeter_harness::{Fault, StopFlag};
use daqmeter_record::path::{PathQueue, PathRun, PathThread};
use daqmeter_record::units::whole;
use daqmeter_stats::LogHistogram;
use daqmeter_sys::affinity;
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::wait::{sleep_until, without_timer_slack};

use crate::account::{Account, Side};
use crate::added_work::Spin;
use crate::card::{FromCard, IntoReceiver};
use crate::element::{
    Block, BlockReceiver, BlockSender, Confirmed, Inspect, Label, Sink, Source, Transform,
};
use crate::ring::{Inlet, Outlet};
use crate::shared::Shared;

pub(crate) enum Role {
    Source(FromSource),
    Inspect(Box<dyn Inspect>),
    Transform(Box<dyn Transform>),
    /// Sends blocks away, and their labels to the thread that receives them, until it ends.
    Out(Option<(Box<dyn BlockSender>, SyncSender<Label>)>),
    In(Box<dyn BlockReceiver>, Option<Receiver<Label>>),
    Sink(Box<IntoSink>),
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
}

pub(crate) struct IntoSink {
    pub(crate) sink: Box<dyn Sink>,
    /// All blocks that came, also without a confirmation.
    pub(crate) run: PathRun,
    pub(crate) latency_ns: LogHistogram,
    /// Time at which the last block came; 0 before the first.
    last_ns: u64,
    /// Blocks of each stream.
    pub(crate) delivered: Vec<u64>,
    /// Reason for which blocks that it took are not delivered.
    pub(crate) missing: Option<&'static str>,
    /// Blocks of each stream that it took and that are not delivered.
    pub(crate) lost: Vec<u64>,
}

pub(crate) struct Worker {
    /// Its place among all threads.
    pub(crate) at: usize,
    pub(crate) thread: PathThread,
    pub(crate) role: Role,
    pub(crate) inlet: Option<Inlet>,
    pub(crate) outlet: Option<Outlet>,
    /// Work that is added to each block.
    pub(crate) added: Spin,
    pub(crate) shared: Arc<Shared>,
    pub(crate) done: Sender<Done>,
}

/// Result of a thread: its role has what it did.
pub(crate) struct Done {
    pub(crate) at: usize,
    pub(crate) role: Role,
    /// Rings before it.
    pub(crate) queues: Vec<PathQueue>,
    pub(crate) thread: PathThread,
    pub(crate) fault: Option<Fault>,
}

impl Worker {
    /// Works in a thread of its own, once it is released.
    pub(crate) fn live(mut self, ready: &Sender<Result<(), Fault>>, stop: &StopFlag) {
        // The receiver is gone if another thread was not ready.
        let _ = ready.send(self.prepare(stop));
        let shared = self.shared.clone();
        if shared.begin_ns.wait().is_some() {
            self.work();
            shared.may_end.wait();
        }
    }

    pub(crate) fn work(mut self) {
        let mut account = Account::begin(self.thread.clone());
        let fault = match catch_unwind(AssertUnwindSafe(|| self.run(&mut account))) {
            Ok(Ok(())) => None,
            Ok(Err(fault)) => Some(fault.context(&self.thread.name)),
            Err(_) => Some(Fault::new(format!(
                "{}: a bug in daqmeter: its thread panicked",
                self.thread.name
            ))),
        };
        self.finish(account.end(), fault);
    }

    /// Reports the fault before the ends close: the neighbours' faults are its consequences.
    fn finish(self, thread: PathThread, fault: Option<Fault>) {
        let Worker { at, role, inlet, outlet, shared, done, .. } = self;
        if fault.is_some() {
            shared.is_over.store(true, Ordering::Relaxed);
        }
        let queues = inlet.iter().flat_map(Inlet::queues).cloned().collect();
        // The run waits for all threads, and so for this one.
        let _ = done.send(Done { at, role, queues, thread, fault });
        drop((inlet, outlet));
    }

    pub(crate) fn prepare(&mut self, stop: &StopFlag) -> Result<(), Fault> {
        self.place()?;
        if let Some(outlet) = &mut self.outlet {
            outlet.prepare()?;
        }
        match &mut self.role {
            Role::Source(from) => {
                from.source.heed(stop);
                without_timer_slack();
                from.source.prepare()?;
            }
            Role::Sink(into) => into.sink.prepare()?,
            Role::Inspect(inspect) => inspect.prepare(),
            Role::Card(from) => from.stop = stop.clone(),
            _ => {}
        }
        Ok(())
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

    fn run(&mut self, account: &mut Account) -> Result<(), Fault> {
        let Worker { role, inlet, outlet, added, shared, .. } = self;
        let ran = match (&mut *role, inlet, outlet) {
            (Role::Source(from), _, Some(outlet)) => from.run(outlet, shared, account, *added),
            (Role::In(inward, Some(labels)), _, Some(outlet)) => {
                receive(inward, labels, outlet, account)
            }
            (Role::Card(from), ..) => from.run(shared, account),
            (Role::Receiver(into), ..) => into.run(shared, account),
            (role, Some(inlet), outlet) => {
                role.take_all(inlet, outlet.as_mut(), shared, account, *added)
            }
            _ => Err(Fault::new("a thread without its ends: a bug in daqmeter")),
        };
        match role {
            Role::Out(out) => *out = None,
            Role::In(_, labels) => *labels = None,
            Role::Sink(into) => return into.end(ran, shared),
            _ => {}
        }
        ran
    }
}

impl FromSource {
    fn run(
        &mut self,
        outlet: &mut Outlet,
        shared: &Shared,
        account: &mut Account,
        added: Spin,
    ) -> Result<(), Fault> {
        let begin_ns = shared.begin_ns.get().copied().flatten().unwrap_or(0);
        let end_ns = begin_ns.saturating_add(shared.how.time_ns);
        let most_blocks = shared.how.most_blocks.unwrap_or(u64::MAX);
        let mut sequence = 0;
        while self.issued < most_blocks && !shared.is_over.load(Ordering::Relaxed) {
            let due_ns = due(begin_ns, self.issued, shared.how.rate_hz);
            // A late thread makes one block at least.
            if self.issued > 0 && due_ns.unwrap_or_else(monotonic_ns) >= end_ns {
                break;
            }
            if let Some(due_ns) = due_ns.filter(|&due_ns| monotonic_ns() < due_ns) {
                account.wait(Side::Due, || wait_until(due_ns, &shared.is_over));
            }
            // The block was due: a wait from now on is in its latency, or it is lost.
            let due_ns = due_ns.unwrap_or_else(monotonic_ns);
            let block = match outlet.try_empty() {
                Err(TryRecvError::Empty)
                    if !shared.how.lossless && shared.how.rate_hz.is_some() =>
                {
                    self.issued += 1;
                    self.lost += 1;
                    continue;
                }
                Ok(block) => Some(block),
                Err(TryRecvError::Disconnected) => None,
                Err(TryRecvError::Empty) => outlet.empty(account),
            };
            let Some(mut block) = block else { break };
            // A stream without a rate that waited too long for room has no block due any more.
            if self.issued > 0 && shared.how.rate_hz.is_none() && monotonic_ns() >= end_ns {
                break;
            }
            block.label.sequence = sequence;
            block.label.due_ns = due_ns;
            self.fill(&mut block)?;
            added.work();
            self.issued += 1;
            sequence += 1;
            account.done_block();
            if !outlet.send(block) {
                break;
            }
        }
        Ok(())
    }

    fn fill(&mut self, block: &mut Block) -> Result<(), Fault> {
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
fn due(begin_ns: u64, at: u64, rate_hz: Option<f64>) -> Option<u64> {
    rate_hz.map(|hz| begin_ns.saturating_add(whole(at as f64 / hz * 1e9)))
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

impl Role {
    /// Takes one block after the other and hands it on, until there is none or nobody takes it.
    fn take_all(
        &mut self,
        inlet: &mut Inlet,
        mut outlet: Option<&mut Outlet>,
        shared: &Shared,
        account: &mut Account,
        added: Spin,
    ) -> Result<(), Fault> {
        while let Some((at, block)) = inlet.next(account) {
            added.work();
            let Some(back) = self.hand_on(block, outlet.as_deref_mut(), shared, account)? else {
                break;
            };
            inlet.give_back(at, back);
            account.done_block();
        }
        Ok(())
    }

    /// Returns the block that goes back: a stage hands its own on for an empty one. `None` if
    /// nobody takes blocks any more.
    fn hand_on(
        &mut self,
        mut block: Block,
        outlet: Option<&mut Outlet>,
        shared: &Shared,
        account: &mut Account,
    ) -> Result<Option<Block>, Fault> {
        match (self, outlet) {
            (Role::Inspect(inspect), Some(outlet)) => {
                block.label.events += inspect.inspect(block.bytes())?;
                let empty = outlet.empty(account);
                Ok(empty.filter(|_| outlet.send(block)))
            }
            (Role::Transform(transform), Some(outlet)) => {
                let Some(mut made) = outlet.empty(account) else { return Ok(None) };
                let bytes = block.label.bytes;
                let bytes = transform.transform(&block.buffer, bytes, &mut made.buffer)?;
                made.label = Label { bytes, ..block.label };
                Ok(outlet.send(made).then_some(block))
            }
            (Role::Out(Some((out, labels))), _) => {
                let is_known = match labels.try_send(block.label) {
                    Ok(()) => true,
                    Err(TrySendError::Full(label)) => {
                        account.wait(Side::Output, || labels.send(label).is_ok())
                    }
                    Err(TrySendError::Disconnected(_)) => false,
                };
                if !is_known {
                    return Ok(None);
                }
                out.write(block.bytes())?;
                Ok(Some(block))
            }
            (Role::Sink(into), _) => {
                into.take(&block, shared)?;
                Ok(Some(block))
            }
            _ => Err(Fault::new("a thread that takes no blocks: a bug in daqmeter")),
        }
    }
}

fn receive(
    inward: &mut Box<dyn BlockReceiver>,
    labels: &Receiver<Label>,
    outlet: &mut Outlet,
    account: &mut Account,
) -> Result<(), Fault> {
    let next = |account: &mut Account| match labels.try_recv() {
        Ok(label) => Some(label),
        Err(TryRecvError::Disconnected) => None,
        Err(TryRecvError::Empty) => account.wait(Side::Input, || labels.recv().ok()),
    };
    while let Some(label) = next(account) {
        let Some(mut block) = outlet.empty(account) else { break };
        inward.read(block.buffer.slice_mut(label.bytes))?;
        block.label = label;
        account.done_block();
        if !outlet.send(block) {
            break;
        }
    }
    Ok(())
}

impl IntoSink {
    pub(crate) fn new(sink: Box<dyn Sink>, streams: usize) -> IntoSink {
        IntoSink {
            missing: sink.missing(true),
            sink,
            run: PathRun::default(),
            latency_ns: LogHistogram::default(),
            last_ns: 0,
            delivered: vec![0; streams],
            lost: vec![0; streams],
        }
    }

    fn take(&mut self, block: &Block, shared: &Shared) -> Result<(), Fault> {
        let Label { stream, sequence, key, .. } = block.label;
        let expected = key.and_then(|key| shared.expected.all.get(key).copied());
        let sum = self.sink.take(block, expected)?;
        let next = self.delivered[stream];
        if sequence != next {
            return Err(Fault::new(format!(
                "stream {stream}: block {sequence} came where {next} was next"
            )));
        }
        if let Some((found, expected)) = sum.zip(expected) {
            if found != expected {
                return Err(Fault::new(format!(
                    "stream {stream}: block {sequence} has wrong bytes: their sum is {found:#x}, not {expected:#x}"
                )));
            }
            self.run.verified_blocks += 1;
        }
        self.delivered[stream] += 1;
        self.run.blocks += 1;
        self.run.payload_bytes += block.label.payload_bytes;
        self.run.events += block.label.events;
        let now_ns = monotonic_ns();
        self.latency_ns.add(now_ns.saturating_sub(block.label.due_ns));
        let gap_ns = if self.last_ns > 0 { now_ns - self.last_ns } else { 0 };
        self.run.longest_gap_ns = self.run.longest_gap_ns.max(gap_ns);
        self.last_ns = now_ns;
        Ok(())
    }

    fn end(&mut self, ran: Result<(), Fault>, shared: &Shared) -> Result<(), Fault> {
        match (ran.and_then(|()| self.sink.confirm()), self.sink.missing(false)) {
            (Ok(confirmed), _) => self.close(&confirmed, shared),
            (Err(fault), unconfirmed) => {
                if unconfirmed.is_some() {
                    // They were sent: their bytes and times stay.
                    self.missing = unconfirmed;
                    std::mem::swap(&mut self.lost, &mut self.delivered);
                }
                Err(fault)
            }
        }
    }

    /// Subtracts the blocks lost behind the sink from those that arrived.
    fn close(&mut self, confirmed: &Confirmed, shared: &Shared) -> Result<(), Fault> {
        let run = &mut self.run;
        run.verified_blocks += confirmed.verified;
        // All blocks of a path have the same payload.
        let each_bytes = run.payload_bytes / run.blocks.max(1);
        let streams = confirmed.lost.iter().enumerate();
        for (stream, &(blocks, events)) in streams.filter(|(_, (blocks, _))| *blocks > 0) {
            self.lost[stream] += blocks;
            self.delivered[stream] -= blocks;
            run.blocks -= blocks;
            run.events -= events;
            run.payload_bytes -= blocks * each_bytes;
        }
        let all: u64 = self.lost.iter().sum();
        match all > 0 && shared.how.lossless {
            true => Err(Fault::new(format!(
                "blocks were {}, {all} so far: give the path a lower rate, or write lossless = false where losses are to be counted",
                self.missing.unwrap_or("lost")
            ))),
            false => Ok(()),
        }
    }
}
