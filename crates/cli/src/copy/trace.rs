//! `daqmeter copy trace`: which sizes the kernel copies, how often, for whom.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use daqmeter_copy::trace::{Accounts, Names, ProcessIo, Trace, sampled};
use daqmeter_harness::Context;
use daqmeter_record::{EngineInfo, Outcome, RunRecord, Workload};
use daqmeter_report::table::numbers_from;
use daqmeter_sys::uapi::{TRACE_DEVICE, TraceDevice};

use super::{Format, Written, write_classic};
use crate::arguments::duration;
use crate::metrics::{Metrics, Page};
use crate::output::{Failure, Recorder, emit, emit_as_it_is, tell, write_file};
use crate::run::{context, on_ctrl_c};

/// Count the kernel's copies by operation, size, caller and process over a time.
///
/// With the tracer (kmod/daqmeter_trace.ko) every call is seen. Without it, what /proc tells of each process' reads and writes
/// is shown instead: calls and bytes, no single copies.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Example:\n\n  $ daqmeter copy trace --time 100s --format classic --out-dir results\n\nThe classic files are mem_trace_from.dat, mem_trace_to.dat, __mem_trace_from.dat and __mem_trace_to.dat with the nine\nfields of the study. This program's own copies are left out."
)]
pub(super) struct Arguments {
    /// How long
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10s")]
    time: Duration,
    /// Between two looks at the rings
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "100ms")]
    delay: Duration,
    /// Lines of each table
    #[arg(long, value_name = "N", default_value = "12")]
    top: usize,
    /// Show the tables once a second while it goes on
    #[arg(long)]
    live: bool,
    #[command(flatten)]
    written: Written,
    /// Append the record to this file (JSON lines)
    #[arg(long, value_name = "FILE.jsonl", help_heading = "Output")]
    out: Option<PathBuf>,
    /// Print the record (a JSON line) instead of tables
    #[arg(long, help_heading = "Output")]
    json: bool,
    #[command(flatten)]
    metrics: Metrics,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    on_ctrl_c(&stop)?;
    let mut recorder = Recorder::new(arguments.out.as_deref(), arguments.json)?;
    let context = context();
    let began = Instant::now();
    let live = arguments.live && std::io::stdout().is_terminal();
    let page = arguments.metrics.served()?;
    let (record, text, files) = match TraceDevice::open(Path::new(TRACE_DEVICE)) {
        Ok(device) => traced(arguments, device, &stop, live, page.as_ref(), &context)?,
        Err(error) => {
            if error.errno() != Some(2) {
                return Err(Failure::refused(format!(
                    "{error}; the device is root's, and one program's at a time"
                )));
            }
            tell(&format!(
                "{error}: without the tracer (kmod/README.md) only reads and writes of processes can be counted"
            ));
            from_proc(arguments, &stop, page.as_ref(), &context)?
        }
    };
    let mut record = record;
    record.wall_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    recorder.take(record)?;
    if !arguments.json {
        emit(&text)?;
    }
    write_classic(&arguments.written, &files)?;
    if let Some(path) = &arguments.written.output {
        write_file(
            path,
            &daqmeter_report::page(&recorder.records).map_err(Failure::refused)?,
        )?;
        tell(&format!("wrote {}", path.display()));
    }
    Ok(recorder.exit_code(stop.load(Ordering::Relaxed)))
}

/// So long at most it sleeps before it looks whether there was a signal.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);

type Traced = (RunRecord, String, daqmeter_report::copy_classic::Files);

fn blank(arguments: &Arguments, context: &Context, engine: &str) -> RunRecord {
    let info = EngineInfo {
        name: engine.to_owned(),
        target: TRACE_DEVICE.to_owned(),
        emulated: false,
    };
    let workload = Workload::new("trace").with("seconds", arguments.time.as_secs_f64());
    let mut record = context.blank_record(info, workload);
    record.study = "copy/trace".to_owned();
    record
}

fn traced(
    arguments: &Arguments,
    mut device: TraceDevice,
    stop: &AtomicBool,
    live: bool,
    page: Option<&Page>,
    context: &Context,
) -> Result<Traced, Failure> {
    let mut trace = Trace::new(arguments.written.format == Format::Classic);
    let names = Names::of_kernel();
    device.start().map_err(Failure::refused)?;
    let (began, mut shown) = (Instant::now(), Instant::now());
    let mut batch = Vec::new();
    while began.elapsed() < arguments.time && !stop.load(Ordering::Relaxed) {
        let look = Instant::now()
            + arguments
                .delay
                .min(arguments.time.saturating_sub(began.elapsed()));
        while let Some(left) = look.checked_duration_since(Instant::now())
            && !stop.load(Ordering::Relaxed)
        {
            std::thread::sleep(left.min(LONGEST_SLEEP));
        }
        batch.clear();
        device.read(&mut batch).map_err(Failure::tool)?;
        trace.add(&batch);
        if page.is_some() {
            trace
                .operations()
                .iter()
                .for_each(|row| published(page, row.operation, row.calls, row.bytes));
        }
        if live && shown.elapsed() > Duration::from_secs(1) {
            shown = Instant::now();
            // Home, and clear below: the tables stay in place.
            emit_as_it_is("\u{1b}[H\u{1b}[J")?;
            emit(&tables(&trace, &names, arguments.top, began.elapsed()))?;
        }
    }
    let seconds = began.elapsed();
    device.stop().map_err(Failure::tool)?;
    batch.clear();
    device.read(&mut batch).map_err(Failure::tool)?;
    trace.add(&batch);
    let info = device.info().map_err(Failure::tool)?;
    let accounts = Accounts::of(&info, &trace);
    let mut record = blank(arguments, context, "trace");
    record.counters = trace.counters(&info);
    record.ledgers = vec![accounts.ledger.clone()];
    record.warnings.extend(accounts.warnings.clone());
    if !accounts.ledger.closes() {
        record.outcome = Outcome::Failed(format!("ledger: {}", accounts.ledger));
    }
    let mut text = tables(&trace, &names, arguments.top, seconds);
    text.push_str(&format!("{}\n", accounts.ledger));
    for warning in &accounts.warnings {
        text.push_str(&format!("{warning}\n"));
    }
    Ok((record, text, trace.classic()))
}

fn tables(trace: &Trace, names: &Names, top: usize, seconds: Duration) -> String {
    let mut out = format!(
        "{} copies in {:.1} s\n",
        trace.calls(),
        seconds.as_secs_f64()
    );
    let lines = trace
        .operations()
        .into_iter()
        .map(|row| row.cells().to_vec());
    out.push_str(&numbers_from(
        1,
        &["operation", "calls", "bytes", "median size", "mean ns"],
        lines,
    ));
    for (title, lines) in [
        ("size", trace.by_size(top)),
        ("caller", trace.by_caller(names, top)),
        ("process", trace.by_process(top)),
    ] {
        out.push('\n');
        out.push_str(&numbers_from(
            2,
            &[title, "operation", "calls", "bytes"],
            lines,
        ));
    }
    out
}

fn published(page: Option<&Page>, operation: &str, calls: u64, bytes: u64) {
    if let Some(page) = page {
        page.set("daqmeter_operations_total", operation, calls as f64);
        page.set("daqmeter_bytes_total", operation, bytes as f64);
    }
}

/// What can honestly be had without the tracer.
fn from_proc(
    arguments: &Arguments,
    stop: &AtomicBool,
    page: Option<&Page>,
    context: &Context,
) -> Result<Traced, Failure> {
    let look = |rows: &dyn Fn() -> Vec<ProcessIo>| {
        if page.is_some() {
            let rows = rows();
            let sum = |of: fn(&ProcessIo) -> u64| rows.iter().map(of).sum::<u64>();
            published(
                page,
                "reads",
                sum(|row| row.reads),
                sum(|row| row.read_bytes),
            );
            published(
                page,
                "writes",
                sum(|row| row.writes),
                sum(|row| row.written_bytes),
            );
        }
        stop.load(Ordering::Relaxed)
    };
    let rows: Vec<ProcessIo> =
        sampled(arguments.time, arguments.delay, look).map_err(Failure::tool)?;
    let mut record = blank(arguments, context, "trace-proc");
    record.counters = daqmeter_copy::trace::proc_counters(&rows);
    record.warnings.push(
        "from /proc/PID/io: calls and bytes of read- and write-like system calls by process; not single copies, no sizes, \
         no callers; processes that lived shorter than a look are missing"
            .to_owned(),
    );
    let lines = rows
        .iter()
        .take(arguments.top)
        .map(|row| row.cells().to_vec());
    let headings = [
        "process",
        "pid",
        "reads",
        "bytes to user",
        "mean size",
        "writes",
        "bytes from user",
        "mean size",
    ];
    let mut text = numbers_from(2, &headings, lines);
    for warning in &record.warnings {
        text.push_str(&format!("{warning}\n"));
    }
    Ok((record, text, Default::default()))
}
