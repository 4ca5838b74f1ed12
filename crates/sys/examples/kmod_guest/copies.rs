//! Copies that must be correct, and requests that must be refused.

use std::sync::atomic::{AtomicU32, Ordering};

use daqmeter_sys::memory::{Buffer, Pages};
use daqmeter_sys::uapi::{ANY_CHANNEL, Copy, Policy};

use crate::common::{
    Failure, Verdict, device, dma, errno, expect, nothing_pinned, pattern, round, set,
};

pub(crate) fn moves(kib: u64, policy: u32, completions: &[u32]) -> Verdict {
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

/// Copies from the user and back in one request; the user's bytes and the region's must not change.
pub(crate) fn both() -> Verdict {
    let device = device(1);
    let mut copies = 0;
    for (completion, bytes) in [(0, 64), (1, 4097), (0, 65_536), (1, 65_536), (0, 1 << 20)] {
        let mut buffer = Buffer::new(bytes + 4096, Pages::Base).unwrap();
        let whole = |buffer: &mut Buffer, byte| buffer.slice_mut::<u8>(bytes + 4096).fill(byte);
        let copy = |by, direction, buffer: &mut Buffer| {
            let request = dma(bytes as u64, direction, completion, 0);
            let mut request = Copy { by, timeout_ms: 30_000, ..request };
            device.copy(&mut request, buffer, 33)?;
            Ok::<_, Failure>(request.after_ns - request.before_ns)
        };
        // A stale bounce buffer would bring the region's earlier bytes.
        whole(&mut buffer, 0xEE);
        copy(0, 0, &mut buffer)?;
        let wanted = pattern(bytes, 0x5C);
        buffer.slice_mut::<u8>(bytes + 4096)[33..33 + bytes].copy_from_slice(&wanted);
        let took_ns = copy(1, 2, &mut buffer)?;
        let wrong = |buffer: &Buffer| {
            let found = &buffer.slice::<u8>(bytes + 4096)[33..33 + bytes];
            found.iter().zip(&wanted).filter(|(found, wanted)| found != wanted).count()
        };
        expect(&format!("wrong bytes of the user's {bytes}"), wrong(&buffer), 0)?;
        expect("a time", took_ns > 0, true)?;
        whole(&mut buffer, 0);
        copy(0, 1, &mut buffer)?;
        expect(&format!("wrong bytes of the region's {bytes}"), wrong(&buffer), 0)?;
        copies += 1;
    }
    nothing_pinned(&device)?;
    Ok(format!("{copies} copies there and back, every byte"))
}

/// Uses all CPUs at once: copies on shared channels, queries, failures, and refused policy changes.
pub(crate) fn racing() -> Verdict {
    const EACH: u32 = 150;
    let device = device(2);
    let channels = device.info().unwrap().channels;
    set("fail_every", 20);
    let (done, failed, busy) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
    let copying = |lane: u32| -> Result<(), Failure> {
        let mut buffer = Buffer::new(65_536, Pages::Base).unwrap();
        for at in 0..EACH {
            let bytes = [64, 4096, 50_001][(at % 3) as usize];
            let channel = if at % 2 == 0 { ANY_CHANNEL } else { (lane + at) % channels };
            let request = dma(bytes, at % 3, (lane + at) % 2, channel);
            let mut request = Copy { timeout_ms: 60_000, ..request };
            match errno(device.copy(&mut request, &mut buffer, 0)) {
                None => done.fetch_add(1, Ordering::Relaxed),
                Some(5) => failed.fetch_add(1, Ordering::Relaxed),
                Some(other) => {
                    return Err(format!("copy {at} of lane {lane}: error {other}").into());
                }
            };
            if errno(device.set_policy(Policy { policy: 1, ..Policy::default() })) == Some(16) {
                busy.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    };
    let lanes = u32::try_from(std::thread::available_parallelism().unwrap().get()).unwrap() * 2;
    let copying = &copying;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..lanes).map(|lane| scope.spawn(move || copying(lane))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap())
    })?;
    set("fail_every", 0);
    let (done, failed, busy) = (done.into_inner(), failed.into_inner(), busy.into_inner());
    expect("copies", done + failed, lanes * EACH)?;
    expect("changes of the policy that were refused", busy > 0, true)?;
    expect("failures", failed > 0, true)?;
    expect("copies in flight", device.info().unwrap().in_flight, 0)?;
    round(&device, &mut dma(100_000, 1, 1, 0), 9)?;
    nothing_pinned(&device)?;
    let lanes = format!("{lanes} lanes on {} CPUs", lanes / 2);
    Ok(format!("{lanes}: {done} copies, {failed} failed, {busy} changes refused"))
}

pub(crate) fn refusals() -> Verdict {
    let device = device(2);
    let info = device.info().unwrap();
    let mut buffer = Buffer::new(8192, Pages::Base).unwrap();
    let page = dma(4096, 1, 0, ANY_CHANNEL);
    for (what, mut copy, wanted) in [
        ("nothing to copy", Copy { bytes: 0, ..page }, 34),
        ("beyond the region", Copy { region_offset: info.region_bytes, ..page }, 34),
        ("a sum that wraps", Copy { region_offset: u64::MAX - 100, ..page }, 34),
        ("no such channel", Copy { channel: 63, ..page }, 44),
        ("an unknown flag", Copy { flags: 8, ..page }, 22),
        ("an unknown direction", Copy { direction: 9, ..page }, 22),
        ("a limit of more than an hour", Copy { timeout_ms: 3_600_001, ..page }, 22),
        ("a limit without end", Copy { timeout_ms: 1 << 31, ..page }, 22),
    ] {
        expect(what, errno(device.copy(&mut copy, &mut buffer, 0)), Some(wanted))?;
    }
    for by in [0, 1] {
        let mut copy = Copy { by, direction: 0, ..dma(64, 0, 0, ANY_CHANNEL) };
        let outside = errno(device.copy_outside(&mut copy, false));
        expect("memory that is not there", outside, Some(14))?;
        copy.direction = 1;
        expect("read-only memory", errno(device.copy_outside(&mut copy, true)), Some(14))?;
    }
    for (policy, quantum_ns, window_ns, high_channels) in [
        (9, 30_000, 90_000, 1),
        (3, 90_000, 90_000, 1),
        (3, 0, 90_000, 1),
        (3, 30_000, 2_000_000_000, 1),
        (3, u64::MAX - 4999, 0, 1),
        (3, u64::MAX - 4999, 90_000, 1),
        (3, 30_000, 90_000, 1 << 40),
        (3, 30_000, 90_000, 0),
    ] {
        let policy = Policy { policy, high_channels, quantum_ns, window_ns, ..Policy::default() };
        expect(&format!("{policy:?}"), errno(device.set_policy(policy)), Some(22))?;
    }
    nothing_pinned(&device)?;
    Ok("each with its errno".to_owned())
}
