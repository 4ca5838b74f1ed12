//! `daqmeter reproduce`: every published study on one page, row by row.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use daqmeter_digitizer::devices::emulated::Profile;
use daqmeter_record::RunRecord;
use daqmeter_record::study::Comparison;
use daqmeter_report::figures;
use daqmeter_report::html::page_of_studies;
use daqmeter_report::studies::{Study, StudyFinding, StudyRow, full, text};

use crate::history::read_all;
use crate::output::{Failure, emit, tell, write_file};
use crate::run::{Common, Runner};

/// Repeat the published studies, and set every row beside model and measurement.
///
/// Takes about a minute and a half. Every row says where its figure is published. Boards, bridges and cards are emulated after the
/// studies' own machines, and a verdict says so; what is of another machine's processor is shown and not judged.
#[derive(Debug, Args)]
#[command(
    mut_arg("json", json_help),
    after_long_help = "Example:\n\n  $ daqmeter reproduce -o studies.html --out studies.jsonl\n  $ daqmeter reproduce etherbone pmu\n  $ daqmeter reproduce --from studies.jsonl\n\nEach study has a verb of its own with its options: daqmeter digitizer reproduce, eb reproduce, readout\nreproduce, copy reproduce, pmu reproduce."
)]
pub(crate) struct Arguments {
    /// Studies; all without it
    #[arg(value_enum, value_name = "STUDY")]
    studies: Vec<Name>,
    /// Judge these records instead of measuring
    #[arg(long, value_name = "FILE.jsonl")]
    from: Vec<PathBuf>,
    /// Page to write
    #[arg(short, long, value_name = "FILE.html", default_value = "studies.html")]
    output: PathBuf,
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Name {
    /// Digitizers: SIS8300 boards (ESS, 2017)
    Digitizer,
    /// Etherbone performance (GSI, 2018)
    #[value(alias = "eb")]
    Etherbone,
    /// FELIX read-out at a megahertz (Nikhef)
    Readout,
    /// Copies by CPU and DMA engines
    Copy,
    /// Mesh counters: the driver's documentation and examples
    Pmu,
}

impl Name {
    fn measure(self, runner: &mut Runner, pin: Option<&Vec<u32>>) -> Result<(), Failure> {
        let pins = pin.cloned().unwrap_or_default();
        match self {
            Name::Digitizer => crate::reproduce::measure(runner, &pins),
            Name::Etherbone => crate::eb::reproduce::measure(runner, &pins),
            Name::Readout => crate::readout::reproduce::measure(runner, &pins, ""),
            Name::Copy => crate::copy::reproduce::measure(runner, pin.cloned(), 300),
            // Arithmetic of the mesh: nothing to measure.
            Name::Pmu => Ok(()),
        }
    }

    fn study(self, records: &[RunRecord]) -> Study {
        match self {
            Name::Digitizer => digitizer(records),
            Name::Etherbone => etherbone(records),
            Name::Readout => readout(records),
            Name::Copy => copy(records),
            Name::Pmu => of("pmu", records),
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let wanted = if arguments.studies.is_empty() {
        Name::value_variants().to_vec()
    } else {
        arguments.studies.clone()
    };
    if !arguments.from.is_empty() {
        let records = read_all(&arguments.from)?;
        return show(&wanted, &records, arguments, ExitCode::SUCCESS);
    }
    let mut runner = runner(&arguments.common)?;
    for name in &wanted {
        name.measure(
            &mut runner,
            arguments.common.pin.as_ref().map(|list| &list.0),
        )?;
    }
    runner.finish();
    let code = runner.recorder.exit_code(runner.stop.is_set());
    show(&wanted, &runner.recorder.records, arguments, code)
}

fn show(
    wanted: &[Name],
    records: &[RunRecord],
    arguments: &Arguments,
    code: ExitCode,
) -> Result<ExitCode, Failure> {
    let studies: Vec<Study> = wanted.iter().map(|name| name.study(records)).collect();
    write_page(&arguments.output, records, &studies)?;
    emit(&if arguments.common.json {
        json(&studies)
    } else {
        text(&studies)
    })?;
    Ok(code)
}

/// What `--json` means where a study is shown.
pub(crate) fn json_help(option: clap::Arg) -> clap::Arg {
    option.help("Print each study with its places and verdicts (a JSON line) instead of tables; records go to --out")
}

/// A runner whose records are not printed: the study is.
pub(crate) fn runner(common: &Common) -> Result<Runner, Failure> {
    Runner::new(
        &Common {
            json: false,
            ..common.clone()
        },
        0,
    )
}

/// Prints one study, and writes its page if one is wanted.
pub(crate) fn show_one(
    study: Study,
    records: &[RunRecord],
    json_wanted: bool,
    page: Option<&Path>,
) -> Result<(), Failure> {
    let studies = [study];
    emit(&if json_wanted {
        json(&studies)
    } else {
        full(&studies[0])
    })?;
    page.map_or(Ok(()), |page| write_page(page, records, &studies))
}

fn json(studies: &[Study]) -> String {
    let line = |study| serde_json::to_string(study).expect("texts alone") + "\n";
    studies.iter().map(line).collect()
}

fn write_page(path: &Path, records: &[RunRecord], studies: &[Study]) -> Result<(), Failure> {
    let page = page_of_studies(records, figures(records), studies).map_err(Failure::refused)?;
    write_file(path, &page)?;
    tell(&format!("daqmeter: wrote {}", path.display()));
    Ok(())
}

fn rows(lines: &[Comparison]) -> Vec<StudyRow> {
    lines.iter().map(StudyRow::from).collect()
}

fn remarks(remarks: &[&str]) -> Vec<String> {
    remarks.iter().map(ToString::to_string).collect()
}

pub(crate) fn digitizer(records: &[RunRecord]) -> Study {
    use daqmeter_digitizer::reproduce::{INCONSISTENCIES, cpu, findings, tables};
    let (published, profile) = (
        daqmeter_digitizer::published::Document::default(),
        Profile::default(),
    );
    let lines = [
        tables(&published, &profile, records),
        cpu(&published, &profile, records),
    ]
    .concat();
    Study {
        id: "digitizer",
        title: "Performance measurements with SIS8300 boards (ESS, 2017)".to_owned(),
        about: "Read-out on emulated boards that are paced by a profile fitted to the document's crate; conversion and CPU load are this host's own.".to_owned(),
        command: "daqmeter digitizer reproduce".to_owned(),
        rows: rows(&lines),
        findings: findings(&published, records)
            .iter()
            .map(StudyFinding::from)
            .collect(),
        remarks: remarks(INCONSISTENCIES),
    }
}

/// A study by its records.
fn judged(study: &dyn daqmeter_campaign::studies::Study, records: &[RunRecord]) -> Study {
    let findings = study.findings(records);
    Study {
        id: study.name(),
        title: study.about().title.clone(),
        about: study.about().about.clone(),
        command: format!("daqmeter reproduce {}", study.name()),
        rows: rows(&study.compare(records)),
        findings: findings.iter().map(StudyFinding::from).collect(),
        remarks: study.about().notes.clone(),
    }
}

pub(crate) fn of(name: &str, records: &[RunRecord]) -> Study {
    let study = daqmeter_campaign::studies::study(name).expect("a study of the list");
    judged(study.as_ref(), records)
}

pub(crate) fn etherbone(records: &[RunRecord]) -> Study {
    of("etherbone", records)
}

pub(crate) fn readout(records: &[RunRecord]) -> Study {
    of("readout", records)
}

pub(crate) fn copy(records: &[RunRecord]) -> Study {
    use daqmeter_report::copy_claims::{REMARKS, findings, rows as lines};
    Study {
        id: "copy",
        title: "Copies between user and kernel by CPU and I/OAT (I/OAT-CFTU)".to_owned(),
        about: "What the study states and asks, by this host's records; an engine that is emulated says nothing about hardware.".to_owned(),
        command: "daqmeter copy reproduce".to_owned(),
        rows: rows(&lines(records)),
        findings: findings(records).iter().map(StudyFinding::from).collect(),
        remarks: remarks(REMARKS),
    }
}
