//! `daqmeter reproduce`: every published study on one page, row by row.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use daqmeter_digitizer::devices::emulated::Profile;
use daqmeter_record::RunRecord;
use daqmeter_report::copy_claims::{Verdict, claims};
use daqmeter_report::figures;
use daqmeter_report::html::page_of_studies;
use daqmeter_report::studies::{Study, StudyRow, text};

use crate::history::read_all;
use crate::output::{Failure, emit, tell, write_file};
use crate::run::{Common, Runner};

/// Repeat the published studies, and set every row beside model and measurement.
///
/// Takes about a minute and a half. Boards, bridges and cards are emulated after the studies' own machines; what has no model is this
/// host's own and is not judged.
#[derive(Debug, Args)]
#[command(
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
            Name::Pmu => pmu(),
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let wanted = if arguments.studies.is_empty() { Name::value_variants().to_vec() } else { arguments.studies.clone() };
    if !arguments.from.is_empty() {
        let records = read_all(&arguments.from)?;
        return show(&wanted, &records, arguments, ExitCode::SUCCESS);
    }
    let mut runner = Runner::new(&arguments.common, 0)?;
    for name in &wanted {
        name.measure(&mut runner, arguments.common.pin.as_ref().map(|list| &list.0))?;
    }
    runner.finish();
    let code = runner.recorder.exit_code(runner.stop.is_set());
    show(&wanted, &runner.recorder.records, arguments, code)
}

fn show(wanted: &[Name], records: &[RunRecord], arguments: &Arguments, code: ExitCode) -> Result<ExitCode, Failure> {
    let studies: Vec<Study> = wanted.iter().map(|name| name.study(records)).collect();
    let page = page_of_studies(records, figures(records), &studies).map_err(Failure::refused)?;
    write_file(&arguments.output, &page)?;
    if !arguments.common.json {
        emit(&text(&studies))?;
    }
    tell(&format!("daqmeter: wrote {}", arguments.output.display()));
    Ok(code)
}

fn digitizer(records: &[RunRecord]) -> Study {
    use daqmeter_digitizer::reproduce::{INCONSISTENCIES, cpu, findings, tables};
    let (published, profile) = (daqmeter_digitizer::published::Published::default(), Profile::default());
    let is_readout = |line: &daqmeter_record::Comparison| {
        published
            .table
            .iter()
            .any(|table| table.title == line.table && table.kind == daqmeter_digitizer::published::Kind::Readout)
    };
    let row = |line: daqmeter_record::Comparison| {
        if is_readout(&line) { StudyRow::of(&line) } else { StudyRow::of_own_host(&line) }
    };
    let lines = tables(&published, &profile, records).into_iter().chain(cpu(&published, &profile, records)).map(row);
    let claims = findings(&published, &profile, records);
    let claims = claims.iter().map(|finding| StudyRow::claim(finding.claim, &finding.evidence, finding.verdict.name()));
    Study {
        id: "digitizer",
        title: "Performance measurements with SIS8300 boards (ESS, 2017)",
        about: "Read-out on emulated boards that are paced like the document's crate; conversion and CPU load are this host's own.",
        command: "daqmeter digitizer reproduce",
        rows: lines.chain(claims).collect(),
        remarks: INCONSISTENCIES.iter().map(ToString::to_string).collect(),
    }
}

fn etherbone(records: &[RunRecord]) -> Study {
    use daqmeter_etherbone::reproduce::{Published, REMARKS, compare};
    Study {
        id: "etherbone",
        title: "Etherbone Performance Measurements (GSI, 2018)",
        about: "Cycles over emulated bridges that take the published times of theirs.",
        command: "daqmeter eb reproduce",
        rows: compare(&Published::default(), records).iter().map(StudyRow::of).collect(),
        remarks: REMARKS.iter().map(ToString::to_string).collect(),
    }
}

fn readout(records: &[RunRecord]) -> Study {
    use daqmeter_readout::study::{Published, REMARKS, rows};
    let row = |row: &daqmeter_readout::study::Row| {
        let mut judged = StudyRow::of(&row.line);
        judged.row = format!("{} [{}]", judged.row, row.kind.name());
        // Where the study states a range, the range counts.
        if let Some(within) = row.is_within() {
            judged.verdict = if within { "reproduced" } else { "differs" }.to_owned();
        }
        judged
    };
    Study {
        id: "readout",
        title: "FELIX read-out at 1 MHz (ATLAS, Nikhef)",
        about: "Arithmetic and a model of the published server, and the same rates on an emulated card on this host.",
        command: "daqmeter readout reproduce",
        rows: rows(&Published::default(), records).iter().map(row).collect(),
        remarks: REMARKS.iter().map(ToString::to_string).collect(),
    }
}

fn copy(records: &[RunRecord]) -> Study {
    let row = |claim: daqmeter_report::copy_claims::Claim| {
        let verdict = match claim.verdict {
            Verdict::Holds => "holds",
            Verdict::Differs => "differs",
            Verdict::Emulated => "emulated",
            Verdict::Untold => "not measured",
        };
        StudyRow::claim(claim.claim, &claim.here, verdict)
    };
    Study {
        id: "copy",
        title: "Copies between user and kernel by CPU and I/OAT (I/OAT-CFTU)",
        about: "The study's claims, asked of this host; an engine that is emulated says nothing about hardware.",
        command: "daqmeter copy reproduce",
        rows: claims(records).into_iter().map(row).collect(),
        remarks: Vec::new(),
    }
}

fn pmu() -> Study {
    Study {
        id: "pmu",
        title: "Counters of Arm's interconnects (arm-cmn)",
        about: "The published meshes and examples, by our model of the mesh. On silicon nothing was measured.",
        command: "daqmeter pmu reproduce",
        rows: daqmeter_pmu::published::compare().iter().map(StudyRow::of).collect(),
        remarks: Vec::new(),
    }
}
