//! What the two ends of a side's pipe say: lines of JSON to begin with, and then short lines of numbers.

use std::collections::BTreeMap;

use daqmeter_harness::Slice;
use daqmeter_record::{Param, Workload};
use serde::{Deserialize, Serialize};

/// Version of these lines. Two binaries are compared only if both speak the same.
pub(crate) const VERSION: u32 = 1;

/// The first line to a side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Of this protocol.
    pub version: u32,
    /// What is to be measured.
    pub workload: Workload,
    /// CPU for the thread.
    pub cpu: Option<u32>,
    /// About how long a slice is to last.
    pub slice_us: u64,
    /// Bytes by which the heap is shifted before anything is opened.
    pub shift_bytes: usize,
}

/// The first line from a side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ready {
    pub(crate) version: u32,
    /// Each stage with the operations of its slices.
    pub(crate) stages: Vec<(String, u64)>,
}

/// What comes from a side after its first line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    Slice(Slice),
    Verified,
    Refused(String),
}

impl Reply {
    pub(crate) fn line(&self) -> String {
        match self {
            Reply::Slice(slice) => format!(
                "{} {} {}\n",
                slice.ns,
                slice.operations,
                u8::from(slice.disturbed)
            ),
            Reply::Verified => "verified\n".to_owned(),
            Reply::Refused(why) => format!("refused {}\n", why.replace('\n', " ")),
        }
    }

    /// None for a line that is no reply.
    pub(crate) fn parse(line: &str) -> Option<Reply> {
        let line = line.trim_end();
        if line == "verified" {
            return Some(Reply::Verified);
        }
        if let Some(why) = line.strip_prefix("refused ") {
            return Some(Reply::Refused(why.to_owned()));
        }
        let numbers: Vec<u64> = line
            .split(' ')
            .map(str::parse)
            .collect::<Result<_, _>>()
            .ok()?;
        match numbers[..] {
            [ns, operations, disturbed] if operations > 0 && disturbed <= 1 => {
                Some(Reply::Slice(Slice {
                    ns,
                    operations,
                    disturbed: disturbed == 1,
                }))
            }
            _ => None,
        }
    }
}

impl Request {
    /// A request for the point that a text names: `convert function=3 samples=3000000 isa=avx2`; `cpu=1` is where it runs.
    ///
    /// # Errors
    /// When a word is no `name=value`, or the CPU no number.
    pub fn parse(text: &str) -> Result<Request, String> {
        let mut words = text.split_whitespace();
        let kind = words
            .next()
            .ok_or("a point begins with the name of an engine")?;
        let mut params = BTreeMap::new();
        let mut cpu = None;
        for word in words {
            let (name, value) = word.split_once('=').ok_or_else(|| {
                format!("`{word}` is no parameter: `{text}` wants ENGINE NAME=VALUE ...")
            })?;
            if name == "cpu" {
                cpu = Some(
                    value
                        .parse()
                        .map_err(|_| format!("cpu={value}: no CPU number"))?,
                );
            } else {
                params.insert(name.to_owned(), param(name, value)?);
            }
        }
        let kind = kind.to_owned();
        Ok(Request::new(Workload { kind, params }, cpu))
    }

    /// A request for that point.
    pub fn new(workload: Workload, cpu: Option<u32>) -> Request {
        Request {
            version: VERSION,
            workload,
            cpu,
            slice_us: 1000,
            shift_bytes: 0,
        }
    }
}

/// A value as plans write it: sizes and rates may have a unit.
fn param(name: &str, text: &str) -> Result<Param, String> {
    if let Ok(flag) = text.parse() {
        return Ok(Param::Flag(flag));
    }
    if let Ok(whole) = text.parse() {
        return Ok(Param::Int(whole));
    }
    if let Ok(float) = text.parse() {
        return Ok(Param::Float(float));
    }
    if name.ends_with("_bytes") {
        let bytes = daqmeter_record::units::parse_bytes(text);
        return bytes
            .map(Param::Int)
            .map_err(|error| format!("{name}: {error}"));
    }
    Ok(Param::Text(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_survive_their_lines_and_garbage_is_none() {
        let slice = Slice {
            ns: 1_000_000,
            operations: 12,
            disturbed: true,
        };
        for reply in [
            Reply::Slice(slice),
            Reply::Verified,
            Reply::Refused("bytes differ".to_owned()),
        ] {
            assert_eq!(Reply::parse(&reply.line()), Some(reply));
        }
        for garbage in [
            "", "1", "1 2", "1 0 0", "1 2 3", "-1 2 0", "hello", "1 2 0 4",
        ] {
            assert_eq!(Reply::parse(garbage), None, "{garbage}");
        }
    }

    #[test]
    fn points_are_read_as_they_are_written() {
        let found =
            Request::parse("copy block_bytes=4KiB path=pread cold=true rate=1.5 cpu=1").unwrap();
        assert_eq!(
            found.workload.to_string(),
            "copy block_bytes=4096 cold=true path=pread rate=1.5"
        );
        assert_eq!(found.cpu, Some(1));
        for (text, wanted) in [
            ("", "name of an engine"),
            ("copy block", "`block` is no parameter"),
            ("copy cpu=x", "no CPU number"),
            ("copy block_bytes=4Kx", "block_bytes: "),
        ] {
            assert!(Request::parse(text).unwrap_err().contains(wanted), "{text}");
        }
    }
}
