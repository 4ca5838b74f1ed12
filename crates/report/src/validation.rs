//! A validation: parts with rows, each judged by a band that is said. The page of it is in `html`.

use std::fmt::Write;

use daqmeter_record::units::plural;
use serde::Serialize;

use crate::aligned::{numbers_from, wrapped};

/// What is validated, against what, and how it came out.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Part {
    /// Anchor on the page.
    pub id: &'static str,
    /// Heading.
    pub title: String,
    /// What is compared with what, and the bands.
    pub about: String,
    /// Headings of the columns.
    pub headings: Vec<&'static str>,
    /// How many of the first columns are names.
    pub names: usize,
    /// The rows.
    pub rows: Vec<Line>,
}

/// A row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// Its cells, as many as headings.
    pub cells: Vec<String>,
    /// How it is judged.
    pub verdict: Verdict,
}

/// How a row is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Within its band.
    Within,
    /// Outside of its band.
    Outside,
    /// Known to be outside, with the reason in the row.
    Known,
    /// Within, but it went into the model: that it agrees says nothing.
    Fit,
    /// Outside of its band, and no fault was shown: what it is compared with changed meanwhile.
    #[serde(rename = "cannot tell")]
    CannotTell,
    /// Shown and not judged.
    Shown,
}

impl Verdict {
    /// Within, or outside.
    pub fn of(is_within: bool) -> Verdict {
        match is_within {
            true => Verdict::Within,
            false => Verdict::Outside,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Verdict::Within => "within",
            Verdict::Outside => "OUTSIDE",
            Verdict::Known => "known miss",
            Verdict::Fit => "fit",
            Verdict::CannotTell => "cannot tell",
            Verdict::Shown => "",
        }
    }
}

impl Part {
    /// How many rows have that verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.rows.iter().filter(|row| row.verdict == verdict).count()
    }

    /// `21 rows within their bands, 1 outside, 2 known to be outside`.
    pub fn summary(&self) -> String {
        let within = self.count(Verdict::Within) as u64;
        let mut text = format!("{} within the bands", plural(within, "row"));
        for (verdict, what) in [
            (Verdict::Outside, "outside"),
            (Verdict::Known, "known to be outside"),
            (Verdict::Fit, "fitted"),
            (Verdict::CannotTell, "that cannot be told"),
            (Verdict::Shown, "not judged"),
        ] {
            match self.count(verdict) {
                0 => {}
                n => {
                    let _ = write!(text, ", {n} {what}");
                }
            }
        }
        text
    }

    fn text(&self) -> String {
        let mut headings = self.headings.clone();
        headings.push("");
        let rows = self.rows.iter().map(|row| {
            let mut cells = row.cells.clone();
            cells.push(row.verdict.text().to_owned());
            cells
        });
        format!(
            "{}\n{}\n\n{}{}\n",
            self.title,
            wrapped(&self.about, 0),
            numbers_from(self.names, &headings, rows),
            wrapped(&format!(" {}", self.summary()), 3)
        )
    }
}

/// All parts as text.
pub fn text(parts: &[Part]) -> String {
    let parts: Vec<String> = parts.iter().map(Part::text).collect();
    parts.join("\n")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn part() -> Part {
        let line =
            |name: &str, verdict| Line { cells: vec![name.to_owned(), "1".to_owned()], verdict };
        Part {
            id: "forms",
            title: "Closed <forms>".to_owned(),
            about: "About it.".to_owned(),
            headings: vec!["what", "difference"],
            names: 1,
            rows: vec![
                line("a", Verdict::of(true)),
                line("b", Verdict::of(false)),
                line("c", Verdict::Known),
            ],
        }
    }

    #[test]
    fn rows_outside_of_their_bands_are_counted_and_seen() {
        let text = text(&[part()]);
        assert!(text.contains("1 row within the bands, 1 outside, 1 known"), "{text}");
        assert!(text.contains("OUTSIDE"), "{text}");
    }
}
