//! Runs as root in the virtual machine of `cargo xtask copy-vm`: failing engines, invalid requests
//! and a tracer against known calls. Prints a line for each case; exits 1 when one failed.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test program of the virtual machine"
)]

mod common;
mod copies;
mod faults;
mod limits;
mod owned;
mod priority;
mod trace;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use common::{Verdict, expect};
use daqmeter_sys::uapi::{COPY_DEVICE, CopyDevice};

type Case = (&'static str, fn() -> Verdict);

const CASES: &[Case] = &[
    ("refusals", copies::refusals),
    ("both", copies::both),
    ("unordered", || copies::moves(500, 3, &[0, 1])),
    ("small-pool", || copies::moves(60, 2, &[0, 1])),
    ("racing", copies::racing),
    ("failing", faults::failing),
    ("flipping", faults::flipping),
    ("losing", faults::losing),
    ("late", faults::late),
    ("stuck", faults::stuck),
    ("busy", faults::busy),
    ("owned", owned::owned),
    ("private", owned::private),
    ("killed", limits::killed),
    ("locked-memory", limits::locked_memory),
    ("kept", limits::kept),
    ("priority", priority::priority),
    ("trace", trace::trace),
    ("trace-full", trace::trace_full),
    ("trace-memory", trace::trace_memory),
    ("clean", clean),
];

/// Parts that a case starts as a child of this program.
const PARTS: &[(&str, fn())] = &[
    ("known-calls", trace::known_calls),
    ("inherited", limits::inherited),
    ("starved", limits::starved),
    ("hold", hold),
];

fn main() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_default();
    if let Some((_, part)) = PARTS.iter().find(|(known, _)| *known == name) {
        part();
        return ExitCode::SUCCESS;
    }
    let Some((_, case)) = CASES.iter().find(|(known, _)| *known == name) else {
        return ExitCode::from(2);
    };
    let panicked = |_| Err("it panicked; what it said is above".into());
    match std::panic::catch_unwind(case).unwrap_or_else(panicked) {
        Ok(found) => {
            println!("GUEST ok {name}: {found}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            println!("GUEST failed {name}: {why}");
            ExitCode::FAILURE
        }
    }
}

fn hold() {
    let _device = CopyDevice::open(Path::new(COPY_DEVICE)).unwrap();
    loop {
        std::thread::park();
    }
}

/// Checks after unloading that no probe is left and nothing is pinned.
fn clean() -> Verdict {
    let probes = fs::read_to_string("/sys/kernel/debug/kprobes/list").unwrap_or_default();
    expect("probes left", probes.trim(), "")?;
    let modules = fs::read_to_string("/proc/modules").unwrap();
    let left = modules.contains("daqmeter") || modules.contains("softdma");
    expect("modules left", left, false)?;
    Ok("no probe and no module left".to_owned())
}
