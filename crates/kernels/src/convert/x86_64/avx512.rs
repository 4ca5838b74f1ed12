//! AVX-512: 16 samples a step.
//!
//! Decimated samples are gathered 16 at a time as 32-bit words whose upper half is masked away, so the last step is left to
//! scalar code where the word would reach past the slice. Results are stored on whole cache lines, head and tail by scalar
//! code, for both kinds of store: unaligned 64-byte stores would touch two lines each.

use std::arch::x86_64::*;

use super::super::portable::{one_f32, one_f64};
use super::super::{Conversion, Qmn};
use super::until_aligned;
use crate::Store;

/// Samples in one step.
const STEP: usize = 16;

/// Converts every `factor`-th sample.
///
/// # Safety
/// The CPU has AVX-512 F, BW, DQ and VL.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(in super::super) unsafe fn to_f32(
    conversion: Conversion,
    store: Store,
    factor: usize,
    raw: &[u16],
    out: &mut [f32],
) {
    let one = |x| one_f32(x, conversion);
    match conversion {
        Conversion::CastF32 => drive_f32(store, factor, raw, out, one, |x| _mm512_cvtepi32_ps(x)),
        Conversion::ScaleF32 { factor: scale, offset } => {
            let (scale, offset) = (_mm512_set1_pd(scale), _mm512_set1_pd(offset));
            // Two roundings as in the original: multiply and add stay apart.
            let half = |x: __m256i| _mm512_cvtpd_ps(_mm512_add_pd(_mm512_mul_pd(_mm512_cvtepi32_pd(x), scale), offset));
            drive_f32(store, factor, raw, out, one, |x| {
                let low = half(_mm512_castsi512_si256(x));
                let high = half(_mm512_extracti64x4_epi64::<1>(x));
                _mm512_insertf32x8::<1>(_mm512_castps256_ps512(low), high)
            });
        }
        Conversion::FastScaleF32 { factor: scale, offset } => {
            let (scale, offset) = (_mm512_set1_ps(scale), _mm512_set1_ps(offset));
            drive_f32(store, factor, raw, out, one, |x| {
                _mm512_add_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(x), scale), offset)
            });
        }
        Conversion::QmnF32(format) | Conversion::QmnF64(format) => {
            #[allow(clippy::cast_possible_truncation, reason = "2^-n is exact in f32 for n up to 63")]
            let weight = _mm512_set1_ps(format.weight() as f32);
            let (from, by) = (_mm512_set1_epi32(format.fold_from()), _mm512_set1_epi32(format.fold_by()));
            drive_f32(store, factor, raw, out, one, |x| _mm512_mul_ps(_mm512_cvtepi32_ps(fold(x, from, by)), weight));
        }
    }
}

/// Converts every `factor`-th sample.
///
/// # Safety
/// As [`to_f32`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(in super::super) unsafe fn to_f64(format: Qmn, store: Store, factor: usize, raw: &[u16], out: &mut [f64]) {
    let weight = _mm512_set1_pd(format.weight());
    let (from, by) = (_mm512_set1_epi32(format.fold_from()), _mm512_set1_epi32(format.fold_by()));
    drive_f64(
        store,
        factor,
        raw,
        out,
        |x| one_f64(x, format),
        |x| {
            let x = fold(x, from, by);
            let half = |x: __m256i| _mm512_mul_pd(_mm512_cvtepi32_pd(x), weight);
            (half(_mm512_castsi512_si256(x)), half(_mm512_extracti64x4_epi64::<1>(x)))
        },
    );
}

/// Two's complement fold: codes from `from` on lose `by`.
#[inline]
#[target_feature(enable = "avx512f")]
fn fold(x: __m512i, from: __m512i, by: __m512i) -> __m512i {
    _mm512_mask_sub_epi32(x, _mm512_cmpge_epi32_mask(x, from), x, by)
}

/// Number of whole steps for `kept` results of samples `factor` apart out of `raw`.
#[inline(always)]
fn steps(factor: usize, raw: &[u16], kept: usize) -> usize {
    if factor == 1 {
        return kept.min(raw.len()) / STEP;
    }
    // A gathered word reads one sample past its own: the last result of a step must not be the last of the slice.
    let readable = (raw.len().saturating_sub(2)) / factor + usize::from(raw.len() >= 2);
    kept.min(readable) / STEP
}

/// Samples `at*factor`, `(at+1)*factor` ... of `raw`, widened to 32 bits.
///
/// # Safety
/// Result `at` lies in a whole step by [`steps`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn load(factor: usize, raw: &[u16], at: usize, indices: __m512i) -> __m512i {
    // SAFETY: the caller keeps within `steps`, which is computed from the length of `raw`.
    unsafe {
        let pointer = raw.as_ptr().add(at * factor);
        if factor == 1 {
            _mm512_cvtepu16_epi32(_mm256_loadu_si256(pointer.cast()))
        } else {
            let words = _mm512_i32gather_epi32::<2>(indices, pointer.cast());
            _mm512_and_si512(words, _mm512_set1_epi32(0xFFFF))
        }
    }
}

/// Multiples of `factor` for one gather.
#[inline]
#[target_feature(enable = "avx512f")]
fn stride_indices(factor: usize) -> Option<__m512i> {
    // 15 * factor * 2 bytes must fit the signed 32-bit index of the gather.
    let factor = i32::try_from(factor).ok().filter(|&factor| factor < 1 << 24)?;
    let ramp = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    Some(_mm512_mullo_epi32(ramp, _mm512_set1_epi32(factor)))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn drive_f32(
    store: Store,
    factor: usize,
    raw: &[u16],
    out: &mut [f32],
    one: impl Fn(u16) -> f32,
    lanes: impl Fn(__m512i) -> __m512,
) {
    let head = until_aligned(out.as_ptr(), 64, out.len());
    for (at, place) in out[..head].iter_mut().enumerate() {
        *place = one(raw[at * factor]);
    }
    let (raw, out) = (raw.get(head * factor..).unwrap_or(&[]), &mut out[head..]);
    let mut done = 0;
    if let Some(indices) = stride_indices(factor) {
        let steps = steps(factor, raw, out.len());
        for step in 0..steps {
            let at = step * STEP;
            // SAFETY: `at + STEP <= steps * STEP`, which is within both slices; `out` is 64-byte aligned after the head.
            unsafe {
                let result = lanes(load(factor, raw, at, indices));
                match store {
                    Store::Cached => _mm512_store_ps(out.as_mut_ptr().add(at), result),
                    Store::NonTemporal => _mm512_stream_ps(out.as_mut_ptr().add(at), result),
                }
            }
        }
        done = steps * STEP;
    }
    for (at, place) in out.iter_mut().enumerate().skip(done) {
        *place = one(raw[at * factor]);
    }
    if store == Store::NonTemporal {
        // Orders the streamed lines before whatever tells a consumer that they are there.
        _mm_sfence();
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn drive_f64(
    store: Store,
    factor: usize,
    raw: &[u16],
    out: &mut [f64],
    one: impl Fn(u16) -> f64,
    lanes: impl Fn(__m512i) -> (__m512d, __m512d),
) {
    let head = until_aligned(out.as_ptr(), 64, out.len());
    for (at, place) in out[..head].iter_mut().enumerate() {
        *place = one(raw[at * factor]);
    }
    let (raw, out) = (raw.get(head * factor..).unwrap_or(&[]), &mut out[head..]);
    let mut done = 0;
    if let Some(indices) = stride_indices(factor) {
        let steps = steps(factor, raw, out.len());
        for step in 0..steps {
            let at = step * STEP;
            // SAFETY: as in `drive_f32`; the second half lies 8 doubles, one cache line, further.
            unsafe {
                let (low, high) = lanes(load(factor, raw, at, indices));
                let place = out.as_mut_ptr().add(at);
                match store {
                    Store::Cached => {
                        _mm512_store_pd(place, low);
                        _mm512_store_pd(place.add(8), high);
                    }
                    Store::NonTemporal => {
                        _mm512_stream_pd(place, low);
                        _mm512_stream_pd(place.add(8), high);
                    }
                }
            }
        }
        done = steps * STEP;
    }
    for (at, place) in out.iter_mut().enumerate().skip(done) {
        *place = one(raw[at * factor]);
    }
    if store == Store::NonTemporal {
        _mm_sfence();
    }
}
