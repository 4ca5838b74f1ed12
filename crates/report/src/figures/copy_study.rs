//! Figures 2.1 to 2.50 of the study of copies (reference 1.9), drawn from any records.

use daqmeter_record::RunRecord;

use super::{Axis, ChartKind, Figure, Mark, drawn};
use crate::copy::{CopyRow, MIB, PollutionRow, copy_rows, pollution_rows, traced_sizes};

#[derive(Clone, Copy)]
enum Content {
    /// Mean latency against block size, by context.
    Latency { cold: bool },
    /// Sum of the channels' rates against block size, by context.
    Total,
    /// Rate of each channel under the priority policy.
    Channels,
    /// Calls in 100 s by block size.
    Calls(&'static [&'static str]),
    /// Mean cache-miss percentage or mean execution time of each program, by neighbour.
    Programs { small: bool, misses: bool },
}

/// Figure of the study without its number.
#[derive(Clone, Copy)]
struct StudyFigure {
    content: Content,
    /// Direction, or the neighbour's copies.
    copies: &'static str,
    load: &'static str,
}

/// Figure 2.36 is captioned 16,064 B in the study and described as 1448 B in its text; the text
/// fits its place. The "huge" images, whose figures the study does not name, are with the large
/// ones.
const COPIES: [&str; 6] = ["both 16", "from 224", "from 1124", "from 16064", "to 1448", "to 4096"];
const OPERATIONS: [&[&str]; 6] = [
    &["copy_from_user"],
    &["copy_to_user"],
    &["__copy_from_user"],
    &["__copy_to_user"],
    &["copy_from_user", "__copy_from_user"],
    &["copy_to_user", "__copy_to_user"],
];
/// Time over which the study counted calls.
const CALLS_SECONDS: f64 = 100.0;
const NAMES: [(&str, &str); 9] = [
    ("cpu", "CPU"),
    ("exclusive", "DMA Excl"),
    ("shared", "DMA Sh"),
    ("priority", "DMA Prio"),
    ("ideal", "Ideal"),
    ("dma", "DMA"),
    ("spin", "spin (control)"),
    ("null-call", "null call (control)"),
    ("both", "copy_from_user + copy_to_user"),
];

fn shown(name: &str) -> &str {
    NAMES.iter().find(|(known, _)| *known == name).map_or(name, |(_, shown)| *shown)
}

/// Returns all 50 figures, in the order of their numbers.
fn figures() -> Vec<StudyFigure> {
    use Content::{Calls, Channels, Latency, Programs, Total};
    let loads = ["light", "heavy"];
    let of = |load: &'static str, directions: &[&'static str], content| {
        let figure = |copies: &&'static str| StudyFigure { content, copies, load };
        directions.iter().map(figure).collect::<Vec<_>>()
    };
    let colds = [false, true];
    let latencies = loads.iter().flat_map(|load| {
        colds.into_iter().flat_map(|cold| of(load, &["from", "to"], Latency { cold }))
    });
    let directions = ["from", "to", "both"];
    let totals = loads.iter().flat_map(|load| of(load, &directions, Total));
    let channels = loads.iter().flat_map(|load| of(load, &directions, Channels));
    let calls = OPERATIONS.iter().flat_map(|names| of("", &[""], Calls(names)));
    let programs = [true, false].into_iter().flat_map(|misses| {
        let pair = move |copies| [true, false].map(|small| (copies, Programs { small, misses }));
        COPIES.into_iter().flat_map(pair)
    });
    let programs = programs.flat_map(|(copies, content)| of("", &[copies], content));
    latencies.chain(totals).chain(channels).chain(calls).chain(programs).collect()
}

pub struct Drawn {
    pub title: String,
    pub figure: Option<Figure>,
    pub command: String,
}

/// Returns all 50 figures, in order.
pub fn study(records: &[RunRecord]) -> Vec<Drawn> {
    let (mut copies, programs) = (copy_rows(records), pollution_rows(records));
    copies.retain(|row| !row.is_clearing());
    let all = figures().into_iter().enumerate();
    all.map(|(at, figure)| figure.draw(at + 1, records, &copies, &programs)).collect()
}

/// Values of a figure: series, block or program, value.
type Points = Vec<(String, f64, String, f64)>;

struct Values {
    points: Points,
    y: &'static str,
    caption: String,
    emulated: bool,
}

impl StudyFigure {
    /// Returns title and command.
    fn words(&self) -> (String, String) {
        let StudyFigure { copies, load, .. } = self;
        let heavy = if *load == "heavy" { " --load heavy" } else { "" };
        let operation = match *copies {
            "both" => shown("both").to_owned(),
            direction => format!("copy_{direction}_user"),
        };
        match self.content {
            Content::Latency { cold } => {
                let (name, suffix) = if cold { (", no cache", "_nc") } else { ("", "") };
                (
                    format!("{operation}{name}: mean latency, {load} load"),
                    format!("latency --operations {copies}{suffix}{heavy}"),
                )
            }
            Content::Total => (
                format!("{operation}: total bandwidth, {load} load"),
                format!("bandwidth --operations {copies}{heavy}"),
            ),
            Content::Channels => (
                format!("{operation}: bandwidth by channel, priority policy, {load} load"),
                format!("bandwidth --contexts priority --operations {copies}{heavy}"),
            ),
            Content::Calls(names) => (
                format!("{}: calls in 100 s by size", names.join(" + ")),
                "trace --time 100s".to_owned(),
            ),
            Content::Programs { small, misses } => {
                let programs = if small { "small" } else { "large and huge" };
                let quantity = if misses { "cache misses" } else { "execution time" };
                (
                    format!("{programs} programs: {quantity} beside {copies} B copies"),
                    format!("pollution --copies {}", copies.replace(' ', ":")),
                )
            }
        }
    }

    fn draw(
        &self,
        number: usize,
        records: &[RunRecord],
        copies: &[CopyRow],
        programs: &[PollutionRow],
    ) -> Drawn {
        let (title, command) = self.words();
        let (title, command) = (format!("2.{number} {title}"), format!("daqmeter copy {command}"));
        let values = match self.content {
            Content::Calls(names) => calls(records, names),
            Content::Programs { small, misses } => Some(self.programs(programs, small, misses)),
            _ => Some(self.copies(copies)),
        };
        let values = values.filter(|values| !values.points.is_empty());
        let figure = values.map(|Values { points, y, caption, emulated }| {
            let is_program = matches!(self.content, Content::Programs { .. });
            let mut places: Vec<f64> = points.iter().map(|point| point.1).collect();
            places.dedup();
            let kind = match self.content {
                Content::Programs { .. } => ChartKind::Bars,
                Content::Calls(_) => ChartKind::Points,
                _ if places.len() < 2 => ChartKind::Points,
                _ => ChartKind::Lines,
            };
            let blank = Figure {
                id: format!("fig-2-{number}"),
                title: title.clone(),
                caption,
                kind,
                x: if is_program { Axis::NONE } else { Axis::log_bytes("block") },
                y: if is_program { Axis::linear(y) } else { Axis::log(y) },
                xs: Vec::new(),
                categories: Vec::new(),
                series: Vec::new(),
                command: String::new(),
                emulated,
            };
            let mark = |(series, x, category, value)| Mark {
                category,
                ..Mark::at(&records[0], series, x, value)
            };
            let figure = drawn(blank, points.into_iter().map(mark).collect());
            Figure { command: command.clone(), emulated, ..figure }
        });
        Drawn { title, figure, command }
    }

    fn copies(&self, rows: &[CopyRow]) -> Values {
        let is_of = |row: &&CopyRow| {
            let lanes = row.lanes_bytes_per_s.len();
            let is_of = match self.content {
                Content::Latency { cold } => {
                    row.cold == cold && lanes == 1 && row.context != "priority"
                }
                Content::Total => !row.cold && lanes > 1,
                _ => !row.cold && row.context == "priority",
            };
            is_of && row.direction == self.copies && row.load == self.load
        };
        let rows: Vec<&CopyRow> = rows.iter().filter(is_of).collect();
        // A sample may be of several copies.
        let copies = |row: &&CopyRow| (row.n as u64).saturating_mul(row.ops_per_sample);
        let n = rows.iter().map(copies).max().unwrap_or(0);
        let lanes = rows.first().map_or(0, |row| row.lanes_bytes_per_s.len());
        let (y, text) = match self.content {
            Content::Latency { .. } => {
                ("mean latency [ns]", format!("Mean of {n} copies of each size, one at a time."))
            }
            Content::Total => (
                "total bandwidth [MB/s]",
                format!(
                    "Sum of the rates of {lanes} CPUs or channels that copy at once, {n} copies of each size each; MB of 2^20 bytes."
                ),
            ),
            _ => (
                "bandwidth [MB/s]",
                format!(
                    "Rate of each channel, {n} copies of each size; the high channels own the engine for a quantum in each window; MB of 2^20 bytes."
                ),
            ),
        };
        let values = |row: &&CopyRow| -> Vec<(String, f64)> {
            let series = format!("{} ({})", shown(&row.context), row.path);
            match self.content {
                Content::Latency { .. } => vec![(series, row.mean_ns)],
                Content::Total => vec![(series, row.total_bytes_per_s() / MIB)],
                _ => {
                    let rates = row.lanes_bytes_per_s.iter().enumerate();
                    rates.map(|(at, rate)| (format!("channel {at}"), rate / MIB)).collect()
                }
            }
        };
        let point = |row: &&CopyRow| {
            let x = row.block_bytes as f64;
            let values = values(row).into_iter();
            values.map(move |(series, y)| (series, x, String::new(), y)).collect::<Vec<_>>()
        };
        let emulated = rows.iter().any(|row| row.emulated);
        let emulation = if emulated { " The DMA engine is EMULATED by a CPU." } else { "" };
        let caption = format!("System load: {}. {text}{emulation}", self.load);
        Values { points: rows.iter().flat_map(point).collect(), y, caption, emulated }
    }

    fn programs(&self, rows: &[PollutionRow], small: bool, misses: bool) -> Values {
        // Times of an emulator are no results.
        let is_of = |row: &&PollutionRow| {
            row.copies == self.copies
                && row.test.ends_with("small") == small
                && (misses || !row.simulated)
        };
        let value =
            |row: &PollutionRow| if misses { row.miss_percent } else { Some(row.mean_ns / 1e3) };
        let rows = rows.iter().filter(is_of).filter_map(|row| Some((row, value(row)?)));
        let rows: Vec<(&PollutionRow, f64)> = rows.collect();
        let n = rows.iter().map(|(row, _)| row.n).max().unwrap_or(0);
        let simulated = rows.iter().any(|(row, _)| row.simulated);
        let model = if simulated {
            " SIMULATED: counted by a cache model in an emulator (L1 32 KiB, shared L2 4 MiB)."
        } else {
            ""
        };
        let point = |(row, value): (&PollutionRow, f64)| {
            (shown(&row.neighbour).to_owned(), 0.0, row.test.clone(), value)
        };
        Values {
            points: rows.into_iter().map(point).collect(),
            y: if misses { "cache misses [%]" } else { "execution time [us]" },
            caption: format!(
                "Mean of {n} runs of each program on one CPU while another copies {} B blocks.{model} spin and null call copy nothing: what they cost, copies do not explain.",
                self.copies
            ),
            emulated: simulated,
        }
    }
}

fn calls(records: &[RunRecord], operations: &[&str]) -> Option<Values> {
    let is_trace = |record: &&RunRecord| record.engine.name == "trace" && record.wall_ns > 0;
    let record = records.iter().rev().find(is_trace)?;
    let seconds = record.wall_ns as f64 / 1e9;
    // Both forms of a direction are one curve: their calls of a size are summed.
    let mut sizes = std::collections::BTreeMap::<u64, f64>::new();
    for (bytes, calls) in operations.iter().flat_map(|name| traced_sizes(record, name)) {
        *sizes.entry(bytes.max(1)).or_default() += calls / seconds * CALLS_SECONDS;
    }
    let scaled = match (seconds - CALLS_SECONDS).abs() {
        ..=1.0 => String::new(),
        _ => format!(", scaled from {seconds:.0} s"),
    };
    let point = |(bytes, calls)| (operations.join(" + "), bytes as f64, String::new(), calls);
    Some(Values {
        points: sizes.into_iter().map(point).collect(),
        y: "calls in 100 s",
        caption: format!(
            "Calls in 100 s{scaled}, by bytes asked; system load as it was. One trace."
        ),
        emulated: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::tests::example;

    #[test]
    fn the_table_is_the_references() {
        let titles: Vec<String> = study(&[]).into_iter().map(|drawn| drawn.title).collect();
        assert_eq!(titles.len(), 50);
        assert_eq!(titles[7], "2.8 copy_to_user, no cache: mean latency, heavy load");
        assert_eq!(
            titles[16],
            "2.17 copy_from_user + copy_to_user: bandwidth by channel, priority policy, light load"
        );
        assert_eq!(
            titles[35],
            "2.36 large and huge programs: cache misses beside to 1448 B copies"
        );
        assert_eq!(
            titles[49],
            "2.50 large and huge programs: execution time beside to 4096 B copies"
        );
    }

    #[test]
    fn a_figure_is_drawn_from_its_own_records_only() {
        let mut records =
            vec![example("cpu", "from", 64, &[100, 200]), example("shared", "from", 64, &[300])];
        let drawn = |records: &[RunRecord]| -> Vec<String> {
            study(records)
                .into_iter()
                .filter(|drawn| drawn.figure.is_some())
                .map(|drawn| drawn.title.split(' ').next().unwrap().to_owned())
                .collect()
        };
        assert_eq!(drawn(&records), ["2.1"]);
        let figure = study(&records).remove(0).figure.unwrap();
        assert_eq!(figure.series[0].ys, [Some(150.0)]);
        assert!(figure.caption.contains("EMULATED") && figure.caption.contains("load: light"));
        let mut several = example("cpu", "to", 64, &[300]);
        several.lanes[0].stages[0].ops_per_sample = 300;
        let figure = study(&[several]).remove(1).figure.unwrap();
        assert!(figure.caption.contains("Mean of 300 copies"), "{}", figure.caption);
        let lane = records[1].lanes[0].clone();
        records[1].lanes.push(lane);
        records[1].set_param("context", "priority");
        records[1].set_param("load", "heavy");
        assert_eq!(drawn(&records[1..]), ["2.12", "2.18"]);
    }

    #[test]
    fn times_of_this_host_and_misses_of_the_model_draw_a_figure_each() {
        let row = |misses: Option<f64>| PollutionRow {
            test: "qsort_small".to_owned(),
            neighbour: "cpu".to_owned(),
            copies: "both 16".to_owned(),
            n: 3,
            mean_ns: 5000.0,
            median_ns: 5000.0,
            p10_ns: None,
            max_ns: 6000.0,
            references: misses.map(|_| 100.0),
            misses,
            miss_percent: misses,
            simulated: misses.is_some(),
            copied_bytes_per_s: None,
        };
        let rows = [row(None), row(Some(4.0))];
        let of = |number: usize| {
            let records = [example("cpu", "from", 64, &[100])];
            let drawn = figures()[number - 1].draw(number, &records, &[], &rows);
            drawn.figure.unwrap().series[0].ys.clone()
        };
        assert_eq!(of(27), [Some(4.0)]);
        assert_eq!(of(39), [Some(5.0)]);
    }
}
