//! `daqmeter doctor`: facilities of this host, missing ones, and their installation.

use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::process::ExitCode;

use clap::Args;
use daqmeter_digitizer::devices::FAMILIES;
use daqmeter_harness::facts::host_facts;
use daqmeter_kernels::Isa;
use daqmeter_record::units::plural;
use daqmeter_report::table::plain;
use daqmeter_sys::host::{Files, is_root};
use daqmeter_sys::net::enable_gro;
use daqmeter_sys::perf::{CounterSource, EVENTS, KernelCounters, Sampler};

use crate::output::{Failure, emit};

/// Say what this host has, what is missing and how to get it.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Changes nothing. Each line names what was found; where something is missing, what to do about it."
)]
pub(crate) struct Arguments {}

struct Finding {
    what: &'static str,
    good: bool,
    found: String,
    remedy: String,
}

fn finding(what: &'static str, good: bool, found: impl Into<String>, remedy: &str) -> Finding {
    Finding {
        what,
        good,
        found: found.into(),
        remedy: if good { String::new() } else { remedy.to_owned() },
    }
}

pub(crate) fn run(_arguments: &Arguments) -> Result<ExitCode, Failure> {
    let files = Files::default();
    let findings = [
        host(&files),
        memory(&files),
        observation(&files),
        devices(&files),
        copies(&files),
        network(),
    ]
    .into_iter()
    .flatten();
    let rows = findings.map(|finding| {
        let mark = if finding.good { "ok" } else { "--" };
        vec![mark.to_owned(), finding.what.to_owned(), finding.found, finding.remedy]
    });
    emit(&plain(&["", "what", "found", "what to do"], rows))
}

fn host(files: &Files) -> Vec<Finding> {
    let host = host_facts(files, Vec::new());
    let isa: Vec<&str> = Isa::available().map(Isa::name).collect();
    let governor = host.governor.clone();
    let cpus = host.allowed_cpus.len();
    vec![
        finding("CPU", true, format!("{} ({} allowed)", host.cpu_model, cpus), ""),
        finding(
            "vector kernels",
            isa.len() > 1,
            isa.join(", "),
            "the portable kernels are used: slower, same results",
        ),
        finding(
            "frequency governor",
            governor.as_deref().is_none_or(|governor| governor == "performance"),
            governor.unwrap_or_else(|| "not reported (virtual machine, or no cpufreq)".to_owned()),
            "cpupower frequency-set -g performance",
        ),
        finding(
            "clock source",
            host.clocksource == "tsc" || host.architecture != "x86_64",
            host.clocksource,
            "boot with tsc=reliable if the TSC is sound",
        ),
        finding(
            "CPU quota",
            host.cgroup_cpu_quota.is_none(),
            host.cgroup_cpu_quota.map_or("none".to_owned(), |quota| format!("{quota} CPUs")),
            "the cgroup throttles: raise cpu.max",
        ),
        finding(
            "hypervisor",
            host.hypervisor.is_none(),
            host.hypervisor.unwrap_or_else(|| "none".to_owned()),
            "neighbours disturb: look at steal and the noise floor",
        ),
        finding("NUMA", true, plural(host.numa.len().max(1) as u64, "node"), ""),
    ]
}

fn memory(files: &Files) -> Vec<Finding> {
    let host = host_facts(files, Vec::new());
    let free: u64 = host.huge_pages.iter().map(|pool| pool.free).sum();
    let mode = host.transparent_huge_pages;
    vec![
        finding(
            "transparent huge pages",
            matches!(mode.as_str(), "madvise" | "always"),
            mode,
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        finding(
            "reserved huge pages",
            free > 0,
            format!("{free} free"),
            "optional: sysctl vm.nr_hugepages=512 (transparent ones are used meanwhile)",
        ),
    ]
}

fn observation(files: &Files) -> Vec<Finding> {
    let paranoid =
        files.text("proc/sys/kernel/perf_event_paranoid").unwrap_or_else(|| "absent".to_owned());
    let there = |event: &&daqmeter_sys::perf::Event| KernelCounters.open(**event).is_ok();
    let events: Vec<&str> = EVENTS.iter().filter(there).map(|event| event.name).collect();
    let hardware = events.contains(&"cycles");
    let sampler = match Sampler::of_this_thread(99) {
        Ok(sampler) if sampler.sees_kernel => (true, "user and kernel".to_owned()),
        Ok(_) => (false, "user mode only".to_owned()),
        Err(error) => (false, error.to_string()),
    };
    let interconnect = crate::pmu::summary();
    let symbols = files
        .text("proc/kallsyms")
        .is_some_and(|text| text.lines().any(|line| !line.starts_with("0000000000000000")));
    vec![
        finding(
            "hardware counters",
            hardware,
            events.join(", "),
            "no PMU here: usual in virtual machines; cycles and cache misses stay uncounted",
        ),
        finding(
            "interconnect counters",
            interconnect.0,
            interconnect.1,
            "no PMU of an interconnect or a memory controller: DRAM traffic stays uncounted (arm-cmn: CONFIG_ARM_CMN and a firmware that describes the mesh); daqmeter pmu list",
        ),
        finding(
            "what takes the time",
            sampler.0,
            format!("{} (perf_event_paranoid {paranoid})", sampler.1),
            "sysctl kernel.perf_event_paranoid=1, or run as root",
        ),
        finding(
            "kernel symbols",
            symbols,
            if symbols { "readable" } else { "hidden" },
            "sysctl kernel.kptr_restrict=0, or run as root",
        ),
    ]
}

fn network() -> Vec<Finding> {
    let batches = UdpSocket::bind("127.0.0.1:0").is_ok_and(|socket| enable_gro(socket.as_fd()));
    let v6 = UdpSocket::bind("[::1]:0").is_ok();
    vec![
        finding(
            "UDP in batches",
            batches,
            if batches {
                "the kernel takes and gives batches (GSO, GRO)"
            } else {
                "one datagram at a time"
            },
            "pipelined Etherbone is slower; Linux 5.0 or later has batches",
        ),
        finding(
            "IPv6",
            v6,
            if v6 { "there" } else { "none" },
            "udp6/ and tcp6/ addresses cannot be used",
        ),
    ]
}

fn copies(files: &Files) -> Vec<Finding> {
    let waiver = daqmeter_copy::module_waiver();
    let tracer = files.root().join("dev/daqmeter-trace").exists();
    let channels = files.names("sys/class/dma");
    let queues = daqmeter_sys::dsa::work_queues(files);
    vec![
        finding(
            "copy module",
            waiver.is_none(),
            match waiver {
                None => "loaded, of this version".to_owned(),
                Some(_) if !files.root().join("dev/daqmeter-copy").exists() => {
                    "not loaded".to_owned()
                }
                Some(reason) => reason,
            },
            "optional: make -C kmod && insmod kmod/daqmeter_copy.ko; system calls stand for it meanwhile",
        ),
        finding(
            "copy tracer",
            tracer,
            if tracer { "loaded" } else { "not loaded" },
            "optional: insmod kmod/daqmeter_trace.ko; /proc/PID/io stands for it meanwhile",
        ),
        finding(
            "DMA channels of the kernel",
            !channels.is_empty(),
            if channels.is_empty() {
                "none".to_owned()
            } else {
                format!("{}: {}", channels.len(), channels.join(", "))
            },
            "modprobe ioatdma or idxd where the host has the hardware; kmod/softdma.ko anywhere",
        ),
        finding(
            "user-space engines",
            queues.iter().any(|queue| queue.refusal.is_none()),
            if queues.is_empty() {
                "no DSA work queue".to_owned()
            } else {
                let found = queues.into_iter().map(|queue| match queue.refusal {
                    None => format!("DSA {} (never exercised on hardware by us)", queue.name),
                    Some(refusal) => format!("DSA {refusal}"),
                });
                found.collect::<Vec<_>>().join("; ")
            },
            "an emulated engine (engine-thread) stands for them",
        ),
    ]
}

fn devices(files: &Files) -> Vec<Finding> {
    let boards = FAMILIES.iter().map(|family| {
        let nodes = family.cards().nodes(files);
        let found = match nodes.is_empty() {
            true => "none: emulated ones only".to_owned(),
            false => nodes.join(", "),
        };
        finding(family.name(), !nodes.is_empty(), found, family.remedy())
    });
    boards.chain([serving(files)]).collect()
}

fn serving(files: &Files) -> Finding {
    let fuse = files.root().join("dev/fuse").exists();
    let helper = is_root()
        || ["usr/bin/fusermount3", "bin/fusermount3"]
            .iter()
            .any(|path| files.root().join(path).exists());
    finding(
        "serving emulated boards",
        fuse && helper,
        if fuse { "/dev/fuse is there" } else { "no /dev/fuse" },
        "modprobe fuse; apt install fuse3 for users other than root",
    )
}
