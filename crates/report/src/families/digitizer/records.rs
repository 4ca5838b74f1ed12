//! Which records are of boards, and how their reads are paced.

use daqmeter_record::RunRecord;

use crate::family::of_engine;

pub(super) const ENGINE: &str = "digitizer";

/// Records of boards.
pub(super) fn all(records: &[RunRecord]) -> impl Iterator<Item = &RunRecord> + Clone {
    of_engine(records, ENGINE)
}

/// Whether its reads wait for triggers, which then set the rate.
pub(super) fn is_triggered(record: &RunRecord) -> bool {
    let rate_hz = record.workload.float("trigger_rate_hz").unwrap_or(0.0);
    rate_hz > 0.0 || record.workload.int("passes").unwrap_or(0) > 0
}
