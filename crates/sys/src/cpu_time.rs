//! CPU time of the calling thread, of this process and of the whole host.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// User and system time in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// In user mode.
    pub user_ns: u64,
    /// In the kernel.
    pub system_ns: u64,
    /// Page faults that needed no I/O.
    pub minor_faults: u64,
    /// Voluntary and involuntary context switches.
    pub context_switches: u64,
}

/// Usage of the calling thread so far.
pub fn of_thread() -> Usage {
    usage(libc::RUSAGE_THREAD)
}

/// Usage of the whole process so far, all threads.
pub fn of_process() -> Usage {
    usage(libc::RUSAGE_SELF)
}

#[allow(
    clippy::cast_sign_loss,
    reason = "the kernel's counters are not negative"
)]
fn usage(who: libc::c_int) -> Usage {
    // SAFETY: an all-zero rusage is valid.
    let mut raw: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `raw` is valid for writes; both constants are known to every Linux since 2.6.26.
    unsafe { libc::getrusage(who, &raw mut raw) };
    let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
    Usage {
        user_ns: ns(raw.ru_utime),
        system_ns: ns(raw.ru_stime),
        minor_faults: raw.ru_minflt as u64,
        context_switches: (raw.ru_nvcsw + raw.ru_nivcsw) as u64,
    }
}

/// The first line of `/proc/stat`, in nanoseconds (Documentation/filesystems/proc.rst, 1.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostTimes {
    /// User and nice.
    pub user_ns: u64,
    /// System.
    pub system_ns: u64,
    /// Idle.
    pub idle_ns: u64,
    /// Waiting for I/O.
    pub iowait_ns: u64,
    /// Interrupts.
    pub irq_ns: u64,
    /// Soft interrupts.
    pub softirq_ns: u64,
    /// Stolen by the hypervisor.
    pub steal_ns: u64,
}

impl HostTimes {
    /// What passed since an earlier reading. The kernel's counters may step back by a tick (idle and iowait do): that
    /// counts as zero.
    pub fn since(self, earlier: HostTimes) -> HostTimes {
        HostTimes {
            user_ns: self.user_ns.saturating_sub(earlier.user_ns),
            system_ns: self.system_ns.saturating_sub(earlier.system_ns),
            idle_ns: self.idle_ns.saturating_sub(earlier.idle_ns),
            iowait_ns: self.iowait_ns.saturating_sub(earlier.iowait_ns),
            irq_ns: self.irq_ns.saturating_sub(earlier.irq_ns),
            softirq_ns: self.softirq_ns.saturating_sub(earlier.softirq_ns),
            steal_ns: self.steal_ns.saturating_sub(earlier.steal_ns),
        }
    }
}

/// CPU times of the whole host below `root` (`/` outside tests). Zero where there is no `/proc/stat`.
pub fn of_host(root: &Path) -> HostTimes {
    let text = fs::read_to_string(root.join("proc/stat")).unwrap_or_default();
    parse_host(&text, ticks_per_second()).unwrap_or_default()
}

/// Time that the hypervisor took from each CPU so far, below `root` (`/` outside tests).
pub fn steal_by_cpu(root: &Path) -> BTreeMap<u32, u64> {
    let text = fs::read_to_string(root.join("proc/stat")).unwrap_or_default();
    parse_steal(&text, ticks_per_second())
}

fn parse_steal(text: &str, ticks_per_second: u64) -> BTreeMap<u32, u64> {
    let of_cpu = |line: &str| -> Option<(u32, u64)> {
        let mut fields = line.strip_prefix("cpu")?.split_whitespace();
        let cpu = fields.next()?.parse().ok()?;
        // user nice system idle iowait irq softirq steal
        let ticks: u64 = fields.nth(7)?.parse().ok()?;
        Some((cpu, ticks * (1_000_000_000 / ticks_per_second.max(1))))
    };
    // `cpu ` without a number is the sum.
    text.lines()
        .filter(|line| !line.starts_with("cpu "))
        .filter_map(of_cpu)
        .collect()
}

fn parse_host(text: &str, ticks_per_second: u64) -> Option<HostTimes> {
    let line = text.lines().find(|line| line.starts_with("cpu "))?;
    let ticks: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .map_while(|field| field.parse().ok())
        .collect();
    let ns =
        |at: usize| ticks.get(at).copied().unwrap_or(0) * (1_000_000_000 / ticks_per_second.max(1));
    Some(HostTimes {
        user_ns: ns(0) + ns(1),
        system_ns: ns(2),
        idle_ns: ns(3),
        iowait_ns: ns(4),
        irq_ns: ns(5),
        softirq_ns: ns(6),
        steal_ns: ns(7),
    })
}

fn ticks_per_second() -> u64 {
    // SAFETY: sysconf takes any name and cannot fault.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap_or(100)
}

/// CPU time of each living thread of this process, by `name/tid`, from `/proc/self/task/*/schedstat` (nanoseconds).
pub fn of_own_threads() -> BTreeMap<String, u64> {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else {
        return BTreeMap::new();
    };
    tasks
        .filter_map(|task| {
            let path = task.ok()?.path();
            let name = fs::read_to_string(path.join("comm")).ok()?;
            let run_ns = fs::read_to_string(path.join("schedstat"))
                .ok()?
                .split_whitespace()
                .next()?
                .parse()
                .ok()?;
            Some((
                format!("{}/{}", name.trim_end(), path.file_name()?.to_str()?),
                run_ns,
            ))
        })
        .collect()
}

/// Highest resident set of this process so far, in bytes (VmHWM).
pub fn peak_rss_bytes() -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = text.lines().find_map(|line| {
        line.strip_prefix("VmHWM:")?
            .split_whitespace()
            .next()?
            .parse::<u64>()
            .ok()
    });
    kib.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_line_is_read_field_by_field() {
        let times = parse_host("cpu  10 20 30 40 50 60 70 80 0 0\ncpu0 1 2 3\n", 100).unwrap();
        let expected = HostTimes {
            user_ns: 300_000_000,
            system_ns: 300_000_000,
            idle_ns: 400_000_000,
            iowait_ns: 500_000_000,
            irq_ns: 600_000_000,
            softirq_ns: 700_000_000,
            steal_ns: 800_000_000,
        };
        assert_eq!(times, expected);
        assert_eq!(times.since(times), HostTimes::default());
        assert_eq!(HostTimes::default().since(times), HostTimes::default());
    }

    #[test]
    fn stolen_time_is_read_for_each_cpu() {
        let text = "cpu  1 2 3 4 5 6 7 30 0 0\ncpu0 1 2 3 4 5 6 7 10 0 0\ncpu12 1 2 3 4 5 6 7 20 0 0\nintr 1\n";
        assert_eq!(
            parse_steal(text, 100),
            BTreeMap::from([(0, 100_000_000), (12, 200_000_000)])
        );
        assert_eq!(
            parse_steal("cpu0 1 2 3\nintr 5 5 5 5 5 5 5 5 5\n", 100),
            BTreeMap::new()
        );
    }

    #[test]
    fn a_foreign_stat_file_gives_nothing() {
        assert_eq!(parse_host("intr 1 2 3", 100), None);
        assert_eq!(parse_host("cpu  x y", 100), Some(HostTimes::default()));
    }

    #[test]
    fn work_shows_in_the_threads_usage() {
        let before = of_thread();
        let mut sum = 0_u64;
        while of_thread().user_ns + of_thread().system_ns == before.user_ns + before.system_ns {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(of_process().user_ns + of_process().system_ns > 0);
        assert!(of_own_threads().values().any(|&ns| ns > 0));
        assert!(peak_rss_bytes() > 0);
    }
}
