//! Memory rates against footprint: the limit of all other stages.

use daqmeter_record::RunRecord;

use crate::family::{Advice, Family, Work, of_engine};
use crate::figures::{Axis, Figure, Plot, add_banded};
use crate::parameters::distinguished;
use crate::rate;

pub(super) const FAMILY: Family = Family {
    engines: &[(ENGINE, Work::Cpu)],
    figures: &[figure],
    advice: &[huge_pages],
    ..Family::EMPTY
};

const ENGINE: &str = "memory";

const MEMORY: Plot = Plot {
    id: "memory",
    title: "Memory: the limit under everything",
    caption: "Bytes read and written together, best of all kinds of stores, one thread. The steps are the caches; a stage \
              can be no faster than the curve of its own ratio at its own footprint.",
    x: Axis::log_bytes("footprint"),
    y: Axis::log("MB/s read + written"),
};

/// Returns the bytes read, and the lines read and written in turn.
fn ratio(record: &RunRecord) -> Option<[u64; 3]> {
    let [bytes, reads, writes] =
        ["read_bytes", "read_lines", "write_lines"].map(|name| record.workload.int(name).ok());
    Some([bytes?, reads?, writes?])
}

fn name([_, reads, writes]: [u64; 3]) -> String {
    match (reads, writes) {
        (_, 0) => "read".to_owned(),
        (1, 1) => "copy".to_owned(),
        _ => format!("{reads} read : {writes} written"),
    }
}

fn figure(records: &[RunRecord]) -> Option<Figure> {
    let drawn: Vec<&RunRecord> =
        of_engine(records, ENGINE).filter(|record| ratio(record).is_some()).collect();
    let ratios: Vec<[u64; 3]> = drawn.iter().filter_map(|record| ratio(record)).collect();
    let names: Vec<String> = ratios.iter().copied().map(name).collect();
    let labels = distinguished(&drawn, &names, &["read_bytes", "read_lines", "write_lines"]);
    let mut curves = Vec::new();
    for ((record, [bytes, reads, writes]), label) in drawn.iter().zip(ratios).zip(&labels) {
        // The best store of each point is the limit.
        let rates = record.lanes[0].stages.iter().filter_map(rate::of);
        let Some(rate) = rates.max_by(|a, b| a.per_s.total_cmp(&b.per_s)) else {
            continue;
        };
        let moved = 1.0 + writes as f64 / reads.max(1) as f64;
        let rate = rate.times(moved * 1e-6);
        add_banded(&mut curves, label, (bytes as f64 * moved, rate.per_s), rate.interval);
    }
    curves.sort_by(|a, b| a.label.cmp(&b.label));
    MEMORY.curves(curves, drawn)
}

/// Advises huge pages if buffers of this run lacked them. With `madvise` daqmeter requests them
/// itself.
fn huge_pages(records: &[RunRecord]) -> Option<Advice> {
    let host = &records.first()?.host;
    let first = of_engine(records, ENGINE).next()?;
    let is_short = first.warnings.iter().any(|warning| warning.contains("page"));
    (is_short && host.transparent_huge_pages != "always").then(|| Advice {
        what: format!(
            "give buffers huge pages (transparent: {}); reserve some with vm.nr_hugepages",
            host.transparent_huge_pages
        ),
        evidence: "buffers of this run fell back to base pages".to_owned(),
    })
}
