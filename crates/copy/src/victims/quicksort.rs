//! Quicksort (Hoare 1961) with the median of three and insertion for short ranges (Sedgewick 1978).
//! It moves whole records, as C's `qsort` does.

use std::cmp::Ordering;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::Rng;

pub(crate) type Word = [u8; 128];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Point {
    pub(crate) at: [i32; 3],
}

impl Point {
    pub(crate) fn random(random: &mut Xoshiro256PlusPlus) -> Point {
        let mut coordinate =
            || i32::try_from(random.next_u64() % (1 << 21)).unwrap_or(0) - (1 << 20);
        Point { at: [coordinate(), coordinate(), coordinate()] }
    }

    pub(crate) fn distance_squared(&self) -> i64 {
        self.at.iter().map(|at| i64::from(*at) * i64::from(*at)).sum()
    }
}

const SHORT: usize = 8;

/// Sorts by `compare`; not stable.
pub(crate) fn sort<T: Copy>(items: &mut [T], compare: impl Fn(&T, &T) -> Ordering + Copy) {
    let mut rest = items;
    while rest.len() > SHORT {
        let middle = partition(rest, compare);
        let (left, right) = rest.split_at_mut(middle);
        // Recursion into the shorter side bounds the depth to log2 of the length.
        if left.len() < right.len() {
            sort(left, compare);
            rest = right;
        } else {
            sort(right, compare);
            rest = left;
        }
    }
    insertion(rest, compare);
}

/// Splits so that no left item is greater than a right one; both sides are shorter than the whole.
fn partition<T: Copy>(items: &mut [T], compare: impl Fn(&T, &T) -> Ordering) -> usize {
    let (last, half) = (items.len() - 1, items.len() / 2);
    for (low, high) in [(0, half), (half, last), (0, half)] {
        if compare(&items[low], &items[high]) == Ordering::Greater {
            items.swap(low, high);
        }
    }
    let pivot = items[half];
    let (mut low, mut high) = (0, last);
    loop {
        while compare(&items[low], &pivot) == Ordering::Less {
            low += 1;
        }
        while compare(&items[high], &pivot) == Ordering::Greater {
            high -= 1;
        }
        if low >= high {
            return high + 1;
        }
        items.swap(low, high);
        low += 1;
        high -= 1;
    }
}

fn insertion<T: Copy>(items: &mut [T], compare: impl Fn(&T, &T) -> Ordering) {
    for end in 1..items.len() {
        let item = items[end];
        let mut at = end;
        while at > 0 && compare(&items[at - 1], &item) == Ordering::Greater {
            items[at] = items[at - 1];
            at -= 1;
        }
        items[at] = item;
    }
}

#[cfg(test)]
mod tests {
    use rand_xoshiro::rand_core::SeedableRng;

    use super::*;

    #[test]
    fn any_order_of_any_length_comes_out_as_the_library_sorts_it() {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(7);
        for length in (0..40).chain([100, 1000, 5000]) {
            for kinds in [1, 2, 10, 1 << 40] {
                let mut items: Vec<u64> = (0..length).map(|_| random.next_u64() % kinds).collect();
                let mut wanted = items.clone();
                wanted.sort_unstable();
                sort(&mut items, u64::cmp);
                assert_eq!(items, wanted, "{length} {kinds}");
                sort(&mut items, u64::cmp);
                assert_eq!(items, wanted, "sorted input, {length} {kinds}");
                sort(&mut items, |a, b| b.cmp(a));
                wanted.reverse();
                assert_eq!(items, wanted, "reversed, {length} {kinds}");
            }
        }
    }
}
