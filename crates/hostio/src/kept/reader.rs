//! Blocks of a kept run, in the order of its index.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use daqmeter_harness::Fault;
use daqmeter_sys::disk::uncache;
use daqmeter_sys::host::open_regular;

use crate::kept::{INDEX, KeptBlock, KeptRun};

/// Entries that are read at once.
const ENTRIES: usize = 1024;
/// Largest place in a file: a `loff_t` and a block behind it.
const MAX_FILE_BYTES: u64 = 1 << 62;

#[derive(Debug)]
pub struct KeptReader {
    folder: PathBuf,
    pub run: KeptRun,
    index: File,
    /// Number of the next entry.
    pub at: u64,
    /// Entries that were read, the last one first.
    ahead: Vec<[u8; KeptBlock::BYTES]>,
    /// Last file of each stream, by its number.
    open: Vec<Option<(u32, File)>>,
}

impl KeptReader {
    /// Opens a folder.
    ///
    /// # Errors
    /// When it holds no kept run.
    pub fn open(folder: &Path) -> Result<KeptReader, Fault> {
        KeptReader::of(folder, &KeptRun::read(folder)?)
    }

    pub(super) fn of(folder: &Path, run: &KeptRun) -> Result<KeptReader, Fault> {
        let path = folder.join(INDEX);
        let index = open_regular(&path);
        let index = index.map_err(|error| Fault::new(format!("{}: {error}", path.display())))?;
        let open = run.streams.iter().map(|_| None).collect();
        let (folder, run) = (folder.to_owned(), run.clone());
        Ok(KeptReader { folder, run, index, at: 0, ahead: Vec::new(), open })
    }

    /// Number of whole entries of the index now, and the bytes behind them.
    ///
    /// # Errors
    /// When the index is gone.
    pub fn entries(&self) -> Result<(u64, u64), Fault> {
        let bytes = self.index.metadata().map_err(|error| self.of_index(&error))?.len();
        Ok((bytes / KeptBlock::BYTES as u64, bytes % KeptBlock::BYTES as u64))
    }

    fn of_index(&self, error: &std::io::Error) -> Fault {
        Fault::new(format!("{}: {error}", self.folder.join(INDEX).display()))
    }

    /// Returns the next entry; `None` at the end.
    ///
    /// # Errors
    /// An entry that was cut or never written, or names no block of this run; the index ends there.
    pub fn next_block(&mut self) -> Result<Option<KeptBlock>, Fault> {
        if self.ahead.is_empty() {
            self.read_ahead().map_err(|error| self.of_index(&error))?;
        }
        let Some(entry) = self.ahead.pop() else { return Ok(None) };
        let at = self.at;
        self.at += 1;
        let most = self.run.block_bytes as u64;
        let block = KeptBlock::of_bytes(&entry).filter(|block| {
            let is_place = block.offset <= MAX_FILE_BYTES && u64::from(block.bytes) <= most;
            (block.stream as usize) < self.open.len() && is_place && block.number < u64::MAX
        });
        block.map(Some).ok_or_else(|| {
            let path = self.folder.join(INDEX);
            Fault::new(format!(
                "{}: entry {at} is no entry: it was cut, or never written",
                path.display()
            ))
        })
    }

    fn read_ahead(&mut self) -> std::io::Result<()> {
        self.index.seek(SeekFrom::Start(self.at * KeptBlock::BYTES as u64))?;
        let mut bytes = Vec::new();
        (&self.index).take((ENTRIES * KeptBlock::BYTES) as u64).read_to_end(&mut bytes)?;
        self.ahead = bytes.as_chunks().0.to_vec();
        self.ahead.reverse();
        Ok(())
    }

    /// Closes the files: what was written to them since is read from the disk, too.
    pub(super) fn close(&mut self) {
        self.open.fill_with(|| None);
    }

    /// Reads the bytes of a block, from the disk.
    ///
    /// # Errors
    /// The file, and the place in it.
    pub fn read(&mut self, block: &KeptBlock, into: &mut [u8]) -> Result<(), Fault> {
        self.bytes_of(block, into).map_err(|what| {
            let KeptBlock { number, offset, .. } = block;
            let path = self.path(block);
            Fault::new(format!("{}: block {number} at byte {offset} {what}", path.display()))
        })
    }

    /// Reads the bytes of a block, or says what is wrong with it.
    pub(super) fn bytes_of(&mut self, block: &KeptBlock, into: &mut [u8]) -> Result<(), String> {
        let stream = block.stream as usize;
        let is_open = self.open[stream].as_ref().is_some_and(|(number, _)| *number == block.file);
        if !is_open {
            let file = open_regular(&self.path(block));
            let file = file.map_err(|error| format!("is not there: {error}"))?;
            // From here on, the disk is read. What was read ahead stays.
            uncache(&file, 0, 0);
            self.open[stream] = Some((block.file, file));
        }
        let Some((_, file)) = &self.open[stream] else { return Ok(()) };
        let read = file.read_exact_at(into, block.offset);
        uncache(file, block.offset, into.len() as u64);
        read.map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => "is not whole: the file ends before".to_owned(),
            _ => format!("cannot be read: {error}"),
        })
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Path of a file of a block.
    pub fn path(&self, block: &KeptBlock) -> PathBuf {
        self.run.streams[block.stream as usize].path(&self.folder, block.file)
    }
}
