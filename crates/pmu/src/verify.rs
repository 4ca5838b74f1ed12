//! Counters compared with loads of known bytes: the counters, the bounds and the verdicts.

mod loads;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Parser, ValueEnum};
use daqmeter_harness::{Context, Fault, Tally};
use daqmeter_record::units::parse_duration;
use daqmeter_record::{Counter, EngineInfo, RunRecord, Workload};

use crate::count::{Count, Selection};
use crate::event::EventResolver;
use crate::groups::{INSTEAD, MetricGroup};
use crate::source::KernelOpener;
use loads::{BlockFile, FIO, Moved, NETPERF, loopback, memory};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum VerifyLoad {
    /// Reads of memory that no cache holds
    Memory,
    /// Reads past the page cache
    Block,
    /// TCP over loopback
    Net,
    /// The document's fio on --file
    Fio,
    /// The document's netperf from --host
    Netperf,
}

impl VerifyLoad {
    fn name(self) -> &'static str {
        match self {
            VerifyLoad::Memory => "memory",
            VerifyLoad::Block | VerifyLoad::Fio => "block",
            VerifyLoad::Net | VerifyLoad::Netperf => "net",
        }
    }
}

const LOOPBACK: &str = "127.0.0.1";

// Options of `pmu verify`; their comments are its help.
#[derive(Clone, Debug, Parser)]
pub struct VerifyRequest {
    /// Which loads
    #[arg(value_name = "LOADS", default_values = ["memory", "block", "net"])]
    pub loads: Vec<VerifyLoad>,
    /// Time of each load
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "1s")]
    pub time: Duration,
    /// File or block device to read; without it a new file, which is removed
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Host that netserver runs on
    #[arg(long, value_name = "HOST", default_value = LOOPBACK)]
    pub host: String,
    /// An event to hold against the load, too: its counts times --bytes-per-event
    #[arg(short, long, value_name = "EVENT")]
    pub event: Option<String>,
    /// Bytes that one count of --event stands for
    #[arg(long, value_name = "N", default_value = "1", requires = "event")]
    pub bytes_per_event: f64,
    /// Pause between the end of a load and the last look at the counters
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "20ms")]
    pub settle: Duration,
}

impl VerifyRequest {
    /// Loads of a survey: short, without a file of the user.
    pub fn survey(time: Duration) -> VerifyRequest {
        VerifyRequest { time, ..VerifyRequest::parse_from(["verify"]) }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum CounterVerdict {
    Pass,
    Fail,
    /// Not comparable here, for this reason.
    Waived(String),
}

/// Deviation of an interconnect's counter that passes: the published comparison with fio is 0.2 %
/// off, and short loads share the host.
const TOLERANCE: f64 = 0.05;

/// Bounds of the ratio of counted to moved bytes.
type Band = (f64, f64);

const AROUND: Band = (1.0 - TOLERANCE, 1.0 + TOLERANCE);
const WITH_DESCRIPTORS: Band = (1.0 - TOLERANCE, 1.1 + TOLERANCE);

fn judge((low, high): Band, counted: f64, payload: u64) -> CounterVerdict {
    // A counter of single bytes must be exact.
    let ratio = counted / payload.max(1) as f64;
    let passes = ratio >= low - 1e-9 && ratio <= high;
    if passes { CounterVerdict::Pass } else { CounterVerdict::Fail }
}

struct Meter {
    event: String,
    bytes_per_event: f64,
    band: Band,
}

fn meter(event: impl Into<String>, bytes_per_event: f64, band: Band) -> Meter {
    Meter { event: event.into(), bytes_per_event, band }
}

#[derive(Clone, Debug, PartialEq)]
pub struct CounterCheck {
    pub load: &'static str,
    pub how: String,
    pub counter: String,
    pub payload: u64,
    pub counted: Option<f64>,
    pub verdict: CounterVerdict,
}

impl CounterCheck {
    fn waived(load: VerifyLoad, counter: &str, reason: impl Into<String>) -> CounterCheck {
        CounterCheck {
            load: load.name(),
            how: String::new(),
            counter: counter.to_owned(),
            payload: 0,
            counted: None,
            verdict: CounterVerdict::Waived(reason.into()),
        }
    }

    pub fn ratio(&self) -> Option<f64> {
        Some(self.counted? / self.payload.max(1) as f64)
    }

    fn sentence(&self) -> String {
        let ratio = self.ratio().map_or("nothing".to_owned(), |ratio| format!("{ratio:.6}"));
        format!("{}: {} counted {ratio} of the payload", self.load, self.counter)
    }

    fn counters(&self) -> Vec<Counter> {
        let Some(counted) = self.counted else {
            return Vec::new();
        };
        let name = format!("{}: {}", self.load, self.counter);
        let bytes = |name: String, value| Counter { name, value, unit: "B".into(), share: 1.0 };
        vec![bytes(format!("{name}, payload"), self.payload as f64), bytes(name, counted)]
    }

    fn waiver(&self) -> Option<String> {
        match &self.verdict {
            CounterVerdict::Waived(reason) => Some(format!("{}: {reason}", self.load)),
            CounterVerdict::Pass | CounterVerdict::Fail => None,
        }
    }
}

const NO_DISK: &str =
    "the file lies on no block device of its own (overlay, network); give one with --file";

struct Verification<'a> {
    request: &'a VerifyRequest,
    host: &'a EventResolver<'a>,
    stop: &'a AtomicBool,
}

impl Verification<'_> {
    fn checks(&self) -> Result<Vec<CounterCheck>, Fault> {
        let mut checks = Vec::new();
        for load in &self.request.loads {
            let of_load = match load {
                VerifyLoad::Memory => self.memory()?,
                VerifyLoad::Block | VerifyLoad::Fio => self.block(*load)?,
                VerifyLoad::Net | VerifyLoad::Netperf => self.net(*load)?,
            };
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            checks.extend(of_load);
        }
        Ok(checks)
    }

    /// Returns the counters of the groups that this host can count and that name the load.
    fn meters(&self, load: &str, band: Band) -> Vec<Meter> {
        let is_there = |group: &MetricGroup| group.missing(self.host, &[]).is_none();
        let there = MetricGroup::shipped().filter(is_there);
        let checked = there.flat_map(|group| group.checked_by(load, self.host.pmus));
        checked.map(|(event, bytes)| meter(event, bytes, band)).collect()
    }

    fn memory(&self) -> Result<Vec<CounterCheck>, Fault> {
        let load = || {
            let facts = daqmeter_harness::facts::host_facts(self.host.files, Vec::new());
            memory(self.request.time, facts.last_level_cache_bytes(), self.stop)
        };
        self.held_against(VerifyLoad::Memory, self.meters("memory", AROUND), INSTEAD, load)
    }

    fn block(&self, load: VerifyLoad) -> Result<Vec<CounterCheck>, Fault> {
        let VerifyRequest { file, time, .. } = self.request;
        let read = match file {
            Some(path) => BlockFile::existing(path)?,
            None if load == VerifyLoad::Fio => {
                return Err(Fault::new("fio needs --file, which it reads"));
            }
            None => match BlockFile::temporary(".".as_ref(), 64 << 20, self.stop) {
                Ok(file) => file,
                Err(why) => return Ok(vec![CounterCheck::waived(load, "none", why.0)]),
            },
        };
        if load == VerifyLoad::Fio && read.has_holes {
            let what = "has holes, which fio reads without the disk; give a file that was written";
            return Err(Fault::new(format!("the file {what}")));
        }
        let mut meters = Vec::new();
        if let Some(disk) = &read.disk {
            meters.push(meter(format!("disk.{disk}.read_bytes"), 1.0, (1.0, AROUND.1)));
        }
        meters.extend(self.meters("device", WITH_DESCRIPTORS));
        self.held_against(load, meters, NO_DISK, || match (load, file) {
            (VerifyLoad::Fio, Some(path)) => FIO.run(&path.to_string_lossy(), *time),
            _ => read.read(*time, self.stop),
        })
    }

    fn net(&self, load: VerifyLoad) -> Result<Vec<CounterCheck>, Fault> {
        let VerifyRequest { time, host, .. } = self.request;
        let is_local = load == VerifyLoad::Net || [LOOPBACK, "localhost"].contains(&host.as_str());
        // Frames have headers: on loopback, with its large segments, less than 1 %.
        let (counter, most) =
            if is_local { ("net.lo.rx_bytes", AROUND.1) } else { ("net.rx_bytes", 1.1) };
        let mut meters = vec![meter(counter, 1.0, (1.0, most))];
        if !is_local {
            meters.extend(self.meters("device", WITH_DESCRIPTORS));
        }
        self.held_against(load, meters, "", || match load {
            VerifyLoad::Netperf => NETPERF.run(host, *time),
            _ => loopback(*time, self.stop),
        })
    }

    fn held_against(
        &self,
        load: VerifyLoad,
        mut meters: Vec<Meter>,
        without: &str,
        run: impl FnOnce() -> Result<Moved, Fault>,
    ) -> Result<Vec<CounterCheck>, Fault> {
        let VerifyRequest { event, bytes_per_event, settle, .. } = self.request;
        meters.extend(event.iter().map(|event| meter(event, *bytes_per_event, AROUND)));
        if meters.is_empty() {
            return Ok(vec![CounterCheck::waived(load, "none", without)]);
        }
        let (mut open, mut checks) = (Vec::new(), Vec::new());
        for meter in meters {
            let set = self.host.resolve(std::slice::from_ref(&meter.event))?;
            let selection = Selection { set, ..Selection::default() };
            let mut kernel = KernelOpener { files: self.host.files.clone() };
            match Count::open(&selection, &mut kernel) {
                Ok(count) => open.push((meter, count)),
                Err(refused) => {
                    checks.push(CounterCheck::waived(load, &meter.event, refused.reason));
                }
            }
        }
        open.iter_mut().for_each(|(_, count)| count.begin(0));
        let is_asked = self.request.file.is_some() || load == VerifyLoad::Netperf;
        let moved = match run() {
            Ok(moved) => moved,
            Err(why) if !is_asked => {
                return Ok(vec![CounterCheck::waived(load, "none", why.0)]);
            }
            Err(wrong) => return Err(wrong),
        };
        std::thread::sleep(*settle);
        let judged = open.into_iter().map(|(meter, count)| judged(load, meter, count, &moved));
        checks.splice(0..0, judged);
        Ok(checks)
    }
}

fn judged(load: VerifyLoad, meter: Meter, mut count: Count, moved: &Moved) -> CounterCheck {
    count.interval();
    let observed = count.observed;
    let counts = observed.events.iter().map(|event| Some(event.total_scaled()?.0));
    let counted = counts.sum::<Option<f64>>().map(|counts| counts * meter.bytes_per_event);
    let verdict = counted.map_or_else(
        || CounterVerdict::Waived("the counter did not run".to_owned()),
        |counted| judge(meter.band, counted, moved.bytes),
    );
    CounterCheck {
        load: load.name(),
        how: moved.how.clone(),
        counter: meter.event,
        payload: moved.bytes,
        counted,
        verdict,
    }
}

pub fn checked(
    request: &VerifyRequest,
    host: &EventResolver<'_>,
    context: &Context,
    stop: &AtomicBool,
) -> Result<(Vec<CounterCheck>, RunRecord), Fault> {
    if request.host != LOOPBACK && !request.loads.contains(&VerifyLoad::Netperf) {
        return Err(Fault::new("--host is for the load netperf: add it"));
    }
    let info = EngineInfo { name: "pmu".into(), target: "verify".into(), emulated: false };
    let pmus: Vec<&str> = host.pmus.iter().map(|pmu| pmu.name.as_str()).collect();
    let workload = Workload::new("pmu-verify").with("pmus", pmus.join(", "));
    let open = context.open_record("pmu/verify", info, workload);
    let checks = Verification { request, host, stop }.checks()?;
    let found = Tally {
        counters: checks.iter().flat_map(CounterCheck::counters).collect(),
        warnings: checks.iter().filter_map(CounterCheck::waiver).collect(),
        ..Tally::default()
    };
    let is_failed = |check: &&CounterCheck| check.verdict == CounterVerdict::Fail;
    let faults = checks.iter().filter(is_failed).map(CounterCheck::sentence).collect();
    let record = open.so_far(found, faults);
    Ok((checks, record))
}

#[cfg(test)]
mod tests {
    use daqmeter_record::Outcome;
    use daqmeter_sys::host::Files;

    use super::*;

    #[test]
    fn bands_hold_counters_to_the_payload_and_no_less() {
        let check = |band, counted, payload, expected| {
            assert_eq!(judge(band, counted, payload), expected, "{counted} of {payload}");
        };
        // The document's netperf, 1.094, and its fio, 1.002.
        check((1.0, 1.1), 1030.144e6, 941_520_000, CounterVerdict::Pass);
        check(AROUND, 2711.3e6, 2_706_353_317, CounterVerdict::Pass);
        // Less than the payload is a lost count.
        check((1.0, 1.1), 941_519_000.0, 941_520_000, CounterVerdict::Fail);
        check(AROUND, 0.0, 5, CounterVerdict::Fail);
    }

    #[test]
    fn a_counter_that_misses_bytes_is_named_with_its_ratio() {
        let waived = CounterCheck::waived(VerifyLoad::Net, "net.lo.rx_bytes", "no disk");
        assert_eq!(waived.waiver().as_deref(), Some("net: no disk"));
        assert!(waived.counters().is_empty());
        let verdict = CounterVerdict::Fail;
        let failed = CounterCheck { payload: 1000, counted: Some(900.0), verdict, ..waived };
        assert_eq!(failed.sentence(), "net: net.lo.rx_bytes counted 0.900000 of the payload");
        let counted: Vec<f64> = failed.counters().iter().map(|counter| counter.value).collect();
        assert_eq!((counted.as_slice(), failed.waiver()), (&[1000.0, 900.0][..], None));
    }

    #[test]
    fn loads_that_were_cut_short_are_no_checks() {
        let files = Files::default();
        let host = EventResolver { pmus: &[], files: &files };
        let request = VerifyRequest {
            loads: vec![VerifyLoad::Memory],
            ..VerifyRequest::survey(Duration::from_millis(1))
        };
        let stop = AtomicBool::new(true);
        let checked = checked(&request, &host, &Context::default(), &stop);
        let (checks, record) = checked.unwrap();
        assert_eq!((checks.len(), record.outcome), (0, Outcome::Ok));
        assert_eq!(record.study, "pmu/verify");
    }
}
