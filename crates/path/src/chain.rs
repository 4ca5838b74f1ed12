//! A path as threads: built, released together, watched until all have ended, and accounted for.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use daqmeter_harness::{Fault, StopFlag};
use daqmeter_record::path::{End, PathThread};
use daqmeter_sys::clock::monotonic_ns;

use crate::account::Account;
use crate::added_work::Spin;
use crate::cancel::Cuts;
use crate::card::{FromCard, IntoReceiver};
use crate::definition::{Element, Path};
use crate::element::Work;
use crate::expected::expected;
use crate::kinds::SourceKind;
use crate::outcome::{Ended, ended};
use crate::ring::{Blocks, Inlet, link};
use crate::shared::{How, Shared, Sums, time_ns};
use crate::sinks::sink;
use crate::sources::{Named, sources};
use crate::stages::work;
use crate::worker::{Done, FromSource, IntoSink, Role, Worker};

/// Labels that wait while their blocks are away: more than a pipe or a socket holds in blocks of a
/// page.
const LABELS: usize = 1024;
/// Time after its end that a path may take to stop, beside the triggers that it waits for.
const GRACE_NS: u64 = 10_000_000_000;
/// Triggers that a source may wait for at its end: its board gives up after as many.
const TRIGGERS: f64 = 3.0;
/// Time that a path may take after a signal.
const STOP_GRACE_NS: u64 = 1_000_000_000;

pub(crate) struct Chain {
    shared: Arc<Shared>,
    gate: Arc<Gate>,
    cuts: Cuts,
    patience_ns: u64,
    threads: Vec<JoinHandle<()>>,
    workers: usize,
    done: Receiver<Done>,
    /// Gate that holds threads that are done until all are: the CPU time of an ended thread cannot
    /// be read.
    left: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    /// True if they may go; `None` while they wait.
    go: Mutex<Option<bool>>,
    changed: Condvar,
}

impl Gate {
    /// Opens the gate; the first call decides.
    fn open(&self, go: bool) {
        let mut said = self.go.lock().unwrap_or_else(PoisonError::into_inner);
        said.get_or_insert(go);
        self.changed.notify_all();
    }

    fn wait(&self) -> bool {
        let mut go = self.go.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match *go {
                Some(go) => return go,
                None => go = self.changed.wait(go).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

struct Building {
    workers: Vec<Worker>,
    /// Threads whose blocks the next element takes.
    open: Vec<usize>,
    /// Blocks behind the last element.
    blocks: Blocks,
    /// Element, name and end of the threads that are added next.
    part: PathThread,
}

impl Building {
    fn new(path: &Path) -> Building {
        let (count, bytes) = (path.buffers, path.source.out_bytes);
        Building {
            workers: Vec::new(),
            open: Vec::new(),
            blocks: Blocks { count, bytes, pages: path.pages },
            part: PathThread::default(),
        }
    }

    fn alone(&mut self, name: &str, roles: Vec<Role>, cpus: &[u32]) {
        let count = roles.len();
        for (at, role) in roles.into_iter().enumerate() {
            let name = numbered(name, at, count);
            self.push(name, role, cpu(cpus, at), None, Spin::default());
        }
    }

    /// Adds threads that take the blocks of the row before.
    fn row(&mut self, roles: Vec<(String, Role)>, cpus: &[u32], added: Spin) {
        let from = self.open.iter().map(|&at| self.workers[at].thread.name.clone());
        let to = roles.iter().map(|(name, _)| name.clone());
        let (outlets, inlets) = link(&Vec::from_iter(from), &Vec::from_iter(to), self.blocks);
        for (at, outlet) in self.open.drain(..).zip(outlets) {
            self.workers[at].outlet = Some(outlet);
        }
        for (at, ((name, role), inlet)) in roles.into_iter().zip(inlets).enumerate() {
            self.open.push(self.workers.len());
            self.push(name, role, cpu(cpus, at), Some(inlet), added);
        }
    }

    fn push(
        &mut self,
        name: String,
        role: Role,
        cpu: Option<u32>,
        inlet: Option<Inlet>,
        added: Spin,
    ) {
        let thread = PathThread { name, cpu, ..self.part.clone() };
        self.workers.push(Worker { thread, role, inlet, outlet: None, added });
    }

    /// Begins the next element: the threads added from here on are its own.
    fn begin(&mut self, element: usize, name: &str) {
        self.part = PathThread { element, part: name.to_owned(), ..PathThread::default() };
    }

    fn end(&mut self, name: &str, end: End) {
        (self.part.part, self.part.end) = (name.to_owned(), Some(end));
    }

    fn stage<K>(&mut self, stage: &Element<K>, works: Vec<Work>, added: Spin) {
        let count = works.len();
        let mut roles = Vec::new();
        for (at, work) in works.into_iter().enumerate() {
            let name = numbered(&stage.name, at, count);
            match work {
                Work::Inspect(work) => roles.push((name, Role::Inspect(work))),
                Work::Transform(work) => roles.push((name, Role::Transform(work))),
                Work::Away(out, inward) => {
                    let (sender, labels) = sync_channel(LABELS);
                    let (out_name, in_name) = (format!("{name} out"), format!("{name} in"));
                    self.end(&out_name, End::Out);
                    let out = Role::Out(out, Some(sender));
                    self.row(vec![(out_name, out)], &stage.cpus, added);
                    self.end(&in_name, End::In);
                    self.open = vec![self.workers.len()];
                    let inward = Role::In(inward, Some(labels));
                    self.push(in_name, inward, cpu(&stage.cpus, 1), None, Spin::default());
                }
            }
        }
        if !roles.is_empty() {
            self.row(roles, &stage.cpus, added);
        }
        self.blocks.bytes = stage.out_bytes;
    }
}

fn numbered(name: &str, at: usize, count: usize) -> String {
    match count {
        1 => name.to_owned(),
        _ => format!("{name}.{at}"),
    }
}

fn cpu(cpus: &[u32], at: usize) -> Option<u32> {
    cpus.get(at % cpus.len().max(1)).copied()
}

impl Chain {
    pub(crate) fn start(path: &Path, how: &How, stop: &StopFlag) -> Result<Chain, Fault> {
        let cuts = Cuts::default();
        let mut sources = sources(path)?;
        let sums = Arc::new(expected(path, &mut sources)?);
        let mut building = Building::new(path);
        build(&mut building, path, how, sources, &sums.first, &cuts)?;
        let (mut chain, lives) = Chain::built(path, how, building, sums);
        chain.cuts = cuts;
        chain.spawn(lives, stop)?;
        Ok(chain)
    }

    /// Builds the chain of a card that is read out, before any thread is there. No blocks go
    /// between its readers and receivers through the path's rings. The caller works as the readers,
    /// which come first, and starts the receivers ([`Chain::spawn`]).
    pub(crate) fn live(
        path: &Path,
        how: &How,
        readers: Vec<FromCard>,
        receivers: Vec<IntoReceiver>,
    ) -> (Chain, Vec<Life>) {
        let stage = path.stages.first().expect("a card's first stage is `to-host`: checked");
        let readers = readers.into_iter().map(|one| Role::Card(Box::new(one)));
        let receivers = receivers.into_iter();
        let receivers = receivers.map(|one| Role::Receiver(Box::new(one)));
        let mut building = Building::new(path);
        building.begin(1, &stage.name);
        building.alone(&stage.name, readers.collect(), &stage.cpus);
        building.begin(path.stages.len() + 1, &path.sink.name);
        building.alone(&path.sink.name, receivers.collect(), &path.sink.cpus);
        Chain::built(path, how, building, Arc::default())
    }

    fn built(path: &Path, how: &How, building: Building, sums: Arc<Sums>) -> (Chain, Vec<Life>) {
        let (done_in, done) = channel();
        let shared = Arc::new(Shared {
            is_over: AtomicBool::new(false),
            begin_ns: AtomicU64::new(0),
            how: how.clone(),
            expected: sums,
        });
        let life = |(at, mut worker): (usize, Worker)| {
            worker.thread.cpu = cpu(&how.cpus, at).or(worker.thread.cpu);
            Life { at, worker, shared: shared.clone(), done: done_in.clone() }
        };
        let lives: Vec<Life> = building.workers.into_iter().enumerate().map(life).collect();
        let chain = Chain {
            shared,
            gate: Arc::default(),
            cuts: Cuts::default(),
            patience_ns: patience_ns(path),
            threads: Vec::new(),
            workers: lives.len(),
            done,
            left: Arc::default(),
        };
        (chain, lives)
    }

    pub(crate) fn spawn(&mut self, lives: Vec<Life>, stop: &StopFlag) -> Result<(), Fault> {
        let (ready, readies) = channel();
        for life in lives {
            let (gate, left) = (self.gate.clone(), self.left.clone());
            let (ready, stop) = (ready.clone(), stop.clone());
            let name = life.worker.thread.name.clone();
            let thread = std::thread::Builder::new().name(name);
            let thread = thread
                .spawn(move || life.live(&ready, &gate, &left, &stop))
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
        ended(&self.shared, all, fault)
    }

    pub(crate) fn release(&self) {
        self.shared.begin_ns.store(monotonic_ns(), Ordering::Release);
        self.gate.open(true);
    }

    /// Waits until all have ended; returns their results in order.
    pub(crate) fn wait(&mut self, stop: &StopFlag) -> (Vec<Done>, Option<Fault>) {
        // Threads that were not released by now end.
        self.gate.open(false);
        let begin_ns = self.shared.begin_ns.load(Ordering::Acquire);
        let mut cut_at_ns =
            begin_ns.saturating_add(self.shared.how.time_ns.saturating_add(self.patience_ns));
        let mut fault = None;
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
            if stop.is_set() && !self.shared.is_over.swap(true, Ordering::Relaxed) {
                cut_at_ns = cut_at_ns.min(monotonic_ns() + STOP_GRACE_NS);
            }
            if monotonic_ns() > cut_at_ns && fault.is_none() {
                fault = Some(late(stop, self.patience_ns));
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

    /// Joins the threads. Those never released did nothing, and a panic is reported in a fault.
    fn join(&mut self) {
        self.gate.open(false);
        self.left.open(true);
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
    match path.source.kind {
        SourceKind::Digitizer { trigger: Some(hz), .. } => GRACE_NS + time_ns(TRIGGERS / hz.0),
        _ => GRACE_NS,
    }
}

fn late(stop: &StopFlag, patience_ns: u64) -> Fault {
    match stop.is_set() {
        true => Fault::interrupted(),
        false => Fault::new(format!(
            "the path did not end {} s after its time: a stage neither takes nor gives",
            patience_ns / 1_000_000_000
        )),
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        self.join();
    }
}

fn build(
    building: &mut Building,
    path: &Path,
    how: &How,
    sources: Vec<Named>,
    first_keys: &[usize],
    cuts: &Cuts,
) -> Result<(), Fault> {
    let change = |element: usize| Spin::of_ns(how.added_ns(element));
    building.begin(0, &path.source.name);
    let streams = sources.len();
    for (at, (name, source)) in sources.into_iter().enumerate() {
        let from = FromSource {
            source,
            stream: at,
            block_bytes: path.block_bytes,
            first_key: first_keys[at],
            issued: 0,
            lost: 0,
        };
        let cpu = cpu(&path.source.cpus, at);
        building.push(name, Role::Source(from), cpu, None, change(0));
        building.open.push(at);
    }
    let mut bytes = path.source.out_bytes;
    for (at, stage) in path.stages.iter().enumerate() {
        let works: Result<Vec<Work>, Fault> = (0..stage.threads)
            .map(|_| work(&stage.kind, bytes, how.last_level_bytes, cuts))
            .collect();
        building.begin(at + 1, &stage.name);
        building.stage(stage, works?, change(at + 1));
        bytes = stage.out_bytes;
    }
    let into = IntoSink::new(sink(path, cuts)?, streams);
    let change = change(path.stages.len() + 1);
    building.begin(path.stages.len() + 1, &path.sink.name);
    let sink = vec![(path.sink.name.clone(), Role::Sink(into))];
    building.row(sink, &path.sink.cpus, change);
    Ok(())
}

pub(crate) struct Life {
    at: usize,
    worker: Worker,
    shared: Arc<Shared>,
    done: Sender<Done>,
}

impl Life {
    fn live(
        mut self,
        ready: &Sender<Result<(), Fault>>,
        gate: &Gate,
        left: &Gate,
        stop: &StopFlag,
    ) {
        // The receiver is gone if another thread was not ready.
        let _ = ready.send(self.prepare(stop));
        if gate.wait() {
            self.work();
            left.wait();
        }
    }

    pub(crate) fn prepare(&mut self, stop: &StopFlag) -> Result<(), Fault> {
        self.worker.prepare(stop)
    }

    pub(crate) fn work(mut self) {
        let mut account = Account::begin(self.worker.thread.clone());
        let (worker, shared) = (&mut self.worker, &self.shared);
        let ran = catch_unwind(AssertUnwindSafe(|| worker.run(shared, &mut account)));
        let fault = match ran {
            Ok(Ok(())) => None,
            Ok(Err(fault)) => Some(fault.context(&self.worker.thread.name)),
            Err(_) => Some(Fault::new(format!(
                "{}: a bug in daqmeter: its thread panicked",
                self.worker.thread.name
            ))),
        };
        let thread = self.worker.accounted(account.end());
        self.finish(thread, fault);
    }

    /// Reports the fault before the ends close: the neighbours' faults are its consequences.
    fn finish(self, thread: PathThread, fault: Option<Fault>) {
        let Life { at, worker, shared, done } = self;
        if fault.is_some() {
            shared.is_over.store(true, Ordering::Relaxed);
        }
        let Worker { role, inlet, outlet, .. } = worker;
        let queues = inlet.iter().flat_map(Inlet::queues).cloned().collect();
        // The run waits for all threads, and so for this one.
        let _ = done.send(Done { at, role, queues, thread, fault });
        drop((inlet, outlet));
    }
}
