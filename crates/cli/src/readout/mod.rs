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

use clap::{Args, Subcommand};

use crate::deferred::Deferred;
use crate::output::Ended;

/// Read out an emulated FELIX card at up to some megahertz, and account for every trigger.
#[derive(Debug, Args)]
#[command(after_long_help = include_str!("../../help/readout.txt"))]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run card, readers and receivers in this process
    Run(Deferred<run::Arguments>),
    /// Find the maximum rate without loss
    Sweep(Deferred<sweep::Arguments>),
    /// Emulate a card for readers in other processes
    Emulate(Deferred<emulate::Arguments>),
    /// Read the rings of a card, and publish the data
    Tohost(Deferred<tohost::Arguments>),
    /// Subscribe to publishers, and check the data
    Receive(Deferred<receive::Arguments>),
    /// Write the blocks of a card to a file
    Record(Deferred<record::Arguments>),
    /// Check a file of blocks, or the blocks of a card
    Check(Deferred<check::Arguments>),
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
