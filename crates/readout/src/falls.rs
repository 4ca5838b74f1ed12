//! Event counters that fall to 0: a reset of the device, or a loss that ends where the counter
//! wraps.
//!
//! The counter alone cannot tell the two apart. A reset reaches all E-links of a device at one
//! moment: a fall of all together is a reset. If the others count on, it is a loss. Any other fall
//! stays undecided.

use crate::fragment::FragmentFinding;

/// Falls of one E-link that are kept to be judged. Those beyond stay undecided. The emulator's
/// counter wraps after 256 events.
const MAX_FALLS: usize = 256;
/// A loss of more than half the turn of a trigger counter (24 bits) is not believed.
const MAX_LOSS: u32 = 1 << 23;

/// Places of an event: that of the last data of its E-link before it, and its own. Places are
/// ordered in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    before: u64,
    here: u64,
}

#[derive(Clone, Copy, Debug)]
struct Fall {
    span: Span,
    /// Events that are missing if it is a loss; `None` for a reset that the trigger system
    /// announced.
    missing: Option<u32>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Falls {
    first: Option<u64>,
    span: Span,
    all: Vec<Fall>,
    beyond: Judged,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Judged {
    pub(crate) resets: u64,
    pub(crate) missing: u64,
    pub(crate) undecided: u64,
    /// Events missing if all of those are losses.
    pub(crate) undecided_events: u64,
}

impl Falls {
    #[inline]
    pub(crate) fn at(&mut self, place: u64) {
        if self.first.is_none() {
            self.first = Some(place);
        }
        if place != self.span.here {
            self.span = Span { before: self.span.here, here: place };
        }
    }

    pub(crate) fn span(&self) -> Span {
        self.span
    }

    pub(crate) fn keep(&mut self, finding: FragmentFinding, span: Span) {
        let missing = match finding {
            FragmentFinding::Fell(missing) => Some(missing),
            FragmentFinding::Reset(_) => None,
            _ => return,
        };
        let fall = Fall { span, missing };
        if self.all.len() < MAX_FALLS {
            self.all.push(fall);
        } else if let Some(missing) = fall.missing {
            self.beyond.leave(missing);
        }
    }

    /// True if data came up to a place and after it.
    fn goes_on_over(&self, place: u64) -> bool {
        self.first.is_some_and(|first| first <= place) && self.span.here > place
    }
}

impl Judged {
    fn leave(&mut self, missing: u32) {
        self.undecided += 1;
        self.undecided_events += u64::from(missing);
    }
}

/// Judges the falls of E-links, each by the others. `has_all`: these are all E-links of their
/// source.
pub(crate) fn judge(elinks: &[&Falls], has_all: bool) -> Vec<Judged> {
    let mut judged: Vec<Judged> = elinks.iter().map(|falls| falls.beyond).collect();
    let mut next = vec![0; elinks.len()];
    loop {
        let fall_of = |at: usize, next: &[usize]| elinks[at].all.get(next[at]).copied();
        let all = (0..elinks.len()).filter_map(|at| Some((at, fall_of(at, &next)?)));
        let Some((own, first)) = all.min_by_key(|(_, fall)| fall.span.here) else {
            return judged;
        };
        let end = first.span.here;
        // The first fall in time. Another E-link fell with it unless data of that one came in
        // between.
        let is_with = |at: usize| fall_of(at, &next).is_some_and(|fall| fall.span.before <= end);
        let (with, others): (Vec<usize>, Vec<usize>) =
            (0..elinks.len()).partition(|at| is_with(*at));
        let others_go_on = others.iter().any(|at| elinks[*at].goes_on_over(end));
        if others_go_on {
            match first.missing {
                None => {}
                Some(missing) if missing <= MAX_LOSS => judged[own].missing += u64::from(missing),
                Some(missing) => judged[own].leave(missing),
            }
            next[own] += 1;
            continue;
        }
        let is_reset = has_all && with.len() > 1;
        for at in with {
            match fall_of(at, &next).and_then(|fall| fall.missing) {
                None => {}
                Some(_) if is_reset => judged[at].resets += 1,
                Some(missing) => judged[at].leave(missing),
            }
            next[at] += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn falls(places: &[u64], fall: Option<(u64, u32)>) -> Falls {
        let mut falls = Falls::default();
        for place in places {
            falls.at(*place);
            if let Some((_, missing)) = fall.filter(|(at, _)| at == place) {
                falls.keep(FragmentFinding::Fell(missing), falls.span());
            }
        }
        falls
    }

    fn judged(elinks: &[Falls], has_all: bool) -> Vec<[u64; 4]> {
        let elinks: Vec<&Falls> = elinks.iter().collect();
        judge(&elinks, has_all)
            .iter()
            .map(|one| [one.resets, one.missing, one.undecided, one.undecided_events])
            .collect()
    }

    #[test]
    fn a_fall_of_all_together_is_a_reset_one_alone_is_a_loss_and_the_rest_is_undecided() {
        let one = || falls(&[1, 4, 7], Some((4, 56)));
        let other = || falls(&[2, 5, 8], Some((5, 56)));
        let steady = || falls(&[3, 6, 9], None);
        let reset = [1, 0, 0, 0];
        let undecided = [0, 0, 1, 56];
        assert_eq!(judged(&[one(), other()], true), [reset, reset]);
        assert_eq!(judged(&[one(), other()], false), [undecided, undecided]);
        assert_eq!(
            judged(&[one(), other(), steady()], true),
            [[0, 56, 0, 0], [0, 56, 0, 0], [0; 4]]
        );
        assert_eq!(judged(&[one()], true), [undecided]);
        // One after the other is no reset: data of the first had come since.
        let later = falls(&[2, 5, 8], Some((8, 56)));
        assert_eq!(
            judged(&[one(), later], true),
            [[0, 56, 0, 0], undecided],
            "nothing comes after the second"
        );
        // An E-link that ended before, or began afterwards, says nothing.
        let ended = falls(&[2, 3], None);
        let began = falls(&[6, 9], None);
        assert_eq!(judged(&[one(), other(), ended, began], true), [reset, reset, [0; 4], [0; 4]]);
        // Half a turn of the trigger counter was not lost between two of the others' events.
        let ttc = falls(&[1, 4, 7], Some((4, (1 << 24) - 50)));
        assert_eq!(judged(&[ttc, steady()], true)[0], [0, 0, 1, (1 << 24) - 50]);
        // A reset that the trigger system announced is counted already; the others fell with it.
        let mut announced = falls(&[1, 4], None);
        announced.keep(FragmentFinding::Reset(0), announced.span());
        announced.at(7);
        assert_eq!(judged(&[announced, other()], true), [[0; 4], reset]);
    }

    #[test]
    fn falls_beyond_those_that_are_kept_are_undecided() {
        let mut many = Falls::default();
        for place in 0..1000 {
            many.at(place);
            many.keep(FragmentFinding::Fell(2), many.span());
        }
        assert_eq!(many.all.len(), MAX_FALLS);
        assert_eq!(judged(&[many], true), [[0, 0, 1000, 2000]]);
    }
}
