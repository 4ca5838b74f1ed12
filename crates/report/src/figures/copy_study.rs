//! The 50 figures of the study of copies (reference 1.9), drawn from whatever records there are: one line each in a table.

use daqmeter_record::RunRecord;

use super::{Axis, ChartKind, Curve, Figure, Series, add_point, bars, join};
use crate::copy::{CopyRow, PollutionRow, copy_rows, pollution_rows, traced_sizes};

/// One figure of the study.
struct Study {
    number: &'static str,
    id: &'static str,
    load: &'static str,
    what: What,
}

/// What it shows.
enum What {
    /// Mean latency against block size, by context.
    Latency { direction: &'static str, cold: bool },
    /// Sum of the channels' rates against block size, by context.
    Total { direction: &'static str },
    /// Rate of each channel under the priority policy.
    Channels { direction: &'static str },
    /// Calls in 100 s by block size.
    Calls { operations: &'static [&'static str] },
    /// Mean cache-miss percentage of each program, by neighbour.
    Misses { copies: &'static str, small: bool },
    /// Mean execution time of each program, by neighbour.
    Time { copies: &'static str, small: bool },
}

/// Figure 2.36 is captioned 16,064 B in the study and described as 1448 B in its text; the text fits its place. The "huge"
/// images, whose figures the study does not name, stand with the large ones.
const STUDY: [Study; 50] = [
    latency("2.1", "fig-2-1", "light", "from", false),
    latency("2.2", "fig-2-2", "light", "to", false),
    latency("2.3", "fig-2-3", "light", "from", true),
    latency("2.4", "fig-2-4", "light", "to", true),
    latency("2.5", "fig-2-5", "heavy", "from", false),
    latency("2.6", "fig-2-6", "heavy", "to", false),
    latency("2.7", "fig-2-7", "heavy", "from", true),
    latency("2.8", "fig-2-8", "heavy", "to", true),
    total("2.9", "fig-2-9", "light", "from"),
    total("2.10", "fig-2-10", "light", "to"),
    total("2.11", "fig-2-11", "light", "both"),
    total("2.12", "fig-2-12", "heavy", "from"),
    total("2.13", "fig-2-13", "heavy", "to"),
    total("2.14", "fig-2-14", "heavy", "both"),
    channels("2.15", "fig-2-15", "light", "from"),
    channels("2.16", "fig-2-16", "light", "to"),
    channels("2.17", "fig-2-17", "light", "both"),
    channels("2.18", "fig-2-18", "heavy", "from"),
    channels("2.19", "fig-2-19", "heavy", "to"),
    channels("2.20", "fig-2-20", "heavy", "both"),
    calls("2.21", "fig-2-21", &["copy_from_user"]),
    calls("2.22", "fig-2-22", &["copy_to_user"]),
    calls("2.23", "fig-2-23", &["__copy_from_user"]),
    calls("2.24", "fig-2-24", &["__copy_to_user"]),
    calls("2.25", "fig-2-25", &["copy_from_user", "__copy_from_user"]),
    calls("2.26", "fig-2-26", &["copy_to_user", "__copy_to_user"]),
    misses("2.27", "fig-2-27", "", "both 16", true),
    misses("2.28", "fig-2-28", "", "both 16", false),
    misses("2.29", "fig-2-29", "", "from 224", true),
    misses("2.30", "fig-2-30", "", "from 224", false),
    misses("2.31", "fig-2-31", "", "from 1124", true),
    misses("2.32", "fig-2-32", "", "from 1124", false),
    misses("2.33", "fig-2-33", "", "from 16064", true),
    misses("2.34", "fig-2-34", "", "from 16064", false),
    misses("2.35", "fig-2-35", "", "to 1448", true),
    misses("2.36", "fig-2-36", "", "to 1448", false),
    misses("2.37", "fig-2-37", "", "to 4096", true),
    misses("2.38", "fig-2-38", "", "to 4096", false),
    time("2.39", "fig-2-39", "", "both 16", true),
    time("2.40", "fig-2-40", "", "both 16", false),
    time("2.41", "fig-2-41", "", "from 224", true),
    time("2.42", "fig-2-42", "", "from 224", false),
    time("2.43", "fig-2-43", "", "from 1124", true),
    time("2.44", "fig-2-44", "", "from 1124", false),
    time("2.45", "fig-2-45", "", "from 16064", true),
    time("2.46", "fig-2-46", "", "from 16064", false),
    time("2.47", "fig-2-47", "", "to 1448", true),
    time("2.48", "fig-2-48", "", "to 1448", false),
    time("2.49", "fig-2-49", "", "to 4096", true),
    time("2.50", "fig-2-50", "", "to 4096", false),
];

const fn latency(
    number: &'static str,
    id: &'static str,
    load: &'static str,
    direction: &'static str,
    cold: bool,
) -> Study {
    let what = What::Latency { direction, cold };
    Study { number, id, load, what }
}

const fn total(
    number: &'static str,
    id: &'static str,
    load: &'static str,
    direction: &'static str,
) -> Study {
    let what = What::Total { direction };
    Study { number, id, load, what }
}

const fn channels(
    number: &'static str,
    id: &'static str,
    load: &'static str,
    direction: &'static str,
) -> Study {
    let what = What::Channels { direction };
    Study { number, id, load, what }
}

const fn calls(
    number: &'static str,
    id: &'static str,
    operations: &'static [&'static str],
) -> Study {
    let what = What::Calls { operations };
    Study { number, id, load: "", what }
}

const fn misses(
    number: &'static str,
    id: &'static str,
    load: &'static str,
    copies: &'static str,
    small: bool,
) -> Study {
    let what = What::Misses { copies, small };
    Study { number, id, load, what }
}

const fn time(
    number: &'static str,
    id: &'static str,
    load: &'static str,
    copies: &'static str,
    small: bool,
) -> Study {
    let what = What::Time { copies, small };
    Study { number, id, load, what }
}

/// Megabyte of the study's bandwidth: 2^20 bytes.
const MIB: f64 = 1_048_576.0;
/// Time over which the study counted calls.
const CALLS_SECONDS: f64 = 100.0;

/// A figure of the study that the records fill, or why they do not.
pub struct Drawn {
    /// `2.1` to `2.50`.
    pub number: &'static str,
    /// What it shows.
    pub title: String,
    /// The figure, if there are records for it.
    pub figure: Option<Figure>,
    /// Otherwise, the command that makes them.
    pub command: String,
}

/// All 50, in order.
pub fn study(records: &[RunRecord]) -> Vec<Drawn> {
    let (mut copies, pollution) = (copy_rows(records), pollution_rows(records));
    copies.retain(|row| !row.is_clearing());
    STUDY.iter().map(|study| study.draw(records, &copies, &pollution)).collect()
}

impl Study {
    fn title(&self) -> String {
        let of = |direction: &str| match direction {
            "both" => "copy_from_user + copy_to_user".to_owned(),
            direction => format!("copy_{direction}_user"),
        };
        let load = self.load;
        let programs = |small: bool| {
            if small { "small programs" } else { "large and huge programs" }
        };
        match &self.what {
            What::Latency { direction, cold } => {
                let cold = if *cold { ", no cache" } else { "" };
                format!("{} {}{cold}: mean latency, {load} load", self.number, of(direction))
            }
            What::Total { direction } => {
                format!("{} {}: total bandwidth, {load} load", self.number, of(direction))
            }
            What::Channels { direction } => {
                format!(
                    "{} {}: bandwidth by channel, priority policy, {load} load",
                    self.number,
                    of(direction)
                )
            }
            What::Calls { operations } => {
                format!("{} {}: calls in 100 s by size", self.number, operations.join(" + "))
            }
            What::Misses { copies, small } => {
                format!(
                    "{} {}: cache misses beside {copies} B copies",
                    self.number,
                    programs(*small)
                )
            }
            What::Time { copies, small } => {
                format!(
                    "{} {}: execution time beside {copies} B copies",
                    self.number,
                    programs(*small)
                )
            }
        }
    }

    fn command(&self) -> String {
        let heavy = if self.load == "heavy" { " --load heavy" } else { "" };
        let suffix = |cold: bool| if cold { "_nc" } else { "" };
        let copies = |copies: &str| copies.replace(' ', ":");
        match &self.what {
            What::Latency { direction, cold } => {
                format!("daqmeter copy latency --operations {direction}{}{heavy}", suffix(*cold))
            }
            What::Total { direction } => {
                format!("daqmeter copy bandwidth --operations {direction}{heavy}")
            }
            What::Channels { direction } => {
                format!(
                    "daqmeter copy bandwidth --contexts priority --operations {direction}{heavy}"
                )
            }
            What::Calls { .. } => "daqmeter copy trace --time 100s".to_owned(),
            What::Misses { copies: pair, .. } | What::Time { copies: pair, .. } => {
                format!("daqmeter copy pollution --copies {}", copies(pair))
            }
        }
    }

    fn draw(&self, records: &[RunRecord], copies: &[CopyRow], pollution: &[PollutionRow]) -> Drawn {
        let figure = match &self.what {
            What::Latency { direction, cold } => self.latency(copies, direction, *cold),
            What::Total { direction } => self.total(copies, direction),
            What::Channels { direction } => self.channels(copies, direction),
            What::Calls { operations } => self.calls(records, operations),
            What::Misses { copies, small } => self.programs(pollution, copies, *small, true),
            What::Time { copies, small } => self.programs(pollution, copies, *small, false),
        };
        let figure = figure.map(|figure| Figure { command: self.command(), ..figure });
        Drawn { number: self.number, title: self.title(), figure, command: self.command() }
    }

    fn curves(
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
            id: self.id.to_owned(),
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

    fn latency(&self, rows: &[CopyRow], direction: &str, cold: bool) -> Option<Figure> {
        let of = |row: &&CopyRow| {
            row.direction == direction
                && row.cold == cold
                && row.load == self.load
                && row.context != "priority"
        };
        let rows: Vec<&CopyRow> =
            rows.iter().filter(of).filter(|row| row.lanes_bytes_per_s.len() == 1).collect();
        let mut curves = Vec::new();
        for row in &rows {
            add_point(&mut curves, &series(row), (row.block_bytes as f64, row.mean_ns));
        }
        let caption = format!(
            "System load: {}. Mean of {} copies of each size, one at a time.{}",
            self.load,
            repetitions(&rows),
            emulation(&rows)
        );
        self.curves(curves, "mean latency [ns]", caption, rows.iter().any(|row| row.emulated))
    }

    fn total(&self, rows: &[CopyRow], direction: &str) -> Option<Figure> {
        let of = |row: &&CopyRow| row.direction == direction && !row.cold && row.load == self.load;
        let rows: Vec<&CopyRow> =
            rows.iter().filter(of).filter(|row| row.lanes_bytes_per_s.len() > 1).collect();
        let mut curves = Vec::new();
        for row in &rows {
            add_point(
                &mut curves,
                &series(row),
                (row.block_bytes as f64, row.total_bytes_per_s() / MIB),
            );
        }
        let lanes = rows.first().map_or(0, |row| row.lanes_bytes_per_s.len());
        let caption = format!(
            "System load: {}. Sum of the rates of {lanes} CPUs or channels that copy at once, {} copies of each size each; MB of 2^20 bytes.{}",
            self.load,
            repetitions(&rows),
            emulation(&rows)
        );
        self.curves(curves, "total bandwidth [MB/s]", caption, rows.iter().any(|row| row.emulated))
    }

    fn channels(&self, rows: &[CopyRow], direction: &str) -> Option<Figure> {
        let of = |row: &&CopyRow| {
            row.direction == direction
                && !row.cold
                && row.load == self.load
                && row.context == "priority"
        };
        let rows: Vec<&CopyRow> = rows.iter().filter(of).collect();
        let mut curves = Vec::new();
        for row in &rows {
            for (channel, rate) in row.lanes_bytes_per_s.iter().enumerate() {
                add_point(
                    &mut curves,
                    &format!("channel {channel}"),
                    (row.block_bytes as f64, rate / MIB),
                );
            }
        }
        let caption = format!(
            "System load: {}. Rate of each channel, {} copies of each size; the high channels own the engine for a quantum in each window; MB of 2^20 bytes.{}",
            self.load,
            repetitions(&rows),
            emulation(&rows)
        );
        self.curves(curves, "bandwidth [MB/s]", caption, rows.iter().any(|row| row.emulated))
    }

    fn calls(&self, records: &[RunRecord], operations: &[&str]) -> Option<Figure> {
        let record = records
            .iter()
            .rev()
            .find(|record| record.engine.name == "trace" && record.wall_ns > 0)?;
        let seconds = record.wall_ns as f64 / 1e9;
        let mut curves = Vec::new();
        for operation in operations {
            for (bytes, calls) in traced_sizes(record, operation) {
                let point = (bytes.max(1) as f64, calls / seconds * CALLS_SECONDS);
                match curves.iter_mut().find(|curve: &&mut Curve| !curve.points.is_empty()) {
                    // Both forms of a direction are one curve: their calls of a size are added up.
                    Some(curve) => match curve.points.iter_mut().find(|known| known.0 == point.0) {
                        Some(known) => known.1 += point.1,
                        None => curve.points.push(point),
                    },
                    None => curves.push(Curve::new(operations.join(" + "), vec![point])),
                }
            }
        }
        let scaled = if (seconds - CALLS_SECONDS).abs() > 1.0 {
            format!(", scaled from {seconds:.0} s")
        } else {
            String::new()
        };
        let caption =
            format!("Calls in 100 s{scaled}, by bytes asked; system load as it was. One trace.");
        let figure = self.curves(curves, "calls in 100 s", caption, false)?;
        Some(Figure { kind: ChartKind::Points, ..figure })
    }

    fn programs(
        &self,
        rows: &[PollutionRow],
        copies: &str,
        small: bool,
        misses: bool,
    ) -> Option<Figure> {
        let of = |row: &&PollutionRow| row.copies == copies && row.test.ends_with("small") == small;
        // Times of an emulator are not results, and misses of a cache and of a model are not one series.
        let value = |row: &PollutionRow| {
            if misses { row.miss_percent } else { Some(row.mean_ns / 1e3) }
        };
        // Of a host that counts no misses and of the model there may be records of one program.
        let rows: Vec<&PollutionRow> = rows
            .iter()
            .filter(of)
            .filter(|row| (misses || !row.simulated) && value(row).is_some())
            .collect();
        let mut tests: Vec<String> = rows.iter().map(|row| row.test.clone()).collect();
        tests.dedup();
        if tests.is_empty() {
            return None;
        }
        let series = [
            ("ideal", "Ideal"),
            ("cpu", "CPU"),
            ("dma", "DMA"),
            ("spin", "spin (control)"),
            ("null-call", "null call (control)"),
        ]
        .into_iter()
        .map(|(neighbour, label)| Series {
            label: label.to_owned(),
            ys: tests
                .iter()
                .map(|test| {
                    rows.iter()
                        .find(|row| row.test == *test && row.neighbour == neighbour)
                        .and_then(|row| value(row))
                })
                .collect(),
            limit: false,
            band: Vec::new(),
        })
        .filter(|series| series.ys.iter().any(Option::is_some))
        .collect();
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
        let figure = bars(self.id, &self.title(), &caption, y, tests, series);
        Some(Figure { emulated: simulated, ..figure })
    }
}

/// The study's name of a context, with what really copied.
fn series(row: &CopyRow) -> String {
    let name = match row.context.as_str() {
        "cpu" => "CPU",
        "exclusive" => "DMA Excl",
        "shared" => "DMA Sh",
        _ => "DMA Prio",
    };
    format!("{name} ({})", row.path)
}

/// Copies of each size: a sample may be of several.
fn repetitions(rows: &[&CopyRow]) -> u64 {
    let copies = |row: &&CopyRow| (row.n as u64).saturating_mul(row.ops_per_sample);
    rows.iter().map(copies).max().unwrap_or(0)
}

fn emulation(rows: &[&CopyRow]) -> &'static str {
    if rows.iter().any(|row| row.emulated) { " The DMA engine is EMULATED by a CPU." } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::tests::example;

    #[test]
    fn the_table_is_the_references() {
        assert_eq!(STUDY.len(), 50);
        for (at, study) in STUDY.iter().enumerate() {
            assert_eq!(study.number, format!("2.{}", at + 1));
        }
        let titles: Vec<String> = STUDY.iter().map(Study::title).collect();
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
        let drawn = |records: &[RunRecord]| -> Vec<&str> {
            study(records)
                .into_iter()
                .filter(|drawn| drawn.figure.is_some())
                .map(|drawn| drawn.number)
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
        let of = |number: &str| {
            let study = STUDY.iter().find(|study| study.number == number).unwrap();
            let drawn = study.draw(&[], &[], &rows);
            drawn.figure.unwrap().series[0].ys.clone()
        };
        assert_eq!(of("2.27"), [Some(4.0)]);
        assert_eq!(of("2.39"), [Some(5.0)]);
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
