//! Aligned tables of text, and text that fits the reader's window.

use std::sync::atomic::{AtomicUsize, Ordering};

use comfy_table::{CellAlignment, Table, presets::NOTHING};
use daqmeter_record::sanitise;
use daqmeter_record::units::{show_ns, significant};

/// Columns of the window for all tables and sentences; 0 for a file or a pipe, without line breaks.
static WINDOW: AtomicUsize = AtomicUsize::new(0);

/// Sets the columns of the reader's window. From then on broader tables are written row by row, and
/// sentences are broken at words.
pub fn set_window(columns: usize) {
    WINDOW.store(columns, Ordering::Relaxed);
}

fn window() -> Option<usize> {
    Some(WINDOW.load(Ordering::Relaxed)).filter(|columns| *columns > 0)
}

pub(crate) fn aligned(
    headings: &[&str],
    numbers: std::ops::Range<usize>,
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    let rows: Vec<Vec<String>> = rows
        .into_iter()
        .map(|row| row.iter().map(|cell| sanitise::text(cell).into_owned()).collect())
        .collect();
    let table = in_columns(headings, numbers.clone(), &rows);
    match window() {
        Some(columns) if table.lines().any(|line| line.chars().count() > columns) => {
            row_by_row(headings, numbers.start, &rows, columns)
        }
        _ => table,
    }
}

fn in_columns(headings: &[&str], numbers: std::ops::Range<usize>, rows: &[Vec<String>]) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(headings.iter().copied());
    for row in rows {
        table.add_row(row);
    }
    for column in numbers {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    // Mail and snapshots mangle trailing spaces.
    table.to_string().lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

pub fn plain(headings: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    numbers_from(headings.len(), headings, rows)
}

pub fn numbers_from(
    first: usize,
    headings: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    aligned(headings, first..headings.len(), rows)
}

/// Writes a number with significant digits; a dash if it is missing.
pub(crate) fn number(value: Option<f64>, digits: i32) -> String {
    value.map_or("-".to_owned(), |value| significant(value, digits))
}

/// Writes a time; a dash if it is missing.
pub(crate) fn time(ns: Option<f64>) -> String {
    ns.map_or("-".to_owned(), show_ns)
}

pub(crate) type TextColumn<T> = (&'static str, fn(&T) -> String);

pub(crate) fn table<T>(first_number: usize, columns: &[TextColumn<T>], rows: &[T]) -> String {
    let headings: Vec<&str> = columns.iter().map(|(heading, _)| *heading).collect();
    let line = |row| columns.iter().map(|(_, value)| value(row)).collect();
    numbers_from(first_number, &headings, rows.iter().map(line))
}

/// Writes a table that is too broad for the window. Each row is a line with its names, and below it
/// every number with its heading. Numbers are never broken.
fn row_by_row(headings: &[&str], first: usize, rows: &[Vec<String>], columns: usize) -> String {
    let mut out = String::new();
    for row in rows {
        let is_said = |cell: &&String| !cell.is_empty() && *cell != "-";
        let names = row.iter().take(first).filter(is_said);
        let names: Vec<&str> = names.map(String::as_str).collect();
        let pairs = headings.iter().zip(row).skip(first);
        let pairs: Vec<String> = pairs
            .filter(|(_, cell)| is_said(cell))
            .map(|(heading, cell)| format!("{heading} {cell}").replace(' ', "\u{a0}"))
            .collect();
        if !names.is_empty() {
            out.push_str(&folded(&names.join("  "), columns, 2));
            out.push('\n');
        }
        // Semicolons separate the numbers visibly.
        let numbers = folded(&format!("  {}", pairs.join("; ")), columns, 2);
        out.push_str(&numbers.replace('\u{a0}', " "));
        out.push('\n');
    }
    out
}

/// Breaks text at words for the window, all lines but the first indented by `indent` columns.
/// Without a window the text stays unchanged.
pub fn wrapped(text: &str, indent: usize) -> String {
    match window() {
        Some(columns) => {
            text.lines().map(|line| folded(line, columns, indent)).collect::<Vec<_>>().join("\n")
        }
        None => text.to_owned(),
    }
}

/// Breaks one line at blanks so that no part is broader than that, unless a single word is.
fn folded(line: &str, columns: usize, indent: usize) -> String {
    let (lead, text) = line.split_at(line.len() - line.trim_start_matches(' ').len());
    let mut words = text.split(' ');
    let mut last = lead.to_owned() + words.next().unwrap_or_default();
    let mut out = String::new();
    for word in words {
        if last.chars().count() + 1 + word.chars().count() > columns {
            out.push_str(last.trim_end_matches(' '));
            out.push('\n');
            last = " ".repeat(indent) + word;
        } else {
            last.push(' ');
            last.push_str(word);
        }
    }
    out + &last
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_is_broken_at_words_and_goes_on_below_its_beginning() {
        let text = "  one two three four";
        assert_eq!(folded(text, 11, 4), "  one two\n    three\n    four");
        assert_eq!(folded(text, 80, 4), text);
        assert_eq!(folded("unbreakable", 4, 2), "unbreakable");
        assert_eq!(folded("", 4, 2), "");
    }

    #[test]
    fn a_table_broader_than_the_window_is_written_row_by_row() {
        let headings = ["stage", "n", "median", "note"];
        let cells = |row: [&str; 4]| row.map(str::to_owned).to_vec();
        let rows =
            [cells(["read-out", "30", "1.5 ms", ""]), cells(["decode", "7", "-", "emulated"])];
        assert_eq!(
            row_by_row(&headings, 1, &rows, 18),
            "read-out\n  n 30;\n  median 1.5 ms\ndecode\n  n 7;\n  note emulated\n"
        );
        assert_eq!(
            row_by_row(&headings, 1, &rows, 40),
            "read-out\n  n 30; median 1.5 ms\ndecode\n  n 7; note emulated\n"
        );
    }

    proptest! {
        #[test]
        fn no_word_is_lost_and_no_line_is_broader_than_the_window(
            words in prop::collection::vec("[a-z]{1,9}", 0..30),
            columns in 12_usize..60,
        ) {
            let shown = folded(&words.join(" "), columns, 3);
            prop_assert_eq!(shown.split_whitespace().collect::<Vec<_>>(), words);
            prop_assert!(shown.lines().all(|line| line.chars().count() <= columns));
        }
    }
}
