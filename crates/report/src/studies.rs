//! Published studies, row by row: what was published and where, what follows from it, what a model gives, what was measured
//! here, and a verdict.

use std::cmp::Reverse;
use std::fmt::Write;

use daqmeter_record::study::{About, Comparison, Finding, Grade, Verdict};
use daqmeter_record::units::plural;
use serde::Serialize;

use crate::table::plain;

/// One row of a study.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StudyRow {
    /// Table or figure of the document.
    pub table: String,
    /// Row of the table.
    pub row: String,
    /// What the document states; empty if it states nothing.
    pub published: String,
    /// Where it states that.
    pub place: String,
    /// What follows from what it states.
    pub derived: String,
    /// How it follows.
    pub how: String,
    /// What a model gives.
    pub model: String,
    /// What was measured here.
    pub here: String,
    /// Measured here against published, or against derived where nothing is published.
    pub difference: String,
    /// As of [`Comparison::verdict`].
    pub verdict: String,
    /// How it compares, without what that rests on; none if nothing was compared.
    pub grade: Option<&'static str>,
}

/// A statement or a question of a study.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StudyFinding {
    /// What the document says or asks.
    pub text: String,
    /// Where.
    pub place: String,
    /// What the records say of it.
    pub verdict: String,
    /// How it compares, without what that rests on; none if nothing was compared.
    pub grade: Option<&'static str>,
    /// The numbers behind the verdict.
    pub evidence: String,
}

/// A document, repeated.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shown {
    /// Anchor.
    pub id: &'static str,
    /// Title, author, year.
    pub title: String,
    /// What was done here, and on what.
    pub about: String,
    /// The command that repeats it alone.
    pub command: String,
    /// Its figures.
    pub rows: Vec<StudyRow>,
    /// Its statements and questions.
    pub findings: Vec<StudyFinding>,
    /// What must be known, such as inconsistencies of the document.
    pub remarks: Vec<String>,
}

fn grade(verdict: Verdict) -> Option<&'static str> {
    verdict.grade().map(|grade| grade.name())
}

impl From<&Comparison> for StudyRow {
    fn from(line: &Comparison) -> StudyRow {
        let with_unit = |text: Option<String>| {
            text.map_or(String::new(), |text| format!("{text} {}", line.unit))
        };
        let published = line.published.as_ref();
        let derived = line.derived.as_ref();
        StudyRow {
            table: line.table.clone(),
            row: line.row.clone(),
            published: with_unit(published.map(ToString::to_string)),
            place: published.map_or(String::new(), |published| published.place().to_owned()),
            derived: with_unit(derived.map(ToString::to_string)),
            how: derived.map_or(String::new(), |derived| derived.how().to_owned()),
            model: with_unit(line.model.map(|model| model.to_string())),
            here: with_unit(line.measured.map(|measured| measured.to_string())),
            difference: line.difference().map_or(String::new(), percent),
            verdict: line.verdict().to_string(),
            grade: grade(line.verdict()),
        }
    }
}

/// `+1.2 %`; a figure of zero has no relative difference.
fn percent(difference: f64) -> String {
    if difference.is_finite() { format!("{:+.1} %", difference * 100.0) } else { String::new() }
}

impl From<&Finding> for StudyFinding {
    fn from(finding: &Finding) -> StudyFinding {
        StudyFinding {
            text: finding.text.clone(),
            place: finding.place.clone(),
            verdict: finding.verdict.to_string(),
            grade: grade(finding.verdict),
            evidence: finding.evidence.clone(),
        }
    }
}

/// How many have which verdict, most frequent first: `12 reproduced (model), 3 near (model)`.
fn counted<'a>(verdicts: impl Iterator<Item = &'a str>) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for verdict in verdicts {
        match counts.iter_mut().find(|(known, _)| *known == verdict) {
            Some((_, count)) => *count += 1,
            None => counts.push((verdict, 1)),
        }
    }
    counts.sort_by_key(|(_, count)| Reverse(*count));
    let counts: Vec<String> =
        counts.iter().map(|(verdict, count)| format!("{count} {verdict}")).collect();
    counts.join(", ")
}

impl Shown {
    /// A study of that name by what its document states and what the records say of it.
    pub fn new(
        name: &'static str,
        about: &About,
        rows: &[Comparison],
        findings: &[Finding],
    ) -> Shown {
        Shown {
            id: name,
            title: about.title.clone(),
            about: about.about.clone(),
            command: format!("daqmeter reproduce {name}"),
            rows: rows.iter().map(StudyRow::from).collect(),
            findings: findings.iter().map(StudyFinding::from).collect(),
            remarks: about.notes.clone(),
        }
    }

    /// `27 rows: 24 reproduced (emulated), 3 near (emulated); 4 findings: 4 confirmed (emulated)`.
    pub fn summary(&self) -> String {
        let rows = counted(self.rows.iter().map(|row| row.verdict.as_str()));
        let mut summary = format!("{}: {rows}", plural(self.rows.len() as u64, "row"));
        if !self.findings.is_empty() {
            let findings = counted(self.findings.iter().map(|finding| finding.verdict.as_str()));
            let _ =
                write!(summary, "; {}: {findings}", plural(self.findings.len() as u64, "finding"));
        }
        summary
    }
}

fn contradicts(grade: &str) -> bool {
    [Grade::Differs, Grade::Refuted].iter().any(|one| one.name() == grade)
}

/// Everything of one study, for people.
pub fn full(study: &Shown) -> String {
    let mut out = format!("{}\n{}\n\n", study.title, study.about);
    out.push_str(&rows(&study.rows));
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

/// Headings of the rows.
const HEADINGS: [&str; 9] = [
    "table",
    "row",
    "published",
    "derived",
    "model",
    "measured here",
    "difference",
    "verdict",
    "where",
];

/// The rows as a table; the last column says where a figure is published, or how it is derived.
fn rows(rows: &[StudyRow]) -> String {
    let mut last = "";
    let cells = rows.iter().map(|row| {
        let title = if row.table == last { "" } else { &row.table };
        last = &row.table;
        row.cells(title)
    });
    plain(&HEADINGS, cells)
}

impl StudyRow {
    fn cells(&self, title: &str) -> Vec<String> {
        let numbers = [&self.published, &self.derived, &self.model, &self.here, &self.difference];
        let mut cells = vec![title.to_owned(), self.row.clone()];
        cells.extend(numbers.map(|text| match text.as_str() {
            "" => "-".to_owned(),
            text => text.to_owned(),
        }));
        cells.extend([self.verdict.clone(), self.place_or_how()]);
        cells
    }

    fn place_or_how(&self) -> String {
        match (self.place.as_str(), self.how.as_str()) {
            (place, "") => place.to_owned(),
            ("", how) => format!("derived: {how}"),
            (place, how) => format!("{place}; derived: {how}"),
        }
    }
}

/// Several studies for people: their totals, and what contradicts a document.
pub fn text(studies: &[Shown]) -> String {
    let mut out = String::new();
    for study in studies {
        let _ = writeln!(out, "{}\n  {}", study.title, study.summary());
    }
    let differs: Vec<Vec<String>> = studies.iter().flat_map(contradictions).collect();
    if !differs.is_empty() {
        out.push_str("\nWhat differs\n");
        out.push_str(&plain(
            &["study", "row or finding", "published", "model", "here", "verdict", "where"],
            differs,
        ));
    }
    out
}

fn contradictions(study: &Shown) -> Vec<Vec<String>> {
    let line = |cells: [&str; 6]| {
        let cells = std::iter::once(study.id).chain(cells);
        cells.map(str::to_owned).collect::<Vec<String>>()
    };
    let is_one = |grade: Option<&str>| grade.is_some_and(contradicts);
    let rows = study.rows.iter().filter(|row| is_one(row.grade));
    let rows = rows.map(|row| {
        let name = format!("{}: {}", row.table, row.row);
        line([&name, &row.published, &row.model, &row.here, &row.verdict, &row.place])
    });
    let found = study.findings.iter().filter(|one| is_one(one.grade));
    let found = found.map(|one| line([&one.text, "", "", &one.evidence, &one.verdict, &one.place]));
    rows.chain(found).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use daqmeter_record::study::{Derived, Holds, Measured, Published, Statement};
    use daqmeter_record::{EngineInfo, RunRecord, Workload};

    fn published(value: f64) -> Published {
        let json = format!("{{ \"value\": {value}, \"place\": \"table 2, row 3\" }}");
        serde_json::from_str(&json).unwrap()
    }

    fn here(value: f64, emulated: bool) -> Option<Measured> {
        let engine = EngineInfo { name: "null".into(), target: "here".into(), emulated };
        Measured::of(&RunRecord::new(engine, Workload::new("null")), value)
    }

    fn study() -> Shown {
        let line = |row: &str, figure: Option<f64>| {
            Comparison::new("speed", row, figure.map(published), "MB/s")
        };
        let lines = [
            line("board 1", Some(100.0)).model(100.0).measured(here(60.0, false)),
            line("board 2", Some(100.5)).model(104.25).measured(here(95.0, true)),
            line("both", None)
                .derived(Derived::computed(200.5, "sum of both"))
                .measured(here(155.0, true)),
            line("idle", Some(17.0)),
        ];
        let fast: Statement =
            serde_json::from_str("{ \"text\": \"it is fast\", \"place\": \"section 4\" }").unwrap();
        let findings = [
            fast.judged([here(12.0, true)], |[ns]| (Holds::No, format!("{ns} ns"))),
            fast.judged([here(1.0, false)], |[ns]| (true.into(), format!("{ns} ns"))),
            fast.cannot_tell("no device"),
        ];
        let about = About {
            title: "A study (2020)".to_owned(),
            about: "On an emulated board.".to_owned(),
            notes: vec!["it contradicts itself".to_owned()],
        };
        Shown::new("x", &about, &lines, &findings)
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

    #[test]
    fn programs_get_the_place_and_the_grade() {
        let json = serde_json::to_value(study()).unwrap();
        assert_eq!(json["rows"][1]["place"], "table 2, row 3");
        assert_eq!(
            (&json["rows"][1]["verdict"], &json["rows"][1]["grade"]),
            (&"near (emulated)".into(), &"near".into())
        );
        assert_eq!(json["rows"][2]["how"], "sum of both");
        assert_eq!(json["findings"][0]["place"], "section 4");
    }
}
