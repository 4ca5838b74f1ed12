//! `daqmeter readout`: the FELIX-class chain: emulated card, reader, receivers, checker, maximum
//! rate, the published study.

mod check;
mod emulate;
mod ledgers;
mod options;
mod receive;
mod record;
mod run;
mod sweep;
mod tohost;
mod verdict;

use clap::{Args, Subcommand};

use crate::output::Ended;

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

Exit codes: 0 done; 1 bytes were wrong, an account does not close, or more was lost than --fail-on allows; 2 could not run; \
130 interrupted. The last line of run, tohost, receive and check is the verdict.";

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run a whole chain in this process and record it
    Run(run::Arguments),
    /// Find the maximum rate, and draw what it costs
    Sweep(sweep::Arguments),
    /// Emulate a card for readers in other processes
    Emulate(emulate::Arguments),
    /// Read rings and publish their data
    Tohost(tohost::Arguments),
    /// Subscribe to publishers and check all that comes
    Receive(receive::Arguments),
    /// Write the blocks that a card makes to a file
    Record(record::Arguments),
    /// Check a file of blocks, or what a card makes
    Check(check::Arguments),
}

pub(crate) fn run(arguments: &Arguments) -> Ended {
    match &arguments.verb {
        Verb::Run(arguments) => run::run(arguments),
        Verb::Sweep(arguments) => sweep::run(arguments),
        Verb::Emulate(arguments) => emulate::run(arguments),
        Verb::Tohost(arguments) => tohost::run(arguments),
        Verb::Receive(arguments) => receive::run(arguments),
        Verb::Record(arguments) => record::run(arguments),
        Verb::Check(arguments) => check::run(arguments),
    }
}
