//! The checker: files of blocks, or what a card makes, block by block, with the tables of fcheck
//! and fdaqm.
//!
//! Levels, as in fcheck: 0 block starts, 1 also sequence numbers, 2 also the structure of chunks, 3
//! also their payload.

mod elink;
mod resync;
mod share;
mod tables;

use std::io;

use daqmeter_wire::felix::block::{FelixHeader, HEADER_BYTES};
use daqmeter_wire::felix::decoder::most_subchunks;
use daqmeter_wire::felix::{BlockFormat, Elink, Subchunk};

use elink::{Common, ElinkCheck};
pub(crate) use resync::places;
use resync::{Piece, next_piece, recognise};
use share::Share;
pub use share::{MAX_THREADS, check, check_watched};
use tables::Findings;
pub(crate) use tables::fault;
pub use tables::{Checked, ElinkRow};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckOptions {
    pub level: u8,
    /// E-links to check; all of them if empty.
    pub elinks: Vec<u16>,
    pub skip_blocks: u64,
    /// Messages that are kept; later ones are only counted.
    pub max_messages: usize,
    /// Size of blocks whose magic does not tell it (0xABCE).
    pub abce_kib: u8,
}

impl Default for CheckOptions {
    fn default() -> Self {
        CheckOptions {
            level: 3,
            elinks: Vec::new(),
            skip_blocks: 0,
            max_messages: 1000,
            abce_kib: 1,
        }
    }
}

#[derive(Debug)]
pub struct Checker {
    options: CheckOptions,
    share: Share,
    format: Option<BlockFormat>,
    /// E-links by their numbers.
    elinks: Vec<Option<Box<ElinkCheck>>>,
    common: Common,
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
    pub fn new(options: CheckOptions) -> Checker {
        Checker::of_share(options, Share::part(0, 1))
    }

    fn of_share(options: CheckOptions, share: Share) -> Checker {
        let mut common = Common { level: options.level, ..Common::default() };
        common.findings.max_messages = options.max_messages;
        Checker {
            common,
            options,
            share,
            format: None,
            elinks: std::iter::repeat_with(|| None).take(usize::from(Elink::MOST) + 1).collect(),
            checked_blocks: 0,
            skipped_bytes: 0,
            rest: Vec::new(),
        }
    }

    /// Takes the next bytes, cut at any place. Fails if no block begins in the first MiB.
    pub fn take(&mut self, bytes: &[u8]) -> Result<(), CheckError> {
        let is_whole =
            self.format.is_some_and(|format| bytes.len().is_multiple_of(format.block_bytes));
        if !self.rest.is_empty() || !is_whole {
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
        let Findings { block, position, counts, .. } = &self.common.findings;
        Progress { blocks: *block, bytes: *position, faults: counts.values().sum() }
    }

    fn blocks_of(&mut self, bytes: &[u8], last: bool) -> Result<usize, CheckError> {
        let Some(format) = self.recognised(bytes, last)? else {
            return Ok(0);
        };
        let size = format.block_bytes;
        let mut at = 0;
        while let Some((piece, length)) = next_piece(&bytes[at..], format, last) {
            let piece_bytes = &bytes[at..at + length];
            match piece {
                Piece::Block(header) => {
                    if let Some(ahead) = bytes.get(at + 2 * size..at + 3 * size)
                        && self.share.may_be_own(header_of(ahead).elink)
                    {
                        daqmeter_kernels::prefetch(ahead);
                    }
                    self.block(format, header, piece_bytes);
                    self.pass(size);
                }
                Piece::BadStarts => {
                    for block in piece_bytes.chunks_exact(size) {
                        self.bad_start(header_of(block));
                        self.pass(size);
                    }
                }
                Piece::NoBlock => {
                    self.no_block(fault::NO_BLOCK, length, || format!("{length} bytes skipped"));
                    self.common.findings.position += length as u64;
                }
            }
            at += length;
        }
        Ok(at)
    }

    /// Recognises the format by the first bytes; `None` if more are needed.
    fn recognised(&mut self, bytes: &[u8], last: bool) -> Result<Option<BlockFormat>, CheckError> {
        if self.format.is_none()
            && bytes.len() >= HEADER_BYTES
            && let Some(found) = recognise(bytes, self.options.abce_kib, last)
        {
            let head = bytes.first_chunk::<HEADER_BYTES>().copied().unwrap_or_default();
            let format = found.ok_or(CheckError::Foreign(u32::from_le_bytes(head)))?;
            self.common.room = vec![Subchunk::default(); most_subchunks(format)];
            self.format = Some(format);
        }
        Ok(self.format)
    }

    fn pass(&mut self, block_bytes: usize) {
        self.common.findings.block += 1;
        self.common.findings.position += block_bytes as u64;
    }

    fn no_block(&mut self, what: &'static str, bytes: usize, more: impl FnOnce() -> String) {
        if self.share.has_what_is_no_block() {
            self.common.findings.fault(what, more);
            self.skipped_bytes += bytes as u64;
        }
    }

    fn bad_start(&mut self, header: FelixHeader) {
        let head = u32::from_le_bytes(header.emit());
        self.no_block(fault::BAD_START, 0, || format!("{head:#010x}"));
        if let Some(elink) = &mut self.elinks[usize::from(header.elink.number())] {
            elink.bad_start(header);
        }
    }

    fn block(&mut self, format: BlockFormat, header: FelixHeader, block: &[u8]) {
        let number = header.elink.number();
        if self.common.findings.block >= self.options.skip_blocks
            && (self.options.elinks.is_empty() || self.options.elinks.contains(&number))
            && self.share.is_own(header.elink)
        {
            self.checked_blocks += 1;
            self.elinks[usize::from(number)]
                .get_or_insert_with(|| Box::new(ElinkCheck::new(header.elink)))
                .block(format, header, block, &mut self.common);
        }
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
            for (elink, other) in all.elinks.iter_mut().zip(share.elinks) {
                *elink = elink.take().or(other);
            }
            all.checked_blocks += share.checked_blocks;
            all.common.findings.add(share.common.findings);
        }
        Ok(all.checked())
    }

    fn end(&mut self) -> Result<(), CheckError> {
        let rest = std::mem::take(&mut self.rest);
        let left = rest.len() - self.blocks_of(&rest, true)?;
        if self.format.is_none() {
            return Err(CheckError::Short(left));
        }
        if left > 0 {
            let what = || format!("the last {left} bytes are not a whole block");
            self.no_block(fault::CUT_OFF, left, what);
        }
        Ok(())
    }

    fn checked(self) -> Checked {
        let rows: Vec<ElinkRow> = self.elinks.iter().flatten().map(|elink| elink.row()).collect();
        let sum = |of: fn(&ElinkRow) -> u64| rows.iter().map(of).sum::<u64>();
        let mut findings = self.common.findings;
        let mut faults = std::mem::take(&mut findings.counts);
        let counted = [
            (fault::MISSING, sum(|row| row.missing_events)),
            (fault::FELL, sum(|row| row.falls)),
            (fault::DUPLICATE, sum(|row| row.duplicate_events)),
            (fault::LATE, sum(|row| row.late_events)),
            (fault::PAYLOAD, sum(|row| row.wrong_payloads)),
            (fault::ELINK, sum(|row| row.wrong_elinks)),
        ];
        faults.extend(counted.into_iter().filter(|(_, count)| *count > 0));
        let blocks = findings.block;
        let (messages, messages_left_out) = findings.messages();
        Checked {
            blocks,
            checked_blocks: self.checked_blocks,
            block_bytes: self.format.map_or(0, |format| format.block_bytes),
            rows,
            faults,
            messages,
            messages_left_out,
            skipped_bytes: self.skipped_bytes,
        }
    }
}

fn header_of(block: &[u8]) -> FelixHeader {
    FelixHeader::parse(*block.first_chunk().expect("a block has a header"))
}

#[cfg(test)]
mod tests;
