//! The published studies that daqmeter repeats, a folder each:
//!
//! - `published.toml`: what the document states, each value with its place in the document; title and notes;
//! - `plan.toml`: what is measured. Where that depends on the host, `mod.rs` says why and makes the points itself;
//! - `claims.rs`: the comparisons and findings, from records alone, fresh or read from a file.
//!
//! To add a study: its folder, with a type that implements [`Study`], and its line in [`studies`]. Nothing here measures or prints.

mod ess_2017;
mod gsi_2018;
mod ioat_cftu;
mod n1sdp;
mod nikhef;

use std::collections::BTreeMap;

use daqmeter_record::RunRecord;
use daqmeter_record::study::{About, Comparison, Finding};
use serde::de::DeserializeOwned;

use crate::{Plan, PlannedPoint};

/// A published document, and how it is repeated.
pub trait Study {
    /// Its name on the command line, and other names.
    fn names(&self) -> &'static [&'static str];

    /// Title, what was done here, notes.
    fn about(&self) -> &About;

    /// What is measured.
    fn points(&self, wanted: &Wanted<'_>) -> Vec<PlannedPoint>;

    /// Options of [`Wanted`] that change its points.
    fn options(&self) -> &'static [&'static str] {
        &[]
    }

    /// Every figure of the document beside what follows from it, a model, and the records.
    fn compare(&self, records: &[RunRecord]) -> Vec<Comparison>;

    /// What the document says or asks in words, judged by the records.
    fn findings(&self, _records: &[RunRecord]) -> Vec<Finding> {
        Vec::new()
    }

    /// Its name on the command line.
    fn name(&self) -> &'static str {
        self.names()[0]
    }
}

/// What the host has and the user chose, as far as a study's points depend on it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted<'a> {
    /// CPUs that this process may use.
    pub cpus: &'a [u32],
    /// `--reps`: copies of each size.
    pub reps: Option<u64>,
    /// `--receiver-pin`: CPUs of the receivers, as a workload has them.
    pub receiver_cpus: Option<&'a str>,
}

/// Every study, in the order in which they are shown.
pub fn studies() -> Vec<Box<dyn Study>> {
    vec![
        Box::new(ess_2017::Document::default()),
        Box::new(gsi_2018::Document::default()),
        Box::new(nikhef::Document::default()),
        Box::new(ioat_cftu::Document::default()),
        Box::new(n1sdp::Document::default()),
    ]
}

/// The study of that name.
pub fn study(name: &str) -> Option<Box<dyn Study>> {
    studies().into_iter().find(|study| study.names().contains(&name))
}

/// A data file of the binary.
fn shipped<T: DeserializeOwned>(text: &str) -> T {
    toml::from_str(text).expect("ships with the binary and is tested")
}

/// The points of a study's plan.
fn planned(text: &str) -> Vec<PlannedPoint> {
    Plan::parse(text, "plan.toml").expect("ships with the binary and is tested").points
}

/// A statement or question of a document by its name in the data file.
fn named<'a, T>(all: &'a BTreeMap<String, T>, name: &str) -> &'a T {
    all.get(name).unwrap_or_else(|| panic!("the shipped data file has `{name}`"))
}

#[cfg(test)]
mod tests;
