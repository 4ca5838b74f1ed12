//! What a fragment should be: the event counters of one E-link go on by one, and the bytes are those that the emulator makes.

use daqmeter_wire::felix::payload::{EMULATOR_HEADER_BYTES, EmulatorHeader, Ttc};

/// What is wrong with fragments of one E-link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Faults {
    /// Events that are missing by the counters: at least so many, for the emulator's wrap after 256.
    pub missing: u64,
    /// Counters that do not follow the one before.
    pub jumps: u64,
    /// Fragments whose bytes are wrong.
    pub payload: u64,
}

/// Checks the fragments of one E-link, in their order.
#[derive(Clone, Debug)]
pub struct FragmentCheck {
    is_ttc: bool,
    expected: Option<u32>,
    /// The fragment before, to which the next is compared: all but the counter stays the same.
    pattern: Vec<u8>,
    /// What was wrong so far.
    pub faults: Faults,
}

impl FragmentCheck {
    /// For an E-link; the trigger system's has other fragments.
    pub fn new(is_ttc: bool) -> FragmentCheck {
        FragmentCheck { is_ttc, expected: None, pattern: Vec::new(), faults: Faults::default() }
    }

    /// Takes the next fragment.
    #[inline]
    pub fn check(&mut self, payload: &[u8]) {
        let Some(&event) = payload.get(3) else { return self.short(payload) };
        if self.pattern.len() == payload.len()
            && self.expected == Some(u32::from(event))
            && !self.is_ttc
            && same_but_counter(&self.pattern, payload)
        {
            self.expected = Some(u32::from(event.wrapping_add(1)));
            return;
        }
        self.check_any(payload, event);
    }

    /// Takes a fragment that was cut off: only its counter is looked at, if it has one.
    pub fn cut(&mut self, payload: &[u8]) {
        if let (false, Some(&event)) = (self.is_ttc, payload.get(3)) {
            self.follow(u32::from(event), 1 << 8);
        }
    }

    fn check_any(&mut self, payload: &[u8], event: u8) {
        let (number, modulus) = if self.is_ttc {
            let Some(ttc) = Ttc::parse(payload).filter(Ttc::is_consistent) else {
                self.faults.payload += 1;
                return;
            };
            (ttc.l1id, 1 << 24)
        } else {
            if !is_emulated(payload) {
                self.faults.payload += 1;
                return;
            }
            payload.clone_into(&mut self.pattern);
            (u32::from(event), 1 << 8)
        };
        self.follow(number, modulus);
    }

    fn follow(&mut self, number: u32, modulus: u32) {
        if let Some(expected) = self.expected.filter(|expected| *expected != number) {
            self.faults.jumps += 1;
            self.faults.missing += u64::from(number.wrapping_sub(expected) % modulus);
        }
        self.expected = Some((number + 1) % modulus);
    }

    /// Too short for a counter: only the beginning of the header can be looked at.
    fn short(&mut self, payload: &[u8]) {
        let header =
            EmulatorHeader { length: u16::try_from(payload.len()).unwrap_or(0), event: 0, elink_index: 0, width: 8 };
        self.faults.payload += u64::from(header.emit()[..payload.len()] != *payload);
    }
}

/// Whether two fragments of one length differ in their counter at most. By words: the counter is masked out of the first, because a byte
/// written into the pattern just before a word is read from it would stall the core.
#[inline]
fn same_but_counter(a: &[u8], b: &[u8]) -> bool {
    let (Some((first_a, a)), Some((first_b, b))) = (a.split_first_chunk::<8>(), b.split_first_chunk::<8>()) else {
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

/// The emulator's header and pattern; chunks of 64 KiB and more say their length modulo 2^16, short ones have a part of the header.
fn is_emulated(payload: &[u8]) -> bool {
    let Some(head) = payload.first_chunk::<EMULATOR_HEADER_BYTES>() else { return payload[0] == 0xAA };
    let length = usize::from(u16::from_be_bytes([head[1], head[2]]));
    let pattern = payload[EMULATOR_HEADER_BYTES..].iter().zip((0..=255_u8).cycle());
    head[0] == 0xAA
        && head[5] == 0xBB
        && head[6] == 0xAA
        && length == payload.len() & 0xFFFF
        && pattern.into_iter().all(|(found, wanted)| *found == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fragment(event: u8, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let header =
            EmulatorHeader { length: u16::try_from(length & 0xFFFF).unwrap(), event, elink_index: 8, width: 8 };
        header.fill(&mut bytes);
        bytes
    }

    #[test]
    fn counters_go_on_over_their_wrap_and_gaps_are_counted() {
        let mut check = FragmentCheck::new(false);
        for event in (0..=255).chain(0..10).chain(15..20) {
            check.check(&fragment(event, 24));
        }
        assert_eq!(check.faults, Faults { missing: 5, jumps: 1, payload: 0 });
        check.check(&fragment(18, 24));
        assert_eq!(check.faults.missing, 5 + 254, "back by two is forward by 254");
    }

    #[test]
    fn one_wrong_byte_is_found_wherever_it_is() {
        for length in [4, 7, 8, 9, 24, 300, 70_000] {
            let mut check = FragmentCheck::new(false);
            check.check(&fragment(0, length));
            check.check(&fragment(1, length));
            assert_eq!(check.faults, Faults::default(), "{length}");
            let mut wrong = fragment(2, length);
            // The last byte of a header is a width, and may be any: only the mark can be wrong.
            wrong[if length <= 8 { 0 } else { length - 1 }] ^= 1;
            check.check(&wrong);
            assert_eq!(check.faults.payload, 1, "{length}");
        }
    }

    #[test]
    fn trigger_numbers_are_checked_against_each_other_and_in_their_row() {
        let ttc = |l0id: u32| {
            let l1id = l0id & 0xFF_FFFF;
            let fields = (2, 0, 0, 0, 0, 0);
            Ttc { format: fields.0, bcid: fields.1, l1id, ecr: 0, orbit: 0, trigger_type: 0, l0id, accepts: 0 }.emit()
        };
        let mut check = FragmentCheck::new(true);
        for l0id in [0xFF_FFFE, 0xFF_FFFF, 0x100_0000, 0x100_0003] {
            check.check(&ttc(l0id));
        }
        assert_eq!(check.faults, Faults { missing: 2, jumps: 1, payload: 0 });
        let mut wrong = ttc(0x100_0004);
        wrong[16] ^= 1;
        check.check(&wrong);
        assert_eq!(check.faults.payload, 1);
    }
}
