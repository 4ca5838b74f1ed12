//! The fuzz targets: built with coverage by stable flags (no nightly toolchain, no cargo-fuzz), and
//! run.

use std::fs;

use anyhow::{Context, Result};

use daqmeter_vm::shell::{line, need, root, started, target};

/// Seconds for each target in CI.
pub(crate) const CI_SECONDS: u64 = 6;

const FUZZ_TARGETS: [&str; 16] = [
    "record_line",
    "units",
    "profile",
    "eb_wire",
    "eb_slave",
    "eb_client",
    "eb_text",
    "felix",
    "felix_page",
    "readout_check",
    "readout_scenario",
    "copy_trace",
    "copy_files",
    "pmu_text",
    "plan_open",
    "path_receiver",
];

/// Returns the host's target triple: flags given with a triple do not reach build scripts.
fn triple() -> Result<String> {
    let version = line("rustc -vV").output()?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc names no host")
}

pub(crate) fn build() -> Result<()> {
    need("g++")?;
    let flags = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
                 -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 -Cdebug-assertions";
    line("cargo build --release --manifest-path fuzz/Cargo.toml --target")
        .arg(triple()?)
        // The folder is that of the other builds: macros and build scripts are compiled once.
        .arg("--target-dir")
        .arg(target())
        .env("RUSTFLAGS", flags)
        .run()
}

/// Runs each target, or those with `only` in their name, for the given time.
pub(crate) fn run_all(seconds: u64, only: Option<&str>) -> Result<()> {
    let programs = target().join(triple()?).join("release");
    for name in FUZZ_TARGETS.iter().filter(|name| only.is_none_or(|only| name.contains(only))) {
        let corpus = root().join("fuzz/corpus").join(name);
        fs::create_dir_all(&corpus)?;
        // Earlier findings, and any initial texts.
        let seeds = (*name == "plan_open").then(|| root().join("plans"));
        started(&programs.join(name))
            .arg(&corpus)
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-artifact_prefix={}/", root().join("fuzz").display()))
            .words("-timeout=5 -rss_limit_mb=2048 -verbosity=0 -print_final_stats=1")
            .args(seeds)
            .run()
            .with_context(|| format!("fuzz target {name}"))?;
    }
    Ok(())
}
