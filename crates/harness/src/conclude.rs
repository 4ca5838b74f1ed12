//! End of a run: the results of the lanes become the record, with its warnings and its verdict.

use daqmeter_record::groups::in_groups;
use daqmeter_record::{Host, Hotspot, Ledger, Memory, Outcome, RunRecord};
use daqmeter_sys::cpu_time;
use daqmeter_sys::symbols::Symbols;

use crate::lanes::Ran;
use crate::settings::cpu_list;
use crate::{Context, Settings};

pub(crate) fn conclude(record: &mut RunRecord, ran: Ran, settings: &Settings, context: &Context) {
    let mut pointers: Option<Vec<u64>> = None;
    let lacks_room = ran.lanes.iter().any(|done| done.does_not_fit);
    for mut done in ran.lanes {
        if let Some(own) = &mut done.pointers {
            pointers.get_or_insert_default().append(own);
        }
        for ledger in done.tally.ledgers {
            let is_same =
                |known: &&mut Ledger| (&known.unit, &known.of) == (&ledger.unit, &ledger.of);
            match record.ledgers.iter_mut().find(is_same) {
                Some(known) => known.add(&ledger),
                None => record.ledgers.push(ledger),
            }
        }
        for counter in done.tally.counters {
            match record.counters.iter_mut().find(|known| known.name == counter.name) {
                Some(known) => known.value += counter.value,
                None => record.counters.push(counter),
            }
        }
        record.series.extend(done.tally.series);
        record.sections.add(done.tally.sections);
        for warning in done.tally.warnings {
            if !record.warnings.contains(&warning) {
                record.warnings.push(warning);
            }
        }
        record.lanes.push(done.lane);
    }
    // Accounts of all lanes together come first.
    record.ledgers.sort_by_key(|ledger| !ledger.of.is_empty());
    record.hotspots = pointers.as_deref().map(hotspots).unwrap_or_default();
    let samples = pointers.map(|pointers| pointers.len());
    if let Some(few) = samples.filter(|samples| *samples < MIN_POINTERS) {
        record.warnings.push(format!(
            "no profile: {few} samples of CPU time, and shares need {MIN_POINTERS}: run longer"
        ));
    }
    let samples: usize =
        record.lanes.iter().flat_map(|lane| &lane.stages).map(|stage| stage.sample_ns.len()).sum();
    record.memory = Memory {
        peak_rss_bytes: cpu_time::peak_rss_bytes().unwrap_or(0),
        sample_bytes: samples as u64 * 8,
    };
    record.warnings.extend(placement_warnings(record, settings, &context.host));
    record.outcome = judge(record, ran.faults);
    if let (Outcome::Failed(reason), true, true) = (&record.outcome, lacks_room, settings.waive) {
        record.outcome = Outcome::Waived(reason.clone());
    }
}

/// Concludes a record without lanes: memory, warnings, verdict.
pub(crate) fn conclude_without_lanes(record: &mut RunRecord, faults: Vec<String>) {
    record.memory.peak_rss_bytes = cpu_time::peak_rss_bytes().unwrap_or(0);
    record.warnings.extend(build_warning(record));
    record.outcome = judge(record, faults);
}

/// Minimum number of samples of which shares are recorded: their standard error is at most 9
/// points. Of three samples the share of copies was below a half in some runs and above it in
/// others.
const MIN_POINTERS: usize = 30;

fn hotspots(pointers: &[u64]) -> Vec<Hotspot> {
    if pointers.len() < MIN_POINTERS {
        return Vec::new();
    }
    Symbols::of_this_process()
        .histogram(pointers)
        .into_iter()
        .map(|(symbol, count)| Hotspot {
            space: if symbol.in_kernel { "kernel" } else { "user" }.to_owned(),
            symbol: symbol.name,
            share: count as f64 / pointers.len() as f64,
        })
        .filter(|hotspot| hotspot.share >= 0.01)
        .collect()
}

fn judge(record: &RunRecord, faults: Vec<String>) -> Outcome {
    let lanes = record.lanes.iter();
    let failed = lanes.filter_map(|lane| Some((lane.outcome.reason()?, &lane.device)));
    let failed = in_groups(failed).into_iter().map(|(reason, devices)| match devices[..] {
        [device] => format!("{device}: {reason}"),
        _ => format!("{} and {} more: {reason}", devices[0], devices.len() - 1),
    });
    let open = record
        .ledgers
        .iter()
        .filter(|ledger| !ledger.closes())
        .map(|ledger| format!("ledger: {ledger}"));
    let reasons: Vec<String> = failed.chain(open).chain(faults).collect();
    if reasons.is_empty() { Outcome::Ok } else { Outcome::Failed(reasons.join("; ")) }
}

fn placement_warnings(record: &RunRecord, settings: &Settings, host: &Host) -> Vec<String> {
    let mut warnings = Vec::new();
    let (lanes, cpus) = (record.lanes.len(), host.allowed_cpus.len());
    if lanes > cpus {
        warnings.push(format!(
            "{lanes} threads share {cpus} CPUs: the rates are lower than with a CPU for each"
        ));
    } else if !settings.pin.is_empty() && lanes > settings.pin.len() {
        warnings.push(format!("{lanes} threads share the pinned CPUs {}", cpu_list(&settings.pin)));
    }
    warnings.extend(build_warning(record));
    warnings
}

fn build_warning(record: &RunRecord) -> Option<String> {
    let is_debug = record.tool.profile == "debug";
    is_debug.then(|| "debug build: do not use these rates; build with --release".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_samples_of_the_cpu_give_no_shares_and_the_reason() {
        let said = |pointers| {
            let lanes = vec![crate::lanes::LaneDone { pointers, ..Default::default() }];
            let mut record = RunRecord::default();
            let settings = Settings::new(crate::StepPlan::ByStage(1), "test");
            let ran = Ran { lanes, ..Ran::default() };
            conclude(&mut record, ran, &settings, &Context::default());
            record.warnings.iter().any(|warning| warning.starts_with("no profile: 3 samples"))
        };
        assert!(said(Some(vec![1; 3])) && !said(None));
        let here = hotspots as fn(&[u64]) -> Vec<Hotspot> as usize as u64;
        assert_eq!(hotspots(&[here; MIN_POINTERS - 1]), []);
        let found = hotspots(&[here; MIN_POINTERS]);
        assert_eq!(found.iter().map(|spot| spot.share).collect::<Vec<_>>(), [1.0]);
    }
}
