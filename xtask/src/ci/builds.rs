use std::fs;

use anyhow::{Context, Result, ensure};
use daqmeter_vm::shell::{Line, StepDone, line, need, ran, root, there};

/// File below `target/ci` with the paths of test programs.
pub(super) const FUSE_TESTS: &str = "fuse.programs";
pub(super) const NEON_TESTS: &str = "neon.programs";
pub(super) const PROMISES: &str = "promises.programs";

/// Checks the format of the workspace and of the package outside of it.
pub(super) fn format() -> Result<StepDone> {
    for package in ["Cargo.toml", "fuzz/Cargo.toml"] {
        line("cargo fmt --all --check --manifest-path").arg(root().join(package)).run()?;
    }
    Ok(StepDone::Ran)
}

/// Builds the benchmark that CI runs, optimised, with the tool's own features, so that shared
/// libraries are compiled once. Clippy type-checks all benchmarks.
pub(super) fn benches() -> Result<StepDone> {
    build_tests(PROMISES, line("cargo bench -p daqmeter-campaign -p daqmeter-cli --bench promises"))
}

pub(super) fn zenoh(more: &str) -> Result<()> {
    line("cargo test --quiet -p daqmeter-readout --features zenoh --test readout").words(more).run()
}

pub(super) fn docs() -> Result<StepDone> {
    let doc = line("cargo doc --workspace --no-deps --document-private-items --quiet");
    ran(doc.env("RUSTDOCFLAGS", "-D warnings").run())
}

/// Builds test programs and leaves their paths for the step that runs them: cargo itself would wait
/// there for builds.
fn build_tests(name: &str, build: Line) -> Result<StepDone> {
    let messages =
        build.words("--no-run --quiet --message-format=json-render-diagnostics").output()?;
    let program = |line: &str| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        message["profile"]["test"].as_bool().filter(|test| *test)?;
        message["executable"].as_str().map(str::to_owned)
    };
    let programs: Vec<String> = messages.lines().filter_map(program).collect();
    ensure!(!programs.is_empty(), "cargo built no program for {name}");
    fs::create_dir_all(root().join("target/ci"))?;
    ran(Ok(fs::write(root().join("target/ci").join(name), programs.join("\n"))?))
}

/// Returns the programs that [`build_tests`] left under that name.
pub(super) fn built_tests(name: &str) -> Result<Vec<String>> {
    let path = root().join("target/ci").join(name);
    let text = fs::read_to_string(&path)
        .with_context(|| format!("{} is missing: build first", path.display()))?;
    Ok(text.lines().map(str::to_owned).collect())
}

pub(super) fn fuse() -> Result<StepDone> {
    build_tests(FUSE_TESTS, line("cargo test --workspace --test fuse"))
}

pub(super) fn neon() -> Result<StepDone> {
    if cfg!(target_arch = "aarch64") {
        return Ok(StepDone::LeftOut(
            "this host is AArch64: cargo test ran them already".to_owned(),
        ));
    }
    need("aarch64-linux-gnu-gcc")?;
    need("qemu-aarch64-static")?;
    let target = "aarch64-unknown-linux-gnu";
    if !there("rustup") || line("rustup target add").arg(target).run().is_err() {
        return Ok(StepDone::LeftOut(format!("rustup cannot add the target {target}")));
    }
    let tests = line("cargo test -p daqmeter-kernels --lib --tests --target").arg(target);
    build_tests(
        NEON_TESTS,
        tests.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc"),
    )
}
