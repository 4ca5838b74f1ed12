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
    let engine = EngineInfo {
        name: "copy".into(),
        target: path.into(),
        emulated: !is_cpu,
    };
    let stage = Stage {
        ops_per_sample: 1,
        bytes_per_op: block_bytes,
        start_ns: 100,
        end_ns: 100 + samples.iter().sum::<u64>(),
        sample_ns: samples.to_vec(),
        ..Stage::default()
    };
    let mut record = RunRecord::new(engine, workload);
    record.lanes = vec![Lane {
        stages: vec![stage],
        ..Lane::default()
    }];
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
    assert_eq!(
        none.len(),
        document.statement.len() + document.question.len()
    );
    assert!(
        none.iter()
            .all(|finding| finding.verdict.to_string() == "cannot tell"),
        "{none:?}"
    );
    let records = [
        example("cpu", "from", 64, &[100, 200]),
        example("cpu", "from", 1 << 20, &[90_000, 91_000]),
        example("exclusive", "from", 64, &[900, 901]),
        example("exclusive", "from", 1 << 20, &[40_000, 40_001]),
    ];
    let crossover = finding(&records, "copy_from_user");
    assert_eq!(crossover.verdict.to_string(), "this host (emulated)");
    assert!(
        crossover
            .evidence
            .contains("pays from 1 MiB, of 2 sizes; MODELLED"),
        "{}",
        crossover.evidence
    );
    let real = records.map(|mut record| {
        record.engine.emulated = false;
        record
    });
    assert_eq!(
        finding(&real, "copy_from_user").verdict.to_string(),
        "this host"
    );
    let failed = real.map(|mut record| {
        record.outcome = daqmeter_record::Outcome::Failed("wrong bytes".into());
        record
    });
    assert_eq!(
        finding(&failed, "copy_from_user").verdict.to_string(),
        "cannot tell"
    );
}

#[test]
fn the_sum_of_rates_is_judged_by_records_and_not_by_the_sample() {
    let two = |ends: [u64; 2]| {
        let mut record = example("shared", "from", 1024, &[500]);
        let lane = record.lanes[0].clone();
        record.lanes = ends
            .map(|end_ns| {
                let mut lane = lane.clone();
                lane.stages[0].end_ns = end_ns;
                lane.stages[0].start_ns = end_ns - 500;
                lane
            })
            .into();
        finding(&[record], "the sum of the rates")
            .verdict
            .to_string()
    };
    assert_eq!(two([600, 600]), "confirmed (emulated)");
    assert_eq!(
        two([600, 1100]),
        "refuted (emulated)",
        "one after the other, the sum is twice what was moved"
    );
}

#[test]
fn the_samples_rates_come_out_by_our_definition() {
    for line in Document::default()
        .compare(&[])
        .into_iter()
        .filter(|line| line.model.is_some())
    {
        let off = line
            .published
            .as_ref()
            .unwrap()
            .difference(line.model.unwrap().value());
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
