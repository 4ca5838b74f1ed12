//! The Python wheel, and the virtual environment with the tools that build and test it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use daqmeter_vm::shell::{Line, StepDone, install, line, need, ran, root, started, target};

pub fn venv(program: &str) -> PathBuf {
    root().join("target/ci/venv/bin").join(program)
}

fn pip() -> Line {
    started(&venv("pip")).words("install --quiet --disable-pip-version-check")
}

pub(crate) fn wheels() -> PathBuf {
    root().join("target/ci/wheels")
}

pub(crate) fn only_wheel(folder: &Path) -> Result<PathBuf> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let is_wheel = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "whl");
    paths.find(is_wheel).context("maturin made no wheel")
}

pub fn python_tools() -> Result<()> {
    need("python3")?;
    if line("python3 -c").arg("import venv, ensurepip").output().is_err() {
        install("python3-venv")?;
    }
    if !venv("maturin").exists() {
        line("python3 -m venv target/ci/venv").run()?;
        pip().words("--no-compile -r python/tests/requirements.txt").run()?;
    }
    Ok(())
}

pub(crate) fn wheel_into(folder: &Path) -> Result<PathBuf> {
    python_tools()?;
    started(&venv("maturin"))
        .words("build --release --quiet --manifest-path python/Cargo.toml --out")
        .arg(folder)
        .arg("--target-dir")
        .arg(target())
        .run()?;
    only_wheel(folder)
}

pub fn wheel() -> Result<StepDone> {
    let _ = fs::remove_dir_all(wheels());
    let wheel = wheel_into(&wheels())?;
    ran(pip().words("--force-reinstall --no-deps").arg(wheel).run())
}
