//! `daqmeter pmu verify`: counters against loads whose bytes are known.

use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::Args;
use daqmeter_harness::Context;
use daqmeter_pmu::EventResolver;
use daqmeter_pmu::checks::{CounterCheck, Program, VerifyLoad, VerifyRequest, checked};
use daqmeter_pmu::verify::CounterVerdict;
use daqmeter_record::units::significant;
use daqmeter_record::{Outcome, RunRecord};
use daqmeter_report::table::numbers_from;

use super::chosen::Place;
use crate::interrupt;
use crate::output::Failure;
use crate::recorder::{Recorder, Recording};

/// Count while a known load runs, and compare bytes: PASS or FAIL, with the ratio.
///
/// Loads: memory (reads of what no cache holds), block (reads past the page cache), net (TCP over
/// loopback, or netperf from a host).
#[derive(Debug, Args)]
#[command(
    after_long_help = "Examples:\n\n  $ daqmeter pmu verify\n  $ daqmeter pmu verify block --with fio --file /dev/nvme0n1p5 --time 10s   # the document's fio comparison\n  $ daqmeter pmu verify net --with netperf --host lab7 --time 10s           # the document's netperf comparison\n\nExit 1 when a counter fails. A counter that this host does not have is waived, with what stands for it. Files are only read; without\n--file one of 256 MiB is made in the present directory and removed."
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    request: VerifyRequest,
    #[command(flatten)]
    recording: Recording,
    #[command(flatten)]
    place: Place,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if arguments.place.emulated.is_some() {
        return Err(Failure::refused(
            "an emulated mesh sees no load of this host; cargo xtask pmu-vm closes the loop on emulated registers",
        ));
    }
    if !(0.0..1.0).contains(&arguments.request.tolerance) {
        return Err(Failure::refused("--tolerance: a fraction below 1 is wanted, e.g. 0.05"));
    }
    let request = VerifyRequest { loads: arguments.loads()?, ..arguments.request.clone() };
    let setting = arguments.place.setting()?;
    let host = EventResolver { pmus: &setting.pmus, files: &setting.files };
    let mut recorder = Recorder::new(&arguments.recording)?;
    let stop = interrupt::flag();
    let (checks, record) = checked(&request, &host, &arguments.recording.context(), &stop)
        .map_err(Failure::refused)?;
    recorder.take(record)?;
    recorder.finish(|_| text(&checks))
}

impl Arguments {
    /// Returns the requested loads, or all. Options of one load choose it, and are refused beside
    /// others.
    fn loads(&self) -> Result<Vec<VerifyLoad>, Failure> {
        let of_with = self.request.with.map(|with| match with {
            Program::Fio => (VerifyLoad::Block, "--with fio"),
            Program::Netperf => (VerifyLoad::Net, "--with netperf"),
        });
        let of_file = self.request.file.as_ref().map(|_| (VerifyLoad::Block, "--file"));
        let mut loads = self.request.loads.clone();
        for (load, option) in of_with.into_iter().chain(of_file) {
            if loads.is_empty() {
                loads.push(load);
            }
            if !loads.contains(&load) {
                let name = load.name();
                return Err(Failure::refused(format!(
                    "{option} belongs to the load {name}: daqmeter pmu verify {name} {option}"
                )));
            }
        }
        if loads.is_empty() {
            loads = VerifyLoad::ALL.to_vec();
        }
        Ok(loads)
    }
}

/// Returns the checks of a survey as a record: short loads, a small file in the present directory.
pub(crate) fn survey(time: Duration, context: &Context, stop: &AtomicBool) -> Option<RunRecord> {
    let request = VerifyRequest { time, file_bytes: 32 << 20, ..VerifyRequest::default() };
    let setting = Place::default().setting().ok()?;
    let host = EventResolver { pmus: &setting.pmus, files: &setting.files };
    let (_, mut record) = checked(&request, &host, context, stop).ok()?;
    record.study = "survey/counters".into();
    // A different counter is reported, and fails no survey, since others may use the disk.
    if let Outcome::Failed(reason) = std::mem::take(&mut record.outcome) {
        record.warnings.push(format!("FAILED: {reason} (daqmeter pmu verify)"));
    }
    Some(record)
}

fn text(checks: &[CounterCheck]) -> String {
    let rows = checks.iter().map(|check| {
        let (verdict, note) = match &check.verdict {
            CounterVerdict::Pass => ("PASS", check.how.clone()),
            CounterVerdict::Fail => ("FAIL", check.how.clone()),
            CounterVerdict::Waived(reason) => ("waived", reason.clone()),
        };
        let bytes = |bytes: f64| daqmeter_report::pmu::tables::grouped(bytes);
        vec![
            check.load.to_owned(),
            check.counter.clone(),
            note,
            if check.payload > 0 { bytes(check.payload as f64) } else { "-".to_owned() },
            check.counted.map_or("-".to_owned(), bytes),
            check.ratio().map_or("-".to_owned(), |ratio| significant(ratio, 7)),
            verdict.to_owned(),
        ]
    });
    numbers_from(
        3,
        &["load", "counter", "how", "payload [B]", "counted [B]", "ratio", "verdict"],
        rows,
    )
}
