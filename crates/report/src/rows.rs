//! Summary of each lane and stage for all outputs, computed from the samples each time, never
//! stored.

use daqmeter_record::{Lane, Ledger, Outcome, RunRecord, Stage, conditions};

use daqmeter_stats::Share;

use crate::families;
use crate::parameters::{Parameters, by_values, differing, words};
use crate::rate::{self, undone};
use crate::samples::{cpu_fraction, summary};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct StageRow {
    pub study: String,
    pub engine: String,
    pub device: String,
    /// Stage, by its name in the original's table.
    pub stage: String,
    /// Stage for people, with the decimation factor if it matters.
    pub label: String,
    /// Parameters that distinguish its workload within its study and engine; empty without a
    /// difference.
    pub point: String,
    pub emulated: bool,
    pub n: usize,
    /// Operations in each sample: above 1 a sample is their mean.
    pub ops_per_sample: u64,
    /// Counted bytes of one operation.
    pub bytes_per_op: u64,
    /// Bytes that all operations carried, if they differ from the counted ones.
    pub carried_bytes: Option<u64>,
    pub median_ns: f64,
    pub spread: f64,
    /// 95 % confidence interval of the median.
    pub ci_ns: (f64, f64),
    /// 99th percentile of one operation; `None` if a sample is the mean of several, or samples are
    /// too few.
    pub p99_ns: Option<f64>,
    pub outliers: usize,
    /// Sustained rate: all bytes over all time.
    pub rate_bytes_per_s: f64,
    /// 95 % confidence interval of the rate, if there are enough samples.
    pub rate_interval_bytes_per_s: Option<(f64, f64)>,
    pub limit_bytes_per_s: Option<f64>,
    pub limit_interval_bytes_per_s: Option<(f64, f64)>,
    pub fraction: Option<f64>,
    /// True if the rate exceeds its limit by more than both intervals allow: one of the two was
    /// measured wrongly, and the numbers are shown without being used.
    pub is_above_limit: bool,
    /// Load of the host that makes the numbers unsound, in a word or two; empty without any.
    pub disturbed: String,
    pub cpu_fraction: f64,
    /// Outcome of the lane, or of the record if no lane caused it.
    pub outcome: Outcome,
}

impl StageRow {
    /// Returns ending and reason of work that was not done: `("failed", "bytes differ")`.
    pub fn undone(&self) -> Option<(&'static str, &str)> {
        undone(&self.outcome)
    }

    pub(crate) fn share(&self) -> Option<Share> {
        Some(Share { fraction: self.fraction?, is_above: self.is_above_limit })
    }

    pub(crate) fn empty(record: &RunRecord, device: &str, outcome: Outcome) -> StageRow {
        StageRow {
            study: record.study.to_string(),
            engine: record.engine.name.to_string(),
            device: device.to_owned(),
            emulated: record.engine.emulated,
            outcome,
            ..StageRow::default()
        }
    }
}

/// Returns rows of all records, by study, engine and parameters, because points are measured in
/// random order. Records without lanes (waived ones) give none: see `absent_rows`.
pub fn rows(records: &[RunRecord]) -> Vec<StageRow> {
    let differing = differing_in_study(records);
    let in_label = families::in_label();
    let mut order: Vec<usize> = (0..records.len()).collect();
    order.sort_by(|&a, &b| {
        let names = |at: usize| (records[at].study.as_str(), records[at].engine.name.as_str());
        names(a).cmp(&names(b)).then_with(|| by_values(&differing[a], &differing[b]))
    });
    let of = |at: usize| -> Vec<StageRow> {
        let point = words(&differing[at], &in_label);
        rows_of(&records[at])
            .into_iter()
            .map(|row| StageRow { point: point.clone(), ..row })
            .collect()
    };
    order.into_iter().flat_map(of).collect()
}

fn differing_in_study(records: &[RunRecord]) -> Vec<Parameters<'_>> {
    let all: Vec<&RunRecord> = records.iter().collect();
    differing(&all, |record| (&record.study, &record.engine.name))
}

/// Returns [`StageRow::point`] of each record's rows.
pub(crate) fn points(records: &[RunRecord]) -> Vec<String> {
    let in_label = families::in_label();
    let all = differing_in_study(records);
    all.iter().map(|own| words(own, &in_label)).collect()
}

/// Returns rows of a record; a lane that failed before its first stage is a row without numbers.
pub(crate) fn rows_of(record: &RunRecord) -> Vec<StageRow> {
    record.lanes.iter().flat_map(|lane| rows_of_lane(record, lane)).collect()
}

/// Returns the outcome of a lane for tables. A record that failed by some lanes leaves the others
/// ok; one whose ledger does not close fails all.
pub(crate) fn outcome_of<'a>(record: &'a RunRecord, lane: &'a Lane) -> &'a Outcome {
    let is_by_lanes = record.lanes.iter().any(|lane| !lane.outcome.is_ok())
        && record.ledgers.iter().all(Ledger::closes);
    match lane.outcome.is_ok() && !is_by_lanes {
        true => &record.outcome,
        false => &lane.outcome,
    }
}

fn rows_of_lane(record: &RunRecord, lane: &Lane) -> Vec<StageRow> {
    let outcome = outcome_of(record, lane);
    let emulated = lane.is_emulated(record);
    if lane.stages.is_empty() && !outcome.is_ok() {
        return vec![StageRow {
            emulated,
            ..StageRow::empty(record, &lane.device, outcome.clone())
        }];
    }
    let row = |stage| StageRow {
        outcome: outcome.clone(),
        emulated,
        device: lane.device.to_string(),
        disturbed: disturbed(record),
        ..row_of(record, stage, outcome)
    };
    lane.stages.iter().map(row).collect()
}

fn disturbed(record: &RunRecord) -> String {
    let found = conditions::of(record);
    let names: Vec<&str> = found.iter().map(|disturbance| disturbance.name()).collect();
    names.join(", ")
}

fn row_of(record: &RunRecord, stage: &Stage, outcome: &Outcome) -> StageRow {
    let summary = summary(stage).unwrap_or_default();
    let rate = rate::of(stage).unwrap_or_default();
    let limit = rate::limit_of(record, stage).map(rate::limit_rate);
    let share = rate::held(record, stage).filter(|_| outcome.is_ok());
    StageRow {
        stage: stage.name.to_string(),
        label: families::label(record, stage),
        n: summary.n,
        ops_per_sample: stage.ops_per_sample,
        bytes_per_op: stage.bytes_per_op,
        carried_bytes: stage.carried_bytes,
        median_ns: summary.median,
        spread: summary.relative_spread(),
        ci_ns: summary.median_ci,
        p99_ns: summary.p99.filter(|_| stage.ops_per_sample <= 1),
        outliers: summary.outliers,
        rate_bytes_per_s: rate.per_s,
        rate_interval_bytes_per_s: rate.interval,
        limit_bytes_per_s: limit.map(|limit| limit.per_s),
        limit_interval_bytes_per_s: limit.and_then(|limit| limit.interval),
        fraction: share.map(|share| share.fraction),
        is_above_limit: share.is_some_and(|share| share.is_above),
        cpu_fraction: cpu_fraction(stage),
        ..StageRow::empty(record, "", Outcome::Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::{chain, example};

    #[test]
    fn a_rate_is_sustained_and_has_its_interval() {
        let mut record = example();
        // 60 reads of 6 MB in 0.1 ms, 40 in 10 ms: by the median 60 GB/s, over all time 1.5.
        record.lanes[0].stages[0].sample_ns =
            (0..100).map(|at| if at % 5 < 3 { 100_000 } else { 10_000_000 }).collect();
        let row = &rows(&[record])[0];
        assert!((row.rate_bytes_per_s / (600e6 / 0.406) - 1.0).abs() < 1e-9);
        let (low, high) = row.rate_interval_bytes_per_s.unwrap();
        assert!(
            (row.median_ns, low <= row.rate_bytes_per_s, row.rate_bytes_per_s <= high)
                == (1e5, true, true)
        );
    }

    /// Regression: planned bytes were taken for carried ones (issue 15).
    #[test]
    fn a_chain_whose_triggers_were_stopped_has_the_rate_of_what_it_carried() {
        let row = &rows(&[chain(400_000)])[0];
        assert_eq!(
            (row.rate_bytes_per_s, row.fraction, row.bytes_per_op),
            (400_000.0, Some(0.4), 1_000_000)
        );
        assert_eq!(rows(&[chain(1_000_000)])[0].fraction, Some(1.0));
    }

    #[test]
    fn a_failure_of_the_record_or_the_lane_is_in_its_rows_and_nothing_is_held_against_a_limit() {
        let failed = |why: &str| Outcome::Failed(why.into());
        let mut by_ledger = example();
        by_ledger.outcome = failed("ledger: does not close");
        let mut by_lane = example();
        (by_lane.outcome, by_lane.lanes[1].outcome) =
            (failed("emu:l0: board gone"), failed("board gone"));
        by_lane.lanes[1].stages.clear();
        let found = rows_of(&by_ledger);
        assert!(found.iter().all(|row| row.undone() == Some(("failed", "ledger: does not close"))));
        assert!(found.iter().all(|row| row.fraction.is_none() && row.n == 3));
        let found = rows_of(&by_lane);
        assert_eq!(found.len(), 3, "a lane that never began is a row, too");
        // Regression: the healthy board was FAILED, too, without its neighbour.
        assert!(found[..2].iter().all(|row| row.undone().is_none()));
        assert!(found[0].fraction.is_some());
        assert_eq!((found[2].n, found[2].undone()), (0, Some(("failed", "board gone"))));
    }

    #[test]
    fn a_real_board_beside_an_emulated_one_is_not_emulated() {
        let mut record = example();
        record.engine.emulated = true;
        record.lanes[1].emulated = Some(false);
        let emulated: Vec<bool> = rows_of(&record).iter().map(|row| row.emulated).collect();
        assert_eq!(emulated, [true, true, false, false]);
        let csv = crate::export::samples(&[record]).csv(true);
        let count = |value: &str| csv.lines().filter(|line| line.contains(value)).count();
        assert_eq!((count(",true,"), count(",false,")), (6, 6), "{csv}");
    }

    #[test]
    fn a_percentile_is_of_single_operations_and_of_enough_of_them() {
        let p99 = |samples: usize, ops_per_sample: u64| {
            let mut record = example();
            let stage = &mut record.lanes[0].stages[0];
            (stage.sample_ns, stage.ops_per_sample) = (vec![1000; samples], ops_per_sample);
            rows_of(&record)[0].p99_ns
        };
        assert_eq!(
            (p99(30, 1), p99(298, 1), p99(299, 1), p99(5000, 10)),
            (None, None, Some(1000.0), None)
        );
    }

    #[test]
    fn rows_stand_in_the_order_of_what_differs_and_say_it() {
        let with = |samples: u64, function: u64| {
            let mut record = example();
            record.lanes.truncate(1);
            record.lanes[0].stages.truncate(1);
            record.set_param("samples", samples);
            record.set_param("function", function);
            record
        };
        let mut other = with(5, 4).clone();
        other.study = "another".into();
        let records = [with(100, 4), with(9, 4), other, with(100, 3)];
        let points: Vec<(String, String)> =
            rows(&records).into_iter().map(|row| (row.study, row.point)).collect();
        let of = |study: &str, point: &str| (study.to_owned(), point.to_owned());
        let digitizer = |point: &str| of("digitizer", point);
        assert_eq!(
            points,
            [
                of("another", ""),
                digitizer("samples 100"),
                digitizer("samples 9"),
                digitizer("samples 100")
            ]
        );
    }

    #[test]
    fn a_stage_without_samples_gives_a_row_of_zeros_and_not_a_panic() {
        let mut record = example();
        record.lanes[0].stages[0].sample_ns.clear();
        let rows = rows(&[record]);
        assert_eq!((rows[0].n, rows[0].rate_bytes_per_s, rows[0].fraction), (0, 0.0, None));
    }
}
