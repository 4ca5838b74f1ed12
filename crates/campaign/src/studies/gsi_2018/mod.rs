//! "Etherbone Performance Measurements" (GSI, 6 February 2018): cycles over PCIe, USB, VME and Gigabit Ethernet.

mod claims;
mod model;

use std::collections::BTreeMap;

use daqmeter_record::RunRecord;
use daqmeter_record::study::{About, Comparison, Finding, Published, Statement};
use serde::Deserialize;

use super::{Study, Wanted, planned, shipped};
use crate::PlannedPoint;

/// The data file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    study: About,
    pcie: Pcie,
    gige: Gige,
    tlu: Vec<TluRow>,
    finding: BTreeMap<String, Statement>,
}

/// Key data of the SCU over PCIe; times per 64-bit timestamp.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pcie {
    time_one_us: Published,
    time_many_us: Published,
    rate_one_khz: Published,
    rate_many_khz: Published,
    throughput_one_mbit_per_s: Published,
    throughput_many_mbit_per_s: Published,
    pipelining_gain_percent: Published,
    gap_ns: Published,
}

/// Key data of Gigabit Ethernet.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Gige {
    /// Between two timestamps of one cycle.
    gap_ns: Published,
}

/// One row of the table of the timestamp latch unit: cycles of 3 reads and 1 write.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TluRow {
    /// Bridge, host, system and year.
    row: String,
    /// The emulated bridge that stands for it.
    bridge: String,
    cycle_us: Published,
    rate_khz: Published,
}

impl Default for Document {
    fn default() -> Self {
        shipped(include_str!("published.toml"))
    }
}

impl Study for Document {
    fn names(&self) -> &'static [&'static str] {
        &["etherbone", "eb"]
    }

    fn about(&self) -> &About {
        &self.study
    }

    fn points(&self, _: &Wanted<'_>) -> Vec<PlannedPoint> {
        planned(include_str!("plan.toml"))
    }

    fn compare(&self, records: &[RunRecord]) -> Vec<Comparison> {
        claims::compare(self, records)
    }

    fn findings(&self, records: &[RunRecord]) -> Vec<Finding> {
        claims::findings(self, records)
    }
}
