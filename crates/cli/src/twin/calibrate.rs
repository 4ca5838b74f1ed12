//! `daqmeter twin calibrate`: a profile of this host, from which paths are predicted.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use daqmeter_campaign::Runner;
use daqmeter_campaign::calibrate::{Paths, calibrate};
use daqmeter_record::file::replace;
use daqmeter_record::units::significant;
use daqmeter_twin::Profile;

use crate::arguments::budget;
use crate::interrupt;
use crate::named::Replaced;
use crate::output::{Failure, emit, tell};
use crate::runner::context;

/// Time that a calibration has where nobody says otherwise.
const USUAL_BUDGET: &str = "55s";

/// Measure what predictions need on this host, by running short paths, and write it to a file. Takes about a minute.
#[derive(Debug, Args)]
#[command(
    after_long_help = "The profile holds the cost of a block for each kind of work and size, what sleeping and waking up costs, and paths drawn at random\n\
that went into neither: by how much predictions were off for these is what the intervals of `twin predict` come from. Run it while\n\
the host does what it usually does.\n\nExample:\n\n  $ daqmeter twin calibrate -o host.json"
)]
pub(crate) struct Arguments {
    /// File to write
    #[arg(short, long, value_name = "FILE.json", default_value = super::PROFILE)]
    output: Replaced,
    /// Time for all runs; the costs and 38 held-back runs are measured in any case
    #[arg(long, value_name = "TIME", value_parser = budget, default_value = USUAL_BUDGET)]
    budget: Duration,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let runner = Runner::new(context());
    let asked = runner.stop.clone();
    interrupt::on_signal(move || asked.set());
    let profile = calibrate_within(&runner, arguments.budget, &arguments.output)?;
    let file = arguments.output.display();
    emit(&format!("{}{file}\n", summary(&profile)))
}

/// Measures a profile in the usual time and writes it to that file.
pub(crate) fn calibrate_to(runner: &Runner, file: &Path) -> Result<Profile, Failure> {
    let usual = budget(USUAL_BUDGET).map_err(Failure::refused)?;
    calibrate_within(runner, usual, file)
}

fn calibrate_within(runner: &Runner, budget: Duration, file: &Path) -> Result<Profile, Failure> {
    let mut paths = Paths::new(runner, None).map_err(Failure::tool)?;
    let profile = calibrate(&mut paths, budget, &mut |step| tell(&format!("{step} ...")));
    if runner.stop.is_set() {
        return Err(Failure::interrupted());
    }
    let profile = profile.map_err(Failure::tool)?;
    replace(file, profile.text().as_bytes())
        .map_err(|error| Failure::refused(format!("write {}: {error}", file.display())))?;
    Ok(profile)
}

/// What was measured, and how far off the held-back paths were before they correct anything.
fn summary(profile: &Profile) -> String {
    let free = profile.checks.iter().filter(|check| check.rate_hz.is_none());
    let off: Vec<f64> =
        free.map(|check| (check.rate.measured / check.rate.predicted).ln().abs() * 100.0).collect();
    let points: usize = profile.works.iter().map(|work| work.points.len()).sum();
    format!(
        "{} runs in {} s: {} kinds of work, {points} costs; largest rate of {} held-back paths: {} % off in the median, uncorrected\n",
        profile.runs,
        significant(profile.seconds, 3),
        profile.works.len(),
        off.len(),
        significant(daqmeter_stats::median(&off), 2)
    )
}
