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
//! card that is read out live has lanes (`readout/card.rs`); `readout run` is such a path.
//! Begin with `definition.rs`, then `elements/mod.rs`, then `chain.rs`, which has the threads.

mod added_work;
mod alternatives;
mod auto;
mod cancel;
mod chain;
mod definition;
mod element;
mod elements;
pub mod engine;
pub mod explain;
mod external;
mod last;
mod links;
mod read;
pub mod readout;
pub mod receiver;
mod remote;
mod udp;

pub use daqmeter_hostio::sum::sum;
pub use definition::Path;
pub use definition::layout::Layout;
pub use definition::setting::Setting;
pub use elements::written::Keeping;
pub use engine::PathRequest;
pub use read::SHIPPED_PATHS;
pub use readout::ReadoutRequest;
pub use remote::WITHOUT_ACCOUNT;
