//! What comes from a publisher or a card, kept as it came, and checked again later.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use clap::Args;
use daqmeter_harness::{Fault, locked};
use daqmeter_hostio::kept::{
    KeepSettings, KeptBlock, KeptContent, KeptReader, KeptRun, KeptStream, KeptWriter, Rotation,
    WriteBy, unless_taken,
};
use daqmeter_hostio::sum::sum;
use daqmeter_readout::receive::{Receiver, Report};
use daqmeter_readout::transport::MAX_BODY_BYTES;
use daqmeter_record::sanitise;
use daqmeter_record::units::plural;
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::memory::{Buffer, Pages};
use daqmeter_wire::felix::page::FRAME_BYTES;

use crate::output::{Failure, tell};

/// Options of a verb that keeps what comes.
#[derive(Clone, Debug, Args)]
pub(super) struct KeepOptions {
    /// Keep all as it came in files in this new folder
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Begin the next file at this size or age: 4GiB, 10min
    #[arg(long, value_name = "SIZE|TIME", requires = "keep")]
    rotate: Option<Rotation>,
}

/// The recorder of a receiver.
pub(super) struct PageRecorder(Arc<Mutex<KeptWriter>>);

/// The recorder of a card's blocks, several of which are one entry of the index.
pub(super) struct BlockRecorder {
    writer: KeptWriter,
    buffer: Buffer,
    filled: usize,
    /// Bytes of a whole entry, and of a block of the card.
    entry_bytes: usize,
    card_block_bytes: usize,
    next: KeptBlock,
}

const PAGE_BYTES: usize = FRAME_BYTES + MAX_BODY_BYTES;
/// Bytes of an entry, unless a block of the card has more.
const ENTRY_BYTES: usize = 1 << 20;

impl KeepOptions {
    /// Refuses a folder that is not free, before publishers are waited for.
    pub(super) fn ready(&self) -> Result<(), Fault> {
        self.keep.as_deref().map_or(Ok(()), unless_taken)
    }

    /// The folder.
    pub(super) fn shown(&self) -> String {
        self.keep.as_deref().map_or_else(String::new, |folder| folder.display().to_string())
    }

    /// Begins a recorder; `None` without a folder.
    fn writer(
        &self,
        names: &[String],
        content: KeptContent,
        block_bytes: usize,
    ) -> Result<Option<(KeptWriter, Buffer)>, Fault> {
        let Some(folder) = self.keep.clone() else { return Ok(None) };
        let settings = KeepSettings {
            folder,
            // Pages, and the last blocks, have any length.
            write: WriteBy::Cached,
            rotation: self.rotate,
            compares: true,
            is_trial: false,
            block_bytes,
            pages: Pages::Transparent,
        };
        let writer = KeptWriter::begin(settings, KeptStream::all(names, content, None))?;
        Ok(Some((writer, Buffer::new(block_bytes, Pages::Transparent)?)))
    }

    /// Makes a receiver keep its pages: a stream for each publisher.
    pub(super) fn pages(&self, receiver: &mut Receiver) -> Result<Option<PageRecorder>, Fault> {
        let names = receiver.addresses();
        let writer = self.writer(&names, KeptContent::FelixPages, PAGE_BYTES)?;
        let Some((writer, mut buffer)) = writer else { return Ok(None) };
        let writer = Arc::new(Mutex::new(writer));
        let own = writer.clone();
        receiver.keeper = Some(Box::new(move |publisher, frame, body| {
            let bytes = FRAME_BYTES + body.len();
            let (head, rest) = buffer.slice_mut::<u8>(bytes).split_at_mut(FRAME_BYTES);
            head.copy_from_slice(&frame.emit());
            rest.copy_from_slice(body);
            let block = KeptBlock {
                number: frame.sequence,
                time_ns: if frame.birth_ns > 0 { frame.birth_ns } else { monotonic_ns() },
                sum: sum(buffer.slice(bytes)),
                bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
                events: frame.count,
                stream: u32::try_from(publisher).unwrap_or(u32::MAX),
                ..KeptBlock::default()
            };
            locked(&own).take(&mut buffer, block)
        }));
        Ok(Some(PageRecorder(writer)))
    }

    /// Begins a recorder for the blocks of a card's channel.
    pub(super) fn blocks(
        &self,
        name: String,
        card_block_bytes: usize,
    ) -> Result<Option<BlockRecorder>, Fault> {
        let entry_bytes = (ENTRY_BYTES / card_block_bytes).max(1) * card_block_bytes;
        let writer = self.writer(&[name], KeptContent::FelixBlocks, entry_bytes)?;
        Ok(writer.map(|(writer, buffer)| {
            let next = KeptBlock::default();
            BlockRecorder { writer, buffer, filled: 0, entry_bytes, card_block_bytes, next }
        }))
    }
}

impl PageRecorder {
    /// Ends the files, reads them back, and says what is kept.
    pub(super) fn end(self, report: &mut Report) {
        let ended = end(&mut locked(&self.0), "page");
        report.unkept = report.unkept.take().or(ended.err().map(|fault| fault.0));
    }
}

impl BlockRecorder {
    fn keep(&mut self) -> Result<(), Fault> {
        let block = KeptBlock {
            time_ns: monotonic_ns(),
            sum: sum(self.buffer.slice(self.filled)),
            bytes: u32::try_from(self.filled).unwrap_or(u32::MAX),
            events: u32::try_from(self.filled / self.card_block_bytes).unwrap_or(u32::MAX),
            ..self.next
        };
        self.writer.take(&mut self.buffer, block)?;
        (self.filled, self.next.number) = (0, self.next.number + 1);
        Ok(())
    }
}

impl Write for BlockRecorder {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        let all = self.entry_bytes;
        let bytes = part.len().min(all - self.filled);
        self.buffer.slice_mut::<u8>(all)[self.filled..][..bytes].copy_from_slice(&part[..bytes]);
        self.filled += bytes;
        let kept = if self.filled == all { self.keep() } else { Ok(()) };
        kept.map(|()| bytes).map_err(|fault| io::Error::other(fault.0))
    }

    /// Keeps what is left, ends the files, reads them back, and says what is kept.
    fn flush(&mut self) -> io::Result<()> {
        let last = if self.filled > 0 { self.keep() } else { Ok(()) };
        last.and_then(|()| end(&mut self.writer, "entry"))
            .map_err(|fault| io::Error::other(fault.0))
    }
}

fn end(writer: &mut KeptWriter, what: &str) -> Result<(), Fault> {
    let ended = writer.end().and_then(|()| writer.compare());
    let kept = writer.kept();
    let same = if ended.is_ok() { ", read back and equal" } else { "" };
    let (has, files, folder) = (plural(kept.blocks, what), plural(kept.files, "file"), kept.folder);
    let durable = kept.durable_blocks;
    tell(&format!("daqmeter: {has} and {files} in {folder}, {durable} durable{same}"));
    ended.map(drop)
}

/// Content of a kept run of a read-out.
pub(super) enum Kept {
    Pages(Box<Report>),
    /// Name of each channel, and its files.
    Blocks(Vec<(String, Vec<PathBuf>)>),
}

impl Kept {
    /// Opens a folder. Pages are checked as a receiver does.
    pub(super) fn open(folder: &Path) -> Result<Kept, Failure> {
        let (run, shown) = (KeptRun::read(folder)?, folder.display());
        let files = |stream: &KeptStream| {
            (format!("{shown}: {}", sanitise::text(&stream.name)), stream.files(folder))
        };
        match run.streams[0].content {
            KeptContent::FelixPages => Ok(Kept::Pages(Box::new(received(folder)?))),
            KeptContent::FelixBlocks => Ok(Kept::Blocks(run.streams.iter().map(files).collect())),
            KeptContent::Blocks => Err(Failure::refused(format!(
                "{shown} has no blocks or pages of FELIX; `daqmeter check {shown}` compares it with its index"
            ))),
        }
    }
}

/// Checks the pages of a kept run as a receiver does.
fn received(folder: &Path) -> Result<Report, Failure> {
    let mut reader = KeptReader::open(folder)?;
    let (mut receiver, mut page) = (Receiver::default(), vec![0; reader.run.block_bytes]);
    while let Some(block) = reader.next_block()? {
        let page = &mut page[..block.bytes as usize];
        reader.read(&block, page)?;
        let taken = receiver.take_kept(page);
        let place = || format!("{}: page {}", reader.path(&block).display(), block.number);
        taken.map_err(|why| Failure::refused(format!("{}: {why}", place())))?;
    }
    Ok(receiver.report())
}
