//! What older records say in another way, said as today: the one place that knows. New forms of old fields are added here.

use crate::observed::TimeSeries;
use crate::path::{LimitFound, PathLimit};
use crate::resources::all_resources;
use crate::{Counter, Role, RunRecord};

/// The same record as this version would have written it.
pub(crate) fn as_today(record: &mut RunRecord) {
    if record.engine.name == "readout" {
        chain(record);
    }
    limit(record);
    stopped(record);
}

/// Triggers that BUSY stopped were called lost.
fn stopped(record: &mut RunRecord) {
    for counter in &mut record.counters {
        if counter.name == "lost-triggers" {
            counter.name = "stopped-triggers".into();
        }
    }
}

/// What limits a path was kept by the name that it has in answers. Of a name that its run does not have nothing is known.
fn limit(record: &mut RunRecord) {
    let Some(run) = &mut record.path else { return };
    let Some(PathLimit { found: LimitFound::Resource(name), .. }) = &run.limit else {
        return;
    };
    let all = all_resources(run).into_iter().map(|resource| resource.what);
    let named = all.into_iter().find(|what| what.text() == *name);
    match (&mut run.limit, named) {
        (Some(limit), Some(what)) => limit.found = LimitFound::Limit(what),
        _ => run.limit = None,
    }
}

fn chain(record: &mut RunRecord) {
    if record.study == "readout/search" {
        record.role = Role::Probe;
    }
    filling(record);
    carried(record);
}

/// Samples of a ring's filling were counters whose units held their times: `B at 0.010000 s`.
fn filling(record: &mut RunRecord) {
    let sample = |counter: &Counter| {
        let second = counter.unit.strip_prefix("B at ")?.strip_suffix(" s")?;
        let is_sample = counter.name.starts_with("filling ");
        let seconds: f64 = second.parse().ok().filter(|_| is_sample)?;
        Some((seconds, counter.value))
    };
    let mut series = TimeSeries {
        name: "ring filling".to_owned(),
        unit: "B".to_owned(),
        ..TimeSeries::default()
    };
    record.counters.retain(|counter| {
        let Some((seconds, bytes)) = sample(counter) else {
            return true;
        };
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "saturates, whatever a record says"
        )]
        series.times_ns.push((seconds * 1e9).round() as u64);
        series.values.push(Some(bytes));
        false
    });
    if !series.times_ns.is_empty() {
        record.series.push(series);
    }
}

/// A chain was counted as what was planned, also where BUSY stopped triggers.
fn carried(record: &mut RunRecord) {
    let Some(dead_share) = record.counter("dead-time") else {
        return;
    };
    let stages = record.lanes.iter_mut().flat_map(|lane| &mut lane.stages);
    for stage in stages.filter(|stage| stage.carried_bytes.is_none()) {
        let carried = stage.bytes_per_op as f64 * (1.0 - dead_share).clamp(0.0, 1.0);
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 0 and a count of bytes"
        )]
        let carried = carried as u64;
        stage.carried_bytes = Some(carried);
    }
}

#[cfg(test)]
mod tests {
    use crate::path::{PathRun, PathThread, What};
    use crate::{EngineInfo, Lane, Stage, Workload, jsonl};

    use super::*;

    #[test]
    fn a_limit_that_was_kept_by_name_is_the_resource_of_that_name() {
        let found = |name: &str| {
            let part = |element, part: &str| PathThread {
                element,
                part: part.to_owned(),
                busy_ns: 10,
                ..PathThread::default()
            };
            let run = PathRun {
                blocks: 1,
                cpus: 2.0,
                threads: vec![part(0, "memory"), part(1, "work")],
                limit: Some(PathLimit {
                    found: LimitFound::Resource(name.to_owned()),
                    runs: 9,
                    used: None,
                    gain: None,
                    room: None,
                }),
                ..PathRun::default()
            };
            let mut record = RunRecord { path: Some(Box::new(run)), ..RunRecord::default() };
            as_today(&mut record);
            record.path.and_then(|run| Some(run.limit?.found))
        };
        let work = What::Threads { element: 1, name: "work".to_owned() };
        assert_eq!(found("work"), Some(LimitFound::Limit(work)));
        let all = Some(LimitFound::Limit(What::AllCpus));
        assert_eq!(found("all CPUs together"), all);
        assert_eq!(found("no such part"), None);
    }

    /// A line of version 0.1: a probe, with two samples of the filling, whose triggers were stopped half of the time.
    fn older() -> Vec<u8> {
        let engine = EngineInfo { name: "readout".into(), ..EngineInfo::default() };
        let mut record = RunRecord::new(engine, Workload::new("readout"));
        record.study = "readout/search".into();
        let counter = |name: &str, value: f64, unit: &str| Counter {
            value,
            unit: unit.into(),
            ..Counter::count(name, 0)
        };
        record.counters = vec![
            counter("dead-time", 0.5, "of the time"),
            counter("filling 00", 64.0, "B at 0.010000 s"),
            counter("filling 01", 128.0, "B at 0.020000 s"),
            counter("BUSY mark", 1024.0, "B"),
        ];
        let stage = Stage {
            bytes_per_op: 1000,
            ops_per_sample: 1,
            sample_ns: vec![1_000_000_000],
            ..Stage::default()
        };
        record.lanes = vec![Lane { stages: vec![stage], ..Lane::default() }];
        jsonl::to_line(&record)
    }

    #[test]
    fn samples_of_older_chains_are_a_series_and_their_bytes_are_those_carried() {
        let record = jsonl::parse_line(&older(), 1).unwrap();
        let filling = record.series("ring filling").unwrap();
        let points: Vec<(f64, f64)> = filling.points_s().collect();
        assert_eq!((points, filling.unit.as_str()), (vec![(0.01, 64.0), (0.02, 128.0)], "B"));
        let names: Vec<&str> = record.counters.iter().map(|counter| &*counter.name).collect();
        assert_eq!(names, ["dead-time", "BUSY mark"]);
        assert_eq!(record.lanes[0].stages[0].rate_bytes_per_s(), 500.0);
        assert_eq!(record.role, Role::Probe);
    }

    #[test]
    fn a_record_of_today_is_read_as_it_was_written() {
        let record = jsonl::parse_line(&older(), 1).unwrap();
        let again = jsonl::parse_line(&jsonl::to_line(&record), 1).unwrap();
        assert_eq!(again, record);
    }
}
