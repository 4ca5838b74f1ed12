//! Files in memory: `pread` copies to the user, `pwrite` from it.

use std::fs::File;
use std::os::unix::fs::FileExt;

use daqmeter_harness::{Availability, Fault};
use daqmeter_sys::SysError;
use daqmeter_sys::copies::{fill_by_mapping, huge_tmpfs_file, memory_file};
use daqmeter_sys::memory::{Buffer, Pages};

use super::mover::{Mover, Side, each, not_flushed};
use crate::request::{CopyPath, CopyRequest, Direction};

type MakeFile = fn(u64) -> Result<File, SysError>;

struct FileMover {
    name: &'static str,
    bytes: usize,
    pages: Pages,
    make: MakeFile,
    clears: bool,
    open: Option<(File, Buffer)>,
}

/// Makes lanes over a memory file, or over `/dev/zero`, whose read clears the user's memory and
/// copies nothing. Source: `clear_user` in `read_iter_zero`, drivers/char/mem.c.
pub(super) fn lanes(request: &CopyRequest) -> Result<Vec<Box<dyn Mover>>, Fault> {
    let (name, pages, make): (&str, Pages, MakeFile) = match request.path {
        CopyPath::TmpfsHuge => ("tmpfs huge=always", Pages::Transparent, huge_tmpfs_file),
        CopyPath::Hugetlb => ("hugetlb", Pages::HugeTlb, hugetlb_file),
        CopyPath::DevZero => (ZEROS, Pages::Base, |_| zeros()),
        _ => ("memfd", Pages::Base, |bytes| memory_file(bytes, false)),
    };
    let refused = match request.path {
        _ if request.direction == Direction::To => None,
        CopyPath::Hugetlb => {
            Some("hugetlb: hugetlbfs has no write; ask for direction `to`, or for path tmpfs-huge")
        }
        CopyPath::DevZero => {
            Some("dev-zero: a write to /dev/zero moves nothing; ask for direction `to`")
        }
        _ => None,
    };
    if let Some(why) = refused {
        return Err(Fault::new(why));
    }
    let (bytes, clears) = (request.block_bytes, request.path == CopyPath::DevZero);
    each(request, |_| Ok(FileMover { name, bytes, pages, make, clears, open: None }))
}

const ZEROS: &str = "/dev/zero";

fn zeros() -> Result<File, SysError> {
    File::open(ZEROS).map_err(|source| SysError { call: ZEROS.to_owned(), source })
}

/// Checks the device, because a container may have another file of that name.
pub(super) fn probe_zeros() -> Availability {
    let mut byte = [1];
    let read = |file: File| {
        let read = file.read_exact_at(&mut byte, 0);
        read.map_err(|source| SysError { call: ZEROS.to_owned(), source })
    };
    match zeros().and_then(read) {
        Ok(()) if byte == [0] => Availability::Ready,
        Ok(()) => Availability::Waived(format!("{ZEROS} does not give zeros")),
        Err(error) => Availability::Waived(error.to_string()),
    }
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
            Side::Kernel if !self.clears => fill_by_mapping(self.open().0, bytes)?,
            Side::Kernel if bytes.iter().any(|byte| *byte != 0) => {
                return Err(Fault::new(format!("{} gives zeros only", self.name)));
            }
            Side::Kernel => {}
        }
        Ok(())
    }

    fn get(&mut self, side: Side, into: &mut [u8]) -> Result<(), Fault> {
        let (file, user) = self.open();
        let got = match side {
            Side::User => {
                into.copy_from_slice(user);
                return Ok(());
            }
            Side::Kernel => file.read_exact_at(into, 0),
        };
        got.map_err(|error| self.failed(&error))
    }

    fn is_clearing(&self) -> bool {
        self.clears
    }

    fn flush(&mut self) -> Result<(), Fault> {
        let clears = self.clears;
        let (file, user) = self.open();
        // Flushing the mapped addresses flushes the lines of the kernel's copy.
        let flushed =
            daqmeter_kernels::copy::flush(user) && (clears || flush_file(file, user.len())?);
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
