//! Files in memory: `pread` copies to the user, `pwrite` from it.

use std::fs::File;
use std::os::unix::fs::FileExt;

use daqmeter_harness::Fault;
use daqmeter_kernels::copy::flush;
use daqmeter_sys::SysError;
use daqmeter_sys::copies::{fill_by_mapping, huge_tmpfs_file, memory_file, with_mapping};
use daqmeter_sys::memory::{Buffer, Pages};

use super::mover::{Mover, Side, each};
use crate::request::{CopyPath, CopyRequest, Direction};

type MakeFile = fn(u64) -> Result<File, SysError>;

struct FileMover {
    name: &'static str,
    bytes: usize,
    pages: Pages,
    make: MakeFile,
    open: Option<(File, Buffer)>,
}

pub(super) fn lanes(request: &CopyRequest) -> Result<Vec<Box<dyn Mover>>, Fault> {
    let bytes = request.block_bytes;
    let (name, pages, make) = match request.path {
        CopyPath::TmpfsHuge => {
            ("tmpfs huge=always", Pages::Transparent, huge_tmpfs_file as MakeFile)
        }
        _ => ("memfd", Pages::Base, memory_file as MakeFile),
    };
    each(request, |_| Ok(FileMover { name, bytes, pages, make, open: None }))
}

pub(super) fn waiver() -> Option<String> {
    huge_tmpfs_file(4096).err().map(|error| format!("{error}: run as root"))
}

impl FileMover {
    fn open(&mut self) -> (&File, &mut [u8]) {
        let (file, buffer) = self.open.as_mut().expect("prepared before the first copy");
        (file, buffer.slice_mut::<u8>(self.bytes))
    }

    fn failed(&self, error: &std::io::Error) -> Fault {
        Fault::new(format!("{}: {} bytes: {error}", self.name, self.bytes))
    }
}

impl Mover for FileMover {
    fn device(&self) -> String {
        self.name.to_owned()
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        let buffer = Buffer::new(self.bytes, self.pages)?;
        self.open = Some(((self.make)(self.bytes as u64)?, buffer));
        self.put(Side::Kernel, &vec![0; self.bytes])
    }

    #[inline]
    fn copy(&mut self, direction: Direction) -> Result<(), Fault> {
        let (file, user) = self.open();
        let done =
            if direction == Direction::To { file.read_at(user, 0) } else { file.write_at(user, 0) };
        match done {
            Ok(bytes) if bytes == self.bytes => Ok(()),
            Ok(bytes) => {
                Err(Fault::new(format!("{}: {bytes} of {} bytes moved", self.name, self.bytes)))
            }
            Err(error) => Err(self.failed(&error)),
        }
    }

    fn put(&mut self, side: Side, bytes: &[u8]) -> Result<(), Fault> {
        match side {
            Side::User => self.open().1.copy_from_slice(bytes),
            Side::Kernel => fill_by_mapping(self.open().0, bytes)?,
        }
        Ok(())
    }

    fn get(&mut self, side: Side, into: &mut [u8]) -> Result<(), Fault> {
        let (file, user) = self.open();
        match side {
            Side::User => into.copy_from_slice(user),
            Side::Kernel => {
                file.read_exact_at(into, 0).map_err(|error| self.failed(&error))?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<bool, Fault> {
        let (file, user) = self.open();
        // Flushing the mapped addresses flushes the lines of the kernel's copy.
        let mut is_flushed = flush(user);
        with_mapping(file, user.len(), |pages| is_flushed &= flush(pages))?;
        Ok(is_flushed)
    }

    fn is_system_call(&self) -> bool {
        true
    }

    fn numa_node(&self) -> Option<u32> {
        self.open.as_ref().and_then(|(_, buffer)| buffer.numa_node())
    }
}
