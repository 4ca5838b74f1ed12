//! Published studies, row by row: what was published, what a model says, what was measured here, and a verdict.

use std::fmt::Write;

use daqmeter_record::Comparison;
use serde::Serialize;

use crate::table::plain;

/// One row of a study.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StudyRow {
    /// Table or figure of the document.
    pub table: String,
    /// Row of the table, or the claim.
    pub row: String,
    /// What the document says; empty for claims.
    pub published: String,
    /// What a model says.
    pub model: String,
    /// What was measured here, or the evidence.
    pub here: String,
    /// `reproduced`, `near`, `differs`, `this host` (nothing to compare: another machine), `not measured`; claims have words of their own.
    pub verdict: String,
}

/// A document, repeated.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Study {
    /// Anchor.
    pub id: &'static str,
    /// Title, author, year.
    pub title: &'static str,
    /// What was done here, and on what.
    pub about: &'static str,
    /// The command that repeats it alone.
    pub command: &'static str,
    /// Its rows.
    pub rows: Vec<StudyRow>,
    /// What must be known, such as inconsistencies of the document.
    pub remarks: Vec<String>,
}

/// Within this of the published value a row is reproduced.
const REPRODUCED: f64 = 0.05;
/// Within this it is near.
const NEAR: f64 = 0.20;

impl StudyRow {
    /// A row with numbers. What is measured counts, and the model where nothing was; a row without a model is of the machine that it
    /// was measured on, and no other machine's can confirm or refute it.
    pub fn of(line: &Comparison) -> StudyRow {
        let number = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.1} {}", line.unit));
        let off = |value: f64| (value / line.published - 1.0).abs();
        let judged = line.measured.filter(|_| line.model.is_some()).or(line.model).map(off);
        let verdict = match (judged, line.measured) {
            (Some(off), _) if off <= REPRODUCED => "reproduced",
            (Some(off), _) if off <= NEAR => "near",
            (Some(_), _) => "differs",
            (None, Some(_)) => "this host",
            (None, None) => "not measured",
        };
        StudyRow {
            table: line.table.clone(),
            row: line.row.clone(),
            published: number(Some(line.published)),
            model: number(line.model),
            here: number(line.measured),
            verdict: verdict.to_owned(),
        }
    }

    /// A row whose measurement is of this host alone, such as a conversion's rate: the model is judged, the measurement is shown.
    pub fn of_own_host(line: &Comparison) -> StudyRow {
        let judged = StudyRow::of(&Comparison { measured: None, ..line.clone() });
        let verdict = if line.model.is_some() { format!("model {}", judged.verdict) } else { "this host".to_owned() };
        StudyRow { here: StudyRow::of(line).here, verdict, ..judged }
    }

    /// A claim with its evidence.
    pub fn claim(claim: &str, evidence: &str, verdict: &str) -> StudyRow {
        StudyRow {
            table: "claims".to_owned(),
            row: claim.to_owned(),
            published: String::new(),
            model: String::new(),
            here: evidence.to_owned(),
            verdict: verdict.to_owned(),
        }
    }
}

impl Study {
    /// How many rows have which verdict, most frequent first.
    pub fn counts(&self) -> Vec<(String, usize)> {
        let mut counts: Vec<(String, usize)> = Vec::new();
        for row in &self.rows {
            match counts.iter_mut().find(|(verdict, _)| *verdict == row.verdict) {
                Some((_, count)) => *count += 1,
                None => counts.push((row.verdict.clone(), 1)),
            }
        }
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        counts
    }

    /// `12 reproduced, 3 near`.
    pub fn summary(&self) -> String {
        let counts: Vec<String> = self.counts().iter().map(|(verdict, count)| format!("{count} {verdict}")).collect();
        counts.join(", ")
    }
}

/// For people: a line a study, and what differs.
pub fn text(studies: &[Study]) -> String {
    let mut out = String::new();
    for study in studies {
        let _ = writeln!(out, "{}\n  {}", study.title, study.summary());
    }
    let differs = studies.iter().flat_map(|study| study.rows.iter().map(move |row| (study, row)));
    let differs: Vec<Vec<String>> = differs
        .filter(|(_, row)| ["differs", "model differs", "refuted"].contains(&row.verdict.as_str()))
        .map(|(study, row)| {
            vec![
                study.id.to_owned(),
                row.table.clone(),
                row.row.clone(),
                row.published.clone(),
                row.model.clone(),
                row.here.clone(),
            ]
        })
        .collect();
    if !differs.is_empty() {
        out.push_str("\nWhat differs\n");
        out.push_str(&plain(&["study", "table", "row", "published", "model", "here"], differs));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(published: f64, model: Option<f64>, measured: Option<f64>) -> Comparison {
        Comparison { table: "t".into(), row: "r".into(), published, model, measured, unit: "MB/s" }
    }

    #[test]
    fn a_verdict_needs_a_model_or_says_that_it_is_of_another_machine() {
        let verdict = |published, model, measured| StudyRow::of(&line(published, model, measured)).verdict;
        assert_eq!(verdict(100.0, Some(100.0), Some(104.0)), "reproduced");
        assert_eq!(verdict(100.0, Some(100.0), Some(115.0)), "near");
        assert_eq!(verdict(100.0, Some(100.0), Some(60.0)), "differs");
        assert_eq!(verdict(100.0, Some(102.0), None), "reproduced");
        assert_eq!(verdict(100.0, None, Some(900.0)), "this host");
        assert_eq!(verdict(100.0, None, None), "not measured");
        let own = StudyRow::of_own_host(&line(100.0, Some(101.0), Some(900.0)));
        assert_eq!((&*own.verdict, &*own.here), ("model reproduced", "900.0 MB/s"));
        assert_eq!(StudyRow::of_own_host(&line(100.0, None, Some(900.0))).verdict, "this host");
    }

    #[test]
    fn what_differs_is_listed() {
        let rows =
            vec![StudyRow::of(&line(100.0, Some(100.0), Some(60.0))), StudyRow::claim("it is fast", "12 ns", "holds")];
        let study = Study { id: "x", title: "A study (2020)", about: "", command: "daqmeter x", rows, remarks: vec![] };
        assert_eq!(study.summary(), "1 differs, 1 holds");
        insta::assert_snapshot!(text(&[study]));
    }
}
