//! Checks of fragments: the event counters of one E-link go on by one, and the bytes are those that
//! the emulator makes.

use daqmeter_wire::felix::Elink;
use daqmeter_wire::felix::payload::{BUNCHES_PER_ORBIT, EmulatorHeader, Ttc};

use crate::accounts::counts;
use crate::similar::{MIN_ALIKE, SimilarByStride};
use crate::witness::{BLOCK_WRAP, Judged, Track};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct FragmentFaults {
    /// Events missing by all counters together: the fewest, where these have several readings.
    pub missing: u64,
    pub duplicates: u64,
    pub out_of_order: u64,
    pub resets: u64,
    /// Places at which more events may be missing.
    pub unclear: u64,
    /// Events missing in addition if they are.
    pub unclear_missing: u64,
    pub payload: u64,
    pub wrong_elink: u64,
}

counts! {
    FragmentFaults:
    missing, duplicates, out_of_order, resets, unclear, unclear_missing, payload, wrong_elink
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FragmentFinding {
    /// The fragment before it came again.
    Duplicate,
    /// The trigger system reset its counter.
    Reset,
    Payload,
    /// Names an E-link of this index.
    WrongElink(u8),
}

#[derive(Clone, Debug, Default)]
pub struct FragmentCheck {
    pub(crate) is_ttc: bool,
    /// Index that the emulator writes into its fragments; `None` if the E-link is unknown.
    index: Option<u8>,
    /// Width of the E-link, by its first fragment with a valid width.
    pub(crate) width: Option<u8>,
    pub(crate) track: Track,
    triggers: Triggers,
    /// The fragment before, to which the next is compared: all but the counter stays the same.
    pattern: Vec<u8>,
    pub faults: FragmentFaults,
}

/// Counters of the trigger system.
#[derive(Clone, Debug, Default)]
struct Triggers {
    before: Option<Ttc>,
    /// True if the number of accepts goes on by one, so that it counts over resets.
    has_accepts: Option<bool>,
    /// A message whose numbers contradict each other.
    odd: Option<Ttc>,
    count: u64,
}

impl FragmentCheck {
    /// Makes the check of an E-link. The trigger system's E-link has other fragments.
    pub fn new(elink: Option<Elink>) -> FragmentCheck {
        let (is_ttc, index) = (elink == Some(Elink::TTC), elink.map(Elink::index));
        let track = Track::new(if is_ttc { TRIGGERS } else { EVENTS });
        FragmentCheck { is_ttc, index, track, ..FragmentCheck::default() }
    }

    /// Makes the check of the order of blocks alone.
    pub(crate) fn of_blocks() -> FragmentCheck {
        FragmentCheck { track: Track::new(BLOCK_WRAP), ..FragmentCheck::default() }
    }

    /// Triggers of the trigger system so far, with those missing; 0 for other E-links.
    pub(crate) fn triggers(&self) -> u64 {
        self.triggers.count
    }

    /// Returns the faults with those that all streams together show.
    pub(crate) fn judged(&self, judged: &Judged) -> FragmentFaults {
        let gaps = || judged.gaps.iter();
        let [unkept, jumps] = self.track.unkept;
        let further = gaps().filter_map(|gap| gap.or.map(|or| or.saturating_sub(gap.missing)));
        FragmentFaults {
            missing: gaps().map(|gap| gap.missing).sum::<u64>() + unkept,
            unclear: gaps().filter(|gap| gap.or.is_some()).count() as u64 + jumps,
            unclear_missing: further.sum::<u64>() + jumps,
            out_of_order: judged.late.iter().map(|(_, events, _)| events).sum(),
            payload: self.faults.payload + judged.wrong.len() as u64,
            ..self.faults
        }
    }

    /// Takes the next fragment; returns a fault or an announced reset.
    #[inline]
    pub fn check(&mut self, payload: &[u8]) -> Option<FragmentFinding> {
        let event = payload.get(3).copied();
        if let Some(event) = event
            && self.pattern.len() == payload.len()
            && self.track.is_next(event.into())
            && !self.is_ttc
            && same_but_counter(&self.pattern, payload)
        {
            self.track.advance(1);
            return None;
        }
        self.check_any(payload, event)
    }

    /// Checks `count` fragments after the one at the beginning of the bytes, which was taken. All
    /// have its length, and each begins a stride after the one before.
    #[inline]
    pub(crate) fn check_alike(
        &mut self,
        bytes: &[u8],
        length: usize,
        stride: usize,
        count: usize,
        strides: &mut SimilarByStride,
        mut say: impl FnMut(usize, FragmentFinding),
    ) {
        // All others are like the first, or each is checked.
        if count >= MIN_ALIKE
            && strides.of(stride).holds(bytes)
            && self.is_repeated(&bytes[..length], count)
        {
            return;
        }
        for at in (1..=count).map(|nth| nth * stride) {
            if let Some(finding) = self.check(&bytes[at..at + length]) {
                say(at, finding);
            }
        }
    }

    /// Takes `count` fragments that equal `last`, the one before them, but for their counters,
    /// which go on by one. Takes none and returns false if the last one was not valid.
    fn is_repeated(&mut self, last: &[u8], count: usize) -> bool {
        let Some(&event) = last.get(3).filter(|_| !self.is_ttc) else {
            return false;
        };
        let next = (u64::from(event) + 1) % EVENTS;
        let is_usual = self.pattern.len() == last.len()
            && self.track.is_next(next)
            && same_but_counter(&self.pattern, last);
        if is_usual {
            self.track.advance(count as u64);
        }
        is_usual
    }

    /// Takes a fragment that was cut off: only its counter is looked at, if it has one.
    pub fn cut(&mut self, payload: &[u8]) {
        match payload.get(3) {
            Some(&event) if !self.is_ttc => self.track.event(event.into(), 0),
            _ => self.track.damaged(),
        }
    }

    fn check_any(&mut self, payload: &[u8], event: Option<u8>) -> Option<FragmentFinding> {
        if self.is_ttc {
            return self.check_ttc(payload);
        }
        if !EmulatorHeader::is_in(payload) || !self.has_width(payload) {
            return Some(self.damaged());
        }
        // One that is too short for a counter.
        let event = event?;
        // Its counter is that of another E-link: it says nothing about this one's.
        if let (Some(index), Some(&found)) = (self.index, payload.get(4))
            && index != found
        {
            self.faults.wrong_elink += 1;
            self.track.foreign();
            return Some(FragmentFinding::WrongElink(found));
        }
        let is_equal =
            self.pattern.len() == payload.len() && same_but_counter(&self.pattern, payload);
        if is_equal && self.track.is_last(event.into()) {
            // Or its number is wrong: then the next one is ahead.
            self.track.foreign();
            self.faults.duplicates += 1;
            return Some(FragmentFinding::Duplicate);
        }
        payload.clone_into(&mut self.pattern);
        self.track.event(event.into(), 0);
        None
    }

    fn damaged(&mut self) -> FragmentFinding {
        self.faults.payload += 1;
        self.track.damaged();
        FragmentFinding::Payload
    }

    /// True if a fragment names a valid width that equals that of those before it, or is too short
    /// to name one.
    fn has_width(&mut self, payload: &[u8]) -> bool {
        let Some(&found) = payload.get(WIDTH_AT) else {
            return true;
        };
        WIDTHS.contains(&found) && *self.width.get_or_insert(found) == found
    }

    fn check_ttc(&mut self, payload: &[u8]) -> Option<FragmentFinding> {
        let is_possible = |ttc: &Ttc| ttc.is_consistent() && ttc.bcid < BUNCHES_PER_ORBIT;
        let Some(ttc) = Ttc::parse(payload).filter(is_possible) else {
            return Some(self.damaged());
        };
        let Some(before) = self.triggers.before else {
            self.triggers.before = Some(ttc);
            self.triggers.count += 1;
            self.track.event(ttc.l1id.into(), ttc.ecr);
            return None;
        };
        if ttc == before {
            self.faults.duplicates += 1;
            return Some(FragmentFinding::Duplicate);
        }
        let has_accepts = *self.triggers.has_accepts.get_or_insert_with(|| {
            let counts = ttc.accepts != before.accepts && before.accepts > 0;
            if counts {
                self.track.renumber(ACCEPTS, before.accepts);
            }
            counts
        });
        let since = ttc.ecr.wrapping_sub(before.ecr);
        let by_l1id = u64::from(ttc.l1id.wrapping_sub(before.l1id)) % TRIGGERS;
        let by_accepts = ttc.accepts.wrapping_sub(before.accepts) % ACCEPTS;
        let goes_on = |odd: Ttc| ttc.ecr == odd.ecr && ttc.l1id == (odd.l1id + 1) % (1 << 24);
        let is_confirmed = self.triggers.odd.take().is_some_and(goes_on);
        let is_reset = since > 0 && (by_l1id != 1 || ttc.l1id == 0 || is_confirmed);
        // One message with a wrong number keeps its place, unless the next one goes on from it.
        let contradicts = match has_accepts {
            true => !is_reset && (since > 0 || by_l1id != by_accepts % TRIGGERS),
            false => since > 0 && (!is_reset || since >= 128),
        };
        if contradicts && !is_confirmed {
            let l1id = (before.l1id + 1) % (1 << 24);
            let accepts = (before.accepts + 1) % ACCEPTS;
            self.triggers.before = Some(Ttc { l1id, accepts, ..before });
            (self.triggers.odd, self.triggers.count) = (Some(ttc), self.triggers.count + 1);
            return Some(self.damaged());
        }
        if is_confirmed {
            self.faults.payload -= 1;
            self.track.restored();
        }
        self.triggers.before = Some(ttc);
        let number = if has_accepts { ttc.accepts } else { ttc.l1id.into() };
        let step = if has_accepts { by_accepts } else { by_l1id };
        let wrap = if has_accepts { ACCEPTS } else { TRIGGERS };
        let restarts = is_reset && (!has_accepts || step > wrap / 2);
        self.triggers.count = match step <= wrap / 2 || restarts {
            _ if restarts => self.triggers.count + u64::from(ttc.l1id) + 1,
            true => self.triggers.count + step,
            false => self.triggers.count.saturating_sub(wrap - step),
        };
        self.track.event(number, ttc.ecr);
        if is_reset && since < 128 {
            self.faults.resets += u64::from(since);
            self.track.reset(ttc.ecr);
            return Some(FragmentFinding::Reset);
        }
        let goes_back = (ttc.orbit, ttc.bcid) < (before.orbit, before.bcid);
        if step == 1 && goes_back && before.orbit.wrapping_sub(ttc.orbit) < 1 << 31 {
            self.faults.payload += 1;
            return Some(FragmentFinding::Payload);
        }
        None
    }
}

/// Byte of the emulator's header that holds the width of the E-link, and the valid widths in bits.
const WIDTH_AT: usize = 7;
const WIDTHS: [u8; 4] = [2, 4, 8, 16];

const EVENTS: u64 = 1 << 8;
/// The counter of triggers has 24 bits, that of accepts 48.
const TRIGGERS: u64 = 1 << 24;
const ACCEPTS: u64 = 1 << 48;

/// True if two fragments of one length differ in their counter at most. The comparison is by words,
/// and masks the counter out of the first. A byte written into the pattern just before a word is
/// read from it would stall the core.
#[inline]
fn same_but_counter(a: &[u8], b: &[u8]) -> bool {
    let (Some((first_a, a)), Some((first_b, b))) =
        (a.split_first_chunk::<8>(), b.split_first_chunk::<8>())
    else {
        return a[..3] == b[..3] && a.get(4..) == b.get(4..);
    };
    const COUNTER: u64 = u64::from_le_bytes([0, 0, 0, 0xFF, 0, 0, 0, 0]);
    let mut differ = (u64::from_le_bytes(*first_a) ^ u64::from_le_bytes(*first_b)) & !COUNTER;
    let (mut words_a, mut words_b) = (a.chunks_exact(8), b.chunks_exact(8));
    for (a, b) in words_a.by_ref().zip(words_b.by_ref()) {
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        differ |= word(a) ^ word(b);
    }
    differ == 0 && (words_a.remainder().is_empty() || words_a.remainder() == words_b.remainder())
}

#[cfg(test)]
mod tests {
    use daqmeter_wire::felix::payload::EmulatorHeader;

    use super::*;
    use crate::witness;

    fn fragment(event: u8, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let header = EmulatorHeader {
            length: u16::try_from(length & 0xFFFF).unwrap(),
            event,
            elink_index: 8,
            width: 8,
        };
        header.fill(&mut bytes);
        bytes
    }

    fn events(
        check: &mut FragmentCheck,
        events: impl IntoIterator<Item = u8>,
    ) -> Vec<Option<FragmentFinding>> {
        events.into_iter().map(|event| check.check(&fragment(event, 24))).collect()
    }

    #[test]
    fn one_changed_byte_is_seen_wherever_it_is_but_in_the_counter() {
        for length in 4..70 {
            let usual = fragment(7, length);
            for at in 0..length {
                let mut changed = usual.clone();
                changed[at] ^= 0x10;
                assert_eq!(same_but_counter(&usual, &changed), at == 3, "{at} of {length}");
            }
        }
    }

    #[test]
    fn fragments_that_repeat_are_checked_as_one_by_one() {
        const COUNT: usize = 12;
        for length in [4, 24, 30, 60] {
            let stride = length + 4;
            let similar = daqmeter_kernels::Similar::new(stride, 3, 1 << 10);
            let one = |at: u8| [fragment(250_u8.wrapping_add(at), length), vec![9; 4]].concat();
            let whole: Vec<u8> = (0..12).flat_map(one).collect();
            for wrong in 0..=whole.len() {
                let mut block = whole.clone();
                if let Some(byte) = block.get_mut(wrong) {
                    *byte ^= 0x21;
                }
                let payload = |at: usize| &block[at * stride..][..length];
                let (mut each, mut at_once) = (FragmentCheck::new(None), FragmentCheck::new(None));
                let found: Vec<Option<FragmentFinding>> =
                    (0..COUNT).map(|at| each.check(payload(at))).collect();
                let mut found_at_once = vec![at_once.check(payload(0))];
                let all_alike = similar.holds(&block) && at_once.is_repeated(payload(0), COUNT - 1);
                found_at_once.extend((1..COUNT).map(|at| match all_alike {
                    true => None,
                    false => at_once.check(payload(at)),
                }));
                assert_eq!(found_at_once, found, "byte {wrong} of {length}");
                assert_eq!(at_once.faults, each.faults);
                assert!((0..EVENTS).all(|at| at_once.track.is_next(at) == each.track.is_next(at)));
                assert_eq!(all_alike, wrong == whole.len(), "byte {wrong} of {length}");
            }
        }
    }

    /// Faults of a stream by itself: missing, may be missing, twice, late.
    fn alone(check: &FragmentCheck) -> [u64; 4] {
        let faults = faults(check);
        [faults.missing, faults.unclear_missing, faults.duplicates, faults.out_of_order]
    }

    fn faults(check: &FragmentCheck) -> FragmentFaults {
        let track = &check.track;
        let stream =
            witness::Witness { track, is_trigger: check.is_ttc, link: 0, is_closed: false };
        check.judged(&witness::solve(&[stream], witness::Moment::default())[0])
    }

    #[test]
    fn what_comes_again_or_late_or_from_0_is_not_missing() {
        let of = |numbers: &mut dyn Iterator<Item = u8>| {
            let mut check = FragmentCheck::new(Some(Elink::new(8)));
            events(&mut check, numbers);
            alone(&check)
        };
        // Of one stream alone nobody knows the turns of its counter.
        assert_eq!(of(&mut (0..=255).chain(0..10).chain(15..20)), [5, 256, 0, 0]);
        for (numbers, expected) in [
            (&[1, 2, 2, 3][..], [0, 0, 1, 0]),
            (&[1, 2, 3, 1, 2, 3, 4], [0, 253, 0, 0]),
            (&[1, 2, 5, 6, 3, 4, 7], [0, 0, 0, 2]),
            (&[1, 2, 5, 6, 4, 7], [1, 256, 0, 1]),
            (&[198, 199, 0, 1], [0, 56, 0, 0]),
            (&[253, 254, 0], [0, 1, 0, 0]),
        ] {
            assert_eq!(of(&mut numbers.iter().copied()), expected, "{numbers:?}");
        }
    }

    #[test]
    fn one_wrong_byte_is_found_wherever_it_is() {
        for length in [4, 7, 8, 9, 24, 300, 70_000] {
            let mut check = FragmentCheck::new(None);
            let mut wrong = fragment(2, length);
            wrong[if length < 8 { 0 } else { length - 1 }] ^= 1;
            let found =
                [fragment(0, length), fragment(1, length), wrong].map(|it| check.check(&it));
            assert_eq!(found, [None, None, Some(FragmentFinding::Payload)], "{length}");
        }
    }

    #[test]
    fn every_bit_that_flips_is_found_in_the_first_fragment_and_in_later_ones() {
        let elink = Elink::new(8);
        {
            for (length, flipped) in [(24, 0), (24, 1), (24, 2), (6, 0), (6, 2)] {
                for bit in 0..8 * length {
                    let mut check = FragmentCheck::new(Some(elink));
                    for event in 0..4_u8 {
                        let mut bytes = fragment(40 + event, length);
                        if event == flipped {
                            bytes[bit / 8] ^= 1 << (bit % 8);
                        }
                        check.check(&bytes);
                    }
                    let found = faults(&check);
                    assert_ne!(
                        found,
                        FragmentFaults::default(),
                        "bit {bit} of {flipped}, {length} B"
                    );
                }
            }
        }
    }

    fn ttc(ecr: u8, l0id: u32) -> [u8; 26] {
        let l1id = l0id & 0xFF_FFFF;
        Ttc { format: 2, bcid: 0, l1id, ecr, orbit: 0, trigger_type: 0, l0id, accepts: 0 }.emit()
    }

    #[test]
    fn trigger_numbers_are_checked_against_each_other_and_in_their_row() {
        let mut check = FragmentCheck::new(Some(Elink::TTC));
        for l0id in [0xFF_FFFE, 0xFF_FFFF, 0x100_0000, 0x100_0003] {
            check.check(&ttc(0, l0id));
        }
        assert_eq!(faults(&check), FragmentFaults { missing: 2, ..FragmentFaults::default() });
        let mut wrong = ttc(0, 0x100_0004);
        wrong[16] ^= 1;
        assert_eq!(check.check(&wrong), Some(FragmentFinding::Payload));
    }

    #[test]
    fn a_reset_of_the_trigger_counter_is_no_loss() {
        let mut check = FragmentCheck::new(Some(Elink::TTC));
        let triggers = [(3, 49), (3, 50), (4, 0), (4, 1), (6, 2), (6, 3), (5, 7), (6, 5)];
        let found = triggers.map(|(ecr, l0id)| check.check(&ttc(ecr, l0id)));
        // A reset that looks like a wrong byte is one if the next message says so, too.
        let (reset, odd) = (Some(FragmentFinding::Reset), Some(FragmentFinding::Payload));
        assert_eq!(found, [None, None, reset, None, odd, reset, odd, None]);
        // After the second one, which is of two, the first triggers are missing. Nothing says how
        // many came just before the resets.
        let found = faults(&check);
        assert_eq!((found.missing, found.resets, found.payload), (3, 3, 1));
        assert_eq!(found.unclear, 2);
    }
}
