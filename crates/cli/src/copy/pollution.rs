//! `daqmeter copy pollution`: programs beside neighbours.

use std::process::ExitCode;

use clap::Args;
use daqmeter_copy::{NEIGHBOURS, STUDY_COPIES, TESTS};
use daqmeter_harness::{StepPlan, ordered};
use daqmeter_record::Workload;
use daqmeter_report::copy::pollution_text;
use daqmeter_report::copy_classic;

use super::{Written, finish, known, module_has_channels, operation};
use crate::arguments::{bytes, count};
use crate::output::Failure;
use crate::runner::{Common, Runner};

/// What a copying neighbour does to a program on another CPU: time, and cache misses where they can be counted.
#[derive(Debug, Args)]
#[command(
    after_long_help = "The program runs on the last CPU allowed, the neighbour on the first (--pin PROGRAM,NEIGHBOUR). `spin` and\n`null-call` touch no memory: what they cost, copying does not explain. Where the host counts no\ncache references and misses, the classic files hold n/a for them.\n\nExample:\n\n  $ daqmeter copy pollution --tests qsort_small,susan[e]_large --copies from:16064 --reps 100"
)]
pub(super) struct Arguments {
    /// Programs; without, all of the study
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    tests: Vec<String>,
    /// What the neighbour does: ideal, cpu, dma, spin, null-call
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    neighbours: Vec<String>,
    /// Its copies, as direction:size; without, the study's six
    #[arg(long, value_name = "DIR:SIZE,..", value_delimiter = ',', value_parser = copies)]
    copies: Vec<(String, u64)>,
    /// Runs of each program
    #[arg(long, value_name = "N", value_parser = count, default_value = "300")]
    reps: u64,
    /// How the neighbour copies by CPU
    #[arg(long, value_name = "NAME", default_value = "pread")]
    path: String,
    /// Name of the classic result files
    #[arg(
        long,
        value_name = "NAME",
        default_value = "daqmeter",
        help_heading = "Output"
    )]
    name: String,
    /// Times are those of an emulator: the records say so, and no table shows them as results
    #[arg(long, hide = true)]
    simulated: bool,
    /// Seed of the random order
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    #[command(flatten)]
    written: Written,
    #[command(flatten)]
    common: Common,
}

fn copies(text: &str) -> Result<(String, u64), String> {
    let (direction, size) = text
        .split_once(':')
        .ok_or_else(|| format!("`{text}` is not like from:224"))?;
    operation(direction)?;
    Ok((direction.to_owned(), bytes(size)?))
}

fn chosen(
    list: &[String],
    all: impl Iterator<Item = &'static str>,
    what: &str,
) -> Result<Vec<String>, Failure> {
    let all: Vec<&str> = all.collect();
    if let Some(wrong) = list.iter().find(|name| !all.contains(&name.as_str())) {
        return Err(Failure::refused(format!(
            "there is no {what} `{wrong}`; choose among {}",
            all.join(", ")
        )));
    }
    Ok(if list.is_empty() {
        all.into_iter().map(str::to_owned).collect()
    } else {
        list.to_vec()
    })
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let tests = chosen(
        &arguments.tests,
        TESTS.iter().map(|(name, _)| *name),
        "test",
    )?;
    let neighbours = chosen(
        &arguments.neighbours,
        NEIGHBOURS.iter().map(|(name, _)| *name),
        "neighbour",
    )?;
    known(&arguments.path)?;
    let mut runner = Runner::new(&arguments.common, 0)?;
    let (program, neighbour) = arguments.cpus(&runner.context.host.allowed_cpus);
    if program == neighbour && neighbours.iter().any(|name| name != "ideal") {
        return Err(Failure::refused(
            "program and neighbour need a CPU each; here is only one allowed",
        ));
    }
    let points = arguments.points(&tests, &neighbours, neighbour);
    runner.expect(points.len());
    let settings = runner.settings(
        StepPlan::ByStage(arguments.reps.clamp(1, 65_536)),
        "copy/pollution",
        &[program],
    );
    for (order, workload) in ordered(points, arguments.seed) {
        runner.point("pollution", &workload, &settings, Some(order))?;
    }
    runner.finish();
    let records = &runner.recorder.records;
    let files = copy_classic::pollution(records, &arguments.name);
    finish(&runner, &arguments.written, pollution_text, &files)
}

impl Arguments {
    /// CPUs of the program and of its neighbour.
    fn cpus(&self, allowed: &[u32]) -> (u32, u32) {
        match self.common.pin.as_ref().map(|list| list.0.as_slice()) {
            Some([program, neighbour, ..]) => (*program, *neighbour),
            Some([program]) => (*program, allowed[0]),
            _ => (allowed[allowed.len() - 1], allowed[0]),
        }
    }

    /// Every test beside every neighbour, for each copy of the neighbour.
    fn points(&self, tests: &[String], neighbours: &[String], cpu: u32) -> Vec<Workload> {
        let engine = if module_has_channels() {
            "module"
        } else {
            "engine-thread"
        };
        let mut points = Vec::new();
        for (direction, bytes) in self.copies() {
            for test in tests {
                for kind in neighbours {
                    let path = if kind == "dma" { engine } else { &self.path };
                    let workload = Workload::new("pollution")
                        .with("test", test.as_str())
                        .with("neighbour", kind.as_str())
                        .with("direction", direction.as_str())
                        .with("block_bytes", bytes)
                        .with("path", path)
                        .with("neighbour_cpu", cpu);
                    points.push(if self.simulated {
                        workload.with("simulated", true)
                    } else {
                        workload
                    });
                }
            }
        }
        points
    }

    /// The neighbour's copies: those that were asked for, or the study's.
    fn copies(&self) -> Vec<(String, u64)> {
        if !self.copies.is_empty() {
            return self.copies.clone();
        }
        let study = STUDY_COPIES.iter();
        study
            .map(|(direction, bytes)| (direction.name().to_owned(), *bytes as u64))
            .collect()
    }
}
