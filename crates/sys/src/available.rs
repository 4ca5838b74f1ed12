//! Memory and threads that this process may still take: the least of host, control groups and
//! address space.
//!
//! Estimates are compared with it before any allocation: an excess is killed at first touch without
//! a message.

use std::time::Duration;

use crate::host::{Files, parse_kib};

/// Threshold of "no limit" in `memory.limit_in_bytes` (cgroup v1) and address-space limits.
const UNLIMITED: u64 = 1 << 60;

/// Bytes that this process may still allocate and touch; `None` if the kernel reports nothing.
pub fn memory_bytes() -> Option<u64> {
    if cfg!(miri) { None } else { memory_bytes_below(&Files::default()) }
}

pub(crate) fn memory_bytes_below(files: &Files) -> Option<u64> {
    let [v2, v1] = groups(files, "memory");
    let v2 = v2.iter().filter_map(|group| left_in(files, group, V2));
    let v1 = v1.iter().filter_map(|group| left_in(files, group, V1));
    let others = [host(files), address_space(files)].into_iter().flatten();
    others.chain(v2).chain(v1).min()
}

/// `MemAvailable` of /proc/meminfo (Documentation/filesystems/proc.rst).
fn host(files: &Files) -> Option<u64> {
    parse_kib(&files.field("proc/meminfo", "MemAvailable")?)
}

/// Files of a group: limit, usage, and the field of `memory.stat` with reclaimable page cache.
type GroupFiles = (&'static str, &'static str, &'static str);
const V2: GroupFiles = ("memory.max", "memory.current", "inactive_file");
const V1: GroupFiles = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file");

/// Memory that the limit of a group leaves; the tightest from our group up to the root counts
/// (Documentation/admin-guide/cgroup-v2.rst). Reclaimable page cache is free.
fn left_in(files: &Files, group: &str, (limit, usage, cache): GroupFiles) -> Option<u64> {
    let number = |name: &str| files.text(&format!("{group}/{name}"))?.parse::<u64>().ok();
    let limit = number(limit).filter(|&bytes| bytes < UNLIMITED)?;
    let stat = files.text(&format!("{group}/memory.stat")).unwrap_or_default();
    let cached = stat
        .lines()
        .find_map(|line| line.strip_prefix(cache)?.trim().parse::<u64>().ok())
        .unwrap_or(0);
    Some(limit.saturating_sub(number(usage)?.saturating_sub(cached)))
}

/// Folders of our group and of those above it: in version 2, and in the controller's own hierarchy
/// of version 1.
fn groups(files: &Files, controller: &str) -> [Vec<String>; 2] {
    let folders = |root: &str, own: Option<String>| {
        let all = own.as_deref().into_iter().flat_map(ancestors);
        all.map(|group| format!("{root}{group}")).collect()
    };
    let is_own = |controllers: &str| controllers.split(',').any(|name| name == controller);
    [
        folders("sys/fs/cgroup", own_group(files, str::is_empty)),
        folders(&format!("sys/fs/cgroup/{controller}"), own_group(files, is_own)),
    ]
}

/// Path of our group in the hierarchy whose controllers match, from `/proc/self/cgroup`
/// (`id:controllers:path`).
fn own_group(files: &Files, fits: impl Fn(&str) -> bool) -> Option<String> {
    files.text("proc/self/cgroup")?.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        fits(controllers).then(|| path.trim_end_matches('/').to_owned())
    })
}

/// Threads that this process may still start under the control groups (`pids.max`) and the kernel
/// (`threads-max`). `None` if neither reports a limit.
pub fn threads() -> Option<u64> {
    threads_below(&Files::default())
}

pub(crate) fn threads_below(files: &Files) -> Option<u64> {
    let number = |path: &str| files.text(path)?.parse::<u64>().ok();
    // Documentation/admin-guide/cgroup-v2.rst, "PID": threads count as processes do.
    let left_in = |group: &String| {
        let max = number(&format!("{group}/pids.max"))?;
        Some(max.saturating_sub(number(&format!("{group}/pids.current")).unwrap_or(0)))
    };
    let groups = groups(files, "pids");
    let left = groups.iter().flatten().filter_map(left_in);
    left.chain(number("proc/sys/kernel/threads-max")).min()
}

/// CPUs that this process may use, with fractions: [`crate::affinity::process_cpus`], limited by
/// the control groups' quotas. Sources: `cpu.max` of version 2, `cpu.cfs_quota_us` of version 1
/// (Documentation/scheduler/sched-bwc.rst).
pub fn cpus() -> f64 {
    let given = crate::affinity::process_cpus().len().max(1) as f64;
    cpu_quota(&Files::default()).map_or(given, |quota| quota.cpus.min(given))
}

/// CPU time that a control group gives in each period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuQuota {
    pub cpus: f64,
    pub period: Duration,
    /// File of the group that sets it.
    pub file: &'static str,
}

/// Returns the tightest quota of the control groups of this process, if any.
pub fn cpu_quota(files: &Files) -> Option<CpuQuota> {
    const V2: &str = "cpu.max";
    const V1: &str = "cpu.cfs_quota_us";
    let [v2, v1] = groups(files, "cpu");
    let text = |group: &String, name: &str| files.text(&format!("{group}/{name}"));
    let of_v2 = |group| CpuQuota::parse(&text(group, V2)?, V2);
    let of_v1 = |group| {
        let (quota, period) = (text(group, V1)?, text(group, "cpu.cfs_period_us")?);
        CpuQuota::parse(&format!("{quota} {period}"), V1)
    };
    let quotas = v2.iter().filter_map(of_v2).chain(v1.iter().filter_map(of_v1));
    quotas.min_by(|a, b| a.cpus.total_cmp(&b.cpus))
}

/// Time for which the control groups of this process were out of their CPU quota, of all CPUs
/// together; 0 without a quota. Source: `cpu.stat`, `throttled_usec` of version 2 and
/// `throttled_time` of version 1 (Documentation/scheduler/sched-bwc.rst).
pub fn throttled_ns(files: &Files) -> u64 {
    let of_group = |group: &String| {
        let text = files.text(&format!("{group}/cpu.stat"))?;
        let field =
            |name| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        let of_v2 = field("throttled_usec ").map(|us: u64| us.saturating_mul(1000));
        of_v2.or_else(|| field("throttled_time "))
    };
    groups(files, "cpu").iter().flatten().filter_map(of_group).max().unwrap_or(0)
}

impl CpuQuota {
    /// Reads microseconds: `150000 100000` is one and a half CPU; `max` and -1 are not limits.
    fn parse(text: &str, file: &'static str) -> Option<CpuQuota> {
        let (quota, period) = text.split_once(' ')?;
        let (quota_us, period_us): (u32, u32) = (quota.parse().ok()?, period.trim().parse().ok()?);
        let cpus = f64::from(quota_us) / f64::from(period_us);
        let period = Duration::from_micros(period_us.into());
        (quota_us > 0 && period_us > 0).then_some(CpuQuota { cpus, period, file })
    }
}

/// `/a/b` gives `/a/b`, `/a` and the root, as the empty text.
fn ancestors(group: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(group), |group| group.rfind('/').map(|at| &group[..at]))
}

fn address_space(files: &Files) -> Option<u64> {
    let limits = files.text("proc/self/limits")?;
    let soft = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max address space"))?
        .split_whitespace()
        .next()?;
    let limit = soft.parse::<u64>().ok().filter(|&bytes| bytes < UNLIMITED)?;
    Some(limit.saturating_sub(parse_kib(&files.field("proc/self/status", "VmSize")?)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::root_with;

    const MIB: u64 = 1 << 20;

    fn check(files: &[(&str, &str)], expected: Option<u64>) {
        let (_root, files) = root_with(files);
        assert_eq!(memory_bytes_below(&files), expected);
    }

    const HOST: (&str, &str) = ("proc/meminfo", "MemTotal: 4096 kB\nMemAvailable:    2097152 kB\n");

    #[test]
    fn the_host_alone_leaves_what_is_available() {
        check(&[], None);
        check(&[HOST], Some(2048 * MIB));
        check(
            &[HOST, ("proc/self/limits", "Max address space  unlimited  unlimited  bytes")],
            Some(2048 * MIB),
        );
    }

    #[test]
    fn the_tightest_group_on_the_way_to_the_root_counts_and_its_page_cache_is_free() {
        let own = ("proc/self/cgroup", "0::/a/b\n");
        let b = [
            ("sys/fs/cgroup/a/b/memory.max", "max"),
            ("sys/fs/cgroup/a/b/memory.current", "1048576"),
        ];
        let a = [
            ("sys/fs/cgroup/a/memory.max", "104857600"),
            ("sys/fs/cgroup/a/memory.current", "20971520"),
        ];
        let stat =
            ("sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 10485760\nactive_file 7\n");
        check(&[HOST, own, b[0], b[1], a[0], a[1]], Some(80 * MIB));
        check(&[HOST, own, b[0], b[1], a[0], a[1], stat], Some(90 * MIB));
    }

    #[test]
    fn the_tightest_quota_of_cpu_time_counts() {
        let quota = |files: &[(&str, &str)]| {
            let (_root, files) = root_with(files);
            cpu_quota(&files).map(|quota| (quota.cpus, quota.period.as_millis(), quota.file))
        };
        assert_eq!(quota(&[]), None);
        let own = ("proc/self/cgroup", "0::/a/b\n");
        let b = ("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
        let a = ("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
        assert_eq!(quota(&[own, b]), None);
        assert_eq!(quota(&[own, b, a]), Some((1.5, 100, "cpu.max")));
        let own = ("proc/self/cgroup", "5:cpu,cpuacct:/x\n");
        let limit = ("sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "50000\n");
        let period = ("sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n");
        assert_eq!(quota(&[own, limit, period]), Some((0.5, 100, "cpu.cfs_quota_us")));
        assert_eq!(quota(&[own, (limit.0, "-1\n"), period]), None);
    }

    #[test]
    fn version_one_of_the_groups_counts_too() {
        let own = ("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/x\n");
        let limit = ("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "52428800");
        let usage = ("sys/fs/cgroup/memory/x/memory.usage_in_bytes", "41943040");
        check(&[HOST, own, limit, usage], Some(10 * MIB));
        let none = ("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712");
        check(&[HOST, own, none, usage], Some(2048 * MIB));
    }

    #[test]
    fn an_address_space_limit_leaves_what_is_not_mapped_yet() {
        let limits = (
            "proc/self/limits",
            "Limit  Soft  Hard\nMax address space         1073741824  unlimited  bytes\n",
        );
        let status = ("proc/self/status", "Name: x\nVmSize:   524288 kB\n");
        check(&[HOST, limits, status], Some(512 * MIB));
    }

    #[test]
    fn the_tightest_limit_of_threads_counts() {
        let check = |files: &[(&str, &str)], expected: Option<u64>| {
            let (_root, files) = root_with(files);
            assert_eq!(threads_below(&files), expected);
        };
        let kernel = ("proc/sys/kernel/threads-max", "5000\n");
        let own = ("proc/self/cgroup", "7:pids:/x\n0::/a/b\n");
        check(&[], None);
        check(&[kernel, own], Some(5000));
        let v2 = [("sys/fs/cgroup/a/pids.max", "100\n"), ("sys/fs/cgroup/a/pids.current", "40\n")];
        check(&[kernel, own, v2[0], v2[1], ("sys/fs/cgroup/a/b/pids.max", "max\n")], Some(60));
        let v1 = [
            ("sys/fs/cgroup/pids/x/pids.max", "30\n"),
            ("sys/fs/cgroup/pids/x/pids.current", "31\n"),
        ];
        check(&[kernel, own, v2[0], v2[1], v1[0], v1[1]], Some(0));
    }
}
