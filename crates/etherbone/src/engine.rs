//! The engine: reads over Etherbone in the ways of the study of 2018, one lane, one client.

use daqmeter_harness::{
    Availability, Engine, Fault, LimitSpec, Parameter, Session, StageSpec, Tally, parameters,
};
use daqmeter_record::{Counter, Ledger, Limit, Workload};
use daqmeter_wire::etherbone::cycle::{Check, Op, encode};
use daqmeter_wire::etherbone::sdb::ids;
use daqmeter_wire::etherbone::{DATAGRAM_BYTES, Layout, Width, Widths};

use crate::bus::devices::{ECA_TIME_HI, ECA_TIME_LO, TLU_HI, TLU_LATCH, TLU_LO, TLU_READY};
use crate::bus::{Description, Timing};
use crate::pingpong::{limit, server_cpu};
use crate::server::Running;
use crate::timestamps::Unroller;
use crate::transport::{self, Bridge, Faulty};
use crate::{Address, Client, Done, EbError, Options, Server, ServerOptions, Slave, scan};

impl From<EbError> for Fault {
    fn from(error: EbError) -> Self {
        Fault::new(error.to_string())
    }
}

/// Cycles over Etherbone. Workload `etherbone`:
/// - `address`: a slave's address, or `loop/udp`, `loop/tcp` for an emulated timing receiver behind a server in this process;
/// - `method`: `convenience` (each operation a round trip), `blocking` (each cycle a round trip), `pipelined`;
/// - `payload`: `timestamps` (64-bit times of the ECA), `tlu` (3 reads and 1 write of the timestamp latch), `memory` (words
///   from `base` on). On slaves that are not ours nothing is ever written: `tlu` is refused, `memory` needs a `base` and is read;
/// - `count`: timestamps or words per cycle; `cycles`: cycles that a pipeline takes before it is waited for;
/// - `link`: a bridge whose link is put between the client and what the address names;
/// - `server_cpu`: for `loop/`, the server's CPU; without it the server runs where the client may.
///
/// One operation is one cycle's worth of the payload, whatever the method.
#[derive(Clone, Copy, Debug, Default)]
pub struct EtherboneEngine;

/// How operations are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Each operation is a cycle of its own, waited for.
    Convenience,
    /// Each cycle is waited for.
    Blocking,
    /// Many cycles on their way at once.
    Pipelined,
}

impl Method {
    /// All of them.
    pub const ALL: [Method; 3] = [Method::Convenience, Method::Blocking, Method::Pipelined];

    /// Name in workloads and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Method::Convenience => "convenience",
            Method::Blocking => "blocking",
            Method::Pipelined => "pipelined",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Payload {
    Timestamps,
    Tlu,
    Memory,
}

/// Where the slave is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    /// A server in this process, by `udp` or `tcp`.
    Loop(&'static str),
    /// Anything else.
    At(Address),
}

#[derive(Clone, Debug)]
struct Plan {
    address: String,
    target: Target,
    method: Method,
    payload: Payload,
    count: u64,
    cycles: u64,
    base: u64,
    /// The slave is emulated here: it may be written to.
    ours: bool,
    link: Option<Bridge>,
    server_cpu: Option<u32>,
}

/// Words of one operation's payload at most; longer cycles fit streams only.
const MAX_COUNT: u64 = 100_000;

/// Where a payload may begin: addresses have 32 bits, and 64 KiB are read.
const MAX_BASE: u64 = (1 << 32) - (1 << 16);

/// Where the emulated receiver has its memory.
const EMULATED_MEMORY: u64 = 0x10000;

fn plan(workload: &Workload) -> Result<Plan, Fault> {
    let address = workload.text("address")?.to_owned();
    let target = match address.as_str() {
        "loop/udp" => Target::Loop("udp"),
        "loop/tcp" => Target::Loop("tcp"),
        other => Target::At(Address::parse(other)?),
    };
    let method = workload.text("method")?;
    let method = Method::ALL
        .into_iter()
        .find(|known| known.name() == method)
        .ok_or_else(|| {
            workload.error(
                "method",
                format!("is `{method}`; convenience, blocking or pipelined is wanted"),
            )
        })?;
    let payload = match workload.text("payload")? {
        "timestamps" => Payload::Timestamps,
        "tlu" => Payload::Tlu,
        "memory" => Payload::Memory,
        other => {
            return Err(workload
                .error(
                    "payload",
                    format!("is `{other}`; timestamps, tlu or memory is wanted"),
                )
                .into());
        }
    };
    let ours = !matches!(&target, Target::At(address) if !matches!(address, Address::Emulated(_)));
    if payload == Payload::Tlu && !ours {
        let why =
            "tlu writes registers as the emulated receiver has them; it is for loop/ and emu/ only";
        return Err(workload.error("payload", why).into());
    }
    let base = match (
        workload.params.contains_key("base"),
        ours || payload != Payload::Memory,
    ) {
        (true, _) => workload.int_within("base", 0..=MAX_BASE)?,
        (false, true) => EMULATED_MEMORY,
        (false, false) => {
            return Err(workload
                .error(
                    "base",
                    "is missing: say which addresses of the slave may be read",
                )
                .into());
        }
    };
    let link = match workload.params.contains_key("link") {
        true => Some(Bridge::named(workload.text("link")?).map_err(EbError::from)?),
        false => None,
    };
    Ok(Plan {
        link,
        address,
        target,
        method,
        payload,
        count: workload.int_within_or("count", 1, 1..=MAX_COUNT)?,
        cycles: workload.int_within_or("cycles", 90, 1..=1 << 20)?,
        base,
        ours,
        server_cpu: server_cpu(workload)?,
    })
}

impl Plan {
    /// Bytes that one operation is counted as: timestamps of 8, words of 4.
    fn counted_bytes(&self) -> u64 {
        match self.payload {
            Payload::Timestamps => 8 * self.count,
            Payload::Tlu => 16,
            Payload::Memory => 4 * self.count,
        }
    }

    /// The operations of one cycle, for a device at `base`.
    fn ops(&self, base: u64) -> Vec<Op> {
        let read = |offset: u64| Op::read(base + offset, Width::W32);
        match self.payload {
            Payload::Timestamps => (0..self.count)
                .flat_map(|_| [read(ECA_TIME_HI), read(ECA_TIME_LO)])
                .collect(),
            Payload::Tlu => {
                vec![
                    Op::write(base + TLU_LATCH, 1, Width::W32),
                    read(TLU_READY),
                    read(TLU_HI),
                    read(TLU_LO),
                ]
            }
            // Up to the 64 KiB of the emulated memory, then from its beginning again.
            Payload::Memory => (0..self.count)
                .map(|word| read(4 * (word % 0x4000)))
                .collect(),
        }
    }

    /// Whether a cycle fits a datagram, where it must.
    fn fits(&self) -> bool {
        let datagrams = match &self.target {
            Target::Loop(transport) => *transport == "udp",
            Target::At(Address::Emulated(name)) => {
                Bridge::named(name).is_ok_and(|bridge| !bridge.stream)
            }
            Target::At(Address::Udp(..) | Address::Tunnel { .. }) => true,
            Target::At(_) => false,
        };
        let mut room = vec![0; DATAGRAM_BYTES - Layout::L32.header_bytes()];
        let alone = self.method == Method::Convenience;
        alone
            || !datagrams
            || encode(&self.ops(0), Layout::L32, 0x8000, Check::Status, &mut room).is_ok()
    }

    /// What the rate is held against: the raw path on loopback, the bus or the line of an emulated bridge.
    fn limit(&self) -> Option<LimitSpec> {
        if self.link.is_some() {
            // The ping-pong does not go through the link, so it says nothing about it.
            return None;
        }
        let ops = self.ops(0);
        let mut room = vec![0; 64 + 64 * ops.len()];
        let mut cycle_bytes = |ops: &[Op]| {
            let encoded = encode(ops, Layout::L32, 0x8000, Check::Status, &mut room);
            encoded.map_or(0, |encoded| encoded.bytes as u64)
        };
        let (messages, bytes) = match self.method {
            Method::Convenience => (ops.len() as u64, cycle_bytes(&ops[..1])),
            _ => (1, cycle_bytes(&ops)),
        };
        let counted_bytes = self.counted_bytes() / messages;
        match &self.target {
            Target::Loop(transport) => {
                let header = if *transport == "udp" {
                    Layout::L32.header_bytes() as u64
                } else {
                    0
                };
                let batch = if self.method == Method::Pipelined {
                    self.cycles
                } else {
                    1
                };
                // Messages longer than a datagram are not echoed in one piece.
                let cpu = self.server_cpu.map(u64::from);
                (bytes + header <= DATAGRAM_BYTES as u64)
                    .then(|| limit(transport, bytes + header, batch, counted_bytes, cpu))
            }
            Target::At(Address::Emulated(name)) => {
                emulated_limit(name, &ops, messages, bytes * messages, self.counted_bytes())
            }
            Target::At(_) => None,
        }
    }

    fn open(&self) -> Result<(Client, Option<Running>), Fault> {
        let options = Options {
            address: Widths::only(Width::W32),
            data: Widths::only(Width::W32),
            ..Options::default()
        };
        match &self.target {
            Target::At(address) => Ok((self.client(address, &options)?, None)),
            Target::Loop(transport) => {
                let mut bus = Description::timing_receiver()
                    .build()
                    .map_err(EbError::from)?;
                // The host's own time only: what is measured here is the path.
                bus.set_timing(Timing::default());
                let server = Server::bind(Slave::new(bus), ServerOptions::loopback())?
                    .spawn(self.server_cpu)?;
                let address = Address::parse(&format!("{transport}/127.0.0.1/{}", server.port))?;
                Ok((self.client(&address, &options)?, Some(server)))
            }
        }
    }

    fn client(&self, address: &Address, options: &Options) -> Result<Client, EbError> {
        let Some(link) = &self.link else {
            return Client::open(address, options);
        };
        let way = transport::open(address, options.dialect, options.probe_timeout)?;
        let way = Faulty::new(way, link.request, link.reply, 1)?;
        // What is lost shows after the deadline: a tenth of a second is beyond any of the links.
        let options = Options {
            timeout: std::time::Duration::from_millis(100),
            probes: 30,
            ..options.clone()
        };
        Client::over(Box::new(way), &options, &address.to_string())
    }

    /// Where the payload's device is.
    fn device_base(&self, client: &mut Client) -> Result<u64, Fault> {
        let (id, name) = match self.payload {
            Payload::Timestamps => (ids::ECA, "ECA (0x651:0xb2afc251)"),
            Payload::Tlu => (ids::TLU, "TLU (0x651:0x10051981)"),
            Payload::Memory => return Ok(self.base),
        };
        let found = scan::find(client, id)?;
        match (found.first().and_then(|found| found.first), found.len()) {
            (Some(first), 1) => Ok(first),
            (_, 0) => Err(Fault::new(format!("{} has no {name}", self.address))),
            (_, many) => Err(Fault::new(format!(
                "{} has {many} devices {name}; exactly one is wanted",
                self.address
            ))),
        }
    }
}

/// The slower of the bus and the line for one operation's payload.
fn emulated_limit(
    bridge: &str,
    ops: &[Op],
    messages: u64,
    bytes: u64,
    counted_bytes: u64,
) -> Option<LimitSpec> {
    let bridge = Bridge::named(bridge).ok()?;
    let writes = ops.iter().filter(|op| op.write).count() as u64;
    let reads = ops.len() as u64 - writes;
    let timing = bridge.timing;
    let bus_ns =
        (messages * timing.cycle_ns + reads * timing.read_ns + writes * timing.write_ns) as f64;
    let line = |bytes_per_s: f64| {
        if bytes_per_s > 0.0 {
            bytes as f64 / bytes_per_s * 1e9
        } else {
            0.0
        }
    };
    let line_ns = line(bridge.request.bytes_per_s);
    let (what, ns) = if line_ns > bus_ns {
        ("line", line_ns)
    } else {
        ("bus", bus_ns)
    };
    (ns > 0.0).then(|| {
        LimitSpec::Given(Limit::given(
            format!(
                "{what} of emu/{}, {counted_bytes} B in {messages}",
                bridge.name
            ),
            counted_bytes as f64 / ns * 1e9,
            format!(
                "{} ns of the {what} per cycle, by the bridge's profile",
                ns.round()
            ),
        ))
    })
}

impl Engine for EtherboneEngine {
    fn name(&self) -> &'static str {
        "etherbone"
    }

    fn description(&self) -> &'static str {
        "reads Wishbone registers over Etherbone: convenience, blocking and pipelined"
    }

    fn probe(&self) -> Availability {
        Availability::Ready
    }

    fn target(&self, workload: &Workload) -> String {
        workload.text("address").unwrap_or("?").to_owned()
    }

    fn is_emulated(&self, workload: &Workload) -> bool {
        workload
            .text("address")
            .is_ok_and(|address| address.starts_with("emu/") || address.starts_with("loop/"))
    }

    fn parameters(&self) -> Vec<Parameter> {
        parameters![
            "address": "loop/udp, loop/tcp, emu/<bridge>, or an address such as udp/host/60368",
            "method": "convenience, blocking or pipelined",
            "payload": "timestamps, tlu or memory",
            "count": "values of one cycle",
            "cycles": "cycles of one series; 90",
            "base": "first address that may be read",
            "link": "bridge that a loop's messages are delayed by",
            "server_cpu": "CPU of the server",
        ]
    }

    fn example(&self) -> Workload {
        Workload::new("etherbone")
            .with("address", "loop/udp")
            .with("method", "pipelined")
            .with("payload", "timestamps")
            .with("count", 2_u64)
            .with("cycles", 3_u64)
    }

    fn open(&self, workload: &Workload) -> Result<Vec<Box<dyn Session>>, Fault> {
        let plan = plan(workload)?;
        if let Target::At(Address::Emulated(name)) = &plan.target {
            Bridge::named(name).map_err(EbError::from)?;
        }
        if !plan.fits() {
            let count = plan.count;
            let why = format!(
                "is {count}: such a cycle does not fit a datagram of {DATAGRAM_BYTES} bytes (streams take it)"
            );
            return Err(workload.error("count", why).into());
        }
        Ok(vec![Box::new(EtherboneSession {
            limit: plan.limit(),
            plan,
            way: None,
            seen: Seen::default(),
            words: Vec::new(),
        })])
    }
}

struct EtherboneSession {
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
    fn one_by_one(&mut self, operations: u64) -> Result<(), Fault> {
        let (method, payload) = (self.plan.method, self.plan.payload);
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
        let payload = self.plan.payload;
        let way = self.way.as_mut().expect("prepared before the first step");
        let seen = &mut self.seen;
        let mut left = operations;
        while left > 0 {
            let series = left.min(self.plan.cycles);
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
        self.plan.address.clone()
    }

    fn stages(&self) -> Vec<StageSpec> {
        let bytes = self.plan.counted_bytes();
        let batch = if self.plan.method == Method::Pipelined {
            self.plan.cycles
        } else {
            1
        };
        vec![StageSpec {
            limit: self.limit.clone(),
            batch,
            ..StageSpec::new(self.plan.method.name(), bytes, 2 * bytes)
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
        match self.plan.method {
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
        match self.plan.payload {
            Payload::Timestamps => {
                let mut unroller = Unroller::default();
                let mut before_ns = way.single_timestamp(&mut unroller)?;
                for pair in way
                    .client
                    .cycle(&way.ops, Check::Status)?
                    .values
                    .chunks_exact(2)
                {
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
            Payload::Tlu => {
                let outcome = way.client.cycle(&way.ops, Check::Status)?;
                match outcome.failed.first() {
                    None => Ok(()),
                    Some(index) => Err(Fault::new(format!(
                        "operation {index} of the TLU cycle failed on the bus"
                    ))),
                }
            }
            Payload::Memory if self.plan.ours => verify_memory(way),
            Payload::Memory => {
                let outcome = way.client.cycle(&way.ops, Check::Status)?;
                match outcome.failed.first() {
                    None => Ok(()),
                    Some(&index) => Err(Fault::new(format!(
                        "no memory at {:#x}: the bus reports an error",
                        way.ops[index].address
                    ))),
                }
            }
        }
    }

    fn begin(&mut self) {
        self.seen = Seen::default();
        if let (Payload::Timestamps, Some(way)) = (self.plan.payload, &mut self.way) {
            // Without it the windows that need it are not told.
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
        let counter = |name: &str, value: f64, unit: &str| Counter {
            name: name.to_owned(),
            value,
            unit: unit.to_owned(),
            share: 1.0,
        };
        let mut counters = Vec::new();
        if let (Some(start_ns), Some(first_ns)) = (seen.start_ns, seen.first_ns) {
            counters.push(counter(
                "eca-window-realistic",
                seen.last_ns.saturating_sub(start_ns) as f64,
                "ns",
            ));
            counters.push(counter(
                "eca-window-underestimated",
                seen.last_ns.saturating_sub(first_ns) as f64,
                "ns",
            ));
            if seen.gaps > 0 {
                counters.push(counter(
                    "eca-in-cycle-gap",
                    seen.gaps_ns as f64 / seen.gaps as f64,
                    "ns",
                ));
            }
            counters.push(counter(
                "eca-rollovers-mended",
                seen.unroller.rollovers as f64,
                "",
            ));
        }
        if let Some(way) = &self.way {
            let counts = way.client.counts();
            counters.push(counter("stray-answers", counts.stray as f64, ""));
            counters.push(counter("malformed-answers", counts.malformed as f64, ""));
        }
        Tally {
            ledgers: vec![ledger],
            counters,
            ..Tally::default()
        }
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

#[cfg(test)]
mod tests {
    use daqmeter_harness::{Context, Settings, StepPlan, measure};
    use daqmeter_record::{Outcome, RunRecord};

    use super::*;

    #[test]
    fn etherbone_conforms() {
        daqmeter_harness::conformance::run(&EtherboneEngine);
    }

    fn run(workload: &Workload, plan: StepPlan) -> RunRecord {
        let record = measure(
            &EtherboneEngine,
            workload,
            &Settings::new(plan, "test"),
            &Context::default(),
            &[],
            &mut [],
        );
        let record = record.unwrap();
        assert_eq!(record.outcome, Outcome::Ok, "{workload}");
        record
    }

    #[test]
    fn every_method_and_payload_over_every_way() {
        for address in [
            "loop/udp",
            "loop/tcp",
            "emu/perfect",
            "emu/gige",
            "emu/scu-pcie-2018",
        ] {
            for method in Method::ALL {
                for payload in ["timestamps", "tlu", "memory"] {
                    let workload = EtherboneEngine
                        .example()
                        .with("address", address)
                        .with("method", method.name())
                        .with("payload", payload)
                        .with("count", 8_u64)
                        .with("cycles", 10_u64);
                    let record = run(&workload, StepPlan::ByStage(20));
                    assert_eq!(
                        (record.ledgers[0].issued, record.ledgers[0].delivered),
                        (20, 20)
                    );
                    let samples = if method == Method::Pipelined { 2 } else { 20 };
                    assert_eq!(record.lanes[0].stages[0].sample_ns.len(), samples);
                }
            }
        }
    }

    #[test]
    fn a_lossy_link_is_in_the_ledger() {
        let file = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
        let lossy = "[[bridge]]\nname = \"lossy\"\nabout = \"\"\nrequest = { loss = 0.05, duplicate = 0.05, reorder = 0.05, reorder_ns = 1000 }\n";
        std::fs::write(file.path(), lossy).unwrap();
        let workload = EtherboneEngine
            .example()
            .with("link", file.path().to_str().unwrap())
            .with("payload", "memory")
            .with("count", 300_u64)
            .with("cycles", 100_u64);
        // Each datagram holds one such cycle: so many are lost, and each loss is one cycle.
        let record = run(&workload, StepPlan::ByStage(100));
        let ledger = &record.ledgers[0];
        assert!(ledger.closes() && ledger.losses["timeout"] > 0, "{ledger}");
        assert!(record.counter("stray-answers").unwrap() > 0.0);
    }

    #[test]
    fn the_gap_within_a_cycle_is_that_of_the_bridge() {
        for (address, wanted_ns) in [("emu/gige", 64.0), ("emu/scu-pcie-2018", 5970.0)] {
            let workload = EtherboneEngine
                .example()
                .with("address", address)
                .with("count", 8_u64)
                .with("cycles", 20_u64);
            let record = run(&workload, StepPlan::ByStage(20));
            let gap_ns = record.counter("eca-in-cycle-gap").unwrap();
            // Timestamps are whole ticks of 8 ns; seven gaps are divided by seven.
            assert!((gap_ns - wanted_ns).abs() < 2.0, "{address}: {gap_ns}");
            let realistic = record.counter("eca-window-realistic").unwrap();
            let underestimated = record.counter("eca-window-underestimated").unwrap();
            assert!(
                realistic > underestimated && underestimated > 7.0 * wanted_ns,
                "{realistic} {underestimated}"
            );
        }
    }

    fn datagram_bytes(timestamps: u64) -> usize {
        let workload = EtherboneEngine.example().with("count", timestamps);
        let ops = plan(&workload).unwrap().ops(0);
        4 + encode(&ops, Layout::L32, 0x8000, Check::Status, &mut [0; 1000])
            .unwrap()
            .bytes
    }

    #[test]
    fn a_cycle_of_m_timestamps_has_20_and_8_m_bytes() {
        // And the message header once per datagram; more than 16 timestamps need a second status read.
        for m in 1..=8_u8 {
            assert_eq!(datagram_bytes(m.into()), 4 + 20 + 8 * usize::from(m));
        }
    }

    #[test]
    fn wrong_workloads_are_named() {
        let error = |name: &str, value: &str| {
            EtherboneEngine
                .open(&EtherboneEngine.example().with(name, value))
                .err()
                .unwrap()
                .0
        };
        assert!(error("address", "nowhere").contains("no protocol"));
        assert!(error("address", "emu/warp").contains("no bridge `warp`"));
        assert!(error("method", "magic").contains("convenience, blocking or pipelined"));
        assert!(error("payload", "gold").contains("timestamps, tlu or memory"));
        let long = |address: &str, count: u64| {
            EtherboneEngine.open(
                &EtherboneEngine
                    .example()
                    .with("address", address)
                    .with("count", count),
            )
        };
        assert!(long("loop/udp", 158).is_ok() && long("loop/tcp", 159).is_ok());
        assert!(
            long("loop/udp", 159)
                .err()
                .unwrap()
                .0
                .contains("does not fit a datagram of 1472 bytes")
        );
        assert!(long("udp/127.0.0.1/9", 1).is_ok());
        let elsewhere = |payload: &str| {
            let workload = EtherboneEngine
                .example()
                .with("address", "udp/127.0.0.1/9")
                .with("payload", payload);
            EtherboneEngine.open(&workload).err().unwrap().0
        };
        assert!(elsewhere("tlu").contains("for loop/ and emu/ only"));
        assert!(elsewhere("memory").contains("`base` is missing"));
        assert!(error("link", "warp").contains("no bridge `warp`"));
        assert!(error("count", "many").contains("whole number"));
    }
}
