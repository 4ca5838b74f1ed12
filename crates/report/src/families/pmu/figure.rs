//! Counters of the machine over time: the metrics of a group, else its events.

use daqmeter_record::{Observations, RunRecord};

use super::{end_s, rate_at};
use crate::figures::{Axis, Curve, Figure, Plot};

const COUNTERS: Plot = Plot {
    id: "counters",
    title: "Counters over time",
    caption: "",
    x: Axis::linear("time [s]"),
    y: Axis::linear(""),
};

fn metrics(observed: &Observations) -> Vec<Curve> {
    let in_bytes = observed.metrics.iter().filter(|metric| metric.unit == "B/s");
    let curve = |metric: &daqmeter_record::observed::ObservedMetric| {
        let points = metric.values.iter().enumerate();
        let point =
            |(at, value): (usize, &Option<f64>)| Some((end_s(observed, at), (*value)? / 1e6));
        Curve::new(metric.name.clone(), points.filter_map(point).collect())
    };
    in_bytes.map(curve).collect()
}

fn events(observed: &Observations) -> Vec<Curve> {
    let curve = |event: &daqmeter_record::observed::ObservedEvent| {
        let rate = |at: usize| Some((end_s(observed, at), rate_at(observed, event, at)?));
        Curve::new(event.name.clone(), (0..observed.end_ns.len()).filter_map(rate).collect())
    };
    observed.events.iter().take(12).map(curve).collect()
}

/// Draws the observation with the most intervals.
pub(super) fn figure(records: &[RunRecord]) -> Option<Figure> {
    let observed = records.iter().filter_map(|record| Some((record, record.observed.as_deref()?)));
    let (record, observed) = observed.max_by_key(|(_, observed)| observed.end_ns.len())?;
    let bytes = metrics(observed);
    let (curves, label, what) = match bytes.is_empty() {
        true => (
            events(observed),
            "events per second",
            "Events per second, scaled to the whole interval where they took turns",
        ),
        false => (bytes, "MB/s", "Rates computed from counters"),
    };
    let caveats = observed.metrics.iter().map(|metric| metric.caveat.as_str());
    let caveats: Vec<&str> = caveats.filter(|text| !text.is_empty()).collect();
    let mut caption = format!("{what}: {}.", observed.what);
    if !caveats.is_empty() {
        caption.push_str(&format!(" To know: {}.", caveats.join("; ")));
    }
    let plot = Plot { y: Axis::linear(label), ..COUNTERS };
    Some(Figure { caption, ..plot.curves(curves, [record])? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::example as record;
    use crate::families::pmu::heat::tests::example;

    #[test]
    fn metrics_are_drawn_over_time_where_they_counted() {
        let mut record = record();
        let mut observed = example();
        record.observed = Some(Box::new(observed.clone()));
        assert!(figure(std::slice::from_ref(&record)).is_none(), "one interval has a value");
        observed.metrics[0].values = vec![Some(1e8), Some(2e8)];
        record.observed = Some(Box::new(observed));
        let figure = figure(&[record]).unwrap();
        assert_eq!(figure.series[0].ys, [Some(100.0), Some(200.0)]);
        assert!(figure.caption.contains("assumes that memory traffic"));
    }
}
