//! Match of the records that may be compared.

use std::collections::{BTreeSet, HashMap};

use daqmeter_record::{Lane, RunRecord, Stage};

use crate::points::{Runs, StagePoint, runs_by_point};

pub(crate) struct Matched<'a> {
    pub(crate) point: StagePoint,
    pub(crate) a: Runs<'a>,
    pub(crate) b: Runs<'a>,
    pub(crate) history: Runs<'a>,
}

pub(crate) struct Matching<'a> {
    pub(crate) points: Vec<Matched<'a>>,
    pub(crate) apart: Vec<String>,
    pub(crate) misplaced: usize,
}

/// Returns the CPU of each pinned lane, `None` for a free lane. On different hosts the numbers mean
/// nothing. `None` overall if a pinned lane was seen elsewhere.
fn placement(record: &RunRecord, same_host: bool) -> Option<Vec<Option<u32>>> {
    let cpu = |lane: &Lane| {
        let asked = lane.requested_cpu;
        let elsewhere = asked.is_some_and(|cpu| lane.seen_cpus.iter().any(|seen| *seen != cpu));
        (!elsewhere).then(|| asked.map(|cpu| if same_host { cpu } else { 0 }))
    };
    record.lanes.iter().map(cpu).collect()
}

/// Returns the identity of a record's host, as far as times depend on it.
fn host(record: &RunRecord) -> (&str, u64) {
    (&record.host.cpu_model, u64::from(record.host.logical_cpus))
}

fn is_one_host<'a>(records: impl Iterator<Item = &'a RunRecord>) -> bool {
    records.map(host).collect::<BTreeSet<_>>().len() <= 1
}

pub(crate) fn matched<'a>(
    a: &'a [RunRecord],
    b: &'a [RunRecord],
    history: &'a [RunRecord],
) -> Matching<'a> {
    let same_host = is_one_host(a.iter().chain(b));
    let mut of_b: HashMap<StagePoint, Runs> = runs_by_point(b).into_iter().collect();
    let mut of_history: HashMap<StagePoint, Runs> =
        if same_host { runs_by_point(history).into_iter().collect() } else { HashMap::new() };
    let sides: BTreeSet<&str> = a.iter().chain(b).map(|record| record.run_id.as_str()).collect();
    let here = a.first().map(host);
    let is_other = |run: &(&RunRecord, &Stage)| {
        !sides.contains(run.0.run_id.as_str()) && Some(host(run.0)) == here
    };
    let mut matching = Matching { points: Vec::new(), apart: Vec::new(), misplaced: 0 };
    for (point, runs) in runs_by_point(a) {
        let Some(others) = of_b.remove(&point) else {
            continue;
        };
        let places = |runs: &Runs| -> BTreeSet<_> {
            runs.iter().filter_map(|run| placement(run.0, same_host)).collect()
        };
        let common: BTreeSet<_> = &places(&runs) & &places(&others);
        let is_common = |run: &(&RunRecord, &Stage)| {
            placement(run.0, same_host).is_some_and(|place| common.contains(&place))
        };
        if common.is_empty() {
            matching.apart.push(point.to_string());
            continue;
        }
        let all = runs.len() + others.len();
        let keep = |runs: Runs<'a>| -> Runs<'a> { runs.into_iter().filter(is_common).collect() };
        let history = of_history.remove(&point).unwrap_or_default();
        let history = keep(history.into_iter().filter(is_other).collect());
        let (a, b) = (keep(runs), keep(others));
        matching.misplaced += all - a.len() - b.len();
        matching.points.push(Matched { point, a, b, history });
    }
    matching
}
