//! Digitizers: boards, emulated and real, and the engines that read them out and convert their
//! samples.
//!
//! The way of the data: [`devices`] (families of boards, emulated and real, in the words of an
//! acquisition) -> [`daq`] (arm, wait by polling or interrupt, account for triggers) -> `session`
//! (read-out and conversion stages under the harness) <- [`engine`]. [`serve`] is the file that
//! answers as a driver does.
//!
//! Nothing here prints or times itself. Begin with [`request::DigitizerRequest`] and `engine.rs`.

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
