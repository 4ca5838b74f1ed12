//! A step of CI and its files.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use daqmeter_vm::shell::{StepDone, root};

use super::schedule::{Load, Order};

/// Records of a survey in the checkout.
pub(super) const PUBLISHED: &str = "bench/record/genoa-vm-2cpu/2026-11-21.jsonl";

pub(crate) struct Step {
    pub(super) order: Order<'static>,
    pub(super) run: fn() -> Result<StepDone>,
}

pub(super) const fn step(
    name: &'static str,
    load: Load,
    after: &'static [&'static str],
    run: fn() -> Result<StepDone>,
) -> Step {
    Step { order: Order { name, load, after }, run }
}

pub(super) fn place(step: &str, kind: &str) -> PathBuf {
    let name = step.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    root().join("target/ci/log").join(format!("{name}.{kind}"))
}

/// Path of a file below `target/ci`, which does not exist yet.
pub(super) fn scratch(name: &str) -> Result<String> {
    let directory = root().join("target/ci");
    fs::create_dir_all(&directory)?;
    let path = directory.join(name);
    if path.exists() {
        fs::remove_file(&path).with_context(|| path.display().to_string())?;
    }
    Ok(path.display().to_string())
}
