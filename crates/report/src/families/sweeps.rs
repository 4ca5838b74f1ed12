//! Rates by size: memory against footprint, the limit of all other stages; block devices and
//! streams by the size of one read or message.

use daqmeter_record::{RunRecord, Stage};

use super::functions::short;
use crate::family::{Brief, Family, Work, of_engine, prefixed};
use crate::figures::{Mark, Plot};
use crate::parameters::labelled;
use crate::samples::first_stage;

pub(super) const MEMORY: Family = Family {
    engines: &[("memory", Work::Cpu)],
    plots: &[Plot { id: "memory", marks: memory }],
    briefs: &[memory_copy],
    ..Family::EMPTY
};

pub(super) const HOSTIO: Family = Family {
    engines: &[("block", Work::Disk), ("stream", Work::Streams)],
    plots: &[
        Plot { id: "block", marks: |records| by_parameter(records, "block", "block_bytes") },
        Plot { id: "block-span", marks: |records| by_parameter(records, "block", "span_bytes") },
        Plot { id: "stream", marks: |records| by_parameter(records, "stream", "message_bytes") },
    ],
    ..Family::EMPTY
};

const RATIO: [&str; 3] = ["read_bytes", "read_lines", "write_lines"];

fn ratio_of(record: &RunRecord) -> [u64; 3] {
    RATIO.map(|name| record.workload.int(name).unwrap_or(0))
}

/// Returns the rate of copies of the largest footprint, on one CPU and on all.
fn memory_copy(records: &[RunRecord]) -> Option<Brief> {
    let fastest = |record: &RunRecord| {
        let of_lane = record.lanes.iter().map(|lane| {
            let rates = lane.stages.iter().filter_map(|stage| Some(stage.rate()?.per_s));
            rates.fold(0.0, f64::max)
        });
        prefixed(of_lane.sum(), "B/s")
    };
    let copies = of_engine(records, "memory").filter(|record| ratio_of(record)[1..] == [1, 1]);
    let largest = |is_wanted: fn(usize) -> bool| {
        let wanted = copies.clone().filter(|record| is_wanted(record.lanes.len()));
        wanted.max_by_key(|record| (record.lanes.len(), ratio_of(record)[0]))
    };
    let one = fastest(largest(|lanes| lanes == 1)?);
    let all = largest(|lanes| lanes > 1).map_or(String::new(), |all| {
        let cpus = all.lanes.len();
        format!(", {} on {}", fastest(all), if cpus == 2 { "both" } else { "all" })
    });
    Some(Brief::Host(format!("memory copy {one} on one core{all}")))
}

fn memory(records: &[RunRecord]) -> Vec<Mark<'_>> {
    let name = |record: &RunRecord| match ratio_of(record) {
        [_, _, 0] => "read".to_owned(),
        [_, 1, 1] => "copy".to_owned(),
        [_, reads, writes] => format!("{reads} read : {writes} written"),
    };
    let of_one = of_engine(records, "memory").filter(|record| record.lanes.len() == 1);
    let points = labelled(of_one.collect(), name, &RATIO);
    let marks = points.into_iter().flat_map(|(record, label)| {
        let mark = move |stage: &'_ Stage| {
            let moved = stage.traffic_bytes_per_op as f64;
            let rate = stage.rate()?.times(moved / stage.bytes_per_op as f64);
            Some(Mark::rate(record, &format!("{label}, {}", stage.name), moved, rate))
        };
        record.lanes[0].stages.iter().filter_map(mark)
    });
    let mut marks: Vec<Mark<'_>> = marks.collect();
    marks.sort_by(|a, b| a.series.cmp(&b.series));
    marks
}

/// Draws the rate of each stage against a size, beside its limit. A series is a stage, with the
/// other parameters that distinguish it.
pub(super) fn by_parameter<'a>(
    records: &'a [RunRecord],
    engine: &'a str,
    size: &str,
) -> Vec<Mark<'a>> {
    let first = |record: &RunRecord| {
        first_stage(record).map_or_else(String::new, |stage| short(&stage.name))
    };
    let is_sized = |record: &&RunRecord| record.workload.int(size).is_ok_and(|bytes| bytes > 0);
    let sized = of_engine(records, engine).filter(is_sized);
    let mut marks = Vec::new();
    for (record, label) in labelled(sized.collect(), first, &[size]) {
        let distinction = label.strip_prefix(&first(record)).unwrap_or_default();
        let bytes = record.workload.int(size).unwrap_or(0) as f64;
        for stage in &record.lanes[0].stages {
            let Some(rate) = stage.rate() else { continue };
            let label = short(&stage.name) + distinction;
            let mark = Mark::rate(record, &label, bytes, rate);
            marks.extend(mark.with_limit(stage, &format!("limit of {label}")));
        }
    }
    marks
}

#[cfg(test)]
mod tests {
    use daqmeter_record::Workload;

    use crate::examples::record;

    #[test]
    fn reads_are_drawn_against_the_span_that_is_read_again() {
        let of = |span: u64, ns| {
            let asked = Workload::new("block").with("block_bytes", 4096_u64);
            record("block", asked.with("span_bytes", span), "test", "read, direct", ns)
        };
        let figures = super::super::figures(&[of(1 << 20, 100_000), of(1 << 30, 400_000)]);
        let figure = figures.iter().find(|figure| figure.id == "block-span").unwrap();
        assert_eq!(figure.xs, [1_048_576.0, 1_073_741_824.0]);
        assert_eq!(figure.series[0].ys, [Some(10_000.0), Some(2_500.0)]);
    }
}
