//! Records with fixed numbers for the tests of this crate.

use daqmeter_record::{
    Counter, CpuTime, EngineInfo, Lane, Ledger, Limit, LimitBasis, RunRecord, Stage, Workload,
};

/// Record like those of `daqmeter digitizer`, with fixed numbers, for the snapshots of all outputs.
pub(crate) fn example() -> RunRecord {
    let engine =
        EngineInfo { name: "digitizer".into(), target: "emu:ku0 emu:l0".into(), emulated: true };
    let workload = Workload::new("digitizer")
        .with("devices", "emu:ku0 emu:l0")
        .with("samples", 3_000_000_u64)
        .with("function", 4_u64)
        .with("dec_factor", 1_u64);
    let mut record = RunRecord::new(engine, workload);
    record.study = "digitizer".into();
    record.time_utc = "2026-11-21T03:00:00.000Z".into();
    record.command = "daqmeter digitizer emu:ku0 emu:l0 -S 3000000 -N 3 -A 4".into();
    let cpu_model = "Test CPU <script>alert(1)</script>".into();
    record.host = daqmeter_record::Host { cpu_model, logical_cpus: 4, ..Default::default() }.into();
    record.tool.name = "daqmeter".into();
    record.limits = vec![
        Limit::given("link", 1.278e9, "profile"),
        Limit {
            basis: LimitBasis::Sustained,
            low_bytes_per_s: Some(9.8e9),
            high_bytes_per_s: Some(10.2e9),
            ..Limit::given("memory 1:2", 10e9, "measured")
        },
    ];
    for (device, factor) in [("emu:ku0", 1), ("emu:l0", 2)] {
        let stage = |name: &str, limit: &str, start_ns: u64, ns: u64| Stage {
            name: name.into(),
            ops_per_sample: 1,
            bytes_per_op: 6_000_000,
            traffic_bytes_per_op: 12_000_000,
            limit: Some(limit.into()),
            start_ns,
            end_ns: start_ns + ns * 3,
            sample_ns: vec![ns - 1000, ns, ns + 1000],
            cpu: CpuTime { user_ns: ns * 3 / 2, system_ns: 0 },
            ..Stage::default()
        };
        record.lanes.push(Lane {
            device: device.into(),
            stages: vec![
                stage("func_readout", "link", 100_000, 5_000_000 * factor),
                stage("func_no_decsca", "memory 1:2", 16_000_000 * factor, 700_000),
            ],
            ..Lane::default()
        });
    }
    let mut ledger = Ledger { issued: 36_000_000, delivered: 36_000_000, ..Ledger::new("bytes") };
    ledger.lose("short read", 0);
    record.ledgers = vec![ledger];
    record.wall_ns = 33_000_000;
    (record.host_cpu.user_ns, record.host_cpu.steal_ns, record.host_cpu.idle_ns) =
        (30_000_000, 10_000_000, 60_000_000);
    record.memory.peak_rss_bytes = 64 << 20;
    (record.clock.tool_ns_per_op, record.clock.overhead_ns) = (0.54, 24.0);
    record
}

pub(crate) fn waived() -> RunRecord {
    let mut record = example();
    record.lanes.clear();
    record.outcome = daqmeter_record::Outcome::Waived("no \"card\", here".into());
    record.set_param("function", "all");
    record
}

pub(crate) fn above_its_limit() -> RunRecord {
    let mut record = example();
    record.limits[0].rate_bytes_per_s = 0.4e9;
    record
}

/// One lane, one stage of 1 MB that takes that number of nanoseconds, with a limit of 10 GB/s.
pub(crate) fn record(
    engine: &str,
    workload: Workload,
    study: &str,
    stage: &str,
    ns: u64,
) -> RunRecord {
    let mut record =
        RunRecord::new(EngineInfo { name: engine.into(), ..Default::default() }, workload);
    record.study = study.into();
    record.limits = vec![Limit::given("memory", 10e9, "")];
    let stage = Stage {
        name: stage.into(),
        ops_per_sample: 1,
        bytes_per_op: 1_000_000,
        limit: Some("memory".into()),
        end_ns: 9 * ns,
        sample_ns: vec![ns; 9],
        ..Stage::default()
    };
    record.lanes = vec![Lane { stages: vec![stage], ..Lane::default() }];
    record
}

/// Chain of one second that was to carry 1 MB beside a limit of 1 MB/s, and carried
/// `carried_bytes`.
pub(crate) fn chain(carried_bytes: u64) -> RunRecord {
    let workload = Workload::new("readout").with("scenario", "gbt");
    let mut record = record("readout", workload, "run", "read-out", 1_000_000_000);
    record.limits = vec![Limit::given("memory", 1e6, "")];
    let stage = &mut record.lanes[0].stages[0];
    stage.sample_ns.truncate(1);
    stage.carried_bytes = Some(carried_bytes);
    let rate = |value| Counter { value, ..Counter::count("trigger-rate", 0) };
    record.counters = vec![rate(1e3), Counter::count("triggers", 1000)];
    record.ledgers = vec![Ledger::new("triggers x E-links")];
    record
}
