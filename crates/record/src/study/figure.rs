//! Figures: published, derived, modelled, measured, and one line that compares them.

use std::cmp::Ordering;
use std::fmt;

use serde::Deserialize;

use super::verdict::{Basis, Verdict};
use crate::units::significant;
use crate::{RunRecord, conditions};

/// A closed range; a single number is a range without width, and a bound is open on one side.
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

/// A figure that a document states, and where. Only a study's data file makes one.
///
/// In the file: `{ value = 621.7, place = "section, table, row" }`; ranges have `from` and `to`, bounds one of them.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "Written")]
pub struct Published {
    range: Range,
    place: String,
}

/// [`Published`] as it is written in a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    value: Option<f64>,
    from: Option<f64>,
    to: Option<f64>,
    place: String,
}

impl TryFrom<Written> for Published {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        if written.place.trim().is_empty() {
            return Err("a published figure needs the `place` in its document".to_owned());
        }
        Ok(Published { range: written.range()?, place: written.place })
    }
}

impl Written {
    fn range(&self) -> Result<Range, String> {
        let (from, to) = match (self.value, self.from, self.to) {
            (Some(value), None, None) => (value, value),
            (None, Some(from), Some(to)) => (from, to),
            (None, Some(from), None) => (from, f64::INFINITY),
            (None, None, Some(to)) => (f64::NEG_INFINITY, to),
            _ => {
                return Err(
                    "a published figure has `value`, or `from` and `to`, or one of the two"
                        .to_owned(),
                );
            }
        };
        let is_sound = from <= to && (from.is_finite() || to.is_finite());
        let range = is_sound.then_some(Range { from, to });
        range.ok_or_else(|| format!("`from` {from} and `to` {to} are not a range"))
    }
}

impl Published {
    /// Section, table, row or sentence of the document.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// The same figure, its place within a section or table.
    pub fn within(&self, section: &str) -> Published {
        Published { range: self.range, place: format!("{section}, {}", self.place) }
    }

    /// Another figure of the same row of the document, in another column: `row 1, start` beside `row 1, speed`.
    pub fn in_column(&self, column: &str, value: f64) -> Published {
        let row = self.place.rsplit_once(", ").map_or("", |(row, _)| row);
        let place = match row {
            "" => column.to_owned(),
            row => format!("{row}, {column}"),
        };
        Published { range: Range { from: value, to: value }, place }
    }

    /// The value, where the document states one and no range or bound.
    pub fn value(&self) -> Option<f64> {
        (self.range.from == self.range.to).then_some(self.range.to)
    }

    /// The value less what is published, relative to it; zero within a published range or bound.
    pub fn difference(&self, value: f64) -> f64 {
        self.range.difference(value)
    }

    /// The smaller first; ranges by where they begin.
    pub fn order(&self, other: &Published) -> Ordering {
        self.range.from.total_cmp(&other.range.from)
    }

    /// What follows from this figure by a monotonic function.
    pub fn derived(&self, how: impl Into<String>, function: impl Fn(f64) -> f64) -> Derived {
        let (one, other) = (function(self.range.from), function(self.range.to));
        Derived { range: Range { from: one.min(other), to: one.max(other) }, how: how.into() }
    }

    /// From the smallest to the largest of several figures; none of none.
    pub fn span(figures: &[Published], place: &str) -> Option<Published> {
        let range = Range {
            from: figures.iter().map(|figure| figure.range.from).reduce(f64::min)?,
            to: figures.iter().map(|figure| figure.range.to).reduce(f64::max)?,
        };
        Some(Published { range, place: place.to_owned() })
    }
}

/// As the document has it.
impl fmt::Display for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.range.show(|value| value.to_string()))
    }
}

/// A figure that no document states: it follows from published ones, or from the inputs of a study, by arithmetic.
#[derive(Clone, Debug, PartialEq)]
pub struct Derived {
    range: Range,
    how: String,
}

impl Derived {
    /// Computed from the inputs of a study.
    pub fn computed(value: f64, how: impl Into<String>) -> Derived {
        Derived { range: Range { from: value, to: value }, how: how.into() }
    }

    /// The mean of published figures; none of none.
    pub fn mean<'a>(
        figures: impl IntoIterator<Item = &'a Published>,
        how: &str,
    ) -> Option<Derived> {
        let figures: Vec<&Published> = figures.into_iter().collect();
        let middle = |figure: &&Published| (figure.range.from + figure.range.to) / 2.0;
        let sum: f64 = figures.iter().map(middle).sum();
        (!figures.is_empty()).then(|| Derived::computed(sum / figures.len() as f64, how))
    }

    /// How it follows.
    pub fn how(&self) -> &str {
        &self.how
    }

    /// The value less what is derived, relative to it.
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
fn show(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e15 || value.abs() >= 1e4 {
        format!("{value:.0}")
    } else {
        significant(value, 4)
    }
}

/// What a model gives: arithmetic or a simulation, from a study's inputs or from a profile fitted to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Modelled(f64);

impl Modelled {
    /// A value that is a number.
    pub fn new(value: f64) -> Option<Modelled> {
        value.is_finite().then_some(Modelled(value))
    }

    /// The value.
    pub fn value(self) -> f64 {
        self.0
    }
}

impl fmt::Display for Modelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&show(self.0))
    }
}

/// What was measured on this host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    value: f64,
    basis: Basis,
    /// True if the host was not quiet during a record that it is from: then it decides nothing.
    is_disturbed: bool,
}

impl Measured {
    /// A value from a record: none if the point failed or was waived. Emulated if the record's engine was.
    pub fn of(record: &RunRecord, value: f64) -> Option<Measured> {
        Measured::over([record], value)
    }

    /// A value from several records: none without any, or if one of them failed or was waived. Emulated if one of them was.
    pub fn over<'a>(
        records: impl IntoIterator<Item = &'a RunRecord>,
        value: f64,
    ) -> Option<Measured> {
        let (mut basis, mut is_disturbed) = (None, false);
        for record in records {
            is_disturbed |= !conditions::of(record).is_empty();
            let of_this = if record.engine.emulated { Basis::Emulated } else { Basis::Measured };
            basis = Some(of_this.weaker(basis.unwrap_or(Basis::Measured)))
                .filter(|_| record.outcome.is_ok());
            basis?;
        }
        basis.filter(|_| value.is_finite()).map(|basis| Measured { value, basis, is_disturbed })
    }

    /// A value of this host's own processor, though an emulated device delivered the data, such as the rate of a conversion.
    pub fn of_processor(record: &RunRecord, value: f64) -> Option<Measured> {
        Measured::of(record, value).map(|measured| Measured { basis: Basis::Measured, ..measured })
    }

    /// The same, where a model took part that the records' engines do not know of.
    pub fn of_emulation(self) -> Measured {
        Measured { basis: Basis::Emulated, ..self }
    }

    /// The value.
    pub fn value(self) -> f64 {
        self.value
    }

    /// Whether an emulated device took part.
    pub fn basis(self) -> Basis {
        self.basis
    }

    /// True if the host was not quiet while it was measured.
    pub fn is_disturbed(self) -> bool {
        self.is_disturbed
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&show(self.value))
    }
}

/// What a measurement on this host can say of a published figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// It repeats it: the figure is of a device that is there, or that is emulated after the study's.
    Repeats,
    /// Nothing: the figure is of the machine that it was measured on. A model of that machine can be judged, this host cannot.
    ThisHost,
}

/// One line of a study.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Table that it belongs to.
    pub table: String,
    /// Row within the table.
    pub row: String,
    /// What the document states.
    pub published: Option<Published>,
    /// What follows from what it states.
    pub derived: Option<Derived>,
    /// What a model gives.
    pub model: Option<Modelled>,
    /// What was measured on this host.
    pub measured: Option<Measured>,
    /// What the measurement can say of the published figure.
    pub scope: Scope,
    /// True if model and emulated device follow a profile that was fitted to this very figure.
    pub is_fitted: bool,
    /// Unit of all of them.
    pub unit: &'static str,
}

impl Comparison {
    /// A line with a published figure, or one where nothing is published.
    pub fn new(
        table: impl Into<String>,
        row: impl Into<String>,
        published: impl Into<Option<Published>>,
        unit: &'static str,
    ) -> Comparison {
        Comparison {
            table: table.into(),
            row: row.into(),
            published: published.into(),
            derived: None,
            model: None,
            measured: None,
            scope: Scope::Repeats,
            is_fitted: false,
            unit,
        }
    }

    /// With a derived figure.
    pub fn derived(self, derived: impl Into<Option<Derived>>) -> Comparison {
        Comparison { derived: derived.into(), ..self }
    }

    /// With a model's value.
    pub fn model(self, value: impl Into<Option<f64>>) -> Comparison {
        Comparison { model: value.into().and_then(Modelled::new), ..self }
    }

    /// With what was measured.
    pub fn measured(self, measured: Option<Measured>) -> Comparison {
        Comparison { measured, ..self }
    }

    /// Of the machine that it was measured on.
    pub fn of_this_host(self) -> Comparison {
        Comparison { scope: Scope::ThisHost, ..self }
    }

    /// Of a figure that the profile was fitted to: its own fit is no reproduction.
    pub fn of_a_fit(self) -> Comparison {
        Comparison { is_fitted: true, ..self }
    }

    /// What is judged: the measurement where it can repeat the figure, else the model.
    fn judged(&self) -> Option<(f64, Basis)> {
        let measured = self.measured.filter(|_| self.scope == Scope::Repeats);
        let measured = measured.map(|measured| (measured.value, measured.basis));
        measured.or(self.model.map(|model| (model.0, Basis::Model)))
    }

    /// What the line says of the published figure.
    pub fn verdict(&self) -> Verdict {
        let is_disturbed = self.scope == Scope::Repeats
            && self.measured.is_some_and(|measured| measured.is_disturbed);
        match (&self.published, self.judged(), self.measured) {
            (None, ..) => Verdict::unpublished(),
            (Some(_), Some(_), _) if is_disturbed => Verdict::cannot_tell(),
            (Some(published), Some((value, basis)), _) => {
                let verdict = Verdict::of_figure(published.difference(value), basis);
                match self.is_fitted {
                    true => verdict.of_a_fit(),
                    false => verdict,
                }
            }
            (Some(_), None, Some(measured)) => Verdict::this_host(measured.basis),
            (Some(_), None, None) => Verdict::not_measured(),
        }
    }

    /// What was measured less what is published, or derived where nothing is published, relative to it.
    pub fn difference(&self) -> Option<f64> {
        let value = self.measured?.value;
        let published = self.published.as_ref().map(|published| published.difference(value));
        published.or(self.derived.as_ref().map(|derived| derived.difference(value)))
    }

    /// What was measured less what the model gives, relative to it.
    pub fn difference_from_model(&self) -> Option<f64> {
        Some(self.measured?.value / self.model?.0 - 1.0)
    }
}
