//! The options of `daqmeter ab`.

use std::time::Duration;

use clap::Args;

use crate::arguments::{budget, per_cent};
use crate::named::Appended;

/// Measure two sides alternately and say whether they differ.
///
/// A and B are two points (an engine with its parameters, cpu=N for where it runs); with --plan two
/// binaries of daqmeter that measure the same points. Both sides are prepared, in processes of
/// their own, and then work alternately in slices of a fraction of a millisecond, so that whatever
/// else the host does meets both alike. It ends as soon as the answer is known: same, slower or
/// faster; or at the budget, undecided.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLE)]
pub(crate) struct Arguments {
    /// Side A: a point such as "convert function=3 samples=2000 isa=avx2"; a binary with --plan
    #[arg(value_name = "A")]
    pub(super) a: String,
    /// Side B
    #[arg(value_name = "B")]
    pub(super) b: String,
    /// A and B are binaries of daqmeter: measure the points of this plan (a file, or a name) with
    /// both
    #[arg(long, value_name = "PLAN")]
    pub(super) plan: Option<String>,
    /// Largest difference that counts as none
    #[arg(long, value_name = "PERCENT", value_parser = per_cent, default_value = "1%")]
    pub(super) ignore: f64,
    /// Time for each point
    #[arg(long, value_name = "TIME", value_parser = budget, default_value = "10s")]
    pub(super) budget: Duration,
    /// Chance that any of the answers is wrong, all points together
    #[arg(long, value_name = "PERCENT", value_parser = chance, default_value = "1%")]
    pub(super) error: f64,
    /// CPU for both sides [default: the last one allowed]
    #[arg(long, value_name = "CPU")]
    pub(super) pin: Option<u32>,
    /// Append a JSON line for each point to this file, as it is decided
    #[arg(long, value_name = "FILE.jsonl")]
    pub(super) records: Option<Appended>,
    /// Print the same lines instead of a table
    #[arg(long)]
    pub(super) json: bool,
}

fn chance(text: &str) -> Result<f64, String> {
    let chance = per_cent(text)?;
    match chance > 0.0 && chance < 0.5 {
        true => Ok(chance),
        false => Err("is a chance above 0% and below 50%".to_owned()),
    }
}

const EXAMPLE: &str = "\
Examples:

  $ daqmeter ab \"convert function=3 samples=2000 isa=portable\" \"convert function=3 samples=2000 isa=avx2\"
  $ daqmeter ab \"memory read_bytes=1MiB read_lines=1 write_lines=1 cpu=0\" \"memory read_bytes=1MiB read_lines=1 write_lines=1 cpu=1\"
  $ daqmeter ab ./daqmeter.old ./daqmeter --plan quick --records ab.jsonl

B is slower when its time is longer by more than --ignore, with a certainty of 99 % (--error) over all points together. To find a slowdown of 1 %, ignore less: --ignore 0.5%.

Exit codes: 0 all the same; 1 something differs; 2 something could not be measured; 3 undecided, and nothing differs.";
