//! Numbers of one stage, from its samples.

use daqmeter_record::{Lane, Ledger, Outcome, RunRecord, Stage};
use daqmeter_stats::Summary;

/// Returns the summary of a stage in nanoseconds per operation; `None` without samples.
pub(crate) fn summary(stage: &Stage) -> Option<Summary> {
    Summary::of(&times_ns(stage))
}

pub(crate) fn median_ns(stage: &Stage) -> Option<f64> {
    daqmeter_stats::median(&times_ns(stage))
}

/// Returns the time of one operation in the sustained rate; `None` without samples.
pub(crate) fn mean_ns(stage: &Stage) -> Option<f64> {
    let operations = stage.sample_ns.len() as f64 * stage.ops_per_sample.max(1) as f64;
    (operations > 0.0).then(|| stage.seconds() * 1e9 / operations)
}

pub(crate) fn times_ns(stage: &Stage) -> Vec<f64> {
    let per_op = stage.ops_per_sample.max(1) as f64;
    stage.sample_ns.iter().map(|&ns| ns as f64 / per_op).collect()
}

/// Returns the share of a CPU that a stage's thread used; `None` if it is unknown.
pub(crate) fn cpu_fraction(stage: &Stage) -> Option<f64> {
    let cpu_ns = Some(stage.cpu.total_ns()).filter(|ns| *ns > 0)?;
    Some(cpu_ns as f64 * 1e-9 / stage.seconds()).filter(|share| share.is_finite())
}

/// Returns the first stage of the first lane, which is the only one of most engines.
pub(crate) fn first_stage(record: &RunRecord) -> Option<&Stage> {
    record.lanes.first()?.stages.first()
}

/// Removes all that grows with the time of a measurement; the names of points need none of it.
pub(crate) fn drop_samples(record: &mut RunRecord) {
    for stage in record.lanes.iter_mut().flat_map(|lane| &mut lane.stages) {
        (stage.sample_ns, stage.slices) = Default::default();
    }
    (record.series, record.sections) = Default::default();
}

/// Returns the number of samples of all lanes.
pub(crate) fn samples(record: &RunRecord) -> usize {
    stages(record).map(|stage| stage.sample_ns.len()).sum()
}

pub(crate) fn stages(record: &RunRecord) -> impl Iterator<Item = &Stage> {
    record.lanes.iter().flat_map(|lane| &lane.stages)
}
/// Returns the outcome of a lane for tables. A record that failed by some lanes leaves the others
/// ok; one whose ledger does not close fails all.
pub(crate) fn outcome_of<'a>(record: &'a RunRecord, lane: &'a Lane) -> &'a Outcome {
    let is_by_lanes = record.lanes.iter().any(|lane| !lane.outcome.is_ok())
        && record.ledgers.iter().all(Ledger::closes);
    if lane.outcome.is_ok() && !is_by_lanes { &record.outcome } else { &lane.outcome }
}
