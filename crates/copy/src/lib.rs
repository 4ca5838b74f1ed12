//! Copies: the limits of other stages, and the system of copies between user and kernel.
//!
//! [`MemoryRequest`] streams memory in a given ratio and [`PlainRequest`] copies it block by block;
//! their rates are the limits in every table. [`CopyRequest`] copies successive blocks between user
//! and kernel by a [`CopyPath`] under a policy ([`CopyContext`]). Begin with `request.rs`, then
//! `paths/file.rs`, the simplest path.

mod engine;
mod load;
mod memory;
mod neighbour;
mod paths;
mod plain;
mod pollution;
mod request;
pub mod trace;
pub mod verify;
mod victims;

pub use memory::MemoryRequest;
pub use neighbour::Neighbour;
pub use paths::module_waiver;
pub use plain::PlainRequest;
pub use pollution::{PollutionRequest, STUDY_COPIES};
pub use request::{CopyCompletion, CopyContext, CopyLoad, CopyPath, CopyRequest, Direction};
pub use victims::TESTS;
