//! Continuation of an interrupted run.

use std::collections::HashMap;

use daqmeter_record::{Host, Outcome, RunRecord, Tool};

use crate::point::PlannedPoint;

/// Returns the points whose repetition is not in the records yet, in their order.
///
/// Only records of this host and this build count, since another one says nothing of this one.
/// Failed points are measured again.
pub(crate) fn left_to_measure(
    mut points: Vec<PlannedPoint>,
    records: &[RunRecord],
    host: &Host,
    tool: &Tool,
) -> Vec<PlannedPoint> {
    let key = |study: &str, engine: &str, workload: &str| format!("{study}\n{engine}\n{workload}");
    let counts = |record: &&RunRecord| {
        record.host.cpu_model == host.cpu_model
            && record.host.kernel == host.kernel
            && record.tool == *tool
            && !matches!(record.outcome, Outcome::Failed(_))
    };
    let mut done: HashMap<String, u64> = HashMap::new();
    for record in records.iter().filter(counts) {
        let key = key(&record.study, &record.engine.name, &record.workload.key());
        *done.entry(key).or_default() += 1;
    }
    points.retain(|point| {
        match done.get_mut(&key(&point.study, &point.engine, &point.workload.key())) {
            Some(count) if *count > 0 => {
                *count -= 1;
                false
            }
            _ => true,
        }
    });
    points
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Plan;

    fn record(point: &PlannedPoint, tool: &Tool) -> RunRecord {
        let engine = daqmeter_record::EngineInfo {
            name: point.engine.as_str().into(),
            ..Default::default()
        };
        let mut record = RunRecord::new(engine, point.workload.clone());
        record.study = point.study.as_str().into();
        record.tool = tool.clone();
        record
    }

    #[test]
    fn what_is_there_is_passed_over_as_often_as_it_is_there() {
        let text = "title = 't'\nrepetitions = 3\n[[sweep]]\nstudy = 's'\nengine = 'memory'\n[sweep.workload]\nread_lines = 1\nwrite_lines = 1\n[sweep.axes]\nread_bytes = [4096, 8192]\n";
        let points = Plan::parse(text, "t.toml").unwrap().points;
        let (host, tool) =
            (Host::default(), Tool { git_revision: "abc".into(), ..Tool::default() });
        let mut records: Vec<RunRecord> =
            points.iter().take(4).map(|point| record(point, &tool)).collect();
        let left = |records: &[RunRecord], tool: &Tool| {
            left_to_measure(points.clone(), records, &host, tool).len()
        };
        assert_eq!(left(&records, &tool), 2);
        records[0].outcome = Outcome::Failed("bytes differ".into());
        records[1].outcome = Outcome::Waived("no card".into());
        assert_eq!(left(&records, &tool), 3, "a failed one is done again");
        let other = Tool { git_revision: "def".into(), ..Tool::default() };
        assert_eq!(left(&records, &other), 6, "another build measures all");
    }
}
