//! What makes two records records of the same point, wherever and whenever they were measured.

use std::collections::HashMap;
use std::fmt;

use daqmeter_record::{RunRecord, Stage};

/// One stage of one lane of one workload of one study.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Point {
    /// Study of the record.
    pub study: String,
    /// Engine.
    pub engine: String,
    /// Kind and parameters.
    pub workload: String,
    /// Number of the lane, from 0: devices may have other names on another host.
    pub lane: usize,
    /// Stage.
    pub stage: String,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Point { study, engine, workload, lane, stage } = self;
        let parameters = workload.strip_prefix(engine.as_str()).unwrap_or(workload).trim_start();
        write!(f, "{study} {engine} {parameters}")?;
        if *lane > 0 {
            write!(f, " lane {lane}")?;
        }
        if stage != engine { write!(f, " {stage}") } else { Ok(()) }
    }
}

/// The points of one record, with the stage that each names.
pub fn points_of(record: &RunRecord) -> impl Iterator<Item = (Point, &Stage)> {
    let workload = record.workload.to_string();
    let stages =
        record.lanes.iter().enumerate().flat_map(|(lane, found)| found.stages.iter().map(move |stage| (lane, stage)));
    stages.map(move |(lane, stage)| {
        let (study, engine) = (record.study.clone(), record.engine.name.clone());
        (Point { study, engine, workload: workload.clone(), lane, stage: stage.name.clone() }, stage)
    })
}

/// All runs of each point, points in the order of their first appearance.
pub fn runs_by_point(records: &[RunRecord]) -> Vec<(Point, Vec<(&RunRecord, &Stage)>)> {
    let mut places: HashMap<Point, usize> = HashMap::new();
    let mut points: Vec<(Point, Vec<(&RunRecord, &Stage)>)> = Vec::new();
    for record in records {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::tests::example;

    #[test]
    fn runs_of_one_point_come_together_whatever_their_device_is_called() {
        let mut again = example();
        again.lanes[0].device = "sis8300-4".into();
        let mut other = again.clone();
        other.workload = other.workload.with("function", 1_u64);
        let records = [example(), again, other];
        let points = runs_by_point(&records);
        assert_eq!(points.iter().map(|(_, runs)| runs.len()).collect::<Vec<_>>(), [2, 2, 2, 2, 1, 1, 1, 1]);
        assert_eq!(
            points[2].0.to_string(),
            "digitizer digitizer dec_factor=1 devices='emu:ku0 emu:l0' function=4 samples=3000000 lane 1 func_readout"
        );
    }
}
