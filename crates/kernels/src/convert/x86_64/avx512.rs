//! AVX-512: 16 samples a step.
//!
//! Stores write whole cache lines, because unaligned 64-byte stores would touch two lines each.
//! Scalar code does head and tail.
//!
//! Decimation by up to 32 reads whole lines and picks its samples with one masked permutation per
//! line ([`Picks`]). That is 1.4 to 1.9 times the gather and the scalar loop at a factor of 10 on
//! Zen 4, with loads as the limit. Larger factors have at most one sample in a line: 16 are
//! gathered as 32-bit words with the upper half masked away. Scalar code does a last step that
//! would reach past the slice.

use std::arch::x86_64::*;
use std::hint::black_box;

use super::super::scaling::Scaling;
use super::super::{Conversion, Qmn};
use super::{Samples, TWO_TO_52, one_f32, one_f64, until_aligned};
use crate::Store;

const STEP: usize = 16;
const LINE_SAMPLES: usize = 32;

#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct Picks {
    lines: Vec<ResultLine>,
}

/// Positions in one line of the 32 results, and the mask of results in that line. Aligned, because
/// an index across cache lines costs two loads.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(align(64))]
struct ResultLine {
    indices: [u16; LINE_SAMPLES],
    mask: u32,
}

impl Picks {
    pub(in super::super) fn new(factor: usize) -> Option<Picks> {
        if !(2..=LINE_SAMPLES).contains(&factor) {
            return None;
        }
        let mut lines = vec![ResultLine { indices: [0; LINE_SAMPLES], mask: 0 }; factor];
        for result in 0..LINE_SAMPLES {
            let sample = result * factor;
            let line = &mut lines[sample / LINE_SAMPLES];
            line.indices[result] = u16::try_from(sample % LINE_SAMPLES).expect("below 32");
            line.mask |= 1 << result;
        }
        Some(Picks { lines })
    }

    /// Picks 32 results from the `factor` lines at `raw`.
    ///
    /// # Safety
    /// `raw` has `factor * 32` samples.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn pick(&self, raw: *const u16) -> __m512i {
        let mut results = _mm512_setzero_si512();
        for (at, line) in self.lines.iter().enumerate() {
            // SAFETY: by the caller; the indices are an aligned array of 64 bytes.
            unsafe {
                let samples = _mm512_loadu_si512(raw.add(at * LINE_SAMPLES).cast());
                let indices = _mm512_load_si512(line.indices.as_ptr().cast());
                results = _mm512_mask_permutexvar_epi16(results, line.mask, indices, samples);
            }
        }
        results
    }
}

/// Converts every `factor`-th sample.
///
/// # Safety
/// The CPU has AVX-512 F, BW, DQ and VL.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(in super::super) unsafe fn to_f32(samples: Samples<'_>, out: &mut [f32]) {
    match samples.conversion {
        Conversion::CastF32 => drive_f32(samples, out, |x| _mm512_cvtepi32_ps(x)),
        Conversion::ScaleF32 { factor: scale, offset } => scale_f32([scale, offset], samples, out),
        Conversion::QmnF32(format) | Conversion::QmnF64(format) => {
            let weight = _mm512_set1_ps(format.weight_f32());
            let (from, by) =
                (_mm512_set1_epi32(format.fold_from()), _mm512_set1_epi32(format.fold_by()));
            drive_f32(samples, out, |x| {
                _mm512_mul_ps(_mm512_cvtepi32_ps(fold(x, from, by)), weight)
            });
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn scale_f32([scale, offset]: [f64; 2], samples: Samples<'_>, out: &mut [f32]) {
    let (scale, offset) = (_mm512_set1_pd(scale), _mm512_set1_pd(offset));
    match samples.scaling {
        Scaling::Single(centred) => {
            let (centre, small) = (_mm512_set1_ps(centred.centre), _mm512_set1_ps(centred.offset));
            let (high, low) = (_mm512_set1_ps(centred.high), _mm512_set1_ps(centred.low));
            drive_f32(samples, out, |x| {
                let x = _mm512_sub_ps(_mm512_cvtepi32_ps(x), centre);
                _mm512_fmadd_ps(x, high, _mm512_fmadd_ps(x, low, small))
            });
        }
        Scaling::Fused => {
            let less = _mm512_mul_pd(_mm512_set1_pd(-TWO_TO_52), scale);
            drive_f32(samples, out, |x| {
                joined(above_two_to_52(x).map(|x| {
                    _mm512_cvtpd_ps(_mm512_add_pd(_mm512_fmadd_pd(x, scale, less), offset))
                }))
            });
        }
        Scaling::Doubles => {
            // The product is rounded before the addition, as in the original. The addition is a
            // multiply-add with one, which rounds alike and runs on the multipliers. On Zen 4
            // additions share two pipes with the conversions, which are the bottleneck. `black_box`
            // hides the one from the compiler.
            let unit = _mm512_set1_pd(black_box(1.0));
            let half = |x: __m256i| {
                let product = _mm512_mul_pd(_mm512_cvtepi32_pd(x), scale);
                _mm512_cvtpd_ps(_mm512_fmadd_pd(product, unit, offset))
            };
            drive_f32(samples, out, |x| {
                let low = half(_mm512_castsi512_si256(x));
                let high = half(_mm512_extracti64x4_epi64::<1>(x));
                _mm512_insertf32x8::<1>(_mm512_castps256_ps512(low), high)
            });
        }
    }
}

/// Makes sixteen doubles of samples plus 2^52: a sample below the upper half of 2^52. The first two
/// of each lane of four are in the first half; [`joined`] restores the order.
#[inline]
#[target_feature(enable = "avx512f")]
fn above_two_to_52(x: __m512i) -> [__m512d; 2] {
    // Upper half of 2^52; the lower one is zero.
    let exponent = _mm512_set1_epi32(0x4330_0000);
    [
        _mm512_castsi512_pd(_mm512_unpacklo_epi32(x, exponent)),
        _mm512_castsi512_pd(_mm512_unpackhi_epi32(x, exponent)),
    ]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn joined([first, second]: [__m256; 2]) -> __m512 {
    let order = _mm512_setr_epi32(0, 1, 16, 17, 2, 3, 18, 19, 4, 5, 20, 21, 6, 7, 22, 23);
    let (first, second) = (_mm512_castps256_ps512(first), _mm512_castps256_ps512(second));
    _mm512_permutex2var_ps(first, order, second)
}

/// Converts every `factor`-th sample.
///
/// # Safety
/// As [`to_f32`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(in super::super) unsafe fn to_f64(format: Qmn, samples: Samples<'_>, out: &mut [f64]) {
    let weight = _mm512_set1_pd(format.weight());
    let (from, by) = (_mm512_set1_epi32(format.fold_from()), _mm512_set1_epi32(format.fold_by()));
    let put = |place: *mut f64, value: __m512d| {
        // SAFETY: `drive` calls with aligned places that hold a whole step.
        unsafe {
            match samples.store {
                Store::Cached => _mm512_store_pd(place, value),
                Store::NonTemporal => _mm512_stream_pd(place, value),
            }
        }
    };
    let one = |x| one_f64(x, format);
    drive(samples, out, one, |x, place| {
        let x = fold(x, from, by);
        let half = |x: __m256i| _mm512_mul_pd(_mm512_cvtepi32_pd(x), weight);
        put(place, half(_mm512_castsi512_si256(x)));
        put(place.wrapping_add(8), half(_mm512_extracti64x4_epi64::<1>(x)));
    });
}

#[inline]
#[target_feature(enable = "avx512f")]
fn fold(x: __m512i, from: __m512i, by: __m512i) -> __m512i {
    _mm512_mask_sub_epi32(x, _mm512_cmpge_epi32_mask(x, from), x, by)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn drive_f32(samples: Samples<'_>, out: &mut [f32], lanes: impl Fn(__m512i) -> __m512) {
    let Samples { conversion, store, .. } = samples;
    let one = |x| one_f32(x, conversion);
    drive(samples, out, one, |x, place| {
        // SAFETY: `drive` calls with aligned places that hold a whole step.
        unsafe {
            match store {
                Store::Cached => _mm512_store_ps(place, lanes(x)),
                Store::NonTemporal => _mm512_stream_ps(place, lanes(x)),
            }
        }
    });
}

/// Walks both slices: scalar head up to a cache line of `out`, whole steps, scalar tail. `put` gets
/// 16 samples, widened to 32 bits, and the aligned place for their results.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn drive<T>(
    Samples { raw, factor, picks, store, .. }: Samples<'_>,
    out: &mut [T],
    one: impl Fn(u16) -> T,
    put: impl Fn(__m512i, *mut T),
) {
    let head = until_aligned(out.as_ptr(), 64, out.len());
    for (at, place) in out[..head].iter_mut().enumerate() {
        *place = one(raw[at * factor]);
    }
    let (raw, out) = (raw.get(head * factor..).unwrap_or(&[]), &mut out[head..]);
    let done = match picks {
        _ if factor == 1 => contiguous(raw, out, put),
        Some(picks) => picked(picks, factor, raw, out, put),
        None => gathered(factor, raw, out, put),
    };
    for (at, place) in out.iter_mut().enumerate().skip(done) {
        *place = one(raw[at * factor]);
    }
    if store == Store::NonTemporal {
        // Orders the streamed lines before the signal to a consumer.
        _mm_sfence();
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn contiguous<T>(raw: &[u16], out: &mut [T], put: impl Fn(__m512i, *mut T)) -> usize {
    let done = raw.len().min(out.len()) / STEP * STEP;
    for at in (0..done).step_by(STEP) {
        // SAFETY: `at + STEP <= done`, within both slices.
        unsafe {
            let x = _mm512_cvtepu16_epi32(_mm256_loadu_si256(raw.as_ptr().add(at).cast()));
            put(x, out.as_mut_ptr().add(at));
        }
    }
    done
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn picked<T>(
    picks: &Picks,
    factor: usize,
    raw: &[u16],
    out: &mut [T],
    put: impl Fn(__m512i, *mut T),
) -> usize {
    let groups = (raw.len() / (LINE_SAMPLES * factor)).min(out.len() / LINE_SAMPLES);
    for group in 0..groups {
        let at = group * LINE_SAMPLES;
        // SAFETY: each group has `factor` whole lines of `raw` and 32 places of `out`.
        unsafe {
            let results = picks.pick(raw.as_ptr().add(at * factor));
            put(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(results)), out.as_mut_ptr().add(at));
            let high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64::<1>(results));
            put(high, out.as_mut_ptr().add(at + STEP));
        }
    }
    groups * LINE_SAMPLES
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn gathered<T>(factor: usize, raw: &[u16], out: &mut [T], put: impl Fn(__m512i, *mut T)) -> usize {
    // 15 * factor * 2 bytes must fit the signed 32-bit index of the gather.
    let Some(stride) = i32::try_from(factor).ok().filter(|&factor| factor < 1 << 24) else {
        return 0;
    };
    let ramp = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    let indices = _mm512_mullo_epi32(ramp, _mm512_set1_epi32(stride));
    // A gathered word reads one sample past its own, so the last result of a step must not end the
    // slice.
    let readable = if raw.len() < 2 { 0 } else { (raw.len() - 2) / factor + 1 };
    let done = out.len().min(readable) / STEP * STEP;
    for at in (0..done).step_by(STEP) {
        // SAFETY: results `at` to `at + 15` are readable by the count above, and have their places.
        unsafe {
            let words = _mm512_i32gather_epi32::<2>(indices, raw.as_ptr().add(at * factor).cast());
            put(_mm512_and_si512(words, _mm512_set1_epi32(0xFFFF)), out.as_mut_ptr().add(at));
        }
    }
    done
}
