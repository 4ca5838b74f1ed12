//! Counters of the machine over time: metrics where a group has some, else the events themselves.

use daqmeter_record::{Observations, RunRecord};

use crate::figures::{Axis, Curve, Figure, Texts, lines};

/// The observation with the most intervals.
fn longest(records: &[RunRecord]) -> Option<(&RunRecord, &Observations)> {
    let observed = records.iter().filter_map(|record| Some((record, record.observed.as_deref()?)));
    observed
        .filter(|(_, observed)| observed.end_ns.len() > 1)
        .max_by_key(|(_, observed)| observed.end_ns.len())
}

/// Curves of the metrics of one unit, in the unit shown.
fn metrics(observed: &Observations, unit: &str, factor: f64) -> Vec<Curve> {
    let of_unit = observed.metrics.iter().filter(|metric| metric.unit == unit);
    let curve = |metric: &daqmeter_record::observed::ObservedMetric| {
        let points = metric.values.iter().enumerate();
        let points = points
            .filter_map(|(at, value)| Some((end_s(observed, at), (*value)? * factor)))
            .collect();
        Curve::new(metric.name.clone(), points)
    };
    of_unit.map(curve).collect()
}

fn end_s(observed: &Observations, at: usize) -> f64 {
    observed.end_ns[at].saturating_sub(observed.begin_ns) as f64 * 1e-9
}

fn events(observed: &Observations) -> Vec<Curve> {
    let curve = |event: &daqmeter_record::observed::ObservedEvent| {
        let rate = |at: usize| {
            Some((end_s(observed, at), event.scaled(at)? / observed.seconds_of(event, at)?))
        };
        Curve::new(event.name.clone(), (0..observed.end_ns.len()).filter_map(rate).collect())
    };
    observed.events.iter().take(12).map(curve).collect()
}

pub(super) fn figure(records: &[RunRecord]) -> Option<Figure> {
    let (record, observed) = longest(records)?;
    let bytes = metrics(observed, "B/s", 1e-6);
    let (curves, y, what) = if bytes.is_empty() {
        (
            events(observed),
            "events per second",
            "Events per second, scaled to the whole interval where they took turns",
        )
    } else {
        (bytes, "MB/s", "Rates computed from counters")
    };
    let caveats: Vec<&str> = observed
        .metrics
        .iter()
        .map(|metric| metric.caveat.as_str())
        .filter(|text| !text.is_empty())
        .collect();
    let mut caption = format!("{what}: {}.", observed.what);
    if !caveats.is_empty() {
        caption.push_str(&format!(" To know: {}.", caveats.join("; ")));
    }
    let texts = Texts { id: "counters", title: "Counters over time", caption: "" };
    let figure = lines(texts, Axis::linear("time [s]"), Axis::linear(y), curves);
    Some(Figure { caption, ..figure.drawn_from([record]) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::example as record;
    use crate::families::pmu::heat::tests::example;

    #[test]
    fn metrics_are_drawn_over_time_with_gaps_where_nothing_counted() {
        let mut record = record();
        record.observed = Some(Box::new(example()));
        let figure = figure(&[record]).unwrap();
        assert_eq!((figure.xs.as_slice(), figure.series.len()), (&[1.0][..], 1));
        assert!(figure.caption.contains("assumes that memory traffic"));
    }
}
