//! Identity of a point across records, hosts and times.

use daqmeter_record::{Lane, RunRecord, Stage};
use serde::Serialize;

use crate::groups::in_groups;
use crate::rate::is_done;
use crate::samples::{first_stage, median_ns};

/// Names for programs. For people it has a name among others, see `names.rs`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct StagePoint {
    pub study: String,
    pub engine: String,
    /// Kind and requested parameters ([`daqmeter_record::Workload::key`]).
    pub workload: String,
    /// Number of the lane, from 0: devices may have other names on another host.
    pub lane: usize,
    pub stage: String,
    /// Label of the host. Empty where points of several hosts are one.
    pub host: String,
}

impl StagePoint {
    pub(crate) fn of(record: &RunRecord, lane: usize, stage: &str) -> StagePoint {
        let (study, engine) = (record.study.clone(), record.engine.name.clone());
        let (workload, stage) = (record.workload.key(), stage.to_owned());
        StagePoint { study, engine, workload, lane, stage, host: record.host.label() }
    }
}

pub(crate) fn points_of(record: &RunRecord) -> Vec<(StagePoint, &Stage)> {
    let whole = StagePoint::of(record, 0, "");
    let lanes = record.lanes.iter().enumerate();
    let stages = lanes.flat_map(|(lane, found)| found.stages.iter().map(move |it| (lane, it)));
    let point =
        |lane, stage: &Stage| StagePoint { lane, stage: stage.name.clone(), ..whole.clone() };
    stages.map(|(lane, stage)| (point(lane, stage), stage)).collect()
}

pub(crate) type Runs<'a> = Vec<(&'a RunRecord, &'a Stage)>;

/// Returns all runs of each point that were done and verified. Failed or waived runs are not
/// compared.
pub(crate) fn runs_by_point(records: &[RunRecord]) -> Vec<(StagePoint, Runs<'_>)> {
    runs_of_lanes(records, |record, _| is_done(record))
}

/// Returns the runs of each point in these lanes.
pub(crate) fn runs_of_lanes(
    records: &[RunRecord],
    is_wanted: impl Fn(&RunRecord, &Lane) -> bool,
) -> Vec<(StagePoint, Runs<'_>)> {
    let runs = records.iter().flat_map(|record| {
        let own = points_of(record).into_iter();
        let own = own.filter(|(point, _)| is_wanted(record, &record.lanes[point.lane]));
        own.map(move |(point, stage)| (point, (record, stage))).collect::<Vec<_>>()
    });
    in_groups(runs)
}

/// Returns the middle repetition of each point of an invocation, by the median of its first stage,
/// and all failed ones. Tables use it, because ten lines of one point hide the others.
pub(crate) fn middle_runs(records: &[RunRecord]) -> Vec<RunRecord> {
    let key = |record: &RunRecord| {
        let RunRecord { run_id, study, engine, workload, .. } = record;
        (record.host.label(), run_id.clone(), study.clone(), engine.name.clone(), workload.key())
    };
    let groups = in_groups(records.iter().map(|record| (key(record), record)));
    let median = |record: &RunRecord| first_stage(record).and_then(median_ns).unwrap_or(0.0);
    let chosen = groups.into_iter().flat_map(|(_, runs)| {
        let (mut done, mut chosen): (Vec<&RunRecord>, Vec<&RunRecord>) =
            runs.into_iter().partition(|record| record.outcome.is_ok());
        done.sort_by(|a, b| median(a).total_cmp(&median(b)));
        chosen.extend(done.get(done.len() / 2).copied());
        chosen
    });
    chosen.cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::example;

    #[test]
    fn the_middle_run_stands_for_its_point_and_failures_for_themselves() {
        let with = |ns: u64| {
            let mut record = example();
            record.lanes[0].stages[0].sample_ns = vec![ns; 3];
            record
        };
        let mut failed = with(1);
        failed.outcome = daqmeter_record::Outcome::Failed("bytes differ".into());
        let mut other = with(7);
        other.study = "other".into();
        let chosen = middle_runs(&[with(30), failed, with(10), other, with(20)]);
        let medians: Vec<u64> =
            chosen.iter().map(|record| record.lanes[0].stages[0].sample_ns[0]).collect();
        assert_eq!(medians, [1, 20, 7]);
        assert_eq!(middle_runs(&[]).len(), 0);
    }

    #[test]
    fn runs_of_one_point_come_together_whatever_their_device_is_called() {
        let mut again = example();
        again.lanes[0].device = "sis8300-4".into();
        let mut other = again.clone();
        other.set_param("function", 1_u64);
        let records = [example(), again, other];
        let points = runs_by_point(&records);
        let runs: Vec<usize> = points.iter().map(|(_, runs)| runs.len()).collect();
        assert_eq!(runs, [2, 2, 2, 2, 1, 1, 1, 1]);
        let StagePoint { workload, lane, stage, .. } = &points[2].0;
        let wanted = "digitizer dec_factor=1 devices='emu:ku0 emu:l0' function=4 samples=3000000";
        assert_eq!((workload.as_str(), *lane, stage.as_str()), (wanted, 1, "func_readout"));
    }
}
