//! Copies between two buffers of this process: by every copy instruction, and by the kernel
//! (`process_vm_readv`, `_writev`).

use daqmeter_harness::Fault;
use daqmeter_kernels::copy::{CopyKernel, flush};
use daqmeter_sys::copies::process_copy;
use daqmeter_sys::memory::{Buffer, Pages};

use super::mover::{Mover, Side, each};
use crate::memory::on_base_pages;
use crate::request::{CopyPath, CopyRequest, Direction};

#[derive(Clone, Copy)]
enum How {
    Kernel(CopyKernel),
    ProcessVm,
}

struct LocalMover {
    how: How,
    bytes: usize,
    buffers: Option<(Buffer, Buffer)>,
}

pub(super) fn kernel(request: &CopyRequest) -> Result<Vec<Box<dyn Mover>>, Fault> {
    let kernel = request.path.kernel().ok_or_else(|| no_kernel(request.path).unwrap_or_default());
    lanes(request, How::Kernel(kernel.map_err(Fault::new)?))
}

pub(super) fn process_vm(request: &CopyRequest) -> Result<Vec<Box<dyn Mover>>, Fault> {
    lanes(request, How::ProcessVm)
}

fn lanes(request: &CopyRequest, how: How) -> Result<Vec<Box<dyn Mover>>, Fault> {
    let bytes = request.block_bytes;
    each(request, |_| Ok(LocalMover { how, bytes, buffers: None }))
}

pub(super) fn no_kernel(path: CopyPath) -> Option<String> {
    path.kernel().is_none().then(|| format!("this CPU has no {path}"))
}

pub(super) fn waiver() -> Option<String> {
    let error = process_copy(&[1], &mut [0], true).err()?;
    Some(format!("process_vm_readv: {error}; a sandbox or ptrace_scope forbids it"))
}

impl LocalMover {
    fn sides(&mut self) -> (&mut [u8], &mut [u8]) {
        let (user, kernel) = self.buffers.as_mut().expect("prepared before the first copy");
        (user.slice_mut::<u8>(self.bytes), kernel.slice_mut::<u8>(self.bytes))
    }

    fn side(&mut self, side: Side) -> &mut [u8] {
        let (user, kernel) = self.sides();
        if side == Side::User { user } else { kernel }
    }
}

impl Mover for LocalMover {
    fn device(&self) -> String {
        match self.how {
            How::Kernel(kernel) => kernel.name().to_owned(),
            How::ProcessVm => "process_vm".to_owned(),
        }
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        let buffer = || Buffer::new(self.bytes, Pages::Transparent);
        self.buffers = Some((buffer()?, buffer()?));
        Ok(())
    }

    #[inline]
    fn copy(&mut self, direction: Direction) -> Result<(), Fault> {
        let (how, bytes) = (self.how, self.bytes);
        let (user, kernel) = self.sides();
        let (from, to) = if direction == Direction::To { (kernel, user) } else { (user, kernel) };
        let done = match how {
            How::Kernel(copy) => {
                copy.copy(from, to);
                std::hint::black_box(to);
                return Ok(());
            }
            How::ProcessVm => process_copy(from, to, direction == Direction::To),
        };
        match done {
            Ok(moved) if moved == bytes => Ok(()),
            Ok(moved) => Err(Fault::new(format!("process_vm: {moved} of {bytes} bytes moved"))),
            Err(error) => Err(Fault::new(format!("process_vm: {error}"))),
        }
    }

    fn put(&mut self, side: Side, bytes: &[u8]) -> Result<(), Fault> {
        self.side(side).copy_from_slice(bytes);
        Ok(())
    }

    fn get(&mut self, side: Side, into: &mut [u8]) -> Result<(), Fault> {
        into.copy_from_slice(self.side(side));
        Ok(())
    }

    fn flush(&mut self) -> Result<bool, Fault> {
        let (user, kernel) = self.sides();
        Ok(flush(user) && flush(kernel))
    }

    fn is_system_call(&self) -> bool {
        matches!(self.how, How::ProcessVm)
    }

    fn warnings(&mut self) -> Vec<String> {
        self.buffers.iter().filter_map(|(user, _)| on_base_pages(user)).collect()
    }

    fn numa_node(&self) -> Option<u32> {
        self.buffers.as_ref().and_then(|(user, _)| user.numa_node())
    }
}
