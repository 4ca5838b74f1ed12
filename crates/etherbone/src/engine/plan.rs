//! A prepared request: the slave, the operations of a cycle, and the limit of their rate.

use std::time::Duration;

use daqmeter_harness::{Fault, LimitSpec, Problem, Request};
use daqmeter_record::Limit;
use daqmeter_wire::etherbone::cycle::{Op, StatusCheck, encode};
use daqmeter_wire::etherbone::sdb::ids;
use daqmeter_wire::etherbone::{DATAGRAM_BYTES, EbLayout, Width, Widths};

use super::kept;
use super::request::{EtherboneRequest, Method, Payload, Target};
use crate::bus::devices::{ECA_TIME_HI, ECA_TIME_LO};
use crate::bus::{BusTiming, Description, tlu};
use crate::pingpong::{PingPongRequest, Protocol, limit};
use crate::server::Running;
use crate::transport::{self, Bridge, Faulty};
use crate::{Address, Client, ClientOptions, EbError, EbServer, ServerOptions, Slave, scan};

pub(super) struct Plan {
    pub(super) request: EtherboneRequest,
    target: Target,
    link: Option<Bridge>,
}

impl Plan {
    pub(super) fn of(request: &EtherboneRequest) -> Result<Plan, Fault> {
        let wrong = |problem: Problem| request.workload().error(problem.name, problem.text);
        let bridge = |name: &str| Bridge::named(name);
        let target = request.target().map_err(wrong)?;
        if let Target::At(Address::Emulated(name)) = &target {
            bridge(name)?;
        }
        let plan = Plan {
            link: request.link.as_deref().map(bridge).transpose()?,
            target,
            request: request.clone(),
        };
        if plan.fits() {
            return Ok(plan);
        }
        let count = request.count;
        let why = format!(
            "is {count}: such a cycle does not fit a datagram of {DATAGRAM_BYTES} bytes (streams take it)"
        );
        Err(request.workload().error("count", why).into())
    }

    pub(super) fn is_ours(&self) -> bool {
        self.target.is_ours()
    }

    pub(super) fn ops(&self, base: u64) -> Vec<Op> {
        let read = |offset: u64| Op::read(base + offset, Width::W32);
        match self.request.payload {
            Payload::Timestamps => (0..self.request.count)
                .flat_map(|_| [read(ECA_TIME_HI), read(ECA_TIME_LO)])
                .collect(),
            Payload::Tlu => {
                // GSI's eb_tlu_demo does this, too: the oldest stamp is read and dropped, if there
                // is one.
                vec![
                    read(tlu::READY),
                    read(tlu::STAMP_HI),
                    read(tlu::STAMP_LO),
                    Op::write(base + tlu::POP, 0xF, Width::W32),
                ]
            }
            // Addresses wrap at the 64 KiB of the emulated memory.
            Payload::Memory => {
                (0..self.request.count).map(|word| read(4 * (word % 0x4000))).collect()
            }
        }
    }

    fn fits(&self) -> bool {
        let datagrams = match &self.target {
            Target::Loop(protocol) => *protocol == Protocol::Udp,
            Target::At(Address::Emulated(name)) => {
                Bridge::named(name).is_ok_and(|bridge| !bridge.stream)
            }
            Target::At(Address::Udp(..) | Address::Tunnel { .. }) => true,
            Target::At(_) => false,
        };
        let mut room = vec![0; DATAGRAM_BYTES - EbLayout::L32.header_bytes()];
        let alone = self.request.method == Method::Convenience;
        alone
            || !datagrams
            || encode(&self.ops(0), EbLayout::L32, 0x8000, StatusCheck::Status, &mut room).is_ok()
    }

    pub(super) fn limit(&self) -> Option<LimitSpec> {
        if self.link.is_some() {
            // The ping-pong does not use the link, so it gives no limit for it.
            return None;
        }
        let ops = self.ops(0);
        let (messages, cycle) = match self.request.method {
            Method::Convenience => (ops.len() as u64, &ops[..1]),
            _ => (1, &ops[..]),
        };
        let bytes = cycle_bytes(cycle);
        match &self.target {
            Target::Loop(protocol) => self.raw_limit(*protocol, bytes, messages),
            Target::At(Address::Emulated(name)) => emulated_limit(
                &Bridge::named(name).ok()?,
                &ops,
                messages,
                bytes * messages,
                self.request.counted_bytes(),
            ),
            Target::At(_) => None,
        }
    }

    fn raw_limit(&self, transport: Protocol, bytes: u64, messages: u64) -> Option<LimitSpec> {
        let header_bytes = match transport {
            Protocol::Udp => EbLayout::L32.header_bytes() as u64,
            Protocol::Tcp => 0,
        };
        let message_bytes = bytes + header_bytes;
        // Messages longer than a datagram are not echoed in one piece.
        (message_bytes <= DATAGRAM_BYTES as u64).then(|| {
            limit(&PingPongRequest {
                transport,
                message_bytes,
                batch: self.request.batch(),
                counted_bytes: self.request.counted_bytes() / messages,
                peer_cpu: self.request.peer_cpu,
            })
        })
    }

    /// Deadline of a cycle. A loss on a link shows only after it, so it is short there. A tenth of
    /// a second is longer than any delay of a link.
    pub(super) fn timeout(&self) -> Duration {
        let default = match self.link {
            Some(_) => Duration::from_millis(100),
            None => ClientOptions::default().timeout,
        };
        let given = self.request.timeout_ms.map(Duration::from_millis);
        given.unwrap_or(default)
    }

    /// Fails after this number of deadlines without an answer. A link may lose any number of
    /// cycles; on a network three losses in a row are not by chance.
    pub(super) fn check_silence(&self, waits: u64) -> Result<(), Fault> {
        let most = if self.link.is_some() { 100 } else { 3 };
        if waits < most {
            return Ok(());
        }
        Err(Fault::new(format!(
            "{} is silent: no answer for {waits} times {:?} (--timeout)",
            self.request.address,
            self.timeout()
        )))
    }

    pub(super) fn close(&self, client: Client) {
        if matches!(self.target, Target::At(Address::Dev(_))) {
            kept::put(&self.request, client);
        }
    }

    pub(super) fn open(&self) -> Result<(Client, Option<Running>), Fault> {
        let timeout = self.timeout();
        let default = ClientOptions::default();
        let options = ClientOptions {
            address: Widths::only(Width::W32),
            data: Widths::only(Width::W32),
            timeout,
            probe_timeout: default.probe_timeout.min(timeout),
            ..default
        };
        match &self.target {
            Target::At(address) => {
                let is_device = matches!(address, Address::Dev(_));
                let kept = if is_device { kept::take(&self.request) } else { None };
                let client = kept.map_or_else(|| self.negotiate(address, options), Ok)?;
                Ok((client, None))
            }
            Target::Loop(protocol) => {
                let mut bus = Description::timing_receiver().build().map_err(EbError::from)?;
                // Only the host's own time remains, because the path is measured here.
                bus.set_timing(BusTiming::default());
                let server = EbServer::bind(Slave::new(bus), ServerOptions::loopback())?
                    .spawn(self.request.peer_cpu)?;
                let address = Address::parse(&format!("{protocol}/127.0.0.1/{}", server.port))?;
                Ok((self.client(&address, &options)?, Some(server)))
            }
        }
    }

    /// Offers widths as the tools do, because some slaves answer no other probe. Offers only 32
    /// bits next, if other widths were settled on.
    fn negotiate(&self, address: &Address, narrow: ClientOptions) -> Result<Client, Fault> {
        let wrong = |problem: Problem| Fault::new(format!("{} {}", problem.name, problem.text));
        let (address_widths, data) = self.request.widths().map_err(wrong)?;
        let client = self
            .client(address, &ClientOptions { address: address_widths, data, ..narrow.clone() })?;
        if client.layout() == EbLayout::L32 {
            return Ok(client);
        }
        // A character device serves one client at a time.
        drop(client);
        Ok(self.client(address, &narrow)?)
    }

    fn client(&self, address: &Address, options: &ClientOptions) -> Result<Client, EbError> {
        let Some(link) = &self.link else {
            return Client::open(address, options);
        };
        let way = transport::open(address, options.dialect, options.probe_timeout)?;
        let way = Faulty::new(way, link.request, link.reply, 1)?;
        let options = ClientOptions { probes: 30, ..options.clone() };
        Client::over(Box::new(way), &options, &address.to_string())
    }

    pub(super) fn device_base(&self, client: &mut Client) -> Result<(u64, Vec<String>), Fault> {
        let (id, name) = match self.request.payload {
            Payload::Timestamps => (ids::ECA, "ECA (0x651:0xb2afc251)"),
            Payload::Tlu => (ids::TLU, "TLU (0x651:0x10051981)"),
            Payload::Memory => return Ok((self.request.base(), Vec::new())),
        };
        let scan = scan::scan(client, true)?;
        let unread = || match &scan.unread[..] {
            [] => String::new(),
            lines => format!("; {}", lines.join("; ")),
        };
        let slave = &self.request.address;
        match &scan.devices(id)[..] {
            [one] => Ok((one.first.unwrap_or(0), scan.unread)),
            [] => Err(Fault::new(format!("{slave} has no {name}{}", unread()))),
            many => Err(Fault::new(format!(
                "{slave} has {} devices {name}; exactly one is wanted",
                many.len()
            ))),
        }
    }
}

fn cycle_bytes(ops: &[Op]) -> u64 {
    let mut room = vec![0; 64 + 64 * ops.len()];
    let encoded = encode(ops, EbLayout::L32, 0x8000, StatusCheck::Status, &mut room);
    encoded.map_or(0, |encoded| encoded.bytes as u64)
}

/// Returns the slower of the bus and the line for one operation's payload.
fn emulated_limit(
    bridge: &Bridge,
    ops: &[Op],
    messages: u64,
    bytes: u64,
    counted_bytes: u64,
) -> Option<LimitSpec> {
    let writes = ops.iter().filter(|op| op.write).count() as u64;
    let reads = ops.len() as u64 - writes;
    let timing = bridge.timing;
    let bus_ns =
        (messages * timing.cycle_ns + reads * timing.read_ns + writes * timing.write_ns) as f64;
    let line = |bytes_per_s: f64| {
        if bytes_per_s > 0.0 { bytes as f64 / bytes_per_s * 1e9 } else { 0.0 }
    };
    let line_ns = line(bridge.request.bytes_per_s);
    let (what, ns) = if line_ns > bus_ns { ("line", line_ns) } else { ("bus", bus_ns) };
    (ns > 0.0).then(|| {
        LimitSpec::Given(Limit::given(
            format!("{what} of emu/{}, {counted_bytes} B in {messages}", bridge.name),
            counted_bytes as f64 / ns * 1e9,
            format!("{} ns of the {what} per cycle, by the bridge's profile", ns.round()),
        ))
    })
}
