//! Layout of a cycle: operations become records, and reads of the error register check them.
//! The layout is that of the C master, byte for byte. Runs of writes to one address (WFF) or to
//! consecutive words share a record, and a run of reads may follow in it. A status read comes after
//! every [`status::covered`] bus operations and at the end. BCA and RFF are set on every record, so
//! that answers come back to the tag.

use super::record::{RecordFlags, RecordHeader, put};
use super::{EbLayout, Lanes, Width, WireError, status};

const MAX_RUN: usize = 255;

/// First tag: the address of a cycle's answers in the master's config space, at the first that is
/// for an implementation's own use.
pub const FIRST_TAG: u16 = 0x8000;
/// Last tag; tags are even, the odd address above one takes the status reads.
pub(crate) const LAST_TAG: u16 = 0xFFFE;
pub const TAGS: usize = ((LAST_TAG - FIRST_TAG) / 2 + 1) as usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    Bus,
    Config,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    pub address: u64,
    pub value: u64,
    /// Bytes of the word that take part.
    pub lanes: Lanes,
    pub space: Space,
    pub write: bool,
}

impl Op {
    pub fn read(address: u64, port: Width) -> Op {
        Op { address, value: 0, lanes: Lanes::full(port), space: Space::Bus, write: false }
    }

    pub fn write(address: u64, value: u64, port: Width) -> Op {
        Op { address, value, lanes: Lanes::full(port), space: Space::Bus, write: true }
    }

    fn same_place(&self, other: &Op) -> bool {
        self.lanes == other.lanes && self.space == other.space
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusCheck {
    Status,
    /// No status reads: errors stay hidden, and a cycle of writes gets no answer.
    Silent,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    pub bytes: usize,
    /// Values of the answer to the tag.
    pub values: usize,
    /// Values of the answer to the address above the tag.
    pub statuses: usize,
    pub bus_ops: usize,
}

impl Encoded {
    pub fn is_answered(&self) -> bool {
        self.values + self.statuses > 0
    }
}

pub fn encode(
    ops: &[Op],
    layout: EbLayout,
    tag: u16,
    check: StatusCheck,
    out: &mut [u8],
) -> Result<Encoded, WireError> {
    let mut writer = Writer { layout, tag, check, out, done: Encoded::default(), unchecked: 0 };
    let mut rest = ops;
    let mut last_record = None;
    while !rest.is_empty() || writer.status_is_due(true) {
        last_record = Some(writer.done.bytes);
        rest = writer.record(rest)?;
    }
    if let Some(at) = last_record {
        writer.out[at] |= RecordFlags::CYC.0;
    }
    Ok(writer.done)
}

struct Writer<'a> {
    layout: EbLayout,
    tag: u16,
    check: StatusCheck,
    out: &'a mut [u8],
    done: Encoded,
    /// Bus operations without a status read so far.
    unchecked: usize,
}

impl Writer<'_> {
    fn status_is_due(&self, at_end: bool) -> bool {
        let covered = status::covered(self.layout.data);
        self.check == StatusCheck::Status
            && (self.unchecked == covered || at_end && self.unchecked > 0)
    }

    fn room(&self, space: Space) -> usize {
        match (self.check, space) {
            (StatusCheck::Status, Space::Bus) => {
                (status::covered(self.layout.data) - self.unchecked).min(MAX_RUN)
            }
            _ => MAX_RUN,
        }
    }

    fn book(&mut self, space: Space, count: usize) {
        if space == Space::Bus {
            self.unchecked += count;
            self.done.bus_ops += count;
        }
    }

    fn record<'ops>(&mut self, ops: &'ops [Op]) -> Result<&'ops [Op], WireError> {
        let header_at = self.done.bytes;
        let header_bytes = self.layout.header_bytes();
        let header =
            self.out.get_mut(header_at..header_at + header_bytes).ok_or(WireError::Overflow)?;
        header.fill(0);
        self.done.bytes += header_bytes;

        let mut flags = RecordFlags::BCA.with(RecordFlags::RFF);
        let full = Lanes::full(self.layout.data);
        let (writes, rest) =
            if self.status_is_due(false) { (&ops[..0], ops) } else { self.write_run(ops) };
        let mut lanes = None;
        if let Some(first) = writes.first() {
            lanes = Some(first.lanes);
            let fifo = writes.get(1).is_some_and(|second| second.address == first.address);
            flags = flags
                .with_if(fifo, RecordFlags::WFF)
                .with_if(first.space == Space::Config, RecordFlags::WCA);
            self.block(first.address, writes, |op| op.lanes.place(op.value))?;
            self.book(first.space, writes.len());
        }

        let mut reads: &[Op] = &[];
        let mut read_count = 0;
        let mut after = rest;
        if self.status_is_due(rest.is_empty()) {
            if lanes.is_none_or(|lanes| lanes == full) {
                lanes = Some(full);
                flags = flags.with(RecordFlags::RCA);
                let status_read = Op {
                    space: Space::Config,
                    ..Op::read(status::address(self.layout.data), self.layout.data)
                };
                self.block(u64::from(self.tag | 1), &[status_read], |op| op.address)?;
                self.done.statuses += 1;
                self.unchecked = 0;
                read_count = 1;
            }
        } else {
            (reads, after) = self.read_run(rest, lanes);
        }
        if let Some(first) = reads.first() {
            lanes = Some(first.lanes);
            flags = flags.with_if(first.space == Space::Config, RecordFlags::RCA);
            self.block(u64::from(self.tag), reads, |op| op.address)?;
            self.done.values += reads.len();
            self.book(first.space, reads.len());
            read_count = reads.len();
        }
        let count = |count: usize| u8::try_from(count).expect("runs end at 255");
        let select = lanes.unwrap_or(full).select();
        let header =
            RecordHeader { flags, select, writes: count(writes.len()), reads: count(read_count) };
        self.out[header_at..header_at + 4].copy_from_slice(&header.emit());
        Ok(after)
    }

    /// Splits off the first writes that one base address can express: all to one address, or each
    /// to the next word.
    fn write_run<'ops>(&self, ops: &'ops [Op]) -> (&'ops [Op], &'ops [Op]) {
        let Some(first) = ops.first().filter(|op| op.write) else {
            return (&ops[..0], ops);
        };
        let step = match ops.get(1) {
            Some(second) if second.address == first.address => 0,
            _ => self.layout.data.bytes() as u64,
        };
        let follows = |pair: &[Op]| {
            pair[1].write
                && pair[1].same_place(first)
                && pair[1].address == pair[0].address.wrapping_add(step)
        };
        let run = 1 + ops.windows(2).take_while(|pair| follows(pair)).count();
        ops.split_at(run.min(self.room(first.space)))
    }

    /// Splits off the first reads that fit the lanes of the record, if it has any yet.
    fn read_run<'ops>(&self, ops: &'ops [Op], lanes: Option<Lanes>) -> (&'ops [Op], &'ops [Op]) {
        let Some(first) = ops.first().filter(|op| lanes.is_none_or(|lanes| lanes == op.lanes))
        else {
            return (&ops[..0], ops);
        };
        let room = self.room(first.space).min(ops.len());
        let run = ops[..room].iter().take_while(|op| !op.write && op.same_place(first)).count();
        ops.split_at(run)
    }

    fn block(
        &mut self,
        base: u64,
        ops: &[Op],
        value: impl Fn(&Op) -> u64,
    ) -> Result<(), WireError> {
        let size = self.layout.value_bytes();
        let bytes = (1 + ops.len()) * size;
        let out = self
            .out
            .get_mut(self.done.bytes..self.done.bytes + bytes)
            .ok_or(WireError::Overflow)?;
        let (base_out, values_out) = out.split_at_mut(size);
        put(base_out, size, base);
        // One loop per size: this is the hot loop of a pipelined master.
        match size {
            2 => fill::<2>(values_out, ops, value),
            4 => fill::<4>(values_out, ops, value),
            _ => fill::<8>(values_out, ops, value),
        }
        self.done.bytes += bytes;
        Ok(())
    }
}

fn fill<const SIZE: usize>(out: &mut [u8], ops: &[Op], value: impl Fn(&Op) -> u64) {
    for (out, op) in out.chunks_exact_mut(SIZE).zip(ops) {
        put(out, SIZE, value(op));
    }
}

/// Returns the tag if `address` is that of an answer, and true for the status.
pub fn tag_of(address: u64) -> Option<(u16, bool)> {
    let address = u16::try_from(address).ok()?;
    (address >= FIRST_TAG).then_some((address & !1, address & 1 == 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::StatusCheck::{Silent, Status};
    use super::*;
    use crate::etherbone::{EbHeader, EbRecord, Endian};

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }

    fn message(ops: &[Op], layout: EbLayout, check: StatusCheck) -> Vec<u8> {
        let mut out = vec![0xAA; 4096];
        let encoded = encode(ops, layout, 0x8000, check, &mut out).unwrap();
        let mut message = EbHeader::of(layout, !encoded.is_answered()).emit().to_vec();
        message.resize(layout.header_bytes(), 0);
        message.extend(&out[..encoded.bytes]);
        message
    }

    #[test]
    fn golden_requests_of_the_c_master() {
        let l32 = EbLayout::L32;
        let read = [Op::read(0x10000, Width::W32)];
        let write = [Op::write(0x10000, 0x1122_3344, Width::W32)];
        let check = |ops: &[Op], layout, check, wanted: &str| {
            assert_eq!(message(ops, layout, check), hex(wanted))
        };
        check(&read, l32, Status, "4e6f1044 a00f0001 00008000 00010000 e80f0001 00008001 00000004");
        check(&read, l32, Silent, "4e6f1044 a80f0001 00008000 00010000");
        check(&write, l32, Status, "4e6f1044 e80f0101 00010000 11223344 00008001 00000004");
        check(&write, l32, Silent, "4e6f1444 a80f0100 00010000 11223344");
        let lanes = Lanes::at(0x10001, Width::W8, Width::W32, Endian::Big).unwrap();
        let byte = [Op { lanes, ..Op::write(0x10001, 0x7f, Width::W32) }];
        check(&byte, l32, Status, "4e6f1044 a0040100 00010001 007f0000 e80f0001 00008001 00000004");
        check(
            &[Op::read(0x10000, Width::W64)],
            EbLayout { address: Width::W64, data: Width::W64 },
            Status,
            "4e6f1088 00000000 a0ff0001 00000000 0000000000008000 0000000000010000
             e8ff0001 00000000 0000000000008001 0000000000000000",
        );
        check(
            &[Op::read(0x10000, Width::W16)],
            EbLayout { address: Width::W32, data: Width::W16 },
            Status,
            "4e6f1042 a0030001 00008000 00010000 e8030001 00008001 00000006",
        );
        check(
            &[Op::read(0x4000, Width::W8)],
            EbLayout { address: Width::W16, data: Width::W8 },
            Status,
            "4e6f1021 a0010001 8000 4000 e8010001 8001 0007",
        );
        let pointer =
            [8, 12].map(|address| Op { space: Space::Config, ..Op::read(address, Width::W32) });
        let fifo = [1, 2, 3].map(|value| Op::write(0x20, value, Width::W32));
        check(&fifo, l32, Silent, "4e6f1444 aa0f0300 00000020 00000001 00000002 00000003");
        assert_eq!(encode(&[], l32, 0x8000, Status, &mut []), Ok(Encoded::default()));
        check(&pointer, l32, Status, "4e6f1044 e80f0002 00008000 00000008 0000000c");
    }

    /// Checks the longest cycles that fit a datagram of 1472 bytes, counted with the C library.
    #[test]
    fn as_many_operations_fit_a_datagram_as_the_c_master_gets_in() {
        let most = |layout: EbLayout, check, op: &dyn Fn(u64) -> Op| {
            let mut out = vec![0; 1472 - layout.header_bytes()];
            let fits = |count: u64| {
                encode(&(0..count).map(op).collect::<Vec<_>>(), layout, 0x8000, check, &mut out)
                    .is_ok()
            };
            (1..500).map(fits).take_while(|fits| *fits).count()
        };
        let read32 = |index: u64| Op::read(4 * index, Width::W32);
        let write32 = |index: u64| Op::write(4 * index, index, Width::W32);
        assert_eq!(most(EbLayout::L32, Status, &read32), 317);
        assert_eq!(most(EbLayout::L32, Status, &write32), 323);
        assert_eq!(most(EbLayout::L32, Silent, &read32), 363);
        assert_eq!(most(EbLayout::L32, Silent, &write32), 363);
        let l64 = EbLayout { address: Width::W64, data: Width::W64 };
        assert_eq!(most(l64, Status, &|index| Op::read(8 * index, Width::W64)), 168);
        assert_eq!(most(l64, Status, &|index| Op::write(8 * index, index, Width::W64)), 171);
        assert_eq!(most(l64, Silent, &|index| Op::read(8 * index, Width::W64)), 181);
    }

    #[test]
    fn tags_are_found_again() {
        assert_eq!(tag_of(0x8000), Some((0x8000, false)));
        assert_eq!(tag_of(0xFFFF), Some((0xFFFE, true)));
        assert_eq!(tag_of(0x7FFE), None);
        assert_eq!(tag_of(0x1_8000), None);
        assert_eq!(TAGS, 16384);
    }

    fn replayed(bytes: &[u8], layout: EbLayout) -> Vec<Op> {
        let mut seen = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let (record, after) = EbRecord::split(layout, rest).unwrap();
            let flags = record.header.flags;
            let lanes = Lanes::of_select(record.header.select, layout.data).unwrap();
            let space = |config| {
                if flags.has(config) { Space::Config } else { Space::Bus }
            };
            if let Some((base, values)) = record.write_block() {
                let step = if flags.has(RecordFlags::WFF) { 0 } else { layout.data.bytes() as u64 };
                let space = space(RecordFlags::WCA);
                seen.extend(values.enumerate().map(|(index, value)| {
                    let address = base.wrapping_add(step * index as u64);
                    Op { address, value: lanes.take(value), lanes, space, write: true }
                }));
            }
            if let Some((back, addresses)) = record.read_block()
                && tag_of(back) == Some((0x8000, false))
            {
                let space = space(RecordFlags::RCA);
                let read = |address| Op { address, value: 0, lanes, space, write: false };
                seen.extend(addresses.map(read));
            }
            rest = after;
        }
        seen
    }

    fn any_op() -> impl Strategy<Value = Op> {
        (
            0..64_u64,
            any::<u32>(),
            any::<bool>(),
            prop::sample::select(vec![0x0F_u8, 0x0F, 0x0F, 0x01, 0x0C]),
            0..10_u8,
        )
            .prop_map(|(word, value, write, select, space)| {
                let lanes = Lanes::of_select(select, Width::W32).unwrap();
                let space = if space == 0 { Space::Config } else { Space::Bus };
                let value = if write { lanes.take(lanes.place(u64::from(value))) } else { 0 };
                Op { address: word * 4, value, lanes, space, write }
            })
    }

    proptest! {
        #[test]
        fn the_slave_sees_the_operations_in_order(ops in prop::collection::vec(any_op(), 0..700), silent: bool) {
            let mut out = vec![0; 1 << 16];
            let check = if silent { Silent } else { Status };
            let encoded = encode(&ops, EbLayout::L32, 0x8000, check, &mut out).unwrap();
            prop_assert_eq!(&replayed(&out[..encoded.bytes], EbLayout::L32), &ops);
            let bus_ops = ops.iter().filter(|op| op.space == Space::Bus).count();
            prop_assert_eq!(encoded.bus_ops, bus_ops);
            prop_assert_eq!(encoded.statuses, if silent { 0 } else { bus_ops.div_ceil(32) });
            prop_assert_eq!(encoded.values, ops.iter().filter(|op| !op.write).count());
        }
    }
}
