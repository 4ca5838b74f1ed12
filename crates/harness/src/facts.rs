//! Facts that all points of one invocation share: the tool, the host, the clock, the noise.

use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use daqmeter_record::groups::counted;
use daqmeter_record::host::{Cache, HugePages, NumaNode};
use daqmeter_record::units::parse_bytes;
use daqmeter_record::{Clock, EngineInfo, Host, RunRecord, Start, Tool, Workload};
use daqmeter_stats as stats;
use daqmeter_sys::available::cpu_quota;
use daqmeter_sys::host::{Files, bracketed, memory_bytes, page_bytes, parse_cpu_list, parse_kib};
use daqmeter_sys::{affinity, clock, probe};

use crate::NullRequest;
use crate::cpu_model::cpu_model;
use crate::devices::{self, CardFamily};

#[derive(Clone, Debug, Default)]
pub struct Context {
    pub tool: Tool,
    pub command: String,
    pub run_id: String,
    /// Start of the run, where a time was asked for.
    pub start: Option<Start>,
    pub host: Arc<Host>,
    pub clock: Clock,
}

impl Context {
    pub fn blank_record(&self, engine: EngineInfo, workload: Workload) -> RunRecord {
        let mut record = RunRecord::new(engine, workload);
        record.tool = self.tool.clone();
        record.time_utc = utc_now();
        record.run_id = self.run_id.clone();
        record.start = self.start.clone();
        record.command = self.command.clone();
        record.clock = self.clock.clone();
        record.host = self.host.clone();
        record
    }

    /// Reads the host with its cards of these families, and measures the clock.
    pub fn gather(
        tool: Tool,
        command: String,
        isa: Vec<String>,
        families: impl Iterator<Item = CardFamily>,
    ) -> Context {
        let files = Files::default();
        let mut host = host_facts(&files, isa);
        host.devices.extend(families.flat_map(|family| family.found(&files)));
        let (resolution_ns, overhead_ns) = clock::measure();
        let clock = Clock {
            source: format!("CLOCK_MONOTONIC ({})", host.clocksource),
            resolution_ns,
            overhead_ns,
            tool_ns_per_op: tool_ns_per_op(),
            chain_cycles: if probe::counts_cycles() { probe::CHAIN_CYCLES } else { 0 },
        };
        let run_id = format!("{}-{}", utc_now().replace([':', '-'], ""), std::process::id());
        Context { tool, command, run_id, start: None, host: Arc::new(host), clock }
    }
}

/// Returns the size of the largest last-level cache of this host, read once; zero if unknown.
pub fn last_level_cache_bytes() -> u64 {
    static BYTES: LazyLock<u64> = LazyLock::new(|| {
        let files = Files::default();
        let caches = caches(&files, &online_cpus(&files));
        Host { caches, ..Host::default() }.last_level_cache_bytes()
    });
    *BYTES
}

/// Returns the UTC time, RFC 3339 with milliseconds.
pub fn utc_now() -> String {
    utc_after_1970(since_1970())
}

/// Returns the UTC time, RFC 3339 with microseconds.
pub fn utc_now_us() -> String {
    humantime::format_rfc3339_micros(after_1970(since_1970())).to_string()
}

/// Reads a UTC time, RFC 3339, as the time after the begin of 1970.
pub fn after_1970_of(utc: &str) -> Option<Duration> {
    humantime::parse_rfc3339(utc).ok()?.duration_since(SystemTime::UNIX_EPOCH).ok()
}

/// Returns the UTC time so long after the begin of 1970, RFC 3339 with milliseconds.
pub fn utc_after_1970(since: Duration) -> String {
    humantime::format_rfc3339_millis(after_1970(since)).to_string()
}

/// Returns the time after the begin of 1970 by the wall clock.
pub fn since_1970() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

fn after_1970(since: Duration) -> SystemTime {
    const MAX: Duration = Duration::from_secs(253_402_300_799);
    SystemTime::UNIX_EPOCH + since.min(MAX)
}

/// Returns the cost of the step loop per operation: the median of 31 samples of the null engine,
/// about a millisecond in all.
fn tool_ns_per_op() -> f64 {
    const OPERATIONS: u64 = 50_000;
    let mut null = NullRequest::session();
    let mut sample = || {
        let begin = clock::monotonic_ns();
        null.step(0, OPERATIONS).expect("null never fails");
        (clock::monotonic_ns() - begin) as f64 / OPERATIONS as f64
    };
    let samples: Vec<f64> = (0..31).map(|_| sample()).collect();
    stats::median(&samples).expect("31 samples")
}

const CLOCKSOURCE: &str = "sys/devices/system/clocksource/clocksource0/current_clocksource";

pub fn host_facts(files: &Files, isa: Vec<String>) -> Host {
    let cpus = online_cpus(files);
    let text = |path: &str, otherwise: &str| files.text(path).unwrap_or(otherwise.to_owned());
    let topology = |cpu: u32, what: &str| {
        files.text(&format!("sys/devices/system/cpu/cpu{cpu}/topology/{what}"))
    };
    let distinct = |mut ids: Vec<String>| {
        ids.sort();
        ids.dedup();
        u32::try_from(ids.len()).unwrap_or(u32::MAX).max(1)
    };
    let sockets = cpus.iter().filter_map(|&cpu| topology(cpu, "physical_package_id")).collect();
    let core = |&cpu: &u32| {
        topology(cpu, "core_cpus_list").or_else(|| topology(cpu, "thread_siblings_list"))
    };
    let cores: Vec<String> = cpus.iter().filter_map(core).collect();
    let memory = files.field("proc/meminfo", "MemTotal").and_then(|kib| parse_kib(&kib));
    let unread_memory = || if is_here(files) { memory_bytes() } else { 0 };
    let kernel = ["osrelease", "version"].map(|it| text(&format!("proc/sys/kernel/{it}"), ""));
    let huge_pages_mode = text("sys/kernel/mm/transparent_hugepage/enabled", "");
    Host {
        name: text("proc/sys/kernel/hostname", ""),
        cpu_model: cpu_model(files),
        architecture: std::env::consts::ARCH.to_owned(),
        isa,
        logical_cpus: u32::try_from(cpus.len()).unwrap_or(u32::MAX),
        siblings: siblings(&cores),
        slower_cpus: slower_cpus(files, &cpus),
        cores: distinct(cores),
        sockets: distinct(sockets),
        numa: numa_nodes(files),
        caches: caches(files, &cpus),
        governor: files.text("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        kernel: kernel.join(" ").trim().to_owned(),
        mitigations: mitigations(files),
        hypervisor: hypervisor(files),
        memory_bytes: memory.unwrap_or_else(unread_memory),
        page_bytes: page_bytes(),
        transparent_huge_pages: bracketed(&huge_pages_mode).unwrap_or("absent").to_owned(),
        huge_pages: huge_pages(files),
        congestion_control: text("proc/sys/net/ipv4/tcp_congestion_control", ""),
        clocksource: text(CLOCKSOURCE, "unknown"),
        allowed_cpus: affinity::allowed_cpus().unwrap_or_default(),
        cgroup_cpu_quota: cpu_quota(files).map(|quota| format!("{:.2}", quota.cpus)),
        devices: devices::devices(files),
    }
}

fn numa_nodes(files: &Files) -> Vec<NumaNode> {
    let nodes = files.names("sys/devices/system/node");
    let numbers = nodes.iter().filter_map(|name| name.strip_prefix("node")?.parse::<u32>().ok());
    numbers
        .map(|node| {
            let list = files.text(&format!("sys/devices/system/node/node{node}/cpulist"));
            NumaNode { node, cpus: parse_cpu_list(&list.unwrap_or_default()) }
        })
        .collect()
}

fn siblings(cores: &[String]) -> Vec<Vec<u32>> {
    let cores = cores.iter().map(|list| parse_cpu_list(list));
    let mut cores: Vec<Vec<u32>> = cores.filter(|cpus| cpus.len() > 1).collect();
    cores.sort();
    cores.dedup();
    cores
}

/// Returns the CPUs of slower cores: AArch64 states a capacity for each CPU, x86 a PMU for each
/// kind of core.
fn slower_cpus(files: &Files, cpus: &[u32]) -> Vec<u32> {
    let list = |kind: &str| files.text(&format!("sys/devices/{kind}/cpus")).unwrap_or_default();
    let of_kind = |kind: &str| parse_cpu_list(&list(kind));
    if !of_kind("cpu_core").is_empty() {
        let slower = [of_kind("cpu_atom"), of_kind("cpu_lowpower")].concat();
        return slower.into_iter().filter(|cpu| cpus.contains(cpu)).collect();
    }
    let with_capacity = |&cpu: &u32| -> Option<(u64, u32)> {
        let text = files.text(&format!("sys/devices/system/cpu/cpu{cpu}/cpu_capacity"));
        Some((text?.parse().ok()?, cpu))
    };
    let all: Vec<(u64, u32)> = cpus.iter().filter_map(with_capacity).collect();
    let fastest = all.iter().map(|(capacity, _)| *capacity).max();
    all.into_iter().filter(|(own, _)| Some(*own) < fastest).map(|(_, cpu)| cpu).collect()
}

fn online_cpus(files: &Files) -> Vec<u32> {
    match files.text("sys/devices/system/cpu/online") {
        None if is_here(files) => affinity::allowed_cpus().unwrap_or_default(),
        list => parse_cpu_list(&list.unwrap_or_default()),
    }
}

/// Tests if these are the files of this host, so that system calls know of it, too.
fn is_here(files: &Files) -> bool {
    files.root() == Path::new("/")
}

/// Returns the caches of all CPUs: a shared cache is one, and equal ones are counted.
fn caches(files: &Files, cpus: &[u32]) -> Vec<Cache> {
    let of_cpu = |cpu: &u32| {
        let directory = format!("sys/devices/system/cpu/cpu{cpu}/cache");
        let indices = files.names(&directory).into_iter();
        indices.filter_map(move |index| cache(files, &format!("{directory}/{index}")))
    };
    let each = counted(cpus.iter().flat_map(of_cpu)).into_iter();
    let alike = counted(each.map(|((cache, _), _)| cache)).into_iter();
    let count = |number| u32::try_from(number).unwrap_or(u32::MAX);
    alike.map(|(cache, number)| Cache { count: count(number), ..cache }).collect()
}

fn cache(files: &Files, directory: &str) -> Option<(Cache, Vec<u32>)> {
    let field = |name: &str| files.text(&format!("{directory}/{name}"));
    let shared = parse_cpu_list(&field("shared_cpu_list")?);
    let cache = Cache {
        level: field("level")?.parse().ok()?,
        kind: field("type")?,
        bytes: parse_bytes(&field("size")?).ok()?,
        shared_by: u32::try_from(shared.len()).ok()?,
        count: 1,
    };
    Some((cache, shared))
}

fn mitigations(files: &Files) -> Vec<String> {
    let directory = "sys/devices/system/cpu/vulnerabilities";
    let state = |name: &String| Some((name.clone(), files.text(&format!("{directory}/{name}"))?));
    let relevant = |(name, state): (String, String)| {
        (state != "Not affected").then(|| format!("{name}: {state}"))
    };
    files.names(directory).iter().filter_map(state).filter_map(relevant).collect()
}

fn hypervisor(files: &Files) -> Option<String> {
    let flags = files.field("proc/cpuinfo", "flags").unwrap_or_default();
    let vendor = ["sys_vendor", "product_name"]
        .iter()
        .filter_map(|what| files.text(&format!("sys/class/dmi/id/{what}")))
        .collect::<Vec<_>>()
        .join(" ");
    let is_virtual = flags.split(' ').any(|flag| flag == "hypervisor")
        || files.text("sys/hypervisor/type").is_some();
    is_virtual.then(|| if vendor.is_empty() { "yes (vendor unknown)".to_owned() } else { vendor })
}

fn huge_pages(files: &Files) -> Vec<HugePages> {
    let directory = "sys/kernel/mm/hugepages";
    let read = |name: &str| -> Option<HugePages> {
        let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let count = |what: &str| files.text(&format!("{directory}/{name}/{what}"))?.parse().ok();
        Some(HugePages {
            page_bytes: kib * 1024,
            total: count("nr_hugepages")?,
            free: count("free_hugepages")?,
        })
    };
    files.names(directory).iter().filter_map(|name| read(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::root;

    /// CPUs as in sysfs: the package, core list and NUMA node of each.
    struct Shown {
        packages: &'static str,
        cores: &'static str,
        nodes: &'static str,
        caches: &'static [(u32, &'static str, &'static str, &'static str)],
        more: &'static [(&'static str, &'static str)],
    }

    impl Shown {
        fn host(&self) -> Host {
            let mut files = Vec::new();
            let mut write = |path: &str, text: &str| {
                files.push((path.to_owned(), text.to_owned()));
            };
            let cpu = |at: usize| format!("sys/devices/system/cpu/cpu{at}");
            let each = |list: &'static str| list.split(' ').enumerate();
            let last = each(self.cores).count() - 1;
            write("sys/devices/system/cpu/online", &format!("0-{last}"));
            for (at, package) in each(self.packages) {
                write(&format!("{}/topology/physical_package_id", cpu(at)), package);
            }
            for (at, core) in each(self.cores) {
                write(&format!("{}/topology/core_cpus_list", cpu(at)), core);
                let own = |list: &str| parse_cpu_list(list).contains(&u32::try_from(at).unwrap());
                let own = self.caches.iter().filter(|cache| own(cache.3));
                for (index, (level, kind, size, shared)) in own.enumerate() {
                    let cache = format!("{}/cache/index{index}", cpu(at));
                    write(&format!("{cache}/level"), &level.to_string());
                    write(&format!("{cache}/type"), kind);
                    write(&format!("{cache}/size"), size);
                    write(&format!("{cache}/shared_cpu_list"), shared);
                }
            }
            for (node, cpus) in each(self.nodes) {
                write(&format!("sys/devices/system/node/node{node}/cpulist"), cpus);
            }
            self.more.iter().for_each(|(path, text)| write(path, text));
            let files: Vec<(&str, &str)> =
                files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
            let root = root(&files);
            let host = host_facts(&Files::below(root.path()), vec![]);
            Host { allowed_cpus: (0..host.logical_cpus).collect(), ..host }
        }
    }

    fn counts(host: &Host) -> [usize; 4] {
        let count = |n: u32| n as usize;
        [count(host.sockets), count(host.cores), count(host.logical_cpus), host.numa.len()]
    }

    fn caches_of(host: &Host) -> Vec<(u32, u64, u32, u32)> {
        let caches = host.caches.iter();
        caches.map(|cache| (cache.level, cache.bytes >> 10, cache.shared_by, cache.count)).collect()
    }

    #[test]
    fn fast_and_slow_cores_with_caches_of_their_own_are_told_apart() {
        let host = Shown {
            packages: "0 0 0 0 0 0 0 0",
            cores: "0-1 0-1 2-3 2-3 4 5 6 7",
            nodes: "0-7",
            caches: &[
                (1, "Data", "48K", "0-1"),
                (1, "Data", "48K", "2-3"),
                (1, "Data", "32K", "4"),
                (1, "Data", "32K", "5"),
                (1, "Data", "32K", "6"),
                (1, "Data", "32K", "7"),
                (2, "Unified", "1280K", "0-1"),
                (2, "Unified", "1280K", "2-3"),
                (2, "Unified", "2048K", "4-7"),
                (3, "Unified", "12288K", "0-7"),
            ],
            more: &[("sys/devices/cpu_core/cpus", "0-3"), ("sys/devices/cpu_atom/cpus", "4-7")],
        }
        .host();
        assert_eq!(counts(&host), [1, 6, 8, 1]);
        assert_eq!(host.slower_cpus, [4, 5, 6, 7]);
        assert_eq!(
            caches_of(&host),
            [(1, 48, 2, 2), (2, 1280, 2, 2), (3, 12288, 8, 1), (1, 32, 1, 4), (2, 2048, 4, 1)]
        );
        assert_eq!(host.last_level_cache_bytes(), 12 << 20);
        assert_eq!(crate::placement::order(&host), [3, 1, 7, 6, 5, 4, 2, 0]);
    }

    #[test]
    fn two_nodes_of_an_arm_machine_and_its_small_cores_are_told_apart() {
        let host = Shown {
            packages: "0 0 1 1",
            cores: "0 1 2 3",
            nodes: "0-1 2-3",
            caches: &[],
            more: &[
                ("sys/devices/system/cpu/cpu0/cpu_capacity", "1024"),
                ("sys/devices/system/cpu/cpu1/cpu_capacity", "1024"),
                ("sys/devices/system/cpu/cpu2/cpu_capacity", "1024"),
                ("sys/devices/system/cpu/cpu3/cpu_capacity", "446"),
            ],
        }
        .host();
        assert_eq!(counts(&host), [2, 4, 4, 2]);
        assert_eq!((&*host.slower_cpus, &*host.siblings), (&[3_u32][..], &[][..]));
        assert_eq!(crate::placement::order(&host), [2, 1, 0, 3]);
    }

    #[test]
    fn the_facts_of_the_documents_own_machine_are_read() {
        let host = Shown {
            packages: "0 0 0 0",
            cores: "0-1 0-1 2-3 2-3",
            nodes: "0-3",
            caches: &[],
            more: &[
                (
                    "proc/cpuinfo",
                    "model name : Intel(R) Core(TM) i7-3555LE\nflags : fpu hypervisor\n",
                ),
                ("proc/meminfo", "MemTotal: 8000000 kB\n"),
                ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "ondemand"),
                ("sys/devices/system/cpu/vulnerabilities/meltdown", "Mitigation: PTI"),
                ("sys/devices/system/cpu/vulnerabilities/mds", "Not affected"),
                ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never"),
                ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "64"),
                ("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "60"),
                ("proc/self/cgroup", "0::/box\n"),
                ("sys/fs/cgroup/box/cpu.max", "150000 100000\n"),
            ],
        }
        .host();
        assert_eq!((host.logical_cpus, host.cores, host.sockets), (4, 2, 1));
        assert_eq!(host.memory_bytes, 8_000_000 * 1024);
        assert_eq!(host.governor.as_deref(), Some("ondemand"));
        assert_eq!(host.mitigations, ["meltdown: Mitigation: PTI"]);
        assert_eq!(host.transparent_huge_pages, "madvise");
        assert_eq!(host.huge_pages[0].free, 60);
        assert_eq!(host.cgroup_cpu_quota.as_deref(), Some("1.50"));
        assert!(host.hypervisor.is_some());
    }

    #[test]
    fn an_empty_machine_has_no_facts_and_no_panic() {
        let root = tempfile::tempdir().unwrap();
        let host = host_facts(&Files::below(root.path()), vec![]);
        assert_eq!((host.logical_cpus, host.governor, host.cgroup_cpu_quota), (0, None, None));
    }
}
