//! Records as occasions: what one invocation of the program measured of a point is one.

use std::collections::{BTreeMap, HashMap};

use daqmeter_record::{LimitBasis, RunRecord, Stage};
use daqmeter_stats::{Occasion, Side, median};

use crate::families::level;
use crate::samples::compared_ns;

/// Runs of a point: each a record and its stage.
pub(crate) type Runs<'a> = Vec<(&'a RunRecord, &'a Stage)>;

/// When each invocation began, as a number that grows.
pub(crate) fn moments<'a>(records: impl Iterator<Item = &'a RunRecord>) -> HashMap<&'a str, f64> {
    let mut first: BTreeMap<&str, &str> = BTreeMap::new();
    for record in records {
        let time = first.entry(&record.run_id).or_insert(&record.time_utc);
        *time = (*time).min(&record.time_utc);
    }
    let mut order: Vec<(&str, &str)> = first.into_iter().map(|(id, time)| (time, id)).collect();
    order.sort_unstable();
    let numbered = order.into_iter().enumerate();
    numbered.map(|(at, (_, id))| (id, at as f64)).collect()
}

/// Runs as occasions: those of one invocation are its repetitions.
pub(crate) fn occasions(runs: &Runs, moments: &HashMap<&str, f64>) -> Vec<Occasion> {
    let mut found: BTreeMap<&str, Occasion> = BTreeMap::new();
    let mut controls: BTreeMap<&str, Vec<Option<f64>>> = BTreeMap::new();
    for (record, stage) in runs {
        let occasion = found.entry(&record.run_id).or_default();
        occasion.at = moments.get(record.run_id.as_str()).copied().unwrap_or(0.0);
        occasion.repetitions.push(compared_ns(stage));
        controls
            .entry(&record.run_id)
            .or_default()
            .push(control(record, stage));
    }
    for (run_id, occasion) in &mut found {
        let of_it: Option<Vec<f64>> = controls.remove(run_id).into_iter().flatten().collect();
        occasion.control = of_it.map(|times| median(&times)).filter(|time| *time > 0.0);
    }
    found.into_values().collect()
}

/// Time of a byte of the limit that was measured beside a stage in the same invocation, in seconds: it loads the same resource. None where
/// the stage has none that was measured.
fn control(record: &RunRecord, stage: &Stage) -> Option<f64> {
    let limit = record.limit(stage.limit.as_deref()?)?;
    let is_measured = limit.basis != LimitBasis::Given && limit.rate_bytes_per_s > 0.0;
    is_measured.then(|| 1.0 / limit.rate_bytes_per_s)
}

/// One side of a point.
pub(crate) fn side(runs: &Runs, moments: &HashMap<&str, f64>) -> Side {
    Side {
        occasions: occasions(runs, moments),
        level: runs
            .first()
            .map(|(record, stage)| level(record, stage))
            .unwrap_or_default(),
    }
}
