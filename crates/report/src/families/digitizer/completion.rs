//! Polling against interrupts: what waiting costs.

use daqmeter_record::RunRecord;
use daqmeter_record::units::{plural, significant};

use super::records::{all, is_triggered};
use crate::family::{Advice, Answer, Measured};
use crate::figures::{Figure, Series, bars};
use crate::parameters::distinguished;

/// CPU time of the program for one way to wait for data of so many boards.
struct Point<'a> {
    record: &'a RunRecord,
    /// Boards and size, and what tells it from others of that name.
    name: String,
    completion: &'a str,
    cores: f64,
}

fn point(record: &RunRecord) -> Option<Point<'_>> {
    let boards = record.lanes.len();
    let megabytes = record.workload.int("samples").unwrap_or(0) as f64 * 2e-6;
    Some(Point {
        record,
        name: format!("{}, {megabytes:.1} MB", plural(boards as u64, "board")),
        completion: record.workload.text("completion").ok()?,
        cores: record.process_cpu.total_ns() as f64 / record.wall_ns.max(1) as f64,
    })
}

fn points(records: &[RunRecord]) -> Vec<Point<'_>> {
    let mut points: Vec<Point<'_>> = all(records).filter_map(point).collect();
    let (drawn, names): (Vec<&RunRecord>, Vec<String>) = points
        .iter()
        .map(|point| (point.record, point.name.clone()))
        .unzip();
    let names = distinguished(&drawn, &names, &["completion", "poll_interval_us"]);
    for (point, name) in points.iter_mut().zip(names) {
        point.name = name;
    }
    points
}

/// The newest of a name by one way to wait, in per cent of a core.
fn percent(points: &[Point<'_>], name: &str, completion: &str) -> Option<f64> {
    let found = points
        .iter()
        .rfind(|point| point.name == name && point.completion == completion);
    Some(found?.cores * 100.0)
}

fn names(points: &[Point<'_>]) -> Vec<String> {
    let mut names: Vec<String> = points.iter().map(|point| point.name.clone()).collect();
    names.sort();
    names.dedup();
    names
}

pub(super) fn figure(records: &[RunRecord]) -> Option<Figure> {
    let points = points(records);
    let names = names(&points);
    let series = |label: &str, completion: &str| {
        let of = |name: &String| percent(&points, name, completion);
        Series::new(label, names.iter().map(of).collect())
    };
    let both = vec![series("polling", "poll"), series("interrupt", "interrupt")];
    (!names.is_empty()).then(|| {
        bars(
            "completion",
            "Waiting for the DAQ: polling or interrupt",
            "CPU time of the whole program, in per cent of one core, one read per trigger. Polling pays for every look at the \
             status register; the interrupt leaves only the copy.",
            "% of a core",
            names.clone(),
            both,
        )
        .drawn_from(points.iter().map(|point| point.record))
    })
}

pub(super) fn answer(measured: &Measured<'_>) -> Option<Answer> {
    let points = points(measured.usable);
    let both = |name: String| {
        let (polling, interrupt) = (
            percent(&points, &name, "poll")?,
            percent(&points, &name, "interrupt")?,
        );
        Some((name, polling, interrupt))
    };
    let (name, polling, interrupt) = names(&points).into_iter().find_map(both)?;
    Some(Answer {
        question: "Polling or interrupt?",
        answer: format!(
            "with {name}, polling costs {} % of a core and the interrupt {} % (one run each, without an interval)",
            significant(polling, 3),
            significant(interrupt, 3)
        ),
        figure: Some("completion"),
    })
}

/// Waiting by interrupt where polling costs a core and the rate is low.
pub(super) fn advice(records: &[RunRecord]) -> Option<Advice> {
    let points = points(records);
    let fewest = |completion: &str| {
        let own = points
            .iter()
            .filter(|point| point.completion == completion && is_triggered(point.record));
        own.min_by_key(|point| point.record.lanes.len())
    };
    let (polling, interrupt) = (fewest("poll")?, fewest("interrupt")?);
    let rate_hz = polling.record.workload.float("trigger_rate_hz").ok()?;
    (polling.cores > 2.0 * interrupt.cores && polling.cores > 0.05).then(|| {
        let evidence = format!(
            "at {rate_hz} Hz polling took {:.0} % of a core, the interrupt {:.1} %",
            polling.cores * 100.0,
            interrupt.cores * 100.0
        );
        Advice::measured("wait for triggers by interrupt, not by polling", evidence)
    })
}
