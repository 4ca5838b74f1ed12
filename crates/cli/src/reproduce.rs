//! `daqmeter reproduce`: the published studies, row by row.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};
use daqmeter_campaign::studies::{Study, studies};
use daqmeter_campaign::{Budget, PlannedPoint};
use daqmeter_record::RunRecord;
use daqmeter_report::studies::{ReproducedStudy, full, overview};
use daqmeter_report::{disturbed, figures, page_of};

use crate::arguments::{budget, count};
use crate::files::read_all;
use crate::measure::{Bench, Common};
use crate::named::Replaced;
use crate::output::{Ended, emit, tell, write_file};
use crate::recorder::{Recording, code_of};
use crate::run::refuse_refused;

const PAGE: &str = "studies.html";

/// Repeat the published studies, row by row.
///
/// Each row says where its figure is published. Boards, bridges
/// and cards are emulated, and the verdict says so. Rows that depend on the processor of another
/// machine are shown and not judged.
#[derive(Debug, Args)]
#[command(
    mut_arg("json", |option| option.help("Print each study as a JSON line instead of tables")),
    after_long_help = include_str!("../help/reproduce.txt")
)]
pub(crate) struct Arguments {
    /// Studies [default: all]
    #[arg(value_name = "STUDY", value_parser = names())]
    studies: Vec<String>,
    /// Judge these records instead of measuring
    #[arg(long, value_name = "FILE.jsonl", conflicts_with_all = OF_RUNS)]
    from: Vec<PathBuf>,
    /// Show only computed and modelled values
    #[arg(long, conflicts_with = "from", conflicts_with_all = OF_RUNS)]
    no_measurement: bool,
    /// Time for all rows, with fewer repetitions where they do not fit [default: their own]
    #[arg(long, value_name = "TIME", value_parser = budget)]
    time: Option<Duration>,
    /// Copies of each size in the study `copy` [default: 300]
    #[arg(long, value_name = "N", value_parser = count)]
    repeat: Option<u64>,
    #[command(flatten)]
    common: Common,
}

/// Options of measurements.
const OF_RUNS: [&str; 9] =
    ["repeat", "records", "label", "pin", "metrics", "observe", "time", "wait_idle", "at"];

fn names() -> PossibleValuesParser {
    let value = |study: Study| PossibleValue::new(study.name).help(study.about().title.clone());
    PossibleValuesParser::new(studies().into_iter().map(value))
}

pub(crate) fn run(arguments: &Arguments) -> Ended {
    arguments.common.recording.columns.apply();
    let wanted = &arguments.studies;
    let mut chosen = studies();
    chosen.retain(|study| wanted.is_empty() || wanted.iter().any(|name| name == study.name));
    if !arguments.from.is_empty() {
        return show(&chosen, &read_all(&arguments.from)?, arguments);
    }
    if arguments.no_measurement {
        return show(&chosen, &[], arguments);
    }
    // The verb prints studies instead of records.
    let recording = Recording { json: false, ..arguments.common.recording.clone() };
    let mut bench = Bench::new(&Common { recording, ..arguments.common.clone() })?;
    let budget = Budget { time: arguments.time, ..Budget::default() };
    let done = bench
        .runner
        .run(points(&chosen, arguments), budget, &[], |event| bench.recorder.follow(event))?;
    bench.recorder.progress.end();
    if !done.is_complete() && !bench.runner.stop.is_set() {
        let (left_out, points) = (done.points - done.begun, done.points);
        tell(&format!("daqmeter: no time for {left_out} of {points} points: use a longer --time"));
    }
    let code = show(&chosen, &bench.recorder.records, arguments)?;
    bench.recorder.written()?;
    refuse_refused(&done)?;
    Ok(code)
}

fn points(studies: &[Study], arguments: &Arguments) -> Vec<PlannedPoint> {
    let points = studies.iter().flat_map(|study| study.points(arguments.repeat));
    let mut points: Vec<PlannedPoint> = points.collect();
    if let Some(pin) = &arguments.common.pin {
        points.iter_mut().for_each(|point| point.pin.clone_from(&pin.0));
    }
    points
}

/// Prints the records' verdict on the studies, and writes the page. Ends with 1 after a failed
/// record.
fn show(studies: &[Study], records: &[RunRecord], arguments: &Arguments) -> Ended {
    let judged = |study: &Study| {
        let (lines, findings) = study.judge(records);
        ReproducedStudy::new(study.name, study.about(), lines, findings)
    };
    let shown: Vec<ReproducedStudy> = studies.iter().map(judged).collect();
    if !arguments.common.recording.quiet {
        let json = |study| serde_json::to_string(study).expect("texts alone") + "\n";
        emit(&match shown.as_slice() {
            all if arguments.common.recording.json => all.iter().map(json).collect(),
            [one] => full(one).text(disturbed(records)),
            all => overview(all).text(disturbed(records)),
        })?;
    }
    let several = (shown.len() > 1).then(|| Replaced::at(PAGE));
    if let Some(path) = &arguments.common.recording.output.clone().or(several) {
        let page = page_of(records, figures(records), &shown);
        write_file(path, &page)?;
        tell(&format!("daqmeter: wrote {}", path.display()));
    }
    Ok(code_of(records))
}
