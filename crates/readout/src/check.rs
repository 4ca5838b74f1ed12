//! The checker: files of blocks, or what a card makes, block by block, with the tables of fcheck and fdaqm.
//!
//! Levels, as in fcheck: 0 block starts, 1 also sequence numbers, 2 also the structure of chunks, 3 also their payload.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Read};

use daqmeter_wire::felix::block::{HEADER_BYTES, Header};
use daqmeter_wire::felix::decoder::{Counts, most_subchunks};
use daqmeter_wire::felix::{Elink, Format, Kind, Reassembler, Subchunk, subchunks};

use crate::fragment::FragmentCheck;

/// How to check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// 0 to 3.
    pub level: u8,
    /// Only this E-link.
    pub elink: Option<u16>,
    /// Blocks to skip at the beginning.
    pub skip_blocks: u64,
    /// Messages that are kept; it goes on counting beyond.
    pub most_messages: usize,
    /// Size of blocks whose magic does not tell it (0xABCE).
    pub abce_kib: u8,
}

impl Default for Options {
    fn default() -> Self {
        Options { level: 3, elink: None, skip_blocks: 0, most_messages: 1000, abce_kib: 1 }
    }
}

/// What one E-link's blocks held.
#[derive(Debug)]
struct ElinkCheck {
    reassembler: Reassembler,
    fragments: FragmentCheck,
    partial: Vec<u8>,
    open_bytes: usize,
    smallest: usize,
    largest: usize,
    bytes: u64,
    width: Option<u8>,
}

impl ElinkCheck {
    fn new(elink: Elink) -> ElinkCheck {
        ElinkCheck {
            reassembler: Reassembler::new(),
            fragments: FragmentCheck::new(Some(elink)),
            partial: Vec::new(),
            open_bytes: 0,
            smallest: usize::MAX,
            largest: 0,
            bytes: 0,
            width: None,
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
    /// Counts of faults, by what they are.
    faults: BTreeMap<&'static str, u64>,
    position: u64,
    blocks: u64,
    skipped_bytes: u64,
    rest: Vec<u8>,
}

/// One row of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Row {
    /// E-link.
    pub elink: u16,
    /// Blocks.
    pub blocks: u64,
    /// Bytes of payload.
    pub bytes: u64,
    /// Subchunks by kind: null, first, last, both, middle, timeout, undefined, out of band.
    pub subchunks: [u64; 8],
    /// Chunks as fdaqm counts them: BOTH and LAST.
    pub chunks: u64,
    /// Chunks as fcheck counts them: those that a timeout cut off, too.
    pub chunks_with_timeouts: u64,
    /// Smallest and largest chunk; 0 without one.
    pub smallest: u64,
    /// The largest.
    pub largest: u64,
    /// Width of the E-link by the emulator's header; 0 where it is not said.
    pub width: u8,
    /// Flags: truncated, error, CRC, busy.
    pub flags: [u64; 4],
    /// Blocks missing by their numbers.
    pub missing_blocks: u64,
    /// Events missing by their counters.
    pub missing_events: u64,
    /// Chunks with wrong bytes.
    pub wrong_payloads: u64,
}

/// What a checker found.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Checked {
    /// Blocks.
    pub blocks: u64,
    /// Of how many bytes; 0 where there was none.
    pub block_bytes: usize,
    /// Each E-link.
    pub rows: Vec<Row>,
    /// How often what was wrong.
    pub faults: BTreeMap<&'static str, u64>,
    /// Where, as far as kept.
    pub messages: Vec<String>,
    /// Bytes that belong to no block.
    pub skipped_bytes: u64,
}

/// Why bytes could not be checked at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// Reading failed.
    #[error("cannot read: {0}")]
    Io(#[from] io::Error),
    /// No block at the beginning.
    #[error(
        "no file of FELIX blocks: it begins with {0:#010x}, whose second half is no block id (0xABCD, 0xABCE, 0xCnCE)"
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
/// When it cannot be read, or does not begin with a block.
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
            faults: BTreeMap::new(),
            position: 0,
            blocks: 0,
            skipped_bytes: 0,
            rest: Vec::new(),
        }
    }

    /// Takes the next bytes, however they are cut.
    ///
    /// # Errors
    /// When the first of them do not begin a block.
    pub fn take(&mut self, bytes: &[u8]) -> Result<(), CheckError> {
        if !self.rest.is_empty() || self.format.is_none() || !bytes.len().is_multiple_of(self.block_bytes()) {
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
            let Some(head) = left.first_chunk::<HEADER_BYTES>() else { return Ok(at) };
            let header = Header::parse(*head);
            let format = match self.format {
                Some(format) => format,
                None => self.recognise(header, *head)?,
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
                Next::Unknown if left.len() < MOST_LOOK_AHEAD => return Ok(at),
                Next::Unknown | Next::None => left.len(),
            };
            if skip.is_multiple_of(size) {
                for block in left[..skip].chunks_exact(size) {
                    let head = *block.first_chunk::<HEADER_BYTES>().expect("a block has a header");
                    self.bad_start(head);
                }
            } else {
                self.fault("bytes of no block", || format!("{skip} bytes skipped"));
                self.skipped_bytes += skip as u64;
                self.position += skip as u64;
            }
            at += skip;
        }
    }

    fn bad_start(&mut self, head: [u8; HEADER_BYTES]) {
        self.fault("bad block start", || format!("{:#010x}", u32::from_le_bytes(head)));
        if let Some(elink) = self.elinks.get_mut(&Header::parse(head).elink.number()) {
            elink.reassembler.bad_block();
        }
        self.blocks += 1;
        self.position += self.block_bytes() as u64;
    }

    fn recognise(&mut self, header: Header, head: [u8; HEADER_BYTES]) -> Result<Format, CheckError> {
        let format = Format::of_magic(header.magic, self.options.abce_kib)
            .ok_or(CheckError::Foreign(u32::from_le_bytes(head)))?;
        self.room = vec![Subchunk::default(); most_subchunks(format)];
        self.format = Some(format);
        Ok(format)
    }

    fn fault(&mut self, what: &'static str, more: impl FnOnce() -> String) {
        *self.faults.entry(what).or_default() += 1;
        if self.messages.len() < self.options.most_messages {
            let (position, block) = (self.position, self.blocks);
            self.messages.push(format!("block {block} @ {position:#x}: {what}: {}", more()));
        }
    }

    fn block(&mut self, format: Format, header: Header, block: &[u8]) {
        self.blocks += 1;
        let number = header.elink.number();
        if self.blocks <= self.options.skip_blocks || self.options.elink.is_some_and(|only| only != number) {
            return;
        }
        let options = &self.options;
        let elink = self.elinks.entry(number).or_insert_with(|| ElinkCheck::new(header.elink));
        if options.level == 0 {
            elink.reassembler.counts.blocks += 1;
            return;
        }
        let before = elink.reassembler.counts;
        let expected = elink.reassembler.next_sequence();
        let error = match subchunks(format, block, &mut self.room) {
            Ok((header, found)) => {
                elink.chunks(header, found, block, options.level);
                None
            }
            Err(error) => {
                elink.reassembler.bad_block();
                Some(error)
            }
        };
        let after = elink.reassembler.counts;
        if let Some(error) = error {
            let what = match error {
                daqmeter_wire::felix::BlockError::Undefined { .. } => "undefined type",
                _ => "length mismatch",
            };
            self.fault(what, || format!("E-link {number:#05x}: {error}"));
        }
        if before != after {
            self.compare(number, expected, header.sequence, &before, &after);
        }
    }

    /// What this block added to the faults.
    fn compare(&mut self, number: u16, expected: Option<u8>, seen: u8, before: &Counts, after: &Counts) {
        if after.blocks_missing > before.blocks_missing {
            let expected = expected.unwrap_or(0);
            self.fault("sequence mismatch", || format!("E-link {number:#05x}: expected {expected}, seen {seen}"));
        }
        if self.options.level < 2 {
            return;
        }
        if after.chunks_broken > before.chunks_broken {
            self.fault("chunk not ended", || format!("E-link {number:#05x}: a chunk was open"));
        }
        if after.orphans > before.orphans {
            self.fault("MIDDLE or LAST without FIRST", || format!("E-link {number:#05x}"));
        }
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
            self.fault("cut off", || format!("the last {left} bytes are no whole block"));
            self.skipped_bytes += left as u64;
        }
        let rows: Vec<Row> = self.elinks.iter().map(|(number, elink)| elink.row(*number)).collect();
        let sum = |of: fn(&Row) -> u64| rows.iter().map(of).sum::<u64>();
        if self.options.level >= 3 {
            for (what, count) in
                [("missing events", sum(|row| row.missing_events)), ("wrong payload", sum(|row| row.wrong_payloads))]
            {
                if count > 0 {
                    self.faults.insert(what, count);
                }
            }
        }
        Ok(Checked {
            blocks: self.blocks,
            block_bytes: self.block_bytes(),
            rows,
            faults: self.faults,
            messages: self.messages,
            skipped_bytes: self.skipped_bytes,
        })
    }
}

/// Bytes without any block start that are kept while one is looked for.
const MOST_LOOK_AHEAD: usize = 16 << 20;

enum Next {
    At(usize),
    /// More bytes are needed to say.
    Unknown,
    None,
}

/// The next place where a block begins and another follows, or the bytes end.
fn next_start(bytes: &[u8], format: Format, last: bool) -> Next {
    let magic = format.magic.to_le_bytes();
    let starts = |at: usize| bytes.get(at + 2..at + 4) == Some(&magic[..]);
    for at in (1..bytes.len()).filter(|at| starts(*at)) {
        let follower = at + format.block_bytes;
        if follower + HEADER_BYTES > bytes.len() {
            return if last { Next::At(at) } else { Next::Unknown };
        }
        if starts(follower) {
            return Next::At(at);
        }
    }
    if last { Next::None } else { Next::Unknown }
}

impl ElinkCheck {
    fn chunks(&mut self, header: Header, found: &[Subchunk], block: &[u8], level: u8) {
        let ElinkCheck { reassembler, fragments, partial, open_bytes, smallest, largest, bytes, width } = self;
        reassembler.begin(header);
        for (index, subchunk) in found.iter().enumerate() {
            let Some(part) = reassembler.part(subchunk, index == 0) else { continue };
            let payload = &block[part.begin..part.begin + part.length];
            // By far the most, in few steps.
            if part.begins && part.ends && !part.flags.truncated && part.length == *largest && *largest == *smallest {
                *bytes += part.length as u64;
                if level >= 3 {
                    fragments.check(payload);
                }
                continue;
            }
            if part.begins {
                *open_bytes = 0;
            }
            *open_bytes += part.length;
            *bytes += part.length as u64;
            if part.ends {
                *smallest = (*smallest).min(*open_bytes);
                *largest = (*largest).max(*open_bytes);
            }
            if level < 3 {
                continue;
            }
            if part.begins && part.ends {
                if part.flags.truncated {
                    fragments.cut(payload)
                } else {
                    fragments.check(payload)
                };
                if width.is_none() {
                    *width = payload.get(7).copied();
                }
                continue;
            }
            if part.begins {
                partial.clear();
            }
            partial.extend_from_slice(payload);
            if part.ends {
                if part.flags.truncated {
                    fragments.cut(partial)
                } else {
                    fragments.check(partial)
                };
            }
        }
    }

    fn row(&self, elink: u16) -> Row {
        let counts = &self.reassembler.counts;
        let any = counts.chunks + counts.chunks_timed_out > 0;
        let is_ttc = elink == Elink::TTC.number();
        Row {
            elink,
            blocks: counts.blocks,
            bytes: self.bytes,
            subchunks: counts.subchunks,
            chunks: counts.chunks,
            chunks_with_timeouts: counts.chunks + counts.chunks_timed_out,
            smallest: if any { self.smallest as u64 } else { 0 },
            largest: self.largest as u64,
            width: if is_ttc { 0 } else { self.width.unwrap_or(0) },
            flags: [counts.truncated, counts.errors, counts.crc_errors, counts.busy],
            missing_blocks: counts.blocks_missing,
            missing_events: self.fragments.faults.missing,
            wrong_payloads: self.fragments.faults.payload,
        }
    }
}

impl Checked {
    /// Whether nothing was wrong. Flags that the card set are not the file's fault, and are said in the tables.
    pub fn is_good(&self) -> bool {
        self.faults.is_empty()
    }

    /// The two tables at the end of a run of fdaqm.
    pub fn fdaqm_table(&self, dev_dma: &str) -> String {
        let mut out = format!("-> Data checked @Dev-DMA={dev_dma}: Blocks {}", self.blocks);
        for (what, count) in &self.faults {
            let _ = write!(out, ", {what} {count}");
        }
        let _ = write!(out, "\n-> Elink chunks @Dev-DMA={dev_dma}:\n\n Elink  Lnk-i      Chunks\n");
        for row in &self.rows {
            let _ = writeln!(out, " {:#05x}  {}  {:>10}", row.elink, Elink::new(row.elink), row.chunks);
        }
        out
    }

    /// The table of fcheck: what each E-link's blocks held.
    pub fn fcheck_table(&self) -> String {
        let mut out = String::from(
            " Elink  Lnk-i     blocks  width        bytes      null     first      last       both    middle  timeout      oob     chunks  fcheck's   min   max  trunc    err    crc   busy\n",
        );
        let kind = |row: &Row, kind: Kind| row.subchunks[kind as usize];
        for row in &self.rows {
            let width = if row.width == 0 { "-".to_owned() } else { row.width.to_string() };
            let _ = writeln!(
                out,
                " {:#05x}  {} {:>10} {width:>6} {:>12} {:>9} {:>9} {:>9} {:>10} {:>9} {:>8} {:>8} {:>10} {:>9} {:>5} {:>5} {:>6} {:>6} {:>6} {:>6}",
                row.elink,
                Elink::new(row.elink),
                row.blocks,
                row.bytes,
                kind(row, Kind::Null),
                kind(row, Kind::First),
                kind(row, Kind::Last),
                kind(row, Kind::Both),
                kind(row, Kind::Middle),
                kind(row, Kind::Timeout),
                kind(row, Kind::OutOfBand),
                row.chunks,
                row.chunks_with_timeouts,
                row.smallest,
                row.largest,
                row.flags[0],
                row.flags[1],
                row.flags[2],
                row.flags[3],
            );
        }
        let undefined = self.faults.get("undefined type").copied().unwrap_or(0);
        let flags = self.rows.iter().fold([0; 4], |sum, row| [0, 1, 2, 3].map(|at| sum[at] + row.flags[at]));
        let _ = writeln!(
            out,
            " {} blocks of {} bytes, {undefined} undefined types, {} truncated, {} errors, {} CRC errors, {} busy",
            self.blocks, self.block_bytes, flags[0], flags[1], flags[2], flags[3]
        );
        out
    }
}

#[cfg(test)]
mod tests {
    use daqmeter_wire::felix::{Encoder, Flags};
    use proptest::prelude::*;

    use super::*;
    use crate::scenario::Scenario;

    fn file(triggers: u64, faults: &str) -> Vec<u8> {
        let scenario = Scenario::parse(&format!("[card]\nlinks = 1\nring = \"1MiB\"\n{faults}"), "").unwrap();
        let mut bytes = Vec::new();
        crate::recording::record(&scenario, triggers, |_, part| {
            bytes.extend_from_slice(part);
            Ok(())
        })
        .unwrap();
        bytes
    }

    fn of(bytes: &[u8]) -> Checked {
        check(bytes, &Options::default()).unwrap()
    }

    #[test]
    fn a_good_file_gives_the_tables_of_the_tools() {
        let checked = of(&file(1000, ""));
        assert!(checked.is_good(), "{:?}", checked.faults);
        assert_eq!((checked.rows.len(), checked.rows[0].chunks, checked.rows[0].width), (8, 1000, 8));
        let table = checked.fdaqm_table("0-0");
        assert!(table.starts_with("-> Data checked @Dev-DMA=0-0: Blocks 224\n"), "{table}");
        assert!(table.contains("\n 0x008  00-08        1000\n"), "{table}");
        assert!(checked.fcheck_table().contains("224 blocks of 1024 bytes, 0 undefined types"));
    }

    #[test]
    fn however_the_bytes_are_cut_the_result_is_the_same() {
        let bytes = file(500, "[[fault]]\nkind = \"corrupted-magic\"\nevery = 5\n");
        let whole = of(&bytes);
        for cut in [1, 7, 1000, 1024, 1025, 5000] {
            let mut checker = Checker::new(Options::default());
            bytes.chunks(cut).for_each(|part| checker.take(part).unwrap());
            assert_eq!(checker.finish().unwrap(), whole, "{cut}");
        }
    }

    #[test]
    fn each_fault_has_its_message_with_block_and_place() {
        let good = file(500, "");
        let faults = |edit: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = good.clone();
            edit(&mut bytes);
            of(&bytes)
        };
        let bad_start = faults(&|bytes| bytes[20 * 1024 + 2] ^= 0xFF);
        assert_eq!(bad_start.faults["bad block start"], 1);
        assert!(bad_start.messages[0].starts_with("block 20 @ 0x5000: bad block start"), "{:?}", bad_start.messages);
        assert_eq!(bad_start.blocks, of(&good).blocks, "the next block is where it was");
        let undefined = faults(&|bytes| bytes[21 * 1024 - 1] = 0xC0);
        assert_eq!(undefined.faults["undefined type"], 1);
        let length = faults(&|bytes| bytes[21 * 1024 - 3] = 0xFF);
        assert_eq!(length.faults["length mismatch"], 1);
        let lost = faults(&|bytes| drop(bytes.drain(20 * 1024..21 * 1024)));
        assert_eq!(lost.faults["sequence mismatch"], 1);
        assert!(lost.messages[0].contains("expected 2, seen 3"), "{:?}", lost.messages);
        let missing = faults(&|bytes| drop(bytes.drain(20_000..20_100)));
        assert_eq!((missing.faults["bytes of no block"], missing.faults["sequence mismatch"]), (1, 1), "{missing:?}");
        let payload = faults(&|bytes| bytes[20] ^= 1);
        assert_eq!(payload.faults["wrong payload"], 1);
        let short = faults(&|bytes| bytes.truncate(20 * 1024 + 5));
        assert_eq!((short.faults["cut off"], short.skipped_bytes), (1, 5));
    }

    #[test]
    fn levels_leave_out_what_is_above_them() {
        let mut bytes = file(500, "");
        bytes[20] ^= 1;
        bytes.drain(21 * 1024..22 * 1024);
        let at = |level| check(&bytes[..], &Options { level, ..Options::default() }).unwrap().faults;
        assert!(at(0).is_empty());
        assert_eq!(at(1).keys().collect::<Vec<_>>(), [&"sequence mismatch"]);
        assert!(at(2).contains_key("sequence mismatch") && !at(2).contains_key("wrong payload"));
        assert!(at(3).contains_key("wrong payload"));
    }

    #[test]
    fn foreign_and_short_files_are_refused() {
        let error = check(&b"#!/bin/sh\necho not a block\n"[..], &Options::default()).unwrap_err().to_string();
        assert!(error.contains("no file of FELIX blocks"), "{error}");
        assert!(check(&b""[..], &Options::default()).unwrap_err().to_string().contains("0 bytes"));
    }

    #[test]
    fn both_ways_of_counting_differ_by_what_a_timeout_cut_off() {
        let format = Format::phase2(1).unwrap();
        let mut memory = vec![0; 1024];
        let mut bytes = Vec::new();
        let mut encoder = Encoder::new(format, Elink::new(8), &mut memory[..]).unwrap();
        encoder.chunk(&[0xAA; 900], Flags::default(), &mut |block| bytes.extend_from_slice(block));
        encoder.timeout(&mut |block| bytes.extend_from_slice(block));
        // The flag of the timeout's trailer.
        *bytes.last_mut().unwrap() |= 1 << 4;
        let checked = check(&bytes[..], &Options { level: 2, ..Options::default() }).unwrap();
        assert_eq!((checked.rows[0].chunks, checked.rows[0].chunks_with_timeouts), (1, 2));
    }

    proptest! {
        #[test]
        fn no_bytes_break_it(bytes in proptest::collection::vec(any::<u8>(), 0..5000), cut in 1..3000_usize) {
            let mut whole = vec![8, 0, 0xCE, 0xC0];
            whole.extend_from_slice(&bytes);
            let mut checker = Checker::new(Options::default());
            for part in whole.chunks(cut) {
                checker.take(part).unwrap();
            }
            let checked = checker.finish().unwrap();
            prop_assert!(checked.blocks * 1024 + checked.skipped_bytes == whole.len() as u64);
        }
    }
}
