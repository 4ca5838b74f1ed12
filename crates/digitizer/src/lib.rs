//! Digitizers: emulated and real boards, and the engines that read them out and convert samples.
//!
//! Data flow: [`devices`] -> [`daq`] -> `session` <- [`engine`]. The folder [`devices`] has
//! families of emulated and real boards. The module [`daq`] arms, waits by polling or interrupt,
//! and accounts for triggers. The session has read-out and conversion stages under the harness.
//! [`serve`] is the file that answers as a driver does.
//!
//! Begin with [`request::DigitizerRequest`] and `engine.rs`.

pub mod conversion;
pub(crate) mod convert_engine;
pub mod daq;
pub mod devices;
mod dump;
pub mod engine;
pub mod function;
mod names;
mod oracle;
pub mod request;
pub mod serve;
mod session;

pub use convert_engine::ConvertRequest;
pub use function::{Function, FunctionChoice};
pub use request::DigitizerRequest;
