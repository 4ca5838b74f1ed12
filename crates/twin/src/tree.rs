//! Which of many stations has the next event: a tournament, not a heap, because each has at most one.

/// A station without an event.
pub(crate) const NEVER: u64 = u64::MAX;

/// The winner of each match. Of equal times the lower leaf wins, so that runs are repeatable.
#[derive(Clone, Debug)]
pub(crate) struct Tournament {
    /// Time above, leaf in the lowest 32 bits: one number, so that a match is a comparison without a jump, which could not be
    /// foreseen. `[1]` is the final, the children of `at` are `2 at` and `2 at + 1`; leaves are in the second half.
    winners: Vec<u128>,
}

fn entry(time: u64, leaf: usize) -> u128 {
    (u128::from(time) << 32) | leaf as u128
}

impl Tournament {
    /// So many leaves, all without an event.
    pub(crate) fn new(leaves: usize) -> Tournament {
        let width = leaves.next_power_of_two().max(2);
        let mut tree = Tournament { winners: vec![entry(NEVER, 0); 2 * width] };
        (0..width).for_each(|leaf| tree.set(leaf, NEVER));
        tree
    }

    /// When a leaf has its next event. Its way to the final meets one other winner in each round.
    pub(crate) fn set(&mut self, leaf: usize, time: u64) {
        let mut at = self.winners.len() / 2 + leaf;
        let mut winner = entry(time, leaf);
        while at > 1 {
            self.winners[at] = winner;
            winner = winner.min(self.winners[at ^ 1]);
            at /= 2;
        }
        self.winners[1] = winner;
    }

    /// The next event: its time and its leaf.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the two parts of an entry, each as it was put in"
    )]
    pub(crate) fn first(&self) -> (u64, usize) {
        let winner = self.winners[1];
        ((winner >> 32) as u64, winner as u32 as usize)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_first_is_that_of_a_search_through_all(
            leaves in 1..70_usize,
            changes in proptest::collection::vec((0..70_usize, 0..50_u64), 0..200)
        ) {
            let mut tree = Tournament::new(leaves);
            let mut times = vec![NEVER; leaves];
            for (leaf, time) in changes {
                let leaf = leaf % leaves;
                // Some have no event any more.
                let time = if time == 0 { NEVER } else { time };
                tree.set(leaf, time);
                times[leaf] = time;
                let found = times.iter().enumerate().min_by_key(|(at, time)| (**time, *at));
                let (at, time) = found.unwrap();
                prop_assert_eq!(tree.first(), (*time, at));
            }
        }
    }
}
