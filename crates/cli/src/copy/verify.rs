//! `daqmeter copy verify`: every way, direction, policy and completion moves every byte, at any
//! size and alignment.

use std::process::ExitCode;

use clap::Args;
use daqmeter_copy::verify::{Case, CaseOutcome, VerifyPlan, all};
use daqmeter_copy::{CopyPath, CopyRequest, Direction};
use daqmeter_harness::{Request as _, check_fits};
use daqmeter_record::groups::in_groups;
use daqmeter_record::units::show_bytes;
use daqmeter_report::Frame;
use daqmeter_report::table::numbers_from;

use super::usable;
use crate::arguments::bytes;
use crate::interrupt;
use crate::output::{Ended, Failure, emit, json_lines, tell};
use crate::progress::{Forecast, Progress};

/// Check each byte of each way to copy, policy and completion; measure no times.
#[derive(Debug, Args)]
#[command(after_long_help = include_str!("../../help/copy-verify.txt"))]
pub(crate) struct Arguments {
    /// Only this way to copy
    #[arg(long, value_name = "NAME", hide_possible_values = true)]
    path: Option<CopyPath>,
    /// Largest block
    #[arg(long, value_name = "SIZE", value_parser = bytes, default_value = "8MiB")]
    up_to: u64,
    /// Copies at each size
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), default_value = "3")]
    times: u32,
    /// Print each case
    #[arg(long, conflicts_with = "json")]
    all: bool,
    /// A line of JSON for each case
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Ended {
    arguments.path.map(usable).transpose()?;
    let largest = usize::try_from(arguments.up_to)?;
    let of_largest = CopyRequest::new(CopyPath::Memcpy, Direction::From, largest);
    of_largest.check().map_err(|problem| format!("--up-to {}", problem.text))?;
    check_fits(of_largest.job()?.memory_bytes).map_err(|fault| fault.context("--up-to"))?;
    let plan = VerifyPlan { only: arguments.path, largest_bytes: largest, times: arguments.times };
    let stop = interrupt::flag();
    let progress = Progress::begin(false, arguments.json);
    let cases = all(&plan, &stop, |of| {
        progress.expect(Forecast::points(of, None));
        progress.took_point();
    });
    progress.end();
    emit(&match arguments.json {
        true => json_lines(&cases)?,
        false => frame(&cases, arguments.all).text(None),
    })?;
    if stop.is_set() {
        tell(&format!("daqmeter: interrupted after {} cases", cases.len()));
    }
    match cases.iter().filter(|case| is_wrong(case)).count() {
        0 => Ok(ExitCode::SUCCESS),
        failed => Err(Failure::tool(format!("{failed} of {} cases failed", cases.len()))),
    }
}

/// Shows how many cases of each way to copy are right, and those that are wrong; or each case.
fn frame(cases: &[Case], is_whole: bool) -> Frame {
    let row = |case: &Case| {
        let (verdict, result) = match &case.outcome {
            CaseOutcome::Verified { copies, bytes, largest_bytes } => {
                let largest = show_bytes(*largest_bytes as u64);
                ("ok", format!("{copies} copies, {bytes} bytes, blocks up to {largest}"))
            }
            CaseOutcome::Waived(reason) => ("-", reason.clone()),
            CaseOutcome::Failed(reason) => ("FAILED", reason.clone()),
        };
        let Case { path, context, direction, completion, .. } = case;
        let completion = completion.map_or("-".to_owned(), |completion| completion.to_string());
        let of = [verdict.to_owned(), path.to_string(), context.to_string()];
        [&of[..], &[completion, direction.to_string(), result]].concat()
    };
    let [right, wrong, absent] = counts(cases.iter());
    let all = cases.len();
    let verified = cases.iter().filter_map(|case| match case.outcome {
        CaseOutcome::Verified { copies, largest_bytes, .. } => Some((copies, largest_bytes)),
        _ => None,
    });
    let copies: u64 = verified.clone().map(|(copies, _)| copies).sum();
    let largest = verified.map(|(_, bytes)| bytes).max().unwrap_or(0);
    let answer = format!(
        "{right} of {all} cases copy every byte ({copies} copies up to {}), {wrong} are wrong, {absent} are not possible here",
        show_bytes(largest as u64)
    );
    let of_path = |(path, cases): (String, Vec<&Case>)| {
        let counts = counts(cases.iter().copied()).map(|count| count.to_string());
        let absent = cases.iter().find(|case| matches!(case.outcome, CaseOutcome::Waived(_)));
        let why = absent.map_or(String::new(), |case| row(case).swap_remove(5));
        [&[path][..], &counts, &[why]].concat()
    };
    let paths = in_groups(cases.iter().map(|case| (case.path.to_string(), case)));
    let headings = ["path", "right", "wrong", "not here", "why not"];
    let overview = numbers_from(5, &headings, paths.into_iter().map(of_path));
    let shown = cases.iter().filter(|case| is_whole || is_wrong(case));
    let headings = ["", "path", "context", "completion", "direction", "result"];
    let tables = overview + &numbers_from(6, &headings, shown.map(row));
    Frame { answer: vec![answer], tables, notes: Vec::new() }
}

fn is_wrong(case: &Case) -> bool {
    matches!(case.outcome, CaseOutcome::Failed(_))
}

/// Counts the right, the wrong and the waived cases.
fn counts<'a>(cases: impl Iterator<Item = &'a Case>) -> [usize; 3] {
    cases.fold([0; 3], |mut counts, case| {
        counts[match case.outcome {
            CaseOutcome::Verified { .. } => 0,
            CaseOutcome::Failed(_) => 1,
            CaseOutcome::Waived(_) => 2,
        }] += 1;
        counts
    })
}
