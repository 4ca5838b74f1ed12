//! Parts of every host that data passes on its way and that belong to no instrument: block devices,
//! where runs are replayed from and written to, and TCP streams, which carry pages to the next
//! host.
//!
//! Nothing is ever written to a device: storage is only read.

mod block;
mod stream;

pub use block::{BlockReader, BlockRequest, SECTOR_BYTES, reads_directly, system_disk};
pub use stream::StreamRequest;
