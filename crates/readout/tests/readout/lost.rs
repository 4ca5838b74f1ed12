//! Files of blocks from which something was taken, against the list of what was taken.
//!
//! The files are made here, without the card or the encoder, and what a file must show follows from
//! which pieces of chunks were left: a chunk came if all its pieces come in blocks that follow each
//! other. Nothing here knows how the checker judges.

use std::collections::{BTreeMap, HashSet};

use daqmeter_readout::check::{CheckOptions, Checked, check};
use daqmeter_record::units::whole;
use daqmeter_stats::Random;

const BLOCK: usize = 1024;
const TTC: u16 = 0x600;

/// Part of a chunk in a block: the number of its event, and whether it begins and ends here.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Piece {
    event: u64,
    begins: bool,
    ends: bool,
}

#[derive(Clone, Debug)]
struct Block {
    elink: u16,
    sequence: u64,
    bytes: Vec<u8>,
    pieces: Vec<Piece>,
    is_damaged: bool,
}

/// One E-link that fills blocks.
struct Filler {
    elink: u16,
    payload: usize,
    sequence: u64,
    open: Vec<u8>,
    pieces: Vec<Piece>,
}

fn padded(length: usize) -> usize {
    length.next_multiple_of(4)
}

impl Filler {
    fn new(elink: u16, payload: usize) -> Filler {
        Filler { elink, payload, sequence: 0, open: vec![0; 4], pieces: Vec::new() }
    }

    fn close(&mut self, out: &mut Vec<Block>) {
        let head = (self.sequence % 32) << 11 | u64::from(self.elink) | 0xC0CE << 16;
        self.open[..4].copy_from_slice(&head.to_le_bytes()[..4]);
        let bytes = std::mem::replace(&mut self.open, vec![0; 4]);
        assert_eq!(bytes.len(), BLOCK);
        let pieces = std::mem::take(&mut self.pieces);
        let (elink, sequence) = (self.elink, self.sequence);
        out.push(Block { elink, sequence, bytes, pieces, is_damaged: false });
        self.sequence += 1;
    }

    fn put(&mut self, kind: u32, bytes: &[u8], piece: Option<Piece>) {
        self.open.extend_from_slice(bytes);
        self.open.resize(padded(self.open.len()), 0);
        let length = u32::try_from(bytes.len()).unwrap();
        self.open.extend((kind << 29 | length).to_le_bytes());
        self.pieces.extend(piece);
    }

    fn chunk(&mut self, event: u64, mut bytes: &[u8], out: &mut Vec<Block>) {
        let mut begins = true;
        loop {
            let room = BLOCK - self.open.len();
            if padded(bytes.len()) + 4 <= room {
                let kind = if begins { 3 } else { 2 };
                self.put(kind, bytes, Some(Piece { event, begins, ends: true }));
            } else if room >= 8 {
                let (now, later) = bytes.split_at(room - 4);
                let kind = if begins { 1 } else { 4 };
                self.put(kind, now, Some(Piece { event, begins, ends: false }));
                (begins, bytes) = (false, later);
                self.close(out);
                continue;
            } else {
                self.put(0, &[], None);
                self.close(out);
                continue;
            }
            if self.open.len() == BLOCK {
                self.close(out);
            }
            return;
        }
    }

    fn end(&mut self, out: &mut Vec<Block>) {
        if self.open.len() > 4 {
            let room = BLOCK - self.open.len() - 4;
            let filler = vec![0; room];
            self.put(5, &filler, None);
            self.close(out);
        }
    }

    fn emulated(&self, event: u64) -> Vec<u8> {
        let length = u16::try_from(self.payload).unwrap().to_be_bytes();
        let index = self.elink.to_le_bytes()[0] & 0x3F;
        let head = [0xAA, length[0], length[1], event.to_le_bytes()[0], index, 0xBB, 0xAA, 8];
        head.into_iter().chain((0..=255).cycle()).take(self.payload).collect()
    }
}

/// Numbers of a trigger: its L1ID and ECR byte, and its number among all.
#[derive(Clone, Copy)]
struct Trigger {
    l1id: u32,
    ecr: u8,
    accepts: u64,
}

impl Trigger {
    fn bytes(&self) -> Vec<u8> {
        let crossing = self.accepts * 40;
        let mut out = vec![2, 26];
        out.extend(u16::try_from(crossing % 3564).unwrap().to_le_bytes());
        out.extend((self.l1id | u32::from(self.ecr) << 24).to_le_bytes());
        out.extend(u32::try_from(crossing / 3564).unwrap().to_le_bytes());
        out.extend([0, 0, 0, 0]);
        out.extend(self.l1id.to_le_bytes());
        out.extend(&self.accepts.to_le_bytes()[..6]);
        out
    }
}

struct Setting {
    elinks: Vec<u16>,
    payload: usize,
    triggers: u64,
    has_ttc: bool,
    /// Triggers between resets of their counter; 0 without resets.
    period: u64,
    /// Triggers that no E-link and no message knows but the number of accepts, by the trigger
    /// before which they were lost.
    skipped: BTreeMap<u64, u64>,
}

fn blocks_of(setting: &Setting) -> Vec<Block> {
    let mut fillers: Vec<Filler> =
        setting.elinks.iter().map(|elink| Filler::new(*elink, setting.payload)).collect();
    let mut ttc = Filler::new(TTC, 26);
    let mut out = Vec::new();
    let (mut l1id, mut ecr, mut accepts) = (0, 0_u8, 1);
    for event in 0..setting.triggers {
        if setting.period > 0 && event > 0 && event % setting.period == 0 {
            (l1id, ecr) = (0, ecr.wrapping_add(1));
        }
        accepts += setting.skipped.get(&event).copied().unwrap_or(0);
        for filler in &mut fillers {
            let bytes = filler.emulated(event);
            filler.chunk(event, &bytes, &mut out);
        }
        if setting.has_ttc {
            ttc.chunk(event, &Trigger { l1id, ecr, accepts }.bytes(), &mut out);
        }
        (l1id, accepts) = (l1id + 1, accepts + 1);
    }
    for filler in fillers.iter_mut().chain(setting.has_ttc.then_some(&mut ttc)) {
        filler.end(&mut out);
    }
    out
}

/// Events that a file shows whole, and those it shows more than once, by their E-links.
fn came(file: &[Block]) -> BTreeMap<u16, BTreeMap<u64, u64>> {
    /// Number of the last block, the event that is open, and how often each event came.
    type Seen = (Option<u64>, Option<u64>, BTreeMap<u64, u64>);
    let mut all: BTreeMap<u16, Seen> = BTreeMap::new();
    let mut known = HashSet::new();
    for block in file {
        let (last, open, events) = all.entry(block.elink).or_default();
        // A block that comes again with the same bytes is passed over.
        let follows = last.is_none_or(|last| last + 1 == block.sequence);
        if !known.insert(&block.bytes) {
            continue;
        }
        if !follows {
            *open = None;
        }
        *last = Some(block.sequence);
        for piece in &block.pieces {
            match (piece.begins, piece.ends) {
                (true, true) => *events.entry(piece.event).or_default() += 1,
                (true, false) => *open = Some(piece.event),
                (false, true) => {
                    if open.take() == Some(piece.event) {
                        *events.entry(piece.event).or_default() += 1;
                    }
                }
                (false, false) => {}
            }
        }
    }
    all.into_iter().map(|(elink, (_, _, events))| (elink, events)).collect()
}

fn bytes(file: &[Block]) -> Vec<u8> {
    file.iter().flat_map(|block| block.bytes.iter().copied()).collect()
}

fn checked(bytes: &[u8]) -> Checked {
    check(bytes, &CheckOptions::default()).unwrap()
}

/// Fault that is put into a file.
#[allow(dead_code, reason = "Debug shows them where a verdict is wrong")]
#[derive(Clone, Debug)]
enum Done {
    Lost { elink: u16, from: u64, blocks: usize },
    Triggers { before: u64, count: u64 },
    Ended { elink: u16, after: u64 },
    Doubled { elink: u16, sequence: u64 },
    Swapped { elink: u16, sequence: u64 },
    Flipped { elink: u16, event: u64 },
}

struct Case {
    setting: Setting,
    file: Vec<Block>,
    done: Vec<Done>,
}

fn below(random: &mut Random, limit: usize) -> usize {
    usize::try_from(whole(random.uniform() * limit as f64)).unwrap() % limit
}

/// Makes the file of a seed: some E-links, with and without the trigger system's, and faults.
fn case(seed: u64) -> Case {
    let mut random = Random::new(seed);
    let count = 4 + below(&mut random, 21);
    let elinks = (0..count).map(|at| u16::try_from(at / 8 * 64 + at % 8 * 4 + 8).unwrap());
    let has_ttc = below(&mut random, 2) == 0;
    let mut setting = Setting {
        elinks: elinks.collect(),
        payload: [16, 20, 24, 28, 32, 60, 120][below(&mut random, 7)],
        triggers: 3000 + below(&mut random, 3000) as u64,
        has_ttc,
        period: if has_ttc && below(&mut random, 2) == 0 {
            500 + below(&mut random, 1500) as u64
        } else {
            0
        },
        skipped: BTreeMap::new(),
    };
    let faults = 1 + below(&mut random, 4);
    let kinds: Vec<usize> = (0..faults).map(|_| below(&mut random, 6)).collect();
    let mut done = Vec::new();
    for _ in kinds.iter().filter(|kind| **kind == 1 && setting.period > 0) {
        // Just before a reset, of the trigger system's E-link alone.
        let resets = (setting.triggers - 1) / setting.period;
        if resets == 0 {
            continue;
        }
        let before =
            (1 + below(&mut random, usize::try_from(resets).unwrap()) as u64) * setting.period;
        let lost = 1 + below(&mut random, 5000) as u64;
        setting.skipped.insert(before, lost);
    }
    done.extend(
        setting
            .skipped
            .iter()
            .map(|(before, count)| Done::Triggers { before: *before, count: *count }),
    );
    let mut file = blocks_of(&setting);
    for kind in kinds {
        let elink = setting.elinks[below(&mut random, count)];
        let own: Vec<usize> = (0..file.len()).filter(|at| file[*at].elink == elink).collect();
        if own.len() < 12 {
            continue;
        }
        let at = below(&mut random, own.len() - 2);
        match kind {
            0 => {
                let blocks = (1 + below(&mut random, 100)).min(own.len() - 4);
                let at = 1 + below(&mut random, own.len() - blocks - 1);
                done.push(Done::Lost { elink, from: file[own[at]].sequence, blocks });
                let gone = &own[at..at + blocks];
                let mut place = 0;
                file.retain(|_| {
                    place += 1;
                    !gone.contains(&(place - 1))
                });
            }
            2 => {
                done.push(Done::Ended { elink, after: file[own[at]].sequence });
                let last = own[at];
                let mut place = 0;
                file.retain(|block| {
                    place += 1;
                    block.elink != elink || place - 1 <= last
                });
            }
            3 => {
                let behind = at + below(&mut random, 3).min(own.len() - 1 - at);
                let copy = file[own[at]].clone();
                done.push(Done::Doubled { elink, sequence: copy.sequence });
                file.insert(own[behind] + 1, copy);
            }
            4 => {
                done.push(Done::Swapped { elink, sequence: file[own[at]].sequence });
                file.swap(own[at], own[at + 1]);
            }
            5 => {
                let block = &mut file[own[at]];
                let Some(piece) = block.pieces.iter().find(|piece| piece.begins && piece.ends)
                else {
                    continue;
                };
                let event = piece.event;
                // A byte of its first whole chunk, the header included.
                let begin = block.bytes.windows(3).skip(4).position(|three| {
                    three[0] == 0xAA
                        && usize::from(three[1]) << 8 | usize::from(three[2]) == setting.payload
                });
                let Some(begin) = begin.map(|begin| begin + 4) else { continue };
                let byte = begin + below(&mut random, setting.payload);
                block.bytes[byte] ^= 1 << below(&mut random, 8);
                block.is_damaged = true;
                done.push(Done::Flipped { elink, event });
            }
            _ => {}
        }
    }
    Case { setting, file, done }
}

/// Returns what is wrong with a verdict; `None` if it is right.
fn wrong(case: &Case) -> Option<String> {
    let checked = checked(&bytes(&case.file));
    let came = came(&case.file);
    if case.done.is_empty() {
        return (!checked.is_good()).then(|| format!("nothing was done: {:?}", checked.faults));
    }
    let ended = |elink: u16| {
        case.done
            .iter()
            .any(|done| matches!(done, Done::Ended { elink: ended, .. } if *ended == elink))
    };
    let mut any = false;
    for elink in case.setting.elinks.iter().copied().chain(case.setting.has_ttc.then_some(TTC)) {
        let own = came.get(&elink);
        let row = checked.rows.iter().find(|row| row.elink == elink)?;
        let mut missing = case.setting.triggers - own.map_or(0, |own| own.len() as u64);
        if elink == TTC {
            missing += case.setting.skipped.values().sum::<u64>();
        }
        any |= missing > 0;
        let (least, most) = (row.events.missing, row.events.missing + row.events.unclear_missing);
        let is_right = match ended(elink) {
            // An end may be a loss or not.
            true => least <= missing && missing <= most,
            false => {
                least <= missing
                    && missing <= most
                    && (least == most || least > 0 || row.events.unclear > 0)
            }
        };
        if !is_right {
            return Some(format!("{elink:#05x}: {missing} are missing, found {least} to {most}"));
        }
        if case.setting.has_ttc && !ended(elink) && least != most {
            return Some(format!(
                "{elink:#05x}: {missing} are missing, and not told exactly: {least} to {most}"
            ));
        }
    }
    (any && checked.is_good()).then(|| "passed with something missing".to_owned())
}

/// Files that had another verdict before: blocks that changed places beside a loss, several losses of
/// an E-link, triggers that only their own E-link lost, damage at the begin of a segment.
const ONCE_WRONG: [u64; 10] = [
    1_000_726, 1_001_089, 1_001_520, 1_001_679, 1_001_882, 3_001_471, 10_000_127, 10_003_080,
    10_003_788, 10_010_800,
];

#[test]
fn the_checker_finds_what_was_done_to_random_files() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let files: u64 = number("DAQMETER_LOST_FILES").unwrap_or(25);
    let first: u64 = number("DAQMETER_LOST_FIRST").unwrap_or(0);
    let mut failures = Vec::new();
    for seed in (first..first + files).chain(ONCE_WRONG) {
        let case = case(seed);
        if let Some(why) = wrong(&case) {
            let Setting { elinks, payload, triggers, has_ttc, period, .. } = &case.setting;
            failures.push(format!("file {seed}: {why}; {} E-links of {payload} B, {triggers} triggers, TTC {has_ttc}, period {period}: {:?}", elinks.len(), case.done));
        }
    }
    assert!(failures.is_empty(), "{} of {files}:\n{}", failures.len(), failures.join("\n"));
}

/// A file of one E-link whose blocks hold four events each, without some of them.
fn fours(blocks: u64, lost: std::ops::Range<u64>, with_other: bool) -> Vec<u8> {
    let mut fillers = [Filler::new(8, 24), Filler::new(12, 24)];
    let mut out = Vec::new();
    for event in 0..4 * blocks {
        for filler in fillers.iter_mut().take(1 + usize::from(with_other)) {
            let bytes = filler.emulated(event);
            filler.chunk(event, &bytes, &mut out);
            if event % 4 == 3 {
                filler.end(&mut out);
            }
        }
    }
    out.retain(|block| block.elink != 8 || !lost.contains(&block.sequence));
    bytes(&out)
}

/// 32 blocks without a jump of their numbers were 128 events that "came twice".
#[test]
fn whole_turns_of_blocks_have_two_readings_alone_and_one_beside_another_e_link() {
    let alone = checked(&fours(100, 5..37, false));
    let row = &alone.rows[0];
    assert_eq!(
        (row.events.missing, row.events.unclear_missing, row.missing_blocks),
        (128, 256, 32)
    );
    assert_eq!(row.events.duplicates, 0);
    assert_eq!(
        alone.lost,
        ["events 20 to 403 are missing on E-link 0x008 only: 128 or 384 in all"]
    );
    // 64 blocks and 256 events: nothing of the E-link itself shows it.
    for (lost, missing) in [(5..37, 128), (20..84, 256), (20..148, 512)] {
        let both = checked(&fours(300, lost.clone(), true));
        let row = &both.rows[0];
        assert_eq!(
            (row.events.missing, row.events.unclear),
            (missing, 0),
            "{lost:?}: {:?}",
            both.lost
        );
        assert_eq!(both.rows[1].events.missing, 0);
    }
}
