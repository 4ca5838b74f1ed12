//! Physical limit of a kernel: cache lines read and written in its ratio, with no arithmetic.
//!
//! A conversion from u16 to f32 reads one line and writes two. A 1:1 copy would be a wrong limit: 1
//! read to 2 writes runs at 1.07 of its counted bytes beyond the caches (reference measurements).

use crate::{Isa, Store};

pub const LINE_BYTES: usize = 64;

/// Lines read and written in one step, each at most [`StreamRatio::MAX_LINES`]. The vector kernels
/// rely on the step's bytes not overflowing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamRatio {
    read_lines: usize,
    write_lines: usize,
}

impl StreamRatio {
    /// Limit of lines read or written in a step: 64 KiB. Conversions need 64 at most.
    pub const MAX_LINES: usize = 1024;

    pub const COPY: StreamRatio = StreamRatio { read_lines: 1, write_lines: 1 };

    pub const READ: StreamRatio = StreamRatio { read_lines: 1, write_lines: 0 };

    /// Makes a ratio; `None` unless 1 to [`StreamRatio::MAX_LINES`] are read and at most as many
    /// written.
    pub fn new(read_lines: usize, write_lines: usize) -> Option<StreamRatio> {
        let fits = (1..=StreamRatio::MAX_LINES).contains(&read_lines)
            && write_lines <= StreamRatio::MAX_LINES;
        fits.then_some(StreamRatio { read_lines, write_lines })
    }

    pub fn read_bytes(self) -> usize {
        LINE_BYTES * self.read_lines
    }

    pub fn write_bytes(self) -> usize {
        LINE_BYTES * self.write_lines
    }

    /// Counts whole steps that both sides hold; the destination keeps a line to spare for
    /// alignment.
    fn steps(self, source_bytes: usize, destination_bytes: usize) -> usize {
        let reads = source_bytes / self.read_bytes();
        let writes = destination_bytes.saturating_sub(LINE_BYTES).checked_div(self.write_bytes());
        reads.min(writes.unwrap_or(usize::MAX))
    }
}

/// Streams `source` into `destination`: each step folds `ratio.read_lines` lines with exclusive-or
/// and writes the result to `ratio.write_lines` lines. Stops when either slice has no whole step
/// left; returns the source bytes read.
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(unused_variables, reason = "only the x86-64 kernels choose their stores")
)]
pub fn stream(
    isa: Isa,
    store: Store,
    ratio: StreamRatio,
    source: &[u8],
    destination: &mut [u8],
) -> usize {
    let steps = ratio.steps(source.len(), destination.len());
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 if isa.is_available() => {
            // SAFETY: the CPU has it; `steps` was computed from both lengths, with a line to spare
            // for alignment.
            unsafe { x86_64::stream_avx512(store, ratio, steps, source, destination) };
        }
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 if isa.is_available() => {
            // SAFETY: as above.
            unsafe { x86_64::stream_avx2(store, ratio, steps, source, destination) };
        }
        _ => portable(ratio, steps, source, destination),
    }
    steps * ratio.read_bytes()
}

fn portable(ratio: StreamRatio, steps: usize, source: &[u8], destination: &mut [u8]) {
    type Line = [u64; LINE_BYTES / 8];
    let mut reads = source.as_chunks::<LINE_BYTES>().0.iter();
    let mut writes = destination.as_chunks_mut::<LINE_BYTES>().0.iter_mut();
    let mut sink: Line = [0; 8];
    for _ in 0..steps {
        let mut line: Line = [0; 8];
        for bytes in reads.by_ref().take(ratio.read_lines) {
            for (word, part) in line.iter_mut().zip(bytes.as_chunks::<8>().0) {
                *word ^= u64::from_le_bytes(*part);
            }
        }
        for bytes in writes.by_ref().take(ratio.write_lines) {
            for (word, part) in line.iter().zip(bytes.as_chunks_mut::<8>().0) {
                *part = word.to_le_bytes();
            }
        }
        if ratio.write_lines == 0 {
            for (total, word) in sink.iter_mut().zip(line) {
                *total ^= word;
            }
        }
    }
    // Keeps the compiler from removing a pure read.
    std::hint::black_box(sink);
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::arch::x86_64::*;

    use super::{LINE_BYTES, StreamRatio};
    use crate::Store;

    /// Returns the first line boundary of a slice that keeps a line to spare.
    fn aligned(destination: &mut [u8]) -> *mut u8 {
        let pointer = destination.as_mut_ptr();
        let off = pointer.addr() % LINE_BYTES;
        if off == 0 || destination.len() < LINE_BYTES {
            pointer
        } else {
            pointer.wrapping_add(LINE_BYTES - off)
        }
    }

    /// # Safety
    /// The CPU has AVX-512 F; the source holds `steps` steps, the destination as many and one line
    /// more.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn stream_avx512(
        store: Store,
        ratio: StreamRatio,
        steps: usize,
        source: &[u8],
        destination: &mut [u8],
    ) {
        let mut read = source.as_ptr();
        let mut write = aligned(destination);
        let mut sink = _mm512_setzero_si512();
        for _ in 0..steps {
            // SAFETY: by the caller's count both pointers stay inside their slices for `steps`
            // steps.
            unsafe {
                let mut line = _mm512_loadu_si512(read.cast());
                read = read.add(LINE_BYTES);
                for _ in 1..ratio.read_lines {
                    line = _mm512_xor_si512(line, _mm512_loadu_si512(read.cast()));
                    read = read.add(LINE_BYTES);
                }
                for _ in 0..ratio.write_lines {
                    match store {
                        Store::Cached => _mm512_store_si512(write.cast(), line),
                        Store::NonTemporal => _mm512_stream_si512(write.cast(), line),
                    }
                    write = write.add(LINE_BYTES);
                }
                sink = _mm512_xor_si512(sink, line);
            }
        }
        _mm_sfence();
        std::hint::black_box(sink);
    }

    /// # Safety
    /// As [`stream_avx512`], with AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn stream_avx2(
        store: Store,
        ratio: StreamRatio,
        steps: usize,
        source: &[u8],
        destination: &mut [u8],
    ) {
        let mut read = source.as_ptr();
        let mut write = aligned(destination);
        let mut sink = _mm256_setzero_si256();
        for _ in 0..steps {
            // SAFETY: as in `stream_avx512`.
            unsafe {
                let (mut low, mut high) = (_mm256_setzero_si256(), _mm256_setzero_si256());
                for _ in 0..ratio.read_lines {
                    low = _mm256_xor_si256(low, _mm256_loadu_si256(read.cast()));
                    high = _mm256_xor_si256(high, _mm256_loadu_si256(read.add(32).cast()));
                    read = read.add(LINE_BYTES);
                }
                for _ in 0..ratio.write_lines {
                    match store {
                        Store::Cached => {
                            _mm256_store_si256(write.cast(), low);
                            _mm256_store_si256(write.add(32).cast(), high);
                        }
                        Store::NonTemporal => {
                            _mm256_stream_si256(write.cast(), low);
                            _mm256_stream_si256(write.add(32).cast(), high);
                        }
                    }
                    write = write.add(LINE_BYTES);
                }
                sink = _mm256_xor_si256(sink, _mm256_xor_si256(low, high));
            }
        }
        _mm_sfence();
        std::hint::black_box(sink);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With 2^58 + 1 lines the bytes of a step wrapped to one line, and a safe call wrote beyond
    /// its slice.
    #[test]
    fn no_ratio_has_a_step_that_overflows() {
        for lines in [StreamRatio::MAX_LINES + 1, 1 << 57, 1 << 58, (1 << 58) + 1, usize::MAX] {
            assert_eq!(
                (StreamRatio::new(lines, 1), StreamRatio::new(1, lines)),
                (None, None),
                "{lines}"
            );
        }
        assert_eq!(
            (StreamRatio::new(0, 1), StreamRatio::new(1, 0)),
            (None, Some(StreamRatio::READ))
        );
        assert!(StreamRatio::new(StreamRatio::MAX_LINES, StreamRatio::MAX_LINES).is_some());
    }

    #[test]
    fn steps_stay_inside_both_sides_whatever_their_lengths() {
        for ratio in
            [StreamRatio::COPY, StreamRatio::READ, StreamRatio { read_lines: 3, write_lines: 2 }]
        {
            for (source, destination) in
                [(0, 0), (63, 640), (64, 64), (640, 127), (640, 128), (6400, 700)]
            {
                let steps = ratio.steps(source, destination);
                assert!(steps * ratio.read_bytes() <= source);
                assert!(
                    steps == 0
                        || ratio.write_lines == 0
                        || steps * ratio.write_bytes() + 64 <= destination
                );
            }
        }
    }

    #[test]
    fn every_set_writes_the_folded_lines_and_nothing_else() {
        let source: Vec<u8> = (0..64 * 40).map(|i| u8::try_from(i % 251).unwrap()).collect();
        for isa in Isa::available() {
            for store in [Store::Cached, Store::NonTemporal] {
                for ratio in [
                    StreamRatio::COPY,
                    StreamRatio { read_lines: 1, write_lines: 2 },
                    StreamRatio { read_lines: 5, write_lines: 1 },
                ] {
                    let mut destination = vec![0xA5_u8; 64 * 60];
                    let read = stream(isa, store, ratio, &source, &mut destination);
                    let steps = read / 64 / ratio.read_lines;
                    assert!(steps > 0, "{isa:?} {ratio:?}");
                    let written = destination.iter().filter(|&&b| b != 0xA5).count();
                    assert!(written <= steps * ratio.write_lines * 64);
                    let first: Vec<u8> = (0..64)
                        .map(|i| {
                            (0..ratio.read_lines)
                                .fold(0, |folded, line| folded ^ source[line * 64 + i])
                        })
                        .collect();
                    let found = destination.windows(64).any(|window| window == first);
                    assert!(found, "{isa:?} {store:?} {ratio:?}");
                }
            }
        }
    }

    #[test]
    fn a_pure_read_writes_nothing() {
        let source = vec![1_u8; 6400];
        for isa in Isa::available() {
            assert_eq!(stream(isa, Store::Cached, StreamRatio::READ, &source, &mut []), 6400);
        }
    }
}
