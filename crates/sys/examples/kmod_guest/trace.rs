//! Tests the tracer against known calls.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use daqmeter_sys::copies::{memory_file, null_call};
use daqmeter_sys::uapi::{TRACE_DEVICE, TraceDevice, TraceInfo, TraceRecord, text};
use rustix::thread::Timespec;

use crate::common::{Failure, Verdict, errno, expect};

const CALLS: usize = 1000;
/// Size that no other copy in the machine has.
const WRITTEN: usize = 1237;
const READ: usize = 777;

/// Operation codes; the inline forms follow the outer two.
const FROM: u16 = 0;
const TO: u16 = 1;
const INLINE_FROM: u16 = 2;
const INLINE_TO: u16 = 3;

pub(crate) fn known_calls() {
    let file = memory_file(65_536).unwrap();
    let (written, mut read) = (vec![1; WRITTEN], vec![0; READ]);
    for _ in 0..CALLS {
        // nanosleep with an invalid time: 16 bytes from the user, and no sleep.
        let _ = rustix::thread::nanosleep(&Timespec { tv_sec: 0, tv_nsec: 2_000_000_000 });
        // uname: 390 bytes to the user.
        rustix::system::uname();
        file.write_all_at(&written, 0).unwrap();
        file.read_exact_at(&mut read, 0).unwrap();
        null_call();
    }
}

pub(crate) fn run_known_calls() -> u32 {
    let mut child =
        Command::new(std::env::current_exe().unwrap()).arg("known-calls").spawn().unwrap();
    child.wait().unwrap();
    child.id()
}

pub(crate) fn trace() -> Verdict {
    let (child, records, info, probed) = traced()?;
    expect("records in all", records.len() as u64, info.recorded.iter().sum())?;
    expect("dropped", info.dropped.iter().sum::<u64>(), 0)?;
    expect("missed", info.missed, 0)?;
    let own = records.iter().filter(|record| record.pid == std::process::id()).count();
    expect("the reader's own copies", own, 0)?;
    let impossible =
        |record: &&TraceRecord| record.after_ns < record.before_ns || record.caller >> 47 == 0;
    if let Some(record) = records.iter().find(impossible) {
        return Err(format!("a record that cannot be: {record:?}").into());
    }
    let known: Vec<&TraceRecord> = records.iter().filter(|record| record.pid == child).collect();
    let all = probed & 0b1100 == 0b1100;
    each_call_once(&known, all)?;
    let inline = if all { "all four operations" } else { "the __ forms cannot be seen here" };
    Ok(format!(
        "{} records, {CALLS} of each known call exactly, {inline}; the child is `{}`",
        records.len(),
        text(&known[0].comm)
    ))
}

/// The known program's process, all records, final counts and the mask of visible operations.
fn traced() -> Result<(u32, Vec<TraceRecord>, TraceInfo, u32), Failure> {
    let mut tracer = TraceDevice::open(Path::new(TRACE_DEVICE))?;
    tracer.start()?;
    let mut records: Vec<TraceRecord> = Vec::new();
    let child = std::thread::scope(|scope| {
        let running = scope.spawn(run_known_calls);
        while !running.is_finished() {
            tracer.read(&mut records).unwrap();
        }
        running.join().unwrap()
    });
    let probed = tracer.info().unwrap().probed;
    tracer.stop().unwrap();
    tracer.read(&mut records).unwrap();
    Ok((child, records, tracer.info().unwrap(), probed))
}

/// Checks that each call is recorded once: a helper within an outer function does not count again.
fn each_call_once(known: &[&TraceRecord], all: bool) -> Result<(), Failure> {
    let of = |operation: u16, bytes: usize| {
        let same =
            |record: &&&TraceRecord| record.operation == operation && record.bytes == bytes as u64;
        known.iter().filter(same).count()
    };
    expect("uname, copy_to_user 390", of(TO, 390), CALLS)?;
    expect("nanosleep, copy_from_user 16", of(FROM, 16), CALLS)?;
    expect("uname, counted as __copy_to_user, too", of(INLINE_TO, 390), 0)?;
    // The program's start copies 16 bytes a few times.
    let twice = of(INLINE_FROM, 16) >= CALLS / 2;
    expect("nanosleep, counted as __copy_from_user, too", twice, false)?;
    if all {
        expect("pwrite, __copy_from_user", of(INLINE_FROM, WRITTEN), CALLS)?;
        expect("pread, __copy_to_user", of(INLINE_TO, READ), CALLS)?;
        expect("pwrite, counted as copy_from_user, too", of(FROM, WRITTEN), 0)?;
        expect("pread, counted as copy_to_user, too", of(TO, READ), 0)?;
    }
    Ok(())
}

/// Checks that kept and dropped records add up when small rings are not read.
pub(crate) fn trace_full() -> Verdict {
    let mut tracer = TraceDevice::open(Path::new(TRACE_DEVICE))?;
    expect("a second reader", errno(TraceDevice::open(Path::new(TRACE_DEVICE))), Some(16))?;
    tracer.start()?;
    run_known_calls();
    tracer.stop().unwrap();
    let info = tracer.info().unwrap();
    let mut records = Vec::new();
    tracer.read(&mut records).unwrap();
    let (recorded, dropped): (u64, u64) = (info.recorded.iter().sum(), info.dropped.iter().sum());
    expect("records kept", records.len() as u64, recorded)?;
    if dropped == 0 || recorded + dropped < 2 * CALLS as u64 {
        return Err(format!("{recorded} kept, {dropped} dropped").into());
    }
    // The oldest records stay: each ring's counters begin at 0 without a gap.
    let mut rings: BTreeMap<(u32, u16), Vec<u64>> = Default::default();
    for record in &records {
        rings.entry((record.ring_cpu, record.operation)).or_default().push(record.counter);
    }
    let whole =
        rings.values().all(|counters| counters.iter().copied().eq(0..counters.len() as u64));
    expect("the oldest are kept, without a hole", whole, true)?;
    Ok(format!("{recorded} kept, {dropped} dropped, {} rings", rings.len()))
}

pub(crate) fn trace_memory() -> Verdict {
    const RINGS_BYTES: u64 = 4 * 16_384 * size_of::<TraceRecord>() as u64;
    let text = fs::read_to_string("/proc/vmallocinfo").unwrap();
    let rings = text.lines().filter(|line| line.contains("make_rings"));
    let bytes = |line: &str| line.split_whitespace().nth(1)?.parse::<u64>().ok();
    let found: u64 = rings.filter_map(bytes).sum();
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap();
    let cpus = cpus.lines().filter(|line| line.starts_with("processor")).count() as u64;
    // Each ring has an unmapped page behind it.
    expect("bytes of rings", found, cpus * (RINGS_BYTES + 4 * 4096))?;
    Ok(format!("{found} bytes for {cpus} CPUs online"))
}
