//! Etherbone: Wishbone cycles in messages, as the GSI/OHWR library and cores speak it, and the
//! dialect of LiteX.
//!
//! Begin with [`message`] (who may talk, and in which widths), then [`record`] (what is read and
//! written), [`lanes`] (where a value sits in its word), [`cycle`] (how a master lays out a whole
//! cycle). [`sdb`] describes what is on the bus. All multi-byte fields are big-endian. Sources: the
//! OHWR specification, its C library and its HDL, where they disagree the C library (the
//! specification's width table and its sentence on WFF are wrong).

pub mod cycle;
pub mod lanes;
pub mod litex;
pub mod message;
pub mod record;
pub mod sdb;
pub mod status;
pub mod width;

pub use lanes::{Endian, Lanes};
pub use message::{EbHeader, EbMessage, EbProbe};
pub use record::{EbRecord, RecordFlags, RecordHeader, Values};
pub use status::ErrorRegister;
pub use width::{EbLayout, Width, Widths};

/// The port that everybody listens on: 0xEBD0.
pub const PORT: u16 = 0xEBD0;
pub const DATAGRAM_BYTES: usize = 1472;

/// Registers of the config space, a bus of its own with 16-bit addresses (OHWR specification,
/// section on configuration).
pub mod config {
    /// The error shift register, 64 bits.
    pub const ERRORS: u64 = 0x00;
    /// Address of the root SDB table, 64 bits.
    pub const SDB_ROOT: u64 = 0x08;
    /// Result of that request: 1 granted, 2 unsupported, 3 busy.
    pub const MSI_STATUS: u64 = 0x28;
    /// First address that an implementation may use for itself; masters keep the tags of their
    /// cycles here.
    pub(crate) const TAGS_FIRST: u64 = 0x8000;
}

/// Why bytes are not Etherbone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The bytes end before the thing does.
    #[error("truncated: {found} bytes where {wanted} are needed")]
    Truncated {
        /// Bytes that it needs.
        wanted: usize,
        /// Bytes that there are.
        found: usize,
    },
    /// The first two bytes are not 4E6F.
    #[error("magic {0:#06x} instead of 0x4e6f")]
    Magic(u16),
    /// A version other than 1.
    #[error("version {0} instead of 1")]
    Version(u8),
    /// A message must name exactly one address and one data width; these are the two sets.
    #[error("address widths {0} and data widths {1}: exactly one of each is wanted")]
    NotOneWidth(Widths, Widths),
    /// The byte enables are not one unbroken, aligned run of 1, 2, 4 or 8 lanes inside the port.
    #[error("byte enables {0:#04x} are not one aligned run inside the port")]
    Select(u8),
    /// A probe that is not 8 bytes long.
    #[error("a probe of {0} bytes instead of 8")]
    ProbeLength(usize),
    /// More than the buffer, or the record's 255 operations, can hold.
    #[error("does not fit")]
    Overflow,
    /// The magic of an SDB table is not there.
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
