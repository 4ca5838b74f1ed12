use std::path::Path;

use super::*;

fn record(operation: u16, bytes: u64, comm: &[u8]) -> TraceRecord {
    let mut record = TraceRecord {
        operation,
        bytes,
        before_ns: 613_326_537_662,
        after_ns: 613_326_537_755,
        caller: 0xffff_ffff_8144_c129,
        counter: 1102,
        ..TraceRecord::default()
    };
    record.comm[..comm.len()].copy_from_slice(comm);
    record
}

#[test]
fn a_record_reads_like_the_studys_own_sample() {
    // The address has 17 digits; the last 16 are correct.
    assert_eq!(
        classic_line(&record(0, 8, b"sh")),
        "0\t1102\t8\t0\t613326537662\t613326537755\t93\t0xffffffff8144c129\tCPU\n"
    );
}

#[test]
fn the_studys_files_are_read_back() {
    let sample = "0 1102 8 0 613326537662 613326537755 93 0xfffffffff8144c129 CPU\n\n";
    let TraceFile { records: read, long_addresses } = TraceFile::parse(0, sample).unwrap();
    assert_eq!(read[0].caller, 0xffff_ffff_8144_c129);
    assert_eq!((read.len(), read[0].bytes, read[0].by), (1, 8, 0));
    assert_eq!(long_addresses, 1, "17 digits");
    let written = classic_line(&record(1, 4096, b""));
    let again = TraceFile::parse(1, &written).unwrap();
    assert_eq!(classic_line(&again.records[0]), written);
    assert_eq!(again.long_addresses, 0);
    assert_eq!(operation_of(Path::new("x/__mem_trace_to.dat")), Some(3));
    assert_eq!(operation_of(Path::new("x/other.dat")), None);
    for wrong in [
        "1 2 3",
        "0 0 8 0 1 2 1 0xf GPU",
        "0 0 8 0 1 2 1 f CPU",
        "0 0 8 0 1 2 1 0xé CPU",
        "0 0 9007199254740992 0 1 2 1 0xf CPU",
        "0 0 8 0 2 1 0 0xf CPU",
        "0 0 8 0 1 2 2 0xf CPU",
    ] {
        let error = TraceFile::parse(0, &format!("{sample}{wrong}")).unwrap_err();
        assert!(error.starts_with("line 3: "), "{error}");
    }
}

#[test]
fn calls_are_summed_by_size_caller_and_process() {
    let mut trace = Trace::new(true);
    trace.add(&[
        record(1, 16, b"cat"),
        record(1, 16, b"cat"),
        record(1, 4096, b"dd"),
        record(2, 224, b"dd"),
    ]);
    let counters = trace.counters();
    let count = |name: &str| counters.iter().find(|counter| counter.name == name).unwrap().value;
    assert_eq!((count("copy_to_user:16"), count("copy_to_user by DMA")), (2.0, 0.0));
    assert_eq!(count("copy_to_user from 0xffffffff8144c129"), 3.0);
    assert_eq!(count("copy_to_user time"), 279.0);
    let rows = trace.operations();
    let rows: Vec<_> = rows
        .iter()
        .map(|row| (row.operation, row.calls, row.bytes, row.median_bytes, row.mean_ns))
        .collect();
    assert_eq!(
        rows,
        [("copy_to_user", 3, 4128, 16, 93.0), ("__copy_from_user", 1, 224, 224, 93.0)]
    );
    let most = TraceRow { name: "16 B".into(), operation: "copy_to_user", calls: 2, bytes: 32 };
    assert_eq!(trace.classic()["mem_trace_to.dat"].lines().count(), 3);
    let names = KernelSymbols::parse(
        "ffffffff8144c100 T sys_read\n0000000000000000 T hidden\nffffffff90000000 d data\n",
    );
    let [sizes, callers, _] = trace.ranked(&names, 1);
    assert_eq!(sizes, ("size", vec![most]));
    assert_eq!((callers.0, &*callers.1[0].name), ("caller", "sys_read+0x29"));
    assert_eq!(trace.ranked(&names, 9)[2].1.len(), 3);
}

#[test]
fn drops_and_misses_are_in_the_ledger() {
    let mut trace = Trace::new(false);
    trace.add(&[record(1, 16, b"a"), record(0, 16, b"a")]);
    let info = TraceInfo {
        recorded: [1, 1, 0, 0],
        dropped: [0, 5, 0, 0],
        missed: 2,
        ..TraceInfo::default()
    };
    let (ledger, warnings) = trace.accounts(&info);
    assert!(ledger.closes());
    assert_eq!((ledger.issued, ledger.lost(), warnings.len()), (9, 7, 2));
    // Regression: a trace without a copy said how this CPU copies.
    assert!(Trace::new(false).accounts(&TraceInfo::default()).1.is_empty());
}

/// Regression: the time of lines by ring was 0.
#[test]
fn the_time_of_a_trace_is_that_of_its_first_and_last_record_in_any_order() {
    let at =
        |before_ns: u64| TraceRecord { before_ns, after_ns: before_ns + 5, ..record(1, 8, b"") };
    let mut trace = Trace::new(false);
    trace.add(&[at(1000)]);
    assert_eq!(trace.span_ns(), None, "one record has no rate");
    trace.add(&[at(100), at(400)]);
    assert_eq!(trace.span_ns(), Some((100, 905)));
}
