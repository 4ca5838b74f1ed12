//! "CMN-600 perf example on Neoverse N1 SDP" (Arm, 2019 to 2022): counts of a mesh, and what its author makes of them.

mod claims;

use daqmeter_record::RunRecord;
use daqmeter_record::study::{About, Comparison, Published};
use serde::Deserialize;

use super::{Study, Wanted, shipped};
use crate::PlannedPoint;

/// The data file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    study: About,
    counts: Counts,
    memory_mb_per_s: Published,
    nvme_mb_per_s: Published,
    fio_mb_per_s: Published,
    ethernet_mbit_per_s: Published,
    netperf_mbit_per_s: Published,
    share_percent: Published,
    events_of_crosspoint: Published,
    events_of_domain: Published,
}

/// Intervals that the document prints, as perf wrote them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Counts {
    memory: String,
    disk: String,
    net: String,
}

impl Default for Document {
    fn default() -> Self {
        shipped(include_str!("published.toml"))
    }
}

impl Study for Document {
    fn names(&self) -> &'static [&'static str] {
        &["pmu"]
    }

    fn about(&self) -> &About {
        &self.study
    }

    /// None: what the document counts is of its machine. Its counts go through our groups, its events through our planner.
    /// `cargo xtask pmu-vm` repeats its commands on emulated registers, to the count.
    fn points(&self, _: &Wanted<'_>) -> Vec<PlannedPoint> {
        Vec::new()
    }

    fn compare(&self, _: &[RunRecord]) -> Vec<Comparison> {
        claims::compare(self)
    }
}
