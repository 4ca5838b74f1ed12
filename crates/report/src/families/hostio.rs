//! Block devices and streams: rates by the size of one read or message.

use daqmeter_record::RunRecord;
use daqmeter_record::units::show_bytes;

use crate::family::{Advice, Family, Found, Place, Segment, Work, of_engine};
use crate::figures::{Axis, Curve, Figure, Texts, add_banded, curve, lines};
use crate::parameters::distinguished;
use crate::rate;
use crate::samples::first_stage;

pub(super) const FAMILY: Family = Family {
    engines: &[(BLOCK, Work::Path), (STREAM, Work::Path)],
    figures: &[block, stream],
    segments: &[storage, network],
    advice: &[congestion],
    ..Family::EMPTY
};

const BLOCK: &str = "block";
const STREAM: &str = "stream";
/// Parameters that are the horizontal axis of each.
const BLOCK_BYTES: &str = "block_bytes";
const MESSAGE_BYTES: &str = "message_bytes";

fn block(records: &[RunRecord]) -> Option<Figure> {
    let texts = Texts {
        id: "block",
        title: "Storage: reads by block",
        caption: "Sequential reads of one block at a time. Past the page cache: the device. Out of it: a copy by the kernel, with the plain copy as its limit. Nothing is written.",
    };
    by_size(records, (BLOCK, BLOCK_BYTES), texts, "block")
}

fn stream(records: &[RunRecord]) -> Option<Figure> {
    let texts = Texts {
        id: "stream",
        title: "Network: streams by message",
        caption: "TCP on loopback, a thread at each end, and the limit: the one copy of each byte that each end has to make.",
    };
    by_size(records, (STREAM, MESSAGE_BYTES), texts, "message")
}

fn by_size(
    records: &[RunRecord],
    (engine, parameter): (&str, &str),
    texts: Texts,
    x: &str,
) -> Option<Figure> {
    let sized = |record: &&RunRecord| record.workload.int(parameter).is_ok();
    let drawn: Vec<&RunRecord> = of_engine(records, engine).filter(sized).collect();
    let name = |record: &&RunRecord| {
        first_stage(record).map_or_else(String::new, |stage| stage.name.to_string())
    };
    let names: Vec<String> = drawn.iter().map(name).collect();
    let labels = distinguished(&drawn, &names, &[parameter]);
    let mut curves = Vec::new();
    for ((record, name), label) in drawn.iter().zip(&names).zip(&labels) {
        let distinction = label.strip_prefix(name.as_str()).unwrap_or_default();
        add_stages(&mut curves, record, parameter, distinction);
    }
    let axes = (Axis::log_bytes(x), Axis::log("MB/s"));
    let figure = lines(texts, axes.0, axes.1, curves);
    (figure.xs.len() > 1).then(|| figure.drawn_from(drawn))
}

/// The rate of each stage, and its limit.
fn add_stages(curves: &mut Vec<Curve>, record: &RunRecord, parameter: &str, distinction: &str) {
    let bytes = record.workload.int(parameter).unwrap_or(0) as f64;
    for stage in &record.lanes[0].stages {
        let Some(rate) = rate::of(stage).map(|rate| rate.times(1e-6)) else {
            continue;
        };
        let label = format!("{}{distinction}", stage.name);
        add_banded(curves, &label, (bytes, rate.per_s), rate.interval);
        if let Some(limit) = rate::limit_of(record, stage) {
            let limits = curve(curves, &format!("limit of {label}"));
            limits.limit = true;
            limits.points.push((bytes, limit.rate_bytes_per_s / 1e6));
        }
    }
}

/// The fastest read past the page cache.
fn storage(records: &[RunRecord]) -> Option<Segment> {
    let direct = of_engine(records, BLOCK).filter(|record| !record.workload.flag("cached"));
    let found =
        direct.filter_map(|record| Some((record, Found::of(record, first_stage(record)?)?)));
    let points: Vec<_> = found.collect();
    let fastest = points.iter().max_by(|a, b| a.1.rate.total_cmp(&b.1.rate))?;
    let (record, found) = (fastest.0, fastest.1);
    let path = record.workload.text("path").unwrap_or("disk");
    // Of a file its name is enough.
    let device = match path.strip_prefix("/dev/") {
        Some(_) => path.to_owned(),
        None => format!("{} on disk", path.rsplit('/').next().unwrap_or_default()),
    };
    let by = format!("replay from {device}{}", rate::of_several("fastest", points.len()));
    Some(Segment::new(Place::Replay, by, found))
}

/// The stream at the page size of the chains, 64 KiB, or the nearest to it.
fn network(records: &[RunRecord]) -> Option<Segment> {
    const USUAL: u64 = 64 << 10;
    let bytes = |record: &RunRecord| record.workload.int(MESSAGE_BYTES).unwrap_or(0);
    let record = of_engine(records, STREAM).min_by_key(|record| bytes(record).abs_diff(USUAL))?;
    let found = Found::of(record, first_stage(record)?)?;
    let by = format!("TCP stream, {} messages", show_bytes(bytes(record)));
    Some(Segment::new(Place::Network, by, found))
}

fn congestion(records: &[RunRecord]) -> Option<Advice> {
    // On loopback nothing is congested: this run cannot tell.
    let record = records.iter().find(|record| record.engine.name == STREAM)?;
    (record.host.congestion_control == "cubic").then(|| {
        Advice::unproven(
            "try another congestion control (bbr, dctcp) if pages cross a network that loses or marks packets"
                .to_owned(),
        )
    })
}
