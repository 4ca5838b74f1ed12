//! Etherbone: Wishbone cycles in messages, in the format of the GSI/OHWR library and cores, and the
//! dialect of LiteX.
//! Begin with [`message`] and [`record`], then [`lanes`] (the place of a value in its word) and
//! [`cycle`] (the layout of a whole cycle). [`sdb`] describes the devices on the bus. All
//! multi-byte fields are big-endian. Sources: the OHWR specification, its C library and its HDL.
//! The C library decides between them (the specification's width table and its sentence on WFF are
//! wrong).

pub mod cycle;
pub mod lanes;
pub mod litex;
pub mod message;
pub mod record;
pub mod sdb;
pub mod status;
pub mod width;

pub use lanes::{Endian, Lanes};
pub use message::{EbHeader, EbProbe};
pub use record::{EbRecord, RecordFlags, RecordHeader, Values};
pub use status::ErrorRegister;
pub use width::{EbLayout, Width, Widths};

/// Default port of servers: 0xEBD0.
pub const PORT: u16 = 0xEBD0;
pub const DATAGRAM_BYTES: usize = 1472;

/// Registers of the config space, a bus of its own with 16-bit addresses (OHWR specification,
/// section on configuration).
pub mod config {
    /// The error shift register, 64 bits.
    pub const ERRORS: u64 = 0x00;
    /// Address of the root SDB table, 64 bits.
    pub const SDB_ROOT: u64 = 0x08;
    /// Result of an interrupt request: 1 granted, 2 unsupported, 3 busy.
    pub const MSI_STATUS: u64 = 0x28;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    #[error("truncated: {found} bytes where {wanted} are needed")]
    Truncated {
        /// Bytes needed.
        wanted: usize,
        found: usize,
    },
    #[error("magic {0:#06x} instead of 0x4e6f")]
    Magic(u16),
    #[error("version {0} instead of 1")]
    Version(u8),
    #[error("address widths {0} and data widths {1}: exactly one of each is wanted")]
    NotOneWidth(Widths, Widths),
    /// The byte enables are not one unbroken, aligned run of 1, 2, 4 or 8 lanes inside the port.
    #[error("byte enables {0:#04x} are not one aligned run inside the port")]
    Select(u8),
    #[error("a probe of {0} bytes instead of 8")]
    ProbeLength(usize),
    #[error("does not fit")]
    Overflow,
    #[error("SDB magic {0:#010x} instead of 0x5344422d")]
    SdbMagic(u32),
}

fn need(bytes: &[u8], wanted: usize) -> Result<(), WireError> {
    if bytes.len() < wanted {
        Err(WireError::Truncated { wanted, found: bytes.len() })
    } else {
        Ok(())
    }
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from(be32(bytes, at)) << 32 | u64::from(be32(bytes, at + 4))
}
