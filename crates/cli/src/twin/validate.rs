//! `daqmeter twin validate`: whether predictions hold, against formulas, documents and this host.

use std::path::{Path as FilePath, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use daqmeter_campaign::Runner;
use daqmeter_campaign::calibrate::{Paths, calibrate};
use daqmeter_campaign::validate::{Live, SEED, closed_forms, documents, live};
use daqmeter_report::validation::{Part, Verdict, text};
use daqmeter_report::validation_page;
use daqmeter_twin::Profile;

use super::predict::{host_notes, read_profile};
use crate::arguments::budget;
use crate::interrupt;
use crate::named::Replaced;
use crate::output::{CANNOT_TELL, FAILED, Failure, emit, tell, write_file};
use crate::runner::context;

/// Hold the twin against formulas, documents and this host, each within its band; ends with 1 where a row lies outside, with 3 where the host changed too much to tell.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Formulas and documents are the same on every host and take some seconds. Then paths that no fit has seen are run on this host and\ncompared with what its profile predicts, with how far equal runs are apart.\n\nExample:\n\n  $ daqmeter twin validate --html validation.html\n  $ daqmeter twin validate --profile host.json --budget 5m"
)]
pub(crate) struct Arguments {
    /// Time for what is measured; without --profile one half of it calibrates. 20 paths are measured in any case
    #[arg(long, value_name = "TIME", value_parser = budget, default_value = "80s")]
    budget: Duration,
    /// Profile of this host, also one that was measured on other CPUs than those allowed now [default: measured now]
    #[arg(long, value_name = "FILE.json")]
    profile: Option<PathBuf>,
    /// Formulas and documents alone: nothing is measured
    #[arg(long, conflicts_with = "profile")]
    no_live: bool,
    /// Seed of the paths
    #[arg(long, value_name = "N", default_value_t = SEED, conflicts_with = "no_live")]
    seed: u64,
    /// Save what each run gave: --runs holds another model to the same runs
    #[arg(long, value_name = "FILE.jsonl", conflicts_with = "no_live")]
    save_runs: Option<Replaced>,
    /// Take all runs from that file, those of the calibration as well: nothing is measured
    #[arg(long, value_name = "FILE.jsonl", conflicts_with_all = ["no_live", "profile", "budget", "save_runs"])]
    runs: Option<PathBuf>,
    /// Print each path, too, the worst prediction first
    #[arg(long, help_heading = "Output", conflicts_with = "no_live")]
    paths: bool,
    /// Write it as a page, too
    #[arg(long, value_name = "FILE.html", help_heading = "Output")]
    html: Option<Replaced>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    // A profile that cannot be used is refused before anything is computed.
    let profile = arguments.profile.as_deref().map(read_profile).transpose()?;
    if let (Some(profile), Some(file)) = (&profile, &arguments.profile)
        && let Some(note) = host_notes(profile, Some(file))?.first()
    {
        tell(note);
    }
    let saved = arguments.runs.as_deref().map(saved_runs).transpose()?;
    tell("formulas and documents ...");
    let mut parts = vec![closed_forms(), documents()];
    let mut figures = Vec::new();
    let mut paths = String::new();
    if !arguments.no_live {
        let found = measured(arguments, profile, saved)?;
        parts.push(found.part);
        figures = found.figures;
        paths = found.paths;
    }
    if let Some(file) = &arguments.html {
        let page = validation_page(&title(), &parts, figures).map_err(Failure::tool)?;
        write_file(file, &page)?;
        tell(&format!("daqmeter: wrote {}", file.display()));
    }
    if arguments.paths {
        emit(&paths)?;
    }
    emit(&text(&parts))?;
    let has = |verdict| parts.iter().any(|part: &Part| part.count(verdict) > 0);
    Ok(match (has(Verdict::Outside), has(Verdict::CannotTell)) {
        (true, _) => ExitCode::from(FAILED),
        (false, true) => ExitCode::from(CANNOT_TELL),
        (false, false) => ExitCode::SUCCESS,
    })
}

/// The host, the program and the time.
fn title() -> String {
    let context = context();
    let tool = &context.tool;
    format!(
        "{} · {} · {} {} ({})",
        context.host.cpu_model,
        daqmeter_harness::facts::utc_now(),
        tool.name,
        tool.version,
        tool.profile
    )
}

/// What the profile predicts for this host, beside what it does.
fn measured(
    arguments: &Arguments,
    profile: Option<Profile>,
    saved: Option<Paths<'static>>,
) -> Result<Live, Failure> {
    let runner = Runner::new(context());
    let asked = runner.stop.clone();
    interrupt::on_signal(move || asked.set());
    let mut step = |step: &str| tell(&format!("{step} ..."));
    let mut paths = match saved {
        Some(saved) => saved,
        None => Paths::new(&runner, arguments.save_runs.as_deref()).map_err(Failure::tool)?,
    };
    let (budget, profile) = match profile {
        Some(profile) => (arguments.budget, Ok(profile)),
        None => {
            let half = arguments.budget / 2;
            (half, calibrate(&mut paths, half, &mut step))
        }
    };
    let seed = arguments.seed;
    let found = profile.and_then(|profile| live(&mut paths, &profile, seed, budget, &mut step));
    match runner.stop.is_set() {
        true => Err(Failure::interrupted()),
        false => found.map_err(Failure::tool),
    }
}

/// Runs that were saved.
fn saved_runs(file: &FilePath) -> Result<Paths<'static>, Failure> {
    let name = file.display();
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::refused(format!("--runs {name}: {error}")))?;
    Paths::of_file(&text).map_err(|error| Failure::refused(format!("--runs {name}: {error}")))
}
