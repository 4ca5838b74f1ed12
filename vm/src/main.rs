//! Machines and hosts that exist only during their tests; see [`USAGE`]. `cargo xtask copy-vm` and
//! similar tasks build and start this program.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a developers' tool talks to the terminal"
)]

mod copy;
mod debian;
mod files;
mod hosts;
mod mesh;
mod topology;

use std::process::ExitCode;

use anyhow::Result;
use copy::Profile;
use hosts::{namespaces, paths, peers, readout};
use shell::line;

const USAGE: &str = "\
daqmeter-vm copy-vm [--dev] [NAME]  the kernel modules under Debian's kernels; machines with NAME in their name
daqmeter-vm copy-vm [--dev] --pollution  the whole pollution study under a cache model
daqmeter-vm copy-vm [--dev] --figures  all 50 figures of the study of copies: this host, the tracer, the cache model
daqmeter-vm copy-vm [--dev] --static  the patched kernel with static policies, built and booted
daqmeter-vm pmu-vm [NAME]           the mesh's PMU on emulated registers, under Debian's kernels
daqmeter-vm pmu-vm --record [NAME]  the same; writes the events that the driver shows into the source
daqmeter-vm topology-vm [NAME]      a short survey on machines of several sockets, threads and NUMA nodes
daqmeter-vm peers                   other makers' Etherbone against ours, in network namespaces
daqmeter-vm readout                 the read-out chain between hosts, in network namespaces
daqmeter-vm paths                   a path that ends on another host, in network namespaces

copy-vm --dev     run programs as `cargo test` builds them: quick to build, slower in the machine

For each of them:
--fetch           only fetch what the machines need
--prepare         only fetch and build what the machines need
--boot [NAME]     only run what was prepared
--missing         print why it cannot be run here, if it cannot";

struct Verb<'a> {
    missing: fn() -> Option<String>,
    fetch: &'a dyn Fn(&str) -> Result<()>,
    prepare: &'a dyn Fn(&str) -> Result<()>,
    /// Runs the machines with that in their name, after `prepare`.
    boot: &'a dyn Fn(&str) -> Result<()>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["copy-vm", "--dev", ref rest @ ..] => copying(Profile::Dev, rest),
        ["copy-vm", ref rest @ ..] => copying(Profile::Release, rest),
        ["pmu-vm", ref rest @ ..] => counting(rest),
        ["topology-vm", ref rest @ ..] => Verb {
            missing: topology::missing,
            fetch: &|_| topology::fetch(),
            prepare: &|_| topology::prepare(),
            boot: &topology::boot,
        }
        .run(rest),
        ["peers", ref rest @ ..] => namespace(peers::prepare, peers::all, rest),
        ["readout", ref rest @ ..] => namespace(|| Ok(()), readout::all, rest),
        ["paths", ref rest @ ..] => namespace(|| Ok(()), paths::all, rest),
        _ => None,
    };
    match done {
        Some(Ok(())) => ExitCode::SUCCESS,
        Some(Err(error)) => {
            eprintln!("daqmeter-vm: {error:#}");
            ExitCode::FAILURE
        }
        None => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

impl Verb<'_> {
    fn run(&self, arguments: &[&str]) -> Option<Result<()>> {
        let whole = |only: &str| (self.prepare)(only).and_then(|()| (self.boot)(only));
        Some(match *arguments {
            [] => whole(""),
            ["--fetch"] => (self.fetch)(""),
            ["--prepare"] => (self.prepare)(""),
            ["--boot"] => (self.boot)(""),
            ["--boot", only] => (self.boot)(only),
            ["--missing"] => {
                (self.missing)().iter().for_each(|why| println!("{why}"));
                Ok(())
            }
            [only] if !only.starts_with('-') => whole(only),
            _ => return None,
        })
    }
}

fn copying(profile: Profile, arguments: &[&str]) -> Option<Result<()>> {
    let prepare = |only: &str| copy::prepare(profile, only);
    match *arguments {
        ["--pollution"] => Some(prepare("cache").and_then(|()| copy::pollution(profile, true))),
        ["--figures"] => Some(prepare("cache").and_then(|()| copy::figures(profile))),
        ["--static"] => Some(copy::static_policies(profile)),
        _ => {
            let boot = |only: &str| copy::boot(profile, only);
            Verb { missing: copy::missing, fetch: &copy::fetch, prepare: &prepare, boot: &boot }
                .run(arguments)
        }
    }
}

fn counting(arguments: &[&str]) -> Option<Result<()>> {
    let record = |only: &str| mesh::prepare().and_then(|()| mesh::boot(true, only));
    let boot = |only: &str| mesh::boot(false, only);
    match *arguments {
        ["--record"] => Some(record("")),
        ["--record", only] => Some(record(only)),
        _ => Verb {
            missing: mesh::missing,
            fetch: &|_| mesh::fetch(),
            prepare: &|_| mesh::prepare(),
            boot: &boot,
        }
        .run(arguments),
    }
}

/// Runs between network namespaces, on the release build of the tool.
fn namespace(
    fetch: fn() -> Result<()>,
    all: fn() -> Result<()>,
    arguments: &[&str],
) -> Option<Result<()>> {
    let build = || line("cargo build --release --quiet").run();
    Verb {
        missing: namespaces::missing,
        fetch: &|_| fetch(),
        prepare: &|_| build().and_then(|()| fetch()),
        boot: &|_| all(),
    }
    .run(arguments)
}
