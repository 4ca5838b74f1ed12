//! Plain Rust. The compiler vectorises the undecimated loops for the target's baseline, which on
//! AArch64 has Advanced SIMD; decimated ones stay scalar.

use super::{Conversion, Qmn};

#[inline(always)]
pub(super) fn fold(raw: u16, format: Qmn) -> i32 {
    let value = i32::from(raw);
    if value >= format.fold_from() { value - format.fold_by() } else { value }
}

/// Converts every `factor`-th sample. The match stands outside the loops to keep each loop simple.
#[allow(clippy::cast_possible_truncation, reason = "rounding to f32 is what the conversion is")]
pub(super) fn to_f32(conversion: Conversion, factor: usize, raw: &[u16], out: &mut [f32]) {
    match conversion {
        Conversion::CastF32 => map(factor, raw, out, f32::from),
        Conversion::ScaleF32 { factor: scale, offset } => {
            map(factor, raw, out, |x| (f64::from(x) * scale + offset) as f32);
        }
        Conversion::QmnF32(format) | Conversion::QmnF64(format) => {
            let weight = format.weight_f32();
            map(factor, raw, out, |x| fold(x, format) as f32 * weight);
        }
    }
}

pub(super) fn to_f64(format: Qmn, factor: usize, raw: &[u16], out: &mut [f64]) {
    let weight = format.weight();
    map(factor, raw, out, |x| f64::from(fold(x, format)) * weight);
}

#[inline(always)]
fn map<T>(factor: usize, raw: &[u16], out: &mut [T], one: impl Fn(u16) -> T) {
    if factor == 1 {
        for (place, &x) in out.iter_mut().zip(raw) {
            *place = one(x);
        }
    } else {
        // chunks_exact keeps the stride out of the bounds check; step_by was half as fast
        // (reference, section 3.2).
        for (place, chunk) in out.iter_mut().zip(raw.chunks(factor)) {
            *place = one(chunk[0]);
        }
    }
}
