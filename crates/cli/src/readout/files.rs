//! `daqmeter readout record` and `check`: blocks as files.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use daqmeter_readout::card::{ChannelId, channel_ids};
use daqmeter_readout::check::{Checked, Checker, MAX_THREADS, Options, Progress, check_watched};
use daqmeter_readout::{Chosen, Scenario, recording};
use daqmeter_record::sanitise;
use daqmeter_sys::net::{Readiness, wait_ready};

use super::options::{Instance, elink, load, publish};
use super::verdict::{Findings, Judgement, Limits, Measure, Verdict};
use crate::arguments::count;
use crate::metrics::{Metrics, Page};
use crate::named::Replaced;
use crate::output::{Failure, emit, tell};

/// Write the blocks that a card makes to a file, as fast as they can be made.
#[derive(Debug, Args)]
pub(crate) struct RecordArguments {
    #[command(flatten)]
    chosen: Chosen,
    /// File to write, - for standard output; of several channels each has its own file, with device
    /// and channel in the name
    #[arg(short, long, value_name = "FILE", value_parser = Replaced::or_stdout)]
    output: Replaced,
    /// Only these channels of the card, as device.channel; all without it
    #[arg(long, value_name = "DEV.CH,..", value_delimiter = ',', value_parser = channel)]
    channels: Vec<ChannelId>,
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
    let ids = chosen_channels(&scenario, &arguments.channels)?;
    let instance = Instance::begin(&arguments.metrics)?;
    if arguments.output.as_os_str() == "-" {
        check_stdout(&ids)?;
    }
    for id in &ids {
        if !record_channel(&scenario, *id, ids.len(), arguments, &instance)? {
            break;
        }
    }
    Ok(Judgement::Passed.exit(instance.is_stopped()))
}

/// Requires one channel for standard output, which may not be a terminal.
fn check_stdout(ids: &[ChannelId]) -> Result<(), Failure> {
    if io::stdout().is_terminal() {
        return Err(Failure::refused(
            "-o - writes raw blocks and standard output is a terminal: write to a pipe or a file",
        ));
    }
    let (first, count) = (ids[0], ids.len());
    match count {
        1 => Ok(()),
        _ => Err(Failure::refused(format!(
            "-o - takes the blocks of one channel, the card has {count}: choose one with --channels {}.{}",
            first.device, first.channel
        ))),
    }
}

/// Names the file of a channel, e.g. `felig-0-1.dat` for `felig.dat` and channel 1 of device 0.
fn name_of_channel(output: &Path, id: ChannelId) -> PathBuf {
    let mut name = output.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{}-{}", id.device, id.channel));
    if let Some(ending) = output.extension() {
        name.push(".");
        name.push(ending);
    }
    output.with_file_name(name)
}

fn record_channel(
    scenario: &Scenario,
    id: ChannelId,
    channels: usize,
    arguments: &RecordArguments,
    instance: &Instance,
) -> Result<bool, Failure> {
    let output: &Path = &arguments.output;
    let (shown, opened): (String, io::Result<Box<dyn Write>>) = match channels {
        _ if output.as_os_str() == "-" => {
            ("standard output".to_owned(), Ok(Box::new(io::stdout().lock())))
        }
        count => {
            let path = if count == 1 { output.to_owned() } else { name_of_channel(output, id) };
            let file = File::create(&path).map(|file| Box::new(file) as Box<dyn Write>);
            (path.display().to_string(), file)
        }
    };
    let refused = |error: io::Error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::unread(),
        _ => Failure::refused(format!("cannot write {shown}: {error}")),
    };
    let mut sink = opened.map_err(refused)?;
    let mut bytes = 0_u64;
    let (triggers, stop) = (arguments.triggers, &instance.stop);
    let made = recording::record_until(scenario, &[id], triggers, stop, |_, part| {
        sink.write_all(part)?;
        bytes += part.len() as u64;
        instance.page.set("daqmeter_bytes_total", &shown, bytes as f64);
        Ok(())
    });
    let is_whole = made.map_err(|error| match error {
        recording::RecordError::Io(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            Failure::unread()
        }
        error => Failure::refused(format!("{shown}: {error}; what is there is incomplete")),
    })?;
    sink.flush().map_err(refused)?;
    let how = if is_whole { "wrote" } else { "interrupted, wrote the first part of" };
    tell(&format!("{how} {shown}: {bytes} bytes, {} blocks", bytes / scenario.card.block.0 as u64));
    Ok(is_whole)
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
    /// many as there are CPUs without it, for a file one fewer, because another one reads
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
    fn threads(&self, others: usize) -> usize {
        let allowed = || std::thread::available_parallelism().map_or(1, usize::from);
        let free = || allowed().saturating_sub(others).max(1);
        self.threads.map_or_else(free, usize::from)
    }

    fn options(&self) -> Options {
        Options {
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

    fn nothing_checked(&self, checked: &Checked) -> Option<String> {
        let blocks = checked.blocks;
        let why = match checked.checked_blocks {
            1.. => return None,
            0 if self.skip >= blocks => {
                format!("--skip {} leaves out all {blocks} blocks", self.skip)
            }
            0 if self.elinks.is_empty() => format!("no good block among {blocks}"),
            0 => format!("none of {blocks} blocks is of E-link {}", elinks_text(&self.elinks)),
        };
        Some(format!("nothing was checked: {why}"))
    }

    fn verdict(&self, checked: &Checked, may_be_empty: bool, absent: &[u16]) -> Verdict {
        let mut findings = Findings::default();
        if let Some(why) = self.nothing_checked(checked).filter(|_| !may_be_empty) {
            findings.fails(why);
        } else if !absent.is_empty() {
            findings.fails(format!("no block was checked of E-link {}", elinks_text(absent)));
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

/// A file that ends at a block of any size when it is to stop, unless nothing more comes.
struct Stoppable<'a> {
    file: File,
    stop: &'a AtomicBool,
    read: u64,
}

const LOOK: Duration = Duration::from_millis(100);
const MAX_BLOCK_BYTES: u64 = 16 << 10;

impl<'a> Stoppable<'a> {
    fn open(path: &Path, stop: &'a AtomicBool) -> io::Result<Stoppable<'a>> {
        // Standard input has no buffer here, since its content could not be waited for.
        let file = match path.to_str() {
            Some("-") => File::from(io::stdin().as_fd().try_clone_to_owned()?),
            _ => File::open(path)?,
        };
        Ok(Stoppable { file, stop, read: 0 })
    }
}

impl Read for Stoppable<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let is_asked = || self.stop.load(Ordering::Relaxed);
        let rest = self.read.next_multiple_of(MAX_BLOCK_BYTES) - self.read;
        let rest = usize::try_from(rest).unwrap_or(0);
        let wanted = if is_asked() { rest.min(room.len()) } else { room.len() };
        let readable = Readiness { read: true, write: false };
        while wanted > 0 && !wait_ready(self.file.as_fd(), readable, Some(LOOK))?.read {
            if is_asked() {
                return Ok(0);
            }
        }
        let got = self.file.read(&mut room[..wanted])?;
        self.read += got as u64;
        Ok(got)
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
        let file = Stoppable::open(path, &instance.stop).map_err(|error| refused(&error))?;
        // Another thread reads ahead.
        let threads = arguments.threads(1);
        match check_watched(file, &arguments.options(), threads, watch) {
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

/// Checks channels of a card one after the other, on several threads. Returns names, devices with
/// channels, and results.
fn check_card(
    name: &str,
    scenario: &Scenario,
    arguments: &CheckArguments,
    instance: &Instance,
) -> Result<Vec<(String, String, Checked)>, Failure> {
    let channels = chosen_channels(scenario, &arguments.channels)?;
    let threads = arguments.threads(0).min(channels.len());
    let (work, done) = (Mutex::new(VecDeque::from(channels)), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(id) = work.lock().ok().and_then(|mut work| work.pop_front()) {
                    if instance.is_stopped() {
                        break;
                    }
                    let checked = check_channel(scenario, id, arguments, instance);
                    if let Ok(mut done) = done.lock() {
                        done.push((id, checked));
                    }
                }
            });
        }
    });
    let done = done.into_inner();
    let mut done = done.map_err(|_| Failure::refused("a checking thread panicked"))?;
    done.sort_by_key(|(id, _)| (id.device, id.channel));
    done.into_iter()
        .map(|(ChannelId { device, channel }, checked)| {
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
