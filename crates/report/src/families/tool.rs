//! Cost of the tool's own loop, and credibility of this host's numbers.

use daqmeter_record::RunRecord;
use daqmeter_record::units::significant;

use crate::family::{Family, Work};
use crate::samples::{median_ns, stages};

pub(super) const FAMILY: Family = Family {
    engines: &[(ENGINE, Work::Cpu)],
    questions: &[("How far can these numbers be trusted?", None, trust)],
    ..Family::EMPTY
};

const ENGINE: &str = "null";

/// Returns the tool's own cost per operation in nanoseconds: of the null engine's record if there
/// is one, else from any record.
pub(crate) fn cost_ns(records: &[RunRecord]) -> Option<f64> {
    let null = records.iter().filter(|record| record.engine.name == ENGINE);
    let measured = null.flat_map(stages).find_map(median_ns);
    let mut known = records.iter().map(|record| record.clock.tool_ns_per_op);
    measured.or_else(|| known.find(|&ns| ns > 0.0))
}

fn trust(records: &[RunRecord]) -> Option<String> {
    let first = records.first()?;
    Some(format!(
        "Measuring costs {} ns per operation and {} ns per sample.",
        significant(cost_ns(records)?, 2),
        significant(first.clock.overhead_ns, 2),
    ))
}
