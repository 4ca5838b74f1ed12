//! io_uring over kernel memory: several blocks for one system call.

use std::fs::File;
use std::os::unix::fs::FileExt;

use daqmeter_harness::{Availability, Fault};
use daqmeter_sys::copies::{fill_by_mapping, memory_file};
use daqmeter_sys::memory::{Buffer, Pages};
use daqmeter_sys::uring::UringBlocks;

use super::file::flush_file;
use super::mover::{Mover, Side, each, not_flushed};
use crate::request::{CopyPath, CopyRequest, Direction};

struct UringMover {
    block_bytes: u32,
    depth: u32,
    registered: bool,
    open: Option<(File, UringBlocks)>,
}

pub(super) fn lanes(request: &CopyRequest) -> Result<Vec<Box<dyn Mover>>, Fault> {
    let registered = request.path == CopyPath::IoUringFixed;
    let block_bytes = u32::try_from(request.block_bytes)
        .map_err(|_| Fault::new("io_uring moves blocks below 4 GiB: choose smaller --sizes"))?;
    let depth = u32::try_from(request.depth).map_err(|error| Fault::new(error.to_string()))?;
    each(request, |_| Ok(UringMover { block_bytes, depth, registered, open: None }))
}

pub(super) fn probe() -> Availability {
    let made = memory_file(1, false)
        .and_then(|file| UringBlocks::new(&file, Buffer::new(1, Pages::Base)?, 1, 1, false));
    match made {
        Ok(_) => Availability::Ready,
        Err(error) => Availability::Waived(format!("{error}: see sysctl kernel.io_uring_disabled")),
    }
}

impl UringMover {
    fn whole(&self) -> usize {
        self.block_bytes as usize * self.depth as usize
    }

    fn open(&mut self) -> (&File, &mut UringBlocks) {
        let (file, blocks) = self.open.as_mut().expect("prepared before the first copy");
        (file, blocks)
    }
}

impl Mover for UringMover {
    fn device(&self) -> String {
        let buffers = if self.registered { "registered" } else { "plain" };
        format!("io_uring, depth {}, {buffers}", self.depth)
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        let file = memory_file(self.whole() as u64, false)?;
        fill_by_mapping(&file, &vec![0; self.whole()])?;
        let buffer = Buffer::new(self.whole(), Pages::Base)?;
        let blocks =
            UringBlocks::new(&file, buffer, self.block_bytes, self.depth, self.registered)?;
        self.open = Some((file, blocks));
        Ok(())
    }

    #[inline]
    fn copy(&mut self, direction: Direction) -> Result<(), Fault> {
        Ok(self.open().1.run(direction == Direction::From)?)
    }

    fn put(&mut self, side: Side, bytes: &[u8]) -> Result<(), Fault> {
        let (file, blocks) = self.open();
        match side {
            Side::User => blocks.buffer().slice_mut::<u8>(bytes.len()).copy_from_slice(bytes),
            Side::Kernel => fill_by_mapping(file, bytes)?,
        }
        Ok(())
    }

    fn get(&mut self, side: Side, into: &mut [u8]) -> Result<(), Fault> {
        let (file, blocks) = self.open();
        match side {
            Side::User => into.copy_from_slice(blocks.buffer().slice::<u8>(into.len())),
            Side::Kernel => file
                .read_exact_at(into, 0)
                .map_err(|error| Fault::new(format!("read back: {error}")))?,
        }
        Ok(())
    }

    fn blocks(&self) -> usize {
        self.depth as usize
    }

    fn flush(&mut self) -> Result<(), Fault> {
        let bytes = self.whole();
        let (file, blocks) = self.open();
        let flushed = daqmeter_kernels::copy::flush(blocks.buffer().slice::<u8>(bytes))
            && flush_file(file, bytes)?;
        if flushed { Ok(()) } else { Err(not_flushed()) }
    }

    fn is_system_call(&self) -> bool {
        true
    }
}
