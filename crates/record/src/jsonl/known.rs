//! What the records of one file have in common, so that it is parsed and held once: the host, and what was asked. Both are found in
//! a line by their texts; what is left of the line is parsed by itself.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{Host, RunRecord, Workload};

/// As many hosts are remembered while a file is read.
const MAX_HOSTS: usize = 16;

/// As many texts of what was asked are remembered: more than a sweep has points. What comes then is parsed.
const MAX_ASKED: usize = 4096;

/// What stands in a line for what was asked, where that is known.
const NOTHING_ASKED: &[u8] = br#"{"kind":"","params":{}}"#;

/// How the host begins, the last that a line says.
const HOST: &[u8] = b",\"host\":";

/// The end of a line from [`HOST`] on, and the host in it.
type HostEnd = (Box<[u8]>, Arc<Host>);

/// What was read of a file so far, by all threads that parse it.
#[derive(Default)]
pub(super) struct Known {
    hosts: Mutex<VecDeque<HostEnd>>,
    /// By their texts.
    asked: Mutex<HashMap<Box<[u8]>, Arc<Workload>>>,
    /// By their fingerprints; of two that have the same, the first.
    workloads: Mutex<HashMap<u64, Arc<Workload>>>,
}

/// A line, and what is known of it before it is parsed.
pub(super) struct Parts<'a> {
    /// The line; without its host where that is known.
    before: &'a [u8],
    host: Option<Arc<Host>>,
    /// Place of what was asked.
    asked: Option<Range<usize>>,
    workload: Option<Arc<Workload>>,
}

impl Parts<'_> {
    /// The line without what is known of it, as a line by itself; none where nothing is.
    pub(super) fn rest(&self) -> Option<Vec<u8>> {
        let (own, end): (_, &[u8]) = match &self.host {
            Some(_) => (HOST, b"null}"),
            None => (b"", b""),
        };
        match (&self.workload, &self.asked) {
            (Some(_), Some(asked)) => {
                let (first, then) = (&self.before[..asked.start], &self.before[asked.end..]);
                Some([first, NOTHING_ASKED, then, own, end].concat())
            }
            _ => self.host.is_some().then(|| [self.before, own, end].concat()),
        }
    }

    /// The record of [`Parts::rest`] with what was left out there.
    pub(super) fn put_into(&self, mut record: RunRecord) -> RunRecord {
        if let Some(host) = &self.host {
            record.host = Arc::clone(host);
        }
        if let Some(workload) = &self.workload {
            record.workload = Arc::clone(workload);
        }
        record
    }
}

impl Known {
    /// What is known of a line.
    pub(super) fn parts<'a>(&self, line: &'a [u8]) -> Parts<'a> {
        let (before, host) = match self.without_host(line) {
            Some((before, host)) => (before, Some(host)),
            None => (line, None),
        };
        let asked = object_of(before, b"\"workload\"");
        let workload =
            asked.as_ref().and_then(|range| lock(&self.asked).get(&before[range.clone()]).cloned());
        Parts { before, host, asked, workload }
    }

    /// What a line says before its host, and the host. None where the host is not the last that it says.
    fn without_host<'a>(&self, line: &'a [u8]) -> Option<(&'a [u8], Arc<Host>)> {
        let known = lock(&self.hosts).iter().find_map(|(end, host)| {
            let before = line.strip_suffix(&**end)?;
            Some((before, Arc::clone(host)))
        });
        known.or_else(|| {
            let (before, end) = line.split_at(memchr::memmem::rfind(line, HOST)?);
            // A whole host and one bracket more, which ends the line: it is the record's own.
            let object = end[HOST.len()..].trim_ascii_end().strip_suffix(b"}")?;
            let host = serde_json::from_slice(object).ok()?;
            Some((before, self.remember(end, host)))
        })
    }

    /// The same host, shared with the lines before that wrote it in another way.
    fn remember(&self, end: &[u8], host: Host) -> Arc<Host> {
        let mut hosts = lock(&self.hosts);
        let same = hosts.iter().find(|(_, known)| **known == host);
        let host = same.map_or_else(|| Arc::new(host), |(_, known)| Arc::clone(known));
        hosts.truncate(MAX_HOSTS - 1);
        hosts.push_front((end.into(), Arc::clone(&host)));
        host
    }

    /// Lets a record share the workload of records before it that were asked the same, and remembers its text.
    pub(super) fn share_workload(&self, record: &mut RunRecord, parts: &Parts<'_>) {
        if parts.workload.is_some() {
            return;
        }
        let fingerprint = record.workload.fingerprint();
        let mut workloads = lock(&self.workloads);
        let known = workloads.entry(fingerprint).or_insert_with(|| Arc::clone(&record.workload));
        if *known == record.workload {
            record.workload = Arc::clone(known);
        }
        drop(workloads);
        let mut texts = lock(&self.asked);
        if let Some(range) = parts.asked.clone().filter(|_| texts.len() < MAX_ASKED) {
            texts.insert(parts.before[range].into(), Arc::clone(&record.workload));
        }
    }
}

/// What is known stays true whatever became of the thread that found it, and lines that were taken stay taken.
pub(super) fn lock<T>(known: &Mutex<T>) -> MutexGuard<'_, T> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where a line has the object that one of the record's own fields is, by the field's name in quotes. None where there is none
/// that is written without blanks.
fn object_of(line: &[u8], name: &[u8]) -> Option<Range<usize>> {
    let (mut at, mut depth) = (0, 0_u32);
    let mut from = None;
    loop {
        match line.get(at)? {
            b'"' => {
                let end = string_end(line, at)?;
                if depth == 1 && line[at..end] == *name && line[end..].starts_with(b":{") {
                    from = Some(end + 1);
                }
                at = end;
                continue;
            }
            b'{' => depth += 1,
            b'}' => {
                depth = depth.checked_sub(1)?;
                if let (1, Some(from)) = (depth, from) {
                    return Some(from..at + 1);
                }
            }
            _ => {}
        }
        at += 1;
    }
}

/// The place behind the text whose first quote is at this place.
fn string_end(line: &[u8], quote: usize) -> Option<usize> {
    let mut at = quote + 1;
    loop {
        at += memchr::memchr2(b'"', b'\\', line.get(at..)?)?;
        if line[at] == b'"' {
            return Some(at + 1);
        }
        at += 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_found_where_it_is_the_records_own() {
        let found = |line: &str| {
            let range = object_of(line.as_bytes(), b"\"w\"")?;
            Some(line[range].to_owned())
        };
        let own = Some(r#"{"a":"}\"","b":{}}"#.to_owned());
        for line in [
            r#"{"w":{"a":"}\"","b":{}},"c":1}"#,
            r#"{"x":{"w":{}},"w":{"a":"}\"","b":{}}"#,
            r#"{"x":"\\\"w\":{","w":{"a":"}\"","b":{}}"#,
        ] {
            assert_eq!(found(line), own, "{line}");
        }
        for line in [
            "",
            "w",
            r#"{"w": {}}"#,
            r#"{"w":1}"#,
            r#"{"w":{"#,
            r#"}{"w":{}}"#,
            r#"{"x":"w":"#,
            r#"{"w\"#,
        ] {
            assert_eq!(found(line), None, "{line}");
        }
    }
}
