use std::cell::Cell;
use std::time::Duration;

use daqmeter_harness::{Fault, Session, StageSpec, StopFlag, Tally};
use daqmeter_record::{Counter, Ledger};
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_wire::etherbone::Width;
use daqmeter_wire::etherbone::cycle::{Op, StatusCheck};

use super::plan::Plan;
use super::request::{Method, Payload};
use crate::bus::devices::{ECA_TIME_HI, ECA_TIME_LO};
use crate::bus::tlu;
use crate::server::Running;
use crate::timestamps::{Unroller, Windows};
use crate::{Client, CompletedCycle, CycleOutcome, EbError};

pub(super) struct EtherboneSession {
    plan: Plan,
    way: Option<Conversation>,
    seen: Seen,
    words: Vec<u64>,
}

/// The open conversation. The fields' order ends the server after the client.
pub(super) struct Conversation {
    pub(super) client: Client,
    pub(super) ops: Vec<Op>,
    pub(super) base: u64,
    pub(super) unread: Vec<String>,
    pub(super) _server: Option<Running>,
}

#[derive(Default)]
struct Seen {
    /// True if the words are timestamps.
    are_times: bool,
    issued: u64,
    delivered: u64,
    timed_out: u64,
    /// Lost cycles that were sent again, and not counted as issued.
    repeated: u64,
    /// Times in a row that lost cycles were sent again.
    tried: u64,
    /// Deadlines in a row since the last answer, and the time of the last one.
    waits: u32,
    waited_ns: u64,
    /// Lost cycles before the last answer, repeated or not.
    lost_before: u64,
    /// Cycles that lost their answer when the connection broke.
    abandoned: u64,
    failed_on_bus: u64,
    /// True if a cycle of this sample was lost.
    is_void: bool,
    windows: Windows,
}

impl Seen {
    fn done(&mut self, done: &CompletedCycle<'_>, ops: &[Op], timeout: Duration) {
        if done.result.is_err() {
            return self.timed_out(timeout);
        }
        // The only write of a cycle drops a stamp of the latch, which refuses it if there is none.
        let has_failed = |(at, op): (usize, &Op)| !op.write && done.failed(at);
        let failed = !done.is_clean() && ops.iter().enumerate().any(has_failed);
        self.answered(failed, done.words);
    }

    fn answered(&mut self, failed_on_bus: bool, words: &[u64]) {
        self.delivered += 1;
        self.heard();
        self.failed_on_bus += u64::from(failed_on_bus);
        if self.are_times {
            self.windows.cycle(words);
        }
    }

    /// Returns how many of the cycles that were lost now are sent again. If they are not, the
    /// sample is void.
    fn again(&mut self, lost: u64, retries: u64) -> u64 {
        let repeats = if self.tried < retries { lost } else { 0 };
        self.tried = if repeats > 0 { self.tried + 1 } else { 0 };
        self.is_void |= lost > repeats;
        self.timed_out -= repeats;
        self.issued -= repeats;
        self.repeated += repeats;
        repeats
    }

    fn heard(&mut self) {
        (self.waits, self.lost_before) = (0, self.timed_out + self.repeated);
    }

    /// Bounds the share of lost cycles before those that are lost now.
    fn lost_share(&self) -> f64 {
        let lost = self.lost_before as f64;
        (1.0 + lost) / (10.0 + lost + self.delivered as f64)
    }

    /// Counts a cycle without an answer. Cycles that were sent together have one deadline, and are
    /// one wait.
    fn timed_out(&mut self, timeout: Duration) {
        self.timed_out += 1;
        let now_ns = monotonic_ns();
        if u128::from(now_ns.saturating_sub(self.waited_ns)) >= timeout.as_nanos() / 2 {
            self.waits += 1;
            self.waited_ns = now_ns;
        }
    }
}

impl Conversation {
    pub(super) fn open(plan: &Plan) -> Result<Conversation, Fault> {
        let (mut client, _server) = plan.open()?;
        let (base, unread) = plan.device_base(&mut client)?;
        Ok(Conversation { client, ops: plan.ops(base), base, unread, _server })
    }

    /// Runs the cycle once; all reads must work.
    fn checked(&mut self) -> Result<&CycleOutcome, Fault> {
        let outcome = self.client.cycle(&self.ops, StatusCheck::Status)?;
        match outcome.failed.iter().find(|&&at| !self.ops[at].write) {
            None => Ok(outcome),
            Some(&at) => Err(Fault::new(format!(
                "bus error at {:#x}: no memory or device answers at this address",
                self.ops[at].address
            ))),
        }
    }

    /// Reads the timestamps of a cycle, which never go back.
    pub(super) fn times(
        &mut self,
        unroller: &mut Unroller,
        mut take: impl FnMut(u64),
    ) -> Result<(), Fault> {
        for pair in self.checked()?.values.chunks_exact(2) {
            let before_ns = unroller.last_ns.unwrap_or(0);
            let time_ns = unroller.time_ns(pair[0], pair[1]);
            if time_ns < before_ns {
                return Err(Fault::new(format!(
                    "the time goes back from {before_ns} to {time_ns} ns"
                )));
            }
            take(time_ns);
        }
        Ok(())
    }

    /// Reads one timestamp; nothing follows its two words, as in the study.
    fn single_timestamp(&mut self, unroller: &mut Unroller) -> Result<u64, EbError> {
        let reads = [ECA_TIME_HI, ECA_TIME_LO, ECA_TIME_HI, ECA_TIME_LO]
            .map(|offset| Op::read(self.base + offset, Width::W32));
        let outcome = self.client.cycle(&reads, StatusCheck::Status)?;
        unroller.time_ns(outcome.values[0], outcome.values[1]);
        Ok(unroller.time_ns(outcome.values[2], outcome.values[3]))
    }

    fn select(&mut self, channel: u64) -> Result<(), Fault> {
        let ops = [
            Op::write(self.base + tlu::SELECT, channel, Width::W32),
            Op::read(self.base + tlu::CHANNEL_COUNT, Width::W32),
        ];
        let outcome = self.client.cycle(&ops, StatusCheck::Status)?;
        if outcome.failed.is_empty() {
            return Ok(());
        }
        let channels = outcome.values[1];
        Err(Fault::new(format!(
            "the timestamp latch refuses channel {channel}: it has {channels}, from 0 (--pop-channel)"
        )))
    }

    /// Runs each operation as a round trip and keeps the words that were read.
    fn convenience(&mut self, words: &mut Vec<u64>) -> Result<(), EbError> {
        words.clear();
        for op in &self.ops {
            let outcome = self.client.cycle(std::slice::from_ref(op), StatusCheck::Status)?;
            match outcome.failed[..] {
                _ if op.write => {}
                [] => words.push(outcome.values[0]),
                _ => {
                    let (failed, doing, first) = (1, "reading", op.address);
                    return Err(EbError::Refused { failed, doing, first });
                }
            }
        }
        Ok(())
    }
}

impl EtherboneSession {
    pub(super) fn new(plan: Plan) -> EtherboneSession {
        EtherboneSession { plan, way: None, seen: Seen::default(), words: Vec::new() }
    }

    /// Reads the single timestamp that the windows of a run begin with.
    fn begin_run(&mut self) {
        let (Some(way), true) = (&mut self.way, self.seen.are_times) else { return };
        loop {
            let (seen, before_ns) = (&mut self.seen, monotonic_ns());
            match way.single_timestamp(&mut seen.windows.unroller) {
                Ok(start_ns) => return seen.windows.begin(start_ns, (before_ns, monotonic_ns())),
                Err(EbError::Timeout(_)) => seen.waits += 1,
                Err(error) => {
                    seen.windows.fault = Some(format!("a single timestamp is missing: {error}"));
                    return;
                }
            }
            // The next step tells that the slave is silent.
            if self.plan.check_silence(seen.waits, seen.lost_share()).is_err() {
                return;
            }
        }
    }

    /// Runs the operations of each cycle as round trips of their own.
    fn convenience(&mut self, operations: u64) -> Result<(), Fault> {
        let EtherboneSession { way, seen, plan, words, .. } = self;
        let way = way.as_mut().expect("prepared before the first step");
        let (mut left, retries) = (operations, plan.request.retries);
        while left > 0 {
            seen.issued += 1;
            left -= 1;
            match way.convenience(words) {
                Ok(()) => {
                    seen.tried = 0;
                    seen.answered(false, words);
                }
                Err(EbError::Timeout(_)) => {
                    if !words.is_empty() {
                        seen.heard();
                    }
                    seen.timed_out(plan.timeout());
                    plan.check_silence(seen.waits, seen.lost_share())?;
                    left += seen.again(1, retries);
                }
                Err(error) => {
                    seen.abandoned += 1;
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    /// Sends this number of cycles before the first is waited for, until all operations are done.
    fn cycles(&mut self, operations: u64, series: u64) -> Result<(), Fault> {
        let EtherboneSession { way, seen, plan, .. } = self;
        let way = way.as_mut().expect("prepared before the first step");
        let (mut left, retries) = (operations, plan.request.retries);
        while left > 0 {
            let now = left.min(series);
            let (before, lost) = (way.client.counts(), seen.timed_out);
            let silence = Cell::new((seen.waits, seen.lost_share()));
            let mut pipeline = way.client.pipeline(|done| {
                seen.done(&done, &way.ops, plan.timeout());
                silence.set((seen.waits, seen.lost_share()));
            });
            let ended = (0..now)
                .try_for_each(|token| {
                    pipeline.submit(&way.ops, StatusCheck::Status, token)?;
                    plan.check_silence(silence.get().0, silence.get().1)
                })
                .and_then(|()| Ok(pipeline.finish()?));
            let after = way.client.counts();
            seen.issued += after.issued - before.issued;
            seen.abandoned += after.abandoned - before.abandoned;
            ended?;
            plan.check_silence(seen.waits, seen.lost_share())?;
            left = left - now + seen.again(seen.timed_out - lost, retries);
        }
        Ok(())
    }
}

impl Session for EtherboneSession {
    fn device(&self) -> String {
        self.plan.request.address.to_string()
    }

    fn stages(&self) -> Vec<StageSpec> {
        let request = &self.plan.request;
        let bytes = request.counted_bytes();
        vec![StageSpec {
            limit: self.plan.limit(),
            batch: request.batch(),
            ..StageSpec::new(request.method.to_string(), bytes, 2 * bytes)
        }]
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        let way = self.way.insert(Conversation::open(&self.plan)?);
        match self.plan.request.payload {
            Payload::Tlu => way.select(self.plan.request.channel()),
            Payload::Timestamps | Payload::Memory => Ok(()),
        }
    }

    fn set_stop_flag(&mut self, stop: &StopFlag) {
        self.plan.stop = stop.clone();
    }

    fn step(&mut self, _stage: usize, operations: u64) -> Result<(), Fault> {
        self.plan.check_silence(self.seen.waits, self.seen.lost_share())?;
        match self.plan.request.method {
            Method::Convenience => self.convenience(operations)?,
            _ => self.cycles(operations, self.plan.request.batch())?,
        }
        match self.seen.failed_on_bus {
            0 => Ok(()),
            failed => Err(Fault::new(format!("operations failed on the bus in {failed} cycles"))),
        }
    }

    /// Checks that timestamps go forward, or that memory holds the written pattern. A lost cycle is
    /// repeated, but for the latch.
    fn verify(&mut self) -> Result<(), Fault> {
        let way = self.way.as_mut().expect("prepared before verification");
        let is_latch = self.plan.request.payload == Payload::Tlu;
        let lost = way.client.counts().timed_out;
        let mut verified = Ok(());
        for tries in 1..=if is_latch { 1 } else { TRIES } {
            verified = verified_once(&self.plan, way);
            if way.client.counts().timed_out - lost < tries {
                break;
            }
        }
        verified
    }

    fn begin(&mut self) {
        let are_times = self.plan.request.payload == Payload::Timestamps;
        self.seen = Seen { are_times, ..Seen::default() };
        self.begin_run();
    }

    fn sampled(&mut self, from_ns: u64, to_ns: u64) -> bool {
        let is_kept = !std::mem::take(&mut self.seen.is_void);
        if is_kept {
            self.seen.windows.keep((from_ns, to_ns));
        } else {
            self.seen.windows.end();
            if self.plan.check_silence(self.seen.waits, self.seen.lost_share()).is_ok() {
                self.begin_run();
            }
        }
        is_kept
    }

    fn tally(&mut self) -> Tally {
        let mut seen = std::mem::take(&mut self.seen);
        seen.windows.end();
        let mut ledger =
            Ledger { issued: seen.issued, delivered: seen.delivered, ..Ledger::new("cycles") };
        ledger.lose("timeout", seen.timed_out);
        ledger.lose("abandoned", seen.abandoned);
        let (mut counters, mut warnings) = (seen.windows.counters(), Vec::new());
        if seen.timed_out > 0 {
            let (lost, issued, timeout) = (seen.timed_out, seen.issued, self.plan.timeout());
            warnings.push(format!(
                "{lost} of {issued} cycles had no answer within {timeout:?}: times and rates are of samples without a loss"
            ));
        }
        if seen.repeated > 0 {
            let (repeated, timeout) = (seen.repeated, self.plan.timeout());
            warnings.push(format!(
                "{repeated} lost cycles were sent again: times and rates hold the waits of {timeout:?}"
            ));
        }
        let fault = seen.windows.fault;
        warnings.extend(fault.map(|why| format!("the slave's clock gives no windows: {why}")));
        if let Some(way) = &mut self.way {
            warnings.append(&mut way.unread);
            let counts = way.client.counts();
            counters.push(Counter::count("repeated-cycles", seen.repeated));
            counters.push(Counter::count("cycles-per-datagram", self.plan.cycles_per_datagram()));
            counters.push(Counter::count("stray-answers", counts.stray));
            counters.push(Counter::count("malformed-answers", counts.malformed));
        }
        Tally { ledgers: vec![ledger], counters, warnings, ..Tally::default() }
    }
}

/// Times that what is not measured is asked for.
const TRIES: u64 = 11;

fn verified_once(plan: &Plan, way: &mut Conversation) -> Result<(), Fault> {
    match plan.request.payload {
        Payload::Timestamps => {
            let mut unroller = Unroller::default();
            way.single_timestamp(&mut unroller)?;
            way.times(&mut unroller, |_| {})
        }
        Payload::Memory if plan.request.address.is_emulated() => verify_memory(way),
        Payload::Tlu if plan.request.address.is_emulated() => {
            verify_latch(way, plan.request.channel())
        }
        Payload::Tlu | Payload::Memory => way.checked().map(drop),
    }
}

/// Closes the conversation, or keeps it for the next point.
impl Drop for EtherboneSession {
    fn drop(&mut self) {
        if let Some(way) = self.way.take() {
            self.plan.close(way.client);
        }
    }
}

/// Compares the stamp of a test pulse with the times before and after it.
fn verify_latch(way: &mut Conversation, channel: u64) -> Result<(), Fault> {
    let base = way.base;
    let write = |offset: u64, value| Op::write(base + offset, value, Width::W32);
    let read = |offset| Op::read(base + offset, Width::W32);
    let now = [read(tlu::TIME_HI), read(tlu::TIME_LO)];
    let pulse = [write(tlu::ACTIVE_SET, 1 << channel), write(tlu::TEST, 0xFF)];
    let whole = |words: &[u64]| words[0] << 32 | words[1];
    let before = whole(&way.client.cycle(&now, StatusCheck::Status)?.values);
    way.client.cycle(&pulse, StatusCheck::Status)?;
    let values = &way.checked()?.values;
    let (ready, stamp) = (values[0], whole(&values[1..3]));
    let after = whole(&way.client.cycle(&now, StatusCheck::Status)?.values);
    if ready >> channel & 1 == 1 && (before..=after).contains(&stamp) {
        return Ok(());
    }
    Err(Fault::new(format!(
        "a pulse between the cycles {before} and {after} gave the stamp {stamp} (ready {ready:#x})"
    )))
}

fn verify_memory(way: &mut Conversation) -> Result<(), Fault> {
    let value_at = |address: u64| address.wrapping_mul(0x9E37_79B1) & 0xFFFF_FFFF;
    let writes: Vec<Op> =
        way.ops.iter().map(|op| Op::write(op.address, value_at(op.address), Width::W32)).collect();
    for part in writes.chunks(256) {
        way.client.cycle(part, StatusCheck::Status)?;
    }
    let ops = way.ops.clone();
    for (op, &found) in ops.iter().zip(&way.checked()?.values) {
        let (address, expected) = (op.address, value_at(op.address));
        if found != expected {
            return Err(Fault::new(format!(
                "word at {address:#x} is {found:#x}, expected {expected:#x}"
            )));
        }
    }
    Ok(())
}
