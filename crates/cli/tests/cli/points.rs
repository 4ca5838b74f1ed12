//! Two runs of one verb are runs of the same points, for any result and any time.

use std::collections::BTreeSet;

use crate::common::done;
use daqmeter_record::{RunRecord, jsonl};

fn records(line: &str) -> Vec<RunRecord> {
    let text = done(&format!("{line} --json"));
    let records = jsonl::read(text.as_bytes()).unwrap().records;
    assert!(!records.is_empty(), "{line}");
    records
}

fn keys(records: &[RunRecord]) -> BTreeSet<String> {
    records
        .iter()
        .map(|record| format!("{} {} {}", record.study, record.engine.name, record.workload.key()))
        .collect()
}

#[test]
fn a_shorter_run_has_the_points_of_a_longer_one() {
    for (line, one, other) in [
        ("copy latency --sizes 64,4KiB --contexts cpu --path pread --repeat N", "3", "5"),
        ("copy bandwidth --sizes 4KiB --engine engine-thread --lanes 2 --repeat N", "3", "4"),
        ("digitizer emu:l0 -S 1600 -A 4 -N N --unpaced", "2", "3"),
        ("digitizer emu:l0 -S 1600 -l N --rate 2000 --unpaced", "2", "3"),
        ("readout run gbt --rate 1000 --time N", "30ms", "50ms"),
    ] {
        let of = |extent: &str| keys(&records(&line.replace(" N", &format!(" {extent}"))));
        assert_eq!(of(one), of(other), "{line}");
    }
}

#[test]
fn a_copy_is_held_against_its_limit_which_is_no_parameter() {
    for record in records("copy latency --sizes 64,4KiB --contexts cpu --path pread --repeat 3") {
        let bytes = record.workload.int("block_bytes").unwrap();
        let limit =
            record.lanes[0].stages[0].limit.as_deref().and_then(|name| record.limit(name)).unwrap();
        assert_eq!(limit.name, format!("memcpy at {bytes} B"));
        assert!(limit.rate_bytes_per_s > 0.0);
        assert!(!record.workload.params.contains_key("limit_bytes_per_s"), "{}", record.workload);
    }
}
