//! `daqmeter path explain`: which part limits a path, by slowing each in turn.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use daqmeter_path::explain::{Answer, Explained, Slowed, explain};
use daqmeter_path::{Path, PathRequest};
use daqmeter_record::sanitise;
use daqmeter_record::units::{show_ns, significant};
use daqmeter_report::paths;
use daqmeter_report::table::numbers_from;

use super::max::{probe, run_of};
use super::run::{checked, request};
use crate::arguments::{count, duration};
use crate::output::Failure;
use crate::runner::{Common, Runner};

/// Add 5, 10 and 20 % of work to each part in turn, between runs without, and say which part the whole follows.
#[derive(Debug, Args)]
#[command(
    after_long_help = "The slope of a part is the added time per block of the whole path over that which was added to the part: 1 for the limit, 0\nfor what has time to spare. \"No single one\" and \"cannot tell\" are answers. The path goes as fast as it can meanwhile.\n\nExample:\n\n  $ daqmeter path explain digitizer-crate --rounds 8"
)]
pub(crate) struct Arguments {
    /// Path: one that ships, or a TOML file
    #[arg(value_name = "PATH")]
    path: String,
    /// Time of one run
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "200ms")]
    time: Duration,
    /// Rounds over all parts; 3 or more
    #[arg(long, value_name = "N", value_parser = rounds, default_value = "5")]
    rounds: u64,
    #[command(flatten)]
    common: Common,
}

/// More would be days.
const MAX_ROUNDS: u64 = 1000;

fn rounds(text: &str) -> Result<u64, String> {
    let least = daqmeter_path::explain::MIN_ROUNDS as u64;
    let given = count(text)?;
    match (least..=MAX_ROUNDS).contains(&given) {
        true => Ok(given),
        false => Err(format!("{least} to {MAX_ROUNDS} rounds are wanted")),
    }
}

struct Chain<'a> {
    runner: &'a mut Runner,
    request: PathRequest,
}

impl Slowed for Chain<'_> {
    type Error = Failure;

    fn block_ns(&mut self, slowed: Option<(usize, f64)>) -> Result<f64, Failure> {
        let request = PathRequest {
            slow_element: slowed.map(|(element, _)| element as u64),
            slow_ns: slowed.map_or(0.0, |(_, ns)| ns),
            ..self.request.clone()
        };
        let record = probe(self.runner, &request)?;
        let run = run_of(&record)?;
        Ok(run.wall_ns as f64 / run.blocks as f64)
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let path = Path::load(&arguments.path).map_err(Failure::refused)?;
    let request = PathRequest {
        unpaced: true,
        ..request(&path, arguments.time, &arguments.common)
    };
    checked(&request)?;
    let parts = path.parts();
    let mut runner = Runner::new(&arguments.common, 0)?;
    let rounds = usize::try_from(arguments.rounds).unwrap_or(usize::MAX);
    let mut slowed = Chain {
        runner: &mut runner,
        request,
    };
    let explained = explain(&mut slowed, &parts, rounds)?;
    runner.conclude(None, |records| {
        let last = records.iter().rev().find_map(|record| record.path.as_ref());
        let line = last.map_or_else(String::new, |run| {
            format!("{}\n", sanitise::text(&run.line))
        });
        line + &text(&explained) + &paths::text(records)
    })
}

fn text(explained: &Explained) -> String {
    let percent = |share: f64| significant(share, 2);
    let rows = explained.slopes.iter().map(|slope| {
        vec![
            slope.name.clone(),
            percent(slope.slope),
            format!("{} to {}", percent(slope.low), percent(slope.high)),
        ]
    });
    let table = numbers_from(1, &["part", "slope", "interval"], rows);
    format!(
        "{table}\n{}\n{} runs, {} per block without added work; the intervals hold together with 95 % confidence\n",
        answer(explained),
        explained.runs,
        show_ns(explained.block_ns)
    )
}

fn answer(explained: &Explained) -> String {
    match explained.answer {
        Answer::Limit(at) => {
            let slope = &explained.slopes[at];
            format!(
                "limit: {}. What it costs more, the path costs more, one for one; the other parts have time to spare",
                sanitise::text(&slope.name)
            )
        }
        Answer::NoSingle => {
            "limit: no single one. No part moves the whole one for one: they share what limits them, such as CPUs or memory"
                .to_owned()
        }
        Answer::CannotTell => {
            "limit: cannot tell. The intervals are too wide: more --rounds, a longer --time, or a quiet host".to_owned()
        }
    }
}
