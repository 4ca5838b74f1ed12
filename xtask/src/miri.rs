//! Tests under Miri: undefined behaviour, data races and leaks that a CPU forgives. Only what it can run, and what ends soon.

use anyhow::Result;

use crate::ci::{Done, ran};
use crate::shell::{run as command, run_with, there};

/// Properties are tried so often: each case takes Miri as long as a thousand of them take a CPU.
const PROPTEST_CASES: &str = "2";

/// Crates, and which of their tests. Left out are those over all codes or all lengths, system calls that Miri does not know, and
/// instruction sets: Miri runs the portable kernels.
const CHOSEN: &[(&str, &[&str])] = &[
    ("daqmeter-record", &["workload", "ledger", "units"]),
    (
        "daqmeter-stats",
        &["quantiles_of", "not_a_number", "rows_that_are_short"],
    ),
    (
        "daqmeter-wire",
        &[
            "felix::page",
            "felix::block",
            "felix::encoder::tests::sequence",
            "etherbone::record",
        ],
    ),
    ("daqmeter-kernels", &["stream"]),
    (
        "daqmeter-sys",
        &[
            "ring::tests::equal",
            "ring::tests::two_spans",
            "ring::tests::a_wrap",
            "ring::tests::a_card_that_over",
        ],
    ),
];

pub(crate) fn run() -> Result<Done> {
    let installed = there("rustup") && command("cargo", &["+nightly", "miri", "--version"]).is_ok();
    if !installed
        && command(
            "rustup",
            &[
                "component",
                "add",
                "--toolchain",
                "nightly",
                "miri",
                "rust-src",
            ],
        )
        .is_err()
    {
        let how = "rustup toolchain install nightly --component miri --component rust-src";
        return Ok(Done::LeftOut(format!(
            "no Miri here, and it cannot be installed ({how})"
        )));
    }
    for (package, tests) in CHOSEN {
        let common = [
            "+nightly",
            "miri",
            "test",
            "--quiet",
            "--lib",
            "--package",
            package,
            "--",
        ];
        // Files of /proc and the clock are the host's.
        let environment = [
            ("MIRIFLAGS", "-Zmiri-disable-isolation"),
            ("PROPTEST_CASES", PROPTEST_CASES),
        ];
        run_with("cargo", &[&common[..], tests].concat(), &environment)?;
    }
    ran(Ok(()))
}
