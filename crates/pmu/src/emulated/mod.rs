//! Meshes without silicon: a configuration space that the kernel's own driver probes ([`Image`]),
//! an emulator of its counters ([`Emulator`]), and counts for this program alone ([`Synthetic`]).

mod emulator;
mod image;
mod synthetic;

pub use emulator::{Emulator, Happening};
pub use image::{Image, RegisterMemory};
pub use synthetic::{Synthetic, catalogue};
