//! Copies between user and kernel: latency, bandwidth, and the cost of a neighbour to a program.

pub mod classic;
mod figures;
pub mod model;
mod pollution;
mod rows;
mod tables;

use daqmeter_record::RunRecord;
use daqmeter_record::units::{show_bytes, show_ns, significant};

pub use pollution::{PollutionRow, pollution_rows, pollution_text};
use rows::row;
#[cfg(test)]
pub(crate) use rows::tests;
pub use rows::{CopyRow, TRACED, copy_rows, traced_sizes};
pub use tables::{bandwidth_text, latency_text};

use crate::family::{Advice, Family, PlainAnswer, Work, of_engine};
use crate::parameters::pairs;
use crate::rate::{ratio, spoken_number};

pub(super) const FAMILY: Family = Family {
    engines: &[(rows::ENGINE, Work::Path), (pollution::ENGINE, Work::Path)],
    figures: &[figures::latency, figures::bandwidth, pollution::figure],
    answers: &[answer],
    advice: &[mitigations],
    ..Family::EMPTY
};

/// Answers the cost of a copy, and the size from which an engine would pay: by a model, because few
/// hosts have an engine.
fn answer(records: &[RunRecord]) -> Option<PlainAnswer> {
    let rows = copy_rows(records);
    let called = |row: &&CopyRow| {
        row.direction == "to"
            && row.context == "cpu"
            && row.null_ns.is_some()
            && !row.cold
            && !row.is_clearing()
    };
    let is_plain = |record: &RunRecord| record.workload.text("path") == Ok("memcpy");
    let is_called = |record: &RunRecord| row(record).is_some_and(|row| called(&&row));
    let copies = of_engine(records, rows::ENGINE);
    let large = copies.filter(|record| record.workload.int("block_bytes") == Ok(1 << 20));
    // Copies of equal size that differ in the path alone.
    let pairs = pairs(large, &["path"], [&is_plain, &is_called]);
    let [plain, large] = pairs.first()?.map(row);
    let (plain, large) = (plain?, large?);
    let mut ones = rows.iter().filter(called);
    let one = ones.find(|row| row.block_bytes == 1 && row.path == large.path)?;
    let model = model::DSA;
    let pays = match model::modelled_crossover(records, model, "to", false)? {
        Some(bytes) => format!("would pay from {} on", show_bytes(bytes)),
        None => "would pay at no size measured".to_owned(),
    };
    Some(PlainAnswer {
        question: "What does a copy out of the kernel cost, and would a DMA engine pay?",
        answer: format!(
            "{} ({} - {}) for 1 B (a call without work takes {}), {} of a plain copy's rate at {}; an engine {pays} (MODELLED: {}, {} ns and {} GB/s)",
            show_ns(one.median_ns),
            show_ns(one.median_interval_ns.0),
            show_ns(one.median_interval_ns.1),
            one.null_ns.map_or("-".to_owned(), show_ns),
            spoken_number(ratio(large.lane?, plain.lane?), 2),
            show_bytes(large.block_bytes),
            model.source,
            significant(model.fixed_ns, 3),
            significant(model.bytes_per_ns, 3)
        ),
        figure: Some("copy-latency"),
    })
}

fn mitigations(records: &[RunRecord]) -> Option<Advice> {
    let mitigations = &records.first()?.host.mitigations;
    let active = mitigations.iter().filter(|line| line.contains("Mitigation")).count();
    if active == 0 {
        return None;
    }
    let rows = copy_rows(records);
    let small = rows.iter().filter(|row| row.block_bytes <= 4096 && row.path == "pread");
    let called = small.filter_map(|row| Some((row.null_ns?, row.median_ns)));
    // Both values come from one run.
    let (null_ns, copy_ns) = called.min_by(|a, b| a.1.total_cmp(&b.1))?;
    Some(Advice {
        what: "make fewer, larger calls: crossing into the kernel is what small copies cost".into(),
        evidence: format!(
            "a call without work takes {}, {:.0} % of the cheapest copy ({active} mitigations are active; this run did not switch them off to compare)",
            show_ns(null_ns),
            null_ns / copy_ns * 100.0
        ),
    })
}
