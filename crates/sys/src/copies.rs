//! Kernel objects that hold bytes, and the system calls that copy to and from them.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::AtomicU8;

use crate::SysError;

/// A system call that does next to nothing: what entering the kernel costs.
pub fn null_call() {
    // SAFETY: getppid has no arguments and no effect; the raw call is never answered from user space.
    unsafe { libc::syscall(libc::SYS_getppid) };
}

/// A sleep that the kernel refuses after it has copied the 16 bytes of its time: for tests of tracers.
pub fn refused_sleep() {
    let time = libc::timespec { tv_sec: 0, tv_nsec: 2_000_000_000 };
    // SAFETY: a live structure; nothing is written.
    unsafe {
        libc::syscall(libc::SYS_nanosleep, &raw const time, std::ptr::null_mut::<libc::timespec>())
    };
}

/// Asks for the system's name, 390 bytes, and forgets it: for tests of tracers.
pub fn system_name() {
    // SAFETY: all zeros are a value of the structure, which the kernel fills.
    unsafe {
        let mut name: libc::utsname = std::mem::zeroed();
        libc::syscall(libc::SYS_uname, &raw mut name);
    }
}

fn owned(fd: libc::c_long, call: impl Into<String>) -> Result<OwnedFd, SysError> {
    match i32::try_from(fd) {
        // SAFETY: the descriptor was just created and is owned by nobody else.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(SysError::last(call)),
    }
}

/// Anonymous memory of the kernel as a file, on base pages or on the huge page pool.
///
/// # Errors
/// Those of `memfd_create(2)`, `ftruncate(2)`.
pub fn memory_file(bytes: u64, huge: bool) -> Result<File, SysError> {
    let flags = libc::MFD_CLOEXEC | if huge { libc::MFD_HUGETLB } else { 0 };
    // SAFETY: the name is a constant with its NUL.
    let fd = unsafe { libc::memfd_create(c"daqmeter-copy".as_ptr(), flags) };
    let file = File::from(owned(fd.into(), "memfd_create")?);
    file.set_len(bytes)
        .map_err(|source| SysError { call: format!("make room for {bytes} bytes"), source })?;
    Ok(file)
}

/// A file on huge pages that can be read and written: a tmpfs with `huge=always`, mounted nowhere (`fsopen`, `fsmount`, Linux
/// 5.2). hugetlbfs, which memory files use, has no `write`.
///
/// # Errors
/// EPERM for others than root.
pub fn huge_tmpfs_file(bytes: u64) -> Result<File, SysError> {
    const FSCONFIG_SET_STRING: libc::c_long = 1;
    const FSCONFIG_CMD_CREATE: libc::c_long = 6;
    let null = std::ptr::null::<libc::c_char>();
    // SAFETY: constants with their NULs; each call checks what it is given and touches no memory of ours.
    let mount = unsafe {
        let context = owned(
            libc::syscall(libc::SYS_fsopen, c"tmpfs".as_ptr(), 1),
            "fsopen tmpfs (root only)",
        )?;
        let fd = context.as_raw_fd();
        let (key, value) = (c"huge".as_ptr(), c"always".as_ptr());
        if libc::syscall(libc::SYS_fsconfig, fd, FSCONFIG_SET_STRING, key, value, 0) < 0 {
            return Err(SysError::last("tmpfs with huge=always"));
        }
        if libc::syscall(libc::SYS_fsconfig, fd, FSCONFIG_CMD_CREATE, null, null, 0) < 0 {
            return Err(SysError::last("make a tmpfs"));
        }
        owned(libc::syscall(libc::SYS_fsmount, fd, 1, 0), "fsmount")?
    };
    // SAFETY: a path of one dot with its NUL, relative to our own mount.
    let fd = unsafe {
        let flags = libc::O_TMPFILE | libc::O_RDWR | libc::O_CLOEXEC;
        libc::openat(mount.as_raw_fd(), c".".as_ptr(), flags, 0o600 as libc::c_uint)
    };
    let file = File::from(owned(fd.into(), "open a file on tmpfs")?);
    file.set_len(bytes)
        .map_err(|source| SysError { call: format!("make room for {bytes} bytes"), source })?;
    Ok(file)
}

/// Writes through a mapping: for files that have no `write` (hugetlbfs).
///
/// # Errors
/// Those of `mmap(2)`.
pub fn fill_by_mapping(file: &File, bytes: &[u8]) -> Result<(), SysError> {
    mapped(file, bytes.len(), |start| {
        // SAFETY: the mapping has as many bytes, and is ours alone.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len()) }
    })
}

/// Lends the file's pages, mapped for the time of the call: to flush the lines that the kernel copies from and to. As atomics,
/// because whoever has the file may write it meanwhile.
///
/// # Errors
/// Those of `mmap(2)`, and a file that is shorter.
pub fn with_mapping(
    file: &File,
    bytes: usize,
    work: impl FnOnce(&[AtomicU8]),
) -> Result<(), SysError> {
    mapped(file, bytes, |start| {
        // SAFETY: the mapping has as many bytes, readable and writable, and is used by atomics alone.
        work(unsafe { std::slice::from_raw_parts(start.cast(), bytes) });
    })
}

fn mapped(file: &File, bytes: usize, work: impl FnOnce(*mut u8)) -> Result<(), SysError> {
    let failed = |source| SysError { call: format!("map {bytes} bytes of the file"), source };
    // Pages behind a file's end cannot be touched: SIGBUS.
    if file.metadata().map_err(failed)?.len() < bytes as u64 {
        return Err(failed(io::ErrorKind::UnexpectedEof.into()));
    }
    let rounded = bytes.next_multiple_of(2 << 20);
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new shared mapping at an address of the kernel's choice.
    let start = unsafe {
        libc::mmap(std::ptr::null_mut(), rounded, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    if start == libc::MAP_FAILED {
        return Err(SysError::last(format!("map {bytes} bytes of the file")));
    }
    work(start.cast());
    // SAFETY: our own mapping, referenced by nobody any more.
    unsafe { libc::munmap(start, rounded) };
    Ok(())
}

/// Copies between two ranges of this process through the kernel: `process_vm_readv(2)`.
///
/// # Errors
/// EPERM where the kernel forbids it, EFAULT.
#[inline]
pub fn process_read(from: &[u8], into: &mut [u8]) -> io::Result<usize> {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
    // SAFETY: both ranges are live slices; the kernel writes only the exclusive one.
    let done = unsafe {
        libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
    };
    usize::try_from(done).map_err(|_| io::Error::last_os_error())
}

/// The other direction: `process_vm_writev(2)`.
///
/// # Errors
/// As [`process_read`].
#[inline]
pub fn process_write(from: &[u8], into: &mut [u8]) -> io::Result<usize> {
    let local = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
    let remote = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // SAFETY: as above.
    let done = unsafe {
        libc::process_vm_writev(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
    };
    usize::try_from(done).map_err(|_| io::Error::last_os_error())
}

/// Asks for a pipe's capacity; returns what was given.
///
/// # Errors
/// EPERM above `/proc/sys/fs/pipe-max-size` for others than root.
pub fn set_pipe_bytes(pipe: &impl AsRawFd, bytes: usize) -> Result<usize, SysError> {
    let asked = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    // SAFETY: a plain call on an open descriptor.
    let got = unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETPIPE_SZ, asked) };
    usize::try_from(got).map_err(|_| SysError::last(format!("make a pipe of {bytes} bytes")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn a_memory_file_keeps_what_is_written() {
        let file = memory_file(10_000, false).unwrap();
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
        // Some sandboxes forbid it; then there is nothing to check.
        if process_read(&from, &mut into).is_ok() {
            assert_eq!(into, from);
            assert_eq!(process_write(&[9], &mut into).unwrap(), 1);
            assert_eq!(into, [9, 2, 3]);
        }
    }
}
