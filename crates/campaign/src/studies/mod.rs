//! The published studies that daqmeter repeats: a file each in `crates/campaign/studies/`.
//!
//! A file holds each published figure with its place in the document, and an expression over
//! records or a formula beside it. It also holds statements with their conditions, and the name of
//! the measured plan. `file.rs` reads it, `evaluation.rs` evaluates it; `formula.rs` has the
//! models. Findings beyond expressions, on copies, are with the rest of their study in `report`. A
//! new study needs its file and its line in `SHIPPED_STUDIES`. Nothing here measures or prints.

mod evaluation;
mod expression;
mod file;
mod finding;
mod formula;

use daqmeter_harness::{Shipped, StepPlan, TomlText};
use daqmeter_record::RunRecord;
use daqmeter_record::study::{About, StudyFinding, StudyLine};

use crate::{Plan, PlannedPoint};
use evaluation::Evaluation;
use file::StudyFile;

const SHIPPED_STUDIES: Shipped = Shipped {
    kind: "study",
    files: &[
        ("digitizer", include_str!("../../studies/digitizer.toml")),
        ("etherbone", include_str!("../../studies/etherbone.toml")),
        ("readout", include_str!("../../studies/readout.toml")),
        ("copy", include_str!("../../studies/copy.toml")),
        ("pmu", include_str!("../../studies/pmu.toml")),
    ],
};

/// Repetitions of the plan that `--repeat` replaces; a plan has fewer where they take long.
const USUAL_REPS: u64 = 300;

#[derive(Debug)]
pub struct Study {
    pub name: &'static str,
    file: StudyFile,
}

impl Study {
    pub fn about(&self) -> &About {
        &self.file.study
    }

    /// Returns the points of its plan. `reps` replaces the plan's repetitions where the study
    /// allows it.
    pub fn points(&self, reps: Option<u64>) -> Vec<PlannedPoint> {
        let Some(name) = &self.file.plan else { return Vec::new() };
        let mut points = Plan::load(name).expect("ships with the binary and is tested").points;
        // A program's neighbour needs a CPU of its own.
        points.retain(|point| point.workload.kind != "pollution" || point.pin.len() > 1);
        for point in &mut points {
            if let (StepPlan::ByStage(planned), Some(reps)) =
                (point.steps, reps.filter(|_| self.file.takes_repeat))
            {
                let reps = if planned == USUAL_REPS { reps } else { reps.min(planned) };
                point.steps = StepPlan::ByStage(reps.max(2));
            }
        }
        points
    }

    /// Returns every figure with its consequences, a model's and the records' figures, and every
    /// statement with its verdict.
    pub fn judge(&self, records: &[RunRecord]) -> (Vec<StudyLine>, Vec<StudyFinding>) {
        let of = Evaluation::new(&self.file, records);
        let lines = self.file.lines().iter().map(|line| of.line(line)).collect();
        (lines, self.file.finding.iter().map(|finding| of.finding(finding)).collect())
    }
}

pub fn studies() -> Vec<Study> {
    let read = |(name, text): &(&'static str, &str)| Study {
        name,
        file: TomlText::new(name, text).parse().expect("ships with the binary and is tested"),
    };
    SHIPPED_STUDIES.files.iter().map(read).collect()
}

#[cfg(test)]
mod tests;
