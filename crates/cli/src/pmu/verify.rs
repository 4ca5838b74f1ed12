//! `daqmeter pmu verify`: counters against loads whose bytes are known.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use daqmeter_harness::Context;
use daqmeter_pmu::EventResolver;
use daqmeter_pmu::checks::{CounterCheck, Program, VerifyLoad, VerifyRequest, checked};
use daqmeter_pmu::verify::CounterVerdict;
use daqmeter_record::units::significant;
use daqmeter_record::{Outcome, RunRecord};
use daqmeter_report::table::numbers_from;

use super::chosen::Place;
use crate::arguments::duration;
use crate::named::Appended;
use crate::output::{Failure, Recorder};
use crate::runner::{context_as, on_ctrl_c};

/// Count while a known load runs, and compare bytes: PASS or FAIL, with the ratio.
///
/// Loads: memory (reads of what no cache holds), block (reads past the page cache), net (TCP over loopback, or netperf from a host).
#[derive(Debug, Args)]
#[command(
    after_long_help = "Examples:\n\n  $ daqmeter pmu verify\n  $ daqmeter pmu verify block --with fio --file /dev/nvme0n1p5 --time 10s   # the document's fio comparison\n  $ daqmeter pmu verify net --with netperf --host lab7 --time 10s           # the document's netperf comparison\n\nExit 1 when a counter fails. A counter that this host does not have is waived, with what stands for it. Files are only read; without\n--file one of 256 MiB is made in the present directory and removed."
)]
pub(crate) struct Arguments {
    /// Which loads; all of them without it
    #[arg(value_name = "LOADS", value_parser = named(&VerifyLoad::ALL, VerifyLoad::name))]
    loads: Vec<VerifyLoad>,
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
    #[arg(long, value_parser = named(&Program::ALL, Program::name))]
    with: Option<Program>,
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
    #[arg(long = "records", alias = "out", value_name = "FILE.jsonl", help_heading = "Output")]
    out: Option<Appended>,
    /// Name of this host in the records [default: its node name]
    #[arg(long, value_name = "TEXT", hide_short_help = true, help_heading = "Output")]
    label: Option<String>,
    /// Print the record instead of a table
    #[arg(long, help_heading = "Output")]
    json: bool,
    #[command(flatten)]
    place: Place,
}

/// Reads the name of one of these values.
fn named<T: Copy + Send + Sync + 'static>(
    values: &'static [T],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    let names = values.iter().map(|value| name(*value));
    PossibleValuesParser::new(names).map(move |text| {
        let found = values.iter().find(|value| name(**value) == text);
        *found.expect("one of the possible values")
    })
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if arguments.place.emulated.is_some() {
        return Err(Failure::refused(
            "an emulated mesh sees no load of this host; cargo xtask pmu-vm closes the loop on emulated registers",
        ));
    }
    if !(0.0..1.0).contains(&arguments.tolerance) {
        return Err(Failure::refused("--tolerance: a fraction below 1 is wanted, e.g. 0.05"));
    }
    let request = arguments.request()?;
    let setting = arguments.place.setting()?;
    let host = EventResolver { pmus: &setting.pmus, files: &setting.files };
    let mut recorder = Recorder::new(arguments.out.as_ref(), arguments.json)?;
    let stop = Arc::new(AtomicBool::new(false));
    on_ctrl_c(&stop)?;
    let (checks, record) = checked(&request, &host, &context_as(arguments.label.as_ref()), &stop)
        .map_err(Failure::refused)?;
    recorder.take(record)?;
    recorder.finish(None, false, |_| text(&checks))
}

impl Arguments {
    fn request(&self) -> Result<VerifyRequest, Failure> {
        Ok(VerifyRequest {
            loads: self.loads()?,
            time: self.time,
            file: self.file.clone(),
            file_bytes: self.file_bytes,
            with: self.with,
            host: self.host.clone(),
            tolerance: self.tolerance,
            event: self.event.clone(),
            bytes_per_event: self.bytes_per_event,
            settle: self.settle,
        })
    }

    /// The loads asked for, all without; options that belong to one of them choose it, and are refused beside others.
    fn loads(&self) -> Result<Vec<VerifyLoad>, Failure> {
        let of_with = self.with.map(|with| match with {
            Program::Fio => (VerifyLoad::Block, "--with fio"),
            Program::Netperf => (VerifyLoad::Net, "--with netperf"),
        });
        let of_file = self.file.as_ref().map(|_| (VerifyLoad::Block, "--file"));
        let mut loads = self.loads.clone();
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

/// The checks of a survey, as a record: short loads, a small file in the present directory.
pub(crate) fn survey(time: Duration, context: &Context, stop: &AtomicBool) -> Option<RunRecord> {
    let request = VerifyRequest { time, file_bytes: 32 << 20, ..VerifyRequest::default() };
    let setting = Place::default().setting().ok()?;
    let host = EventResolver { pmus: &setting.pmus, files: &setting.files };
    let (_, mut record) = checked(&request, &host, context, stop).ok()?;
    record.study = "survey/counters".into();
    // Others' traffic may be on a disk: a counter that differs is reported, and fails no survey.
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
