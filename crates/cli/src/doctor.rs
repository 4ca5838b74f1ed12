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

/// Name of a facility, whether it is there, the state found, and the way to get it.
type Finding = (&'static str, bool, String, &'static str);

pub(crate) fn run(_arguments: &Arguments) -> Result<ExitCode, Failure> {
    let files = Files::default();
    let mut findings = host(&files);
    findings.extend(observation(&files));
    findings.extend(devices(&files));
    findings.extend(copies(&files));
    let batches = UdpSocket::bind("127.0.0.1:0").is_ok_and(|socket| enable_gro(socket.as_fd()));
    let old = "pipelined Etherbone is slower; Linux 5.0 or later has batches";
    findings.push(("UDP in batches", batches, there(batches), old));
    let rows = findings.into_iter().map(|(name, is_good, found, remedy)| {
        let (mark, remedy) = if is_good { ("ok", "") } else { ("--", remedy) };
        [mark, name, &found, remedy].map(str::to_owned).to_vec()
    });
    emit(&plain(&["", "what", "found", "what to do"], rows))
}

fn there(is_there: bool) -> String {
    if is_there { "there" } else { "none" }.to_owned()
}

fn host(files: &Files) -> Vec<Finding> {
    let host = host_facts(files, Vec::new());
    let isa: Vec<&str> = Isa::available().map(Isa::name).collect();
    let (cpus, nodes) = (host.allowed_cpus.len(), plural(host.numa.len().max(1) as u64, "node"));
    let governs = host.governor.as_deref().is_none_or(|governor| governor == "performance");
    let governor = host.governor.unwrap_or_else(|| "not reported".to_owned());
    let has_clock = host.clocksource == "tsc" || host.architecture != "x86_64";
    let quota = host.cgroup_cpu_quota;
    let free: u64 = host.huge_pages.iter().map(|pool| pool.free).sum();
    let mode = host.transparent_huge_pages;
    vec![
        ("CPU", true, format!("{} ({cpus} allowed, {nodes})", host.cpu_model), ""),
        ("vector kernels", isa.len() > 1, isa.join(", "), "slower, same results"),
        ("frequency governor", governs, governor, "cpupower frequency-set -g performance"),
        ("clock source", has_clock, host.clocksource, "boot with tsc=reliable if the TSC is sound"),
        (
            "CPU quota",
            quota.is_none(),
            quota.map_or("none".to_owned(), |quota| format!("{quota} CPUs")),
            "the cgroup throttles: raise cpu.max",
        ),
        (
            "hypervisor",
            host.hypervisor.is_none(),
            host.hypervisor.unwrap_or_else(|| "none".to_owned()),
            "neighbours disturb: look at steal and the noise floor",
        ),
        (
            "transparent huge pages",
            matches!(mode.as_str(), "madvise" | "always"),
            mode,
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        (
            "reserved huge pages",
            free > 0,
            format!("{free} free"),
            "optional: sysctl vm.nr_hugepages=512 (transparent ones are used meanwhile)",
        ),
    ]
}

fn observation(files: &Files) -> Vec<Finding> {
    let counts = |event: &&daqmeter_sys::perf::Event| KernelCounters.open(**event).is_ok();
    let events: Vec<&str> = EVENTS.iter().filter(counts).map(|event| event.name).collect();
    let (samples, sampler) = match Sampler::of_this_thread(99) {
        Ok(sampler) if sampler.sees_kernel => (true, "user and kernel".to_owned()),
        Ok(_) => (false, "user mode only".to_owned()),
        Err(error) => (false, error.to_string()),
    };
    let (has_mesh, mesh) = crate::pmu::summary();
    let symbols = files.text("proc/kallsyms").unwrap_or_default();
    let readable = symbols.lines().any(|line| !line.starts_with("0000000000000000"));
    vec![
        (
            "hardware counters",
            events.contains(&"cycles"),
            events.join(", "),
            "no PMU here: usual in virtual machines; cycles and cache misses stay uncounted",
        ),
        (
            "interconnect counters",
            has_mesh,
            mesh,
            "DRAM traffic stays uncounted (arm-cmn: CONFIG_ARM_CMN and a firmware that describes the mesh)",
        ),
        (
            "what takes the time",
            samples,
            sampler,
            "sysctl kernel.perf_event_paranoid=1, or run as root",
        ),
        (
            "kernel symbols",
            readable,
            there(readable),
            "sysctl kernel.kptr_restrict=0, or run as root",
        ),
    ]
}

fn copies(files: &Files) -> Vec<Finding> {
    let waiver = daqmeter_copy::module_waiver();
    let tracer = files.root().join("dev/daqmeter-trace").exists();
    let channels = files.names("sys/class/dma");
    let queues = daqmeter_sys::dsa::work_queues(files);
    let usable = queues.iter().any(|queue| queue.refusal.is_none());
    let queue_text = queues.into_iter().map(|queue| queue.refusal.unwrap_or(queue.name));
    vec![
        (
            "copy module",
            waiver.is_none(),
            waiver.unwrap_or_else(|| "loaded, of this version".to_owned()),
            "optional: make -C kmod && insmod kmod/daqmeter_copy.ko; system calls stand for it meanwhile",
        ),
        (
            "copy tracer",
            tracer,
            there(tracer),
            "optional: insmod kmod/daqmeter_trace.ko; copy trace needs it",
        ),
        (
            "DMA channels of the kernel",
            !channels.is_empty(),
            format!("{} {}", channels.len(), channels.join(", ")),
            "modprobe ioatdma or idxd where the host has the hardware; kmod/softdma.ko anywhere",
        ),
        (
            "DSA work queues",
            usable,
            queue_text.collect::<Vec<_>>().join("; "),
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
        (family.name(), !nodes.is_empty(), found, family.remedy())
    });
    let fuse = files.root().join("dev/fuse").exists();
    let helpers = ["usr/bin/fusermount3", "bin/fusermount3"];
    let helper = is_root() || helpers.iter().any(|path| files.root().join(path).exists());
    let remedy = "modprobe fuse; apt install fuse3 for users other than root";
    boards.chain([("serving emulated boards", fuse && helper, there(fuse), remedy)]).collect()
}
