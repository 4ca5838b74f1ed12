//! The window of the priority policy.

use std::fs;
use std::time::{Duration, Instant};

use daqmeter_sys::memory::{Buffer, Pages};
use daqmeter_sys::uapi::CopyDevice;

use crate::common::{Verdict, device, dma, nothing_pinned, set_policy};

struct Second {
    high_ns: f64,
    low_ns: f64,
    kib: Vec<u64>,
    text: String,
}

const PRIORITY: u32 = 3;

/// Checks the window's share and the channels' shares. The scheduler affects shares and times, so
/// there are up to three measurements; each refused one is printed.
pub(crate) fn priority() -> Verdict {
    let device = device(PRIORITY);
    // Without icount an emulator's times are not reliable; only the accounts are checked.
    let exact = fs::read_to_string("/proc/cmdline").unwrap().contains("daqmeter.icount");
    let judged = || {
        if exact { exactly(&device) } else { one_second(&device).text() }
    };
    for attempt in 1..3 {
        match judged() {
            Ok(found) => return nothing_pinned(&device).map(|()| found),
            Err(why) => println!("GUEST measurement {attempt} of 3 refused: {why}"),
        }
    }
    let found = judged()?;
    nothing_pinned(&device).map(|()| found)
}

impl Second {
    fn text(self) -> Verdict {
        if self.kib.contains(&0) {
            return Err(format!("a channel got nothing: {}", self.text).into());
        }
        Ok(self.text)
    }
}

fn one_second(device: &CopyDevice) -> Second {
    let channels = device.info().unwrap().channels;
    let (before, kib_before) = (device.info().unwrap(), kib(device));
    let together = std::sync::Barrier::new(channels as usize);
    std::thread::scope(|scope| {
        for channel in 0..channels {
            let together = &together;
            scope.spawn(move || {
                together.wait();
                copies_within(device, channel, Duration::from_secs(1))
            });
        }
    });
    let after = device.info().unwrap();
    let windows = (after.gate_windows - before.gate_windows).max(1);
    let high_ns = (after.gate_high_ns - before.gate_high_ns) as f64 / windows as f64;
    let low_ns = (after.gate_low_ns - before.gate_low_ns) as f64 / windows as f64;
    let kib: Vec<u64> =
        kib(device).iter().zip(kib_before).map(|(after, before)| after - before).collect();
    let text = format!(
        "{windows} windows, high {high_ns:.0} ns, low {low_ns:.0} ns; KiB by channel {kib:?}"
    );
    Second { high_ns, low_ns, kib, text }
}

fn kib(device: &CopyDevice) -> Vec<u64> {
    let channels = 0..device.info().unwrap().channels;
    channels.map(|at| device.channel(at).unwrap().bytes >> 10).collect()
}

fn copies_within(device: &CopyDevice, channel: u32, time: Duration) -> u32 {
    let mut buffer = Buffer::new(65_536, Pages::Base).unwrap();
    let (begin, mut copies) = (Instant::now(), 0);
    while begin.elapsed() < time {
        device.copy(&mut dma(65_536, 1, 1, channel), &mut buffer, 0).unwrap();
        copies += 1;
    }
    copies
}

/// Checks under icount that the phases have the requested lengths and that the gate holds a low
/// channel back.
fn exactly(device: &CopyDevice) -> Verdict {
    let second = one_second(device);
    let near = |found: f64, wanted: f64| (found / wanted - 1.0).abs() < 0.05;
    if !near(second.high_ns, 30_000.0) || !near(second.low_ns, 60_000.0) {
        return Err(format!("30000 and 60000 ns were asked for: {}", second.text).into());
    }
    let text = second.text()?;
    // The scheduler on one CPU decides the shares of concurrent channels, so each runs alone. Each
    // quantum holds a low channel back, and never a high one. The engine's thread shares the CPU
    // and finishes queued work while the gate is shut. A short quantum may therefore cost nothing:
    // here it is two thirds of the window.
    set_policy(device, PRIORITY, 60_000);
    let [high, low] = [0, 1].map(|at| copies_within(device, at, Duration::from_millis(500)));
    set_policy(device, PRIORITY, 30_000);
    let text = format!("{text}; alone in 500 ms, 60 us of 90: high {high} copies, low {low}");
    if f64::from(low) > 0.8 * f64::from(high) {
        return Err(format!("the gate held nothing back: {text}").into());
    }
    Ok(text)
}
