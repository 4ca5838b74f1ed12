//! `daqmeter check`: is a kept run complete, and as it was written?

use std::fs::File;
use std::io::{BufReader, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use daqmeter_harness::facts::utc_after_1970;
use daqmeter_hostio::kept::{KeptCheck, KeptChecked, KeptRun, StreamChecked};
use daqmeter_record::file::replace;
use daqmeter_record::units::{plural, show_bytes};
use daqmeter_record::{Ledger, RunRecord, jsonl, sanitise};
use daqmeter_report::table::paragraphs;
use daqmeter_sys::host::open_regular;
use serde_json::json;

use crate::interrupt;
use crate::output::{Ended, FAILED, Failure, emit, json_lines, read_records};
use crate::progress::Progress;

/// Compare a kept run with its index: are all blocks there, and as they were written?
#[derive(Debug, Args)]
#[command(after_long_help = include_str!("../help/check.txt"))]
pub(crate) struct Arguments {
    /// Folder of a kept run
    folder: PathBuf,
    /// Print one JSON line instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Ended {
    let _progress = Progress::begin(false, true);
    let stop = interrupt::flag();
    let check = KeptCheck::open(&arguments.folder)?;
    let run = check.reader.run.clone();
    let ledgers = ledgers(&arguments.folder)?;
    let checked = check.all(&|| stop.is_set())?;
    let is_complete = checked.is_complete() && ledgers.iter().all(is_whole);
    let folder = arguments.folder.display().to_string();
    match arguments.json {
        true => {
            let streams = run.streams.iter().zip(&checked.streams).map(|(stream, own)| {
                let (first, last) = own.numbers.unzip();
                json!({
                    "name": stream.name, "blocks": own.blocks, "bytes": own.bytes, "first": first,
                    "last": last, "missing": own.missing, "gaps": own.gaps, "intact": own.intact,
                    "begin_ns": own.times_ns.0, "end_ns": own.times_ns.1,
                })
            });
            let found = json!({
                "folder": folder, "complete": is_complete, "streams": streams.collect::<Vec<_>>(),
                "faults": checked.faults, "more_faults": checked.more_faults, "ledgers": ledgers,
            });
            emit(&json_lines(&[found])?)?;
        }
        false => drop(emit(&text(&run, &checked, &ledgers, is_complete, &folder))?),
    }
    Ok(if is_complete { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

/// Ledgers of the record of a kept run; none without a record.
fn ledgers(folder: &Path) -> Result<Vec<Ledger>, Failure> {
    let path = folder.join(RECORD);
    let file = match open_regular(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        file => file.map_err(|error| Failure::refused(format!("{}: {error}", path.display())))?,
    };
    let records = read_records(BufReader::new(file), &path)?;
    if records.is_empty() {
        let path = path.display();
        return Err(Failure::refused(format!("{path}: no record that this daqmeter can read")));
    }
    Ok(records.into_iter().flat_map(|record| record.ledgers).collect())
}

/// Tests if nothing that was issued is missing.
fn is_whole(ledger: &Ledger) -> bool {
    ledger.closes() && ledger.lost_on_the_way() == 0
}

fn text(
    run: &KeptRun,
    checked: &KeptChecked,
    ledgers: &[Ledger],
    is_complete: bool,
    folder: &str,
) -> String {
    let blocks: u64 = checked.streams.iter().map(|stream| stream.blocks).sum();
    let bytes: u64 = checked.streams.iter().map(|stream| stream.bytes).sum();
    let has = format!("{} in {}", show_bytes(bytes), plural(blocks, "block"));
    let verdict = match (is_complete, checked.is_cut) {
        (true, _) => format!("complete: {has}, each as it was written"),
        (false, true) => format!("not known: the check was ended after {has}"),
        (false, false) => format!("not complete: {has}"),
    };
    let mut lines = vec![format!("{folder}: {verdict}")];
    for (stream, own) in run.streams.iter().zip(&checked.streams) {
        let name = sanitise::text(&stream.name);
        lines.push(format!(" {name}: {}", stream_text(own)));
        if own.missing > 0 {
            let gaps: Vec<String> = own
                .gaps
                .iter()
                .map(|&(first, last)| match first == last {
                    true => first.to_string(),
                    false => format!("{first} to {last}"),
                })
                .collect();
            let listed: u64 = own.gaps.iter().map(|(first, last)| last - first + 1).sum();
            let more = if listed == own.missing { "" } else { ", and others" };
            lines.push(format!("   missing {}: {}{more}", own.missing, gaps.join(", ")));
        }
    }
    let what = checked.faults.iter().map(|fault| format!(" wrong: {}", sanitise::text(fault)));
    lines.extend(what);
    if checked.more_faults > 0 {
        lines.push(format!(" wrong: {} more", checked.more_faults));
    }
    for ledger in ledgers.iter().filter(|ledger| !is_whole(ledger)) {
        lines.push(format!(" ledger: {}", sanitise::text(&ledger.to_string())));
    }
    paragraphs(&(lines.join("\n") + "\n"))
}

fn stream_text(own: &StreamChecked) -> String {
    let Some((first, last)) = own.numbers else { return "no block".to_owned() };
    let [begin, end] =
        [own.times_ns.0, own.times_ns.1].map(Duration::from_nanos).map(utc_after_1970);
    let intact = match own.intact {
        Some(all) if all == last => String::new(),
        Some(some) => format!(", complete up to {some}"),
        None => ", none complete".to_owned(),
    };
    format!("{}, numbers {first} to {last}{intact}, {begin} to {end}", plural(own.blocks, "block"))
}

/// File of the record of a kept run, in its folder.
const RECORD: &str = "record.jsonl";

/// Adds the record of a run to the folder that it kept.
pub(crate) fn add_record(record: &RunRecord) -> Result<(), Failure> {
    let kept = record.sections.path.as_ref().and_then(|run| run.kept.as_ref());
    let folder = kept.map(|kept| PathBuf::from(&kept.folder));
    // A trial leaves no folder.
    let Some(folder) = folder.filter(|folder| folder.join("run.json").exists()) else {
        return Ok(());
    };
    let path = folder.join(RECORD);
    let written =
        replace(&path, &jsonl::to_line(record)).and_then(|()| File::open(&path)?.sync_all());
    written.map_err(|error| Failure::tool(format!("cannot write {}: {error}", path.display())))
}
