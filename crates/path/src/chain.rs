//! A path as threads: built, released together, watched until all have ended, and accounted for.

pub(crate) mod account;
mod carry;
mod deal;
mod delivery;
mod expected;
pub(crate) mod outcome;
mod pace;
mod ring;
pub(crate) mod shared;
pub(crate) mod thread;
mod timing;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use daqmeter_harness::{Fault, StopFlag};
use daqmeter_record::path::{End, PathThread};
use daqmeter_sys::clock::monotonic_ns;

use crate::added_work::spinning;
use crate::cancel::Cuts;
use crate::chain::carry::{Line, Role, Room, Step};
use crate::chain::deal::deal;
use crate::chain::delivery::IntoSink;
use crate::chain::expected::expected;
use crate::chain::outcome::{Ended, ended};
use crate::chain::pace::{FromSource, Sources};
use crate::chain::ring::{Blocks, Inlet, link};
use crate::chain::shared::{PathSettings, Shared, Sums, time_ns};
use crate::chain::thread::{Done, Feed, Worker};
use crate::chain::timing::Parts;
use crate::definition::kind::{Named, StageElement};
use crate::definition::layout::Group;
use crate::definition::{Path, cpu};
use crate::element::Work;

/// Time after its end that a path may take to stop, beside the triggers that it waits for.
const GRACE_NS: u64 = 10_000_000_000;
/// Labels that wait while their blocks are away: more than a pipe or a socket holds in blocks of a
/// page.
const LABELS: usize = 1024;
/// Bytes that a worker takes from a shared source before the next one does.
const RUN_BYTES: usize = 64 << 10;
/// Time that a path may take after a signal.
const STOP_GRACE_NS: u64 = 1_000_000_000;

pub(crate) struct Chain {
    pub(crate) shared: Arc<Shared>,
    cuts: Cuts,
    patience_ns: u64,
    /// Time that the sink may take to confirm, beside that.
    last_wait_ns: u64,
    threads: Vec<JoinHandle<()>>,
    workers: usize,
    done: Receiver<Done>,
}

struct Building<'a> {
    path: &'a Path,
    shared: Arc<Shared>,
    cuts: Cuts,
    done: (Sender<Done>, Receiver<Done>),
    workers: Vec<Worker>,
    /// Threads whose blocks the next group takes.
    open: Vec<usize>,
    /// Bytes of the blocks behind the last element.
    bytes: usize,
}

/// A thread to be: what feeds it, or else a ring, and its steps.
type Planned = (Option<Feed>, Line);

impl<'a> Building<'a> {
    fn new(path: &'a Path, how: PathSettings) -> Building<'a> {
        let buffers = path.buffers;
        let elements = path.names();
        Building {
            path,
            shared: Arc::new(Shared { how, buffers, elements, ..Shared::default() }),
            cuts: Cuts::default(),
            done: channel(),
            workers: Vec::new(),
            open: Vec::new(),
            bytes: path.elements[0].out_bytes,
        }
    }

    /// Adds threads that do the same for these elements. Those without a feed take the blocks of
    /// the row before.
    fn row(&mut self, elements: Range<usize>, end: Option<End>, planned: Vec<Planned>) {
        let part = self.path.part(&elements, end);
        let mut all = self.path.elements[elements.clone()].iter().map(|element| &element.cpus);
        let cpus = all.find(|cpus| !cpus.is_empty()).map(Vec::as_slice).unwrap_or_default();
        let names: Vec<String> = match planned.len() {
            1 => vec![part.clone()],
            count => (0..count).map(|at| format!("{part}.{at}")).collect(),
        };
        let mut inlets = match planned.first() {
            Some((None, _)) => self.inlets(&names),
            _ => Vec::new(),
        }
        .into_iter();
        let first_cpu = usize::from(end == Some(End::In));
        self.open.clear();
        for (own, ((feed, line), name)) in planned.into_iter().zip(names).enumerate() {
            let at = self.workers.len();
            self.open.push(at);
            let cpu = cpu(&self.shared.how.cpus, at).or(cpu(cpus, own + first_cpu));
            let element = elements.start;
            let thread =
                PathThread { name, part: part.clone(), element, end, cpu, ..PathThread::default() };
            let feed = feed.or_else(|| inlets.next().map(Feed::Ring)).unwrap_or(Feed::Over);
            let (shared, done) = (self.shared.clone(), self.done.0.clone());
            self.workers.push(Worker { at, thread, feed, line, shared, done });
        }
    }

    fn inlets(&mut self, names: &[String]) -> Vec<Inlet> {
        let from: Vec<String> =
            self.open.iter().map(|&at| self.workers[at].thread.name.clone()).collect();
        let Path { buffers: count, pages, .. } = *self.path;
        let (outlets, inlets) = link(&from, names, Blocks { count, bytes: self.bytes, pages });
        for (&at, outlet) in self.open.iter().zip(outlets) {
            self.workers[at].line.outlet = Some(outlet);
        }
        inlets
    }

    /// Adds the threads of a group. Those of the source take what it gives.
    fn group(&mut self, group: &Group, sources: &mut Vec<Sources>) -> Result<(), Fault> {
        let Group { elements, workers } = group;
        if let (Some(stage), 1) = (self.path.stage(elements.start), elements.len())
            && self.path.elements[elements.start].facts.has_two_ends
        {
            return self.two_ends(elements.start, stage);
        }
        let in_bytes = self.bytes;
        let mut sources = sources.drain(..);
        let mut planned = Vec::new();
        for _ in 0..*workers {
            self.bytes = in_bytes;
            let mut feed = sources.next();
            let line = self.line(elements, feed.as_mut())?;
            planned.push((feed.map(Feed::Sources), line));
        }
        // The rings before it hold what comes.
        let out_bytes = std::mem::replace(&mut self.bytes, in_bytes);
        self.row(elements.clone(), None, planned);
        self.bytes = out_bytes;
        Ok(())
    }

    /// Adds a thread for each end of a stage.
    fn two_ends(&mut self, element: usize, stage: &dyn StageElement) -> Result<(), Fault> {
        let (out, inward) = stage.ends(&self.cuts)?;
        let (sender, labels) = sync_channel(LABELS);
        let mut line = Line::default();
        self.add(&mut line, element, Role::Out(Some((out, sender))));
        let back = Feed::Back(inward, labels);
        let elements = element..element + 1;
        self.row(elements.clone(), Some(End::Out), vec![(None, line)]);
        self.row(elements, Some(End::In), vec![(Some(back), Line::default())]);
        self.bytes = self.path.elements[element].out_bytes;
        Ok(())
    }

    /// Makes the steps of a thread.
    fn line(&mut self, elements: &Range<usize>, feed: Option<&mut Sources>) -> Result<Line, Fault> {
        let (path, mut line) = (self.path, Line::default());
        let room = |bytes| Room::of(Blocks { count: 1, bytes, pages: path.pages });
        let last_level_bytes = self.shared.how.last_level_bytes;
        let mut own = None;
        if let Some(sources) = feed {
            sources.room = room(self.bytes);
            own = Some(&mut sources.room);
            self.slow(&mut line, 0);
        }
        for element in elements.clone().filter(|element| *element > 0) {
            let role = match path.stage(element) {
                None => {
                    let sink = path.sink.sink(path.sink_bytes(), &self.cuts)?;
                    Role::Sink(Box::new(IntoSink::new(sink, &self.shared)))
                }
                Some(stage) if path.elements[element].facts.has_two_ends => {
                    let both = stage.connection(&self.cuts)?.in_one_thread()?;
                    Role::Work(Work::Transform(Box::new(both)))
                }
                Some(stage) => Role::Work(stage.work(self.bytes, last_level_bytes)?),
            };
            self.bytes = path.elements[element].out_bytes;
            let has_room = matches!(role, Role::Work(Work::Transform(_)));
            self.add(&mut line, element, role);
            if let (true, Some(step)) = (has_room, line.steps.last_mut()) {
                step.room = room(self.bytes);
            }
        }
        // The last block that is made is one of the ring behind, if there is one.
        if elements.end < path.stages.len() + 2 {
            let all = own.into_iter().chain(line.steps.iter_mut().map(|step| &mut step.room));
            if let Some(last) = all.filter(|room| room.wanted.is_some()).last() {
                *last = Room::default();
            }
        }
        if elements.len() > 1 {
            // The time of what gives the blocks is the rest of the thread's.
            let own = line.steps.iter().map(|step| step.element);
            let all = [elements.start].into_iter().chain(own);
            let names = &self.shared.elements;
            line.parts = Parts::new(all.map(|at| (at, names[at].clone())).collect());
        }
        Ok(line)
    }

    /// Adds an element's step, after the work that is added to it.
    fn add(&self, line: &mut Line, element: usize, role: Role) {
        self.slow(line, element);
        line.steps.push(Step::new(element, role));
    }

    /// Adds a step of arithmetic to an element that is slowed.
    fn slow(&self, line: &mut Line, element: usize) {
        let ns = self.shared.how.added_ns(element);
        if ns > 0.0 {
            line.steps.push(Step::new(element, Role::Work(spinning(ns))));
        }
    }

    /// Threads of the path's source, with the streams that each of them has.
    fn sources(&mut self, named: Vec<Named>, sums: Sums) -> Result<Vec<Sources>, Fault> {
        let PathSettings { groups, rate_hz, .. } = &self.shared.how;
        let workers = groups.first().map_or(1, |group| group.workers);
        // Runs of small blocks are read ahead by the CPU. A rate and an order go by the block.
        let run = match (groups.len(), rate_hz) {
            (1, None) => (RUN_BYTES / self.path.block_bytes).max(1),
            _ => 1,
        };
        let names = named.iter().map(|(name, _)| name.clone()).collect();
        let (mut all, mut streams) = (Vec::new(), Vec::new());
        for own in deal(named, workers, run)? {
            let own = own.into_iter().map(|(share, source)| {
                streams.push(share);
                FromSource {
                    source,
                    share,
                    stream: streams.len() - 1,
                    block_bytes: self.path.block_bytes,
                    issued: 0,
                    lost: 0,
                    is_over: false,
                }
            });
            all.push(Sources { all: own.collect(), room: Room::default() });
        }
        let shared = Arc::get_mut(&mut self.shared).expect("no thread has it yet");
        (shared.sources, shared.streams, shared.expected) = (names, streams, sums);
        Ok(all)
    }

    fn chain(self) -> (Chain, Vec<Worker>) {
        let Building { path, shared, cuts, workers, done: (_, done), .. } = self;
        let chain = Chain {
            shared,
            cuts,
            patience_ns: patience_ns(path),
            last_wait_ns: time_ns(path.last().facts.last_wait_s),
            threads: Vec::new(),
            workers: workers.len(),
            done,
        };
        (chain, workers)
    }
}

impl Chain {
    /// Builds the chain of a path and starts its threads. Its bytes are compared only if they are
    /// `checked`.
    pub(crate) fn start(
        path: &Path,
        how: &PathSettings,
        stop: &StopFlag,
        checked: bool,
    ) -> Result<Chain, Fault> {
        let mut sources = path.sources()?;
        let sums = if checked { expected(path, &mut sources)? } else { Sums::default() };
        let mut building = Building::new(path, how.clone());
        let mut sources = building.sources(sources, sums)?;
        for group in &how.groups {
            building.group(group, &mut sources)?;
        }
        let (mut chain, workers) = building.chain();
        chain.spawn(workers, stop)?;
        Ok(chain)
    }

    /// Builds the chain of a card that is read out, before any thread is there. No blocks go
    /// between its readers and receivers through the path's rings. The caller works as the readers,
    /// which come first, and starts the receivers ([`Chain::spawn`]).
    pub(crate) fn live(
        path: &Path,
        how: &PathSettings,
        readers: Vec<Feed>,
        receivers: Vec<Feed>,
    ) -> (Chain, Vec<Worker>) {
        // Its read-out adds the work itself.
        let mut building = Building::new(path, PathSettings { slowed: Vec::new(), ..how.clone() });
        let sink = path.stages.len() + 1;
        // The first stage is `to-host`: checked.
        let end = if receivers.is_empty() { sink + 1 } else { 2 };
        for (elements, feeds) in [(1..end, readers), (sink..sink + 1, receivers)] {
            let planned = feeds.into_iter().map(|feed| (Some(feed), Line::default()));
            building.row(elements, None, planned.collect());
        }
        building.chain()
    }

    pub(crate) fn spawn(&mut self, workers: Vec<Worker>, stop: &StopFlag) -> Result<(), Fault> {
        let (ready, readies) = channel();
        for worker in workers {
            let (ready, stop) = (ready.clone(), stop.clone());
            let thread = std::thread::Builder::new().name(worker.thread.name.clone());
            let thread = thread
                .spawn(move || worker.live(&ready, &stop))
                .map_err(|error| Fault::too_large(format!("no thread for the path: {error}")))?;
            self.threads.push(thread);
        }
        drop(ready);
        // A thread that panics drops its sender.
        for _ in 0..self.threads.len() {
            let ready = readies.recv();
            ready.map_err(|_| Fault::new("a thread of the path did not start"))??;
        }
        Ok(())
    }

    pub(crate) fn run(mut self, stop: &StopFlag) -> Ended {
        self.release();
        let (all, fault) = self.wait(stop);
        ended(self.shared.clone(), all, fault)
    }

    /// Lets the threads go, unless they were to end before.
    pub(crate) fn release(&self) {
        self.shared.begin_ns.get_or_init(|| Some(monotonic_ns()));
    }

    /// Waits until all have ended; returns their results in order.
    pub(crate) fn wait(&mut self, stop: &StopFlag) -> (Vec<Done>, Option<Fault>) {
        // Threads that were not released by now end.
        let begin_ns = self.shared.begin_ns.get_or_init(|| None).unwrap_or(0);
        let mut cut_at_ns =
            begin_ns.saturating_add(self.shared.how.time_ns.saturating_add(self.patience_ns));
        let (mut fault, mut is_stopped) = (None, false);
        let mut all: Vec<Done> = Vec::new();
        while all.len() < self.workers {
            match self.done.recv_timeout(Duration::from_millis(20)) {
                Ok(done) => {
                    if let (None, Some(first)) = (&fault, &done.fault) {
                        fault = Some(first.clone());
                        self.end_now();
                    }
                    all.push(done);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if stop.is_set() && !std::mem::replace(&mut is_stopped, true) {
                self.shared.is_over.store(true, Ordering::Relaxed);
                cut_at_ns = cut_at_ns.min(monotonic_ns() + STOP_GRACE_NS);
            }
            let confirms = self.shared.is_confirming.load(Ordering::Relaxed) && !is_stopped;
            let more_ns = if confirms { self.last_wait_ns } else { 0 };
            if monotonic_ns() > cut_at_ns.saturating_add(more_ns) && fault.is_none() {
                let late_s = self.patience_ns / 1_000_000_000;
                fault = Some(match stop.is_set() {
                    true => Fault::interrupted(),
                    false => Fault::new(format!(
                        "the path did not end {late_s} s after its time: a stage is too slow for the rate, or takes nothing"
                    )),
                });
                self.end_now();
            }
        }
        let is_whole = all.len() == self.workers;
        self.join();
        if !is_whole && fault.is_none() {
            fault = Some(Fault::new("a thread of the path ended without a word"));
        }
        all.sort_by_key(|done| done.at);
        (all, fault)
    }

    /// Joins the threads. Those never released did nothing.
    fn join(&mut self) {
        self.shared.begin_ns.get_or_init(|| None);
        self.shared.may_end.get_or_init(|| ());
        for thread in self.threads.drain(..) {
            // A panic is in a fault already.
            let _ = thread.join();
        }
    }

    fn end_now(&self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.cuts.all();
    }
}

fn patience_ns(path: &Path) -> u64 {
    GRACE_NS.saturating_add(time_ns(path.source_facts().last_wait_s))
}

impl Drop for Chain {
    fn drop(&mut self) {
        self.join();
    }
}
