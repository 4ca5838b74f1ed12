//! A recorded file of blocks as the data of an emulated card, written by [`crate::recording`] or a
//! real card.
//!
//! The checker checks the file, and it is walked as the reader will walk it. Its own faults and
//! gaps are thus known and are no loss of the chain; blocks that cannot be read or come twice are
//! left out. The file holds no times: the n-th chunk of each E-link counts as that of the n-th
//! trigger. A block is complete with the last trigger whose chunk ends in it or before it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use daqmeter_record::units::show_bytes;
use daqmeter_sys::available;
use daqmeter_wire::felix::block::FelixHeader;
use daqmeter_wire::felix::decoder::most_subchunks;
use daqmeter_wire::felix::{BlockFormat, Elink, Reassembler, Subchunk, SubchunkKind, subchunks};

use crate::card::tape::{Tape, TapeBlock, TapeElink, header};
use crate::card::words::MAX_ELINKS;
use crate::check::{CheckOptions, Checker, fault, places};
use crate::repeats::Repeats;

pub(crate) const MAX_CHUNK_BYTES: usize = 1 << 20;
/// Longest file: it is held in memory.
const MAX_FILE_BYTES: u64 = 16 << 30;
const DESCRIBED_SHARE: u64 = 16;
const CHECK_BYTES: usize = 512 << 10;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Playback {
    pub(crate) name: String,
    pub(crate) tape: Arc<Tape>,
    /// What the file itself lacks or has wrong.
    pub(crate) notes: Vec<String>,
    /// True if all chunks are those of emulators.
    pub(crate) is_emulated: bool,
    /// True if blocks come at the trigger rate; else as fast as the chain takes them.
    pub(crate) is_paced: bool,
    pub(crate) loops: bool,
}

impl Playback {
    /// Reads and checks a file; blocks that do not state their size (0xABCE) have that of
    /// `abce_kib`. Fails if it is not a regular file, does not fit into memory, or holds no chunk.
    pub(crate) fn read(path: &str, abce_kib: u8) -> Result<Playback, String> {
        let bytes = whole(Path::new(path)).map_err(|error| error.to_string())?;
        Playback::of(path, bytes, abce_kib)
    }

    fn of(name: &str, mut bytes: Vec<u8>, abce_kib: u8) -> Result<Playback, String> {
        let mut checker =
            Checker::new(CheckOptions { max_messages: 0, abce_kib, ..CheckOptions::default() });
        let mut parts = bytes.chunks(CHECK_BYTES);
        let checked = parts.try_for_each(|part| checker.take(part)).and_then(|()| checker.finish());
        let faults = checked.map_err(|error| error.to_string())?.faults;
        let (format, places) = places(&bytes, abce_kib).ok_or("there are no FELIX blocks in it")?;
        let elinks = keep_good_blocks(format, &mut bytes, &places);
        let mut notes = Vec::new();
        if !faults.is_empty() {
            let each: Vec<String> =
                faults.iter().map(|(what, count)| format!("{what} {count}")).collect();
            notes.push(format!(
                "{name}: the file itself has {}; `daqmeter readout check` says where; no loss of the chain",
                each.join(", ")
            ));
        }
        let mut cut_pieces = 0;
        let tape = loop {
            let (found, cut) = walked(format, &bytes, &elinks);
            if cut.is_empty() {
                break Tape { bytes, ..found };
            }
            // Without them another chunk may be open at the end.
            cut_pieces += cut.len();
            cut.iter().for_each(|at| make_filler(&mut bytes[*at]));
        };
        if cut_pieces > 0 {
            notes.push(format!(
                "{name}: pieces of chunks that end after the file, {cut_pieces}, are left out"
            ));
        }
        let (count, longest) = (elinks.len(), tape.elinks.iter().map(|one| one.longest).max());
        match longest {
            Some(1..=MAX_CHUNK_BYTES) if count <= MAX_ELINKS && tape.triggers > 0 => {}
            None | Some(0) => return Err("there is no whole chunk in it".to_owned()),
            Some(bytes) => {
                return Err(format!(
                    "{count} E-links with chunks of up to {bytes} bytes; {MAX_ELINKS} and {MAX_CHUNK_BYTES} at the most"
                ));
            }
        }
        let is_emulated =
            ![fault::PAYLOAD, fault::ELINK].iter().any(|one| faults.contains_key(one));
        let (tape, name) = (Arc::new(tape), name.to_owned());
        Ok(Playback { name, tape, notes, is_emulated, is_paced: false, loops: false })
    }
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

/// Moves the blocks together that can be read and are no repetition; returns their E-links.
fn keep_good_blocks(format: BlockFormat, bytes: &mut Vec<u8>, places: &[usize]) -> Vec<Elink> {
    let mut room = vec![Subchunk::default(); most_subchunks(format)];
    let mut elinks: BTreeMap<Elink, (Reassembler, Repeats)> = BTreeMap::new();
    let (size, mut kept) = (format.block_bytes, 0);
    for at in places {
        let block = &bytes[*at..at + size];
        let Ok((header, _)) = subchunks(format, block, &mut room) else {
            continue;
        };
        let (reassembler, repeats) =
            elinks.entry(header.elink).or_insert_with(|| (Reassembler::new(), Repeats::new()));
        if !repeats.is_repeated(reassembler, header, block) {
            reassembler.begin(header);
            bytes.copy_within(*at..at + size, kept);
            kept += size;
        }
    }
    bytes.truncate(kept);
    elinks.into_keys().collect()
}

/// Turns a trailer's last byte into that of a timeout that cut nothing off, whose bytes are
/// skipped. Its upper four bits are type and truncation, in trailers of either width.
fn make_filler(byte: &mut u8) {
    *byte = *byte & 0x0F | (SubchunkKind::Timeout as u8) << 5;
}

#[derive(Default)]
struct Walk {
    reassembler: Reassembler,
    length: usize,
    longest: usize,
    /// Ends of the pieces of the open chunk.
    open: Vec<usize>,
    first: Option<u8>,
    last: u8,
}

/// Describes readable blocks, without their bytes, and finds the ends of the pieces of chunks that
/// are open at the end.
fn walked(format: BlockFormat, bytes: &[u8], elinks: &[Elink]) -> (Tape, Vec<usize>) {
    let mut walks: Vec<Walk> = elinks.iter().map(|_| Walk::default()).collect();
    let mut room = vec![Subchunk::default(); most_subchunks(format)];
    let mut triggers = 0;
    let mut blocks = Vec::with_capacity(bytes.len() / format.block_bytes);
    for (nth, block) in bytes.chunks_exact(format.block_bytes).enumerate() {
        let header = header(block);
        let place = elinks.binary_search(&header.elink).expect("each block's E-link is known");
        let (_, found) = subchunks(format, block, &mut room).expect("the block was read before");
        let chunks = walks[place].block(format, nth * format.block_bytes, header, found);
        triggers = walks[place].reassembler.counts.ended().max(triggers);
        let (elink, due) = (u16::try_from(place).unwrap_or(u16::MAX), triggers.max(1));
        blocks.push(TapeBlock { header, elink, first: due, due, chunks });
    }
    let cut = walks.iter().filter(|walk| walk.reassembler.is_open());
    let cut = cut.flat_map(|walk| walk.open.iter().copied()).collect();
    let elinks = elinks.iter().zip(&walks).map(|(elink, walk)| TapeElink {
        elink: *elink,
        longest: walk.longest,
        chunks: walk.reassembler.counts.ended(),
        blocks: u64::from(walk.last.wrapping_sub(walk.first.unwrap_or(0)).wrapping_add(1) & 0x1F),
    });
    (Tape { format, bytes: Vec::new(), blocks, elinks: elinks.collect(), triggers }, cut)
}

impl Walk {
    /// Takes the block at `begin`; returns the number of chunks that end in it.
    fn block(
        &mut self,
        format: BlockFormat,
        begin: usize,
        header: FelixHeader,
        found: &[Subchunk],
    ) -> u32 {
        self.first.get_or_insert(header.sequence);
        self.last = header.sequence;
        let before = self.reassembler.counts.ended();
        self.reassembler.begin(header);
        for (index, subchunk) in found.iter().enumerate() {
            let Some(part) = self.reassembler.part(subchunk, index == 0) else {
                continue;
            };
            if part.begins {
                self.length = 0;
                self.open.clear();
            }
            self.length += part.length;
            let padded = format.padded(usize::from(subchunk.trailer().length));
            self.open.push(begin + part.begin + padded + format.trailer.bytes() - 1);
            if part.ends {
                self.longest = self.longest.max(self.length);
            }
        }
        u32::try_from(self.reassembler.counts.ended() - before).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use daqmeter_wire::felix::{ChunkFlags, Encoder};
    use proptest::prelude::*;

    use super::*;
    use crate::card::tape::shown;

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
    fn found(tape: &Arc<Tape>, turns: u64) -> Vec<u64> {
        let mut room = vec![Subchunk::default(); most_subchunks(FORMAT)];
        let mut readers: BTreeMap<Elink, (Reassembler, Repeats)> = tape
            .elinks
            .iter()
            .map(|one| (one.elink, (Reassembler::new(), Repeats::new())))
            .collect();
        for block in shown(tape, turns) {
            let (header, found) = subchunks(FORMAT, &block, &mut room).unwrap();
            let (reassembler, repeats) = readers.get_mut(&header.elink).unwrap();
            if !repeats.is_repeated(reassembler, header, &block) {
                reassembler.block(header, found, |_| {});
            }
        }
        readers.values().map(|(reassembler, _)| reassembler.counts.ended()).collect()
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
            let Ok(playback) = Playback::of("test", bytes, 1) else {
                return Ok(());
            };
            let tape = playback.tape;
            let counted: Vec<u64> = tape.elinks.iter().map(|elink| elink.chunks).collect();
            for turns in [1, 2, 5] {
                let expected: Vec<u64> = counted.iter().map(|chunks| chunks * turns).collect();
                prop_assert_eq!(found(&tape, turns), expected);
            }
            let by_block: u64 = tape.blocks.iter().map(|block| u64::from(block.chunks)).sum();
            prop_assert_eq!(by_block, counted.iter().sum::<u64>());
            let dues: Vec<u64> = tape.blocks.iter().map(|block| block.due).collect();
            prop_assert!(dues.is_sorted() && dues[0] >= 1);
            prop_assert_eq!(counted.iter().max(), Some(&tape.triggers));
        }
    }
}
