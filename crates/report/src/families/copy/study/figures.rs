//! Figures 2.1 to 2.50 of the study of copies (reference 1.9), drawn from any records. Their table,
//! `figures.json`, has the words of each kind of figure, and the records of each figure.
//!
//! Figure 2.36 is captioned 16,064 B in the study and described as 1448 B in its text; the text
//! fits its place. The "huge" images, whose figures the study does not name, are with the large
//! ones.

use std::collections::BTreeMap;

use daqmeter_record::RunRecord;
use serde::Deserialize;

use crate::aligned::plain;
use crate::copy::{CopyRow, MIB, PollutionRow, copy_rows, pollution_rows};
use crate::figures::{Axes, ChartKind, Figure, Mark, drawn};
use crate::{page_of, rate};

/// Time over which the study counted calls.
const CALLS_SECONDS: f64 = 100.0;

#[derive(Deserialize)]
struct StudyTable {
    /// Names of copiers and neighbours in the study.
    #[serde(borrow)]
    names: BTreeMap<&'static str, &'static str>,
    kinds: BTreeMap<Kind, Words>,
    figures: Vec<StudyFigure>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    #[default]
    Latency,
    Total,
    Channels,
    Calls,
    Misses,
    Times,
}

/// Texts of a kind. `{name}` is replaced by a value, as in the title of a figure.
#[derive(Deserialize)]
struct Words {
    caption: &'static str,
    /// End of the caption if an emulated engine copied.
    #[serde(default)]
    emulated: &'static str,
    axes: Axes,
}

/// One figure: its words, and the property of its records.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct StudyFigure {
    kind: Kind,
    title: &'static str,
    command: &'static str,
    direction: &'static str,
    cold: bool,
    heavy: bool,
    /// Kernel's functions of a figure of calls.
    #[serde(borrow)]
    functions: Vec<&'static str>,
    /// Bytes of a copy of the neighbour.
    bytes: u64,
    /// True for the small programs.
    small: bool,
}

pub(crate) const ABOUT: &str =
    "Page with the 50 figures of the copy study; the commands that fill missing ones";

/// Makes a page of the figures that the records fill, and a table of all.
pub(crate) fn page(records: &[RunRecord]) -> (Result<String, String>, String) {
    let mut figures = study(records);
    let rows = figures.iter().map(|figure| {
        let is_empty = figure.xs.is_empty();
        let state = if is_empty { &format!("no records; {}", figure.command) } else { "drawn" };
        vec![figure.title.clone(), state.to_owned()]
    });
    let table = plain(&["figure", "state"], rows);
    figures.retain(|figure| !figure.xs.is_empty());
    let none = "the records fill none of the figures; see the commands above";
    let page = (!figures.is_empty()).then(|| page_of(records, figures, &[]));
    (page.ok_or(none.to_owned()), table)
}

/// Marks of a figure, and values that replace names in its texts.
type Content<'a> = (Vec<Mark<'a>>, Vec<(&'static str, String)>);

/// Returns all 50 figures, in order; one without its records has no values.
fn study(records: &[RunRecord]) -> Vec<Figure> {
    let table: StudyTable =
        serde_json::from_str(include_str!("figures.json")).expect("tests draw each figure");
    let done = rate::done(records);
    let (rows, beside) = (copy_rows(&done), pollution_rows(&done));
    let shown = |name: &str| table.names.get(name).copied().unwrap_or(name).to_owned();
    let figure = |(at, figure): (usize, &StudyFigure)| {
        let words = &table.kinds[&figure.kind];
        let (marks, values) = match figure.kind {
            Kind::Latency | Kind::Total | Kind::Channels => figure.copies(&rows, shown),
            Kind::Calls => figure.calls(records),
            Kind::Misses | Kind::Times => figure.programs(&beside, shown),
        };
        let filled = |text: &str| {
            let fill = |text: String, (name, value): &(&str, String)| text.replace(name, value);
            values.iter().fold(text.to_owned(), fill)
        };
        let title = format!("2.{} {}", at + 1, filled(figure.title));
        let mut axes = words.axes.clone();
        if marks.iter().all(|mark| mark.x == marks[0].x) && axes.kind == ChartKind::Lines {
            axes.kind = ChartKind::Points;
        }
        let drawn = drawn(title, filled(words.caption), axes, marks);
        let caption = drawn.caption.clone() + if drawn.emulated { words.emulated } else { "" };
        let command = format!("daqmeter copy {}", figure.command);
        Figure { id: format!("fig-2-{}", at + 1), caption, command, ..drawn }
    };
    table.figures.iter().enumerate().map(figure).collect()
}

impl StudyFigure {
    fn copies<'a>(&self, rows: &[CopyRow<'a>], shown: impl Fn(&str) -> String) -> Content<'a> {
        let is_of = |row: &&CopyRow<'_>| {
            let is_of_kind = match self.kind {
                Kind::Latency => row.lanes_bytes_per_s.len() == 1 && row.context != "priority",
                Kind::Total => row.lanes_bytes_per_s.len() > 1,
                _ => row.context == "priority",
            };
            let is_heavy = row.load == "heavy";
            let property = (row.direction, row.cold, is_heavy);
            is_of_kind && property == (self.direction, self.cold, self.heavy)
        };
        let rows: Vec<&CopyRow<'a>> = rows.iter().filter(is_of).collect();
        let values = |row: &CopyRow<'_>| {
            let copier = || format!("{} ({})", shown(row.context), row.path);
            let rates = row.lanes_bytes_per_s.iter().enumerate();
            match self.kind {
                Kind::Latency => vec![(copier(), row.times.mean)],
                Kind::Total => vec![(copier(), row.total_bytes_per_s() / MIB)],
                _ => rates.map(|(at, rate)| (format!("channel {at}"), rate / MIB)).collect(),
            }
        };
        let marks = rows.iter().flat_map(|row| {
            let values = values(row).into_iter();
            values.map(|(series, y)| Mark::at(row.record, series, row.block_bytes as f64, y))
        });
        // A sample may be of several copies.
        let count = |row: &&CopyRow<'_>| (row.n as u64).saturating_mul(row.ops_per_sample);
        let (load, hint) = match rows.iter().any(|row| row.load == "unknown") {
            true => ("unknown", " of imported files, see copy import --load"),
            false => (if self.heavy { "heavy" } else { "light" }, ""),
        };
        let lanes = rows.first().map_or(0, |row| row.lanes_bytes_per_s.len());
        let texts = vec![
            ("{load}", load.to_owned()),
            ("{hint}", hint.to_owned()),
            ("{copies}", rows.iter().map(count).max().unwrap_or(0).to_string()),
            ("{lanes}", lanes.to_string()),
        ];
        (marks.collect(), texts)
    }

    fn programs<'a>(
        &self,
        rows: &[PollutionRow<'a>],
        shown: impl Fn(&str) -> String,
    ) -> Content<'a> {
        let is_misses = self.kind == Kind::Misses;
        // Times of an emulator are no results.
        let is_of = |row: &&PollutionRow<'_>| {
            let property = (row.direction, row.block_bytes, row.test.ends_with("small"));
            property == (self.direction, self.bytes, self.small) && (is_misses || !row.simulated())
        };
        let value = |row: &PollutionRow<'_>| match is_misses {
            true => row.miss_percent,
            false => Some(row.times.mean / 1e3),
        };
        let rows = rows.iter().filter(is_of).filter_map(|row| Some((row, value(row)?)));
        let model = match rows.clone().any(|(row, _)| row.simulated()) {
            true => {
                " SIMULATED: counted by a cache model in an emulator (L1 32 KiB, shared L2 4 MiB)."
            }
            false => "",
        };
        let runs = rows.clone().map(|(row, _)| row.times.n).max().unwrap_or(0);
        let copies = format!("{} {}", self.direction, self.bytes);
        let texts = [runs.to_string(), copies, model.to_owned()];
        let texts = ["{runs}", "{copies}", "{model}"].into_iter().zip(texts).collect();
        let bar = |(row, value): (&PollutionRow<'a>, f64)| {
            Mark::bar(row.record, &shown(row.neighbour), row.test, value)
        };
        (rows.map(bar).collect(), texts)
    }

    fn calls<'a>(&self, records: &'a [RunRecord]) -> Content<'a> {
        let is_trace = |record: &&RunRecord| record.engine.name == "trace" && record.wall_ns > 0;
        let trace = records.iter().rev().find(is_trace);
        let traced_ns = trace.and_then(|record| record.counter("traced"));
        let seconds = traced_ns.map_or(CALLS_SECONDS, |ns| ns / 1e9);
        // Both forms of a direction are one curve: their calls of a size are summed.
        let calls = trace.iter().flat_map(|record| record.calls());
        let mut sizes: BTreeMap<u64, f64> = BTreeMap::new();
        for (_, bytes, calls) in calls.filter(|(name, ..)| self.functions.contains(name)) {
            *sizes.entry(bytes.max(1)).or_default() += calls / seconds * CALLS_SECONDS;
        }
        let scaled = match (seconds - CALLS_SECONDS).abs() {
            ..=1.0 => String::new(),
            _ => format!(", scaled from {seconds:.0} s"),
        };
        let functions = self.functions.join(" + ");
        let mark = |(bytes, calls)| Some(Mark::at(trace?, &*functions, bytes as f64, calls));
        let marks = sizes.into_iter().filter_map(mark).collect();
        (marks, vec![("{scaled}", scaled)])
    }
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
        let Figure { title, caption, .. } = study(&records[..1]).remove(0);
        assert_eq!(title, "2.1 copy_from_user: mean latency, unknown load");
        assert!(caption.starts_with("System load: unknown of imported files"), "{caption}");
        let table = crate::copy::latency(&records[..1]).tables;
        assert!(table.contains("copy_from_user, unknown load"), "{table}");
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
