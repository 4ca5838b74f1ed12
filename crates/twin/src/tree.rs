//! Which of many stations has the next event: a tournament, not a heap, because each has at most one.

/// A station without an event.
pub(crate) const NEVER: u64 = u64::MAX;

/// Times of the next event of each leaf, and who wins each match. Of equal times the lower leaf wins, so that runs are repeatable.
#[derive(Clone, Debug)]
pub(crate) struct Tournament {
    times: Vec<u64>,
    /// `winners[1]` is the final, the children of `at` are `2 at` and `2 at + 1`; leaves are behind the inner matches.
    winners: Vec<u32>,
}

impl Tournament {
    /// So many leaves, all without an event.
    pub(crate) fn new(leaves: usize) -> Tournament {
        let width = leaves.next_power_of_two().max(2);
        let mut tree = Tournament {
            times: vec![NEVER; width],
            winners: vec![0; 2 * width],
        };
        for leaf in 0..width {
            tree.winners[width + leaf] = u32::try_from(leaf).expect("few stations");
        }
        for leaf in 0..width {
            tree.set(leaf, NEVER);
        }
        tree
    }

    /// When a leaf has its next event.
    pub(crate) fn set(&mut self, leaf: usize, time: u64) {
        self.times[leaf] = time;
        let mut at = (self.times.len() + leaf) / 2;
        while at > 0 {
            let (left, right) = (self.winners[2 * at], self.winners[2 * at + 1]);
            let is_right = self.times[right as usize] < self.times[left as usize];
            self.winners[at] = if is_right { right } else { left };
            at /= 2;
        }
    }

    /// The next event: its time and its leaf.
    pub(crate) fn first(&self) -> (u64, usize) {
        let leaf = self.winners[1] as usize;
        (self.times[leaf], leaf)
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
