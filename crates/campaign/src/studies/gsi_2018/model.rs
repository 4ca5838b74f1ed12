//! Times of cycles over a bridge by its profile alone, in us.

use daqmeter_etherbone::link::LinkProfile;
use daqmeter_etherbone::transport::Bridge;
use daqmeter_wire::etherbone::EbLayout;
use daqmeter_wire::etherbone::cycle::{Op, StatusCheck, encode};

pub(super) struct Model {
    pub(super) bridge: Bridge,
}

impl Model {
    pub(super) fn of(bridge: &str) -> Option<Model> {
        Bridge::named(bridge).ok().map(|bridge| Model { bridge })
    }

    /// Bytes of the request and of the answer of one checked cycle, as our client encodes it.
    fn bytes(&self, reads: u64, writes: u64) -> (f64, f64) {
        let write = |_| Op::write(0, 0, EbLayout::L32.data);
        let read = |_| Op::read(0, EbLayout::L32.data);
        let ops: Vec<Op> = (0..reads).map(read).chain((0..writes).map(write)).collect();
        let mut buffer = vec![0; 64 + 32 * ops.len()];
        let encoded = encode(&ops, EbLayout::L32, 0x8000, StatusCheck::Status, &mut buffer)
            .unwrap_or_default();
        let header = if self.bridge.stream { 0 } else { EbLayout::L32.header_bytes() };
        // Of each record with reads: its header, the return address, the values.
        let records = if reads > 0 { 2 } else { 1 };
        let answer = header + records * 8 + 4 * (encoded.values + encoded.statuses);
        ((encoded.bytes + header) as f64, answer as f64)
    }

    fn line_us(bytes: f64, link: &LinkProfile) -> f64 {
        if link.bytes_per_s > 0.0 {
            (bytes + link.overhead_bytes as f64) / link.bytes_per_s * 1e6
        } else {
            0.0
        }
    }

    fn bus_us(&self, reads: u64, writes: u64) -> f64 {
        let timing = self.bridge.timing;
        (timing.cycle_ns + reads * timing.read_ns + writes * timing.write_ns) as f64 / 1e3
    }

    pub(super) fn parts_us(&self, reads: u64, writes: u64) -> Parts {
        let (request, reply) = (&self.bridge.request, &self.bridge.reply);
        let (out, back) = self.bytes(reads, writes);
        Parts {
            line_out: Model::line_us(out, request),
            flight_out: request.latency_ns as f64 / 1e3,
            bus: self.bus_us(reads, writes),
            line_back: Model::line_us(back, reply),
            flight_back: reply.latency_ns as f64 / 1e3,
        }
    }

    pub(super) fn blocking_us(&self, reads: u64, writes: u64) -> f64 {
        let parts = self.parts_us(reads, writes);
        parts.flight_out + parts.flight_back + parts.line_out + parts.line_back + parts.bus
    }

    /// Per cycle of a long series: the slowest of what the cycles pass one after the other.
    pub(super) fn pipelined_us(&self, reads: u64, writes: u64) -> f64 {
        let parts = self.parts_us(reads, writes);
        parts.bus.max(parts.line_out).max(parts.line_back)
    }
}

/// Where the time of one cycle goes, in us.
pub(super) struct Parts {
    pub(super) line_out: f64,
    pub(super) flight_out: f64,
    pub(super) bus: f64,
    pub(super) line_back: f64,
    pub(super) flight_back: f64,
}
