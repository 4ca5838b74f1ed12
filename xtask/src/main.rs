//! Developers' tasks. `cargo xtask ci` runs what needs root, other packages or time; `cargo test` runs everything else.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a developers' tool talks to the terminal"
)]

mod book;
mod ci;
mod fuzz;
mod hosts;
mod miri;
mod peers;
mod pmu;
mod readout;
mod shell;
mod tidy;
mod vm;

use std::process::ExitCode;

const USAGE: &str = "\
cargo xtask ci [PART]       fmt, clippy, docs, tidy, schema, FUSE, other CPUs, peers, VMs, page, fuzz, survey, reproduce
cargo xtask tidy            the rules of ARCHITECTURE.md that a program can check
cargo xtask schema [--check]  write (or compare) docs/schema/run-record.v1.json
cargo xtask fuzz [SECONDS [NAME]]  each fuzz target, or those with that in their name, for so long [10]
cargo xtask peers           other makers' Etherbone against ours, in network namespaces
cargo xtask published-run   all channels of the published 50 s of read-out data; ci makes two of them
cargo xtask readout         the read-out chain between hosts, in network namespaces
cargo xtask copy-vm         the kernel modules under Debian's kernels in QEMU
cargo xtask copy-vm --static     the patched kernel with static policies, built and booted
cargo xtask copy-vm --versal     the emulated engine of mainline alone
cargo xtask copy-vm --window     the priority policy's window under icount alone
cargo xtask copy-vm --pollution  the whole pollution study under a cache model
cargo xtask pmu-vm [NAME]   the mesh's PMU on emulated registers, under Debian's kernels in QEMU
cargo xtask pmu-vm --record      the same; writes the events that the driver shows into the source
cargo xtask page FILE       open a page in headless Chromium and check that it drew its charts";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["ci"] => ci::all(None),
        ["ci", part] => ci::all(Some(part)),
        ["step", name] => return step(name),
        ["tidy"] => tidy::run(),
        ["schema"] => ci::schema(false),
        ["schema", "--check"] => ci::schema(true),
        ["fuzz"] => fuzz::build().and_then(|()| fuzz::run_all(10, None)),
        ["fuzz", seconds, ref only @ ..] if only.len() < 2 => match seconds.parse() {
            Ok(seconds) => {
                fuzz::build().and_then(|()| fuzz::run_all(seconds, only.first().copied()))
            }
            Err(_) => Err(anyhow::anyhow!("`{seconds}` is not a number of seconds")),
        },
        ["published-run"] => build().and_then(|()| ci::published_run_whole()),
        ["peers"] => build()
            .and_then(|()| peers::prepare())
            .and_then(|()| peers::all()),
        ["readout"] => build().and_then(|()| readout::all()),
        ["copy-vm"] => build()
            .and_then(|()| vm::prepare())
            .and_then(|()| vm::all()),
        ["copy-vm", "--static"] => vm::static_policies(),
        ["copy-vm", "--versal"] => build()
            .and_then(|()| vm::prepare())
            .and_then(|()| vm::versal()),
        ["copy-vm", "--window"] => build()
            .and_then(|()| vm::prepare())
            .and_then(|()| vm::window()),
        ["copy-vm", "--pollution"] => build()
            .and_then(|()| vm::prepare())
            .and_then(|()| vm::pollution(true)),
        ["pmu-vm"] => pmu::all(false, ""),
        ["pmu-vm", "--record"] => pmu::all(true, ""),
        ["pmu-vm", only] => pmu::all(false, only),
        ["page", path] => ci::page(path.as_ref()),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The release build of the tool.
fn build() -> anyhow::Result<()> {
    shell::run("cargo", &["build", "--release", "--quiet"])
}

/// One step of CI by itself; the exit code says whether it was left out.
fn step(name: &str) -> ExitCode {
    let code = ci::one(name);
    ci::leave_cpu_time(name);
    match code {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
