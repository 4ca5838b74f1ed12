//! Limits of pinned memory, and the end of programs.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use daqmeter_sys::memory::{Buffer, Pages};
use daqmeter_sys::uapi::{COPY_DEVICE, Copy, CopyDevice};

use crate::common::{
    Failure, Verdict, device, dma, errno, expect, nothing_pinned, set, set_policy, vmstat,
};

fn again(part: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg(part);
    command
}

/// Returns the device with a policy, and a second handle of its open file for a program to inherit.
fn lent() -> (fs::File, CopyDevice) {
    let file = fs::File::options().read(true).write(true).open(COPY_DEVICE).unwrap();
    let device = CopyDevice::inherited(file.try_clone().unwrap()).unwrap();
    set_policy(&device, 1, 30_000);
    (file, device)
}

/// Runs a program of another user that inherited the device; the script limits locked memory to 64
/// KiB.
pub(crate) fn locked_memory() -> Verdict {
    let (file, device) = lent();
    let output = again("inherited").uid(65_534).gid(65_534).stdin(file).output().unwrap();
    let found = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    expect("errors of 1 and 16 pages by engine, 16 by CPU", found.as_str(), "None Some(12) None")?;
    nothing_pinned(&device)?;
    let mut buffer = Buffer::new(65_536, Pages::Base).unwrap();
    let privileged = errno(device.copy(&mut dma(65_536, 1, 0, 0), &mut buffer, 0));
    expect("the same by root", privileged, None)?;
    Ok("what is beyond the limit is refused, and nothing stays accounted".to_owned())
}

fn of_stdin() -> CopyDevice {
    let device = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    CopyDevice::inherited(device.into()).unwrap()
}

pub(crate) fn inherited() {
    let device = of_stdin();
    let mut buffer = Buffer::new(1 << 20, Pages::Base).unwrap();
    let mut copy = |by, pages: u64| {
        let mut request = Copy { by, ..dma(pages * 4096, 1, 0, 0) };
        errno(device.copy(&mut request, &mut buffer, 0))
    };
    // The first copy's pinned pages are free again.
    copy(1, 1);
    println!("{:?} {:?} {:?}", copy(1, 1), copy(1, 17), copy(0, 17));
}

pub(crate) fn killed() -> Verdict {
    let (file, device) = lent();
    set("starving", 1);
    let mut child = again("starved").stdin(file).spawn().unwrap();
    let ended = begun(&device).and_then(|()| {
        child.kill().unwrap();
        ends_within(&mut child, Duration::from_secs(20))
    });
    set("starving", 0);
    child.wait().unwrap();
    let took = ended?;
    nothing_pinned(&device)?;
    Ok(format!("ended {:.1} s after it was killed", took.as_secs_f64()))
}

fn begun(device: &CopyDevice) -> Result<(), Failure> {
    let began = Instant::now();
    while device.info().unwrap().in_flight == 0 {
        expect("a copy within a minute", began.elapsed() < Duration::from_secs(60), true)?;
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn ends_within(child: &mut Child, limit: Duration) -> Result<Duration, Failure> {
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        expect("killed, but it goes on", began.elapsed() < limit, true)?;
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(began.elapsed())
}

pub(crate) fn starved() {
    let device = of_stdin();
    let mut buffer = Buffer::new(4096, Pages::Base).unwrap();
    let mut request = Copy { timeout_ms: 120_000, ..dma(4096, 1, 0, 0) };
    let ended = errno(device.copy(&mut request, &mut buffer, 0));
    println!("the starved copy ended with {ended:?}");
}

/// Checks that pages of movable memory are moved out of it before an engine gets them, as every
/// long-term pin does.
pub(crate) fn kept() -> Verdict {
    const PAGES: u64 = 512;
    let device = device(1);
    let bytes = usize::try_from(PAGES * 4096).unwrap();
    let mut buffer = Buffer::new(bytes, Pages::Base).unwrap();
    buffer.slice_mut::<u8>(bytes).fill(1);
    let before = vmstat("pgmigrate_success");
    let ended = errno(device.copy(&mut dma(bytes as u64, 1, 0, 0), &mut buffer, 0));
    expect("a copy", ended, None)?;
    let moved = vmstat("pgmigrate_success") - before;
    expect("pages were moved out of movable memory", moved > 0, true)?;
    nothing_pinned(&device)?;
    Ok(format!("{moved} of {PAGES} pages were moved out of movable memory"))
}
