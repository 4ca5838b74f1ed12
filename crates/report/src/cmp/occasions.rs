//! Records as occasions: each invocation of the program is one for a point.

use std::collections::{BTreeMap, HashMap};

use daqmeter_record::{LimitBasis, RunRecord, Stage};
use daqmeter_stats::{Occasion, Side, median};

use crate::families::level;
use crate::points::Runs;
use crate::samples::compared_ns;

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ControlBy<'a> {
    Series(&'a str, u64),
    /// Limit that was measured once in the invocation, for older records and stages whose
    /// operations allow no pause.
    Limit,
}

impl<'a> ControlBy<'a> {
    pub(crate) fn of(mut runs: impl Iterator<Item = &'a (&'a RunRecord, &'a Stage)>) -> Self {
        let series = |stage: &'a Stage| {
            let control = stage.control.as_ref()?;
            Some(ControlBy::Series(&control.name, control.footprint_bytes))
        };
        let first = runs.next().and_then(|(_, stage)| series(stage));
        let common = first.filter(|first| runs.all(|(_, stage)| series(stage) == Some(*first)));
        common.unwrap_or(ControlBy::Limit)
    }

    fn time(self, record: &RunRecord, stage: &Stage) -> Option<f64> {
        match self {
            ControlBy::Series(..) => {
                let times = stage.control.as_ref()?.times_ns();
                (!times.is_empty()).then(|| median(&times))
            }
            ControlBy::Limit => limit_s(record, stage),
        }
    }
}

/// Groups runs to occasions: runs of one invocation are its repetitions.
pub(crate) fn occasions(
    runs: &Runs,
    moments: &HashMap<&str, f64>,
    control: ControlBy,
) -> Vec<Occasion> {
    let mut found: BTreeMap<&str, Occasion> = BTreeMap::new();
    let mut controls: BTreeMap<&str, Vec<Option<f64>>> = BTreeMap::new();
    for (record, stage) in runs {
        let occasion = found.entry(&record.run_id).or_default();
        occasion.at = moments.get(record.run_id.as_str()).copied().unwrap_or(0.0);
        occasion.repetitions.push(compared_ns(stage));
        controls.entry(&record.run_id).or_default().push(control.time(record, stage));
    }
    for (run_id, occasion) in &mut found {
        let of_it: Option<Vec<f64>> = controls.remove(run_id).into_iter().flatten().collect();
        occasion.control = of_it.map(|times| median(&times)).filter(|time| *time > 0.0);
    }
    found.into_values().collect()
}

/// Returns the time in seconds of a byte of the stage's limit. `None` if the limit was not measured
/// in the invocation.
fn limit_s(record: &RunRecord, stage: &Stage) -> Option<f64> {
    let limit = record.limit(stage.limit.as_deref()?)?;
    let is_measured = limit.basis != LimitBasis::Given && limit.rate_bytes_per_s > 0.0;
    is_measured.then(|| 1.0 / limit.rate_bytes_per_s)
}

pub(crate) fn side(runs: &Runs, moments: &HashMap<&str, f64>, control: ControlBy) -> Side {
    Side {
        occasions: occasions(runs, moments, control),
        level: runs.first().map(|(record, stage)| level(record, stage)).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use daqmeter_record::ControlSeries;

    use super::*;
    use crate::examples::example;

    fn with_series(name: &str) -> RunRecord {
        let mut record = example();
        record.lanes[0].stages[1].control = Some(ControlSeries {
            name: name.into(),
            ops_per_sample: 2,
            sample_ns: vec![20, 0, 60, 40],
            after_samples: vec![0, 1, 2, 3],
            ..ControlSeries::default()
        });
        record
    }

    #[test]
    fn what_was_sampled_in_turn_is_the_control_where_all_runs_have_it_and_else_the_limit() {
        let (new, other, old) = (with_series("copy"), with_series("call"), example());
        let stage = |record: &'static RunRecord| (record, &record.lanes[0].stages[1]);
        let [new, other, old] = [new, other, old].map(|record| stage(Box::leak(Box::new(record))));
        let both = [new, new];
        let control = ControlBy::of(both.iter());
        assert_eq!(control, ControlBy::Series("copy", 0));
        assert_eq!(control.time(new.0, new.1), Some(20.0));
        for mixed in [[new, old], [old, new], [new, other]] {
            let control = ControlBy::of(mixed.iter());
            assert_eq!(control, ControlBy::Limit);
            assert_eq!(control.time(new.0, new.1), Some(1.0 / 10e9));
        }
    }
}
