//! The whole path in one picture: every stage with what was measured, the limit beside it, and which one gives out first.

use std::fmt::Write;

use daqmeter_record::units::{show_bytes, significant};
use daqmeter_record::{RunRecord, Stage};
use daqmeter_stats::{Rate, share};
use serde::Serialize;

use crate::rate;

/// A part of the way that data takes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Segment {
    /// Where data is afterwards, for the picture: `host buffer`, `samples`.
    pub into: &'static str,
    /// What moves it.
    pub by: String,
    /// Bytes per second that one thread, or all boards together, move.
    pub rate_bytes_per_s: f64,
    /// The physical limit measured beside it.
    pub limit_bytes_per_s: Option<f64>,
    /// Rate over limit, both by one definition.
    pub fraction: Option<f64>,
    /// True where a model of hardware moves it: that says nothing of this host.
    pub emulated: bool,
    /// True for the stage that gives out first on the way through this host.
    pub weakest: bool,
    /// Anchor of its figure.
    pub figure: &'static str,
}

/// The path as far as the records know it, from the device to the consumer; empty where fewer than two parts of it were measured.
/// What failed, and rates that are above their limit, are no part of it.
pub fn path(records: &[RunRecord]) -> Vec<Segment> {
    let records = &*rate::usable(records);
    let all = [
        devices(records),
        storage(records),
        kernel(records),
        conversion(records),
        decoding(records),
        network(records),
        consumer(records),
    ];
    let mut segments: Vec<Segment> = all.into_iter().flatten().collect();
    // Storage stands beside the device, not behind it: it is shown, but data does not have to pass it.
    let on_the_way = segments
        .iter()
        .enumerate()
        .filter(|(_, segment)| !segment.emulated && segment.figure != "block");
    let weakest = on_the_way
        .min_by(|(_, a), (_, b)| a.rate_bytes_per_s.total_cmp(&b.rate_bytes_per_s))
        .map(|(at, _)| at);
    if segments.len() < 2 {
        return Vec::new();
    }
    if let Some(at) = weakest {
        segments[at].weakest = true;
    }
    segments
}

fn of<'a>(records: &'a [RunRecord], engine: &'a str) -> impl Iterator<Item = &'a RunRecord> {
    records
        .iter()
        .filter(move |record| record.engine.name == engine && !record.lanes.is_empty())
}

/// A rate, its limit, and their ratio.
#[derive(Clone, Copy, Debug)]
struct Found {
    rate: f64,
    limit: Option<f64>,
    fraction: Option<f64>,
}

impl Found {
    /// Of a rate and a limit that are by one definition.
    fn new(rate: f64, limit: Option<f64>) -> Found {
        let share = limit.and_then(|limit| share(Rate::exactly(rate), Rate::exactly(limit)));
        Found {
            rate,
            limit,
            fraction: share.map(|share| share.fraction),
        }
    }
}

/// Sustained rate of a stage, and its limit.
fn found(record: &RunRecord, stage: &Stage) -> Option<Found> {
    let held = rate::held(record, stage);
    let rate = rate::of(stage)?.per_s;
    Some(Found {
        rate,
        limit: held.map(|held| held.limit.per_s),
        fraction: held.map(|held| held.share.fraction),
    })
}

fn segment(into: &'static str, by: String, found: Found, figure: &'static str) -> Segment {
    let Found {
        rate: rate_bytes_per_s,
        limit: limit_bytes_per_s,
        fraction,
    } = found;
    Segment {
        into,
        by,
        rate_bytes_per_s,
        limit_bytes_per_s,
        fraction,
        emulated: false,
        weakest: false,
        figure,
    }
}

/// The most boards at once, all lanes together; one thread a board.
fn devices(records: &[RunRecord]) -> Option<Segment> {
    // As long as all boards are read: all bytes over the whole time, not the sum of what each does at its best.
    let together = |record: &RunRecord| {
        let stages = record.lanes.iter().filter_map(|lane| {
            lane.stages
                .iter()
                .find(|stage| stage.name == "func_readout")
        });
        let bytes: f64 = stages
            .clone()
            .map(|stage| stage.rate_bytes_per_s() * stage.seconds())
            .sum();
        let end_s = stages.clone().map(|stage| stage.end_ns).max().unwrap_or(0) as f64 * 1e-9;
        let limit: Option<f64> = stages
            .map(|stage| Some(rate::limit_of(record, stage)?.rate_bytes_per_s))
            .sum();
        Found::new(if end_s > 0.0 { bytes / end_s } else { 0.0 }, limit)
    };
    let record = of(records, "digitizer")
        .filter(|record| record.study.contains("readout"))
        .max_by_key(|record| record.lanes.len())?;
    let boards = if record.lanes.len() == 1 {
        "1 board".to_owned()
    } else {
        format!("{} boards", record.lanes.len())
    };
    let together = together(record);
    let emulated = record.engine.emulated;
    let by = if emulated {
        format!("read-out of {boards} (emulated)")
    } else {
        format!("read-out of {boards}")
    };
    Some(Segment {
        emulated,
        ..segment("host buffer", by, together, "readout")
    })
    .filter(|segment| segment.rate_bytes_per_s > 0.0)
}

fn storage(records: &[RunRecord]) -> Option<Segment> {
    let direct = of(records, "block").filter(|record| !record.workload.flag("cached"));
    let best =
        direct.filter_map(|record| Some((record, found(record, record.lanes[0].stages.first()?)?)));
    let (record, found) = best.max_by(|a, b| a.1.rate.total_cmp(&b.1.rate))?;
    let device = record.workload.text("path").unwrap_or("disk").to_owned();
    // Of a file its name is enough.
    let device = if device.starts_with("/dev/") {
        device
    } else {
        device.rsplit('/').next().unwrap_or_default().to_owned() + " on disk"
    };
    Some(segment(
        "or from disk",
        format!("replay from {device}"),
        found,
        "block",
    ))
}

/// The copy out of the kernel at a megabyte, or the largest below.
fn kernel(records: &[RunRecord]) -> Option<Segment> {
    const USUAL: u64 = 1 << 20;
    let bytes = |record: &RunRecord| record.workload.int("block_bytes").unwrap_or(0);
    let copies = of(records, "copy").filter(|record| {
        let is = |name: &str, value: &str| record.workload.text(name) == Ok(value);
        is("path", "pread")
            && is("direction", "to")
            && bytes(record) <= USUAL
            && !record.workload.flag("cold")
    });
    let record = copies.max_by_key(|record| bytes(record))?;
    let stage = record.lanes[0]
        .stages
        .iter()
        .find(|stage| stage.bytes_per_op > 0)?;
    let own = found(record, stage)?;
    let plain = of(records, "copy")
        .find(|other| other.workload.text("path") == Ok("memcpy") && bytes(other) == bytes(record));
    let plain = plain.and_then(|other| {
        Some(
            found(
                other,
                other.lanes[0]
                    .stages
                    .iter()
                    .find(|stage| stage.bytes_per_op > 0)?,
            )?
            .rate,
        )
    });
    // Without a limit of its own it is held against the plain copy that was measured as a point.
    let found = if own.limit.is_some() {
        own
    } else {
        Found::new(own.rate, plain)
    };
    let by = format!("kernel copy, {} at a time", show_bytes(bytes(record)));
    Some(segment("user buffer", by, found, "copy-latency"))
}

/// Scaling to f32, which every crate does; else the first conversion there is.
fn conversion(records: &[RunRecord]) -> Option<Segment> {
    let mut all = of(records, "convert")
        .filter(|record| !record.study.contains("stores"))
        .collect::<Vec<_>>();
    all.sort_by_key(|record| record.workload.int("function") != Ok(3));
    let record = all.first()?;
    let stage = record.lanes[0].stages.first()?;
    let by = format!("conversion: {}", crate::rows::short(&stage.name));
    Some(segment("samples", by, found(record, stage)?, "conversion"))
}

fn decoding(records: &[RunRecord]) -> Option<Segment> {
    let all = of(records, "decode")
        .filter_map(|record| Some((record, found(record, record.lanes[0].stages.first()?)?)));
    let (record, found) = all.min_by(|a, b| a.1.rate.total_cmp(&b.1.rate))?;
    let by = format!(
        "FELIX decoding, {}",
        record.workload.text("scenario").unwrap_or("blocks")
    );
    Some(segment("chunks", by, found, "felix-cpu"))
}

/// The stream at the page size of the chains, 64 KiB, or the nearest to it.
fn network(records: &[RunRecord]) -> Option<Segment> {
    const USUAL: u64 = 64 << 10;
    let bytes = |record: &RunRecord| record.workload.int("message_bytes").unwrap_or(0);
    let record = of(records, "stream").min_by_key(|record| bytes(record).abs_diff(USUAL))?;
    let found = found(record, record.lanes[0].stages.first()?)?;
    Some(segment(
        "network",
        format!("TCP stream, {} messages", show_bytes(bytes(record))),
        found,
        "stream",
    ))
}

/// Reading once what lies in memory: the least that a consumer does.
fn consumer(records: &[RunRecord]) -> Option<Segment> {
    let reads = of(records, "memory").filter(|record| record.workload.int("write_lines") == Ok(0));
    let record = reads.max_by_key(|record| record.workload.int("read_bytes").unwrap_or(0))?;
    let rates = record.lanes[0]
        .stages
        .iter()
        .filter_map(|stage| found(record, stage));
    let best = rates.map(|found| found.rate).max_by(f64::total_cmp)?;
    let footprint = show_bytes(record.workload.int("read_bytes").unwrap_or(0));
    Some(segment(
        "consumer",
        format!("reading once, {footprint}"),
        Found::new(best, None),
        "memory",
    ))
}

/// Which stage gives out first, in words.
pub fn bottleneck(segments: &[Segment]) -> Option<String> {
    let weakest = segments.iter().find(|segment| segment.weakest)?;
    let mb = |rate: f64| significant(rate / 1e6, 3);
    let mut out = format!(
        "{} at {} MB/s of one core",
        weakest.by,
        mb(weakest.rate_bytes_per_s)
    );
    match weakest.fraction {
        Some(fraction) if fraction >= 0.85 => {
            let _ = write!(
                out,
                ", {:.0} % of what memory allows there: only fewer bytes, or more cores, make it faster",
                fraction * 100.0
            );
        }
        Some(fraction) => {
            let _ = write!(
                out,
                ", {:.0} % of what memory allows there: its own instructions and waits are the limit, so that larger blocks, better software or more cores help",
                fraction * 100.0
            );
        }
        None => {}
    }
    if let Some(devices) = segments.iter().find(|segment| segment.figure == "readout") {
        let what = if devices.emulated {
            "the modelled boards"
        } else {
            "the boards"
        };
        let compared = devices.rate_bytes_per_s / weakest.rate_bytes_per_s;
        if compared < 1.0 {
            let _ = write!(
                out,
                "; {what} bring {} MB/s, so the link to them gives out before this host does",
                mb(devices.rate_bytes_per_s)
            );
        } else {
            let _ = write!(
                out,
                "; {what} bring {} MB/s, more than one core takes: {} cores are needed",
                mb(devices.rate_bytes_per_s),
                compared.ceil()
            );
        }
    }
    Some(out)
}

/// The picture: boxes for where data is, arrows for what moves it, on each its rate, its limit and the share.
pub fn svg(segments: &[Segment]) -> String {
    /// Height of one stage, and where its arrow stands.
    const ROW: usize = 66;
    if segments.is_empty() {
        return String::new();
    }
    let most = segments
        .iter()
        .map(|segment| {
            segment
                .limit_bytes_per_s
                .unwrap_or(0.0)
                .max(segment.rate_bytes_per_s)
        })
        .fold(1.0, f64::max);
    let height = segments.len() * ROW + 54;
    let spoken: Vec<String> = segments.iter().map(spoken).collect();
    let mut out = format!(
        "<svg class=\"path\" viewBox=\"0 0 900 {height}\" role=\"img\" aria-label=\"The path of the data. {}\">",
        escaped(&spoken.join(". "))
    );
    let node = |out: &mut String, y: usize, name: &str| {
        let _ = write!(
            out,
            "<rect class=\"node\" x=\"8\" y=\"{y}\" width=\"128\" height=\"30\" rx=\"5\"/><text class=\"place\" x=\"72\" y=\"{}\">{}</text>",
            y + 20,
            escaped(name)
        );
    };
    node(&mut out, 8, "device");
    for (at, segment) in segments.iter().enumerate() {
        let y = 8 + at * ROW;
        let class = match (segment.weakest, segment.emulated) {
            (true, _) => "edge weakest",
            (false, true) => "edge modelled",
            (false, false) => "edge",
        };
        let _ = write!(
            out,
            "<path class=\"{class}\" d=\"M72 {} V{}\"/><path class=\"{class} head\" d=\"M67 {} L72 {} L77 {}\"/>",
            y + 30,
            y + ROW - 2,
            y + ROW - 9,
            y + ROW - 2,
            y + ROW - 9
        );
        node(&mut out, y + ROW, segment.into);
        // Logarithmic: what matters is by how much stages differ, not by how many bytes.
        let width = |rate: f64| ((rate / most).max(1e-3).log10() / 3.0 + 1.0) * 330.0;
        let (bar_y, text_y) = (y + 46, y + 40);
        let mb = |rate: f64| significant(rate / 1e6, 3);
        let mark = if segment.weakest {
            " ◀ gives out first"
        } else {
            ""
        };
        let _ = write!(
            out,
            "<text class=\"by\" x=\"160\" y=\"{text_y}\">{}<tspan class=\"first\">{mark}</tspan></text>",
            escaped(&segment.by)
        );
        if let Some(limit) = segment.limit_bytes_per_s {
            let _ = write!(
                out,
                "<rect class=\"limit\" x=\"160\" y=\"{bar_y}\" width=\"{:.1}\" height=\"9\"/>",
                width(limit)
            );
        }
        let _ = write!(
            out,
            "<rect class=\"rate{}\" x=\"160\" y=\"{bar_y}\" width=\"{:.1}\" height=\"9\"/>",
            if segment.weakest { " weakest" } else { "" },
            width(segment.rate_bytes_per_s)
        );
        let limit = segment
            .limit_bytes_per_s
            .map_or("no limit known".to_owned(), |limit| {
                format!("limit {} MB/s", mb(limit))
            });
        let share = segment.fraction.map_or(String::new(), |fraction| {
            format!(" · {:.0} %", fraction * 100.0)
        });
        let _ = write!(
            out,
            "<text class=\"number\" x=\"510\" y=\"{}\"><tspan class=\"strong\">{} MB/s</tspan> · {limit}{share}</text>",
            bar_y + 9,
            mb(segment.rate_bytes_per_s)
        );
    }
    out.push_str("</svg>");
    out
}

fn spoken(segment: &Segment) -> String {
    let mb = |rate: f64| significant(rate / 1e6, 3);
    let limit = segment.limit_bytes_per_s.map_or(String::new(), |limit| {
        format!(" of {} MB/s possible", mb(limit))
    });
    let first = if segment.weakest {
        ", gives out first"
    } else {
        ""
    };
    format!(
        "Into {}: {}, {} MB/s{limit}{first}",
        segment.into,
        segment.by,
        mb(segment.rate_bytes_per_s)
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use daqmeter_record::{EngineInfo, Lane, Limit, Workload};

    /// One lane, one stage of 1 MB that takes so many nanoseconds, with a limit of 10 GB/s.
    pub(crate) fn record(
        engine: &str,
        workload: Workload,
        study: &str,
        stage: &str,
        ns: u64,
    ) -> RunRecord {
        let mut record = RunRecord::new(
            EngineInfo {
                name: engine.into(),
                ..Default::default()
            },
            workload,
        );
        record.study = study.into();
        record.limits = vec![Limit::given("memory", 10e9, "")];
        let stage = Stage {
            name: stage.into(),
            ops_per_sample: 1,
            bytes_per_op: 1_000_000,
            limit: Some("memory".into()),
            end_ns: 9 * ns,
            sample_ns: vec![ns; 9],
            ..Stage::default()
        };
        record.lanes = vec![Lane {
            stages: vec![stage],
            ..Lane::default()
        }];
        record
    }

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
    fn the_stage_that_gives_out_first_is_neither_the_model_nor_the_disk() {
        let segments = path(&host());
        assert_eq!(
            segments
                .iter()
                .map(|segment| segment.into)
                .collect::<Vec<_>>(),
            [
                "host buffer",
                "or from disk",
                "samples",
                "network",
                "consumer"
            ]
        );
        let weakest: Vec<&Segment> = segments.iter().filter(|segment| segment.weakest).collect();
        assert_eq!(
            (weakest.len(), weakest[0].into, weakest[0].fraction),
            (1, "network", Some(0.25))
        );
        assert_eq!(
            bottleneck(&segments).unwrap(),
            "TCP stream, 64 KiB messages at 2500 MB/s of one core, 25 % of what memory allows there: its own instructions and waits are the \
             limit, so that larger blocks, better software or more cores help; the modelled boards bring 625 MB/s, so the link to them gives out before this host does"
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
            !segments.iter().any(|segment| segment.into == "samples"),
            "{segments:?}"
        );
        let network = segments
            .iter()
            .find(|segment| segment.into == "network")
            .unwrap();
        assert!(
            network.by.contains("4 KiB messages") && network.weakest,
            "the other size is left: {network:?}"
        );
    }

    #[test]
    fn the_picture_says_in_words_what_it_shows_and_takes_no_markup_from_names() {
        let picture = svg(&path(&host()));
        assert!(
            picture.contains("gives out first")
                && picture.contains("aria-label")
                && !picture.contains("<b>")
        );
        insta::assert_snapshot!(picture.replace("><", ">\n<"));
        assert!(svg(&path(&host()[..1])).is_empty(), "one stage is no path");
    }
}
