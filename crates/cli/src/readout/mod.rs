//! `daqmeter readout`: the FELIX-class chain: emulated card, reader, receivers, checker, maximum
//! rate, the published study.

mod check;
mod emulate;
mod ledgers;
mod options;
mod pages;
mod receive;
mod record;
mod run;
mod sweep;
mod tohost;

use crate::deferred::{Deferred, verbs};

verbs! {
    #[command(after_long_help = include_str!("../../help/readout.txt"))]
    pub(crate) enum Verb {
        /// Run card, readers and receivers in this process
        Run(arguments: Deferred<run::Arguments>) => run::run(arguments),
        /// Find the maximum rate without loss
        Sweep(arguments: Deferred<sweep::Arguments>) => sweep::run(arguments),
        /// Emulate a card for readers in other processes
        Emulate(arguments: Deferred<emulate::Arguments>) => emulate::run(arguments),
        /// Read the rings of a card, and publish the data
        Tohost(arguments: Deferred<tohost::Arguments>) => tohost::run(arguments),
        /// Subscribe to publishers, and check the data
        Receive(arguments: Deferred<receive::Arguments>) => receive::run(arguments),
        /// Write the blocks of a card to a file
        Record(arguments: Deferred<record::Arguments>) => record::run(arguments),
        /// Check a file of blocks, or the blocks of a card
        Check(arguments: Deferred<check::Arguments>) => check::run(arguments),
    }
}
