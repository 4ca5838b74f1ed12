//! `daqmeter readout record`: the blocks of a card's channel as a file.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::Args;
use daqmeter_readout::Chosen;
use daqmeter_readout::card::ChannelId;
use daqmeter_readout::recording::record;

use super::options::{channel, channels};
use super::pages::KeepOptions;
use crate::arguments::count;
use crate::interrupt;
use crate::named::Replaced;
use crate::output::{Ended, Failure, tell};
use crate::progress::Progress;

const OUTPUTS: [&str; 2] = ["output", "keep"];

/// Write the blocks that a channel of a card makes to a file, as fast as they can be made.
#[derive(Debug, Args)]
#[command(
    mut_arg("rotate", |option| option.conflicts_with("output")),
    mut_arg("rate_hz", |option| option.conflicts_with_all(OUTPUTS).hide(true)),
    mut_arg("poll_us", |option| option.conflicts_with_all(OUTPUTS).hide(true)),
    mut_arg("interrupt", |option| option.conflicts_with_all(OUTPUTS).hide(true)),
    mut_arg("trigger_times", |option| option.conflicts_with_all(OUTPUTS).hide(true)),
    mut_arg("busy_outside", |option| option.conflicts_with_all(OUTPUTS).hide(true)),
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    chosen: Chosen,
    /// File to write, - for standard output
    #[arg(short, long, value_name = "FILE", required_unless_present = "keep", conflicts_with = "keep", value_parser = Replaced::or_stdout)]
    output: Option<Replaced>,
    #[command(flatten)]
    keeping: KeepOptions,
    /// Channel of the card
    #[arg(long, value_name = "DEV.CH", value_parser = channel, default_value = "0.0")]
    channel: ChannelId,
    /// Number of triggers
    #[arg(long, value_name = "N", value_parser = count, default_value = "100k")]
    triggers: u64,
}

const TERMINAL: &str =
    "-o - writes raw blocks and standard output is a terminal: write to a pipe or a file";

pub(crate) fn run(arguments: &Arguments) -> Ended {
    let scenario = arguments.chosen.completed()?;
    let id = channels(&scenario, &[arguments.channel])?[0];
    let stop = interrupt::flag();
    let progress = Progress::begin(false, true);
    let ChannelId { device, channel } = id;
    let name = format!("{}:{device}.{channel}", scenario.name);
    let kept = arguments.keeping.blocks(name, scenario.card.block.0)?;
    let (shown, mut sink): (String, Box<dyn Write>) = match (&arguments.output, kept) {
        (None, kept) => (arguments.keeping.shown(), Box::new(kept.expect("one of both is given"))),
        (Some(path), _) if path.to_str() == Some("-") => {
            if io::stdout().is_terminal() {
                return Err(Failure::refused(TERMINAL));
            }
            ("standard output".to_owned(), Box::new(io::stdout().lock()))
        }
        (Some(path), _) => {
            let (shown, file) = (path.display(), File::create(&**path));
            let file = file.map_err(|error| format!("cannot write {shown}: {error}"))?;
            (shown.to_string(), Box::new(file))
        }
    };
    let mut bytes = 0_u64;
    let made = record(&scenario, id, arguments.triggers, &stop.0, |part| {
        bytes += part.len() as u64;
        sink.write_all(part)
    });
    let is_whole = made.and_then(|is_whole| sink.flush().map(|()| is_whole));
    let is_whole = is_whole.map_err(|error| {
        let what = match error.kind() {
            io::ErrorKind::BrokenPipe => return Failure::unread(),
            // Of the scenario, and not of the file.
            io::ErrorKind::Other => "",
            _ => "cannot write: ",
        };
        Failure::refused(format!("{shown}: {what}{error}; the file is incomplete"))
    })?;
    progress.end();
    let how = if is_whole { "wrote" } else { "interrupted, wrote the first part of" };
    let blocks = bytes / scenario.card.block.0 as u64;
    tell(&format!("{how} {shown}: {bytes} bytes, {blocks} blocks of channel {device}.{channel}"));
    Ok(ExitCode::SUCCESS)
}
