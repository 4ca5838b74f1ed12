//! Points of copies between user and kernel.

use daqmeter_record::{RunRecord, Stage};
use daqmeter_stats::{Rate, Share, Summary, share};

use crate::family::of_engine;
use crate::rate;
use crate::samples::{median_ns, stages, times_ns};

pub(super) const ENGINE: &str = "copy";

const NULL_CALL: &str = "null_call";

#[derive(Clone, Debug)]
pub(crate) struct CopyRow<'a> {
    pub(crate) record: &'a RunRecord,
    /// System call, kernel, module or engine that copies.
    pub(crate) path: &'a str,
    /// One of `cpu`, `exclusive`, `shared`, `priority`.
    pub(crate) context: &'a str,
    /// One of `from`, `to`, `both`.
    pub(crate) direction: &'a str,
    pub(crate) cold: bool,
    /// Load: `light`, `heavy`, or `unknown` for files from elsewhere.
    pub(crate) load: &'a str,
    pub(crate) block_bytes: u64,
    /// Samples of one lane.
    pub(crate) n: usize,
    /// Copies in each sample: above 1 a sample is their mean.
    pub(crate) ops_per_sample: u64,
    /// Times of one copy in nanoseconds, of all lanes.
    pub(crate) times: Summary,
    pub(crate) null_ns: Option<f64>,
    /// Rate of each lane in bytes per second: all its operations over their time.
    pub(crate) lanes_bytes_per_s: Vec<f64>,
    /// Mean rate of one lane with its interval; `None` if no byte was moved.
    pub(crate) lane: Option<Rate>,
    pub(crate) share: Option<Share>,
}

impl CopyRow<'_> {
    /// Returns the 99th percentile of one copy; `None` if a sample is the mean of several, or
    /// samples are too few.
    pub(crate) fn p99_ns(&self) -> Option<f64> {
        self.times.p99.filter(|_| self.ops_per_sample <= 1)
    }

    /// Sums the rates of the lanes: the document's total.
    pub(crate) fn total_bytes_per_s(&self) -> f64 {
        self.lanes_bytes_per_s.iter().sum()
    }

    /// Returns all bytes over the union of the lanes' times.
    pub(super) fn union_bytes_per_s(&self) -> f64 {
        let begin = copied(self.record).map(|stage| stage.start_ns).min().unwrap_or(0);
        let end = copied(self.record).map(|stage| stage.end_ns).max().unwrap_or(0);
        let bytes: f64 = copied(self.record).map(Stage::bytes).sum();
        if end > begin { bytes / (end - begin) as f64 * 1e9 } else { 0.0 }
    }

    /// Returns the copies that were compared byte by byte, and all copies from the release of the
    /// lanes, with the untimed ones.
    pub(super) fn compared(&self) -> Option<(f64, f64)> {
        let copies = self.record.ledgers.iter().find(|ledger| ledger.unit == "copies")?;
        Some((self.record.counter("compared")?, copies.delivered as f64))
    }

    /// Returns the copier and path, for headings: `cpu (pread)`.
    pub(crate) fn who(&self) -> String {
        let is_shown = self.record.engine.emulated && self.path != "engine-thread";
        let emulated = if is_shown { ", emulated" } else { "" };
        format!("{} ({}{emulated})", self.context, self.path)
    }

    /// Returns the operation as options spell it: `from`, `to_nc`.
    pub(crate) fn operation(&self) -> String {
        format!("{}{}", self.direction, if self.cold { "_nc" } else { "" })
    }
}

/// Returns the kernel's function of a direction.
pub(crate) fn function(direction: &str) -> String {
    match direction {
        "both" => "copy_from_user + copy_to_user".to_owned(),
        direction => format!("copy_{direction}_user"),
    }
}

/// Returns all copy points, in the order of operation, size and context.
pub(crate) fn copy_rows(records: &[RunRecord]) -> Vec<CopyRow<'_>> {
    let mut rows: Vec<CopyRow<'_>> = of_engine(records, ENGINE).filter_map(row).collect();
    rows.sort_by_key(|row| {
        let operation = (row.load == "heavy", row.cold, row.direction);
        (operation, row.block_bytes, row.context, row.path)
    });
    rows
}

pub(super) fn copied(record: &RunRecord) -> impl Iterator<Item = &Stage> {
    record.lanes.iter().filter_map(|lane| lane.stages.first())
}

/// Returns the times of one operation of each lane's first stage.
pub fn samples(record: &RunRecord) -> Vec<f64> {
    copied(record).flat_map(times_ns).collect()
}

pub(super) fn row(record: &RunRecord) -> Option<CopyRow<'_>> {
    let first = copied(record).next()?;
    let block_bytes = record.workload.int("block_bytes").ok()?;
    let text = |name: &str| record.workload.text(name).unwrap_or("");
    let rates: Option<Vec<Rate>> = copied(record).map(Stage::rate).collect();
    let lane = Rate::mean_of(&rates.unwrap_or_default());
    let limit = rate::limit_of(record, first).filter(|_| rate::is_done(record));
    let null = stages(record).find(|stage| stage.name == NULL_CALL);
    Some(CopyRow {
        record,
        path: text("path"),
        context: text("context"),
        direction: text("direction"),
        cold: record.workload.flag("cold"),
        load: record.workload.text("load").unwrap_or("light"),
        block_bytes,
        n: first.sample_ns.len(),
        ops_per_sample: copied(record).map(|stage| stage.ops_per_sample).max().unwrap_or(1),
        times: Summary::of(&samples(record))?,
        null_ns: null.and_then(median_ns),
        lane,
        lanes_bytes_per_s: copied(record).map(Stage::rate_bytes_per_s).collect(),
        share: lane.zip(limit).and_then(|(lane, limit)| share(lane, limit.rate())),
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use daqmeter_record::{Limit, Workload};

    use super::*;
    use crate::examples;

    pub(crate) fn example(
        context: &str,
        direction: &str,
        block_bytes: u64,
        samples: &[u64],
    ) -> RunRecord {
        let workload = Workload::new("copy")
            .with("path", if context == "cpu" { "pread" } else { "engine-thread" })
            .with("context", context)
            .with("direction", direction)
            .with("block_bytes", block_bytes);
        let mut record = examples::record("copy", workload, "", "copy", 0);
        record.engine.emulated = context != "cpu";
        record.origin_ns = 1_000_000;
        record.limits = vec![Limit::given("memcpy", 1e9, "test")];
        record.lanes[0].seen_cpus = vec![3];
        let stage = &mut record.lanes[0].stages[0];
        (stage.bytes_per_op, stage.sample_ns) = (block_bytes, samples.to_vec());
        stage.limit = Some("memcpy".into());
        (stage.start_ns, stage.end_ns) = (100, 100 + samples.iter().sum::<u64>());
        record
    }

    #[test]
    fn a_row_has_the_documents_statistics() {
        // Synthesis line of the document for 1 byte: mean and variance with n - 1.
        let records = [example("cpu", "to", 64, &[96, 98, 100, 102])];
        let row = &copy_rows(&records)[0];
        let times = row.times;
        assert_eq!((times.min, times.max, times.mean, times.median), (96.0, 102.0, 99.0, 99.0));
        assert!((times.variance - 20.0 / 3.0).abs() < 1e-9);
        assert_eq!(row.who(), "cpu (pread)");
    }

    #[test]
    fn a_total_is_a_sum_of_rates_and_together_is_over_the_time_of_all() {
        let mut record = example("shared", "from", 1 << 20, &[1000, 1000]);
        let mut later = record.lanes[0].clone();
        later.stages[0].start_ns += 1000;
        later.stages[0].end_ns += 1000;
        record.lanes.push(later);
        let records = [record];
        let row = &copy_rows(&records)[0];
        let one = (1 << 20) as f64 / 1e-6;
        assert!((row.total_bytes_per_s() / (2.0 * one) - 1.0).abs() < 1e-9);
        assert!((row.union_bytes_per_s() / (4.0 / 3.0 * one) - 1.0).abs() < 1e-9);
    }
}
