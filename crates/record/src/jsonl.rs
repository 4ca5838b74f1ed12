//! JSON lines: one record a line, each flushed as it is written. Reading keeps what can be kept and names the rest.

mod batches;
mod known;

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufRead, Read, Seek, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::older::as_today;
use crate::{RunRecord, SCHEMA_VERSION, border, sanitise};
use batches::{Parse, read_parts};
use known::Known;

/// Longest line that is read. A record of the largest run stays far below; a longer line is not one of ours.
pub const MAX_LINE_BYTES: usize = 64 << 20;

/// Writes records, one flushed line each.
#[derive(Debug)]
pub struct Writer<W: Write> {
    sink: W,
}

impl<W: Write> Writer<W> {
    /// Writes to the given sink.
    pub fn new(sink: W) -> Self {
        Writer { sink }
    }

    /// Writes one record and flushes it.
    ///
    /// # Errors
    /// Those of the sink. The lines before are complete then: a record is handed over in one write.
    pub fn write(&mut self, record: &RunRecord) -> io::Result<()> {
        self.sink.write_all(&to_line(record))?;
        self.sink.flush()
    }
}

/// Opens a file for a [`Writer`]: it is made if it is not there, and locked until it is closed; a last line that was cut off is ended
/// first, so that it costs only itself.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] when another run is writing it: lines of two runs in one another's midst are of use to nobody. Else
/// those of the file system.
pub fn append_to(path: &Path) -> io::Result<File> {
    let opened = OpenOptions::new().create(true).append(true).read(true).open(path);
    // What cannot be read may still be written: pipes, terminals.
    let mut file =
        opened.or_else(|error| OpenOptions::new().append(true).open(path).map_err(|_| error))?;
    if file.metadata()?.is_file() {
        // Some network file systems have no locks; two runs into one file are then the user's own affair.
        if is_locked(&file) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut last = [b'\n'];
        if file.seek(io::SeekFrom::End(-1)).is_ok() {
            let _ = file.read(&mut last);
        }
        if last != *b"\n" {
            file.write_all(b"\n")?;
        }
    }
    Ok(file)
}

/// Whether somebody else writes the file; else it is ours from now on. Who only asks whether it is being written ([`is_being_written`])
/// holds it for a moment.
fn is_locked(file: &File) -> bool {
    const TRIES: u32 = 10;
    const PAUSE: Duration = Duration::from_millis(5);
    let fails = |_| {
        let fails = matches!(file.try_lock(), Err(TryLockError::WouldBlock));
        if fails {
            std::thread::sleep(PAUSE);
        }
        fails
    };
    (0..TRIES).all(fails)
}

/// Whether a file is open for a [`Writer`] now ([`append_to`]).
pub fn is_being_written(path: &Path) -> bool {
    let file = File::open(path);
    file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// The line of one record, with its line feed.
pub fn to_line(record: &RunRecord) -> Vec<u8> {
    let mut line = serde_json::to_vec(record).expect("records hold plain data with text keys");
    line.push(b'\n');
    line
}

/// Why a line was left out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// Not a record.
    #[error("line {line}: not a record of daqmeter: {why}")]
    Malformed {
        /// Line number, from 1.
        line: usize,
        /// The parser's word.
        why: String,
    },
    /// The last line has no end: the run was cut off while it was written.
    #[error(
        "line {line}: cut off in the middle (the run was interrupted while writing); the records before it are kept"
    )]
    Truncated {
        /// Line number, from 1.
        line: usize,
    },
    /// Written by a newer daqmeter.
    #[error(
        "line {line}: schema version {found}, this daqmeter reads up to {SCHEMA_VERSION}: use the newer daqmeter"
    )]
    Newer {
        /// Line number, from 1.
        line: usize,
        /// Its schema version.
        found: u64,
    },
    /// Longer than [`MAX_LINE_BYTES`].
    #[error("line {line}: longer than {MAX_LINE_BYTES} bytes")]
    TooLong {
        /// Line number, from 1.
        line: usize,
    },
}

impl LineError {
    /// Number of the line, from 1.
    pub fn line(&self) -> usize {
        match self {
            LineError::Malformed { line, .. }
            | LineError::Truncated { line }
            | LineError::Newer { line, .. }
            | LineError::TooLong { line } => *line,
        }
    }
}

/// Everything that a file of records holds, and what could not be read of it.
#[derive(Debug, Default)]
pub struct Contents {
    /// The records, in order.
    pub records: Vec<RunRecord>,
    /// What was left out.
    pub errors: Vec<LineError>,
}

/// Reads all records. Lines that are not records are named in [`Contents::errors`]; they never hide the others.
///
/// Long files are parsed by as many threads as there are CPUs, up to eight; the order is that of the file. Consecutive records of
/// one host share it, records that ask the same share their workload, and records that one thread parses share names.
///
/// # Errors
/// Only those of the source itself.
pub fn read(source: impl BufRead + Send) -> io::Result<Contents> {
    read_with(source, parse_sharing)
}

/// [`read`] for people: control characters in the text of a record are escapes ([`crate::sanitise`]), whoever wrote it.
///
/// # Errors
/// As [`read`].
pub fn read_printable(source: impl BufRead + Send) -> io::Result<Contents> {
    read_with(source, parse_printable)
}

/// The record with escapes for the control characters in its text; most records have none.
pub fn printable(record: RunRecord) -> RunRecord {
    let line = to_line(&record);
    if has_hostile_text(&line) {
        parse_printable(&line, 1, &Known::default()).unwrap_or(record)
    } else {
        record
    }
}

/// [`read_printable`] part by part, in the order of the file, for what does not need all records at once: a part is taken while the
/// next ones are parsed. Breaking off ends the reading.
///
/// # Errors
/// As [`read`]; the parts before were taken.
pub fn read_printable_parts(
    source: impl BufRead + Send,
    take: impl FnMut(Contents) -> ControlFlow<()>,
) -> io::Result<()> {
    read_parts(source, parse_printable, take)
}

fn read_with(source: impl BufRead + Send, parse: Parse) -> io::Result<Contents> {
    let mut contents = Contents::default();
    read_parts(source, parse, |mut part| {
        contents.errors.append(&mut part.errors);
        contents.records.append(&mut part.records);
        ControlFlow::Continue(())
    })?;
    Ok(contents)
}

/// Gives back what growing vectors took too much: of a hundred thousand records that was 634 MB before and 485 MB after.
fn trim(record: &mut RunRecord) {
    for lane in &mut record.lanes {
        for stage in &mut lane.stages {
            stage.sample_ns.shrink_to_fit();
            stage.sample_start_ns.shrink_to_fit();
            if let Some(control) = &mut stage.control {
                control.sample_ns.shrink_to_fit();
                control.after_samples.shrink_to_fit();
            }
        }
        lane.stages.shrink_to_fit();
        lane.allowed_cpus.shrink_to_fit();
        lane.seen_cpus.shrink_to_fit();
    }
    record.lanes.shrink_to_fit();
    record.limits.shrink_to_fit();
    for ledger in &mut record.ledgers {
        ledger.losses.shrink_to_fit();
    }
    record.ledgers.shrink_to_fit();
    record.host_cpu.steal_by_cpu_ns.shrink_to_fit();
    record.host_cpu.busy_by_cpu_ns.shrink_to_fit();
    record.host_cpu.threads_ns.shrink_to_fit();
    record.counters.shrink_to_fit();
    record.series.shrink_to_fit();
    record.warnings.shrink_to_fit();
}

/// How the lines of [`SCHEMA_VERSION`] begin.
const PRESENT: &str = "{\"schema\":1,";

/// Parses one line, which is number `line` of its file.
///
/// # Errors
/// When it is not a record or one of a newer schema.
pub fn parse_line(bytes: &[u8], line: usize) -> Result<RunRecord, LineError> {
    as_written(bytes, line).map(finished)
}

/// A record that was read whole, as this version would have written it.
fn finished(mut record: RunRecord) -> RunRecord {
    as_today(&mut record);
    trim(&mut record);
    record
}

/// The record as its line has it.
fn as_written(bytes: &[u8], line: usize) -> Result<RunRecord, LineError> {
    #[derive(serde::Deserialize)]
    struct Version {
        schema: u64,
    }
    let malformed =
        |error: serde_json::Error| LineError::Malformed { line, why: error.to_string() };
    // Most lines are of this version and say so first: they need no second look.
    if !bytes.starts_with(PRESENT.as_bytes()) {
        // The version first: a newer record may well not parse, and "use the newer daqmeter" is the better answer then.
        let version: Version = serde_json::from_slice(bytes).map_err(malformed)?;
        if version.schema > u64::from(SCHEMA_VERSION) {
            return Err(LineError::Newer { line, found: version.schema });
        }
    }
    let record = serde_json::from_slice(bytes).map_err(malformed)?;
    if has_long_number(bytes) {
        let mut value: Value = serde_json::from_slice(bytes).map_err(malformed)?;
        for free in FREE {
            if let Some(value) = value.pointer_mut(free) {
                *value = Value::Null;
            }
        }
        border::refuse_large(&value, &mut String::new())
            .map_err(|why| LineError::Malformed { line, why })?;
    }
    Ok(record)
}

/// Fields with whole numbers of any size: the request, the seed of an order, and CPU time. A large
/// host adds up CPU time over all of its CPUs. Sums of these saturate.
const FREE: [&str; 4] = ["/workload", "/order/seed", "/host_cpu", "/process_cpu"];

/// True if a line has a whole number that may be beyond [`border::MAX_WHOLE`], which has 16 digits.
/// True for some lines without one.
fn has_long_number(line: &[u8]) -> bool {
    const DIGITS: usize = 16;
    let mut from = 0;
    // Every number that is long enough has a digit at one of these places.
    while let Some(digit) = line.get(from + DIGITS - 1) {
        if !digit.is_ascii_digit() {
            from += DIGITS;
            continue;
        }
        let begin = from + DIGITS - 1;
        let is_digit = |at: &usize| line[*at].is_ascii_digit();
        let first = (0..begin).rev().take_while(is_digit).last().unwrap_or(begin);
        let end = (begin..line.len()).take_while(is_digit).last().unwrap_or(begin) + 1;
        let is_fraction = first > 0 && line[first - 1] == b'.';
        if end - first >= DIGITS && !is_fraction {
            return true;
        }
        from = end;
    }
    false
}

/// [`parse_line`] of one line of many: what the lines before said as well is shared with them.
fn parse_sharing(bytes: &[u8], line: usize, known: &Known) -> Result<RunRecord, LineError> {
    let parts = known.parts(bytes);
    let record = match parts.rest() {
        // What is wrong is said of the line as it is.
        Some(rest) => as_written(&rest, line)
            .map(|record| parts.put_into(record))
            .or_else(|_| as_written(bytes, line))?,
        None => as_written(bytes, line)?,
    };
    let mut record = finished(record);
    known.share_workload(&mut record, &parts);
    Ok(record)
}

fn parse_printable(bytes: &[u8], line: usize, known: &Known) -> Result<RunRecord, LineError> {
    if !has_hostile_text(bytes) {
        return parse_sharing(bytes, line, known);
    }
    let record = parse_line(bytes, line)?;
    let malformed =
        |error: serde_json::Error| LineError::Malformed { line, why: error.to_string() };
    let mut value = serde_json::to_value(&record).map_err(malformed)?;
    make_printable(&mut value);
    serde_json::from_value(value).map_err(malformed)
}

fn make_printable(value: &mut Value) {
    match value {
        Value::String(text) => *text = sanitise::text(text).into_owned(),
        Value::Array(values) => values.iter_mut().for_each(make_printable),
        Value::Object(fields) => {
            let own = std::mem::take(fields).into_iter().map(|(name, mut value)| {
                make_printable(&mut value);
                (sanitise::text(&name).into_owned(), value)
            });
            fields.extend(own);
        }
        _ => {}
    }
}

/// Whether a line of JSON has text that [`sanitise::text`] would change. Says yes of some lines that it would not.
fn has_hostile_text(line: &[u8]) -> bool {
    let mut from = 0;
    // In JSON control characters below 0x20 are escapes; the others are these first bytes in UTF-8.
    while let Some(at) = memchr::memchr2(b'\\', 0x7f, &line[from..]) {
        let at = from + at;
        if line[at] == 0x7f || line.get(at + 1).is_some_and(|escape| b"ubfnrt".contains(escape)) {
            return true;
        }
        from = (at + 2).min(line.len());
    }
    let starts = memchr::memchr3_iter(0xc2, 0xd8, 0xe2, line);
    starts.into_iter().any(|at| {
        matches!(
            (line[at], line.get(at + 1), line.get(at + 2)),
            (0xc2, Some(0x80..=0x9f), _)
                | (0xd8, Some(0x9c), _)
                | (0xe2, Some(0x80), Some(0x8e | 0x8f | 0xa8..=0xae))
                | (0xe2, Some(0x81), Some(0xa6..=0xa9))
        )
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{EngineInfo, Host, Lane, Outcome, Stage, Workload};
    use proptest::prelude::*;

    fn record(samples: Vec<u64>) -> RunRecord {
        let mut record = RunRecord::new(
            EngineInfo { name: "null".into(), target: "cpu0".into(), emulated: false },
            Workload::new("null").with("ops", 3_u64).with("factor", 0.5),
        );
        record.outcome = Outcome::Waived("no card".into());
        record.lanes.push(Lane {
            stages: vec![Stage { sample_ns: samples, ops_per_sample: 1, ..Stage::default() }],
            ..Lane::default()
        });
        record
    }

    /// An editor had saved a file anew: its first record was lost.
    #[test]
    fn a_byte_order_mark_costs_nothing() {
        let mut file = "\u{feff}".as_bytes().to_vec();
        file.extend(to_line(&record(vec![1])));
        file.extend(to_line(&record(vec![2])));
        let contents = read(&file[..]).unwrap();
        assert_eq!((contents.records.len(), contents.errors.len()), (2, 0));
        let lonely = read("\u{feff}".as_bytes()).unwrap();
        assert_eq!((lonely.records.len(), lonely.errors.len()), (0, 0));
    }

    #[test]
    fn a_record_survives_the_way_to_a_line_and_back() {
        let before = record(vec![1, 2, 3]);
        let line = to_line(&before);
        assert_eq!(line.iter().filter(|&&b| b == b'\n').count(), 1);
        assert_eq!(parse_line(&line, 1), Ok(before));
    }

    #[test]
    fn records_are_read_for_people_without_what_acts_on_a_terminal() {
        let plain = record(vec![1, 2, border::MAX_WHOLE]);
        for hostile in [
            "\u{1b}[2J",
            "\n",
            "\r",
            "\u{7f}",
            "\u{9b}m",
            "\u{61c}",
            "\u{202e}",
            "\u{2067}",
            "\u{2028}",
        ] {
            let mut before = plain.clone();
            before.study = format!("a{hostile}b").into();
            let workload = Workload::clone(&before.workload);
            before.workload = Arc::new(workload.with(&before.study, hostile));
            let line = to_line(&before);
            assert_eq!(read(&line[..]).unwrap().records[0], before, "as it is");
            let shown = read_printable(&line[..]).unwrap().records.remove(0);
            assert_eq!(shown, printable(before));
            assert_eq!(shown.study, format!("a{}b", sanitise::text(hostile)));
            assert!(
                !shown.workload.to_string().contains(sanitise::is_hostile),
                "{}",
                shown.workload
            );
            assert_eq!(shown.lanes, plain.lanes, "numbers stay");
        }
        let mut benign = plain;
        benign.command = r#"run "a" \\n µs – x"#.into();
        assert!(!has_hostile_text(&to_line(&benign)));
        assert_eq!(printable(benign.clone()), benign);
    }

    #[test]
    fn the_lines_of_this_version_begin_as_the_quick_way_expects() {
        assert!(to_line(&record(vec![])).starts_with(PRESENT.as_bytes()));
        assert!(PRESENT.contains(&SCHEMA_VERSION.to_string()));
    }

    #[test]
    fn a_number_that_no_run_reaches_is_refused_by_name_and_a_seed_is_not() {
        for (text, is_long) in [
            ("9007199254740992", true),
            ("a:-9007199254740992,", true),
            ("[123456789012345,1]", false),
            ("0.9007199254740992", false),
            ("1,0.12345678901234567,12345678901234567", true),
            ("", false),
        ] {
            for shift in 0..20 {
                let line = " ".repeat(shift) + text;
                assert_eq!(has_long_number(line.as_bytes()), is_long, "{line}");
            }
        }
        let with = |change: fn(&mut RunRecord)| {
            let mut record = record(vec![1]);
            change(&mut record);
            read(&to_line(&record)[..]).unwrap()
        };
        let seed = with(|record| {
            let seed = u64::MAX;
            record.order = Some(crate::Order { seed, position: 0, of: 1 });
            record.workload = Arc::new(Workload::new("null").with("address", seed));
            record.host_cpu.idle_ns = seed;
        });
        assert_eq!((seed.records.len(), seed.errors.len()), (1, 0));
        let lost = with(|record| record.lanes[0].stages[0].sample_ns.push(1 << 53));
        let said = lost.errors[0].to_string();
        let field = "lanes[0].stages[0].sample_ns[1] is 9007199254740992;";
        assert!(said.contains(field), "{said}");
    }

    #[test]
    fn values_that_are_no_numbers_cost_no_record() {
        let mut before = record(vec![1]);
        before
            .counters
            .push(crate::Counter { value: f64::NAN, ..crate::Counter::count("ratio", 0) });
        before.limits.push(crate::Limit { rate_bytes_per_s: f64::INFINITY, ..Default::default() });
        before.noise.relative_mad = f64::NAN;
        let after = parse_line(&to_line(&before), 1).unwrap();
        assert!(after.counters[0].value.is_nan() && after.limits[0].rate_bytes_per_s.is_nan());
    }

    #[test]
    fn many_batches_keep_the_order_and_share_the_host() {
        let mut bytes = Vec::new();
        for at in 0..300_u64 {
            let mut one = record(vec![at; 10_000]);
            one.host = Arc::new(crate::Host {
                cpu_model: format!("host {}", at / 150),
                ..crate::Host::default()
            });
            bytes.extend(to_line(&one));
            bytes.extend_from_slice(if at % 100 == 7 { b"nonsense\n" } else { b"\n" });
        }
        assert!(bytes.len() > batches::BATCH_BYTES, "more than one batch");
        let contents = read(&bytes[..]).unwrap();
        let first: Vec<u64> =
            contents.records.iter().map(|record| record.lanes[0].stages[0].sample_ns[0]).collect();
        assert_eq!(first, (0..300).collect::<Vec<_>>());
        assert_eq!(contents.errors.iter().map(LineError::line).collect::<Vec<_>>(), [16, 216, 416]);
        let shared = contents
            .records
            .windows(2)
            .filter(|pair| Arc::ptr_eq(&pair[0].host, &pair[1].host))
            .count();
        assert_eq!(shared, 298);
    }

    #[test]
    fn records_share_what_they_were_asked_and_differ_where_it_differs() {
        let asked = |ops: u64| RunRecord {
            workload: Arc::new(Workload::new("null").with("ops", ops)),
            ..record(vec![ops])
        };
        let before = [asked(1), asked(2), asked(1)];
        let bytes = before.iter().flat_map(to_line).collect::<Vec<u8>>();
        let after = read(&bytes[..]).unwrap().records;
        assert_eq!(after, before);
        let shares = |at: usize| Arc::ptr_eq(&after[0].workload, &after[at].workload);
        assert_eq!((shares(1), shares(2)), (false, true));
    }

    /// A line whose workload is known by its text is the record that it is by itself; what is wrong beside it is said of the line.
    #[test]
    fn a_line_is_the_same_record_whether_its_workload_is_known_or_not() {
        let whole = String::from_utf8(to_line(&record(vec![1]))).unwrap();
        let text = |workload: &Workload| serde_json::to_string(workload).unwrap();
        let asked = text(&record(vec![]).workload);
        let other = text(&Workload::new("null").with("ops", 4_u64));
        let with = |from: &str, to: &str| whole.replacen(from, to, 1);
        let lines = [
            with("\"tool\":{", &format!("\"tool\":{{\"workload\":{asked},")),
            with(&asked, &asked.replacen(',', ", ", 1)),
            with(&asked, &other),
            with("\"lanes\":[", "\"lanes\":7,\"x\":["),
            with("\"outcome\"", &format!("\"workload\":{other},\"outcome\"")),
            with(&asked, "null"),
        ];
        for line in lines {
            let alone = parse_line(line.trim_end().as_bytes(), 2);
            let contents = read([&*whole, &*line].concat().as_bytes()).unwrap();
            let beside = contents.records.into_iter().nth(1);
            let beside = beside.ok_or_else(|| contents.errors[0].clone());
            assert_eq!(beside, alone, "{line}");
        }
    }

    #[test]
    fn parts_come_in_order_and_no_more_of_them_when_it_is_broken_off() {
        let bytes: Vec<u8> = (0..300).flat_map(|at| to_line(&record(vec![at; 10_000]))).collect();
        let (mut parts, mut seen) = (0, Vec::new());
        let samples = |part: Contents| {
            let records = part.records.into_iter();
            records.map(|record| record.lanes[0].stages[0].sample_ns[0])
        };
        read_printable_parts(&bytes[..], |part| {
            parts += 1;
            seen.extend(samples(part));
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(seen, (0..300).collect::<Vec<_>>());
        assert!(parts > 1);
        let mut first = 0;
        read_printable_parts(&bytes[..], |part| {
            first += samples(part).len();
            ControlFlow::Break(())
        })
        .unwrap();
        assert!(first > 0 && first < 300, "{first}");
    }

    /// What ends a line is taken for its host only where it is the record's own and whole.
    #[test]
    fn a_host_is_the_records_own_wherever_it_stands() {
        let mut before = record(vec![1]);
        before.host = Arc::new(Host { cpu_model: "a CPU".into(), ..Host::default() });
        let line = String::from_utf8(to_line(&before)).unwrap();
        let (others, host) = line.trim_end().rsplit_once(",\"host\":").unwrap();
        let host = host.strip_suffix('}').unwrap();
        let elsewhere = others.replacen("\"tool\"", &format!("\"host\":{host},\"tool\""), 1);
        for (text, wanted) in [
            (format!("{others},\"host\":{host}}}"), Some("a CPU")),
            (format!("{others},\"host\":{host}}}  "), Some("a CPU")),
            (format!("{elsewhere}}}"), Some("a CPU")),
            (format!("{elsewhere},\"more\":{{\"a\":1,\"host\":null}}}}"), Some("a CPU")),
            (format!("{others},\"more\":{{\"a\":1,\"host\":{host}}}}}"), None),
            (format!("{others},\"host\":{host}}}}}"), None),
            (format!("{elsewhere},\"host\":{host}}}"), None),
            (format!("{others}}}"), None),
        ] {
            // Once with nothing known, once after a line that ends in the same way.
            let file = format!("{line}{text}\n");
            for (bytes, at) in [(text.as_bytes(), 0), (file.as_bytes(), 1)] {
                let found = read(bytes).unwrap().records;
                let found = found.get(at).map(|record| &*record.host.cpu_model);
                assert_eq!(found, wanted, "{text}");
            }
        }
    }

    #[test]
    fn a_cut_last_line_costs_only_itself() {
        let mut bytes = to_line(&record(vec![1]));
        let second = to_line(&record(vec![2]));
        bytes.extend_from_slice(&second[..second.len() / 2]);
        let contents = read(&bytes[..]).unwrap();
        assert_eq!(contents.records.len(), 1);
        assert_eq!(contents.errors, [LineError::Truncated { line: 2 }]);
    }

    #[test]
    fn appending_ends_a_cut_line_and_keeps_others_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("records.jsonl");
        std::fs::write(&path, "{\"schema\":1,\"cut").unwrap();
        let file = append_to(&path).unwrap();
        assert_eq!(append_to(&path).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        Writer::new(file).write(&record(vec![1])).unwrap();
        Writer::new(append_to(&path).unwrap()).write(&record(vec![2])).unwrap();
        let contents = read(&std::fs::read(&path).unwrap()[..]).unwrap();
        assert_eq!(contents.records.len(), 2);
        assert!(matches!(contents.errors[..], [LineError::Malformed { line: 1, .. }]));
    }

    #[test]
    fn a_foreign_line_is_named_and_the_rest_is_read() {
        let mut bytes = b"{\"hello\": 1}\n\n".to_vec();
        bytes.extend(to_line(&record(vec![])));
        let contents = read(&bytes[..]).unwrap();
        assert_eq!(contents.records.len(), 1);
        assert!(matches!(contents.errors[..], [LineError::Malformed { line: 1, .. }]));
    }

    #[test]
    fn a_newer_schema_is_said_to_be_newer() {
        let error = parse_line(b"{\"schema\": 99, \"whatever\": []}", 7).unwrap_err();
        assert_eq!(error, LineError::Newer { line: 7, found: 99 });
    }

    #[test]
    fn an_endless_line_is_passed_over_without_being_kept() {
        let mut bytes = vec![b'x'; MAX_LINE_BYTES + 10];
        bytes.push(b'\n');
        bytes.extend(to_line(&record(vec![5])));
        let contents = read(io::BufReader::new(&bytes[..])).unwrap();
        assert_eq!(contents.errors, [LineError::TooLong { line: 1 }]);
        assert_eq!(contents.records.len(), 1);
    }

    #[test]
    fn records_of_every_schema_version_stay_readable() {
        let testdata = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
        for version in 1..=SCHEMA_VERSION {
            let folder = std::fs::read_dir(testdata.join(format!("v{version}")))
                .expect("a folder per version");
            let mut files = 0;
            for file in folder {
                files += 1;
                let contents =
                    read(io::BufReader::new(std::fs::File::open(file.unwrap().path()).unwrap()))
                        .unwrap();
                assert_eq!(contents.errors, []);
                assert!(
                    contents
                        .records
                        .iter()
                        .all(|record| record.schema == version && !record.lanes.is_empty())
                );
            }
            assert!(files > 0, "a record of version {version}");
        }
    }

    #[test]
    fn limits_of_older_records_are_at_the_median_and_have_no_interval() {
        let text = include_str!("../testdata/v1/digitizer.jsonl");
        let contents = read(text.as_bytes()).unwrap();
        let limits: Vec<&crate::Limit> =
            contents.records.iter().flat_map(|record| &record.limits).collect();
        assert!(!limits.is_empty());
        for limit in limits {
            let interval = (limit.low_bytes_per_s, limit.high_bytes_per_s);
            assert_eq!((limit.basis, interval), (crate::LimitBasis::Median, (None, None)));
        }
    }

    proptest! {
        #[test]
        fn reading_never_panics_whatever_the_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let contents = read(&bytes[..]).unwrap();
            prop_assert!(contents.records.is_empty() || !bytes.is_empty());
        }

        #[test]
        fn any_samples_come_back_unchanged(samples in proptest::collection::vec(0..=border::MAX_WHOLE, 0..50)) {
            let before = record(samples);
            prop_assert_eq!(parse_line(&to_line(&before), 1), Ok(before));
        }
    }
}
