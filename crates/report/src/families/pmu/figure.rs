//! Counters of the machine over time: the metrics of a group, else its events.

use daqmeter_record::{Observations, RunRecord};

use super::{end_s, rate_at};
use crate::figures::{Axis, ChartKind, Figure, Mark, Plot};

/// Draws the observation with the most intervals.
pub(crate) fn over_time(records: &[RunRecord]) -> Option<Figure> {
    let (_, observed) = longest(records)?;
    let is_bytes = observed.metrics.iter().any(|metric| metric.unit == "B/s");
    let (label, what) = match is_bytes {
        true => ("MB/s", "Rates computed from counters"),
        false => (
            "events per second",
            "Events per second, scaled to the whole interval where they took turns",
        ),
    };
    let plot = Plot {
        id: "counters",
        title: "Counters over time",
        caption: "",
        kind: ChartKind::Lines,
        x: Axis::linear("time [s]"),
        y: Axis::linear(label),
        marks: if is_bytes { metrics } else { events },
    };
    let caveats = observed.metrics.iter().map(|metric| metric.caveat.as_str());
    let caveats: Vec<&str> = caveats.filter(|text| !text.is_empty()).collect();
    let mut caption = format!("{what}: {}.", observed.what);
    if !caveats.is_empty() {
        caption.push_str(&format!(" To know: {}.", caveats.join("; ")));
    }
    Some(Figure { caption, ..plot.draw(records)? })
}

fn longest(records: &[RunRecord]) -> Option<(&RunRecord, &Observations)> {
    let observed = records.iter().filter_map(|record| Some((record, record.observed.as_deref()?)));
    observed.max_by_key(|(_, observed)| observed.end_ns.len())
}

fn metrics(records: &[RunRecord]) -> Vec<Mark<'_>> {
    let found = longest(records).into_iter().flat_map(|(record, observed)| {
        let in_bytes = observed.metrics.iter().filter(|metric| metric.unit == "B/s");
        in_bytes.flat_map(move |metric| {
            let values = metric.values.iter().enumerate();
            values.filter_map(move |(at, value)| {
                let mb_per_s = (*value)? / 1e6;
                Some(Mark::at(record, metric.name.as_str(), end_s(observed, at), mb_per_s))
            })
        })
    });
    found.collect()
}

fn events(records: &[RunRecord]) -> Vec<Mark<'_>> {
    let found = longest(records).into_iter().flat_map(|(record, observed)| {
        observed.events.iter().take(12).flat_map(move |event| {
            let rate = move |at| {
                let (end_s, rate) = (end_s(observed, at), rate_at(observed, event, at)?);
                Some(Mark::at(record, event.name.as_str(), end_s, rate))
            };
            (0..observed.end_ns.len()).filter_map(rate)
        })
    });
    found.collect()
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
        assert!(over_time(std::slice::from_ref(&record)).is_none(), "one interval has a value");
        observed.metrics[0].values = vec![Some(1e8), Some(2e8)];
        record.observed = Some(Box::new(observed));
        let figure = over_time(&[record]).unwrap();
        assert_eq!(figure.series[0].ys, [Some(100.0), Some(200.0)]);
        assert!(figure.caption.contains("assumes that memory traffic"));
    }
}
