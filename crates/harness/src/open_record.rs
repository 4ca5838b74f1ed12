//! Measurements of other programs: counters in intervals, traces of the kernel, known loads.

use daqmeter_record::{EngineInfo, RunRecord, Workload};
use daqmeter_sys::clock;

use crate::conclude::conclude_without_lanes;
use crate::conditions::Conditions;
use crate::engine::Tally;
use crate::facts::Context;

/// Record of other programs, whose measurement goes on: counters, traces, known loads. It has no
/// lanes, and all other parts.
pub struct OpenRecord {
    record: RunRecord,
    conditions: Conditions,
}

impl Context {
    pub fn open_record(&self, study: &str, engine: EngineInfo, workload: Workload) -> OpenRecord {
        let mut record = self.blank_record(engine, workload);
        record.study = study.into();
        let conditions = Conditions::before(false);
        record.origin_ns = clock::monotonic_ns();
        OpenRecord { record, conditions }
    }
}

impl OpenRecord {
    pub fn origin_ns(&self) -> u64 {
        self.record.origin_ns
    }

    /// Returns the record until now. Faults and ledgers that do not close fail it.
    pub fn so_far(&self, found: Tally, faults: Vec<String>) -> RunRecord {
        let mut record = self.record.clone();
        record.wall_ns = clock::monotonic_ns() - record.origin_ns;
        self.conditions.after(&mut record);
        record.counters = found.counters;
        record.ledgers = found.ledgers;
        record.warnings.extend(found.warnings);
        record.sections = found.sections;
        conclude_without_lanes(&mut record, faults);
        record
    }
}

#[cfg(test)]
mod tests {
    use daqmeter_record::{Counter, Ledger, Outcome};

    use super::*;

    fn open() -> OpenRecord {
        let engine = EngineInfo { name: "trace".into(), ..EngineInfo::default() };
        Context::default().open_record("copy/trace", engine, Workload::new("trace"))
    }

    #[test]
    fn an_open_record_has_its_conditions_like_every_record() {
        let open = open();
        let began = open.origin_ns();
        let mut spun = 0_u64;
        while clock::monotonic_ns() - began < 30_000_000 {
            spun = std::hint::black_box(spun + 1);
        }
        let found = Tally {
            counters: vec![Counter::count("copies", 3)],
            warnings: vec!["some are missing".to_owned()],
            ..Tally::default()
        };
        let record = open.so_far(found, Vec::new());
        assert_eq!((record.study.as_str(), record.origin_ns), ("copy/trace", began));
        assert!(record.wall_ns >= 30_000_000 && record.memory.peak_rss_bytes > 0);
        let host = &record.host_cpu;
        assert!(host.user_ns + host.system_ns + host.idle_ns > 0, "{host:?}");
        assert!(record.process_cpu.user_ns + record.process_cpu.system_ns > 0);
        assert_eq!(record.outcome, Outcome::Ok);
        assert!(record.warnings.contains(&"some are missing".to_owned()));
        assert_eq!(record.counter("copies"), Some(3.0));
    }

    #[test]
    fn a_ledger_that_does_not_close_fails_an_open_record() {
        let mut ledger = Ledger::new("copies");
        ledger.issued = 2;
        ledger.delivered = 1;
        let found = Tally { ledgers: vec![ledger], ..Tally::default() };
        let reason = |record: RunRecord| record.outcome.reason().unwrap_or("").to_owned();
        assert!(reason(open().so_far(found, Vec::new())).starts_with("ledger: "));
        let faults = vec!["net: counted nothing".to_owned()];
        assert_eq!(reason(open().so_far(Tally::default(), faults)), "net: counted nothing");
    }
}
