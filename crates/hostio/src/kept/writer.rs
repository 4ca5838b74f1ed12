//! The recorder: takes blocks without a copy, writes them, and says how far they are safe.
//!
//! A block is written once its entry is in the index: a killed program loses nothing of it. It is
//! durable once both were synchronised, every second and when a file ends: a host without power
//! loses nothing of it.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::mem::swap;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use daqmeter_harness::facts::utc_now;
use daqmeter_harness::{Fault, locked};
use daqmeter_record::path::PathKept;
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::disk::{DiskWrite, DiskWritten, WriteQueue, free_bytes, reserve};
use daqmeter_sys::host::DIRECT;
use daqmeter_sys::memory::Buffer;

use crate::SECTOR_BYTES;
use crate::kept::disk::{Background, Progress};
use crate::kept::settings::{KeepSettings, Rotation, WriteBy};
use crate::kept::{FORMAT, INDEX, KeptBlock, KeptCheck, KeptContent, KeptEnd, KeptRun, KeptStream};

/// Bytes in flight past the page cache, which an NVMe drive needs for its rate.
const FLIGHT_BYTES: usize = 16 << 20;
/// Room that is reserved at a time: writes that extend a file go one by one.
const RESERVED_BYTES: u64 = 256 << 20;
/// Part of the free room that is reserved at most.
const NOT_RESERVED: u64 = 16;
/// Bytes and time of each trial of a way to write.
const TRIAL_BYTES: usize = 128 << 20;
const TRIAL_TIME: Duration = Duration::from_millis(400);
/// Time from one addition to the index to the next, unless many entries wait.
const INDEX_NS: u64 = 5_000_000;
/// Time without a block, after which the next one is waited for: no other follows soon.
const ALONE_NS: u64 = 50_000_000;
const INDEX_BYTES: usize = 64 * KeptBlock::BYTES;

/// Current file of a stream.
struct Open {
    stream: usize,
    file: Arc<File>,
    number: u32,
    begun: Instant,
    /// Place of the next block, and the end of the reserved room.
    at: u64,
    reserved: u64,
    blocks: u64,
}

#[derive(Clone, Copy, Default)]
struct Taken {
    blocks: u64,
    events: u64,
}

impl Taken {
    fn add(&mut self, block: &KeptBlock) {
        self.blocks += 1;
        self.events += u64::from(block.events);
    }
}

pub struct KeptWriter {
    settings: KeepSettings,
    run: KeptRun,
    queue: WriteQueue,
    free: Vec<Buffer>,
    open: Vec<Open>,
    /// Blocks whose entries are not in the index, in order, and if they are written.
    pending: VecDeque<(KeptBlock, bool)>,
    /// Number of the first of them among all.
    first: u64,
    index: Arc<File>,
    entries: Vec<u8>,
    /// Times of the last addition to the index, and of the last block.
    indexed_ns: u64,
    taken_ns: u64,
    /// UTC less the monotonic clock.
    utc_ns: u64,
    /// Blocks of each stream that were taken, and those of them that are in the index.
    of_streams: Vec<(Taken, Taken)>,
    /// Number of all blocks that were taken.
    taken: u64,
    progress: Arc<Progress>,
    background: Option<JoinHandle<()>>,
    fault: Option<Fault>,
    is_ended: bool,
}

fn failed(what: &str, path: &Path, error: &std::io::Error) -> Fault {
    Fault::new(format!("{what} {}: {error}", path.display()))
}

/// Refuses a folder that holds something, and one that has no place.
///
/// # Errors
/// The folder, and what is wrong with it.
pub fn unless_taken(folder: &Path) -> Result<(), Fault> {
    let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty());
    if !parent.is_none_or(Path::is_dir) {
        return Err(Fault::new(format!("{}: there is no folder for it", folder.display())));
    }
    let is_free = match fs::read_dir(folder) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == ErrorKind::NotFound,
    };
    let shown = folder.display();
    let problem =
        || Fault::new(format!("{shown} is there and holds something: name another folder"));
    if is_free { Ok(()) } else { Err(problem()) }
}

fn make_folder(folder: &Path) -> Result<(), Fault> {
    unless_taken(folder)?;
    let made = fs::create_dir_all(folder).and_then(|()| {
        // Its name becomes durable, too.
        File::open(folder.canonicalize()?.parent().unwrap_or(folder))?.sync_all()
    });
    made.map_err(|error| failed("make", folder, &error))
}

fn opened(path: &Path, is_direct: bool) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    if is_direct {
        options.custom_flags(DIRECT);
    }
    options.open(path)
}

impl Open {
    fn begin(
        progress: &Progress,
        stream: usize,
        number: u32,
        is_direct: bool,
    ) -> Result<Open, Fault> {
        let path = progress.path(stream, number);
        let file = opened(&path, is_direct).map_err(|error| failed("make", &path, &error))?;
        let at = progress.streams[stream].header_bytes();
        let written = progress.write_header(stream, number, 0);
        written.map_err(|error| failed("write", &path, &error))?;
        let file = Arc::new(file);
        progress.begin_file(file.clone());
        Ok(Open {
            stream,
            file,
            number,
            begun: Instant::now(),
            at,
            reserved: if is_direct { at } else { u64::MAX },
            blocks: 0,
        })
    }

    /// Reserves room for a block and those after it.
    fn reserve(&mut self, bytes: u64, rotation: Option<Rotation>) {
        if self.at + bytes > self.reserved {
            let most = match rotation {
                Some(Rotation::Bytes(most)) => most.saturating_sub(self.at).min(RESERVED_BYTES),
                _ => RESERVED_BYTES,
            };
            // A disk that is nearly full gives the last room to blocks alone.
            let room = most.min(free_bytes(&self.file).unwrap_or(0) / NOT_RESERVED).max(bytes);
            if room > bytes && reserve(&self.file, self.at, room).is_ok() {
                self.reserved = self.at + room;
            }
        }
    }

    /// Ends the file behind the last block that is kept.
    fn end(&self, progress: &Progress) -> Result<(), Fault> {
        let path = || progress.path(self.stream, self.number);
        self.file.set_len(self.at).map_err(|error| failed("cut", &path(), &error))?;
        let written = progress.write_header(self.stream, self.number, self.blocks);
        written.map_err(|error| failed("write", &path(), &error))
    }
}

impl KeptWriter {
    /// Makes the folder and begins the files of all streams.
    ///
    /// # Errors
    /// The folder is there and not empty, or the disk takes nothing.
    pub fn begin(settings: KeepSettings, streams: Vec<KeptStream>) -> Result<KeptWriter, Fault> {
        make_folder(&settings.folder)?;
        let folder = settings.folder.clone();
        KeptWriter::in_folder(settings, streams).inspect_err(|_| {
            // It was empty.
            let _ = fs::remove_dir_all(folder);
        })
    }

    fn in_folder(settings: KeepSettings, streams: Vec<KeptStream>) -> Result<KeptWriter, Fault> {
        let folder = settings.folder.clone();
        let write = chosen(&settings);
        let is_direct = write == WriteBy::Direct;
        let run = KeptRun {
            format: FORMAT.to_owned(),
            begun_utc: utc_now(),
            write,
            block_bytes: settings.block_bytes,
            streams,
            ..KeptRun::default()
        };
        run.write_to(&folder)?;
        let path = folder.join(INDEX);
        let index = OpenOptions::new().append(true).create_new(true).open(&path);
        let index = Arc::new(index.map_err(|error| failed("make", &path, &error))?);
        let queue = queue(&settings, write);
        let progress = Arc::new(Progress::new(&folder, &run, index.clone()));
        let open =
            (0..run.streams.len()).map(|stream| Open::begin(&progress, stream, 0, is_direct));
        let open: Vec<Open> = open.collect::<Result<_, _>>()?;
        let background = Background::new(&settings, &run, progress.clone())?.start()?;
        Ok(KeptWriter {
            free: spare(&settings, &queue)?,
            of_streams: vec![Default::default(); open.len()],
            queue,
            open,
            run,
            settings,
            pending: VecDeque::new(),
            first: 0,
            index,
            entries: Vec::with_capacity(2 * INDEX_BYTES),
            indexed_ns: 0,
            taken_ns: 0,
            utc_ns: utc_less_monotonic_ns(),
            progress,
            background: Some(background),
            taken: 0,
            fault: None,
            is_ended: false,
        })
    }

    /// Writes a block. Another buffer takes the place of its buffer, which is kept until the disk
    /// has it. Its place in the files is chosen here; its time is one of the monotonic clock.
    ///
    /// # Errors
    /// Those of the disk: nothing more is written then.
    pub fn take(&mut self, buffer: &mut Buffer, block: KeptBlock) -> Result<(), Fault> {
        let taken = self.begin_write(buffer, block);
        match &taken {
            Ok(()) => {
                self.of_streams[block.stream as usize].0.add(&block);
                self.taken += 1;
            }
            // The caller has not given this block: it is not to be in the index.
            Err(fault) => {
                if self.first > self.taken {
                    self.entries.truncate(self.entries.len() - KeptBlock::BYTES);
                } else if self.first + self.pending.len() as u64 > self.taken {
                    self.pending.pop_back();
                }
                self.fault.get_or_insert_with(|| fault.clone());
            }
        }
        taken
    }

    fn begin_write(&mut self, buffer: &mut Buffer, mut block: KeptBlock) -> Result<(), Fault> {
        if let Some(fault) = self.fault.clone().or_else(|| self.progress.state().fault.clone()) {
            return Err(fault);
        }
        let stream = block.stream as usize;
        self.rotate(stream, block.bytes)?;
        let open = &mut self.open[stream];
        let bytes = block.bytes as usize;
        open.reserve(u64::from(block.bytes), self.settings.rotation);
        (block.file, block.offset) = (open.number, open.at);
        block.time_ns = block.time_ns.wrapping_add(self.utc_ns);
        open.at += u64::from(block.bytes);
        open.blocks += 1;
        let file = open.file.clone();
        let begin_ns = monotonic_ns();
        // A copy into the page cache waits within the write.
        let waits = self.free.is_empty() || self.queue.depth() == 1;
        if waits {
            self.progress.waits().begin(begin_ns);
        }
        while self.free.is_empty() {
            self.retire(true)?;
        }
        let mut spare = self.free.pop().expect("one came back");
        swap(buffer, &mut spare);
        self.pending.push_back((block, false));
        let offset = block.offset;
        let started = self.queue.start(DiskWrite { file, buffer: spare, bytes, offset });
        started.map_err(|error| self.refused(&error))?;
        if waits {
            self.progress.waits().end(monotonic_ns());
        }
        let is_alone = begin_ns > self.taken_ns + ALONE_NS;
        while self.retire(is_alone)? {}
        self.index(false)?;
        self.taken_ns = monotonic_ns();
        Ok(())
    }

    /// Takes back one write that has ended; false if none has.
    fn retire(&mut self, waits: bool) -> Result<bool, Fault> {
        let done = self.queue.ended(waits).map_err(|error| self.refused(&error))?;
        let Some(DiskWritten { number, buffer, result, ns }) = done else { return Ok(false) };
        self.free.push(buffer);
        self.progress.wrote(ns);
        result.map_err(|error| self.refused(&error))?;
        let at = usize::try_from(number - self.first).unwrap_or(usize::MAX);
        if let Some(pending) = self.pending.get_mut(at) {
            pending.1 = true;
        }
        while let Some((block, true)) = self.pending.front() {
            self.entries.extend_from_slice(&block.to_bytes());
            self.pending.pop_front();
            self.first += 1;
        }
        Ok(true)
    }

    /// Adds the entries of blocks that are written to the index, many at once or those that waited.
    fn index(&mut self, all: bool) -> Result<(), Fault> {
        let is_due =
            all || self.entries.len() >= INDEX_BYTES || monotonic_ns() > self.indexed_ns + INDEX_NS;
        if self.entries.is_empty() || !is_due {
            return Ok(());
        }
        let at = self.progress.state().kept.blocks * KeptBlock::BYTES as u64;
        if let Err(error) = (&*self.index).write_all(&self.entries) {
            // A part of an entry is none.
            let _ = self.index.set_len(at);
            return Err(self.refused(&error));
        }
        let entries = self.entries.as_chunks::<{ KeptBlock::BYTES }>().0;
        let blocks: Vec<KeptBlock> = entries.iter().filter_map(KeptBlock::of_bytes).collect();
        for block in &blocks {
            self.of_streams[block.stream as usize].1.add(block);
        }
        self.progress.indexed(&blocks);
        self.entries.clear();
        self.indexed_ns = monotonic_ns();
        Ok(())
    }

    fn rotate(&mut self, stream: usize, bytes: u32) -> Result<(), Fault> {
        let open = &self.open[stream];
        let is_full = match self.settings.rotation {
            Some(Rotation::Bytes(most)) => open.at + u64::from(bytes) > most,
            Some(Rotation::Time(most)) => open.begun.elapsed() >= most,
            None => false,
        };
        if !is_full || open.blocks == 0 {
            return Ok(());
        }
        while self.retire(true)? {}
        self.index(true)?;
        let open = &mut self.open[stream];
        open.end(&self.progress)?;
        let is_direct = self.run.write == WriteBy::Direct;
        *open = Open::begin(&self.progress, stream, open.number + 1, is_direct)?;
        Ok(())
    }

    /// Says what the disk refused.
    fn refused(&self, error: &std::io::Error) -> Fault {
        let folder = self.settings.folder.display();
        let kept = format!("{} blocks are kept", self.progress.state().kept.blocks);
        Fault::new(match error.kind() {
            ErrorKind::StorageFull => format!("{folder}: the disk is full; {kept}"),
            ErrorKind::QuotaExceeded => format!("{folder}: the quota is used up; {kept}"),
            _ => format!("{folder}: the disk refuses a write: {error}; {kept}"),
        })
    }

    /// Ends the files and waits until all is durable, also after a fault.
    ///
    /// # Errors
    /// The first fault of the run.
    pub fn end(&mut self) -> Result<(), Fault> {
        if std::mem::replace(&mut self.is_ended, true) {
            return Ok(());
        }
        let mut ended = self.fault.take().map_or(Ok(()), Err);
        // Writes that were started may still end.
        for _ in 0..self.queue.depth() {
            ended = ended.and(self.retire(true).map(drop));
        }
        ended = ended.and(self.index(true));
        let kept = self.progress.state().ends.clone();
        for (open, (file, at, blocks)) in self.open.iter_mut().zip(kept) {
            // A file of which no block is kept has its header alone.
            let is_last = file == open.number;
            let empty = (self.progress.streams[open.stream].header_bytes(), 0);
            (open.at, open.blocks) = if is_last { (at, blocks) } else { empty };
            ended = ended.and(open.end(&self.progress));
        }
        self.progress.end();
        if self.background.take().is_some_and(|thread| thread.join().is_err()) {
            let fault = "a bug in daqmeter: the thread that synchronises panicked";
            ended = ended.and(Err(Fault::new(fault)));
        }
        ended = ended.and(self.progress.state().fault.clone().map_or(Ok(()), Err));
        let totals = self.kept();
        self.run.end = Some(KeptEnd {
            blocks: totals.blocks,
            bytes: totals.bytes,
            compared: totals.compared_blocks,
            fault: ended.as_ref().err().map(|fault| fault.0.clone()),
        });
        if self.settings.is_trial {
            let _ = fs::remove_dir_all(&self.settings.folder);
            return ended;
        }
        let written = self.run.write_to(&self.settings.folder);
        ended.and(written)
    }

    /// Blocks and events of each stream that were taken and are not kept.
    pub fn left(&self) -> Vec<(u64, u64)> {
        let left = |(taken, kept): &(Taken, Taken)| {
            (taken.blocks.saturating_sub(kept.blocks), taken.events.saturating_sub(kept.events))
        };
        self.of_streams.iter().map(left).collect()
    }

    /// Compares the blocks that were not yet read back. Returns the number of all that were
    /// compared.
    ///
    /// # Errors
    /// The first block that differs.
    pub fn compare(&mut self) -> Result<u64, Fault> {
        if !self.settings.compares || self.settings.is_trial {
            return Ok(0);
        }
        let mut check = KeptCheck::open(&self.settings.folder)?;
        check.skip(self.progress.state().kept.compared_blocks);
        let checked = check.all(&|| false)?;
        self.progress.state().kept.compared_blocks += checked.blocks;
        match checked.faults.into_iter().next() {
            Some(fault) => Err(Fault::new(fault)),
            None => Ok(self.progress.state().kept.compared_blocks),
        }
    }

    /// Account of what is kept so far.
    pub fn kept(&self) -> PathKept {
        let direct_bytes = match self.run.write {
            WriteBy::Direct => (self.queue.depth() * self.settings.block_bytes) as u64,
            _ => 0,
        };
        let folder = self.settings.folder.display().to_string();
        PathKept { folder, direct_bytes, ..self.progress.state().kept.clone() }
    }
}

impl Drop for KeptWriter {
    fn drop(&mut self) {
        // A run that failed elsewhere ends its files, too; one that never began leaves nothing.
        let is_begun = self.is_ended || self.progress.state().kept.blocks > 0;
        let _ = self.end();
        if !is_begun {
            let _ = fs::remove_dir_all(&self.settings.folder);
        }
    }
}

fn utc_less_monotonic_ns() -> u64 {
    let utc = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(utc.as_nanos()).unwrap_or(0).wrapping_sub(monotonic_ns())
}

fn queue(settings: &KeepSettings, write: WriteBy) -> WriteQueue {
    WriteQueue::new(match write {
        WriteBy::Direct => (FLIGHT_BYTES / settings.block_bytes.max(1)).clamp(2, 64),
        // A copy into the page cache is over at once.
        _ => 1,
    })
}

fn spare(settings: &KeepSettings, queue: &WriteQueue) -> Result<Vec<Buffer>, Fault> {
    Ok(Buffer::several(queue.depth(), settings.block_bytes, settings.pages)?)
}

/// Returns the way that is asked for, or the one that carries more to this disk.
fn chosen(settings: &KeepSettings) -> WriteBy {
    if settings.write != WriteBy::Auto {
        return settings.write;
    }
    if !settings.block_bytes.is_multiple_of(SECTOR_BYTES) {
        return WriteBy::Cached;
    }
    // The runs of a search go the same way.
    static KNOWN: Mutex<Option<(PathBuf, usize, WriteBy)>> = Mutex::new(None);
    let mut known = locked(&KNOWN);
    if let Some((folder, bytes, way)) = &*known
        && (folder, *bytes) == (&settings.folder, settings.block_bytes)
    {
        return *way;
    }
    let [direct, cached] = [WriteBy::Direct, WriteBy::Cached].map(|way| trial(settings, way));
    let way = if direct > cached { WriteBy::Direct } else { WriteBy::Cached };
    *known = Some((settings.folder.clone(), settings.block_bytes, way));
    way
}

/// Keeps blocks for a short time. Returns bytes per second until they are durable; `None` if the
/// file system cannot write so.
fn trial(settings: &KeepSettings, write: WriteBy) -> Option<f64> {
    let folder = settings.folder.join("trial");
    let settings =
        KeepSettings { folder, write, rotation: None, is_trial: true, ..settings.clone() };
    let streams = KeptStream::all(&["trial".to_owned()], KeptContent::Blocks, None);
    let mut writer = KeptWriter::begin(settings, streams).ok()?;
    let room = usize::try_from(free_bytes(&writer.index)? / 4).unwrap_or(usize::MAX);
    let (most, block_bytes) = (TRIAL_BYTES.min(room), writer.settings.block_bytes);
    let mut buffer = Buffer::new(block_bytes, writer.settings.pages).ok()?;
    let bytes = u32::try_from(block_bytes).unwrap_or(u32::MAX);
    let (begin, mut written) = (Instant::now(), 0);
    while written + block_bytes <= most && begin.elapsed() < TRIAL_TIME {
        writer.take(&mut buffer, KeptBlock { bytes, ..KeptBlock::default() }).ok()?;
        written += block_bytes;
    }
    writer.end().ok()?;
    Some(written as f64 / begin.elapsed().as_secs_f64())
}
