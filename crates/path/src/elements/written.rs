//! Sink `file`: written to a file of at most `max` bytes, from its beginning again when it is full.
//! `direct` bypasses the page cache. With `keep`, the blocks stay in a folder (`hostio/kept`).

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use clap::Args;
use daqmeter_harness::{Fault, Problem};
use daqmeter_hostio::SECTOR_BYTES;
use daqmeter_hostio::kept::{
    KeepSettings, KeptBlock, KeptContent, KeptStream, KeptWriter, Rotation, WriteBy, unless_taken,
};
use daqmeter_hostio::sum::sum;
use daqmeter_record::path::PathKept;
use daqmeter_record::written::ByteSize;
use daqmeter_sys::host::DIRECT;
use daqmeter_sys::memory::Pages;
use serde::Deserialize;
use toml::{Table, Value};

use crate::cancel::Cuts;
use crate::definition::flow::{Flow, Numbers, Place, SPAN_BYTES, unless, wrong};
use crate::definition::kind::{Facts, SinkElement};
use crate::element::{Block, Confirmed, Label, Sink};

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Written {
    path: String,
    max: Option<ByteSize>,
    #[serde(default)]
    direct: bool,
    #[serde(default)]
    keep: bool,
    /// Size or age at which a file ends: `4GiB`, `10min`.
    rotate: Option<String>,
    write: Option<WriteBy>,
    check: Option<bool>,
    #[serde(skip)]
    rotation: Option<Rotation>,
    #[serde(skip)]
    numbers: Option<Numbers>,
    /// Names of the sources.
    #[serde(skip)]
    streams: Vec<String>,
    /// True removes what was kept after the run: a trial.
    #[serde(skip)]
    is_trial: bool,
}

/// Options of a verb that keeps its blocks.
#[derive(Clone, Debug, Args)]
pub struct Keeping {
    /// Keep what is read in files in this new folder
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub keep: Option<String>,
    /// Begin the next file at this size or age: 4GiB, 10min
    #[arg(
        long,
        value_name = "SIZE|TIME",
        requires = "keep",
        hide_short_help = true,
        help_heading = "Output"
    )]
    pub rotate: Option<String>,
    /// Way to the disk: past the page cache, through it, or whichever carries more
    #[arg(long, value_name = "WAY", requires = "keep", default_value = "auto", value_parser = ["auto", "direct", "cached"], hide_short_help = true, help_heading = "Output")]
    pub write: String,
    /// Leave out reading the files back
    #[arg(long, requires = "keep", hide_short_help = true, help_heading = "Output")]
    pub no_check: bool,
}

impl Keeping {
    /// Returns the table of the sink that keeps blocks in the folder; `None` without one.
    pub(crate) fn sink(&self) -> Option<Table> {
        let fields = [
            ("kind", Some(Value::from("file"))),
            ("path", Some(Value::from(self.keep.as_deref()?))),
            ("keep", Some(Value::from(true))),
            ("write", Some(Value::from(self.write.as_str()))),
            ("check", Some(Value::from(!self.no_check))),
            ("rotate", self.rotate.as_deref().map(Value::from)),
        ];
        let fields = fields.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
        Some(fields.collect())
    }
}

/// Most bytes of a file that is not kept.
const USUAL_MAX: ByteSize = ByteSize(256 << 20);

/// Seconds in which a disk takes what waits in the page cache at the end: 60 GB at 100 MB/s. The
/// kernel lets a fifth of 300 GB wait.
const LAST_WAIT_S: f64 = 600.0;

impl Written {
    /// Checks the fields of a folder that is kept.
    fn check_kept(&mut self, flow: &Flow) -> Result<Facts, Fault> {
        let is_free = self.max.is_none() && !self.direct;
        unless(is_free, "keep", "goes without `max` and `direct`; say write = \"direct\"")?;
        let bytes = flow.bytes;
        let is_whole = self.write != Some(WriteBy::Direct) || bytes.is_multiple_of(SECTOR_BYTES);
        let problem = format_args!(
            "blocks of {bytes} bytes come; past the page cache, multiples of {SECTOR_BYTES} are wanted"
        );
        unless(is_whole, "write", problem)?;
        let rotation = self.rotate.as_deref().map(str::parse).transpose();
        self.rotation = rotation.or_else(|problem: String| wrong("rotate", problem))?;
        self.numbers = flow.known_numbers();
        self.streams.clone_from(&flow.streams);
        let devices = vec![parent(&self.path)];
        let text = format!("files in {}, kept", self.path);
        Ok(Facts { devices, is_outside: true, last_wait_s: LAST_WAIT_S, ..Facts::of(text) })
    }
}

/// The folder that holds a path: the path is not there before the run.
fn parent(path: &str) -> String {
    let folder = Path::new(path).parent().and_then(Path::to_str).unwrap_or_default();
    if folder.is_empty() { ".".to_owned() } else { folder.to_owned() }
}

impl SinkElement for Written {
    fn check(&mut self, _place: &Place, flow: &mut Flow) -> Result<Facts, Fault> {
        if self.keep {
            return self.check_kept(flow);
        }
        for (key, is_given) in [
            ("rotate", self.rotate.is_some()),
            ("write", self.write.is_some()),
            ("check", self.check.is_some()),
        ] {
            unless(!is_given, key, "is for files that are kept; add keep = true")?;
        }
        let bytes = flow.bytes;
        let problem = format_args!(
            "blocks of {bytes} bytes come; multiples of {SECTOR_BYTES} are wanted past the page cache"
        );
        unless(!self.direct || bytes.is_multiple_of(SECTOR_BYTES), "direct", problem)?;
        let max = self.max.get_or_insert(USUAL_MAX);
        Problem::unless_within("max", max.0, SPAN_BYTES)?;
        max.0 = max.0.max(bytes);
        let direct = if self.direct { ", direct" } else { "" };
        let devices = self.direct.then(|| parent(&self.path)).into_iter().collect();
        let text = format!("file {}{direct}", self.path);
        Ok(Facts { devices, is_outside: true, ..Facts::of(text) })
    }

    fn sink(&self, block_bytes: usize, _cuts: &Cuts) -> Result<Box<dyn Sink>, Fault> {
        if self.keep {
            return Ok(Box::new(KeptSink::Closed(self.clone(), block_bytes)));
        }
        let max = self.max.unwrap_or(USUAL_MAX).0;
        Ok(Box::new(RingFile {
            path: self.path.clone(),
            direct: self.direct,
            block_bytes,
            slots: vec![None; (max / block_bytes).max(1)],
            next: 0,
            file: None,
        }))
    }

    fn ready(&self) -> Result<(), Fault> {
        if self.keep { unless_taken(Path::new(&self.path)) } else { Ok(()) }
    }

    fn trial(&self) -> Option<Arc<dyn SinkElement>> {
        self.keep.then(|| Arc::new(Written { is_trial: true, ..self.clone() }) as _)
    }
}

/// A folder of files that stay.
enum KeptSink {
    /// Not begun: bytes of a block.
    Closed(Written, usize),
    Open(Box<KeptWriter>),
}

impl KeptSink {
    fn open(&mut self) -> Result<&mut KeptWriter, Fault> {
        match self {
            KeptSink::Open(writer) => Ok(writer),
            KeptSink::Closed(..) => Err(Fault::new("the folder is not open")),
        }
    }
}

impl Sink for KeptSink {
    fn prepare(&mut self) -> Result<(), Fault> {
        let KeptSink::Closed(kept, block_bytes) = &*self else { return Ok(()) };
        let settings = KeepSettings {
            folder: kept.path.clone().into(),
            write: kept.write.unwrap_or_default(),
            rotation: kept.rotation,
            compares: kept.check.unwrap_or(true),
            is_trial: kept.is_trial,
            block_bytes: *block_bytes,
            pages: Pages::Transparent,
        };
        let numbers = kept.numbers.as_ref().map(|numbers| (numbers.dtype, &numbers.shape[..]));
        let writer = KeptWriter::begin(
            settings,
            KeptStream::all(&kept.streams, KeptContent::Blocks, numbers),
        )?;
        *self = KeptSink::Open(Box::new(writer));
        Ok(())
    }

    fn take(&mut self, block: &mut Block, expected: Option<u64>) -> Result<Option<u64>, Fault> {
        let writer = self.open()?;
        let Label { number, bytes, events, due_ns, source, .. } = block.label;
        let kept = KeptBlock {
            number,
            time_ns: due_ns,
            sum: expected.unwrap_or_else(|| sum(block.bytes())),
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
            events: u32::try_from(events).unwrap_or(u32::MAX),
            stream: u32::try_from(source).unwrap_or(u32::MAX),
            ..KeptBlock::default()
        };
        writer.take(&mut block.buffer, kept)?;
        Ok(None)
    }

    fn confirm(&mut self) -> Result<Confirmed, Fault> {
        self.open()?.end()?;
        Ok(Confirmed::default())
    }

    fn check(&mut self) -> Result<u64, Fault> {
        self.open()?.compare()
    }

    fn missing(&self, is_confirmed: bool) -> Option<&'static str> {
        is_confirmed.then_some("not written to the disk")
    }

    fn unkept(&mut self) -> Vec<(u64, u64)> {
        let Ok(writer) = self.open() else { return Vec::new() };
        // The fault of the run is known.
        let _ = writer.end();
        writer.left()
    }

    fn kept(&self) -> Option<PathKept> {
        match self {
            KeptSink::Open(writer) => Some(writer.kept()),
            KeptSink::Closed(..) => None,
        }
    }
}

/// A file that is made, filled from its beginning again and again, read back, and removed.
struct RingFile {
    path: String,
    direct: bool,
    block_bytes: usize,
    /// Bytes and sum of the latest block at each place, if they are known.
    slots: Vec<Option<(usize, u64)>>,
    next: usize,
    file: Option<Made>,
}

/// File that this path created, and a second handle past the page cache if that is requested.
struct Made {
    file: File,
    direct: Option<File>,
}

impl RingFile {
    fn failed(&self, what: &str, error: &std::io::Error) -> Fault {
        Fault::new(format!("{what} {}: {error}", self.path))
    }

    fn file(&self) -> Result<&Made, Fault> {
        self.file.as_ref().ok_or_else(|| Fault::new(format!("{} is not open", self.path)))
    }

    fn opened_direct(&self) -> Result<File, Fault> {
        let mut options = OpenOptions::new();
        let opened = options.write(true).custom_flags(DIRECT).open(&self.path);
        opened.map_err(|error| match error.kind() {
            ErrorKind::InvalidInput => Fault::new(format!(
                "{}: its file system writes nothing past the page cache: leave out `direct`",
                self.path
            )),
            _ => self.failed("open", &error),
        })
    }
}

impl Sink for RingFile {
    fn prepare(&mut self) -> Result<(), Fault> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).open(&self.path);
        let file = file.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => Fault::new(format!(
                "{} exists: name a file that does not, it is removed after the run",
                self.path
            )),
            _ => self.failed("make", &error),
        })?;
        let direct = if self.direct { self.opened_direct().map(Some) } else { Ok(None) };
        // Without its name it is gone with the run, however that ends, and nobody else's file is
        // ever read or removed.
        std::fs::remove_file(&self.path).map_err(|error| self.failed("remove", &error))?;
        self.file = Some(Made { file, direct: direct? });
        Ok(())
    }

    fn take(&mut self, block: &mut Block, expected: Option<u64>) -> Result<Option<u64>, Fault> {
        let at = (self.next * self.block_bytes) as u64;
        let made = self.file()?;
        let to = made.direct.as_ref().unwrap_or(&made.file);
        let written = to.write_all_at(block.bytes(), at);
        written.map_err(|error| self.failed("write", &error))?;
        self.slots[self.next] = expected.map(|sum| (block.label.bytes, sum));
        self.next = (self.next + 1) % self.slots.len();
        Ok(None)
    }

    /// Reads the file through the page cache, which direct writes leave coherent: open(2).
    fn check(&mut self) -> Result<u64, Fault> {
        let mut checked = 0;
        let mut bytes = vec![0; self.block_bytes];
        let written = &self.file()?.file;
        for (slot, known) in self.slots.iter().enumerate() {
            let &Some((block_bytes, wanted)) = known else { continue };
            let at = (slot * self.block_bytes) as u64;
            let bytes = &mut bytes[..block_bytes];
            let read = written.read_exact_at(bytes, at);
            read.map_err(|error| self.failed("read back", &error))?;
            if sum(bytes) != wanted {
                return Err(Fault::new(format!(
                    "{}: the block at {at} is not what was written",
                    self.path
                )));
            }
            checked += 1;
        }
        Ok(checked)
    }
}
