//! Devices of the emulated bus. Offsets are in bytes from the first address of a device and aligned
//! to the size; registers are read and written whole, by words of 32 bits.

use daqmeter_wire::etherbone::{Endian, Width};

use super::tlu::Tlu;
use super::{BusError, low32};
use crate::access::from_bytes;

pub(super) enum Occupant {
    Memory(Vec<u8>),
    /// An SDB table: readable, without a trace in the error register.
    Sdb(Vec<u8>),
    /// Time registers of the event-condition-action unit: TAI in ns since 1970. Nothing latches the
    /// two words, so the low word may roll over between the reads; readers must cope.
    Eca,
    Tlu(Box<Tlu>),
    Registers(Vec<Register>),
}

pub(crate) const ECA_TIME_HI: u64 = 0x18;
pub(crate) const ECA_TIME_LO: u64 = 0x1C;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Permission {
    #[default]
    ReadWrite,
    ReadOnly,
    WriteOnly,
    Faulty,
    Silent,
}

#[derive(Clone, Copy, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Register {
    offset: u64,
    #[serde(default)]
    value: u32,
    #[serde(default)]
    access: Permission,
}

impl Occupant {
    /// True for devices that may ask for the time.
    pub(super) fn is_device(&self) -> bool {
        !matches!(self, Occupant::Memory(_) | Occupant::Sdb(_))
    }

    /// Reads a value, or writes the given one.
    #[inline]
    pub(super) fn access(
        &mut self,
        offset: u64,
        (size, endian): (Width, Endian),
        value: Option<u64>,
        tai_ns: u64,
    ) -> Result<u64, BusError> {
        match (self, value) {
            (Occupant::Memory(bytes) | Occupant::Sdb(bytes), None) => {
                load(bytes, offset, size, endian).ok_or(BusError::Refused)
            }
            (Occupant::Memory(bytes), Some(value)) => {
                store(bytes, offset, size, endian, value).map(|()| 0).ok_or(BusError::Refused)
            }
            (Occupant::Sdb(_), Some(_)) => Err(BusError::Refused),
            _ if size != Width::W32 => Err(BusError::Refused),
            (Occupant::Eca, None) if offset == ECA_TIME_HI => Ok(tai_ns >> 32),
            (Occupant::Eca, None) if offset == ECA_TIME_LO => Ok(low32(tai_ns)),
            (Occupant::Eca, _) => Ok(0),
            (Occupant::Tlu(tlu), None) => tlu.read(offset, tai_ns),
            (Occupant::Tlu(tlu), Some(value)) => {
                tlu.write(offset, low32(value), tai_ns).map(|()| 0)
            }
            (Occupant::Registers(registers), value) => register(registers, offset, value),
        }
    }
}

fn register(registers: &mut [Register], offset: u64, value: Option<u64>) -> Result<u64, BusError> {
    let found = registers.iter_mut().find(|register| register.offset == offset);
    let register = found.ok_or(BusError::Refused)?;
    match (register.access, value) {
        (Permission::Silent, _) => Err(BusError::Timeout),
        (Permission::ReadWrite | Permission::ReadOnly, None) => Ok(register.value.into()),
        (Permission::ReadWrite | Permission::WriteOnly, Some(value)) => {
            register.value = u32::try_from(low32(value)).expect("32 bits");
            Ok(0)
        }
        _ => Err(BusError::Refused),
    }
}

/// Reads a value from memory; `None` beyond its end.
#[inline]
fn load(bytes: &[u8], offset: u64, size: Width, endian: Endian) -> Option<u64> {
    let at = usize::try_from(offset).ok()?;
    let found = bytes.get(at..at.checked_add(size.bytes())?)?;
    Some(match (size, endian) {
        (Width::W32, Endian::Big) => {
            u64::from(u32::from_be_bytes(found.try_into().expect("4 bytes")))
        }
        _ => from_bytes(found, endian),
    })
}

/// Writes a value to memory; `None` beyond its end.
#[inline]
fn store(bytes: &mut [u8], offset: u64, size: Width, endian: Endian, value: u64) -> Option<()> {
    let at = usize::try_from(offset).ok()?;
    let place = bytes.get_mut(at..at.checked_add(size.bytes())?)?;
    match endian {
        Endian::Big => place.copy_from_slice(&value.to_be_bytes()[8 - size.bytes()..]),
        Endian::Little => place.copy_from_slice(&value.to_le_bytes()[..size.bytes()]),
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_obey_their_permissions() {
        use Permission::{Faulty, ReadOnly, ReadWrite, Silent, WriteOnly};
        let (refused, silent) = (Err(BusError::Refused), Err(BusError::Timeout));
        for (access, written, read) in [
            (ReadWrite, Ok(0), Ok(6)),
            (ReadOnly, refused, Ok(5)),
            (WriteOnly, Ok(0), refused),
            (Faulty, refused, refused),
            (Silent, silent, silent),
        ] {
            let mut registers = [Register { offset: 4, value: 5, access }];
            assert_eq!(register(&mut registers, 4, Some(6)), written, "{access:?}");
            assert_eq!(register(&mut registers, 4, None), read, "{access:?}");
            assert_eq!(register(&mut registers, 8, None), refused);
        }
    }
}
