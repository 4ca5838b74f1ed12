//! Accesses of any size to a device that supports some sizes: direct, in parts, or by a wider word.
//! Whole ranges of bytes, too.

use daqmeter_wire::etherbone::cycle::{Op, Space, StatusCheck};
use daqmeter_wire::etherbone::{Endian, Lanes, Width, Widths};

use crate::scan;
use crate::{Client, EbError};

pub const MAX_BYTES: u64 = 1 << 28;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    pub widths: Widths,
    pub endian: Option<Endian>,
}

/// Operations per cycle, as in the C tools.
const OPS_PER_CYCLE: usize = 32;

impl Reach {
    pub fn of(client: &mut Client, address: u64) -> Result<Reach, EbError> {
        Reach::with_last(client, address).map(|(reach, _)| reach)
    }

    pub fn with_last(client: &mut Client, address: u64) -> Result<(Reach, u64), EbError> {
        match scan::device_at(client, address)? {
            Some((device, first)) => {
                let component = &device.component;
                let reach = Reach { widths: device.widths(), endian: Some(device.endian()) };
                Ok((reach, first.wrapping_add(component.last.wrapping_sub(component.first))))
            }
            None => Err(EbError::Address("failed to find SDB record: invalid address".to_owned())),
        }
    }

    fn usable(&self, client: &Client) -> Result<Widths, EbError> {
        let port = client.layout().data;
        let fitting = Width::ALL.into_iter().filter(|width| *width <= port).map(Widths::only);
        let usable = self.widths.and(fitting.fold(Widths::NONE, Widths::or));
        if usable == Widths::NONE {
            let (device, port) = (self.widths, port.bits());
            return Err(EbError::Unsupported(format!(
                "the device takes accesses of {device} bits only, the port has {port}"
            )));
        }
        Ok(usable)
    }

    fn endian_for(&self, size: Width, client: &Client) -> Result<Endian, EbError> {
        match self.endian {
            Some(endian) => Ok(endian),
            None if size == client.layout().data => Ok(Endian::Big),
            None => Err(EbError::Unsupported(
                "the byte order must be given (-b or -l) when the size is not that of the port and SDB is not asked"
                    .to_owned(),
            )),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessMethod {
    Direct,
    /// Parts of a narrower width: not atomic for the device.
    Fragmented(Width),
    /// A wider word, which is read and, for a write, written back.
    Widened(Width),
}

pub fn way(client: &Client, reach: Reach, size: Width) -> Result<AccessMethod, EbError> {
    let usable = reach.usable(client)?;
    let widest = usable.widest().expect("not empty");
    Ok(if usable.has(size) {
        AccessMethod::Direct
    } else if widest < size {
        AccessMethod::Fragmented(widest)
    } else {
        let wider = Width::ALL.into_iter().find(|width| *width > size && usable.has(*width));
        AccessMethod::Widened(wider.unwrap_or(widest))
    })
}

struct Words {
    ops: Vec<Op>,
    width: Width,
    endian: Endian,
}

fn words(
    client: &Client,
    reach: Reach,
    address: u64,
    size: Width,
    space: Space,
) -> Result<Words, EbError> {
    let port = client.layout().data;
    if space == Space::Config {
        // Config registers are read by whole words of the port and are big-endian.
        let first = address & !(port.bytes() as u64 - 1);
        let end = address + size.bytes() as u64;
        let ops = (first..end)
            .step_by(port.bytes())
            .map(|at| Op { space, ..Op::read(at, port) })
            .collect();
        return Ok(Words { ops, width: port, endian: Endian::Big });
    }
    if !address.is_multiple_of(size.bytes() as u64) {
        return Err(EbError::Unsupported(format!(
            "address {address:#x} is not a multiple of {}",
            size.bytes()
        )));
    }
    let width = match way(client, reach, size)? {
        AccessMethod::Direct => size,
        AccessMethod::Fragmented(width) | AccessMethod::Widened(width) => width,
    };
    let endian = reach.endian_for(width.max(size), client).or_else(|error| {
        if width == size && size == port { Ok(Endian::Big) } else { Err(error) }
    })?;
    let first = address & !(width.bytes() as u64 - 1);
    let end = address + size.bytes() as u64;
    let op = |at: u64| -> Result<Op, EbError> {
        let lanes = crate::client::lanes_of(at, width, port, endian)?;
        Ok(Op { lanes, ..Op::read(at, port) })
    };
    let ops = (first..end).step_by(width.bytes()).map(op).collect::<Result<_, _>>()?;
    Ok(Words { ops, width, endian })
}

fn assemble(values: &[u64], width: Width, endian: Endian, address: u64, size: Width) -> u64 {
    let low = usize::try_from(address & (width.bytes() as u64 - 1)).expect("below 8");
    let bytes = values.iter().flat_map(|value| to_bytes(*value, width, endian));
    from_bytes(&bytes.skip(low).take(size.bytes()).collect::<Vec<u8>>(), endian)
}

pub fn read(
    client: &mut Client,
    reach: Reach,
    address: u64,
    size: Width,
    space: Space,
    check: StatusCheck,
) -> Result<(u64, bool), EbError> {
    let words = words(client, reach, address, size, space)?;
    let outcome = client.cycle(&words.ops, check)?;
    let value = assemble(&outcome.values, words.width, words.endian, address, size);
    Ok((value, !outcome.failed.is_empty()))
}

pub fn write(
    client: &mut Client,
    reach: Reach,
    address: u64,
    size: Width,
    space: Space,
    check: StatusCheck,
    value: u64,
) -> Result<bool, EbError> {
    let words = words(client, reach, address, size, space)?;
    let width = words.width;
    let mut failed = false;
    let mut bytes = vec![0; words.ops.len() * width.bytes()];
    if bytes.len() > size.bytes() {
        let outcome = client.cycle(&words.ops, check)?;
        failed = !outcome.failed.is_empty();
        let around: Vec<u8> =
            outcome.values.iter().flat_map(|word| to_bytes(*word, width, words.endian)).collect();
        bytes.copy_from_slice(&around);
    }
    let low = usize::try_from(address & (width.bytes() as u64 - 1)).expect("below 8");
    bytes[low..low + size.bytes()].copy_from_slice(&to_bytes(value, size, words.endian));
    let writes: Vec<Op> = words
        .ops
        .iter()
        .zip(bytes.chunks(width.bytes()))
        .map(|(op, bytes)| Op { write: true, value: from_bytes(bytes, words.endian), ..*op })
        .collect();
    let outcome = client.cycle(&writes, check)?;
    Ok(failed || !outcome.failed.is_empty())
}

fn to_bytes(value: u64, size: Width, endian: Endian) -> Vec<u8> {
    let mut bytes = value.to_be_bytes()[8 - size.bytes()..].to_vec();
    if endian == Endian::Little {
        bytes.reverse();
    }
    bytes
}

fn from_bytes(bytes: &[u8], endian: Endian) -> u64 {
    let fold = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
    match endian {
        Endian::Big => bytes.iter().fold(0, fold),
        Endian::Little => bytes.iter().rev().fold(0, fold),
    }
}

/// Covers a range of bytes with the widest accesses that fit, and narrower ones at its ends.
fn range(
    client: &Client,
    reach: Reach,
    address: u64,
    bytes: u64,
) -> Result<Vec<(u64, Width)>, EbError> {
    let usable = reach.usable(client)?;
    if bytes > MAX_BYTES {
        return Err(EbError::Unsupported(format!(
            "{bytes} bytes; at most {MAX_BYTES} go at a time"
        )));
    }
    let end = address
        .checked_add(bytes)
        .ok_or_else(|| EbError::Unsupported("the range leaves the address space".to_owned()))?;
    let mut at = address;
    let mut accesses = Vec::new();
    while at < end {
        let fits = |width: &Width| {
            usable.has(*width)
                && at.is_multiple_of(width.bytes() as u64)
                && at + width.bytes() as u64 <= end
        };
        let width = Width::ALL.into_iter().rev().find(fits).ok_or_else(|| {
            EbError::Unsupported(format!(
                "at {at:#x}: the device takes accesses of {usable} bits only; align address and length"
            ))
        })?;
        accesses.push((at, width));
        at += width.bytes() as u64;
    }
    Ok(accesses)
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transfer {
    pub failed: u64,
    pub first_failed: Option<u64>,
}

pub fn get(
    client: &mut Client,
    reach: Reach,
    address: u64,
    bytes: u64,
) -> Result<(Vec<u8>, Transfer), EbError> {
    let accesses = range(client, reach, address, bytes)?;
    let mut data = vec![0; usize::try_from(bytes).expect("at most MAX_BYTES")];
    let take = |at: u64, width: Width, endian: Endian, value: u64| {
        let place = usize::try_from(at - address).expect("inside the range");
        data[place..place + width.bytes()].copy_from_slice(&to_bytes(value, width, endian));
    };
    let transfer = run(client, reach, &accesses, |_, _| None, take)?;
    Ok((data, transfer))
}

pub fn put(
    client: &mut Client,
    reach: Reach,
    address: u64,
    data: &[u8],
) -> Result<Transfer, EbError> {
    let accesses = range(client, reach, address, data.len() as u64)?;
    let value = |at: u64, width: Width| {
        let place = usize::try_from(at - address).expect("inside the range");
        Some(&data[place..place + width.bytes()])
    };
    run(client, reach, &accesses, value, |_, _, _, _| {})
}

/// Runs accesses in pipelined cycles of 32: writes if `value` gives bytes, else reads.
fn run<'a>(
    client: &mut Client,
    reach: Reach,
    accesses: &[(u64, Width)],
    value: impl Fn(u64, Width) -> Option<&'a [u8]>,
    mut take: impl FnMut(u64, Width, Endian, u64),
) -> Result<Transfer, EbError> {
    let port = client.layout().data;
    let endian = match accesses.iter().find(|(_, width)| *width != port) {
        Some((_, width)) => reach.endian_for(*width, client)?,
        None => reach.endian.unwrap_or(Endian::Big),
    };
    let op = |&(at, width): &(u64, Width)| {
        let lanes = Lanes::at(at, width, port, endian).expect("aligned and inside the port");
        match value(at, width) {
            Some(bytes) => Op { lanes, ..Op::write(at, from_bytes(bytes, endian), port) },
            None => Op { lanes, ..Op::read(at, port) },
        }
    };
    let mut transfer = Transfer::default();
    let mut broken = None;
    let mut pipeline = client.pipeline(|done| {
        let number = usize::try_from(done.token).expect("a cycle's number");
        let cycle = accesses.chunks(OPS_PER_CYCLE).nth(number).unwrap_or_default();
        for (index, &(at, width)) in cycle.iter().enumerate() {
            if done.failed(index) {
                transfer.failed += 1;
                transfer.first_failed.get_or_insert(at);
            }
            if let Some(&word) = done.words.get(index) {
                let lanes =
                    Lanes::at(at, width, port, endian).expect("aligned and inside the port");
                take(at, width, endian, lanes.take(word));
            }
        }
        if let Err(error) = done.result {
            broken.get_or_insert(error);
        }
    });
    let mut ops = Vec::with_capacity(OPS_PER_CYCLE);
    for (token, cycle) in accesses.chunks(OPS_PER_CYCLE).enumerate() {
        ops.clear();
        ops.extend(cycle.iter().map(op));
        pipeline.submit(&ops, StatusCheck::Status, token as u64)?;
    }
    pipeline.finish()?;
    broken.map_or(Ok(transfer), Err)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::StatusCheck::Status;
    use super::*;
    use crate::bus::Description;
    use crate::transport::{Bridge, Emulated};
    use crate::{ClientOptions, Slave};

    fn client(widths: Widths, port: Width, endian: Endian) -> Client {
        let description = Description::memory(0x10000, 0x1ffff, widths, endian);
        let slave = Slave::new(description.build().unwrap());
        let transport = Emulated::new(&Bridge::named("perfect").unwrap(), slave);
        let options = ClientOptions { data: Widths::only(port), ..ClientOptions::default() };
        Client::over(Box::new(transport), &options, "test").unwrap()
    }

    fn both(client: &mut Client, address: u64, size: Width, value: u64) -> u64 {
        let reach = Reach::of(client, address).unwrap();
        assert!(!write(client, reach, address, size, Space::Bus, Status, value).unwrap());
        let (found, failed) = read(client, reach, address, size, Space::Bus, Status).unwrap();
        assert!(!failed);
        found
    }

    #[test]
    fn every_size_goes_through_every_port_to_every_device() {
        for endian in [Endian::Big, Endian::Little] {
            for port in Width::ALL {
                for widths in (1..16).map(Widths::from_nibble) {
                    let mut client = client(widths, port, endian);
                    let reach = Reach::of(&mut client, 0x10000);
                    let Ok(reach) = reach else { continue };
                    if reach.usable(&client).is_err() {
                        continue;
                    }
                    for size in Width::ALL {
                        let value = 0x8877_6655_4433_2211 & size.mask();
                        assert_eq!(
                            both(&mut client, 0x10008, size, value),
                            value,
                            "{endian:?} {port:?} {widths} {size:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn writing_a_part_of_a_wide_word_leaves_the_rest() {
        for (endian, wanted) in [(Endian::Big, 0x1122_AA44), (Endian::Little, 0x11AA_3344)] {
            let mut client = client(Widths::only(Width::W32), Width::W32, endian);
            both(&mut client, 0x10000, Width::W32, 0x1122_3344);
            let reach = Reach::of(&mut client, 0x10000).unwrap();
            assert_eq!(way(&client, reach, Width::W8).unwrap(), AccessMethod::Widened(Width::W32));
            both(&mut client, 0x10002, Width::W8, 0xAA);
            let (word, _) =
                read(&mut client, reach, 0x10000, Width::W32, Space::Bus, Status).unwrap();
            assert_eq!(word, wanted);
        }
    }

    #[test]
    fn an_address_that_no_device_covers_is_refused() {
        let mut client = client(Widths::ALL, Width::W32, Endian::Big);
        let error = Reach::of(&mut client, 0x9000_0000).unwrap_err().to_string();
        assert_eq!(error, "failed to find SDB record: invalid address");
    }

    #[test]
    fn the_byte_order_must_be_known_only_where_it_matters() {
        let mut client = client(Widths::ALL, Width::W32, Endian::Big);
        let reach = Reach { widths: Widths::ALL, endian: None };
        assert!(read(&mut client, reach, 0x10000, Width::W32, Space::Bus, Status).is_ok());
        let error = read(&mut client, reach, 0x10000, Width::W8, Space::Bus, Status)
            .unwrap_err()
            .to_string();
        assert!(error.contains("-b or -l"), "{error}");
    }

    #[test]
    fn config_registers_are_read_in_any_size() {
        let mut client = client(Widths::ALL, Width::W16, Endian::Big);
        let reach = Reach { widths: Widths::ALL, endian: None };
        let root = read(&mut client, reach, 8, Width::W64, Space::Config, Status).unwrap();
        assert_eq!(root, (0, false));
    }

    #[test]
    fn errors_inside_a_range_are_counted() {
        let mut client = client(Widths::ALL, Width::W32, Endian::Big);
        let reach = Reach { widths: Widths::ALL, endian: Some(Endian::Big) };
        let (_, transfer) = get(&mut client, reach, 0x1fff0, 32).unwrap();
        assert_eq!(transfer, Transfer { failed: 4, first_failed: Some(0x20000) });
    }

    proptest! {
        #[test]
        fn what_is_put_is_got(offset in 0..64_u64, data in prop::collection::vec(any::<u8>(), 0..3000), little: bool, port in 0..4_usize) {
            let endian = if little { Endian::Little } else { Endian::Big };
            let mut client = client(Widths::ALL, Width::ALL[port], endian);
            let reach = Reach::of(&mut client, 0x10000).unwrap();
            let address = 0x10000 + offset;
            prop_assert_eq!(put(&mut client, reach, address, &data).unwrap(), Transfer::default());
            let (found, transfer) = get(&mut client, reach, address, data.len() as u64).unwrap();
            prop_assert_eq!(found, data);
            prop_assert_eq!(transfer.failed, 0);
        }
    }
}
