//! Counters of the machine over time: the metrics of a group, else its events.

use daqmeter_record::RunRecord;
use daqmeter_record::units::joined;

use super::end_s;
use crate::figures::{Axes, Axis, Figure, Mark, drawn};

/// Most events in the figure.
const MAX_EVENTS: usize = 12;

/// Draws the observation with the most intervals.
pub(crate) fn over_time(records: &[RunRecord]) -> Option<Figure> {
    let observed =
        records.iter().filter_map(|record| Some((record, record.sections.observed.as_deref()?)));
    let (record, observed) = observed.max_by_key(|(_, observed)| observed.end_ns.len())?;
    let curve = |name: &str, value: &dyn Fn(usize) -> Option<f64>| -> Vec<Mark<'_>> {
        let mark = |at| Some(Mark::at(record, name, end_s(observed, at), value(at)?));
        (0..observed.end_ns.len()).filter_map(mark).collect()
    };
    let rates = observed.metrics.iter().filter(|metric| metric.unit == "B/s");
    let rates = rates
        .flat_map(|metric| curve(&metric.name, &|at| Some(metric.values.get(at).copied()?? / 1e6)));
    let events = observed.events.iter().take(MAX_EVENTS);
    let events = events.flat_map(|event| curve(&event.name, &|at| observed.rate_at(event, at)));
    let (label, what, marks) = match rates.collect::<Vec<_>>() {
        marks if marks.is_empty() => (
            "events per second",
            "Events per second, scaled to the whole interval where they took turns",
            events.collect(),
        ),
        marks => ("MB/s", "Rates computed from counters", marks),
    };
    let caveats = observed.metrics.iter().map(|metric| metric.caveat.as_str());
    let caveats = joined(caveats.filter(|text| !text.is_empty()), "; ");
    let to_know = caveats.map_or(String::new(), |caveats| format!(" To know: {caveats}."));
    let caption = format!("{what}: {}.{to_know}", observed.what);
    let [x, y] = ["time [s]", label].map(|label| Axis { label, ..Axis::default() });
    let axes = Axes { x, y, ..Axes::default() };
    let figure = drawn("Counters over time".to_owned(), caption, axes, marks);
    (figure.xs.len() > 1).then(|| Figure { id: "counters".to_owned(), ..figure })
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
        record.sections.observed = Some(Box::new(observed.clone()));
        assert!(over_time(std::slice::from_ref(&record)).is_none(), "one interval has a value");
        observed.metrics[0].values = vec![Some(1e8), Some(2e8)];
        record.sections.observed = Some(Box::new(observed));
        let figure = over_time(&[record]).unwrap();
        assert_eq!(figure.series[0].ys, [Some(100.0), Some(200.0)]);
        assert!(figure.caption.contains("assumes that memory traffic"));
    }
}
