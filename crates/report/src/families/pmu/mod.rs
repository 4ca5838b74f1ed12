//! Counters and meshes: tables, pictures, a figure over time, and comparisons with known loads.

mod figure;
pub(crate) mod heat;
pub mod map;
pub mod tables;

use daqmeter_record::units::joined;
use daqmeter_record::{Counter, Observations, RunRecord};

pub(crate) use figure::over_time;
pub use heat::{Heat, heats};

use crate::family::{Family, PlainAnswer, Work};

pub(super) const FAMILY: Family = Family {
    engines: &[(ENGINE, Work::Threads)],
    footnote: |record| record.sections.observed.as_deref().map(tables::footnote),
    ..Family::EMPTY
};

const ENGINE: &str = "pmu";

/// Returns the end of an interval after the beginning of the run.
fn end_s(observed: &Observations, interval: usize) -> f64 {
    observed.end_ns[interval].saturating_sub(observed.begin_ns) as f64 * 1e-9
}

pub(crate) fn verified(records: &[RunRecord]) -> Option<PlainAnswer> {
    let is_verified =
        |record: &&RunRecord| record.engine.name == ENGINE && record.engine.target == "verify";
    let record = records.iter().find(is_verified)?;
    let pmus = record.workload.text("pmus").ok().filter(|pmus| !pmus.is_empty());
    let failed = record.outcome.reason();
    let parts = pmus
        .map(|pmus| format!("This host has the PMUs {pmus}."))
        .into_iter()
        .chain(record.counters.iter().filter_map(|counter| compared(record, counter)))
        .chain(failed.map(|reason| format!("FAILED: {reason}.")))
        .chain(record.warnings.iter().map(|warning| format!("{warning}.")));
    let question = "Which counters does this host have, and are they right?";
    Some(PlainAnswer { question, answer: joined(parts, " ")?, figure: None })
}

/// Returns a counter's share of its load, which is `<counter>, payload`; `None` for the loads
/// themselves.
fn compared(record: &RunRecord, counter: &Counter) -> Option<String> {
    let payload = record.counter(&format!("{}, payload", counter.name))?;
    let share = counter.value / payload.max(1.0);
    Some(format!("{} counted {share:.6} of the payload in one run.", counter.name))
}

#[cfg(test)]
mod tests {
    use daqmeter_record::{EngineInfo, Workload};

    use super::*;

    /// Regression: counters were read by their places (issue 15).
    #[test]
    fn a_counter_is_held_against_its_own_load_wherever_it_stands() {
        let engine =
            EngineInfo { name: ENGINE.into(), target: "verify".into(), ..Default::default() };
        let mut record = RunRecord::new(engine, Workload::new("pmu"));
        let counters = [
            ("temperature", 40),
            ("net: rx", 50),
            ("memory: imc", 99),
            ("memory: imc, payload", 100),
            ("net: rx, payload", 100),
        ];
        record.counters = counters.map(|(name, value)| Counter::count(name, value)).to_vec();
        assert_eq!(
            verified(&[record]).unwrap().answer,
            "net: rx counted 0.500000 of the payload in one run. memory: imc counted 0.990000 of the payload in one run."
        );
    }
}
