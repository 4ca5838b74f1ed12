//! The measurements of a FELIX read-out server at 1 MHz (Nikhef): 16 readers, receivers on two hosts.

mod arithmetic;
mod claims;
mod findings;
mod idle;
mod records;
mod rings;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use daqmeter_record::RunRecord;
use daqmeter_record::study::{About, Comparison, Finding, Published, Question, Statement};
use serde::Deserialize;

use super::{Study, Wanted, planned, shipped};
use crate::PlannedPoint;

/// The data file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    study: About,
    statement: BTreeMap<String, Statement>,
    question: BTreeMap<String, Question>,
    input: Input,
    run: Vec<Run>,
    gbt: Vec<Gbt>,
    output: Output,
    idle: Vec<Idle>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Input {
    channels: usize,
    links_per_channel: u64,
    elinks_per_link: u64,
    block_bytes: usize,
    ring_bytes: f64,
    busy_used_bytes: f64,
    busy_release_bytes: f64,
    full_poll_us: f64,
    full_links_per_host: f64,
    full_khz: f64,
    full_payload: usize,
    full_host_gbit_per_s: f64,
    poll_cost_us: f64,
    late_polls: f64,
    reserve: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Run {
    name: String,
    pittrigger: u64,
    links: Vec<u64>,
    ttc: u64,
    blocks: Published,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Gbt {
    payload: usize,
    khz: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Output {
    reader_800_percent: Published,
    receiver_turano_percent: Published,
    receiver_agogna_percent: Published,
    agogna_gbit_per_s: Published,
    turano_gbit_per_s: Published,
    full_reader_percent: Published,
    full_receiver_percent: Published,
    busy_1050_percent: Published,
    busy_1100_after_s: Published,
    occupancy_1050_bytes: Vec<Published>,
    occupancy_1100_bytes: Vec<Published>,
    #[cfg_attr(not(test), expect(dead_code, reason = "a test computes them from other figures"))]
    computed: Computed,
}

/// Figures that follow from costs which are fitted to others.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(not(test), expect(dead_code, reason = "a test computes them from other figures"))]
struct Computed {
    receiver_half_percent: Published,
    full_reader_10us_percent: Published,
    largest_1ms_khz: Published,
    largest_10us_khz: Published,
    core_0_10us_khz: Published,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Idle {
    poll_us: f64,
    /// Of a bystander, whose load grows with the number of looks.
    rngd_percent: Published,
    cpu_percent: Published,
}

impl Default for Document {
    fn default() -> Self {
        shipped(include_str!("published.toml"))
    }
}

impl Study for Document {
    fn names(&self) -> &'static [&'static str] {
        &["readout"]
    }

    fn about(&self) -> &About {
        &self.study
    }

    fn points(&self, wanted: &Wanted<'_>) -> Vec<PlannedPoint> {
        let mut points = planned(include_str!("plan.toml"));
        if let Some(cpus) = wanted.receiver_cpus {
            for point in &mut points {
                point.workload = point.workload.clone().with("receiver_cpus", cpus);
            }
        }
        points
    }

    fn options(&self) -> &'static [&'static str] {
        &["receiver-pin"]
    }

    fn compare(&self, records: &[RunRecord]) -> Vec<Comparison> {
        claims::compare(self, records)
    }

    fn findings(&self, records: &[RunRecord]) -> Vec<Finding> {
        findings::findings(self, records)
    }
}
