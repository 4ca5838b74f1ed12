//! Kernel objects that hold bytes, and the system calls that copy to and from them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU8;

use rustix::fs::{MemfdFlags, Mode, OFlags, openat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};

use crate::memory::Mapping;
use crate::{SysError, failed};

/// Makes a system call with next to no work: the cost of entering the kernel.
pub fn null_call() {
    // SAFETY: getppid has no arguments and no effect; the raw call is never answered from user
    // space.
    unsafe { libc::syscall(libc::SYS_getppid) };
}

pub fn memory_file(bytes: u64) -> Result<File, SysError> {
    let fd = rustix::fs::memfd_create(c"daqmeter-copy", MemfdFlags::CLOEXEC);
    sized(fd.map_err(failed("memfd_create"))?, bytes)
}

fn sized(fd: OwnedFd, bytes: u64) -> Result<File, SysError> {
    let file = File::from(fd);
    file.set_len(bytes).map_err(failed(format!("make room for {bytes} bytes")))?;
    Ok(file)
}

/// Makes a file on huge pages with read and write: an unmounted tmpfs with `huge=always` (`fsopen`,
/// `fsmount`, Linux 5.2).
///
/// # Errors
/// EPERM for other users than root.
pub fn huge_tmpfs_file(bytes: u64) -> Result<File, SysError> {
    let context = fsopen(c"tmpfs", FsOpenFlags::FSOPEN_CLOEXEC);
    let context = context.map_err(failed("fsopen tmpfs (root only)"))?;
    fsconfig_set_string(&context, c"huge", c"always").map_err(failed("tmpfs with huge=always"))?;
    fsconfig_create(&context).map_err(failed("make a tmpfs"))?;
    let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty());
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let mount = mount.map_err(failed("fsmount"))?;
    let fd = openat(mount, c".", flags, Mode::RUSR | Mode::WUSR);
    sized(fd.map_err(failed("open a file on tmpfs"))?, bytes)
}

/// Writes through a mapping: a way to fill a file other than the measured `write`.
pub fn fill_by_mapping(file: &File, bytes: &[u8]) -> Result<(), SysError> {
    mapped(file, bytes.len(), |start| {
        // SAFETY: the mapping has as many bytes, and is ours alone.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len()) }
    })
}

/// Lends the file's pages during a call, to flush the cache lines of a copy. They are atomics,
/// because other holders of the file may write it.
pub fn with_mapping(
    file: &File,
    bytes: usize,
    work: impl FnOnce(&[AtomicU8]),
) -> Result<(), SysError> {
    mapped(file, bytes, |start| {
        // SAFETY: the mapping has as many bytes, readable and writable, and is used by atomics
        // alone.
        work(unsafe { std::slice::from_raw_parts(start.cast(), bytes) });
    })
}

fn mapped(file: &File, bytes: usize, work: impl FnOnce(*mut u8)) -> Result<(), SysError> {
    let call = format!("map {bytes} bytes of the file");
    // Pages behind a file's end raise SIGBUS.
    if file.metadata().map_err(failed(call.clone()))?.len() < bytes as u64 {
        return Err(failed(call)(io::Error::from(io::ErrorKind::UnexpectedEof)));
    }
    let mapping = Mapping::shared(file.as_fd(), bytes.next_multiple_of(2 << 20), call)?;
    work(mapping.start.as_ptr());
    Ok(())
}

/// Copies between two ranges of this process through the kernel: by `process_vm_readv(2)` or by
/// `process_vm_writev(2)`.
///
/// # Errors
/// EPERM where the kernel forbids it, EFAULT.
#[inline]
pub fn process_copy(from: &[u8], into: &mut [u8], is_read: bool) -> io::Result<usize> {
    let from = &libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
    let into = &libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // SAFETY: both ranges are live slices; the kernel writes only the exclusive one.
    let done = unsafe {
        match is_read {
            true => libc::process_vm_readv(libc::getpid(), into, 1, from, 1, 0),
            false => libc::process_vm_writev(libc::getpid(), from, 1, into, 1, 0),
        }
    };
    usize::try_from(done).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn a_memory_file_keeps_what_is_written() {
        let file = memory_file(10_000).unwrap();
        file.write_all_at(b"abc", 9_000).unwrap();
        let mut back = [0; 3];
        file.read_exact_at(&mut back, 9_000).unwrap();
        assert_eq!(&back, b"abc");
        fill_by_mapping(&file, b"xyz").unwrap();
        let mut seen = 0;
        with_mapping(&file, 10_000, |bytes| {
            seen = bytes[1].load(std::sync::atomic::Ordering::Relaxed)
        })
        .unwrap();
        assert_eq!(seen, b'y');
        let short = with_mapping(&file, 10_001, |_| ()).unwrap_err().to_string();
        assert!(short.contains("map 10001 bytes"), "{short}");
        file.read_exact_at(&mut back, 0).unwrap();
        assert_eq!(&back, b"xyz");
    }

    #[test]
    fn a_process_copies_within_itself() {
        let (from, mut into) = ([1_u8, 2, 3], [0; 3]);
        assert_eq!(process_copy(&from, &mut into, true).unwrap(), 3);
        assert_eq!(into, from);
        assert_eq!(process_copy(&[9], &mut into, false).unwrap(), 1);
        assert_eq!(into, [9, 2, 3]);
    }
}
