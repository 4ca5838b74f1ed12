//! What to change first, from the facts of the host and from what was measured: each with its evidence, or marked as without.

use daqmeter_record::units::{show_ns, significant};
use daqmeter_record::{Host, RunRecord};
use serde::Serialize;

use crate::rate;

/// One piece of advice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// What to do.
    pub what: String,
    /// What was measured here that speaks for it; none where this run has nothing to say.
    pub evidence: Option<String>,
}

impl Advice {
    fn measured(what: &str, evidence: String) -> Advice {
        Advice {
            what: what.to_owned(),
            evidence: Some(evidence),
        }
    }

    fn unproven(what: String) -> Advice {
        Advice {
            what,
            evidence: None,
        }
    }
}

/// Advice, best founded first.
pub fn advice(records: &[RunRecord]) -> Vec<Advice> {
    let Some(first) = records.first() else {
        return Vec::new();
    };
    let host = &*first.host;
    // What failed or is above its limit is no evidence.
    let records = &*rate::usable(records);
    let all = [
        interrupts(records),
        stores(records),
        huge_pages(records, host),
        mitigations(records, host),
        stolen(records),
        noise(records),
        governor(host),
        congestion(records, host),
    ];
    let mut all: Vec<Advice> = all.into_iter().flatten().collect();
    all.sort_by_key(|advice| advice.evidence.is_none());
    all
}

/// Time that an operation of the first stage takes, over all the time.
fn mean_ns(record: &RunRecord) -> Option<f64> {
    rate::mean_ns(record.lanes.first()?.stages.first()?)
}

/// Waiting by interrupt where polling costs a core and the rate is low.
fn interrupts(records: &[RunRecord]) -> Option<Advice> {
    let share = |completion: &str| {
        let waits = |record: &&RunRecord| {
            record.engine.name == "digitizer"
                && record.workload.text("completion") == Ok(completion)
                && record.outcome.is_ok()
        };
        let record = records
            .iter()
            .filter(waits)
            .min_by_key(|record| record.lanes.len())?;
        Some((
            record.process_cpu.total_ns() as f64 / record.wall_ns.max(1) as f64,
            record.workload.float("trigger_rate_hz").ok()?,
        ))
    };
    let ((polling, rate), (interrupt, _)) = (share("poll")?, share("interrupt")?);
    (polling > 2.0 * interrupt && polling > 0.05).then(|| {
        let evidence = format!(
            "at {rate} Hz polling took {:.0} % of a core, the interrupt {:.1} %",
            polling * 100.0,
            interrupt * 100.0
        );
        Advice::measured("wait for triggers by interrupt, not by polling", evidence)
    })
}

/// Non-temporal stores where converted data outgrow the caches.
fn stores(records: &[RunRecord]) -> Option<Advice> {
    let of = |store: &str| {
        let wanted = records
            .iter()
            .filter(|record| {
                record.study.contains("stores") && record.workload.text("store") == Ok(store)
            })
            .filter(|record| crate::figures::stores::stored_as_asked(record));
        wanted.max_by_key(|record| record.workload.int("samples").unwrap_or(0))
    };
    let (cached, around) = (of("cached")?, of("non-temporal")?);
    (cached.workload.int("samples") == around.workload.int("samples")).then_some(())?;
    let gain = mean_ns(cached)? / mean_ns(around)?;
    (gain > 1.1).then(|| {
        let samples = cached.workload.int("samples").unwrap_or(0) as f64 / 1e6;
        let evidence = format!(
            "{} M samples were converted {gain:.2} times as fast",
            significant(samples, 3)
        );
        Advice::measured(
            "let large conversions bypass the caches (-A with store by footprint does)",
            evidence,
        )
    })
}

/// Huge pages, by what the survey measured with and without them.
fn huge_pages(records: &[RunRecord], host: &Host) -> Option<Advice> {
    if host.transparent_huge_pages == "always" {
        return None;
    }
    let stage = records
        .iter()
        .find(|record| record.engine.name == "memory" && !record.lanes.is_empty());
    let fell_back = stage.is_some_and(|record| {
        record
            .warnings
            .iter()
            .any(|warning| warning.contains("page"))
    });
    let what = format!(
        "give buffers huge pages (transparent: {}); reserve some with vm.nr_hugepages",
        host.transparent_huge_pages
    );
    if fell_back {
        let evidence = "buffers of this run fell back to base pages".to_owned();
        return Some(Advice {
            what,
            evidence: Some(evidence),
        });
    }
    // With `madvise` daqmeter asks for them itself, and so should a program under test.
    (host.transparent_huge_pages != "madvise").then(|| Advice::unproven(what))
}

/// What a call costs says how dear the kernel's border is.
fn mitigations(records: &[RunRecord], host: &Host) -> Option<Advice> {
    let active = host
        .mitigations
        .iter()
        .filter(|line| line.contains("Mitigation"))
        .count();
    if active == 0 {
        return None;
    }
    let rows = crate::copy::copy_rows(records);
    let null_ns = rows.iter().find_map(|row| row.null_ns)?;
    let call = rows
        .iter()
        .filter(|row| row.block_bytes <= 4096 && row.path == "pread")
        .map(|row| row.median_ns)
        .fold(f64::INFINITY, f64::min);
    call.is_finite().then(|| {
        let evidence = format!(
            "a call without work takes {}, {:.0} % of the cheapest copy ({active} mitigations are active; this run did not switch them off to compare)",
            show_ns(null_ns),
            null_ns / call * 100.0
        );
        Advice::measured("make fewer, larger calls: crossing into the kernel is what small copies cost", evidence)
    })
}

/// Time that the hypervisor gave to others.
fn stolen(records: &[RunRecord]) -> Option<Advice> {
    let sum = |of: fn(&RunRecord) -> u64| records.iter().map(of).sum::<u64>() as f64;
    let steal = sum(|record| record.host_cpu.steal_ns);
    let busy = steal + sum(|record| record.host_cpu.user_ns + record.host_cpu.system_ns);
    (steal > 0.01 * busy).then(|| {
        let evidence = format!(
            "{:.1} % of the busy time was stolen by the hypervisor",
            steal / busy * 100.0
        );
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

fn governor(host: &Host) -> Option<Advice> {
    let governor = host
        .governor
        .as_deref()
        .filter(|governor| *governor != "performance")?;
    Some(Advice::unproven(format!(
        "set the CPU governor to performance (it is {governor})"
    )))
}

fn congestion(records: &[RunRecord], host: &Host) -> Option<Advice> {
    // On loopback nothing is congested: this run cannot tell.
    let measured = records.iter().any(|record| record.engine.name == "stream");
    (measured && host.congestion_control == "cubic").then(|| {
        Advice::unproven(
            "try another congestion control (bbr, dctcp) if pages cross a network that loses or marks packets"
                .to_owned(),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use daqmeter_record::Workload;

    #[test]
    fn advice_has_its_evidence_or_says_that_it_has_none() {
        let digitizer = |completion: &str, cpu_ns: u64| {
            let workload = Workload::new("digitizer")
                .with("completion", completion)
                .with("trigger_rate_hz", 14.0);
            let mut record = crate::path::tests::record(
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
        let found = advice(&[
            digitizer("poll", 250_000_000),
            digitizer("interrupt", 3_000_000),
        ]);
        assert_eq!(found.len(), 2);
        assert_eq!(
            found[0].evidence.as_deref(),
            Some("at 14 Hz polling took 25 % of a core, the interrupt 0.3 %")
        );
        assert!(found[1].what.contains("powersave") && found[1].evidence.is_none());
        assert!(advice(&[]).is_empty());
        assert_eq!(
            advice(&[
                digitizer("poll", 3_000_000),
                digitizer("interrupt", 3_000_000)
            ])
            .len(),
            1,
            "no gain, no advice"
        );
    }
}
