//! Copies: the limits that other stages are held against, and the system of copies between user and kernel.
//!
//! [`MemoryEngine`] streams memory in a given ratio; its rates are the limits in every table. [`CopyEngine`] copies one block
//! after the other between user and kernel by a path ([`PATHS`]) under a policy ([`Context`]). Begin with `request.rs`, then
//! `paths/file.rs`, the plainest path.

mod dma_thread;
mod engine;
mod memory;
mod paths;
mod request;

pub use engine::{CopyEngine, NULL_CALL, stage_name};
pub use memory::MemoryEngine;
pub use paths::{PATHS, Path, path};
pub use request::{Completion, Context, Direction, Request, Window};

/// Why the kernel module cannot be used here, or none.
pub fn module_waiver() -> Option<String> {
    paths::module_waiver()
}
