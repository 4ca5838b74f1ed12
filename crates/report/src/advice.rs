//! What to change first, from the facts of the host and from what was measured: each with its evidence, or marked as without.

use daqmeter_record::RunRecord;

use crate::families::FAMILIES;
pub use crate::family::Advice;
use crate::rate;

/// Advice, best founded first.
pub fn advice(records: &[RunRecord]) -> Vec<Advice> {
    // What failed or is above its limit is not evidence.
    advice_of(&rate::usable(records), records)
}

/// The same where it is known which of them are usable.
pub(crate) fn advice_of(usable: &[RunRecord], records: &[RunRecord]) -> Vec<Advice> {
    let of_families = FAMILIES.iter().flat_map(|family| family.advice);
    let mut all: Vec<Advice> = of_families
        .filter_map(|advice| advice(usable))
        .chain(records.first().and_then(governor))
        .collect();
    all.sort_by_key(|advice| advice.evidence.is_none());
    all
}

fn governor(record: &RunRecord) -> Option<Advice> {
    let governor = record.host.governor.as_deref();
    let governor = governor.filter(|governor| *governor != "performance")?;
    Some(Advice::unproven(format!("set the CPU governor to performance (it is {governor})")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use daqmeter_record::{Host, Workload};

    #[test]
    fn advice_has_its_evidence_or_says_that_it_has_none() {
        let digitizer = |completion: &str, cpu_ns: u64| {
            let workload = Workload::new("digitizer")
                .with("completion", completion)
                .with("trigger_rate_hz", 14.0);
            let mut record = crate::examples::record(
                "digitizer",
                workload,
                "survey/completion",
                "func_readout",
                200_000,
            );
            (record.wall_ns, record.process_cpu.user_ns) = (1_000_000_000, cpu_ns);
            let host = Host {
                governor: Some("powersave".into()),
                transparent_huge_pages: "always".into(),
                ..Host::default()
            };
            record.host = host.into();
            record
        };
        let found = advice(&[digitizer("poll", 250_000_000), digitizer("interrupt", 3_000_000)]);
        assert_eq!(found.len(), 2);
        assert_eq!(
            found[0].evidence.as_deref(),
            Some("with 1 board, 0.0 MB at 14 Hz polling took 25 % of a core, the interrupt 0.3 %")
        );
        assert!(found[1].what.contains("powersave") && found[1].evidence.is_none());
        assert!(advice(&[]).is_empty());
        assert_eq!(
            advice(&[digitizer("poll", 3_000_000), digitizer("interrupt", 3_000_000)]).len(),
            1,
            "no gain, no advice"
        );
    }
}
