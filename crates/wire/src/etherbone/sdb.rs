//! The self-describing bus: tables of 64-byte records, always big-endian.
//! A table begins with an interconnect record, which counts the records. Addresses in a nested
//! table are relative to its bridge. Source: the OHWR SDB specification 1.1 and the records that
//! the C library and saftlib emit.

use super::{WireError, be16, be32, be64, need};

pub const RECORD_BYTES: usize = 64;
/// First four bytes of a table: "SDB-".
pub const MAGIC: u32 = 0x5344_422D;
pub const MAX_RECORDS: u16 = 256;

pub mod ids {
    pub const GSI: u64 = 0x651;
    /// Event-condition-action unit, control: 64-bit TAI time at +0x18 (high) and +0x1C (low), ns
    /// since 1970.
    pub const ECA: (u64, u32) = (GSI, 0xb2af_c251);
    pub const TLU: (u64, u32) = (GSI, 0x1005_1981);
    /// A crossbar behind a bridge.
    pub const CROSSBAR: (u64, u32) = (GSI, 0xeef0_b198);
    pub const SOFTWARE_BUS: (u64, u32) = (GSI, 0x0239_8114);
    pub const SOFTWARE_MEMORY: (u64, u32) = (GSI, 0xc3c5_eefa);
}

/// A blank-padded name of fixed length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Text(pub [u8; 19]);

impl Text {
    pub fn new(text: &str) -> Text {
        let mut bytes = [b' '; 19];
        for (place, byte) in bytes.iter_mut().zip(text.bytes()) {
            *place = byte;
        }
        Text(bytes)
    }
}

impl core::fmt::Display for Text {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        use core::fmt::Write;
        let end =
            self.0.iter().rposition(|byte| !matches!(byte, b' ' | 0)).map_or(0, |last| last + 1);
        for &byte in &self.0[..end] {
            f.write_char(if (0x20..0x7f).contains(&byte) { char::from(byte) } else { '?' })?;
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    pub vendor: u64,
    pub device: u32,
    pub version: u32,
    /// Date, as hexadecimal digits: 0x20171016.
    pub date: u32,
    pub name: Text,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Component {
    pub first: u64,
    /// Last address, inclusive.
    pub last: u64,
    pub product: Product,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SdbRecord {
    Interconnect {
        /// Number of records in the table, including this one.
        records: u16,
        /// Version, always 1.
        version: u8,
        /// 0 Wishbone, 1 data.
        bus_type: u8,
        component: Component,
    },
    Device(SdbDevice),
    /// Type 0x02: a bridge to a nested table.
    Bridge {
        /// Address of the nested table.
        child: u64,
        component: Component,
    },
    /// Type 0x03: the target of message-signalled interrupts; its addresses are not relative to a
    /// bridge.
    MsiMaster {
        /// Bit 31 marks the port of this connection.
        flags: u32,
        bus_specific: u32,
        component: Component,
    },
    /// A record without addresses, by its type: 0x80 integration, 0x81 address of the sources, 0x82
    /// synthesis, 0xff empty.
    Other(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SdbDevice {
    pub abi_class: u16,
    pub abi_major: u8,
    pub abi_minor: u8,
    /// Access widths in the low nibble; 0x80 means little-endian.
    pub bus_specific: u32,
    pub component: Component,
}

impl SdbDevice {
    pub fn widths(&self) -> super::Widths {
        super::Widths::from_nibble(self.bus_specific.to_be_bytes()[3])
    }

    pub fn endian(&self) -> super::Endian {
        if self.bus_specific & 0x80 != 0 { super::Endian::Little } else { super::Endian::Big }
    }
}

const TYPE_AT: usize = 0x3F;

impl SdbRecord {
    /// Reads a record. Any 64 bytes are valid, perhaps of unknown type; only a table's head has a
    /// magic to check.
    pub fn parse(bytes: &[u8; RECORD_BYTES]) -> Result<SdbRecord, WireError> {
        Ok(match bytes[TYPE_AT] {
            0x00 => SdbRecord::Interconnect {
                records: record_count(bytes)?,
                version: bytes[6],
                bus_type: bytes[7],
                component: component(bytes),
            },
            0x01 => SdbRecord::Device(SdbDevice {
                abi_class: be16(bytes, 0),
                abi_major: bytes[2],
                abi_minor: bytes[3],
                bus_specific: be32(bytes, 4),
                component: component(bytes),
            }),
            0x02 => SdbRecord::Bridge { child: be64(bytes, 0), component: component(bytes) },
            0x03 => SdbRecord::MsiMaster {
                flags: be32(bytes, 0),
                bus_specific: be32(bytes, 4),
                component: component(bytes),
            },
            other => SdbRecord::Other(other),
        })
    }

    pub fn emit(&self) -> [u8; RECORD_BYTES] {
        let words =
            |high: [u8; 4], low: u32| u64::from(u32::from_be_bytes(high)) << 32 | u64::from(low);
        let (head, record_type) = match self {
            SdbRecord::Interconnect { records, version, bus_type, .. } => {
                let [high, low] = records.to_be_bytes();
                let second = u32::from_be_bytes([high, low, *version, *bus_type]);
                (words(MAGIC.to_be_bytes(), second), 0x00)
            }
            SdbRecord::Device(device) => {
                let [high, low] = device.abi_class.to_be_bytes();
                (words([high, low, device.abi_major, device.abi_minor], device.bus_specific), 0x01)
            }
            SdbRecord::Bridge { child, .. } => (*child, 0x02),
            SdbRecord::MsiMaster { flags, bus_specific, .. } => {
                (words(flags.to_be_bytes(), *bus_specific), 0x03)
            }
            SdbRecord::Other(number) => (0, *number),
        };
        let mut out = [0; RECORD_BYTES];
        let mut set = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        set(0x00, &head.to_be_bytes());
        if let Some(Component { first, last, product }) = self.component() {
            set(0x08, &first.to_be_bytes());
            set(0x10, &last.to_be_bytes());
            set(0x18, &product.vendor.to_be_bytes());
            set(0x20, &product.device.to_be_bytes());
            set(0x24, &product.version.to_be_bytes());
            set(0x28, &product.date.to_be_bytes());
            set(0x2C, &product.name.0);
        }
        set(TYPE_AT, &[record_type]);
        out
    }

    pub fn component(&self) -> Option<&Component> {
        match self {
            SdbRecord::Interconnect { component, .. }
            | SdbRecord::Bridge { component, .. }
            | SdbRecord::MsiMaster { component, .. } => Some(component),
            SdbRecord::Device(device) => Some(&device.component),
            SdbRecord::Other(_) => None,
        }
    }
}

fn component(bytes: &[u8; RECORD_BYTES]) -> Component {
    let product = Product {
        vendor: be64(bytes, 0x18),
        device: be32(bytes, 0x20),
        version: be32(bytes, 0x24),
        date: be32(bytes, 0x28),
        name: Text(*bytes[0x2C..].first_chunk().expect("before the type")),
    };
    Component { first: be64(bytes, 0x08), last: be64(bytes, 0x10), product }
}

/// Returns the record count of a table, from its first 8 bytes or more.
pub fn record_count(head: &[u8]) -> Result<u16, WireError> {
    need(head, 8)?;
    match be32(head, 0) {
        MAGIC => Ok(be16(head, 4)),
        other => Err(WireError::SdbMagic(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn product(name: &str) -> Product {
        let (vendor, device) = ids::ECA;
        Product { vendor, device, version: 1, date: 0x2017_1016, name: Text::new(name) }
    }

    fn one_of_each() -> [SdbRecord; 6] {
        let component =
            Component { first: 0x1000, last: 0x1FFF, product: product("ECA_UNIT:CONTROL") };
        let bus_specific = 0x87;
        let device =
            SdbDevice { abi_class: 1, abi_major: 2, abi_minor: 3, bus_specific, component };
        [
            SdbRecord::Interconnect { records: 9, version: 1, bus_type: 0, component },
            SdbRecord::Device(device),
            SdbRecord::Bridge { child: 0x0010_0300, component },
            SdbRecord::MsiMaster { flags: 1 << 31, bus_specific: 4, component },
            SdbRecord::Other(0x82),
            SdbRecord::Other(0xFF),
        ]
    }

    #[test]
    fn fields_are_where_the_specification_puts_them() {
        let bytes = one_of_each()[1].emit();
        assert_eq!(bytes[..8], [0, 1, 2, 3, 0, 0, 0, 0x87]);
        assert_eq!(bytes[0x08..0x18], [0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0x1F, 0xFF]);
        assert_eq!(bytes[0x18..0x24], [0, 0, 0, 0, 0, 0, 6, 0x51, 0xb2, 0xaf, 0xc2, 0x51]);
        assert_eq!(bytes[0x28..0x2C], [0x20, 0x17, 0x10, 0x16]);
        assert_eq!(&bytes[0x2C..0x3F], b"ECA_UNIT:CONTROL   ");
        assert_eq!(bytes[0x3F], 1);
        let Ok(SdbRecord::Device(device)) = SdbRecord::parse(&bytes) else { panic!("a device") };
        assert_eq!(
            (device.endian(), device.widths().to_string()),
            (super::super::Endian::Little, "8/16/32".to_string())
        );
    }

    #[test]
    fn every_type_is_read_back_and_a_table_without_its_magic_is_refused() {
        for record in one_of_each() {
            assert_eq!(SdbRecord::parse(&record.emit()), Ok(record), "{record:?}");
        }
        assert_eq!(SdbRecord::parse(&[0; 64]), Err(WireError::SdbMagic(0)));
        assert_eq!(record_count(&one_of_each()[0].emit()), Ok(9));
        assert!(record_count(&[0x53; 8]).is_err() && record_count(&[]).is_err());
    }

    #[test]
    fn names_are_shown_without_padding_and_without_control_characters() {
        assert_eq!(Text::new("ECA").to_string(), "ECA");
        assert_eq!(Text::new("a\x1b[31m\0").to_string(), "a?[31m");
    }
}
