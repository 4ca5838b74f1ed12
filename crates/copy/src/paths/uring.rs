//! io_uring over kernel memory: many blocks for one system call.

use std::os::unix::fs::FileExt;

use daqmeter_harness::{Availability, Fault};
use daqmeter_sys::copies::{fill_by_mapping, memory_file};
use daqmeter_sys::memory::{Buffer, Pages};
use daqmeter_sys::uring::Blocks;

use super::file::flush_file;
use super::mover::{Mover, each, not_flushed};
use crate::request::{Direction, Request};

struct UringMover {
    block_bytes: u32,
    depth: u32,
    registered: bool,
    open: Option<(std::fs::File, Blocks)>,
}

fn lanes(request: &Request, registered: bool) -> Result<Vec<Box<dyn Mover>>, Fault> {
    let block_bytes = u32::try_from(request.block_bytes)
        .map_err(|_| Fault::new("io_uring moves blocks below 4 GiB: choose smaller --sizes"))?;
    let depth = u32::try_from(request.depth).map_err(|error| Fault::new(error.to_string()))?;
    each(request, |_| Ok(UringMover { block_bytes, depth, registered, open: None }))
}

pub(super) fn plain(request: &Request) -> Result<Vec<Box<dyn Mover>>, Fault> {
    lanes(request, false)
}

pub(super) fn fixed(request: &Request) -> Result<Vec<Box<dyn Mover>>, Fault> {
    lanes(request, true)
}

pub(super) fn probe() -> Availability {
    let made = memory_file(1, false)
        .and_then(|file| Blocks::new(&file, Buffer::new(1, Pages::Base)?, 1, 1, false));
    match made {
        Ok(_) => Availability::Ready,
        Err(error) => Availability::Waived(format!("{error}: see sysctl kernel.io_uring_disabled")),
    }
}

impl UringMover {
    fn whole(&self) -> usize {
        self.block_bytes as usize * self.depth as usize
    }

    fn ring(&mut self) -> &mut Blocks {
        &mut self.open.as_mut().expect("prepared before the first copy").1
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
        let blocks = Blocks::new(&file, buffer, self.block_bytes, self.depth, self.registered)?;
        self.open = Some((file, blocks));
        Ok(())
    }

    #[inline]
    fn copy(&mut self, direction: Direction) -> Result<(), Fault> {
        Ok(self.ring().run(direction == Direction::From)?)
    }

    fn put_user(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.ring().buffer().slice_mut::<u8>(bytes.len()).copy_from_slice(bytes);
        Ok(())
    }

    fn get_user(&mut self, into: &mut [u8]) -> Result<(), Fault> {
        into.copy_from_slice(self.ring().buffer().slice::<u8>(into.len()));
        Ok(())
    }

    fn put_kernel(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let (file, _) = self.open.as_ref().expect("prepared before the first copy");
        Ok(fill_by_mapping(file, bytes)?)
    }

    fn get_kernel(&mut self, into: &mut [u8]) -> Result<(), Fault> {
        let (file, _) = self.open.as_ref().expect("prepared before the first copy");
        file.read_exact_at(into, 0).map_err(|error| Fault::new(format!("read back: {error}")))
    }

    fn blocks(&self) -> usize {
        self.depth as usize
    }

    fn flush(&mut self) -> Result<(), Fault> {
        let bytes = self.whole();
        let (file, blocks) = self.open.as_mut().expect("prepared before the first copy");
        let flushed = daqmeter_kernels::copy::flush(blocks.buffer().slice::<u8>(bytes))
            && flush_file(file, bytes)?;
        if flushed { Ok(()) } else { Err(not_flushed()) }
    }

    fn is_system_call(&self) -> bool {
        true
    }
}
