//! Records as occasions: what one invocation of the program measured of a point is one.

use std::collections::{BTreeMap, HashMap};

use daqmeter_record::{RunRecord, Stage};
use daqmeter_stats::{Occasion, Side};

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
    for (record, stage) in runs {
        let occasion = found.entry(&record.run_id).or_default();
        occasion.at = moments.get(record.run_id.as_str()).copied().unwrap_or(0.0);
        occasion.repetitions.push(compared_ns(stage));
    }
    found.into_values().collect()
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
