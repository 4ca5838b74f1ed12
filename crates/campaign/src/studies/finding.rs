//! Statements and questions of a document: conditions on values, and the sentence that shows them.

use std::collections::BTreeMap;

use daqmeter_record::RunRecord;
use daqmeter_record::study::{Grade, StudyFinding, StudyVerdict};
use daqmeter_record::units::{show_bytes, show_ns, significant, whole};
use daqmeter_report::findings::{CopyFinding, Judgement};
use serde::Deserialize;

use super::expression::{Expression, Number};

/// Value of an expression over the records.
type ValueOf<'a> = &'a dyn Fn(&Expression) -> Option<Number>;

/// A statement, a question if it has no conditions, or a finding beyond expressions.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FindingSpec {
    pub(super) text: String,
    pub(super) place: String,
    #[serde(default)]
    pub(super) values: BTreeMap<String, Expression>,
    /// Conditions that all have to hold for a confirmation.
    #[serde(default)]
    holds: Vec<Condition>,
    #[serde(default)]
    in_part: Vec<Condition>,
    /// `{name:0}` is a value with that many decimals, `{name:3s}` with three digits, `{name:ns}` a
    /// time, `{name:bytes}` a size.
    #[serde(default)]
    evidence: String,
    missing: Option<String>,
    copies: Option<CopyFinding>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Condition {
    /// At least the second, below the third.
    Within(Expression, f64, f64),
    AtLeast(Expression, f64),
    Less(Expression, Expression),
}

impl FindingSpec {
    pub(super) fn judged(&self, records: &[RunRecord], value: ValueOf<'_>) -> StudyFinding {
        let judged = match &self.copies {
            Some(copies) => copies.judged(records),
            None => self.by_values(value),
        };
        let (verdict, evidence) = match judged {
            Err(why) => (StudyVerdict::CannotTell, why),
            Ok(Judgement { grade: None, source, evidence }) => {
                (StudyVerdict::ThisHost(source.basis), evidence)
            }
            Ok(Judgement { source, evidence, .. }) if source.is_disturbed => (
                StudyVerdict::CannotTell,
                format!(
                    "measured while the host was disturbed, repeat on a quiet host: {evidence}"
                ),
            ),
            Ok(Judgement { grade: Some(grade), source, evidence }) => {
                (StudyVerdict::Judged(grade, source.basis), evidence)
            }
        };
        let (text, place) = (self.text.clone(), self.place.clone());
        StudyFinding { text, place, verdict, grade: verdict.grade().map(Grade::name), evidence }
    }

    fn by_values(&self, value: ValueOf<'_>) -> Result<Judgement, String> {
        let missing = || self.missing.clone().unwrap_or_else(|| "not measured here".to_owned());
        let measured = |one| value(one).filter(|number| number.measured().is_some());
        let all: Option<Vec<Number>> = self.values.values().map(measured).collect();
        let weaker = |one: Number, other| one.with(other, one.value);
        let weakest = all.and_then(|all| all.into_iter().reduce(weaker));
        let source = weakest.and_then(Number::measured).ok_or_else(missing)?;
        let plain =
            |expression: &Expression| value(expression).map_or(f64::NAN, |number| number.value);
        let all_hold = |conditions: &[Condition]| {
            conditions.iter().all(|condition| match condition {
                Condition::Within(of, low, high) => (*low..*high).contains(&plain(of)),
                Condition::AtLeast(of, low) => plain(of) >= *low,
                Condition::Less(one, other) => plain(one) < plain(other),
            })
        };
        let grade = match (all_hold(&self.holds), all_hold(&self.in_part)) {
            _ if self.holds.is_empty() => None,
            (true, _) => Some(Grade::Confirmed),
            (false, true) if !self.in_part.is_empty() => Some(Grade::InPart),
            _ => Some(Grade::Refuted),
        };
        let named = |name: &str| plain(&Expression::Name(name.to_owned()));
        Ok(Judgement { grade, source, evidence: filled(&self.evidence, named) })
    }
}

fn filled(text: &str, value: impl Fn(&str) -> f64) -> String {
    let mut parts = text.split('{');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (field, rest) = part.split_once('}').expect("a field ends");
        let (name, format) = field.split_once(':').expect("a field has a format");
        let value = value(name);
        let digits = format.trim_end_matches('s').parse();
        out += &match (format, digits) {
            ("ns", _) => show_ns(value),
            ("bytes", _) => show_bytes(whole(value)),
            (format, Ok(digits)) if format.ends_with('s') => significant(value, digits),
            (_, digits) => {
                let decimals = digits.map_or(0, |digits| usize::try_from(digits).unwrap_or(0));
                format!("{value:.decimals$}")
            }
        };
        out += rest;
    }
    out
}
