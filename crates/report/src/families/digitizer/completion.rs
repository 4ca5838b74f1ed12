//! Cost of waiting: polling against interrupts.

use daqmeter_record::RunRecord;
use daqmeter_record::units::{plural, significant};

use super::{all, is_triggered};
use crate::family::{Advice, PlainAnswer};
use crate::figures::{Axis, Figure, Plot, Series};
use crate::parameters::{distinguished, pairs};

const COMPLETION: Plot = Plot {
    id: "completion",
    title: "Waiting for the DAQ: polling or interrupt",
    caption: "CPU time of the whole program, in per cent of one core, one read per trigger. Polling pays for every look at the \
              status register; the interrupt leaves only the copy.",
    x: Axis::linear(""),
    y: Axis::linear("% of a core"),
};

const PARAMETERS: [&str; 2] = ["completion", "poll_interval_us"];

struct CompletionPair<'a> {
    /// Polling, interrupt.
    records: [&'a RunRecord; 2],
    name: String,
}

impl CompletionPair<'_> {
    /// Returns CPU time of the whole program, in per cent of a core: polling, interrupt.
    fn percent(&self) -> [f64; 2] {
        self.records.map(|record| {
            record.process_cpu.total_ns() as f64 / record.wall_ns.max(1) as f64 * 100.0
        })
    }
}

fn compared(records: &[RunRecord]) -> Vec<CompletionPair<'_>> {
    let by =
        |way: &'static str| move |record: &RunRecord| record.workload.text("completion") == Ok(way);
    let pairs = pairs(all(records), &PARAMETERS, [&by("poll"), &by("interrupt")]);
    let firsts: Vec<&RunRecord> = pairs.iter().map(|pair| pair[0]).collect();
    let name = |record: &&RunRecord| {
        let megabytes = record.workload.int("samples").unwrap_or(0) as f64 * 2e-6;
        format!("{}, {megabytes:.1} MB", plural(record.lanes.len() as u64, "board"))
    };
    let names: Vec<String> = firsts.iter().map(name).collect();
    let names = distinguished(&firsts, &names, &PARAMETERS);
    let pairs = pairs.into_iter().zip(names);
    let mut pairs: Vec<_> = pairs.map(|(records, name)| CompletionPair { records, name }).collect();
    pairs.sort_by(|a, b| a.name.cmp(&b.name));
    pairs
}

pub(super) fn figure(records: &[RunRecord]) -> Option<Figure> {
    let pairs = compared(records);
    let series = |label: &str, at: usize| {
        Series::new(label, pairs.iter().map(|pair| Some(pair.percent()[at])).collect())
    };
    let both = vec![series("polling", 0), series("interrupt", 1)];
    let names = pairs.iter().map(|pair| pair.name.clone()).collect();
    COMPLETION.bars(names, both, pairs.iter().flat_map(|pair| pair.records))
}

pub(super) fn answer(records: &[RunRecord]) -> Option<PlainAnswer> {
    let pairs = compared(records);
    let pair = pairs.first()?;
    let [polling, interrupt] = pair.percent().map(|percent| significant(percent, 3));
    Some(PlainAnswer {
        question: "Polling or interrupt?",
        answer: format!(
            "with {}, polling costs {polling} % of a core and the interrupt {interrupt} % (one run each, without an interval)",
            pair.name
        ),
        figure: Some("completion"),
    })
}

/// Advises interrupts if polling costs a core and the rate is low, by the pair with the fewest
/// boards.
pub(super) fn advice(records: &[RunRecord]) -> Option<Advice> {
    let mut pairs = compared(records);
    pairs.retain(|pair| is_triggered(pair.records[0]));
    let pair = pairs.iter().min_by_key(|pair| pair.records[0].lanes.len())?;
    let rate_hz = pair.records[0].workload.float("trigger_rate_hz").ok()?;
    let [polling, interrupt] = pair.percent();
    (polling > 2.0 * interrupt && polling > 5.0).then(|| Advice {
        what: "wait for triggers by interrupt, not by polling".to_owned(),
        evidence: format!(
            "with {} at {rate_hz} Hz polling took {polling:.0} % of a core, the interrupt {interrupt:.1} %",
            pair.name
        ),
    })
}
