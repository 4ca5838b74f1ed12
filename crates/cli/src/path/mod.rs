//! `daqmeter path`: a path of data as a file: drawn, run, and explained.

mod explain;
pub(crate) mod run;
mod serve;

use clap::{Args, Subcommand};
use daqmeter_path::Setting;

use crate::deferred::Deferred;
use crate::output::Ended;

pub(crate) use explain::Search;

const EXAMPLE: &str = "\
    A path is a TOML file or the name of a shipped path (daqmeter list paths).\n\n\
    Example:\n\n  \
    $ daqmeter list felix-card               # a drawing, before it runs\n  \
    $ daqmeter path run felix-card --time 3s # rate, latency, time of each thread\n  \
    $ daqmeter path run pattern --max        # its highest rate\n  \
    $ daqmeter path explain felix-card       # its bottleneck\n  \
    $ daqmeter list felix-card --toml > my.toml";

/// A path, and what replaces parts of its file.
#[derive(Debug, Args)]
pub(crate) struct ChosenPath {
    /// Path: one that ships, or a TOML file
    #[arg(value_name = "PATH")]
    path: String,
    /// Which thread does what: auto, pipeline, fused, fused x 2, or `[memory] [copy, read] x 2`
    #[arg(long, value_name = "LAYOUT", default_value = "", hide_default_value = true)]
    layout: String,
    /// Another value for a field of the file: block=128KiB, stage.1.by=memcpy
    #[arg(long, value_name = "FIELD=VALUE")]
    set: Vec<Setting>,
}

#[derive(Debug, Subcommand)]
#[command(after_long_help = EXAMPLE)]
pub(crate) enum Verb {
    /// Run a path and record it
    Run(Deferred<run::Arguments>),
    /// Name the resource that limits a path, and confirm it by slowing each part
    Explain(Deferred<explain::Arguments>),
    /// Receive the blocks of paths that end on this host
    Serve(Deferred<serve::Arguments>),
}

impl Verb {
    pub(crate) fn run(&self) -> Ended {
        match self {
            Verb::Run(arguments) => run::run(arguments),
            Verb::Explain(arguments) => explain::run(arguments),
            Verb::Serve(arguments) => serve::run(arguments),
        }
    }
}
