//! The blocks of one E-link: their order, their chunks, and the contents of these.

use daqmeter_wire::felix::block::FelixHeader;
use daqmeter_wire::felix::decoder::{BlockParts, ChunkPart, ChunkRun, parts};
use daqmeter_wire::felix::{BlockError, BlockFormat, Elink, Reassembler, Subchunk, SubchunkKind};

use super::tables::{ElinkRow, Findings, fault};
use crate::fragment::{FragmentCheck, FragmentFinding};
use crate::similar::SimilarByStride;
use crate::witness::{Judged, Moment, Witness};

/// State that the checks of all E-links share.
#[derive(Debug, Default)]
pub(super) struct Common {
    pub(super) level: u8,
    pub(super) strides: SimilarByStride,
    pub(super) room: Vec<Subchunk>,
    pub(super) findings: Findings,
    /// Counts of all E-links up to now.
    pub(super) moment: Moment,
}

/// Block that is checked.
struct Looked<'a> {
    block: &'a [u8],
    level: u8,
    strides: &'a mut SimilarByStride,
    findings: &'a mut Findings,
}

/// Blocks of an E-link among which one that came twice is looked for.
const KNOWN_BLOCKS: usize = 128;

#[derive(Debug)]
pub(super) struct ElinkCheck {
    reassembler: Reassembler,
    /// Number of the next block, and digests of those before it by their count.
    next: Option<u8>,
    first: u8,
    digests: Box<[u64; KNOWN_BLOCKS]>,
    kept: usize,
    is_closed: bool,
    fragments: FragmentCheck,
    partial: Vec<u8>,
    open_bytes: usize,
    /// Counts that the reassembler and the check of fragments do not have.
    row: ElinkRow,
}

impl ElinkCheck {
    pub(super) fn new(elink: Elink, level: u8) -> ElinkCheck {
        ElinkCheck {
            reassembler: Reassembler::new(),
            next: None,
            first: 0,
            digests: Box::new([0; KNOWN_BLOCKS]),
            kept: 0,
            is_closed: false,
            fragments: match level {
                3.. => FragmentCheck::new(Some(elink)),
                _ => FragmentCheck::of_blocks(),
            },
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
        let Common { level, strides, room, findings, moment } = common;
        if *level == 0 {
            self.reassembler.counts.blocks += 1;
            return;
        }
        let (number, before) = (self.row.elink, self.reassembler.counts);
        let was_open = self.reassembler.is_open();
        (moment.place, moment.block) = (findings.position, findings.block);
        if self.is_repeated(header.sequence, block, *moment) {
            self.reassembler.counts.blocks += 1;
            self.row.duplicate_blocks += 1;
            let sequence = header.sequence;
            let what = || format!("E-link {number:#05x}: number {sequence}");
            findings.fault(fault::DUPLICATE_BLOCK, what);
            return;
        }
        let mut looked = Looked { block, level: *level, strides, findings };
        match parts(format, block, room) {
            Ok((header, found)) => self.chunks(header, &found, &mut looked),
            Err(error) => {
                self.reassembler.bad_block();
                let what = match error {
                    BlockError::Undefined { .. } => fault::UNDEFINED,
                    _ => fault::LENGTH,
                };
                looked.findings.fault(what, || format!("E-link {number:#05x}: {error}"));
            }
        }
        let after = self.reassembler.counts;
        let timeout = SubchunkKind::Timeout as usize;
        self.is_closed = after.subchunks[timeout] > before.subchunks[timeout];
        match self.fragments.is_ttc {
            true => moment.triggers = self.fragments.triggers(),
            false if *level < 3 => moment.chunks += 1,
            false => moment.chunks += after.ended() - before.ended(),
        }
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

    /// Takes the block's number; returns true if the block came already.
    fn is_repeated(&mut self, sequence: u8, block: &[u8], moment: Moment) -> bool {
        let digest = digest(block);
        if self.next == Some(sequence) {
            self.fragments.track.arrive(moment);
        } else if self.next.is_some_and(|next| self.is_known(next, sequence, digest)) {
            return true;
        } else {
            self.fragments.track.jump(sequence.into(), moment);
            if self.next.is_none() {
                self.first = sequence;
            }
        }
        self.digests[self.kept % KNOWN_BLOCKS] = digest;
        self.kept += 1;
        self.next = Some((sequence + 1) & 0x1F);
        false
    }

    /// True if a block has the bytes of an earlier one. Further back than half a turn it may be a
    /// later one just as well, if the bytes of the blocks before come again, too.
    fn is_known(&self, next: u8, sequence: u8, digest: u64) -> bool {
        let before = |back: usize| self.digests[(self.kept - back) % KNOWN_BLOCKS];
        let most = self.kept.min(KNOWN_BLOCKS);
        let behind = usize::from(next.wrapping_sub(sequence) & 0x1F);
        let is_near = behind <= 16 && behind <= most && before(behind) == digest;
        let comes_again = || (2..=most).any(|back| before(back) == before(1));
        is_near || (1..=most).any(|back| before(back) == digest) && !comes_again()
    }

    /// Takes a block with a bad start, which is this E-link's if its number is the next one.
    pub(super) fn bad_start(&mut self, header: FelixHeader, moment: Moment) {
        if self.next == Some(header.sequence) {
            self.next = Some((header.sequence + 1) & 0x1F);
            self.fragments.track.arrive(moment);
            self.reassembler.bad_block();
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
            (true, true) => {
                self.fragments.cut(chunk);
                None
            }
            (true, false) => self.fragments.check(chunk),
        };
        if let Some(finding) = finding {
            looked.findings.say(self.row.elink, begin, finding);
        }
    }

    /// Returns what the judgement of all E-links needs.
    pub(super) fn stream(&self) -> Witness<'_> {
        Witness {
            track: &self.fragments.track,
            is_trigger: self.fragments.is_ttc,
            link: Elink::new(self.row.elink).link().into(),
            is_closed: self.is_closed,
        }
    }

    pub(super) fn row(&self, judged: &Judged, level: u8) -> ElinkRow {
        let counts = &self.reassembler.counts;
        let is_ttc = self.row.elink == Elink::TTC.number();
        let mut events = self.fragments.judged(judged);
        let mut missing_blocks = judged.gaps.iter().map(|gap| gap.blocks).sum();
        if level < 3 {
            missing_blocks = std::mem::take(&mut events.missing);
            events.out_of_order = 0;
        }
        ElinkRow {
            blocks: counts.blocks,
            subchunks: counts.subchunks,
            chunks: counts.chunks,
            chunks_with_timeouts: counts.ended(),
            smallest: if counts.ended() > 0 { self.row.smallest } else { 0 },
            width: if is_ttc { 0 } else { self.fragments.width.unwrap_or(0) },
            flags: [counts.truncated, counts.errors, counts.crc_errors, counts.busy],
            missing_blocks,
            edges: [self.first, self.next.unwrap_or(0)],
            late_blocks: judged.late.iter().map(|(_, _, blocks)| blocks).sum(),
            events,
            ..self.row
        }
    }
}

/// Bytes of the begin and the end of a block that tell it from others: they hold the counter of at
/// least one chunk, if chunks are not longer, and where the chunks end.
const BEGIN_BYTES: usize = 128;
const END_BYTES: usize = 32;

/// Digest of a block's begin and end.
#[inline]
fn digest(block: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut lanes = [FACTOR; 4];
    let (begin, end) = (&block[..BEGIN_BYTES], &block[block.len() - END_BYTES..]);
    for part in begin.chunks_exact(32).chain(end.chunks_exact(32)) {
        for (lane, word) in lanes.iter_mut().zip(part.chunks_exact(8)) {
            let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
            *lane = (*lane ^ word).wrapping_mul(FACTOR).rotate_left(29);
        }
    }
    lanes.into_iter().fold(0, |all, lane| (all ^ lane).wrapping_mul(FACTOR).rotate_left(29))
}
