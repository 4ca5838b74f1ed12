//! Shared parts of the cases: a device under a policy, a compared copy, pins.

use std::fs;
use std::path::Path;

use daqmeter_sys::SysError;
use daqmeter_sys::memory::{Buffer, Pages};
use daqmeter_sys::uapi::{COPY_DEVICE, Copy, CopyDevice, Policy};

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type Verdict = Result<String, Failure>;

pub(crate) fn device(policy: u32) -> CopyDevice {
    let device = CopyDevice::open(Path::new(COPY_DEVICE)).unwrap();
    set_policy(&device, policy, 30_000);
    device
}

/// Sets a policy whose first channel owns the engine for the quantum in each 90 us.
pub(crate) fn set_policy(device: &CopyDevice, policy: u32, quantum_ns: u64) {
    let policy =
        Policy { policy, high_channels: 1, quantum_ns, window_ns: 90_000, ..Policy::default() };
    device.set_policy(policy).unwrap();
}

pub(crate) fn dma(bytes: u64, direction: u32, completion: u32, channel: u32) -> Copy {
    Copy {
        by: 1,
        direction,
        completion,
        bytes,
        channel,
        // Long, because an emulated CPU may stall for a while.
        timeout_ms: 5000,
        ..Copy::default()
    }
}

pub(crate) fn given_up(bytes: u64, completion: u32, channel: u32) -> Copy {
    Copy { timeout_ms: 300, ..dma(bytes, 1, completion, channel) }
}

pub(crate) fn set(parameter: &str, value: u32) {
    fs::write(format!("/sys/module/softdma/parameters/{parameter}"), value.to_string()).unwrap();
}

pub(crate) fn expect<T: PartialEq + std::fmt::Debug>(
    what: &str,
    found: T,
    wanted: T,
) -> Result<(), Failure> {
    if found == wanted {
        return Ok(());
    }
    Err(format!("{what}: {found:?}, expected {wanted:?}").into())
}

/// Checks by the module's and the kernel's accounts that no page stays pinned.
pub(crate) fn nothing_pinned(device: &CopyDevice) -> Result<(), Failure> {
    let info = device.info()?;
    expect("pinned pages", info.pinned_pages, 0)?;
    expect("quarantined pages", info.quarantined_pages, 0)?;
    let acquired = vmstat("nr_foll_pin_acquired");
    expect("pins acquired and released", acquired, vmstat("nr_foll_pin_released"))
}

pub(crate) fn vmstat(name: &str) -> u64 {
    // The kernel keeps differences per CPU; this folds them into the sums.
    fs::write("/proc/sys/vm/stat_refresh", "1").unwrap();
    let all = fs::read_to_string("/proc/vmstat").unwrap();
    let line = all.lines().find(|line| line.starts_with(name)).unwrap();
    line.split(' ').nth(1).unwrap().parse().unwrap()
}

pub(crate) fn errno<T>(done: Result<T, SysError>) -> Option<i32> {
    done.err().and_then(|error| error.errno())
}

pub(crate) fn pattern(bytes: usize, seed: u8) -> Vec<u8> {
    (0..=250_u8).cycle().map(|byte| byte.wrapping_mul(3) ^ seed).take(bytes).collect()
}

/// Requires that a copy ends with this error.
pub(crate) fn fails(done: Result<(), Failure>, errno: i32) -> Result<(), Failure> {
    let found = done.err().and_then(|failure| failure.downcast::<SysError>().ok()?.errno());
    expect("the error of a copy", found, Some(errno))
}

pub(crate) fn round(device: &CopyDevice, request: &mut Copy, seed: u8) -> Result<(), Failure> {
    let bytes = usize::try_from(request.bytes).unwrap();
    let mut buffer = Buffer::new(bytes + 8192, Pages::Base).unwrap();
    let pattern = pattern(bytes, seed);
    buffer.slice_mut::<u8>(bytes).copy_from_slice(&pattern);
    let mut by_cpu = Copy { by: 0, direction: 0, ..*request };
    device.copy(&mut by_cpu, &mut buffer, 0)?;
    buffer.slice_mut::<u8>(bytes + 8192).fill(0xA5);
    let offset = 4093;
    request.direction = 1;
    device.copy(request, &mut buffer, offset)?;
    let whole = buffer.slice::<u8>(bytes + 8192);
    if whole[offset..offset + bytes] != pattern {
        let at = (0..bytes).find(|at| whole[offset + at] != pattern[*at]).unwrap();
        return Err(format!("byte {at} of {bytes} is wrong").into());
    }
    let outside = whole[..offset].iter().chain(&whole[offset + bytes..]);
    if outside.into_iter().any(|byte| *byte != 0xA5) {
        return Err("bytes outside were written".into());
    }
    Ok(())
}
