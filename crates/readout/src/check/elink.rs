//! The blocks of one E-link: their order, their chunks, and the contents of these.

use daqmeter_wire::felix::block::FelixHeader;
use daqmeter_wire::felix::decoder::{BlockParts, ChunkPart, ChunkRun, parts};
use daqmeter_wire::felix::order::{SequenceHint, SequenceStep, SequenceTracker};
use daqmeter_wire::felix::{BlockError, BlockFormat, Elink, Reassembler, Subchunk};

use super::tables::{ElinkRow, Findings, fault};
use crate::fragment::{FragmentCheck, FragmentFinding};
use crate::repeats::{Fingerprint, fingerprint};
use crate::similar::SimilarByStride;

/// State that the checks of all E-links share.
#[derive(Debug, Default)]
pub(super) struct Common {
    pub(super) level: u8,
    pub(super) strides: SimilarByStride,
    pub(super) room: Vec<Subchunk>,
    pub(super) findings: Findings,
}

/// Block that is checked.
struct Looked<'a> {
    block: &'a [u8],
    level: u8,
    strides: &'a mut SimilarByStride,
    findings: &'a mut Findings,
}

const SEQUENCES: u32 = 32;

#[derive(Debug)]
pub(super) struct ElinkCheck {
    reassembler: Reassembler,
    order: SequenceTracker,
    fingerprints: [Fingerprint; 32],
    fragments: FragmentCheck,
    partial: Vec<u8>,
    open_bytes: usize,
    /// Counts that the reassembler and the check of fragments do not have.
    row: ElinkRow,
}

impl ElinkCheck {
    pub(super) fn new(elink: Elink) -> ElinkCheck {
        ElinkCheck {
            reassembler: Reassembler::new(),
            order: SequenceTracker::default(),
            fingerprints: [[0; 48]; 32],
            fragments: FragmentCheck::of_blocks(elink),
            partial: Vec::new(),
            open_bytes: 0,
            row: ElinkRow { elink: elink.number(), smallest: u64::MAX, ..ElinkRow::default() },
        }
    }

    pub(super) fn block(
        &mut self,
        format: BlockFormat,
        header: FelixHeader,
        block: &[u8],
        common: &mut Common,
    ) {
        let Common { level, strides, room, findings } = common;
        if *level == 0 {
            self.reassembler.counts.blocks += 1;
            return;
        }
        let (number, before) = (self.row.elink, self.reassembler.counts);
        let was_open = self.reassembler.is_open();
        if self.is_repeated(header, block, findings) {
            return;
        }
        let mut looked = Looked { block, level: *level, strides, findings };
        match parts(format, block, room) {
            Ok((header, found)) => self.chunks(header, &found, &mut looked),
            Err(error) => {
                self.unreadable();
                let what = match error {
                    BlockError::Undefined { .. } => fault::UNDEFINED,
                    _ => fault::LENGTH,
                };
                looked.findings.fault(what, || format!("E-link {number:#05x}: {error}"));
            }
        }
        let after = self.reassembler.counts;
        if *level < 2 {
            return;
        }
        // Chunks that a gap cut off are that gap's fault.
        let explained = u64::from(was_open && after.blocks_missing > before.blocks_missing);
        if after.blocks > before.blocks && after.chunks_broken > before.chunks_broken + explained {
            findings.fault(fault::NOT_ENDED, || format!("E-link {number:#05x}: a chunk was open"));
        }
        if after.orphans > before.orphans {
            findings.fault(fault::ORPHAN, || format!("E-link {number:#05x}"));
        }
    }

    /// Compares the block's number with that of the block before; true for one that came already.
    fn is_repeated(&mut self, header: FelixHeader, block: &[u8], findings: &mut Findings) -> bool {
        let (number, seen) = (self.row.elink, u32::from(header.sequence));
        let fingerprint = fingerprint(block);
        let before =
            std::mem::replace(&mut self.fingerprints[usize::from(header.sequence)], fingerprint);
        if self.order.expected() == Some(seen) {
            self.order.advance(seen, SEQUENCES);
            return false;
        }
        let expected = self.order.next();
        // Further back it would be ahead as well, and blocks of constant data are all alike.
        let behind = |next: u32| next.wrapping_sub(seen) % SEQUENCES;
        let is_behind = expected.is_some_and(|next| (1..=SEQUENCES / 2).contains(&behind(next)));
        if is_behind && before == fingerprint {
            self.reassembler.counts.blocks += 1;
            self.row.duplicate_blocks += 1;
            findings
                .fault(fault::DUPLICATE_BLOCK, || format!("E-link {number:#05x}: number {seen}"));
            return true;
        }
        match self.order.step(seen, SEQUENCES, SequenceHint::New) {
            SequenceStep::Missing(count) => {
                self.row.missing_blocks += u64::from(count);
                self.fragments.gap();
                let expected = expected.unwrap_or(0);
                findings.fault(fault::SEQUENCE, || {
                    format!("E-link {number:#05x}: expected {expected}, seen {seen}")
                });
            }
            SequenceStep::Late => {
                self.row.missing_blocks = self.row.missing_blocks.saturating_sub(1);
                self.row.late_blocks += 1;
                self.fragments.disorder();
                findings
                    .fault(fault::LATE_BLOCK, || format!("E-link {number:#05x}: number {seen}"));
            }
            SequenceStep::Next | SequenceStep::Again | SequenceStep::Restarted => {
                self.fragments.disorder();
            }
        }
        false
    }

    fn unreadable(&mut self) {
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
    fn chunks(&mut self, header: FelixHeader, found: &BlockParts<'_>, looked: &mut Looked<'_>) {
        self.reassembler.begin(header);
        self.some(found.before, true, looked);
        if let Some(run) = found.run {
            self.run(run, found.before.is_empty(), looked);
        }
        self.some(found.behind, false, looked);
    }

    fn some(&mut self, found: &[Subchunk], begins_block: bool, looked: &mut Looked<'_>) {
        for (at, subchunk) in found.iter().enumerate() {
            self.one(subchunk, begins_block && at == 0, looked);
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
        let length = run.length() as u64;
        self.row.smallest = self.row.smallest.min(length);
        self.row.largest = self.row.largest.max(length);
        self.row.bytes += run.count as u64 * length;
        if looked.level >= 3 {
            self.payloads(run, looked);
        }
    }

    fn payloads(&mut self, run: ChunkRun, looked: &mut Looked<'_>) {
        let (begin, length, stride) = (run.begin(), run.length(), run.stride);
        let (elink, others) = (self.row.elink, run.count - 1);
        let bytes = &looked.block[begin..begin + others * stride + length];
        let mut say = |at, finding| looked.findings.say(elink, begin + at, finding);
        if let Some(finding) = self.fragments.check(&bytes[..length]) {
            say(0, finding);
        }
        self.fragments.check_alike(bytes, length, stride, others, looked.strides, say);
    }

    fn one(&mut self, subchunk: &Subchunk, begins_block: bool, looked: &mut Looked<'_>) {
        let Some(part) = self.reassembler.part(subchunk, begins_block) else {
            return;
        };
        let ChunkPart { begins, ends, begin, length, flags } = part;
        if begins {
            self.open_bytes = 0;
            self.partial.clear();
        }
        self.open_bytes += length;
        self.row.bytes += length as u64;
        if ends {
            self.row.cut_events += u64::from(flags.truncated);
            self.row.flagged_events += u64::from(!flags.truncated && (flags.error || flags.crc));
            self.row.smallest = self.row.smallest.min(self.open_bytes as u64);
            self.row.largest = self.row.largest.max(self.open_bytes as u64);
        }
        if looked.level < 3 {
            return;
        }
        let payload = &looked.block[begin..begin + length];
        // A chunk of several blocks is checked when its last part is there.
        let is_whole = begins && ends;
        if !is_whole {
            self.partial.extend_from_slice(payload);
        }
        let chunk = if is_whole { payload } else { &self.partial[..] };
        let finding: Option<FragmentFinding> = match (ends, flags.truncated) {
            (false, _) => None,
            (true, true) => self.fragments.cut(chunk),
            (true, false) => self.fragments.check(chunk),
        };
        if let Some(finding) = finding {
            looked.findings.say(self.row.elink, begin, finding);
        }
    }

    pub(super) fn row(&self) -> ElinkRow {
        let counts = &self.reassembler.counts;
        let is_ttc = self.row.elink == Elink::TTC.number();
        ElinkRow {
            blocks: counts.blocks,
            subchunks: counts.subchunks,
            chunks: counts.chunks,
            chunks_with_timeouts: counts.ended(),
            smallest: if counts.ended() > 0 { self.row.smallest } else { 0 },
            width: if is_ttc { 0 } else { self.fragments.width.unwrap_or(0) },
            flags: [counts.truncated, counts.errors, counts.crc_errors, counts.busy],
            events: self.fragments.faults,
            ..self.row
        }
    }
}
