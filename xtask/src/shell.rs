//! Running other programs, and installing them where they are missing.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The root of the checkout.
pub(crate) fn root() -> PathBuf {
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().map(PathBuf::from).unwrap_or(manifest)
}

/// Runs a command in the root; its output goes through.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<()> {
    run_with(program, arguments, &[])
}

/// Runs a command in the root with environment variables.
pub(crate) fn run_with(
    program: &str,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> Result<()> {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .current_dir(root())
        .envs(environment.iter().copied());
    let status = command
        .status()
        .with_context(|| format!("cannot start {program}"))?;
    if status.success() {
        Ok(())
    } else {
        bail!("{program} {} ended with {status}", arguments.join(" "))
    }
}

/// Runs a command and returns what it printed.
pub(crate) fn output(program: &str, arguments: &[&str]) -> Result<String> {
    output_with(program, arguments, &[])
}

/// The same with environment variables.
pub(crate) fn output_with(
    program: &str,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(root())
        .envs(environment.iter().copied())
        .output();
    let output = output.with_context(|| format!("cannot start {program}"))?;
    if !output.status.success() {
        bail!(
            "{program} ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Tries up to three times what depends on the time of a shared machine or on other makers' programs: a hypervisor that takes the
/// CPU away for a while is not our fault. Every try that did not pass is said; a defect does not pass in any.
pub(crate) fn tried<T>(mut once: impl FnMut() -> Result<T>) -> Result<T> {
    const TRIES: u32 = 3;
    for attempt in 1..TRIES {
        match once() {
            Ok(done) => return Ok(done),
            Err(error) => println!("!!! try {attempt} of {TRIES} did not pass: {error:#}"),
        }
    }
    once()
}

/// True when the program can be started.
pub(crate) fn there(program: &str) -> bool {
    Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .output()
        .is_ok_and(|output| output.status.success())
}

/// Installs Debian packages unless the program that they bring is there.
pub(crate) fn need(program: &str, packages: &[&str]) -> Result<()> {
    if there(program) {
        return Ok(());
    }
    println!("installing {} for {program}", packages.join(" "));
    let environment = [("DEBIAN_FRONTEND", "noninteractive")];
    run_with("apt-get", &["update", "-qq"], &environment)
        .and_then(|()| {
            run_with(
                "apt-get",
                &[
                    &["install", "-y", "-qq", "--no-install-recommends"],
                    packages,
                ]
                .concat(),
                &environment,
            )
        })
        .with_context(|| {
            format!(
                "{program} is missing and cannot be installed; install {} by hand",
                packages.join(" ")
            )
        })
}

/// The release build of the tool; a step that runs it comes after the step that builds it.
pub(crate) fn program() -> String {
    root().join("target/release/daqmeter").display().to_string()
}

/// Runs the tool.
pub(crate) fn daqmeter(arguments: &[&str]) -> Result<()> {
    run(&program(), arguments)
}
