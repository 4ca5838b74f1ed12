//! Faulty engines: errors, wrong bits, delays, lost descriptors.

use std::time::{Duration, Instant};

use daqmeter_sys::memory::{Buffer, Pages};
use daqmeter_sys::uapi::{Copy, Policy};

use crate::common::{
    Verdict, device, dma, errno, expect, fails, given_up, nothing_pinned, round, set,
};

/// Checks that an error in every 7th descriptor gives EIO, polled and not, and that the next copy
/// is whole.
pub(crate) fn failing() -> Verdict {
    set("fail_every", 7);
    let device = device(1);
    let (mut failed, mut done) = (0, 0);
    for at in 0..60_u32 {
        match round(&device, &mut dma(3 * 4096, 1, at % 2, 0), 1) {
            Ok(()) => done += 1,
            other => {
                fails(other, 5)?;
                failed += 1;
            }
        }
    }
    set("fail_every", 0);
    round(&device, &mut dma(100_000, 1, 1, 0), 9)?;
    expect("failures of the channel", device.channel(0)?.failures, failed)?;
    expect("some failed, some were done", failed > 0 && done > 0, true)?;
    nothing_pinned(&device)?;
    Ok(format!("{failed} failed with EIO, {done} done and right"))
}

pub(crate) fn flipping() -> Verdict {
    set("flip_every", 5);
    let device = device(1);
    let wrong = (0..20).filter(|_| round(&device, &mut dma(2 * 4096, 1, 0, 1), 2).is_err()).count();
    set("flip_every", 0);
    expect("wrong bytes were found", wrong > 0, true)?;
    nothing_pinned(&device)?;
    Ok(format!("{wrong} of 20 copies were found wrong"))
}

/// Checks that a lost descriptor ends with a timeout, the channel works again and no page stays
/// pinned.
pub(crate) fn losing() -> Verdict {
    let device = device(1);
    for completion in [0, 1, 0, 1] {
        set("lose_every", 1);
        let lost = round(&device, &mut given_up(8192, completion, 2), 3);
        set("lose_every", 0);
        fails(lost, 110)?;
        round(&device, &mut dma(100_000, 1, completion, 2), 4)?;
    }
    expect("timeouts of the channel", device.channel(2)?.timeouts, 4)?;
    // Slower than the timeout: a late completion must find nothing to touch.
    set("delay_us", 400_000);
    let late = round(&device, &mut given_up(64, 1, 3), 5);
    set("delay_us", 0);
    expect("a copy within its limit", late.is_ok(), false)?;
    // The test waits past the end of the late copy; no event can signal that nothing happened.
    std::thread::sleep(Duration::from_millis(600));
    round(&device, &mut dma(100_000, 1, 1, 3), 6)?;
    nothing_pinned(&device)?;
    Ok("5 timeouts, the channels went on".to_owned())
}

/// Checks that an engine 8 s late is stopped after the timeout and writes nothing into released
/// pages.
pub(crate) fn late() -> Verdict {
    const BYTES: usize = 65_536;
    let device = device(1);
    let mut buffer = Buffer::new(BYTES, Pages::Base).unwrap();
    buffer.slice_mut::<u8>(BYTES).fill(0x11);
    device.copy(&mut Copy { by: 0, ..dma(BYTES as u64, 0, 0, 0) }, &mut buffer, 0)?;
    set("delay_us", 8_000_000);
    let began = Instant::now();
    let ended = errno(device.copy(&mut given_up(BYTES as u64, 1, 0), &mut buffer, 0));
    let waited = began.elapsed();
    set("delay_us", 0);
    expect("a late copy", ended, Some(110))?;
    nothing_pinned(&device)?;
    buffer.slice_mut::<u8>(BYTES).fill(0x22);
    std::thread::sleep(Duration::from_secs(10).saturating_sub(waited));
    let written = buffer.slice::<u8>(BYTES).iter().filter(|byte| **byte != 0x22).count();
    expect("bytes written after their pages were let go", written, 0)?;
    round(&device, &mut dma(100_000, 1, 1, 0), 6)?;
    nothing_pinned(&device)?;
    Ok(format!("stopped after {:.1} s, nothing written afterwards", waited.as_secs_f64()))
}

/// Checks that an engine that cannot be stopped (`terminating=0`) keeps its pages until the channel
/// is given back.
pub(crate) fn stuck() -> Verdict {
    let device = device(1);
    // A failed copy keeps nothing, even on an engine that cannot be stopped.
    set("fail_every", 1);
    let failed = round(&device, &mut dma(8192, 1, 1, 0), 1);
    set("fail_every", 0);
    fails(failed, 5)?;
    round(&device, &mut dma(8192, 1, 0, 0), 2)?;
    set("delay_us", 500_000);
    let late = round(&device, &mut given_up(8192, 1, 0), 1);
    set("delay_us", 0);
    fails(late, 110)?;
    let kept = device.info()?.quarantined_pages;
    expect("pages were kept", kept > 0, true)?;
    fails(round(&device, &mut dma(64, 1, 1, 0), 1), 16)?;
    let began = Instant::now();
    while device.channel(0)?.late == 0 {
        let is_soon = began.elapsed() < Duration::from_secs(60);
        expect("a late completion within a minute", is_soon, true)?;
        std::thread::sleep(Duration::from_millis(10));
    }
    device.set_policy(Policy::default())?;
    nothing_pinned(&device)?;
    Ok(format!("{kept} pages kept while the engine was late, none afterwards"))
}

pub(crate) fn busy() -> Verdict {
    let device = device(2);
    set("delay_us", 20_000);
    let refused = std::thread::scope(|scope| {
        let copying = scope.spawn(|| {
            round(&device, &mut Copy { timeout_ms: 20_000, ..dma(40 * 4096, 1, 1, 0) }, 1)
        });
        let mut refused = None;
        while !copying.is_finished() {
            if device.info().unwrap().in_flight > 0 {
                refused = errno(device.set_policy(Policy::default()));
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
