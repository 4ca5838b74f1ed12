//! Answers of records to a statement or a question.

use daqmeter_record::study::{Grade, Measured};

pub(super) struct Judgement {
    pub(super) grade: Option<Grade>,
    pub(super) source: Measured,
    pub(super) evidence: String,
}

pub(super) fn grade(holds: bool) -> Grade {
    if holds { Grade::Confirmed } else { Grade::Refuted }
}

pub(super) fn weakest(
    measured: impl IntoIterator<Item = Option<Measured>>,
) -> Result<Measured, String> {
    let weaker = |one: Measured, other: Measured| Measured {
        basis: one.basis.max(other.basis),
        is_disturbed: one.is_disturbed || other.is_disturbed,
        ..one
    };
    let all: Option<Vec<Measured>> = measured.into_iter().collect();
    let all = all.and_then(|all| all.into_iter().reduce(weaker));
    all.ok_or_else(|| "not measured here".to_owned())
}
