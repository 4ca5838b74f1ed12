//! Rates by size: memory against footprint, the limit of all other stages; block devices and
//! streams by the size of one read or message.

use daqmeter_record::RunRecord;

use crate::family::{Counsel, Family, Work, of_engine};
use crate::figures::{Axis, ChartKind, Mark, Plot};
use crate::parameters::labelled;
use crate::rate;
use crate::samples::first_stage;

pub(super) const MEMORY: Family = Family {
    engines: &[("memory", Work::Cpu)],
    plots: &[Plot {
        id: "memory",
        title: "Memory: the limit under everything",
        caption: "Bytes read and written together, best of all kinds of stores, one thread. The steps are the caches; a stage \
                  can be no faster than the curve of its own ratio at its own footprint.",
        kind: ChartKind::Lines,
        x: Axis::log_bytes("footprint"),
        y: Axis::log("MB/s read + written"),
        marks: memory,
    }],
    advice: &[Counsel { what: "give buffers huge pages", evidence: huge_pages }],
    ..Family::EMPTY
};

pub(super) const HOSTIO: Family = Family {
    engines: &[("block", Work::Path), ("stream", Work::Path)],
    plots: &[
        Plot {
            id: "block",
            title: "Storage: reads by block",
            caption: "Sequential reads of one block at a time. Past the page cache: the device. Out of it: a copy by the kernel, \
                      with the plain copy as its limit. Nothing is written.",
            kind: ChartKind::Lines,
            x: Axis::log_bytes("block"),
            y: Axis::log("MB/s"),
            marks: |records| by_size(records, "block", "block_bytes"),
        },
        Plot {
            id: "stream",
            title: "Network: streams by message",
            caption: "TCP on loopback, a thread at each end, and the limit: the one copy of each byte that each end has to make.",
            kind: ChartKind::Lines,
            x: Axis::log_bytes("message"),
            y: Axis::log("MB/s"),
            marks: |records| by_size(records, "stream", "message_bytes"),
        },
    ],
    ..Family::EMPTY
};

const RATIO: [&str; 3] = ["read_bytes", "read_lines", "write_lines"];

fn memory(records: &[RunRecord]) -> Vec<Mark<'_>> {
    let ratio = |record: &RunRecord| RATIO.map(|name| record.workload.int(name).unwrap_or(0));
    let name = |record: &RunRecord| match ratio(record) {
        [_, _, 0] => "read".to_owned(),
        [_, 1, 1] => "copy".to_owned(),
        [_, reads, writes] => format!("{reads} read : {writes} written"),
    };
    let drawn = of_engine(records, "memory").filter(|record| ratio(record)[0] > 0);
    let marks =
        labelled(drawn.collect(), name, &RATIO).into_iter().filter_map(|(record, label)| {
            // The best store of each point is the limit.
            let rates = record.lanes[0].stages.iter().filter_map(rate::of);
            let rate = rates.max_by(|a, b| a.per_s.total_cmp(&b.per_s))?;
            let [bytes, reads, writes] = ratio(record);
            let moved = 1.0 + writes as f64 / reads.max(1) as f64;
            Some(Mark::rate(record, &label, bytes as f64 * moved, rate.times(moved)))
        });
    let mut marks: Vec<Mark<'_>> = marks.collect();
    marks.sort_by(|a, b| a.series.cmp(&b.series));
    marks
}

/// Finds buffers of this run that lacked huge pages. With `madvise` daqmeter requests them itself.
fn huge_pages(records: &[RunRecord]) -> Option<String> {
    let pages = &records.first()?.host.transparent_huge_pages;
    let first = of_engine(records, "memory").next()?;
    let is_short = first.warnings.iter().any(|warning| warning.contains("page"));
    (is_short && pages != "always").then(|| {
        format!(
            "buffers fell back to base pages; transparent: {pages}; vm.nr_hugepages reserves some"
        )
    })
}

fn by_size<'a>(records: &'a [RunRecord], engine: &'a str, size: &str) -> Vec<Mark<'a>> {
    let first =
        |record: &RunRecord| first_stage(record).map_or("", |stage| &*stage.name).to_owned();
    let sized = of_engine(records, engine).filter(|record| record.workload.int(size).is_ok());
    let mut marks = Vec::new();
    for (record, label) in labelled(sized.collect(), first, &[size]) {
        let distinction = label.strip_prefix(&first(record)).unwrap_or_default();
        let bytes = record.workload.int(size).unwrap_or(0) as f64;
        for stage in &record.lanes[0].stages {
            let Some(rate) = rate::of(stage) else { continue };
            let label = format!("{}{distinction}", stage.name);
            marks.push(Mark::rate(record, &label, bytes, rate));
            marks.extend(rate::limit_of(record, stage).map(|limit| {
                let rate = limit.rate_bytes_per_s / 1e6;
                Mark::at(record, format!("limit of {label}"), bytes, rate).into_limit()
            }));
        }
    }
    marks
}
