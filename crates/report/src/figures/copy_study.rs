//! Figures 2.1 to 2.50 of the study of copies (reference 1.9), drawn from any records: a table of
//! kinds, each for several parameters.

use daqmeter_record::RunRecord;

use super::{Axis, ChartKind, Curve, Figure, Series, add_point, bars, join};
use crate::copy::{CopyRow, PollutionRow, copy_rows, pollution_rows, traced_sizes};

/// Figure of the study, `2.1` to `2.50`.
struct StudyFigure {
    number: usize,
    load: &'static str,
    what: What,
}

enum What {
    /// Mean latency against block size, by context.
    Latency { direction: &'static str, cold: bool },
    /// Sum of the channels' rates against block size, by context.
    Total { direction: &'static str },
    /// Rate of each channel under the priority policy.
    Channels { direction: &'static str },
    /// Calls in 100 s by block size.
    Calls { operations: &'static [&'static str] },
    /// Mean cache-miss percentage or mean execution time of each program, by neighbour.
    Programs { copies: &'static str, small: bool, misses: bool },
}

const LOADS: [&str; 2] = ["light", "heavy"];
const OPERATIONS: [&[&str]; 6] = [
    &["copy_from_user"],
    &["copy_to_user"],
    &["__copy_from_user"],
    &["__copy_to_user"],
    &["copy_from_user", "__copy_from_user"],
    &["copy_to_user", "__copy_to_user"],
];
/// Figure 2.36 is captioned 16,064 B in the study and described as 1448 B in its text; the text
/// fits its place. The "huge" images, whose figures the study does not name, are with the large
/// ones.
const COPIES: [&str; 6] = ["both 16", "from 224", "from 1124", "from 16064", "to 1448", "to 4096"];
/// Megabyte of the study's bandwidth: 2^20 bytes.
const MIB: f64 = 1_048_576.0;
/// Time over which the study counted calls.
const CALLS_SECONDS: f64 = 100.0;
const CONTEXTS: [(&str, &str); 4] =
    [("cpu", "CPU"), ("exclusive", "DMA Excl"), ("shared", "DMA Sh"), ("priority", "DMA Prio")];
const NEIGHBOURS: [(&str, &str); 5] = [
    ("ideal", "Ideal"),
    ("cpu", "CPU"),
    ("dma", "DMA"),
    ("spin", "spin (control)"),
    ("null-call", "null call (control)"),
];

/// Returns all 50 figures, in the order of their numbers.
fn figures() -> Vec<StudyFigure> {
    let mut all = Vec::new();
    let mut add = |load, what| {
        let number = all.len() + 1;
        all.push(StudyFigure { number, load, what });
    };
    for load in LOADS {
        for cold in [false, true] {
            for direction in ["from", "to"] {
                add(load, What::Latency { direction, cold });
            }
        }
    }
    for load in LOADS {
        for direction in ["from", "to", "both"] {
            add(load, What::Total { direction });
        }
    }
    for load in LOADS {
        for direction in ["from", "to", "both"] {
            add(load, What::Channels { direction });
        }
    }
    for operations in OPERATIONS {
        add("", What::Calls { operations });
    }
    for misses in [true, false] {
        for copies in COPIES {
            for small in [true, false] {
                add("", What::Programs { copies, small, misses });
            }
        }
    }
    all
}

pub struct Drawn {
    pub title: String,
    pub figure: Option<Figure>,
    pub command: String,
}

/// Returns all 50 figures, in order.
pub fn study(records: &[RunRecord]) -> Vec<Drawn> {
    let (mut copies, pollution) = (copy_rows(records), pollution_rows(records));
    copies.retain(|row| !row.is_clearing());
    figures().iter().map(|figure| figure.draw(records, &copies, &pollution)).collect()
}

impl StudyFigure {
    fn title(&self) -> String {
        let load = self.load;
        let of = |direction: &str| match direction {
            "both" => "copy_from_user + copy_to_user".to_owned(),
            direction => format!("copy_{direction}_user"),
        };
        let text = match self.what {
            What::Latency { direction, cold } => {
                let cold = if cold { ", no cache" } else { "" };
                format!("{}{cold}: mean latency, {load} load", of(direction))
            }
            What::Total { direction } => {
                format!("{}: total bandwidth, {load} load", of(direction))
            }
            What::Channels { direction } => {
                format!("{}: bandwidth by channel, priority policy, {load} load", of(direction))
            }
            What::Calls { operations } => {
                format!("{}: calls in 100 s by size", operations.join(" + "))
            }
            What::Programs { copies, small, misses } => {
                let programs = if small { "small" } else { "large and huge" };
                let quantity = if misses { "cache misses" } else { "execution time" };
                format!("{programs} programs: {quantity} beside {copies} B copies")
            }
        };
        format!("2.{} {text}", self.number)
    }

    fn command(&self) -> String {
        let heavy = if self.load == "heavy" { " --load heavy" } else { "" };
        let command = match self.what {
            What::Latency { direction, cold } => {
                let suffix = if cold { "_nc" } else { "" };
                format!("latency --operations {direction}{suffix}{heavy}")
            }
            What::Total { direction } => format!("bandwidth --operations {direction}{heavy}"),
            What::Channels { direction } => {
                format!("bandwidth --contexts priority --operations {direction}{heavy}")
            }
            What::Calls { .. } => "trace --time 100s".to_owned(),
            What::Programs { copies, .. } => {
                format!("pollution --copies {}", copies.replace(' ', ":"))
            }
        };
        format!("daqmeter copy {command}")
    }

    fn draw(&self, records: &[RunRecord], copies: &[CopyRow], pollution: &[PollutionRow]) -> Drawn {
        let figure = match self.what {
            What::Latency { .. } | What::Total { .. } | What::Channels { .. } => {
                self.copies(copies)
            }
            What::Calls { operations } => self.calls(records, operations),
            What::Programs { copies, small, misses } => {
                self.programs(pollution, copies, small, misses)
            }
        };
        let command = self.command();
        let figure = figure.map(|figure| Figure { command: command.clone(), ..figure });
        Drawn { title: self.title(), figure, command }
    }

    fn lines(
        &self,
        curves: Vec<Curve>,
        y: &'static str,
        caption: String,
        emulated: bool,
    ) -> Option<Figure> {
        if curves.is_empty() {
            return None;
        }
        let (xs, series) = join(curves);
        Some(Figure {
            id: self.id(),
            title: self.title(),
            caption,
            kind: if xs.len() > 1 { ChartKind::Lines } else { ChartKind::Points },
            x: Axis::log_bytes("block"),
            y: Axis::log(y),
            xs,
            categories: Vec::new(),
            series,
            command: String::new(),
            emulated,
        })
    }

    fn copies(&self, rows: &[CopyRow]) -> Option<Figure> {
        let is_of = |row: &&CopyRow| {
            let lanes = row.lanes_bytes_per_s.len();
            let (direction, is_of) = match self.what {
                What::Latency { direction, cold } => {
                    (direction, row.cold == cold && lanes == 1 && row.context != "priority")
                }
                What::Total { direction } => (direction, !row.cold && lanes > 1),
                What::Channels { direction } => (direction, !row.cold && row.context == "priority"),
                _ => return false,
            };
            is_of && row.direction == direction && row.load == self.load
        };
        let rows: Vec<&CopyRow> = rows.iter().filter(is_of).collect();
        // A sample may be of several copies.
        let copies = |row: &&CopyRow| (row.n as u64).saturating_mul(row.ops_per_sample);
        let n = rows.iter().map(copies).max().unwrap_or(0);
        let mut curves = Vec::new();
        for row in &rows {
            let x = row.block_bytes as f64;
            match self.what {
                What::Latency { .. } => add_point(&mut curves, &series(row), (x, row.mean_ns)),
                What::Total { .. } => {
                    add_point(&mut curves, &series(row), (x, row.total_bytes_per_s() / MIB));
                }
                _ => {
                    for (channel, rate) in row.lanes_bytes_per_s.iter().enumerate() {
                        add_point(&mut curves, &format!("channel {channel}"), (x, rate / MIB));
                    }
                }
            }
        }
        let lanes = rows.first().map_or(0, |row| row.lanes_bytes_per_s.len());
        let (y, text) = match self.what {
            What::Latency { .. } => {
                ("mean latency [ns]", format!("Mean of {n} copies of each size, one at a time."))
            }
            What::Total { .. } => (
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
        let emulated = rows.iter().any(|row| row.emulated);
        let emulation = if emulated { " The DMA engine is EMULATED by a CPU." } else { "" };
        let caption = format!("System load: {}. {text}{emulation}", self.load);
        self.lines(curves, y, caption, emulated)
    }

    fn calls(&self, records: &[RunRecord], operations: &[&str]) -> Option<Figure> {
        let is_trace = |record: &&RunRecord| record.engine.name == "trace" && record.wall_ns > 0;
        let record = records.iter().rev().find(is_trace)?;
        let seconds = record.wall_ns as f64 / 1e9;
        // Both forms of a direction are one curve: their calls of a size are summed.
        let mut points: Vec<(f64, f64)> = Vec::new();
        for (bytes, calls) in operations.iter().flat_map(|name| traced_sizes(record, name)) {
            let point = (bytes.max(1) as f64, calls / seconds * CALLS_SECONDS);
            match points.iter_mut().find(|known| known.0 == point.0) {
                Some(known) => known.1 += point.1,
                None => points.push(point),
            }
        }
        if points.is_empty() {
            return None;
        }
        let scaled = if (seconds - CALLS_SECONDS).abs() > 1.0 {
            format!(", scaled from {seconds:.0} s")
        } else {
            String::new()
        };
        let caption =
            format!("Calls in 100 s{scaled}, by bytes asked; system load as it was. One trace.");
        let curve = Curve::new(operations.join(" + "), points);
        let figure = self.lines(vec![curve], "calls in 100 s", caption, false)?;
        Some(Figure { kind: ChartKind::Points, ..figure })
    }

    fn programs(
        &self,
        rows: &[PollutionRow],
        copies: &str,
        small: bool,
        misses: bool,
    ) -> Option<Figure> {
        // Times of an emulator are no results, and misses of a cache and of a model are separate
        // series. One program may have records of a host without a miss counter and of the model.
        let value = |row: &PollutionRow| {
            if misses { row.miss_percent } else { Some(row.mean_ns / 1e3) }
        };
        let is_of = |row: &&PollutionRow| {
            row.copies == copies
                && row.test.ends_with("small") == small
                && (misses || !row.simulated)
                && value(row).is_some()
        };
        let rows: Vec<&PollutionRow> = rows.iter().filter(is_of).collect();
        let mut tests: Vec<String> = rows.iter().map(|row| row.test.clone()).collect();
        tests.dedup();
        if tests.is_empty() {
            return None;
        }
        let series = NEIGHBOURS.iter().map(|(neighbour, label)| {
            let of = |test: &String| {
                let mut rows = rows.iter();
                rows.find(|row| row.test == *test && row.neighbour == *neighbour)
                    .and_then(|row| value(row))
            };
            Series::new(*label, tests.iter().map(of).collect())
        });
        let series = series.filter(|series| series.ys.iter().any(Option::is_some)).collect();
        let n = rows.iter().map(|row| row.n).max().unwrap_or(0);
        let simulated = rows.iter().any(|row| row.simulated);
        let model = if misses && simulated {
            " SIMULATED: counted by a cache model in an emulator (L1 32 KiB, shared L2 4 MiB)."
        } else {
            ""
        };
        let caption = format!(
            "Mean of {n} runs of each program on one CPU while another copies {copies} B blocks.{model} spin and null call copy nothing: what they cost, copies do not explain."
        );
        let y = if misses { "cache misses [%]" } else { "execution time [us]" };
        let figure = bars("", &self.title(), &caption, y, tests, series);
        Some(Figure { id: self.id(), emulated: simulated, ..figure })
    }

    fn id(&self) -> String {
        format!("fig-2-{}", self.number)
    }
}

fn series(row: &CopyRow) -> String {
    let known = CONTEXTS.iter().find(|(context, _)| *context == row.context);
    format!("{} ({})", known.map_or("DMA Prio", |(_, name)| name), row.path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::tests::example;

    #[test]
    fn the_table_is_the_references() {
        let titles: Vec<String> = figures().iter().map(StudyFigure::title).collect();
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
            let drawn = figures()[number - 1].draw(&[], &[], &rows);
            drawn.figure.unwrap().series[0].ys.clone()
        };
        assert_eq!(of(27), [Some(4.0)]);
        assert_eq!(of(39), [Some(5.0)]);
    }

    #[test]
    fn every_figure_names_the_command_that_fills_it() {
        for drawn in study(&[]) {
            assert!(
                drawn.figure.is_none() && drawn.command.starts_with("daqmeter copy "),
                "{}",
                drawn.title
            );
        }
    }
}
