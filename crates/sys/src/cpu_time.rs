//! CPU time of the calling thread, of this process and of the whole host.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;

use crate::clock::thread_cpu_ns;
use crate::host::{Files, parse_kib};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub user_ns: u64,
    pub system_ns: u64,
    /// Page faults that needed no I/O.
    pub minor_faults: u64,
    pub context_switches: u64,
    /// Involuntary context switches: the scheduler ran another task.
    pub preemptions: u64,
}

/// Least mean time between two readings of [`of_thread`] whose difference is a result. A reading
/// takes 0.9 us in a virtual machine on an EPYC, so that it is at most 5 % of the time.
pub const MIN_SPAN_NS: u64 = 20_000;

/// Usage of the calling thread. Its CPU time is that of `CLOCK_THREAD_CPUTIME_ID`: getrusage
/// alone is up to a tick behind for a thread that runs. Ticks divide it into user and system.
pub fn of_thread() -> Usage {
    let cpu_ns = thread_cpu_ns();
    let usage = usage(libc::RUSAGE_THREAD);
    let system_ns = usage.system_ns.min(cpu_ns);
    Usage { user_ns: cpu_ns - system_ns, system_ns, ..usage }
}

pub fn of_process() -> Usage {
    usage(libc::RUSAGE_SELF)
}

/// CPU time of child processes that ended and were waited for.
pub fn of_children_ns() -> u64 {
    let Usage { user_ns, system_ns, .. } = usage(libc::RUSAGE_CHILDREN);
    user_ns.saturating_add(system_ns)
}

/// CPU time of one thread, and the time for which it was ready to run but had no CPU.
#[derive(Debug)]
pub struct ThreadTimes {
    schedstat: Option<fs::File>,
}

impl ThreadTimes {
    /// Opens the file of the calling thread.
    pub fn of_this_thread() -> ThreadTimes {
        let schedstat = fs::File::open("/proc/thread-self/schedstat").ok();
        ThreadTimes { schedstat }
    }

    /// Time on the run queue in nanoseconds (Documentation/scheduler/sched-stats.rst, second
    /// field); `None` if the kernel does not count it.
    pub fn delay_ns(&self) -> Option<u64> {
        self.both_ns().map(|(_, delay_ns)| delay_ns)
    }

    /// Time on a CPU, and time on the run queue, in nanoseconds.
    pub fn both_ns(&self) -> Option<(u64, u64)> {
        let mut text = [0; 96];
        let bytes = self.schedstat.as_ref()?.read_at(&mut text, 0).ok()?;
        parse_both(&text[..bytes])
    }
}

fn parse_both(text: &[u8]) -> Option<(u64, u64)> {
    let mut fields = std::str::from_utf8(text).ok()?.split_whitespace();
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

fn usage(who: libc::c_int) -> Usage {
    // SAFETY: an all-zero rusage is valid.
    let mut raw: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `raw` is valid for writes; both constants are known to every Linux since 2.6.26.
    unsafe { libc::getrusage(who, &raw mut raw) };
    // The kernel's counters are not negative.
    let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
    Usage {
        user_ns: ns(raw.ru_utime),
        system_ns: ns(raw.ru_stime),
        minor_faults: raw.ru_minflt as u64,
        context_switches: (raw.ru_nvcsw + raw.ru_nivcsw) as u64,
        preemptions: raw.ru_nivcsw as u64,
    }
}

/// A line of `/proc/stat` in nanoseconds (Documentation/filesystems/proc.rst, 1.7): user with nice,
/// system, idle, iowait, irq, softirq and steal time.
pub type StatTimes = [u64; 7];

/// Times of the host (`None`) and of each CPU; empty if they cannot be read.
pub fn of_host() -> BTreeMap<Option<u32>, StatTimes> {
    parse_stat(&fs::read_to_string("/proc/stat").unwrap_or_default(), ns_per_tick())
}

fn parse_stat(text: &str, ns_per_tick: u64) -> BTreeMap<Option<u32>, StatTimes> {
    let of_line = |line: &str| {
        let (cpu, ticks) = line.strip_prefix("cpu")?.split_once(' ')?;
        let ticks = ticks.split_whitespace().map_while(|field| field.parse::<u64>().ok());
        let ns: Vec<u64> = ticks.map(|ticks| ticks.saturating_mul(ns_per_tick)).collect();
        let [user, nice, system, idle, iowait, irq, softirq, steal, ..] = ns[..] else {
            return None;
        };
        // `cpu` without a number is the sum.
        let cpu = if cpu.is_empty() { None } else { Some(cpu.parse().ok()?) };
        Some((cpu, [user.saturating_add(nice), system, idle, iowait, irq, softirq, steal]))
    };
    text.lines().filter_map(of_line).collect()
}

pub(crate) fn ns_per_tick() -> u64 {
    1_000_000_000 / rustix::param::clock_ticks_per_second().max(1)
}

/// CPU time of each living thread of this process, by `name/tid`, from
/// `/proc/self/task/*/schedstat` (nanoseconds).
pub fn of_own_threads() -> BTreeMap<String, u64> {
    let files = Files::below("/proc/self/task");
    let of_thread = |tid: String| {
        let name = files.text(&format!("{tid}/comm"))?;
        let times = files.text(&format!("{tid}/schedstat"))?;
        Some((format!("{name}/{tid}"), times.split_whitespace().next()?.parse().ok()?))
    };
    files.names("").into_iter().filter_map(of_thread).collect()
}

/// Highest resident set of this process in bytes (VmHWM).
pub fn peak_rss_bytes() -> Option<u64> {
    parse_kib(&Files::default().field("proc/self/status", "VmHWM")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_of_the_host_and_of_each_cpu_are_read_field_by_field() {
        let text = "cpu  10 20 30 40 50 60 70 80 0 0\ncpu0 1 2 3 4 5 6 7 10 0 0\ncpu12 1 2 3 4 5 6 7 20 0 0\nintr 1\n";
        let times = |tenths: StatTimes| tenths.map(|tenth| tenth * 100_000_000);
        let expected = [
            (None, times([3, 3, 4, 5, 6, 7, 8].map(|tenth| tenth * 10))),
            (Some(0), times([3, 3, 4, 5, 6, 7, 10])),
            (Some(12), times([3, 3, 4, 5, 6, 7, 20])),
        ];
        assert_eq!(parse_stat(text, 100_000_000), BTreeMap::from(expected));
        for foreign in ["cpu0 1 2 3\nintr 5 5 5 5 5 5 5 5 5\n", "cpu  x y", "cpux 1 2 3 4 5 6 7 8"]
        {
            assert_eq!(parse_stat(foreign, 1), BTreeMap::new());
        }
    }

    #[test]
    fn the_times_are_the_first_two_fields() {
        assert_eq!(parse_both(b"17 42 3\n"), Some((17, 42)));
        assert_eq!(parse_both(b"17"), None);
        assert_eq!(parse_both(b"0 x 0"), None);
    }

    /// getrusage alone shows 0 or a whole tick of the kernel, 1 to 10 ms.
    #[test]
    fn work_shows_in_the_threads_usage_between_ticks() {
        let used_ns = || of_thread().user_ns + of_thread().system_ns;
        for _ in 0..10 {
            let (used, cpu_ns) = (used_ns(), thread_cpu_ns());
            while thread_cpu_ns() < cpu_ns + 200_000 {}
            let more_ns = used_ns() - used;
            assert!((200_000..500_000).contains(&more_ns), "{more_ns}");
        }
        assert!(of_process().user_ns + of_process().system_ns > 0);
        assert!(of_own_threads().values().any(|&ns| ns > 0));
        assert!(peak_rss_bytes().unwrap() > 0);
    }
}
