//! The x86-64 kernels. Both files have one driver that walks the slices, and one closure per
//! conversion.

pub(super) mod avx2;
pub(super) mod avx512;

use super::portable::fold;
use super::scaling::Scaling;
use super::{Conversion, Qmn};
use crate::Store;

/// Samples of a conversion, and how their results are computed and stored.
#[derive(Clone, Copy)]
pub(super) struct Samples<'a> {
    pub(super) raw: &'a [u16],
    /// Distance of the samples that are converted.
    pub(super) factor: usize,
    pub(super) picks: Option<&'a avx512::Picks>,
    pub(super) conversion: Conversion,
    pub(super) scaling: Scaling,
    pub(super) store: Store,
}

/// Doubles from here on are whole numbers with a bit step of one.
const TWO_TO_52: f64 = 4_503_599_627_370_496.0;

/// Converts one sample in Q-format by the vector kernels' multiplication (exact, equal to the
/// oracle's division).
#[inline(always)]
fn one_f64(raw: u16, format: Qmn) -> f64 {
    f64::from(fold(raw, format)) * format.weight()
}

#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "rounding to f32 is what the conversion is")]
fn one_f32(raw: u16, conversion: Conversion) -> f32 {
    match conversion {
        Conversion::CastF32 => f32::from(raw),
        Conversion::ScaleF32 { factor, offset } => (f64::from(raw) * factor + offset) as f32,
        Conversion::QmnF32(format) | Conversion::QmnF64(format) => one_f64(raw, format) as f32,
    }
}

/// Number of elements of `T` from `pointer` to the next multiple of `align` bytes, at most `most`.
fn until_aligned<T>(pointer: *const T, align: usize, most: usize) -> usize {
    let off = pointer.addr() % align;
    let bytes = if off == 0 { 0 } else { align - off };
    (bytes / size_of::<T>()).min(most)
}
