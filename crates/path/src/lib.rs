//! Paths: a file names a source, stages and a sink. A layout divides them into groups, each of
//! which runs in one thread or several, with bounded rings between. The record gives the rate, the
//! latency, and the use of each thread's time.
//!
//! ```text
//! TOML -> Path (checked: sizes, units) -> Layout -> Chain (threads) -> PathRun in the record
//!
//! [source, stage] -> ring -> [stage, sink]
//!                 <- empty <-                 back-pressure
//! ```
//!
//! No stage is made anew here: each calls the function of the engine that measures it by itself. A
//! card that is read out live has lanes (`card.rs`); `readout run` is such a path (`readout.rs`).
//! Begin with `definition.rs`, then `layout.rs`, then `worker.rs`, which has the threads.

mod account;
mod added_work;
mod auto;
mod cancel;
mod card;
mod chain;
mod definition;
mod element;
pub mod engine;
mod expected;
pub mod explain;
mod external;
mod groups;
mod kinds;
mod layout;
mod links;
mod outcome;
mod read;
pub mod readout;
pub mod receiver;
mod remote;
mod ring;
mod setting;
mod shared;
mod sinks;
mod sources;
mod stages;
mod sum;
mod udp;
mod worker;

pub use definition::Path;
pub use engine::PathRequest;
pub use read::SHIPPED_PATHS;
pub use readout::ReadoutRequest;
pub use remote::WITHOUT_ACCOUNT;
pub use setting::Setting;
pub use sum::sum;
