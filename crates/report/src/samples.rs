//! Numbers of one stage, from its samples.

use daqmeter_record::{RunRecord, Stage};
use daqmeter_stats::Summary;

/// Summary of a stage in nanoseconds per operation; none without samples.
pub(crate) fn summary(stage: &Stage) -> Option<Summary> {
    Summary::of(&times_ns(stage))
}

/// Median alone, without sorting the samples.
pub(crate) fn median_ns(stage: &Stage) -> Option<f64> {
    Some(daqmeter_stats::median(&times_ns(stage))).filter(|median| median.is_finite())
}

/// Time of one operation that the sustained rate stands for; none without samples.
pub(crate) fn mean_ns(stage: &Stage) -> Option<f64> {
    let operations = stage.sample_ns.len() as f64 * stage.ops_per_sample.max(1) as f64;
    (operations > 0.0).then(|| stage.seconds() * 1e9 / operations)
}

/// Time of one operation in each sample.
pub(crate) fn times_ns(stage: &Stage) -> Vec<f64> {
    let per_op = stage.ops_per_sample.max(1) as f64;
    stage.sample_ns.iter().map(|&ns| ns as f64 / per_op).collect()
}

/// What is compared between runs: the time that what each operation is counted as takes. Where they
/// carried less, as chains whose triggers were stopped, that is longer than their own time.
pub(crate) fn compared_ns(stage: &Stage) -> Vec<f64> {
    let mut times = times_ns(stage);
    let asked = stage.asked_bytes_per_sample();
    if stage.carried_bytes.is_some() && asked > 0.0 {
        let longer = asked / stage.bytes_per_sample().max(1.0);
        times.iter_mut().for_each(|ns| *ns *= longer);
    }
    times
}

/// CPU time of the thread over the time that its samples took.
pub(crate) fn cpu_fraction(stage: &Stage) -> f64 {
    let seconds = stage.seconds();
    if seconds > 0.0 { stage.cpu.total_ns() as f64 * 1e-9 / seconds } else { 0.0 }
}

/// The first stage of the first lane: all that most engines have.
pub(crate) fn first_stage(record: &RunRecord) -> Option<&Stage> {
    record.lanes.first()?.stages.first()
}

/// All stages of all lanes.
pub(crate) fn stages(record: &RunRecord) -> impl Iterator<Item = &Stage> {
    record.lanes.iter().flat_map(|lane| &lane.stages)
}
