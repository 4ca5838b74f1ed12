use daqmeter_record::{EngineInfo, Lane, Stage, Workload};

use super::*;

fn example(context: &str, direction: &str, block_bytes: u64, samples: &[u64]) -> RunRecord {
    let is_cpu = context == "cpu";
    let path = if is_cpu { "pread" } else { "engine-thread" };
    let workload = Workload::new("copy")
        .with("path", path)
        .with("context", context)
        .with("direction", direction)
        .with("block_bytes", block_bytes);
    let engine = EngineInfo { name: "copy".into(), target: path.into(), emulated: !is_cpu };
    let stage = Stage {
        ops_per_sample: 1,
        bytes_per_op: block_bytes,
        start_ns: 100,
        end_ns: 100 + samples.iter().sum::<u64>(),
        sample_ns: samples.to_vec(),
        ..Stage::default()
    };
    let mut record = RunRecord::new(engine, workload);
    record.lanes = vec![Lane { stages: vec![stage], ..Lane::default() }];
    record
}

fn finding(records: &[RunRecord], text: &str) -> Finding {
    Document::default()
        .findings(records)
        .into_iter()
        .find(|finding| finding.text.contains(text))
        .unwrap()
}

#[test]
fn findings_come_only_from_what_was_measured() {
    let document = Document::default();
    let none = document.findings(&[]);
    assert_eq!(none.len(), document.statement.len() + document.question.len());
    assert!(none.iter().all(|finding| finding.verdict.to_string() == "cannot tell"), "{none:?}");
    let records = [
        example("cpu", "from", 64, &[100, 200]),
        example("cpu", "from", 1 << 20, &[90_000, 91_000]),
        example("exclusive", "from", 64, &[900, 901]),
        example("exclusive", "from", 1 << 20, &[40_000, 40_001]),
    ];
    let crossover = finding(&records, "copy_from_user");
    assert_eq!(crossover.verdict.to_string(), "this host (emulated)");
    assert!(
        crossover.evidence.contains("pays from 1 MiB, of 2 sizes; MODELLED"),
        "{}",
        crossover.evidence
    );
    let real = records.map(|mut record| {
        record.engine.emulated = false;
        record
    });
    assert_eq!(finding(&real, "copy_from_user").verdict.to_string(), "this host");
    let failed = real.map(|mut record| {
        record.outcome = daqmeter_record::Outcome::Failed("wrong bytes".into());
        record
    });
    assert_eq!(finding(&failed, "copy_from_user").verdict.to_string(), "cannot tell");
}

/// Two lanes, the samples of each from the start that is given.
fn two_lanes(lanes: [(u64, &[u64]); 2]) -> Finding {
    let mut record = example("shared", "from", 1024, &[500]);
    let lane = record.lanes[0].clone();
    record.lanes = lanes
        .map(|(start_ns, samples)| {
            let mut lane = lane.clone();
            let stage = &mut lane.stages[0];
            (stage.start_ns, stage.sample_ns) = (start_ns, samples.to_vec());
            stage.end_ns = start_ns + samples.iter().sum::<u64>();
            lane
        })
        .into();
    finding(&[record], "the sum of the rates")
}

#[test]
fn the_sum_of_rates_is_judged_by_records_and_not_by_the_sample() {
    let even = two_lanes([(100, &[500, 500]), (150, &[500, 500])]);
    assert_eq!(even.verdict.to_string(), "confirmed (emulated)");
    // Nine tenths of the time are common, but most was moved in the rest.
    let burst = [vec![900], vec![1; 100]].concat();
    let uneven = two_lanes([(0, &burst), (0, &[900])]);
    assert_eq!(uneven.verdict.to_string(), "refuted (emulated)");
}

/// On a busy host the sum was 48.6 times what was moved: one lane had done its copies before the other got a CPU.
#[test]
fn rates_of_different_times_are_not_added_up() {
    let starved: Vec<u64> = [vec![100_000], vec![10; 100]].concat();
    for lanes in
        [[(0, [500].as_slice()), (500, &[500])], [(0, [10; 101].as_slice()), (0, &starved)]]
    {
        let apart = two_lanes(lanes);
        assert_eq!(apart.verdict.to_string(), "cannot tell");
        assert!(apart.evidence.contains("at the same time"), "{apart:?}");
    }
}

#[test]
fn the_cost_of_the_policies_is_stated_with_its_interval() {
    let points = |shared: [u64; 3]| -> Vec<RunRecord> {
        let sizes = [64, 4096, 1 << 20];
        let exclusive = sizes.map(|bytes| example("exclusive", "from", bytes, &[1000, 1000]));
        let shared = [0, 1, 2].map(|at| example("shared", "from", sizes[at], &[shared[at]; 2]));
        exclusive.into_iter().chain(shared).collect()
    };
    for (times, expected) in [
        ([1000, 1010, 1005], "cost the same within 5 %"),
        ([1300, 1310, 1305], "differ by more than 5 %"),
        ([900, 1400, 1000], "cannot be told"),
    ] {
        let evidence = finding(&points(times), "as fast as exclusive").evidence;
        assert!(evidence.contains(expected), "{evidence}");
    }
}

#[test]
fn lanes_are_measured_for_the_same_time_and_not_for_as_many_copies() {
    let points = Document::default().points(&Wanted { cpus: &[0, 1], ..Wanted::default() });
    let of_several =
        |point: &&PlannedPoint| point.workload.int("lanes").is_ok_and(|lanes| lanes > 1);
    let mut several = points.iter().filter(of_several).peekable();
    assert!(several.peek().is_some());
    assert!(several.all(|point| matches!(point.steps, daqmeter_harness::StepPlan::Timed(_))));
}

/// What the study calls total is more than its channels moved: they copied together for seven tenths of the time.
#[test]
fn the_samples_own_channels_moved_less_than_the_sum_of_their_rates() {
    let rows = Document::default().compare(&[]);
    let row = rows.iter().find(|row| row.row.contains("over the time of all"));
    let derived = row.unwrap().derived.as_ref().unwrap();
    assert!((derived.difference(10_038.0)).abs() < 1e-4, "{derived}");
    assert!(derived.how().contains("71 %"), "{}", derived.how());
}

#[test]
fn the_samples_rates_come_out_by_our_definition() {
    for line in Document::default().compare(&[]).into_iter().filter(|line| line.model.is_some()) {
        let off = line.published.as_ref().unwrap().difference(line.model.unwrap().value());
        assert!(off.abs() < 1e-6, "{line:?}");
    }
    let here = Document::default().compare(&[example("cpu", "to", 1, &[400, 500, 600])]);
    assert_eq!(
        here[0].verdict().to_string(),
        "this host",
        "another machine's time is never judged"
    );
    assert_eq!(here[0].measured.unwrap().value(), 500.0);
}
