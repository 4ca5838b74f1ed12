//! Memory rates against footprint: the limit of everything else.

use daqmeter_record::units::show_bytes;
use daqmeter_record::{Host, RunRecord};

use crate::family::{Advice, Family, Found, Place, Segment, Work, of_engine};
use crate::figures::{Axis, Figure, Texts, add_banded, lines};
use crate::parameters::distinguished;
use crate::rate;

pub(super) const FAMILY: Family = Family {
    engines: &[(ENGINE, Work::Cpu)],
    figures: &[figure],
    segments: &[segment],
    advice: &[huge_pages],
    ..Family::EMPTY
};

const ENGINE: &str = "memory";

/// Bytes read, and the lines read and written in turn.
fn ratio(record: &RunRecord) -> Option<(u64, u64, u64)> {
    let int = |name: &str| record.workload.int(name).ok();
    Some((int("read_bytes")?, int("read_lines")?, int("write_lines")?))
}

fn name((_, reads, writes): (u64, u64, u64)) -> String {
    match (reads, writes) {
        (_, 0) => "read".to_owned(),
        (1, 1) => "copy".to_owned(),
        _ => format!("{reads} read : {writes} written"),
    }
}

fn figure(records: &[RunRecord]) -> Option<Figure> {
    let all = of_engine(records, ENGINE);
    let drawn: Vec<(&RunRecord, (u64, u64, u64))> =
        all.filter_map(|record| Some((record, ratio(record)?))).collect();
    let names: Vec<String> = drawn.iter().map(|(_, ratio)| name(*ratio)).collect();
    let drawn_records: Vec<&RunRecord> = drawn.iter().map(|(record, _)| *record).collect();
    let but = ["read_bytes", "read_lines", "write_lines"];
    let labels = distinguished(&drawn_records, &names, &but);
    let mut curves = Vec::new();
    for ((record, (bytes, reads, writes)), label) in drawn.iter().zip(&labels) {
        // The best store of each point: that is the limit.
        let rates = record.lanes[0].stages.iter().filter_map(rate::of);
        let Some(rate) = rates.max_by(|a, b| a.per_s.total_cmp(&b.per_s)) else {
            continue;
        };
        let moved = 1.0 + *writes as f64 / (*reads).max(1) as f64;
        let rate = rate.times(moved * 1e-6);
        let point = (*bytes as f64 * moved, rate.per_s);
        add_banded(&mut curves, label, point, rate.interval);
    }
    curves.sort_by(|a, b| a.label.cmp(&b.label));
    let texts = Texts {
        id: "memory",
        title: "Memory: the limit under everything",
        caption: "Bytes read and written together, best of all kinds of stores, one thread. The steps are the caches; a stage \
                  can be no faster than the curve of its own ratio at its own footprint.",
    };
    let (x, y) = (Axis::log_bytes("footprint"), Axis::log("MB/s read + written"));
    let figure = lines(texts, x, y, curves);
    (figure.xs.len() > 1).then(|| figure.drawn_from(drawn_records))
}

/// Reading once what lies in memory: the least that a consumer does.
fn segment(records: &[RunRecord]) -> Option<Segment> {
    let bytes = |record: &RunRecord| record.workload.int("read_bytes").unwrap_or(0);
    let reads =
        of_engine(records, ENGINE).filter(|record| record.workload.int("write_lines") == Ok(0));
    let record = reads.max_by_key(|record| bytes(record))?;
    let rates = record.lanes[0].stages.iter().filter_map(rate::of);
    let rates: Vec<f64> = rates.map(|rate| rate.per_s).collect();
    let best = rates.iter().copied().max_by(f64::total_cmp)?;
    let several = rate::of_several("fastest", rates.len());
    let by = format!("reading once, {}{several}", show_bytes(bytes(record)));
    Some(Segment::new(Place::Consumer, by, Found::new(best, None)))
}

/// Huge pages, by what the survey measured with and without them.
fn huge_pages(records: &[RunRecord]) -> Option<Advice> {
    let host: &Host = &records.first()?.host;
    if host.transparent_huge_pages == "always" {
        return None;
    }
    let what = format!(
        "give buffers huge pages (transparent: {}); reserve some with vm.nr_hugepages",
        host.transparent_huge_pages
    );
    let mut warnings =
        of_engine(records, ENGINE).next().into_iter().flat_map(|record| &record.warnings);
    if warnings.any(|warning| warning.contains("page")) {
        let evidence = "buffers of this run fell back to base pages".to_owned();
        return Some(Advice::measured(&what, evidence));
    }
    // With `madvise` daqmeter asks for them itself, and so should a program under test.
    (host.transparent_huge_pages != "madvise").then(|| Advice::unproven(what))
}
