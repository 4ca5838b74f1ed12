//! Published studies: figures of a document, figures measured here, and the verdict on both.
//!
//! A [`Published`] figure is read from a study's data file and made in no other way; it says where
//! in its document it stands. A [`Derived`] figure is shown, and no verdict uses it. A [`Measured`]
//! value needs the records that it was computed from. So no document can be confirmed by its own
//! numbers.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::units::significant;
use crate::{RunRecord, conditions};

/// Relative distance from the published value up to which a figure is reproduced.
const REPRODUCED: f64 = 0.05;
/// Relative distance up to which it is near.
const NEAR: f64 = 0.20;

/// A closed range; a number is a range without width, and a bound is open on one side.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Range {
    from: f64,
    to: f64,
}

impl Range {
    /// Distance of a value from the range relative to its nearer end; zero inside.
    fn difference(self, value: f64) -> f64 {
        let edge = value.clamp(self.from, self.to);
        if value == edge { 0.0 } else { (value - edge) / edge.abs() }
    }

    fn show(self, number: impl Fn(f64) -> String) -> String {
        match (self.from.is_finite(), self.to.is_finite()) {
            (false, _) => format!("up to {}", number(self.to)),
            (_, false) => format!("at least {}", number(self.from)),
            _ if self.from == self.to => number(self.to),
            _ => format!("{} to {}", number(self.from), number(self.to)),
        }
    }
}

/// A figure that a document states, and its place there.
///
/// In the file: `{ value = 621.7, place = "section, table, row" }`; ranges have `from` and `to`,
/// bounds one of them.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "PublishedText")]
pub struct Published {
    range: Range,
    place: String,
}

/// [`Published`] as it is written in a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedText {
    value: Option<f64>,
    from: Option<f64>,
    to: Option<f64>,
    place: String,
}

impl TryFrom<PublishedText> for Published {
    type Error = String;

    fn try_from(text: PublishedText) -> Result<Self, String> {
        if text.place.trim().is_empty() {
            return Err("a published figure needs the `place` in its document".to_owned());
        }
        let (from, to) = match (text.value, text.from, text.to) {
            (Some(value), None, None) => (value, value),
            (None, from, to) if from.or(to).is_some() => {
                (from.unwrap_or(f64::NEG_INFINITY), to.unwrap_or(f64::INFINITY))
            }
            _ => {
                return Err("a published figure has `value`, or `from`, `to` or both".to_owned());
            }
        };
        let is_sound = from <= to && (from.is_finite() || to.is_finite());
        let range = is_sound.then_some(Range { from, to });
        let range = range.ok_or_else(|| format!("`from` {from} and `to` {to} are not a range"))?;
        Ok(Published { range, place: text.place })
    }
}

impl Published {
    /// Section, table, row or sentence of the document.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// The value less the published one, relative to it; zero within a published range or bound.
    pub fn difference(&self, value: f64) -> f64 {
        self.range.difference(value)
    }
}

/// As the document has it.
impl fmt::Display for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.range.show(|value| value.to_string()))
    }
}

/// A figure that no document states: it follows from published ones by arithmetic.
#[derive(Clone, Debug, PartialEq)]
pub struct Derived {
    range: Range,
    how: String,
}

impl Derived {
    /// A figure between two values in any order.
    pub fn between(one: f64, other: f64, how: impl Into<String>) -> Derived {
        Derived { range: Range { from: one.min(other), to: one.max(other) }, how: how.into() }
    }

    /// The arithmetic in words.
    pub fn how(&self) -> &str {
        &self.how
    }

    /// The value less the derived one, relative to it.
    pub fn difference(&self, value: f64) -> f64 {
        self.range.difference(value)
    }
}

impl fmt::Display for Derived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.range.show(show))
    }
}

/// Four digits, and whole numbers whole: totals of blocks are compared to the last one.
pub fn show(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e15 || value.abs() >= 1e4 {
        format!("{value:.0}")
    } else {
        significant(value, 4)
    }
}

/// Source of a judged value. The later one says less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Basis {
    /// Measured here, on this host's hardware.
    Measured,
    /// Measured here, on an emulated device, which is paced by its profile.
    Emulated,
    /// A model alone.
    Model,
}

/// A value measured on this host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// The value.
    pub value: f64,
    /// Emulated if one of its records was.
    pub basis: Basis,
    /// True if the host was not quiet during one of its records: then it decides nothing.
    pub is_disturbed: bool,
}

impl Measured {
    /// Returns a value of these records: `None` without any, or if one of them failed or was
    /// waived.
    pub fn over<'a>(
        records: impl IntoIterator<Item = &'a RunRecord>,
        value: f64,
    ) -> Option<Measured> {
        let (mut basis, mut is_disturbed) = (None, false);
        for record in records {
            if !record.outcome.is_ok() {
                return None;
            }
            is_disturbed |= !conditions::of(record).is_empty();
            let is_emulated = record.engine.emulated || record.workload.flag("simulated");
            let of_this = if is_emulated { Basis::Emulated } else { Basis::Measured };
            basis = basis.max(Some(of_this));
        }
        let basis = basis.filter(|_| value.is_finite())?;
        Some(Measured { value, basis, is_disturbed })
    }
}

/// Result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grade {
    /// A figure: within 5 %.
    Reproduced,
    /// A figure: within 20 %.
    Near,
    /// A figure: further off.
    Differs,
    /// A statement: holds.
    Confirmed,
    /// A statement: holds in part.
    InPart,
    /// A statement: does not hold.
    Refuted,
}

impl Grade {
    /// Returns the grade of a figure by its relative difference.
    fn of(difference: f64) -> Grade {
        match difference.abs() {
            off if off <= REPRODUCED => Grade::Reproduced,
            off if off <= NEAR => Grade::Near,
            _ => Grade::Differs,
        }
    }

    /// Name for people and programs.
    pub fn name(self) -> &'static str {
        match self {
            Grade::Reproduced => "reproduced",
            Grade::Near => "near",
            Grade::Differs => "differs",
            Grade::Confirmed => "confirmed",
            Grade::InPart => "in part",
            Grade::Refuted => "refuted",
        }
    }

    /// True for a contradiction of the document.
    pub fn contradicts(self) -> bool {
        matches!(self, Grade::Differs | Grade::Refuted)
    }
}

/// Verdict on a row or a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StudyVerdict {
    /// Compared.
    Judged(Grade, Basis),
    /// Measured, of another machine's processor or without a published value: shown and not
    /// compared.
    ThisHost(Basis),
    /// Met by a model or an emulated device that was fitted to this figure.
    Fitted(Basis),
    /// Nothing to compare.
    NotMeasured,
    /// Records are missing, or the host was disturbed.
    CannotTell,
    /// The document states nothing.
    Unpublished,
}

impl StudyVerdict {
    /// Grade, if something was compared.
    pub fn grade(self) -> Option<Grade> {
        match self {
            StudyVerdict::Judged(grade, _) => Some(grade),
            _ => None,
        }
    }
}

/// `reproduced`, `near (emulated)`, `differs (model)`, `fitted (model)`, `this host`, `not
/// measured`, `cannot tell`, `nothing published`.
impl fmt::Display for StudyVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, basis) = match self {
            StudyVerdict::Judged(grade, basis) => (grade.name(), *basis),
            StudyVerdict::ThisHost(basis) => ("this host", *basis),
            StudyVerdict::Fitted(basis) => ("fitted", *basis),
            StudyVerdict::NotMeasured => ("not measured", Basis::Measured),
            StudyVerdict::CannotTell => ("cannot tell", Basis::Measured),
            StudyVerdict::Unpublished => ("nothing published", Basis::Measured),
        };
        f.write_str(name)?;
        f.write_str(match basis {
            Basis::Measured => "",
            Basis::Emulated => " (emulated)",
            Basis::Model => " (model)",
        })
    }
}

/// One row of a study.
#[derive(Clone, Debug, PartialEq)]
pub struct StudyLine {
    /// Table of the document.
    pub table: String,
    /// Row of the table.
    pub row: String,
    /// Figure that the document states.
    pub published: Option<Published>,
    /// Figure that follows from stated ones.
    pub derived: Option<Derived>,
    /// Figure of a model.
    pub model: Option<f64>,
    /// Figure of this host.
    pub measured: Option<Measured>,
    /// True for a figure of another machine's processor, which this host can neither confirm nor
    /// refute.
    pub is_of_host: bool,
    /// True if model and emulated device were fitted to this figure.
    pub is_fitted: bool,
    /// Unit of all figures.
    pub unit: String,
}

impl StudyLine {
    /// Judges the measurement where it can repeat the figure, else the model. Agreement with a fit
    /// says nothing, a miss does.
    pub fn verdict(&self) -> StudyVerdict {
        let Some(published) = &self.published else { return StudyVerdict::Unpublished };
        let measured = self.measured.filter(|_| !self.is_of_host);
        let (value, basis) = match (measured, self.model, self.measured) {
            (Some(measured), ..) if measured.is_disturbed => return StudyVerdict::CannotTell,
            (Some(measured), ..) => (measured.value, measured.basis),
            (None, Some(model), _) => (model, Basis::Model),
            (None, None, Some(measured)) => return StudyVerdict::ThisHost(measured.basis),
            (None, None, None) => return StudyVerdict::NotMeasured,
        };
        match Grade::of(published.difference(value)) {
            Grade::Reproduced | Grade::Near if self.is_fitted && basis != Basis::Measured => {
                StudyVerdict::Fitted(basis)
            }
            grade => StudyVerdict::Judged(grade, basis),
        }
    }

    /// The measured value less the published one, or the derived one where nothing is published,
    /// relative to it.
    pub fn difference(&self) -> Option<f64> {
        let value = self.measured?.value;
        let published = self.published.as_ref().map(|published| published.difference(value));
        published.or(self.derived.as_ref().map(|derived| derived.difference(value)))
    }
}

/// Title and notes of a study.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct About {
    /// Title, author, year.
    pub title: String,
    /// Method and devices of the reproduction.
    pub about: String,
    /// Inconsistencies of the document, and limits of the reproduction.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// A statement or a question of a document with the records' answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StudyFinding {
    /// The statement or question.
    pub text: String,
    /// Its place in the document.
    pub place: String,
    /// Verdict by the records.
    #[serde(serialize_with = "as_text")]
    pub verdict: StudyVerdict,
    /// Grade without its basis, if something was compared.
    pub grade: Option<&'static str>,
    /// Numbers behind the verdict.
    pub evidence: String,
}

fn as_text<S: serde::Serializer>(verdict: &StudyVerdict, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(verdict)
}

#[cfg(test)]
mod tests;
