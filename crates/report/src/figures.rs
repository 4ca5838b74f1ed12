//! Figures as data: content of the page's charts, made of marks. `families` lists the figures,
//! `figures/figures.json` has their words and axes.

use std::collections::{BTreeMap, HashSet};
use std::sync::LazyLock;

use daqmeter_record::{RunRecord, Stage};
use daqmeter_stats::Rate;
use serde::{Deserialize, Serialize};

use crate::groups::in_groups;
use crate::rate::limit_of;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    pub id: String,
    pub title: String,
    pub caption: String,
    pub kind: ChartKind,
    pub x: Axis,
    pub y: Axis,
    /// Horizontal values, or for bars the categories' numbers.
    pub xs: Vec<f64>,
    pub categories: Vec<String>,
    pub series: Vec<Series>,
    pub command: String,
    pub emulated: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChartKind {
    #[default]
    Lines,
    Bars,
    Points,
}

/// Kind of a chart and its axes; bars stand above categories.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, bound(deserialize = "'de: 'static"))]
pub(crate) struct Axes {
    pub(crate) kind: ChartKind,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Axis {
    pub label: &'static str,
    pub log: bool,
    /// Unit of the marks: `bytes` shows powers of 1024.
    pub unit: &'static str,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    pub label: String,
    pub ys: Vec<Option<f64>>,
    /// True for limits, which are drawn as marks instead of bars and as dashed lines.
    pub limit: bool,
    /// 95 % intervals of known values, drawn as a band, or as whiskers on bars. Equal in number to
    /// the values, or empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub band: Vec<Option<(f64, f64)>>,
}

/// A figure: its identifier, and the function that finds its values.
pub(crate) struct Plot {
    pub(crate) id: &'static str,
    pub(crate) marks: fn(&[RunRecord]) -> Vec<Mark<'_>>,
}

/// Words and axes of a figure.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlotWords {
    title: &'static str,
    caption: &'static str,
    axes: Axes,
}

/// Words of each [`Plot`], by its identifier.
static WORDS: LazyLock<BTreeMap<&'static str, PlotWords>> = LazyLock::new(|| {
    serde_json::from_str(include_str!("figures/figures.json")).expect("tests draw each figure")
});

/// One value of a figure.
pub(crate) struct Mark<'a> {
    pub(crate) record: &'a RunRecord,
    pub(crate) series: String,
    pub(crate) x: f64,
    /// Category of a bar, in place of `x`.
    pub(crate) category: String,
    pub(crate) y: f64,
    pub(crate) band: Option<(f64, f64)>,
    pub(crate) is_limit: bool,
}

impl<'a> Mark<'a> {
    pub(crate) fn at(record: &'a RunRecord, series: impl Into<String>, x: f64, y: f64) -> Mark<'a> {
        let (series, category) = (series.into(), String::new());
        Mark { record, series, x, category, y, band: None, is_limit: false }
    }

    pub(crate) fn bar(
        record: &'a RunRecord,
        series: &str,
        category: impl Into<String>,
        y: f64,
    ) -> Mark<'a> {
        Mark { category: category.into(), ..Mark::at(record, series, 0.0, y) }
    }

    /// Adds the interval of a rate, in MB/s.
    pub(crate) fn rate(record: &'a RunRecord, series: &str, x: f64, rate: Rate) -> Mark<'a> {
        let mb = rate.times(1e-6);
        Mark { band: mb.interval, ..Mark::at(record, series, x, mb.per_s) }
    }

    pub(crate) fn into_limit(self) -> Mark<'a> {
        Mark { is_limit: true, ..self }
    }

    /// Returns it, and the limit of its stage at the same place, in MB/s.
    pub(crate) fn with_limit(self, stage: &Stage, series: &str) -> impl Iterator<Item = Mark<'a>> {
        let limit = limit_of(self.record, stage).map(|limit| {
            let mark =
                Mark::bar(self.record, series, &*self.category, limit.rate_bytes_per_s / 1e6);
            Mark { x: self.x, ..mark.into_limit() }
        });
        std::iter::once(self).chain(limit)
    }
}

impl Plot {
    /// Draws the figure; `None` without values, or if all values of curves are at one place.
    pub(crate) fn draw(&self, records: &[RunRecord]) -> Option<Figure> {
        let PlotWords { title, caption, axes } = &WORDS[self.id];
        let (title, caption) = ((*title).to_owned(), (*caption).to_owned());
        let figure = drawn(title, caption, axes.clone(), (self.marks)(records));
        let is_curve = figure.kind != ChartKind::Bars;
        (figure.xs.len() > usize::from(is_curve))
            .then(|| Figure { id: self.id.to_owned(), ..figure })
    }
}

/// Makes a figure without an identifier: sorted union of the places, holes for missing values. Of
/// several values at one place the last is drawn: records are in the order of measurement.
pub(crate) fn drawn(
    title: String,
    caption: String,
    Axes { kind, x, y }: Axes,
    mut marks: Vec<Mark<'_>>,
) -> Figure {
    let mut categories: Vec<String> = Vec::new();
    for mark in marks.iter_mut().filter(|_| kind == ChartKind::Bars) {
        let known = categories.iter().position(|name| *name == mark.category);
        let new = || {
            categories.push(mark.category.clone());
            categories.len() - 1
        };
        mark.x = known.unwrap_or_else(new) as f64;
    }
    let mut xs: Vec<f64> = marks.iter().map(|mark| mark.x).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup_by(|a, b| a.total_cmp(b).is_eq());
    let series = |(label, marks): (&str, Vec<&Mark<'_>>)| {
        let (mut ys, mut band) = (vec![None; xs.len()], vec![None; xs.len()]);
        for mark in &marks {
            let place = xs.partition_point(|x| x.total_cmp(&mark.x).is_lt());
            ys[place] = Some(mark.y);
            band[place] = mark.band;
        }
        if band.iter().all(Option::is_none) {
            band.clear();
        }
        Series { label: label.to_owned(), ys, limit: marks[0].is_limit, band }
    };
    let curves = in_groups(marks.iter().map(|mark| (mark.series.as_str(), mark)));
    let series: Vec<Series> = curves.into_iter().map(series).collect();
    let emulated = marks.iter().any(|mark| mark.record.engine.emulated);
    let command = commands(marks.iter().map(|mark| mark.record)).join("; ");
    let id = String::new();
    Figure { id, title, caption, kind, x, y, xs, categories, series, command, emulated }
}

pub(crate) fn commands<'a>(records: impl IntoIterator<Item = &'a RunRecord>) -> Vec<&'a str> {
    let mut seen = HashSet::new();
    records
        .into_iter()
        .map(|record| record.command.as_str())
        .filter(|command| !command.is_empty() && seen.insert(*command))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(kind: ChartKind, marks: fn(&[RunRecord]) -> Vec<Mark<'_>>) -> Plot {
        let plot = Plot { id: if kind == ChartKind::Bars { "readout" } else { "memory" }, marks };
        assert_eq!(WORDS[plot.id].axes.kind, kind);
        plot
    }

    #[test]
    fn each_figure_has_its_words_and_none_is_without_a_figure() {
        let plots = crate::families::FAMILIES.iter().flat_map(|family| family.plots);
        let ids: std::collections::BTreeSet<&str> = plots.map(|plot| plot.id).collect();
        assert!(WORDS.keys().eq(&ids), "{ids:?}");
    }

    #[test]
    fn curves_get_holes_the_newest_value_of_a_place_and_each_command_once() {
        let record = |command: &str| {
            let mut record = crate::examples::example();
            record.command = command.into();
            record
        };
        let records = [record("daqmeter a"), record("daqmeter b"), record("daqmeter a")];
        let curves = plot(ChartKind::Lines, |records| {
            let points = [("a", 1.0, 10.0), ("a", 3.0, 30.0), ("b", 2.0, 20.0), ("a", 1.0, 11.0)];
            let mark = |(at, (label, x, y)): (usize, (&str, f64, f64))| {
                Mark::at(&records[at % 3], label, x, y)
            };
            points.into_iter().enumerate().map(mark).collect()
        });
        let figure = curves.draw(&records).unwrap();
        assert_eq!(figure.xs, [1.0, 2.0, 3.0]);
        assert_eq!(figure.series[0].ys, [Some(11.0), None, Some(30.0)]);
        assert_eq!(figure.series[1].ys, [None, Some(20.0), None]);
        assert_eq!(figure.command, "daqmeter a; daqmeter b");
    }

    #[test]
    fn bars_stand_in_the_order_of_their_names_and_one_place_is_no_curve() {
        let bars = plot(ChartKind::Bars, |records| {
            let bar = |(name, y)| Mark::bar(&records[0], "s", name, y);
            [("z", 1.0), ("a", 2.0)].map(bar).into()
        });
        let figure = bars.draw(&[crate::examples::example()]).unwrap();
        assert_eq!(
            (&figure.categories[..], &figure.series[0].ys[..]),
            (&["z".to_owned(), "a".to_owned()][..], &[Some(1.0), Some(2.0)][..])
        );
        let one = plot(ChartKind::Lines, |records| vec![Mark::at(&records[0], "s", 1.0, 1.0)]);
        assert!(one.draw(&[crate::examples::example()]).is_none());
    }
}
