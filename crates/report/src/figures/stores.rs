//! Cached against non-temporal stores, by footprint.

use daqmeter_record::RunRecord;

use super::{Axis, Figure, Kind, add_point, join, of_engine, rate_mb};

/// Whether a record's stores are what its workload says. Only the AVX2 and AVX-512 kernels have non-temporal stores; older
/// records of other CPUs say that they used them, and stored through the caches.
pub(crate) fn stored_as_asked(record: &RunRecord) -> bool {
    let has = |name: &str| ["avx2", "avx512"].contains(&name);
    if record.workload.text("store") != Ok("non-temporal") {
        return true;
    }
    match record.workload.text("isa") {
        Ok(named) if named != "best" => has(named),
        // An empty list is of a record that does not say.
        _ => record.host.isa.is_empty() || record.host.isa.iter().any(|name| has(name)),
    }
}

pub(super) fn figure(records: &[RunRecord]) -> Option<Figure> {
    let mut curves = Vec::new();
    let mut command = None;
    let of_stores =
        |record: &&RunRecord| record.study.contains("stores") && stored_as_asked(record);
    for record in of_engine(records, "convert").filter(of_stores) {
        let (Ok(store), Ok(samples)) = (
            record.workload.text("store"),
            record.workload.int("samples"),
        ) else {
            continue;
        };
        let Some(rate) = rate_mb(&record.lanes[0].stages[0]) else {
            continue;
        };
        command.get_or_insert(record.command.clone());
        // Cast: 2 bytes read and 4 written per sample.
        add_point(&mut curves, store, (samples as f64 * 6.0, rate));
    }
    curves.sort_by(|a, b| a.label.cmp(&b.label));
    let (xs, series) = join(curves);
    // One way to store is no comparison.
    (series.len() > 1).then(|| Figure {
        id: "stores",
        title: "Stores: through the caches or around them".to_owned(),
        caption: "Cast to float by one thread. Non-temporal stores lose while the result fits into the caches and win beyond; \
                  daqmeter chooses by footprint."
            .to_owned(),
        kind: Kind::Lines,
        x: Axis::log_bytes("footprint, raw + converted"),
        y: Axis::linear("MB/s raw"),
        xs,
        categories: Vec::new(),
        series,
        command: command.unwrap_or_default(),
        emulated: false,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use daqmeter_record::{Host, Lane, Stage, Workload};

    use super::*;

    /// Both kinds of stores on a host with these vector sets.
    fn records(isa: &[&str]) -> Vec<RunRecord> {
        let record = |store: &str| {
            let engine = daqmeter_record::EngineInfo {
                name: "convert".into(),
                ..Default::default()
            };
            let workload = Workload::new("convert")
                .with("samples", 1000_u64)
                .with("store", store);
            let mut record = RunRecord::new(engine, workload);
            record.study = "survey/stores".into();
            record.host = Arc::new(Host {
                isa: isa.iter().map(ToString::to_string).collect(),
                ..Host::default()
            });
            let stage = Stage {
                name: "func_no_decsca".into(),
                bytes_per_op: 2000,
                ops_per_sample: 1,
                sample_ns: vec![1000; 5],
                ..Stage::default()
            };
            record.lanes = vec![Lane {
                stages: vec![stage],
                ..Lane::default()
            }];
            record
        };
        vec![record("cached"), record("non-temporal")]
    }

    /// AArch64 was told which stores are better, and had one kind only (issue 14, A11).
    #[test]
    fn a_cpu_without_non_temporal_stores_has_no_comparison_of_stores() {
        assert_eq!(
            figure(&records(&["portable", "neon"])).map(|figure| figure.series.len()),
            None
        );
        assert_eq!(
            figure(&records(&["portable", "avx2"])).map(|figure| figure.series.len()),
            Some(2)
        );
    }
}
