//! Measures the promises of `daqmeter cmp`, `daqmeter history` and `daqmeter ab`. It uses simulated
//! hosts with a known truth, and real work on this host, alone and overcommitted five times.
//!
//! `cargo bench -p daqmeter-campaign --bench promises [-- PART SECONDS [FOLDER]]`; exits with 1
//! when a promise is broken. Without a part the first three are done, in 5 to 7 minutes. PART is
//! one of
//!
//! - `simulated`: hosts whose truth is known.
//! - `alone`, `overcommitted`: rounds of real work, for SECONDS more than FOLDER holds, or until
//!   there are enough. Rounds share comparisons, so the interval of each figure uses the
//!   independent rounds.
//! - `ab-alone`, `ab-overcommitted`: real points in turns, for SECONDS.
//! - `all`: all of these, 18 minutes.
//! - `stored`: FOLDER holds files of one plan on one unchanged host, one invocation each: 500
//!   random pairs of them are compared.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a benchmark prints what it found, and stops where it fails"
)]

mod promise;
mod rounds;
#[path = "../../../stats/benches/simulated/mod.rs"]
mod simulated;
mod turns;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use daqmeter_stats::{Occasion, Point, Random};

use promise::{Promise, histories, measured};
use rounds::{Rounds, stored};
use turns::Load;

const SIDE: &str = "side";
const SIMULATED: usize = 25;
const ROWS: usize = 1000;
const TURNS: usize = 1000;
const OVERCOMMIT: usize = 5;
/// Parts with their default seconds. Rounds of real work end earlier when there are enough of them.
const PARTS: [(&str, u64); 5] = [
    ("simulated", 0),
    ("alone", 240),
    ("overcommitted", 600),
    ("ab-alone", 240),
    ("ab-overcommitted", 300),
];
const USUAL: usize = 3;
const STORED: &str = "stored";

fn part(name: &str, seconds: Option<u64>, usual: u64, folder: &Path) -> Vec<Promise> {
    let time = Duration::from_secs(seconds.unwrap_or(usual));
    let load = || Load::of(OVERCOMMIT);
    match name {
        "simulated" => {
            let mut promises = measured(SIMULATED, 1.0);
            promises.extend(histories(ROWS));
            promises.extend(turns::simulated(TURNS));
            promises
        }
        "alone" => Rounds::measured(folder, time, seconds.is_none()).promises(name),
        "overcommitted" => {
            let load = load();
            let rounds = Rounds::measured(folder, time, seconds.is_none());
            drop(load);
            rounds.promises(name)
        }
        "ab-alone" => turns::real("alone", time, 0.95),
        "ab-overcommitted" => {
            let _load = load();
            turns::real("overcommitted", time, 0.90)
        }
        STORED => stored(folder),
        other => panic!("no part is named `{other}`: see the head of benches/promises/main.rs"),
    }
}

fn main() -> ExitCode {
    let began = Instant::now();
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    if words.first().is_some_and(|word| word == SIDE) {
        turns::side();
        return ExitCode::SUCCESS;
    }
    let seconds = words.get(1).map(|text| text.parse().unwrap());
    let scratch = tempfile::tempdir().unwrap();
    let folder = |name: &str| words.get(2).map_or(scratch.path().join(name), PathBuf::from);
    let usual = |name: &str| PARTS.iter().find(|part| part.0 == name).map_or(0, |part| part.1);
    let wanted: Vec<&str> = match words.first() {
        Some(all) if all == "all" => PARTS.iter().map(|part| part.0).collect(),
        Some(name) => vec![name],
        None => PARTS[..USUAL].iter().map(|part| part.0).collect(),
    };
    let mut promises = Vec::new();
    for name in wanted {
        promises.extend(part(name, seconds, usual(name), &folder(name)));
    }
    println!("{}", Promise::head());
    promises.iter().for_each(|promise| println!("{}", promise.line()));
    println!("in {:.0} s", began.elapsed().as_secs_f64());
    if promises.iter().all(Promise::is_kept) {
        ExitCode::SUCCESS
    } else {
        println!("broken; where comparisons are too few: more SECONDS");
        ExitCode::FAILURE
    }
}
