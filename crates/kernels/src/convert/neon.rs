//! AArch64 Advanced SIMD: 8 samples a step. Scalar code converts decimated samples, because there
//! is no gather.

use std::arch::aarch64::*;

use super::portable::{self, one_f32, one_f64};
use super::{Conversion, Qmn};

const STEP: usize = 8;

/// Converts every `factor`-th sample.
///
/// # Safety
/// The CPU has Advanced SIMD.
#[target_feature(enable = "neon")]
pub(super) unsafe fn to_f32(conversion: Conversion, factor: usize, raw: &[u16], out: &mut [f32]) {
    if factor != 1 {
        return portable::to_f32(conversion, factor, raw, out);
    }
    let one = |x| one_f32(x, conversion);
    match conversion {
        Conversion::CastF32 => drive_f32(raw, out, one, |x| vcvtq_f32_s32(x)),
        Conversion::ScaleF32 { factor: scale, offset } => {
            let (scale, offset) = (vdupq_n_f64(scale), vdupq_n_f64(offset));
            // Keeps multiply and add apart for two roundings, as in the original.
            let half = |x: int32x2_t| {
                vcvt_f32_f64(vaddq_f64(vmulq_f64(vcvtq_f64_s64(vmovl_s32(x)), scale), offset))
            };
            drive_f32(raw, out, one, |x| {
                vcombine_f32(half(vget_low_s32(x)), half(vget_high_s32(x)))
            });
        }
        Conversion::QmnF32(format) | Conversion::QmnF64(format) => {
            #[allow(
                clippy::cast_possible_truncation,
                reason = "2^-n is exact in f32 for n up to 63"
            )]
            let weight = vdupq_n_f32(format.weight() as f32);
            let (from, by) = (vdupq_n_s32(format.fold_from()), vdupq_n_s32(format.fold_by()));
            drive_f32(raw, out, one, |x| vmulq_f32(vcvtq_f32_s32(fold(x, from, by)), weight));
        }
    }
}

/// Converts every `factor`-th sample.
///
/// # Safety
/// As [`to_f32`].
#[target_feature(enable = "neon")]
pub(super) unsafe fn to_f64(format: Qmn, factor: usize, raw: &[u16], out: &mut [f64]) {
    if factor != 1 {
        return portable::to_f64(format, factor, raw, out);
    }
    let weight = vdupq_n_f64(format.weight());
    let (from, by) = (vdupq_n_s32(format.fold_from()), vdupq_n_s32(format.fold_by()));
    let half = |x: int32x2_t| vmulq_f64(vcvtq_f64_s64(vmovl_s32(x)), weight);
    let steps = out.len().min(raw.len()) / STEP;
    for step in 0..steps {
        let at = step * STEP;
        // SAFETY: `at + STEP` is within both slices.
        unsafe {
            let (low, high) = widen(raw, at);
            let (low, high) = (fold(low, from, by), fold(high, from, by));
            let place = out.as_mut_ptr().add(at);
            vst1q_f64(place, half(vget_low_s32(low)));
            vst1q_f64(place.add(2), half(vget_high_s32(low)));
            vst1q_f64(place.add(4), half(vget_low_s32(high)));
            vst1q_f64(place.add(6), half(vget_high_s32(high)));
        }
    }
    for (place, &x) in out.iter_mut().zip(raw).skip(steps * STEP) {
        *place = one_f64(x, format);
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn fold(x: int32x4_t, from: int32x4_t, by: int32x4_t) -> int32x4_t {
    vsubq_s32(x, vandq_s32(vreinterpretq_s32_u32(vcgeq_s32(x, from)), by))
}

/// Widens eight samples from `at` on to 32 bits.
///
/// # Safety
/// `at + 8 <= raw.len()`.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn widen(raw: &[u16], at: usize) -> (int32x4_t, int32x4_t) {
    // SAFETY: by the caller.
    let x = unsafe { vld1q_u16(raw.as_ptr().add(at)) };
    (
        vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(x))),
        vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(x))),
    )
}

#[inline]
#[target_feature(enable = "neon")]
fn drive_f32(
    raw: &[u16],
    out: &mut [f32],
    one: impl Fn(u16) -> f32,
    lanes: impl Fn(int32x4_t) -> float32x4_t,
) {
    let steps = out.len().min(raw.len()) / STEP;
    for step in 0..steps {
        let at = step * STEP;
        // SAFETY: `at + STEP` is within both slices.
        unsafe {
            let (low, high) = widen(raw, at);
            vst1q_f32(out.as_mut_ptr().add(at), lanes(low));
            vst1q_f32(out.as_mut_ptr().add(at + 4), lanes(high));
        }
    }
    for (place, &x) in out.iter_mut().zip(raw).skip(steps * STEP) {
        *place = one(x);
    }
}
