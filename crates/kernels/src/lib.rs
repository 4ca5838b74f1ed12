//! Copy and conversion kernels, one file per instruction set, chosen at run time and tested against
//! a scalar oracle.
//!
//! - [`convert`]: digitizer samples (u16) to floating point: cast, scale, Q-format, with
//!   decimation;
//! - [`stream`]: physical limit of such a kernel: equal bytes read and written, no arithmetic;
//! - [`copy`]: plain copies by every instruction that moves bytes, and flushing;
//! - [`Similar`]: detection of bytes that repeat at a distance, except for counters;
//! - [`prefetch`]: fetching bytes whose order no hardware predicts.
//!
//! Kernels take slices and return nothing; they allocate nothing, read no clock and never print.
//! Begin with [`convert::Converter`].

#![allow(
    unsafe_code,
    reason = "vector loads and stores are intrinsics on raw pointers; bounds are checked once per call"
)]

mod ahead;
pub mod convert;
pub mod copy;
pub mod isa;
mod similar;
pub mod stream;

pub use ahead::prefetch;
pub use isa::{Isa, Store};
pub use similar::Similar;
