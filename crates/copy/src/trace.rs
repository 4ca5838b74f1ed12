//! What a trace says: the kernel's copies by operation, size, caller and process; and, without the tracer, what `/proc` tells.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::{Duration, Instant};

use daqmeter_record::border::MAX_WHOLE;
use daqmeter_record::units::{show_bytes, significant};
use daqmeter_record::{Counter, Ledger};
use daqmeter_sys::uapi::{TraceInfo, TraceRecord, text};

/// The traced operations, by the number in their records.
pub const OPERATIONS: [&str; 4] =
    ["copy_from_user", "copy_to_user", "__copy_from_user", "__copy_to_user"];

/// The study's file of each.
pub const FILES: [&str; 4] =
    ["mem_trace_from.dat", "mem_trace_to.dat", "__mem_trace_from.dat", "__mem_trace_to.dat"];

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    calls: u64,
    bytes: u64,
}

impl Sum {
    fn add(&mut self, bytes: u64) {
        self.calls += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// A trace, summed up while it is read; single records are kept only for the classic files.
#[derive(Debug, Default)]
pub struct Trace {
    sizes: BTreeMap<(u16, u64), Sum>,
    callers: HashMap<(u16, u64), Sum>,
    processes: HashMap<(u16, String), Sum>,
    ns: [u64; 4],
    calls: u64,
    keeps: bool,
    kept: [String; 4],
}

/// One operation's line.
#[derive(Clone, Debug)]
pub struct OperationRow {
    /// As the trace names it.
    pub operation: &'static str,
    /// How often.
    pub calls: u64,
    /// Of all calls together.
    pub bytes: u64,
    median_bytes: u64,
    mean_ns: f64,
}

impl OperationRow {
    /// For a table: operation, calls, bytes, median size, mean time in ns.
    pub fn cells(&self) -> [String; 5] {
        [
            self.operation.to_owned(),
            self.calls.to_string(),
            show_bytes(self.bytes),
            show_bytes(self.median_bytes),
            significant(self.mean_ns, 3),
        ]
    }
}

impl Trace {
    /// An empty trace; `keeps` every record for [`Trace::classic`].
    pub fn new(keeps: bool) -> Trace {
        Trace { keeps, ..Trace::default() }
    }

    /// Calls so far.
    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// Adds records.
    pub fn add(&mut self, records: &[TraceRecord]) {
        for record in records {
            let at = usize::from(record.operation).min(3);
            self.calls += 1;
            self.sizes.entry((record.operation, record.bytes)).or_default().add(record.bytes);
            self.callers.entry((record.operation, record.caller)).or_default().add(record.bytes);
            self.processes
                .entry((record.operation, text(&record.comm)))
                .or_default()
                .add(record.bytes);
            self.ns[at] =
                self.ns[at].wrapping_add(record.after_ns.saturating_sub(record.before_ns));
            if self.keeps {
                self.kept[at].push_str(&classic_line(record));
            }
        }
    }

    /// One row for each operation that was seen.
    pub fn operations(&self) -> Vec<OperationRow> {
        let row = |(at, operation): (usize, &&'static str)| {
            let number = u16::try_from(at).unwrap_or(0);
            let of: Vec<(u64, Sum)> = self
                .sizes
                .range((number, 0)..=(number, u64::MAX))
                .map(|((_, bytes), sum)| (*bytes, *sum))
                .collect();
            let calls: u64 = of.iter().map(|(_, sum)| sum.calls).sum();
            let mut below = 0;
            let median = of.iter().find(|(_, sum)| {
                below += sum.calls;
                below * 2 >= calls
            });
            Some(OperationRow {
                operation,
                calls,
                bytes: of.iter().fold(0, |bytes, (_, sum)| bytes.saturating_add(sum.bytes)),
                median_bytes: median?.0,
                mean_ns: self.ns[at] as f64 / calls.max(1) as f64,
            })
        };
        OPERATIONS.iter().enumerate().filter_map(row).collect()
    }

    /// The sizes copied most often: size, operation, calls, bytes.
    pub fn by_size(&self, top: usize) -> Vec<Vec<String>> {
        let mut rows: Vec<_> = self
            .sizes
            .iter()
            .map(|((operation, bytes), sum)| (show_bytes(*bytes), *operation, *sum))
            .collect();
        ranked(&mut rows, top)
    }

    /// The callers that copied most often.
    pub fn by_caller(&self, names: &Names, top: usize) -> Vec<Vec<String>> {
        let mut rows: Vec<_> = self
            .callers
            .iter()
            .map(|((operation, caller), sum)| (names.name(*caller), *operation, *sum))
            .collect();
        ranked(&mut rows, top)
    }

    /// The processes for which most was copied.
    pub fn by_process(&self, top: usize) -> Vec<Vec<String>> {
        let mut rows: Vec<_> = self
            .processes
            .iter()
            .map(|((operation, name), sum)| (name.clone(), *operation, *sum))
            .collect();
        ranked(&mut rows, top)
    }

    /// Counters for a record: calls by operation and size (`copy_to_user:16`).
    pub fn calls_by_size(&self) -> Vec<Counter> {
        let name = |operation: u16, bytes: u64| {
            format!("{}:{bytes}", OPERATIONS[usize::from(operation).min(3)])
        };
        self.sizes
            .iter()
            .map(|((operation, bytes), sum)| Counter::count(name(*operation, *bytes), sum.calls))
            .collect()
    }

    /// Counters for a record: calls by operation and size, and the calls that the tracer did not
    /// see.
    pub fn counters(&self, info: &TraceInfo) -> Vec<Counter> {
        let dropped = OPERATIONS
            .iter()
            .zip(info.dropped)
            .map(|(name, count)| Counter::count(format!("dropped {name}"), count));
        self.calls_by_size()
            .into_iter()
            .chain(dropped)
            .chain([Counter::count("missed", info.missed)])
            .collect()
    }

    /// The study's files, with what was kept.
    pub fn classic(&self) -> BTreeMap<String, String> {
        if !self.keeps {
            return BTreeMap::new();
        }
        FILES
            .iter()
            .zip(&self.kept)
            .map(|(name, lines)| ((*name).to_owned(), lines.clone()))
            .collect()
    }
}

/// The nine fields of the study (section 3.2.1).
fn classic_line(record: &TraceRecord) -> String {
    format!(
        "{}\t{}\t{}\t{}\t{}\t{}\t{}\t{:#018x}\t{}\n",
        record.ring_cpu,
        record.counter,
        record.bytes,
        record.begin_cpu,
        record.before_ns,
        record.after_ns,
        record.after_ns.saturating_sub(record.before_ns),
        record.caller,
        if record.by == 0 { "CPU" } else { "DMA" }
    )
}

/// The operation of one of the study's files, by its name.
pub fn operation_of(file: &Path) -> Option<u16> {
    let name = file.file_name()?.to_str()?;
    let at = FILES.iter().position(|known| *known == name)?;
    u16::try_from(at).ok()
}

/// Content of one of the study's files.
#[derive(Debug, Default)]
pub struct ClassicTrace {
    /// Records, one for each line.
    pub records: Vec<TraceRecord>,
    /// Lines whose address has more than 16 digits, of which the last 16 were taken. The study's
    /// own sample has such lines.
    pub long_addresses: usize,
}

/// The records of one of the study's files, line by line; what is wrong is said with the number of the line.
///
/// # Errors
/// When a line does not have the nine fields, or a number is beyond [`MAX_WHOLE`].
pub fn of_classic(operation: u16, text: &str) -> Result<ClassicTrace, String> {
    let mut long_addresses = 0;
    let lines = text.lines().enumerate();
    let lines = lines.filter(|(_, line)| !line.trim().is_empty());
    let record = |(at, line): (usize, &str)| {
        let record = record_of(operation, line).ok_or_else(|| {
            format!(
                "line {}: not the nine fields of a trace (CPU, counter, bytes, CPU, ns before, ns after, ns, caller, CPU or DMA)",
                at + 1
            )
        })?;
        let numbers = [record.counter, record.bytes, record.before_ns, record.after_ns];
        if let Some(large) = numbers.into_iter().find(|number| *number > MAX_WHOLE) {
            return Err(format!(
                "line {}: {large}; the largest number taken is {MAX_WHOLE}",
                at + 1
            ));
        }
        let digits = line.split_whitespace().nth(7).map_or(0, str::len);
        long_addresses += usize::from(digits > "0x".len() + 16);
        Ok(record)
    };
    let records = lines.map(record).collect::<Result<_, String>>()?;
    Ok(ClassicTrace { records, long_addresses })
}

/// The inverse of [`classic_line`]. The study's own sample has an address of 17 digits: its last 16 count.
fn record_of(operation: u16, line: &str) -> Option<TraceRecord> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [ring, counter, bytes, cpu, before, after, _, caller, by] = fields[..] else {
        return None;
    };
    let digits = caller.strip_prefix("0x")?;
    let last = digits.len().saturating_sub(16);
    Some(TraceRecord {
        operation,
        ring_cpu: ring.parse().ok()?,
        counter: counter.parse().ok()?,
        bytes: bytes.parse().ok()?,
        begin_cpu: cpu.parse().ok()?,
        before_ns: before.parse().ok()?,
        after_ns: after.parse().ok()?,
        caller: u64::from_str_radix(digits.get(last..)?, 16).ok()?,
        by: match by {
            "CPU" => 0,
            "DMA" => 1,
            _ => return None,
        },
        ..TraceRecord::default()
    })
}

fn ranked(rows: &mut [(String, u16, Sum)], top: usize) -> Vec<Vec<String>> {
    rows.sort_by(|a, b| b.2.calls.cmp(&a.2.calls).then_with(|| a.0.cmp(&b.0)));
    let cells = |(name, operation, sum): &(String, u16, Sum)| {
        let operation = OPERATIONS[usize::from(*operation).min(3)].to_owned();
        vec![name.clone(), operation, sum.calls.to_string(), show_bytes(sum.bytes)]
    };
    rows.iter().take(top).map(cells).collect()
}

/// What was seen against what was not.
#[derive(Debug)]
pub struct Accounts {
    /// Calls: read, dropped by full rings, missed by the probes at most.
    pub ledger: Ledger,
    /// What the reader must know.
    pub warnings: Vec<String>,
}

impl Accounts {
    /// The module's accounts against the records that came. Missed calls are issued, too: the kernel counts them.
    pub fn of(info: &TraceInfo, trace: &Trace) -> Accounts {
        let (recorded, dropped): (u64, u64) =
            (info.recorded.iter().sum(), info.dropped.iter().sum());
        let mut ledger = Ledger {
            issued: recorded + dropped + info.missed,
            delivered: trace.calls(),
            ..Ledger::new("copies")
        };
        ledger.lose("ring full", dropped);
        ledger.lose("missed by the probes", info.missed);
        let mut warnings = Vec::new();
        if dropped > 0 {
            warnings.push(format!(
                "{dropped} copies found a full ring: load the tracer with larger ring_records, or look more often"
            ));
        }
        // What was running is told only while probes are set; a trace without any inline copy tells the same.
        if trace.sizes.keys().all(|(operation, _)| *operation < 2) {
            warnings.push(
                "no __copy_*_user was seen: this CPU copies inline (FSRM), or the kernel has no helper to probe"
                    .to_owned(),
            );
        }
        Accounts { ledger, warnings }
    }
}

/// Names of kernel functions, as far as this user may see their addresses.
#[derive(Debug, Default)]
pub struct Names(Vec<(u64, String)>);

impl Names {
    /// From `/proc/kallsyms`.
    pub fn of_kernel() -> Names {
        Names::parse(&std::fs::read_to_string("/proc/kallsyms").unwrap_or_default())
    }

    /// From the text of that file; lines that are none are left out.
    pub fn parse(kallsyms: &str) -> Names {
        let symbol = |line: &str| {
            let mut parts = line.split_whitespace();
            let address =
                u64::from_str_radix(parts.next()?, 16).ok().filter(|address| *address != 0)?;
            parts.next().filter(|kind| matches!(*kind, "t" | "T" | "w" | "W"))?;
            Some((address, parts.next()?.to_owned()))
        };
        let mut symbols: Vec<(u64, String)> = kallsyms.lines().filter_map(symbol).collect();
        symbols.sort_unstable();
        Names(symbols)
    }

    /// `function+0x1f`, or the address where no name is known.
    pub fn name(&self, address: u64) -> String {
        match self.0.partition_point(|(start, _)| *start <= address).checked_sub(1) {
            Some(at) => format!("{}+{:#x}", self.0[at].1, address - self.0[at].0),
            None => format!("{address:#x}"),
        }
    }
}

/// Reads and writes of one process over a time, from `/proc/PID/io` (Documentation/filesystems/proc.rst, 3.3).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessIo {
    /// Command.
    pub name: String,
    /// Process.
    pub pid: u32,
    /// Read-like system calls.
    pub reads: u64,
    /// Their bytes: to the user.
    pub read_bytes: u64,
    /// Write-like system calls.
    pub writes: u64,
    /// Their bytes: from the user.
    pub written_bytes: u64,
}

impl ProcessIo {
    /// From the texts of a process' `comm` and `io`; what is missing is 0.
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

    fn since(&self, before: Option<&ProcessIo>) -> ProcessIo {
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

    /// For a table.
    pub fn cells(&self) -> [String; 8] {
        let mean = |bytes: u64, calls: u64| {
            if calls > 0 { significant(bytes as f64 / calls as f64, 4) } else { "-".to_owned() }
        };
        [
            self.name.clone(),
            self.pid.to_string(),
            self.reads.to_string(),
            show_bytes(self.read_bytes),
            mean(self.read_bytes, self.reads),
            self.writes.to_string(),
            show_bytes(self.written_bytes),
            mean(self.written_bytes, self.writes),
        ]
    }
}

/// What every process (that we may look at) has read and written so far.
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

/// So long at most it sleeps before it asks again whether to stop.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);

/// Watches all processes for a time; those with most calls first. Ones that end meanwhile count until the last look at them.
/// After each look, and every 100 ms at least, `stop` is asked whether it was the last; it may ask for what was seen so far.
///
/// # Errors
/// When `/proc` cannot be read.
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
    // This program's own looks are no one's work.
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
    // What happened since the last look, when it was stopped between two.
    last.extend(processes(root));
    Ok((seen(&last), looks))
}

/// Counters for a record: the sums over all processes.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn record(operation: u16, bytes: u64, comm: &[u8]) -> TraceRecord {
        let mut record = TraceRecord {
            operation,
            bytes,
            before_ns: 613_326_537_662,
            after_ns: 613_326_537_755,
            caller: 0xffff_ffff_8144_c129,
            counter: 1102,
            ..TraceRecord::default()
        };
        record.comm[..comm.len()].copy_from_slice(comm);
        record
    }

    #[test]
    fn a_record_reads_like_the_studys_own_sample() {
        // Its address has 17 digits; 16 are right.
        assert_eq!(
            classic_line(&record(0, 8, b"sh")),
            "0\t1102\t8\t0\t613326537662\t613326537755\t93\t0xffffffff8144c129\tCPU\n"
        );
    }

    #[test]
    fn the_studys_files_are_read_back() {
        let sample = "0 1102 8 0 613326537662 613326537755 93 0xfffffffff8144c129 CPU\n\n";
        let ClassicTrace { records: read, long_addresses } = of_classic(0, sample).unwrap();
        assert_eq!(read[0].caller, 0xffff_ffff_8144_c129);
        assert_eq!((read.len(), read[0].bytes, read[0].by), (1, 8, 0));
        assert_eq!(long_addresses, 1, "17 digits");
        let written = classic_line(&record(1, 4096, b""));
        let again = of_classic(1, &written).unwrap();
        assert_eq!(classic_line(&again.records[0]), written);
        assert_eq!(again.long_addresses, 0);
        assert_eq!(operation_of(Path::new("x/__mem_trace_to.dat")), Some(3));
        assert_eq!(operation_of(Path::new("x/other.dat")), None);
        for wrong in [
            "1 2 3",
            "0 0 8 0 1 2 1 0xf GPU",
            "0 0 8 0 1 2 1 f CPU",
            "0 0 8 0 1 2 1 0xé CPU",
            "0 0 9007199254740992 0 1 2 1 0xf CPU",
        ] {
            let error = of_classic(0, &format!("{sample}{wrong}")).unwrap_err();
            assert!(error.starts_with("line 3: "), "{error}");
        }
    }

    #[test]
    fn calls_are_summed_by_size_caller_and_process() {
        let mut trace = Trace::new(true);
        trace.add(&[
            record(1, 16, b"cat"),
            record(1, 16, b"cat"),
            record(1, 4096, b"dd"),
            record(2, 224, b"dd"),
        ]);
        let lines: Vec<String> =
            trace.operations().iter().map(|row| row.cells().join(" ")).collect();
        assert_eq!(
            lines,
            ["copy_to_user 3 4.031 KiB 16 B 93", "__copy_from_user 1 224 B 224 B 93"]
        );
        assert_eq!(trace.by_size(1), [["16 B", "copy_to_user", "2", "32 B"]]);
        assert_eq!(trace.by_process(9).len(), 3);
        assert_eq!(trace.classic()["mem_trace_to.dat"].lines().count(), 3);
        let names = Names::parse(
            "ffffffff8144c100 T sys_read\n0000000000000000 T hidden\nffffffff90000000 d data\n",
        );
        assert_eq!(trace.by_caller(&names, 1)[0][0], "sys_read+0x29");
    }

    #[test]
    fn drops_and_misses_are_in_the_ledger() {
        let mut trace = Trace::new(false);
        trace.add(&[record(1, 16, b"a"), record(0, 16, b"a")]);
        let info = TraceInfo {
            recorded: [1, 1, 0, 0],
            dropped: [0, 5, 0, 0],
            missed: 2,
            ..TraceInfo::default()
        };
        let accounts = Accounts::of(&info, &trace);
        assert!(accounts.ledger.closes());
        assert_eq!((accounts.ledger.issued, accounts.ledger.lost()), (9, 7));
        assert_eq!(accounts.warnings.len(), 2);
    }

    #[test]
    fn proc_tells_calls_and_bytes_of_processes() {
        let before = ProcessIo::parse("x\n", 7, "rchar: 100\nwchar: 5\nsyscr: 10\nsyscw: 1\n");
        let after = ProcessIo::parse("x\n", 7, "rchar: 300\nwchar: 5\nsyscr: 12\nsyscw: 1\n")
            .since(Some(&before));
        assert_eq!((after.reads, after.read_bytes, after.writes), (2, 200, 0));
        assert_eq!(after.cells()[4], "100");
        assert_eq!(after.cells()[7], "-");
    }
}
