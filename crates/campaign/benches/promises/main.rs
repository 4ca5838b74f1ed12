//! Measures the promises of `daqmeter ab`: on simulated hosts with a known truth, and with real work
//! on this host, alone and overcommitted. Those of `daqmeter cmp` are in the crate `report`.
//!
//! `cargo bench -p daqmeter-campaign --bench promises [-- PART SECONDS]`; exits with 1 when a
//! promise is broken. PART is one of
//!
//! - `simulated`: hosts whose truth is known; the default.
//! - `ab-alone`, `ab-overcommitted`: real points, for SECONDS.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a benchmark prints what it found, and stops where it fails"
)]

mod promise;
#[path = "../../../stats/benches/simulated/mod.rs"]
mod simulated;
mod turns;

use std::process::ExitCode;
use std::time::Duration;

use daqmeter_stats::Random;

use promise::Promise;
use turns::Load;

const SIDE: &str = "side";
const TURNS: usize = 1000;
const OVERCOMMIT: usize = 5;
const USUAL_S: u64 = 240;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let time = Duration::from_secs(words.get(1).map_or(USUAL_S, |text| text.parse().unwrap()));
    let promises = match words.first().map_or("simulated", String::as_str) {
        SIDE => {
            turns::side();
            return ExitCode::SUCCESS;
        }
        "simulated" => turns::simulated(TURNS),
        "ab-alone" => turns::real("alone", time, 0.95),
        "ab-overcommitted" => {
            let _load = Load::of(OVERCOMMIT);
            turns::real("overcommitted", time, 0.90)
        }
        other => panic!("no part is named `{other}`: see the head of benches/promises/main.rs"),
    };
    promises.iter().for_each(|promise| println!("{}", promise.line()));
    if promises.iter().all(Promise::is_kept) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
