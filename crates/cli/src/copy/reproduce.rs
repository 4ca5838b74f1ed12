use crate::output::Failure;
use clap::Args;
use std::process::ExitCode;
/// x
#[derive(Debug, Args)]
pub(super) struct Arguments {}
pub(super) fn run(_arguments: &Arguments) -> Result<ExitCode, Failure> {
    Ok(ExitCode::SUCCESS)
}
