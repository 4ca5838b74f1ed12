//! Developers' tasks. `cargo xtask ci` runs the checks that need root, other packages or time;
//! `cargo test` runs the others.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a developers' tool talks to the terminal"
)]

mod ci;
mod links;
mod page;
mod readme;
mod schema;
mod study;
mod tidy;

use std::process::ExitCode;

use daqmeter_vm::shell::{LeftOut, packages};

const USAGE: &str = "\
cargo xtask ci [PART]       the steps of CI with PART in their name, and what they need (xtask/src/ci/steps.toml)
cargo xtask dist            what people install: static binary, Debian package, wheel
cargo xtask tidy            the rules of ARCHITECTURE.md that a program can check
cargo xtask schema          write docs/schema
FUZZ_SECONDS=60 FUZZ_NAME=plan cargo xtask ci fuzz  fuzz targets with this in their name, for this time each
cargo xtask peers           other makers' Etherbone against ours, in network namespaces
cargo xtask readout         the read-out chain between hosts, in network namespaces
cargo xtask paths           a path that ends on another host, in network namespaces
cargo xtask launch          what `daqmeter hosts --print` prints, in network namespaces: Slurm, ClusterShell, Ansible
cargo xtask copy-vm [NAME]  the kernel modules under Debian's kernels in QEMU; machines with NAME in their name
cargo xtask copy-vm --static     the patched kernel with static policies, built and booted
cargo xtask copy-vm --pollution  the whole pollution study under a cache model
cargo xtask pmu-vm [NAME]   the mesh's PMU on emulated registers, under Debian's kernels in QEMU
cargo xtask faults-vm       a disk that becomes slower, a network that loses packets, in QEMU
cargo xtask losses-vm       what `daqmeter watch` says of losses, against dropwatch, under Debian's kernels in QEMU
cargo xtask topology-vm     a short survey on a machine of several sockets, threads, NUMA nodes, in QEMU

Parts of CI's steps:
cargo xtask packages | fetch | prepare MACHINES | boot MACHINES [NAME]
cargo xtask package         the Debian package of the release build, and its trial
cargo xtask readme          runs the commands of README.md with the release build
cargo xtask study NAME      repeats a study until each row has its time
cargo xtask page FILE       opens a page in headless Chromium and checks that it drew its charts
cargo xtask links FOLDER    checks the links of a documentation site";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["ci"] => ci::run(""),
        ["ci", part] => ci::run(part),
        ["dist"] => ci::run("Python: wheel").and_then(|()| daqmeter_dist::all()),
        ["tidy"] => tidy::run(),
        ["schema"] => schema::write(),
        ["packages"] => packages(),
        ["fetch"] => daqmeter_vm::fetch(),
        ["prepare", name] => daqmeter_vm::prepare(name),
        ["boot", name] => daqmeter_vm::boot(name, ""),
        ["boot", name, only] => daqmeter_vm::boot(name, only),
        ["package"] => daqmeter_dist::package(),
        ["study", name] => study::repeat(name),
        ["readme"] => readme::run(),
        ["page", path] => page::check(path.as_ref()),
        ["links", folder] => links::check(folder.as_ref()),
        [
            name @ ("copy-vm" | "pmu-vm" | "topology-vm" | "faults-vm" | "losses-vm" | "peers"
            | "readout" | "paths" | "launch"),
        ] => daqmeter_vm::run(name, ""),
        [name @ ("copy-vm" | "pmu-vm"), only] => daqmeter_vm::run(name, only),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            let is_left_out = error.is::<LeftOut>();
            if is_left_out { ExitCode::from(ci::LEFT_OUT) } else { ExitCode::FAILURE }
        }
    }
}
