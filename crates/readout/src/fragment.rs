//! Checks of fragments: the event counters of one E-link go on by one, and the bytes are those that
//! the emulator makes.

use daqmeter_wire::felix::Elink;
use daqmeter_wire::felix::order::{SequenceHint, SequenceStep, SequenceTracker};
use daqmeter_wire::felix::payload::{EmulatorHeader, Ttc};

use crate::accounts::counts;
use crate::similar::{MIN_ALIKE, SimilarByStride};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct FragmentFaults {
    /// Events missing by the counters: a lower bound, as the emulator's counter wraps after 256.
    pub missing: u64,
    pub duplicates: u64,
    pub out_of_order: u64,
    pub resets: u64,
    /// Falls of the counter to 0 that may be resets or losses.
    pub falls: u64,
    /// Events missing if all of those are losses.
    pub falls_missing: u64,
    pub payload: u64,
    pub wrong_elink: u64,
}

counts! {
    FragmentFaults:
    missing, duplicates, out_of_order, resets, falls, falls_missing, payload, wrong_elink
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FragmentFinding {
    Missing(u32),
    Duplicate,
    OutOfOrder,
    /// The trigger system reset the counter; this many events are missing since.
    Reset(u32),
    /// The counter fell to 0: a reset, or this many events are missing before it.
    Fell(u32),
    Payload,
    /// Names an E-link of this index.
    WrongElink(u8),
}

#[derive(Clone, Debug, Default)]
pub struct FragmentCheck {
    is_ttc: bool,
    /// Index that the emulator writes into its fragments; `None` if the E-link is unknown.
    index: Option<u8>,
    /// Width of the E-link, by its first fragment with a valid width.
    pub(crate) width: Option<u8>,
    order: SequenceTracker,
    way: SequenceHint,
    usual_way: SequenceHint,
    /// Resets of the counter so far, by the trigger system's messages.
    resets: Option<u8>,
    /// The fragment before, to which the next is compared: all but the counter stays the same.
    pattern: Vec<u8>,
    pub faults: FragmentFaults,
}

impl FragmentCheck {
    /// Makes the check of an E-link. The trigger system's E-link has other fragments.
    pub fn new(elink: Option<Elink>) -> FragmentCheck {
        let (is_ttc, index) = (elink == Some(Elink::TTC), elink.map(Elink::index));
        FragmentCheck { is_ttc, index, ..FragmentCheck::default() }
    }

    pub(crate) fn of_blocks(elink: Elink) -> FragmentCheck {
        let (way, usual_way) = (SequenceHint::Whole, SequenceHint::Whole);
        FragmentCheck { way, usual_way, ..FragmentCheck::new(Some(elink)) }
    }

    /// Notes that fragments were lost: the next counter is ahead by any number.
    pub fn gap(&mut self) {
        self.next_by(SequenceHint::Gap);
    }

    /// The next fragment may be ahead or behind.
    pub(crate) fn disorder(&mut self) {
        self.next_by(SequenceHint::Unknown);
    }

    fn next_by(&mut self, way: SequenceHint) {
        self.way = way;
        // The next fragment is compared in full.
        self.pattern.clear();
    }

    /// Takes the next fragment; returns a fault or an announced reset.
    #[inline]
    pub fn check(&mut self, payload: &[u8]) -> Option<FragmentFinding> {
        let event = payload.get(3).copied();
        if let Some(event) = event
            && self.pattern.len() == payload.len()
            && self.order.expected() == Some(u32::from(event))
            && !self.is_ttc
            && same_but_counter(&self.pattern, payload)
        {
            self.order.advance(u32::from(event), EVENTS);
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
        let next = (u32::from(event) + 1) % EVENTS;
        let is_usual = self.pattern.len() == last.len()
            && self.order.expected() == Some(next)
            && same_but_counter(&self.pattern, last);
        if is_usual && count > 0 {
            let count = u32::try_from(count).expect("a block has fewer fragments");
            self.order.advance((u32::from(event) + count) % EVENTS, EVENTS);
        }
        is_usual
    }

    /// Takes a fragment that was cut off: only its counter is looked at, if it has one.
    pub fn cut(&mut self, payload: &[u8]) -> Option<FragmentFinding> {
        match payload.get(3) {
            Some(&event) if !self.is_ttc => self.follow(u32::from(event), EVENTS),
            _ => None,
        }
    }

    fn check_any(&mut self, payload: &[u8], event: Option<u8>) -> Option<FragmentFinding> {
        if self.is_ttc {
            return self.check_ttc(payload);
        }
        if !EmulatorHeader::is_in(payload) || !self.has_width(payload) {
            self.faults.payload += 1;
            return Some(FragmentFinding::Payload);
        }
        // One that is too short for a counter.
        let event = event?;
        // Its counter is that of another E-link: it says nothing about this one's.
        if let (Some(index), Some(&found)) = (self.index, payload.get(4))
            && index != found
        {
            self.faults.wrong_elink += 1;
            return Some(FragmentFinding::WrongElink(found));
        }
        payload.clone_into(&mut self.pattern);
        self.follow(u32::from(event), EVENTS)
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
        let Some(ttc) = Ttc::parse(payload).filter(Ttc::is_consistent) else {
            self.faults.payload += 1;
            return Some(FragmentFinding::Payload);
        };
        let since = self.resets.map_or(0, |before| ttc.ecr.wrapping_sub(before));
        if since >= 128 {
            // A trigger from before the last reset.
            self.faults.out_of_order += 1;
            return Some(FragmentFinding::OutOfOrder);
        }
        self.resets = Some(ttc.ecr);
        if since == 0 {
            return self.follow(ttc.l1id, TRIGGERS);
        }
        self.order = SequenceTracker::default();
        self.follow(ttc.l1id, TRIGGERS);
        self.faults.resets += u64::from(since);
        // Counting starts at 0.
        self.faults.missing += u64::from(ttc.l1id);
        Some(FragmentFinding::Reset(ttc.l1id))
    }

    fn follow(&mut self, number: u32, modulus: u32) -> Option<FragmentFinding> {
        let way = std::mem::replace(&mut self.way, self.usual_way);
        let to_wrap = self.order.next().map_or(0, |next| modulus - next);
        let faults = &mut self.faults;
        Some(match self.order.step(number, modulus, way) {
            SequenceStep::Next => return None,
            SequenceStep::Missing(count) => {
                faults.missing += u64::from(count);
                FragmentFinding::Missing(count)
            }
            SequenceStep::Late => {
                // It was counted as missing when a later one came.
                faults.missing = faults.missing.saturating_sub(1);
                faults.out_of_order += 1;
                FragmentFinding::OutOfOrder
            }
            SequenceStep::Again => {
                faults.duplicates += 1;
                FragmentFinding::Duplicate
            }
            SequenceStep::Restarted => {
                faults.falls += 1;
                faults.falls_missing += u64::from(to_wrap);
                FragmentFinding::Fell(to_wrap)
            }
        })
    }
}

/// Byte of the emulator's header that holds the width of the E-link, and the valid widths in bits.
const WIDTH_AT: usize = 7;
const WIDTHS: [u8; 4] = [2, 4, 8, 16];

const EVENTS: u32 = 1 << 8;
/// The counter of triggers has 24 bits.
const TRIGGERS: u32 = 1 << 24;

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
                assert_eq!(at_once.order.expected(), each.order.expected());
                assert_eq!(all_alike, wrong == whole.len(), "byte {wrong} of {length}");
            }
        }
    }

    #[test]
    fn counters_go_on_over_their_wrap_and_gaps_are_counted() {
        let mut check = FragmentCheck::new(None);
        events(&mut check, (0..=255).chain(0..10).chain(15..20));
        assert_eq!(check.faults, FragmentFaults { missing: 5, ..FragmentFaults::default() });
        check.gap();
        assert_eq!(
            events(&mut check, [18]),
            [Some(FragmentFinding::Missing(254))],
            "back by two is forward by 254"
        );
    }

    #[test]
    fn what_comes_again_or_late_or_from_0_is_not_missing() {
        let faults = |numbers: &[u8]| {
            let mut check = FragmentCheck::of_blocks(Elink::new(8));
            events(&mut check, numbers.iter().copied());
            let FragmentFaults { missing, duplicates, out_of_order, resets, .. } = check.faults;
            [missing, duplicates, out_of_order, resets]
        };
        assert_eq!(faults(&[1, 2, 2, 3]), [0, 1, 0, 0]);
        assert_eq!(faults(&[1, 2, 3, 1, 2, 3, 4]), [0, 3, 0, 0]);
        assert_eq!(faults(&[1, 2, 5, 6, 3, 4, 7]), [0, 0, 2, 0]);
        assert_eq!(faults(&[1, 2, 5, 6, 4, 7]), [1, 0, 1, 0], "the third never comes");
        assert_eq!(faults(&[198, 199, 0, 1]), [0; 4]);
        let mut check = FragmentCheck::of_blocks(Elink::new(8));
        let found = events(&mut check, [198, 199, 0, 1]);
        assert_eq!(found[2], Some(FragmentFinding::Fell(56)));
        let mut check = FragmentCheck::of_blocks(Elink::new(8));
        let found = events(&mut check, [253, 254, 0]);
        assert_eq!(found[2], Some(FragmentFinding::Fell(1)), "255 is lost, or it is a reset");
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
        let makes: [fn(Elink) -> FragmentCheck; 2] =
            [FragmentCheck::of_blocks, |elink| FragmentCheck::new(Some(elink))];
        for make in makes {
            for (length, flipped) in [(24, 0), (24, 1), (24, 2), (6, 0), (6, 2)] {
                for bit in 0..8 * length {
                    let mut check = make(elink);
                    for event in 0..4_u8 {
                        let mut bytes = fragment(40 + event, length);
                        if event == flipped {
                            bytes[bit / 8] ^= 1 << (bit % 8);
                        }
                        check.check(&bytes);
                    }
                    let found = check.faults;
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
        assert_eq!(check.faults, FragmentFaults { missing: 2, ..FragmentFaults::default() });
        let mut wrong = ttc(0, 0x100_0004);
        wrong[16] ^= 1;
        assert_eq!(check.check(&wrong), Some(FragmentFinding::Payload));
    }

    #[test]
    fn a_reset_of_the_trigger_counter_is_no_loss() {
        let mut check = FragmentCheck::new(Some(Elink::TTC));
        let triggers = [(3, 49), (3, 50), (4, 0), (4, 1), (6, 2), (6, 3), (5, 7), (6, 4)];
        let found = triggers.map(|(ecr, l0id)| check.check(&ttc(ecr, l0id)));
        use FragmentFinding::{OutOfOrder, Reset};
        // After the second one, which is of two, the first two triggers are missing.
        let (first, second, late) = (Some(Reset(0)), Some(Reset(2)), Some(OutOfOrder));
        assert_eq!(found, [None, None, first, None, second, None, late, None]);
        assert_eq!(
            check.faults,
            FragmentFaults { missing: 2, resets: 3, out_of_order: 1, ..FragmentFaults::default() }
        );
    }
}
