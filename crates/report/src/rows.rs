//! Summary of each lane and stage for all outputs, computed from the samples each time, never
//! stored.

use std::cmp::Ordering;

use daqmeter_record::{Lane, Limit, Outcome, RunRecord, Stage};
use daqmeter_stats::{Rate, Share, Summary};

use crate::groups::in_groups;
use crate::levels::{ShownLevel, ShownLevels};
use crate::names::Names;
use crate::parameters::in_key;
use crate::points::StagePoint;
use crate::rate::{self, undone};
use crate::samples;

#[derive(Clone, Debug)]
pub struct StageRow<'a> {
    pub record: &'a RunRecord,
    pub device: &'a str,
    /// `None` for a lane that failed before its first stage, and for a record without lanes.
    pub stage: Option<&'a Stage>,
    /// Name of its point, see [`Names`].
    pub(crate) name: String,
    pub(crate) emulated: bool,
    /// Outcome of the lane, or of the record if no lane caused it.
    pub(crate) outcome: &'a Outcome,
    /// Times of one operation in nanoseconds.
    pub summary: Summary,
    /// Sustained rate: all bytes over all time.
    pub rate: Rate,
    pub(crate) limit: Option<Rate>,
    /// Share of the limit. Above it, the numbers are shown without being used.
    pub share: Option<Share>,
    /// Level of its point, over all repetitions of its invocation.
    pub(crate) level: Option<ShownLevel>,
}

impl<'a> StageRow<'a> {
    pub(crate) fn new(
        record: &'a RunRecord,
        lane: Option<&'a Lane>,
        stage: Option<&'a Stage>,
        name: &str,
    ) -> StageRow<'a> {
        let outcome = lane.map_or(&record.outcome, |lane| samples::outcome_of(record, lane));
        let limit = stage.and_then(|stage| rate::limit_of(record, stage));
        let share = stage.and_then(|stage| rate::held(record, stage));
        StageRow {
            record,
            device: lane.map_or("", |lane| &lane.device),
            stage,
            name: name.to_owned(),
            emulated: lane.map_or(record.engine.emulated, |lane| lane.is_emulated(record)),
            outcome,
            summary: stage.and_then(samples::summary).unwrap_or_default(),
            rate: stage.and_then(Stage::rate).unwrap_or_default(),
            limit: limit.map(Limit::rate),
            share: share.filter(|_| outcome.is_ok()),
            level: None,
        }
    }

    /// Returns ending and reason of work that was not done: `("failed", "bytes differ")`.
    pub(crate) fn undone(&self) -> Option<(&'static str, &str)> {
        undone(self.outcome)
    }

    pub(crate) fn ops_per_sample(&self) -> u64 {
        self.stage.map_or(0, |stage| stage.ops_per_sample)
    }

    pub(crate) fn is_above_limit(&self) -> bool {
        self.share.is_some_and(|share| share.is_above)
    }
}

/// Returns rows of all records, by study, engine and parameters, because points are measured in
/// random order. Records without lanes give none.
pub fn rows(records: &[RunRecord]) -> Vec<StageRow<'_>> {
    rows_among(records, records)
}

/// Returns rows of records with the levels of all records.
pub(crate) fn rows_among<'a>(records: &'a [RunRecord], all: &[RunRecord]) -> Vec<StageRow<'a>> {
    let mut ordered: Vec<&RunRecord> = records.iter().collect();
    ordered.sort_by(|a, b| {
        let names = |of: &'a RunRecord| (of.study.as_str(), of.engine.name.as_str());
        let by_values = || in_key(a).partial_cmp(in_key(b)).unwrap_or(Ordering::Equal);
        names(a).cmp(&names(b)).then_with(by_values)
    });
    let (names, levels) = (Names::of(all), ShownLevels::of(all));
    ordered.into_iter().flat_map(|record| rows_of(record, &names, Some(&levels))).collect()
}

/// Puts the rows of one point together, those of several hosts side by side.
pub(crate) fn by_point(rows: Vec<StageRow<'_>>) -> Vec<StageRow<'_>> {
    let groups = in_groups(rows.into_iter().map(|row| (row.name.clone(), row)));
    groups.into_iter().flat_map(|(_, own)| own).collect()
}

/// Returns the rows of a record, a lane that failed before its first stage without numbers.
pub(crate) fn rows_of<'a>(
    record: &'a RunRecord,
    names: &Names,
    levels: Option<&ShownLevels>,
) -> Vec<StageRow<'a>> {
    let of_lane = |(at, lane): (usize, &'a Lane)| -> Vec<StageRow<'a>> {
        let row = |stage: Option<&'a Stage>| {
            let point = StagePoint::of(record, at, stage.map_or("", |stage| &stage.name));
            let level = levels.and_then(|levels| levels.get(record, &point));
            StageRow { level, ..StageRow::new(record, Some(lane), stage, names.of_stage(&point)) }
        };
        match lane.stages.is_empty() && !samples::outcome_of(record, lane).is_ok() {
            true => vec![row(None)],
            false => lane.stages.iter().map(|stage| row(Some(stage))).collect(),
        }
    };
    record.lanes.iter().enumerate().flat_map(of_lane).collect()
}

#[cfg(test)]
mod tests {
    use daqmeter_record::Ledger;

    use super::*;
    use crate::examples::{chain, example};
    use crate::samples::mean_ns;

    #[test]
    fn a_rate_is_sustained_and_has_its_interval_and_its_share_of_the_limit() {
        let mut record = example();
        // 60 reads of 6 MB in 0.1 ms, 40 in 10 ms: by the median 60 GB/s, over all time 1.5.
        record.lanes[0].stages[0].sample_ns =
            (0..100).map(|at| if at % 5 < 3 { 100_000 } else { 10_000_000 }).collect();
        record.limits[0] = Limit::given("link", 2.0 * 600e6 / 0.406, "profile");
        assert!((mean_ns(&record.lanes[0].stages[0]).unwrap() - 4.06e6).abs() < 1.0);
        let records = [record];
        let StageRow { summary, rate, share, .. } = &rows(&records)[0];
        assert!((rate.per_s / (600e6 / 0.406) - 1.0).abs() < 1e-9);
        assert!((share.unwrap().fraction - 0.5).abs() < 1e-9);
        let (low, high) = rate.interval.unwrap();
        assert!(summary.median == 1e5 && (low..=high).contains(&rate.per_s));
    }

    /// Regression: planned bytes were taken for carried ones (issue 15).
    #[test]
    fn a_chain_whose_triggers_were_stopped_has_the_rate_of_what_it_carried() {
        for (carried_bytes, fraction) in [(400_000, 0.4), (1_000_000, 1.0)] {
            let records = [chain(carried_bytes)];
            let row = &rows(&records)[0];
            assert_eq!(row.rate.per_s, carried_bytes as f64);
            assert_eq!(row.share.unwrap().fraction, fraction);
        }
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
        let found = rows_of(&by_ledger, &Names::of([&by_ledger]), None);
        assert!(found.iter().all(|row| row.undone() == Some(("failed", "ledger: does not close"))));
        assert!(found.iter().all(|row| row.share.is_none() && row.summary.n == 3));
        let found = rows_of(&by_lane, &Names::of([&by_lane]), None);
        assert_eq!(found.len(), 3, "a lane that never began is a row, too");
        // Regression: the healthy board was FAILED, too, without its neighbour.
        assert!(found[..2].iter().all(|row| row.undone().is_none()));
        assert!(found[0].share.is_some());
        assert_eq!((found[2].summary.n, found[2].undone()), (0, Some(("failed", "board gone"))));
        // Regression: its time was missing.
        let time = |record| rows(&[record])[0].level;
        assert!(time(example()).is_some() && time(by_lane) == time(example()));
        assert_eq!(time(by_ledger), None);
    }

    #[test]
    fn a_board_has_its_own_account_in_its_rows() {
        let mut record = example();
        assert!(!crate::table::stages(&[record.clone()]).tables.contains(" lost"));
        let device = record.lanes[1].device.clone();
        let mut ledger = Ledger { of: device, issued: 17, ..Ledger::new("triggers") };
        ledger.lose("missed: not armed", 17);
        record.ledgers.push(ledger.clone());
        let csv = crate::export::stages(&[record.clone()]).csv(true);
        assert_eq!(csv.matches(",17,17,").count(), 2, "{csv}");
        let text = crate::table::stages(&[record.clone()]).text(None);
        assert!(text.contains(" lost") && text.contains("emu:l0: 17 triggers issued"), "{text}");
        // Where the source is not known, none are not lost.
        record.ledgers = vec![Ledger { unit: "acquisitions".into(), ..ledger }];
        assert!(!crate::table::stages(&[record]).tables.contains(" lost"));
    }

    #[test]
    fn a_board_that_was_interrupted_is_not_failed() {
        let mut record = example();
        let why = "interrupted after 5 samples".to_owned();
        record.lanes[0].outcome = Outcome::Failed(why.clone());
        record.outcome = Outcome::Failed(why);
        let text = crate::table::stages(&[record]).text(None);
        assert!(text.contains("INTERRUPTED emu:ku0: after 5 samples"), "{text}");
        assert!(!text.contains("FAILED"), "{text}");
    }

    #[test]
    fn a_real_board_beside_an_emulated_one_is_not_emulated() {
        let mut record = example();
        record.engine.emulated = true;
        record.lanes[1].emulated = Some(false);
        let emulated: Vec<bool> =
            rows_of(&record, &Names::of([&record]), None).iter().map(|row| row.emulated).collect();
        assert_eq!(emulated, [true, true, false, false]);
        let csv = crate::export::samples(&[record]).csv(true);
        let count = |value: &str| csv.lines().filter(|line| line.contains(value)).count();
        assert_eq!((count(",true,"), count(",false,")), (6, 6), "{csv}");
    }

    #[test]
    fn a_percentile_is_of_single_operations_and_of_enough_of_them() {
        let shown = |samples: usize, ops_per_sample: u64| {
            let mut record = example();
            let stage = &mut record.lanes[0].stages[0];
            (stage.sample_ns, stage.ops_per_sample) = (vec![1000; samples], ops_per_sample);
            let frame = crate::export::stages(&[record]);
            let p99 = frame.columns.iter().find(|column| column.name == "p99_ns").unwrap();
            p99.cells().next().unwrap().float()
        };
        assert_eq!(
            (shown(30, 1), shown(298, 1), shown(299, 1), shown(5000, 10)),
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
        let mut other = with(5, 4);
        other.study = "another".into();
        let records = [with(100, 4), with(9, 4), other, with(100, 3)];
        let names: Vec<String> = rows(&records).into_iter().map(|row| row.name).collect();
        let wanted = ["5 samples", "100 samples, for scale", "9 samples", "100 samples, for cast"];
        assert_eq!(names, wanted.map(|words| format!("read-out, {words}")));
    }

    #[test]
    fn a_stage_without_samples_gives_a_row_of_zeros_and_not_a_panic() {
        let mut record = example();
        record.lanes[0].stages[0].sample_ns.clear();
        let records = [record];
        let rows = rows(&records);
        assert_eq!((rows[0].summary.n, rows[0].rate.per_s, rows[0].share), (0, 0.0, None));
    }
}
