//! Cycles in captured datagrams, of both dialects: operations, values, errors and the round trip.
//! Requests and answers are put together by their ends and the tag. TCP is not followed.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use daqmeter_wire::capture::Datagram;
use daqmeter_wire::etherbone::cycle::{Op, Space};
use daqmeter_wire::etherbone::message::MAGIC;
use daqmeter_wire::etherbone::sdb::{self, RECORD_BYTES, SdbRecord};
use daqmeter_wire::etherbone::{
    EbHeader, EbLayout, EbRecord, Lanes, RecordFlags, Values, WireError, litex, status,
};

/// Operations that wait for an answer at once. Further ones end the waiting of all before.
const MAX_PENDING: usize = 1 << 18;
/// Tables and devices whose names are kept.
const MAX_NAMES: usize = 1 << 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedOp {
    /// Operation with the value that was written or read.
    pub op: Op,
    pub is_done: bool,
    pub failed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedCycle {
    /// Time of the request since 1970.
    pub time_ns: u64,
    /// Client and slave.
    pub ends: [SocketAddr; 2],
    /// Time from the request to the last answer.
    pub round_trip_ns: Option<u64>,
    pub ops: Vec<DecodedOp>,
    layout: EbLayout,
    /// Address of its answers, if it asks for one.
    pub tag: Option<u64>,
    /// Status reads that have no answer yet, and the answers.
    statuses: usize,
    errors: Vec<u64>,
}

impl DecodedCycle {
    fn add(&mut self, record: &EbRecord<'_>) {
        let (flags, port) = (record.header.flags, self.layout.data);
        // A slave does nothing with byte enables that are no run.
        let lanes = Lanes::of_select(record.header.select, port).unwrap_or(Lanes::full(port));
        let space = |config| if flags.has(config) { Space::Config } else { Space::Bus };
        if let Some((base, values)) = record.write_block() {
            let step = if flags.has(RecordFlags::WFF) { 0 } else { port.bytes() as u64 };
            self.ops.extend(values.zip(0..).map(|(word, at)| {
                let (address, value) = (base.wrapping_add(step * at), lanes.take(word));
                let op =
                    Op { lanes, space: space(RecordFlags::WCA), ..Op::write(address, value, port) };
                DecodedOp { op, is_done: true, failed: false }
            }));
        }
        let Some((back, addresses)) = record.read_block() else { return };
        self.tag = Some(back & !1);
        if flags.has(RecordFlags::RCA) && back & 1 == 1 {
            self.statuses += addresses.len();
            return;
        }
        self.ops.extend(addresses.map(|address| {
            let op = Op { lanes, space: space(RecordFlags::RCA), ..Op::read(address, port) };
            DecodedOp { op, is_done: false, failed: false }
        }));
    }

    /// Takes an answer's values; returns true if none is left to come.
    fn answer(&mut self, time_ns: u64, is_status: bool, values: Values<'_>) -> bool {
        if is_status && self.statuses > 0 {
            self.statuses = self.statuses.saturating_sub(values.len());
            self.errors.extend(values);
        } else {
            for (op, word) in self.ops.iter_mut().filter(|op| !op.is_done).zip(values) {
                (op.op.value, op.is_done) = (op.op.lanes.take(word), true);
            }
        }
        let mut bus: Vec<_> = self.ops.iter_mut().filter(|op| op.op.space == Space::Bus).collect();
        for (part, errors) in bus.chunks_mut(status::covered(self.layout.data)).zip(&self.errors) {
            let of = part.len();
            (0..of).for_each(|at| part[at].failed = status::failed(*errors, at, of));
        }
        let is_whole = self.statuses == 0 && self.ops.iter().all(|op| op.is_done);
        self.round_trip_ns = is_whole.then(|| time_ns.saturating_sub(self.time_ns));
        is_whole
    }
}

#[derive(Default)]
pub struct Decoder {
    /// Cycles by their ends and tag. LiteX answers a fixed port, so that its ports do not count.
    pending: HashMap<([SocketAddr; 2], u64), DecodedCycle>,
    pending_ops: usize,
    /// Tables by slave and address, with the base of the addresses in them.
    tables: BTreeMap<(SocketAddr, u64), u64>,
    /// Devices by slave and first address, with the last and the name.
    devices: BTreeMap<(SocketAddr, u64), (u64, String)>,
    /// Cycles that have ended and were not taken yet.
    pub ended: Vec<DecodedCycle>,
    /// Answers whose request is not in the capture.
    pub stray: u64,
}

impl Decoder {
    /// Reads the messages of a datagram. There are several where the kernel captured a batch: no
    /// record begins with their magic.
    pub fn datagram(&mut self, time_ns: u64, datagram: &Datagram<'_>) -> Result<(), WireError> {
        let is_litex = litex::recognise(datagram.payload) == Some(true);
        let [from, to] = [datagram.from, datagram.to].map(|mut end| {
            end.set_port(if is_litex { 0 } else { end.port() });
            end
        });
        let (mut layout, mut rest) =
            (EbHeader::parse(datagram.payload)?.layout(), datagram.payload);
        let mut cycle: Option<DecodedCycle> = None;
        while !rest.is_empty() {
            if rest.starts_with(&MAGIC.to_be_bytes()) {
                let header = EbHeader::parse(rest)?;
                if header.probe_request || header.probe_response {
                    return Ok(());
                }
                layout = header.layout();
                let bytes = if is_litex { litex::HEADER_BYTES } else { layout?.header_bytes() };
                rest = rest.get(bytes..).unwrap_or_default();
                continue;
            }
            let (record, after) = EbRecord::split(layout?, rest)?;
            rest = after;
            let flags = record.header.flags;
            let block = record.write_block().filter(|_| record.header.reads == 0);
            let is_answer = block.is_some_and(|(base, values)| {
                self.answered(([to, from], base & !1), time_ns, base & 1 == 1, values)
            });
            if !is_answer && flags.has(RecordFlags::WCA) && block.is_some() {
                self.stray += 1;
            } else if !is_answer && (!record.header.is_empty() || cycle.is_some()) {
                let ends = [datagram.from, datagram.to];
                let (round_trip_ns, tag, statuses) = (None, None, 0);
                let (ops, errors, layout) = (Vec::new(), Vec::new(), layout?);
                let new = DecodedCycle {
                    time_ns,
                    ends,
                    round_trip_ns,
                    ops,
                    layout,
                    tag,
                    statuses,
                    errors,
                };
                cycle.get_or_insert(new).add(&record);
            }
            if flags.has(RecordFlags::CYC) || rest.is_empty() {
                cycle.take().into_iter().for_each(|cycle| self.ask([from, to], cycle));
            }
        }
        Ok(())
    }

    /// Keeps a cycle until its answer comes. One whose tag is used again has none.
    fn ask(&mut self, ends: [SocketAddr; 2], cycle: DecodedCycle) {
        if self.pending_ops >= MAX_PENDING {
            self.finish();
        }
        let Some(tag) = cycle.tag else { return self.ended.push(cycle) };
        self.pending_ops += 1 + cycle.ops.len();
        if let Some(before) = self.pending.insert((ends, tag), cycle) {
            self.end(before);
        }
    }

    fn end(&mut self, cycle: DecodedCycle) {
        self.pending_ops -= 1 + cycle.ops.len();
        self.ended.push(cycle);
    }

    fn answered(
        &mut self,
        key: ([SocketAddr; 2], u64),
        time_ns: u64,
        is_status: bool,
        values: Values<'_>,
    ) -> bool {
        let Some(cycle) = self.pending.get_mut(&key) else { return false };
        if cycle.answer(time_ns, is_status, values)
            && let Some(cycle) = self.pending.remove(&key)
        {
            self.learn(&cycle);
            self.end(cycle);
        }
        true
    }

    /// Ends the cycles without an answer, in the order of their requests.
    pub fn finish(&mut self) {
        let mut left: Vec<DecodedCycle> = self.pending.drain().map(|(_, cycle)| cycle).collect();
        left.sort_by_key(|cycle| cycle.time_ns);
        left.into_iter().for_each(|cycle| self.end(cycle));
    }

    /// Learns a device, or where a table is, from a cycle that reads one record of the
    /// self-describing bus.
    fn learn(&mut self, cycle: &DecodedCycle) {
        let (port, slave) = (cycle.layout.data.bytes(), cycle.ends[1]);
        let Some(at) = cycle.ops.first().map(|op| op.op.address) else { return };
        let is_run = |(DecodedOp { op, .. }, index): (&DecodedOp, u64)| {
            let is_next = op.address == at.wrapping_add(index * port as u64);
            is_next && !op.write && op.space == Space::Bus && op.lanes.size().bytes() == port
        };
        let is_full = self.tables.len() + self.devices.len() >= MAX_NAMES;
        let is_short = cycle.ops.len() * port <= RECORD_BYTES;
        if is_full || !is_short || !cycle.ops.iter().zip(0..).all(is_run) {
            return;
        }
        let words = cycle.ops.iter().map(|op| op.op.value.to_be_bytes());
        let bytes: Vec<u8> = words.flat_map(|word| word.into_iter().skip(8 - port)).collect();
        if bytes.starts_with(&sdb::MAGIC.to_be_bytes()) {
            self.tables.entry((slave, at)).or_insert(0);
        }
        let table = self.tables.range((slave, 0)..=(slave, at)).next_back();
        let (Some((_, &base)), Some(record)) = (table, bytes.first_chunk()) else { return };
        match SdbRecord::parse(record) {
            Ok(SdbRecord::Bridge { child, component }) => {
                let table = (slave, base.wrapping_add(child));
                self.tables.insert(table, base.wrapping_add(component.first));
            }
            Ok(SdbRecord::Device(sdb::SdbDevice { component, .. })) => {
                let [first, last] =
                    [component.first, component.last].map(|at| base.wrapping_add(at));
                self.devices.insert((slave, first), (last, component.product.name.to_string()));
            }
            _ => {}
        }
    }

    /// Returns the device at an address of a slave and the offset in it, if the capture has the
    /// client's reads of the self-describing bus.
    pub fn name(&self, slave: SocketAddr, address: u64) -> Option<(&str, u64)> {
        let ((_, first), (last, name)) =
            self.devices.range((slave, 0)..=(slave, address)).next_back()?;
        (address <= *last).then_some((name, address - first))
    }
}

#[cfg(test)]
mod tests {
    use daqmeter_wire::etherbone::cycle::{Op, StatusCheck, encode};
    use daqmeter_wire::etherbone::{Endian, Width, Widths};
    use proptest::prelude::*;

    use super::*;
    use crate::Slave;
    use crate::bus::Description;

    fn ends(client: u16) -> (SocketAddr, SocketAddr) {
        (([10, 0, 0, 1], client).into(), ([10, 0, 0, 2], 60368).into())
    }

    fn fed(
        decoder: &mut Decoder,
        time_ns: u64,
        (from, to): (SocketAddr, SocketAddr),
        payload: &[u8],
    ) -> Vec<DecodedCycle> {
        decoder.datagram(time_ns, &Datagram { from, to, payload }).unwrap();
        std::mem::take(&mut decoder.ended)
    }

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte =
            |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    }

    /// Shows a cycle as the tables below do.
    fn shown(cycle: &DecodedCycle) -> String {
        let op = |DecodedOp { op, is_done, failed }: &DecodedOp| {
            let what = if op.write { "w" } else { "r" };
            let space = if op.space == Space::Config { "c" } else { "" };
            let value = if *is_done { format!("{:x}", op.value) } else { "-".to_owned() };
            let failed = if *failed { "!" } else { "" };
            format!("{what}{space} {:x}/{} {value}{failed}", op.address, op.lanes.size().bytes())
        };
        let trip = cycle.round_trip_ns.map_or("-".to_owned(), |ns| ns.to_string());
        format!("{trip}: {}", cycle.ops.iter().map(op).collect::<Vec<_>>().join(", "))
    }

    /// Requests and answers that the C tools, LiteX and the HDL slave sent.
    #[test]
    fn golden_exchanges_of_both_dialects() {
        let (there, back) = (ends(4711), (ends(4711).1, ends(4711).0));
        for (request, answer, wanted) in [
            (
                "4e6f1044 a00f0001 00008000 00010000 e80f0001 00008001 00000004",
                "4e6f1444 060f0100 00008000 dddddddd 0e0f0100 00008001 00000000",
                "7: r 10000/4 dddddddd",
            ),
            (
                "4e6f1044 a00f0001 00008000 000a0000 e80f0001 00008001 00000004",
                "4e6f1444 060f0100 00008000 00000000 0e0f0100 00008001 00000001",
                "7: r a0000/4 0!",
            ),
            (
                "4e6f1044 e80f0101 00010000 11223344 00008001 00000004",
                "4e6f1444 00000000 00000000 0e0f0100 00008001 00000000",
                "7: w 10000/4 11223344",
            ),
            ("4e6f1444 a80f0100 00010000 11223344", "", "-: w 10000/4 11223344"),
            (
                "4e6f1044 a0040100 00010001 007f0000 e80f0001 00008001 00000004",
                "4e6f1444 0e0f0100 00008001 00000000",
                "7: w 10001/1 7f",
            ),
            (
                "4e6f1044 e80f0002 00008000 00000008 0000000c",
                "4e6f1444 0e0f0200 00008000 00000000 00000300",
                "7: rc 8/4 0, rc c/4 300",
            ),
            (
                "4e6f1044 00000000 000f0001 00000005 f0000000",
                "4e6f1044 00000000 000f0100 00000005 cafecafe",
                "7: r f0000000/4 cafecafe",
            ),
            ("4e6f1044 00000000 000f0100 f0000000 00000001", "", "-: w f0000000/4 1"),
        ] {
            let mut decoder = Decoder::default();
            let mut cycles = fed(&mut decoder, 100, there, &hex(request));
            if !answer.is_empty() {
                assert!(cycles.is_empty(), "{wanted}");
                cycles = fed(&mut decoder, 107, back, &hex(answer));
                // A second answer has no request.
                fed(&mut decoder, 109, back, &hex(answer));
            }
            assert_eq!(cycles.iter().map(shown).collect::<Vec<_>>(), [wanted]);
        }
    }

    #[test]
    fn what_is_lost_or_not_etherbone_is_counted() {
        let read = hex("4e6f1044 a80f0001 00008000 00010000");
        let answer = hex("4e6f1444 0e0f0100 00008000 00000007");
        let (mut decoder, there) = (Decoder::default(), ends(1));
        assert_eq!(fed(&mut decoder, 1, there, &hex("4e6f1144 00000086")), []);
        assert_eq!(fed(&mut decoder, 1, there, &read), []);
        // The tag is used again, and another client uses the same.
        assert_eq!(
            fed(&mut decoder, 2, there, &read).iter().map(shown).collect::<Vec<_>>(),
            ["-: r 10000/4 -"]
        );
        assert_eq!(fed(&mut decoder, 3, ends(2), &read), []);
        assert_eq!(fed(&mut decoder, 9, (there.1, there.0), &answer)[0].round_trip_ns, Some(7));
        assert_eq!(fed(&mut decoder, 9, (there.1, there.0), &answer), []);
        assert_eq!(decoder.stray, 1);
        // Half of the answers are no round trip, also if the tag is used again.
        let checked = hex("4e6f1044 a00f0001 00008000 00010000 e80f0001 00008001 00000004");
        assert_eq!(fed(&mut decoder, 9, there, &checked), []);
        assert_eq!(fed(&mut decoder, 10, (there.1, there.0), &answer), []);
        assert_eq!(fed(&mut decoder, 11, there, &read)[0].round_trip_ns, None);
        assert_eq!(fed(&mut decoder, 12, (there.1, there.0), &answer)[0].round_trip_ns, Some(1));
        decoder.finish();
        let left: Vec<_> = decoder
            .ended
            .iter()
            .map(|cycle| (cycle.ends[0], cycle.tag, cycle.round_trip_ns))
            .collect();
        assert_eq!((left, decoder.pending_ops), (vec![(ends(2).0, Some(0x8000), None)], 0));
        for wrong in [&read[..14], b"GET /"] {
            let wrong = Datagram { from: there.0, to: there.1, payload: wrong };
            assert!(decoder.datagram(0, &wrong).is_err());
        }
    }

    /// The scan by our own client, with the names of the devices as it finds them.
    #[test]
    fn devices_behind_bridges_are_named_as_the_scan_finds_them() {
        use crate::transport::{Arrived, EbTransport, Framing};
        use std::sync::{Arc, Mutex};
        struct Tap(Slave, Vec<Vec<u8>>, Arc<Mutex<Decoder>>);
        impl Tap {
            fn seen(&self, from: (SocketAddr, SocketAddr), payload: &[u8]) {
                fed(&mut self.2.lock().unwrap(), 0, from, payload);
            }
        }
        impl EbTransport for Tap {
            fn framing(&self) -> Framing {
                Framing::Datagram
            }
            fn send(&mut self, bytes: &[u8], lengths: &[usize]) -> Result<(), crate::EbError> {
                // The kernel shows datagrams that are sent together as one.
                self.seen(ends(1), bytes);
                let mut rest = bytes;
                for &length in lengths {
                    let (datagram, later) = rest.split_at(length);
                    let mut answer = Vec::new();
                    self.0.datagram(0, datagram, &mut answer);
                    self.seen((ends(1).1, ends(1).0), &answer);
                    self.1.push(answer);
                    rest = later;
                }
                Ok(())
            }
            fn receive(
                &mut self,
                buffer: &mut [u8],
                _: std::time::Duration,
            ) -> Result<Option<Arrived>, crate::EbError> {
                let answer = self.1.remove(0);
                buffer[..answer.len()].copy_from_slice(&answer);
                Ok(Some(Arrived { bytes: answer.len(), segment_bytes: answer.len().max(1) }))
            }
        }
        for data in [Width::W32, Width::W64] {
            let decoder = Arc::default();
            let slave = Slave::new(Description::timing_receiver().build().unwrap());
            let tap = Box::new(Tap(slave, Vec::new(), Arc::clone(&decoder)));
            let options = crate::ClientOptions { data: Widths::only(data), ..Default::default() };
            let mut client = crate::Client::over(tap, &options, "tap").unwrap();
            let scan = crate::scan::scan(&mut client, true).unwrap();
            let decoder = decoder.lock().unwrap();
            let devices =
                scan.found.iter().filter(|found| matches!(found.record, SdbRecord::Device(_)));
            let mut count = 0;
            for found in devices {
                let name = found.record.component().unwrap().product.name.to_string();
                let last = found.last.unwrap();
                assert_eq!(
                    decoder.name(ends(1).1, last),
                    Some((&*name, last - found.first.unwrap()))
                );
                count += 1;
            }
            assert!(count > 3);
            assert_eq!(decoder.name(ends(1).1, 0x7000_0000), None);
        }
    }

    /// An access of a byte, of which half are beyond the memory.
    fn any_op() -> impl Strategy<Value = Op> {
        (0x1ffd0..0x20030_u64, any::<u8>(), any::<bool>()).prop_map(|(address, value, write)| {
            let (lanes, value) = (Lanes::full(Width::W8), value.into());
            Op { address, value, lanes, space: Space::Bus, write }
        })
    }

    proptest! {
        /// The operations and their values are those that the emulated slave did.
        #[test]
        fn what_was_asked_and_answered_is_shown(port in 0..4_usize, cycles in prop::collection::vec(prop::collection::vec(any_op(), 1..90), 1..4), silent: bool) {
            let layout = EbLayout { address: Width::W32, data: Width::ALL[port] };
            let check = if silent { StatusCheck::Silent } else { StatusCheck::Status };
            let bus = Description::memory(0x10000, 0x1ffff, Widths::ALL, Endian::Big).build().unwrap();
            let mut slave = Slave::new(bus);
            let (mut decoder, mut memory) = (Decoder::default(), HashMap::new());
            for (tag, ops) in (0x8000..).step_by(2).zip(&cycles) {
                let widened = |op: &Op| Op { lanes: Lanes::at(op.address, Width::W8, layout.data, Endian::Big).unwrap(), ..*op };
                let ops: Vec<Op> = ops.iter().map(widened).collect();
                let mut bytes = vec![0; 1 << 16];
                let encoded = encode(&ops, layout, tag, check, &mut bytes).unwrap();
                let mut message = EbHeader::of(layout, !encoded.is_answered()).emit().to_vec();
                message.resize(layout.header_bytes(), 0);
                message.extend(&bytes[..encoded.bytes]);
                let mut answer = Vec::new();
                slave.datagram(0, &message, &mut answer);
                let mut found = fed(&mut decoder, 1, ends(1), &message);
                if !answer.is_empty() {
                    found = fed(&mut decoder, 2, (ends(1).1, ends(1).0), &answer);
                }
                let wanted = ops.iter().map(|op| {
                    let failed = op.address > 0x1ffff;
                    if op.write && !failed {
                        memory.insert(op.address, op.value);
                    }
                    let value = match (op.write, failed) {
                        (true, _) => op.value,
                        (_, true) => 0,
                        _ => memory.get(&op.address).copied().unwrap_or(0),
                    };
                    (op.write, op.address, Width::W8, value, failed && !silent)
                });
                prop_assert_eq!(found.len(), 1);
                let ops = found[0].ops.iter();
                let ops: Vec<_> = ops.map(|DecodedOp { op, failed, .. }| (op.write, op.address, op.lanes.size(), op.value, *failed)).collect();
                prop_assert_eq!(ops, wanted.collect::<Vec<_>>());
            }
            prop_assert_eq!((decoder.stray, decoder.pending_ops), (0, 0));
        }
    }
}
