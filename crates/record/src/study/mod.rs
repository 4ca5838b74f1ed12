//! Published studies: figures of a document, figures measured here, and the verdict on both.
//!
//! A [`Published`] figure comes only from a study's data file, which states its place in the
//! document. A [`Derived`] figure is shown, and no verdict uses it. A [`Measured`] value needs the
//! records of its computation. So no document can be confirmed by its own numbers.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::units::significant;
use crate::{RunRecord, conditions};

/// Relative distance from the published value up to which a figure is reproduced.
const REPRODUCED: f64 = 0.05;
/// Relative distance up to which a figure is near.
const NEAR: f64 = 0.20;

/// Closed range; a number is a range without width, and a bound is open on one side.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Range {
    from: f64,
    to: f64,
}

impl Range {
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

/// Figure of a document, and its place there.
///
/// In the file: `{ value = 621.7, place = "section, table, row" }`; ranges have `from` and `to`,
/// bounds one of them.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "PublishedText")]
pub struct Published {
    range: Range,
    pub place: String,
}

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
    /// Returns the value less the published one, relative to it; zero within a published range or
    /// bound.
    pub fn difference(&self, value: f64) -> f64 {
        self.range.difference(value)
    }
}

impl fmt::Display for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.range.show(|value| value.to_string()))
    }
}

/// Figure that follows from published ones by arithmetic and is not in a document.
#[derive(Clone, Debug, PartialEq)]
pub struct Derived {
    range: Range,
    pub how: String,
}

impl Derived {
    /// Returns a figure between two values in any order.
    pub fn between(one: f64, other: f64, how: impl Into<String>) -> Derived {
        Derived { range: Range { from: one.min(other), to: one.max(other) }, how: how.into() }
    }

    /// Returns the value less the derived one, relative to it.
    pub fn difference(&self, value: f64) -> f64 {
        self.range.difference(value)
    }
}

impl fmt::Display for Derived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.range.show(show))
    }
}

/// Writes four digits, and whole numbers in full, because totals of blocks are compared exactly.
pub fn show(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e15 || value.abs() >= 1e4 {
        format!("{value:.0}")
    } else {
        significant(value, 4)
    }
}

/// Source of a judged value, in descending order of evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Basis {
    Measured,
    /// Measurement on an emulated device, which is paced by its profile.
    Emulated,
    Model,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
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
            is_disturbed |= conditions::is_disturbed(record);
            let is_emulated = record.engine.emulated || record.workload.flag("simulated");
            let of_this = if is_emulated { Basis::Emulated } else { Basis::Measured };
            basis = basis.max(Some(of_this));
        }
        let basis = basis.filter(|_| value.is_finite())?;
        Some(Measured { value, basis, is_disturbed })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grade {
    /// Figure within 5 %.
    Reproduced,
    /// Figure within 20 %.
    Near,
    /// Figure beyond 20 %.
    Differs,
    Confirmed,
    InPart,
    Refuted,
}

impl Grade {
    fn of(difference: f64) -> Grade {
        match difference.abs() {
            off if off <= REPRODUCED => Grade::Reproduced,
            off if off <= NEAR => Grade::Near,
            _ => Grade::Differs,
        }
    }

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

    pub fn contradicts(self) -> bool {
        matches!(self, Grade::Differs | Grade::Refuted)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StudyVerdict {
    Judged(Grade, Basis),
    /// Measurement of another machine's processor, or without a published value: shown, not
    /// compared.
    ThisHost(Basis),
    /// Met by a model or an emulated device that was fitted to this figure.
    Fitted(Basis),
    NotMeasured,
    CannotTell,
    Unpublished,
}

impl StudyVerdict {
    pub fn grade(self) -> Option<Grade> {
        match self {
            StudyVerdict::Judged(grade, _) => Some(grade),
            _ => None,
        }
    }
}

/// Writes `reproduced`, `near (emulated)`, `differs (model)`, `fitted (model)`, `this host`, `not
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

#[derive(Clone, Debug, PartialEq)]
pub struct StudyLine {
    pub table: String,
    pub row: String,
    pub published: Option<Published>,
    pub derived: Option<Derived>,
    pub model: Option<f64>,
    pub measured: Option<Measured>,
    /// True for a figure of another machine's processor, which this host cannot test.
    pub is_of_host: bool,
    pub is_fitted: bool,
    pub unit: String,
}

impl StudyLine {
    /// Judges the measurement if it can repeat the figure, else the model. Agreement with a fit is
    /// no evidence, a difference is.
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

    /// Returns the measured value less the published one, relative to it; without a published one,
    /// the derived one replaces it.
    pub fn difference(&self) -> Option<f64> {
        let value = self.measured?.value;
        let published = self.published.as_ref().map(|published| published.difference(value));
        published.or(self.derived.as_ref().map(|derived| derived.difference(value)))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct About {
    pub title: String,
    pub about: String,
    #[serde(default)]
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StudyFinding {
    pub text: String,
    pub place: String,
    #[serde(serialize_with = "as_text")]
    pub verdict: StudyVerdict,
    pub grade: Option<&'static str>,
    pub evidence: String,
}

fn as_text<S: serde::Serializer>(verdict: &StudyVerdict, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(verdict)
}

#[cfg(test)]
mod tests;
