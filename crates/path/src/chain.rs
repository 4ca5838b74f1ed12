//! A path as threads: built, released together, watched until all have ended, and accounted for.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use daqmeter_harness::{Fault, StopFlag};
use daqmeter_record::path::{End, PathThread};
use daqmeter_sys::clock::monotonic_ns;

use crate::added_work::Spin;
use crate::cancel::Cuts;
use crate::definition::{Element, Path, cpu};
use crate::expected::expected;
use crate::kinds::SourceKind;
use crate::outcome::{Ended, ended};
use crate::ring::{Blocks, Inlet, link};
use crate::shared::{How, Shared, Sums, time_ns};
use crate::sinks::sink;
use crate::sources::{Named, sources};
use crate::stages::work;
use crate::worker::{Done, FromSource, IntoSink, Role, Worker};

/// Time after its end that a path may take to stop, beside the triggers that it waits for.
const GRACE_NS: u64 = 10_000_000_000;
/// Triggers that a source may wait for at its end: its board gives up after as many.
const TRIGGERS: f64 = 3.0;
/// Time that a path may take after a signal.
const STOP_GRACE_NS: u64 = 1_000_000_000;

pub(crate) struct Chain {
    pub(crate) shared: Arc<Shared>,
    cuts: Cuts,
    patience_ns: u64,
    threads: Vec<JoinHandle<()>>,
    workers: usize,
    done: Receiver<Done>,
}

struct Building<'a> {
    path: &'a Path,
    shared: Arc<Shared>,
    done: Sender<Done>,
    workers: Vec<Worker>,
    /// Threads whose blocks the next element takes.
    open: Vec<usize>,
    /// Bytes of the blocks behind the last element.
    bytes: usize,
    /// Element, name and end of the threads that are added next.
    part: PathThread,
    /// Work that is added to each of their blocks.
    added: Spin,
}

impl<'a> Building<'a> {
    fn new(path: &'a Path, how: &How, expected: Sums, done: Sender<Done>) -> Building<'a> {
        Building {
            path,
            shared: Arc::new(Shared { how: how.clone(), expected, ..Shared::default() }),
            done,
            workers: Vec::new(),
            open: Vec::new(),
            bytes: path.source.out_bytes,
            part: PathThread::default(),
            added: Spin::default(),
        }
    }

    /// Begins the next element: the threads added from here on are its own.
    fn begin(&mut self, element: usize, name: &str) {
        self.part = PathThread { element, part: name.to_owned(), ..PathThread::default() };
        self.added = Spin::of_ns(self.shared.how.added_ns(element));
    }

    fn end(&mut self, name: String, end: End) {
        (self.part.part, self.part.end) = (name, Some(end));
    }

    fn names(&self, count: usize) -> Vec<String> {
        let part = &self.part.part;
        match count {
            1 => vec![part.clone()],
            _ => (0..count).map(|at| format!("{part}.{at}")).collect(),
        }
    }

    /// Adds threads that take no blocks from a row before.
    fn alone(&mut self, roles: Vec<Role>, cpus: &[u32]) {
        let names = self.names(roles.len());
        for (at, (role, name)) in roles.into_iter().zip(names).enumerate() {
            self.push(name, role, cpu(cpus, at), None);
        }
    }

    /// Adds threads that take the blocks of the row before.
    fn row(&mut self, roles: Vec<Role>, cpus: &[u32]) {
        let from = self.open.iter().map(|&at| self.workers[at].thread.name.clone());
        let names = self.names(roles.len());
        let Path { buffers: count, pages, .. } = *self.path;
        let blocks = Blocks { count, bytes: self.bytes, pages };
        let (outlets, inlets) = link(&Vec::from_iter(from), &names, blocks);
        for (at, outlet) in self.open.drain(..).zip(outlets) {
            self.workers[at].outlet = Some(outlet);
        }
        for (at, ((role, name), inlet)) in roles.into_iter().zip(names).zip(inlets).enumerate() {
            self.open.push(self.workers.len());
            self.push(name, role, cpu(cpus, at), Some(inlet));
        }
    }

    fn push(&mut self, name: String, role: Role, cpu_of_path: Option<u32>, inlet: Option<Inlet>) {
        let at = self.workers.len();
        let cpu = cpu(&self.shared.how.cpus, at).or(cpu_of_path);
        self.workers.push(Worker {
            at,
            thread: PathThread { name, cpu, ..self.part.clone() },
            role,
            inlet,
            outlet: None,
            added: self.added,
            shared: self.shared.clone(),
            done: self.done.clone(),
        });
    }

    fn source(&mut self, sources: Vec<Named>) {
        self.begin(0, &self.path.source.name);
        for (stream, (name, source)) in sources.into_iter().enumerate() {
            let from = FromSource {
                source,
                stream,
                block_bytes: self.path.block_bytes,
                first_key: self.shared.expected.first[stream],
                issued: 0,
                lost: 0,
            };
            self.open.push(stream);
            self.push(name, Role::Source(from), cpu(&self.path.source.cpus, stream), None);
        }
    }

    fn stage<K>(&mut self, stage: &Element<K>, mut roles: Vec<Role>) {
        let inward = roles.pop_if(|role| matches!(role, Role::In(..)));
        if inward.is_some() {
            self.end(format!("{} out", stage.name), End::Out);
        }
        self.row(roles, &stage.cpus);
        if let Some(inward) = inward {
            let name = format!("{} in", stage.name);
            self.end(name.clone(), End::In);
            self.open = vec![self.workers.len()];
            self.push(name, inward, cpu(&stage.cpus, 1), None);
        }
        self.bytes = stage.out_bytes;
    }

    fn chain(self, done: Receiver<Done>, cuts: Cuts) -> (Chain, Vec<Worker>) {
        let Building { path, shared, workers, .. } = self;
        let chain = Chain {
            shared,
            cuts,
            patience_ns: patience_ns(path),
            threads: Vec::new(),
            workers: workers.len(),
            done,
        };
        (chain, workers)
    }
}

impl Chain {
    pub(crate) fn start(path: &Path, how: &How, stop: &StopFlag) -> Result<Chain, Fault> {
        let cuts = Cuts::default();
        let mut sources = sources(path)?;
        let sums = expected(path, &mut sources)?;
        let (done_in, done) = channel();
        let mut building = Building::new(path, how, sums, done_in);
        let streams = sources.len();
        building.source(sources);
        for (at, stage) in path.stages.iter().enumerate() {
            let mut roles = Vec::new();
            for _ in 0..stage.threads {
                roles.extend(work(&stage.kind, building.bytes, how.last_level_bytes, &cuts)?);
            }
            building.begin(at + 1, &stage.name);
            building.stage(stage, roles);
        }
        building.begin(path.stages.len() + 1, &path.sink.name);
        let into = IntoSink::new(sink(path, &cuts)?, streams);
        building.row(vec![Role::Sink(Box::new(into))], &path.sink.cpus);
        let (mut chain, workers) = building.chain(done, cuts);
        chain.spawn(workers, stop)?;
        Ok(chain)
    }

    /// Builds the chain of a card that is read out, before any thread is there. No blocks go
    /// between its readers and receivers through the path's rings. The caller works as the readers,
    /// which come first, and starts the receivers ([`Chain::spawn`]).
    pub(crate) fn live(
        path: &Path,
        how: &How,
        readers: Vec<Role>,
        receivers: Vec<Role>,
    ) -> (Chain, Vec<Worker>) {
        let stage = path.stages.first().expect("a card's first stage is `to-host`: checked");
        let (done_in, done) = channel();
        // Its read-out adds the work itself.
        let how = How { slowed: Vec::new(), ..how.clone() };
        let mut building = Building::new(path, &how, Sums::default(), done_in);
        building.begin(1, &stage.name);
        building.alone(readers, &stage.cpus);
        building.begin(path.stages.len() + 1, &path.sink.name);
        building.alone(receivers, &path.sink.cpus);
        building.chain(done, Cuts::default())
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
            if monotonic_ns() > cut_at_ns && fault.is_none() {
                let late_s = self.patience_ns / 1_000_000_000;
                fault = Some(match stop.is_set() {
                    true => Fault::interrupted(),
                    false => Fault::new(format!(
                        "the path did not end {late_s} s after its time: a stage neither takes nor gives"
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
    match path.source.kind {
        SourceKind::Digitizer { trigger: Some(hz), .. } => GRACE_NS + time_ns(TRIGGERS / hz.0),
        _ => GRACE_NS,
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        self.join();
    }
}
