//! `perf_event_open(2)`: counters of this process and its threads, samples of one thread, and the
//! times at which any thread had a CPU.
//!
//! Uses the raw system call, because daqmeter sets inheritance, scaling and exclusion itself.
//! Layout from `include/uapi/linux/perf_event.h` (PERF_ATTR_SIZE_VER5, 112 bytes, Linux 4.1 and
//! later).

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::SysError;
use crate::memory::Mapping;
use crate::tasks::Task;

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

/// `struct perf_event_attr` up to `clockid`: `PERF_ATTR_SIZE_VER3`.
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
    pub(crate) branches: u64,
    pub(crate) user_registers: u64,
    pub(crate) user_stack: u32,
    pub(crate) clock: i32,
}
const _: () = assert!(size_of::<Attr>() == 96);

pub(crate) const FLAG_DISABLED: u64 = 1 << 0;
const FLAG_INHERIT: u64 = 1 << 1;
const FLAG_EXCLUDE_KERNEL: u64 = 1 << 5;
const FLAG_EXCLUDE_HV: u64 = 1 << 6;
const FLAG_FREQ: u64 = 1 << 10;
const FLAG_USE_CLOCK: u64 = 1 << 25;
pub(crate) const READ_TOTAL_TIME_ENABLED: u64 = 1;
pub(crate) const READ_TOTAL_TIME_RUNNING: u64 = 2;
const SAMPLE_IP: u64 = 1;
pub(crate) const IOC_ENABLE: libc::c_ulong = 0x2400;
pub(crate) const IOC_DISABLE: libc::c_ulong = 0x2401;

/// Opens a counter of a thread, 0 for the calling one, on any CPU. Where perf_event_paranoid 2
/// allows user mode only, it counts that; returns whether it sees the kernel.
fn open_allowed(attr: &mut Attr, thread: i32, call: &str) -> Result<(OwnedFd, bool), SysError> {
    let on_any_cpu = (thread, -1, -1);
    match open_at(attr, on_any_cpu, call) {
        Err(error) if error.errno() == Some(libc::EACCES) => {
            attr.flags |= FLAG_EXCLUDE_KERNEL;
            Ok((open_at(attr, on_any_cpu, call)?, false))
        }
        opened => Ok((opened?, true)),
    }
}

pub(crate) fn open_at(
    attr: &mut Attr,
    (pid, cpu, group): (i32, i32, i32),
    call: &str,
) -> Result<OwnedFd, SysError> {
    attr.size = 96;
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
    let (fd, _) = open_allowed(&mut attr, 0, event.name)?;
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
const SAMPLE_PAGES: usize = 128;
/// Data pages of a switch log: 128 KiB hold 8,192 switches, those of 10 ms of a thread that sleeps
/// before each of 400,000 packets a second; and where kernel.perf_event_mlock_kb leaves no more.
const SWITCH_PAGES: [usize; 2] = [32, 4];
/// Data pages of the samples of a CPU: 128 KiB hold 372 with 40 callers each.
const CPU_PAGES: usize = 32;

/// RecordRing of records that the kernel writes (`perf_event_mmap_page`).
#[derive(Debug)]
struct RecordRing {
    /// Has one reader; `data_head` orders the kernel's writes.
    mapping: Mapping,
    page_bytes: usize,
    pages: usize,
}

impl RecordRing {
    fn of(fd: &OwnedFd, pages: usize) -> Result<RecordRing, SysError> {
        let page_bytes =
            usize::try_from(crate::host::page_bytes()).expect("a page fits the address space");
        let call = "map the sample ring (is kernel.perf_event_mlock_kb too small?)";
        let mapping = Mapping::shared(fd.as_fd(), (1 + pages) * page_bytes, call)?;
        Ok(RecordRing { mapping, page_bytes, pages })
    }

    /// Passes on the kind, the flags and the position of each record's first word.
    fn drain(&mut self, mut each: impl FnMut(&RecordRing, (u32, u16), u64)) {
        let (head_at, tail_at) = (1024, 1032);
        // SAFETY: both words lie in the first mapped page, 8-byte aligned; the kernel accesses them
        // atomically.
        let (head, tail) = unsafe {
            (
                &*self.mapping.start.as_ptr().add(head_at).cast::<AtomicU64>(),
                &*self.mapping.start.as_ptr().add(tail_at).cast::<AtomicU64>(),
            )
        };
        // Pairs with the kernel's store-release of data_head (perf_event_mmap_page, "barrier").
        let end = head.load(Ordering::Acquire);
        let mut at = tail.load(Ordering::Relaxed);
        while at < end {
            let header = self.word(at);
            let bytes = header >> 48;
            each(self, ((header & 0xFFFF_FFFF) as u32, (header >> 32 & 0xFFFF) as u16), at + 8);
            if bytes == 0 {
                break;
            }
            at += bytes;
        }
        tail.store(end, Ordering::Release);
    }

    /// The 8 bytes at a ring position. Records are multiples of 8 bytes, so a word never wraps.
    fn word(&self, position: u64) -> u64 {
        let ring_bytes = (self.pages * self.page_bytes) as u64;
        let offset = usize::try_from(position % ring_bytes).expect("below the ring's size");
        // SAFETY: the offset lies within the data pages; the kernel is done with everything below
        // data_head.
        unsafe {
            self.mapping.start.as_ptr().add(self.page_bytes + offset).cast::<u64>().read_volatile()
        }
    }
}

const RECORD_LOST: u32 = 2;
const RECORD_SAMPLE: u32 = 9;
const RECORD_SWITCH: u32 = 14;

/// Samples the instruction pointer of the thread that opened it by the kernel's CPU clock, which
/// works without a PMU.
#[derive(Debug)]
pub struct Sampler {
    fd: OwnedFd,
    ring: RecordRing,
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
        let (fd, sees_kernel) = open_allowed(&mut attr, 0, "cpu-clock samples")?;
        let ring = RecordRing::of(&fd, SAMPLE_PAGES)?;
        Ok(Sampler { fd, ring, sees_kernel })
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
        let (mut pointers, mut lost) = (Vec::new(), 0);
        self.ring.drain(|ring, (kind, _), at| match kind {
            RECORD_SAMPLE => pointers.push(ring.word(at)),
            RECORD_LOST => lost += ring.word(at + 8),
            _ => {}
        });
        (pointers, lost)
    }
}

/// Samples of what a CPU runs.
#[derive(Debug)]
pub struct CpuSampler {
    /// Keeps the event.
    _fd: OwnedFd,
    ring: RecordRing,
}

/// Activity of a CPU at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuSample {
    /// `CLOCK_MONOTONIC`.
    pub at_ns: u64,
    /// Process 0 is an idle CPU.
    pub task: Task,
    /// The kernel was in the function that was asked for, or in one that it called.
    pub is_inside: bool,
}

impl CpuSampler {
    /// Samples in a second.
    pub const HERTZ: u32 = 999;

    /// Begins to sample a CPU.
    ///
    /// # Errors
    /// perf_event_paranoid above 0 without CAP_PERFMON, seccomp, or a CPU that is offline.
    pub fn of_cpu(cpu: u32) -> Result<CpuSampler, SysError> {
        const SAMPLE_TASK_TIME_AND_CALLERS: u64 = 1 << 1 | 1 << 2 | 1 << 5;
        const FLAG_WITHOUT_CALLERS_IN_USER_MODE: u64 = 1 << 22;
        let mut attr = Attr {
            kind: TYPE_SOFTWARE,
            config: SW_CPU_CLOCK,
            sample_freq: CpuSampler::HERTZ.into(),
            sample_type: SAMPLE_TASK_TIME_AND_CALLERS,
            flags: FLAG_FREQ | FLAG_EXCLUDE_HV | FLAG_USE_CLOCK | FLAG_WITHOUT_CALLERS_IN_USER_MODE,
            clock: libc::CLOCK_MONOTONIC,
            ..Attr::default()
        };
        let place = i32::try_from(cpu).unwrap_or(i32::MAX);
        let fd = open_at(&mut attr, (-1, place, -1), "samples of a CPU")?;
        let ring = RecordRing::of(&fd, CPU_PAGES)?;
        Ok(CpuSampler { _fd: fd, ring })
    }

    /// Passes on the samples since the last call, with the addresses of a function that is looked
    /// for. Returns how many found the ring full.
    pub fn read(&mut self, function: &Range<u64>, mut each: impl FnMut(CpuSample)) -> u64 {
        /// Bounds what the kernel makes us read (kernel.perf_event_max_stack is 127).
        const MAX_CALLERS: u64 = 512;
        let mut lost = 0;
        self.ring.drain(|ring, (kind, _), at| match kind {
            RECORD_SAMPLE => {
                let task = ring.word(at);
                let task = Task { pid: (task & 0xFFFF_FFFF) as u32, tid: (task >> 32) as u32 };
                let callers = ring.word(at + 16).min(MAX_CALLERS);
                let mut callers = (0..callers).map(|n| ring.word(at + 24 + 8 * n));
                let is_inside = callers.any(|address| function.contains(&address));
                each(CpuSample { at_ns: ring.word(at + 8), task, is_inside });
            }
            RECORD_LOST => lost += ring.word(at + 8),
            _ => {}
        });
        lost
    }
}

/// Log of the times at which a thread got a CPU and left it (`PERF_RECORD_SWITCH`, Linux 4.3).
#[derive(Debug)]
pub struct SwitchLog {
    /// Keeps the event.
    _fd: OwnedFd,
    ring: RecordRing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    /// `CLOCK_MONOTONIC`.
    pub at_ns: u64,
    /// The thread got a CPU; otherwise it left one.
    pub is_in: bool,
}

impl SwitchLog {
    /// Opens the log of a thread of any process.
    ///
    /// # Errors
    /// The thread ended, or is another user's; perf_event_paranoid above 2, or seccomp.
    pub fn of_thread(tid: u32) -> Result<SwitchLog, SysError> {
        const SW_DUMMY: u64 = 9;
        const SAMPLE_TIME: u64 = 1 << 2;
        const FLAG_SAMPLE_ID_ALL: u64 = 1 << 18;
        const FLAG_CONTEXT_SWITCH: u64 = 1 << 26;
        let mut attr = Attr {
            kind: TYPE_SOFTWARE,
            config: SW_DUMMY,
            sample_type: SAMPLE_TIME,
            flags: FLAG_SAMPLE_ID_ALL | FLAG_USE_CLOCK | FLAG_CONTEXT_SWITCH,
            clock: libc::CLOCK_MONOTONIC,
            ..Attr::default()
        };
        let thread = i32::try_from(tid).unwrap_or(i32::MAX);
        let (fd, _) = open_allowed(&mut attr, thread, "switches of a thread")?;
        let [many, few] = SWITCH_PAGES;
        let ring = RecordRing::of(&fd, many).or_else(|_| RecordRing::of(&fd, few))?;
        Ok(SwitchLog { _fd: fd, ring })
    }

    /// Passes on the switches since the last call. Returns how many found the ring full.
    pub fn read(&mut self, mut each: impl FnMut(Switch)) -> u64 {
        const OUT: u16 = 1 << 13;
        let mut lost = 0;
        self.ring.drain(|ring, (kind, flags), at| match kind {
            RECORD_SWITCH => each(Switch { at_ns: ring.word(at), is_in: flags & OUT == 0 }),
            RECORD_LOST => lost += ring.word(at + 8),
            _ => {}
        });
        lost
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

    #[test]
    fn the_switches_of_a_sleeping_thread_are_logged() {
        // SAFETY: the call takes no argument.
        let tid = u32::try_from(unsafe { libc::gettid() }).unwrap();
        let mut log = match SwitchLog::of_thread(tid) {
            Ok(log) => log,
            Err(error) => return eprintln!("no switches here: {error}"),
        };
        let begin = crate::clock::monotonic_ns();
        crate::wait::sleep_until(begin + 5_000_000);
        let end = crate::clock::monotonic_ns();
        let mut switches = Vec::new();
        assert_eq!(log.read(|switch| switches.push(switch)), 0);
        let slept = switches.iter().find(|one| !one.is_in).unwrap();
        let woken = switches.iter().rfind(|one| one.is_in).unwrap();
        assert!(slept.at_ns >= begin && woken.at_ns <= end && woken.at_ns > slept.at_ns);
        assert!(SwitchLog::of_thread(u32::MAX).is_err());
    }
}
