//! Files in memory: `pread` copies to the user, `pwrite` from it.

use std::fs::File;
use std::os::unix::fs::FileExt;

use daqmeter_harness::{Availability, Fault};
use daqmeter_sys::SysError;
use daqmeter_sys::copies::{fill_by_mapping, huge_tmpfs_file, memory_file};
use daqmeter_sys::memory::{Buffer, Pages};

use super::mover::{Mover, each, not_flushed};
use crate::request::{Direction, Request};

/// Makes a file of that size.
type MakeFile = fn(u64) -> Result<File, SysError>;

struct FileMover {
    name: &'static str,
    bytes: usize,
    pages: Pages,
    make: MakeFile,
    open: Option<(File, Buffer)>,
}

fn lanes(
    request: &Request,
    name: &'static str,
    pages: Pages,
    make: MakeFile,
) -> Result<Vec<Box<dyn Mover>>, Fault> {
    each(request, |_| Ok(FileMover { name, bytes: request.block_bytes, pages, make, open: None }))
}

pub(super) fn memfd(request: &Request) -> Result<Vec<Box<dyn Mover>>, Fault> {
    lanes(request, "memfd", Pages::Base, |bytes| memory_file(bytes, false))
}

pub(super) fn tmpfs_huge(request: &Request) -> Result<Vec<Box<dyn Mover>>, Fault> {
    lanes(request, "tmpfs huge=always", Pages::Transparent, huge_tmpfs_file)
}

pub(super) fn hugetlb(request: &Request) -> Result<Vec<Box<dyn Mover>>, Fault> {
    if request.direction != Direction::To {
        return Err(Fault::new(
            "hugetlb: hugetlbfs has no write; ask for direction `to`, or for path tmpfs-huge",
        ));
    }
    lanes(request, "hugetlb", Pages::HugeTlb, hugetlb_file)
}

fn hugetlb_file(bytes: u64) -> Result<File, SysError> {
    memory_file(bytes.next_multiple_of(2 << 20), true)
}

pub(super) fn probe_tmpfs() -> Availability {
    match huge_tmpfs_file(4096) {
        Ok(_) => Availability::Ready,
        Err(error) => Availability::Waived(format!("{error}: run as root")),
    }
}

pub(super) fn probe_hugetlb() -> Availability {
    let made = hugetlb_file(1).and_then(|file| fill_by_mapping(&file, &[0]));
    match made {
        Ok(()) => Availability::Ready,
        Err(error) => {
            Availability::Waived(format!("{error}: reserve pages, e.g. sysctl vm.nr_hugepages=64"))
        }
    }
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
        let zeros = vec![0; self.bytes];
        self.put_kernel(&zeros)
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

    fn put_user(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.open().1.copy_from_slice(bytes);
        Ok(())
    }

    fn get_user(&mut self, into: &mut [u8]) -> Result<(), Fault> {
        into.copy_from_slice(self.open().1);
        Ok(())
    }

    fn put_kernel(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        Ok(fill_by_mapping(self.open().0, bytes)?)
    }

    fn get_kernel(&mut self, into: &mut [u8]) -> Result<(), Fault> {
        let got = self.open().0.read_exact_at(into, 0);
        got.map_err(|error| self.failed(&error))
    }

    fn flush(&mut self) -> Result<(), Fault> {
        let (file, user) = self.open();
        // The kernel's pages have an address of ours while they are mapped; the lines that are flushed are the same.
        let flushed = daqmeter_kernels::copy::flush(user) && flush_file(file, user.len())?;
        if flushed { Ok(()) } else { Err(not_flushed()) }
    }

    fn is_system_call(&self) -> bool {
        true
    }

    fn numa_node(&self) -> Option<u32> {
        self.open.as_ref().and_then(|(_, buffer)| buffer.numa_node())
    }
}

pub(super) fn flush_file(file: &File, bytes: usize) -> Result<bool, Fault> {
    let mut flushed = false;
    daqmeter_sys::copies::with_mapping(file, bytes, |pages| {
        flushed = daqmeter_kernels::copy::flush(pages)
    })?;
    Ok(flushed)
}
