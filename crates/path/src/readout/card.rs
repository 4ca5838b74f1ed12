//! A card that is read out live, by the functions of the read-out: its DMA rings lie between card
//! and readers, its transport between readers and receivers. A path gives them threads, and closes
//! their ledgers. Each reader works in a lane, so that it has the run's placement and profile.
//!
//! A reader's thread also does the work of the emulated card and of the publisher, and that of its
//! receiver if the layout is `fused`. No block is copied for the path's sake, and nothing is done
//! for each block or chunk. `path` and `readout` run cards in this way and differ in their reports.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use daqmeter_harness::{Fault, Session, StageSpec, StopFlag, Tally, locked};
use daqmeter_readout::card::CardState;
use daqmeter_readout::chain::{
    Chain as CardChain, ReaderDone, Receiving, check_bytes, check_ledgers, counters,
    counters_of_reader, filling, joined, latency, looked, losses_by_elink,
};
use daqmeter_readout::receive::Report;
use daqmeter_readout::slowed::{Added, Experiment};
use daqmeter_readout::{Card, Scenario, ToHost};
use daqmeter_record::Ledger;
use daqmeter_record::path::{PathRun, PathThread, PathWithin};
use daqmeter_record::written::Hertz;
use daqmeter_sys::affinity;
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::host::Files;
use daqmeter_sys::scheduler::MigrationCost;

use crate::added_work::Spin;
use crate::chain::Chain;
use crate::chain::outcome::buckets;
use crate::chain::shared::{PathSettings, Shared};
use crate::chain::thread::{CardWork, Feed, Worker};
use crate::definition::Path;
use crate::definition::kind::alone;

/// Triggers of a card that is read out as fast as it goes: more than any reader carries; BUSY stops
/// the rest.
pub(crate) const TOO_MANY_HZ: f64 = *daqmeter_record::units::TRIGGER_RATES_HZ.end();

/// Parts of a record in which `path` and `readout` differ.
pub(crate) struct CardReport {
    pub(crate) device: fn(&ReadOut, usize) -> String,
    pub(crate) stage: StageSpec,
    pub(crate) tally: fn(&ReadOut, &CardResults, usize) -> Tally,
}

pub(crate) struct ReadOut {
    pub(crate) path: Path,
    pub(crate) scenario: Scenario,
    pub(crate) lanes: usize,
    card: Arc<Mutex<Card>>,
    shared: Arc<Shared>,
    report: CardReport,
    results: Arc<Mutex<CardResults>>,
    state: Mutex<State>,
}

/// Results of all threads; of those that work for the card each adds its own.
#[derive(Default)]
pub(crate) struct CardResults {
    threads: Vec<PathThread>,
    /// Each reader; `None` for one that did not come to its end.
    pub(crate) readers: Vec<Option<ReaderDone>>,
    received: Vec<Report>,
    pub(crate) fault: Option<Fault>,
}

#[derive(Default)]
struct State {
    chain: Option<Chain>,
    receivers: Vec<Worker>,
    /// Scheduler setting, if another was asked for: put back at the end.
    migration_cost: Option<MigrationCost>,
}

pub(crate) type ByElink = Vec<(u64, Ledger)>;

/// Opens the card of a path: a lane for each of its DMA channels.
pub(crate) fn open(
    path: Path,
    how: &PathSettings,
    report: CardReport,
) -> Result<Vec<Box<dyn Session>>, Fault> {
    let mut scenario = path.live().cloned().ok_or_else(|| alone(&path.name))?;
    scenario.trigger.rate = how.rate_hz.map_or(scenario.trigger.rate, Hertz);
    scenario.check()?;
    let time = Duration::from_nanos(how.time_ns);
    let experiment = how.is_watched.then(|| experiment(how));
    let parts =
        CardChain::open(&scenario, path.receivers(), time, how.most_blocks, experiment.as_ref())?;
    let CardChain { scenario, card, readers, mut receivers } = parts;
    let lanes = readers.len();
    let none = (0..lanes).map(|_| None).collect();
    let results = Arc::new(Mutex::new(CardResults { readers: none, ..CardResults::default() }));
    let fused = if how.is_fused() { std::mem::take(&mut receivers) } else { Vec::new() };
    let mut fused = fused.into_iter();
    let readers = readers
        .into_iter()
        .enumerate()
        .map(|(at, reader)| reading(at, reader, fused.next(), card.clone(), results.clone()));
    let receivers = receivers.into_iter().map(|one| receiving(one, results.clone()));
    let feed = |work| Feed::Card(work, StopFlag::default());
    let (readers, receivers) = (readers.map(feed).collect(), receivers.map(feed).collect());
    let (chain, mut readers) = Chain::live(&path, how, readers, receivers);
    let shared = chain.shared.clone();
    let receivers = readers.split_off(lanes);
    let state = Mutex::new(State { chain: Some(chain), receivers, migration_cost: None });
    let read_out =
        Arc::new(ReadOut { path, scenario, lanes, card, shared, report, results, state });
    let lane = |(at, reader)| -> Box<dyn Session> {
        let (read_out, stop) = (read_out.clone(), StopFlag::default());
        Box::new(Lane { at, reader: Some(reader), read_out, stop })
    };
    Ok(readers.into_iter().enumerate().map(lane).collect())
}

/// Work added to a part of the card's read-out, by the number of its element.
fn experiment(how: &PathSettings) -> Experiment {
    std::array::from_fn(|element| {
        let ns = how.added_ns(element);
        let spin = Spin::of_ns(ns);
        (ns > 0.0).then(|| -> Added { Arc::new(move |blocks| spin.work_times(blocks)) })
    })
}

/// Time after which a card that has not started does not start any more: another reader failed.
const START_WITHIN_NS: u64 = 10_000_000_000;

/// Work of a reader, and of the receiver that is in its thread.
fn reading(
    at: usize,
    mut reader: ToHost,
    fused: Option<Receiving>,
    card: Arc<Mutex<Card>>,
    results: Arc<Mutex<CardResults>>,
) -> CardWork {
    Box::new(move |stop, shared, account| {
        if let Some(receiving) = &fused {
            reader.fuse(receiving)?;
        }
        let late_ns = monotonic_ns().saturating_add(START_WITHIN_NS);
        let probing = Mutex::new(&mut *account);
        let quit = || {
            locked(&probing).look();
            shared.is_over.load(Ordering::Relaxed)
                || stop.is_set()
                || monotonic_ns() > late_ns && locked(&card).state() == CardState::Idle
        };
        let done = reader.read(&quit);
        account.thread.blocks = done.stats.blocks;
        if !reader.begun {
            // It was stopped before its receiver had come, which would retry for seconds.
            shared.is_over.store(true, Ordering::Relaxed);
        }
        let mut results = locked(&results);
        results.received.extend(done.received.iter().map(|(report, _)| report.clone()));
        results.readers[at] = Some(done);
        Ok(())
    })
}

fn receiving(receiving: Receiving, results: Arc<Mutex<CardResults>>) -> CardWork {
    Box::new(move |_, shared, account| {
        let probing = Mutex::new(&mut *account);
        let quit = || {
            locked(&probing).look();
            shared.is_over.load(Ordering::Relaxed)
        };
        let report = receiving.receive(&shared.is_over, &quit)?;
        account.thread.blocks = report.pages;
        locked(&results).received.push(report);
        Ok(())
    })
}

/// Books the sleep of readers and receivers as a wait for input: they wait for the next look or for
/// the network.
fn waits_for_input(thread: PathThread) -> PathThread {
    PathThread { input_ns: thread.input_ns + thread.elsewhere_ns, elsewhere_ns: 0, ..thread }
}

impl ReadOut {
    fn fail(&self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
    }

    /// Waits until all threads have ended.
    fn ended(&self, stop: &StopFlag) -> MutexGuard<'_, CardResults> {
        let mut state = locked(&self.state);
        // Receivers that were not started have no results to wait for.
        state.receivers.clear();
        let ended = state.chain.take().map(|mut chain| chain.wait(stop));
        let mut results = locked(&self.results);
        if let Some((all, fault)) = ended {
            results.threads = all.into_iter().map(|done| waits_for_input(done.thread)).collect();
            results.fault = fault;
        }
        results
    }

    /// Checks for reasons, known to that reader, why a run without a fault failed.
    fn check(&self, results: &CardResults, reader: &ReaderDone) -> Result<(), Fault> {
        check_ledgers(std::slice::from_ref(reader), &results.received).map_err(Fault::new)?;
        if self.scenario.fault.is_empty() {
            check_bytes(&results.received).map_err(Fault::new)?;
        }
        Ok(())
    }

    /// Account of a reader's lane, with the ledger of each of its E-links; the first one also has
    /// the common accounts.
    pub(crate) fn tally(&self, results: &CardResults, at: usize) -> (Tally, ByElink) {
        let mut tally = Tally::default();
        let mut each = Vec::new();
        if let Some(own) = &results.readers[at] {
            each = joined(std::slice::from_ref(own), &results.received);
            tally.carried_bytes = Some(own.stats.bytes);
            tally.warnings.clone_from(&own.notes);
            tally.warnings.extend(looked(&self.scenario, own));
            tally.counters = counters_of_reader(own);
            tally.counters.extend(losses_by_elink(&each));
        }
        if at == 0 {
            let whole: Vec<&ReaderDone> = results.readers.iter().flatten().collect();
            let peak_bytes = locked(&self.card).peak_bytes();
            tally.series.extend(filling(&whole));
            tally.counters.extend(counters(&self.scenario, &whole, &results.received, &peak_bytes));
            tally.sections.path = Some(Box::new(self.run(results, &whole)));
        }
        (tally, each)
    }

    fn run(&self, results: &CardResults, readers: &[&ReaderDone]) -> PathRun {
        let blocks = readers.iter().map(|reader| reader.stats.blocks).sum();
        let latency_ns = latency(&results.received);
        let mut threads = results.threads.clone();
        for (thread, reader) in threads.iter_mut().zip(&results.readers) {
            thread.within = reader.as_ref().map_or_else(Vec::new, |one| within(&self.path, one));
        }
        PathRun {
            line: self.path.line(),
            wall_ns: threads.iter().map(|thread| thread.wall_ns).max().unwrap_or(0),
            payload_bytes: readers.iter().map(|reader| reader.stats.bytes).sum(),
            blocks,
            events: results.received.iter().map(Report::chunks).sum(),
            // Receivers compare every chunk with the emulator's.
            verified_blocks: blocks,
            latency: buckets(&latency_ns),
            latency_max_ns: latency_ns.max(),
            is_paced: self.scenario.trigger.rate.0 < TOO_MANY_HZ,
            cpus: daqmeter_sys::available::cpus(),
            threads,
            layout: self.shared.how.layout.clone(),
            ..PathRun::default()
        }
    }
}

/// Parts that work in the thread of a reader.
fn within(path: &Path, reader: &ReaderDone) -> Vec<PathWithin> {
    let watched = reader.within.map(|(card_ns, publisher_ns)| [(0, card_ns), (2, publisher_ns)]);
    let received = reader.received.as_ref().map(|(_, ns)| (path.stages.len() + 1, *ns));
    let names = path.names();
    let one =
        |(element, ns): (usize, u64)| PathWithin { name: names[element].clone(), element, ns };
    watched.into_iter().flatten().chain(received).map(one).collect()
}

impl Drop for ReadOut {
    fn drop(&mut self) {
        self.fail();
    }
}

struct Lane {
    at: usize,
    /// Its reader until it has worked.
    reader: Option<Worker>,
    read_out: Arc<ReadOut>,
    stop: StopFlag,
}

impl Lane {
    fn prepared(&mut self) -> Result<(), Fault> {
        if let Some(reader) = &mut self.reader {
            match (reader.thread.cpu, &affinity::allowed_cpus()?[..]) {
                (Some(cpu), _) => drop(affinity::pin_to(cpu)?),
                // It works in the lane's thread, which has its CPU.
                (None, &[cpu]) => reader.thread.cpu = Some(cpu),
                (None, _) => {}
            }
            reader.prepare(&self.stop)?;
        }
        if self.at > 0 {
            return Ok(());
        }
        let mut state = locked(&self.read_out.state);
        if let Some(ns) = self.read_out.shared.how.migration_cost_ns {
            let set = MigrationCost::set(&Files::default(), ns);
            state.migration_cost = Some(set.map_err(|error| Fault::new(error.to_string()))?);
        }
        let receivers = std::mem::take(&mut state.receivers);
        state.chain.as_mut().map_or(Ok(()), |chain| chain.spawn(receivers, &self.stop))
    }
}

impl Session for Lane {
    fn device(&self) -> String {
        (self.read_out.report.device)(&self.read_out, self.at)
    }

    fn stages(&self) -> Vec<StageSpec> {
        vec![self.read_out.report.stage.clone()]
    }

    fn set_stop_flag(&mut self, stop: &StopFlag) {
        self.stop = stop.clone();
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        // Without this reader its receiver would wait for seconds.
        self.prepared().inspect_err(|_| self.read_out.fail())
    }

    fn begin(&mut self) {
        if let (0, Some(chain)) = (self.at, &locked(&self.read_out.state).chain) {
            chain.release();
        }
    }

    fn step(&mut self, _stage: usize, _operations: u64) -> Result<(), Fault> {
        // A plan by time calls again: by then the card has ended, and no work is left.
        if let Some(reader) = self.reader.take() {
            reader.work();
        }
        // The data read until then is accounted for in the record.
        match self.stop.is_set() {
            true => Err(Fault::interrupted()),
            false => Ok(()),
        }
    }

    fn verify(&mut self) -> Result<(), Fault> {
        if self.reader.is_some() {
            return Ok(());
        }
        let results = self.read_out.ended(&self.stop);
        results.fault.clone().map_or(Ok(()), Err)?;
        let reader = results.readers[self.at].as_ref();
        reader.map_or(Ok(()), |reader| self.read_out.check(&results, reader))
    }

    fn tally(&mut self) -> Tally {
        if self.reader.take().is_some() {
            // The reader did not run: receivers may wait for it.
            self.read_out.fail();
        }
        let results = self.read_out.ended(&self.stop);
        (self.read_out.report.tally)(&self.read_out, &results, self.at)
    }
}
