//! JSON lines: one record a line, each flushed as it is written. Reading keeps what can be kept and names the rest.

use std::io::{self, BufRead, Write};

use crate::{RunRecord, SCHEMA_VERSION};

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
    #[error("line {line}: schema version {found}, this daqmeter reads up to {SCHEMA_VERSION}: use the newer daqmeter")]
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

/// Everything that a file of records holds, and what could not be read of it.
#[derive(Debug, Default)]
pub struct Contents {
    /// The records, in order.
    pub records: Vec<RunRecord>,
    /// What was left out.
    pub errors: Vec<LineError>,
}

/// Reads all records. Lines that are no record are named in [`Contents::errors`]; they never hide the others.
///
/// # Errors
/// Only those of the source itself.
pub fn read(mut source: impl BufRead) -> io::Result<Contents> {
    let mut contents = Contents::default();
    let mut bytes = Vec::new();
    let mut line = 0;
    loop {
        line += 1;
        let ended = match read_line(&mut source, &mut bytes)? {
            LineRead::End => return Ok(contents),
            LineRead::TooLong => {
                contents.errors.push(LineError::TooLong { line });
                continue;
            }
            LineRead::Line { ended } => ended,
        };
        if bytes.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        match parse_line(&bytes, line) {
            Ok(record) => contents.records.push(record),
            Err(LineError::Malformed { .. }) if !ended => contents.errors.push(LineError::Truncated { line }),
            Err(error) => contents.errors.push(error),
        }
    }
}

/// Parses one line, which is number `line` of its file.
///
/// # Errors
/// When it is no record or one of a newer schema.
pub fn parse_line(bytes: &[u8], line: usize) -> Result<RunRecord, LineError> {
    #[derive(serde::Deserialize)]
    struct Version {
        schema: u64,
    }
    let malformed = |error: serde_json::Error| LineError::Malformed { line, why: error.to_string() };
    // The version first: a newer record may well not parse, and "use the newer daqmeter" is the better answer then.
    let version: Version = serde_json::from_slice(bytes).map_err(malformed)?;
    if version.schema > u64::from(SCHEMA_VERSION) {
        return Err(LineError::Newer { line, found: version.schema });
    }
    serde_json::from_slice(bytes).map_err(malformed)
}

enum LineRead {
    End,
    TooLong,
    Line { ended: bool },
}

fn read_line(source: &mut impl BufRead, bytes: &mut Vec<u8>) -> io::Result<LineRead> {
    bytes.clear();
    let mut too_long = false;
    loop {
        let chunk = source.fill_buf()?;
        if chunk.is_empty() {
            return Ok(match (too_long, bytes.is_empty()) {
                (true, _) => LineRead::TooLong,
                (false, true) => LineRead::End,
                (false, false) => LineRead::Line { ended: false },
            });
        }
        let (taken, ended) = match chunk.iter().position(|&byte| byte == b'\n') {
            Some(at) => (at + 1, true),
            None => (chunk.len(), false),
        };
        if !too_long {
            bytes.extend_from_slice(&chunk[..taken]);
        }
        source.consume(taken);
        if bytes.len() > MAX_LINE_BYTES {
            too_long = true;
            bytes.clear();
        }
        if ended {
            return Ok(if too_long { LineRead::TooLong } else { LineRead::Line { ended: true } });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EngineInfo, Lane, Outcome, Stage, Workload};
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

    #[test]
    fn a_record_survives_the_way_to_a_line_and_back() {
        let before = record(vec![1, 2, 3]);
        let line = to_line(&before);
        assert_eq!(line.iter().filter(|&&b| b == b'\n').count(), 1);
        assert_eq!(parse_line(&line, 1), Ok(before));
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
            let folder = std::fs::read_dir(testdata.join(format!("v{version}"))).expect("a folder per version");
            let mut files = 0;
            for file in folder {
                files += 1;
                let contents = read(io::BufReader::new(std::fs::File::open(file.unwrap().path()).unwrap())).unwrap();
                assert_eq!(contents.errors, []);
                assert!(contents.records.iter().all(|record| record.schema == version && !record.lanes.is_empty()));
            }
            assert!(files > 0, "a record of version {version}");
        }
    }

    proptest! {
        #[test]
        fn reading_never_panics_whatever_the_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let contents = read(&bytes[..]).unwrap();
            prop_assert!(contents.records.is_empty() || !bytes.is_empty());
        }

        #[test]
        fn any_samples_come_back_unchanged(samples in proptest::collection::vec(any::<u64>(), 0..50)) {
            let before = record(samples);
            prop_assert_eq!(parse_line(&to_line(&before), 1), Ok(before));
        }
    }
}
