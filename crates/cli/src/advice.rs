//! What to change first, by what was measured.

use daqmeter_record::RunRecord;

use crate::families::FAMILIES;
pub use crate::family::Advice;
use crate::rate;

/// Advice for a host, in the order of the families. What failed or is above its limit is not evidence, and the records of one family
/// are of one thing that was measured, not of a host.
pub fn advice(records: &[RunRecord]) -> Vec<Advice> {
    let usable = &*rate::usable(records);
    let has_record = |engine: &str| usable.iter().any(|record| record.engine.name == engine);
    let measured =
        FAMILIES.iter().filter(|family| family.engines.iter().any(|(engine, _)| has_record(engine)));
    if measured.count() < 2 {
        return Vec::new();
    }
    let all = FAMILIES.iter().flat_map(|family| family.advice);
    all.filter_map(|advice| advice(usable)).collect()
}
