//! Interface to Linux: all calls to the kernel beyond `std`.
//!
//! - [`memory`]: buffers on huge pages if available, and device memory that is never a reference;
//! - [`available`]: memory that this process may still take;
//! - [`affinity`], [`clock`], [`cpu_time`]: CPUs of threads, time, and CPU time;
//! - [`probe`]: the present clock of a CPU, without counters;
//! - [`processes`], [`scheduler`]: other processes, and a scheduler setting that is restored;
//! - [`host`]: the facts of the machine, read below a root that tests replace;
//! - [`net`], [`tty`]: datagrams in batches, readiness, raw terminals;
//! - [`wait`]: timerfd and eventfd, the interrupt lines of emulated boards; sleeping exactly;
//! - [`ring`], [`fds`]: the ring of an endless DMA in shared memory, and descriptors passed between
//!   processes;
//! - [`perf`], [`symbols`]: counters and samples of our own threads; [`counters`]: of a whole CPU,
//!   by any PMU;
//! - [`disk`]: writes in flight, advice for files, counters of a disk;
//! - [`mounts`]: network file systems;
//! - [`signals`]: Ctrl-C and other requests to end;
//! - [`uapi`]: the ioctl border of our own modules; [`ioctl_words`]: that of drivers of devices;
//! - [`copies`]: system calls that copy.
//!
//! Errors carry the call and the errno. Only this crate and `kernels` contain unsafe code.

#![allow(
    unsafe_code,
    reason = "system calls and mapped memory cross the border of what Rust can check; each says why it holds"
)]

pub mod affinity;
pub mod available;
pub mod bpf;
mod btf;
pub mod clock;
pub mod copies;
pub mod counters;
pub mod cpu_time;
pub mod disk;
pub mod ethtool;
pub mod fds;
pub mod fence;
pub mod host;
mod huge_pages;
pub mod memory;
pub mod mounts;
pub mod namespace;
pub mod net;
pub mod netlink;
pub mod perf;
pub mod probe;
pub mod process;
pub mod processes;
pub mod ring;
pub mod routes;
pub mod scheduler;
pub mod signals;
pub mod symbols;
pub mod tasks;
pub mod trial;
pub mod tty;
pub mod uapi;
pub mod wait;

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `_IOC(direction, type, number, size)` of `asm-generic/ioctl.h`.
pub const fn ioctl_command(direction: u32, kind: u32, number: u32, bytes: usize) -> u32 {
    assert!(bytes < 1 << 14);
    #[allow(clippy::cast_possible_truncation, reason = "asserted to fit 14 bits")]
    let bytes = bytes as u32;
    direction << 30 | bytes << 16 | kind << 8 | number
}

#[allow(
    clippy::cast_possible_wrap,
    clippy::unnecessary_cast,
    reason = "the kernel sees the bits of a command: an unsigned one in glibc, an `int` in musl"
)]
fn ioctl<T>(file: &File, command: u32, argument: *mut T, call: &str) -> Result<(), SysError> {
    // SAFETY: the command encodes the size of `T`; the driver reads and writes that many bytes at
    // the pointer, which comes from a live reference (or is null for commands without argument).
    let done = unsafe { libc::ioctl(file.as_raw_fd(), command as libc::Ioctl, argument) };
    if done < 0 { Err(SysError::last(call)) } else { Ok(()) }
}

/// Runs a driver's command whose argument is some words, which the driver may change. The words are
/// numbers: a command that takes addresses in them is not for this function.
///
/// # Panics
/// When the command has an argument of another size.
pub fn ioctl_words<const WORDS: usize>(
    file: &File,
    command: u32,
    words: &mut [u32; WORDS],
    call: &str,
) -> Result<(), SysError> {
    assert_eq!((command >> 16 & 0x3FFF) as usize, size_of_val(words), "{call}");
    ioctl(file, command, std::ptr::from_mut(words), call)
}

#[derive(Debug, thiserror::Error)]
#[error("{call}: {source}")]
pub struct SysError {
    pub call: String,
    pub source: io::Error,
}

pub(crate) fn failed<E: Into<io::Error>>(call: impl Into<String>) -> impl FnOnce(E) -> SysError {
    move |source| SysError { call: call.into(), source: source.into() }
}

impl SysError {
    fn last(call: impl Into<String>) -> Self {
        SysError { call: call.into(), source: io::Error::last_os_error() }
    }

    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }
}
