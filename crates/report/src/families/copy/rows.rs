//! Points of copies between user and kernel.

use daqmeter_record::{RunRecord, Stage, Together, together};
use daqmeter_stats::{self as stats, Rate, Share};
use serde::Serialize;

use crate::family::of_engine;
use crate::rate::{self, Doubt};
use crate::samples::{self, stages, times_ns};

pub(super) const ENGINE: &str = "copy";

const NULL_CALL: &str = "null_call";

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CopyRow {
    /// System call, kernel, module or engine that copies.
    pub path: String,
    /// One of `cpu`, `exclusive`, `shared`, `priority`.
    pub context: String,
    /// One of `from`, `to`, `both`.
    pub direction: String,
    pub cold: bool,
    /// Load: `light` or `heavy`.
    pub load: String,
    pub emulated: bool,
    pub block_bytes: u64,
    /// Bytes of one copy: both ways moves two blocks.
    pub bytes_per_op: u64,
    pub n: usize,
    /// Copies in each sample: above 1 a sample is their mean.
    pub ops_per_sample: u64,
    pub min_ns: f64,
    pub median_ns: f64,
    /// 95 % interval of the median.
    pub median_interval_ns: (f64, f64),
    pub mean_ns: f64,
    /// Sample variance (divided by n - 1), in ns squared.
    pub variance: f64,
    /// 99th percentile of one operation; `None` if a sample is the mean of several, or samples are
    /// too few.
    pub p99_ns: Option<f64>,
    pub max_ns: f64,
    pub null_ns: Option<f64>,
    /// Rate of each lane in bytes per second: all its operations over their time.
    pub lanes_bytes_per_s: Vec<f64>,
    /// Mean rate of one lane with its interval; `None` if no byte was moved.
    #[serde(skip)]
    pub(crate) lane: Option<Rate>,
    /// All bytes over the union of the lanes' times.
    pub union_bytes_per_s: f64,
    pub together: Option<Together>,
    pub limit_bytes_per_s: Option<f64>,
    pub fraction: Option<f64>,
    pub doubt: Option<Doubt>,
    /// Ending of a point that was not done: `failed`.
    pub undone: Option<&'static str>,
}

impl CopyRow {
    /// Sums the rates of the lanes: the document's total.
    pub(crate) fn total_bytes_per_s(&self) -> f64 {
        self.lanes_bytes_per_s.iter().sum()
    }

    /// Returns the mean over the lanes of their sustained rates: all bytes over all time.
    pub fn bytes_per_s(&self) -> f64 {
        self.total_bytes_per_s() / self.lanes_bytes_per_s.len().max(1) as f64
    }

    /// Returns the copier and path, for headings: `cpu (pread)`.
    pub fn who(&self) -> String {
        let emulated =
            if self.emulated && self.path != "engine-thread" { ", emulated" } else { "" };
        format!("{} ({}{emulated})", self.context, self.path)
    }

    /// Tests if the kernel only cleared the user's memory, which is no copy.
    pub fn is_clearing(&self) -> bool {
        self.path == "dev-zero"
    }

    /// Returns the operation as options spell it: `from`, `to_nc`.
    pub fn operation(&self) -> String {
        format!("{}{}", self.direction, if self.cold { "_nc" } else { "" })
    }
}

/// Returns all copy points that were done and verified, in the order of operation, size and
/// context.
pub fn copy_rows(records: &[RunRecord]) -> Vec<CopyRow> {
    all_rows(&rate::done(records))
}

pub(super) fn all_rows(records: &[RunRecord]) -> Vec<CopyRow> {
    let mut rows: Vec<CopyRow> = of_engine(records, ENGINE).filter_map(row).collect();
    let rank = |context: &str| {
        ["cpu", "exclusive", "priority", "shared"].iter().position(|known| *known == context)
    };
    rows.sort_by_key(|row| {
        (
            row.load == "heavy",
            row.cold,
            row.direction.clone(),
            row.block_bytes,
            rank(&row.context),
            row.path.clone(),
        )
    });
    rows
}

pub(super) fn copied(record: &RunRecord) -> impl Iterator<Item = &Stage> {
    record.lanes.iter().filter_map(|lane| lane.stages.first())
}

pub(super) fn samples(record: &RunRecord) -> Vec<f64> {
    copied(record).flat_map(times_ns).collect()
}

pub(super) fn row(record: &RunRecord) -> Option<CopyRow> {
    let first = copied(record).next()?;
    let block_bytes = record.workload.int("block_bytes").ok()?;
    let text = |name: &str| record.workload.text(name).unwrap_or("").to_owned();
    // One call may move several blocks (depth); a copy is of one block, or of two if it goes both
    // ways.
    let both_ways = if text("direction") == "both" { 2 } else { 1 };
    let copy_bytes = block_bytes.saturating_mul(both_ways).max(1);
    let copies_per_op = (first.bytes_per_op / copy_bytes).max(1);
    let samples = samples(record).into_iter().map(|ns| ns / copies_per_op as f64);
    let samples: Vec<f64> = samples.collect();
    if samples.is_empty() {
        return None;
    }
    let [min_ns, median_ns, p99_ns, max_ns] = stats::quantiles(&samples, [0.0, 0.5, 0.99, 1.0]);
    let ops_per_sample = copied(record)
        .map(|stage| stage.ops_per_sample)
        .max()
        .unwrap_or(1)
        .saturating_mul(copies_per_op);
    let has_p99 = ops_per_sample <= 1 && stats::supports(samples.len(), 0.99);
    let undone = rate::undone_word(record);
    let share = share(record, first).filter(|_| undone.is_none());
    let mean_ns = samples.iter().sum::<f64>() / samples.len() as f64;
    let squares: f64 = samples.iter().map(|ns| (ns - mean_ns).powi(2)).sum();
    let null = stages(record).find(|stage| stage.name == NULL_CALL);
    let begin = copied(record).map(|stage| stage.start_ns).min()?;
    let end = copied(record).map(|stage| stage.end_ns).max()?;
    let bytes: f64 = copied(record).map(Stage::bytes).sum();
    Some(CopyRow {
        path: text("path"),
        context: text("context"),
        direction: text("direction"),
        cold: record.workload.flag("cold"),
        load: record.workload.text("load").unwrap_or("light").to_owned(),
        emulated: record.engine.emulated,
        block_bytes,
        bytes_per_op: first.bytes_per_op / copies_per_op,
        n: first.sample_ns.len(),
        ops_per_sample,
        min_ns,
        median_ns,
        median_interval_ns: stats::median_ci(&stats::sorted(&samples)),
        mean_ns,
        variance: if samples.len() > 1 { squares / (samples.len() - 1) as f64 } else { 0.0 },
        p99_ns: has_p99.then_some(p99_ns),
        max_ns,
        null_ns: null.and_then(samples::median_ns),
        lane: lane_rate(record),
        lanes_bytes_per_s: copied(record).map(Stage::rate_bytes_per_s).collect(),
        union_bytes_per_s: if end > begin { bytes / (end - begin) as f64 * 1e9 } else { 0.0 },
        together: together(&copied(record).collect::<Vec<_>>()),
        limit_bytes_per_s: rate::limit_of(record, first).map(|limit| limit.rate_bytes_per_s),
        fraction: share.map(|share| share.fraction),
        doubt: share.and_then(Doubt::of),
        undone,
    })
}

fn share(record: &RunRecord, first: &Stage) -> Option<Share> {
    let limit = rate::limit_of(record, first)?;
    stats::share(lane_rate(record)?, rate::limit_rate(limit))
}

fn lane_rate(record: &RunRecord) -> Option<Rate> {
    let rates: Option<Vec<Rate>> = copied(record).map(rate::of).collect();
    Rate::mean_of(&rates?)
}

pub const TRACED: [&str; 4] =
    ["copy_from_user", "copy_to_user", "__copy_from_user", "__copy_to_user"];

/// Returns calls by size of one operation, from a trace record's counters (`copy_from_user:16`).
pub fn traced_sizes(record: &RunRecord, operation: &str) -> Vec<(u64, f64)> {
    let mut sizes: Vec<(u64, f64)> = record
        .counters
        .iter()
        .filter_map(|counter| {
            let (name, bytes) = counter.name.split_once(':')?;
            (name == operation).then_some((bytes.parse().ok()?, counter.value))
        })
        .collect();
    sizes.sort_by_key(|(bytes, _)| *bytes);
    sizes
}

#[cfg(test)]
pub(crate) mod tests {
    use daqmeter_record::{EngineInfo, Lane, Limit, Workload};

    use super::*;

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
        let engine =
            EngineInfo { name: "copy".into(), target: "pread".into(), emulated: context != "cpu" };
        let mut record = RunRecord::new(engine, workload);
        record.origin_ns = 1_000_000;
        record.command = "daqmeter copy latency".into();
        record.limits = vec![Limit::given("memcpy", 1e9, "test")];
        let stage = Stage {
            name: "copy".into(),
            ops_per_sample: 1,
            bytes_per_op: block_bytes,
            limit: Some("memcpy".into()),
            start_ns: 100,
            end_ns: 100 + samples.iter().sum::<u64>(),
            sample_ns: samples.to_vec(),
            ..Stage::default()
        };
        record.lanes = vec![Lane { seen_cpus: vec![3], stages: vec![stage], ..Lane::default() }];
        record
    }

    #[test]
    fn a_row_has_the_documents_statistics() {
        // Synthesis line of the document for 1 byte: mean and variance with n - 1.
        let row = &copy_rows(&[example("cpu", "to", 64, &[96, 98, 100, 102])])[0];
        assert_eq!((row.min_ns, row.max_ns, row.mean_ns, row.median_ns), (96.0, 102.0, 99.0, 99.0));
        assert!((row.variance - 20.0 / 3.0).abs() < 1e-9);
        assert_eq!(row.who(), "cpu (pread)");
    }

    #[test]
    fn a_call_of_several_blocks_is_several_copies() {
        let mut record = example("cpu", "both", 64, &[8000, 8400]);
        record.lanes[0].stages[0].bytes_per_op = 4 * 2 * 64;
        let row = &copy_rows(&[record])[0];
        assert_eq!((row.min_ns, row.max_ns, row.mean_ns), (2000.0, 2100.0, 2050.0));
        assert_eq!((row.ops_per_sample, row.bytes_per_op), (4, 128));
        assert_eq!(row.p99_ns, None, "means of four");
        let rate = 2.0 * 512.0 / 16_400.0 * 1e9;
        assert!((row.total_bytes_per_s() / rate - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_total_is_a_sum_of_rates_and_together_is_over_the_time_of_all() {
        let mut record = example("shared", "from", 1 << 20, &[1000, 1000]);
        let mut later = record.lanes[0].clone();
        later.stages[0].start_ns += 1000;
        later.stages[0].end_ns += 1000;
        record.lanes.push(later);
        let row = &copy_rows(&[record])[0];
        let one = (1 << 20) as f64 / 1e-6;
        assert!((row.total_bytes_per_s() / (2.0 * one) - 1.0).abs() < 1e-9);
        assert!((row.union_bytes_per_s / (4.0 / 3.0 * one) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn what_lanes_moved_at_the_same_time_leaves_out_what_one_did_alone() {
        // The second lane waits: it copies at a tenth of the rate beside the first, and continues
        // alone.
        let mut record = example("shared", "from", 1000, &[100; 10]);
        let mut slow = record.lanes[0].clone();
        slow.stages[0].sample_ns = vec![1000, 1000, 100, 100];
        slow.stages[0].end_ns = slow.stages[0].start_ns + 2200;
        record.lanes.push(slow);
        let together = copy_rows(&[record])[0].together.unwrap();
        assert!((together.share - 1000.0 / 2200.0).abs() < 1e-9);
        let per_s = |bytes: f64, ns: f64| bytes / ns * 1e9;
        let moved = per_s(10_000.0 + 1000.0, 1000.0);
        assert!((together.moved_bytes_per_s / moved - 1.0).abs() < 1e-9);
        let sum = per_s(10_000.0, 1000.0) + per_s(4000.0, 2200.0);
        assert!((together.sum_bytes_per_s / sum - 1.0).abs() < 1e-9);
        assert_eq!(copy_rows(&[example("cpu", "to", 64, &[9])])[0].together, None);
    }

    #[test]
    fn lanes_one_after_the_other_have_no_common_time() {
        let mut record = example("shared", "from", 1000, &[100]);
        let mut later = record.lanes[0].clone();
        later.stages[0].start_ns += 500;
        later.stages[0].end_ns += 500;
        record.lanes.push(later);
        let together = copy_rows(&[record])[0].together.unwrap();
        assert_eq!((together.share, together.moved_bytes_per_s), (0.0, 0.0));
    }
}
