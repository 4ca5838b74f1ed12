//! The checker: files of blocks, or what a card makes, block by block, with the tables of fcheck and fdaqm.
//!
//! Levels, as in fcheck: 0 block starts, 1 also sequence numbers, 2 also the structure of chunks, 3 also their payload.

mod elink;
mod resync;
mod tables;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::{self, Read};

use daqmeter_wire::felix::block::{HEADER_BYTES, Header};
use daqmeter_wire::felix::decoder::{Counts, most_subchunks};
use daqmeter_wire::felix::{BlockError, Format, Subchunk, subchunks};

use crate::fragment::Finding;
use elink::{ElinkCheck, Place};
pub(crate) use resync::places;
use resync::{MAX_LOOK_AHEAD, Next, Recognised, next_start, recognise};
use tables::fault;
pub use tables::{Checked, Row};

/// How to check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// 0 to 3.
    pub level: u8,
    /// Only these E-links; all where there is none.
    pub elinks: Vec<u16>,
    /// Blocks to skip at the beginning.
    pub skip_blocks: u64,
    /// Messages that are kept; it goes on counting beyond.
    pub max_messages: usize,
    /// Size of blocks whose magic does not tell it (0xABCE).
    pub abce_kib: u8,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            level: 3,
            elinks: Vec::new(),
            skip_blocks: 0,
            max_messages: 1000,
            abce_kib: 1,
        }
    }
}

/// A checker of a stream of blocks.
#[derive(Debug)]
pub struct Checker {
    options: Options,
    format: Option<Format>,
    elinks: BTreeMap<u16, ElinkCheck>,
    room: Vec<Subchunk>,
    messages: Vec<String>,
    messages_left_out: u64,
    /// Of the block at hand: places in it, and what was found there.
    findings: Vec<(usize, Finding)>,
    /// Counts of faults, by what they are.
    faults: BTreeMap<&'static str, u64>,
    position: u64,
    blocks: u64,
    checked_blocks: u64,
    skipped_bytes: u64,
    rest: Vec<u8>,
}

/// Why bytes could not be checked at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// Reading failed.
    #[error("cannot read: {0}")]
    Io(#[from] io::Error),
    /// No block in the first MiB.
    #[error(
        "no file of FELIX blocks: it begins with {0:#010x}, whose second half is not a block id (0xABCD, 0xABCE, 0xCnCE), and no blocks \
         begin in its first MiB"
    )]
    Foreign(u32),
    /// Too short for a block.
    #[error("{0} bytes: shorter than one block")]
    Short(usize),
}

/// Read at a time: stays in the second-level cache between the copy and the check.
const READ_BYTES: usize = 512 << 10;
/// Buffers that are read ahead.
const READ_AHEAD: usize = 4;

/// Checks all that a reader gives, which reads ahead in a thread of its own.
///
/// # Errors
/// When it cannot be read, or no block begins in its first MiB.
pub fn check(from: impl Read + Send, options: &Options) -> Result<Checked, CheckError> {
    check_watched(from, options, |_| {})
}

/// The same; `watch` is shown the checker after each part of about half a megabyte.
///
/// # Errors
/// As [`check`].
pub fn check_watched(
    mut from: impl Read + Send,
    options: &Options,
    mut watch: impl FnMut(&Checker),
) -> Result<Checked, CheckError> {
    let mut checker = Checker::new(options.clone());
    let (full_in, full) = std::sync::mpsc::sync_channel::<io::Result<(Vec<u8>, usize)>>(READ_AHEAD);
    let (empty_in, empty) = std::sync::mpsc::channel();
    for _ in 0..READ_AHEAD {
        // The receiver is in this function: nobody has gone away.
        let _ = empty_in.send(vec![0; READ_BYTES]);
    }
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while let Ok(mut buffer) = empty.recv() {
                let got = fill(&mut from, &mut buffer);
                let last = !matches!(got, Ok(got) if got > 0);
                if full_in.send(got.map(|got| (buffer, got))).is_err() || last {
                    break;
                }
            }
        });
        for part in full {
            let (buffer, got) = part?;
            checker.take(&buffer[..got])?;
            watch(&checker);
            // At the end nobody wants it back.
            let _ = empty_in.send(buffer);
        }
        // The reading thread waits for buffers where the check ended early.
        drop(empty_in);
        checker.finish()
    })
}

/// Reads until the buffer is full or the end is reached.
fn fill(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match from.read(&mut buffer[done..]) {
            Ok(0) => break,
            Ok(got) => done += got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

impl Checker {
    /// A checker before the first block.
    pub fn new(options: Options) -> Checker {
        Checker {
            options,
            format: None,
            elinks: BTreeMap::new(),
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

    /// Takes the next bytes, however they are cut.
    ///
    /// # Errors
    /// When no block begins in the first MiB of them.
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

    /// Blocks so far, those with bad starts among them.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Bytes so far, without what still waits for the rest of its block.
    pub fn bytes(&self) -> u64 {
        self.position
    }

    /// Faults so far.
    pub fn faults(&self) -> u64 {
        self.faults.values().sum()
    }

    fn block_bytes(&self) -> usize {
        self.format.map_or(1, |format| format.block_bytes)
    }

    /// Whole blocks; returns the bytes used.
    fn blocks_of(&mut self, bytes: &[u8], last: bool) -> Result<usize, CheckError> {
        let mut at = 0;
        loop {
            let left = &bytes[at..];
            let Some(head) = left.first_chunk::<HEADER_BYTES>() else {
                return Ok(at);
            };
            let header = Header::parse(*head);
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
                if let Some(ahead) = left.get(2 * size..3 * size) {
                    daqmeter_kernels::prefetch(ahead);
                }
                self.block(format, header, &left[..size]);
                self.position += size as u64;
                at += size;
                continue;
            }
            // Whole blocks until the next start: their starts are bad. Else bytes are missing or added.
            let skip = match next_start(left, format, last) {
                Next::At(skip) => skip,
                Next::Unknown if left.len() < MAX_LOOK_AHEAD => return Ok(at),
                Next::Unknown | Next::None => left.len(),
            };
            if skip.is_multiple_of(size) {
                for block in left[..skip].chunks_exact(size) {
                    let head = *block
                        .first_chunk::<HEADER_BYTES>()
                        .expect("a block has a header");
                    self.bad_start(head);
                }
            } else {
                self.fault(fault::NO_BLOCK, || format!("{skip} bytes skipped"));
                self.skipped_bytes += skip as u64;
                self.position += skip as u64;
            }
            at += skip;
        }
    }

    fn bad_start(&mut self, head: [u8; HEADER_BYTES]) {
        self.fault(fault::BAD_START, || {
            format!("{:#010x}", u32::from_le_bytes(head))
        });
        let header = Header::parse(head);
        if let Some(elink) = self.elinks.get_mut(&header.elink.number()) {
            elink.bad_start(header);
        }
        self.blocks += 1;
        self.position += self.block_bytes() as u64;
    }

    /// The format, as soon as the bytes say it.
    fn recognised(&mut self, bytes: &[u8], last: bool) -> Result<Option<Format>, CheckError> {
        let format = match recognise(bytes, self.options.abce_kib, last) {
            Recognised::As(format) => format,
            Recognised::Unknown => return Ok(None),
            Recognised::No => {
                let head = bytes
                    .first_chunk::<HEADER_BYTES>()
                    .copied()
                    .unwrap_or_default();
                return Err(CheckError::Foreign(u32::from_le_bytes(head)));
            }
        };
        self.room = vec![Subchunk::default(); most_subchunks(format)];
        self.format = Some(format);
        Ok(Some(format))
    }

    /// Counts a fault, and says where it is: in the block at hand.
    fn fault(&mut self, what: &'static str, more: impl FnOnce() -> String) {
        *self.faults.entry(what).or_default() += 1;
        self.message(what, more);
    }

    fn message(&mut self, what: &'static str, more: impl FnOnce() -> String) {
        if self.messages.len() < self.options.max_messages {
            let (position, block) = (self.position, self.blocks);
            self.messages
                .push(format!("block {block} @ {position:#x}: {what}: {}", more()));
        } else {
            self.messages_left_out += 1;
        }
    }

    fn block(&mut self, format: Format, header: Header, block: &[u8]) {
        let is_skipped = self.blocks < self.options.skip_blocks;
        if !is_skipped
            && (self.options.elinks.is_empty()
                || self.options.elinks.contains(&header.elink.number()))
        {
            self.checked_blocks += 1;
            self.checked_block(format, header, block);
        }
        self.blocks += 1;
    }

    fn checked_block(&mut self, format: Format, header: Header, block: &[u8]) {
        let number = header.elink.number();
        let Checker {
            elinks,
            room,
            findings,
            options,
            ..
        } = self;
        let (level, elink) = (
            options.level,
            elinks
                .entry(number)
                .or_insert_with(|| ElinkCheck::new(header.elink)),
        );
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
        let read = subchunks(format, block, room);
        let error = read
            .map(|(header, found)| elink.chunks(header, found, block, level, findings))
            .err();
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
            // What a gap cut off is that gap's fault.
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

    fn misplaced(&mut self, header: Header, place: Place) {
        let (number, seen) = (header.elink.number(), header.sequence);
        match place {
            Place::Ahead { expected } => {
                self.fault(fault::SEQUENCE, || {
                    format!("E-link {number:#05x}: expected {expected}, seen {seen}")
                });
            }
            Place::Late => self.fault(fault::LATE_BLOCK, || {
                format!("E-link {number:#05x}: number {seen}")
            }),
            Place::Next | Place::Again => {}
        }
    }

    /// What this block added to the faults of chunks.
    fn compare(&mut self, number: u16, before: &Counts, after: &Counts, explained: u64) {
        if after.blocks > before.blocks && after.chunks_broken > before.chunks_broken + explained {
            self.fault(fault::NOT_ENDED, || {
                format!("E-link {number:#05x}: a chunk was open")
            });
        }
        if after.orphans > before.orphans {
            self.fault(fault::ORPHAN, || format!("E-link {number:#05x}"));
        }
    }

    /// Messages of what was found in the chunks of a block: one for all of a kind in a row. They are counted at the end, because what
    /// is missing may still come.
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
            self.message(what, || {
                format!("E-link {number:#05x} at {place:#x}{more}{times}")
            });
        }
        self.findings = findings;
        self.findings.clear();
    }

    /// The end of the bytes.
    ///
    /// # Errors
    /// When there was no block at all.
    pub fn finish(mut self) -> Result<Checked, CheckError> {
        let rest = std::mem::take(&mut self.rest);
        let done = self.blocks_of(&rest, true)?;
        let left = rest.len() - done;
        if self.format.is_none() {
            return Err(CheckError::Short(left));
        }
        if left > 0 {
            self.fault(fault::CUT_OFF, || {
                format!("the last {left} bytes are not a whole block")
            });
            self.skipped_bytes += left as u64;
        }
        let rows: Vec<Row> = self
            .elinks
            .iter()
            .map(|(number, elink)| elink.row(*number))
            .collect();
        let sum = |of: fn(&Row) -> u64| rows.iter().map(of).sum::<u64>();
        let counted = [
            (fault::MISSING, sum(|row| row.missing_events)),
            (fault::DUPLICATE, sum(|row| row.duplicate_events)),
            (fault::LATE, sum(|row| row.late_events)),
            (fault::PAYLOAD, sum(|row| row.wrong_payloads)),
            (fault::ELINK, sum(|row| row.wrong_elinks)),
        ];
        self.faults
            .extend(counted.into_iter().filter(|(_, count)| *count > 0));
        Ok(Checked {
            blocks: self.blocks,
            checked_blocks: self.checked_blocks,
            block_bytes: self.block_bytes(),
            rows,
            faults: self.faults,
            messages: self.messages,
            messages_left_out: self.messages_left_out,
            skipped_bytes: self.skipped_bytes,
        })
    }
}

/// How a finding is called, and what is said of it.
fn said(finding: Finding) -> (&'static str, String) {
    match finding {
        Finding::Missing(count) => (fault::MISSING, format!(": {count} before it")),
        Finding::Duplicate => (fault::DUPLICATE, String::new()),
        Finding::OutOfOrder => (fault::LATE, String::new()),
        Finding::Reset(0) => (fault::RESET, String::new()),
        Finding::Reset(missing) => (
            fault::RESET,
            format!(": {missing} events are missing since"),
        ),
        Finding::Payload => (fault::PAYLOAD, String::new()),
        Finding::WrongElink(index) => (
            fault::ELINK,
            format!(": the chunk names index {index:#04x}"),
        ),
    }
}
