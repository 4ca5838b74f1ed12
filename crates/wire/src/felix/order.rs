//! Sequence numbers that wrap: of blocks (5 bits), of events (8 or 24 bits). Missing, repeated,
//! late and restarted numbers are told apart.
//! A wrapping number does not tell its turns: of two readings the nearer one is taken. A loss of
//! half a turn or more looks like a step back, unless the caller knows of a gap.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceStep {
    Next,
    Missing(u32),
    /// A number that was missing until now: out of order.
    Late,
    Again,
    Restarted,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SequenceTracker {
    next: Option<u32>,
    hole: (u32, u32),
    ahead: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SequenceHint {
    #[default]
    Unknown,
    Gap,
    New,
    Whole,
}

impl SequenceTracker {
    /// Returns the next number without a fault. It is `None` before the first, and while numbers
    /// come that are behind others.
    #[inline]
    pub fn expected(&self) -> Option<u32> {
        if self.ahead.is_none() { self.next } else { None }
    }

    /// Returns the number after the last one.
    #[inline]
    pub fn next(&self) -> Option<u32> {
        self.next
    }

    #[inline]
    pub fn advance(&mut self, number: u32, modulus: u32) {
        self.next = Some((number + 1) % modulus);
    }

    /// Takes the next number, below the modulus, which is a power of two.
    pub fn step(&mut self, number: u32, modulus: u32, way: SequenceHint) -> SequenceStep {
        let after = |from: u32| number.wrapping_sub(from) % modulus;
        let Some(next) = self.next.replace((number + 1) % modulus) else {
            return SequenceStep::Next;
        };
        // All numbers before the furthest one have come, or are missing already.
        let furthest = self.ahead.unwrap_or(next);
        if self.ahead == Some(number) {
            self.ahead = None;
            return SequenceStep::Next;
        }
        if number == next {
            return if self.ahead.is_some() {
                self.behind(number, modulus)
            } else {
                SequenceStep::Next
            };
        }
        let late = self.fills(number, modulus).is_some();
        let is_ahead = match way {
            SequenceHint::Gap => true,
            SequenceHint::New => !late,
            SequenceHint::Unknown | SequenceHint::Whole => after(furthest) < modulus / 2,
        };
        let begins_anew = match way {
            SequenceHint::Whole => number == 0,
            SequenceHint::Unknown => number == 0 && !is_ahead,
            SequenceHint::Gap | SequenceHint::New => false,
        };
        if begins_anew && !late {
            *self = SequenceTracker { next: self.next, ..SequenceTracker::default() };
            return SequenceStep::Restarted;
        }
        if is_ahead {
            (self.hole, self.ahead) = ((furthest, after(furthest)), None);
            return SequenceStep::Missing(after(furthest));
        }
        self.ahead.get_or_insert(next);
        if self.ahead == self.next {
            self.ahead = None;
        }
        self.behind(number, modulus)
    }

    fn fills(&self, number: u32, modulus: u32) -> Option<u32> {
        let place = number.wrapping_sub(self.hole.0) % modulus;
        (place < self.hole.1).then_some(place)
    }

    fn behind(&mut self, number: u32, modulus: u32) -> SequenceStep {
        let Some(place) = self.fills(number, modulus) else {
            return SequenceStep::Again;
        };
        self.hole = ((number + 1) % modulus, self.hole.1 - place - 1);
        SequenceStep::Late
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use SequenceStep::{Again, Late, Missing, Next, Restarted};

    fn steps(numbers: &[u32], modulus: u32, way: SequenceHint) -> Vec<SequenceStep> {
        let mut order = SequenceTracker::default();
        numbers.iter().map(|number| order.step(*number, modulus, way)).collect()
    }

    #[test]
    fn each_way_of_not_being_next_has_its_name() {
        for (numbers, expected) in [
            (&[30, 31, 0, 1][..], &[Next, Next, Next, Next][..]),
            (&[3, 4, 7, 8], &[Next, Next, Missing(2), Next]),
            (&[3, 4, 4, 5], &[Next, Next, Again, Next]),
            (&[3, 5, 4, 6], &[Next, Missing(1), Late, Next]),
            (&[3, 6, 7, 4, 5, 8, 9], &[Next, Missing(2), Next, Late, Late, Next, Next]),
            (&[3, 4, 5, 3, 4, 5, 6, 7], &[Next, Next, Next, Again, Again, Again, Next, Next]),
            (&[3, 4, 5, 0, 1, 2, 3], &[Next, Next, Next, Restarted, Next, Next, Next]),
            (&[9, 10, 8, 9, 10, 11, 12], &[Next, Next, Again, Again, Again, Next, Next]),
            (&[31, 1, 0, 2], &[Next, Missing(1), Late, Next]),
            // After a step back, a loss leads ahead again: only numbers that never came are
            // missing.
            (&[5, 6, 5, 9, 10], &[Next, Next, Again, Missing(2), Next]),
            (&[3, 6, 4, 5, 8, 9], &[Next, Missing(2), Late, Late, Missing(1), Next]),
            (&[3, 4, 5, 6, 7, 4, 6, 8], &[Next, Next, Next, Next, Next, Again, Again, Next]),
        ] {
            assert_eq!(steps(numbers, 32, SequenceHint::Unknown), expected, "{numbers:?}");
        }
    }

    #[test]
    fn what_is_known_of_the_way_decides_where_the_number_alone_cannot() {
        assert_eq!(steps(&[10, 0], 32, SequenceHint::Gap), [Next, Missing(21)]);
        assert_eq!(steps(&[10, 8], 32, SequenceHint::Gap), [Next, Missing(29)]);
        assert_eq!(steps(&[28, 0], 32, SequenceHint::Unknown), [Next, Missing(3)]);
        assert_eq!(steps(&[28, 0], 32, SequenceHint::Whole), [Next, Restarted]);
        assert_eq!(
            steps(&[5, 7, 6, 8, 4], 32, SequenceHint::New),
            [Next, Missing(1), Late, Next, Missing(27)]
        );
    }

    proptest::proptest! {
        #[test]
        fn blocks_that_are_exchanged_are_late_and_none_is_missing(begin in 0..256_u32, first in 1..40_u32, second in 1..40_u32) {
            let (one, two) = (3..3 + first, 3 + first..3 + first + second);
            let numbers = (0..3).chain(two.clone()).chain(one).chain(two.end..200).map(|number| (number + begin) % 256);
            let found = steps(&numbers.collect::<Vec<_>>(), 256, SequenceHint::Unknown);
            let missing: u32 = found.iter().map(|step| if let Missing(count) = step { *count } else { 0 }).sum();
            let late = found.iter().filter(|step| **step == Late).count();
            proptest::prop_assert_eq!((missing, u32::try_from(late).unwrap()), (first, first));
        }
    }
}
