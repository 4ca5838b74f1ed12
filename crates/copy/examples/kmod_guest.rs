//! What `cargo xtask copy-vm` runs as root inside a virtual machine: the kernel modules against engines that fail, programs that
//! ask for what cannot be, and a tracer against calls that are known. Prints a line for each case; exits 1 when one failed.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test program of the virtual machine"
)]

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use daqmeter_sys::copies::{memory_file, null_call};
use daqmeter_sys::memory::{Buffer, Pages};
use daqmeter_sys::uapi::{
    ANY_CHANNEL, COPY_DEVICE, Copy, CopyDevice, Policy, TRACE_DEVICE, TraceDevice, TraceRecord,
    text,
};

/// Calls of each kind that the traced program makes.
const CALLS: usize = 1000;
/// Sizes that nothing else in the machine copies.
const WRITTEN: usize = 1237;
const READ: usize = 777;

type Verdict = Result<String, String>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let case: fn() -> Verdict = match arguments.first().map(String::as_str) {
        Some("known-calls") => {
            known_calls();
            return ExitCode::SUCCESS;
        }
        Some("hold") => {
            let _device = CopyDevice::open(Path::new(COPY_DEVICE)).unwrap();
            std::thread::sleep(Duration::from_secs(3600));
            return ExitCode::SUCCESS;
        }
        Some("refusals") => refusals,
        Some("failing") => failing,
        Some("flipping") => flipping,
        Some("losing") => losing,
        Some("stuck") => stuck,
        Some("busy") => busy,
        Some("unordered") => || moves(500, 3, &[0, 1]),
        Some("small-pool") => || moves(60, 2, &[0, 1]),
        Some("priority") => priority,
        Some("uname-cost") => trace_cost,
        Some("trace") => trace,
        Some("trace-full") => trace_full,
        Some("trace-cost") => trace_cost,
        Some("clean") => clean,
        _ => return ExitCode::from(2),
    };
    let name = arguments[0].as_str();
    match case() {
        Ok(said) => {
            println!("GUEST ok {name}: {said}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            println!("GUEST failed {name}: {why}");
            ExitCode::FAILURE
        }
    }
}

fn device(policy: u32) -> CopyDevice {
    let device = CopyDevice::open(Path::new(COPY_DEVICE)).unwrap();
    let policy = Policy {
        policy,
        high_channels: 1,
        quantum_ns: 30_000,
        window_ns: 90_000,
        ..Policy::default()
    };
    device.set_policy(policy).unwrap();
    device
}

fn dma(bytes: u64, direction: u32, completion: u32, channel: u32) -> Copy {
    Copy {
        by: 1,
        direction,
        completion,
        bytes,
        channel,
        timeout_ms: 300,
        ..Copy::default()
    }
}

fn set(parameter: &str, value: u32) {
    fs::write(
        format!("/sys/module/softdma/parameters/{parameter}"),
        value.to_string(),
    )
    .unwrap();
}

fn expect<T: PartialEq + std::fmt::Debug>(what: &str, found: T, wanted: T) -> Result<(), String> {
    if found == wanted {
        Ok(())
    } else {
        Err(format!("{what}: {found:?}, expected {wanted:?}"))
    }
}

/// No page stays pinned, by the module's account and by the kernel's.
fn nothing_pinned(device: &CopyDevice) -> Result<(), String> {
    let info = device.info().map_err(|error| error.to_string())?;
    expect("pinned pages", info.pinned_pages, 0)?;
    expect("quarantined pages", info.quarantined_pages, 0)?;
    // The kernel keeps differences per CPU; this folds them into the sums.
    fs::write("/proc/sys/vm/stat_refresh", "1").unwrap();
    let vmstat = fs::read_to_string("/proc/vmstat").unwrap();
    let of = |name: &str| {
        let line = vmstat.lines().find(|line| line.starts_with(name)).unwrap();
        line.split(' ').nth(1).unwrap().parse::<u64>().unwrap()
    };
    expect(
        "pins acquired and released",
        of("nr_foll_pin_acquired"),
        of("nr_foll_pin_released"),
    )
}

/// Fills the region by CPU, copies to the user by the request, compares.
fn round(device: &CopyDevice, request: &mut Copy, seed: u8) -> Result<(), String> {
    let bytes = usize::try_from(request.bytes).unwrap();
    let mut buffer = Buffer::new(bytes + 8192, Pages::Base).unwrap();
    let pattern: Vec<u8> = (0..=250_u8)
        .cycle()
        .map(|byte| byte.wrapping_mul(3) ^ seed)
        .take(bytes)
        .collect();
    buffer.slice_mut::<u8>(bytes).copy_from_slice(&pattern);
    let mut by_cpu = Copy {
        by: 0,
        direction: 0,
        ..*request
    };
    device
        .copy(&mut by_cpu, &mut buffer, 0)
        .map_err(|error| error.to_string())?;
    buffer.slice_mut::<u8>(bytes + 8192).fill(0xA5);
    // An address that is aligned to nothing.
    let offset = 4093;
    request.direction = 1;
    device
        .copy(request, &mut buffer, offset)
        .map_err(|error| error.to_string())?;
    let whole = buffer.slice::<u8>(bytes + 8192);
    if whole[offset..offset + bytes] != pattern {
        let at = (0..bytes)
            .find(|at| whole[offset + at] != pattern[*at])
            .unwrap();
        return Err(format!("byte {at} of {bytes} is wrong"));
    }
    let outside = whole[..offset].iter().chain(&whole[offset + bytes..]);
    if outside.into_iter().any(|byte| *byte != 0xA5) {
        return Err("bytes outside were written".to_owned());
    }
    Ok(())
}

/// Copies of many sizes under a policy.
fn moves(kib: u64, policy: u32, completions: &[u32]) -> Verdict {
    let device = device(policy);
    let mut copies = 0;
    for completion in completions {
        for bytes in [1, 63, 4096, 4097, 50_001, kib * 1024] {
            for channel in 0..device.info().unwrap().channels {
                round(
                    &device,
                    &mut dma(bytes, 1, *completion, channel),
                    7 + u8::try_from(channel).unwrap(),
                )?;
                copies += 1;
            }
        }
    }
    nothing_pinned(&device)?;
    Ok(format!("{copies} copies, every byte"))
}

fn refusals() -> Verdict {
    let device = device(2);
    let info = device.info().unwrap();
    let mut buffer = Buffer::new(8192, Pages::Base).unwrap();
    let errno = |mut copy: Copy, buffer: &mut Buffer| {
        device
            .copy(&mut copy, buffer, 0)
            .err()
            .and_then(|error| error.errno())
    };
    expect(
        "nothing to copy",
        errno(dma(0, 1, 0, ANY_CHANNEL), &mut buffer),
        Some(34),
    )?;
    let beyond = Copy {
        region_offset: info.region_bytes,
        ..dma(4096, 1, 0, ANY_CHANNEL)
    };
    expect("beyond the region", errno(beyond, &mut buffer), Some(34))?;
    let wrapping = Copy {
        region_offset: u64::MAX - 100,
        ..dma(4096, 1, 0, ANY_CHANNEL)
    };
    expect("a sum that wraps", errno(wrapping, &mut buffer), Some(34))?;
    expect(
        "no such channel",
        errno(dma(4096, 1, 0, 63), &mut buffer),
        Some(44),
    )?;
    expect(
        "a flag that is none",
        errno(
            Copy {
                flags: 8,
                ..dma(64, 1, 0, 0)
            },
            &mut buffer,
        ),
        Some(22),
    )?;
    expect(
        "a direction that is none",
        errno(
            Copy {
                direction: 9,
                ..dma(64, 1, 0, 0)
            },
            &mut buffer,
        ),
        Some(22),
    )?;
    for by in [0, 1] {
        let mut copy = Copy {
            by,
            ..dma(64, 1, 0, ANY_CHANNEL)
        };
        let refused =
            |done: Result<(), daqmeter_sys::SysError>| done.err().and_then(|error| error.errno());
        expect(
            "memory that is not there",
            refused(device.copy_outside(&mut copy, false)),
            Some(14),
        )?;
        copy.direction = 1;
        expect(
            "read-only memory",
            refused(device.copy_outside(&mut copy, true)),
            Some(14),
        )?;
    }
    for (quantum_ns, window_ns, high_channels) in [
        (90_000, 90_000, 1),
        (0, 90_000, 1),
        (30_000, 2_000_000_000, 1),
        (30_000, 90_000, 1 << 40),
        (30_000, 90_000, 0),
    ] {
        let policy = Policy {
            policy: 3,
            high_channels,
            quantum_ns,
            window_ns,
            ..Policy::default()
        };
        expect(
            "a window that cannot be",
            device
                .set_policy(policy)
                .err()
                .and_then(|error| error.errno()),
            Some(22),
        )?;
    }
    let none = Policy {
        policy: 9,
        ..Policy::default()
    };
    expect(
        "a policy that is none",
        device
            .set_policy(none)
            .err()
            .and_then(|error| error.errno()),
        Some(22),
    )?;
    nothing_pinned(&device)?;
    Ok("each with its errno".to_owned())
}

/// Every 7th descriptor ends with an error: the copy says EIO, polled and not, and the next one is whole.
fn failing() -> Verdict {
    set("fail_every", 7);
    let device = device(1);
    let (mut failed, mut done) = (0, 0);
    for at in 0..60_u32 {
        match round(&device, &mut dma(3 * 4096, 1, at % 2, 0), 1) {
            Ok(()) => done += 1,
            Err(why) if why.contains("os error 5") => failed += 1,
            Err(why) => return Err(why),
        }
    }
    set("fail_every", 0);
    round(&device, &mut dma(100_000, 1, 1, 0), 9)?;
    expect(
        "failures of the channel",
        device.channel(0).unwrap().failures,
        failed,
    )?;
    if failed == 0 || done == 0 {
        return Err(format!("{failed} failed, {done} done"));
    }
    nothing_pinned(&device)?;
    Ok(format!("{failed} failed with EIO, {done} done and right"))
}

/// An engine that flips a bit is found by comparing, and only by that.
fn flipping() -> Verdict {
    set("flip_every", 5);
    let device = device(1);
    let wrong = (0..20)
        .filter(|_| round(&device, &mut dma(2 * 4096, 1, 0, 1), 2).is_err())
        .count();
    set("flip_every", 0);
    if wrong == 0 {
        return Err("no wrong byte was found".to_owned());
    }
    nothing_pinned(&device)?;
    Ok(format!("{wrong} of 20 copies were found wrong"))
}

/// A descriptor that never completes ends with a timeout; the channel works again, no page stays pinned.
fn losing() -> Verdict {
    let device = device(1);
    let mut timeouts = 0;
    for completion in [0, 1, 0, 1] {
        set("lose_every", 1);
        let lost = round(&device, &mut dma(8192, 1, completion, 2), 3);
        set("lose_every", 0);
        match lost {
            Err(why) if why.contains("os error 110") => timeouts += 1,
            other => return Err(format!("{other:?} instead of a timeout")),
        }
        round(&device, &mut dma(100_000, 1, completion, 2), 4)?;
    }
    expect(
        "timeouts of the channel",
        device.channel(2).unwrap().timeouts,
        timeouts,
    )?;
    // Slower than the timeout: what completes late must find nothing to touch.
    set("delay_us", 400_000);
    let late = round(&device, &mut dma(64, 1, 1, 3), 5);
    set("delay_us", 0);
    if late.is_ok() {
        return Err("a copy that takes longer than its limit succeeded".to_owned());
    }
    std::thread::sleep(Duration::from_millis(600));
    round(&device, &mut dma(100_000, 1, 1, 3), 6)?;
    nothing_pinned(&device)?;
    Ok(format!("{} timeouts, the channels went on", timeouts + 1))
}

/// An engine that cannot be stopped (`terminating=0`) keeps its pages until the channel is given back.
fn stuck() -> Verdict {
    let device = device(1);
    // A copy that fails is over: it keeps nothing, also where nothing can be stopped.
    set("fail_every", 1);
    let failed = round(&device, &mut dma(8192, 1, 1, 0), 1);
    set("fail_every", 0);
    if !failed.as_ref().is_err_and(|why| why.contains("os error 5")) {
        return Err(format!("{failed:?} instead of EIO"));
    }
    round(&device, &mut dma(8192, 1, 0, 0), 2)?;
    set("delay_us", 500_000);
    let late = round(&device, &mut dma(8192, 1, 1, 0), 1);
    set("delay_us", 0);
    if !late.as_ref().is_err_and(|why| why.contains("os error 110")) {
        return Err(format!("{late:?} instead of a timeout"));
    }
    let kept = device.info().unwrap().quarantined_pages;
    if kept == 0 {
        return Err("no page was kept".to_owned());
    }
    let refused = round(&device, &mut dma(64, 1, 1, 0), 1);
    if !refused
        .as_ref()
        .is_err_and(|why| why.contains("os error 16"))
    {
        return Err(format!("{refused:?} instead of busy"));
    }
    std::thread::sleep(Duration::from_millis(1500));
    expect(
        "late completions",
        device.channel(0).unwrap().late > 0,
        true,
    )?;
    device
        .set_policy(Policy::default())
        .map_err(|error| error.to_string())?;
    nothing_pinned(&device)?;
    Ok(format!(
        "{kept} pages kept while the engine was late, none afterwards"
    ))
}

/// The policy cannot change while a copy is under way.
fn busy() -> Verdict {
    let device = device(2);
    set("delay_us", 20_000);
    let refused = std::thread::scope(|scope| {
        let copying = scope.spawn(|| {
            round(
                &device,
                &mut Copy {
                    timeout_ms: 20_000,
                    ..dma(40 * 4096, 1, 1, 0)
                },
                1,
            )
        });
        let mut refused = None;
        while !copying.is_finished() {
            if device.info().unwrap().in_flight > 0 {
                refused = device
                    .set_policy(Policy::default())
                    .err()
                    .and_then(|error| error.errno());
                break;
            }
        }
        copying.join().unwrap().map(|()| refused)
    });
    set("delay_us", 0);
    expect("changing the policy meanwhile", refused?, Some(16))?;
    nothing_pinned(&device)?;
    Ok("EBUSY, and the copy went on".to_owned())
}

/// Under the machine's own clock (icount): the window's share, and what the channels get of it.
fn priority() -> Verdict {
    let device = device(3);
    let channels = device.info().unwrap().channels;
    let before = device.info().unwrap();
    let together = std::sync::Barrier::new(channels as usize);
    std::thread::scope(|scope| {
        for channel in 0..channels {
            let (device, together) = (&device, &together);
            scope.spawn(move || {
                let mut buffer = Buffer::new(65_536, Pages::Base).unwrap();
                together.wait();
                let begin = Instant::now();
                while begin.elapsed() < Duration::from_secs(1) {
                    device
                        .copy(&mut dma(65_536, 1, 1, channel), &mut buffer, 0)
                        .unwrap();
                }
            });
        }
    });
    let after = device.info().unwrap();
    let windows = (after.gate_windows - before.gate_windows).max(1);
    let high = (after.gate_high_ns - before.gate_high_ns) as f64 / windows as f64;
    let low = (after.gate_low_ns - before.gate_low_ns) as f64 / windows as f64;
    let copies: Vec<u64> = (0..channels)
        .map(|at| device.channel(at).unwrap().bytes >> 10)
        .collect();
    nothing_pinned(&device)?;
    let said =
        format!("{windows} windows, high {high:.0} ns, low {low:.0} ns; KiB by channel {copies:?}");
    // Real time is hopeless in an emulator without icount: there only the accounts are checked.
    let exact = fs::read_to_string("/proc/cmdline")
        .unwrap()
        .contains("daqmeter.icount");
    let near = |found: f64, wanted: f64| (found / wanted - 1.0).abs() < 0.05;
    if exact && !(near(high, 30_000.0) && near(low, 60_000.0)) {
        return Err(format!("30000 and 60000 ns were asked: {said}"));
    }
    if copies.contains(&0) {
        return Err(format!("a channel got nothing: {said}"));
    }
    if !exact {
        return Ok(said);
    }
    // What the channels get beside each other is the scheduler's word on one CPU, not the gate's. Alone, a low channel is
    // held back in each quantum and a high one never.
    let alone = |channel: u32| {
        let mut buffer = Buffer::new(65_536, Pages::Base).unwrap();
        let (begin, mut copies) = (Instant::now(), 0_u32);
        while begin.elapsed() < Duration::from_millis(500) {
            device
                .copy(&mut dma(65_536, 1, 1, channel), &mut buffer, 0)
                .unwrap();
            copies += 1;
        }
        copies
    };
    let (high_alone, low_alone) = (alone(0), alone(1));
    let said = format!("{said}; alone in 500 ms: high {high_alone} copies, low {low_alone}");
    if f64::from(low_alone) > 0.95 * f64::from(high_alone) {
        return Err(format!("the gate held nothing back: {said}"));
    }
    Ok(said)
}

/// The traced program: calls whose copies are known.
fn known_calls() {
    let file = memory_file(65_536, false).unwrap();
    let (written, mut read) = (vec![1; WRITTEN], vec![0; READ]);
    for _ in 0..CALLS {
        // nanosleep with a time that cannot be: 16 bytes from the user, and no sleep.
        daqmeter_sys::copies::refused_sleep();
        // uname: 390 bytes to the user.
        daqmeter_sys::copies::system_name();
        file.write_all_at(&written, 0).unwrap();
        file.read_exact_at(&mut read, 0).unwrap();
        null_call();
    }
}

fn run_known_calls() -> u32 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .arg("known-calls")
        .spawn()
        .unwrap();
    child.wait().unwrap();
    child.id()
}

/// Counts the known program's records, live, while it runs.
fn trace() -> Verdict {
    let mut tracer =
        TraceDevice::open(Path::new(TRACE_DEVICE)).map_err(|error| error.to_string())?;
    tracer.start().map_err(|error| error.to_string())?;
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
    let info = tracer.info().unwrap();
    expect(
        "records in all",
        records.len() as u64,
        info.recorded.iter().sum(),
    )?;
    expect("dropped", info.dropped.iter().sum::<u64>(), 0)?;
    expect("missed", info.missed, 0)?;
    let own = std::process::id();
    expect(
        "the reader's own copies",
        records.iter().filter(|record| record.pid == own).count(),
        0,
    )?;
    let of = |operation: u16, bytes: usize| {
        let known = |record: &&TraceRecord| {
            record.pid == child && record.operation == operation && record.bytes == bytes as u64
        };
        records.iter().filter(known).count()
    };
    expect("uname, copy_to_user 390", of(1, 390), CALLS)?;
    expect("nanosleep, copy_from_user 16", of(0, 16), CALLS)?;
    let mut inline = "the __ forms cannot be seen here".to_owned();
    if probed & 0b1100 == 0b1100 {
        expect("pwrite, __copy_from_user", of(2, WRITTEN), CALLS)?;
        expect("pread, __copy_to_user", of(3, READ), CALLS)?;
        inline = "all four operations".to_owned();
    }
    let wrong = records
        .iter()
        .find(|record| record.after_ns < record.before_ns || record.caller >> 47 == 0);
    if let Some(record) = wrong {
        return Err(format!("a record that cannot be: {record:?}"));
    }
    let name = text(
        &records
            .iter()
            .find(|record| record.pid == child)
            .unwrap()
            .comm,
    );
    Ok(format!(
        "{} records, {CALLS} of each known call exactly, {inline}; the child is `{name}`",
        records.len()
    ))
}

/// Small rings, nobody reads: what is kept and what is dropped add up.
fn trace_full() -> Verdict {
    let mut tracer =
        TraceDevice::open(Path::new(TRACE_DEVICE)).map_err(|error| error.to_string())?;
    if TraceDevice::open(Path::new(TRACE_DEVICE))
        .err()
        .and_then(|error| error.errno())
        != Some(16)
    {
        return Err("a second reader was not refused with EBUSY".to_owned());
    }
    tracer.start().map_err(|error| error.to_string())?;
    run_known_calls();
    tracer.stop().unwrap();
    let info = tracer.info().unwrap();
    let mut records = Vec::new();
    tracer.read(&mut records).unwrap();
    let (recorded, dropped): (u64, u64) = (info.recorded.iter().sum(), info.dropped.iter().sum());
    expect("records kept", records.len() as u64, recorded)?;
    if dropped == 0 || recorded + dropped < 2 * CALLS as u64 {
        return Err(format!("{recorded} kept, {dropped} dropped"));
    }
    // The oldest stay: each ring's counters begin at 0 and have no hole.
    let mut rings: std::collections::BTreeMap<(u32, u16), Vec<u64>> = Default::default();
    for record in &records {
        rings
            .entry((record.ring_cpu, record.operation))
            .or_default()
            .push(record.counter);
    }
    let whole = rings
        .values()
        .all(|counters| counters.iter().copied().eq(0..counters.len() as u64));
    expect("the oldest are kept, without a hole", whole, true)?;
    Ok(format!(
        "{recorded} kept, {dropped} dropped, {} rings",
        rings.len()
    ))
}

/// What a record costs, in instructions: under icount a nanosecond is a fixed number of them (shift 3: 8 ns each), so the time of
/// a call with the probes less the time without is a count.
fn trace_cost() -> Verdict {
    const EACH: u32 = 2000;
    let per_call = || {
        let begin = Instant::now();
        (0..EACH).for_each(|_| daqmeter_sys::copies::system_name());
        begin.elapsed().as_nanos() as f64 / f64::from(EACH)
    };
    let in_child = |what: &str| -> f64 {
        let output = Command::new(std::env::current_exe().unwrap())
            .arg(what)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout)
            .trim()
            .parse()
            .unwrap()
    };
    if std::env::args().nth(1).as_deref() == Some("uname-cost") {
        println!("{}", per_call());
        std::process::exit(0);
    }
    let without = in_child("uname-cost");
    let tracer = TraceDevice::open(Path::new(TRACE_DEVICE)).map_err(|error| error.to_string())?;
    tracer.start().map_err(|error| error.to_string())?;
    // Probes on functions are turned into jumps a moment later.
    std::thread::sleep(Duration::from_secs(1));
    let with = in_child("uname-cost");
    let instructions = (with - without) / 8.0;
    if instructions < 50.0 {
        return Err(format!(
            "{instructions} instructions cannot be: {without} ns without, {with} ns with"
        ));
    }
    Ok(format!(
        "{instructions:.0} instructions a record ({without:.0} and {with:.0} ns of 8 ns each for uname)"
    ))
}

/// After all modules are gone: no probe is left, nothing is pinned.
fn clean() -> Verdict {
    let probes = fs::read_to_string("/sys/kernel/debug/kprobes/list").unwrap_or_default();
    expect("probes left", probes.trim(), "")?;
    let modules = fs::read_to_string("/proc/modules").unwrap();
    expect(
        "modules left",
        modules.contains("daqmeter") || modules.contains("softdma"),
        false,
    )?;
    Ok("no probe and no module left".to_owned())
}
