//! AVX2 with FMA: 8 samples a step. One load and one blend gather each decimated sample
//! ([`gathered`]). AVX2's own gather is slower on every tested CPU, and mitigations slow it
//! further.

use std::arch::x86_64::*;

use super::super::scaling::Scaling;
use super::super::{Conversion, Qmn};
use super::{Samples, TWO_TO_52, one_f32, one_f64, until_aligned};
use crate::Store;

const STEP: usize = 8;

/// Converts every `factor`-th sample.
///
/// # Safety
/// The CPU has AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub(in super::super) unsafe fn to_f32(samples: Samples<'_>, out: &mut [f32]) {
    match samples.conversion {
        Conversion::CastF32 => drive_f32(samples, out, |x| _mm256_cvtepi32_ps(widened(x))),
        Conversion::ScaleF32 { factor: scale, offset } => scale_f32([scale, offset], samples, out),
        Conversion::QmnF32(format) | Conversion::QmnF64(format) => {
            let weight = _mm256_set1_ps(format.weight_f32());
            // AVX2 compares with "greater than", so the limit is one less.
            let below = _mm256_set1_epi32(format.fold_from() - 1);
            let by = _mm256_set1_epi32(format.fold_by());
            drive_f32(samples, out, |x| {
                let x = widened(x);
                let fold = _mm256_and_si256(_mm256_cmpgt_epi32(x, below), by);
                _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(x, fold)), weight)
            });
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn scale_f32([scale, offset]: [f64; 2], samples: Samples<'_>, out: &mut [f32]) {
    let (scale, offset) = (_mm256_set1_pd(scale), _mm256_set1_pd(offset));
    match samples.scaling {
        Scaling::Single(centred) => {
            let (centre, small) = (_mm256_set1_ps(centred.centre), _mm256_set1_ps(centred.offset));
            let (high, low) = (_mm256_set1_ps(centred.high), _mm256_set1_ps(centred.low));
            drive_f32(samples, out, |x| {
                let x = _mm256_sub_ps(_mm256_cvtepi32_ps(widened(x)), centre);
                _mm256_fmadd_ps(x, high, _mm256_fmadd_ps(x, low, small))
            });
        }
        Scaling::Fused => {
            let less = _mm256_mul_pd(_mm256_set1_pd(-TWO_TO_52), scale);
            drive_f32(samples, out, |x| {
                let [low, high] = above_two_to_52(x).map(|x| {
                    _mm256_cvtpd_ps(_mm256_add_pd(_mm256_fmadd_pd(x, scale, less), offset))
                });
                _mm256_set_m128(high, low)
            });
        }
        Scaling::Doubles => {
            let half = |x: __m128i| {
                let product = _mm256_mul_pd(_mm256_cvtepi32_pd(x), scale);
                _mm256_cvtpd_ps(_mm256_add_pd(product, offset))
            };
            drive_f32(samples, out, |x| {
                let x = widened(x);
                let low = half(_mm256_castsi256_si128(x));
                _mm256_set_m128(half(_mm256_extracti128_si256::<1>(x)), low)
            });
        }
    }
}

/// Converts every `factor`-th sample. The code plus half the fold is an unsigned 16-bit number;
/// half the fold is taken off with the 2^52.
///
/// # Safety
/// As [`to_f32`].
#[target_feature(enable = "avx2,fma")]
pub(in super::super) unsafe fn to_f64(format: Qmn, samples: Samples<'_>, out: &mut [f64]) {
    let weight = _mm256_set1_pd(format.weight());
    let half_fold = format.fold_by() / 2;
    let less = _mm256_set1_pd(TWO_TO_52 + f64::from(half_fold));
    let [half, whole] = [half_fold, format.fold_by()].map(|fold| _mm_set1_epi16(low_half(fold)));
    let doubles = |x| above_two_to_52(x).map(|x| _mm256_mul_pd(_mm256_sub_pd(x, less), weight));
    // With a fold of 2^16, or none, the subtraction changes no bit of 16.
    if low_half(format.fold_by()) == 0 {
        drive_f64(format, samples, out, |x| doubles(_mm_add_epi16(x, half)));
    } else {
        drive_f64(format, samples, out, |x| {
            let is_negative = _mm_cmpeq_epi16(_mm_max_epu16(x, half), x);
            let fold = _mm_and_si128(is_negative, whole);
            doubles(_mm_sub_epi16(_mm_add_epi16(x, half), fold))
        });
    }
}

#[allow(clippy::cast_possible_truncation, reason = "arithmetic of 16-bit codes is modulo 2^16")]
fn low_half(fold: i32) -> i16 {
    fold as i16
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn widened(x: __m128i) -> __m256i {
    _mm256_cvtepu16_epi32(x)
}

/// Shuffle masks that move samples 0 to 3, and 4 to 7, to the low words of doubles. A byte above
/// 0x7F makes zero.
const WORDS: [[u8; 32]; 2] = [words_from(0), words_from(4)];

const fn words_from(first: u8) -> [u8; 32] {
    let mut bytes = [0x80; 32];
    let mut sample = 0;
    while sample < 4 {
        let byte = (first + sample) * 2;
        bytes[sample as usize * 8] = byte;
        bytes[sample as usize * 8 + 1] = byte + 1;
        sample += 1;
    }
    bytes
}

/// Makes eight doubles of samples plus 2^52: the sample's bits below the exponent of 2^52. Four
/// take one shuffle and one "or"; a conversion from integers takes two steps or more on every CPU.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn above_two_to_52(x: __m128i) -> [__m256d; 2] {
    let exponent = _mm256_set1_epi64x(TWO_TO_52.to_bits().cast_signed());
    let both = _mm256_broadcastsi128_si256(x);
    WORDS.map(|words| {
        // SAFETY: the words are 32 bytes.
        let words = unsafe { _mm256_loadu_si256(words.as_ptr().cast()) };
        _mm256_castsi256_pd(_mm256_or_si256(_mm256_shuffle_epi8(both, words), exponent))
    })
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn drive_f32(samples: Samples<'_>, out: &mut [f32], lanes: impl Fn(__m128i) -> __m256) {
    let Samples { conversion, store, .. } = samples;
    let one = |x| one_f32(x, conversion);
    drive(samples, out, one, |x, place| {
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
#[target_feature(enable = "avx2,fma")]
fn drive_f64(
    format: Qmn,
    samples: Samples<'_>,
    out: &mut [f64],
    lanes: impl Fn(__m128i) -> [__m256d; 2],
) {
    let one = |x| one_f64(x, format);
    drive(samples, out, one, |x, place| {
        let [low, high] = lanes(x);
        // SAFETY: as in `drive_f32`; the second half lies 4 doubles further.
        unsafe {
            match samples.store {
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

/// Walks both slices: scalar head up to a cache line of `out`, whole steps, scalar tail. The
/// alignment lets pairs of streamed halves leave as one. `put` gets 8 samples and the aligned place
/// for their results.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn drive<T>(
    Samples { raw, factor, store, .. }: Samples<'_>,
    out: &mut [T],
    one: impl Fn(u16) -> T,
    put: impl Fn(__m128i, *mut T),
) {
    let head = until_aligned(out.as_ptr(), 64, out.len());
    let kept = raw.len().div_ceil(factor).min(out.len());
    let done = head + kept.saturating_sub(head) / STEP * STEP;
    for (at, place) in out[..head].iter_mut().enumerate() {
        *place = one(raw[at * factor]);
    }
    let (mut from, stride) = (raw.as_ptr().wrapping_add(head * factor), STEP * factor);
    for at in (head..done).step_by(STEP) {
        // SAFETY: `at + STEP <= done`, and `raw` has the sample of each; `out[head..]` is 64-byte
        // aligned.
        unsafe {
            let x = match factor {
                1 => _mm_loadu_si128(from.cast()),
                _ => gathered(from, factor),
            };
            put(x, out.as_mut_ptr().add(at));
        }
        from = from.wrapping_add(stride);
    }
    for (at, place) in out.iter_mut().enumerate().skip(done) {
        *place = one(raw[at * factor]);
    }
    if store == Store::NonTemporal {
        // Orders the streamed lines before the signal to a consumer.
        _mm_sfence();
    }
}

/// Gathers every `factor`-th sample of eight. Each is loaded to its place with the samples before
/// it, and blended: half of the steps of an insertion. No load passes the last of the eight.
///
/// # Safety
/// `from` has `7 * factor + 1` samples.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn gathered(from: *const u16, factor: usize) -> __m128i {
    let sample = |number: usize| {
        let begin = number.wrapping_mul(factor.wrapping_sub(1));
        // SAFETY: 8 samples from there end at most at `7 * factor + 1` samples, which are in
        // memory: nothing has wrapped.
        unsafe { _mm_loadu_si128(from.add(begin).cast()) }
    };
    let pair = |even: usize| _mm_blend_epi16::<0b1010_1010>(sample(even), sample(even + 1));
    let low = _mm_blend_epi32::<0b0010>(pair(0), pair(2));
    let high = _mm_blend_epi32::<0b1000>(pair(4), pair(6));
    _mm_blend_epi32::<0b1100>(low, high)
}
