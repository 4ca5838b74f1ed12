//! FELIX-class read-out: an emulated card, the reader of its rings, publish/subscribe, receivers,
//! and the accounts of losses.
//!
//! ```text
//! Scenario (TOML)
//!    |
//! Source -> Card -> ring ==> Reader -> pages -> Transport -> Receiver
//!    ^-- BUSY --'      (host pointer)            (tcp)
//! ```
//!
//! Begin with [`scenario`], then [`card`] (which has no clock and no thread), then [`tohost`]. The
//! formats are in `daqmeter-wire`, the ring is in `daqmeter-sys`.

pub mod accounts;
pub mod busy;
pub mod card;
pub mod chain;
pub mod check;
pub mod decode;
pub mod fragment;
mod memory;
pub mod pattern;
mod peer;
pub mod port;
pub mod receive;
pub mod recording;
pub mod remote;
mod repeats;
pub mod request;
pub mod scenario;
mod similar;
pub mod simulate;
pub mod slowed;
pub mod source;
pub mod tohost;
pub mod transport;
mod witness;

pub use card::Card;
pub use decode::DecodeRequest;
pub use receive::Receiver;
pub use request::Chosen;
pub use scenario::Scenario;
pub use tohost::ToHost;
