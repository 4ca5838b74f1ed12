//! Results of a checker, and the tables of fcheck and fdaqm.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use daqmeter_record::{LossMap, Lost};
use daqmeter_wire::felix::{Elink, SubchunkKind};

use crate::fragment::{FragmentFaults, FragmentFinding};

pub(super) mod fault {
    pub(crate) const BAD_START: &str = "bad block start";
    pub(crate) const NO_BLOCK: &str = "bytes of no block";
    pub(crate) const CUT_OFF: &str = "cut off";
    pub(crate) const UNDEFINED: &str = "undefined type";
    pub(crate) const LENGTH: &str = "length mismatch";
    pub(crate) const SEQUENCE: &str = "sequence mismatch";
    pub(crate) const DUPLICATE_BLOCK: &str = "duplicate block";
    pub(crate) const LATE_BLOCK: &str = "block out of order";
    pub(crate) const NOT_ENDED: &str = "chunk not ended";
    pub(crate) const ORPHAN: &str = "MIDDLE or LAST without FIRST";
    pub(crate) const MISSING: &str = "missing events";
    pub(crate) const DUPLICATE: &str = "duplicate event";
    pub(crate) const LATE: &str = "event out of order";
    pub(crate) const PAYLOAD: &str = "wrong payload";
    pub(crate) const ELINK: &str = "wrong E-link";
    /// A loss, or none.
    pub(crate) const UNCLEAR: &str = "events that may be missing";
    pub(crate) const NUMBER: &str = "wrong number";
    /// Not a fault: the trigger system announces it.
    pub(crate) const RESET: &str = "counter reset";
}

/// Faults that show that data is missing, may be missing, or came in another order.
const LOSS_AND_ORDER: [&str; 7] = [
    fault::SEQUENCE,
    fault::DUPLICATE_BLOCK,
    fault::LATE_BLOCK,
    fault::MISSING,
    fault::UNCLEAR,
    fault::DUPLICATE,
    fault::LATE,
];

/// Faults of the blocks so far, and messages with their places.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) counts: BTreeMap<&'static str, u64>,
    /// Messages that are kept, with their places, and the number of others.
    pub(super) messages: Vec<(u64, String)>,
    pub(super) left_out: u64,
    pub(super) max_messages: usize,
    /// The block at hand: its place in the file, and its number.
    pub(super) position: u64,
    pub(super) block: u64,
}

impl Findings {
    pub(super) fn fault(&mut self, what: &'static str, more: impl FnOnce() -> String) {
        *self.counts.entry(what).or_default() += 1;
        self.message(what, more);
    }

    pub(super) fn message(&mut self, what: &'static str, more: impl FnOnce() -> String) {
        if self.messages.len() < self.max_messages {
            let (position, block) = (self.position, self.block);
            let message = format!("block {block} @ {position:#x}: {what}: {}", more());
            self.messages.push((position, message));
        } else {
            self.left_out += 1;
        }
    }

    /// Adds a message of a chunk. Its fault is counted at the end, because missing data may still
    /// come.
    pub(super) fn say(&mut self, elink: u16, begin: usize, finding: FragmentFinding) {
        let (what, more) = match finding {
            FragmentFinding::Duplicate => (fault::DUPLICATE, String::new()),
            FragmentFinding::Reset => (fault::RESET, String::new()),
            FragmentFinding::Payload => (fault::PAYLOAD, String::new()),
            FragmentFinding::WrongElink(index) => {
                (fault::ELINK, format!(": the chunk names index {index:#04x}"))
            }
        };
        let place = self.position + begin as u64;
        self.message(what, || format!("E-link {elink:#05x} at {place:#x}{more}"));
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ElinkRow {
    pub elink: u16,
    pub blocks: u64,
    pub bytes: u64,
    /// Subchunks by kind: null, first, last, both, middle, timeout, undefined, out of band.
    pub subchunks: [u64; 8],
    /// Chunks as fdaqm counts them: BOTH and LAST.
    pub chunks: u64,
    /// Chunks as fcheck counts them: those that a timeout cut off, too.
    pub chunks_with_timeouts: u64,
    /// Smallest and largest chunk; 0 without one.
    pub smallest: u64,
    pub largest: u64,
    /// Width of the E-link by the emulator's header; 0 if unknown.
    pub width: u8,
    /// Flags: truncated, error, CRC, busy.
    pub flags: [u64; 4],
    pub cut_events: u64,
    pub flagged_events: u64,
    /// Blocks missing by all counters together.
    pub missing_blocks: u64,
    /// Number of the first block, and of the one that would come next.
    pub edges: [u8; 2],
    pub duplicate_blocks: u64,
    pub late_blocks: u64,
    /// Faults of the events, by their counters and bytes.
    #[serde(flatten)]
    pub events: FragmentFaults,
}

#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Checked {
    pub blocks: u64,
    /// Blocks that were checked: those of the chosen E-links, without skipped ones.
    pub checked_blocks: u64,
    /// Bytes of a block; 0 without any block.
    pub block_bytes: usize,
    pub rows: Vec<ElinkRow>,
    /// Sentences about what is missing, one for each place in the run.
    pub lost: Vec<String>,
    /// Missing events of each E-link, as numbers.
    pub gaps: Vec<Lost>,
    pub faults: BTreeMap<&'static str, u64>,
    pub messages: Vec<String>,
    pub messages_left_out: u64,
    pub skipped_bytes: u64,
}

type Column = (&'static str, usize, fn(&ElinkRow) -> Option<u64>);

/// Columns of fcheck: heading, width, value.
const COLUMNS: [Column; 18] = [
    ("blocks", 10, |row| Some(row.blocks)),
    ("width", 6, |row| (row.width > 0).then_some(u64::from(row.width))),
    ("bytes", 12, |row| Some(row.bytes)),
    ("null", 9, |row| Some(row.subchunks[SubchunkKind::Null as usize])),
    ("first", 9, |row| Some(row.subchunks[SubchunkKind::First as usize])),
    ("last", 9, |row| Some(row.subchunks[SubchunkKind::Last as usize])),
    ("both", 10, |row| Some(row.subchunks[SubchunkKind::Both as usize])),
    ("middle", 9, |row| Some(row.subchunks[SubchunkKind::Middle as usize])),
    ("timeout", 8, |row| Some(row.subchunks[SubchunkKind::Timeout as usize])),
    ("oob", 8, |row| Some(row.subchunks[SubchunkKind::OutOfBand as usize])),
    ("chunks", 10, |row| Some(row.chunks)),
    ("fcheck's", 9, |row| Some(row.chunks_with_timeouts)),
    ("min", 5, |row| Some(row.smallest)),
    ("max", 5, |row| Some(row.largest)),
    ("trunc", 6, |row| Some(row.flags[0])),
    ("err", 6, |row| Some(row.flags[1])),
    ("crc", 6, |row| Some(row.flags[2])),
    ("busy", 6, |row| Some(row.flags[3])),
];

/// E-links of a map of text.
const MAX_MAPPED: usize = 24;

impl Checked {
    pub fn is_good(&self) -> bool {
        self.faults.is_empty() && self.checked_blocks > 0
    }

    pub fn sum(&self, of: impl Fn(&ElinkRow) -> u64) -> u64 {
        self.rows.iter().map(of).sum()
    }

    /// Faults that are neither missing data nor its order: bytes that are wrong.
    pub fn damages(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let faults = self.faults.iter().map(|(what, count)| (*what, *count));
        faults.filter(|(what, _)| !LOSS_AND_ORDER.contains(what))
    }

    /// Triggers by the trigger system's E-link, with those missing.
    pub fn triggers(&self) -> Option<u64> {
        let row = self.rows.iter().find(|row| row.elink == Elink::TTC.number())?;
        Some(row.chunks_with_timeouts + row.events.missing)
    }

    /// Blocks that are missing between these and others, if those were written after them; `None`
    /// if the others begin a run.
    pub fn missing_before(&self, next: &Checked) -> Option<u64> {
        let begins = next.rows.iter().all(|row| row.edges[0] == 0);
        let pairs = next.rows.iter().filter_map(|row| {
            let own = self.rows.iter().find(|own| own.elink == row.elink)?;
            Some(u64::from(row.edges[0].wrapping_sub(own.edges[1]) % 32))
        });
        Some(pairs.sum()).filter(|missing| *missing > 0 && !begins)
    }

    pub fn loss_map(&self) -> LossMap {
        let ends = self.gaps.iter().map(|gap| gap.from + gap.most);
        let events = ends.chain(self.rows.iter().map(|row| row.chunks_with_timeouts)).max();
        LossMap { events: events.unwrap_or(0), gaps: self.gaps.clone() }
    }

    /// Map of what is missing: a line for each E-link, in which a letter is a part of the run.
    pub fn map(&self) -> String {
        let map = self.loss_map();
        let mut out = format!(" events 0 to {}: # missing, ? may be missing\n", map.events);
        let rows = map.rows(64);
        let left = rows.len().saturating_sub(MAX_MAPPED);
        for (elink, line) in rows.take(MAX_MAPPED) {
            let _ = writeln!(out, " {elink:#05x} {line}");
        }
        if left > 0 {
            let _ = writeln!(out, " {left} more E-links have gaps; --output FILE.html draws 64");
        }
        out
    }

    pub fn fdaqm_table(&self, dev_dma: &str) -> String {
        let mut out = format!("-> Data checked @Dev-DMA={dev_dma}: Blocks {}", self.blocks);
        for (what, count) in &self.faults {
            let _ = write!(out, ", {what} {count}");
        }
        let _ = write!(out, "\n-> Elink chunks @Dev-DMA={dev_dma}:\n\n Elink  Lnk-i      Chunks\n");
        for row in &self.rows {
            let _ =
                writeln!(out, " {:#05x}  {}  {:>10}", row.elink, Elink::new(row.elink), row.chunks);
        }
        out
    }

    pub fn fcheck_table(&self) -> String {
        let mut out = " Elink  Lnk-i".to_owned();
        for (name, width, _) in COLUMNS {
            let _ = write!(out, " {name:>width$}");
        }
        for row in &self.rows {
            let _ = write!(out, "\n {:#05x}  {}", row.elink, Elink::new(row.elink));
            for (_, width, of) in COLUMNS {
                let value = of(row).map_or_else(|| "-".to_owned(), |value| value.to_string());
                let _ = write!(out, " {value:>width$}");
            }
        }
        out.push('\n');
        let undefined = self.faults.get(fault::UNDEFINED).copied().unwrap_or(0);
        let flags = [0, 1, 2, 3].map(|at| self.sum(|row| row.flags[at]));
        let _ = writeln!(
            out,
            " {} blocks of {} bytes, {undefined} undefined types, {} truncated, {} errors, {} CRC errors, {} busy",
            self.blocks, self.block_bytes, flags[0], flags[1], flags[2], flags[3]
        );
        let resets = self.sum(|row| row.events.resets);
        if resets > 0 {
            let _ = writeln!(out, " event counters were reset {resets} times");
        }
        out
    }
}
