//! A recorded file of blocks as the data of an emulated card, written by [`crate::recording`] or a
//! real card.
//!
//! The checker checks the file, and it is walked as the reader will walk it. Its own faults and
//! gaps are thus known and are no loss of the chain. The file holds no times: the n-th chunk of
//! each E-link counts as that of the n-th trigger. A block is complete with the last trigger whose
//! chunk ends in it or before it.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use daqmeter_record::units::show_bytes;
use daqmeter_sys::available;
use daqmeter_wire::felix::block::{FelixHeader, HEADER_BYTES};
use daqmeter_wire::felix::decoder::{ChunkPart, most_subchunks};
use daqmeter_wire::felix::{BlockFormat, Elink, Reassembler, Subchunk, SubchunkKind, subchunks};

use crate::check::{CheckError, Checked, Checker, Options, places};
use crate::fragment::FragmentCheck;
use crate::repeats::Repeats;

pub(crate) const MAX_CHUNK_BYTES: usize = 1 << 20;
/// Longest file: it is held in memory.
const MAX_FILE_BYTES: u64 = 16 << 30;
const DESCRIBED_SHARE: u64 = 16;
const CHECK_BYTES: usize = 512 << 10;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Playback {
    pub(crate) file: Arc<Recorded>,
    /// True if blocks come at the trigger rate; else as fast as the chain takes them.
    pub(crate) is_paced: bool,
    pub(crate) loops: bool,
}

#[derive(PartialEq)]
pub(crate) struct Recorded {
    pub(crate) name: String,
    pub(crate) checked: Checked,
    /// Pieces of chunks that begin before the file or end after it: they are made filler.
    pub(crate) cut_pieces: u64,
    pub(crate) format: BlockFormat,
    bytes: Vec<u8>,
    pub(crate) blocks: Vec<RecordedBlock>,
    pub(crate) elinks: Vec<RecordedElink>,
    /// Triggers of one turn: chunks of the E-link that has most.
    pub(crate) triggers: u64,
}

impl fmt::Debug for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} blocks)", self.name, self.blocks.len())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordedBlock {
    pub(crate) due: u64,
    /// Place of its E-link; `None` if its header names no E-link of the file.
    pub(crate) elink: Option<u16>,
    pub(crate) chunks: u32,
    pub(crate) wrong: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordedElink {
    pub(crate) elink: Elink,
    pub(crate) longest: usize,
    pub(crate) chunks: u64,
    shift: u64,
}

impl Recorded {
    /// Reads and checks a file; blocks that do not state their size (0xABCE) have that of
    /// `abce_kib`. Fails if it is not a regular file, does not fit into memory, or holds no chunk.
    pub(crate) fn read(path: &str, abce_kib: u8) -> Result<Recorded, String> {
        let bytes = whole(Path::new(path)).map_err(|error| error.to_string())?;
        Recorded::of(path, bytes, abce_kib)
    }

    fn of(name: &str, mut bytes: Vec<u8>, abce_kib: u8) -> Result<Recorded, String> {
        let checked = checked(&bytes, abce_kib).map_err(|error| error.to_string())?;
        let (format, places) = places(&bytes, abce_kib).ok_or("there are no FELIX blocks in it")?;
        close_ranks(&mut bytes, &places, format.block_bytes);
        let mut cut_pieces = 0;
        let found = loop {
            let found = Walked::over(format, &bytes);
            if found.cut.is_empty() {
                break found;
            }
            // A block that seemed to be a repetition may be none without them: it is walked again.
            cut_pieces += found.cut.len() as u64;
            found.cut.iter().for_each(|at| make_filler(&mut bytes[*at]));
        };
        let triggers = found.blocks.last().map_or(0, |block| block.due);
        let elinks: Vec<RecordedElink> = found.elinks.iter().map(Walk::elink).collect();
        if elinks.iter().all(|elink| elink.chunks == 0) {
            return Err("there is no whole chunk in it".to_owned());
        }
        Ok(Recorded {
            name: name.to_owned(),
            checked,
            cut_pieces,
            format,
            bytes,
            blocks: found.blocks,
            elinks,
            triggers,
        })
    }

    pub(crate) fn block(&self, at: usize, turns: u64) -> ([u8; HEADER_BYTES], &[u8]) {
        let size = self.format.block_bytes;
        let block = &self.bytes[at * size..(at + 1) * size];
        let head = header(block);
        match self.blocks[at].elink {
            // A bad start stays as it is.
            Some(place) if head.magic == self.format.magic => {
                let turned =
                    u64::from(head.sequence) + turns * self.elinks[usize::from(place)].shift;
                let sequence = u8::try_from(turned & 0x1F).expect("five bits");
                (FelixHeader { sequence, ..head }.emit(), block)
            }
            _ => (head.emit(), block),
        }
    }

    pub(crate) fn event_bytes(&self) -> f64 {
        self.bytes.len() as f64 / self.triggers.max(1) as f64
    }

    pub(crate) fn notes(&self) -> Vec<String> {
        let name = &self.name;
        let mut notes = Vec::new();
        if !self.checked.faults.is_empty() {
            let each = self.checked.faults.iter();
            let each: Vec<String> = each.map(|(what, count)| format!("{what} {count}")).collect();
            notes.push(format!(
                "{name}: the file itself has {}; `daqmeter readout check` says where; no loss of the chain",
                each.join(", ")
            ));
        }
        if self.cut_pieces > 0 {
            notes.push(format!(
                "{name}: pieces of chunks that begin before the file or end after it, {}, are left out",
                self.cut_pieces
            ));
        }
        notes
    }
}

fn header(block: &[u8]) -> FelixHeader {
    let head = block.first_chunk::<HEADER_BYTES>();
    FelixHeader::parse(*head.expect("a block has a header"))
}

fn whole(path: &Path) -> io::Result<Vec<u8>> {
    let refused = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
    // The metadata is read first: opening a pipe waits for a writer.
    let about = path.metadata()?;
    if !about.is_file() {
        return Err(refused("not a regular file".to_owned()));
    }
    let needed = about.len() + about.len() / DESCRIBED_SHARE;
    let free = available::memory_bytes().unwrap_or(u64::MAX);
    let most = MAX_FILE_BYTES.min(free - free / DESCRIBED_SHARE);
    if needed > free || about.len() > most {
        let [bytes, most] = [about.len(), most].map(show_bytes);
        return Err(refused(format!(
            "{bytes} are held in memory to be replayed, which takes {most} at the most: replay a part of it"
        )));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(about.len()).unwrap_or(0));
    // A file that grows meanwhile is read up to its first length.
    File::open(path)?.take(about.len()).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn checked(bytes: &[u8], abce_kib: u8) -> Result<Checked, CheckError> {
    let mut checker = Checker::new(Options { max_messages: 0, abce_kib, ..Options::default() });
    for part in bytes.chunks(CHECK_BYTES) {
        checker.take(part)?;
    }
    checker.finish()
}

/// Moves blocks together over bytes that belong to none.
fn close_ranks(bytes: &mut Vec<u8>, places: &[usize], size: usize) {
    for (nth, at) in places.iter().enumerate() {
        if *at != nth * size {
            bytes.copy_within(*at..*at + size, nth * size);
        }
    }
    bytes.truncate(places.len() * size);
}

/// Turns a trailer's last byte into that of a timeout that cut nothing off, whose bytes are
/// skipped. Its upper four bits are type and truncation, in trailers of either width.
fn make_filler(byte: &mut u8) {
    *byte = *byte & 0x0F | (SubchunkKind::Timeout as u8) << 5;
}

struct Walked {
    blocks: Vec<RecordedBlock>,
    elinks: Vec<Walk>,
    cut: Vec<usize>,
}

impl Walked {
    fn over(format: BlockFormat, bytes: &[u8]) -> Walked {
        let mut elinks = walks(format, bytes);
        let mut room = vec![Subchunk::default(); most_subchunks(format)];
        let (mut cut, mut due) = (Vec::new(), 1);
        let mut blocks = Vec::with_capacity(bytes.len() / format.block_bytes);
        for (nth, block) in bytes.chunks_exact(format.block_bytes).enumerate() {
            let elink = header(block).elink;
            let place = elinks.binary_search_by_key(&elink, |walk| walk.elink).ok();
            let begin = nth * format.block_bytes;
            let (chunks, wrong) = place.map_or((0, 0), |place| {
                let found = elinks[place].block(format, block, begin, &mut room, &mut cut);
                due = due.max(elinks[place].chunks);
                found
            });
            blocks.push(RecordedBlock {
                due,
                elink: place.and_then(|place| u16::try_from(place).ok()),
                chunks,
                wrong,
            });
        }
        let open = elinks.iter().filter(|walk| walk.reassembler.is_open());
        cut.extend(open.flat_map(|walk| walk.loose.iter().copied()));
        Walked { blocks, elinks, cut }
    }
}

fn walks(format: BlockFormat, bytes: &[u8]) -> Vec<Walk> {
    let mut are_there = vec![false; usize::from(Elink::MOST) + 1];
    for block in bytes.chunks_exact(format.block_bytes) {
        let head = header(block);
        are_there[usize::from(head.elink.number())] |= head.magic == format.magic;
    }
    (0..=Elink::MOST)
        .filter(|number| are_there[usize::from(*number)])
        .map(|number| Walk::new(Elink::new(number)))
        .collect()
}

struct Walk {
    elink: Elink,
    reassembler: Reassembler,
    repeats: Repeats,
    check: FragmentCheck,
    partial: Vec<u8>,
    length: usize,
    longest: usize,
    chunks: u64,
    /// True after the first start of a chunk: data before it belongs to a chunk from before the
    /// file.
    has_begun: bool,
    loose: Vec<usize>,
    /// Number of the first readable block, and the count of unreadable ones before it.
    first: Option<u8>,
    before_first: u64,
    next: u64,
}

impl Walk {
    fn new(elink: Elink) -> Walk {
        Walk {
            elink,
            reassembler: Reassembler::new(),
            repeats: Repeats::new(),
            check: FragmentCheck::new(Some(elink)),
            partial: Vec::new(),
            length: 0,
            longest: 0,
            chunks: 0,
            has_begun: false,
            loose: Vec::new(),
            first: None,
            before_first: 0,
            next: 0,
        }
    }

    /// Takes the block at `begin`; returns the chunks that end in it, and those with wrong bytes.
    fn block(
        &mut self,
        format: BlockFormat,
        block: &[u8],
        begin: usize,
        room: &mut [Subchunk],
        cut: &mut Vec<usize>,
    ) -> (u32, u32) {
        let Ok((header, found)) = subchunks(format, block, room) else {
            self.unreadable();
            return (0, 0);
        };
        if self.repeats.is_repeated(&self.reassembler, header, block) {
            return (0, 0);
        }
        self.first.get_or_insert(header.sequence);
        self.next = u64::from(header.sequence) + 1;
        let before = (self.chunks, self.check.faults.payload);
        self.reassembler.begin(header);
        for (index, subchunk) in found.iter().enumerate() {
            let trailer = subchunk.trailer();
            let end = begin
                + subchunk.range().start
                + format.padded(usize::from(trailer.length))
                + format.trailer.bytes();
            match self.reassembler.part(subchunk, index == 0) {
                Some(part) => {
                    self.part(part, &block[part.begin..part.begin + part.length]);
                    if !part.ends {
                        self.loose.push(end - 1);
                    }
                }
                None if !self.has_begun && trailer.carries_data() => cut.push(end - 1),
                None => {}
            }
        }
        let since = |now: u64, before: u64| u32::try_from(now - before).unwrap_or(u32::MAX);
        (since(self.chunks, before.0), since(self.check.faults.payload, before.1))
    }

    fn unreadable(&mut self) {
        self.reassembler.bad_block();
        match self.first {
            Some(_) => self.next += 1,
            None => self.before_first += 1,
        }
    }

    fn part(&mut self, part: ChunkPart, payload: &[u8]) {
        if part.begins {
            self.has_begun = true;
            self.length = 0;
            self.partial.clear();
            self.loose.clear();
        }
        self.length += payload.len();
        let is_whole = part.begins && part.ends;
        if !is_whole && self.partial.len() <= MAX_CHUNK_BYTES {
            self.partial.extend_from_slice(payload);
        }
        if !part.ends {
            return;
        }
        self.chunks += 1;
        self.longest = self.longest.max(self.length);
        self.loose.clear();
        let chunk = if is_whole { payload } else { &self.partial[..] };
        if part.flags.truncated {
            self.check.cut(chunk);
        } else {
            self.check.check(chunk);
        }
    }

    fn elink(&self) -> RecordedElink {
        let first = u64::from(self.first.unwrap_or(0));
        RecordedElink {
            elink: self.elink,
            longest: self.longest,
            chunks: self.chunks,
            // Sequence numbers have five bits.
            shift: (self.next + self.before_first + 32 - first) & 0x1F,
        }
    }
}

#[cfg(test)]
mod tests {
    use daqmeter_wire::felix::{ChunkFlags, Encoder};
    use proptest::prelude::*;

    use super::*;

    const FORMAT: BlockFormat = BlockFormat::phase2(1).expect("1 KiB is a size");

    fn blocks(lengths: &[usize]) -> Vec<Vec<u8>> {
        let mut memory = [vec![0; 1024], vec![0; 1024]];
        let [one, other] = &mut memory;
        let mut encoders = [(8, one), (0x4C, other)]
            .map(|(number, block)| Encoder::new(FORMAT, Elink::new(number), block).unwrap());
        let mut blocks = Vec::new();
        for length in lengths {
            for encoder in &mut encoders {
                encoder.chunk(&vec![0x55; *length], ChunkFlags::default(), &mut |block| {
                    blocks.push(block.to_vec());
                });
            }
        }
        blocks
    }

    /// Counts the chunks of each E-link that a reader finds in `turns` turns, by the plainest code.
    fn found(recorded: &Recorded, turns: u64) -> Vec<u64> {
        let mut room = vec![Subchunk::default(); most_subchunks(FORMAT)];
        let mut readers: Vec<_> =
            recorded.elinks.iter().map(|_| (Reassembler::new(), Repeats::new())).collect();
        for turn in 0..turns {
            for at in 0..recorded.blocks.len() {
                let (head, rest) = recorded.block(at, turn);
                let block = [&head[..], &rest[HEADER_BYTES..]].concat();
                let elink = header(&block).elink;
                let Some(place) = recorded.elinks.iter().position(|one| one.elink == elink) else {
                    continue;
                };
                let (reassembler, repeats) = &mut readers[place];
                match subchunks(FORMAT, &block, &mut room) {
                    Ok((header, found)) => {
                        if !repeats.is_repeated(reassembler, header, &block) {
                            reassembler.block(header, found, |_| {});
                        }
                    }
                    Err(_) => reassembler.bad_block(),
                }
            }
        }
        readers.iter().map(|(reassembler, _)| reassembler.counts.ended()).collect()
    }

    #[derive(Clone, Debug)]
    enum Harm {
        Lose(usize),
        Repeat(usize),
        Swap(usize, usize),
        Spoil(usize, usize, u8),
    }

    fn harm() -> impl Strategy<Value = Harm> {
        prop_oneof![
            any::<usize>().prop_map(Harm::Lose),
            any::<usize>().prop_map(Harm::Repeat),
            any::<(usize, usize)>().prop_map(|(one, other)| Harm::Swap(one, other)),
            (any::<usize>(), prop_oneof![0..1024_usize, 1020..1024_usize, 0..4_usize], 1..=255_u8)
                .prop_map(|(at, byte, bits)| Harm::Spoil(at, byte, bits)),
        ]
    }

    fn harmed(mut blocks: Vec<Vec<u8>>, harms: &[Harm]) -> Vec<Vec<u8>> {
        for harm in harms {
            let count = blocks.len();
            match *harm {
                Harm::Lose(at) => drop(blocks.remove(at % count)),
                Harm::Repeat(at) => blocks.insert(at % count, blocks[at % count].clone()),
                Harm::Swap(one, other) => blocks.swap(one % count, other % count),
                Harm::Spoil(at, byte, bits) => blocks[at % count][byte] ^= bits,
            }
        }
        blocks
    }

    proptest! {
        #[test]
        fn whatever_was_done_to_a_file_each_turn_gives_the_chunks_that_were_counted(
            lengths in prop::collection::vec(prop_oneof![0..64_usize, 900..3000_usize], 30..90),
            harms in prop::collection::vec(harm(), 0..8),
            cut in (0..3000_usize, 0..3000_usize),
        ) {
            let bytes = harmed(blocks(&lengths), &harms).concat();
            prop_assume!(bytes.len() > 16 << 10);
            let bytes = bytes[cut.0..bytes.len() - cut.1].to_vec();
            let Ok(recorded) = Recorded::of("test", bytes, 1) else {
                return Ok(());
            };
            let counted: Vec<u64> = recorded.elinks.iter().map(|elink| elink.chunks).collect();
            for turns in [1, 2, 5] {
                let expected: Vec<u64> = counted.iter().map(|chunks| chunks * turns).collect();
                prop_assert_eq!(found(&recorded, turns), expected);
            }
            let by_block: u64 = recorded.blocks.iter().map(|block| u64::from(block.chunks)).sum();
            prop_assert_eq!(by_block, counted.iter().sum::<u64>());
            let dues: Vec<u64> = recorded.blocks.iter().map(|block| block.due).collect();
            prop_assert!(dues.is_sorted() && dues[0] >= 1);
            prop_assert_eq!(counted.iter().max(), Some(&recorded.triggers));
        }
    }
}
