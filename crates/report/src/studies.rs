//! Published studies, row by row: published figure and its place, derived, modelled and measured
//! figures, verdict.

use std::cmp::Reverse;
use std::fmt::{Display, Write};

use daqmeter_record::study::{About, Grade, StudyFinding, StudyLine, show};
use daqmeter_record::units::plural;
use serde::Serialize;

use crate::aligned::{TextColumn, plain, table};
use crate::points::in_groups;

/// Row of a study, as text with units; empty for missing figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StudyRow {
    pub table: String,
    pub row: String,
    pub published: String,
    pub place: String,
    pub derived: String,
    pub how: String,
    pub model: String,
    pub here: String,
    /// Measured against published figure, or against the derived one without a published one.
    pub difference: String,
    pub verdict: String,
    pub grade: Option<&'static str>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReproducedStudy {
    pub id: String,
    pub title: String,
    pub about: String,
    pub command: String,
    pub rows: Vec<StudyRow>,
    pub findings: Vec<StudyFinding>,
    pub remarks: Vec<String>,
}

impl From<&StudyLine> for StudyRow {
    fn from(line: &StudyLine) -> StudyRow {
        let with_unit = |text: Option<String>| {
            text.map_or(String::new(), |text| format!("{text} {}", line.unit))
        };
        let text =
            |figure: Option<&dyn Display>| with_unit(figure.map(|figure| figure.to_string()));
        let (published, derived) = (line.published.as_ref(), line.derived.as_ref());
        // A figure of zero has no relative difference.
        let difference = line.difference().filter(|difference| difference.is_finite());
        StudyRow {
            table: line.table.clone(),
            row: line.row.clone(),
            published: text(published.map(|figure| figure as _)),
            place: published.map_or(String::new(), |published| published.place().to_owned()),
            derived: text(derived.map(|figure| figure as _)),
            how: derived.map_or(String::new(), |derived| derived.how().to_owned()),
            model: with_unit(line.model.map(show)),
            here: with_unit(line.measured.map(|measured| show(measured.value))),
            difference: difference
                .map_or(String::new(), |difference| format!("{:+.1} %", difference * 100.0)),
            verdict: line.verdict().to_string(),
            grade: line.verdict().grade().map(Grade::name),
        }
    }
}

/// Counts each verdict, most frequent first: `12 reproduced (model), 3 near (model)`.
fn counted(verdicts: impl Iterator<Item = String>) -> String {
    let mut counts = in_groups(verdicts.map(|verdict| (verdict, ())));
    counts.sort_by_key(|(_, same)| Reverse(same.len()));
    let shown = counts.iter().map(|(verdict, same)| format!("{} {verdict}", same.len()));
    shown.collect::<Vec<_>>().join(", ")
}

impl ReproducedStudy {
    pub fn new(
        name: &str,
        about: &About,
        rows: &[StudyLine],
        findings: Vec<StudyFinding>,
    ) -> ReproducedStudy {
        ReproducedStudy {
            id: name.to_owned(),
            title: about.title.clone(),
            about: about.about.clone(),
            command: format!("daqmeter reproduce {name}"),
            rows: rows.iter().map(StudyRow::from).collect(),
            findings,
            remarks: about.notes.clone(),
        }
    }

    /// Returns `27 rows: 24 reproduced (emulated), 3 near (emulated); 4 findings: 4 confirmed
    /// (emulated)`.
    pub fn summary(&self) -> String {
        let rows = counted(self.rows.iter().map(|row| row.verdict.clone()));
        let mut summary = format!("{}: {rows}", plural(self.rows.len() as u64, "row"));
        if !self.findings.is_empty() {
            let findings = counted(self.findings.iter().map(|finding| finding.verdict.to_string()));
            let count = plural(self.findings.len() as u64, "finding");
            let _ = write!(summary, "; {count}: {findings}");
        }
        summary
    }
}

pub fn full(study: &ReproducedStudy) -> String {
    let mut out = format!("{}\n{}\n\n", study.title, study.about);
    let mut rows = study.rows.clone();
    // A title stands at its first row.
    for at in (1..rows.len()).rev() {
        if rows[at].table == rows[at - 1].table {
            rows[at].table.clear();
        }
    }
    out.push_str(&table(COLUMNS.len(), &COLUMNS, &rows));
    if !study.findings.is_empty() {
        out.push_str("\nFindings\n");
        for finding in &study.findings {
            let _ = writeln!(out, " {}: {} ({})", finding.verdict, finding.text, finding.place);
            let _ = writeln!(out, "     {}", finding.evidence);
        }
    }
    let _ = writeln!(out, "\n{}", study.summary());
    if !study.remarks.is_empty() {
        out.push_str("\nWhat to know\n");
        for remark in &study.remarks {
            let _ = writeln!(out, " - {remark}");
        }
    }
    out
}

/// Columns of a study; the last is the place of a published figure, or the arithmetic of a derived
/// one.
const COLUMNS: [TextColumn<StudyRow>; 9] = [
    ("table", |row| row.table.clone()),
    ("row", |row| row.row.clone()),
    ("published", |row| or_dash(&row.published)),
    ("derived", |row| or_dash(&row.derived)),
    ("model", |row| or_dash(&row.model)),
    ("measured here", |row| or_dash(&row.here)),
    ("difference", |row| or_dash(&row.difference)),
    ("verdict", |row| row.verdict.clone()),
    ("where", |row| match (row.place.as_str(), row.how.as_str()) {
        (place, "") => place.to_owned(),
        ("", how) => format!("derived: {how}"),
        (place, how) => format!("{place}; derived: {how}"),
    }),
];

fn or_dash(text: &str) -> String {
    if text.is_empty() { "-" } else { text }.to_owned()
}

pub fn text(studies: &[ReproducedStudy]) -> String {
    let mut out = String::new();
    for study in studies {
        let _ = writeln!(out, "{}\n  {}", study.title, study.summary());
    }
    let differs: Vec<Vec<String>> = studies.iter().flat_map(contradictions).collect();
    if !differs.is_empty() {
        out.push_str("\nWhat differs\n");
        let headings =
            ["study", "row or finding", "published", "model", "here", "verdict", "where"];
        out.push_str(&plain(&headings, differs));
    }
    out
}

fn contradictions(study: &ReproducedStudy) -> Vec<Vec<String>> {
    let line = |cells: [&str; 6]| {
        let cells = std::iter::once(&*study.id).chain(cells);
        cells.map(str::to_owned).collect::<Vec<String>>()
    };
    let differs = [Grade::Differs.name(), Grade::Refuted.name()];
    let is_one = |grade: Option<&str>| grade.is_some_and(|grade| differs.contains(&grade));
    let rows = study.rows.iter().filter(|row| is_one(row.grade)).map(|row| {
        let name = format!("{}: {}", row.table, row.row);
        line([&name, &row.published, &row.model, &row.here, &row.verdict, &row.place])
    });
    let found =
        study.findings.iter().filter(|one| is_one(one.grade)).map(|one| {
            line([&one.text, "", "", &one.evidence, &one.verdict.to_string(), &one.place])
        });
    rows.chain(found).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use daqmeter_record::study::{Basis, Derived, Measured, Published, StudyVerdict};

    fn study() -> ReproducedStudy {
        let published = |value: f64| -> Published {
            let json = format!("{{ \"value\": {value}, \"place\": \"table 2, row 3\" }}");
            serde_json::from_str(&json).unwrap()
        };
        let here = |value, basis| Some(Measured { value, basis, is_disturbed: false });
        let line = |row: &str, figure: Option<f64>, model, measured| StudyLine {
            table: "speed".to_owned(),
            row: row.to_owned(),
            published: figure.map(published),
            derived: None,
            model,
            measured,
            is_of_host: false,
            is_fitted: false,
            unit: "MB/s".to_owned(),
        };
        let both = line("both", None, None, here(155.0, Basis::Emulated));
        let derived = Some(Derived::between(200.5, 200.5, "sum of both"));
        let lines = [
            line("board 1", Some(100.0), Some(100.0), here(60.0, Basis::Measured)),
            line("board 2", Some(100.5), Some(104.25), here(95.0, Basis::Emulated)),
            StudyLine { derived, ..both },
            line("idle", Some(17.0), None, None),
        ];
        let finding = |verdict: StudyVerdict, evidence: &str| StudyFinding {
            text: "it is fast".to_owned(),
            place: "section 4".to_owned(),
            verdict,
            grade: verdict.grade().map(Grade::name),
            evidence: evidence.to_owned(),
        };
        let findings = vec![
            finding(StudyVerdict::Judged(Grade::Refuted, Basis::Emulated), "12 ns"),
            finding(StudyVerdict::Judged(Grade::Confirmed, Basis::Measured), "1 ns"),
            finding(StudyVerdict::CannotTell, "no device"),
        ];
        let about = About {
            title: "A study (2020)".to_owned(),
            about: "On an emulated board.".to_owned(),
            notes: vec!["it contradicts itself".to_owned()],
        };
        ReproducedStudy::new("x", &about, &lines, findings)
    }

    #[test]
    fn every_row_says_where_its_figure_stands() {
        insta::assert_snapshot!(full(&study()));
    }

    #[test]
    fn what_differs_is_listed() {
        let study = study();
        insta::assert_snapshot!(text(&[study]));
    }
}
