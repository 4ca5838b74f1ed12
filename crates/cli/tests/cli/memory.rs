//! Points that do not fit the memory of this process are left out, and reported.

use std::process::{Command, Output};

use crate::common::{Folder, PROGRAM, stderr};
use daqmeter_record::{Outcome, jsonl};

/// One lane that reads 16 KiB, one that reads 2 GiB, and an emulated board, which maps 2 GiB of
/// card memory.
const PLAN: &str = r#"
title = "Small and large"
about = "for a test"
time = "5ms"

[[sweep]]
study = "sizes"
engine = "memory"
workload = { read_lines = 1, write_lines = 0 }
axes = { read_bytes = [16384, 2147483648] }

[[sweep]]
study = "board"
engine = "digitizer"
workload = { samples = 1600 }
axes = { devices = ["emu:l0"] }
"#;

/// Runs the program in a folder with an address space of that many KiB.
fn limited(kib: u32, line: &str, folder: &Folder) -> Output {
    // The shell sets RLIMIT_AS before it becomes the program.
    let script = format!(r#"ulimit -v {kib} && exec "$0" {line}"#);
    Command::new("sh").args(["-c", &script, PROGRAM]).current_dir(folder.path("")).output().unwrap()
}

#[test]
fn a_small_address_space_waives_what_does_not_fit_and_measures_the_rest() {
    let folder = Folder::new();
    folder.write("plan.toml", PLAN);
    let output = limited(1 << 20, "run plan.toml --records records.jsonl", &folder);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let records = jsonl::read(folder.read("records.jsonl").as_bytes()).unwrap().records;
    let outcome = |wanted: &str| {
        let found = records
            .iter()
            .find(|record| format!("{} {}", record.study, record.workload).contains(wanted));
        found.unwrap_or_else(|| panic!("{wanted}: not among {records:?}")).outcome.clone()
    };
    assert_eq!(outcome("read_bytes=16384"), Outcome::Ok);
    for large in ["read_bytes=2147483648", "emu:l0"] {
        let waived = outcome(large);
        assert!(
            matches!(&waived, Outcome::Waived(reason) if reason.contains("bytes")),
            "{large}: {waived:?}"
        );
    }
}

/// Regression: the survey was ended in the middle by an allocation that failed.
#[test]
fn a_survey_without_memory_for_itself_is_refused_in_a_line() {
    let folder = Folder::new();
    let output = limited(200 << 10, "survey --time 1m", &folder);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("a survey needs 600 MiB of memory") && said.trim_end().lines().count() == 1,
        "{said}"
    );
    assert_eq!(folder.files(), 0);
}
