//! Parts of every host that data passes and that belong to no instrument.
//! Block devices are sources and targets of runs, and TCP streams carry pages to the next host.
//! Devices are only read, never written to. A kept run is a folder of blocks with an index.

mod block;
pub mod kept;
mod stream;
pub mod sum;

pub use block::{BlockReader, BlockRequest, SECTOR_BYTES, reads_directly, system_disk};
pub use stream::StreamRequest;
