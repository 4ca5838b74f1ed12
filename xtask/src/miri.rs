//! Tests under Miri, for undefined behaviour, data races and leaks that a CPU forgives. Only short
//! tests that Miri can run are chosen.

use anyhow::Result;
use daqmeter_vm::shell::{StepDone, line};

/// Crates and their chosen tests. Left out are those over all codes or all lengths, system calls
/// that Miri does not know, and instruction sets: Miri runs the portable kernels.
const CHOSEN: &[(&str, &str)] = &[
    ("daqmeter-record", "workload ledger units"),
    ("daqmeter-stats", "quantiles_of not_a_number rows_that_are_short"),
    ("daqmeter-wire", "felix::page felix::block felix::encoder::tests::sequence etherbone::record"),
    ("daqmeter-kernels", "stream"),
    (
        "daqmeter-sys",
        "ring::tests::equal ring::tests::two_spans ring::tests::a_wrap ring::tests::a_card_that_over",
    ),
];

pub(crate) fn run() -> Result<StepDone> {
    let install = "rustup component add --toolchain nightly miri rust-src";
    let version = line("cargo +nightly miri --version").output();
    if version.or_else(|_| line(install).output()).is_err() {
        let how = "rustup toolchain install nightly --component miri --component rust-src";
        return Ok(StepDone::LeftOut(format!("no Miri here, and it cannot be installed ({how})")));
    }
    for (package, tests) in CHOSEN {
        line("cargo +nightly miri test --quiet --lib --package")
            .arg(package)
            .arg("--")
            .words(tests)
            // Files of /proc and the clock are the host's.
            .env("MIRIFLAGS", "-Zmiri-disable-isolation")
            // One case under Miri takes as long as a thousand cases on a CPU.
            .env("PROPTEST_CASES", "2")
            .run()?;
    }
    Ok(StepDone::Ran)
}
