//! Where the records of the plan are, and what is read from them.

use daqmeter_record::RunRecord;
use daqmeter_record::study::Measured;

/// A record of the plan, by its scenario and polling interval.
pub(super) fn find<'a>(
    records: &'a [RunRecord],
    scenario: &str,
    poll_us: f64,
    idle: bool,
) -> Option<&'a RunRecord> {
    records.iter().find(|record| {
        let workload = &record.workload;
        workload.text("scenario").is_ok_and(|name| name == scenario)
            && workload.float("poll_us").is_ok_and(|us| us == poll_us)
            && workload.float("rate_hz").is_ok_and(|hz| (hz < 100.0) == idle)
            && record.outcome.is_ok()
    })
}

/// CPU of the first reader, in percent of a core.
pub(super) fn reader_percent(record: &RunRecord) -> Option<Measured> {
    Measured::of_processor(record, record.counter("reader-cpu-ppm")? * 1e-4)
}
