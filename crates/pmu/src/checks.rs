//! Counters held against loads whose bytes are known: which counters, within which bounds, with which verdict.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use daqmeter_harness::{Context, Tally};
use daqmeter_record::{Counter, EngineInfo, RunRecord, Workload};

use crate::count::Count;
use crate::event::EventResolver;
use crate::groups::{INSTEAD, MetricGroup};
use crate::source::KernelOpener;
use crate::system::SystemCounter;
use crate::verify::{
    Band, BlockFile, CounterVerdict, LoadError, Moved, fio, loopback, memory, netperf, warm,
};

/// A known load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifyLoad {
    /// Reads of what no cache holds.
    Memory,
    /// Reads of a file or a disk past the page cache.
    Block,
    /// A TCP stream.
    Net,
}

impl VerifyLoad {
    /// All three.
    pub const ALL: [VerifyLoad; 3] = [VerifyLoad::Memory, VerifyLoad::Block, VerifyLoad::Net];

    /// Name in options and records.
    pub fn name(self) -> &'static str {
        match self {
            VerifyLoad::Memory => "memory",
            VerifyLoad::Block => "block",
            VerifyLoad::Net => "net",
        }
    }
}

/// Another program as the load, with the document's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// For `block`.
    Fio,
    /// For `net`.
    Netperf,
}

impl Program {
    /// Both.
    pub const ALL: [Program; 2] = [Program::Fio, Program::Netperf];

    /// Name in options.
    pub fn name(self) -> &'static str {
        match self {
            Program::Fio => "fio",
            Program::Netperf => "netperf",
        }
    }
}

/// Which loads, and what they are held against.
#[derive(Clone, Debug)]
pub struct VerifyRequest {
    /// The loads, in turn.
    pub loads: Vec<VerifyLoad>,
    /// Time of each load.
    pub time: Duration,
    /// File or block device to read; none makes one in the present directory.
    pub file: Option<PathBuf>,
    /// Size of the file that is made.
    pub file_bytes: u64,
    /// Another program as the load.
    pub with: Option<Program>,
    /// Host that netserver runs on; none is this one.
    pub host: Option<String>,
    /// Deviation of an interconnect's counter that passes, as a fraction.
    pub tolerance: f64,
    /// An event to hold against the loads as well.
    pub event: Option<String>,
    /// Bytes that one count of the event stands for.
    pub bytes_per_event: f64,
    /// Pause between the end of a load and the last look at the counters.
    pub settle: Duration,
}

impl Default for VerifyRequest {
    /// All loads, for a second each, 5 %.
    fn default() -> VerifyRequest {
        VerifyRequest {
            loads: VerifyLoad::ALL.to_vec(),
            time: Duration::from_secs(1),
            file: None,
            file_bytes: 256 << 20,
            with: None,
            host: None,
            tolerance: 0.05,
            event: None,
            bytes_per_event: 1.0,
            settle: Duration::from_millis(20),
        }
    }
}

/// What counts the bytes of a load.
struct Meter {
    event: String,
    bytes_per_event: f64,
    band: Band,
}

/// One counter beside one load.
#[derive(Clone, Debug, PartialEq)]
pub struct CounterCheck {
    /// Name of the load.
    pub load: &'static str,
    /// What the load was.
    pub how: String,
    /// The event.
    pub counter: String,
    /// Bytes that the load moved.
    pub payload: u64,
    /// Bytes that were counted.
    pub counted: Option<f64>,
    /// What follows.
    pub verdict: CounterVerdict,
}

impl CounterCheck {
    fn waived(load: &'static str, counter: &str, reason: impl Into<String>) -> CounterCheck {
        let verdict = CounterVerdict::Waived(reason.into());
        CounterCheck {
            load,
            how: String::new(),
            counter: counter.to_owned(),
            payload: 0,
            counted: None,
            verdict,
        }
    }

    /// Bytes counted for each byte moved.
    pub fn ratio(&self) -> Option<f64> {
        Some(self.counted? / self.payload.max(1) as f64)
    }

    /// What went wrong, in one line.
    fn sentence(&self) -> String {
        let ratio = self.ratio().map_or("nothing".to_owned(), |ratio| format!("{ratio:.6}"));
        format!("{}: {} counted {ratio} of the payload", self.load, self.counter)
    }
}

/// Puts every load on, until it is to stop: the checks that were finished before.
fn gather(
    request: &VerifyRequest,
    host: &EventResolver<'_>,
    stop: &AtomicBool,
) -> Result<Vec<CounterCheck>, LoadError> {
    let mut checks = Vec::new();
    for load in &request.loads {
        let of_load = match load {
            VerifyLoad::Memory => of_memory(request, host, stop)?,
            VerifyLoad::Block => of_block(request, host, stop)?,
            VerifyLoad::Net => of_net(request, host, stop)?,
        };
        // A load that was cut short is not a check: what is under way in it may not be counted yet.
        if stop.load(Ordering::Relaxed) {
            break;
        }
        checks.extend(of_load);
    }
    Ok(checks)
}

/// Bytes read from memory, by whatever counts them here.
fn of_memory(
    request: &VerifyRequest,
    host: &EventResolver<'_>,
    stop: &AtomicBool,
) -> Result<Vec<CounterCheck>, LoadError> {
    let band = Band::around(request.tolerance);
    let mut meters = vec![];
    let known = [
        ("memory", "arm_cmn/hnf_mc_reqs/", 64.0),
        ("imc", "uncore_imc/cas_count_read/", 1_048_576.0),
    ];
    for (name, text, bytes_per_event) in known {
        if MetricGroup::find(name).is_ok_and(|group| group.is_there(host.pmus)) {
            meters.push(Meter { event: text.to_owned(), bytes_per_event, band });
        }
    }
    let total = "resctrl.mon_L3_00.mbm_total_bytes";
    if SystemCounter::find(host.files, total).is_some() {
        meters.push(Meter { event: total.to_owned(), bytes_per_event: 1.0, band });
    }
    meters.extend(own_meter(request, band));
    if meters.is_empty() {
        return Ok(vec![CounterCheck::waived("memory", "none", INSTEAD)]);
    }
    let last_level =
        daqmeter_harness::facts::host_facts(host.files, Vec::new()).last_level_cache_bytes();
    held_against("memory", host, request, &meters, || memory(request.time, last_level, stop))
}

fn own_meter(request: &VerifyRequest, band: Band) -> Option<Meter> {
    let text = request.event.clone()?;
    Some(Meter { event: text, bytes_per_event: request.bytes_per_event, band })
}

/// Beats of 32 bytes that PCIe devices write to memory.
fn pcie_meter(request: &VerifyRequest, host: &EventResolver<'_>) -> Option<Meter> {
    let text = "arm_cmn/rnid_s0_wdata_beats/";
    let there = MetricGroup::find("pcie").is_ok_and(|group| group.is_there(host.pmus));
    there.then(|| Meter {
        event: text.to_owned(),
        bytes_per_event: 32.0,
        // Descriptors and headers are counted, too: 1.002 for a disk, 1.094 for Ethernet in the document.
        band: Band { low: 1.0 - request.tolerance, high: 1.1 + request.tolerance },
    })
}

/// An overlay or a network lies between the file and its disk.
const NO_DISK: &str = "the file lies on no block device of its own (overlay, network)";

fn of_block(
    request: &VerifyRequest,
    host: &EventResolver<'_>,
    stop: &AtomicBool,
) -> Result<Vec<CounterCheck>, LoadError> {
    let file = match &request.file {
        Some(path) => BlockFile::existing(path)?,
        None => match BlockFile::temporary(Path::new("."), request.file_bytes.max(1 << 20), stop) {
            Ok(file) => file,
            Err(LoadError(reason)) => {
                return Ok(vec![CounterCheck::waived("block", "none", reason)]);
            }
        },
    };
    let (mut meters, mut unseen) = (Vec::new(), Vec::new());
    match &file.disk {
        Some(disk) => {
            let text = format!("disk.{disk}.read_bytes");
            meters.push(Meter {
                event: text,
                bytes_per_event: 1.0,
                band: Band::payload_and(request.tolerance),
            });
        }
        None => unseen.push(CounterCheck::waived("block", "disk", NO_DISK)),
    }
    meters.extend(pcie_meter(request, host));
    meters.extend(own_meter(request, Band::around(request.tolerance)));
    if meters.is_empty() {
        return Ok(vec![CounterCheck::waived(
            "block",
            "none",
            format!("{NO_DISK}; give one with --file"),
        )]);
    }
    if request.with == Some(Program::Fio) {
        warm("fio", "--version")?;
    }
    let load = || match (request.with, &request.file) {
        (Some(Program::Fio), Some(path)) => fio(path, request.time),
        (Some(Program::Fio), None) => {
            Err(LoadError("--with fio needs --file, which it reads".to_owned()))
        }
        _ => file.read(request.time, stop),
    };
    unseen.extend(held_against("block", host, request, &meters, load)?);
    Ok(unseen)
}

fn of_net(
    request: &VerifyRequest,
    host: &EventResolver<'_>,
    stop: &AtomicBool,
) -> Result<Vec<CounterCheck>, LoadError> {
    let is_real = request.with == Some(Program::Netperf);
    let peer = request.host.as_deref().unwrap_or("127.0.0.1");
    let local = !is_real || peer == "127.0.0.1" || peer == "localhost";
    let text = if local { "net.lo.rx_bytes" } else { "net.rx_bytes" };
    // Headers: 66 bytes of 65549 on loopback, 66 of 1514 on Ethernet.
    let band = Band::payload_and(if local { request.tolerance.max(0.01) } else { 0.1 });
    let mut meters = vec![Meter { event: text.to_owned(), bytes_per_event: 1.0, band }];
    if !local {
        meters.extend(pcie_meter(request, host));
    }
    meters.extend(own_meter(request, Band { low: 1.0, high: 1.1 + request.tolerance }));
    let load = || {
        if is_real { netperf(peer, request.time, stop) } else { loopback(request.time, stop) }
    };
    held_against("net", host, request, &meters, load)
}

/// Runs a load once and holds every meter against it.
fn held_against(
    load: &'static str,
    host: &EventResolver<'_>,
    request: &VerifyRequest,
    meters: &[Meter],
    run: impl FnOnce() -> Result<Moved, LoadError>,
) -> Result<Vec<CounterCheck>, LoadError> {
    let mut open = Vec::new();
    let mut waived = Vec::new();
    for meter in meters {
        let set = host
            .resolve(std::slice::from_ref(&meter.event))
            .map_err(|error| LoadError(error.to_string()))?;
        match Count::open(&set, &meter.event, &mut KernelOpener { files: host.files.clone() }) {
            Ok(count) => open.push((meter, count)),
            Err(refused) => waived.push(CounterCheck::waived(load, &meter.event, refused.reason)),
        }
    }
    open.iter_mut().for_each(|(_, count)| count.begin(0));
    let moved = match run() {
        Ok(moved) => moved,
        Err(LoadError(reason)) if request.with.is_some() || request.file.is_some() => {
            return Err(LoadError(reason));
        }
        Err(LoadError(reason)) => return Ok(vec![CounterCheck::waived(load, "none", reason)]),
    };
    // What is under way when the load ends is counted, too.
    std::thread::sleep(request.settle);
    let checks = open.into_iter().map(|(meter, count)| judged(load, meter, count, &moved));
    Ok(checks.chain(waived).collect())
}

/// What one counter saw of what was moved.
fn judged(load: &'static str, meter: &Meter, mut count: Count, moved: &Moved) -> CounterCheck {
    count.interval();
    let observed = count.finish();
    let events = observed.events.iter();
    let counts: Option<f64> = events.map(|event| Some(event.total_scaled()?.0)).sum();
    let counted = counts.map(|counts| counts * meter.bytes_per_event);
    let verdict = counted.map_or_else(
        || CounterVerdict::Waived("the counter never ran".to_owned()),
        |counted| meter.band.judge(counted, moved.bytes),
    );
    CounterCheck {
        load,
        how: moved.how.clone(),
        counter: meter.event.clone(),
        payload: moved.bytes,
        counted,
        verdict,
    }
}

/// Puts the loads on, and records what the counters made of them.
///
/// # Errors
/// When an event is not known, or a load that was asked for by name cannot be made.
pub fn checked(
    request: &VerifyRequest,
    host: &EventResolver<'_>,
    context: &Context,
    stop: &AtomicBool,
) -> Result<(Vec<CounterCheck>, RunRecord), LoadError> {
    let info = EngineInfo { name: "pmu".into(), target: "verify".into(), emulated: false };
    let pmus: Vec<&str> = host.pmus.iter().map(|pmu| pmu.name.as_str()).collect();
    let workload = Workload::new("pmu-verify").with("pmus", pmus.join(", "));
    let watched = context.watch("pmu/verify", info, workload);
    let checks = gather(request, host, stop)?;
    let found = Tally {
        counters: checks.iter().flat_map(counters).collect(),
        warnings: checks.iter().filter_map(waiver).collect(),
        ..Tally::default()
    };
    let is_failed = |check: &&CounterCheck| check.verdict == CounterVerdict::Fail;
    let faults = checks.iter().filter(is_failed).map(CounterCheck::sentence);
    let record = watched.end(found, None, faults.collect());
    Ok((checks, record))
}

/// What a load moved, and what was counted of it.
fn counters(check: &CounterCheck) -> Vec<Counter> {
    let Some(counted) = check.counted else {
        return Vec::new();
    };
    let name = format!("{}: {}", check.load, check.counter);
    let bytes = |name: String, value: f64| Counter {
        name: name.into(),
        value,
        unit: "B".into(),
        share: 1.0,
    };
    vec![bytes(format!("{name}, payload"), check.payload as f64), bytes(name, counted)]
}

fn waiver(check: &CounterCheck) -> Option<String> {
    match &check.verdict {
        CounterVerdict::Waived(reason) => Some(format!("{}: {reason}", check.load)),
        CounterVerdict::Pass | CounterVerdict::Fail => None,
    }
}

#[cfg(test)]
mod tests {
    use daqmeter_record::Outcome;
    use daqmeter_sys::host::Files;

    use super::*;

    fn check(verdict: CounterVerdict) -> CounterCheck {
        CounterCheck {
            load: "net",
            how: "loopback".to_owned(),
            counter: "net.lo.rx_bytes".to_owned(),
            payload: 1000,
            counted: Some(900.0),
            verdict,
        }
    }

    #[test]
    fn a_counter_that_misses_bytes_is_named_with_its_ratio() {
        let failed = check(CounterVerdict::Fail);
        assert_eq!(failed.sentence(), "net: net.lo.rx_bytes counted 0.900000 of the payload");
        let counted: Vec<f64> = counters(&failed).iter().map(|counter| counter.value).collect();
        assert_eq!(counted, [1000.0, 900.0]);
        assert_eq!(waiver(&failed), None);
        let waived = CounterCheck::waived("block", "none", "no disk");
        assert_eq!(waiver(&waived).as_deref(), Some("block: no disk"));
        assert!(counters(&waived).is_empty());
    }

    #[test]
    fn loads_that_were_cut_short_are_no_checks() {
        let files = Files::default();
        let host = EventResolver { pmus: &[], files: &files };
        let request = VerifyRequest {
            loads: vec![VerifyLoad::Memory],
            time: Duration::from_millis(1),
            ..VerifyRequest::default()
        };
        let stop = AtomicBool::new(true);
        let checked = checked(&request, &host, &Context::default(), &stop);
        let (checks, record) = checked.unwrap();
        assert_eq!((checks.len(), record.outcome), (0, Outcome::Ok));
        assert_eq!(record.study, "pmu/verify");
    }
}
