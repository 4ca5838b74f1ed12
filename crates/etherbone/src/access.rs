//! Accesses of any size to a device that supports some sizes: direct, in parts, or by a wider word.
//! Whole ranges of bytes, too.

use std::cell::Cell;
use std::time::Instant;

use daqmeter_wire::etherbone::cycle::{Op, Space, StatusCheck};
use daqmeter_wire::etherbone::{Endian, Lanes, Width, Widths};

use crate::{Client, EbError};

pub const MAX_BYTES: u64 = 1 << 28;

/// Operations per cycle, as in the C tools.
const OPS_PER_CYCLE: usize = 32;

/// The device that is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    pub widths: Widths,
    pub endian: Option<Endian>,
    pub space: Space,
    pub check: StatusCheck,
}

impl Reach {
    /// A device that is not described: all widths, and the byte order of the caller.
    pub fn unknown(endian: Option<Endian>) -> Reach {
        Reach { widths: Widths::ALL, endian, space: Space::Bus, check: StatusCheck::Status }
    }

    /// Registers of the config space: whole words of the port, big-endian.
    pub fn config(client: &Client) -> Reach {
        let (widths, space) = (Widths::only(client.layout().data), Space::Config);
        Reach { widths, space, ..Reach::unknown(Some(Endian::Big)) }
    }
}

/// Bytes that are accessed as one: a register, or a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteSpan {
    pub first: u64,
    bytes: u64,
    /// `None` for a range.
    pub register: Option<Width>,
}

impl ByteSpan {
    /// Returns a value of 1, 2, 4 or 8 bytes at an address that is a multiple of its size, as the C
    /// tools have it. A misaligned access would touch two registers.
    pub fn register(first: u64, bytes: u64) -> Result<ByteSpan, EbError> {
        let why = match Width::of_bytes(bytes) {
            Some(size) if first.is_multiple_of(bytes) => {
                return Ok(ByteSpan { first, bytes, register: Some(size) });
            }
            Some(_) => format!("{first:#x} is not aligned to {bytes} bytes, as a register is"),
            None => format!("a register has 1, 2, 4 or 8 bytes, not {bytes}"),
        };
        let why = format!("{why}: for a range, name a file (--output, --from)");
        Err(EbError::Other(why))
    }

    pub fn range(first: u64, bytes: u64) -> ByteSpan {
        ByteSpan { first, bytes, register: None }
    }
}

/// Words that cover a range of bytes without gaps. The first and the last may reach beyond it.
pub struct Words {
    at: Vec<(u64, Width)>,
    first: u64,
    bytes: usize,
    reach: Reach,
    endian: Endian,
    port: Width,
    /// True if a read may be repeated: of memory, not of a register, which may count reads.
    is_range: bool,
    /// True if a write may be repeated, too.
    pub is_memory: bool,
}

impl Words {
    /// Covers a span with the widest accesses that fit. At the ends, on devices that lack narrow
    /// accesses, it takes wider words, which are read and, for a write, written back.
    ///
    /// # Errors
    /// When port and device have no width in common, when the span is too long, and when the byte
    /// order counts but is unknown: only a register that is one word of the port has none.
    pub fn of(client: &Client, reach: Reach, span: ByteSpan) -> Result<Words, EbError> {
        let ByteSpan { first, bytes, register } = span;
        let port = client.layout().data;
        let is_usable = |width: &Width| reach.widths.has(*width) && *width <= port;
        let usable: Vec<Width> = Width::ALL.into_iter().filter(is_usable).collect();
        let Some(&narrowest) = usable.first() else {
            let (device, port) = (reach.widths, port.bits());
            return Err(EbError::Other(format!(
                "the device takes accesses of {device} bits only, the port has {port}"
            )));
        };
        // No word may reach beyond the address space either.
        let end = first
            .checked_add(bytes)
            .filter(|end| bytes <= MAX_BYTES && end.checked_add(8).is_some());
        let end = end.ok_or_else(|| {
            EbError::Other(format!(
                "{bytes} bytes from {first:#x} on: at most {MAX_BYTES} go at a time, inside the address space"
            ))
        })?;
        let (mut at, mut words) = (first, Vec::new());
        while at < end {
            let fits = |width: &&Width| {
                let bytes = width.bytes() as u64;
                at.is_multiple_of(bytes) && at + bytes <= end
            };
            let width = usable.iter().rev().find(fits).copied().unwrap_or(narrowest);
            let begin = at - at % width.bytes() as u64;
            words.push((begin, width));
            at = begin + width.bytes() as u64;
        }
        let has_no_order = register.is_some() && matches!(words[..], [(_, width)] if width == port);
        let endian = reach.endian.or(has_no_order.then_some(Endian::Big)).ok_or_else(|| {
            EbError::other(
                "the byte order must be given (-b or -l): SDB is not asked, and only a register of the port's size has none",
            )
        })?;
        let bytes = usize::try_from(bytes).expect("at most MAX_BYTES");
        let is_range = register.is_none();
        Ok(Words { at: words, first, bytes, reach, endian, port, is_range, is_memory: false })
    }

    /// Returns how the access is done, if it is not one access of its size.
    pub fn detour(&self) -> Option<String> {
        match self.at[..] {
            [(_, width)] if width.bytes() == self.bytes => None,
            [(_, width)] => Some(format!("done through words of {} bits", width.bits())),
            _ => {
                let widest = self.at.iter().map(|(_, width)| width.bits()).max().unwrap_or(0);
                Some(format!("split into accesses of {widest} bits"))
            }
        }
    }

    /// # Errors
    /// [`EbError::Refused`] if the bus refused an access.
    pub fn read(&self, client: &mut Client) -> Result<Vec<u8>, EbError> {
        let mut data = self.run(client, &self.at, None)?;
        data.drain(..self.padding());
        data.truncate(self.bytes);
        Ok(data)
    }

    /// # Errors
    /// As [`Words::read`].
    pub fn write(&self, client: &mut Client, data: &[u8]) -> Result<(), EbError> {
        let padding = self.padding();
        let covered: usize = self.at.iter().map(|(_, width)| width.bytes()).sum();
        let mut whole = vec![0; covered];
        if let (Some(&first), Some(&last)) = (self.at.first(), self.at.last())
            && covered > self.bytes
        {
            let before = self.run(client, &[first], None)?;
            whole[..before.len()].copy_from_slice(&before);
            let after = self.run(client, &[last], None)?;
            whole[covered - after.len()..].copy_from_slice(&after);
        }
        whole[padding..padding + data.len()].copy_from_slice(data);
        self.run(client, &self.at, Some(&whole)).map(drop)
    }

    /// Bytes of the first word before the range.
    fn padding(&self) -> usize {
        let first = self.at.first().map_or(self.first, |(at, _)| *at);
        usize::try_from(self.first - first).expect("less than a word")
    }

    /// Runs accesses in pipelined cycles: writes if there are bytes to write, else reads.
    fn run(
        &self,
        client: &mut Client,
        words: &[(u64, Width)],
        written: Option<&[u8]>,
    ) -> Result<Vec<u8>, EbError> {
        let (port, space, endian) = (self.port, self.reach.space, self.endian);
        let base = words.first().map_or(0, |(at, _)| *at);
        let place = |at: u64, width: Width| {
            let offset = usize::try_from(at - base).expect("inside the range");
            offset..offset + width.bytes()
        };
        let lanes = |at: u64, width: Width| match space {
            Space::Config => Lanes::full(port),
            Space::Bus => Lanes::at(at, width, port, endian).expect("aligned and inside the port"),
        };
        let op = |&(at, width): &(u64, Width)| {
            let read = Op { lanes: lanes(at, width), space, ..Op::read(at, port) };
            match written {
                None => read,
                Some(bytes) => {
                    let value = from_bytes(&bytes[place(at, width)], endian);
                    Op { write: true, value, ..read }
                }
            }
        };
        let read_bytes = words.iter().map(|(_, width)| width.bytes()).sum();
        let mut data = vec![0; if written.is_some() { 0 } else { read_bytes }];
        let mut failed = Vec::new();
        let may_repeat = if written.is_some() { self.is_memory } else { self.is_range };
        let tries = if may_repeat { client.retries() + 1 } else { 1 };
        let timeout = client.options().timeout;
        let quiet = timeout / tries;
        client.litex_timeout = quiet;
        let is_open: Vec<Cell<bool>> =
            words.chunks(OPS_PER_CYCLE).map(|_| Cell::new(true)).collect();
        let (left, heard) = (Cell::new(is_open.len()), Cell::new(Instant::now()));
        let mut pipeline = client.pipeline(|done| {
            let number = usize::try_from(done.token).expect("a cycle's number");
            // A late cycle stays open: an earlier or a later try may have the answer.
            if done.result.is_err() {
                return;
            }
            heard.set(Instant::now());
            if !is_open[number].replace(false) {
                return;
            }
            left.set(left.get() - 1);
            let cycle = words.chunks(OPS_PER_CYCLE).nth(number).unwrap_or_default();
            for (index, &(at, width)) in cycle.iter().enumerate() {
                failed.extend(done.failed(index).then_some(at));
                if let Some(&word) = done.words.get(index) {
                    let value = lanes(at, width).take(word);
                    data[place(at, width)].copy_from_slice(&to_bytes(value, width, endian));
                }
            }
        });
        let mut ops = Vec::with_capacity(OPS_PER_CYCLE);
        'tries: for _ in 0..tries {
            for (token, cycle) in words.chunks(OPS_PER_CYCLE).enumerate() {
                if !is_open[token].get() {
                    continue;
                }
                // A slave that was silent for all of the deadline is not asked on.
                if heard.get().elapsed() >= timeout {
                    break 'tries;
                }
                ops.clear();
                ops.extend(cycle.iter().map(op));
                match pipeline.submit(&ops, self.reach.check, token as u64) {
                    Err(EbError::Timeout(_)) => {}
                    submitted => submitted?,
                }
            }
            pipeline.settle(&left, quiet)?;
        }
        drop(pipeline);
        let doing = if written.is_some() { "writing" } else { "reading" };
        let refused = failed.first().map(|&first| {
            let failed = failed.len();
            EbError::Refused { failed, doing, first }
        });
        let first = is_open.iter().position(Cell::get).map(|at| words[at * OPS_PER_CYCLE].0);
        let lost = first.map(|first| match (left.get(), is_open.len()) {
            (1, 1) => EbError::Timeout(timeout),
            (lost, of) => EbError::Other(format!(
                "{lost} of {of} cycles had no answer within {timeout:?}, the first at {first:#x}"
            )),
        });
        refused.or(lost).map_or(Ok(data), Err)
    }

    /// Reads a register's value.
    pub fn value(&self, client: &mut Client) -> Result<u64, EbError> {
        Ok(from_bytes(&self.read(client)?, self.endian))
    }

    /// Returns the bytes of a register's value in the order of their addresses.
    pub fn bytes_of(&self, value: u64) -> Vec<u8> {
        let size = Width::of_bytes(self.bytes as u64).expect("a size of a value");
        to_bytes(value, size, self.endian)
    }
}

fn to_bytes(value: u64, size: Width, endian: Endian) -> Vec<u8> {
    let mut bytes = value.to_be_bytes()[8 - size.bytes()..].to_vec();
    if endian == Endian::Little {
        bytes.reverse();
    }
    bytes
}

pub(crate) fn from_bytes(bytes: &[u8], endian: Endian) -> u64 {
    let fold = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
    match endian {
        Endian::Big => bytes.iter().fold(0, fold),
        Endian::Little => bytes.iter().rev().fold(0, fold),
    }
}

#[cfg(test)]
mod tests {
    use daqmeter_harness::Resolved;
    use proptest::prelude::*;

    use super::*;
    use crate::bus::Description;
    use crate::transport::{Bridge, Emulated};
    use crate::{ClientOptions, EbDialect, Slave};

    const BASE: u64 = 0x10000;

    fn client(widths: Widths, port: Width, endian: Endian) -> Client {
        let description = Description::memory(BASE, 0x1ffff, widths, endian);
        let slave = Slave::new(description.build().unwrap());
        let transport = Emulated::new(&"perfect".parse::<Resolved<Bridge>>().unwrap(), slave);
        let options = ClientOptions { data: Widths::only(port), ..ClientOptions::default() };
        Client::over(Box::new(transport), &options, "test").unwrap()
    }

    #[test]
    fn what_cannot_be_accessed_is_refused_and_errors_are_counted() {
        let mut client = client(Widths::ALL, Width::W32, Endian::Big);
        let past = Reach::unknown(Some(Endian::Big));
        let past = Words::of(&client, past, ByteSpan::range(0x1fff0, 32)).unwrap();
        let error = past.read(&mut client).unwrap_err().to_string();
        assert_eq!(error, "the bus reports 4 error(s) while reading, the first at 0x20000");
        let root = ByteSpan::register(8, 8).unwrap();
        let root = Words::of(&client, Reach::config(&client), root).unwrap();
        assert_eq!(root.value(&mut client).unwrap(), 0);
    }

    /// A link that loses, doubles and overtakes, and the counts of the slave's operations.
    fn lossy(dialect: EbDialect, loss: f64) -> Client {
        let link = format!(
            "{{ loss = {loss}, duplicate = {loss}, reorder = {loss}, reorder_ns = 100000 }}"
        );
        let text = format!("about = \"\"\nrequest = {link}\nreply = {link}\n");
        let bridge = <Bridge as daqmeter_harness::Loaded>::read(&daqmeter_harness::TomlText::new(
            "lossy", &text,
        ))
        .unwrap();
        let memory = Description::memory(0, 0x3ffff, Widths::ALL, Endian::Big);
        let transport = Emulated::new(&bridge, Slave::new(memory.build().unwrap()));
        let timeout = std::time::Duration::from_millis(30);
        let options = ClientOptions {
            data: Widths::only(Width::W32),
            dialect,
            timeout,
            address: Widths::only(Width::W32),
            probes: if loss < 1.0 { 30 } else { 0 },
            probe_timeout: timeout / 10,
            ..ClientOptions::default()
        };
        Client::over(Box::new(transport), &options, "lossy").unwrap()
    }

    #[test]
    fn a_range_arrives_over_a_link_that_loses_and_a_register_is_asked_for_once() {
        let data: Vec<u8> =
            (0..200_000_u32).map(|at| (at.wrapping_mul(0x9E37_79B1) >> 24) as u8).collect();
        let mut client = lossy(EbDialect::Gsi, 0.1);
        let reach = Reach::unknown(Some(Endian::Big));
        let mut words =
            Words::of(&client, reach, ByteSpan::range(0x4000, data.len() as u64)).unwrap();
        // A write is repeated only where somebody says that it goes to memory.
        let lost = words.write(&mut client, &data).unwrap_err().to_string();
        assert!(
            lost.contains(" of 1563 cycles had no answer within 30ms, the first at 0x"),
            "{lost}"
        );
        words.is_memory = true;
        for _ in 0..5 {
            words.write(&mut client, &data).unwrap();
            assert!(words.read(&mut client).unwrap() == data);
        }
        // Each read of a register goes out once, also where most are lost.
        let register = Words::of(&client, reach, ByteSpan::register(0x4000, 4).unwrap()).unwrap();
        let mut client = lossy(EbDialect::Gsi, 0.4);
        let before = client.counts().issued;
        let answered = (0..40).filter(|_| register.value(&mut client).is_ok()).count();
        assert_eq!(client.counts().issued - before, 40);
        assert!((5..30).contains(&answered), "{answered}");
    }

    #[test]
    fn a_range_arrives_in_the_dialect_of_litex_and_a_dead_slave_ends_it_within_the_deadline() {
        let mut client = lossy(EbDialect::Litex, 0.03);
        let reach = Reach::unknown(Some(Endian::Big));
        let words = Words::of(&client, reach, ByteSpan::range(0x4000, 20_000)).unwrap();
        assert!(words.read(&mut client).unwrap() == [0; 20_000]);
        // More than a window of 64 KiB.
        let words = Words::of(&client, reach, ByteSpan::range(0x4000, 200_000)).unwrap();
        for dialect in [EbDialect::Litex, EbDialect::Gsi] {
            let mut dead = lossy(dialect, 1.0);
            let begin = Instant::now();
            let lost = words.read(&mut dead).unwrap_err().to_string();
            assert!(lost.starts_with("1563 of 1563 cycles had no answer"), "{lost}");
            assert!(begin.elapsed() < std::time::Duration::from_millis(300));
        }
    }

    /// The rest of a word that cannot be read was written as zeros.
    #[test]
    fn a_part_of_a_word_that_cannot_be_read_is_not_written() {
        let mut client = client(Widths::ALL, Width::W32, Endian::Big);
        let reach = Reach { widths: Widths::only(Width::W32), ..Reach::unknown(Some(Endian::Big)) };
        let part = Words::of(&client, reach, ByteSpan::range(0x1fffe, 4)).unwrap();
        let error = part.write(&mut client, &[1; 4]).unwrap_err().to_string();
        assert_eq!(error, "the bus reports 1 error(s) while reading, the first at 0x20000");
        let whole = Words::of(&client, reach, ByteSpan::range(0x1fffc, 4)).unwrap();
        assert_eq!(whole.read(&mut client).unwrap(), [0; 4]);
    }

    proptest! {
        #[test]
        fn what_is_put_is_got(offset in 0..64_u64, data in prop::collection::vec(any::<u8>(), 0..3000), little: bool, port in 0..4_usize, nibble in 1..16_u8) {
            let endian = if little { Endian::Little } else { Endian::Big };
            let (port, widths) = (Width::ALL[port], Widths::from_nibble(nibble));
            prop_assume!(Width::ALL.into_iter().any(|width| width <= port && widths.has(width)));
            let mut client = client(widths, port, endian);
            let reach = Reach { widths, ..Reach::unknown(Some(endian)) };
            let span = ByteSpan::range(BASE + offset, data.len() as u64);
            let words = Words::of(&client, reach, span).unwrap();
            words.write(&mut client, &data).unwrap();
            prop_assert_eq!(words.read(&mut client).unwrap(), data);
        }
    }
}
