//! A sum that reads each byte once. It depends on the order of the bytes, so that exchanged bytes
//! are found, too.

const LANES: usize = 8;
const STRIDE: usize = LANES * 8;

pub fn sum(bytes: &[u8]) -> u64 {
    let (strides, rest) = bytes.as_chunks::<STRIDE>();
    // A lane alone is blind to 64 equal words, whatever they are. The total of all words is not.
    let (mut lanes, mut totals) = ([0_u64; LANES], [0_u64; LANES]);
    for stride in strides {
        let words = stride.as_chunks::<8>().0;
        for ((lane, total), word) in lanes.iter_mut().zip(&mut totals).zip(words) {
            let word = u64::from_le_bytes(*word);
            *lane = lane.rotate_left(1) ^ word;
            *total = total.wrapping_add(word);
        }
    }
    let both = lanes.into_iter().chain(totals);
    let folded = both.fold(bytes.len() as u64, mixed);
    rest.iter().fold(folded, |sum, &byte| mixed(sum, u64::from(byte)))
}

/// The finaliser of splitmix64 (Steele, Lea, Flood 2014), over both.
fn mixed(sum: u64, word: u64) -> u64 {
    let x = (sum.rotate_left(5) ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lengths_count() {
        assert_ne!(sum(&[]), sum(&[0]));
        assert_ne!(sum(&[0; 64]), sum(&[0; 128]));
    }

    #[test]
    fn blocks_of_one_byte_each_have_sums_of_their_own() {
        for bytes in [64, 4096, 8192, 65536] {
            let sums: BTreeSet<u64> = (0..=255).map(|byte| sum(&vec![byte; bytes])).collect();
            assert_eq!(sums.len(), 256, "{bytes} bytes");
        }
    }

    proptest! {
        #[test]
        fn one_changed_bit_and_two_exchanged_words_are_found(
            bytes in proptest::collection::vec(any::<u8>(), 1..400), at: usize, bit in 0..8_u32, other: usize,
        ) {
            let before = sum(&bytes);
            let mut changed = bytes.clone();
            let at = at % bytes.len();
            changed[at] ^= 1 << bit;
            prop_assert_ne!(sum(&changed), before);
            let mut exchanged = bytes.clone();
            exchanged.swap(at, other % bytes.len());
            if exchanged != bytes {
                prop_assert_ne!(sum(&exchanged), before);
            }
        }
    }
}
