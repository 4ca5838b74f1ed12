//! Reads and writes of all processes by `/proc`, for hosts without the tracer.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use daqmeter_record::Counter;

/// Reads and writes of one process, from `/proc/PID/io` (Documentation/filesystems/proc.rst, 3.3).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessIo {
    pub name: String,
    pub pid: u32,
    pub reads: u64,
    /// Bytes to the user.
    pub read_bytes: u64,
    pub writes: u64,
    /// Bytes from the user.
    pub written_bytes: u64,
}

impl ProcessIo {
    /// Parses a process' `comm` and `io`; missing fields are 0.
    pub fn parse(name: &str, pid: u32, io: &str) -> ProcessIo {
        let field = |key: &str| {
            let line = io.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
            line.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
        };
        ProcessIo {
            name: name.trim().to_owned(),
            pid,
            reads: field("syscr"),
            read_bytes: field("rchar"),
            writes: field("syscw"),
            written_bytes: field("wchar"),
        }
    }

    pub(super) fn since(&self, before: Option<&ProcessIo>) -> ProcessIo {
        let less =
            |now: u64, then: fn(&ProcessIo) -> u64| now.saturating_sub(before.map_or(0, then));
        ProcessIo {
            reads: less(self.reads, |io| io.reads),
            read_bytes: less(self.read_bytes, |io| io.read_bytes),
            writes: less(self.writes, |io| io.writes),
            written_bytes: less(self.written_bytes, |io| io.written_bytes),
            ..self.clone()
        }
    }
}

fn processes(root: &Path) -> HashMap<u32, ProcessIo> {
    let Ok(entries) = std::fs::read_dir(root) else {
        return HashMap::new();
    };
    let process = |entry: std::fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let io = std::fs::read_to_string(entry.path().join("io")).ok()?;
        let name = std::fs::read_to_string(entry.path().join("comm")).ok()?;
        Some((pid, ProcessIo::parse(&name, pid, &io)))
    };
    entries.flatten().filter_map(process).collect()
}

const LONGEST_SLEEP: Duration = Duration::from_millis(100);

/// Watches all processes for a time; those with most calls come first. An ended process counts
/// until its last look. After each look, and at least every 100 ms, `stop` decides whether to end;
/// it may request the rows so far.
///
/// # Errors
/// `/proc` cannot be read.
pub fn sampled(
    time: Duration,
    delay: Duration,
    stop: impl Fn(&dyn Fn() -> Vec<ProcessIo>) -> bool,
) -> Result<(Vec<ProcessIo>, u64), String> {
    let root = Path::new("/proc");
    let mut before = processes(root);
    if before.is_empty() {
        return Err("no /proc/PID/io can be read here".to_owned());
    }
    // This program's own reads of `/proc` do not count.
    before.remove(&std::process::id());
    let mut last = before.clone();
    let own = std::process::id();
    let seen = |last: &HashMap<u32, ProcessIo>| {
        let others = last.values().filter(|now| now.pid != own);
        let mut rows: Vec<ProcessIo> = others.map(|now| now.since(before.get(&now.pid))).collect();
        rows.retain(|row| row.reads + row.writes > 0);
        rows.sort_by_key(|row| std::cmp::Reverse(row.reads + row.writes));
        rows
    };
    let began = Instant::now();
    let (mut looked, mut looks) = (Instant::now(), 0);
    while began.elapsed() < time && !stop(&|| seen(&last)) {
        let until_look = delay.saturating_sub(looked.elapsed());
        std::thread::sleep(until_look.min(time.saturating_sub(began.elapsed())).min(LONGEST_SLEEP));
        if looked.elapsed() >= delay || began.elapsed() >= time {
            looked = Instant::now();
            looks += 1;
            last.extend(processes(root));
        }
    }
    // Adds the calls since the last look when it was stopped between two.
    last.extend(processes(root));
    Ok((seen(&last), looks))
}

pub fn proc_counters(rows: &[ProcessIo]) -> Vec<Counter> {
    let sum =
        |name: &str, of: fn(&ProcessIo) -> u64| Counter::count(name, rows.iter().map(of).sum());
    vec![
        sum("reads", |row| row.reads),
        sum("bytes to user by read", |row| row.read_bytes),
        sum("writes", |row| row.writes),
        sum("bytes from user by write", |row| row.written_bytes),
    ]
}
