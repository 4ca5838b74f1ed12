//! The tool itself: what its loop costs, and how far numbers of this host can be trusted.

use daqmeter_record::RunRecord;
use daqmeter_record::border::sum;
use daqmeter_record::units::significant;

use crate::family::{Advice, Answer, Family, Measured, Work};
use crate::samples::{median_ns, stages, times_ns};

pub(super) const FAMILY: Family = Family {
    engines: &[(ENGINE, Work::Cpu)],
    answers: &[trust],
    advice: &[stolen, noise],
    ..Family::EMPTY
};

const ENGINE: &str = "null";

/// The tool's own cost per operation in nanoseconds: of the null engine's record if there is one, else as every record holds
/// it. None for records of tools that did not measure it.
pub(crate) fn cost_ns(records: &[RunRecord]) -> Option<f64> {
    let null = records.iter().filter(|record| record.engine.name == ENGINE);
    let measured = null.flat_map(stages).find_map(median_ns);
    measured.or_else(|| {
        let mut known = records.iter().map(|record| record.clock.tool_ns_per_op);
        known.find(|&ns| ns > 0.0)
    })
}

/// Records whose spread is looked at: that of a few thousand is that of all.
const SPREAD_RECORDS: usize = 4000;

fn trust(measured: &Measured<'_>) -> Option<Answer> {
    let records = measured.usable;
    let cost_ns = cost_ns(records)?;
    let first = records.first()?;
    let spreads = records
        .iter()
        .take(SPREAD_RECORDS)
        .flat_map(stages)
        .map(|stage| daqmeter_stats::relative_spread(&times_ns(stage)));
    let widest = spreads.filter(|spread| spread.is_finite()).fold(0.0, f64::max);
    let percent = |fraction: f64| significant(fraction * 100.0, 2);
    Some(Answer {
        question: "How far can these numbers be trusted?",
        answer: format!(
            "the tool itself costs {} ns per operation and {} ns per sample; equal work varies by {} % here, the widest \
             stage by {} %",
            significant(cost_ns, 2),
            significant(first.clock.overhead_ns, 2),
            percent(first.noise.relative_mad),
            percent(widest)
        ),
        figure: None,
    })
}

/// Time that the hypervisor gave to others.
fn stolen(records: &[RunRecord]) -> Option<Advice> {
    let all = |of: fn(&RunRecord) -> u64| sum(records.iter().map(of)) as f64;
    let steal = all(|record| record.host_cpu.steal_ns);
    let busy =
        steal + all(|record| record.host_cpu.user_ns) + all(|record| record.host_cpu.system_ns);
    (steal > 0.01 * busy).then(|| {
        let evidence =
            format!("{:.1} % of the busy time was stolen by the hypervisor", steal / busy * 100.0);
        Advice::measured("reserve CPUs for this guest", evidence)
    })
}

fn noise(records: &[RunRecord]) -> Option<Advice> {
    let noise = &records.first()?.noise;
    (noise.relative_worst > 0.05).then(|| {
        let evidence = format!(
            "of {} equal pieces of arithmetic the slowest took {:.0} % longer",
            noise.n,
            noise.relative_worst * 100.0
        );
        Advice::measured(
            "pin measuring and read-out threads, and move interrupts to other CPUs",
            evidence,
        )
    })
}
