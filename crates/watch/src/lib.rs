//! Where a receiver that is already running loses its data: counters of the card, the kernel and
//! the sockets, from the wire to the program.
//!
//! `stages` is the table of losses, `counters` reads what it names, `ledger` makes the sums.
//! `causes` is the table of causes at a socket, `timeline` sees what its reader did. Only `trials`
//! changes something, and puts it back.

mod causes;
mod counters;
mod ledger;
mod stages;
mod target;
mod threads;
mod timeline;
mod trials;

pub use counters::datagrams_lost;
pub use ledger::{INTERVAL, Said, Watch, WatchError};
pub use target::{LocalPort, Target, sequence};
pub use trials::Trials;
