//! Developers' tasks. `cargo xtask ci` runs the checks that need root, other packages or time;
//! `cargo test` runs the others.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a developers' tool talks to the terminal"
)]

mod book;
mod ci;
mod fuzz;
mod miri;
mod published;
mod schema;
mod tidy;

use std::process::ExitCode;

use anyhow::{Context, Result};
use daqmeter_vm::shell::line;

const USAGE: &str = "\
cargo xtask ci [PART]       fmt, clippy, docs, tidy, schema, FUSE, other CPUs, peers, VMs, page, fuzz, survey, reproduce
cargo xtask dist            what people install: static binary, Debian package, wheel; each tried
cargo xtask tidy            the rules of ARCHITECTURE.md that a program can check
cargo xtask schema [--check]  write (or compare) docs/schema
cargo xtask fuzz [SECONDS [NAME]]  each fuzz target, or those with that in their name, for so long [10]
cargo xtask peers           other makers' Etherbone against ours, in network namespaces
cargo xtask published-run   all channels of the published 50 s of read-out data; ci makes two of them
cargo xtask readout         the read-out chain between hosts, in network namespaces
cargo xtask paths           a path that ends on another host, in network namespaces
cargo xtask copy-vm [NAME]  the kernel modules under Debian's kernels in QEMU; machines with NAME in their name
cargo xtask copy-vm --static     the patched kernel with static policies, built and booted
cargo xtask copy-vm --pollution  the whole pollution study under a cache model
cargo xtask figures         all 50 figures of the study of copies: this host, the tracer and the cache model in QEMU
cargo xtask pmu-vm [NAME]   the mesh's PMU on emulated registers, under Debian's kernels in QEMU
cargo xtask pmu-vm --record  the same; writes the events that the driver shows into the source
cargo xtask topology-vm [NAME]  a short survey on machines of several sockets, threads and NUMA nodes, in QEMU
cargo xtask page FILE       open a page in headless Chromium and check that it drew its charts";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["ci"] => ci::all(None),
        ["ci", part] => ci::all(Some(part)),
        ["step", name] => return exit(ci::one(name)),
        ["dist"] => daqmeter_dist::all(),
        ["tidy"] => tidy::run(),
        ["schema"] => schema::write(),
        ["schema", "--check"] => schema::check(),
        ["fuzz", ref rest @ ..] if rest.len() <= 2 => fuzz(rest),
        ["published-run"] => build().and_then(|()| published::all_channels()),
        ["copy-vm" | "pmu-vm" | "topology-vm" | "peers" | "readout" | "paths", ..] => {
            daqmeter_vm::run(&arguments)
        }
        ["figures"] => daqmeter_vm::run(&["copy-vm", "--figures"]),
        ["page", path] => ci::page(path.as_ref()),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    exit(done.map(|()| 0))
}

fn exit(done: Result<u8>) -> ExitCode {
    done.map(ExitCode::from).unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::FAILURE
    })
}

fn build() -> Result<()> {
    line("cargo build --release --quiet").run()
}

fn fuzz(arguments: &[&str]) -> Result<()> {
    let seconds = arguments.first().unwrap_or(&"10");
    let seconds =
        seconds.parse().with_context(|| format!("`{seconds}` is not a number of seconds"))?;
    fuzz::build()?;
    fuzz::run_all(seconds, arguments.get(1).copied())
}
