//! "Documentazione I/OAT-CFTU" (Tor Vergata, 2012 to 2013): copies between user and kernel by the CPU and by a DMA engine. Its
//! machine is gone and its engine no longer supported (ioatdma binds version 3 and later), so answers are this host's own.

mod claims;
mod findings;
mod points;

use std::collections::BTreeMap;

use daqmeter_record::RunRecord;
use daqmeter_record::study::{About, Comparison, Finding, Published, Question, Statement};
use serde::Deserialize;

use super::{Study, Wanted, shipped};
use crate::PlannedPoint;

/// The data file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    study: About,
    sample: Sample,
    counted: Counted,
    statement: BTreeMap<String, Statement>,
    question: BTreeMap<String, Question>,
}

/// Figures of its sample records.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sample {
    mean_1_ns: Published,
    median_1_ns: Published,
    time_64_ns: Published,
    channel_mb_per_s: Published,
    total_mb_per_s: Published,
    qsort_us: Published,
    miss_percent: Published,
}

/// Times and counts of its sample records, from which some of these figures follow.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Counted {
    /// Time of each channel for its copies.
    channels_ns: Vec<f64>,
    /// Clock of each channel before its copies, and after.
    channels_before_ns: Vec<u64>,
    channels_after_ns: Vec<u64>,
    channel_copies: f64,
    channel_copy_bytes: f64,
    cache_misses: f64,
    cache_references: f64,
}

impl Default for Document {
    fn default() -> Self {
        shipped(include_str!("published.toml"))
    }
}

impl Study for Document {
    fn names(&self) -> &'static [&'static str] {
        &["copy"]
    }

    fn about(&self) -> &About {
        &self.study
    }

    fn points(&self, wanted: &Wanted<'_>) -> Vec<PlannedPoint> {
        points::points(wanted)
    }

    fn options(&self) -> &'static [&'static str] {
        &["reps"]
    }

    fn compare(&self, records: &[RunRecord]) -> Vec<Comparison> {
        claims::compare(self, records)
    }

    fn findings(&self, records: &[RunRecord]) -> Vec<Finding> {
        findings::findings(self, records)
    }
}

#[cfg(test)]
mod tests;
