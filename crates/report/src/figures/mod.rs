//! Figures as data: content of the page's charts, made of curves and bars. `families` lists the
//! figures.

pub mod copy_study;

use std::collections::{HashMap, HashSet};

use daqmeter_record::RunRecord;
use serde::Serialize;

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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ChartKind {
    Lines,
    Bars,
    Points,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Axis {
    pub label: &'static str,
    pub log: bool,
    /// Unit of the marks: `bytes` shows powers of 1024.
    pub unit: &'static str,
}

impl Axis {
    pub(crate) const fn linear(label: &'static str) -> Axis {
        Axis { label, log: false, unit: "" }
    }

    pub(crate) const fn log(label: &'static str) -> Axis {
        Axis { label, log: true, unit: "" }
    }

    pub(crate) const fn log_bytes(label: &'static str) -> Axis {
        Axis { label, log: true, unit: "bytes" }
    }
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

impl Series {
    /// Creates a series without intervals.
    pub fn new(label: impl Into<String>, ys: Vec<Option<f64>>) -> Series {
        Series { label: label.into(), ys, limit: false, band: Vec::new() }
    }

    #[must_use]
    pub(crate) fn into_limit(self) -> Series {
        Series { limit: true, ..self }
    }

    /// Adds intervals, if any is known.
    #[must_use]
    pub(crate) fn with_band(self, band: Vec<Option<(f64, f64)>>) -> Series {
        let is_known = band.iter().any(Option::is_some);
        Series { band: if is_known { band } else { Vec::new() }, ..self }
    }
}

pub(crate) struct Plot {
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) caption: &'static str,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
}

impl Plot {
    fn figure<'a>(self, drawn: impl IntoIterator<Item = &'a RunRecord>) -> Figure {
        let drawn: Vec<&RunRecord> = drawn.into_iter().collect();
        Figure {
            id: self.id.to_owned(),
            title: self.title.to_owned(),
            caption: self.caption.to_owned(),
            kind: ChartKind::Lines,
            x: self.x,
            y: self.y,
            xs: Vec::new(),
            categories: Vec::new(),
            series: Vec::new(),
            command: commands(drawn.iter().copied()).join("; "),
            emulated: drawn.iter().any(|record| record.engine.emulated),
        }
    }

    /// Draws curves over a common axis from these records; `None` if all values are at one place.
    pub(crate) fn curves<'a>(
        self,
        curves: Vec<Curve>,
        drawn: impl IntoIterator<Item = &'a RunRecord>,
    ) -> Option<Figure> {
        let (xs, series) = join(curves);
        (xs.len() > 1).then(|| Figure { xs, series, ..self.figure(drawn) })
    }

    pub(crate) fn bars<'a>(
        self,
        categories: Vec<String>,
        series: Vec<Series>,
        drawn: impl IntoIterator<Item = &'a RunRecord>,
    ) -> Option<Figure> {
        let xs: Vec<f64> = (0..categories.len()).map(|at| at as f64).collect();
        let kind = ChartKind::Bars;
        (!xs.is_empty()).then(|| Figure { kind, xs, categories, series, ..self.figure(drawn) })
    }
}

/// Draws values of things that the caption numbers from 1.
pub fn by_rank(
    id: &'static str,
    title: &'static str,
    caption: &'static str,
    y: &'static str,
    series: Vec<Series>,
) -> Figure {
    let count = series.iter().map(|series| series.ys.len()).max().unwrap_or(0);
    let plot = Plot { id, title, caption, x: Axis::linear("number"), y: Axis::log(y) };
    Figure { xs: (1..=count).map(|at| at as f64).collect(), series, ..plot.figure([]) }
}

pub(crate) fn bars(
    id: &'static str,
    title: &str,
    caption: &str,
    y: &'static str,
    categories: Vec<String>,
    series: Vec<Series>,
) -> Figure {
    let plot = Plot { id, title: "", caption: "", x: Axis::linear(""), y: Axis::linear(y) };
    Figure {
        title: title.to_owned(),
        caption: caption.to_owned(),
        kind: ChartKind::Bars,
        xs: (0..categories.len()).map(|at| at as f64).collect(),
        categories,
        series,
        ..plot.figure([])
    }
}

pub(crate) fn commands<'a>(records: impl IntoIterator<Item = &'a RunRecord>) -> Vec<&'a str> {
    let mut seen = HashSet::new();
    records
        .into_iter()
        .map(|record| record.command.as_str())
        .filter(|command| !command.is_empty() && seen.insert(*command))
        .collect()
}

pub(crate) struct Curve {
    pub(crate) label: String,
    pub(crate) limit: bool,
    pub(crate) points: Vec<(f64, f64)>,
    /// Intervals of some of the points: place, interval.
    pub(crate) bands: Vec<(f64, (f64, f64))>,
}

impl Curve {
    pub(crate) fn new(label: impl Into<String>, points: Vec<(f64, f64)>) -> Curve {
        Curve { label: label.into(), limit: false, points, bands: Vec::new() }
    }

    #[must_use]
    pub(crate) fn into_limit(self) -> Curve {
        Curve { limit: true, ..self }
    }
}

pub(crate) fn curve<'a>(curves: &'a mut Vec<Curve>, label: &str) -> &'a mut Curve {
    let at = curves.iter().position(|curve| curve.label == label);
    let at = at.unwrap_or_else(|| {
        curves.push(Curve::new(label, Vec::new()));
        curves.len() - 1
    });
    &mut curves[at]
}

/// Adds a point with its interval to the curve of that label.
pub(crate) fn add_banded(
    curves: &mut Vec<Curve>,
    label: &str,
    point: (f64, f64),
    band: Option<(f64, f64)>,
) {
    let curve = curve(curves, label);
    curve.points.push(point);
    curve.bands.extend(band.map(|band| (point.0, band)));
}

pub(crate) fn add_point(curves: &mut Vec<Curve>, label: &str, point: (f64, f64)) {
    curve(curves, label).points.push(point);
}

pub(crate) fn curves_of(points: impl IntoIterator<Item = (String, (f64, f64))>) -> Vec<Curve> {
    let mut curves = Vec::new();
    points.into_iter().for_each(|(label, point)| add_point(&mut curves, &label, point));
    curves
}

/// Joins curves with values at different places: sorted union of the places, holes for missing
/// values. Of several values at one place the last is drawn: records are in the order of
/// measurement.
pub(crate) fn join(curves: Vec<Curve>) -> (Vec<f64>, Vec<Series>) {
    let places = curves.iter().flat_map(|curve| &curve.points);
    let mut xs: Vec<f64> = places.map(|(x, _)| *x).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let series = curves.into_iter().map(|curve| Series {
        ys: at_places(&xs, &curve.points),
        band: if curve.bands.is_empty() { Vec::new() } else { at_places(&xs, &curve.bands) },
        label: curve.label,
        limit: curve.limit,
    });
    (xs.clone(), series.collect())
}

/// Searches by lookup, because thousands of places are usual.
fn at_places<T: Copy>(xs: &[f64], known: &[(f64, T)]) -> Vec<Option<T>> {
    let by_place: HashMap<u64, T> = known.iter().map(|(x, y)| (x.to_bits(), *y)).collect();
    xs.iter().map(|x| by_place.get(&x.to_bits()).copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_with_different_places_get_holes() {
        let curve = |label: &str, points: &[(f64, f64)]| Curve::new(label, points.to_vec());
        let (xs, series) =
            join(vec![curve("a", &[(1.0, 10.0), (3.0, 30.0)]), curve("b", &[(2.0, 20.0)])]);
        assert_eq!(xs, [1.0, 2.0, 3.0]);
        assert_eq!(series[0].ys, [Some(10.0), None, Some(30.0)]);
        assert_eq!(series[1].ys, [None, Some(20.0), None]);
    }

    #[test]
    fn a_figure_names_every_command_that_measured_it_once() {
        let record = |command: &str| {
            let mut record = crate::examples::example();
            record.command = command.into();
            record
        };
        let records = [record("daqmeter a"), record("daqmeter b"), record("daqmeter a")];
        assert_eq!(commands(&records).join("; "), "daqmeter a; daqmeter b");
    }

    #[test]
    fn of_two_runs_of_a_point_the_newest_is_drawn() {
        let (_, series) = join(vec![Curve::new("a", vec![(1.0, 10.0), (1.0, 11.0)])]);
        assert_eq!(series[0].ys, [Some(11.0)]);
    }
}
