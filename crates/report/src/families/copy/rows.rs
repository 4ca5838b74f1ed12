//! Points of copies between user and kernel.

use daqmeter_record::{RunRecord, Stage};
use daqmeter_stats::{self as stats, Rate, Share};

use crate::family::of_engine;
use crate::rate;
use crate::samples::{self, stages, times_ns};

pub(super) const ENGINE: &str = "copy";

const NULL_CALL: &str = "null_call";

#[derive(Clone, Debug, PartialEq)]
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
    pub(crate) lane: Option<Rate>,
    /// All bytes over the union of the lanes' times.
    pub union_bytes_per_s: f64,
    pub(crate) share: Option<Share>,
    /// Ending of a point that was not done: `failed`.
    pub undone: Option<&'static str>,
}

impl CopyRow {
    /// Sums the rates of the lanes: the document's total.
    pub(crate) fn total_bytes_per_s(&self) -> f64 {
        self.lanes_bytes_per_s.iter().sum()
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
    let lane = lane_rate(record);
    let limit = rate::limit_of(record, first).map(rate::limit_rate).filter(|_| undone.is_none());
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
        lane,
        lanes_bytes_per_s: copied(record).map(Stage::rate_bytes_per_s).collect(),
        union_bytes_per_s: if end > begin { bytes / (end - begin) as f64 * 1e9 } else { 0.0 },
        share: lane.zip(limit).and_then(|(lane, limit)| stats::share(lane, limit)),
        undone,
    })
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
        assert_eq!(row.ops_per_sample, 4);
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
}
