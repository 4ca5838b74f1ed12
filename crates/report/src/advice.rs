//! Advice from measurements.

use daqmeter_record::RunRecord;

use crate::families::FAMILIES;
pub use crate::family::Advice;
use crate::family::Counsel;
use crate::rate;

/// Returns advice for a host, in the order of the families. Records that failed or exceed their
/// limit are no evidence. The records of one family concern one measured thing, not a host.
pub fn advice(records: &[RunRecord]) -> Vec<Advice> {
    let usable = &*rate::usable(records);
    let has_record = |engine: &str| usable.iter().any(|record| record.engine.name == engine);
    let measured = FAMILIES
        .iter()
        .filter(|family| family.engines.iter().any(|(engine, _)| has_record(engine)));
    if measured.count() < 2 {
        return Vec::new();
    }
    let all = FAMILIES.iter().flat_map(|family| family.advice);
    let given = |own: &Counsel| Some(Advice { what: own.what, evidence: (own.evidence)(usable)? });
    all.filter_map(given).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use daqmeter_record::Workload;

    #[test]
    fn advice_is_for_a_host_and_has_its_evidence() {
        let record = |engine: &str, workload: Workload| {
            crate::examples::record(engine, workload, "survey", "func_readout", 200_000)
        };
        let digitizer = |completion: &str, cpu_ns: u64| {
            let workload = Workload::new("digitizer")
                .with("completion", completion)
                .with("trigger_rate_hz", 14.0);
            let mut record = record("digitizer", workload);
            (record.wall_ns, record.process_cpu.user_ns) = (1_000_000_000, cpu_ns);
            record
        };
        let other = record("null", Workload::new("null"));
        let of = |polling_ns| {
            advice(&[
                digitizer("poll", polling_ns),
                digitizer("interrupt", 3_000_000),
                other.clone(),
            ])
        };
        let found = of(250_000_000);
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[0].evidence,
            "with 1 board, 0.0 MB polling took 25 % of a core, the interrupt 0.3 % (one run each, without an interval)"
        );
        assert!(of(3_000_000).is_empty(), "no gain, no advice");
        let one_thing = [digitizer("poll", 250_000_000), digitizer("interrupt", 3_000_000)];
        assert!(advice(&one_thing).is_empty());
    }
}
