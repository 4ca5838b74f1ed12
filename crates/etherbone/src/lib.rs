//! Etherbone: Wishbone over UDP, TCP and character devices, from both ends, and what it costs.
//!
//! ```text
//! Address -> Transport (udp, tcp, dev, tunnel, emulated) -> Client -> cycles, scan
//!                                  |
//! Description -> Bus -> Slave -> Server (many clients, one loop)
//! ```
//!
//! Begin with [`client`]; [`slave`] is the other end without its sockets. The format is in
//! `daqmeter-wire`.

pub mod access;
pub mod address;
pub mod bus;
pub mod client;
pub mod decode;
pub mod discover;
pub mod engine;
mod error;
pub mod link;
mod pingpong;
pub mod scan;
pub mod server;
pub mod slave;
mod timestamps;
pub mod transport;
pub mod tunnel;

pub use address::{Address, HostPort, IpFamily};
pub use client::{Client, ClientOptions, CompletedCycle, CycleOutcome, EbDialect, Pipeline};
pub use engine::{EtherboneRequest, Method, Payload, SlaveAddress, TIME_BYTES, Times, reach};
pub use error::EbError;
pub use pingpong::{PingPongRequest, Protocol};
pub use server::{EbServer, ServerOptions};
pub use slave::Slave;
