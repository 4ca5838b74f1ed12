//! Two runs of one verb are runs of the same points, for any result and any time.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;

use std::collections::BTreeSet;

use common::{daqmeter, stderr};
use daqmeter_record::{RunRecord, jsonl};

fn records(verb: &str, arguments: &str) -> Vec<RunRecord> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("records.jsonl");
    let place = file.display().to_string();
    let all: Vec<&str> = arguments.split(' ').chain(["--records", place.as_str()]).collect();
    let output = daqmeter(verb, &all);
    assert!(output.status.success(), "{verb} {arguments}: {}", stderr(&output));
    let contents =
        jsonl::read(std::io::BufReader::new(std::fs::File::open(file).unwrap())).unwrap();
    assert!(!contents.records.is_empty(), "{verb} {arguments}");
    contents.records
}

fn keys(records: &[RunRecord]) -> BTreeSet<String> {
    records
        .iter()
        .map(|record| format!("{} {} {}", record.study, record.engine.name, record.workload.key()))
        .collect()
}

#[test]
fn a_shorter_run_has_the_points_of_a_longer_one() {
    for (verb, one, other) in [
        (
            "copy",
            "latency --sizes 64,4KiB --contexts cpu --path pread --reps 3",
            "latency --sizes 64,4KiB --contexts cpu --path pread --reps 5",
        ),
        (
            "copy",
            "bandwidth --sizes 4KiB --engine engine-thread --lanes 2 --reps 3",
            "bandwidth --sizes 4KiB --engine engine-thread --lanes 2 --reps 4",
        ),
        ("digitizer", "emu:l0 -S 1600 -A 4 -N 2 --unpaced", "emu:l0 -S 1600 -A 4 -N 3 --unpaced"),
        (
            "digitizer",
            "emu:l0 -S 1600 -l 2 --rate 2000 --unpaced",
            "emu:l0 -S 1600 -l 3 --rate 2000 --unpaced",
        ),
        ("readout", "run gbt --rate 1000 --time 30ms", "run gbt --rate 1000 --time 50ms"),
    ] {
        assert_eq!(keys(&records(verb, one)), keys(&records(verb, other)), "{verb} {one}");
    }
}

#[test]
fn a_copy_is_held_against_its_limit_which_is_no_parameter() {
    for record in records("copy", "latency --sizes 64,4KiB --contexts cpu --path pread --reps 3") {
        let bytes = record.workload.int("block_bytes").unwrap();
        let limit =
            record.lanes[0].stages[0].limit.as_deref().and_then(|name| record.limit(name)).unwrap();
        assert_eq!(limit.name, format!("memcpy at {bytes} B"));
        assert!(limit.rate_bytes_per_s > 0.0);
        assert!(!record.workload.params.contains_key("limit_bytes_per_s"), "{}", record.workload);
    }
}
