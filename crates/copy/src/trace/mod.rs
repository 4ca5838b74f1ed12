//! The kernel's copies by operation, size, caller and process, and the accounts of the tracer.

mod files;

use std::collections::{BTreeMap, HashMap};

use daqmeter_record::units::show_bytes;
use daqmeter_record::{Counter, Ledger};
use daqmeter_sys::symbols::KernelSymbols;
use daqmeter_sys::uapi::{TraceInfo, TraceRecord, text};

use files::{FILES, classic_line};
pub use files::{TraceFile, operation_of};

pub const OPERATIONS: [&str; 4] =
    ["copy_from_user", "copy_to_user", "__copy_from_user", "__copy_to_user"];

fn index(operation: u16) -> usize {
    usize::from(operation).min(OPERATIONS.len() - 1)
}

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

/// Sums of a trace; single records are kept only for the classic files.
#[derive(Debug, Default)]
pub struct Trace {
    sizes: BTreeMap<(u16, u64), Sum>,
    callers: HashMap<(u16, u64), Sum>,
    processes: HashMap<(u16, String), Sum>,
    ns: [u64; 4],
    by_dma: [u64; 4],
    /// First begin and last end. Records of several rings are not in the order of time.
    span_ns: Option<(u64, u64)>,
    keeps: bool,
    kept: [String; 4],
    /// Lines of files with an address of more than 16 digits.
    pub long_addresses: usize,
}

#[derive(Clone, Debug)]
pub struct OperationRow {
    pub operation: &'static str,
    pub calls: u64,
    pub by_dma: u64,
    pub bytes: u64,
    pub median_bytes: u64,
    pub mean_ns: f64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceRow {
    pub name: String,
    pub operation: &'static str,
    pub calls: u64,
    pub bytes: u64,
}

impl Trace {
    /// Makes an empty trace; `keeps` stores every record for [`Trace::classic`].
    pub fn new(keeps: bool) -> Trace {
        Trace { keeps, ..Trace::default() }
    }

    pub fn calls(&self) -> u64 {
        self.sizes.values().map(|sum| sum.calls).sum()
    }

    pub fn add(&mut self, records: &[TraceRecord]) {
        for record in records {
            let (operation, bytes) = (record.operation, record.bytes);
            self.sizes.entry((operation, bytes)).or_default().add(bytes);
            self.callers.entry((operation, record.caller)).or_default().add(bytes);
            self.processes.entry((operation, text(&record.comm))).or_default().add(bytes);
            self.by_dma[index(operation)] += u64::from(record.by != 0);
            let (first, last) = self.span_ns.unwrap_or((record.before_ns, record.after_ns));
            self.span_ns = Some((first.min(record.before_ns), last.max(record.after_ns)));
            let ns = &mut self.ns[index(operation)];
            *ns = ns.wrapping_add(record.after_ns.saturating_sub(record.before_ns));
            if self.keeps {
                self.kept[index(operation)].push_str(&classic_line(record));
            }
        }
    }

    pub fn add_file(&mut self, file: &TraceFile) {
        self.add(&file.records);
        self.long_addresses += file.long_addresses;
    }

    /// Returns the time of the first begin and the time to the last end; `None` below two records,
    /// which have no rate.
    pub fn span_ns(&self) -> Option<(u64, u64)> {
        let (first, last) = self.span_ns.filter(|_| self.calls() > 1)?;
        Some((first, last - first))
    }

    pub fn operations(&self) -> Vec<OperationRow> {
        let row = |at: usize| {
            let number = u16::try_from(at).unwrap_or(0);
            let sizes = || self.sizes.range((number, 0)..=(number, u64::MAX));
            let calls: u64 = sizes().map(|(_, sum)| sum.calls).sum();
            let mut below = 0;
            let median = sizes().find(|(_, sum)| {
                below += sum.calls;
                below * 2 >= calls
            });
            Some(OperationRow {
                operation: OPERATIONS[at],
                calls,
                by_dma: self.by_dma[at],
                bytes: sizes().fold(0, |bytes, (_, sum)| bytes.saturating_add(sum.bytes)),
                median_bytes: median?.0.1,
                mean_ns: self.ns[at] as f64 / calls.max(1) as f64,
            })
        };
        (0..OPERATIONS.len()).filter_map(row).collect()
    }

    /// Returns the sizes, callers and processes of most calls, with the name of each kind.
    pub fn ranked(&self, symbols: &KernelSymbols, top: usize) -> [(&str, Vec<TraceRow>); 3] {
        [
            ("size", ranked(&self.sizes, top, |bytes| show_bytes(*bytes))),
            ("caller", ranked(&self.callers, top, |caller| symbols.name(*caller))),
            ("process", ranked(&self.processes, top, String::clone)),
        ]
    }

    /// Returns calls by size, those by DMA, the time of all, and calls of the callers.
    pub fn counters(&self) -> Vec<Counter> {
        // A kernel has some hundred callers; a file may hold any number.
        const MAX_CALLERS: usize = 1000;
        let name = |operation: u16, bytes: u64| format!("{}:{bytes}", OPERATIONS[index(operation)]);
        let of_size = |((operation, bytes), sum): (&(u16, u64), &Sum)| {
            Counter::count(name(*operation, *bytes), sum.calls)
        };
        let of_operation = |row: OperationRow| {
            let name = row.operation;
            let ns = row.mean_ns * row.calls as f64;
            let by_dma = Counter::count(format!("{name} by DMA"), row.by_dma);
            [by_dma, Counter::measured(format!("{name} time"), ns, "ns")]
        };
        let callers = ranked(&self.callers, MAX_CALLERS, |caller| format!("{caller:#018x}"));
        let of_caller = |row: TraceRow| {
            Counter::count(format!("{} from {}", row.operation, row.name), row.calls)
        };
        let sizes = self.sizes.iter().map(of_size);
        let operations = self.operations().into_iter().flat_map(of_operation);
        sizes.chain(operations).chain(callers.into_iter().map(of_caller)).collect()
    }

    pub fn all_counters(&self, info: &TraceInfo) -> Vec<Counter> {
        let dropped = OPERATIONS.iter().zip(info.dropped);
        let dropped = dropped.map(|(name, count)| Counter::count(format!("dropped {name}"), count));
        let missed = Counter::count("missed", info.missed);
        self.counters().into_iter().chain(dropped).chain([missed]).collect()
    }

    pub fn classic(&self) -> BTreeMap<String, String> {
        let files = FILES.iter().zip(&self.kept).filter(|_| self.keeps);
        files.map(|(name, lines)| ((*name).to_owned(), lines.clone())).collect()
    }

    /// Returns calls of the module's accounts, and warnings. Missed calls count as issued, because
    /// the kernel counts them.
    pub fn accounts(&self, info: &TraceInfo) -> (Ledger, Vec<String>) {
        let (recorded, dropped): (u64, u64) =
            (info.recorded.iter().sum(), info.dropped.iter().sum());
        let mut ledger = Ledger {
            issued: recorded + dropped + info.missed,
            delivered: self.calls(),
            ..Ledger::new("copies")
        };
        ledger.lose("ring full", dropped);
        ledger.lose("not seen by the probes", info.missed);
        let mut warnings = Vec::new();
        if dropped > 0 {
            warnings.push(format!(
                "{dropped} copies were not recorded because the ring was full: load the tracer with a larger ring_records, or use a shorter --delay"
            ));
        }
        if !self.sizes.is_empty() && self.sizes.keys().all(|(operation, _)| *operation < 2) {
            warnings.push(
                "no __copy_*_user was seen: this CPU copies inline (FSRM), or the kernel has no helper to probe"
                    .to_owned(),
            );
        }
        (ledger, warnings)
    }
}

fn ranked<'a, K: 'a>(
    sums: impl IntoIterator<Item = (&'a (u16, K), &'a Sum)>,
    top: usize,
    name: impl Fn(&K) -> String,
) -> Vec<TraceRow> {
    let row = |((operation, key), sum): (&(u16, K), &Sum)| TraceRow {
        name: name(key),
        operation: OPERATIONS[index(*operation)],
        calls: sum.calls,
        bytes: sum.bytes,
    };
    let mut rows: Vec<TraceRow> = sums.into_iter().map(row).collect();
    rows.sort_by(|a, b| b.calls.cmp(&a.calls).then_with(|| a.name.cmp(&b.name)));
    rows.truncate(top);
    rows
}

#[cfg(test)]
mod tests;
