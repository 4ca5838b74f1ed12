//! A prepared request: the slave, the operations of a cycle, and the limit of their rate.

use std::sync::Mutex;
use std::time::Duration;

use daqmeter_harness::{Fault, LimitSpec, Request, StopFlag, locked};
use daqmeter_record::Limit;
use daqmeter_wire::etherbone::cycle::{Op, StatusCheck, encode};
use daqmeter_wire::etherbone::sdb::ids;
use daqmeter_wire::etherbone::{DATAGRAM_BYTES, EbLayout, Width, Widths, litex};

use super::request::{EtherboneRequest, MAX_NARROW_BASE, Method, Payload, Target};
use crate::bus::devices::{ECA_TIME_HI, ECA_TIME_LO};
use crate::bus::{BusTiming, Description, tlu};
use crate::pingpong::{PingPongRequest, Protocol, limit};
use crate::server::Running;
use crate::transport::Bridge;
use crate::{Address, Client, ClientOptions, EbDialect, EbServer, ServerOptions, Slave, scan};

pub(super) struct Plan {
    pub(super) request: EtherboneRequest,
    pub(super) stop: StopFlag,
}

/// The conversation with the character device that was measured last. Such a device serves one
/// client, and its stream carries one probe, so it goes on from point to point.
static KEPT: Mutex<Option<(EtherboneRequest, Client)>> = Mutex::new(None);

impl Plan {
    pub(super) fn of(request: &EtherboneRequest) -> Result<Plan, Fault> {
        let takes_datagrams = match &request.address.target {
            Target::At(Address::Emulated(bridge)) => !bridge.stream,
            Target::Loop(protocol) => *protocol == Protocol::Udp,
            Target::At(address) => {
                matches!(address, Address::Udp(_) | Address::Tunnel { .. })
            }
        };
        let plan = Plan { request: request.clone(), stop: StopFlag::default() };
        let is_alone = request.method == Method::Convenience;
        let (layout, ops) = (plan.layout(), plan.ops(0));
        let most_bytes = (DATAGRAM_BYTES - layout.header_bytes()) as u64;
        if is_alone || !takes_datagrams || cycle_bytes(&ops, layout) <= most_bytes {
            return Ok(plan);
        }
        let count = request.count;
        let why = format!(
            "is {count}: such a cycle does not fit a datagram of {DATAGRAM_BYTES} bytes (streams take it)"
        );
        Err(request.workload().error("count", why).into())
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

    /// Counts the cycles that are lost together with a datagram.
    pub(super) fn cycles_per_datagram(&self) -> u64 {
        let room = DATAGRAM_BYTES - self.layout().header_bytes();
        let bytes = cycle_bytes(&self.ops(0), self.layout()).max(1);
        (room as u64 / bytes).clamp(1, self.request.batch())
    }

    pub(super) fn limit(&self) -> Option<LimitSpec> {
        let ops = self.ops(0);
        let (messages, cycle) = match self.request.method {
            Method::Convenience => (ops.len() as u64, &ops[..1]),
            _ => (1, &ops[..]),
        };
        let bytes = match self.request.litex {
            // A header, that of the record, an address, and a word for each.
            true => litex::HEADER_BYTES as u64 + 8 + 4 * self.request.count,
            false => cycle_bytes(cycle, self.layout()),
        };
        match &self.request.address.target {
            Target::Loop(protocol) => self.raw_limit(*protocol, bytes, messages),
            Target::At(Address::Emulated(bridge)) => {
                self.emulated_limit(bridge, messages, bytes * messages)
            }
            Target::At(_) => None,
        }
    }

    /// Widths of the conversation: words of 32 bits, at addresses of 64 if the payload needs them.
    fn layout(&self) -> EbLayout {
        let address = if self.request.base() <= MAX_NARROW_BASE { Width::W32 } else { Width::W64 };
        EbLayout { address, ..EbLayout::L32 }
    }

    fn raw_limit(&self, transport: Protocol, bytes: u64, messages: u64) -> Option<LimitSpec> {
        let header_bytes = match transport {
            Protocol::Udp if !self.request.litex => self.layout().header_bytes() as u64,
            _ => 0,
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

    /// Returns the slower of the bus and the line for one operation's payload.
    fn emulated_limit(&self, bridge: &Bridge, messages: u64, bytes: u64) -> Option<LimitSpec> {
        let (ops, counted_bytes) = (self.ops(0), self.request.counted_bytes());
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

    pub(super) fn timeout(&self) -> Duration {
        let given = self.request.timeout_ms.map(Duration::from_millis);
        given.unwrap_or(ClientOptions::default().timeout)
    }

    /// Fails after at least three deadlines without an answer in a row, when a link that loses this
    /// share of cycles would cause as many once in a million times.
    pub(super) fn check_silence(&self, waits: u32, lost_share: f64) -> Result<(), Fault> {
        const MAX_WAITS: u32 = 30;
        let is_chance = lost_share.powf(waits.into()) > 1e-6 && waits < MAX_WAITS;
        if waits < 3 || is_chance {
            return Ok(());
        }
        Err(Fault::new(format!(
            "{} does not answer: {waits} timeouts of {:?} (--timeout)",
            self.request.address,
            self.timeout()
        )))
    }

    pub(super) fn close(&self, client: Client) {
        if matches!(self.request.address.target, Target::At(Address::Dev(_))) {
            let is_settled = client.is_settled();
            *locked(&KEPT) = is_settled.then(|| (self.request.clone(), client));
        }
    }

    /// Returns the kept conversation, if this request would open an equal one. Another one is
    /// closed to free the device.
    fn kept(&self) -> Option<Client> {
        let (of, client) = locked(&KEPT).take()?;
        let same = of.address == self.request.address && of.timeout_ms == self.request.timeout_ms;
        (same && client.layout() == self.layout()).then_some(client)
    }

    pub(super) fn open(&self) -> Result<(Client, Option<Running>), Fault> {
        let timeout = self.timeout();
        let EtherboneRequest { litex, count, .. } = self.request;
        let wide = ClientOptions {
            timeout,
            stop: self.stop.clone(),
            dialect: if litex { EbDialect::Litex } else { EbDialect::Gsi },
            litex_words: usize::try_from(count).unwrap_or(usize::MAX),
            ..ClientOptions::default()
        };
        let wide = ClientOptions { probe_timeout: wide.probe_timeout.min(timeout), ..wide };
        let EbLayout { address, data } = self.layout();
        let (address, data) = (Widths::only(address), Widths::only(data));
        let narrow = ClientOptions { address, data, ..wide.clone() };
        match &self.request.address.target {
            Target::At(address) => {
                let is_device = matches!(address, Address::Dev(_));
                if let Some(client) = is_device.then(|| self.kept()).flatten() {
                    return Ok((client, None));
                }
                // Some slaves answer only a probe with all widths.
                let client = Client::open(address, &wide)?;
                if client.layout() == self.layout() {
                    return Ok((client, None));
                }
                // A character device serves one client at a time.
                drop(client);
                Ok((Client::open(address, &narrow)?, None))
            }
            Target::Loop(protocol) => {
                let mut bus = Description::timing_receiver().build().map_err(Fault::new)?;
                // Only the host's own time remains, because the path is measured here.
                bus.timing = BusTiming::default();
                let server = EbServer::bind(Slave::new(bus), ServerOptions::loopback())?
                    .spawn(self.request.peer_cpu)?;
                let address = Address::parse(&format!("{protocol}/127.0.0.1/{}", server.port))?;
                Ok((Client::open(&address, &narrow)?, Some(server)))
            }
        }
    }

    pub(super) fn device_base(&self, client: &mut Client) -> Result<(u64, Vec<String>), Fault> {
        let (id, name) = match self.request.payload {
            Payload::Timestamps => (ids::ECA, "ECA (0x651:0xb2afc251)"),
            Payload::Tlu => (ids::TLU, "TLU (0x651:0x10051981)"),
            Payload::Memory => return Ok((self.request.base(), Vec::new())),
        };
        let scan = scan::scan(client, true)?;
        let slave = &self.request.address;
        let mut devices = scan.devices(id);
        devices.retain(|device| self.request.base.is_none_or(|base| device.first == Some(base)));
        match &devices[..] {
            [one] => Ok((one.first.unwrap_or(0), scan.unread)),
            [] => {
                let lines = [vec![format!("{slave} has no {name}")], scan.unread].concat();
                Err(Fault::new(lines.join("; ")))
            }
            many => Err(Fault::new(format!(
                "{slave} has {} devices {name}: choose one by --base ADDRESS (daqmeter eb ls)",
                many.len()
            ))),
        }
    }
}

fn cycle_bytes(ops: &[Op], layout: EbLayout) -> u64 {
    let mut room = vec![0; 64 + 64 * ops.len()];
    let encoded = encode(ops, layout, 0x8000, StatusCheck::Status, &mut room);
    encoded.map_or(0, |encoded| encoded.bytes as u64)
}
