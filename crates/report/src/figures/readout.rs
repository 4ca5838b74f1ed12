//! Boards read in parallel: rate of each, beside the rate that it has alone.

use daqmeter_record::RunRecord;

use super::{Figure, Series, bars, of_engine};

pub(super) fn figure(records: &[RunRecord]) -> Option<Figure> {
    // The run with the most boards says most.
    let readouts = of_engine(records, "digitizer")
        .filter(|record| !record.study.contains("fusion"))
        .filter(|record| {
            record.lanes[0]
                .stages
                .iter()
                .any(|stage| stage.name == "func_readout")
        });
    let record = readouts.max_by_key(|record| record.lanes.len())?;
    let stage_of = |lane: &daqmeter_record::Lane| {
        lane.stages
            .iter()
            .find(|stage| stage.name == "func_readout")
            .cloned()
    };
    let stages: Vec<_> = record
        .lanes
        .iter()
        .filter_map(|lane| Some((lane.device.clone(), stage_of(lane)?)))
        .collect();
    let limit = |stage: &daqmeter_record::Stage| {
        Some(record.limit(stage.limit.as_deref()?)?.rate_bytes_per_s / 1e6)
    };
    let series = |label: &str, limit: bool, ys: Vec<Option<f64>>| Series {
        limit,
        ..Series::new(label, ys)
    };
    let mut figure = bars(
        "readout",
        "Boards read in parallel",
        "Raw bytes read per second from each board, over all its reads, while the others are read too; and what each board moves \
         alone. What is missing is the uplink that they share.",
        "MB/s",
        stages.iter().map(|(device, _)| device.clone()).collect(),
        vec![
            series(
                "together",
                false,
                stages
                    .iter()
                    .map(|(_, stage)| Some(stage.rate_bytes_per_s() / 1e6))
                    .collect(),
            ),
            series(
                "alone",
                true,
                stages.iter().map(|(_, stage)| limit(stage)).collect(),
            ),
        ],
    );
    figure.command = record.command.clone();
    figure.emulated = record.engine.emulated;
    Some(figure)
}
