//! The checker: files of blocks, or what a card makes, block by block, with the tables of fcheck
//! and fdaqm.
//!
//! Levels, as in fcheck: 0 block starts, 1 also sequence numbers, 2 also the structure of chunks, 3
//! also their payload.

mod elink;
mod elinks;
mod resync;
mod share;
mod tables;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;

use daqmeter_wire::felix::block::{FelixHeader, HEADER_BYTES};
use daqmeter_wire::felix::decoder::{ElinkCounts, most_subchunks, parts};
use daqmeter_wire::felix::{BlockError, BlockFormat, Subchunk};

use crate::fragment::FragmentFinding;
use crate::similar::SimilarByStride;
use elink::{Looked, Place};
use elinks::Elinks;
pub(crate) use resync::places;
use resync::{MAX_LOOK_AHEAD, Next, Recognised, next_start, recognise};
use share::Share;
pub use share::{MAX_THREADS, check, check_watched};
pub(crate) use tables::fault;
pub use tables::{Checked, ElinkRow};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub level: u8,
    /// E-links to check; all of them if empty.
    pub elinks: Vec<u16>,
    pub skip_blocks: u64,
    /// Messages that are kept; later ones are only counted.
    pub max_messages: usize,
    /// Size of blocks whose magic does not tell it (0xABCE).
    pub abce_kib: u8,
}

impl Default for Options {
    fn default() -> Self {
        Options { level: 3, elinks: Vec::new(), skip_blocks: 0, max_messages: 1000, abce_kib: 1 }
    }
}

#[derive(Debug)]
pub struct Checker {
    options: Options,
    share: Share,
    format: Option<BlockFormat>,
    elinks: Elinks,
    strides: SimilarByStride,
    room: Vec<Subchunk>,
    messages: Vec<(u64, String)>,
    messages_left_out: u64,
    findings: Vec<(usize, FragmentFinding)>,
    faults: BTreeMap<&'static str, u64>,
    position: u64,
    blocks: u64,
    checked_blocks: u64,
    skipped_bytes: u64,
    rest: Vec<u8>,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    #[error("cannot read: {0}")]
    Io(#[from] io::Error),
    /// No block in the first MiB.
    #[error(
        "no file of FELIX blocks: it begins with {0:#010x}, whose second half is not a block id (0xABCD, 0xABCE, 0xCnCE), and no blocks \
         begin in its first MiB"
    )]
    Foreign(u32),
    #[error("{0} bytes: shorter than one block")]
    Short(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub blocks: u64,
    /// Bytes so far, without those that wait for the rest of their block.
    pub bytes: u64,
    pub faults: u64,
}

impl Checker {
    pub fn new(options: Options) -> Checker {
        Checker::of_share(options, Share::Whole)
    }

    fn of_share(options: Options, share: Share) -> Checker {
        Checker {
            options,
            share,
            format: None,
            elinks: Elinks::new(),
            strides: SimilarByStride::default(),
            room: Vec::new(),
            messages: Vec::new(),
            messages_left_out: 0,
            findings: Vec::new(),
            faults: BTreeMap::new(),
            position: 0,
            blocks: 0,
            checked_blocks: 0,
            skipped_bytes: 0,
            rest: Vec::new(),
        }
    }

    /// Takes the next bytes, cut at any place. Fails if no block begins in the first MiB.
    pub fn take(&mut self, bytes: &[u8]) -> Result<(), CheckError> {
        if !self.rest.is_empty()
            || self.format.is_none()
            || !bytes.len().is_multiple_of(self.block_bytes())
        {
            let mut joined = std::mem::take(&mut self.rest);
            joined.extend_from_slice(bytes);
            let done = self.blocks_of(&joined, false)?;
            joined.drain(..done);
            self.rest = joined;
            return Ok(());
        }
        let done = self.blocks_of(bytes, false)?;
        self.rest.extend_from_slice(&bytes[done..]);
        Ok(())
    }

    pub fn progress(&self) -> Progress {
        Progress { blocks: self.blocks, bytes: self.position, faults: self.faults.values().sum() }
    }

    fn block_bytes(&self) -> usize {
        self.format.map_or(1, |format| format.block_bytes)
    }

    fn blocks_of(&mut self, bytes: &[u8], last: bool) -> Result<usize, CheckError> {
        let mut at = 0;
        loop {
            let left = &bytes[at..];
            let Some(head) = left.first_chunk::<HEADER_BYTES>() else {
                return Ok(at);
            };
            let header = FelixHeader::parse(*head);
            let Some(format) = self
                .format
                .map_or_else(|| self.recognised(left, last), |format| Ok(Some(format)))?
            else {
                return Ok(at);
            };
            let size = format.block_bytes;
            if left.len() < size {
                return Ok(at);
            }
            if header.magic == format.magic {
                if let Some(ahead) = left.get(2 * size..3 * size)
                    && self.share.may_be_own(ahead)
                {
                    daqmeter_kernels::prefetch(ahead);
                }
                self.block(format, header, &left[..size]);
                self.position += size as u64;
                at += size;
                continue;
            }
            // Whole blocks until the next start: their starts are bad. Else bytes are missing or
            // added.
            let skip = match next_start(left, format, last) {
                Next::At(skip) => skip,
                Next::Unknown if left.len() < MAX_LOOK_AHEAD => return Ok(at),
                Next::Unknown | Next::None => left.len(),
            };
            if skip.is_multiple_of(size) {
                for block in left[..skip].chunks_exact(size) {
                    let head = *block.first_chunk::<HEADER_BYTES>().expect("a block has a header");
                    self.bad_start(head);
                }
            } else {
                if self.share.has_what_is_no_block() {
                    self.fault(fault::NO_BLOCK, || format!("{skip} bytes skipped"));
                    self.skipped_bytes += skip as u64;
                }
                self.position += skip as u64;
            }
            at += skip;
        }
    }

    fn bad_start(&mut self, head: [u8; HEADER_BYTES]) {
        if self.share.has_what_is_no_block() {
            self.fault(fault::BAD_START, || format!("{:#010x}", u32::from_le_bytes(head)));
        }
        let header = FelixHeader::parse(head);
        if let Some(elink) = self.elinks.get_mut(header.elink) {
            elink.bad_start(header);
        }
        self.blocks += 1;
        self.position += self.block_bytes() as u64;
    }

    fn recognised(&mut self, bytes: &[u8], last: bool) -> Result<Option<BlockFormat>, CheckError> {
        let format = match recognise(bytes, self.options.abce_kib, last) {
            Recognised::As(format) => format,
            Recognised::Unknown => return Ok(None),
            Recognised::No => {
                let head = bytes.first_chunk::<HEADER_BYTES>().copied().unwrap_or_default();
                return Err(CheckError::Foreign(u32::from_le_bytes(head)));
            }
        };
        self.room = vec![Subchunk::default(); most_subchunks(format)];
        self.format = Some(format);
        Ok(Some(format))
    }

    fn fault(&mut self, what: &'static str, more: impl FnOnce() -> String) {
        *self.faults.entry(what).or_default() += 1;
        self.message(what, more);
    }

    fn message(&mut self, what: &'static str, more: impl FnOnce() -> String) {
        if self.messages.len() < self.options.max_messages {
            let (position, block) = (self.position, self.blocks);
            let message = format!("block {block} @ {position:#x}: {what}: {}", more());
            self.messages.push((position, message));
        } else {
            self.messages_left_out += 1;
        }
    }

    fn block(&mut self, format: BlockFormat, header: FelixHeader, block: &[u8]) {
        let is_skipped = self.blocks < self.options.skip_blocks;
        let number = header.elink.number();
        if !is_skipped
            && (self.options.elinks.is_empty() || self.options.elinks.contains(&number))
            && self.share.is_own(number)
        {
            self.checked_blocks += 1;
            self.checked_block(format, header, block);
        }
        self.blocks += 1;
    }

    fn checked_block(&mut self, format: BlockFormat, header: FelixHeader, block: &[u8]) {
        let number = header.elink.number();
        let Checker { elinks, strides, room, findings, options, .. } = self;
        let (level, elink) = (options.level, elinks.of(header.elink));
        if level == 0 {
            elink.reassembler.counts.blocks += 1;
            return;
        }
        let was_open = elink.reassembler.is_open();
        let place = elink.place(header, block);
        if place == Place::Again {
            return self.fault(fault::DUPLICATE_BLOCK, || {
                format!("E-link {number:#05x}: number {}", header.sequence)
            });
        }
        let before = elink.reassembler.counts;
        let mut looked = Looked { block, level, strides, findings };
        let read = parts(format, block, room);
        let error = read.map(|(header, found)| elink.chunks(header, &found, &mut looked)).err();
        if error.is_some() {
            elink.unreadable();
        }
        let after = elink.reassembler.counts;
        if let Some(error) = error {
            self.unreadable(number, error);
        }
        if place != Place::Next {
            self.misplaced(header, place);
        }
        if level >= 2 {
            // Chunks that a gap cut off are that gap's fault.
            let explained = u64::from(was_open && after.blocks_missing > before.blocks_missing);
            self.compare(number, &before, &after, explained);
        }
        if !self.findings.is_empty() {
            self.found(number);
        }
    }

    fn unreadable(&mut self, number: u16, error: BlockError) {
        let what = if matches!(error, BlockError::Undefined { .. }) {
            fault::UNDEFINED
        } else {
            fault::LENGTH
        };
        self.fault(what, || format!("E-link {number:#05x}: {error}"));
    }

    fn misplaced(&mut self, header: FelixHeader, place: Place) {
        let (number, seen) = (header.elink.number(), header.sequence);
        match place {
            Place::Ahead { expected } => {
                self.fault(fault::SEQUENCE, || {
                    format!("E-link {number:#05x}: expected {expected}, seen {seen}")
                });
            }
            Place::Late => {
                self.fault(fault::LATE_BLOCK, || format!("E-link {number:#05x}: number {seen}"))
            }
            Place::Next | Place::Again => {}
        }
    }

    fn compare(&mut self, number: u16, before: &ElinkCounts, after: &ElinkCounts, explained: u64) {
        if after.blocks > before.blocks && after.chunks_broken > before.chunks_broken + explained {
            self.fault(fault::NOT_ENDED, || format!("E-link {number:#05x}: a chunk was open"));
        }
        if after.orphans > before.orphans {
            self.fault(fault::ORPHAN, || format!("E-link {number:#05x}"));
        }
    }

    /// Adds messages of the findings in a block's chunks, one for each kind in a row. Findings are
    /// counted at the end, because missing data may still come.
    fn found(&mut self, number: u16) {
        let findings = std::mem::take(&mut self.findings);
        for same in findings.chunk_by(|(_, one), (_, other)| one == other) {
            let (begin, finding) = same[0];
            let place = self.position + begin as u64;
            let times = if same.len() == 1 {
                String::new()
            } else {
                format!(", and {} more", same.len() - 1)
            };
            let (what, more) = said(finding);
            self.message(what, || format!("E-link {number:#05x} at {place:#x}{more}{times}"));
        }
        self.findings = findings;
        self.findings.clear();
    }

    pub fn finish(self) -> Result<Checked, CheckError> {
        Checker::joined(vec![self])
    }

    fn joined(mut shares: Vec<Checker>) -> Result<Checked, CheckError> {
        for checker in &mut shares {
            checker.end()?;
        }
        let mut all = shares.remove(0);
        for share in shares {
            all.elinks.extend(share.elinks);
            all.checked_blocks += share.checked_blocks;
            all.messages_left_out += share.messages_left_out;
            all.messages.extend(share.messages);
            for (what, count) in share.faults {
                *all.faults.entry(what).or_default() += count;
            }
        }
        Ok(all.checked())
    }

    fn end(&mut self) -> Result<(), CheckError> {
        let rest = std::mem::take(&mut self.rest);
        let done = self.blocks_of(&rest, true)?;
        let left = rest.len() - done;
        if self.format.is_none() {
            return Err(CheckError::Short(left));
        }
        if left > 0 && self.share.has_what_is_no_block() {
            self.fault(fault::CUT_OFF, || format!("the last {left} bytes are not a whole block"));
            self.skipped_bytes += left as u64;
        }
        Ok(())
    }

    fn checked(mut self) -> Checked {
        let elinks = self.elinks.sorted();
        let rows: Vec<ElinkRow> =
            elinks.into_iter().map(|(number, elink)| elink.row(number)).collect();
        let sum = |of: fn(&ElinkRow) -> u64| rows.iter().map(of).sum::<u64>();
        let counted = [
            (fault::MISSING, sum(|row| row.missing_events)),
            (fault::FELL, sum(|row| row.falls)),
            (fault::DUPLICATE, sum(|row| row.duplicate_events)),
            (fault::LATE, sum(|row| row.late_events)),
            (fault::PAYLOAD, sum(|row| row.wrong_payloads)),
            (fault::ELINK, sum(|row| row.wrong_elinks)),
        ];
        self.faults.extend(counted.into_iter().filter(|(_, count)| *count > 0));
        // Those of one block are of one share, in their order.
        self.messages.sort_by_key(|(position, _)| *position);
        let kept = self.messages.len().min(self.options.max_messages);
        let left_out = self.messages_left_out + (self.messages.len() - kept) as u64;
        let messages = self.messages.into_iter().take(kept);
        Checked {
            blocks: self.blocks,
            checked_blocks: self.checked_blocks,
            block_bytes: self.format.map_or(0, |format| format.block_bytes),
            rows,
            faults: self.faults,
            messages: messages.map(|(_, message)| message).collect(),
            messages_left_out: left_out,
            skipped_bytes: self.skipped_bytes,
        }
    }
}

fn said(finding: FragmentFinding) -> (&'static str, String) {
    match finding {
        FragmentFinding::Missing(count) => (fault::MISSING, format!(": {count} before it")),
        FragmentFinding::Duplicate => (fault::DUPLICATE, String::new()),
        FragmentFinding::OutOfOrder => (fault::LATE, String::new()),
        FragmentFinding::Reset(0) => (fault::RESET, String::new()),
        FragmentFinding::Reset(missing) => {
            (fault::RESET, format!(": {missing} events are missing since"))
        }
        FragmentFinding::Fell(missing) => {
            (fault::FELL, format!(": a reset, or {missing} events missing before it"))
        }
        FragmentFinding::Payload => (fault::PAYLOAD, String::new()),
        FragmentFinding::WrongElink(index) => {
            (fault::ELINK, format!(": the chunk names index {index:#04x}"))
        }
    }
}
