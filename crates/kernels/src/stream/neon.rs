//! AArch64 Advanced SIMD: a line is four vectors. Stores go through the caches, because STNP has no
//! intrinsic.

use std::arch::aarch64::*;

use super::LINE_BYTES;

type Line = [uint8x16_t; 4];

/// As [`super::stream`], with the lines of a step in plain numbers.
///
/// # Safety
/// The CPU has Advanced SIMD.
#[target_feature(enable = "neon")]
pub(super) unsafe fn stream(
    read_lines: usize,
    write_lines: usize,
    steps: usize,
    source: &[u8],
    destination: &mut [u8],
) {
    let mut reads = source.as_chunks::<LINE_BYTES>().0.iter();
    let mut writes = destination.as_chunks_mut::<LINE_BYTES>().0.iter_mut();
    let mut sink = [vdupq_n_u8(0); 4];
    for _ in 0..steps {
        let mut line = [vdupq_n_u8(0); 4];
        for bytes in reads.by_ref().take(read_lines) {
            line = fold(line, load(bytes));
        }
        for bytes in writes.by_ref().take(write_lines) {
            store(line, bytes);
        }
        if write_lines == 0 {
            sink = fold(sink, line);
        }
    }
    // Keeps the compiler from removing a pure read.
    std::hint::black_box(sink);
}

#[inline]
#[target_feature(enable = "neon")]
fn load(bytes: &[u8; LINE_BYTES]) -> Line {
    let from = bytes.as_ptr();
    // SAFETY: four vectors of 16 bytes are the 64 bytes of the line; loads need no alignment.
    unsafe {
        [vld1q_u8(from), vld1q_u8(from.add(16)), vld1q_u8(from.add(32)), vld1q_u8(from.add(48))]
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn store(line: Line, bytes: &mut [u8; LINE_BYTES]) {
    let to = bytes.as_mut_ptr();
    for (at, vector) in line.into_iter().enumerate() {
        // SAFETY: as in `load`, and the line is borrowed for writing.
        unsafe { vst1q_u8(to.add(16 * at), vector) };
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn fold(a: Line, b: Line) -> Line {
    [veorq_u8(a[0], b[0]), veorq_u8(a[1], b[1]), veorq_u8(a[2], b[2]), veorq_u8(a[3], b[3])]
}
