//! Figures as data: what the page draws. Adding one is a file here and a line in `FIGURES`.

mod completion;
mod conversion;
mod copy;
pub mod copy_study;
mod counters;
mod etherbone;
mod felix;
mod fusion;
mod hostio;
mod memory;
mod readout;
pub(crate) mod stores;
mod trace;

use daqmeter_record::RunRecord;
use serde::Serialize;

/// One figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Anchor on the page.
    pub id: &'static str,
    /// Heading.
    pub title: String,
    /// What it shows and how to read it, a sentence or two.
    pub caption: String,
    /// How to draw it.
    pub kind: Kind,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Horizontal values, or for bars the categories' numbers.
    pub xs: Vec<f64>,
    /// Names of the bars.
    pub categories: Vec<String>,
    /// Curves or groups of bars.
    pub series: Vec<Series>,
    /// The command that reproduces it.
    pub command: String,
    /// True when an emulated device is in the path.
    pub emulated: bool,
}

/// How a figure is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Points joined by lines.
    Lines,
    /// Groups of bars.
    Bars,
    /// Points alone.
    Points,
}

/// An axis.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Axis {
    /// Quantity and unit.
    pub label: String,
    /// Logarithmic.
    pub log: bool,
    /// `bytes` shows powers of 1024.
    pub unit: &'static str,
}

impl Axis {
    fn linear(label: &str) -> Axis {
        Axis {
            label: label.to_owned(),
            log: false,
            unit: "",
        }
    }

    fn log_bytes(label: &str) -> Axis {
        Axis {
            label: label.to_owned(),
            log: true,
            unit: "bytes",
        }
    }
}

/// One curve.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    /// Name in the legend.
    pub label: String,
    /// Values, with holes.
    pub ys: Vec<Option<f64>>,
    /// True for limits, which are drawn as marks instead of bars and as dashed lines.
    pub limit: bool,
    /// 95 % intervals of the values, where they are known: drawn as a band, or as whiskers on bars. As many as values, or none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub band: Vec<Option<(f64, f64)>>,
}

impl Series {
    /// A series without intervals.
    pub fn new(label: impl Into<String>, ys: Vec<Option<f64>>) -> Series {
        Series {
            label: label.into(),
            ys,
            limit: false,
            band: Vec::new(),
        }
    }

    /// The same as a limit.
    #[must_use]
    pub fn into_limit(self) -> Series {
        Series {
            limit: true,
            ..self
        }
    }
}

/// Fills a figure from the records, if they can.
type Maker = fn(&[RunRecord]) -> Option<Figure>;

/// All figures, in the order of the page.
const FIGURES: &[Maker] = &[
    readout::figure,
    conversion::figure,
    stores::figure,
    fusion::figure,
    memory::figure,
    hostio::block,
    hostio::stream,
    completion::figure,
    etherbone::time,
    etherbone::rate,
    etherbone::throughput,
    etherbone::words,
    trace::figure,
    felix::cpu,
    felix::ring,
    felix::dead_time,
    felix::polling,
    copy::latency,
    copy::bandwidth,
    copy::pollution,
    counters::figure,
];

/// Every figure that the records can fill. Records that failed are not drawn.
pub fn figures(records: &[RunRecord]) -> Vec<Figure> {
    let records = &*crate::rate::done(records);
    FIGURES
        .iter()
        .filter_map(|figure| figure(records))
        .collect()
}

/// Records of an engine that measured something, newest of each workload and study last.
fn of_engine<'a>(records: &'a [RunRecord], engine: &'a str) -> impl Iterator<Item = &'a RunRecord> {
    records
        .iter()
        .filter(move |record| record.engine.name == engine && !record.lanes.is_empty())
}

/// Sustained rate in MB/s of one stage.
fn rate_mb(stage: &daqmeter_record::Stage) -> Option<f64> {
    rate_band_mb(stage).map(|(rate, _)| rate)
}

/// Sustained rate in MB/s of one stage with its 95 % interval, if it has one.
fn rate_band_mb(stage: &daqmeter_record::Stage) -> Option<(f64, Option<(f64, f64)>)> {
    let rate = crate::rate::of(stage)?.times(1e-6);
    Some((rate.per_s, rate.interval))
}

fn bars(
    id: &'static str,
    title: &str,
    caption: &str,
    y: &str,
    categories: Vec<String>,
    series: Vec<Series>,
) -> Figure {
    Figure {
        id,
        title: title.to_owned(),
        caption: caption.to_owned(),
        kind: Kind::Bars,
        x: Axis::linear(""),
        y: Axis::linear(y),
        xs: (0..categories.len()).map(|at| at as f64).collect(),
        categories,
        series,
        command: String::new(),
        emulated: false,
    }
}

/// A curve before its places are joined with those of the others.
struct Curve {
    label: String,
    limit: bool,
    points: Vec<(f64, f64)>,
    /// Intervals of some of the points: place, interval.
    bands: Vec<(f64, (f64, f64))>,
}

impl Curve {
    fn new(label: impl Into<String>, points: Vec<(f64, f64)>) -> Curve {
        Curve {
            label: label.into(),
            limit: false,
            points,
            bands: Vec::new(),
        }
    }

    fn into_limit(self) -> Curve {
        Curve {
            limit: true,
            ..self
        }
    }
}

/// Adds a point with its interval to the curve of that label.
fn add_banded(curves: &mut Vec<Curve>, label: &str, point: (f64, f64), band: Option<(f64, f64)>) {
    add_point(curves, label, point);
    if let (Some(curve), Some(band)) = (curves.iter_mut().find(|curve| curve.label == label), band)
    {
        curve.bands.push((point.0, band));
    }
}

/// Adds a point to the curve of that label.
fn add_point(curves: &mut Vec<Curve>, label: &str, point: (f64, f64)) {
    match curves.iter_mut().find(|curve| curve.label == label) {
        Some(curve) => curve.points.push(point),
        None => curves.push(Curve::new(label, vec![point])),
    }
}

/// Joins curves that have values at different places: sorted union of the places, holes where a curve has none.
fn join(curves: Vec<Curve>) -> (Vec<f64>, Vec<Series>) {
    let mut xs: Vec<f64> = curves
        .iter()
        .flat_map(|curve| curve.points.iter().map(|(x, _)| *x))
        .collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let series = curves
        .into_iter()
        .map(|curve| {
            // Thousands of places are usual: looked up, not searched for.
            let points: std::collections::HashMap<u64, f64> = curve
                .points
                .iter()
                .rev()
                .map(|(x, y)| (x.to_bits(), *y))
                .collect();
            let bands: std::collections::HashMap<u64, (f64, f64)> = curve
                .bands
                .iter()
                .rev()
                .map(|(x, band)| (x.to_bits(), *band))
                .collect();
            let band = if bands.is_empty() {
                Vec::new()
            } else {
                xs.iter()
                    .map(|x| bands.get(&x.to_bits()).copied())
                    .collect()
            };
            Series {
                ys: xs
                    .iter()
                    .map(|x| points.get(&x.to_bits()).copied())
                    .collect(),
                label: curve.label,
                limit: curve.limit,
                band,
            }
        })
        .collect();
    (xs, series)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::tests::example;

    #[test]
    fn no_records_give_no_figures() {
        assert!(figures(&[]).is_empty());
    }

    #[test]
    fn a_digitizer_record_fills_the_readout_figure_and_the_trace() {
        let ids: Vec<_> = figures(&[example()])
            .into_iter()
            .map(|figure| figure.id)
            .collect();
        assert_eq!(ids, ["readout", "trace"]);
    }

    #[test]
    fn curves_with_different_places_get_holes() {
        let curve = |label: &str, points: &[(f64, f64)]| Curve::new(label, points.to_vec());
        let (xs, series) = join(vec![
            curve("a", &[(1.0, 10.0), (3.0, 30.0)]),
            curve("b", &[(2.0, 20.0)]),
        ]);
        assert_eq!(xs, [1.0, 2.0, 3.0]);
        assert_eq!(series[0].ys, [Some(10.0), None, Some(30.0)]);
        assert_eq!(series[1].ys, [None, Some(20.0), None]);
    }
}
