//! Copies between user and kernel: latency, bandwidth, and the cost of a neighbour to a program.

mod pollution;
mod rows;
pub mod study;
mod tables;

use daqmeter_record::RunRecord;
use daqmeter_record::units::{show_bytes, show_ns, significant};
use daqmeter_stats::Rate;

pub use pollution::pollution;
pub(crate) use pollution::{PollutionRow, pollution_rows};
pub(crate) use rows::{CopyRow, copy_rows};
pub use tables::{bandwidth, latency};

use crate::aligned::time;
use crate::family::{Brief, Family, Work, of_engine, prefixed};
use crate::figures::{Mark, Plot};
use crate::parameters::pairs;
use crate::rate::{ratio, spoken_number};

pub(super) const FAMILY: Family = Family {
    engines: &[(rows::ENGINE, Work::Calls), (pollution::ENGINE, Work::Threads)],
    plots: &[
        Plot {
            id: "copy-latency",
            marks: |records| by_size(records, |lanes| lanes == 1, |row| row.times.median),
        },
        Plot {
            id: "copy-bandwidth",
            marks: |records| {
                by_size(records, |lanes| lanes > 1, |row| row.total_bytes_per_s() / MIB)
            },
        },
    ],
    questions: &[("What does a copy out of the kernel cost?", Some("copy-latency"), answer)],
    briefs: &[kernel_copy],
    headline: |records| pollution::headline(records).or_else(|| tables::headline(records)),
    ..Family::EMPTY
};

/// Megabyte of the study's bandwidth: 2^20 bytes.
pub(crate) const MIB: f64 = 1_048_576.0;

fn by_size(
    records: &[RunRecord],
    keep: fn(usize) -> bool,
    value: fn(&CopyRow<'_>) -> f64,
) -> Vec<Mark<'_>> {
    let rows = of_engine(records, rows::ENGINE).filter_map(rows::row);
    let light = rows.filter(|row| row.load != "heavy" && keep(row.lanes_bytes_per_s.len()));
    let marks = light.map(|row| {
        let series = format!("{} {}", row.operation(), row.who());
        Mark::at(row.record, series, row.block_bytes as f64, value(&row))
    });
    marks.collect()
}

/// A copy out of the kernel of 1 byte, and a large one with the plain copy of its size.
struct Kernel<'a> {
    one: CopyRow<'a>,
    large: CopyRow<'a>,
    plain: CopyRow<'a>,
}

impl<'a> Kernel<'a> {
    fn of(records: &'a [RunRecord]) -> Option<Kernel<'a>> {
        let called = |row: &CopyRow<'_>| {
            let is_plain = row.direction == "to" && row.context == "cpu" && !row.cold;
            is_plain && row.null_ns.is_some()
        };
        let is_plain = |record: &RunRecord| record.workload.text("path") == Ok("memcpy");
        let is_called = |record: &RunRecord| rows::row(record).is_some_and(|row| called(&row));
        let copies = of_engine(records, rows::ENGINE);
        let large = copies.filter(|record| record.workload.int("block_bytes") == Ok(1 << 20));
        // Copies of equal size that differ in the path alone.
        let pairs = pairs(large, &["path"], [&is_plain, &is_called]);
        let [plain, large] = pairs.first()?.map(rows::row);
        let (plain, large) = (plain?, large?);
        let mut ones = copy_rows(records).into_iter().filter(called);
        let one = ones.find(|row| row.block_bytes == 1 && row.path == large.path)?;
        Some(Kernel { one, large, plain })
    }

    /// Returns the large copy's rate over that of the plain copy.
    fn share(&self) -> Option<Rate> {
        Some(ratio(self.large.lane?, self.plain.lane?))
    }
}

fn answer(records: &[RunRecord]) -> Option<String> {
    let kernel = Kernel::of(records)?;
    let Kernel { one, large, .. } = &kernel;
    Some(format!(
        "A copy of 1 B takes {} ({} - {}), a system call without work {}. Copies of {} run at {} of the rate of a plain copy.",
        show_ns(one.times.median),
        show_ns(one.times.median_ci.0),
        show_ns(one.times.median_ci.1),
        time(one.null_ns),
        show_bytes(large.block_bytes),
        spoken_number(kernel.share()?, 2)
    ))
}

fn kernel_copy(records: &[RunRecord]) -> Option<Brief> {
    let kernel = Kernel::of(records)?;
    Some(Brief::Host(format!(
        "kernel copy {} ({} of memcpy); system call {}",
        prefixed(kernel.large.lane?.per_s, "B/s"),
        significant(kernel.share()?.per_s, 2),
        time(kernel.one.null_ns)
    )))
}

#[cfg(test)]
pub(crate) use rows::tests;
