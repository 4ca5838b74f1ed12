//! The study's trace files, nine fields in a line (section 3.2.1).

use std::path::Path;

use daqmeter_record::border::{MAX_WHOLE, StampNs, Whole};
use daqmeter_sys::uapi::TraceRecord;

pub(super) const FILES: [&str; 4] =
    ["mem_trace_from.dat", "mem_trace_to.dat", "__mem_trace_from.dat", "__mem_trace_to.dat"];

pub(super) fn classic_line(record: &TraceRecord) -> String {
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

pub fn operation_of(file: &Path) -> Option<u16> {
    let name = file.file_name()?.to_str()?;
    let at = FILES.iter().position(|known| *known == name)?;
    u16::try_from(at).ok()
}

#[derive(Debug, Default)]
pub struct TraceFile {
    pub records: Vec<TraceRecord>,
    /// Lines with an address of more than 16 digits, of which the last 16 were taken. The study's
    /// own sample has such lines.
    pub long_addresses: usize,
}

impl TraceFile {
    /// Parses a file.
    ///
    /// # Errors
    /// A line does not have the nine fields, a count is beyond [`MAX_WHOLE`], or the times do not
    /// agree.
    pub fn parse(operation: u16, text: &str) -> Result<TraceFile, String> {
        let mut file = TraceFile::default();
        for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let (record, is_long) = record_of(operation, line).ok_or_else(|| {
                format!(
                    "line {}: not the nine fields of a trace (CPU, counter, bytes, CPU, ns before, ns after, ns = after - before, caller, CPU or DMA), or above {MAX_WHOLE}",
                    at + 1
                )
            })?;
            file.records.push(record);
            file.long_addresses += usize::from(is_long);
        }
        Ok(file)
    }
}

/// Inverts [`classic_line`], and reports an address of more than 16 digits.
fn record_of(operation: u16, line: &str) -> Option<(TraceRecord, bool)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [ring, counter, bytes, cpu, before, after, ns, caller, by] = fields[..] else {
        return None;
    };
    let whole = |text: &str| text.parse().ok().map(Whole::get);
    let stamp = |text: &str| text.parse().ok().map(StampNs::get);
    let digits = caller.strip_prefix("0x")?;
    let extra = digits.len().saturating_sub(16);
    let record = TraceRecord {
        operation,
        ring_cpu: ring.parse().ok()?,
        counter: whole(counter)?,
        bytes: whole(bytes)?,
        begin_cpu: cpu.parse().ok()?,
        before_ns: stamp(before)?,
        after_ns: stamp(after)?,
        caller: u64::from_str_radix(digits.get(extra..)?, 16).ok()?,
        by: ["CPU", "DMA"].iter().position(|name| *name == by)?.try_into().ok()?,
        ..TraceRecord::default()
    };
    let agrees = record.after_ns.checked_sub(record.before_ns) == Some(whole(ns)?);
    agrees.then_some((record, extra > 0))
}
