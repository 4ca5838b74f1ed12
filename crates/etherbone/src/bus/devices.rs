use daqmeter_wire::etherbone::{Endian, Width};

use super::BusError;

/// A device of the emulated bus. Offsets are in bytes from its first address and aligned to the
/// size.
pub trait BusDevice: Send {
    fn read(&mut self, offset: u64, size: Width, tai_ns: u64) -> Result<u64, BusError>;

    fn write(&mut self, offset: u64, size: Width, value: u64, tai_ns: u64) -> Result<(), BusError>;
}

/// Reads a value from memory; `None` beyond its end.
#[inline]
pub(crate) fn load(bytes: &[u8], offset: u64, size: Width, endian: Endian) -> Option<u64> {
    let at = usize::try_from(offset).ok()?;
    let found = bytes.get(at..at.checked_add(size.bytes())?)?;
    Some(match (size, endian) {
        (Width::W32, Endian::Big) => {
            u64::from(u32::from_be_bytes(found.try_into().expect("4 bytes")))
        }
        (_, Endian::Big) => found.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)),
        (_, Endian::Little) => {
            found.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
        }
    })
}

/// Writes a value to memory; `None` beyond its end.
#[inline]
pub(crate) fn store(
    bytes: &mut [u8],
    offset: u64,
    size: Width,
    endian: Endian,
    value: u64,
) -> Option<()> {
    let at = usize::try_from(offset).ok()?;
    let place = bytes.get_mut(at..at.checked_add(size.bytes())?)?;
    match endian {
        Endian::Big => place.copy_from_slice(&value.to_be_bytes()[8 - size.bytes()..]),
        Endian::Little => place.copy_from_slice(&value.to_le_bytes()[..size.bytes()]),
    }
    Some(())
}

/// Refuses other sizes than 32 bits: registers are read and written whole.
pub(super) fn whole(size: Width) -> Result<(), BusError> {
    if size == Width::W32 { Ok(()) } else { Err(BusError::Refused) }
}

pub(super) fn low32(value: u64) -> u64 {
    value & 0xFFFF_FFFF
}

/// Time registers of the event-condition-action unit: TAI in ns since 1970. Nothing latches the two
/// words, so the low word may roll over between the reads; readers must cope.
#[derive(Debug, Default)]
pub(crate) struct Eca;

pub(crate) const ECA_TIME_HI: u64 = 0x18;
pub(crate) const ECA_TIME_LO: u64 = 0x1C;

impl BusDevice for Eca {
    fn read(&mut self, offset: u64, size: Width, tai_ns: u64) -> Result<u64, BusError> {
        whole(size)?;
        Ok(match offset {
            ECA_TIME_HI => tai_ns >> 32,
            ECA_TIME_LO => low32(tai_ns),
            _ => 0,
        })
    }

    fn write(
        &mut self,
        _offset: u64,
        size: Width,
        _value: u64,
        _tai_ns: u64,
    ) -> Result<(), BusError> {
        whole(size)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Permission {
    #[default]
    ReadWrite,
    ReadOnly,
    WriteOnly,
    Faulty,
    Silent,
}

#[derive(Clone, Copy, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Register {
    pub offset: u64,
    #[serde(default)]
    pub value: u32,
    #[serde(default)]
    pub access: Permission,
}

#[derive(Debug)]
pub(crate) struct Registers(pub(crate) Vec<Register>);

impl Registers {
    fn at(&mut self, offset: u64, size: Width) -> Result<&mut Register, BusError> {
        whole(size)?;
        let register = self
            .0
            .iter_mut()
            .find(|register| register.offset == offset)
            .ok_or(BusError::Refused)?;
        match register.access {
            Permission::Silent => Err(BusError::Timeout),
            Permission::Faulty => Err(BusError::Refused),
            _ => Ok(register),
        }
    }
}

impl BusDevice for Registers {
    fn read(&mut self, offset: u64, size: Width, _tai_ns: u64) -> Result<u64, BusError> {
        let register = self.at(offset, size)?;
        if register.access == Permission::WriteOnly {
            Err(BusError::Refused)
        } else {
            Ok(register.value.into())
        }
    }

    fn write(
        &mut self,
        offset: u64,
        size: Width,
        value: u64,
        _tai_ns: u64,
    ) -> Result<(), BusError> {
        let register = self.at(offset, size)?;
        if register.access == Permission::ReadOnly {
            return Err(BusError::Refused);
        }
        register.value = u32::try_from(low32(value)).expect("32 bits");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_eca_gives_the_time_in_two_words() {
        let tai_ns = 0x1234_5678_9abc_def0;
        let read = |offset| Eca.read(offset, Width::W32, tai_ns);
        assert_eq!((read(ECA_TIME_HI), read(ECA_TIME_LO)), (Ok(0x1234_5678), Ok(0x9abc_def0)));
        assert_eq!(Eca.read(ECA_TIME_HI, Width::W8, 0), Err(BusError::Refused));
    }

    #[test]
    fn registers_obey_their_permissions() {
        let register = |offset, access| Register { offset, value: 5, access };
        let mut registers = Registers(vec![
            register(0, Permission::ReadWrite),
            register(4, Permission::ReadOnly),
            register(8, Permission::WriteOnly),
            register(12, Permission::Faulty),
            register(16, Permission::Silent),
        ]);
        let mut outcome = |offset| {
            (registers.write(offset, Width::W32, 6, 0), registers.read(offset, Width::W32, 0))
        };
        assert_eq!(outcome(0), (Ok(()), Ok(6)));
        assert_eq!(outcome(4), (Err(BusError::Refused), Ok(5)));
        assert_eq!(outcome(8), (Ok(()), Err(BusError::Refused)));
        assert_eq!(outcome(12), (Err(BusError::Refused), Err(BusError::Refused)));
        assert_eq!(outcome(16), (Err(BusError::Timeout), Err(BusError::Timeout)));
        assert_eq!(outcome(20), (Err(BusError::Refused), Err(BusError::Refused)));
    }
}
