//! `daqmeter path`: a path of data as a file: drawn, run, and explained.

mod explain;
pub(crate) mod run;
mod serve;

use clap::Args;
use daqmeter_path::{Layout, Path, Setting};

use crate::beside::KernelLosses;
use crate::deferred::{Deferred, verbs};

use crate::measure::Bench;

pub(crate) use explain::Search;

/// A path, and what replaces parts of its file.
#[derive(Debug, Args)]
pub(crate) struct ChosenPath {
    /// Path: one that ships, or a TOML file
    path: String,
    /// Which thread does what: auto, pipeline, fused, fused x 2, or `[memory] [copy, read] x 2`
    #[arg(long, value_name = "LAYOUT")]
    layout: Option<Layout>,
    /// Another value for a field of the file: block=128KiB, stage.1.by=memcpy
    #[arg(long, value_name = "FIELD=VALUE")]
    set: Vec<Setting>,
}

impl Bench {
    /// Counts losses in the kernel from now on, if the path goes through the network.
    fn watch_network(&mut self, path: &Path) {
        if path.is_networked() {
            self.runner.observe(|| Box::new(KernelLosses::default()));
        }
    }
}

verbs! {
    #[command(after_long_help = include_str!("../../help/path.txt"))]
    pub(crate) enum Verb {
        /// Run a path and record it
        Run(arguments: Deferred<run::Arguments>) => run::run(arguments),
        /// Name the resource that limits a path, and confirm it by slowing each part
        Explain(arguments: Deferred<explain::Arguments>) => explain::run(arguments),
        /// Receive the blocks of paths that end on this host
        Serve(arguments: Deferred<serve::Arguments>) => serve::run(arguments),
    }
}
