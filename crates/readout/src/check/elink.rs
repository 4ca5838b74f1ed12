//! The blocks of one E-link: their order, their chunks, and the contents of these.

use daqmeter_wire::felix::block::FelixHeader;
use daqmeter_wire::felix::decoder::{BlockParts, ChunkPart, ChunkRun};
use daqmeter_wire::felix::order::{SequenceHint, SequenceStep, SequenceTracker};
use daqmeter_wire::felix::{Elink, Reassembler, Subchunk};

use super::tables::ElinkRow;
use crate::fragment::{FragmentCheck, FragmentFinding};
use crate::similar::{MIN_ALIKE, SimilarByStride};

/// Block that is checked, and its findings, each with the place where its chunk begins.
pub(super) struct Looked<'a> {
    pub(super) block: &'a [u8],
    pub(super) level: u8,
    pub(super) strides: &'a mut SimilarByStride,
    pub(super) findings: &'a mut Vec<(usize, FragmentFinding)>,
}

const SEQUENCES: u32 = 32;

#[derive(Debug)]
pub(super) struct ElinkCheck {
    pub(super) reassembler: Reassembler,
    order: SequenceTracker,
    fingerprints: [u64; 32],
    missing_blocks: u64,
    duplicate_blocks: u64,
    late_blocks: u64,
    fragments: FragmentCheck,
    partial: Vec<u8>,
    open_bytes: usize,
    smallest: usize,
    largest: usize,
    bytes: u64,
    cut_events: u64,
    flagged_events: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Next,
    /// Came after a gap.
    Ahead {
        expected: u32,
    },
    Late,
    Again,
}

/// Beginning and end of a block, which tell it from one that came 32 blocks before.
fn fingerprint(block: &[u8]) -> u64 {
    let (Some(head), Some(tail)) = (block.first_chunk::<32>(), block.last_chunk::<16>()) else {
        return 0;
    };
    let words = head.chunks_exact(8).chain(tail.chunks_exact(8));
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    // Each word by a factor of its own, so that no product waits for another. The upper half has a
    // part of every bit.
    let products = words.zip(FACTORS).map(|(bytes, factor)| {
        let word = word(bytes);
        let high = (u128::from(word) * u128::from(factor)) >> 64;
        high as u64 ^ word.wrapping_mul(factor)
    });
    products.fold(0, |sum: u64, product| sum.rotate_left(11) ^ product) | 1
}

/// Odd numbers whose bits look random: the fractions of the square roots of 2, 3, 5, 7, 11 and 13
/// (FIPS 180-4, 5.3.5).
const FACTORS: [u64; 6] = [
    0x6a09_e667_f3bc_c909,
    0xbb67_ae85_84ca_a73b,
    0x3c6e_f372_fe94_f82b,
    0xa54f_f53a_5f1d_36f1,
    0x510e_527f_ade6_82d1,
    0x9b05_688c_2b3e_6c1f,
];

fn behind(next: u32, number: u32) -> u32 {
    next.wrapping_sub(number) % SEQUENCES
}

impl ElinkCheck {
    pub(super) fn new(elink: Elink) -> ElinkCheck {
        ElinkCheck {
            reassembler: Reassembler::new(),
            order: SequenceTracker::default(),
            fingerprints: [0; 32],
            missing_blocks: 0,
            duplicate_blocks: 0,
            late_blocks: 0,
            fragments: FragmentCheck::of_blocks(elink),
            partial: Vec::new(),
            open_bytes: 0,
            smallest: usize::MAX,
            largest: 0,
            bytes: 0,
            cut_events: 0,
            flagged_events: 0,
        }
    }

    pub(super) fn place(&mut self, header: FelixHeader, block: &[u8]) -> Place {
        let sequence = u32::from(header.sequence);
        let fingerprint = fingerprint(block);
        let before =
            std::mem::replace(&mut self.fingerprints[usize::from(header.sequence)], fingerprint);
        if self.order.expected() == Some(sequence) {
            self.order.advance(sequence, SEQUENCES);
            return Place::Next;
        }
        let expected = self.order.next();
        // Further back it would be ahead as well, and blocks of constant data are all alike.
        let is_behind =
            expected.is_some_and(|next| (1..=SEQUENCES / 2).contains(&behind(next, sequence)));
        if is_behind && before == fingerprint {
            self.reassembler.counts.blocks += 1;
            self.duplicate_blocks += 1;
            return Place::Again;
        }
        match self.order.step(sequence, SEQUENCES, SequenceHint::New) {
            SequenceStep::Missing(count) => {
                self.missing_blocks += u64::from(count);
                self.fragments.gap();
                Place::Ahead { expected: expected.unwrap_or(0) }
            }
            SequenceStep::Late => {
                self.missing_blocks = self.missing_blocks.saturating_sub(1);
                self.late_blocks += 1;
                self.fragments.disorder();
                Place::Late
            }
            SequenceStep::Next | SequenceStep::Again | SequenceStep::Restarted => {
                self.fragments.disorder();
                Place::Next
            }
        }
    }

    pub(super) fn unreadable(&mut self) {
        self.reassembler.bad_block();
        self.fragments.gap();
    }

    /// Takes a block with a bad start, which is this E-link's if its number is the next one.
    pub(super) fn bad_start(&mut self, header: FelixHeader) {
        let sequence = u32::from(header.sequence);
        if self.order.expected() == Some(sequence) {
            self.order.advance(sequence, SEQUENCES);
            self.unreadable();
        }
    }

    #[inline]
    pub(super) fn chunks(
        &mut self,
        header: FelixHeader,
        found: &BlockParts<'_>,
        looked: &mut Looked<'_>,
    ) {
        self.reassembler.begin(header);
        self.some(found.before, true, looked);
        if let Some(run) = found.run {
            self.run(run, found.before.is_empty(), looked);
        }
        self.some(found.behind, false, looked);
    }

    fn some(&mut self, found: &[Subchunk], begins_block: bool, looked: &mut Looked<'_>) {
        let mut at = 0;
        while let Some(subchunk) = found.get(at) {
            let begins_block = begins_block && at == 0;
            at += match ChunkRun::at_the_beginning_of(&found[at..]) {
                Some(run) => {
                    self.run(run, begins_block, looked);
                    run.count
                }
                None => {
                    self.one(subchunk, begins_block, looked);
                    1
                }
            };
        }
    }

    fn one(&mut self, subchunk: &Subchunk, begins_block: bool, looked: &mut Looked<'_>) {
        if let Some(part) = self.reassembler.part(subchunk, begins_block) {
            self.part(part, looked.block, looked.level, looked.findings);
        }
    }

    fn run(&mut self, mut run: ChunkRun, begins_block: bool, looked: &mut Looked<'_>) {
        if !self.reassembler.take_run(&run) {
            // It breaks the chunk that is open.
            self.one(&run.first(), begins_block, looked);
            run = run.skip(1);
            self.reassembler.take_run(&run);
        }
        if run.count == 0 {
            return;
        }
        let length = run.length();
        self.smallest = self.smallest.min(length);
        self.largest = self.largest.max(length);
        self.bytes += (run.count * length) as u64;
        if looked.level >= 3 {
            self.payloads(run, looked);
        }
    }

    fn payloads(&mut self, run: ChunkRun, looked: &mut Looked<'_>) {
        let mut left = run;
        while left.count > 0 {
            let begin = left.begin();
            let payload = &looked.block[begin..begin + left.length()];
            if let Some(finding) = self.fragments.check(payload) {
                looked.findings.push((begin, finding));
            }
            let usual = self.alike(left, looked);
            left = left.skip(1 + usual);
        }
    }

    fn alike(&mut self, run: ChunkRun, looked: &mut Looked<'_>) -> usize {
        let (block, length) = (looked.block, run.length());
        let others = run.count - 1;
        let all = run.begin()..run.begin() + run.count * run.stride;
        if run.count >= MIN_ALIKE
            && looked.strides.of(run.stride).holds(&block[all])
            && self.fragments.is_repeated(&block[run.begin()..][..length], others)
        {
            return others;
        }
        let begins = (1..run.count).map(|at| run.begin() + at * run.stride);
        self.fragments.usual(block, begins, length)
    }

    fn part(
        &mut self,
        part: ChunkPart,
        block: &[u8],
        level: u8,
        findings: &mut Vec<(usize, FragmentFinding)>,
    ) {
        if part.begins {
            self.open_bytes = 0;
        }
        self.open_bytes += part.length;
        self.bytes += part.length as u64;
        if part.ends {
            let flags = part.flags;
            self.cut_events += u64::from(flags.truncated);
            self.flagged_events += u64::from(!flags.truncated && (flags.error || flags.crc));
            self.smallest = self.smallest.min(self.open_bytes);
            self.largest = self.largest.max(self.open_bytes);
        }
        if level < 3 {
            return;
        }
        let payload = &block[part.begin..part.begin + part.length];
        let is_whole = part.begins && part.ends;
        if part.begins {
            self.partial.clear();
        }
        // A chunk of several blocks is checked when its last part is there.
        if !is_whole {
            self.partial.extend_from_slice(payload);
        }
        let chunk = if is_whole { payload } else { &self.partial[..] };
        if part.ends
            && let Some(finding) = if part.flags.truncated {
                self.fragments.cut(chunk)
            } else {
                self.fragments.check(chunk)
            }
        {
            findings.push((part.begin, finding));
        }
    }

    pub(super) fn row(&self, elink: u16) -> ElinkRow {
        let counts = &self.reassembler.counts;
        let faults = self.fragments.faults;
        let is_ttc = elink == Elink::TTC.number();
        ElinkRow {
            elink,
            blocks: counts.blocks,
            bytes: self.bytes,
            subchunks: counts.subchunks,
            chunks: counts.chunks,
            chunks_with_timeouts: counts.ended(),
            smallest: if counts.ended() > 0 { self.smallest as u64 } else { 0 },
            largest: self.largest as u64,
            width: if is_ttc { 0 } else { self.fragments.width().unwrap_or(0) },
            flags: [counts.truncated, counts.errors, counts.crc_errors, counts.busy],
            cut_events: self.cut_events,
            flagged_events: self.flagged_events,
            missing_blocks: self.missing_blocks,
            duplicate_blocks: self.duplicate_blocks,
            late_blocks: self.late_blocks,
            missing_events: faults.missing,
            duplicate_events: faults.duplicates,
            late_events: faults.out_of_order,
            resets: faults.resets,
            falls: faults.falls,
            falls_missing: faults.falls_missing,
            wrong_payloads: faults.payload,
            wrong_elinks: faults.wrong_elink,
        }
    }
}
