//! The plans that ship in the binary: one file in `plans/`, one line here.

pub const SHIPPED: &[(&str, &str)] = &[
    ("memory", include_str!("../../../plans/memory.toml")),
    ("quick", include_str!("../../../plans/quick.toml")),
    ("conversion", include_str!("../../../plans/conversion.toml")),
    ("digitizer-2017", include_str!("../../../plans/digitizer-2017.toml")),
    ("etherbone-2018", include_str!("../../../plans/etherbone-2018.toml")),
    ("felix-2019", include_str!("../../../plans/felix-2019.toml")),
    ("felix-hour", include_str!("../../../plans/felix-hour.toml")),
    ("felix-placement", include_str!("../../../plans/felix-placement.toml")),
    ("ioat-2013", include_str!("../../../plans/ioat-2013.toml")),
    ("copies", include_str!("../../../plans/copies.toml")),
    ("survey", include_str!("../../../plans/survey.toml")),
    ("survey-short", include_str!("../../../plans/survey-short.toml")),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use daqmeter_harness::Availability;
    use daqmeter_record::Host;
    use daqmeter_record::host::Cache;

    use super::*;
    use crate::{Plan, PlannedPoint, Site};

    #[test]
    fn every_shipped_plan_is_understood_and_its_points_open() {
        for (name, _) in SHIPPED {
            let plan = Plan::load(name).unwrap();
            assert!(!plan.points.is_empty() && !plan.about.is_empty(), "{name}");
            // Repetitions are one point.
            let mut seen = BTreeSet::new();
            for point in plan.points {
                if !seen.insert((point.engine.clone(), point.workload.key())) {
                    continue;
                }
                let job = crate::engine(&point.engine).unwrap().parse(&point.workload).unwrap();
                // Sixteen rings are not allocated here.
                let is_small = job.memory_bytes.is_none_or(|bytes| bytes < 1 << 30);
                if is_small && job.availability == Availability::Ready {
                    job.open().map(drop).unwrap_or_else(|fault| panic!("{name}: {fault}"));
                }
            }
        }
    }

    fn survey(name: &str, cache_bytes: u64, memory_bytes: u64) -> Vec<String> {
        let cache = Cache { level: 3, bytes: cache_bytes, ..Cache::default() };
        let host =
            Host { caches: vec![cache], memory_bytes, allowed_cpus: vec![0, 1], ..Host::default() };
        let site = Site { host, ..Site::default() };
        let plan = Plan::load_for(name, &site).unwrap();
        let key = |point: PlannedPoint| format!("{} {}", point.study, point.workload.key());
        plan.points.into_iter().map(key).collect()
    }

    #[test]
    fn a_short_surveys_points_are_among_a_long_ones() {
        for (cache_bytes, memory_bytes) in [(0, 8 << 30), (105 << 20, 64 << 30)] {
            let short = survey("survey-short", cache_bytes, memory_bytes);
            let long = survey("survey", cache_bytes, memory_bytes);
            assert!(short.len() < long.len());
            assert!(short.iter().all(|key| long.contains(key)), "{short:#?}");
            let different: BTreeSet<&String> = long.iter().collect();
            assert_eq!(different.len(), long.len(), "each point is measured once");
        }
    }

    #[test]
    fn a_surveys_footprints_reach_beyond_the_caches_of_the_host() {
        let largest = |cache_bytes| {
            let bytes = |key: &String| {
                let value = key.split("read_bytes=").nth(1)?.split(' ').next()?;
                value.parse::<u64>().ok()
            };
            let keys = survey("survey", cache_bytes, 64 << 30);
            keys.iter().filter_map(bytes).max()
        };
        assert_eq!(largest(0), Some(64 << 20));
        assert_eq!(largest(105 << 20), Some(256 << 20));
    }

    #[test]
    fn threads_of_a_survey_are_pinned_to_the_last_cpus_first() {
        let site = Site {
            host: Host { allowed_cpus: vec![0, 2, 5], memory_bytes: 8 << 30, ..Host::default() },
            ..Site::default()
        };
        let pins = |site: &Site| Plan::load_for("survey", site).unwrap().points[0].pin.clone();
        assert_eq!(pins(&site), [5, 2, 0]);
        // Two threads of one core are not busy together while another core is free.
        let siblings = Site {
            host: Host { siblings: vec![vec![2, 5]], ..site.host.clone() },
            ..Site::default()
        };
        assert_eq!(pins(&siblings), [5, 0, 2]);
        let site = Site { pin: Some(vec![2]), ..site };
        assert_eq!(pins(&site), [2]);
    }
}
