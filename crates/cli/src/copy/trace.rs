//! `daqmeter copy trace`: sizes, numbers and users of the kernel's copies.

use std::path::Path;
use std::time::{Duration, Instant};

use clap::Args;
use daqmeter_copy::trace::{Trace, TraceRow};
use daqmeter_harness::Tally;
use daqmeter_record::units::{show_bytes, significant};
use daqmeter_record::{Counter, EngineInfo, Workload};
use daqmeter_report::Frame;
use daqmeter_report::table::numbers_from;
use daqmeter_sys::SysError;
use daqmeter_sys::symbols::KernelSymbols;
use daqmeter_sys::uapi::{TRACE_DEVICE, TraceDevice};

use super::write_files;
use crate::arguments::duration;
use crate::context::context;
use crate::interrupt;
use crate::named::OutputFolder;
use crate::output::{Ended, Failure};
use crate::progress::Forecast;
use crate::recorder::{Recorder, Recording};

/// Count the kernel's copies by operation, size, caller and process.
///
/// It needs the tracer (kmod/daqmeter_trace.ko), which sees every call.
#[derive(Debug, Args)]
#[command(after_long_help = include_str!("../../help/copy-trace.txt"))]
pub(crate) struct Arguments {
    /// Time of the trace
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10s")]
    time: Duration,
    /// Time between two requests for data; 0 does not wait
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "100ms")]
    delay: Duration,
    /// Lines of each table
    #[arg(long, value_name = "N", default_value = "12")]
    top: usize,
    /// Also write the files of the original study, into this directory
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    classic: Option<OutputFolder>,
    #[command(flatten)]
    recording: Recording,
}

fn requests_text(made: u64, time: Duration, delay: Duration) -> String {
    let number = time.as_secs_f64() / delay.as_secs_f64();
    let asked = match delay.is_zero() {
        true => "one after the other".to_owned(),
        false => format!("time / delay is {number:.0}"),
    };
    format!("{made} requests for data ({asked})\n")
}

pub(super) fn run(arguments: &Arguments) -> Ended {
    let Arguments { time, delay, top, .. } = *arguments;
    let stop = interrupt::flag();
    let mut recorder = Recorder::new(&arguments.recording)?;
    recorder.expect(Forecast::budget(time));
    let mut device = TraceDevice::open(Path::new(TRACE_DEVICE)).map_err(refused)?;
    let info = EngineInfo { name: "trace".into(), target: TRACE_DEVICE.into(), emulated: false };
    let workload = Workload::new("trace").with("seconds", time.as_secs_f64());
    let context = context(arguments.recording.label.as_deref());
    let open = context.open_record("copy/trace", info, workload);
    let mut trace = Trace::new(arguments.classic.is_some());
    let symbols = KernelSymbols::of_kernel();
    device.start()?;
    let (began, mut requests) = (Instant::now(), 0);
    while began.elapsed() < time && !stop.is_set() {
        let look = Instant::now() + delay.min(time.saturating_sub(began.elapsed()));
        while let Some(left) = look.checked_duration_since(Instant::now())
            && !stop.is_set()
        {
            std::thread::sleep(left.min(LONGEST_SLEEP));
        }
        look_at(&mut device, &mut trace)?;
        requests += 1;
    }
    let elapsed = began.elapsed();
    device.stop().map_err(Failure::tool)?;
    look_at(&mut device, &mut trace)?;
    let info = device.info().map_err(Failure::tool)?;
    let (ledger, warnings) = trace.accounts(&info);
    let tables = tables(&trace, &symbols, top, elapsed);
    let mut frame = Frame { tables, notes: warnings.clone(), ..Frame::default() };
    frame.answer = vec![requests_text(requests, time, delay), ledger.to_string()];
    let mut counters = trace.all_counters(&info);
    counters.push(Counter::measured("traced", elapsed.as_nanos() as f64, "ns"));
    counters.push(Counter::count("requests", requests));
    let found = Tally { counters, ledgers: vec![ledger], warnings, ..Tally::default() };
    recorder.take(open.so_far(found, Vec::new()))?;
    if let Some(folder) = &arguments.classic {
        write_files(folder, &trace.classic())?;
    }
    recorder.finish(|_| frame)
}

const LONGEST_SLEEP: Duration = Duration::from_millis(100);

fn refused(error: SysError) -> Failure {
    let why = match error.errno() {
        Some(2) => "load the tracer (kmod/README.md)",
        _ => "only root can open the device, and only one program at a time",
    };
    Failure::refused(format!("{error}; {why}"))
}

fn look_at(device: &mut TraceDevice, trace: &mut Trace) -> Result<(), Failure> {
    let mut batch = Vec::new();
    device.read(&mut batch).map_err(Failure::tool)?;
    trace.add(&batch);
    Ok(())
}

pub(super) fn tables(
    trace: &Trace,
    symbols: &KernelSymbols,
    top: usize,
    seconds: Duration,
) -> String {
    let mut out = format!("{} copies in {:.1} s\n", trace.calls(), seconds.as_secs_f64());
    let operations = trace.operations().into_iter().map(|row| {
        let (calls, mean) = (row.calls.to_string(), significant(row.mean_ns, 3));
        let [bytes, median] = [row.bytes, row.median_bytes].map(show_bytes);
        vec![row.operation.to_owned(), calls, row.by_dma.to_string(), bytes, median, mean]
    });
    let headings = ["operation", "calls", "by DMA", "bytes", "median size", "mean ns"];
    out.push_str(&numbers_from(1, &headings, operations));
    let cells = |row: TraceRow| {
        vec![row.name, row.operation.to_owned(), row.calls.to_string(), show_bytes(row.bytes)]
    };
    for (title, rows) in trace.ranked(symbols, top) {
        // The study's files name no process.
        if rows.iter().all(|row| row.name.is_empty()) {
            continue;
        }
        let headings = [title, "operation", "calls", "bytes"];
        out.push('\n');
        out.push_str(&numbers_from(2, &headings, rows.into_iter().map(cells)));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_requests_stands_beside_the_studys() {
        let half_an_hour = Duration::from_secs(1800);
        let text = requests_text(17_998, half_an_hour, duration("100ms").unwrap());
        assert_eq!(text, "17998 requests for data (time / delay is 18000)\n");
        let text = requests_text(5, half_an_hour, duration("0").unwrap());
        assert_eq!(text, "5 requests for data (one after the other)\n");
        assert!(duration("soon").is_err());
    }
}
