//! The checker: files of blocks, or what a card makes, block by block, with the tables of fcheck
//! and fdaqm.
//!
//! Levels, as in fcheck: 0 block starts, 1 also sequence numbers, 2 also the structure of chunks, 3
//! also their payload.

mod elink;
mod lost;
mod resync;
mod tables;

use std::io::{self, Read};
use std::sync::mpsc::{channel, sync_channel};

use daqmeter_wire::felix::block::{FelixHeader, HEADER_BYTES};
use daqmeter_wire::felix::decoder::most_subchunks;
use daqmeter_wire::felix::{BlockFormat, Elink, Subchunk};

use crate::fragment::FragmentFaults;
use crate::witness::{Witness, solve};
use elink::{Common, ElinkCheck};
use resync::{Piece, next_piece, recognise};
use tables::Findings;
use tables::fault;
pub use tables::{Checked, ElinkRow};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckOptions {
    pub level: u8,
    /// Format of the blocks; found from the data if it is not known.
    pub format: Option<BlockFormat>,
    /// E-links to check; all of them if empty.
    pub elinks: Vec<u16>,
    /// Messages that are kept; later ones are only counted.
    pub max_messages: usize,
}

impl Default for CheckOptions {
    fn default() -> Self {
        CheckOptions { level: 3, format: None, elinks: Vec::new(), max_messages: 1000 }
    }
}

#[derive(Debug, Default)]
pub struct Checker {
    options: CheckOptions,
    format: Option<BlockFormat>,
    /// E-links by their numbers.
    elinks: Vec<Option<Box<ElinkCheck>>>,
    common: Common,
    checked_blocks: u64,
    skipped_bytes: u64,
    rest: Vec<u8>,
}

impl Checker {
    pub fn new(options: CheckOptions) -> Checker {
        let mut common = Common { level: options.level, ..Common::default() };
        common.findings.max_messages = options.max_messages;
        let elinks = (0..=Elink::MAX).map(|_| None).collect();
        Checker { common, options, elinks, ..Checker::default() }
    }

    /// Takes the next bytes, cut at any place. Fails if no block begins in the first MiB.
    pub fn take(&mut self, bytes: &[u8]) -> Result<(), String> {
        let mut joined = std::mem::take(&mut self.rest);
        if joined.is_empty() {
            let done = self.blocks_of(bytes, false)?;
            joined.extend_from_slice(&bytes[done..]);
        } else {
            joined.extend_from_slice(bytes);
            let done = self.blocks_of(&joined, false)?;
            joined.drain(..done);
        }
        self.rest = joined;
        Ok(())
    }

    fn blocks_of(&mut self, bytes: &[u8], last: bool) -> Result<usize, String> {
        let Some(format) = self.recognised(bytes, last)? else {
            return Ok(0);
        };
        let size = format.block_bytes;
        let mut at = 0;
        while let Some((piece, length)) = next_piece(&bytes[at..], format, last) {
            let piece_bytes = &bytes[at..at + length];
            match piece {
                Piece::Block(header) => {
                    if let Some(ahead) = bytes.get(at + 2 * size..at + 3 * size) {
                        daqmeter_kernels::prefetch(ahead);
                    }
                    self.block(format, header, piece_bytes);
                    self.pass(size);
                }
                Piece::BadStarts => {
                    for block in piece_bytes.chunks_exact(size) {
                        self.bad_start(FelixHeader::of_block(block));
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
    fn recognised(&mut self, bytes: &[u8], last: bool) -> Result<Option<BlockFormat>, String> {
        if self.format.is_none()
            && bytes.len() >= HEADER_BYTES
            && let Some(found) = self.options.format.map(Some).or_else(|| recognise(bytes, last))
        {
            let head = bytes.first_chunk::<HEADER_BYTES>().copied().unwrap_or_default();
            let format = found.ok_or_else(|| {
                format!(
                    "not a file of FELIX blocks: it begins with {:#010x}, whose second half is not a block id (0xABCD, 0xABCE, 0xCnCE), and no blocks \
                     begin in its first MiB",
                    u32::from_le_bytes(head)
                )
            })?;
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
        self.common.findings.fault(what, more);
        self.skipped_bytes += bytes as u64;
    }

    fn bad_start(&mut self, header: FelixHeader) {
        let head = u32::from_le_bytes(header.emit());
        self.no_block(fault::BAD_START, 0, || format!("{head:#010x}"));
        if let Some(elink) = &mut self.elinks[usize::from(header.elink.number())] {
            let Findings { position, block, .. } = self.common.findings;
            let moment = &mut self.common.moment;
            (moment.place, moment.block) = (position, block);
            elink.bad_start(header, *moment);
        }
    }

    fn block(&mut self, format: BlockFormat, header: FelixHeader, block: &[u8]) {
        let number = header.elink.number();
        if self.options.elinks.is_empty() || self.options.elinks.contains(&number) {
            self.checked_blocks += 1;
            self.elinks[usize::from(number)]
                .get_or_insert_with(|| Box::new(ElinkCheck::new(header.elink, self.options.level)))
                .block(format, header, block, &mut self.common);
        }
    }

    pub fn finish(mut self) -> Result<Checked, String> {
        let rest = std::mem::take(&mut self.rest);
        let left = rest.len() - self.blocks_of(&rest, true)?;
        if self.format.is_none() {
            return Err(format!("{left} bytes: shorter than one block"));
        }
        if left > 0 {
            let what = || format!("the last {left} bytes are an incomplete block");
            self.no_block(fault::CUT_OFF, left, what);
        }
        Ok(self.checked())
    }

    fn checked(mut self) -> Checked {
        let Common { findings, mut moment, level, .. } = self.common;
        (moment.place, moment.block) = (findings.position, findings.block);
        let elinks: Vec<&ElinkCheck> = self.elinks.iter().flatten().map(|one| &**one).collect();
        let streams: Vec<Witness<'_>> = elinks.iter().map(|elink| elink.stream()).collect();
        let judged = solve(&streams, moment);
        let rows = elinks.iter().zip(&judged).map(|(elink, judged)| elink.row(judged, level));
        let rows: Vec<ElinkRow> = rows.collect();
        let lost = lost::sentences(&rows, &judged, level);
        let gaps = lost::gaps(&rows, &judged);
        let findings = lost::findings(findings, &rows, &judged, level);
        self.common.findings = findings;
        let sum = |of: fn(&FragmentFaults) -> u64| rows.iter().map(|row| of(&row.events)).sum();
        let Findings { counts: mut faults, messages, left_out, block, .. } = self.common.findings;
        let counted: [(_, u64); 6] = [
            (fault::MISSING, sum(|events| events.missing)),
            (fault::UNCLEAR, sum(|events| events.unclear)),
            (fault::DUPLICATE, sum(|events| events.duplicates)),
            (fault::LATE, sum(|events| events.out_of_order)),
            (fault::PAYLOAD, sum(|events| events.payload)),
            (fault::ELINK, sum(|events| events.wrong_elink)),
        ];
        faults.extend(counted.into_iter().filter(|(_, count)| *count > 0));
        Checked {
            blocks: block,
            checked_blocks: self.checked_blocks,
            block_bytes: self.format.map_or(0, |format| format.block_bytes),
            rows,
            lost,
            gaps,
            faults,
            messages: messages.into_iter().map(|(_, message)| message).collect(),
            messages_left_out: left_out,
            skipped_bytes: self.skipped_bytes,
        }
    }
}

/// Bytes of one read: they stay in the second-level cache between the copy and the check.
const READ_BYTES: usize = 512 << 10;
const READ_AHEAD: usize = 4;

/// Checks all bytes of a reader, which another thread reads ahead. Fails if no block begins in the
/// first MiB.
pub fn check(mut from: impl Read + Send, options: &CheckOptions) -> Result<Checked, String> {
    let mut checker = Checker::new(options.clone());
    let (out, parts) = sync_channel(READ_AHEAD);
    let (back, empty) = channel();
    std::thread::scope(|scope| {
        let reading = scope.spawn(move || -> io::Result<()> {
            loop {
                let mut part = empty.try_recv().unwrap_or_else(|_| vec![0; READ_BYTES]);
                let got = match from.read(&mut part) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    got => got?,
                };
                // The other side is gone if it found no blocks.
                if got == 0 || out.send((part, got)).is_err() {
                    return Ok(());
                }
            }
        });
        for (part, got) in parts {
            checker.take(&part[..got])?;
            // At the end the reading thread is gone.
            let _ = back.send(part);
        }
        let read = reading.join().expect("reading does not panic");
        read.map_err(|error| format!("cannot read: {error}"))?;
        checker.finish()
    })
}

#[cfg(test)]
mod tests;
