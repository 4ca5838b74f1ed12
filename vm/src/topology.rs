//! Machines of other topologies than this host's.
//! In each a short survey must name the sockets, cores, threads and NUMA nodes of the machine. It
//! must not pin two busy threads to one core while another is free. Everything is emulated: no time
//! from here is a performance result.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::shell::{line, need};
use anyhow::{Context, Result, bail, ensure};
use daqmeter_record::RunRecord;

use crate::copy::boot::{ARM, Boot, Machine};
use crate::debian::{self, Kernel, foreign_busybox};
use crate::files::{GuestFile, folder, tail, timed};
use crate::mesh;

struct Case {
    name: &'static str,
    /// QEMU's options for its CPUs and nodes.
    cpus: &'static str,
    sockets: u32,
    cores: u32,
    threads_of_a_core: u32,
    nodes: usize,
    /// Cores that are slower than the others.
    slower: &'static [u32],
}

const CASES: [Case; 4] = [
    Case {
        name: "1-cpu",
        cpus: "-m 1536 -smp 1",
        sockets: 1,
        cores: 1,
        threads_of_a_core: 1,
        nodes: 1,
        slower: &[],
    },
    Case {
        name: "2-nodes",
        cpus: "-smp 4,sockets=2,cores=2 -m 1536 \
               -object memory-backend-ram,id=near,size=768M -object memory-backend-ram,id=far,size=768M \
               -numa node,nodeid=0,cpus=0-1,memdev=near -numa node,nodeid=1,cpus=2-3,memdev=far",
        sockets: 2,
        cores: 4,
        threads_of_a_core: 1,
        nodes: 2,
        slower: &[],
    },
    Case {
        name: "2-sockets-2-cores-2-threads",
        cpus: "-m 1536 -smp 8,sockets=2,cores=2,threads=2",
        sockets: 2,
        cores: 4,
        threads_of_a_core: 2,
        nodes: 1,
        slower: &[],
    },
    Case {
        name: "hybrid",
        cpus: "-m 1536 -smp 4",
        sockets: 1,
        cores: 4,
        threads_of_a_core: 1,
        nodes: 1,
        slower: &[0, 3],
    },
];

/// Capacity of a slower core; the others have 1024.
const SLOWER_CAPACITY: &str = "400";

const SERIES: &str = "6.1";

const LIMIT_S: u32 = 300;

/// Runs a survey, and points of one to eight busy threads placed as in the survey. Prints the first
/// record, which describes the host, and the CPUs of each record's threads.
const SCRIPT: &str = "\
cat > /tmp/threads.toml <<END\n\
title = 'busy threads'\n\
pin = 'last-first'\n\
[[sweep]]\n\
study = 'threads'\n\
engine = 'memory'\n\
time = '10ms'\n\
workload = { read_bytes = 65536, read_lines = 1, write_lines = 0 }\n\
axes = { lanes = [1, 2, 4, 8] }\n\
END\n\
/daqmeter survey --budget 5s --no-wait -o /tmp/report.html --records /tmp/survey.jsonl > /tmp/out 2>&1\n\
echo SURVEY $?; tail -n 3 /tmp/out\n\
/daqmeter run /tmp/threads.toml --records /tmp/threads.jsonl > /tmp/out 2>&1\n\
echo THREADS $?; tail -n 3 /tmp/out\n\
echo \"RECORD $(head -n 1 /tmp/survey.jsonl)\"\n\
cat /tmp/threads.jsonl /tmp/survey.jsonl | grep -n -o '\"requested_cpu\":[0-9]*' | sed 's/^/PIN /'\n";

pub(crate) fn fetch() -> Result<()> {
    if let Some(why) = mesh::missing() {
        bail!(why);
    }
    ["qemu-system-aarch64", "cpio", "xz"].into_iter().try_for_each(need)?;
    fs::create_dir_all(folder())?;
    debian::update()?;
    timed("Debian's kernel and busybox for arm64", || {
        foreign_busybox("arm64").and_then(|_| Kernel::image_of(SERIES, "arm64"))
    })
    .map(drop)
}

pub(crate) fn prepare() -> Result<()> {
    fetch()?;
    timed("static aarch64 build of the tool", mesh::build)
}

/// Boots the machines with `only` in their name, after [`prepare`].
pub(crate) fn boot(only: &str) -> Result<()> {
    let chosen: Vec<&Case> = CASES.iter().filter(|case| case.name.contains(only)).collect();
    ensure!(!chosen.is_empty(), "no machine has `{only}` in its name");
    for case in &chosen {
        timed(case.name, || case.run())?;
    }
    println!("{} machines, each named and used by its topology", chosen.len());
    Ok(())
}

impl Case {
    fn run(&self) -> Result<()> {
        let name = format!("topology-{}", self.name);
        let busybox = foreign_busybox("arm64")?;
        let is_hybrid = !self.slower.is_empty();
        let tree =
            is_hybrid.then(|| tree(&name, self.cpus, self.cores, self.slower)).transpose()?;
        let boot = Boot {
            name: &name,
            machine: Machine::Arm { cpus: self.cpus, busybox: &busybox, tree: tree.as_deref() },
            kernel: &Kernel::image_of(SERIES, "arm64")?.image,
            script: SCRIPT,
            command_line: "",
            limit_s: LIMIT_S,
        };
        self.judge(&boot.run(vec![GuestFile::program("daqmeter", &mesh::daqmeter())?])?)
    }

    fn judge(&self, printed: &str) -> Result<()> {
        let line = |start: &str| printed.lines().find_map(|line| line.strip_prefix(start));
        for what in ["SURVEY ", "THREADS "] {
            let last = tail(printed);
            ensure!(line(what) == Some("0"), "{what}failed:\n{last}");
        }
        let record = line("RECORD ").context("no record came")?;
        let record: RunRecord = serde_json::from_str(record)?;
        let host = &record.host;
        let found = (host.sockets, host.cores, host.logical_cpus, host.numa.len());
        let cpus = self.cores * self.threads_of_a_core;
        let wanted = (self.sockets, self.cores, cpus, self.nodes);
        ensure!(
            found == wanted,
            "sockets, cores, CPUs and NUMA nodes are called {found:?}, not {wanted:?}"
        );
        ensure!(
            host.slower_cpus == self.slower,
            "slower CPUs are called {:?}, not {:?}",
            host.slower_cpus,
            self.slower
        );
        let points = self.unshared(printed)?;
        println!("{}: {found:?}; {points} points with a core for each thread", self.name);
        Ok(())
    }

    /// Counts the points without two lanes on a core while another is free.
    fn unshared(&self, printed: &str) -> Result<usize> {
        let mut points: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for line in printed.lines().filter_map(|line| line.strip_prefix("PIN ")) {
            let (point, _) = line.split_once(':').context("a line of grep has its number")?;
            let cpu = line.rsplit(':').next().context("a CPU")?.parse()?;
            points.entry(point).or_default().push(cpu);
        }
        ensure!(!points.is_empty(), "no thread was pinned");
        for (point, cpus) in &points {
            let cores: BTreeSet<u32> =
                cpus.iter().map(|cpu| cpu / self.threads_of_a_core).collect();
            ensure!(
                cores.len() == cpus.len().min(self.cores as usize),
                "record {point}: threads on CPUs {cpus:?} share a core"
            );
            let fast = self.cores as usize - self.slower.len();
            let is_on_slow = cpus.iter().any(|cpu| self.slower.contains(cpu));
            ensure!(
                !(is_on_slow && cpus.len() <= fast),
                "record {point}: threads on CPUs {cpus:?}, and a faster one was free"
            );
        }
        Ok(points.len())
    }
}

/// Makes QEMU's device tree of such a machine, with the capacity of each CPU (`capacity-dmips-mhz`,
/// the kernel's `Documentation/devicetree/bindings/cpu/cpu-capacity.txt`).
fn tree(name: &str, cpus: &str, number: u32, slower: &[u32]) -> Result<PathBuf> {
    need("fdtput")?;
    let path = folder().join(format!("{name}.dtb"));
    dump_tree(cpus, &path)?;
    for cpu in 0..number {
        let capacity = match slower.contains(&cpu) {
            true => SLOWER_CAPACITY,
            false => "1024",
        };
        line("fdtput -t i")
            .arg(&path)
            .arg(format!("/cpus/cpu@{cpu}"))
            .arg("capacity-dmips-mhz")
            .arg(capacity)
            .run()?;
    }
    Ok(path)
}

fn dump_tree(cpus: &str, path: &Path) -> Result<()> {
    let dump = format!("virt,dumpdtb={}", path.display());
    line(&ARM.replace("virt", &dump)).words(cpus).output()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_share_a_core_without_need_are_found() {
        let case = &CASES[2];
        let pins = |cpus: &[u32]| -> String {
            let lines = cpus.iter().map(|cpu| format!("PIN 1:\"requested_cpu\":{cpu}\n"));
            lines.collect()
        };
        assert_eq!(case.unshared(&pins(&[7, 5, 3, 1])).unwrap(), 1);
        assert_eq!(case.unshared(&pins(&[7, 5, 3, 1, 6])).unwrap(), 1);
        let error = case.unshared(&pins(&[7, 6])).unwrap_err().to_string();
        assert!(error.contains("share a core"), "{error}");
        assert!(case.unshared("").is_err());
    }

    #[test]
    fn threads_on_slow_cores_without_need_are_found() {
        let case = &CASES[3];
        let pins = |cpus: &[u32]| -> String {
            let lines = cpus.iter().map(|cpu| format!("PIN 1:\"requested_cpu\":{cpu}\n"));
            lines.collect()
        };
        assert_eq!(case.unshared(&pins(&[2, 1])).unwrap(), 1);
        assert_eq!(case.unshared(&pins(&[2, 1, 3])).unwrap(), 1);
        let error = case.unshared(&pins(&[3, 1])).unwrap_err().to_string();
        assert!(error.contains("a faster one was free"), "{error}");
    }
}
