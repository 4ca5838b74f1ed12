//! Machines of another topology than this host's.
//! A short survey must name all of it. It must not pin two busy threads to one core, or one to a
//! slow core, while a better one is free.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use daqmeter_record::RunRecord;

use crate::boot::{Boot, device_tree};
use crate::debian::{Kernel, arm_busybox};
use crate::files::{Initrd, folder, tail, timed};
use crate::mesh;
use crate::shell::{line, program};

/// Two NUMA nodes, each a socket of two cores of two threads.
const CPUS: &str = "-m 1536 -smp 8,sockets=2,cores=2,threads=2 \
     -object memory-backend-ram,id=near,size=768M -object memory-backend-ram,id=far,size=768M \
     -numa node,nodeid=0,cpus=0-3,memdev=near -numa node,nodeid=1,cpus=4-7,memdev=far";
const CORES: usize = 4;
const THREADS_OF_A_CORE: u32 = 2;

struct Machine {
    name: &'static str,
    arch: &'static str,
    qemu: &'static str,
    /// CPUs of the cores that are slower than the others.
    slower: &'static [u32],
    /// Size of the largest cache; 0 if the machine describes none.
    cache_bytes: u64,
}

const MACHINES: [Machine; 2] = [
    Machine {
        name: "fast and slow cores",
        arch: "arm64",
        qemu: "qemu-system-aarch64 -machine virt -cpu cortex-a72 -accel tcg,thread=multi",
        slower: &[0, 1, 6, 7],
        cache_bytes: 0,
    },
    Machine {
        name: "a PC",
        arch: "amd64",
        qemu: "qemu-system-x86_64 -machine q35 -cpu qemu64 -accel tcg,thread=single",
        slower: &[],
        cache_bytes: 16 << 20,
    },
];

/// Runs a survey, and points of one to eight busy threads placed as in the survey. Prints the first
/// record, which describes the host, and the CPUs of each record's threads.
const SCRIPT: &str = "\
cat > /tmp/threads.toml <<END
title = 'busy threads'
pin = 'last-first'
[[sweep]]
study = 'threads'
engine = 'memory'
time = '10ms'
workload = { read_bytes = 65536, read_lines = 1, write_lines = 0 }
axes = { lanes = [1, 2, 4, 8] }
END
daqmeter survey --budget 5s -o /tmp/report.html --records /tmp/survey.jsonl > /tmp/out 2>&1 || echo GUEST failed survey: $(tail -n 3 /tmp/out)
daqmeter run /tmp/threads.toml --records /tmp/threads.jsonl > /tmp/out 2>&1 || echo GUEST failed threads: $(tail -n 3 /tmp/out)
echo \"RECORD $(head -n 1 /tmp/survey.jsonl)\"
cat /tmp/threads.jsonl /tmp/survey.jsonl | grep -n -o '\"requested_cpu\":[0-9]*' | sed 's/^/PIN /'
";

/// Boots the machines, after the tool was built for this host and for the meshes' guests.
pub(crate) fn boot() -> Result<()> {
    MACHINES.iter().try_for_each(|machine| timed(machine.name, || machine.run()))
}

impl Machine {
    fn run(&self) -> Result<()> {
        let kernel = Kernel::fetch("6.1", self.arch)?;
        let is_arm = self.arch == "arm64";
        let (busybox, tool) = match is_arm {
            true => (arm_busybox()?, mesh::daqmeter()),
            false => (PathBuf::from("/bin/busybox"), program()),
        };
        let initrd = Initrd::new("topology", &busybox, SCRIPT)?;
        initrd.take("bin/daqmeter", &tool)?;
        let mut qemu = format!("{} {CPUS}", self.qemu);
        if is_arm {
            qemu += &format!(" -dtb {}", self.tree(&qemu)?.display());
        } else {
            initrd.take_libraries(line("ldd").arg(tool), Path::new("/"))?;
        }
        let (name, options, limit_s) = ("topology", "", 300);
        let boot = Boot { name, qemu: &qemu, kernel: &kernel.image, options, limit_s };
        self.judge(&boot.run(initrd)?)
    }

    /// Makes QEMU's device tree of the machine, with the capacity of each CPU
    /// (`capacity-dmips-mhz`, the kernel's
    /// `Documentation/devicetree/bindings/cpu/cpu-capacity.txt`).
    fn tree(&self, qemu: &str) -> Result<PathBuf> {
        let path = folder().join("topology.dtb");
        device_tree(qemu, &path)?;
        for cpu in 0..8 {
            let capacity = if self.slower.contains(&cpu) { "400" } else { "1024" };
            let put = line("fdtput -t i").arg(&path).arg(format!("/cpus/cpu@{cpu}"));
            put.arg("capacity-dmips-mhz").arg(capacity).run()?;
        }
        Ok(path)
    }

    fn judge(&self, printed: &str) -> Result<()> {
        let record = printed.lines().find_map(|line| line.strip_prefix("RECORD "));
        let record = record.with_context(|| format!("no record came:\n{}", tail(printed)))?;
        let host = serde_json::from_str::<RunRecord>(record)?.host;
        let found = (host.sockets, host.cores, host.logical_cpus, host.numa.len());
        ensure!(found == (2, 4, 8, 2), "sockets, cores, CPUs, NUMA nodes are called {found:?}");
        ensure!(host.slower_cpus == self.slower, "slower CPUs: {:?}", host.slower_cpus);
        let cache_bytes = host.last_level_cache_bytes();
        ensure!(cache_bytes == self.cache_bytes, "the largest cache has {cache_bytes} B");
        println!("{found:?}; {} points with a core for each thread", self.unshared(printed)?);
        Ok(())
    }

    /// Counts the points without two threads on a core, or one on a slow core, while a better one
    /// is free.
    fn unshared(&self, printed: &str) -> Result<usize> {
        let mut points: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for line in printed.lines().filter_map(|line| line.strip_prefix("PIN ")) {
            let (point, _) = line.split_once(':').context("a line of grep has its number")?;
            let cpu = line.rsplit(':').next().context("a CPU")?.parse()?;
            points.entry(point).or_default().push(cpu);
        }
        ensure!(!points.is_empty(), "no thread was pinned");
        for cpus in points.values() {
            let cores: BTreeSet<u32> = cpus.iter().map(|cpu| cpu / THREADS_OF_A_CORE).collect();
            let is_spread = cores.len() == cpus.len().min(CORES);
            ensure!(is_spread, "threads on CPUs {cpus:?} share a core");
            let is_slow =
                cpus.len() <= CORES / 2 && cpus.iter().any(|cpu| self.slower.contains(cpu));
            ensure!(!is_slow, "threads on CPUs {cpus:?}, and a faster one was free");
        }
        Ok(points.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_share_a_core_or_take_a_slow_one_without_need_are_found() {
        for (cpus, fault) in [
            (&[5, 3][..], None),
            (&[5, 3, 7, 1], None),
            (&[5, 3, 7, 1, 4], None),
            (&[5, 4], Some("share a core")),
            (&[5, 7], Some("a faster one was free")),
            (&[], Some("no thread was pinned")),
        ] {
            let pins = cpus.iter().map(|cpu| format!("PIN 1:\"requested_cpu\":{cpu}\n"));
            match (MACHINES[0].unshared(&pins.collect::<String>()), fault) {
                (Ok(points), None) => assert_eq!(points, 1),
                (Err(error), Some(part)) => assert!(error.to_string().contains(part), "{error}"),
                (found, _) => panic!("{cpus:?}: {found:?}"),
            }
        }
    }
}
