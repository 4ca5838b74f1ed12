//! `daqmeter readout record` and `check`: blocks as files.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::Args;
use daqmeter_readout::card::{ChannelId, channel_ids};
use daqmeter_readout::check::{Checked, Checker, MAX_THREADS, Options, Progress, check_watched};
use daqmeter_readout::{Chosen, Scenario, recording};
use daqmeter_record::sanitise;
use daqmeter_sys::net::{Readiness, wait_ready};

use super::options::{WrittenTriggers, elink, load};
use super::verdict::{Found, Judgement, Measure, OfCheck, Verdict, fell_to_0};
use crate::arguments::count;
use crate::metrics::{Metrics, Page};
use crate::named::Replaced;
use crate::output::{Failure, emit, tell};
use crate::runner::on_ctrl_c;

/// Write the blocks that a card makes to a file, as fast as they can be made.
#[derive(Debug, Args)]
pub(crate) struct RecordArguments {
    #[command(flatten)]
    chosen: Chosen,
    /// File to write, - for standard output; of several channels each has its own file, with device and channel in the name
    #[arg(short, long, value_name = "FILE", value_parser = Replaced::or_stdout)]
    output: Replaced,
    /// Only these channels of the card, as device.channel; all without it
    #[arg(long, value_name = "DEV.CH,..", value_delimiter = ',', value_parser = channel)]
    channels: Vec<ChannelId>,
    /// Triggers
    #[arg(long, value_name = "N", value_parser = count, default_value = "100k")]
    triggers: u64,
    #[command(flatten)]
    written: WrittenTriggers,
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
    let ids: Vec<ChannelId> = chosen_channels(&scenario, &arguments.channels)?.into();
    let stop = Arc::new(AtomicBool::new(false));
    on_ctrl_c(&stop)?;
    let page = arguments.metrics.served()?;
    if arguments.output.as_os_str() == "-" {
        let id = only_channel(&ids)?;
        record_channel(&scenario, id, arguments, "standard output", &stop, page.as_ref(), || {
            Ok(io::stdout().lock())
        })?;
        return arguments.finish(&scenario, &stop);
    }
    for id in &ids {
        let path = match ids.len() {
            1 => arguments.output.to_path_buf(),
            _ => name_of_channel(&arguments.output, id),
        };
        let shown = path.display().to_string();
        let is_whole =
            record_channel(&scenario, *id, arguments, &shown, &stop, page.as_ref(), || {
                File::create(&path)
            })?;
        if !is_whole {
            break;
        }
    }
    arguments.finish(&scenario, &stop)
}

impl RecordArguments {
    /// The triggers of blocks that are whole, and the exit code.
    fn finish(&self, scenario: &Scenario, stop: &AtomicBool) -> Result<ExitCode, Failure> {
        let is_stopped = stop.load(Ordering::Relaxed);
        if !is_stopped {
            self.written.write(scenario, self.triggers)?;
        }
        Ok(Judgement::Passed.exit(is_stopped))
    }
}

/// What goes to standard output: blocks of one channel, and not to a terminal.
fn only_channel(ids: &[ChannelId]) -> Result<ChannelId, Failure> {
    match ids {
        _ if io::stdout().is_terminal() => Err(Failure::refused(
            "-o - writes raw blocks and standard output is a terminal: write to a pipe or a file",
        )),
        [id] => Ok(*id),
        _ => Err(Failure::refused(format!(
            "-o - takes the blocks of one channel, the card has {}: choose one with --channels {}.{}",
            ids.len(),
            ids[0].device,
            ids[0].channel
        ))),
    }
}

/// `felig.dat` of channel 1 of device 0: `felig-0-1.dat`.
fn name_of_channel(output: &Path, id: &ChannelId) -> PathBuf {
    let text =
        |part: Option<&std::ffi::OsStr>| part.map(|part| part.to_string_lossy().into_owned());
    let stem = text(output.file_stem()).unwrap_or_default();
    let ending = text(output.extension()).map(|ending| format!(".{ending}")).unwrap_or_default();
    output.with_file_name(format!("{stem}-{}-{}{ending}", id.device, id.channel))
}

/// Writes the blocks of one channel; false when it was interrupted.
fn record_channel<W: Write>(
    scenario: &Scenario,
    id: ChannelId,
    arguments: &RecordArguments,
    shown: &str,
    stop: &AtomicBool,
    page: Option<&Page>,
    open: impl FnOnce() -> io::Result<W>,
) -> Result<bool, Failure> {
    let refused = |error: io::Error| Failure::refused(format!("cannot write {shown}: {error}"));
    let mut sink = open().map_err(refused)?;
    let mut bytes = 0_u64;
    let made = recording::record_until(scenario, &[id], arguments.triggers, stop, |_, part| {
        sink.write_all(part)?;
        bytes += part.len() as u64;
        if let Some(page) = page {
            page.set("daqmeter_bytes_total", shown, bytes as f64);
        }
        Ok(())
    });
    let is_whole = match made {
        Err(recording::RecordError::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            return Err(Failure::unread());
        }
        made => made.map_err(|error| {
            Failure::refused(format!("{shown}: {error}; what is there is incomplete"))
        })?,
    };
    sink.flush().map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::unread(),
        _ => refused(error),
    })?;
    let how = match is_whole {
        true => "wrote",
        false => "interrupted, wrote the first part of",
    };
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
    /// Threads that check: of a file each has its own E-links, of a scenario its own channels; as many as there are CPUs without it,
    /// for a file one fewer, because another one reads
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=MAX_THREADS as i64))]
    threads: Option<u8>,
    /// A line of JSON per file or channel instead of tables
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    limits: OfCheck,
    #[command(flatten)]
    metrics: Metrics,
}

/// `1.3`: channel 3 of device 1.
fn channel(text: &str) -> Result<ChannelId, String> {
    let wrong = || format!("`{text}`: write device.channel, such as 0.3");
    let (device, channel) = text.split_once('.').ok_or_else(wrong)?;
    Ok(ChannelId {
        device: device.parse().map_err(|_| wrong())?,
        channel: channel.parse().map_err(|_| wrong())?,
    })
}

/// The channels to check; one that the scenario has not is refused.
fn chosen_channels(
    scenario: &Scenario,
    wanted: &[ChannelId],
) -> Result<VecDeque<ChannelId>, Failure> {
    let all = channel_ids(scenario);
    if let Some(id) = wanted.iter().find(|id| !all.contains(id)) {
        let (first, last) = (all[0], all[all.len() - 1]);
        return Err(Failure::refused(format!(
            "--channels {}.{}: {} has channels {}.{} to {}.{}",
            id.device,
            id.channel,
            scenario.name,
            first.device,
            first.channel,
            last.device,
            last.channel
        )));
    }
    Ok(all.into_iter().filter(|id| wanted.is_empty() || wanted.contains(id)).collect())
}

fn elinks_text(elinks: &[u16]) -> String {
    let each = elinks.iter().map(|elink| format!("{elink:#05x}"));
    each.collect::<Vec<_>>().join(", ")
}

/// Tells the page how far a check is.
fn publish(page: Option<&Page>, name: &str, progress: Progress) {
    if let Some(page) = page {
        page.set("daqmeter_blocks_total", name, progress.blocks as f64);
        page.set("daqmeter_bytes_total", name, progress.bytes as f64);
        page.set("daqmeter_errors_total", name, progress.faults as f64);
    }
}

impl CheckArguments {
    /// Those that were asked for, or one for each CPU that may be used and that so many other threads leave free.
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

    fn show(
        &self,
        name: &str,
        dev_dma: &str,
        checked: &Checked,
        verdict: &Verdict,
    ) -> Result<(), Failure> {
        if self.json {
            let line = serde_json::json!({ "name": name, "checked": checked, "verdict": verdict });
            emit(&format!("{line}\n"))?;
            return Ok(());
        }
        let mut out = format!("{}\n", sanitise::text(name));
        for message in &checked.messages {
            let _ = writeln!(out, " {message}");
        }
        if checked.messages_left_out > 0 {
            let all = checked.messages_left_out + checked.messages.len() as u64;
            let _ = writeln!(
                out,
                " ... {} more messages; --messages {all} shows all",
                checked.messages_left_out
            );
        }
        out.push_str(&checked.fcheck_table());
        out.push('\n');
        out.push_str(&checked.fdaqm_table(dev_dma));
        let _ = writeln!(out, "{verdict}");
        emit(&out).map(drop)
    }

    /// Why nothing was checked, if so.
    fn nothing_checked(&self, checked: &Checked) -> Option<String> {
        let blocks = checked.blocks;
        match (checked.checked_blocks, self.elinks.as_slice()) {
            (1.., _) => None,
            (0, _) if self.skip >= blocks => Some(format!(
                "nothing was checked: --skip {} leaves out all {blocks} blocks",
                self.skip
            )),
            (0, [_, ..]) => Some(format!(
                "nothing was checked: none of {blocks} blocks is of E-link {}",
                elinks_text(&self.elinks)
            )),
            (0, []) => Some(format!("nothing was checked: no good block among {blocks}")),
        }
    }

    /// E-links that were asked for and of which there is no block.
    fn absent(&self, checked: &[&Checked]) -> Vec<u16> {
        let is_there = |elink: u16| {
            let mut rows = checked.iter().flat_map(|checked| &checked.rows);
            rows.any(|row| row.elink == elink)
        };
        let asked = self.elinks.iter().copied();
        asked.filter(|elink| !is_there(*elink)).collect()
    }

    fn verdict(&self, checked: &Checked, may_be_empty: bool, absent: &[u16]) -> Verdict {
        let mut found = Found::default();
        if let Some(why) = self.nothing_checked(checked).filter(|_| !may_be_empty) {
            found.fails(why);
        } else if !absent.is_empty() {
            let absent = elinks_text(absent);
            found.fails(format!("no block was checked of E-link {absent}"));
        }
        checked.damages().for_each(|(what, count)| found.fault(count, what));
        let chunks = checked.sum(|row| row.chunks_with_timeouts);
        let (missing, of) = if self.level >= 3 {
            (checked.sum(|row| row.missing_events), chunks)
        } else {
            (checked.sum(|row| row.missing_blocks), checked.checked_blocks)
        };
        let cut = checked.sum(|row| row.cut_events);
        found.value(Measure::Loss, missing + cut, of + missing);
        let [falls, perhaps] = [checked.sum(|row| row.falls), checked.sum(|row| row.falls_missing)];
        fell_to_0(&mut found, falls, perhaps);
        let order = checked.sum(|row| {
            row.duplicate_blocks + row.late_blocks + row.duplicate_events + row.late_events
        });
        found.value(Measure::Order, order, of);
        found.value(Measure::Flags, checked.sum(|row| row.flagged_events), chunks);
        found.value(Measure::Resets, checked.sum(|row| row.resets), chunks);
        found.verdict(&self.limits.fail_on)
    }
}

/// A file that ends where it is when it is to stop: at a block of any size, unless nothing more comes.
struct Stoppable<'a> {
    file: File,
    stop: &'a AtomicBool,
    read: u64,
}

/// Whether to stop is looked at so often while nothing comes.
const LOOK: Duration = Duration::from_millis(100);
/// The largest block; the others divide it.
const MAX_BLOCK_BYTES: u64 = 16 << 10;

impl<'a> Stoppable<'a> {
    fn open(path: &Path, stop: &'a AtomicBool) -> io::Result<Stoppable<'a>> {
        // Standard input without its buffer: what lies in that cannot be waited for.
        let file = match path.to_str() {
            Some("-") => File::from(io::stdin().as_fd().try_clone_to_owned()?),
            _ => File::open(path)?,
        };
        Ok(Stoppable { file, stop, read: 0 })
    }

    fn is_asked(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl Read for Stoppable<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let rest =
            usize::try_from(self.read.next_multiple_of(MAX_BLOCK_BYTES) - self.read).unwrap_or(0);
        let wanted = if self.is_asked() { rest.min(room.len()) } else { room.len() };
        if wanted == 0 {
            return Ok(0);
        }
        while !wait_ready(self.file.as_fd(), Readiness { read: true, write: false }, Some(LOOK))?
            .read
        {
            if self.is_asked() {
                return Ok(0);
            }
        }
        let got = self.file.read(&mut room[..wanted])?;
        self.read += got as u64;
        Ok(got)
    }
}

pub(crate) fn check(arguments: &CheckArguments) -> Result<ExitCode, Failure> {
    let mut judgement = Judgement::Passed;
    let stop = Arc::new(AtomicBool::new(false));
    on_ctrl_c(&stop)?;
    let is_asked = || stop.load(Ordering::Relaxed);
    let page = arguments.metrics.served()?;
    if let Some(name) = &arguments.scenario {
        let scenario = Scenario::load(name).map_err(Failure::refused)?;
        let channels = check_card(&scenario, arguments, page.as_ref(), &stop)?;
        // An E-link need not be in every channel.
        let all: Vec<&Checked> = channels.iter().map(|(_, checked)| checked).collect();
        let absent = arguments.absent(&all);
        let any = all.iter().any(|checked| checked.checked_blocks > 0);
        for (id, checked) in &channels {
            let verdict = arguments.verdict(checked, any, &absent);
            judgement = judgement.max(verdict.judgement());
            arguments.show(
                &format!("{name}:{}.{}", id.device, id.channel),
                &format!("{}-{}", id.device, id.channel),
                checked,
                &verdict,
            )?;
        }
    }
    for path in arguments.files.iter().take_while(|_| !is_asked()) {
        let shown = path.display().to_string();
        let refused = |error: &dyn std::fmt::Display| Failure::refused(format!("{shown}: {error}"));
        let watch = |progress: Progress| publish(page.as_ref(), &shown, progress);
        let file = Stoppable::open(path, &stop).map_err(|error| refused(&error))?;
        // One more reads ahead.
        let threads = arguments.threads(1);
        let checked = match check_watched(file, &arguments.options(), threads, watch) {
            // Nothing was read that could be checked.
            Err(_) if is_asked() => break,
            checked => checked.map_err(|error| refused(&error))?,
        };
        let verdict = arguments.verdict(&checked, false, &arguments.absent(&[&checked]));
        judgement = judgement.max(verdict.judgement());
        arguments.show(&shown, "0-0", &checked, &verdict)?;
    }
    if is_asked() {
        tell("daqmeter: interrupted; the tables are of what was checked until then");
    }
    Ok(judgement.exit(is_asked()))
}

/// Channels one after the other, on so many threads.
fn check_card(
    scenario: &Scenario,
    arguments: &CheckArguments,
    page: Option<&Page>,
    stop: &AtomicBool,
) -> Result<Vec<(ChannelId, Checked)>, Failure> {
    let channels = chosen_channels(scenario, &arguments.channels)?;
    let threads = arguments.threads(0).min(channels.len());
    let (work, done) = (Mutex::new(channels), Mutex::new(Vec::new()));
    let locked = |error: &str| Failure::refused(error.to_owned());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(id) = work.lock().ok().and_then(|mut work| work.pop_front()) {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let mut checker = Checker::new(arguments.options());
                    let name = format!("{}.{}", id.device, id.channel);
                    let made = recording::record_until(
                        scenario,
                        &[id],
                        arguments.triggers,
                        stop,
                        |_, part| {
                            let taken = checker
                                .take(part)
                                .map_err(|error| io::Error::other(error.to_string()));
                            publish(page, &name, checker.progress());
                            taken
                        },
                    );
                    let checked = made
                        .map_err(|error| error.to_string())
                        .and_then(|_| checker.finish().map_err(|error| error.to_string()));
                    if let Ok(mut done) = done.lock() {
                        done.push((id, checked));
                    }
                }
            });
        }
    });
    let mut done = done.into_inner().map_err(|_| locked("a checking thread panicked"))?;
    done.sort_by_key(|(id, _)| (id.device, id.channel));
    done.into_iter()
        .map(|(id, checked)| Ok((id, checked.map_err(|error| locked(&error))?)))
        .collect()
}
