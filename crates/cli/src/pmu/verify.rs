//! `daqmeter pmu verify`: counters against loads whose bytes are known.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Args, ValueEnum};
use daqmeter_harness::{Context, Tally};
use daqmeter_pmu::source::Kernel;
use daqmeter_pmu::verify::{
    Band, BlockFile, LoadError, Moved, Verdict, fio, loopback, memory, netperf, warm,
};
use daqmeter_pmu::{Count, Group, Host};
use daqmeter_record::units::significant;
use daqmeter_record::{Counter, EngineInfo, Outcome, RunRecord, Workload};
use daqmeter_report::table::numbers_from;

use super::chosen::{Place, Setting};
use crate::arguments::duration;
use crate::output::{Failure, Recorder, tell};
use crate::runner::{context, on_ctrl_c};

/// Count while a known load runs, and compare bytes: PASS or FAIL, with the ratio.
///
/// Loads: memory (reads of what no cache holds), block (reads past the page cache), net (TCP over loopback, or netperf from a host).
#[derive(Debug, Args)]
#[command(
    after_long_help = "Examples:\n\n  $ daqmeter pmu verify\n  $ daqmeter pmu verify block --with fio --file /dev/nvme0n1p5 --time 10s   # the document's fio comparison\n  $ daqmeter pmu verify net --with netperf --host lab7 --time 10s           # the document's netperf comparison\n\nExit 1 when a counter fails. A counter that this host does not have is waived, with what stands for it. Files are only read; without\n--file one of 256 MiB is made in the present directory and removed."
)]
pub(crate) struct Arguments {
    /// Which loads; all of them without it
    #[arg(value_enum)]
    loads: Vec<Load>,
    /// Time of each load
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1s")]
    time: Duration,
    /// File or block device to read
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Size of the file that is made when none is given
    #[arg(long, value_name = "BYTES", value_parser = crate::arguments::bytes, default_value = "256MiB")]
    file_bytes: u64,
    /// Other programs as loads, with the document's arguments
    #[arg(long, value_enum)]
    with: Option<With>,
    /// Host that netserver runs on; without it this one
    #[arg(long, value_name = "HOST", requires = "with")]
    host: Option<String>,
    /// Deviation of an interconnect's counter that passes
    #[arg(long, value_name = "FRACTION", default_value = "0.05")]
    tolerance: f64,
    /// An event to hold against the load, instead of those known: its counts times --bytes-per-event
    #[arg(short, long, value_name = "EVENT")]
    event: Option<String>,
    /// Bytes that one count of --event stands for
    #[arg(long, value_name = "N", default_value = "1")]
    bytes_per_event: f64,
    /// Pause between the end of a load and the last look at the counters
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "20ms")]
    settle: Duration,
    /// Append the record to this file (JSON lines)
    #[arg(long, value_name = "FILE.jsonl", help_heading = "Output")]
    out: Option<PathBuf>,
    /// Print the record instead of a table
    #[arg(long, help_heading = "Output")]
    json: bool,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Load {
    Memory,
    Block,
    Net,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum With {
    Fio,
    Netperf,
}

/// What counts the bytes of a load.
struct Meter {
    event: String,
    bytes_per_event: f64,
    band: Band,
}

/// One line of the result.
struct Check {
    load: &'static str,
    how: String,
    counter: String,
    payload: u64,
    counted: Option<f64>,
    verdict: Verdict,
}

impl Check {
    fn waived(load: &'static str, counter: &str, reason: impl Into<String>) -> Check {
        let verdict = Verdict::Waived(reason.into());
        Check {
            load,
            how: String::new(),
            counter: counter.to_owned(),
            payload: 0,
            counted: None,
            verdict,
        }
    }

    fn ratio(&self) -> Option<f64> {
        Some(self.counted? / self.payload.max(1) as f64)
    }

    /// What went wrong, in one line.
    fn sentence(&self) -> String {
        let ratio = self
            .ratio()
            .map_or("nothing".to_owned(), |ratio| format!("{ratio:.6}"));
        format!(
            "{}: {} counted {ratio} of the payload",
            self.load, self.counter
        )
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if arguments.place.emulated.is_some() {
        return Err(Failure::refused(
            "an emulated mesh sees no load of this host; cargo xtask pmu-vm closes the loop on emulated registers",
        ));
    }
    if !(0.0..1.0).contains(&arguments.tolerance) {
        return Err(Failure::refused(
            "--tolerance: a fraction below 1 is wanted, e.g. 0.05",
        ));
    }
    let setting = arguments.place.setting()?;
    let mut recorder = Recorder::new(arguments.out.as_deref(), arguments.json)?;
    let loads = loads(arguments)?;
    let stop = Arc::new(AtomicBool::new(false));
    on_ctrl_c(&stop)?;
    let (checks, record) = checked(arguments, &setting, &loads, &context(), &stop)?;
    recorder.take(record)?;
    recorder.finish(None, false, |_| text(&checks))
}

/// The loads asked for, all without; options that belong to one of them choose it, and are refused beside others.
fn loads(arguments: &Arguments) -> Result<Vec<Load>, Failure> {
    let of_with = arguments.with.map(|with| match with {
        With::Fio => (Load::Block, "--with fio"),
        With::Netperf => (Load::Net, "--with netperf"),
    });
    let of_file = arguments.file.as_ref().map(|_| (Load::Block, "--file"));
    let mut loads = arguments.loads.clone();
    for (load, option) in of_with.into_iter().chain(of_file) {
        if loads.is_empty() {
            loads.push(load);
        }
        if !loads.contains(&load) {
            let name = if load == Load::Block { "block" } else { "net" };
            return Err(Failure::refused(format!(
                "{option} belongs to the load {name}: daqmeter pmu verify {name} {option}"
            )));
        }
    }
    if loads.is_empty() {
        loads = vec![Load::Memory, Load::Block, Load::Net];
    }
    Ok(loads)
}

/// The checks of a survey, as a record: short loads, a small file in the present directory.
pub(crate) fn survey(time: Duration, context: &Context, stop: &AtomicBool) -> Option<RunRecord> {
    let arguments = Arguments {
        loads: Vec::new(),
        time,
        file: None,
        file_bytes: 32 << 20,
        with: None,
        host: None,
        tolerance: 0.05,
        event: None,
        bytes_per_event: 1.0,
        settle: Duration::from_millis(20),
        out: None,
        json: false,
        place: Place::default(),
    };
    let setting = arguments.place.setting().ok()?;
    let loads = [Load::Memory, Load::Block, Load::Net];
    let (_, mut record) = checked(&arguments, &setting, &loads, context, stop).ok()?;
    record.study = "survey/counters".to_owned();
    // Others' traffic may be on a disk: a counter that differs is told, and fails no survey.
    if let Outcome::Failed(reason) = std::mem::take(&mut record.outcome) {
        record
            .warnings
            .push(format!("FAILED: {reason} (daqmeter pmu verify)"));
    }
    Some(record)
}

/// Puts every load on, until it is to stop: the checks that were finished before.
fn gather(
    arguments: &Arguments,
    setting: &Setting,
    loads: &[Load],
    stop: &AtomicBool,
) -> Result<Vec<Check>, Failure> {
    let mut checks = Vec::new();
    for load in loads {
        let of_load = match load {
            Load::Memory => of_memory(arguments, setting, stop)?,
            Load::Block => of_block(arguments, setting, stop)?,
            Load::Net => of_net(arguments, setting, stop)?,
        };
        // A load that was cut short is no check: what is under way in it may not be counted yet.
        if stop.load(Ordering::Relaxed) {
            break;
        }
        checks.extend(of_load);
    }
    Ok(checks)
}

/// Bytes read from memory, by whatever counts them here.
fn of_memory(
    arguments: &Arguments,
    setting: &Setting,
    stop: &AtomicBool,
) -> Result<Vec<Check>, Failure> {
    let band = Band::around(arguments.tolerance);
    let mut meters = vec![];
    let known = [
        ("memory", "arm_cmn/hnf_mc_reqs/", 64.0),
        ("imc", "uncore_imc/cas_count_read/", 1_048_576.0),
    ];
    for (name, text, bytes_per_event) in known {
        if Group::find(name).is_ok_and(|group| group.is_there(&setting.pmus)) {
            meters.push(Meter {
                event: text.to_owned(),
                bytes_per_event,
                band,
            });
        }
    }
    let total = "resctrl.mon_L3_00.mbm_total_bytes";
    if daqmeter_pmu::system::SystemCounter::find(&setting.files, total).is_some() {
        meters.push(Meter {
            event: total.to_owned(),
            bytes_per_event: 1.0,
            band,
        });
    }
    meters.extend(own_meter(arguments, band));
    if meters.is_empty() {
        return Ok(vec![Check::waived(
            "memory",
            "none",
            daqmeter_pmu::groups::INSTEAD,
        )]);
    }
    let last_level =
        daqmeter_harness::facts::host_facts(&setting.files, Vec::new()).last_level_cache_bytes();
    held_against("memory", setting, arguments, &meters, || {
        memory(arguments.time, last_level, stop)
    })
}

fn own_meter(arguments: &Arguments, band: Band) -> Option<Meter> {
    let text = arguments.event.clone()?;
    Some(Meter {
        event: text,
        bytes_per_event: arguments.bytes_per_event,
        band,
    })
}

/// Beats of 32 bytes that PCIe devices write to memory.
fn pcie_meter(arguments: &Arguments, setting: &Setting) -> Option<Meter> {
    let text = "arm_cmn/rnid_s0_wdata_beats/";
    let there = Group::find("pcie").is_ok_and(|group| group.is_there(&setting.pmus));
    there.then(|| Meter {
        event: text.to_owned(),
        bytes_per_event: 32.0,
        // Descriptors and headers are counted, too: 1.002 for a disk, 1.094 for Ethernet in the document.
        band: Band {
            low: 1.0 - arguments.tolerance,
            high: 1.1 + arguments.tolerance,
        },
    })
}

fn of_block(
    arguments: &Arguments,
    setting: &Setting,
    stop: &AtomicBool,
) -> Result<Vec<Check>, Failure> {
    let file = match &arguments.file {
        Some(path) => BlockFile::existing(path).map_err(Failure::refused)?,
        None => match BlockFile::temporary(Path::new("."), arguments.file_bytes.max(1 << 20), stop)
        {
            Ok(file) => file,
            Err(LoadError(reason)) => return Ok(vec![Check::waived("block", "none", reason)]),
        },
    };
    let mut meters = Vec::new();
    match &file.disk {
        Some(disk) => {
            let text = format!("disk.{disk}.read_bytes");
            meters.push(Meter {
                event: text,
                bytes_per_event: 1.0,
                band: Band::payload_and(arguments.tolerance),
            });
        }
        None => tell(
            "daqmeter: the file lies on no block device of its own (overlay, network): its disk cannot be counted",
        ),
    }
    meters.extend(pcie_meter(arguments, setting));
    meters.extend(own_meter(arguments, Band::around(arguments.tolerance)));
    if meters.is_empty() {
        return Ok(vec![Check::waived(
            "block",
            "none",
            "no block device behind the file; give one with --file",
        )]);
    }
    if arguments.with == Some(With::Fio) {
        warm("fio", "--version").map_err(Failure::refused)?;
    }
    let load = || match (arguments.with, &arguments.file) {
        (Some(With::Fio), Some(path)) => fio(path, arguments.time),
        (Some(With::Fio), None) => Err(LoadError(
            "--with fio needs --file, which it reads".to_owned(),
        )),
        _ => file.read(arguments.time, stop),
    };
    held_against("block", setting, arguments, &meters, load)
}

fn of_net(
    arguments: &Arguments,
    setting: &Setting,
    stop: &AtomicBool,
) -> Result<Vec<Check>, Failure> {
    let is_real = arguments.with == Some(With::Netperf);
    let peer = arguments.host.as_deref().unwrap_or("127.0.0.1");
    let local = !is_real || peer == "127.0.0.1" || peer == "localhost";
    let text = if local {
        "net.lo.rx_bytes"
    } else {
        "net.rx_bytes"
    };
    // Headers: 66 bytes of 65549 on loopback, 66 of 1514 on Ethernet.
    let band = Band::payload_and(if local {
        arguments.tolerance.max(0.01)
    } else {
        0.1
    });
    let mut meters = vec![Meter {
        event: text.to_owned(),
        bytes_per_event: 1.0,
        band,
    }];
    if !local {
        meters.extend(pcie_meter(arguments, setting));
    }
    meters.extend(own_meter(
        arguments,
        Band {
            low: 1.0,
            high: 1.1 + arguments.tolerance,
        },
    ));
    let load = || {
        if is_real {
            netperf(peer, arguments.time)
        } else {
            loopback(arguments.time, stop)
        }
    };
    held_against("net", setting, arguments, &meters, load)
}

/// Runs a load once and holds every meter against it.
fn held_against(
    load: &'static str,
    setting: &Setting,
    arguments: &Arguments,
    meters: &[Meter],
    run: impl FnOnce() -> Result<Moved, LoadError>,
) -> Result<Vec<Check>, Failure> {
    let host = Host {
        pmus: &setting.pmus,
        files: &setting.files,
    };
    let mut open = Vec::new();
    let mut waived = Vec::new();
    for meter in meters {
        let set = host
            .resolve(std::slice::from_ref(&meter.event))
            .map_err(Failure::refused)?;
        match Count::open(
            &set,
            &meter.event,
            &mut Kernel {
                files: setting.files.clone(),
            },
        ) {
            Ok(count) => open.push((meter, count)),
            Err(refused) => waived.push(Check::waived(load, &meter.event, refused.reason)),
        }
    }
    open.iter_mut().for_each(|(_, count)| count.begin(0));
    let moved = match run() {
        Ok(moved) => moved,
        Err(LoadError(reason)) if arguments.with.is_some() || arguments.file.is_some() => {
            return Err(Failure::refused(reason));
        }
        Err(LoadError(reason)) => return Ok(vec![Check::waived(load, "none", reason)]),
    };
    // What is under way when the load ends is counted, too.
    std::thread::sleep(arguments.settle);
    let checks = open.into_iter().map(|(meter, mut count)| {
        count.interval();
        let observed = count.finish();
        let counts: Option<f64> = observed
            .events
            .iter()
            .map(|event| Some(event.total_scaled()?.0))
            .sum();
        let counted = counts.map(|counts| counts * meter.bytes_per_event);
        let verdict = counted.map_or_else(
            || Verdict::Waived("the counter never ran".to_owned()),
            |counted| meter.band.judge(counted, moved.bytes),
        );
        Check {
            load,
            how: moved.how.clone(),
            counter: meter.event.clone(),
            payload: moved.bytes,
            counted,
            verdict,
        }
    });
    Ok(checks.chain(waived).collect())
}

fn text(checks: &[Check]) -> String {
    let rows = checks.iter().map(|check| {
        let (verdict, note) = match &check.verdict {
            Verdict::Pass => ("PASS", check.how.clone()),
            Verdict::Fail => ("FAIL", check.how.clone()),
            Verdict::Waived(reason) => ("waived", reason.clone()),
        };
        let bytes = |bytes: f64| daqmeter_report::pmu::tables::grouped(bytes);
        vec![
            check.load.to_owned(),
            check.counter.clone(),
            note,
            if check.payload > 0 {
                bytes(check.payload as f64)
            } else {
                "-".to_owned()
            },
            check.counted.map_or("-".to_owned(), bytes),
            check
                .ratio()
                .map_or("-".to_owned(), |ratio| significant(ratio, 7)),
            verdict.to_owned(),
        ]
    });
    numbers_from(
        3,
        &[
            "load",
            "counter",
            "how",
            "payload [B]",
            "counted [B]",
            "ratio",
            "verdict",
        ],
        rows,
    )
}

/// Puts the loads on, and records what the counters made of them.
fn checked(
    arguments: &Arguments,
    setting: &Setting,
    loads: &[Load],
    context: &Context,
    stop: &AtomicBool,
) -> Result<(Vec<Check>, RunRecord), Failure> {
    let info = EngineInfo {
        name: "pmu".to_owned(),
        target: "verify".to_owned(),
        emulated: false,
    };
    let pmus: Vec<&str> = setting.pmus.iter().map(|pmu| pmu.name.as_str()).collect();
    let workload = Workload::new("pmu-verify").with("pmus", pmus.join(", "));
    let watched = context.watch("pmu/verify", info, workload);
    let checks = gather(arguments, setting, loads, stop)?;
    let found = Tally {
        counters: checks.iter().flat_map(counters).collect(),
        warnings: checks.iter().filter_map(waiver).collect(),
        ..Tally::default()
    };
    let is_failed = |check: &&Check| check.verdict == Verdict::Fail;
    let faults = checks.iter().filter(is_failed).map(Check::sentence);
    let record = watched.end(found, None, faults.collect());
    Ok((checks, record))
}

/// What a load moved, and what was counted of it.
fn counters(check: &Check) -> Vec<Counter> {
    let Some(counted) = check.counted else {
        return Vec::new();
    };
    let name = format!("{}: {}", check.load, check.counter);
    let bytes = |name: String, value: f64| Counter {
        name,
        value,
        unit: "B".to_owned(),
        share: 1.0,
    };
    vec![
        bytes(format!("{name}, payload"), check.payload as f64),
        bytes(name, counted),
    ]
}

fn waiver(check: &Check) -> Option<String> {
    match &check.verdict {
        Verdict::Waived(reason) => Some(format!("{}: {reason}", check.load)),
        Verdict::Pass | Verdict::Fail => None,
    }
}
