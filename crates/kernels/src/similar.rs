//! Detection of bytes that repeat at a distance, except for counters that advance by one.

use crate::Isa;

/// Successive pieces of equal length that differ in a one-byte counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Similar {
    isa: Isa,
    stride: usize,
    steps: Vec<u8>,
}

impl Similar {
    /// Prepares for pieces of `stride` bytes with their counter at `counter`, in at most
    /// `most_bytes`.
    pub fn new(stride: usize, counter: usize, most_bytes: usize) -> Similar {
        Similar {
            isa: Isa::best(),
            stride,
            steps: (0..most_bytes).map(|at| u8::from(at % stride.max(1) == counter)).collect(),
        }
    }

    pub fn stride(&self) -> usize {
        self.stride
    }

    /// True if every piece equals the previous one with its counter plus one, modulo 256. False
    /// beyond `most_bytes`, and without a stride.
    #[inline]
    pub fn holds(&self, pieces: &[u8]) -> bool {
        let (Some(after), true) = (pieces.get(self.stride..), self.stride > 0) else {
            return false;
        };
        let before = &pieces[..after.len()];
        let Some(steps) = self.steps.get(..after.len()) else {
            return false;
        };
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `Isa::best` saw that this CPU has the instruction set.
            Isa::Avx512 => unsafe { avx512(before, after, steps) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Isa::Avx2 => unsafe { avx2(before, after, steps) },
            _ => portable(before, after, steps),
        }
    }
}

const STEP: usize = 64;

/// Compares in one loop that the compiler vectorises for each set. The last step overlaps the
/// previous one; sums are modulo 256.
#[inline(always)]
fn portable(before: &[u8], after: &[u8], steps: &[u8]) -> bool {
    let mut all = [0_u8; STEP];
    let mut add = |before: &[u8; STEP], after: &[u8; STEP], steps: &[u8; STEP]| {
        for (at, sum) in all.iter_mut().enumerate() {
            *sum |= before[at].wrapping_add(steps[at]) ^ after[at];
        }
    };
    let lines = before.as_chunks().0.iter().zip(after.as_chunks().0);
    for ((before, after), steps) in lines.zip(steps.as_chunks().0) {
        add(before, after, steps);
    }
    let last = (before.last_chunk(), after.last_chunk(), steps.last_chunk());
    if let (Some(before), Some(after), Some(steps)) = last {
        add(before, after, steps);
        return all == [0; STEP];
    }
    let bytes = before.iter().zip(after).zip(steps);
    bytes.fold(0, |sum, ((before, after), step)| sum | (before.wrapping_add(*step) ^ after)) == 0
}

/// # Safety
/// The CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn avx2(before: &[u8], after: &[u8], steps: &[u8]) -> bool {
    portable(before, after, steps)
}

/// # Safety
/// The CPU has AVX-512 F, BW and VL.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn avx512(before: &[u8], after: &[u8], steps: &[u8]) -> bool {
    portable(before, after, steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTER: usize = 3;

    fn pieces(stride: usize, count: usize) -> Vec<u8> {
        let byte = |piece: usize, at: usize| match at {
            COUNTER => (250 + piece) % 256,
            _ => at * 7 % 256,
        };
        let all = (0..count).flat_map(|piece| (0..stride).map(move |at| byte(piece, at)));
        all.map(|byte| u8::try_from(byte).unwrap()).collect()
    }

    fn is_similar(stride: usize, pieces: &[u8]) -> bool {
        (stride..pieces.len()).all(|at| {
            let step = u8::from(at % stride == COUNTER);
            pieces[at] == pieces[at - stride].wrapping_add(step)
        })
    }

    #[test]
    fn one_wrong_byte_is_seen_wherever_it_is_by_every_set() {
        for isa in Isa::available() {
            for (stride, count) in [(4, 3), (28, 1), (28, 2), (28, 36), (64, 5), (360, 2)] {
                let similar = Similar { isa, ..Similar::new(stride, COUNTER, 1024) };
                let good = pieces(stride, count);
                assert!(similar.holds(&good), "{isa:?} {stride} x {count}");
                for at in 0..good.len() {
                    let mut wrong = good.clone();
                    wrong[at] ^= 0x40;
                    let wanted = is_similar(stride, &wrong);
                    assert_eq!(similar.holds(&wrong), wanted, "{isa:?} {stride} at {at}");
                    assert!(!wanted || count == 1);
                }
            }
        }
    }

    #[test]
    fn what_it_was_not_made_for_does_not_hold() {
        let similar = Similar::new(28, COUNTER, 100);
        assert!(similar.holds(&pieces(28, 4)));
        assert!(!similar.holds(&pieces(28, 6)), "more bytes than it was made for");
        assert!(!similar.holds(&pieces(28, 1)[..27]), "less than a piece");
        assert!(!Similar::new(0, COUNTER, 100).holds(&[0; 8]));
    }
}
