//! `daqmeter copy latency` and `daqmeter copy bandwidth`: one sweep over contexts, operations and
//! block sizes. It uses one lane, or all CPUs or channels at once.

use std::time::Duration;

use clap::{Args, ValueEnum};
use daqmeter_copy::Direction::{self, Both, From, To};
use daqmeter_copy::{CopyContext as Context, CopyPath, CopyRequest};
use daqmeter_harness::{Fault, Limits, Request as _, Settings, StepPlan, check_fits};
use daqmeter_record::RunRecord;
use daqmeter_record::units::joined;
use daqmeter_report::Frame;
use daqmeter_report::copy::{bandwidth, latency};
use daqmeter_report::copy_classic::{self, StudyFiles};

use super::{Sampled, direction, or_all, usable};
use crate::arguments::{bytes, count};
use crate::measure::Bench;
use crate::output::{Ended, Failure};

const LIMIT_TIME: Duration = Duration::from_millis(4);

#[derive(Debug, Clone, Args)]
pub(crate) struct Sweep {
    /// Contexts: cpu, or channels of an engine: exclusive, shared, priority
    #[arg(long, value_name = "LIST", value_delimiter = ',', hide_possible_values = true)]
    contexts: Vec<Context>,
    /// Directions: from, to, both; from_nc, to_nc, both_nc empty the caches first
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = operation)]
    operations: Vec<(Direction, bool)>,
    /// Block sizes [default: powers of two]
    #[arg(long, value_name = "SIZE,..", value_delimiter = ',', value_parser = bytes)]
    sizes: Vec<u64>,
    /// Largest block size, as in the study: 1 is 2 MiB, 10 is 1024 MiB
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10), default_value = "5", conflicts_with = "sizes", hide_short_help = true)]
    menu: u32,
    /// Way to copy by CPU (daqmeter list copies)
    #[arg(long, value_name = "NAME", hide_possible_values = true)]
    path: Option<CopyPath>,
    /// Engine: module, engine-thread [default: module if it has channels, else engine-thread]
    #[arg(long, value_name = "NAME", hide_possible_values = true)]
    engine: Option<CopyPath>,
    /// CPUs or channels that copy together [default: latency 1; bandwidth all CPUs]
    #[arg(long, value_name = "N", value_parser = count)]
    lanes: Option<u64>,
    #[command(flatten)]
    request: CopyRequest,
    #[command(flatten)]
    sampled: Sampled,
}

/// Reads a direction; `_nc` is without cache.
fn operation(text: &str) -> Result<(Direction, bool), String> {
    let (name, cold) = text.strip_suffix("_nc").map_or((text, false), |name| (name, true));
    let direction = direction(name)
        .map_err(|_| format!("`{text}` is none of from, to, both, from_nc, to_nc, both_nc"))?;
    Ok((direction, cold))
}

/// Differences between the two verbs.
pub(super) struct Verb {
    study: &'static str,
    contexts: &'static [Context],
    operations: &'static [(Direction, bool)],
    smallest_bytes: u64,
    /// True if all CPUs or channels copy at once by default.
    is_parallel: bool,
    frame: fn(&[RunRecord]) -> Frame,
    files: fn(&[RunRecord]) -> StudyFiles,
}

pub(super) const LATENCY: Verb = Verb {
    study: "copy/latency",
    contexts: &[Context::Cpu, Context::Exclusive, Context::Shared],
    operations: &[(From, false), (To, false), (From, true), (To, true)],
    smallest_bytes: 1,
    is_parallel: false,
    frame: latency,
    files: copy_classic::latency,
};

pub(super) const BANDWIDTH: Verb = Verb {
    study: "copy/bandwidth",
    contexts: &[Context::Cpu, Context::Exclusive, Context::Shared, Context::Priority],
    operations: &[(From, false), (To, false), (Both, false)],
    smallest_bytes: 1024,
    is_parallel: true,
    frame: bandwidth,
    files: copy_classic::bandwidth,
};

impl Sweep {
    pub(super) fn run(&self, verb: &Verb) -> Ended {
        let mut bench = Bench::new(&self.sampled.common)?;
        let mut cpus = self.sampled.common.pins();
        let allowed = &bench.runner.context.host.allowed_cpus;
        if verb.is_parallel && cpus.is_empty() {
            cpus.clone_from(allowed);
        }
        let usual = if verb.is_parallel { allowed.len() } else { 1 };
        let asked = self.lanes.map(|lanes| usize::try_from(lanes).unwrap_or(usize::MAX));
        let requests = self.requests(verb, asked.unwrap_or(usual))?;
        bench.runner.limits = Limits::new(LIMIT_TIME);
        let plan = StepPlan::ByStage(self.sampled.repeat);
        let settings = bench.runner.settings(plan, verb.study, &cpus);
        let settings = Settings { in_one: verb.is_parallel, ..settings };
        self.sampled.measure(bench, requests, &settings, verb.files, verb.frame)
    }

    fn path_of(&self, context: Context) -> CopyPath {
        match context {
            Context::Cpu => self.path.unwrap_or_else(CopyPath::of_cpu),
            _ => self.engine.unwrap_or_else(CopyPath::of_engine),
        }
    }

    fn sizes(&self, smallest: u64) -> Vec<u64> {
        let powers = (0..=20 + self.menu).map(|power| 1 << power);
        let powers: Vec<u64> = powers.filter(|size| *size >= smallest).collect();
        or_all(&self.sizes, &powers).to_vec()
    }

    /// Refuses options of contexts that are not measured.
    fn refuse_idle(&self, contexts: &[Context]) -> Result<(), Failure> {
        let usual = CopyRequest::new(CopyPath::Memcpy, To, 1);
        let CopyRequest { completion, quantum_ns, window_ns, high_channels, .. } = self.request;
        let (cpu, priority) = (&[Context::Cpu][..], &[Context::Priority][..]);
        let engines = &Context::value_variants()[1..];
        for (name, is_given, of) in [
            ("--path", self.path.is_some(), cpu),
            ("--engine", self.engine.is_some(), engines),
            ("--interrupt", completion != usual.completion, engines),
            ("--quantum", quantum_ns != usual.quantum_ns, priority),
            ("--window", window_ns != usual.window_ns, priority),
            ("--high", high_channels != usual.high_channels, priority),
        ] {
            if is_given && !of.iter().any(|context| contexts.contains(context)) {
                let of = joined(of.iter().map(Context::to_string), " or ").unwrap_or_default();
                return Err(Failure::refused(format!("{name} is for --contexts {of}")));
            }
        }
        Ok(())
    }

    /// Returns every context by every operation and size; refuses impossible ones before anything
    /// is measured.
    fn requests(&self, verb: &Verb, lanes: usize) -> Result<Vec<CopyRequest>, Failure> {
        let too_large = |fault: Fault| Failure::refused(fault.context("choose smaller --sizes"));
        let mut requests = Vec::new();
        let contexts = or_all(&self.contexts, verb.contexts);
        self.refuse_idle(contexts)?;
        for &context in contexts {
            let path = usable(self.path_of(context))?;
            for &(direction, cold) in or_all(&self.operations, verb.operations) {
                for size in self.sizes(verb.smallest_bytes) {
                    let block_bytes = usize::try_from(size)?;
                    let asked = self.request.clone();
                    let request =
                        CopyRequest { path, context, direction, cold, block_bytes, lanes, ..asked };
                    request.check()?;
                    check_fits(request.job()?.memory_bytes).map_err(too_large)?;
                    requests.push(request);
                }
            }
        }
        Ok(requests)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Options {
        #[command(flatten)]
        sweep: Sweep,
    }

    #[test]
    fn the_studys_menu_chooses_the_largest_block() {
        let largest = |arguments: &[&str]| {
            let options = Options::try_parse_from([&["copy"], arguments].concat());
            options.map(|options| *options.sweep.sizes(1).last().unwrap())
        };
        for (arguments, bytes) in [
            (&["--menu", "1"][..], Some(2 << 20)),
            (&["--menu", "10"], Some(1024 << 20)),
            (&[], Some(32 << 20)),
            (&["--menu", "0"], None),
            (&["--menu", "11"], None),
            (&["--menu", "1", "--sizes", "1MiB"], None),
        ] {
            assert_eq!(largest(arguments).ok(), bytes, "{arguments:?}");
        }
    }
}
