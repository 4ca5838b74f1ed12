//! Facts of the machine, as plain data; `sys` reads them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Facts of a machine that the comparison of two records needs. A fact that the kernel does not
/// give is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Host {
    /// Node name of the kernel, or what the user calls the host (`--label`); empty in older
    /// records.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// CPU model as the kernel names it; on AArch64 implementer, part and revision of the Main ID
    /// Register.
    pub cpu_model: String,
    /// Target architecture, e.g. `x86_64`.
    pub architecture: String,
    /// Vector extensions that the kernels can choose from.
    pub isa: Vec<String>,
    /// Logical CPUs online.
    pub logical_cpus: u32,
    /// Physical cores.
    pub cores: u32,
    /// CPUs of each core that runs several threads; empty if each core is one CPU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub siblings: Vec<Vec<u32>>,
    /// CPUs of slower cores than the fastest, where cores differ.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slower_cpus: Vec<u32>,
    /// Packages.
    pub sockets: u32,
    /// NUMA nodes with their CPUs.
    pub numa: Vec<NumaNode>,
    /// Caches, alike ones once.
    pub caches: Vec<Cache>,
    /// cpufreq governor of CPU 0; absent on most virtual machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub governor: Option<String>,
    /// Kernel release and build.
    pub kernel: String,
    /// Vulnerabilities whose mitigation costs something, `name: state`.
    pub mitigations: Vec<String>,
    /// Hypervisor, when there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hypervisor: Option<String>,
    /// Total memory.
    pub memory_bytes: u64,
    /// Base page.
    pub page_bytes: u64,
    /// Transparent huge pages: the chosen mode.
    pub transparent_huge_pages: String,
    /// Reserved huge pages, by size.
    pub huge_pages: Vec<HugePages>,
    /// TCP congestion control that new sockets get.
    pub congestion_control: String,
    /// Kernel clock source.
    pub clocksource: String,
    /// CPUs that this process may use (cpuset, affinity).
    pub allowed_cpus: Vec<u32>,
    /// CPU quota of the cgroup in CPUs (cgroup v2 `cpu.max`); absent when unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup_cpu_quota: Option<String>,
    /// Devices that data could come from or go through: block devices, network interfaces, PMUs,
    /// DMA engines, GPUs, boards.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<HostDevice>,
}

impl Host {
    /// Tests if the facts of the host were read. For results from another program's files only its
    /// name is known.
    pub fn is_known(&self) -> bool {
        self.logical_cpus > 0
    }

    /// Returns the name, or the CPU model without one, for figures of several hosts.
    pub fn label(&self) -> String {
        match (self.name.as_str(), self.is_known()) {
            ("", true) => format!("{}, {} CPUs", self.cpu_model, self.logical_cpus),
            ("", false) => self.cpu_model.clone(),
            (name, _) => name.to_owned(),
        }
    }

    /// Returns the size of the largest cache of one core; `None` if none is known. A virtual
    /// machine of one CPU does not own the third level.
    pub fn private_cache_bytes(&self) -> Option<u64> {
        let threads = self.siblings.iter().map(Vec::len).max().unwrap_or(1);
        let is_own = |cache: &&Cache| cache.level <= 2 && cache.shared_by as usize <= threads;
        let own = self.caches.iter().filter(is_own);
        own.map(|cache| cache.bytes).max()
    }

    pub fn last_level_cache_bytes(&self) -> u64 {
        let last = self.caches.iter().max_by_key(|cache| (cache.level, cache.bytes));
        last.map_or(0, |cache| cache.bytes)
    }
}

/// Something built in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HostDevice {
    /// `block`, `network`, `pmu`, `dma`, `digitizer` or `readout`.
    pub kind: String,
    /// Name that the kernel gives it.
    pub name: String,
    /// Size, speed, model, driver, as far as the kernel tells.
    pub about: String,
}

/// One NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NumaNode {
    /// Number.
    pub node: u32,
    /// CPUs of the node.
    pub cpus: Vec<u32>,
}

/// Caches that are alike.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Cache {
    /// Level, from 1.
    pub level: u32,
    /// `Data`, `Instruction` or `Unified`.
    pub kind: String,
    /// Size.
    pub bytes: u64,
    /// Number of CPUs that share one of them.
    pub shared_by: u32,
    /// Number of pages.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub count: u32,
}

/// A pool of huge pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HugePages {
    /// Page size.
    pub page_bytes: u64,
    /// Pages in the pool.
    pub total: u64,
    /// Free pages among them.
    pub free: u64,
}
