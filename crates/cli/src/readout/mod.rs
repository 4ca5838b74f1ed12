//! `daqmeter readout`: the FELIX-class chain: emulated card, reader, receivers, checker, monitor, maximum rate, the published study.

mod files;
mod live;
mod monitor;
pub(crate) mod pins;
mod run;
mod sweep;
mod verdict;
mod waiting;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use daqmeter_readout::Scenario;
use daqmeter_readout::scenario::{Completion, Hertz, Nanos, ReaderMode};
use daqmeter_record::units;

use crate::arguments::duration;
use crate::metrics::Metrics;
use crate::output::Failure;
use crate::reproduce;

/// Read out an emulated FELIX card at up to megahertz, with a ledger of every trigger.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLE)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

const EXAMPLE: &str = "\
A scenario is a TOML file, or one that ships: gbt, full, felig (daqmeter list scenarios).

Example: everything in one process, then the same on three hosts:

  $ daqmeter readout run gbt --rate 1MHz --time 10s --pin 1 --receiver-pin 0
  $ daqmeter readout sweep gbt --pin 1 --receiver-pin 0

  gimone$ daqmeter readout emulate gbt --at /run/card &
  gimone$ daqmeter readout tohost gbt --card /run/card --address 0.0.0.0:12350 --bus-dir /shared/bus
  agogna$ daqmeter readout receive --bus-dir /shared/bus
  turano$ daqmeter readout monitor gimone:9100 agogna:9100

Exit codes: 0 done; 1 bytes were wrong, an account does not close, or more was lost than --fail-on allows; 2 could not run; \
130 interrupted. The last line of run, tohost, receive and check is the verdict.";

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run a whole chain in this process and record it
    Run(run::Arguments),
    /// Find the maximum rate, and draw what it costs
    Sweep(sweep::Arguments),
    /// Emulate a card for readers in other processes
    Emulate(live::EmulateArguments),
    /// Read rings and publish their data
    Tohost(live::TohostArguments),
    /// Subscribe to publishers and check all that comes
    Receive(live::ReceiveArguments),
    /// Watch every instance: terminal, JSON lines
    Monitor(monitor::Arguments),
    /// Write the blocks that a card makes to a file
    Record(files::RecordArguments),
    /// Check a file of blocks, or what a card makes
    Check(files::CheckArguments),
    /// Set the published study beside arithmetic, model and this host
    Reproduce(reproduce::Options),
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    match &arguments.verb {
        Verb::Run(arguments) => run::run(arguments),
        Verb::Sweep(arguments) => sweep::run(arguments),
        Verb::Emulate(arguments) => live::emulate(arguments),
        Verb::Tohost(arguments) => live::tohost(arguments),
        Verb::Receive(arguments) => live::receive(arguments),
        Verb::Monitor(arguments) => monitor::run(arguments),
        Verb::Record(arguments) => files::record(arguments),
        Verb::Check(arguments) => files::check(arguments),
        Verb::Reproduce(options) => reproduce::one("readout", options),
    }
}

/// The exit code of a verb that did its work: good, or not, or as far as a signal let it.
fn exit(good: bool, interrupted: bool) -> ExitCode {
    match (interrupted, good) {
        (true, _) => ExitCode::from(130),
        (false, true) => ExitCode::SUCCESS,
        (false, false) => ExitCode::from(1),
    }
}

/// A scenario, and what is said instead of parts of it.
#[derive(Debug, Clone, Args)]
pub(crate) struct Chosen {
    /// Scenario: a name that ships, or a TOML file
    #[arg(default_value = "gbt")]
    scenario: String,
    /// Trigger rate
    #[arg(long, value_name = "RATE", value_parser = rate, help_heading = "Instead of the scenario's")]
    rate: Option<f64>,
    /// Polling interval; 0us never sleeps
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = "Instead of the scenario's")]
    poll: Option<Duration>,
    /// Sleep until the card's interrupt
    #[arg(
        long,
        conflicts_with = "poll",
        help_heading = "Instead of the scenario's"
    )]
    interrupt: bool,
    /// Bytes of a chunk
    #[arg(long, value_name = "SIZE", value_parser = bytes, help_heading = "Instead of the scenario's")]
    payload: Option<u64>,
    /// Send blocks from the ring instead of copying chunks
    #[arg(long, help_heading = "Instead of the scenario's")]
    zero_copy: bool,
    /// tcp, or zenoh where that was built in
    #[arg(long, value_name = "NAME", help_heading = "Instead of the scenario's")]
    transport: Option<String>,
}

impl Chosen {
    /// The scenario with all that.
    fn load(&self) -> Result<Scenario, Failure> {
        let mut scenario = Scenario::load(&self.scenario).map_err(Failure::refused)?;
        if let Some(rate) = self.rate {
            scenario.trigger.rate = Hertz(rate);
        }
        if let Some(poll) = self.poll {
            scenario.reader.poll = Nanos(u64::try_from(poll.as_nanos()).unwrap_or(u64::MAX));
        }
        if self.interrupt {
            scenario.reader.completion = Completion::Interrupt;
        }
        if let Some(payload) = self.payload {
            scenario.card.payload.0 = usize::try_from(payload).unwrap_or(usize::MAX);
        }
        if self.zero_copy {
            scenario.reader.mode = ReaderMode::ZeroCopy;
        }
        if let Some(transport) = &self.transport {
            scenario.publish.transport.clone_from(transport);
        }
        scenario.check().map_err(Failure::refused)?;
        // A transport that was not built in is better refused before anything begins.
        daqmeter_readout::transport::named(&scenario.publish.transport)
            .map_err(Failure::refused)?;
        Ok(scenario)
    }

    /// The same for the engine.
    fn workload(&self) -> Result<daqmeter_record::Workload, Failure> {
        let scenario = self.load()?;
        let mut workload = daqmeter_record::Workload::new("readout")
            .with("scenario", self.scenario.as_str())
            .with("rate_hz", scenario.trigger.rate.0)
            .with("poll_us", scenario.reader.poll.0 as f64 / 1e3);
        if let Some(payload) = self.payload {
            workload = workload.with("payload_bytes", payload);
        }
        if self.zero_copy {
            workload = workload.with("mode", "zero-copy");
        }
        if self.interrupt {
            workload = workload.with("completion", "interrupt");
        }
        if let Some(transport) = &self.transport {
            workload = workload.with("transport", transport.as_str());
        }
        Ok(workload)
    }
}

/// How long triggers come.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Length {
    /// Time for which triggers come
    #[arg(long, value_name = "TIME", value_parser = duration)]
    time: Option<Duration>,
    /// Or their number
    #[arg(long, value_name = "N", value_parser = count)]
    triggers: Option<u64>,
}

/// Where pages go and come from.
#[derive(Debug, Clone, Args)]
pub(crate) struct Network {
    /// Directory in which publishers leave their addresses
    #[arg(long, value_name = "DIR")]
    bus_dir: Option<PathBuf>,
    #[command(flatten)]
    metrics: Metrics,
    /// A line of JSON instead of text
    #[arg(long)]
    json: bool,
}

fn rate(text: &str) -> Result<f64, String> {
    units::parse_rate_hz(text).map_err(|error| error.to_string())
}

fn bytes(text: &str) -> Result<u64, String> {
    units::parse_bytes(text).map_err(|error| error.to_string())
}

fn count(text: &str) -> Result<u64, String> {
    units::parse_count(text).map_err(|error| error.to_string())
}

/// An E-link's number: 0x008, or decimal.
fn elink(text: &str) -> Result<u16, String> {
    let number =
        units::parse_count(text).map_err(|_| format!("`{text}` is not an E-link such as 0x008"))?;
    u16::try_from(number)
        .ok()
        .filter(|number| *number <= 0x7FF)
        .ok_or(format!("`{text}`: E-links are 0 to 0x7ff"))
}
