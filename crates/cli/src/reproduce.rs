//! `daqmeter reproduce`: the published studies, row by row. `daqmeter eb reproduce` and its like repeat one of them.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};
use daqmeter_campaign::PlannedPoint;
use daqmeter_campaign::studies::{self, Study, Wanted};
use daqmeter_harness::Settings;
use daqmeter_record::{Outcome, RunRecord};
use daqmeter_report::figures;
use daqmeter_report::html::page_of_studies;
use daqmeter_report::studies::{Shown, full, text};
use daqmeter_report::table::{self, stamp};

use crate::arguments::{CpuList, count, cpu_list};
use crate::files::read_all;
use crate::named::Replaced;
use crate::output::{FAILED, Failure, emit, tell, write_file};
use crate::runner::{Common, Runner};

/// Page of several studies, unless another is named.
const PAGE: &str = "studies.html";

/// Repeat the published studies, and set every row beside model and measurement.
///
/// Takes about a minute and a half. Every row says where its figure is published. Boards, bridges and cards are emulated after the
/// studies' own machines, and a verdict says so; what is of another machine's processor is shown and not judged.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Example:\n\n  $ daqmeter reproduce -o studies.html --records studies.jsonl\n  $ daqmeter reproduce etherbone\n  $ daqmeter reproduce --from studies.jsonl\n\nOne study is printed in full; of several, the totals and what differs. daqmeter digitizer reproduce, eb reproduce,\nreadout reproduce, copy reproduce and pmu reproduce are other names for one study each."
)]
pub(crate) struct Arguments {
    /// Studies; all without it
    #[arg(value_name = "STUDY", value_parser = names())]
    studies: Vec<String>,
    /// Print the studies and what each measures here; measure nothing
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    options: Options,
}

/// What one study or several may be asked for.
#[derive(Debug, Args)]
#[command(mut_arg("json", json_help))]
pub(crate) struct Options {
    /// Judge these records instead of measuring
    #[arg(long, value_name = "FILE.jsonl")]
    from: Vec<PathBuf>,
    /// Show only what is computed and modelled
    #[arg(long, conflicts_with = "from")]
    no_measurement: bool,
    /// Copies of each size, in the study `copy` [default: 300]
    #[arg(long, value_name = "N", value_parser = count)]
    reps: Option<u64>,
    /// Page to write; studies.html where several studies are repeated
    #[arg(short, long, value_name = "FILE.html", help_heading = "Output")]
    output: Option<Replaced>,
    /// CPUs of the receivers, in turn, in the study `readout`
    #[arg(long, value_name = "CPUS", value_parser = cpu_list, help_heading = "Placement")]
    receiver_pin: Option<CpuList>,
    #[command(flatten)]
    common: Common,
}

fn json_help(option: clap::Arg) -> clap::Arg {
    option.help("Print each study with its places and verdicts (a JSON line) instead of tables; records go to --records")
}

/// The studies' names, with their titles.
fn names() -> PossibleValuesParser {
    let value = |study: Box<dyn Study>| {
        let (first, others) = study.names().split_first().expect("a study has a name");
        PossibleValue::new(first).aliases(others).help(study.about().title.clone())
    };
    PossibleValuesParser::new(studies::studies().into_iter().map(value))
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut chosen = studies::studies();
    if !arguments.studies.is_empty() {
        let is_wanted = |name: &&str| arguments.studies.iter().any(|wanted| wanted == name);
        chosen.retain(|study| study.names().iter().any(is_wanted));
    }
    if arguments.list {
        return emit(&listed(&chosen));
    }
    repeat(&chosen, &arguments.options)
}

/// Repeats one study, for the verb of its engine.
pub(crate) fn one(name: &str, options: &Options) -> Result<ExitCode, Failure> {
    let study = studies::study(name).expect("verbs name studies that exist");
    repeat(&[study], options)
}

type Studies = [Box<dyn Study>];

fn repeat(studies: &Studies, options: &Options) -> Result<ExitCode, Failure> {
    options.check(studies)?;
    if !options.from.is_empty() {
        return show(studies, &read_all(&options.from)?, options);
    }
    if options.no_measurement {
        return show(studies, &[], options);
    }
    // Records are not printed: the studies are.
    let common = Common { json: false, ..options.common.clone() };
    let mut runner = Runner::new(&common, 0)?;
    measure(studies, options, &mut runner)?;
    runner.finish();
    let code = show(studies, &runner.recorder.records, options)?;
    runner.recorder.check_file()?;
    Ok(if runner.stop.is_set() { runner.recorder.exit_code(true) } else { code })
}

impl Options {
    /// Refuses an option that none of the studies takes.
    fn check(&self, studies: &Studies) -> Result<(), Failure> {
        let given = [("reps", self.reps.is_some()), ("receiver-pin", self.receiver_pin.is_some())];
        for (option, _) in given.into_iter().filter(|(_, is_given)| *is_given) {
            if !studies.iter().any(|study| study.options().contains(&option)) {
                let names: Vec<&str> = studies.iter().map(|study| study.name()).collect();
                return Err(Failure::refused(format!(
                    "--{option} changes nothing in {}: leave it out, or see `daqmeter reproduce --list`",
                    names.join(", ")
                )));
            }
        }
        Ok(())
    }
}

/// Measures the points of the studies, each where it is planned or where `--pin` says.
fn measure(studies: &Studies, options: &Options, runner: &mut Runner) -> Result<(), Failure> {
    let allowed = runner.context.host.allowed_cpus.clone();
    let receivers = options.receiver_pin.as_ref();
    let receiver_cpus =
        receivers.map(|list| list.0.iter().map(u32::to_string).collect::<Vec<_>>().join(","));
    let wanted =
        Wanted { cpus: &allowed, reps: options.reps, receiver_cpus: receiver_cpus.as_deref() };
    let mut points: Vec<PlannedPoint> =
        studies.iter().flat_map(|study| study.points(&wanted)).collect();
    if let Some(pin) = &options.common.pin {
        points.iter_mut().for_each(|point| point.pin.clone_from(&pin.0));
    }
    runner.expect(points.len());
    for point in &points {
        let settings = Settings {
            profile_hz: point.profile_hz,
            ..runner.settings(point.steps, &point.study, &point.pin)
        };
        let place = Some(point.place.clone());
        runner.point(&point.engine, &point.workload, &settings, place)?;
    }
    Ok(())
}

/// Prints what the records say of the studies, and writes the page. Ends with 1 when a record failed.
fn show(studies: &Studies, records: &[RunRecord], options: &Options) -> Result<ExitCode, Failure> {
    let shown: Vec<Shown> = studies.iter().map(|study| judged(study.as_ref(), records)).collect();
    let page = match shown.len() {
        1 => options.output.clone(),
        _ => options.output.clone().or(Some(Replaced::at(PAGE))),
    };
    if let Some(path) = &page {
        let page = page_of_studies(records, figures(records), &shown).map_err(Failure::refused)?;
        write_file(path, &page)?;
        tell(&format!("daqmeter: wrote {}", path.display()));
    }
    if !options.common.quiet {
        emit(&match shown.as_slice() {
            all if options.common.json => json(all),
            [one] => full(one) + &stamp(records),
            all => text(all) + &stamp(records),
        })?;
    }
    let has_failed = |record: &RunRecord| matches!(record.outcome, Outcome::Failed(_));
    Ok(if records.iter().any(has_failed) { ExitCode::from(FAILED) } else { ExitCode::SUCCESS })
}

fn judged(study: &dyn Study, records: &[RunRecord]) -> Shown {
    let (rows, findings) = (study.compare(records), study.findings(records));
    Shown::new(study.name(), study.about(), &rows, &findings)
}

fn json(studies: &[Shown]) -> String {
    let line = |study| serde_json::to_string(study).expect("texts alone") + "\n";
    studies.iter().map(line).collect()
}

/// The studies, how much each measures on this host, and which options it takes.
fn listed(studies: &Studies) -> String {
    let cpus = crate::runner::context().host.allowed_cpus.clone();
    let wanted = Wanted { cpus: &cpus, ..Wanted::default() };
    let row = |study: &dyn Study| {
        let options = study.options().iter().map(|name| format!("--{name}"));
        vec![
            study.name().to_owned(),
            study.points(&wanted).len().to_string(),
            options.collect::<Vec<_>>().join(" "),
            study.about().title.clone(),
        ]
    };
    let headings = ["study", "points", "options", "document"];
    table::plain(&headings, studies.iter().map(|study| row(study.as_ref())))
}
