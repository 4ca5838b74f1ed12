//! `daqmeter readout record` and `check`: blocks as files.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;

use clap::Args;
use daqmeter_readout::card::{ChannelId, channel_ids};
use daqmeter_readout::check::{Checked, Checker, Options, check_watched};
use daqmeter_readout::{Scenario, recording};
use daqmeter_record::sanitise;

use super::{Chosen, count, elink};
use crate::metrics::{Metrics, Page};
use crate::output::{Failure, emit, tell};

/// Write the blocks that a card makes to a file, as fast as they can be made.
#[derive(Debug, Args)]
pub(crate) struct RecordArguments {
    #[command(flatten)]
    chosen: Chosen,
    /// File to write; of several channels each has its own, with device and channel in the name
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Triggers
    #[arg(long, value_name = "N", value_parser = count, default_value = "100k")]
    triggers: u64,
    #[command(flatten)]
    metrics: Metrics,
}

pub(crate) fn record(arguments: &RecordArguments) -> Result<ExitCode, Failure> {
    let scenario = arguments.chosen.load()?;
    let ids = channel_ids(&scenario);
    let page = arguments.metrics.served()?;
    let name = |id: &ChannelId| {
        if ids.len() == 1 {
            return arguments.output.clone();
        }
        let stem = arguments.output.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        let ending = arguments.output.extension().map(|x| format!(".{}", x.to_string_lossy())).unwrap_or_default();
        arguments.output.with_file_name(format!("{stem}-{}-{}{ending}", id.device, id.channel))
    };
    for id in &ids {
        let path = name(id);
        let shown = path.display();
        let refused = |error: io::Error| Failure::refused(format!("cannot write {shown}: {error}"));
        let mut file = File::create(&path).map_err(refused)?;
        let mut bytes = 0_u64;
        recording::record_channels(&scenario, &[*id], arguments.triggers, |_, part| {
            bytes += part.len() as u64;
            if let Some(page) = &page {
                page.set("daqmeter_bytes_total", &shown.to_string(), bytes as f64);
            }
            file.write_all(part)
        })
        .map_err(|error| Failure::refused(format!("{shown}: {error}; what is there is incomplete")))?;
        tell(&format!("wrote {shown}: {bytes} bytes, {} blocks", bytes / scenario.card.block.0 as u64));
    }
    Ok(ExitCode::SUCCESS)
}

/// Check a file of blocks, or what a card makes: block starts, sequence, structure, payload.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Example:\n\n  $ daqmeter readout record felig --triggers 1M -o felig.dat\n  $ daqmeter readout check felig.dat\n\nChunks are counted as fdaqm does (BOTH and LAST) and as fcheck does (TIMEOUT with truncation, too)."
)]
pub(crate) struct CheckArguments {
    /// Files of blocks; - is stdin
    #[arg(required_unless_present = "scenario")]
    files: Vec<PathBuf>,
    /// Check what the card of this scenario makes, without a file between
    #[arg(long, value_name = "SCENARIO", conflicts_with = "files")]
    scenario: Option<String>,
    /// Triggers of the card
    #[arg(long, value_name = "N", value_parser = count, default_value = "1M")]
    triggers: u64,
    /// 0 block starts, 1 sequence, 2 chunks, 3 payload
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=3), default_value = "3")]
    level: u8,
    /// Only this E-link
    #[arg(long, value_name = "ELINK", value_parser = elink)]
    elink: Option<u16>,
    /// Skip blocks at the beginning
    #[arg(long, value_name = "N", value_parser = count, default_value = "0")]
    skip: u64,
    /// Messages to print at most
    #[arg(long, value_name = "N", default_value = "20")]
    messages: usize,
    /// Size in KiB of blocks of 0xABCE, which do not say it
    #[arg(long, value_name = "KIB", default_value = "1")]
    block_kib: u8,
    /// A line of JSON per file or channel instead of tables
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    metrics: Metrics,
}

/// Tells the page how far a check is.
fn publish(page: Option<&Page>, name: &str, checker: &Checker) {
    if let Some(page) = page {
        page.set("daqmeter_blocks_total", name, checker.blocks() as f64);
        page.set("daqmeter_bytes_total", name, checker.bytes() as f64);
        page.set("daqmeter_errors_total", name, checker.faults() as f64);
    }
}

impl CheckArguments {
    fn options(&self) -> Options {
        Options {
            level: self.level,
            elink: self.elink,
            skip_blocks: self.skip,
            most_messages: 1000,
            abce_kib: self.block_kib,
        }
    }

    fn show(&self, name: &str, dev_dma: &str, checked: &Checked) -> Result<(), Failure> {
        if self.json {
            let line = serde_json::json!({ "name": name, "checked": checked });
            emit(&format!("{line}\n"))?;
            return Ok(());
        }
        let mut out = format!("{}\n", sanitise::text(name));
        for message in checked.messages.iter().take(self.messages) {
            let _ = writeln!(out, " {message}");
        }
        if checked.messages.len() > self.messages {
            let _ =
                writeln!(out, " ... {} more messages; --messages N shows them", checked.messages.len() - self.messages);
        }
        out.push_str(&checked.fcheck_table());
        out.push('\n');
        out.push_str(&checked.fdaqm_table(dev_dma));
        emit(&out).map(drop)
    }
}

pub(crate) fn check(arguments: &CheckArguments) -> Result<ExitCode, Failure> {
    let mut good = true;
    let page = arguments.metrics.served()?;
    if let Some(name) = &arguments.scenario {
        let scenario = Scenario::load(name).map_err(Failure::refused)?;
        for (id, checked) in check_card(&scenario, arguments, page.as_ref())? {
            good &= checked.is_good();
            arguments.show(
                &format!("{name}:{}.{}", id.device, id.channel),
                &format!("{}-{}", id.device, id.channel),
                &checked,
            )?;
        }
    }
    for path in &arguments.files {
        let shown = path.display().to_string();
        let refused = |error: &dyn std::fmt::Display| Failure::refused(format!("{shown}: {error}"));
        let watch = |checker: &Checker| publish(page.as_ref(), &shown, checker);
        let checked = if shown == "-" {
            check_watched(io::stdin(), &arguments.options(), watch)
        } else {
            check_watched(File::open(path).map_err(|error| refused(&error))?, &arguments.options(), watch)
        };
        let checked = checked.map_err(|error| refused(&error))?;
        good &= checked.is_good();
        arguments.show(&shown, "0-0", &checked)?;
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Channels one after the other, on as many threads as there are CPUs.
fn check_card(
    scenario: &Scenario,
    arguments: &CheckArguments,
    page: Option<&Page>,
) -> Result<Vec<(ChannelId, Checked)>, Failure> {
    let work = Mutex::new(channel_ids(scenario).into_iter().collect::<std::collections::VecDeque<_>>());
    let done = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let locked = |error: &str| Failure::refused(error.to_owned());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(id) = work.lock().ok().and_then(|mut work| work.pop_front()) {
                    let mut checker = Checker::new(arguments.options());
                    let name = format!("{}.{}", id.device, id.channel);
                    let made = recording::record_channels(scenario, &[id], arguments.triggers, |_, part| {
                        let taken = checker.take(part).map_err(|error| io::Error::other(error.to_string()));
                        publish(page, &name, &checker);
                        taken
                    });
                    let checked = made
                        .map_err(|error| error.to_string())
                        .and_then(|()| checker.finish().map_err(|error| error.to_string()));
                    if let Ok(mut done) = done.lock() {
                        done.push((id, checked));
                    }
                }
            });
        }
    });
    let mut done = done.into_inner().map_err(|_| locked("a checking thread panicked"))?;
    done.sort_by_key(|(id, _)| (id.device, id.channel));
    done.into_iter().map(|(id, checked)| Ok((id, checked.map_err(|error| locked(&error))?))).collect()
}
