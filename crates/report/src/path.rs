//! The whole path in one picture: every stage with what was measured, the limit beside it, and which one is the slowest.

use std::fmt::Write;

use daqmeter_record::RunRecord;
use daqmeter_record::units::significant;

use crate::families::FAMILIES;
use crate::family::{Place, Segment};
use crate::rate;
use crate::svg::escaped;

/// The path as far as the records know it, from the device to the consumer; empty where fewer than two parts of it were measured.
/// What failed, and rates that are above their limit, are no part of it.
pub fn path(records: &[RunRecord]) -> Vec<Segment> {
    let records = &*rate::usable(records);
    let parts = FAMILIES.iter().flat_map(|family| family.segments);
    let mut segments: Vec<Segment> = parts.filter_map(|part| part(records)).collect();
    if segments.len() < 2 {
        return Vec::new();
    }
    segments.sort_by_key(|segment| segment.into);
    // Storage stands beside the device, not behind it: it is shown, but data does not have to pass it.
    let slowest = segments
        .iter_mut()
        .filter(|segment| !segment.emulated && segment.into != Place::Replay)
        .min_by(|a, b| a.rate_bytes_per_s.total_cmp(&b.rate_bytes_per_s));
    if let Some(segment) = slowest {
        segment.slowest = true;
    }
    segments
}

fn mb(rate: f64) -> String {
    significant(rate / 1e6, 3)
}

/// Which stage is the slowest, and why, in words.
pub fn slowest(segments: &[Segment]) -> Option<String> {
    let slowest = segments.iter().find(|segment| segment.slowest)?;
    let mut out = format!(
        "{} at {} MB/s of one core",
        slowest.by,
        mb(slowest.rate_bytes_per_s)
    );
    if let Some(fraction) = slowest.fraction {
        let percent = fraction * 100.0;
        let why = if fraction >= 0.85 {
            "only fewer bytes, or more cores, make it faster"
        } else {
            "its own instructions and waits are the limit, so that larger blocks, better software or more cores help"
        };
        let _ = write!(out, ", {percent:.0} % of what memory allows there: {why}");
    }
    let mut devices = segments
        .iter()
        .filter(|segment| segment.into == Place::HostBuffer);
    if let Some(devices) = devices.next() {
        out.push_str(&beside_devices(devices, slowest));
    }
    Some(out)
}

/// What the boards bring, beside what the slowest stage takes.
fn beside_devices(devices: &Segment, slowest: &Segment) -> String {
    let boards = if devices.emulated {
        "the modelled boards"
    } else {
        "the boards"
    };
    let rate = mb(devices.rate_bytes_per_s);
    let cores = devices.rate_bytes_per_s / slowest.rate_bytes_per_s;
    if cores < 1.0 {
        format!("; {boards} bring {rate} MB/s, so the link to them is the limit, not this host")
    } else {
        let cores = cores.ceil();
        format!("; {boards} bring {rate} MB/s, more than one core takes: {cores} cores are needed")
    }
}

/// Height of one stage in the picture.
const ROW: usize = 66;
/// Where the first place stands.
const TOP: usize = 8;
/// Where the text and the bars of a stage begin.
const LEFT: usize = 160;

/// The picture: boxes for where data is, arrows for what moves it, on each its rate, its limit and the share.
pub fn svg(segments: &[Segment]) -> String {
    if segments.is_empty() {
        return String::new();
    }
    let highest = segments
        .iter()
        .map(|segment| {
            let limit = segment.limit_bytes_per_s.unwrap_or(0.0);
            limit.max(segment.rate_bytes_per_s)
        })
        .fold(1.0, f64::max);
    let height = segments.len() * ROW + 54;
    let spoken: Vec<String> = segments.iter().map(spoken).collect();
    let mut out = format!(
        "<svg class=\"path\" viewBox=\"0 0 900 {height}\" role=\"img\" aria-label=\"The path of the data. {}\">",
        escaped(&spoken.join(". "))
    );
    out.push_str(&node(TOP, "device"));
    for (at, segment) in segments.iter().enumerate() {
        let y = TOP + at * ROW;
        out.push_str(&arrow(y, segment));
        out.push_str(&node(y + ROW, segment.into.name()));
        out.push_str(&heading(y + 40, segment));
        out.push_str(&bars(y + 46, segment, highest));
        out.push_str(&numbers(y + 55, segment));
    }
    out.push_str("</svg>");
    out
}

/// A place where data is.
fn node(y: usize, name: &str) -> String {
    format!(
        "<rect class=\"node\" x=\"8\" y=\"{y}\" width=\"128\" height=\"30\" rx=\"5\"/><text class=\"place\" x=\"72\" y=\"{}\">{}</text>",
        y + 20,
        escaped(name)
    )
}

fn arrow(y: usize, segment: &Segment) -> String {
    let class = match (segment.slowest, segment.emulated) {
        (true, _) => "edge slowest",
        (false, true) => "edge modelled",
        (false, false) => "edge",
    };
    let (from, barb, tip) = (y + 30, y + ROW - 9, y + ROW - 2);
    format!(
        "<path class=\"{class}\" d=\"M72 {from} V{tip}\"/><path class=\"{class} head\" d=\"M67 {barb} L72 {tip} L77 {barb}\"/>"
    )
}

fn heading(y: usize, segment: &Segment) -> String {
    let mark = if segment.slowest {
        " ◀ slowest stage"
    } else {
        ""
    };
    format!(
        "<text class=\"by\" x=\"{LEFT}\" y=\"{y}\">{}<tspan class=\"first\">{mark}</tspan></text>",
        escaped(&segment.by)
    )
}

/// Bars of limit and rate. Logarithmic: what matters is by how much stages differ, not by how many bytes.
fn bars(y: usize, segment: &Segment, highest: f64) -> String {
    let bar = |class: &str, rate: f64| {
        let width = ((rate / highest).max(1e-3).log10() / 3.0 + 1.0) * 330.0;
        format!(
            "<rect class=\"{class}\" x=\"{LEFT}\" y=\"{y}\" width=\"{width:.1}\" height=\"9\"/>"
        )
    };
    let limit = segment.limit_bytes_per_s;
    let class = if segment.slowest {
        "rate slowest"
    } else {
        "rate"
    };
    limit.map_or_else(String::new, |limit| bar("limit", limit))
        + &bar(class, segment.rate_bytes_per_s)
}

fn numbers(y: usize, segment: &Segment) -> String {
    let limit = segment.limit_bytes_per_s;
    let limit = limit.map_or("no limit known".to_owned(), |limit| {
        format!("limit {} MB/s", mb(limit))
    });
    let share = segment.fraction.map_or(String::new(), |fraction| {
        format!(" · {:.0} %", fraction * 100.0)
    });
    format!(
        "<text class=\"number\" x=\"510\" y=\"{y}\"><tspan class=\"strong\">{} MB/s</tspan> · {limit}{share}</text>",
        mb(segment.rate_bytes_per_s)
    )
}

fn spoken(segment: &Segment) -> String {
    let limit = segment.limit_bytes_per_s.map_or(String::new(), |limit| {
        format!(" of {} MB/s possible", mb(limit))
    });
    let slowest = if segment.slowest {
        ", the slowest stage"
    } else {
        ""
    };
    format!(
        "Into {}: {}, {} MB/s{limit}{slowest}",
        segment.into.name(),
        segment.by,
        mb(segment.rate_bytes_per_s)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use daqmeter_record::Workload;

    use crate::examples::record;

    fn host() -> Vec<RunRecord> {
        let with = |kind: &str| Workload::new(kind);
        let mut boards = record(
            "digitizer",
            with("digitizer"),
            "survey/readout",
            "func_readout",
            1_600_000,
        );
        boards.engine.emulated = true;
        vec![
            boards,
            record(
                "convert",
                with("convert").with("function", 3_u64),
                "survey/conversion",
                "func_sca",
                110_000,
            ),
            record(
                "stream",
                with("stream").with("message_bytes", 65_536_u64),
                "survey/network",
                "receive",
                400_000,
            ),
            record(
                "stream",
                with("stream").with("message_bytes", 4096_u64),
                "survey/network",
                "receive",
                900_000,
            ),
            record(
                "block",
                with("block").with("path", "/dev/<b>"),
                "survey/storage",
                "read, direct",
                2_000_000,
            ),
            record(
                "memory",
                with("memory")
                    .with("read_bytes", 1_u64 << 26)
                    .with("write_lines", 0_u64),
                "survey/memory",
                "avx2",
                101_000,
            ),
        ]
    }

    #[test]
    fn the_slowest_stage_is_neither_the_model_nor_the_disk() {
        let segments = path(&host());
        assert_eq!(
            segments
                .iter()
                .map(|segment| segment.into.name())
                .collect::<Vec<_>>(),
            [
                "host buffer",
                "or from disk",
                "samples",
                "network",
                "consumer"
            ]
        );
        let marked: Vec<&Segment> = segments.iter().filter(|segment| segment.slowest).collect();
        assert_eq!(
            (marked.len(), marked[0].into, marked[0].fraction),
            (1, Place::Network, Some(0.25))
        );
        assert_eq!(
            slowest(&segments).unwrap(),
            "TCP stream, 64 KiB messages at 2500 MB/s of one core, 25 % of what memory allows there: its own instructions and waits are the \
             limit, so that larger blocks, better software or more cores help; the modelled boards bring 625 MB/s, so the link to them is the limit, not this host"
        );
    }

    #[test]
    fn what_failed_or_is_above_its_limit_is_no_part_of_the_path() {
        let mut records = host();
        records[2].outcome = daqmeter_record::Outcome::Failed("bytes differ".into());
        // 1 MB in 30 us beside a limit of 10 GB/s.
        records[1].lanes[0].stages[0].sample_ns = vec![30_000; 9];
        let segments = path(&records);
        assert!(
            !segments
                .iter()
                .any(|segment| segment.into == Place::Samples),
            "{segments:?}"
        );
        let network = segments
            .iter()
            .find(|segment| segment.into == Place::Network)
            .unwrap();
        assert!(
            network.by.contains("4 KiB messages") && network.slowest,
            "the other size is left: {network:?}"
        );
    }

    #[test]
    fn the_picture_says_in_words_what_it_shows_and_takes_no_markup_from_names() {
        let picture = svg(&path(&host()));
        assert!(
            picture.contains("slowest stage")
                && picture.contains("aria-label")
                && !picture.contains("<b>")
        );
        insta::assert_snapshot!(picture.replace("><", ">\n<"));
        assert!(svg(&path(&host()[..1])).is_empty(), "one stage is no path");
    }
}
