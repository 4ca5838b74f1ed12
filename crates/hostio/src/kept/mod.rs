//! A kept run: the blocks of a path in a folder that other programs can read.
//!
//! ```text
//! run7/run.json          what the blocks are, and at the end how many are kept
//! run7/index             one entry of 56 bytes for each block, in the order of writing
//! run7/emu-l0.0000.npy   blocks of a stream: an array of numpy, or bytes as they came (.dat)
//! run7/intervals.ndjson  what the disk took in each second
//! run7/record.jsonl      the record of the run, as of any other
//! ```
//!
//! Begin with [`KeptWriter`]; [`KeptReader`] gives the blocks back, [`KeptCheck`] compares them.

mod check;
mod disk;
mod reader;
mod settings;
mod writer;

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use daqmeter_harness::Fault;
use daqmeter_record::border::from_peer;
use daqmeter_record::file::Replacement;
use serde::{Deserialize, Serialize};

pub use check::{KeptCheck, KeptChecked, StreamChecked};
pub use reader::KeptReader;
pub use settings::{KeepSettings, Rotation, WriteBy};
pub use writer::{KeptWriter, unless_taken};

use crate::sum::sum;

const FORMAT: &str = "daqmeter-run.v1";
const RUN: &str = "run.json";
const INDEX: &str = "index";
/// Longest `run.json` that is read.
const MAX_RUN_BYTES: u64 = 256 << 20;
const MAX_STREAMS: usize = 4096;
/// Largest block, of four bytes for each of the largest block of a path.
const MAX_BLOCK_BYTES: usize = 1 << 30;

/// Content of `run.json`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct KeptRun {
    pub format: String,
    /// Time at which the run began, in UTC.
    pub begun_utc: String,
    pub write: WriteBy,
    pub block_bytes: usize,
    pub streams: Vec<KeptStream>,
    /// Absent if the recorder did not end: it was killed, or still runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<KeptEnd>,
}

/// Content of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeptContent {
    /// Blocks of a path.
    #[default]
    Blocks,
    /// Blocks of a FELIX card, whole ones.
    FelixBlocks,
    /// Pages of a publisher, each with its frame's header.
    FelixPages,
}

/// Blocks of one source.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct KeptStream {
    /// Name of the source: a board.
    pub name: String,
    /// Beginning of the names of its files.
    pub file: String,
    #[serde(default)]
    pub content: KeptContent,
    /// Type of the numbers, as numpy writes it (`<u2`); absent for bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    /// Shape of one block: channels and samples.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shape: Vec<usize>,
}

/// Totals of the recorder at its end.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct KeptEnd {
    pub blocks: u64,
    pub bytes: u64,
    /// Blocks that were read back and compared while the run was kept.
    pub compared: u64,
    /// Reason for an end before its time: the disk is full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// Entry of the index: little-endian, in this order, and then a sum of the 48 bytes before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptBlock {
    /// Number of the trigger, or of the block at its source, where lost ones count.
    pub number: u64,
    /// Time at which it was due or ready, in nanoseconds since 1970 (UTC).
    pub time_ns: u64,
    /// Place in its file.
    pub offset: u64,
    /// Sum of its bytes: [`sum`].
    pub sum: u64,
    pub bytes: u32,
    pub events: u32,
    pub stream: u32,
    /// Number of the file of its stream.
    pub file: u32,
}

impl KeptBlock {
    pub const BYTES: usize = 56;

    fn to_bytes(self) -> [u8; KeptBlock::BYTES] {
        let KeptBlock { number, time_ns, offset, sum: own, bytes, events, stream, file } = self;
        let mut entry = [0; KeptBlock::BYTES];
        for (to, word) in entry.as_chunks_mut::<8>().0.iter_mut().zip([
            number,
            time_ns,
            offset,
            own,
            u64::from(events) << 32 | u64::from(bytes),
            u64::from(file) << 32 | u64::from(stream),
        ]) {
            *to = word.to_le_bytes();
        }
        let (content, check) = entry.split_at_mut(48);
        check.copy_from_slice(&sum(content).to_le_bytes());
        entry
    }

    /// Reads an entry; `None` if its own sum is wrong: it was cut, or never written.
    fn of_bytes(entry: &[u8; KeptBlock::BYTES]) -> Option<KeptBlock> {
        let words = entry.as_chunks::<8>().0;
        let word = |at: usize| u64::from_le_bytes(words[at]);
        #[allow(clippy::cast_possible_truncation, reason = "halves of a word")]
        let half = |at: usize, shift: u32| (word(at) >> shift) as u32;
        (sum(&entry[..48]) == word(6)).then(|| KeptBlock {
            number: word(0),
            time_ns: word(1),
            offset: word(2),
            sum: word(3),
            bytes: half(4, 0),
            events: half(4, 32),
            stream: half(5, 0),
            file: half(5, 32),
        })
    }
}

impl KeptStream {
    /// Makes the streams of these sources, of bytes or of numbers of a type and the shape of a
    /// block. Files have the names of the sources: `/dev/sis8300-6` is `sis8300-6`.
    pub fn all(
        names: &[String],
        content: KeptContent,
        numbers: Option<(&str, &[usize])>,
    ) -> Vec<KeptStream> {
        let file = |name: &String| -> String {
            let last = name.rsplit('/').next().unwrap_or_default();
            last.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
        };
        let files: Vec<String> = names.iter().map(file).collect();
        let is_once = |file: &String| files.iter().filter(|other| *other == file).count() == 1;
        let stream = |(at, name): (usize, &String)| KeptStream {
            name: name.clone(),
            content,
            file: match &files[at] {
                file if !file.is_empty() && is_once(file) => file.clone(),
                file => format!("{file}-{at}").trim_start_matches('-').to_owned(),
            },
            dtype: numbers.map(|(dtype, _)| dtype.to_owned()),
            shape: numbers.map_or_else(Vec::new, |(_, shape)| shape.to_vec()),
        };
        names.iter().enumerate().map(stream).collect()
    }

    /// Path of one of its files.
    fn path(&self, folder: &Path, number: u32) -> PathBuf {
        let ending = if self.dtype.is_some() { "npy" } else { "dat" };
        folder.join(format!("{}.{number:04}.{ending}", self.file))
    }

    /// Its files that are there, in order.
    pub fn files(&self, folder: &Path) -> Vec<PathBuf> {
        (0..).map(|number| self.path(folder, number)).take_while(|path| path.is_file()).collect()
    }

    /// Bytes before the first block.
    fn header_bytes(&self) -> u64 {
        if self.dtype.is_some() { NPY_BYTES as u64 } else { 0 }
    }

    /// Returns the header of a file with a number of blocks; empty for bytes.
    fn header(&self, blocks: u64) -> Vec<u8> {
        let Some(dtype) = &self.dtype else { return Vec::new() };
        let shape = self.shape.iter().map(|len| format!("{len}, ")).collect::<String>();
        let text = format!(
            "{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({blocks}, {shape}), }}"
        );
        let mut header = b"\x93NUMPY\x01\x00".to_vec();
        header.extend(u16::try_from(NPY_BYTES - 10).expect("fits").to_le_bytes());
        header.extend(text.bytes());
        header.resize(NPY_BYTES - 1, b' ');
        header.push(b'\n');
        header
    }
}

/// Length of an array's header (numpy, NEP 1, version 1.0), padded so that blocks begin at a
/// sector.
const NPY_BYTES: usize = 4096;

impl KeptRun {
    /// Reads `run.json` of a folder.
    ///
    /// # Errors
    /// When it cannot be read, or is no such file.
    pub fn read(folder: &Path) -> Result<KeptRun, Fault> {
        let path = folder.join(RUN);
        let shown = path.display();
        let fault = |what: String| Fault::new(format!("{shown}: {what}"));
        let bytes = fs::metadata(&path).map_err(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => {
                fault("not found: name the folder of a kept run".to_owned())
            }
            _ => fault(error.to_string()),
        })?;
        if bytes.len() > MAX_RUN_BYTES {
            return Err(fault(format!("is longer than {MAX_RUN_BYTES} bytes")));
        }
        let text = fs::read(&path).map_err(|error| fault(error.to_string()))?;
        let run: KeptRun = from_peer(&text, &[]).map_err(|error| fault(error.to_string()))?;
        let is_sound = |stream: &KeptStream| {
            let mut of_name = stream.file.chars();
            of_name.all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
                && !stream.file.starts_with('.')
                && !stream.file.is_empty()
        };
        if run.format != FORMAT {
            let found = daqmeter_record::sanitise::text(&run.format);
            return Err(fault(format!("its format is `{found}`; {FORMAT} is wanted")));
        }
        if !(1..=MAX_STREAMS).contains(&run.streams.len()) || !run.streams.iter().all(is_sound) {
            return Err(fault("names no streams, or files outside of its folder".to_owned()));
        }
        if run.block_bytes > MAX_BLOCK_BYTES {
            let bytes = run.block_bytes;
            return Err(fault(format!("its blocks have {bytes} bytes; {MAX_BLOCK_BYTES} at most")));
        }
        Ok(run)
    }

    /// Replaces `run.json`, durably.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_to(&self, folder: &Path) -> Result<(), Fault> {
        let path = folder.join(RUN);
        let written = || -> std::io::Result<()> {
            let mut new = Replacement::begin(&path)?;
            serde_json::to_writer_pretty(&mut new.sink, self)?;
            new.sink.flush()?;
            new.sink.get_ref().sync_all()?;
            new.commit()?;
            File::open(folder)?.sync_all()
        };
        written().map_err(|error| Fault::new(format!("{}: {error}", path.display())))
    }
}

#[cfg(test)]
mod tests;
