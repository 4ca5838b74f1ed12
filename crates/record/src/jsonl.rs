//! JSON lines: one record a line, each flushed as it is written. A reader keeps the valid lines and
//! reports the others.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufRead, Read, Seek, Write};
use std::num::NonZero;
use std::panic::resume_unwind;
use std::path::Path;

use serde_json::Value;

use crate::{RunRecord, SCHEMA_VERSION, border, sanitise};

/// Longest accepted line; a record of the largest run is far shorter.
pub const MAX_LINE_BYTES: usize = 64 << 20;

/// Opens a file to append lines, creates it if needed, and locks it until it is closed. An
/// incomplete last line gets its line end first, so that the next record is not lost.
///
/// # Errors
/// Returns [`io::ErrorKind::WouldBlock`] if another run writes the file, because the lines of both
/// would interleave, and [`io::ErrorKind::InvalidData`] if it does not hold records. Other errors
/// come from the file system.
pub fn append_to(path: &Path) -> io::Result<File> {
    // A pipe that this process could read would not end when its reader leaves.
    let is_plain = std::fs::metadata(path).map_or(true, |found| found.is_file());
    let opened = OpenOptions::new().create(is_plain).append(true).read(is_plain).open(path);
    // Some files cannot be read, but may be written.
    let mut file =
        opened.or_else(|error| OpenOptions::new().append(true).open(path).map_err(|_| error))?;
    if file.metadata()?.is_file() {
        // Some network file systems have no locks; two runs may then write into one file.
        if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut first = [b' '; 4096];
        let read = file.read(&mut first)?;
        // Editors write a byte order mark.
        let text = first[..read].strip_prefix(b"\xef\xbb\xbf").unwrap_or(&first[..read]);
        if !matches!(text.trim_ascii_start(), [] | [b'{', ..]) {
            let why = "does not hold records: name another file for them";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
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

/// Returns the line of one record, with its line feed.
pub fn to_line(record: &RunRecord) -> Vec<u8> {
    let mut line = serde_json::to_vec(record).expect("records hold plain data with text keys");
    line.push(b'\n');
    line
}

/// Line that is no record, by its number from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct LineError {
    line: usize,
    why: String,
}

#[derive(Debug, Default)]
pub struct Contents {
    pub records: Vec<RunRecord>,
    pub errors: Vec<LineError>,
}

/// Reads all records. [`Contents::errors`] names the lines that are not records.
pub fn read(source: impl BufRead) -> io::Result<Contents> {
    read_with(source, |_| {})
}

/// Reads as [`read`], with escapes for control characters in the text of a record
/// ([`crate::sanitise`]).
pub fn read_printable(source: impl BufRead) -> io::Result<Contents> {
    read_with(source, make_printable)
}

/// Reads an own line as [`read_printable`] does.
///
/// # Errors
/// When no reader would take it.
pub fn reread(line: &[u8]) -> Result<RunRecord, LineError> {
    parse(line.trim_ascii_end(), 1, make_printable)
}

/// Parses one line, which is number `line` of its file.
pub fn parse_line(bytes: &[u8], line: usize) -> Result<RunRecord, LineError> {
    parse(bytes, line, |_| {})
}

/// Bytes of the lines that are parsed at a time, and the fewest for which a thread is started.
const BATCH_BYTES: usize = 8 << 20;
const PART_BYTES: usize = 256 << 10;

/// Lines of a batch with their numbers.
type Lines<'a> = [(usize, &'a [u8])];

fn read_with(mut source: impl BufRead, change: fn(&mut Value)) -> io::Result<Contents> {
    let (mut contents, mut bytes, mut ends) = (Contents::default(), Vec::new(), Vec::new());
    let (mut line, mut is_endless) = (0, false);
    loop {
        // One byte beyond the limit, and the line feed.
        let max = MAX_LINE_BYTES as u64 + 2;
        let begin = bytes.len();
        let mut is_over = (&mut source).take(max).read_until(b'\n', &mut bytes)? == 0;
        if !is_over {
            line += 1;
            let is_ended = bytes.pop_if(|last| *last == b'\n').is_some();
            if bytes.len() - begin > MAX_LINE_BYTES {
                let mut skip = || (&mut source).take(max).skip_until(b'\n');
                is_endless = !is_ended && skip()? as u64 == max;
                bytes.truncate(begin);
                let rest = if is_endless { ", and what follows is not read" } else { "" };
                let why = format!("longer than {MAX_LINE_BYTES} bytes{rest}");
                contents.errors.push(LineError { line, why });
            }
            ends.push((line, bytes.len()));
            is_over = is_endless;
        }
        if is_over || bytes.len() >= BATCH_BYTES {
            contents.parse_batch(&bytes, &ends, change);
            bytes.clear();
            ends.clear();
        }
        if is_over {
            contents.errors.sort_by_key(|error| error.line);
            return Ok(contents);
        }
    }
}

impl Contents {
    /// Parses lines that end at these places, on all CPUs.
    fn parse_batch(&mut self, bytes: &[u8], ends: &[(usize, usize)], change: fn(&mut Value)) {
        let mut begin = 0;
        let line = |&(line, end): &(usize, usize)| {
            let text = without_mark(&bytes[std::mem::replace(&mut begin, end)..end], line);
            (!text.trim_ascii().is_empty()).then_some((line, text))
        };
        let lines: Vec<(usize, &[u8])> = ends.iter().filter_map(line).collect();
        let parse = |part: &Lines<'_>| -> Vec<Result<RunRecord, LineError>> {
            part.iter().map(|(line, text)| parse(text, *line, change)).collect()
        };
        let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
        let parts = cpus.min(bytes.len() / PART_BYTES).max(1);
        std::thread::scope(|scope| {
            let mut parts = lines.chunks(lines.len().div_ceil(parts).max(1));
            let own = parts.next().unwrap_or_default();
            let start = |part| {
                let thread = std::thread::Builder::new().spawn_scoped(scope, move || parse(part));
                // Without a thread this one does its work.
                thread.map_err(|_| part)
            };
            let others: Vec<_> = parts.map(start).collect();
            let others = others.into_iter().map(|other| match other {
                Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
                Err(part) => parse(part),
            });
            for parsed in [parse(own)].into_iter().chain(others).flatten() {
                match parsed {
                    Ok(record) => self.records.push(record),
                    Err(error) => self.errors.push(error),
                }
            }
        });
    }
}

/// Removes the byte-order mark that some editors put before the first line.
fn without_mark(bytes: &[u8], line: usize) -> &[u8] {
    let mark = if line == 1 { "\u{feff}" } else { "" };
    bytes.strip_prefix(mark.as_bytes()).unwrap_or(bytes)
}

/// Clock stamps, and fields with whole numbers of any size: the request, the seed of an order, and
/// CPU time. CPU time is summed over all CPUs of a host, and its sums saturate.
const MAXIMA: [(&str, u64); 5] = [
    ("origin_ns", border::MAX_STAMP_NS),
    ("workload", u64::MAX),
    ("seed", u64::MAX),
    ("host_cpu", u64::MAX),
    ("process_cpu", u64::MAX),
];

fn parse(bytes: &[u8], line: usize, change: fn(&mut Value)) -> Result<RunRecord, LineError> {
    let plain = std::str::from_utf8(bytes).ok().filter(|text| is_plain(text));
    let record = plain.and_then(|text| serde_json::from_str::<RunRecord>(text).ok());
    let record = match record.filter(|record| record.schema <= SCHEMA_VERSION) {
        Some(record) => Ok(record),
        None => parse_by_value(bytes, change),
    };
    let checked = |record: RunRecord| record.check_slices().map(|()| record).map_err(malformed);
    record.and_then(checked).map_err(|why| LineError { line, why })
}

/// Tests if each value of a line is as it should be: no whole number is near a maximum, and no text
/// has an escape or a character that acts on a terminal. Most lines are, and need only one pass.
fn is_plain(text: &str) -> bool {
    // A whole number above the smallest maximum, 2^53, has 16 digits or more, so that 16 divides
    // the place of one of them. The fraction of a float may have 17.
    const DIGITS: usize = 16;
    const MOST: usize = 18;
    let bytes = text.as_bytes();
    let is_long = |at: usize| {
        let digits = |byte: &&u8| byte.is_ascii_digit();
        let before = bytes[..at].iter().rev().take(MOST).take_while(digits).count();
        let after = bytes[at..].iter().take(DIGITS).take_while(digits).count();
        let is_fraction = before < MOST && bytes[..at - before].ends_with(b".");
        before + after >= DIGITS && !is_fraction
    };
    // Within strings, JSON has no other control characters.
    !text.contains('\\')
        && !text.contains('\x7f')
        && (text.is_ascii() || !text.contains(sanitise::is_hostile))
        && !(0..bytes.len()).step_by(DIGITS).any(is_long)
}

/// Reads a line with a look at each value.
fn parse_by_value(bytes: &[u8], change: fn(&mut Value)) -> Result<RunRecord, String> {
    let mut value: Value = serde_json::from_slice(bytes).map_err(said)?;
    let newer = value["schema"].as_u64().filter(|found| *found > u64::from(SCHEMA_VERSION));
    if let Some(found) = newer {
        return Err(format!(
            "schema version {found}, this daqmeter reads up to {SCHEMA_VERSION}: use the newer daqmeter"
        ));
    }
    border::refuse_large(&value, &MAXIMA).map_err(malformed)?;
    change(&mut value);
    // As text, so that the code that reads a record is compiled once: this crate took 25 s in place
    // of 34 s of a release build. A place in this text would mislead.
    serde_json::from_str(&value.to_string()).map_err(|error| {
        let said = error.to_string();
        malformed(said.split(" at line ").next().unwrap_or(&said))
    })
}

fn said(error: serde_json::Error) -> String {
    match error.is_eof() {
        true => "cut off in the middle (the run was interrupted while writing); the records before it are kept".to_owned(),
        false => malformed(error),
    }
}

fn malformed(why: impl std::fmt::Display) -> String {
    format!("not a record of daqmeter: {why}")
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{EngineInfo, Lane, Outcome, Slices, Stage, Workload};

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

    fn only_error(contents: &Contents) -> String {
        assert_eq!(contents.errors.len(), 1);
        contents.errors[0].to_string()
    }

    /// Regression: after an editor had saved a file, its first record was lost.
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

    /// More than two parts of a batch, which are parsed at the same time.
    #[test]
    fn lines_of_a_long_file_keep_their_order_and_their_numbers() {
        let lines = 1..4000_u64;
        let all: Vec<u8> = lines
            .clone()
            .flat_map(|n| match n % 100 {
                0 => b"{}\n".to_vec(),
                _ => to_line(&record(vec![n])),
            })
            .collect();
        assert!(all.len() > 2 * PART_BYTES);
        let Contents { records, errors } = read(&all[..]).unwrap();
        let (wrong, good): (Vec<u64>, Vec<u64>) = lines.partition(|n| n % 100 == 0);
        let read: Vec<u64> =
            records.iter().map(|one| one.lanes[0].stages[0].sample_ns[0]).collect();
        assert_eq!(read, good);
        assert_eq!(errors.iter().map(|error| error.line as u64).collect::<Vec<_>>(), wrong);
    }

    #[test]
    fn records_are_read_for_people_without_what_acts_on_a_terminal() {
        let plain = record(vec![1, 2, border::MAX_WHOLE]);
        for hostile in
            "\u{1b}[2J \n \r \u{7f} \u{9b}m \u{61c} \u{202e} \u{2067} \u{2028}".split(' ')
        {
            let mut before = plain.clone();
            before.study = format!("a{hostile}b");
            let workload = Workload::clone(&before.workload);
            before.workload = Arc::new(workload.with(&before.study, hostile));
            let line = to_line(&before);
            assert_eq!(read(&line[..]).unwrap().records[0], before, "as it is");
            let shown = read_printable(&line[..]).unwrap().records.remove(0);
            assert_eq!(Ok(&shown), reread(&line).as_ref());
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
        assert_eq!(reread(&to_line(&benign)), Ok(benign));
    }

    #[test]
    fn a_line_is_read_equally_with_and_without_a_look_at_each_value() {
        let mut before = record(vec![1, 999_999_999_999_999]);
        before.limits.push(crate::Limit {
            rate_bytes_per_s: 0.123_456_789_012_345_68,
            low_bytes_per_s: Some(1.797_693_134_862_315_7e308),
            high_bytes_per_s: Some(5e-324),
            ..Default::default()
        });
        before.command = "µs – ".into();
        let line = to_line(&before);
        let text = std::str::from_utf8(line.trim_ascii_end()).unwrap();
        assert!(is_plain(text));
        assert_eq!(parse_line(&line, 1), Ok(before));
        let escaped = text.replace("µs", "\\u00b5s");
        assert!(!is_plain(&escaped));
        assert_eq!(parse_line(escaped.as_bytes(), 1), parse_line(&line, 1));
        for before in 0..40 {
            let at = |number: &str| is_plain(&format!("{}{number}]", " ".repeat(before)));
            assert!(at("123456789012345") && at("0.9007199254740992"), "{before}");
            assert!(!at("9007199254740992") && !at("1234567890123456789.5"), "{before}");
        }
        assert!(!is_plain("\u{7f}") && !is_plain("\u{202e}"));
    }

    #[test]
    fn a_number_that_no_run_reaches_is_refused_by_name_and_a_seed_is_not() {
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
        let said = only_error(&lost);
        let field = "lanes[0].stages[0].sample_ns[1] is 9007199254740992;";
        assert!(said.contains(field), "{said}");
    }

    #[test]
    fn slices_that_no_run_has_are_refused_by_the_name_of_their_field() {
        let read = |slices: Slices| {
            let mut record = record(vec![5, 5]);
            record.lanes[0].stages[0].slices = slices;
            read(&to_line(&record)[..]).unwrap()
        };
        let good = Slices { samples: vec![1, 1], gap_ns: vec![9, 0], ..Slices::default() };
        assert_eq!(read(good.clone()).records.len(), 1);
        for (slices, says) in [
            (Slices { gap_ns: vec![9], ..good.clone() }, "slices.gap_ns has 1 values for 2 slices"),
            (Slices { chain_ns: vec![9, 0], ..good.clone() }, "slices.chain_ns[1] is 0"),
            (Slices { samples: vec![0, 1], ..good.clone() }, "slices.samples[0] is 0"),
            (Slices { samples: vec![1, 9], ..good.clone() }, "more than the 2 of the stage"),
            (Slices { lost: vec![2], ..good.clone() }, "slices.lost[0] is no slice"),
        ] {
            let said = only_error(&read(slices));
            assert!(said.contains("lanes[0].stages[0]") && said.contains(says), "{said}");
        }
        let line = String::from_utf8(to_line(&record(vec![5]))).unwrap();
        let negative = line.replace("\"sample_ns\":[5]", "\"sample_ns\":[-5]");
        assert!(only_error(&self::read(negative.as_bytes()).unwrap()).contains("-5"), "{negative}");
    }

    #[test]
    fn values_that_are_no_numbers_cost_no_record() {
        let mut before = record(vec![1]);
        before
            .counters
            .push(crate::Counter { value: f64::NAN, ..crate::Counter::count("ratio", 0) });
        before.limits.push(crate::Limit { rate_bytes_per_s: f64::INFINITY, ..Default::default() });
        let after = parse_line(&to_line(&before), 1).unwrap();
        assert!(after.counters[0].value.is_nan() && after.limits[0].rate_bytes_per_s.is_nan());
    }

    #[test]
    fn an_error_of_the_source_ends_the_reading() {
        // A folder can be opened but not read.
        let folder = File::open(env!("CARGO_MANIFEST_DIR")).unwrap();
        assert!(read(io::BufReader::new(folder)).is_err());
    }

    #[test]
    fn a_cut_last_line_costs_only_itself() {
        let mut bytes = to_line(&record(vec![1]));
        let second = to_line(&record(vec![2]));
        bytes.extend_from_slice(&second[..second.len() / 2]);
        let contents = read(&bytes[..]).unwrap();
        assert_eq!(contents.records.len(), 1);
        let said = only_error(&contents);
        assert!(said.starts_with("line 2: cut off in the middle"), "{said}");
    }

    #[test]
    fn appending_ends_a_cut_line_and_keeps_others_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("records.jsonl");
        std::fs::write(&path, "{\"schema\":1,\"cut").unwrap();
        let file = append_to(&path).unwrap();
        assert_eq!(append_to(&path).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        (&file).write_all(&to_line(&record(vec![1]))).unwrap();
        drop(file);
        append_to(&path).unwrap().write_all(&to_line(&record(vec![2]))).unwrap();
        let contents = read(&std::fs::read(&path).unwrap()[..]).unwrap();
        assert_eq!(contents.records.len(), 2);
        let said = only_error(&contents);
        assert!(said.starts_with("line 1: cut off in the middle"), "{said}");
    }

    #[test]
    fn a_foreign_line_is_named_by_its_number_and_the_rest_is_read() {
        let mut bytes = b"\n{\"hello\": 1}\n\n".to_vec();
        bytes.extend(to_line(&record(vec![])));
        let contents = read(&bytes[..]).unwrap();
        assert_eq!(contents.records.len(), 1);
        let said = only_error(&contents);
        assert!(said.starts_with("line 2: not a record of daqmeter: missing field"), "{said}");
    }

    #[test]
    fn a_newer_schema_is_said_to_be_newer() {
        let error = parse_line(b"{\"schema\": 99, \"whatever\": []}", 7).unwrap_err().to_string();
        assert!(
            error.starts_with("line 7: schema version 99, this daqmeter reads up to 1"),
            "{error}"
        );
    }

    /// Issue 50: `report /dev/zero` never ended.
    #[test]
    fn an_input_without_an_end_of_line_is_refused_and_the_records_before_it_are_kept() {
        let good = to_line(&record(vec![5]));
        let Contents { records, errors } =
            read(io::BufReader::new(Read::chain(&good[..], io::repeat(0)))).unwrap();
        assert_eq!((records.len(), errors.len()), (1, 1));
        let said = errors[0].to_string();
        assert_eq!(said, "line 2: longer than 67108864 bytes, and what follows is not read");
    }

    #[test]
    fn a_long_line_is_passed_over_without_being_kept() {
        let mut bytes = vec![b'x'; MAX_LINE_BYTES + 10];
        bytes.push(b'\n');
        bytes.extend(to_line(&record(vec![5])));
        let contents = read(io::BufReader::new(&bytes[..])).unwrap();
        let why = format!("longer than {MAX_LINE_BYTES} bytes");
        assert_eq!(contents.errors, [LineError { line: 1, why }]);
        assert_eq!(contents.records.len(), 1);
    }

    #[test]
    fn records_of_every_schema_version_stay_readable() {
        let testdata = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
        for version in 1..=SCHEMA_VERSION {
            let folder = testdata.join(format!("v{version}"));
            let mut files = 0;
            for file in std::fs::read_dir(folder).expect("a folder per version") {
                files += 1;
                let bytes = std::fs::read(file.unwrap().path()).unwrap();
                let Contents { records, errors } = read(&bytes[..]).unwrap();
                assert_eq!(errors, []);
                let is_whole = |one: &RunRecord| one.schema == version && !one.lanes.is_empty();
                assert!(records.iter().all(is_whole));
            }
            assert!(files > 0, "a record of version {version}");
        }
    }
}
