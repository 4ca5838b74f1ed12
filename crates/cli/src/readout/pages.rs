//! Pages of a receiver that are kept, and checked again later.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use clap::Args;
use daqmeter_harness::{Fault, locked};
use daqmeter_hostio::kept::{
    KeepSettings, KeptBlock, KeptReader, KeptStream, KeptWriter, Rotation, WriteBy, unless_taken,
};
use daqmeter_hostio::sum::sum;
use daqmeter_readout::receive::{Receiver, Report};
use daqmeter_readout::transport::MAX_BODY_BYTES;
use daqmeter_record::units::plural;
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::memory::{Buffer, Pages};
use daqmeter_wire::felix::page::FRAME_BYTES;

use crate::output::{Failure, tell};

/// Options of a receiver that keeps its pages.
#[derive(Clone, Debug, Args)]
pub(super) struct KeepPages {
    /// Keep the pages as they came in files in this new folder
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Begin the next file at this size or age: 4GiB, 10min
    #[arg(long, value_name = "SIZE|TIME", requires = "keep")]
    rotate: Option<Rotation>,
}

/// The recorder of a receiver.
pub(super) struct PageRecorder(Arc<Mutex<KeptWriter>>);

const PAGE_BYTES: usize = FRAME_BYTES + MAX_BODY_BYTES;

impl KeepPages {
    /// Refuses a folder that is not free, before publishers are waited for.
    pub(super) fn ready(&self) -> Result<(), Fault> {
        self.keep.as_deref().map_or(Ok(()), unless_taken)
    }

    /// Makes a receiver keep its pages: a stream for each publisher.
    pub(super) fn begin(&self, receiver: &mut Receiver) -> Result<Option<PageRecorder>, Fault> {
        let Some(folder) = self.keep.clone() else { return Ok(None) };
        let settings = KeepSettings {
            folder,
            // Pages have any length.
            write: WriteBy::Cached,
            rotation: self.rotate,
            compares: true,
            is_trial: false,
            block_bytes: PAGE_BYTES,
            pages: Pages::Transparent,
        };
        let streams = KeptStream::all(&receiver.addresses(), None);
        let writer = Arc::new(Mutex::new(KeptWriter::begin(settings, streams)?));
        let own = writer.clone();
        let mut buffer = Buffer::new(PAGE_BYTES, Pages::Transparent)?;
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
}

impl PageRecorder {
    /// Ends the files, reads them back, and says what is kept.
    pub(super) fn end(self, report: &mut Report) {
        let mut writer = locked(&self.0);
        let ended = writer.end().and_then(|()| writer.compare());
        let kept = writer.kept();
        report.unkept = report.unkept.take().or(ended.err().map(|fault| fault.0));
        let (pages, folder) = (plural(kept.blocks, "page"), kept.folder);
        let same = if report.unkept.is_none() { ", read back and equal" } else { "" };
        tell(&format!("daqmeter: {pages} in {folder}, {} durable{same}", kept.durable_blocks));
    }
}

/// Checks the pages of a kept run as a receiver does.
pub(super) fn received(folder: &Path) -> Result<Report, Failure> {
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
