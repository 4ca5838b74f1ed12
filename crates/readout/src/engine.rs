//! Engines: a whole chain at a rate, and the decoding of blocks by itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use daqmeter_harness::{
    Availability, Engine, Fault, LimitSpec, Parameter, Session, StageSpec, StopFlag, Tally,
    parameters,
};
use daqmeter_record::{Counter, TimeSeries, Workload};
use daqmeter_stats::LogHistogram;
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::memory::buffer_bytes;
use daqmeter_wire::felix::decoder::most_subchunks;
use daqmeter_wire::felix::{Format, Subchunk, subchunks};

use crate::chain::{self, ChainError, Load, ReaderDone};
use crate::receive::Report;
use crate::scenario::{
    Bytes, Completion, Hertz, Nanos, Parts, Publish, ReaderMode, Scenario, ScenarioError,
};
use crate::search::Observation;
use crate::tohost::ToHost;
use crate::{Card, recording};

impl From<ScenarioError> for Fault {
    fn from(error: ScenarioError) -> Self {
        Fault::new(error.to_string())
    }
}

impl From<ChainError> for Fault {
    fn from(error: ChainError) -> Self {
        Fault::new(error.to_string())
    }
}

/// A chain: emulated card, readers, receivers. Workload `readout`:
/// - `scenario`: one that ships, or a file;
/// - `rate_hz`, `seconds`: how often and how long triggers come;
/// - `poll_us`, `payload_bytes`, `channels`, `mode` (`buffered`, `zero-copy`), `completion` (`poll`, `interrupt`), `transport`: instead
///   of the scenario's;
/// - `receivers`: how many, and `receiver_cpus` where they run; as many as readers, and anywhere, without it;
/// - `probe`: no limit is measured beside it.
///
/// A lane is a reader of one DMA channel. Its one operation is the whole run.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadoutEngine;

/// The scenario of a workload, with what it says instead.
///
/// # Errors
/// When there is none, or the parts do not go together.
pub fn scenario_of(workload: &Workload) -> Result<Scenario, Fault> {
    let mut scenario = Scenario::load(workload.text("scenario")?)?;
    if let Ok(rate_hz) = workload.float("rate_hz") {
        scenario.trigger.rate = Hertz(rate_hz);
    }
    if let Ok(poll_us) = workload.float("poll_us") {
        if !(0.0..=1e6).contains(&poll_us) {
            return Err(workload.error("poll_us", "is 0 to 1000000").into());
        }
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a polling interval"
        )]
        let ns = (poll_us * 1e3) as u64;
        scenario.reader.poll = Nanos(ns);
    }
    if let Ok(bytes) = workload.int("payload_bytes") {
        scenario.card.payload = Bytes(usize::try_from(bytes).unwrap_or(usize::MAX));
    }
    if let Ok(channels) = workload.int("channels") {
        scenario.card.channels = u16::try_from(channels).unwrap_or(u16::MAX);
    }
    if let Ok(mode) = workload.text("mode") {
        scenario.reader.mode = match mode {
            "buffered" => ReaderMode::Buffered,
            "zero-copy" => ReaderMode::ZeroCopy,
            _ => return Err(workload.error("mode", "is buffered or zero-copy").into()),
        };
    }
    if let Ok(completion) = workload.text("completion") {
        scenario.reader.completion = match completion {
            "poll" => Completion::Poll,
            "interrupt" => Completion::Interrupt,
            _ => return Err(workload.error("completion", "is poll or interrupt").into()),
        };
    }
    if let Ok(transport) = workload.text("transport") {
        transport.clone_into(&mut scenario.publish.transport);
    }
    scenario.check()?;
    Ok(scenario)
}

/// Bytes that a trigger brings into each ring, blocks and trailers included.
pub fn event_bytes(scenario: &Scenario) -> f64 {
    const MANY: u64 = 1 << 20;
    let Some(format) = scenario.format() else {
        return 0.0;
    };
    let of = |spec: &crate::scenario::ElinkSpec| {
        daqmeter_wire::felix::encoder::blocks_of(format, spec.payload_bytes, MANY) as f64
            * (1.0 - spec.deficit)
    };
    scenario.elinks(0, 0).iter().map(of).sum::<f64>() * format.block_bytes as f64 / MANY as f64
}

/// A chain: a reader, a subscriber and a connection for each channel.
fn parts(scenario: &Scenario) -> Parts {
    let channels = crate::card::channel_ids(scenario).len();
    Parts {
        channels,
        subscribers: channels,
        receptions: channels,
    }
}

fn cpus(text: &str) -> Vec<u32> {
    text.split(',')
        .filter_map(|cpu| cpu.trim().parse().ok())
        .collect()
}

impl Engine for ReadoutEngine {
    fn name(&self) -> &'static str {
        "readout"
    }

    fn description(&self) -> &'static str {
        "emulated card, reader of its rings, pages over the network, checking receivers"
    }

    fn probe(&self) -> Availability {
        Availability::Ready
    }

    fn target(&self, workload: &Workload) -> String {
        scenario_of(workload).map_or_else(
            |_| "unknown".to_owned(),
            |scenario| format!("{} over {}", scenario.name, scenario.publish.transport),
        )
    }

    fn is_emulated(&self, _workload: &Workload) -> bool {
        true
    }

    fn parameters(&self) -> &'static [Parameter] {
        parameters![
            "scenario": "read-out chain, as daqmeter list scenarios names it, or a file",
            "seconds": "length of the run",
            "rate_hz": "trigger rate",
            "poll_us": "time between two looks of the reader",
            "payload_bytes": "bytes of one chunk",
            "channels": "channels of the card",
            "mode": "of the reader: buffered or zero-copy",
            "completion": "poll or interrupt",
            "transport": "tcp, or zenoh where it was built in: how pages reach the receivers",
            "receivers": "number of receivers",
            "receiver_cpus": "their CPUs",
            "probe": "true says what was carried instead of judging it",
        ]
    }

    fn memory_bytes(&self, workload: &Workload) -> Option<u64> {
        let scenario = scenario_of(workload).ok()?;
        Some(scenario.memory_bytes(parts(&scenario)))
    }

    fn example(&self) -> Workload {
        Workload::new("readout")
            .with("scenario", "gbt")
            .with("rate_hz", 10e3)
            .with("seconds", 0.05)
            .with("probe", true)
    }

    fn open(&self, workload: &Workload) -> Result<Vec<Box<dyn Session>>, Fault> {
        let scenario = scenario_of(workload)?;
        let seconds = workload.float("seconds")?;
        if !(seconds > 0.0 && seconds <= 86400.0) {
            return Err(workload
                .error("seconds", "is above 0 and at most a day")
                .into());
        }
        let receivers = workload
            .int("receivers")
            .ok()
            .and_then(|count| usize::try_from(count).ok());
        scenario
            .check_memory(parts(&scenario))
            .map_err(|error| Fault::too_large(error.to_string()))?;
        let (mut card, consumers) = Card::new(&scenario)?;
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at most a day in ns"
        )]
        card.source().end_at((seconds * 1e9) as u64);
        let scenario = card.scenario().clone();
        let card = Arc::new(Mutex::new(card));
        let mut readers = Vec::new();
        for (at, consumer) in consumers.into_iter().enumerate() {
            readers.push(chain::reader(&scenario, &card, consumer, at, &scenario.publish)?.0);
        }
        let publishers: Vec<Publish> = readers
            .iter()
            .map(|reader| Publish {
                address: reader.address(),
                ..scenario.publish.clone()
            })
            .collect();
        let shared = Arc::new(Shared {
            publishers,
            receivers: receivers.unwrap_or(readers.len()).clamp(1, readers.len()),
            receiver_cpus: workload.text("receiver_cpus").map(cpus).unwrap_or_default(),
            threads: Mutex::default(),
            done: Mutex::new(readers.iter().map(|_| None).collect()),
            received: Mutex::default(),
            failed: AtomicBool::new(false),
            peak: card.clone(),
        });
        let bytes = event_bytes(&scenario) * scenario.trigger.rate.0 * seconds;
        let is_probe = workload.flag("probe");
        let session = |(at, reader)| -> Box<dyn Session> {
            let (scenario, shared, stop) = (scenario.clone(), shared.clone(), StopFlag::default());
            Box::new(ReadoutSession {
                at,
                reader,
                scenario,
                bytes,
                is_probe,
                shared,
                stop,
            })
        };
        Ok(readers.into_iter().enumerate().map(session).collect())
    }
}

/// How a receiver's thread ends.
type Receiving = Result<(Report, Load), ChainError>;

/// What the lanes of a run share.
struct Shared {
    publishers: Vec<Publish>,
    receivers: usize,
    receiver_cpus: Vec<u32>,
    threads: Mutex<Vec<JoinHandle<Receiving>>>,
    done: Mutex<Vec<Option<ReaderDone>>>,
    received: Mutex<Vec<(Report, Load)>>,
    failed: AtomicBool,
    peak: Arc<Mutex<Card>>,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A thread that panicked is reported by the harness; what it left is counted as it is.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Waits for the receivers, once.
    fn join(&self) -> Result<(), Fault> {
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
    reader: ToHost,
    scenario: Scenario,
    bytes: f64,
    is_probe: bool,
    shared: Arc<Shared>,
    stop: StopFlag,
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
        let shared = &self.shared;
        for at in 0..shared.receivers {
            let own: Vec<(Publish, Vec<u64>)> = shared
                .publishers
                .iter()
                .skip(at)
                .step_by(shared.receivers)
                .map(|publish| (publish.clone(), Vec::new()))
                .collect();
            let cpu = shared
                .receiver_cpus
                .get(at % shared.receiver_cpus.len().max(1))
                .copied();
            let (name, shared) = (self.scenario.publish.transport.clone(), self.shared.clone());
            let work = move || {
                // Threads inherit the mask of the lane that made them.
                if cpu.is_none() {
                    daqmeter_sys::affinity::unpin();
                }
                let quit = || shared.failed.load(Ordering::Relaxed);
                chain::receive(&name, &own, cpu, &shared.failed, &quit)
            };
            let thread = std::thread::Builder::new()
                .name(format!("receiver-{at}"))
                .spawn(work);
            let thread =
                thread.map_err(|error| Fault::new(format!("no thread for a receiver: {error}")))?;
            locked(&self.shared.threads).push(thread);
        }
        Ok(())
    }

    fn heed(&mut self, stop: &StopFlag) {
        self.stop = stop.clone();
    }

    fn step(&mut self, _stage: usize, _operations: u64) -> Result<(), Fault> {
        let begin_ns = monotonic_ns();
        let (shared, card, stop) = (&self.shared, &self.shared.peak, &self.stop);
        let quit = || {
            let late = monotonic_ns() > begin_ns + START_WITHIN_NS;
            let is_idle = || locked(card).state() == crate::card::State::Idle;
            shared.failed.load(Ordering::Relaxed) || stop.is_set() || late && is_idle()
        };
        let done = chain::read_here(&mut self.reader, None, &quit);
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
        for (tag, ledger) in chain::joined(std::slice::from_ref(own), &received) {
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
        let faults = received
            .iter()
            .map(|(report, _)| (report.faults().payload, report.bad_pages));
        for (payload, bad_pages) in faults {
            if payload + bad_pages > 0 && self.scenario.fault.is_empty() {
                return Err(Fault::new(format!(
                    "{payload} fragments with wrong bytes, {bad_pages} pages that make no sense"
                )));
            }
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
        for (_, ledger) in chain::joined(std::slice::from_ref(own), &received) {
            all.add(&daqmeter_record::Ledger {
                unit: all.unit.clone(),
                ..ledger
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
        tally.carried_bytes = Some(stats.bytes);
        if self.at == 0 {
            tally.series.extend(filling(&done));
            tally.counters.extend(whole_run(
                &self.scenario,
                &done,
                &received,
                &locked(&self.shared.peak),
            ));
        }
        tally
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
    let [dma, fifo, any] = first.dead;
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
    let samples = FILLING_SAMPLES.min(fullest.len());
    let thinned = (0..samples).map(|sample| fullest[sample * fullest.len() / samples]);
    let (times_ns, values) = thinned.map(|(ns, bytes)| (ns, Some(bytes as f64))).unzip();
    Some(TimeSeries {
        name: FILLING.to_owned(),
        unit: "B".to_owned(),
        times_ns,
        values,
    })
}

/// What a search makes of a record.
pub fn observation(record: &daqmeter_record::RunRecord) -> Observation {
    let value = |name: &str| record.counter(name).unwrap_or(0.0);
    let ledger = record.ledgers.first();
    let deficit = ledger
        .and_then(|ledger| ledger.losses.get("emulator deficit"))
        .copied()
        .unwrap_or(0);
    let rate_hz = value("trigger-rate");
    Observation {
        lost: ledger.map_or(0, |ledger| ledger.lost() - deficit),
        dead_share: value("dead-time"),
        filling: record
            .series(FILLING)
            .map_or_else(Vec::new, |series| series.points_s().collect()),
        busy_at_bytes: value("BUSY mark"),
        input_bytes_per_s: scenario_of(&record.workload)
            .map_or(0.0, |scenario| event_bytes(&scenario) * rate_hz),
    }
}

/// Blocks into subchunk descriptors, nothing else. Workload `decode`: `scenario`, `bytes` of blocks. One operation is one pass over them.
#[derive(Clone, Copy, Debug, Default)]
pub struct DecodeEngine;

impl Engine for DecodeEngine {
    fn name(&self) -> &'static str {
        "decode"
    }

    fn description(&self) -> &'static str {
        "FELIX blocks to descriptors of their subchunks"
    }

    fn probe(&self) -> Availability {
        Availability::Ready
    }

    fn target(&self, workload: &Workload) -> String {
        workload.text("scenario").unwrap_or("unknown").to_owned()
    }

    fn is_emulated(&self, _workload: &Workload) -> bool {
        false
    }

    fn parameters(&self) -> &'static [Parameter] {
        parameters![
            "scenario": "read-out chain whose blocks are decoded",
            "bytes": "bytes of blocks",
            "channels": "channels of the card",
            "payload_bytes": "bytes of one chunk",
            "mode": "of the reader: buffered or zero-copy",
        ]
    }

    fn memory_bytes(&self, workload: &Workload) -> Option<u64> {
        let ring = scenario_of(workload).ok()?.card.ring.0 as u64;
        Some(
            workload
                .int("bytes")
                .ok()?
                .saturating_add(buffer_bytes(ring)),
        )
    }

    fn example(&self) -> Workload {
        Workload::new("decode")
            .with("scenario", "gbt")
            .with("bytes", 1_u64 << 20)
    }

    fn open(&self, workload: &Workload) -> Result<Vec<Box<dyn Session>>, Fault> {
        let scenario = scenario_of(workload)?;
        let bytes = workload.int("bytes")?;
        let format = scenario.format().ok_or_else(|| Fault::new("no format"))?;
        if bytes < format.block_bytes as u64 || bytes > 1 << 34 {
            return Err(workload
                .error("bytes", "is at least a block and at most 16 GiB")
                .into());
        }
        let bytes = bytes / format.block_bytes as u64 * format.block_bytes as u64;
        if let Some(free) = daqmeter_sys::available::memory_bytes().filter(|free| *free < bytes) {
            let error = workload.error(
                "bytes",
                format!("is {bytes}; {free} bytes of memory are available"),
            );
            return Err(Fault::too_large(error.to_string()));
        }
        Ok(vec![Box::new(DecodeSession {
            scenario,
            format,
            bytes,
            blocks: Vec::new(),
            room: Vec::new(),
            seen: 0,
            passes: 0,
        })])
    }
}

struct DecodeSession {
    scenario: Scenario,
    format: Format,
    bytes: u64,
    blocks: Vec<u8>,
    room: Vec<Subchunk>,
    seen: u64,
    passes: u64,
}

impl DecodeSession {
    fn pass(&mut self) -> Result<u64, Fault> {
        let (blocks, size) = (&self.blocks, self.format.block_bytes);
        let mut ahead = blocks.chunks_exact(size).skip(2);
        let mut seen = 0;
        for block in blocks.chunks_exact(size) {
            if let Some(ahead) = ahead.next() {
                daqmeter_kernels::prefetch(ahead);
            }
            let (_, found) = subchunks(self.format, block, &mut self.room)
                .map_err(|error| Fault::new(error.to_string()))?;
            seen += std::hint::black_box(found).len() as u64;
        }
        Ok(seen)
    }
}

impl Session for DecodeSession {
    fn device(&self) -> String {
        "memory".to_owned()
    }

    fn stages(&self) -> Vec<StageSpec> {
        let mut stage = StageSpec::new(
            format!("decode {}", self.scenario.name),
            self.bytes,
            self.bytes,
        );
        stage.limit = Some(LimitSpec::Measured {
            name: format!("memory read at {} B", self.bytes),
            how: "the blocks' bytes read once, in order, with no arithmetic".to_owned(),
            workload: Workload::new("memory")
                .with("read_bytes", self.bytes)
                .with("read_lines", 1_u64)
                .with("write_lines", 0_u64),
            scale: 1.0,
        });
        vec![stage]
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        self.room = vec![Subchunk::default(); most_subchunks(self.format)];
        let wanted = usize::try_from(self.bytes).map_err(|error| Fault::new(error.to_string()))?;
        self.blocks.reserve_exact(wanted);
        let triggers = self.bytes as f64 / event_bytes(&self.scenario) * 1.1 + 1000.0;
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a number of triggers"
        )]
        let triggers = triggers as u64;
        let blocks = &mut self.blocks;
        let ids = [crate::card::ChannelId {
            device: 0,
            channel: 0,
        }];
        let made = recording::record_channels(&self.scenario, &ids, triggers, |_, part| {
            let room = wanted - blocks.len();
            blocks.extend_from_slice(&part[..part.len().min(room)]);
            Ok(())
        });
        made.map_err(|error| Fault::new(error.to_string()))?;
        if self.blocks.len() < wanted {
            Err(Fault::new("the card made too few blocks"))
        } else {
            Ok(())
        }
    }

    fn step(&mut self, _stage: usize, operations: u64) -> Result<(), Fault> {
        for _ in 0..operations {
            self.seen += self.pass()?;
            self.passes += 1;
        }
        Ok(())
    }

    fn verify(&mut self) -> Result<(), Fault> {
        let mut checker = crate::check::Checker::new(crate::check::Options::default());
        let checked = checker.take(&self.blocks).and_then(|()| checker.finish());
        let checked = checked.map_err(|error| Fault::new(error.to_string()))?;
        let subchunks: u64 = checked.rows.iter().flat_map(|row| row.subchunks).sum();
        if !checked.is_good() || subchunks != self.pass()? {
            return Err(Fault::new(format!(
                "the checker and the decoder disagree: {:?}",
                checked.faults
            )));
        }
        Ok(())
    }

    fn begin(&mut self) {
        (self.seen, self.passes) = (0, 0);
    }

    fn tally(&mut self) -> Tally {
        let blocks = self.blocks.len() / self.format.block_bytes;
        let per_pass = self.seen / self.passes.max(1);
        let counters = vec![
            Counter::count("subchunks per pass", per_pass),
            Counter::count("blocks per pass", blocks as u64),
        ];
        Tally {
            counters,
            ..Tally::default()
        }
    }
}

/// How long probes of a search take.
pub fn probe_workload(base: &Workload, rate_hz: f64, duration: Duration) -> Workload {
    base.clone()
        .with("rate_hz", rate_hz)
        .with("seconds", duration.as_secs_f64())
        .with("probe", true)
}

#[cfg(test)]
mod tests {
    use daqmeter_harness::conformance;

    use super::*;

    #[test]
    fn engines_conform() {
        conformance::run(&DecodeEngine);
        conformance::run(&ReadoutEngine);
    }

    /// Issue 14: a signal was heeded after the whole run.
    #[test]
    fn a_run_of_an_hour_ends_when_it_is_to_stop_and_its_accounts_close() {
        let workload = ReadoutEngine.example().with("seconds", 3600.0);
        let mut sessions = ReadoutEngine.open(&workload).unwrap();
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
        let scenario = Scenario::load("gbt").unwrap();
        let ring = scenario.card.ring.0 as u64;
        let bytes = ReadoutEngine
            .memory_bytes(&ReadoutEngine.example())
            .unwrap();
        assert!(
            bytes >= ring && bytes < 4 * ring + (1 << 30),
            "{bytes} for rings of {ring}"
        );
        let decode = DecodeEngine
            .memory_bytes(&DecodeEngine.example().with("bytes", 1_u64 << 33))
            .unwrap();
        assert_eq!(decode, (1 << 33) + ring);
        assert_eq!(
            ReadoutEngine.memory_bytes(&ReadoutEngine.example().with("channels", 9_u64)),
            None
        );
    }

    #[test]
    fn events_weigh_what_the_published_packings_say() {
        let scenario = Scenario::load("gbt").unwrap();
        // 24 bytes: 3 blocks for 109 chunks.
        assert!((event_bytes(&scenario) - 24.0 * 1024.0 * 3.0 / 109.0).abs() < 0.01);
    }
}
