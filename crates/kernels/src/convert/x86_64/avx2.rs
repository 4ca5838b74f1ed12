//! AVX2: 8 samples a step. Decimated samples are left to scalar code: without a permutation of words across lanes there is
//! nothing to gain over one load per sample.

use std::arch::x86_64::*;

use super::super::portable::{self, one_f32, one_f64};
use super::super::{Conversion, Qmn};
use super::until_aligned;
use crate::Store;

/// Samples in one step.
const STEP: usize = 8;

/// Converts every `factor`-th sample.
///
/// # Safety
/// The CPU has AVX2.
#[target_feature(enable = "avx2")]
pub(in super::super) unsafe fn to_f32(
    conversion: Conversion,
    store: Store,
    factor: usize,
    raw: &[u16],
    out: &mut [f32],
) {
    if factor != 1 {
        return portable::to_f32(conversion, factor, raw, out);
    }
    let one = |x| one_f32(x, conversion);
    match conversion {
        Conversion::CastF32 => drive_f32(store, raw, out, one, |x| _mm256_cvtepi32_ps(x)),
        Conversion::ScaleF32 {
            factor: scale,
            offset,
        } => {
            let (scale, offset) = (_mm256_set1_pd(scale), _mm256_set1_pd(offset));
            let half = |x: __m128i| {
                _mm256_cvtpd_ps(_mm256_add_pd(
                    _mm256_mul_pd(_mm256_cvtepi32_pd(x), scale),
                    offset,
                ))
            };
            drive_f32(store, raw, out, one, |x| {
                let low = half(_mm256_castsi256_si128(x));
                let high = half(_mm256_extracti128_si256::<1>(x));
                _mm256_set_m128(high, low)
            });
        }
        Conversion::FastScaleF32 {
            factor: scale,
            offset,
        } => {
            let (scale, offset) = (_mm256_set1_ps(scale), _mm256_set1_ps(offset));
            drive_f32(store, raw, out, one, |x| {
                _mm256_add_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(x), scale), offset)
            });
        }
        Conversion::QmnF32(format) | Conversion::QmnF64(format) => {
            #[allow(
                clippy::cast_possible_truncation,
                reason = "2^-n is exact in f32 for n up to 63"
            )]
            let weight = _mm256_set1_ps(format.weight() as f32);
            let (below, by) = fold_constants(format);
            drive_f32(store, raw, out, one, |x| {
                _mm256_mul_ps(_mm256_cvtepi32_ps(fold(x, below, by)), weight)
            });
        }
    }
}

/// Converts every `factor`-th sample.
///
/// # Safety
/// As [`to_f32`].
#[target_feature(enable = "avx2")]
pub(in super::super) unsafe fn to_f64(
    format: Qmn,
    store: Store,
    factor: usize,
    raw: &[u16],
    out: &mut [f64],
) {
    if factor != 1 {
        return portable::to_f64(format, factor, raw, out);
    }
    let weight = _mm256_set1_pd(format.weight());
    let (below, by) = fold_constants(format);
    drive_f64(
        store,
        raw,
        out,
        |x| one_f64(x, format),
        |x| {
            let x = fold(x, below, by);
            let half = |x: __m128i| _mm256_mul_pd(_mm256_cvtepi32_pd(x), weight);
            (
                half(_mm256_castsi256_si128(x)),
                half(_mm256_extracti128_si256::<1>(x)),
            )
        },
    );
}

/// AVX2 compares with "greater than", so the limit is one less.
#[inline]
#[target_feature(enable = "avx2")]
fn fold_constants(format: Qmn) -> (__m256i, __m256i) {
    (
        _mm256_set1_epi32(format.fold_from() - 1),
        _mm256_set1_epi32(format.fold_by()),
    )
}

#[inline]
#[target_feature(enable = "avx2")]
fn fold(x: __m256i, below: __m256i, by: __m256i) -> __m256i {
    _mm256_sub_epi32(x, _mm256_and_si256(_mm256_cmpgt_epi32(x, below), by))
}

#[inline]
#[target_feature(enable = "avx2")]
fn drive_f32(
    store: Store,
    raw: &[u16],
    out: &mut [f32],
    one: impl Fn(u16) -> f32,
    lanes: impl Fn(__m256i) -> __m256,
) {
    drive(store, raw, out, one, |x, place| {
        // SAFETY: `drive` calls with aligned places that hold a whole step.
        unsafe {
            match store {
                Store::Cached => _mm256_store_ps(place, lanes(x)),
                Store::NonTemporal => _mm256_stream_ps(place, lanes(x)),
            }
        }
    });
}

#[inline]
#[target_feature(enable = "avx2")]
fn drive_f64(
    store: Store,
    raw: &[u16],
    out: &mut [f64],
    one: impl Fn(u16) -> f64,
    lanes: impl Fn(__m256i) -> (__m256d, __m256d),
) {
    drive(store, raw, out, one, |x, place| {
        let (low, high) = lanes(x);
        // SAFETY: as in `drive_f32`; the second half lies 4 doubles further.
        unsafe {
            match store {
                Store::Cached => {
                    _mm256_store_pd(place, low);
                    _mm256_store_pd(place.add(4), high);
                }
                Store::NonTemporal => {
                    _mm256_stream_pd(place, low);
                    _mm256_stream_pd(place.add(4), high);
                }
            }
        }
    });
}

/// Walks both slices: scalar head up to a cache line of `out`, so that pairs of streamed halves leave as one, whole steps,
/// scalar tail. `put` gets 8 samples, widened to 32 bits, and the aligned place for their 8 results.
#[inline]
#[target_feature(enable = "avx2")]
fn drive<T>(
    store: Store,
    raw: &[u16],
    out: &mut [T],
    one: impl Fn(u16) -> T,
    put: impl Fn(__m256i, *mut T),
) {
    let head = until_aligned(out.as_ptr(), 64, out.len());
    let steps = (out.len() - head).min(raw.len() - head) / STEP;
    for (place, &x) in out[..head].iter_mut().zip(raw) {
        *place = one(x);
    }
    let done = head + steps * STEP;
    for at in (head..done).step_by(STEP) {
        // SAFETY: `at + STEP <= done`, within both slices; `out[head..]` is 64-byte aligned.
        unsafe {
            let x = _mm256_cvtepu16_epi32(_mm_loadu_si128(raw.as_ptr().add(at).cast()));
            put(x, out.as_mut_ptr().add(at));
        }
    }
    for (place, &x) in out[done..].iter_mut().zip(&raw[done..]) {
        *place = one(x);
    }
    if store == Store::NonTemporal {
        // Orders the streamed lines before whatever tells a consumer that they are there.
        _mm_sfence();
    }
}
