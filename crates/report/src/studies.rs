//! Published studies, row by row: published figure and its place, derived, modelled and measured
//! figures, verdict.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::{Display, Write};

use daqmeter_record::study::{About, Grade, StudyFinding, StudyLine, StudyVerdict, show};
use daqmeter_record::units::plural;
use serde::Serialize;

use crate::aligned::{asks_all, fewer, fitted, paragraphs};
use crate::frame::Frame;
use crate::groups::counted;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReproducedStudy {
    pub id: String,
    title: String,
    about: String,
    command: String,
    #[serde(serialize_with = "as_texts")]
    rows: Vec<StudyLine>,
    findings: Vec<StudyFinding>,
    remarks: Vec<String>,
}

/// Column of a study's table: name for programs and the page, heading in the terminal if it is
/// there, text with unit, empty for a missing figure.
type StudyColumn = (&'static str, Option<&'static str>, fn(&StudyLine) -> String);

const COLUMNS: [StudyColumn; 12] = [
    ("table", Some("table"), |line| line.table.clone()),
    ("row", Some("row"), |line| line.row.clone()),
    ("published", Some("published"), |line| with_unit(line, line.published.as_ref())),
    ("derived", Some("derived"), |line| with_unit(line, line.derived.as_ref())),
    ("model", Some("model"), |line| with_unit(line, line.model.map(show))),
    ("here", Some("measured here"), |line| {
        with_unit(line, line.measured.map(|measured| show(measured.value)))
    }),
    // A figure of zero has no relative difference.
    ("difference", Some("difference"), |line| {
        let difference = line.difference().filter(|difference| difference.is_finite());
        difference.map_or(String::new(), |difference| format!("{:+.1} %", difference * 100.0))
    }),
    ("verdict", Some("verdict"), |line| line.verdict().to_string()),
    ("grade", None, |line| line.verdict().grade().map_or("", Grade::name).to_owned()),
    ("place", None, |line| place(line).to_owned()),
    ("how", None, |line| how(line).to_owned()),
    ("where", Some("where"), |line| match (place(line), how(line)) {
        (place, "") => place.to_owned(),
        ("", how) => format!("derived: {how}"),
        (place, how) => format!("{place}; derived: {how}"),
    }),
];

fn with_unit(line: &StudyLine, figure: Option<impl Display>) -> String {
    figure.map_or(String::new(), |figure| format!("{figure} {}", line.unit))
}

fn place(line: &StudyLine) -> &str {
    line.published.as_ref().map_or("", |published| &published.place)
}

fn how(line: &StudyLine) -> &str {
    line.derived.as_ref().map_or("", |derived| &derived.how)
}

fn as_texts<S: serde::Serializer>(lines: &[StudyLine], to: S) -> Result<S::Ok, S::Error> {
    let texts = |line: &StudyLine| -> BTreeMap<&str, String> {
        COLUMNS.iter().map(|(name, _, text)| (*name, text(line))).collect()
    };
    to.collect_seq(lines.iter().map(texts))
}

/// Counts each verdict, most frequent first: `12 reproduced (model), 3 near (model)`.
fn tally(verdicts: impl Iterator<Item = String>) -> String {
    let mut counts = counted(verdicts);
    counts.sort_by_key(|(_, count)| Reverse(*count));
    let shown = counts.iter().map(|(verdict, count)| format!("{count} {verdict}"));
    shown.collect::<Vec<_>>().join(", ")
}

impl ReproducedStudy {
    pub fn new(
        name: &str,
        about: &About,
        rows: Vec<StudyLine>,
        findings: Vec<StudyFinding>,
    ) -> ReproducedStudy {
        ReproducedStudy {
            id: name.to_owned(),
            title: about.title.clone(),
            about: about.about.clone(),
            command: format!("daqmeter reproduce {name}"),
            rows,
            findings,
            remarks: about.notes.clone(),
        }
    }

    /// Returns `27 rows: 24 reproduced (emulated), 3 near (emulated); 4 findings: 4 confirmed
    /// (emulated)`.
    pub fn summary(&self) -> String {
        let rows = tally(self.rows.iter().map(|row| row.verdict().to_string()));
        let mut summary = format!("{}: {rows}", plural(self.rows.len() as u64, "row"));
        if !self.findings.is_empty() {
            let findings = tally(self.findings.iter().map(|finding| finding.verdict.to_string()));
            let count = plural(self.findings.len() as u64, "finding");
            let _ = write!(summary, "; {count}: {findings}");
        }
        summary
    }
}

/// Shows a study: its rows that are not as published, and its findings; with `--all` each row, the
/// evidence and the remarks.
pub fn full(study: &ReproducedStudy) -> Frame {
    let columns = || COLUMNS.iter().filter_map(|(_, heading, text)| Some(((*heading)?, text)));
    let is_shown = |line: &&StudyLine| {
        let is_met = matches!(line.verdict(), StudyVerdict::Fitted(_))
            || line.verdict().grade() == Some(Grade::Reproduced);
        asks_all() || !is_met
    };
    let shown: Vec<&StudyLine> = study.rows.iter().filter(is_shown).collect();
    let mut title = "";
    let rows = shown.iter().map(|line| {
        let cells = columns().map(|(_, text)| text(line));
        let dash = |cell: String| if cell.is_empty() { "-".to_owned() } else { cell };
        let mut cells: Vec<String> = cells.map(dash).collect();
        // A title stands at its first row.
        if std::mem::replace(&mut title, &line.table) == line.table {
            cells[0].clear();
        }
        cells
    });
    let headings: Vec<&str> = columns().map(|(heading, _)| heading).collect();
    let (rows, left_out) = fewer(rows.collect());
    let mut tables = fitted(&headings, 0..0, &["where", "derived", "model"], rows) + &left_out;
    if let more @ 1.. = study.rows.len() - shown.len() {
        let _ = writeln!(tables, " {} as published: --all", plural(more as u64, "row"));
    }
    let mut below = String::new();
    for finding in &study.findings {
        let _ = writeln!(below, " {}: {} ({})", finding.verdict, finding.text, finding.place);
        if asks_all() {
            let _ = writeln!(below, "     {}", finding.evidence);
        }
    }
    let answer = vec![format!("{}: {}", study.title, study.summary()), study.about.clone()];
    Frame { answer, tables: tables + &paragraphs(&below), notes: study.remarks.clone() }
}

/// Shows several studies: a line for each, and what differs.
pub fn overview(studies: &[ReproducedStudy]) -> Frame {
    let line = |study: &ReproducedStudy| format!("{}: {}", study.title, study.summary());
    let differs = studies.iter().flat_map(contradictions);
    let headings = ["study", "row or finding", "published", "model", "here", "verdict", "where"];
    let tables = fitted(&headings, 0..0, &["where", "model"], differs);
    Frame { answer: studies.iter().map(line).collect(), tables, ..Frame::default() }
}

fn contradictions(study: &ReproducedStudy) -> Vec<Vec<String>> {
    let rows = study.rows.iter().map(|line| {
        let name = format!("{}: {}", line.table, line.row);
        let [_, _, published, _, model, here, ..] = COLUMNS.map(|(_, _, text)| text);
        let figures = [published, model, here].map(|text| text(line));
        (line.verdict(), name, figures, place(line))
    });
    let findings = study.findings.iter().map(|one| {
        let figures = [String::new(), String::new(), one.evidence.clone()];
        (one.verdict, one.text.clone(), figures, &*one.place)
    });
    let all = rows.chain(findings);
    let all = all.filter(|(verdict, ..)| verdict.grade().is_some_and(Grade::contradicts));
    let cells = all.map(|(verdict, name, [published, model, here], place)| {
        let (study, verdict) = (study.id.clone(), verdict.to_string());
        vec![study, name, published, model, here, verdict, place.to_owned()]
    });
    cells.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use daqmeter_record::study::{Basis, Derived, Measured, Published};

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
        ReproducedStudy::new("x", &about, lines.into(), findings)
    }

    #[test]
    fn every_row_says_where_its_figure_stands() {
        insta::assert_snapshot!(full(&study()).text(None));
    }

    #[test]
    fn what_differs_is_listed() {
        let study = study();
        insta::assert_snapshot!(overview(&[study]).text(None));
    }
}
