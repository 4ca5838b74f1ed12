//! One lane: one client, which reads by the method of the request.

use daqmeter_harness::{Control, Fault, LimitSpec, Session, StageSpec, Tally};
use daqmeter_record::{Counter, Ledger};
use daqmeter_wire::etherbone::Width;
use daqmeter_wire::etherbone::cycle::{Check, Op};

use super::plan::Plan;
use super::request::{Method, Payload};
use crate::bus::devices::{ECA_TIME_HI, ECA_TIME_LO};
use crate::server::Running;
use crate::timestamps::Unroller;
use crate::{Client, Done, EbError};

pub(super) struct EtherboneSession {
    plan: Plan,
    limit: Option<LimitSpec>,
    way: Option<Way>,
    seen: Seen,
    /// The words of the cycle at hand: room that is kept.
    words: Vec<u64>,
}

/// The open conversation. The server ends after the client.
struct Way {
    client: Client,
    ops: Vec<Op>,
    base: u64,
    _server: Option<Running>,
}

/// What came since the timed region began.
#[derive(Default)]
struct Seen {
    issued: u64,
    delivered: u64,
    timed_out: u64,
    failed_on_bus: u64,
    unroller: Unroller,
    /// A single timestamp before the series.
    start_ns: Option<u64>,
    /// First and last timestamp of the series.
    first_ns: Option<u64>,
    last_ns: u64,
    /// Between the first and the last timestamp of each cycle, added up, and the number of gaps in them.
    gaps_ns: u64,
    gaps: u64,
}

impl Seen {
    /// The timestamps of one cycle.
    fn timestamps(&mut self, words: &[u64]) {
        let mut pairs = words.chunks_exact(2).map(|pair| (pair[0], pair[1]));
        let Some((high, low)) = pairs.next() else {
            return;
        };
        let first_ns = self.unroller.time_ns(high, low);
        let last_ns = pairs.fold(first_ns, |_, (high, low)| self.unroller.time_ns(high, low));
        self.first_ns.get_or_insert(first_ns);
        self.last_ns = last_ns;
        self.gaps_ns += last_ns.saturating_sub(first_ns);
        self.gaps += (words.len() as u64 / 2).saturating_sub(1);
    }

    /// The windows of the study of 2018, by the slave's clock.
    fn windows(&self) -> Vec<Counter> {
        let (Some(start_ns), Some(first_ns)) = (self.start_ns, self.first_ns) else {
            return Vec::new();
        };
        let since = |ns: u64| self.last_ns.saturating_sub(ns) as f64;
        let mut counters = vec![
            time("eca-window-realistic", since(start_ns)),
            time("eca-window-underestimated", since(first_ns)),
        ];
        if self.gaps > 0 {
            let gap_ns = self.gaps_ns as f64 / self.gaps as f64;
            counters.push(time("eca-in-cycle-gap", gap_ns));
        }
        let mended = self.unroller.rollovers;
        counters.push(Counter::count("eca-rollovers-mended", mended));
        counters
    }

    fn done(&mut self, done: &Done<'_>, payload: Payload) {
        if done.result.is_err() {
            self.timed_out += 1;
            return;
        }
        self.delivered += 1;
        self.failed_on_bus += u64::from(!done.is_clean());
        if payload == Payload::Timestamps {
            self.timestamps(done.words);
        }
    }
}

fn time(name: &str, ns: f64) -> Counter {
    Counter {
        value: ns,
        unit: "ns".into(),
        ..Counter::count(name, 0)
    }
}

impl Way {
    /// One timestamp, read so that its first rollover is seen.
    fn single_timestamp(&mut self, unroller: &mut Unroller) -> Result<u64, EbError> {
        let reads = [ECA_TIME_HI, ECA_TIME_LO, ECA_TIME_HI]
            .map(|offset| Op::read(self.base + offset, Width::W32));
        let outcome = self.client.cycle(&reads, Check::Status)?;
        Ok(unroller.first_ns(outcome.values[0], outcome.values[1], outcome.values[2]))
    }

    /// Each operation a round trip; the words that were read.
    fn convenience(&mut self, words: &mut Vec<u64>) -> Result<(), EbError> {
        words.clear();
        for op in &self.ops {
            let outcome = self.client.cycle(std::slice::from_ref(op), Check::Status)?;
            if !outcome.failed.is_empty() {
                return Err(EbError::Bus {
                    failed: 1,
                    of: 1,
                    first: op.address,
                });
            }
            if !op.write {
                words.push(outcome.values[0]);
            }
        }
        Ok(())
    }
}

impl EtherboneSession {
    pub(super) fn new(plan: Plan) -> EtherboneSession {
        EtherboneSession {
            limit: plan.limit(),
            plan,
            way: None,
            seen: Seen::default(),
            words: Vec::new(),
        }
    }

    fn one_by_one(&mut self, operations: u64) -> Result<(), Fault> {
        let (method, payload) = (self.plan.request.method, self.plan.request.payload);
        let way = self.way.as_mut().expect("prepared before the first step");
        let words = &mut self.words;
        for _ in 0..operations {
            self.seen.issued += 1;
            let result = if method == Method::Convenience {
                way.convenience(words)
            } else {
                way.client.cycle(&way.ops, Check::Status).map(|outcome| {
                    self.seen.failed_on_bus += u64::from(!outcome.failed.is_empty());
                    // Only the timestamps' words are looked at, and those are all the values of the cycle.
                    words.clear();
                    words.extend_from_slice(&outcome.values);
                })
            };
            match result {
                Ok(()) => self.seen.delivered += 1,
                Err(EbError::Timeout(_)) => {
                    self.seen.timed_out += 1;
                    continue;
                }
                Err(error) => return Err(error.into()),
            }
            if payload == Payload::Timestamps {
                self.seen.timestamps(words);
            }
        }
        Ok(())
    }

    fn pipelined(&mut self, operations: u64) -> Result<(), Fault> {
        let payload = self.plan.request.payload;
        let way = self.way.as_mut().expect("prepared before the first step");
        let seen = &mut self.seen;
        let mut left = operations;
        while left > 0 {
            let series = left.min(self.plan.request.cycles);
            seen.issued += series;
            let mut pipeline = way.client.pipeline(|done| seen.done(&done, payload));
            for token in 0..series {
                pipeline.submit(&way.ops, Check::Status, token)?;
            }
            pipeline.finish()?;
            left -= series;
        }
        Ok(())
    }
}

impl Session for EtherboneSession {
    fn device(&self) -> String {
        self.plan.request.address.clone()
    }

    fn stages(&self) -> Vec<StageSpec> {
        let request = &self.plan.request;
        let bytes = request.counted_bytes();
        vec![StageSpec {
            limit: self.limit.clone(),
            control: Some(Control::RoundTrip),
            batch: request.batch(),
            ..StageSpec::new(request.method.name(), bytes, 2 * bytes)
        }]
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        let (mut client, server) = self.plan.open()?;
        let base = self.plan.device_base(&mut client)?;
        self.way = Some(Way {
            client,
            ops: self.plan.ops(base),
            base,
            _server: server,
        });
        Ok(())
    }

    fn step(&mut self, _stage: usize, operations: u64) -> Result<(), Fault> {
        match self.plan.request.method {
            Method::Pipelined => self.pipelined(operations)?,
            _ => self.one_by_one(operations)?,
        }
        match self.seen.failed_on_bus {
            0 => Ok(()),
            failed => Err(Fault::new(format!(
                "{failed} cycles had operations that failed on the bus"
            ))),
        }
    }

    /// Timestamps must go forward; memory must hold what was written.
    fn verify(&mut self) -> Result<(), Fault> {
        let way = self.way.as_mut().expect("prepared before verification");
        match self.plan.request.payload {
            Payload::Timestamps => verify_time(way),
            Payload::Memory if self.plan.is_ours() => verify_memory(way),
            Payload::Tlu | Payload::Memory => verify_access(way),
        }
    }

    fn begin(&mut self) {
        self.seen = Seen::default();
        if let (Payload::Timestamps, Some(way)) = (self.plan.request.payload, &mut self.way) {
            // Without it the windows that need it are not measured.
            self.seen.start_ns = way.single_timestamp(&mut self.seen.unroller).ok();
        }
    }

    fn tally(&mut self) -> Tally {
        let seen = std::mem::take(&mut self.seen);
        let mut ledger = Ledger {
            issued: seen.issued,
            delivered: seen.delivered,
            ..Ledger::new("cycles")
        };
        ledger.lose("timeout", seen.timed_out);
        let mut counters = seen.windows();
        if let Some(way) = &self.way {
            let counts = way.client.counts();
            counters.push(Counter::count("stray-answers", counts.stray));
            counters.push(Counter::count("malformed-answers", counts.malformed));
        }
        Tally {
            ledgers: vec![ledger],
            counters,
            ..Tally::default()
        }
    }
}

/// Timestamps of one cycle, and one before it.
fn verify_time(way: &mut Way) -> Result<(), Fault> {
    let mut unroller = Unroller::default();
    let mut before_ns = way.single_timestamp(&mut unroller)?;
    let outcome = way.client.cycle(&way.ops, Check::Status)?;
    for pair in outcome.values.chunks_exact(2) {
        let time_ns = unroller.time_ns(pair[0], pair[1]);
        if time_ns < before_ns {
            return Err(Fault::new(format!(
                "the time goes back from {before_ns} to {time_ns} ns"
            )));
        }
        before_ns = time_ns;
    }
    Ok(())
}

/// Every operation of a cycle must be answered by a device.
fn verify_access(way: &mut Way) -> Result<(), Fault> {
    let outcome = way.client.cycle(&way.ops, Check::Status)?;
    match outcome.failed.first() {
        None => Ok(()),
        Some(&index) => Err(Fault::new(format!(
            "the bus reports an error at {:#x}: no memory or device answers there",
            way.ops[index].address
        ))),
    }
}

/// Writes a pattern over what the cycles read, and reads it back by such a cycle.
fn verify_memory(way: &mut Way) -> Result<(), Fault> {
    let value_at = |address: u64| address.wrapping_mul(0x9E37_79B1) & 0xFFFF_FFFF;
    let writes: Vec<Op> = way
        .ops
        .iter()
        .map(|op| Op::write(op.address, value_at(op.address), Width::W32))
        .collect();
    for part in writes.chunks(256) {
        way.client.cycle(part, Check::Status)?;
    }
    let outcome = way.client.cycle(&way.ops, Check::Status)?;
    for (op, &found) in way.ops.iter().zip(&outcome.values) {
        let expected = value_at(op.address);
        if found != expected {
            let address = op.address;
            return Err(Fault::new(format!(
                "word at {address:#x} is {found:#x}, expected {expected:#x}"
            )));
        }
    }
    Ok(())
}
