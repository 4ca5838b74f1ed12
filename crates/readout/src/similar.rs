//! Fragments in a row that are compared at once with the one before.

use daqmeter_kernels::Similar;

/// Fragments in a row from which on they are compared at once: each length needs its own
/// preparation.
pub(crate) const MIN_ALIKE: usize = 8;
pub(crate) const MAX_ALIKE_BYTES: usize = 16 << 10;

#[derive(Debug, Default)]
pub(crate) struct SimilarByStride {
    known: Vec<Similar>,
    next: usize,
}

impl SimilarByStride {
    const MAX_KNOWN: usize = 8;
    const COUNTER: usize = 3;

    #[inline]
    pub(crate) fn of(&mut self, stride: usize) -> &Similar {
        let known = self.known.iter().position(|one| one.stride() == stride);
        let at = known.unwrap_or_else(|| self.learn(stride));
        &self.known[at]
    }

    fn learn(&mut self, stride: usize) -> usize {
        let similar = Similar::new(stride, SimilarByStride::COUNTER, MAX_ALIKE_BYTES);
        if self.known.len() < SimilarByStride::MAX_KNOWN {
            self.known.push(similar);
            return self.known.len() - 1;
        }
        let at = self.next;
        self.known[at] = similar;
        self.next = (at + 1) % SimilarByStride::MAX_KNOWN;
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lengths_that_came_last_are_known() {
        let mut strides = SimilarByStride::default();
        for stride in 28..28 + 3 * SimilarByStride::MAX_KNOWN {
            assert_eq!(strides.of(stride).stride(), stride);
            assert_eq!(strides.of(28.max(stride - 3)).stride(), 28.max(stride - 3));
        }
        assert_eq!(strides.known.len(), SimilarByStride::MAX_KNOWN);
    }
}
