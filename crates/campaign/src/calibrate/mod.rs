//! A profile of this host, by running short paths: what blocks cost each kind of work, what waking threads costs, and how far predictions
//! are off for paths that went into neither.

mod checks;
mod costs;
mod paths;
mod waits;

use std::time::{Duration, Instant};

use daqmeter_harness::facts::utc_now;
use daqmeter_twin::Profile;

pub use checks::{Again, Compared, REPEATS, check};
pub use paths::Paths;
pub(crate) use paths::pin;

use checks::checks;
use costs::costs;
use waits::{hand_overs, sharing};

/// Measures a profile of the host that the paths run on; `step` hears what is measured. Runs that come from a file know no budget.
///
/// # Errors
/// When a path cannot be run, a signal came, or the budget left too few runs.
pub fn calibrate(
    paths: &mut Paths<'_>,
    budget: Duration,
    step: &mut dyn FnMut(&str),
) -> Result<Profile, String> {
    let began = Instant::now();
    let measured = paths.measured.clone();
    let mut profile = Profile::new(utc_now(), measured.tool, measured.host, measured.cpus);
    step("costs of each kind of work");
    let cpus = profile.host.allowed_cpus.clone();
    let hands = hand_overs(paths, &cpus)?;
    profile.works = costs(paths, &cpus, &hands)?;
    step("sleeping and waking up");
    profile.sharing = sharing(paths, &profile, &hands)?;
    step("paths that are held back");
    let is_file = paths.is_file();
    profile.checks = checks(paths, &profile, || is_file || began.elapsed() < budget)?;
    profile.runs = paths.runs;
    profile.seconds = began.elapsed().as_secs_f64();
    profile.check().map_err(|error| error.to_string())?;
    Ok(profile)
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "nanoseconds of a short run"
)]
fn whole(ns: f64) -> u64 {
    ns.round() as u64
}
