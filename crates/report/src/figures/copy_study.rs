//! Figures 2.1 to 2.50 of the study of copies (reference 1.9), drawn from any records.

use std::collections::BTreeMap;

use daqmeter_record::RunRecord;

use super::{Axes, Axis, ChartKind, Figure, Mark, drawn};
use crate::copy::{CopyRow, MIB, PollutionRow, copy_rows, function, pollution_rows};
use crate::rate;

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
const NAMES: [(&str, &str); 8] = [
    ("cpu", "CPU"),
    ("exclusive", "DMA Excl"),
    ("shared", "DMA Sh"),
    ("priority", "DMA Prio"),
    ("ideal", "Ideal"),
    ("dma", "DMA"),
    ("spin", "spin (control)"),
    ("null-call", "null call (control)"),
];

fn shown(name: &str) -> &str {
    NAMES.iter().find(|(known, _)| *known == name).map_or(name, |(_, shown)| *shown)
}

/// Quantity of copies against their size.
struct Quantity {
    directions: &'static [&'static str],
    /// Title behind the operation.
    title: &'static str,
    command: &'static str,
    /// Ending of the operation in the command.
    ending: &'static str,
    y: &'static str,
    is_shown: fn(&CopyRow<'_>) -> bool,
    /// Series and values of a row.
    values: fn(&CopyRow<'_>) -> Vec<(String, f64)>,
    /// Caption, by the copies of each size and the lanes.
    about: fn(u64, usize) -> String,
}

const LATENCY: Quantity = Quantity {
    directions: &["from", "to"],
    title: ": mean latency",
    command: "latency",
    ending: "",
    y: "mean latency [ns]",
    is_shown: |row| !row.cold && row.lanes_bytes_per_s.len() == 1 && row.context != "priority",
    values: |row| vec![(copier(row), row.times.mean)],
    about: |copies, _| format!("Mean of {copies} copies of each size, one at a time."),
};

const COLD_LATENCY: Quantity = Quantity {
    title: ", no cache: mean latency",
    ending: "_nc",
    is_shown: |row| row.cold && row.lanes_bytes_per_s.len() == 1 && row.context != "priority",
    ..LATENCY
};

const TOTAL: Quantity = Quantity {
    directions: &["from", "to", "both"],
    title: ": total bandwidth",
    command: "bandwidth",
    ending: "",
    y: "total bandwidth [MB/s]",
    is_shown: |row| !row.cold && row.lanes_bytes_per_s.len() > 1,
    values: |row| vec![(copier(row), row.total_bytes_per_s() / MIB)],
    about: |copies, lanes| {
        format!(
            "Sum of the rates of {lanes} CPUs or channels that copy at once, each {copies} copies of a size; MB of 2^20 bytes."
        )
    },
};

const CHANNELS: Quantity = Quantity {
    title: ": bandwidth by channel, priority policy",
    command: "bandwidth --contexts priority",
    y: "bandwidth [MB/s]",
    is_shown: |row| !row.cold && row.context == "priority",
    values: |row| {
        let rates = row.lanes_bytes_per_s.iter().enumerate();
        rates.map(|(at, rate)| (format!("channel {at}"), rate / MIB)).collect()
    },
    about: |copies, _| {
        format!(
            "Rate of each channel, {copies} copies of each size; the high channels own the engine for a quantum in each window; MB of 2^20 bytes."
        )
    },
    ..TOTAL
};

fn copier(row: &CopyRow<'_>) -> String {
    format!("{} ({})", shown(row.context), row.path)
}

/// Returns all 50 figures, in order; one without its records has no values.
pub fn study(records: &[RunRecord]) -> Vec<Figure> {
    let done = rate::done(records);
    let (rows, beside) = (copy_rows(&done), pollution_rows(&done));
    let mut all = Vec::new();
    for quantities in [&[LATENCY, COLD_LATENCY][..], &[TOTAL], &[CHANNELS]] {
        for load in ["light", "heavy"] {
            for quantity in quantities {
                let figure = |direction: &&str| copies(&rows, quantity, load, direction);
                all.extend(quantity.directions.iter().map(figure));
            }
        }
    }
    all.extend(OPERATIONS.map(|names| calls(records, names)));
    for misses in [true, false] {
        for copies in COPIES {
            all.extend([true, false].map(|small| programs(&beside, copies, small, misses)));
        }
    }
    for (at, figure) in all.iter_mut().enumerate() {
        figure.id = format!("fig-2-{}", at + 1);
        figure.title.insert_str(0, &format!("2.{} ", at + 1));
        figure.command.insert_str(0, "daqmeter copy ");
    }
    all
}

fn copies<'a>(rows: &[CopyRow<'a>], quantity: &Quantity, load: &str, direction: &str) -> Figure {
    let is_of = |row: &&CopyRow<'_>| {
        let is_heavy = row.load == "heavy";
        row.direction == direction && is_heavy == (load == "heavy") && (quantity.is_shown)(row)
    };
    let rows: Vec<&CopyRow<'a>> = rows.iter().filter(is_of).collect();
    let marks = rows.iter().flat_map(|row| {
        let values = (quantity.values)(row).into_iter();
        values.map(|(series, y)| Mark::at(row.record, series, row.block_bytes as f64, y))
    });
    let marks: Vec<Mark<'a>> = marks.collect();
    // A sample may be of several copies.
    let count = |row: &&CopyRow<'_>| (row.n as u64).saturating_mul(row.ops_per_sample);
    let count = rows.iter().map(count).max().unwrap_or(0);
    let lanes = rows.first().map_or(0, |row| row.lanes_bytes_per_s.len());
    let is_emulated = rows.iter().any(|row| row.record.engine.emulated);
    let emulation = if is_emulated { " The DMA engine is EMULATED by a CPU." } else { "" };
    let Quantity { title, command, ending, .. } = quantity;
    let heavy = if load == "heavy" { " --load heavy" } else { "" };
    let kind = match marks.iter().all(|mark| mark.x == marks[0].x) {
        true => ChartKind::Points,
        false => ChartKind::Lines,
    };
    let title = format!("{}{title}, {load} load", function(direction));
    let is_unknown = rows.iter().any(|row| row.load == "unknown");
    let load = if is_unknown { "unknown of imported files, see copy import --load" } else { load };
    let caption = format!("System load: {load}. {}{emulation}", (quantity.about)(count, lanes));
    let command = format!("{command} --operations {direction}{ending}{heavy}");
    Figure { command, ..drawn(title, caption, by_block(kind, quantity.y), marks) }
}

fn programs<'a>(rows: &[PollutionRow<'a>], copies: &str, small: bool, misses: bool) -> Figure {
    // Times of an emulator are no results.
    let is_of = |row: &&PollutionRow<'_>| {
        let is_small = row.test.ends_with("small");
        row.copies == copies && is_small == small && (misses || !row.simulated())
    };
    let value = |row: &PollutionRow<'_>| match misses {
        true => row.miss_percent,
        false => Some(row.times.mean / 1e3),
    };
    let rows = rows.iter().filter(is_of).filter_map(|row| Some((row, value(row)?)));
    let runs = rows.clone().map(|(row, _)| row.times.n).max().unwrap_or(0);
    let model = match rows.clone().any(|(row, _)| row.simulated()) {
        true => " SIMULATED: counted by a cache model in an emulator (L1 32 KiB, shared L2 4 MiB).",
        false => "",
    };
    let bar = |(row, value): (&PollutionRow<'a>, f64)| {
        Mark::bar(row.record, shown(row.neighbour), row.test, value)
    };
    let programs = if small { "small" } else { "large and huge" };
    let (quantity, y) = match misses {
        true => ("cache misses", "cache misses [%]"),
        false => ("execution time", "execution time [us]"),
    };
    let title = format!("{programs} programs: {quantity} beside {copies} B copies");
    let caption = format!(
        "Mean of {runs} runs of each program on one CPU while another copies {copies} B blocks.{model} spin and null call copy nothing: what they cost, copies do not explain."
    );
    let command = format!("pollution --copies {}", copies.replace(' ', ":"));
    let axes = Axes::bars(Axis::linear(y));
    Figure { command, ..drawn(title, caption, axes, rows.map(bar).collect()) }
}

fn calls(records: &[RunRecord], operations: &[&str]) -> Figure {
    let is_trace = |record: &&RunRecord| record.engine.name == "trace" && record.wall_ns > 0;
    let trace = records.iter().rev().find(is_trace);
    // Older records have no time of the trace alone.
    let ns = |record: &RunRecord| record.counter("traced").unwrap_or(record.wall_ns as f64);
    let seconds = trace.map_or(CALLS_SECONDS, |record| ns(record) / 1e9);
    // Counters are `copy_from_user:16`. Both forms of a direction are one curve: their calls of a
    // size are summed.
    let counters = trace.iter().flat_map(|record| &record.counters);
    let counted = counters.filter_map(|counter| {
        let (name, bytes) = counter.name.split_once(':')?;
        operations.contains(&name).then_some((bytes.parse::<u64>().ok()?, counter.value))
    });
    let mut sizes: BTreeMap<u64, f64> = BTreeMap::new();
    for (bytes, calls) in counted {
        *sizes.entry(bytes.max(1)).or_default() += calls / seconds * CALLS_SECONDS;
    }
    let scaled = match (seconds - CALLS_SECONDS).abs() {
        ..=1.0 => String::new(),
        _ => format!(", scaled from {seconds:.0} s"),
    };
    let name = operations.join(" + ");
    let mark = |(bytes, calls)| Some(Mark::at(trace?, name.as_str(), bytes as f64, calls));
    let marks = sizes.into_iter().filter_map(mark).collect();
    let title = format!("{name}: calls in 100 s by size");
    let caption =
        format!("Calls in 100 s{scaled}, by bytes asked; system load as it was. One trace.");
    let axes = by_block(ChartKind::Points, "calls in 100 s");
    Figure { command: "trace --time 100s".to_owned(), ..drawn(title, caption, axes, marks) }
}

fn by_block(kind: ChartKind, y: &'static str) -> Axes {
    Axes { kind, x: Axis::log_bytes("block"), y: Axis::log(y) }
}

#[cfg(test)]
mod tests {
    use daqmeter_record::Counter;

    use super::*;
    use crate::copy::tests::example;

    #[test]
    fn the_table_is_the_references() {
        let titles: Vec<String> = study(&[]).into_iter().map(|figure| figure.title).collect();
        assert_eq!(titles.len(), 50);
        for (at, title) in [
            (7, "2.8 copy_to_user, no cache: mean latency, heavy load"),
            (
                16,
                "2.17 copy_from_user + copy_to_user: bandwidth by channel, priority policy, light load",
            ),
            (35, "2.36 large and huge programs: cache misses beside to 1448 B copies"),
            (49, "2.50 large and huge programs: execution time beside to 4096 B copies"),
        ] {
            assert_eq!(titles[at], title);
        }
    }

    #[test]
    fn a_figure_is_drawn_from_its_own_records_only() {
        let mut records =
            vec![example("cpu", "from", 64, &[100, 200]), example("shared", "from", 64, &[300])];
        let drawn = |records: &[RunRecord]| -> Vec<String> {
            let drawn = study(records).into_iter().filter(|figure| !figure.xs.is_empty());
            drawn.map(|figure| figure.title.split(' ').next().unwrap().to_owned()).collect()
        };
        assert_eq!(drawn(&records), ["2.1"]);
        let figure = study(&records).remove(0);
        assert_eq!(figure.series[0].ys, [Some(150.0)]);
        assert!(figure.caption.contains("EMULATED") && figure.caption.contains("load: light"));
        let mut several = example("cpu", "to", 64, &[300]);
        several.lanes[0].stages[0].ops_per_sample = 300;
        let figure = study(&[several]).remove(1);
        assert!(figure.caption.contains("Mean of 300 copies"), "{}", figure.caption);
        let lane = records[1].lanes[0].clone();
        records[1].lanes.push(lane);
        records[1].set_param("context", "priority");
        records[1].set_param("load", "heavy");
        assert_eq!(drawn(&records[1..]), ["2.12", "2.18"]);
        // Regression: heavy load of unknown files was drawn as light.
        records[0].set_param("load", "unknown");
        let caption = &study(&records[..1])[0].caption;
        assert!(caption.starts_with("System load: unknown"), "{caption}");
    }

    #[test]
    fn calls_are_scaled_by_the_time_of_the_trace_alone() {
        let mut record = example("cpu", "from", 1, &[]);
        (record.engine.name, record.wall_ns) = ("trace".into(), 10_470_000_000);
        record.counters = vec![
            Counter::count("copy_from_user:16", 1000),
            Counter::measured("traced", 1e10, "ns"),
        ];
        assert_eq!(study(&[record])[20].series[0].ys, [Some(10_000.0)]);
    }

    #[test]
    fn times_of_this_host_and_misses_of_the_model_draw_a_figure_each() {
        let run = |counters: &[(&str, u64)]| {
            let mut record = example("cpu", "both", 16, &[5000]);
            record.engine.name = "pollution".into();
            record.set_param("test", "qsort_small");
            record.set_param("neighbour", "cpu");
            record.set_param("simulated", !counters.is_empty());
            let counter = |(name, value): &(&str, u64)| Counter::count(*name, *value);
            record.counters = counters.iter().map(counter).collect();
            record
        };
        let counted =
            [("victim-runs", 1), ("victim-cache-references", 100), ("victim-cache-misses", 4)];
        let drawn = study(&[run(&[]), run(&counted)]);
        let bars = |number: usize| drawn[number - 1].series[0].ys.clone();
        assert_eq!((bars(27), bars(39)), (vec![Some(4.0)], vec![Some(5.0)]));
    }
}
