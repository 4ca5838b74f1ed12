//! `perf_event_open(2)`: counters of this process and its threads, and samples of one thread.
//!
//! Uses the raw system call, because daqmeter sets inheritance, scaling and exclusion itself.
//! Layout from `include/uapi/linux/perf_event.h` (PERF_ATTR_SIZE_VER5, 112 bytes, Linux 4.1 and
//! later).

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::SysError;
use crate::memory::Mapping;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub name: &'static str,
    kind: u32,
    config: u64,
}

const TYPE_HARDWARE: u32 = 0;
const TYPE_SOFTWARE: u32 = 1;
const SW_CPU_CLOCK: u64 = 0;

pub const EVENTS: &[Event] = &[
    Event { name: "cycles", kind: TYPE_HARDWARE, config: 0 },
    Event { name: "instructions", kind: TYPE_HARDWARE, config: 1 },
    Event { name: "cache-references", kind: TYPE_HARDWARE, config: 2 },
    Event { name: "cache-misses", kind: TYPE_HARDWARE, config: 3 },
    Event { name: "page-faults", kind: TYPE_SOFTWARE, config: 2 },
    Event { name: "context-switches", kind: TYPE_SOFTWARE, config: 3 },
    Event { name: "cpu-migrations", kind: TYPE_SOFTWARE, config: 4 },
];

/// `struct perf_event_attr` up to `config2`: `PERF_ATTR_SIZE_VER1`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Attr {
    pub(crate) kind: u32,
    pub(crate) size: u32,
    pub(crate) config: u64,
    pub(crate) sample_freq: u64,
    pub(crate) sample_type: u64,
    pub(crate) read_format: u64,
    pub(crate) flags: u64,
    pub(crate) wakeup: u32,
    pub(crate) bp_type: u32,
    pub(crate) config1: u64,
    pub(crate) config2: u64,
}
const _: () = assert!(size_of::<Attr>() == 72);

pub(crate) const FLAG_DISABLED: u64 = 1 << 0;
const FLAG_INHERIT: u64 = 1 << 1;
const FLAG_EXCLUDE_KERNEL: u64 = 1 << 5;
const FLAG_EXCLUDE_HV: u64 = 1 << 6;
const FLAG_FREQ: u64 = 1 << 10;
pub(crate) const READ_TOTAL_TIME_ENABLED: u64 = 1;
pub(crate) const READ_TOTAL_TIME_RUNNING: u64 = 2;
const SAMPLE_IP: u64 = 1;
pub(crate) const IOC_ENABLE: libc::c_ulong = 0x2400;
pub(crate) const IOC_DISABLE: libc::c_ulong = 0x2401;

/// Opens a counter of the calling thread on any CPU. Where perf_event_paranoid 2 allows user mode
/// only, it counts that; returns whether it sees the kernel.
fn open_allowed(attr: &mut Attr, call: &str) -> Result<(OwnedFd, bool), SysError> {
    let of_this_thread = (0, -1, -1);
    match open_at(attr, of_this_thread, call) {
        Err(error) if error.errno() == Some(libc::EACCES) => {
            attr.flags |= FLAG_EXCLUDE_KERNEL;
            Ok((open_at(attr, of_this_thread, call)?, false))
        }
        opened => Ok((opened?, true)),
    }
}

pub(crate) fn open_at(
    attr: &mut Attr,
    (pid, cpu, group): (i32, i32, i32),
    call: &str,
) -> Result<OwnedFd, SysError> {
    attr.size = 72;
    let cloexec: libc::c_ulong = 8;
    // SAFETY: `attr` is valid for its stated size; the kernel checks the other arguments.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, std::ptr::from_mut(attr), pid, cpu, group, cloexec)
    };
    match i32::try_from(fd) {
        // SAFETY: the descriptor was just created and is owned by nobody else.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(SysError::last(format!("perf_event_open {call}"))),
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    pub value: u64,
    pub enabled_ns: u64,
    pub running_ns: u64,
}

impl Reading {
    pub fn since(self, before: Reading) -> Reading {
        Reading {
            value: self.value.saturating_sub(before.value),
            enabled_ns: self.enabled_ns.saturating_sub(before.enabled_ns),
            running_ns: self.running_ns.saturating_sub(before.running_ns),
        }
    }

    /// Returns the share of time that it counted and the scaled count; `None` when it never ran.
    pub fn scaled(self) -> Option<(f64, f64)> {
        if self.running_ns == 0 {
            return (self.value == 0 && self.enabled_ns == 0).then_some((0.0, 1.0));
        }
        let share = self.running_ns as f64 / self.enabled_ns.max(1) as f64;
        Some((self.value as f64 / share, share.min(1.0)))
    }
}

pub trait OpenCounter: Send {
    /// Returns the counts since it was opened; `None` if the kernel did not give them.
    fn read(&mut self) -> Option<Reading>;
}

#[derive(Debug)]
struct KernelCounter {
    fd: OwnedFd,
}

/// Opens a counter of this thread and the threads that it starts, in user mode only where the
/// kernel's share may not be counted.
///
/// # Errors
/// The host has no such event, or forbids to count it.
pub fn open_counter(event: Event) -> Result<Box<dyn OpenCounter>, SysError> {
    let mut attr = Attr {
        kind: event.kind,
        config: event.config,
        read_format: READ_TOTAL_TIME_ENABLED | READ_TOTAL_TIME_RUNNING,
        flags: FLAG_INHERIT | FLAG_EXCLUDE_HV,
        ..Attr::default()
    };
    let (fd, _) = open_allowed(&mut attr, event.name)?;
    Ok(Box::new(KernelCounter { fd }))
}

impl OpenCounter for KernelCounter {
    fn read(&mut self) -> Option<Reading> {
        let mut words = [0_u64; 3];
        // SAFETY: the descriptor is open; `words` takes the 24 bytes of value, enabled and running.
        let read = unsafe {
            libc::read(self.fd.as_raw_fd(), words.as_mut_ptr().cast(), size_of_val(&words))
        };
        let [value, enabled_ns, running_ns] = words;
        (read == 24).then_some(Reading { value, enabled_ns, running_ns })
    }
}

/// Data pages of a sampler's ring: 512 KiB hold 32,768 samples, half a minute at 999 Hz.
const RING_PAGES: usize = 128;

/// Samples the instruction pointer of the thread that opened it by the kernel's CPU clock, which
/// works without a PMU.
#[derive(Debug)]
pub struct Sampler {
    fd: OwnedFd,
    /// Has one reader; `data_head` orders the kernel's writes.
    ring: Mapping,
    page_bytes: usize,
    /// False when only user mode could be sampled.
    pub sees_kernel: bool,
}

impl Sampler {
    /// Opens a sampler, stopped, for the calling thread.
    ///
    /// # Errors
    /// perf_event_paranoid above 2, or seccomp.
    pub fn of_this_thread(hertz: u64) -> Result<Sampler, SysError> {
        let mut attr = Attr {
            kind: TYPE_SOFTWARE,
            config: SW_CPU_CLOCK,
            sample_freq: hertz,
            sample_type: SAMPLE_IP,
            flags: FLAG_DISABLED | FLAG_FREQ | FLAG_EXCLUDE_HV,
            ..Attr::default()
        };
        let (fd, sees_kernel) = open_allowed(&mut attr, "cpu-clock samples")?;
        let page_bytes =
            usize::try_from(crate::host::page_bytes()).expect("a page fits the address space");
        let call = "map the sample ring (is kernel.perf_event_mlock_kb too small?)";
        let ring = Mapping::shared(fd.as_fd(), (1 + RING_PAGES) * page_bytes, call)?;
        Ok(Sampler { fd, ring, page_bytes, sees_kernel })
    }

    pub fn start(&self) {
        // SAFETY: the descriptor is open; the command takes no pointer.
        unsafe { libc::ioctl(self.fd.as_raw_fd(), IOC_ENABLE as libc::Ioctl, 0) };
    }

    /// Stops sampling. Returns the instruction pointers and the number of samples that found the
    /// ring full.
    pub fn stop(&mut self) -> (Vec<u64>, u64) {
        // SAFETY: as in `start`.
        unsafe { libc::ioctl(self.fd.as_raw_fd(), IOC_DISABLE as libc::Ioctl, 0) };
        self.drain()
    }

    fn drain(&mut self) -> (Vec<u64>, u64) {
        const RECORD_LOST: u32 = 2;
        const RECORD_SAMPLE: u32 = 9;
        let (head_at, tail_at) = (1024, 1032);
        // SAFETY: both words lie in the first mapped page, 8-byte aligned; the kernel accesses them
        // atomically.
        let (head, tail) = unsafe {
            (
                &*self.ring.start.as_ptr().add(head_at).cast::<AtomicU64>(),
                &*self.ring.start.as_ptr().add(tail_at).cast::<AtomicU64>(),
            )
        };
        // Pairs with the kernel's store-release of data_head (perf_event_mmap_page, "barrier").
        let end = head.load(Ordering::Acquire);
        let mut at = tail.load(Ordering::Relaxed);
        let (mut pointers, mut lost) = (Vec::new(), 0);
        while at < end {
            let header = self.word(at);
            let kind = (header & 0xFFFF_FFFF) as u32;
            let bytes = header >> 48;
            match kind {
                RECORD_SAMPLE => pointers.push(self.word(at + 8)),
                RECORD_LOST => lost += self.word(at + 16),
                _ => {}
            }
            if bytes == 0 {
                break;
            }
            at += bytes;
        }
        tail.store(end, Ordering::Release);
        (pointers, lost)
    }

    /// The 8 bytes at a ring position. Records are multiples of 8 bytes, so a word never wraps.
    fn word(&self, position: u64) -> u64 {
        let ring_bytes = (RING_PAGES * self.page_bytes) as u64;
        let offset = usize::try_from(position % ring_bytes).expect("below the ring's size");
        // SAFETY: the offset lies within the data pages; the kernel is done with everything below
        // data_head.
        unsafe {
            self.ring.start.as_ptr().add(self.page_bytes + offset).cast::<u64>().read_volatile()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_ran_half_the_time_is_doubled_and_says_so() {
        let reading = Reading { value: 50, enabled_ns: 100, running_ns: 50 };
        assert_eq!(reading.scaled(), Some((100.0, 0.5)));
        assert_eq!(Reading { value: 0, enabled_ns: 10, running_ns: 0 }.scaled(), None);
    }

    #[test]
    fn our_own_busy_loop_is_sampled_where_the_kernel_allows_it() {
        let mut sampler = match Sampler::of_this_thread(4000) {
            Ok(sampler) => sampler,
            Err(error) => return eprintln!("no sampling here: {error}"),
        };
        sampler.start();
        let before = crate::cpu_time::of_thread();
        let mut x = 1_u64;
        while crate::cpu_time::of_thread().user_ns < before.user_ns + 30_000_000 {
            for _ in 0..10_000 {
                x = std::hint::black_box(x.wrapping_mul(3));
            }
        }
        let (pointers, _) = sampler.stop();
        assert!(!pointers.is_empty());
    }
}
