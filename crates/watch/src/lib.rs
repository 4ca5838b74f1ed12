//! Where a receiver that is already running loses its data: counters of the card, the kernel and
//! the sockets, from the wire to the program.
//!
//! [`stages`] is the table of losses, [`counters`] reads what it names, [`ledger`] makes the sums.
//! Nothing here changes the host.

mod counters;
mod ledger;
mod stages;
mod target;

pub use ledger::{Watch, WatchError};
pub use target::{Port, Target};
