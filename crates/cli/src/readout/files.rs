//! `daqmeter readout record` and `check`: blocks as files.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use clap::Args;
use daqmeter_readout::card::{ChannelId, channel_ids};
use daqmeter_readout::check::{
    CheckOptions, Checked, Checker, MAX_THREADS, Progress, check_watched,
};
use daqmeter_readout::{Chosen, Scenario, recording};
use daqmeter_record::sanitise;
use daqmeter_sys::net::{Readiness, wait_ready};

use super::options::{Instance, elink, load, publish};
use super::verdict::{Findings, Judgement, Limits, Measure, Verdict};
use crate::arguments::count;
use crate::metrics::{Metrics, Page};
use crate::named::Replaced;
use crate::output::{Failure, emit, tell};

/// Write the blocks that a channel of a card makes to a file, as fast as they can be made.
#[derive(Debug, Args)]
pub(crate) struct RecordArguments {
    #[command(flatten)]
    chosen: Chosen,
    /// File to write, - for standard output
    #[arg(short, long, value_name = "FILE", value_parser = Replaced::or_stdout)]
    output: Replaced,
    /// Channel of the card
    #[arg(long, value_name = "DEV.CH", value_parser = channel, default_value = "0.0")]
    channel: ChannelId,
    /// Triggers
    #[arg(long, value_name = "N", value_parser = count, default_value = "100k")]
    triggers: u64,
    #[command(flatten)]
    metrics: Metrics,
}

pub(crate) fn record(arguments: &RecordArguments) -> Result<ExitCode, Failure> {
    if arguments.chosen.replay.is_some() {
        return Err(Failure::refused(
            "--replay: the file has its blocks already; copy it, or replay it by `daqmeter readout run`",
        ));
    }
    let scenario = load(&arguments.chosen)?;
    let ids = chosen_channels(&scenario, &[arguments.channel])?;
    let instance = Instance::begin(&arguments.metrics)?;
    let (shown, mut sink): (String, Box<dyn Write>) = match &*arguments.output {
        path if path.as_os_str() == "-" => {
            let stdout = io::stdout();
            if stdout.is_terminal() {
                return Err(Failure::refused(
                    "-o - writes raw blocks and standard output is a terminal: write to a pipe or a file",
                ));
            }
            ("standard output".to_owned(), Box::new(stdout.lock()))
        }
        path => {
            let shown = path.display().to_string();
            let file = File::create(path)
                .map_err(|error| Failure::refused(format!("cannot write {shown}: {error}")))?;
            (shown, Box::new(file))
        }
    };
    let mut bytes = 0_u64;
    let (triggers, stop) = (arguments.triggers, &instance.stop);
    let made = recording::record_until(&scenario, &ids, triggers, stop, |_, part| {
        sink.write_all(part)?;
        bytes += part.len() as u64;
        instance.page.set("daqmeter_bytes_total", &shown, bytes as f64);
        Ok(())
    });
    let is_whole = made.and_then(|is_whole| Ok(sink.flush().map(|()| is_whole)?));
    let is_whole = is_whole.map_err(|error| match error {
        recording::RecordError::Io(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            Failure::unread()
        }
        error => Failure::refused(format!("{shown}: {error}; what is there is incomplete")),
    })?;
    let how = if is_whole { "wrote" } else { "interrupted, wrote the first part of" };
    tell(&format!("{how} {shown}: {bytes} bytes, {} blocks", bytes / scenario.card.block.0 as u64));
    Ok(Judgement::Passed.exit(instance.is_stopped()))
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
    /// Only these channels of the scenario's card, as device.channel; all without it
    #[arg(long, value_name = "DEV.CH,..", value_delimiter = ',', value_parser = channel, conflicts_with = "files")]
    channels: Vec<ChannelId>,
    /// Triggers of the card
    #[arg(long, value_name = "N", value_parser = count, default_value = "1M")]
    triggers: u64,
    /// 0 block starts, 1 sequence, 2 chunks, 3 payload
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=3), default_value = "3")]
    level: u8,
    /// Only these E-links: 0x008 or 0x008,0x010
    #[arg(long, alias = "elink", value_name = "ELINK,..", value_delimiter = ',', value_parser = elink)]
    elinks: Vec<u16>,
    /// Skip blocks at the beginning
    #[arg(long, value_name = "N", value_parser = count, default_value = "0")]
    skip: u64,
    /// Messages to print at most
    #[arg(long, value_name = "N", value_parser = count, default_value = "20")]
    messages: u64,
    /// Size in KiB of blocks of 0xABCE, which do not say it
    #[arg(long, value_name = "KIB", default_value = "1")]
    block_kib: u8,
    /// Threads that check: of a file each has its own E-links, of a scenario its own channels; as
    /// many as there are CPUs without it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=MAX_THREADS as i64))]
    threads: Option<u8>,
    /// A line of JSON per file or channel instead of tables
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    metrics: Metrics,
}

fn channel(text: &str) -> Result<ChannelId, String> {
    let parts = text.split_once('.');
    let parsed = parts.and_then(|(device, channel)| {
        Some(ChannelId { device: device.parse().ok()?, channel: channel.parse().ok()? })
    });
    parsed.ok_or_else(|| format!("`{text}`: write device.channel, such as 0.3"))
}

fn chosen_channels(scenario: &Scenario, wanted: &[ChannelId]) -> Result<Vec<ChannelId>, Failure> {
    let all = channel_ids(scenario);
    let text = |id: &ChannelId| format!("{}.{}", id.device, id.channel);
    if let Some(id) = wanted.iter().find(|id| !all.contains(id)) {
        let [id, first, last] = [id, &all[0], &all[all.len() - 1]].map(text);
        let name = &scenario.name;
        return Err(Failure::refused(format!(
            "--channels {id}: {name} has channels {first} to {last}"
        )));
    }
    Ok(all.into_iter().filter(|id| wanted.is_empty() || wanted.contains(id)).collect())
}

fn elinks_text(elinks: &[u16]) -> String {
    let each = elinks.iter().map(|elink| format!("{elink:#05x}"));
    each.collect::<Vec<_>>().join(", ")
}

fn show_progress(page: &Page, name: &str, progress: Progress) {
    let values = [
        ("daqmeter_blocks_total", progress.blocks as f64),
        ("daqmeter_bytes_total", progress.bytes as f64),
        ("daqmeter_errors_total", progress.faults as f64),
    ];
    publish(page, name, &values);
}

impl CheckArguments {
    fn threads(&self) -> usize {
        let allowed = || std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.map_or_else(allowed, usize::from)
    }

    fn options(&self) -> CheckOptions {
        CheckOptions {
            level: self.level,
            elinks: self.elinks.clone(),
            skip_blocks: self.skip,
            max_messages: usize::try_from(self.messages).unwrap_or(usize::MAX),
            abce_kib: self.block_kib,
        }
    }

    fn show(&self, all: &[(String, String, Checked)]) -> Result<Judgement, Failure> {
        // An E-link need not be in every channel.
        let rows = || all.iter().flat_map(|(.., checked)| &checked.rows);
        let asked = self.elinks.iter().copied();
        let absent: Vec<u16> =
            asked.filter(|elink| !rows().any(|row| row.elink == *elink)).collect();
        let any = all.iter().any(|(.., checked)| checked.checked_blocks > 0);
        let mut judgement = Judgement::Passed;
        for (name, dev_dma, checked) in all {
            let verdict = self.verdict(checked, any, &absent);
            judgement = judgement.max(verdict.judgement());
            emit(&match self.json {
                true => {
                    let line =
                        serde_json::json!({ "name": name, "checked": checked, "verdict": verdict });
                    format!("{line}\n")
                }
                false => tables(name, dev_dma, checked, &verdict),
            })?;
        }
        Ok(judgement)
    }

    fn verdict(&self, checked: &Checked, may_be_empty: bool, absent: &[u16]) -> Verdict {
        let mut findings = Findings::default();
        let blocks = checked.blocks;
        match checked.checked_blocks {
            0 if may_be_empty => {}
            0 if self.skip >= blocks => findings.fails(format!(
                "nothing was checked: --skip {} leaves out all {blocks} blocks",
                self.skip
            )),
            0 if self.elinks.is_empty() => {
                findings.fails(format!("nothing was checked: no good block among {blocks}"));
            }
            0 => findings.fails(format!(
                "nothing was checked: none of {blocks} blocks is of E-link {}",
                elinks_text(&self.elinks)
            )),
            _ if absent.is_empty() => {}
            _ => findings.fails(format!("no block was checked of E-link {}", elinks_text(absent))),
        }
        checked.damages().for_each(|(what, count)| findings.fault(count, what));
        let chunks = checked.sum(|row| row.chunks_with_timeouts);
        let (missing, of) = match self.level {
            3.. => (checked.sum(|row| row.missing_events), chunks),
            _ => (checked.sum(|row| row.missing_blocks), checked.checked_blocks),
        };
        let order = checked.sum(|row| {
            row.duplicate_blocks + row.late_blocks + row.duplicate_events + row.late_events
        });
        let cut = checked.sum(|row| row.cut_events);
        findings.values(&[
            (Measure::Loss, missing + cut, of + missing),
            (Measure::Order, order, of),
            (Measure::Flags, checked.sum(|row| row.flagged_events), chunks),
            (Measure::Resets, checked.sum(|row| row.resets), chunks),
        ]);
        findings.fell_to_0(checked.sum(|row| row.falls), checked.sum(|row| row.falls_missing));
        findings.verdict(&self.limits)
    }
}

fn tables(name: &str, dev_dma: &str, checked: &Checked, verdict: &Verdict) -> String {
    let mut out = format!("{}\n", sanitise::text(name));
    for message in &checked.messages {
        let _ = writeln!(out, " {message}");
    }
    let left_out = checked.messages_left_out;
    if left_out > 0 {
        let all = left_out + checked.messages.len() as u64;
        let _ = writeln!(out, " ... {left_out} more messages; --messages {all} shows all");
    }
    let (fcheck, fdaqm) = (checked.fcheck_table(), checked.fdaqm_table(dev_dma));
    let _ = writeln!(out, "{fcheck}\n{fdaqm}{verdict}");
    out
}

/// A file that ends at a block of any size when the program is asked to stop, unless nothing more
/// comes.
struct Stoppable<'a> {
    file: File,
    stop: &'a AtomicBool,
    read: usize,
}

const LOOK: Duration = Duration::from_millis(100);
const MAX_BLOCK_BYTES: usize = 16 << 10;

impl Read for Stoppable<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let is_asked = || self.stop.load(Ordering::Relaxed);
        let rest = self.read.next_multiple_of(MAX_BLOCK_BYTES) - self.read;
        let wanted = if is_asked() { rest.min(room.len()) } else { room.len() };
        let readable = Readiness { read: true, write: false };
        while wanted > 0 && !wait_ready(self.file.as_fd(), readable, Some(LOOK))?.read {
            if is_asked() {
                return Ok(0);
            }
        }
        let got = self.file.read(&mut room[..wanted])?;
        self.read += got;
        Ok(got)
    }
}

fn open(path: &Path) -> io::Result<File> {
    match path.to_str() {
        // Standard input has no buffer here, since its content could not be waited for.
        Some("-") => Ok(File::from(io::stdin().as_fd().try_clone_to_owned()?)),
        _ => File::open(path),
    }
}

pub(crate) fn check(arguments: &CheckArguments) -> Result<ExitCode, Failure> {
    let instance = Instance::begin(&arguments.metrics)?;
    let mut judgement = Judgement::Passed;
    if let Some(name) = &arguments.scenario {
        let scenario = Scenario::load(name).map_err(Failure::refused)?;
        judgement = arguments.show(&check_card(name, &scenario, arguments, &instance)?)?;
    }
    for path in arguments.files.iter().take_while(|_| !instance.is_stopped()) {
        let shown = path.display().to_string();
        let refused = |error: &dyn std::fmt::Display| Failure::refused(format!("{shown}: {error}"));
        let watch = |progress: Progress| show_progress(&instance.page, &shown, progress);
        let file = open(path).map_err(|error| refused(&error))?;
        let file = Stoppable { file, stop: &instance.stop, read: 0 };
        match check_watched(file, &arguments.options(), arguments.threads(), watch) {
            // No block was read that could be checked.
            Err(_) if instance.is_stopped() => break,
            Err(error) => return Err(refused(&error)),
            Ok(checked) => {
                let shown = arguments.show(&[(shown, "0-0".to_owned(), checked)])?;
                judgement = judgement.max(shown);
            }
        }
    }
    if instance.is_stopped() {
        tell("daqmeter: interrupted; the tables are of what was checked until then");
    }
    Ok(judgement.exit(instance.is_stopped()))
}

/// Checks channels of a card on several threads. Returns names, devices with channels, and results.
fn check_card(
    name: &str,
    scenario: &Scenario,
    arguments: &CheckArguments,
    instance: &Instance,
) -> Result<Vec<(String, String, Checked)>, Failure> {
    let ids = chosen_channels(scenario, &arguments.channels)?;
    let results: Vec<OnceLock<Result<Checked, String>>> =
        ids.iter().map(|_| OnceLock::new()).collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..arguments.threads().min(ids.len()) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(id) = ids.get(at).filter(|_| !instance.is_stopped()) else {
                        break;
                    };
                    results[at].get_or_init(|| check_channel(scenario, *id, arguments, instance));
                }
            });
        }
    });
    let done = ids.iter().zip(results).filter_map(|(id, result)| Some((id, result.into_inner()?)));
    done.map(|(ChannelId { device, channel }, checked)| {
        let checked = checked.map_err(Failure::refused)?;
        Ok((format!("{name}:{device}.{channel}"), format!("{device}-{channel}"), checked))
    })
    .collect()
}

fn check_channel(
    scenario: &Scenario,
    id: ChannelId,
    arguments: &CheckArguments,
    instance: &Instance,
) -> Result<Checked, String> {
    let mut checker = Checker::new(arguments.options());
    let name = format!("{}.{}", id.device, id.channel);
    let (triggers, stop) = (arguments.triggers, &instance.stop);
    recording::record_until(scenario, &[id], triggers, stop, |_, part| {
        let taken = checker.take(part).map_err(|error| io::Error::other(error.to_string()));
        show_progress(&instance.page, &name, checker.progress());
        taken
    })
    .map_err(|error| error.to_string())?;
    checker.finish().map_err(|error| error.to_string())
}
