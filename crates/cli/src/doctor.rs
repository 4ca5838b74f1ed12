//! `daqmeter doctor`: facilities of this host, missing ones, and their installation.

use std::net::UdpSocket;
use std::os::fd::AsFd;

use clap::Args;
use daqmeter_digitizer::devices::FAMILIES;
use daqmeter_harness::facts::host_facts;
use daqmeter_kernels::Isa;
use daqmeter_record::units::{plural, show_bytes};
use daqmeter_report::table::paragraphs;
use daqmeter_sys::available::{self, cpu_quota};
use daqmeter_sys::host::{Files, is_root};
use daqmeter_sys::net::enable_gro;
use daqmeter_sys::perf::{EVENTS, Event, Sampler, open_counter};

use crate::output::{Ended, emit, row_writer};

/// Show what this host has, what is missing and how to get it.
#[derive(Debug, Args)]
#[command(after_long_help = include_str!("../help/doctor.txt"))]
pub(crate) struct Arguments {
    /// Show what this host has, too
    #[arg(long)]
    all: bool,
    /// Print JSON lines with state (ok or --), what, found, what_to_do
    #[arg(long)]
    json: bool,
}

/// State of a facility: as it should be, or an error.
type FacilityState = Result<String, String>;

/// Name of a facility, the state found, and the way to get it.
type Finding = (&'static str, FacilityState, &'static str);

pub(crate) fn run(arguments: &Arguments) -> Ended {
    let files = Files::default();
    let mut findings = host(&files);
    findings.extend(observation(&files));
    findings.extend(devices(&files));
    findings.extend(copies(&files));
    let batches = UdpSocket::bind("127.0.0.1:0").is_ok_and(|socket| enable_gro(socket.as_fd()));
    let old = "pipelined Etherbone is slower; Linux 5.0 or later has batches";
    findings.push(("UDP in batches", there(batches), old));
    let missing = findings.iter().filter(|(_, state, _)| state.is_err()).count();
    let there = findings.len() - missing;
    let is_whole = arguments.all || arguments.json;
    let shown = findings.into_iter().filter(|(_, state, _)| is_whole || state.is_err());
    // Without the good ones, all states are the same.
    let from = usize::from(!is_whole);
    let mut rows = shown.map(|(name, state, remedy)| {
        let (mark, remedy) = if state.is_ok() { ("ok", "") } else { ("--", remedy) };
        let found = state.unwrap_or_else(|found| found);
        [mark, name, &found, remedy].map(str::to_owned)[from..].to_vec()
    });
    let write = row_writer(arguments.json);
    let table = write(&["state", "what", "found", "what to do"][from..], &mut rows);
    emit(&match is_whole {
        true => table,
        false => {
            let first =
                format!("missing, or not as it should be: {missing}; good: {there} (--all)\n");
            paragraphs(&first) + &table
        }
    })
}

/// Returns the missing devices and facilities.
pub(crate) fn missing() -> Vec<&'static str> {
    let files = Files::default();
    let all = [observation(&files), devices(&files), copies(&files)];
    let missing = all.into_iter().flatten().filter(|(_, state, _)| state.is_err());
    missing.map(|(name, ..)| name).collect()
}

fn state(is_good: bool, found: impl Into<String>) -> FacilityState {
    if is_good { Ok(found.into()) } else { Err(found.into()) }
}

fn there(is_there: bool) -> FacilityState {
    state(is_there, if is_there { "there" } else { "none" })
}

fn absent(found: Option<String>) -> FacilityState {
    found.map_or(Ok("none".to_owned()), Err)
}

fn host(files: &Files) -> Vec<Finding> {
    let host = host_facts(files, Vec::new());
    let isa: Vec<&str> = Isa::available().map(Isa::name).collect();
    let (cpus, nodes) = (host.allowed_cpus.len(), plural(host.numa.len().max(1) as u64, "node"));
    let governs = host.governor.as_deref().is_none_or(|governor| governor == "performance");
    let governor = host.governor.unwrap_or_else(|| "not reported".to_owned());
    let has_clock = host.clocksource == "tsc" || host.architecture != "x86_64";
    let quota = cpu_quota(files).map(|quota| format!("{:.2} CPUs by {}", quota.cpus, quota.file));
    let free: u64 = host.huge_pages.iter().map(|pool| pool.free).sum();
    let mode = host.transparent_huge_pages;
    let is_advised = matches!(mode.as_str(), "madvise" | "always");
    let advise = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";
    let reserve = "sysctl vm.nr_hugepages=512; else transparent ones are used";
    let disturbed = "other machines disturb measurements: look at steal";
    let lost = daqmeter_watch::datagrams_lost(files);
    let reliable = "boot with tsc=reliable if the TSC is stable";
    vec![
        ("CPU", Ok(format!("{} ({cpus} allowed, {nodes})", host.cpu_model)), ""),
        ("vector kernels", state(isa.len() > 1, isa.join(", ")), "slower, same results"),
        ("frequency governor", state(governs, governor), "cpupower frequency-set -g performance"),
        ("clock source", state(has_clock, host.clocksource), reliable),
        ("CPU quota", absent(quota), "the cgroup limits the CPU: raise this file's number"),
        ("hypervisor", absent(host.hypervisor), disturbed),
        ("transparent huge pages", state(is_advised, mode), advise),
        ("reserved huge pages", state(free > 0, format!("{free} free")), reserve),
        (
            "datagrams lost since boot",
            absent((lost > 0).then(|| format!("{lost}, at full buffers of sockets"))),
            "daqmeter watch says which program loses them now, where, and why",
        ),
    ]
}

fn observation(files: &Files) -> Vec<Finding> {
    let counts = |event: &&Event| open_counter(**event).is_ok();
    let events: Vec<&str> = EVENTS.iter().filter(counts).map(|event| event.name).collect();
    let sampler = match Sampler::of_this_thread(99) {
        Ok(sampler) if sampler.sees_kernel => Ok("user and kernel".to_owned()),
        Ok(_) => Err("user mode only".to_owned()),
        Err(error) => Err(error.to_string()),
    };
    let (has_mesh, mesh) = crate::pmu::summary();
    let symbols = files.text("proc/kallsyms").unwrap_or_default();
    let readable = symbols.lines().any(|line| !line.starts_with("0000000000000000"));
    let uncounted = "no PMU, as in most virtual machines: no cycles, no cache misses";
    let no_mesh = "arm-cmn needs CONFIG_ARM_CMN, and firmware that lists the mesh";
    let has_cycles = events.contains(&"cycles");
    let counted = if has_cycles { events.join(", ") } else { "no cycles".to_owned() };
    let paranoid = "sysctl kernel.perf_event_paranoid=1, or run as root";
    let restrict = "sysctl kernel.kptr_restrict=0, or run as root";
    let free = available::memory_bytes().map(|bytes| show_bytes(bytes) + " may be used");
    let unread = "mount /proc: without it, no point is left out for lack of memory";
    vec![
        ("free memory", free.ok_or("not reported".to_owned()), unread),
        ("hardware counters", state(has_cycles, counted), uncounted),
        ("interconnect counters", state(has_mesh, mesh), no_mesh),
        ("what takes the time", sampler, paranoid),
        ("kernel symbols", there(readable), restrict),
    ]
}

fn copies(files: &Files) -> Vec<Finding> {
    let module = daqmeter_copy::module_waiver();
    let is_loaded = files.root().join("dev/daqmeter-copy").exists();
    let module = module.map_or_else(
        || Ok("loaded, of this version".to_owned()),
        |why| Err(if is_loaded { why } else { "not loaded".to_owned() }),
    );
    let tracer = there(files.root().join("dev/daqmeter-trace").exists());
    let channels = files.names("sys/class/dma");
    let found = format!("{} {}", channels.len(), channels.join(", "));
    let load_module =
        "optional: make -C kmod && insmod kmod/daqmeter_copy.ko; else system calls copy";
    let load_tracer = "optional: insmod kmod/daqmeter_trace.ko; copy trace needs it";
    let load_engine =
        "modprobe ioatdma, or idxd with queues of type kernel; without hardware kmod/softdma.ko";
    vec![
        ("copy module", module, load_module),
        ("copy tracer", tracer, load_tracer),
        ("DMA channels of the kernel", state(!channels.is_empty(), found), load_engine),
    ]
}

fn devices(files: &Files) -> Vec<Finding> {
    let boards = FAMILIES.iter().map(|family| {
        let nodes = family.cards.nodes(files);
        let none = || Err("none".to_owned());
        let found = if nodes.is_empty() { none() } else { Ok(nodes.join(", ")) };
        (family.name, found, family.remedy)
    });
    let fuse = files.root().join("dev/fuse").exists();
    let helpers = ["usr/bin/fusermount3", "bin/fusermount3"];
    let helper = is_root() || helpers.iter().any(|path| files.root().join(path).exists());
    let (fuse, remedy) = match cfg!(feature = "fuse") {
        true => (
            state(fuse && helper, if fuse { "there" } else { "none" }),
            "modprobe fuse; apt install fuse3 for users other than root",
        ),
        // No lack of the host.
        false => (Ok("not built in: --features fuse".to_owned()), ""),
    };
    boards.chain([("serving emulated boards", fuse, remedy)]).collect()
}
