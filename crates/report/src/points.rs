//! Identity of a point across records, hosts and times.

use std::collections::HashMap;
use std::fmt;

use daqmeter_record::{RunRecord, Stage};

use crate::rate::is_done;
use crate::samples::{first_stage, median_ns};

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StagePoint {
    pub study: String,
    pub engine: String,
    /// Kind and requested parameters ([`daqmeter_record::Workload::key`]).
    pub workload: String,
    /// Number of the lane, from 0: devices may have other names on another host.
    pub lane: usize,
    pub stage: String,
}

impl fmt::Display for StagePoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StagePoint { study, engine, workload, lane, stage } = self;
        let parameters = workload.strip_prefix(engine.as_str()).unwrap_or(workload).trim_start();
        write!(f, "{study} {engine} {parameters}")?;
        if *lane > 0 {
            write!(f, " lane {lane}")?;
        }
        if stage != engine { write!(f, " {stage}") } else { Ok(()) }
    }
}

pub fn points_of(record: &RunRecord) -> impl Iterator<Item = (StagePoint, &Stage)> {
    let workload = record.workload.key();
    let stages = record
        .lanes
        .iter()
        .enumerate()
        .flat_map(|(lane, found)| found.stages.iter().map(move |stage| (lane, stage)));
    stages.map(move |(lane, stage)| {
        let (study, engine) = (record.study.to_string(), record.engine.name.to_string());
        (
            StagePoint {
                study,
                engine,
                workload: workload.clone(),
                lane,
                stage: stage.name.to_string(),
            },
            stage,
        )
    })
}

pub(crate) type Runs<'a> = Vec<(&'a RunRecord, &'a Stage)>;

/// Returns all runs of each point that were done and verified, points in the order of their first
/// appearance. Failed or waived runs are not compared.
pub(crate) fn runs_by_point(records: &[RunRecord]) -> Vec<(StagePoint, Runs<'_>)> {
    let mut places: HashMap<StagePoint, usize> = HashMap::new();
    let mut points: Vec<(StagePoint, Runs<'_>)> = Vec::new();
    for record in records.iter().filter(|record| is_done(record)) {
        for (point, stage) in points_of(record) {
            let at = *places.entry(point.clone()).or_insert_with(|| {
                points.push((point, Vec::new()));
                points.len() - 1
            });
            points[at].1.push((record, stage));
        }
    }
    points
}

/// Returns the middle run of each workload, by the median of its first stage, and all failed ones.
/// It adds the largest number of runs of a workload. Tables use it, because ten lines of one point
/// hide the others.
pub fn middle_runs(records: &[RunRecord]) -> (Vec<RunRecord>, usize) {
    let mut places: HashMap<(&str, &str, String), usize> = HashMap::new();
    let mut groups: Vec<Vec<(f64, &RunRecord)>> = Vec::new();
    for record in records {
        let key = (record.study.as_str(), record.engine.name.as_str(), record.workload.key());
        let at = *places.entry(key).or_insert(groups.len());
        if at == groups.len() {
            groups.push(Vec::new());
        }
        let first = first_stage(record).and_then(median_ns);
        groups[at].push((first.unwrap_or(0.0), record));
    }
    let most = groups.iter().map(Vec::len).max().unwrap_or(0);
    let mut chosen = Vec::new();
    for mut runs in groups {
        chosen.extend(
            runs.iter()
                .filter(|(_, record)| !record.outcome.is_ok())
                .map(|(_, record)| (*record).clone()),
        );
        runs.retain(|(_, record)| record.outcome.is_ok());
        runs.sort_by(|a, b| a.0.total_cmp(&b.0));
        chosen.extend(runs.get(runs.len() / 2).map(|(_, record)| (*record).clone()));
    }
    (chosen, most)
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
        let (chosen, most) = middle_runs(&[with(30), failed, with(10), other, with(20)]);
        let medians: Vec<u64> =
            chosen.iter().map(|record| record.lanes[0].stages[0].sample_ns[0]).collect();
        assert_eq!((medians, most), (vec![1, 20, 7], 4));
        assert_eq!(middle_runs(&[]).0.len(), 0);
    }

    #[test]
    fn runs_of_one_point_come_together_however_long_they_took() {
        let run = |seconds: f64, reads: u64| {
            let mut record = example();
            record.set_param("seconds", seconds);
            record.set_param("reads", reads);
            record.set_param("passes", reads);
            record
        };
        let records = [run(0.3, 30), run(0.6, 28)];
        assert!(runs_by_point(&records).iter().all(|(_, runs)| runs.len() == 2));
        assert_eq!(middle_runs(&records).1, 2);
    }

    #[test]
    fn runs_of_one_point_come_together_whatever_their_device_is_called() {
        let mut again = example();
        again.lanes[0].device = "sis8300-4".into();
        let mut other = again.clone();
        other.set_param("function", 1_u64);
        let records = [example(), again, other];
        let points = runs_by_point(&records);
        assert_eq!(
            points.iter().map(|(_, runs)| runs.len()).collect::<Vec<_>>(),
            [2, 2, 2, 2, 1, 1, 1, 1]
        );
        assert_eq!(
            points[2].0.to_string(),
            "digitizer digitizer dec_factor=1 devices='emu:ku0 emu:l0' function=4 samples=3000000 lane 1 func_readout"
        );
    }
}
