//! Copies: the limits that other stages are held against, and the system of copies between user and kernel.
//!
//! [`MemoryEngine`] streams memory in a given ratio; its rates are the limits in every table. [`CopyEngine`] copies one block
//! after the other between user and kernel by a path ([`PATHS`]) under a policy ([`Context`]). Begin with `request.rs`, then
//! `paths/file.rs`, the plainest path.

mod dma_thread;
mod engine;
mod load;
mod memory;
mod paths;
mod pollution;
mod request;
pub mod trace;
pub mod verify;
mod victims;

pub use engine::{CopyEngine, NULL_CALL, stage_name};
pub use load::{HEAVY, HeavyLoad};
pub use memory::MemoryEngine;
pub use paths::{EngineFound, PATHS, Path, engines_found, path};
pub use pollution::{NEIGHBOURS, PollutionEngine, STUDY_COPIES};
pub use request::{Completion, Context, Direction, Request, Window};
pub use victims::TESTS;

/// Why the kernel module cannot be used here, or none.
pub fn module_waiver() -> Option<String> {
    paths::module_waiver()
}

/// Whether the kernel module is there and some driver gives it channels.
pub fn module_has_channels() -> bool {
    let mut request = Request::new("module", Direction::To, 64);
    request.context = Context::Shared;
    module_waiver().is_none()
        && daqmeter_harness::Engine::open(&CopyEngine, &request.workload()).is_ok()
}
