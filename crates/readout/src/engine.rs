//! Engine `readout`: a whole chain at a rate. A lane is a reader of one DMA channel.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use daqmeter_harness::{
    Availability, Fault, LimitSpec, Request, Session, StageSpec, StopFlag, Tally, TypedEngine,
};
use daqmeter_record::{Counter, TimeSeries, Workload};
use daqmeter_stats::LogHistogram;
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::host::Files;
use daqmeter_sys::scheduler::MigrationCost;

use crate::Card;
use crate::accounts::{EXTERNAL, own_losses};
use crate::card::Played;
use crate::card::words::State;
use crate::chain::{Chain, ChainError, Load, Placement, Reader, ReaderDone, Receiving, joined};
use crate::live;
use crate::receive::{Report, elink_of};
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
        for (tag, ledger) in joined(std::slice::from_ref(own), &received) {
            if !ledger.closes() {
                return Err(Fault::new(format!("E-link {tag:#x}: {ledger}")));
            }
        }
        for (subscription, ledger) in own.account.subscription_ledgers() {
            if !ledger.closes() {
                return Err(Fault::new(format!(
                    "a subscription of E-link {:#x}: {ledger}",
                    subscription.tag
                )));
            }
        }
        let of = |count: fn(&Report) -> u64| -> u64 {
            received.iter().map(|(report, _)| count(report)).sum()
        };
        let payload = of(|report| report.faults().payload);
        let bad_pages = of(|report| report.bad_pages);
        // A recorded file may hold what no emulator makes.
        let foreign = locked(&self.shared.card).played().map_or(0, |at| at.wrong);
        if payload.saturating_sub(foreign) + bad_pages > 0 && self.scenario.fault.is_empty() {
            return Err(Fault::new(format!(
                "{payload} fragments with wrong bytes, {bad_pages} pages that make no sense"
            )));
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
        tally.counters = [
            ("chunks", stats.chunks),
            ("blocks", stats.blocks),
            ("polls", stats.polls),
            ("busy-polls", stats.busy_polls),
            ("stalls", stats.stalls),
            ("reader-cpu-ppm", ppm(own.load.cpu)),
        ]
        .map(|(name, value)| Counter::count(name, value))
        .to_vec();
        tally.counters.extend(losses_by_elink(&each));
        tally.carried_bytes = Some(stats.bytes);
        if done.len() > 1 {
            tally.series.push(series(self.series_name(), &own.filling));
        }
        if self.at == 0 {
            let played = locked(&self.shared.card).played();
            tally.warnings.extend(self.notes_of_file(played));
            tally.counters.extend(played.map(turns));
            tally.series.extend(filling(&done));
            tally.counters.extend(whole_run(
                &self.scenario,
                &done,
                &received,
                &locked(&self.shared.card),
            ));
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

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of a CPU"
)]
fn ppm(share: f64) -> u64 {
    (share * 1e6) as u64
}

/// E-links of a lane whose losses are counted one by one.
const MAX_LOSING_ELINKS: usize = 32;

/// Losses of each E-link that has some of its own, those with the most first: `E-link 0x009: emulator deficit`.
fn losses_by_elink(ledgers: &[(u64, daqmeter_record::Ledger)]) -> Vec<Counter> {
    let sum =
        |ledger: &daqmeter_record::Ledger| own_losses(ledger).map(|(_, count)| count).sum::<u64>();
    let mut losing: Vec<_> = ledgers
        .iter()
        .map(|(tag, ledger)| (sum(ledger), tag, ledger))
        .filter(|(lost, ..)| *lost > 0)
        .collect();
    losing.sort_by_key(|(lost, tag, _)| (std::cmp::Reverse(*lost), **tag));
    let told = losing.len().min(MAX_LOSING_ELINKS);
    let rest: u64 = losing[told..].iter().map(|(lost, ..)| lost).sum();
    let name = |tag: u64| {
        elink_of(tag).map_or(format!("{tag:#x}"), |elink| {
            format!("{:#05x}", elink.number())
        })
    };
    let mut counters: Vec<Counter> = losing[..told]
        .iter()
        .flat_map(|(_, tag, ledger)| {
            let elink = name(**tag);
            own_losses(ledger)
                .map(move |(kind, count)| Counter::count(format!("E-link {elink}: {kind}"), count))
        })
        .collect();
    if rest > 0 {
        counters.push(Counter::count("E-links beyond: lost", rest));
    }
    counters
}

/// Counters of all lanes together: said by the first.
fn whole_run(
    scenario: &Scenario,
    done: &[Option<ReaderDone>],
    received: &[(Report, Load)],
    card: &Card,
) -> Vec<Counter> {
    let Some(first) = done.iter().flatten().next() else {
        return Vec::new();
    };
    let measured = |name: &str, value: f64, unit: &str| Counter {
        unit: unit.to_owned(),
        ..Counter {
            value,
            ..Counter::count(name, 0)
        }
    };
    let [dma, fifo, any, external] = first.dead;
    let card_ns = first.card_ns.max(1) as f64;
    let mut latency = LogHistogram::default();
    received
        .iter()
        .for_each(|(report, _)| latency.merge(&report.latency_ns));
    let bytes: u64 = received.iter().map(|(report, _)| report.bytes).sum();
    let found: u64 = done
        .iter()
        .flatten()
        .map(|reader| reader.stats.found_bytes)
        .sum();
    let polls: u64 = done
        .iter()
        .flatten()
        .map(|reader| reader.stats.busy_polls)
        .sum();
    let issued = first.account.card.issued;
    let mut counters = vec![
        measured("triggers", issued as f64, ""),
        measured("trigger-rate", issued as f64 / card_ns * 1e9, "Hz"),
        measured("lost-triggers", any.vetoed as f64, ""),
        measured("dead-time", any.ns as f64 / card_ns, "of the time"),
        measured(
            "dead-time BUSY-by-DMA",
            dma.ns as f64 / card_ns,
            "of the time",
        ),
        measured(
            "dead-time BUSY-by-FIFO",
            fifo.ns as f64 / card_ns,
            "of the time",
        ),
        measured(
            "dead-time external BUSY",
            external.ns as f64 / card_ns,
            "of the time",
        ),
        measured("external BUSY intervals", external.count as f64, ""),
        measured("stopped by external BUSY", external.vetoed as f64, ""),
        measured("BUSY intervals", any.count as f64, ""),
        measured("longest BUSY", any.longest_ns as f64, "ns"),
        measured("ring", first.ring_bytes as f64, "B"),
        measured(
            "ring peak",
            card.peak_bytes().into_iter().max().unwrap_or(0) as f64,
            "B",
        ),
        measured("ring found", found as f64 / polls.max(1) as f64, "B"),
        measured("network", bytes as f64 / card_ns * 1e9, "B/s"),
        measured(
            "receiver-cpu",
            received.iter().map(|(_, load)| load.cpu).sum::<f64>(),
            "of a core",
        ),
        measured("latency p50", latency.quantile(0.5) as f64, "ns"),
        measured("latency max", latency.max() as f64, "ns"),
    ];
    counters.extend(
        latency
            .supported_quantile(0.99)
            .map(|ns| measured("latency p99", ns as f64, "ns")),
    );
    let (assert, _) = scenario.dma_thresholds();
    let mark = scenario.card.ring.0.saturating_sub(assert);
    counters.push(measured("BUSY mark", mark as f64, "B"));
    counters
}

/// Name of the series of a ring's filling, which a search reads back.
const FILLING: &str = "ring filling";
const FILLING_SAMPLES: usize = 32;

/// Samples of the fullest ring's filling.
fn filling(done: &[Option<ReaderDone>]) -> Option<TimeSeries> {
    let last = |reader: &&ReaderDone| reader.filling.last().map_or(0, |at| at.1);
    let fullest = &done.iter().flatten().max_by_key(last)?.filling;
    Some(series(FILLING.to_owned(), fullest))
}

/// Samples of a ring's filling, at equal distance.
fn series(name: String, filling: &[(u64, u64)]) -> TimeSeries {
    let samples = FILLING_SAMPLES.min(filling.len());
    let thinned = (0..samples).map(|sample| filling[sample * filling.len() / samples]);
    let (times_ns, values) = thinned.map(|(ns, bytes)| (ns, Some(bytes as f64))).unzip();
    TimeSeries {
        name,
        unit: "B".to_owned(),
        times_ns,
        values,
    }
}

/// What a search makes of a record.
pub fn observation(record: &daqmeter_record::RunRecord) -> Observation {
    let value = |name: &str| record.counter(name).unwrap_or(0.0);
    let ledger = record.ledgers.first();
    let rate_hz = value("trigger-rate");
    Observation {
        lost: ledger.map_or(0, |ledger| {
            let external = ledger.losses.get(EXTERNAL).copied().unwrap_or(0);
            ledger.lost() - ledger.not_given() - external
        }),
        dead_share: value("dead-time"),
        filling: record
            .series(FILLING)
            .map_or_else(Vec::new, |series| series.points_s().collect()),
        busy_at_bytes: value("BUSY mark"),
        input_bytes_per_s: scenario_of(&record.workload)
            .map_or(0.0, |scenario| scenario.event_bytes() * rate_hz),
    }
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
    fn losses_are_told_by_elink_the_largest_first_and_those_of_all_are_not() {
        let ledger = |deficit: u64, vetoed: u64| {
            let mut ledger = daqmeter_record::Ledger::new("triggers");
            ledger.lose("emulator deficit", deficit);
            ledger.lose("stopped by BUSY-by-DMA", vetoed);
            ledger
        };
        let tag = |elink: u16| {
            let elink = daqmeter_wire::felix::Elink::new(elink);
            daqmeter_wire::felix::payload::Fid::of_elink(0, 0, elink).to_u64()
        };
        let few = [
            (tag(8), ledger(2, 100)),
            (tag(9), ledger(0, 100)),
            (tag(0x10), ledger(5, 100)),
        ];
        let told = |ledgers: &[(u64, daqmeter_record::Ledger)]| -> Vec<(String, f64)> {
            let counters = losses_by_elink(ledgers).into_iter();
            counters
                .map(|counter| (counter.name, counter.value))
                .collect()
        };
        assert_eq!(
            told(&few),
            [
                ("E-link 0x010: emulator deficit".to_owned(), 5.0),
                ("E-link 0x008: emulator deficit".to_owned(), 2.0)
            ]
        );
        let many: Vec<_> = (0..40).map(|at| (tag(at), ledger(1, 0))).collect();
        let counters = told(&many);
        assert_eq!(counters.len(), MAX_LOSING_ELINKS + 1);
        assert_eq!(
            counters.last().unwrap(),
            &("E-links beyond: lost".to_owned(), 8.0)
        );
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
