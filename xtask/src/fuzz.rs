//! The fuzz targets: built with coverage by stable flags (no nightly toolchain, no cargo-fuzz), and
//! run.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use daqmeter_vm::shell::{line, root, started, target};

/// Returns the host's target triple: flags given with a triple do not reach build scripts.
fn triple() -> Result<String> {
    let version = line("rustc -vV").output()?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc names no host")
}

pub(crate) fn build() -> Result<()> {
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
pub(crate) fn run(seconds: &str, only: &str) -> Result<()> {
    let programs = target().join(triple()?).join("release");
    for name in names()?.iter().filter(|name| name.contains(only)) {
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

/// Returns the names of the targets, which are those of their files.
fn names() -> Result<Vec<String>> {
    let files = fs::read_dir(root().join("fuzz/fuzz_targets"))?;
    let mut paths: Vec<PathBuf> = files.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let name = |path: PathBuf| Some(path.file_stem()?.to_str()?.to_owned());
    Ok(paths.into_iter().filter_map(name).collect())
}
