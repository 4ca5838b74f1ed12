//! Counters compared with loads of known bytes: the counters, the bounds and the verdicts.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Args, FromArgMatches, ValueEnum};
use daqmeter_harness::{Context, Tally};
use daqmeter_record::units::{parse_bytes, parse_duration};
use daqmeter_record::{Counter, EngineInfo, RunRecord, Workload};

use crate::count::Count;
use crate::event::EventResolver;
use crate::groups::{INSTEAD, MetricGroup};
use crate::source::KernelOpener;
use crate::system::SystemCounter;
use crate::verify::{
    Band, BlockFile, CounterVerdict, LoadError, Moved, fio, loopback, memory, netperf, warm,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum VerifyLoad {
    Memory,
    Block,
    Net,
}

impl VerifyLoad {
    pub const ALL: [VerifyLoad; 3] = [VerifyLoad::Memory, VerifyLoad::Block, VerifyLoad::Net];

    pub fn name(self) -> &'static str {
        match self {
            VerifyLoad::Memory => "memory",
            VerifyLoad::Block => "block",
            VerifyLoad::Net => "net",
        }
    }
}

// Another program as the load: fio for block, netperf for net.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Program {
    Fio,
    Netperf,
}

// Options of `pmu verify`; their comments are its help.
#[derive(Clone, Debug, Args)]
pub struct VerifyRequest {
    /// Which loads; all of them without it
    #[arg(value_name = "LOADS")]
    pub loads: Vec<VerifyLoad>,
    /// Time of each load
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "1s")]
    pub time: Duration,
    /// File or block device to read
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Size of the file that is made when none is given
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value = "256MiB")]
    pub file_bytes: u64,
    /// Other programs as loads, with the document's arguments
    #[arg(long)]
    pub with: Option<Program>,
    /// Host that netserver runs on; without it this one
    #[arg(long, value_name = "HOST", requires = "with")]
    pub host: Option<String>,
    /// Deviation of an interconnect's counter that passes
    #[arg(long, value_name = "FRACTION", default_value = "0.05")]
    pub tolerance: f64,
    /// An event to hold against the load, instead of those known: its counts times
    /// --bytes-per-event
    #[arg(short, long, value_name = "EVENT")]
    pub event: Option<String>,
    /// Bytes that one count of --event stands for
    #[arg(long, value_name = "N", default_value = "1")]
    pub bytes_per_event: f64,
    /// Pause between the end of a load and the last look at the counters
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "20ms")]
    pub settle: Duration,
}

impl Default for VerifyRequest {
    fn default() -> VerifyRequest {
        let command = VerifyRequest::augment_args(clap::Command::new("verify"));
        let mut given = command.get_matches_from(["verify"]);
        let request = VerifyRequest::from_arg_matches_mut(&mut given);
        let request = request.expect("every option has a default or is left out");
        VerifyRequest { loads: VerifyLoad::ALL.to_vec(), ..request }
    }
}

struct Meter {
    event: String,
    bytes_per_event: f64,
    band: Band,
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

    pub fn ratio(&self) -> Option<f64> {
        Some(self.counted? / self.payload.max(1) as f64)
    }

    fn sentence(&self) -> String {
        let ratio = self.ratio().map_or("nothing".to_owned(), |ratio| format!("{ratio:.6}"));
        format!("{}: {} counted {ratio} of the payload", self.load, self.counter)
    }
}

fn bytes_of(event: impl Into<String>, band: Band) -> Meter {
    Meter { event: event.into(), bytes_per_event: 1.0, band }
}

const NO_DISK: &str = "the file lies on no block device of its own (overlay, network)";

struct Verification<'a> {
    request: &'a VerifyRequest,
    host: &'a EventResolver<'a>,
    stop: &'a AtomicBool,
}

impl Verification<'_> {
    fn gather(&self) -> Result<Vec<CounterCheck>, LoadError> {
        let mut checks = Vec::new();
        for load in &self.request.loads {
            let of_load = match load {
                VerifyLoad::Memory => self.memory()?,
                VerifyLoad::Block => self.block()?,
                VerifyLoad::Net => self.net()?,
            };
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            checks.extend(of_load);
        }
        Ok(checks)
    }

    fn has_group(&self, name: &str) -> bool {
        MetricGroup::find(name).is_ok_and(|group| group.is_there(self.host.pmus))
    }

    fn memory(&self) -> Result<Vec<CounterCheck>, LoadError> {
        let band = Band::around(self.request.tolerance);
        let known = [
            ("memory", "arm_cmn/hnf_mc_reqs/", 64.0),
            ("imc", "uncore_imc/cas_count_read/", 1_048_576.0),
        ];
        let there = known.into_iter().filter(|(group, ..)| self.has_group(group));
        let meter = |(_, event, bytes_per_event): (_, &str, _)| Meter {
            event: event.to_owned(),
            bytes_per_event,
            band,
        };
        let mut meters: Vec<Meter> = there.map(meter).collect();
        let total = "resctrl.mon_L3_00.mbm_total_bytes";
        if SystemCounter::find(self.host.files, total).is_some() {
            meters.push(bytes_of(total, band));
        }
        meters.extend(self.own_meter(band));
        if meters.is_empty() {
            return Ok(vec![CounterCheck::waived("memory", "none", INSTEAD)]);
        }
        let facts = daqmeter_harness::facts::host_facts(self.host.files, Vec::new());
        let last_level = facts.last_level_cache_bytes();
        self.held_against("memory", &meters, || memory(self.request.time, last_level, self.stop))
    }

    fn own_meter(&self, band: Band) -> Option<Meter> {
        let bytes_per_event = self.request.bytes_per_event;
        Some(Meter { event: self.request.event.clone()?, bytes_per_event, band })
    }

    /// Counts beats of 32 bytes that devices write through the mesh; descriptors come on top.
    fn pcie_meter(&self) -> Option<Meter> {
        let tolerance = self.request.tolerance;
        self.has_group("pcie").then(|| Meter {
            event: "arm_cmn/rnid_s0_wdata_beats/".to_owned(),
            bytes_per_event: 32.0,
            band: Band { low: 1.0 - tolerance, high: 1.1 + tolerance },
        })
    }

    fn block(&self) -> Result<Vec<CounterCheck>, LoadError> {
        let VerifyRequest { file, file_bytes, tolerance, time, with, .. } = self.request;
        let waived = |counter, reason| CounterCheck::waived("block", counter, reason);
        let read = match file {
            Some(path) => BlockFile::existing(path)?,
            None => {
                match BlockFile::temporary(Path::new("."), (*file_bytes).max(1 << 20), self.stop) {
                    Ok(file) => file,
                    Err(LoadError(reason)) => return Ok(vec![waived("none", reason)]),
                }
            }
        };
        let (mut meters, mut checks) = (Vec::new(), Vec::new());
        match &read.disk {
            Some(disk) => {
                let band = Band::payload_and(*tolerance);
                meters.push(bytes_of(format!("disk.{disk}.read_bytes"), band));
            }
            None => checks.push(waived("disk", NO_DISK.to_owned())),
        }
        meters.extend(self.pcie_meter());
        meters.extend(self.own_meter(Band::around(*tolerance)));
        if meters.is_empty() {
            return Ok(vec![waived("none", format!("{NO_DISK}; give one with --file"))]);
        }
        let is_fio = *with == Some(Program::Fio);
        if is_fio {
            warm("fio", "--version")?;
        }
        let load = || match file {
            Some(path) if is_fio => fio(path, *time),
            None if is_fio => Err(LoadError("--with fio needs --file, which it reads".to_owned())),
            _ => read.read(*time, self.stop),
        };
        checks.extend(self.held_against("block", &meters, load)?);
        Ok(checks)
    }

    fn net(&self) -> Result<Vec<CounterCheck>, LoadError> {
        let VerifyRequest { tolerance, time, with, host, .. } = self.request;
        let is_real = *with == Some(Program::Netperf);
        let peer = host.as_deref().unwrap_or("127.0.0.1");
        let local = !is_real || peer == "127.0.0.1" || peer == "localhost";
        // Frames have headers: on loopback, with its large segments, less than 1 %.
        let band = Band::payload_and(if local { tolerance.max(0.01) } else { 0.1 });
        let mut meters =
            vec![bytes_of(if local { "net.lo.rx_bytes" } else { "net.rx_bytes" }, band)];
        if !local {
            meters.extend(self.pcie_meter());
        }
        meters.extend(self.own_meter(Band { low: 1.0, high: 1.1 + tolerance }));
        self.held_against("net", &meters, || match is_real {
            true => netperf(peer, *time, self.stop),
            false => loopback(*time, self.stop),
        })
    }

    fn held_against(
        &self,
        load: &'static str,
        meters: &[Meter],
        run: impl FnOnce() -> Result<Moved, LoadError>,
    ) -> Result<Vec<CounterCheck>, LoadError> {
        let (mut open, mut waived) = (Vec::new(), Vec::new());
        for meter in meters {
            let set = self.host.resolve(std::slice::from_ref(&meter.event));
            let set = set.map_err(|error| LoadError(error.to_string()))?;
            let mut kernel = KernelOpener { files: self.host.files.clone() };
            match Count::open(&set, &meter.event, &mut kernel) {
                Ok(count) => open.push((meter, count)),
                Err(refused) => {
                    waived.push(CounterCheck::waived(load, &meter.event, refused.reason));
                }
            }
        }
        open.iter_mut().for_each(|(_, count)| count.begin(0));
        let moved = match run() {
            Ok(moved) => moved,
            Err(wrong) if self.request.with.is_some() || self.request.file.is_some() => {
                return Err(wrong);
            }
            Err(LoadError(reason)) => return Ok(vec![CounterCheck::waived(load, "none", reason)]),
        };
        std::thread::sleep(self.request.settle);
        let checks = open.into_iter().map(|(meter, count)| judged(load, meter, count, &moved));
        Ok(checks.chain(waived).collect())
    }
}

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
    let checks = Verification { request, host, stop }.gather()?;
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

fn counters(check: &CounterCheck) -> Vec<Counter> {
    let Some(counted) = check.counted else {
        return Vec::new();
    };
    let name = format!("{}: {}", check.load, check.counter);
    let bytes = |name: String, value: f64| Counter { name, value, unit: "B".into(), share: 1.0 };
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
