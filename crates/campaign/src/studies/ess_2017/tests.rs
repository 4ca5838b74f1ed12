use daqmeter_digitizer::devices::sis8300::emulated::Profile;
use daqmeter_harness::StepPlan;
use daqmeter_record::{Lane, Stage, Workload};

use super::*;

/// What the document's command asks, on emulated boards.
fn workload(table: &Table) -> Workload {
    let count = |model: &str, at: usize| {
        let before = table.boards[..at].iter();
        before.filter(|board| *board == model).count()
    };
    let boards = table.boards.iter().enumerate();
    let names: Vec<String> =
        boards.map(|(at, model)| format!("emu:{model}{}", count(model, at))).collect();
    Workload::new("digitizer")
        .with("devices", names.join(" "))
        .with("samples", table.samples)
        .with("function", table.function)
        .with("dec_factor", table.dec_factor)
}

fn cpu_workload(row: &CpuRow) -> Workload {
    let devices = match row.boards {
        1 => "emu:l0".to_owned(),
        boards => format!("emu:l0..{}", boards - 1),
    };
    Workload::new("digitizer")
        .with("devices", devices)
        .with("samples", row.samples)
        .with("function", row.function)
        .with("completion", if row.polling { "poll" } else { "interrupt" })
        .with("trigger_rate_hz", 14.0)
}

/// The request as its engine writes it.
fn as_recorded(workload: &Workload) -> Workload {
    crate::engine(&workload.kind).unwrap().canonical(workload).unwrap()
}

/// Points of the plan by the last part of their study.
fn points(name: &str) -> Vec<PlannedPoint> {
    let study = format!("reproduce/digitizer/{name}");
    let points = Document::default().points(&Wanted::default());
    points.into_iter().filter(|point| point.study == study).collect()
}

#[test]
fn the_plan_asks_for_every_table_what_the_document_did() {
    let published = Document::default();
    for table in &published.table {
        let found = points(&table.id);
        // A run of tens of milliseconds is at the mercy of one hiccup of the host: it is done five times, the median counts.
        let is_short = table.samples < 10_000_000 && table.kind == Kind::Readout;
        assert_eq!(found.len(), if is_short { 5 } else { 1 }, "{}", table.id);
        for point in found {
            assert_eq!(point.workload, as_recorded(&workload(table)));
            assert_eq!(point.steps, StepPlan::ByStage(table.reads));
        }
    }
    let studies: std::collections::BTreeSet<String> =
        published.points(&Wanted::default()).into_iter().map(|point| point.study).collect();
    assert_eq!(studies.len(), published.table.len() + published.cpu.len() + 2);
}

#[test]
fn the_plan_asks_for_every_cpu_row_what_the_document_did() {
    for (at, row) in Document::default().cpu.iter().enumerate() {
        let found = points(&format!("cpu-{at}"));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].workload, as_recorded(&cpu_workload(row)));
        assert_eq!(found[0].steps, StepPlan::ByPass(findings::CPU_PASSES));
        assert_eq!(found[0].profile_hz.is_some(), row.command);
    }
}

#[test]
fn a_record_lands_in_its_row_with_the_documents_definition_of_speed() {
    let published = Document::default();
    let mut record = RunRecord::default();
    record.study = "reproduce/digitizer/l1-60mb".into();
    let stage = Stage {
        bytes_per_op: 60_000_000,
        ops_per_sample: 1,
        sample_ns: vec![1; 30],
        start_ns: 300_000,
        end_ns: 2_895_600_000,
        ..Stage::default()
    };
    record.lanes.push(Lane { stages: vec![stage], ..Lane::default() });
    let lines = published.compare(&[record]);
    let line =
        lines.iter().find(|line| line.row == "sis8300-6" && line.table == "1x L, 60 MB").unwrap();
    assert_eq!(
        line.published.as_ref().unwrap().place(),
        "PCIe transfer speed, 1x AMC SIS8300L/L2, row 1, speed"
    );
    assert!(
        (line.measured.unwrap().value() - 621.7).abs() < 0.05,
        "the document's own start and end give its own speed"
    );
    assert!(line.difference().unwrap().abs() < 1e-3);
    let times = |column: &str| {
        let row = format!("sis8300-6, {column}");
        let is_of = |line: &&Comparison| line.table.starts_with("1x L, 60 MB:") && line.row == row;
        lines.iter().find(is_of).unwrap()
    };
    for (column, measured) in [("start", 0.3), ("end", 2895.6), ("dur", 96.51)] {
        let line = times(column);
        assert!((line.measured.unwrap().value() - measured).abs() < 0.001);
        assert_eq!(
            line.published.as_ref().unwrap().place(),
            format!("PCIe transfer speed, 1x AMC SIS8300L/L2, row 1, {column}")
        );
    }
    assert_eq!(times("end").verdict().to_string(), "reproduced");
}

#[test]
fn conversions_and_cpu_figures_are_never_judged_by_this_host() {
    let published = Document::default();
    let all = published.compare(&[]);
    let of = |table: &'static str| {
        all.iter().filter(move |line| line.table == table && line.row != "mean")
    };
    assert!(
        of("cast to float").all(|line| line.verdict().to_string() == "not measured"),
        "no model of conversions"
    );
    assert!(of("CPU at 14 Hz").all(|line| line.verdict().to_string().ends_with("(model)")));
    assert_eq!(all.iter().filter(|line| line.published.is_some()).count(), 4 * 68 + 2 * 18);
    assert!(
        all.iter()
            .filter(|line| line.row == "mean")
            .all(|line| line.verdict().to_string() == "nothing published")
    );
}

#[test]
fn all_68_rows_satisfy_the_documents_own_definitions() {
    let published = Document::default();
    let mut rows = 0;
    for table in &published.table {
        for row in &table.rows {
            rows += 1;
            let span_ms = row.end_ms - row.start_ms;
            assert!(
                (span_ms / table.reads as f64 - row.dur_ms).abs() <= 0.055,
                "{} {}",
                table.id,
                row.board
            );
            let speed = (table.samples * 2 * table.reads) as f64 / span_ms / 1e3;
            // start and end are rounded to 0.1 ms, so the speed is known to 0.1 ms over the span.
            let tolerance = 0.05 + speed * 0.1 / span_ms;
            let off = row.speed_mb_per_s.difference(speed) * speed;
            assert!(off.abs() <= tolerance * 1.01, "{} {}: {speed}", table.id, row.board);
        }
    }
    assert_eq!(rows, 68);
}

#[test]
fn the_model_reproduces_the_33_readout_rows_within_3_per_cent_per_table() {
    let profile = Profile::default();
    let mut rows = 0;
    for table in Document::default().table.iter().filter(|table| table.kind == Kind::Readout) {
        rows += table.rows.len();
        let model = model::speeds_mb_per_s(table, &profile);
        let mean = model.iter().sum::<f64>() / model.len() as f64;
        let error = claims::published_mean(table).expect("rows").difference(mean);
        assert!(error.abs() < 0.03, "{}: {:.1} %", table.id, error * 100.0);
    }
    assert_eq!(rows, 33);
}
