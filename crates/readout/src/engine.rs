//! Engine `readout`: a whole chain at a rate. A lane is a reader of one DMA channel.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use daqmeter_harness::{
    Availability, Fault, LimitSpec, Request, Session, StageSpec, StopFlag, Tally, TypedEngine,
};
use daqmeter_record::{Counter, Workload};
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::host::Files;
use daqmeter_sys::scheduler::MigrationCost;

use crate::Card;
use crate::accounts::EXTERNAL;
use crate::card::Played;
use crate::card::words::State;
use crate::chain::{
    Chain, ChainError, FILLING, Load, Placement, Reader, ReaderDone, Receiving, check_bytes,
    check_ledgers, counters, counters_of_reader, filling, joined, losses_by_elink, observed,
    series,
};
use crate::live;
use crate::receive::Report;
use crate::request::{Chosen, ReadoutRequest};
use crate::scenario::{Scenario, ScenarioError};
use crate::search::Observation;

impl From<ScenarioError> for Fault {
    fn from(error: ScenarioError) -> Self {
        Fault::new(error.to_string())
    }
}

impl From<ChainError> for Fault {
    fn from(error: ChainError) -> Self {
        match error {
            ChainError::TooLarge(_) => Fault::too_large(error.to_string()),
            _ => Fault::new(error.to_string()),
        }
    }
}

/// A chain: emulated card, readers, receivers.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadoutEngine;

fn scenario_of(workload: &Workload) -> Result<Scenario, Fault> {
    Ok(ReadoutRequest::of(workload)?.chosen.load()?)
}

impl TypedEngine for ReadoutEngine {
    type Request = ReadoutRequest;

    fn description(&self) -> &'static str {
        "emulated card, reader of its rings, pages over the network, checking receivers"
    }

    fn probe_for(&self, request: &ReadoutRequest) -> Availability {
        match request.migration_cost_ns {
            Some(_) => match MigrationCost::check(&Files::default()) {
                Ok(()) => Availability::Ready,
                Err(error) => Availability::Waived(error.to_string()),
            },
            None => Availability::Ready,
        }
    }

    fn names_processes(&self) -> bool {
        true
    }

    fn target(&self, request: &ReadoutRequest) -> String {
        request.chosen.outline().map_or_else(
            |_| "unknown".to_owned(),
            |scenario| format!("{} over {}", scenario.name, scenario.publish.transport),
        )
    }

    fn is_emulated(&self, _request: &ReadoutRequest) -> bool {
        true
    }

    fn memory_bytes(&self, request: &ReadoutRequest) -> Option<u64> {
        let scenario = request.chosen.outline().ok()?;
        let file = request.chosen.replayed_bytes();
        Some(file.saturating_add(scenario.memory_bytes(Chain::parts(&scenario))))
    }

    fn example(&self) -> ReadoutRequest {
        ReadoutRequest {
            chosen: Chosen {
                scenario: "gbt".to_owned(),
                rate_hz: Some(10e3),
                ..Chosen::default()
            },
            seconds: 0.05,
            probe: true,
            ..ReadoutRequest::default()
        }
    }

    fn open(&self, request: &ReadoutRequest) -> Result<Vec<Box<dyn Session>>, Fault> {
        let placement = Placement {
            receivers: request.receivers.receivers.unwrap_or(0),
            receiver_cpus: request.receivers.cpus(),
            ..Placement::default()
        };
        let duration = Duration::from_secs_f64(request.seconds);
        let chain = Chain::open(&request.chosen.load()?, &placement, duration, None)?;
        let Chain {
            scenario,
            card,
            readers,
            receivers,
            ..
        } = chain;
        live::register(&scenario.name, &card);
        let shared = Arc::new(Shared {
            receivers: Mutex::new(receivers),
            threads: Mutex::default(),
            done: Mutex::new(readers.iter().map(|_| None).collect()),
            received: Mutex::default(),
            failed: AtomicBool::new(false),
            migration_cost: Mutex::default(),
            left: Released::default(),
            card,
        });
        let bytes = scenario.event_bytes() * scenario.trigger.rate.0 * request.seconds;
        let (is_probe, migration_cost_ns) = (request.probe, request.migration_cost_ns);
        let session = |(at, reader)| -> Box<dyn Session> {
            let (scenario, shared, stop) = (scenario.clone(), shared.clone(), StopFlag::default());
            Box::new(ReadoutSession {
                at,
                reader,
                scenario,
                bytes,
                is_probe,
                migration_cost_ns,
                shared,
                stop,
            })
        };
        Ok(readers.into_iter().enumerate().map(session).collect())
    }
}

/// How a receiver's thread ends.
type Received = Result<(Report, Load), ChainError>;

/// What the lanes of a run share.
struct Shared {
    /// Until the first lane starts them.
    receivers: Mutex<Vec<Receiving>>,
    threads: Mutex<Vec<JoinHandle<Received>>>,
    done: Mutex<Vec<Option<ReaderDone>>>,
    received: Mutex<Vec<(Report, Load)>>,
    failed: AtomicBool,
    /// The scheduler's setting, where another was asked for: put back at the end.
    migration_cost: Mutex<Option<MigrationCost>>,
    /// Receivers' threads that are done stay until what they used was read.
    left: Released,
    card: Arc<Mutex<Card>>,
}

/// What threads wait for before they end: the CPU time of a thread that has ended is nowhere to be read.
#[derive(Default)]
struct Released {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Released {
    fn set(&self) {
        *locked(&self.is_set) = true;
        self.changed.notify_all();
    }

    /// Waits until it is set, or `quit` says so.
    fn wait(&self, quit: impl Fn() -> bool) {
        const LOOK: Duration = Duration::from_millis(50);
        let mut is_set = locked(&self.is_set);
        while !*is_set && !quit() {
            let waited = self.changed.wait_timeout(is_set, LOOK);
            is_set = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A thread that panicked is reported by the harness; what it left is counted as it is.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Waits for the receivers, once.
    fn join(&self) -> Result<(), Fault> {
        self.left.set();
        let mut received = locked(&self.received);
        for thread in locked(&self.threads).drain(..) {
            match thread.join() {
                Ok(done) => received.push(done?),
                Err(_) => {
                    return Err(Fault::new(
                        "a receiver panicked: a bug in daqmeter, please report it",
                    ));
                }
            }
        }
        Ok(())
    }
}

struct ReadoutSession {
    at: usize,
    reader: Reader,
    scenario: Scenario,
    bytes: f64,
    is_probe: bool,
    migration_cost_ns: Option<u64>,
    shared: Arc<Shared>,
    stop: StopFlag,
}

impl Drop for ReadoutSession {
    /// Where nobody joins the receivers' threads any more, they end.
    fn drop(&mut self) {
        self.shared.left.set();
    }
}

/// A run whose card has not started after this time does not start any more: another lane failed.
const START_WITHIN_NS: u64 = 10_000_000_000;

impl Session for ReadoutSession {
    fn device(&self) -> String {
        let id = crate::card::channel_ids(&self.scenario)[self.at];
        format!("{}:{}.{}", self.scenario.name, id.device, id.channel)
    }

    fn stages(&self) -> Vec<StageSpec> {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a byte count"
        )]
        let bytes = self.bytes as u64;
        let mut stage = StageSpec::new("read-out", bytes, bytes);
        stage.once = true;
        if !self.is_probe {
            let ring_bytes = self.scenario.card.ring.0 as u64;
            stage.limit = Some(LimitSpec::Measured {
                name: format!("memory read at {ring_bytes} B"),
                how: "the ring's bytes read once, in order, with no arithmetic".to_owned(),
                workload: Workload::new("memory")
                    .with("read_bytes", ring_bytes)
                    .with("read_lines", 1_u64)
                    .with("write_lines", 0_u64),
                scale: 1.0,
            });
        }
        vec![stage]
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        if self.at > 0 {
            return Ok(());
        }
        if let Some(ns) = self.migration_cost_ns {
            let set = MigrationCost::set(&Files::default(), ns);
            let set = set.map_err(|error| Fault::new(error.to_string()))?;
            *locked(&self.shared.migration_cost) = Some(set);
        }
        let receivers = std::mem::take(&mut *locked(&self.shared.receivers));
        for (at, receiving) in receivers.into_iter().enumerate() {
            let shared = self.shared.clone();
            let work = move || {
                // Threads inherit the mask of the lane that made them.
                if receiving.cpu.is_none() {
                    daqmeter_sys::affinity::unpin();
                }
                let quit = || shared.failed.load(Ordering::Relaxed);
                let received = receiving.receive(&shared.failed, &quit);
                shared.left.wait(quit);
                received
            };
            let thread = std::thread::Builder::new()
                .name(format!("receiver-{at}"))
                .spawn(work)
                .map_err(|error| Fault::new(format!("no thread for a receiver: {error}")))?;
            locked(&self.shared.threads).push(thread);
        }
        Ok(())
    }

    fn heed(&mut self, stop: &StopFlag) {
        self.stop = stop.clone();
    }

    fn step(&mut self, _stage: usize, _operations: u64) -> Result<(), Fault> {
        let begin_ns = monotonic_ns();
        let (shared, card, stop) = (&self.shared, &self.shared.card, &self.stop);
        let quit = || {
            let late = monotonic_ns() > begin_ns + START_WITHIN_NS;
            let is_idle = || locked(card).state() == State::Idle;
            shared.failed.load(Ordering::Relaxed) || stop.is_set() || late && is_idle()
        };
        let done = self.reader.read(None, &quit);
        locked(&self.shared.done)[self.at] = Some(done);
        // What was read until then is accounted for in the record.
        if self.stop.is_set() {
            Err(Fault::interrupted())
        } else {
            Ok(())
        }
    }

    fn verify(&mut self) -> Result<(), Fault> {
        if locked(&self.shared.done)[self.at].is_none() {
            return Ok(());
        }
        self.shared.join()?;
        let (done, received) = (locked(&self.shared.done), locked(&self.shared.received));
        let Some(own) = &done[self.at] else {
            return Ok(());
        };
        check_ledgers(std::slice::from_ref(own), &received).map_err(Fault::new)?;
        // A recorded file may hold what no emulator makes.
        let foreign = locked(&self.shared.card).played().map_or(0, |at| at.wrong);
        if self.scenario.fault.is_empty() {
            check_bytes(&received, foreign).map_err(Fault::new)?;
        }
        Ok(())
    }

    fn tally(&mut self) -> Tally {
        // Where a lane failed, receivers may still wait.
        self.shared.failed.store(true, Ordering::Relaxed);
        let mut tally = Tally::default();
        if let Err(fault) = self.shared.join() {
            tally.warnings.push(fault.0);
        }
        let (done, received) = (locked(&self.shared.done), locked(&self.shared.received));
        let Some(own) = &done[self.at] else {
            return tally;
        };
        tally.warnings.extend(own.notes.iter().cloned());
        let mut all = daqmeter_record::Ledger::new("triggers x E-links");
        let each = joined(std::slice::from_ref(own), &received);
        for (_, ledger) in &each {
            all.add(&daqmeter_record::Ledger {
                unit: all.unit.clone(),
                ..ledger.clone()
            });
        }
        tally.ledgers.push(all);
        let stats = &own.stats;
        tally.counters = counters_of_reader(own);
        tally.counters.extend(losses_by_elink(&each));
        tally.carried_bytes = Some(stats.bytes);
        if done.len() > 1 {
            tally.series.push(series(self.series_name(), &own.filling));
        }
        if self.at == 0 {
            let played = locked(&self.shared.card).played();
            tally.warnings.extend(self.notes_of_file(played));
            tally.counters.extend(played.map(turns));
            let readers: Vec<&ReaderDone> = done.iter().flatten().collect();
            tally.series.extend(filling(&readers));
            let peak_bytes = locked(&self.shared.card).peak_bytes();
            tally
                .counters
                .extend(counters(&self.scenario, &readers, &received, &peak_bytes));
        }
        tally
    }
}

impl ReadoutSession {
    /// Of the filling of this lane's ring.
    fn series_name(&self) -> String {
        let id = crate::card::channel_ids(&self.scenario)[self.at];
        format!("{FILLING}, device {}, channel {}", id.device, id.channel)
    }

    /// What is to be said of a recorded file, and how much of it was given.
    fn notes_of_file(&self, played: Option<Played>) -> Vec<String> {
        let Some((playback, played)) = self.scenario.recorded.as_ref().zip(played) else {
            return Vec::new();
        };
        let mut notes = playback.file.notes();
        if !playback.loops && played.blocks < played.of {
            notes.push(format!(
                "{}: the time was over after {} of {} blocks; a longer --time replays the rest",
                playback.file.name, played.blocks, played.of
            ));
        }
        notes
    }
}

/// How often a recorded file was replayed.
fn turns(played: Played) -> Counter {
    Counter {
        value: played.blocks as f64 / played.of.max(1) as f64,
        ..Counter::count("turns of the recorded file", 0)
    }
}

/// What a search makes of a record of this engine.
pub fn observation(record: &daqmeter_record::RunRecord) -> Observation {
    let event_bytes = scenario_of(&record.workload).map_or(0.0, |scenario| scenario.event_bytes());
    let ledger = record.ledgers.first();
    observed(record, event_bytes, ledger.map_or(0, lost_on_the_way))
}

/// Triggers x E-links that were lost on the way: neither those that the source did not give nor those that BUSY from outside stopped.
pub fn lost_on_the_way(ledger: &daqmeter_record::Ledger) -> u64 {
    let external = ledger.losses.get(EXTERNAL).copied().unwrap_or(0);
    ledger.lost() - ledger.not_given() - external
}

#[cfg(test)]
mod tests {
    use daqmeter_harness::conformance;

    use super::*;

    #[test]
    fn a_chain_conforms() {
        conformance::run(&ReadoutEngine);
    }

    /// Issue 14: a signal was heeded after the whole run.
    #[test]
    fn a_run_of_an_hour_ends_when_it_is_to_stop_and_its_accounts_close() {
        let request = ReadoutRequest {
            seconds: 3600.0,
            ..ReadoutEngine.example()
        };
        let mut sessions = ReadoutEngine.open(&request).unwrap();
        let session = &mut sessions[0];
        let stop = StopFlag::default();
        session.heed(&stop);
        session.prepare().unwrap();
        let asked = stop.clone();
        let asking = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            asked.set();
        });
        assert_eq!(session.step(0, 1).unwrap_err(), Fault::interrupted());
        asking.join().unwrap();
        let tally = session.tally();
        assert!(tally.ledgers[0].closes(), "{}", tally.ledgers[0]);
        // What was read counts, not what an hour would have brought.
        let asked = session.stages()[0].bytes_per_op;
        assert!(tally.carried_bytes.is_some_and(|bytes| bytes < asked / 10));
        let filling = &tally.series[0];
        assert_eq!(
            (filling.name.as_str(), filling.unit.as_str()),
            (FILLING, "B")
        );
        assert_eq!(filling.times_ns.len(), filling.values.len());
    }

    #[test]
    fn the_memory_of_a_chain_is_known_beforehand() {
        let ring = Scenario::load("gbt").unwrap().card.ring.0 as u64;
        let mut request = ReadoutEngine.example();
        let bytes = ReadoutEngine.memory_bytes(&request).unwrap();
        assert!(
            bytes >= ring && bytes < 4 * ring + (1 << 30),
            "{bytes} for rings of {ring}"
        );
        request.chosen.channels = Some(9);
        assert_eq!(ReadoutEngine.memory_bytes(&request), None);
    }
}
