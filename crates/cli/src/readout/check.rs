//! `daqmeter readout check`: files of blocks, or the blocks that a card makes.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::slice;
use std::sync::atomic::AtomicBool;

use clap::Args;
use daqmeter_harness::{OpenRecord, Resolved, Tally};
use daqmeter_readout::card::ChannelId;
use daqmeter_readout::check::{CheckOptions, Checked, Checker, ElinkRow, check};
use daqmeter_readout::{Scenario, recording};
use daqmeter_record::units::significant;
use daqmeter_record::{EngineInfo, Ledger, RunRecord, Sections, Workload, sanitise};
use daqmeter_report::table::{numbers_from, paragraphs};

use super::options::{channel, channels, elink};
use super::pages::Kept;
use super::receive;
use crate::arguments::count;
use crate::context::context;
use crate::named::{Appended, Replaced};
use crate::output::{Ended, Failure, emit};
use crate::progress::Progress;
use crate::recorder::{Recorder, Recording};
use crate::verdict::{Findings, Judgement, Limits, Measure, Verdict};

/// Check a file of blocks, or what a card makes: block starts, sequence, structure, payload.
#[derive(Debug, Args)]
#[command(after_long_help = include_str!("../../help/readout-check.txt"))]
pub(crate) struct Arguments {
    /// Files of blocks, or folders of kept blocks or pages; - is stdin
    #[arg(required_unless_present = "scenario")]
    files: Vec<PathBuf>,
    /// Check the card of this scenario instead of a file
    #[arg(long, value_name = "SCENARIO", conflicts_with = "files")]
    scenario: Option<Resolved<Scenario>>,
    /// Channels of the card, as device.channel [default: all]
    #[arg(long, value_name = "DEV.CH,..", value_delimiter = ',', value_parser = channel, conflicts_with = "files")]
    channels: Vec<ChannelId>,
    /// Number of triggers of the card
    #[arg(long, value_name = "N", value_parser = count, default_value = "1M", conflicts_with = "files")]
    triggers: u64,
    /// 0 block starts, 1 sequence, 2 chunks, 3 payload
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=3), default_value = "3")]
    level: u8,
    /// E-links to check: 0x008 or 0x008,0x010 [default: all]
    #[arg(long, alias = "elink", value_name = "ELINK,..", value_delimiter = ',', value_parser = elink)]
    elinks: Vec<u16>,
    /// Maximum number of messages
    #[arg(long, value_name = "N", value_parser = count, default_value = "20")]
    messages: u64,
    /// Check the files as one run, in their order
    #[arg(long, conflicts_with = "scenario")]
    one_run: bool,
    /// Print the tables of fcheck and fdaqm
    #[arg(long)]
    all: bool,
    /// Print a JSON line per file or channel instead of tables
    #[arg(long)]
    json: bool,
    /// Append a record of each file of blocks to this file (JSON lines)
    #[arg(long, value_name = "FILE.jsonl")]
    records: Option<Appended>,
    /// Write a page with a map of what is missing
    #[arg(short, long, value_name = "FILE.html")]
    output: Option<Replaced>,
    #[command(flatten)]
    limits: Limits,
}

/// Results of a file, or of a channel of a card.
struct Part {
    name: String,
    dev_dma: String,
    checked: Checked,
    /// Begin of its record, if one is asked for.
    open: Option<OpenRecord>,
}

pub(crate) fn run(arguments: &Arguments) -> Ended {
    let recording = Recording {
        records: arguments.records.clone(),
        output: arguments.output.clone(),
        ..Recording::default()
    };
    let mut recorder = Recorder::new(&recording)?;
    recorder.progress = Progress::begin(false, true);
    let mut judgement = Judgement::Passed;
    if let Some(scenario) = &arguments.scenario {
        judgement = arguments.show(&arguments.check_card(scenario)?, &mut recorder)?;
    }
    let (folders, files): (Vec<PathBuf>, Vec<PathBuf>) =
        arguments.files.iter().cloned().partition(|path| path.is_dir());
    for folder in &folders {
        let kept = match Kept::open(folder)? {
            Kept::Pages(report) => {
                let name = folder.display().to_string();
                receive::judge(&name, &report, arguments.json, &arguments.limits)?
            }
            Kept::Blocks(channels) => {
                let parts = channels.iter().map(|(name, files)| arguments.part(name, files));
                arguments.show(&parts.collect::<Result<Vec<_>, _>>()?, &mut recorder)?
            }
        };
        judgement = judgement.max(kept);
    }
    let runs = if arguments.one_run { files.len() } else { 1 };
    let mut before: Option<Part> = None;
    for paths in files.chunks(runs.max(1)) {
        let name = paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
        let part = arguments.part(&name.join(" + "), paths)?;
        judgement = judgement.max(arguments.show(std::slice::from_ref(&part), &mut recorder)?);
        arguments.compare(before.as_ref(), &part)?;
        before = Some(part);
    }
    recorder.end(|_| String::new())?;
    Ok(judgement.code())
}

/// Files that are read one after the other.
struct Joined<'a> {
    /// Name of them all, which stands before an error.
    name: &'a str,
    left: slice::Iter<'a, PathBuf>,
    open: Box<dyn Read + Send>,
}

impl Read for Joined<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let bytes = self.open.read(into)?;
            let next = if bytes == 0 { self.left.next() } else { None };
            let Some(path) = next else { return Ok(bytes) };
            self.open = match path.as_os_str() == "-" {
                true => Box::new(io::stdin()),
                false => Box::new(File::open(path).map_err(|error| {
                    let shown = path.display().to_string();
                    let is_said = shown == self.name;
                    if is_said { error } else { io::Error::other(format!("{shown}: {error}")) }
                })?),
            };
        }
    }
}

impl Arguments {
    /// Checks files as one run, in their order.
    fn part(&self, name: &str, paths: &[PathBuf]) -> Result<Part, Failure> {
        let open = self.open(name);
        let files = Joined { name, left: paths.iter(), open: Box::new(io::empty()) };
        let checked = check(files, &self.options()).map_err(|error| format!("{name}: {error}"))?;
        Ok(Part { name: name.to_owned(), dev_dma: "0-0".to_owned(), checked, open })
    }

    /// Says that two files do not join, if the second one goes on with the run of the first.
    fn compare(&self, before: Option<&Part>, part: &Part) -> Result<(), Failure> {
        let before = before.filter(|_| !self.json);
        let missing = before.and_then(|before| before.checked.missing_before(&part.checked));
        if let (Some(before), Some(missing)) = (before, missing) {
            let [from, to] = [&before.name, &part.name].map(|name| sanitise::text(name));
            let text = format!(
                " if {to} follows {from}, at least {missing} blocks are missing between them: \
                 --one-run judges them together\n"
            );
            emit(&paragraphs(&text))?;
        }
        Ok(())
    }

    fn options(&self) -> CheckOptions {
        CheckOptions {
            level: self.level,
            format: None,
            elinks: self.elinks.clone(),
            max_messages: usize::try_from(self.messages).unwrap_or(usize::MAX),
        }
    }

    /// Checks channels of a card, each in a thread of its own.
    fn check_card(&self, scenario: &Resolved<Scenario>) -> Result<Vec<Part>, Failure> {
        let (name, ids) = (scenario.name(), channels(scenario, &self.channels)?);
        let never = AtomicBool::new(false);
        let part = |id: ChannelId| {
            let options = CheckOptions { format: scenario.format(), ..self.options() };
            let mut checker = Checker::new(options);
            let ChannelId { device, channel } = id;
            let name = format!("{name}:{device}.{channel}");
            let open = self.open(&name);
            let take = |part: &[u8]| checker.take(part).map_err(io::Error::other);
            recording::record(scenario, id, self.triggers, &never, take)?;
            let checked = checker.finish()?;
            Ok(Part { name, dev_dma: format!("{device}-{channel}"), checked, open })
        };
        let part = &part;
        std::thread::scope(|scope| {
            let threads: Vec<_> = ids.into_iter().map(|id| scope.spawn(move || part(id))).collect();
            threads.into_iter().map(|thread| thread.join().expect("checks do not panic")).collect()
        })
    }

    fn open(&self, name: &str) -> Option<OpenRecord> {
        let (target, emulated) = (name.to_owned(), self.scenario.is_some());
        let workload =
            Workload::new("check").with("file", name).with("level", u64::from(self.level));
        let engine = EngineInfo { name: "check".to_owned(), target, emulated };
        let is_asked = self.records.is_some() || self.output.is_some();
        is_asked.then(|| context(None).open_record("readout/check", engine, workload))
    }

    fn record(&self, open: &OpenRecord, checked: &Checked, verdict: &Verdict) -> RunRecord {
        let (missing, of) = self.missing(checked);
        let unit = if self.level < 3 { "blocks" } else { "events" };
        let mut ledger = Ledger { issued: of + missing, delivered: of, ..Ledger::new(unit) };
        ledger.lose("missing", missing);
        let missing = Some(Box::new(checked.loss_map()));
        let (ledgers, warnings) = (vec![ledger], checked.lost.clone());
        let sections = Sections { missing, ..Sections::default() };
        let is_good = verdict.judgement() == Judgement::Passed;
        let faults = if is_good { Vec::new() } else { vec![verdict.to_string()] };
        open.so_far(Tally { ledgers, warnings, sections, ..Tally::default() }, faults)
    }

    /// Events that are missing and those that came; below level 3 blocks.
    fn missing(&self, checked: &Checked) -> (u64, u64) {
        match self.level {
            3.. => {
                let came = checked.sum(|row| row.chunks_with_timeouts);
                (checked.sum(|row| row.events.missing), came)
            }
            _ => (checked.sum(|row| row.missing_blocks), checked.checked_blocks),
        }
    }

    fn show(&self, parts: &[Part], recorder: &mut Recorder) -> Result<Judgement, Failure> {
        // An E-link need not be in every channel.
        let rows = || parts.iter().flat_map(|part| &part.checked.rows);
        let asked = self.elinks.iter().copied();
        let absent: Vec<u16> =
            asked.filter(|elink| !rows().any(|row| row.elink == *elink)).collect();
        let any = parts.iter().any(|part| part.checked.checked_blocks > 0);
        let mut judgement = Judgement::Passed;
        for part in parts {
            let Part { name, checked, .. } = part;
            let verdict = self.verdict(checked, any, &absent);
            judgement = judgement.max(verdict.judgement());
            if let Some(open) = &part.open {
                recorder.take(self.record(open, checked, &verdict))?;
            }
            let json = serde_json::json!({ "name": name, "checked": checked, "verdict": verdict });
            emit(&if self.json { format!("{json}\n") } else { tables(part, &verdict, self.all) })?;
        }
        Ok(judgement)
    }

    fn verdict(&self, checked: &Checked, may_be_empty: bool, absent: &[u16]) -> Verdict {
        let mut findings = Findings::of(checked.blocks, "block");
        if checked.checked_blocks == 0 && !may_be_empty {
            let blocks = checked.blocks;
            let of = if self.elinks.is_empty() { "is good" } else { "is of these E-links" };
            findings.faults.push(format!("nothing was checked: none of {blocks} blocks {of}"));
        } else if !absent.is_empty() {
            let absent: Vec<String> = absent.iter().map(|elink| format!("{elink:#05x}")).collect();
            findings.faults.push(format!("no block was checked of E-link {}", absent.join(", ")));
        }
        checked.damages().for_each(|(what, count)| findings.fault(count, what));
        let chunks = checked.sum(|row| row.chunks_with_timeouts);
        if self.level >= 2 && chunks == 0 && checked.checked_blocks > 0 {
            let blocks = checked.checked_blocks;
            findings.faults.push(format!("nothing was checked: no chunk in {blocks} blocks"));
        }
        let (missing, of) = self.missing(checked);
        let order = checked.sum(|row| {
            let events = row.events.duplicates + row.events.out_of_order;
            row.duplicate_blocks + row.late_blocks + events
        });
        let cut = checked.sum(|row| row.cut_events);
        findings.values = vec![
            (Measure::Loss, missing + cut, of + missing),
            (Measure::Order, order, of),
            (Measure::Flags, checked.sum(|row| row.flagged_events), chunks),
            (Measure::Resets, checked.sum(|row| row.events.resets), chunks),
        ];
        let missing = checked.sum(|row| row.events.unclear_missing);
        findings.unclear = (checked.sum(|row| row.events.unclear), missing);
        findings.verdict(&self.limits)
    }
}

/// Writes the verdict, the messages, and a row for each E-link, those with faults first; or with
/// `all` the tables of fcheck and fdaqm.
fn tables(part: &Part, verdict: &Verdict, all: bool) -> String {
    let Part { name, dev_dma, checked, .. } = part;
    let (blocks, chunks) = (checked.blocks, checked.sum(|row| row.chunks_with_timeouts));
    let counts = format!("{blocks} blocks, {chunks} chunks of {} E-links", checked.rows.len());
    let mut out = paragraphs(&format!("{}: {verdict:#}\n {counts}", sanitise::text(name)));
    for sentence in &checked.lost {
        let _ = writeln!(out, " {sentence}");
    }
    if !checked.gaps.is_empty() {
        out += &checked.map();
    }
    for message in &checked.messages {
        let _ = writeln!(out, " {message}");
    }
    let left_out = checked.messages_left_out;
    if left_out > 0 {
        let all = left_out + checked.messages.len() as u64;
        let _ = writeln!(out, " ... {left_out} more messages; --messages {all} shows all");
    }
    if all {
        return out + &checked.fcheck_table() + "\n" + &checked.fdaqm_table(dev_dma);
    }
    let mut rows = checked.rows.clone();
    let is_good = |row: &ElinkRow| {
        let missing = row.events.missing + row.events.unclear_missing;
        (row.missing_blocks + missing + row.cut_events == 0)
            && row.flags.iter().all(|flag| *flag == 0)
    };
    rows.sort_by_key(is_good);
    let left_out = rows.len().saturating_sub(MAX_ROWS);
    rows.truncate(MAX_ROWS);
    let triggers = checked.triggers();
    let cells = rows.iter().map(|row| {
        let counts = [row.blocks, row.chunks_with_timeouts, row.bytes];
        let faults = [row.events.missing, row.missing_blocks, row.cut_events, row.flagged_events];
        let counts = counts.into_iter().chain(faults).map(|count| count.to_string());
        let against = triggers.map(|triggers| against(row.chunks_with_timeouts, triggers));
        std::iter::once(format!("{:#05x}", row.elink)).chain(counts).chain(against).collect()
    });
    let columns = HEADINGS.len() - usize::from(triggers.is_none());
    out += &numbers_from(1, &HEADINGS[..columns], cells);
    let more = if left_out > 0 { format!("{left_out} more E-links; ") } else { String::new() };
    out + &format!(" {more}the tables of fcheck and fdaqm: --all\n")
}

const MAX_ROWS: usize = 15;
const HEADINGS: [&str; 9] = [
    "E-link",
    "blocks",
    "chunks",
    "bytes",
    "events missing",
    "blocks missing",
    "cut",
    "flagged",
    "% of triggers",
];

/// Chunks in percent of the triggers.
fn against(chunks: u64, triggers: u64) -> String {
    significant(chunks as f64 / triggers.max(1) as f64 * 100.0, 6)
}
