//! Digitizers: boards, emulated and real, and the engines that read them out and convert their samples.
//!
//! The way of the data: [`devices`] (register file, card memory, trigger, DMA; paced like a known crate, or the real driver)
//! -> [`daq`] (set up, arm, wait by polling or interrupt, account for triggers) -> [`engine`] (read-out and conversion stages
//! under the harness). [`published`] holds what the source document measured, [`reproduce`] sets it beside model and
//! measurement. [`serve`] shows an emulated board as a file that answers the driver's ioctls.
//!
//! Nothing here prints or times itself. Begin with [`engine::DigitizerEngine`].

pub mod convert_engine;
pub mod daq;
pub mod devices;
pub mod engine;
pub mod function;
mod request;
pub mod serve;

pub use convert_engine::ConvertEngine;
pub use engine::DigitizerEngine;
pub use function::Function;
