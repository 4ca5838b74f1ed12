//! The threads of a path. Each takes, works and hands on until the ring before it or behind it
//! ends. A failure is one fault; its ends close, so that the others end, too.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, TrySendError, channel};

use daqmeter_harness::{Fault, StopFlag};
use daqmeter_record::path::{PathQueue, PathRun, PathThread, PathWithin};
use daqmeter_record::units::whole;
use daqmeter_stats::LogHistogram;
use daqmeter_sys::affinity;
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::wait::{sleep_until, without_timer_slack};

use crate::account::{Account, Side, halve, middle};
use crate::added_work::Spin;
use crate::element::{
    Block, BlockReceiver, BlockSender, Confirmed, Inspect, Label, Sink, Source, Transform,
};
use crate::ring::{Blocks, Inlet, Outlet};
use crate::shared::{How, Share, Shared};

/// Work of a reader or a receiver of a card in its thread, to its end.
pub(crate) type CardWork =
    Box<dyn FnMut(&StopFlag, &Shared, &mut Account) -> Result<(), Fault> + Send>;

/// What gives a thread its blocks.
pub(crate) enum Feed {
    Sources(Sources),
    /// The rings before it.
    Ring(Inlet),
    /// The far end of a stage, with the labels of the blocks that went in.
    Back(BlockReceiver, Receiver<Label>),
    /// A reader or receiver of a card, which has no blocks of the path.
    Card(CardWork, StopFlag),
    /// It has ended.
    Over,
}

/// One part of a thread's work on a block.
pub(crate) struct Step {
    pub(crate) role: Role,
    /// Work that is added to each block.
    pub(crate) added: Spin,
    pub(crate) room: Room,
}

/// The block in which a source or a step makes its own, if that does not go into a ring.
#[derive(Default)]
pub(crate) struct Room {
    wanted: Option<Blocks>,
    block: Option<Box<Block>>,
}

impl Room {
    pub(crate) fn of(wanted: Blocks) -> Room {
        Room { wanted: Some(wanted), block: None }
    }

    /// Allocates it, in the thread that uses it.
    fn prepare(&mut self) -> Result<(), Fault> {
        if let Some(wanted) = self.wanted {
            self.block = wanted.made()?.pop();
        }
        Ok(())
    }
}

pub(crate) enum Role {
    Inspect(Inspect),
    Transform(Box<dyn Transform>),
    /// Sends blocks away, and their labels to the thread that receives them, until it ends.
    Out(Option<(BlockSender, SyncSender<Label>)>),
    Sink(Box<IntoSink>),
}

/// Streams of a thread, a block of each after the other.
pub(crate) struct Sources {
    pub(crate) all: Vec<FromSource>,
    pub(crate) added: Spin,
    pub(crate) room: Room,
}

/// In cache lines that no other thread writes to.
#[repr(align(128))]
pub(crate) struct FromSource {
    pub(crate) source: Box<dyn Source>,
    pub(crate) stream: usize,
    pub(crate) share: Share,
    pub(crate) block_bytes: usize,
    pub(crate) issued: u64,
    pub(crate) lost: u64,
    pub(crate) is_over: bool,
}

/// In cache lines that no other thread writes to.
#[repr(align(128))]
pub(crate) struct IntoSink {
    pub(crate) sink: Box<dyn Sink>,
    /// All blocks that came, also without a confirmation.
    pub(crate) run: PathRun,
    pub(crate) latency_ns: LogHistogram,
    /// Time at which the last block came; 0 before the first.
    last_ns: u64,
    pub(crate) streams: Vec<StreamAtSink>,
    /// Reason for which blocks that it took are not delivered.
    pub(crate) missing: Option<&'static str>,
}

/// Account of a stream at a sink, in cache lines that no other thread writes to.
#[repr(align(128))]
pub(crate) struct StreamAtSink {
    share: Share,
    pub(crate) delivered: u64,
    /// Blocks that it took and that are not delivered.
    pub(crate) lost: u64,
    /// Number of the next block of the source with this stream's number; workers leave out some.
    next: u64,
}

pub(crate) struct Worker {
    /// Its place among all threads.
    pub(crate) at: usize,
    pub(crate) thread: PathThread,
    pub(crate) feed: Feed,
    pub(crate) line: Line,
    pub(crate) shared: Arc<Shared>,
    pub(crate) done: Sender<Done>,
}

/// What a thread does with a block that it was given.
#[derive(Default)]
pub(crate) struct Line {
    pub(crate) steps: Vec<Step>,
    pub(crate) outlet: Option<Outlet>,
    pub(crate) parts: Parts,
}

/// Result of a thread: its feed and its steps have what they did.
pub(crate) struct Done {
    pub(crate) at: usize,
    pub(crate) feed: Feed,
    pub(crate) steps: Vec<Step>,
    /// Rings before it.
    pub(crate) queues: Vec<PathQueue>,
    pub(crate) thread: PathThread,
    pub(crate) note: Option<String>,
    pub(crate) fault: Option<Fault>,
}

impl Worker {
    /// Works in a thread of its own, once it is released.
    pub(crate) fn live(mut self, ready: &Sender<Result<(), Fault>>, stop: &StopFlag) {
        // The receiver is gone if another thread was not ready.
        let _ = ready.send(self.place().and_then(|()| self.prepare(stop)));
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
    fn finish(self, mut thread: PathThread, fault: Option<Fault>) {
        let Worker { at, feed, line: Line { steps, outlet, parts }, shared, done, .. } = self;
        if fault.is_some() {
            shared.is_over.store(true, Ordering::Relaxed);
        }
        parts.tell(&mut thread);
        let note = thread.cpu.and_then(|cpu| moved(&thread.name, cpu));
        thread.cpu = thread.cpu.filter(|_| note.is_none());
        let (feed, inlet) = match feed {
            Feed::Ring(inlet) => (Feed::Over, Some(inlet)),
            feed => (feed, None),
        };
        let queues = inlet.iter().flat_map(Inlet::queues).cloned().collect();
        // The run waits for all threads, and so for this one.
        let _ = done.send(Done { at, feed, steps, queues, thread, note, fault });
        drop((inlet, outlet));
    }

    pub(crate) fn prepare(&mut self, stop: &StopFlag) -> Result<(), Fault> {
        if let Some(outlet) = &mut self.line.outlet {
            outlet.prepare()?;
        }
        match &mut self.feed {
            Feed::Card(_, own) => *own = stop.clone(),
            feed => {
                without_timer_slack();
                if let Feed::Sources(sources) = feed {
                    sources.prepare(stop)?;
                }
            }
        }
        for step in &mut self.line.steps {
            step.room.prepare()?;
            if let Role::Sink(into) = &mut step.role {
                into.sink.prepare()?;
            }
        }
        Ok(())
    }

    fn place(&self) -> Result<(), Fault> {
        match self.thread.cpu {
            Some(cpu) => drop(affinity::pin_to(cpu)?),
            // Threads inherit the mask of the thread that made them.
            None => affinity::unpin(),
        }
        Ok(())
    }

    fn run(&mut self, account: &mut Account) -> Result<(), Fault> {
        let Worker { feed, line, shared, .. } = self;
        let ran = match feed {
            Feed::Sources(sources) => sources.run(line, shared, account),
            Feed::Ring(inlet) => take_all(inlet, line, shared, account),
            Feed::Back(inward, labels) => {
                let received = receive(inward, labels, line, shared, account);
                // Its other end stops at once, also after a fault.
                *labels = channel().1;
                received
            }
            Feed::Card(work, stop) => work(stop, shared, account),
            Feed::Over => Ok(()),
        };
        match line.steps.last_mut().map(|step| &mut step.role) {
            Some(Role::Out(out)) => *out = None,
            Some(Role::Sink(into)) => return into.end(ran, shared),
            _ => {}
        }
        ran
    }
}

/// Says that this thread is no longer on its CPU: the kernel moves the threads of one that goes
/// offline, and does not put them back.
fn moved(thread: &str, cpu: u32) -> Option<String> {
    let allowed = affinity::allowed_cpus().ok()?;
    (allowed != [cpu]).then(|| {
        format!("{thread} was moved away from CPU {cpu}, which went offline: run the path again")
    })
}

/// Fate of a block that a line carried.
enum Carried {
    /// The block, or another one for it, is free again.
    Back(Box<Block>),
    /// It went into the ring behind, whose block it was.
    Sent,
    /// Nobody takes blocks any more.
    Over,
}

impl Line {
    /// Time at which it was done with the last block, if it goes as far as the sink.
    fn free_ns(&self) -> Option<u64> {
        match &self.steps.last()?.role {
            Role::Sink(into) => Some(into.last_ns).filter(|&last_ns| last_ns > 0),
            _ => None,
        }
    }

    /// Carries a block through the steps and into the ring behind. `is_of_ring` says that it is one
    /// of that ring; any other comes back.
    fn carry(
        &mut self,
        mut block: Box<Block>,
        is_of_ring: bool,
        shared: &Shared,
        account: &mut Account,
    ) -> Result<Carried, Fault> {
        let Line { steps, outlet, parts } = self;
        let mut timer = parts.timer(account);
        // The block that was given, once another was made of it, and the step that made the last.
        let (mut given, mut maker) = (None, None);
        for at in 0..steps.len() {
            let Step { role, added, room } = &mut steps[at];
            added.work();
            match role {
                Role::Inspect(inspect) => block.label.events += inspect(block.bytes())?,
                Role::Transform(transform) => {
                    let made = room.block.take().or_else(|| outlet.as_mut()?.empty(account));
                    let Some(mut made) = made else { return Ok(Carried::Over) };
                    let bytes = block.label.bytes;
                    let bytes = transform.transform(&block.buffer, bytes, &mut made.buffer)?;
                    made.label = Label { bytes, ..block.label };
                    let before = std::mem::replace(&mut block, made);
                    match maker.replace(at) {
                        Some(maker) => steps[maker].room.block = Some(before),
                        None => given = Some(before),
                    }
                }
                Role::Out(Some((out, labels))) => {
                    let is_known = match labels.try_send(block.label) {
                        Ok(()) => true,
                        Err(TrySendError::Full(label)) => {
                            account.wait(Side::Output, || labels.send(label).is_ok())
                        }
                        Err(TrySendError::Disconnected(_)) => false,
                    };
                    if !is_known {
                        return Ok(Carried::Over);
                    }
                    out(block.bytes())?;
                }
                Role::Sink(into) => into.take(&block, shared)?,
                Role::Out(None) => return Ok(Carried::Over),
            }
            parts.add(&mut timer, at + 1, account);
        }
        let Some(outlet) = outlet else {
            let Some(given) = given else { return Ok(Carried::Back(block)) };
            if let Some(maker) = maker {
                steps[maker].room.block = Some(block);
            }
            return Ok(Carried::Back(given));
        };
        let is_sent = |outlet: &mut Outlet, free| match (outlet.send(block), free) {
            (false, _) => Carried::Over,
            (true, Some(free)) => Carried::Back(free),
            (true, None) => Carried::Sent,
        };
        Ok(match given {
            None if !is_of_ring => match outlet.empty(account) {
                Some(empty) => is_sent(outlet, Some(empty)),
                None => Carried::Over,
            },
            given => is_sent(outlet, given),
        })
    }
}

/// Times of each part of a thread that has several, for some of its blocks.
#[derive(Default)]
pub(crate) struct Parts {
    /// Elements and names: what gives the blocks, then the steps.
    pub(crate) names: Vec<(usize, String)>,
    ns: Vec<Vec<u32>>,
    /// Blocks until the next one that is timed, and from one such to the next.
    left: u32,
    stride: u32,
}

/// Time of the beginning of a part, without the waits of the thread.
type Timer = Option<u64>;

impl Parts {
    const MAX: usize = 256;

    pub(crate) fn new(names: Vec<(usize, String)>) -> Parts {
        let ns = names.iter().map(|_| Vec::with_capacity(Parts::MAX)).collect();
        Parts { names, ns, left: 0, stride: 1 }
    }

    /// Begins the times of a block, if it is one that is timed.
    fn timer(&mut self, account: &Account) -> Timer {
        let is_due = self.left == 0 && !self.ns.is_empty();
        let timer = is_due.then(|| monotonic_ns() - account.waited_ns());
        self.left = self.left.checked_sub(1).unwrap_or(self.stride.saturating_sub(1));
        timer
    }

    #[inline]
    fn add(&mut self, timer: &mut Timer, part: usize, account: &Account) {
        let Some(before_ns) = timer else { return };
        let now_ns = monotonic_ns() - account.waited_ns();
        let ns = &mut self.ns[part];
        ns.push(u32::try_from(now_ns.saturating_sub(*before_ns)).unwrap_or(u32::MAX));
        *before_ns = now_ns;
        if ns.len() == Parts::MAX && part + 1 == self.names.len() {
            self.stride = self.stride.saturating_mul(2);
            self.ns.iter_mut().for_each(halve);
        }
    }

    /// Books the time of each part but that of the thread's own element.
    fn tell(self, thread: &mut PathThread) {
        for ((element, name), ns) in self.names.into_iter().zip(self.ns) {
            if element != thread.element {
                let ns = thread.blocks * u64::from(middle(ns));
                thread.within.push(PathWithin { name, element, ns });
            }
        }
    }
}

impl Sources {
    fn prepare(&mut self, stop: &StopFlag) -> Result<(), Fault> {
        self.room.prepare()?;
        self.all.iter_mut().try_for_each(|from| {
            from.source.heed(stop);
            from.source.prepare()
        })
    }

    /// Fills a block of each stream after the other, until all are over.
    fn run(
        &mut self,
        line: &mut Line,
        shared: &Shared,
        account: &mut Account,
    ) -> Result<(), Fault> {
        let begin_ns = shared.begin_ns.get().copied().flatten().unwrap_or(0);
        while !self.all.iter().all(|from| from.is_over) {
            for from in self.all.iter_mut().filter(|from| !from.is_over) {
                let now_ns = line.free_ns().unwrap_or_else(monotonic_ns);
                let Some(due_ns) = from.due(begin_ns, now_ns, shared, account) else { continue };
                let (block, is_of_ring) = match (&self.room.wanted, &mut line.outlet) {
                    (None, Some(outlet)) => (from.empty(outlet, begin_ns, shared, account), true),
                    _ if from.is_late(due_ns, shared) => (None, false),
                    _ => (self.room.block.take(), false),
                };
                let Some(mut block) = block else { continue };
                from.fill(&mut block, due_ns)?;
                self.added.work();
                account.done_block();
                match line.carry(block, is_of_ring, shared, account)? {
                    Carried::Back(block) => self.room.block = Some(block),
                    Carried::Sent => {}
                    Carried::Over => return Ok(()),
                }
            }
        }
        Ok(())
    }
}

impl FromSource {
    /// Waits until its next block is due, and returns the time at which it was; `None` at the end.
    fn due(
        &mut self,
        begin_ns: u64,
        now_ns: u64,
        shared: &Shared,
        account: &mut Account,
    ) -> Option<u64> {
        let How { most_blocks, rate_hz, time_ns, .. } = &shared.how;
        let number = self.share.number(self.issued);
        self.is_over = most_blocks.is_some_and(|most| number >= most)
            || shared.is_over.load(Ordering::Relaxed);
        let due_ns = due(begin_ns, number, *rate_hz);
        // A late thread makes one block at least.
        let is_late = due_ns.unwrap_or(now_ns) >= begin_ns.saturating_add(*time_ns);
        self.is_over |= self.issued > 0 && is_late;
        if self.is_over {
            return None;
        }
        if let Some(due_ns) = due_ns.filter(|&due_ns| now_ns < due_ns) {
            account.wait(Side::Due, || wait_until(due_ns, &shared.is_over));
        }
        // The block was due: a wait from now on is in its latency, or it is lost.
        Some(due_ns.unwrap_or(now_ns))
    }

    /// Tests if a block was due before the device had room for it, which has as many blocks as a
    /// ring. It is lost then.
    fn is_late(&mut self, due_ns: u64, shared: &Shared) -> bool {
        let How { lossless: false, rate_hz: Some(hz), .. } = shared.how else { return false };
        let room_ns = whole(shared.buffers as f64 * self.share.of as f64 / hz * 1e9);
        let is_late = monotonic_ns() > due_ns.saturating_add(room_ns);
        if is_late {
            (self.issued, self.lost) = (self.issued + 1, self.lost + 1);
        }
        is_late
    }

    /// Waits for an empty block of the ring behind, unless the block is lost for want of one.
    fn empty(
        &mut self,
        outlet: &mut Outlet,
        begin_ns: u64,
        shared: &Shared,
        account: &mut Account,
    ) -> Option<Box<Block>> {
        let How { lossless, rate_hz, time_ns, .. } = shared.how;
        match outlet.try_empty() {
            Ok(block) => return Some(block),
            Err(TryRecvError::Empty) if !lossless && rate_hz.is_some() => {
                (self.issued, self.lost) = (self.issued + 1, self.lost + 1);
                return None;
            }
            Err(TryRecvError::Disconnected) => self.is_over = true,
            Err(TryRecvError::Empty) => {}
        }
        let block = outlet.empty(account);
        // A stream without a rate that waited too long for room has no block due any more.
        let is_late = self.issued > 0
            && rate_hz.is_none()
            && monotonic_ns() >= begin_ns.saturating_add(time_ns);
        self.is_over |= is_late || block.is_none();
        block.filter(|_| !self.is_over)
    }

    fn fill(&mut self, block: &mut Block, due_ns: u64) -> Result<(), Fault> {
        let bytes = self.block_bytes;
        let filled = self.source.fill(block.buffer.slice_mut(bytes))?;
        block.label = Label {
            bytes,
            events: filled.events,
            key: filled.key,
            due_ns: filled.ready_ns.unwrap_or(due_ns),
            stream: self.stream,
            sequence: self.issued - self.lost,
        };
        self.issued += 1;
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

/// Takes one block after the other and carries it on, until there is none or nobody takes it.
fn take_all(
    inlet: &mut Inlet,
    line: &mut Line,
    shared: &Shared,
    account: &mut Account,
) -> Result<(), Fault> {
    while let Some((at, block)) = inlet.next(account) {
        let Carried::Back(back) = line.carry(block, false, shared, account)? else { break };
        inlet.give_back(at, back);
        account.done_block();
    }
    Ok(())
}

fn receive(
    inward: &mut BlockReceiver,
    labels: &Receiver<Label>,
    line: &mut Line,
    shared: &Shared,
    account: &mut Account,
) -> Result<(), Fault> {
    let next = |account: &mut Account| match labels.try_recv() {
        Ok(label) => Some(label),
        Err(TryRecvError::Disconnected) => None,
        Err(TryRecvError::Empty) => account.wait(Side::Input, || labels.recv().ok()),
    };
    while let Some(label) = next(account) {
        let empty = line.outlet.as_mut().and_then(|outlet| outlet.empty(account));
        let Some(mut block) = empty else { break };
        inward(block.buffer.slice_mut(label.bytes))?;
        block.label = label;
        account.done_block();
        let Carried::Sent = line.carry(block, true, shared, account)? else { break };
    }
    Ok(())
}

impl IntoSink {
    pub(crate) fn new(sink: Box<dyn Sink>, streams: &[Share]) -> IntoSink {
        let stream = |&share| StreamAtSink { share, delivered: 0, lost: 0, next: 0 };
        IntoSink {
            missing: sink.missing(true),
            sink,
            run: PathRun::default(),
            latency_ns: LogHistogram::default(),
            last_ns: 0,
            streams: streams.iter().map(stream).collect(),
        }
    }

    fn take(&mut self, block: &Block, shared: &Shared) -> Result<(), Fault> {
        let Label { stream, sequence, key, .. } = block.label;
        let Share { source, .. } = self.streams[stream].share;
        let expected = key.and_then(|key| shared.expected.get(source)?.get(key).copied());
        let sum = self.sink.take(block, expected)?;
        let number = self.streams[stream].share.number(sequence);
        if number < std::mem::replace(&mut self.streams[source].next, number + 1) {
            return Err(Fault::new(format!(
                "stream {source}: block {number} came behind a later one"
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
        self.streams[stream].delivered += 1;
        self.run.blocks += 1;
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
                    for stream in &mut self.streams {
                        std::mem::swap(&mut stream.lost, &mut stream.delivered);
                    }
                }
                Err(fault)
            }
        }
    }

    /// Subtracts the blocks lost behind the sink from those that arrived.
    fn close(&mut self, confirmed: &Confirmed, shared: &Shared) -> Result<(), Fault> {
        let run = &mut self.run;
        run.verified_blocks += confirmed.verified;
        let streams = confirmed.lost.iter().enumerate();
        for (stream, &(blocks, events)) in streams.filter(|(_, (blocks, _))| *blocks > 0) {
            self.streams[stream].lost += blocks;
            self.streams[stream].delivered -= blocks;
            run.blocks -= blocks;
            run.events -= events;
        }
        let all: u64 = self.streams.iter().map(|stream| stream.lost).sum();
        match all > 0 && shared.how.lossless {
            true => Err(Fault::new(format!(
                "blocks were {}, {all} so far: give the path a lower rate, or write lossless = false where losses are to be counted",
                self.missing.unwrap_or("lost")
            ))),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use daqmeter_sys::affinity::{pin_to, process_cpus, unpin};

    use super::*;

    #[test]
    fn a_thread_that_may_run_on_other_cpus_was_moved_away_from_its_own() {
        let cpu = process_cpus()[0];
        let is_moved = std::thread::spawn(move || {
            pin_to(cpu).unwrap();
            let before = moved("copy", cpu);
            unpin();
            (before, moved("copy", cpu).is_some())
        });
        assert_eq!(is_moved.join().unwrap(), (None, process_cpus().len() > 1));
    }
}
