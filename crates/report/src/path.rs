//! The whole path in one picture: every stage with what was measured, the limit beside it, and which one is the slowest.

use std::fmt::Write;

use daqmeter_record::RunRecord;
use daqmeter_record::units::significant;
use daqmeter_stats::share;

use crate::families::FAMILIES;
use crate::family::{Place, Segment};
use crate::rate;
use crate::svg::escaped;

/// The path as far as the records know it, from the device to the consumer; empty where fewer than two parts of it were measured.
/// What failed, and rates that are above their limit, are not part of it.
pub fn path(records: &[RunRecord]) -> Vec<Segment> {
    let records = &*rate::usable(records);
    let parts = FAMILIES.iter().flat_map(|family| family.segments);
    let mut segments: Vec<Segment> = parts.filter_map(|part| part(records)).collect();
    if segments.len() < 2 {
        return Vec::new();
    }
    segments.sort_by_key(|segment| segment.into);
    if let [slowest] = slowest_of(&segments)[..] {
        segments[slowest].slowest = true;
    }
    segments
}

/// Places of the stages of which each may be the slowest: the one with the lowest rate, first, and those whose rates differ from it by
/// no more than their intervals and the moment between two measurements explain.
fn slowest_of(segments: &[Segment]) -> Vec<usize> {
    // Storage stands beside the device, not behind it: it is shown, but data does not have to pass it.
    let of_host = |at: &usize| !segments[*at].emulated && segments[*at].into != Place::Replay;
    let mut places: Vec<usize> = (0..segments.len()).filter(of_host).collect();
    places.sort_by(|a, b| {
        segments[*a]
            .rate_bytes_per_s
            .total_cmp(&segments[*b].rate_bytes_per_s)
    });
    let Some(&lowest) = places.first() else {
        return places;
    };
    let is_faster = |at: usize| {
        share(segments[at].rate(), segments[lowest].rate()).is_some_and(|share| share.is_above)
    };
    places.retain(|&at| at == lowest || !is_faster(at));
    places
}

fn mb(rate: f64) -> String {
    significant(rate / 1e6, 3)
}

/// Which stage is the slowest, and why, in words.
pub fn slowest(segments: &[Segment]) -> Option<String> {
    let Some(slowest) = segments.iter().find(|segment| segment.slowest) else {
        return undecided(segments);
    };
    let mut out = format!(
        "{} at {} of one core",
        slowest.by,
        rate::spoken(slowest.rate())
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

/// The stages between which the intervals do not decide.
fn undecided(segments: &[Segment]) -> Option<String> {
    let rivals: Vec<String> = slowest_of(segments)
        .into_iter()
        .map(|at| {
            format!(
                "{} at {}",
                segments[at].by,
                rate::spoken(segments[at].rate())
            )
        })
        .collect();
    (!rivals.is_empty()).then(|| {
        format!(
            "cannot tell: {} are equally slow within their intervals",
            rivals.join(" and ")
        )
    })
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
const ROW: usize = 78;
/// Where the first place stands.
const TOP: usize = 8;
/// Where the text and the bars of a stage begin. The whole picture is 460 wide, so that it is legible on a telephone.
const LEFT: usize = 122;
/// Width of the longest bar.
const BAR: f64 = 320.0;

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
    let foot = TOP + segments.len() * ROW + 40;
    let height = foot + 34;
    let spoken: Vec<String> = segments.iter().map(spoken).collect();
    let mut out = format!(
        "<svg class=\"path\" viewBox=\"0 0 460 {height}\" role=\"img\" aria-label=\"The path of the data. {}\">",
        escaped(&spoken.join(". "))
    );
    out.push_str(&node(TOP, "device"));
    for (at, segment) in segments.iter().enumerate() {
        let y = TOP + at * ROW;
        out.push_str(&arrow(y, segment));
        out.push_str(&node(y + ROW, segment.into.name()));
        out.push_str(&heading(y + 34, segment));
        out.push_str(&numbers(y + 51, segment));
        out.push_str(&bars(y + 58, segment, highest));
    }
    out.push_str(&axis(foot, highest));
    out.push_str("</svg>");
    out
}

/// The axis of the bars: zero, and round rates up to the highest.
fn axis(y: usize, highest: f64) -> String {
    let step = round_step(highest);
    let mut out = format!("<path class=\"axis\" d=\"M{LEFT} {y} h{BAR}\"/>");
    let ticks = (0..=4).map(|at| f64::from(at) * step);
    for rate in ticks.take_while(|rate| *rate <= highest) {
        let x = LEFT as f64 + rate / highest * BAR;
        let unit = if rate == 0.0 { "" } else { " MB/s" };
        let _ = write!(
            out,
            "<path class=\"axis\" d=\"M{x:.1} {y} v5\"/><text class=\"tick\" x=\"{x:.1}\" y=\"{}\">{}{unit}</text>",
            y + 18,
            mb(rate)
        );
    }
    out
}

/// Distance of ticks: 1, 2 or 5 times a power of ten, so that there are two to four above zero.
fn round_step(highest: f64) -> f64 {
    let rough = highest / 4.0;
    let power = 10_f64.powf(rough.log10().floor());
    let fits = |step: &f64| step * power >= rough;
    [1.0, 2.0, 5.0, 10.0].into_iter().find(fits).unwrap_or(10.0) * power
}

/// A place where data is.
fn node(y: usize, name: &str) -> String {
    format!(
        "<rect class=\"node\" x=\"8\" y=\"{y}\" width=\"100\" height=\"30\" rx=\"5\"/><text class=\"place\" x=\"58\" y=\"{}\">{}</text>",
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
        "<path class=\"{class}\" d=\"M58 {from} V{tip}\"/><path class=\"{class} head\" d=\"M53 {barb} L58 {tip} L63 {barb}\"/>"
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

/// Bars of limit and rate, from zero.
fn bars(y: usize, segment: &Segment, highest: f64) -> String {
    let bar = |class: &str, rate: f64| {
        let width = rate / highest * BAR;
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
        "<text class=\"number\" x=\"{LEFT}\" y=\"{y}\"><tspan class=\"strong\">{} MB/s</tspan> · {limit}{share}</text>",
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
            "TCP stream, 64 KiB messages at 2500 MB/s (2500 - 2500) of one core, 25 % of what memory allows there: its own instructions and waits are the \
             limit, so that larger blocks, better software or more cores help; the modelled boards bring 625 MB/s, so the link to them is the limit, not this host"
        );
    }

    /// Five surveys of one host named three stages, between which their intervals did not decide.
    #[test]
    fn stages_that_the_intervals_do_not_part_are_all_named_and_none_is_marked() {
        let mut records = host();
        // As fast as the network, and a little more: 2 % are within the moment between two measurements.
        records[1].lanes[0].stages[0].sample_ns = vec![392_000; 9];
        let segments = path(&records);
        assert!(segments.iter().all(|segment| !segment.slowest));
        let said = slowest(&segments).unwrap();
        assert!(
            said.starts_with(
                "cannot tell: TCP stream, 64 KiB messages at 2500 MB/s (2500 - 2500) and "
            ),
            "{said}"
        );
        assert!(
            said.ends_with(" at 2551 MB/s (2551 - 2551) are equally slow within their intervals"),
            "{said}"
        );
    }

    #[test]
    fn the_bars_begin_at_zero_and_have_an_axis_of_round_rates() {
        assert_eq!(
            [1.0, 9.9, 35.0, 4100.0].map(round_step),
            [0.5, 5.0, 10.0, 2000.0]
        );
        let picture = svg(&path(&host()));
        // The highest limit is 10 GB/s: a bar of 2.5 GB/s is a quarter of its length.
        assert!(
            picture.contains("class=\"rate slowest\" x=\"122\"")
                && picture.contains("width=\"80.0\""),
            "{picture}"
        );
        assert!(
            picture.contains(">5000 MB/s</text>") || picture.contains(">5e3 MB/s</text>"),
            "{picture}"
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
        assert!(
            svg(&path(&host()[..1])).is_empty(),
            "one stage is not a path"
        );
    }
}
