//! Engines that move memory. Today one: [`MemoryEngine`], which measures the limits that other stages are held against.

mod memory;

pub use memory::MemoryEngine;
