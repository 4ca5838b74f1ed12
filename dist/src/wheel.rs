//! The Python wheel, and the virtual environment with the tools that build and test it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use daqmeter_vm::shell::{Line, line, renew, scratch, started, target};

fn venv(program: &str) -> PathBuf {
    scratch("venv/bin").join(program)
}

fn pip() -> Line {
    started(&venv("pip")).words("install --quiet --disable-pip-version-check")
}

pub fn python_tools() -> Result<()> {
    if venv("maturin").exists() {
        return Ok(());
    }
    line("python3 -m venv target/ci/venv").run()?;
    pip().words("--no-compile -r python/tests/requirements.txt").run()
}

/// Builds the wheel into a folder; returns its path.
pub(super) fn wheel_into(folder: &Path) -> Result<PathBuf> {
    python_tools()?;
    started(&venv("maturin"))
        .words("build --release --quiet --manifest-path python/Cargo.toml --out")
        .arg(folder)
        .arg("--target-dir")
        .arg(target())
        .run()?;
    let mut paths = fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path()));
    let is_wheel = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "whl");
    paths.find(is_wheel).context("maturin made no wheel")
}

/// Builds the wheel and installs it in the environment of its tests.
pub fn wheel() -> Result<()> {
    let folder = scratch("wheels");
    renew(&folder)?;
    pip().words("--force-reinstall --no-deps").arg(wheel_into(&folder)?).run()
}
