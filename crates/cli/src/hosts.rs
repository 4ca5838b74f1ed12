//! `daqmeter hosts`: records of many hosts as one answer.

use std::path::PathBuf;

use clap::Args;

use crate::output::{Ended, Failure};

/// Find the hosts that differ from others of their kind.
#[derive(Debug, Args)]
#[command(after_long_help = include_str!("../help/hosts.txt"))]
pub(crate) struct Arguments {
    /// Records of the hosts, a folder; two folders: before and after a change
    #[arg(value_name = "PATH", num_args = 0..=2)]
    paths: Vec<PathBuf>,
}

pub(crate) fn run(_arguments: &Arguments) -> Ended {
    Err(Failure::refused("not there yet"))
}
