//! The study's sample records beside this host.

use daqmeter_record::RunRecord;
use daqmeter_record::study::{Comparison, Derived, Measured, Published};
use daqmeter_report::copy::model::points_of;
use daqmeter_report::copy::{CopyRow, PollutionRow, copy_rows, pollution_rows};

use super::{Counted, Document, Sample};

/// MB in the document.
pub(super) const MIB: f64 = 1_048_576.0;

/// The document's sample records: times beside this host's, rates and shares beside our definitions of them.
pub(super) fn compare(document: &Document, records: &[RunRecord]) -> Vec<Comparison> {
    let here = Here::of(records);
    let mut rows = latencies(&document.sample, &here).to_vec();
    rows.extend(bandwidths(document));
    rows.extend(programs(document, &here));
    rows
}

fn latencies(sample: &Sample, here: &Here) -> [Comparison; 3] {
    let row = |name: &str, published: &Published, bytes: u64, value: fn(&CopyRow) -> f64| {
        let mut rows = points_of(&here.rows, "cpu", "to", false);
        let found = rows.find(|row| row.block_bytes == bytes);
        Comparison::new("sample records: latency", name, published.clone(), "ns")
            .measured(found.and_then(|row| here.copies(&["cpu"], value(row))))
            .of_this_host()
    };
    let median = |row: &CopyRow| row.median_ns;
    [
        row("copy of 1 B, mean", &sample.mean_1_ns, 1, |row| row.mean_ns),
        row("copy of 1 B, median", &sample.median_1_ns, 1, median),
        row("copy of 64 B (here the median)", &sample.time_64_ns, 64, median),
    ]
}

/// The rate of a channel as the document defines it: MB of 2^20 bytes over its own time.
fn bandwidths(document: &Document) -> [Comparison; 3] {
    let (sample, counted) = (&document.sample, &document.counted);
    let bytes = counted.channel_copies * counted.channel_copy_bytes;
    let rates = counted.channels_ns.iter();
    let rates: Vec<f64> = rates.map(|ns| bytes / (ns * 1e-9) / MIB).collect();
    let row = |name: &str, published: &Published, rate: f64| {
        Comparison::new("sample records: bandwidth", name, published.clone(), "MB/s").model(rate)
    };
    let one = "300 x 1 KiB on channel 0, by our definition";
    let all = "all four channels, by our definition";
    [
        row(one, &sample.channel_mb_per_s, rates[0]),
        row(all, &sample.total_mb_per_s, rates.iter().sum()),
        Comparison::new(
            "sample records: bandwidth",
            "all four channels, bytes over the time of all",
            None,
            "MB/s",
        )
        .derived(over_the_time_of_all(counted)),
    ]
}

/// What the sample's channels moved, from the first clock before to the last after.
fn over_the_time_of_all(counted: &Counted) -> Option<Derived> {
    let (before, after) = (&counted.channels_before_ns, &counted.channels_after_ns);
    let all_ns = (after.iter().max()? - before.iter().min()?) as f64;
    let common_ns = after.iter().min()?.saturating_sub(*before.iter().max()?) as f64;
    let bytes = counted.channel_copies * counted.channel_copy_bytes * before.len() as f64;
    let how = format!(
        "4 x 300 x 1 KiB, from the first clock before to the last after; all four copied for {:.0} % of that",
        common_ns / all_ns * 100.0
    );
    Some(Derived::computed(bytes / (all_ns * 1e-9) / MIB, how))
}

fn programs(document: &Document, here: &Here) -> [Comparison; 2] {
    let (sample, counted) = (&document.sample, &document.counted);
    let mut rows = here.programs.iter();
    let qsort = rows.find(|row| row.test == "qsort_small" && row.neighbour == "ideal");
    let row = |name: &str, published: &Published, unit| {
        Comparison::new("sample records: programs", name, published.clone(), unit)
    };
    let misses = "qsort_small, misses, by our definition";
    [
        row("qsort_small alone, mean time", &sample.qsort_us, "us")
            .measured(qsort.and_then(|row| here.pollution(row.mean_ns / 1e3)))
            .of_this_host(),
        row(misses, &sample.miss_percent, "%")
            .model(counted.cache_misses / counted.cache_references * 100.0),
    ]
}

/// What was measured here and did not fail.
pub(super) struct Here {
    pub(super) records: Vec<RunRecord>,
    pub(super) rows: Vec<CopyRow>,
    pub(super) programs: Vec<PollutionRow>,
}

impl Here {
    pub(super) fn of(records: &[RunRecord]) -> Here {
        let records: Vec<RunRecord> =
            records.iter().filter(|record| record.outcome.is_ok()).cloned().collect();
        Here { rows: copy_rows(&records), programs: pollution_rows(&records), records }
    }

    /// A value from the copies of these contexts.
    pub(super) fn copies(&self, contexts: &[&str], value: f64) -> Option<Measured> {
        let is_of = |record: &&RunRecord| {
            record.engine.name == "copy"
                && record.workload.text("context").is_ok_and(|context| contexts.contains(&context))
        };
        Measured::over(self.records.iter().filter(is_of), value)
    }

    /// A value from programs beside neighbours.
    pub(super) fn pollution(&self, value: f64) -> Option<Measured> {
        let measured = Measured::over(
            self.records.iter().filter(|record| record.engine.name == "pollution"),
            value,
        )?;
        let simulated = self.programs.iter().any(|row| row.simulated);
        Some(if simulated { measured.of_emulation() } else { measured })
    }
}
