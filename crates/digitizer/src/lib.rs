//! Digitizers: emulated and real boards, and the engines that read them out and convert samples.
//!
//! Data flow: [`devices`] -> [`daq`] -> `session` <- [`engine`]. The folder [`devices`] has
//! families of emulated and real boards. The module [`daq`] arms, waits by polling or interrupt,
//! and accounts for triggers. The session has read-out and conversion stages under the harness.
//!
//! Begin with [`request::DigitizerRequest`] and `engine.rs`.

pub mod conversion;
pub(crate) mod convert_engine;
pub mod daq;
pub mod devices;
pub mod engine;
mod events;
pub mod function;
mod intervals;
mod names;
pub mod oracle;
pub mod request;
mod session;

pub use convert_engine::ConvertRequest;
pub use function::Function;
pub use request::{DigitizerRequest, TriggerCompletion};
