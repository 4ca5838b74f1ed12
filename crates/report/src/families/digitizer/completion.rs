//! Polling against interrupts: what waiting costs.

use daqmeter_record::RunRecord;
use daqmeter_record::units::{plural, significant};

use super::records::{all, is_triggered};
use crate::family::{Advice, Answer, Measured};
use crate::figures::{Figure, Series, bars};
use crate::parameters::{distinguished, pairs};

/// Parameters of the way to wait.
const WAYS: [&str; 2] = ["completion", "poll_interval_us"];

/// Two runs that differ in the way to wait alone.
struct Pair<'a> {
    /// Polling, interrupt.
    records: [&'a RunRecord; 2],
    /// Boards and size, and what tells it from others of that name.
    name: String,
}

impl Pair<'_> {
    /// CPU time of the whole program, in per cent of a core: polling, interrupt.
    fn percent(&self) -> [f64; 2] {
        self.records.map(|record| {
            let cpu_ns = record.process_cpu.total_ns() as f64;
            cpu_ns / record.wall_ns.max(1) as f64 * 100.0
        })
    }

    fn spoken(&self) -> [String; 2] {
        self.percent().map(|percent| significant(percent, 3))
    }
}

fn name(record: &RunRecord) -> String {
    let megabytes = record.workload.int("samples").unwrap_or(0) as f64 * 2e-6;
    let boards = plural(record.lanes.len() as u64, "board");
    format!("{boards}, {megabytes:.1} MB")
}

/// In the order of boards and size.
fn compared(records: &[RunRecord]) -> Vec<Pair<'_>> {
    let by =
        |way: &'static str| move |record: &RunRecord| record.workload.text("completion") == Ok(way);
    let pairs = pairs(all(records), &WAYS, [&by("poll"), &by("interrupt")]);
    let firsts: Vec<&RunRecord> = pairs.iter().map(|pair| pair[0]).collect();
    let names: Vec<String> = firsts.iter().map(|record| name(record)).collect();
    let names = distinguished(&firsts, &names, &WAYS);
    let pairs = pairs.into_iter().zip(names);
    let mut pairs: Vec<Pair<'_>> = pairs.map(|(records, name)| Pair { records, name }).collect();
    pairs.sort_by(|a, b| a.name.cmp(&b.name));
    pairs
}

pub(super) fn figure(records: &[RunRecord]) -> Option<Figure> {
    let pairs = compared(records);
    let series = |label: &str, at: usize| {
        let of = |pair: &Pair<'_>| Some(pair.percent()[at]);
        Series::new(label, pairs.iter().map(of).collect())
    };
    let both = vec![series("polling", 0), series("interrupt", 1)];
    let names = pairs.iter().map(|pair| pair.name.clone()).collect();
    let figure = bars(
        "completion",
        "Waiting for the DAQ: polling or interrupt",
        "CPU time of the whole program, in per cent of one core, one read per trigger. Polling pays for every look at the \
         status register; the interrupt leaves only the copy.",
        "% of a core",
        names,
        both,
    );
    let drawn = pairs.iter().flat_map(|pair| pair.records);
    (!pairs.is_empty()).then(|| figure.drawn_from(drawn))
}

pub(super) fn answer(measured: &Measured<'_>) -> Option<Answer> {
    let pairs = compared(measured.usable);
    let pair = pairs.first()?;
    let [polling, interrupt] = pair.spoken();
    Some(Answer {
        question: "Polling or interrupt?",
        answer: format!(
            "with {}, polling costs {polling} % of a core and the interrupt {interrupt} % (one run each, without an interval)",
            pair.name
        ),
        figure: Some("completion"),
    })
}

/// Advice to wait by interrupt where polling costs a core and the rate is low: by the pair with the
/// fewest boards.
pub(super) fn advice(records: &[RunRecord]) -> Option<Advice> {
    let mut pairs = compared(records);
    pairs.retain(|pair| is_triggered(pair.records[0]));
    let pair = pairs.iter().min_by_key(|pair| pair.records[0].lanes.len())?;
    let rate_hz = pair.records[0].workload.float("trigger_rate_hz").ok()?;
    let [polling, interrupt] = pair.percent();
    (polling > 2.0 * interrupt && polling > 5.0).then(|| {
        let evidence = format!(
            "with {} at {rate_hz} Hz polling took {polling:.0} % of a core, the interrupt {interrupt:.1} %",
            pair.name
        );
        Advice::measured("wait for triggers by interrupt, not by polling", evidence)
    })
}
