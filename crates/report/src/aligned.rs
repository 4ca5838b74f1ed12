//! Aligned tables of text, and text that fits the reader's window.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use comfy_table::{CellAlignment, Table, presets::NOTHING};
use daqmeter_record::sanitise;
use daqmeter_record::units::{plural, show_ns, significant};

/// Columns of the window for all tables and sentences; 0 without a limit, as in a page.
static WINDOW: AtomicUsize = AtomicUsize::new(0);

/// Names of the columns that the user asked for.
static ASKED: OnceLock<Vec<String>> = OnceLock::new();

/// True after a table of stages was made.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// Word that asks for every column of every table, however broad.
pub const ALL: &str = "all";

/// Blank at which a cell is not folded.
pub(crate) const NO_BREAK: &str = "\u{a0}";

/// Sets the columns of the reader's window. Text written later fits it: tables fold or leave out
/// columns, or are written row by row, and sentences are broken at words.
pub fn set_window(columns: usize) {
    WINDOW.store(columns, Ordering::Relaxed);
}

/// Sets the names of the columns to show, once, before any text is written.
pub fn ask_columns(names: &[String]) {
    // The first verb of a process decides, and a process runs one.
    let _ = ASKED.set(names.to_vec());
}

/// Returns the names of the columns that the user asked for, to make a table of stages of them;
/// `None` for the usual ones.
pub(crate) fn asked_columns() -> Option<&'static [String]> {
    IS_USED.store(true, Ordering::Relaxed);
    names()
}

fn names() -> Option<&'static [String]> {
    ASKED.get().map(Vec::as_slice).filter(|names| !names.iter().any(|name| name == ALL))
}

/// Returns the names of columns that were asked for and that no table was made of.
pub fn unused_columns() -> Option<String> {
    let is_unused = !IS_USED.load(Ordering::Relaxed);
    names().filter(|_| is_unused).map(|names| names.join(","))
}

fn window() -> Option<usize> {
    Some(WINDOW.load(Ordering::Relaxed)).filter(|columns| *columns > 0)
}

/// Tests if the user asked for all columns, rows and notes.
pub(crate) fn asks_all() -> bool {
    ASKED.get().is_some() && names().is_none()
}

/// Returns the window of tables: none if all columns were asked for.
fn table_window() -> Option<usize> {
    window().filter(|_| !asks_all())
}

/// Most rows of a table of measurements in a window.
pub(crate) const MAX_ROWS: usize = 15;

/// Keeps rows at equal distances, the first and the last among them, if they are too many for a
/// window. The line below says how many were left out.
pub(crate) fn fewer<T>(mut rows: Vec<T>) -> (Vec<T>, String) {
    let all = rows.len();
    if all <= MAX_ROWS || table_window().is_none() {
        return (rows, String::new());
    }
    let mut at = 0..;
    rows.retain(|_| {
        let place = |at: usize| at * (MAX_ROWS - 1) / (all - 1);
        at.next().is_some_and(|at| at == 0 || place(at) != place(at - 1))
    });
    let left = plural((all - rows.len()) as u64, "more row");
    (rows, format!(" {left}: --all\n"))
}

/// Writes a table; nothing without rows. One that is too broad leaves out `spare` columns in their
/// order, and says so below.
pub(crate) fn fitted(
    headings: &[&str],
    numbers: Range<usize>,
    spare: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    let rows = rows.into_iter();
    let rows = rows.map(|row| row.iter().map(|cell| sanitise::text(cell).into_owned()).collect());
    let rows: Vec<Vec<String>> = rows.collect();
    match rows.is_empty() {
        true => String::new(),
        false => table_in(table_window(), headings, numbers, spare, &rows),
    }
}

fn table_in(
    window: Option<usize>,
    headings: &[&str],
    numbers: Range<usize>,
    spare: &[&str],
    rows: &[Vec<String>],
) -> String {
    let Some(columns) = window else {
        return in_columns(headings, numbers, rows);
    };
    let mut spare = spare.to_vec();
    spare.retain(|name| headings.contains(name));
    for count in 0..=spare.len() {
        let (left_out, others) = spare.split_at(count);
        // A row of many lines is worse than a table without its least important column.
        let lines = if others.is_empty() { MAX_LINES } else { 2 };
        let kept = |at: &usize| !left_out.contains(&headings[*at]);
        let kept: Vec<usize> = (0..headings.len()).filter(kept).collect();
        let of_kept = |row: &[String]| kept.iter().map(|at| row[*at].clone()).collect::<Vec<_>>();
        let names: Vec<&str> = kept.iter().map(|at| headings[*at]).collect();
        let inside = |bound: usize| kept.iter().filter(|at| **at < bound).count();
        let numbers = inside(numbers.start)..inside(numbers.end);
        let cells: Vec<Vec<String>> = rows.iter().map(|row| of_kept(row)).collect();
        if let Some(widths) = widths(&names, numbers.clone(), &cells, lines, columns) {
            let fold = |(cell, width): (&str, &usize)| folded(cell, *width, 0);
            let names: Vec<String> = names.iter().copied().zip(&widths).map(fold).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let fold_row =
                |row: &Vec<String>| row.iter().map(String::as_str).zip(&widths).map(fold).collect();
            let cells: Vec<Vec<String>> = cells.iter().map(fold_row).collect();
            return in_columns(&names, numbers, &cells) + &left_out_line(left_out, columns);
        }
    }
    row_by_row(headings, numbers, rows, columns)
}

fn left_out_line(left_out: &[&str], columns: usize) -> String {
    if left_out.is_empty() {
        return String::new();
    }
    let names = left_out.join(", ");
    let line = format!(" left out: {names}; see them with --all or a wider terminal");
    folded(&line, columns, 3) + "\n"
}

/// Most lines that a cell is folded into: higher rows are hard to compare.
const MAX_LINES: usize = 6;

/// Width below which text is not folded: narrower columns read badly.
const NARROW: usize = 12;

/// Returns the widths of columns that fit a window; `None` if they cannot. The widest are narrowed
/// first. Text is folded into at most that many `lines`; headings at each blank, numbers never.
fn widths(
    headings: &[&str],
    numbers: Range<usize>,
    rows: &[Vec<String>],
    lines: usize,
    columns: usize,
) -> Option<Vec<usize>> {
    let width = |text: &str| text.chars().count();
    let word = |text: &str| text.split(' ').map(width).max().unwrap_or(0);
    let column = |at: usize| {
        let cells = || rows.iter().map(move |row| row[at].as_str());
        let broadest = cells().map(width).max().unwrap_or(0);
        let least = match numbers.contains(&at) {
            true => broadest,
            false => {
                let longest = cells().map(word).max().unwrap_or(0);
                longest.max(broadest.min(NARROW)).max(broadest.div_ceil(lines))
            }
        };
        (broadest.max(width(headings[at])), least.max(word(headings[at])))
    };
    let (mut widths, least): (Vec<usize>, Vec<usize>) = (0..headings.len()).map(column).unzip();
    // A blank stands on either side of each column, and none at the end of a line.
    let total = |widths: &[usize]| widths.iter().map(|width| width + 2).sum::<usize>() - 1;
    while total(&widths) > columns {
        let can_shrink = (0..widths.len()).filter(|at| widths[*at] > least[*at]);
        let widest = can_shrink.max_by_key(|at| widths[*at])?;
        widths[widest] -= 1;
    }
    Some(widths)
}

fn in_columns(headings: &[&str], numbers: Range<usize>, rows: &[Vec<String>]) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(headings.iter().copied()).add_rows(rows);
    for column in numbers {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    // Mail and snapshots mangle trailing spaces.
    let text = table.to_string().replace(NO_BREAK, " ");
    text.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

pub fn plain(headings: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    numbers_from(headings.len(), headings, rows)
}

pub fn numbers_from(
    first: usize,
    headings: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    fitted(headings, first..headings.len(), &[], rows)
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
    table_without(first_number, columns, &[], rows)
}

/// Writes a table that leaves out `spare` columns in their order where it would be too broad, and
/// rows where they are too many.
pub(crate) fn table_without<T>(
    first_number: usize,
    columns: &[TextColumn<T>],
    spare: &[&str],
    rows: &[T],
) -> String {
    let headings: Vec<&str> = columns.iter().map(|(heading, _)| *heading).collect();
    let line = |row: &T| columns.iter().map(|(_, value)| value(row)).collect();
    let (rows, left_out) = fewer(rows.iter().map(line).collect());
    fitted(&headings, first_number..headings.len(), spare, rows) + &left_out
}

/// Writes a table that is too broad for the window. Each row is a line with its names, and below it
/// every other cell with its heading. Numbers are never broken.
fn row_by_row(
    headings: &[&str],
    numbers: Range<usize>,
    rows: &[Vec<String>],
    columns: usize,
) -> String {
    let first = if numbers.is_empty() { 1 } else { numbers.start };
    let mut out = String::new();
    for row in rows {
        let is_said = |cell: &&String| !cell.is_empty() && *cell != "-";
        let names = row.iter().take(first).filter(is_said);
        let names: Vec<&str> = names.map(String::as_str).collect();
        let pair = |at: usize| {
            let cell = Some(&row[at]).filter(is_said)?;
            let pair = format!("{} {cell}", headings[at]);
            Some(if numbers.contains(&at) { pair.replace(' ', NO_BREAK) } else { pair })
        };
        let pairs: Vec<String> = (first..row.len()).filter_map(pair).collect();
        // Semicolons separate the cells visibly.
        let below = format!("  {}", pairs.join("; "));
        for line in [names.join("  "), below].iter().filter(|line| !line.trim().is_empty()) {
            out.push_str(&folded(line, columns, 2).replace(NO_BREAK, " "));
            out.push('\n');
        }
    }
    out
}

/// Breaks text at words for the window, all lines but the first indented by `indent` columns.
/// Without a window the text stays unchanged.
pub fn wrapped(text: &str, indent: usize) -> String {
    match window() {
        Some(columns) => {
            // A number keeps its per cent.
            let text = text.replace(" %", &format!("{NO_BREAK}%"));
            let lines = text.lines().map(|line| folded(line, columns, indent));
            lines.collect::<Vec<_>>().join("\n").replace(NO_BREAK, " ")
        }
        None => text.to_owned(),
    }
}

/// Breaks each line of a text for the window, all its lines but the first below its beginning.
pub fn paragraphs(text: &str) -> String {
    let indent = |line: &str| line.len() - line.trim_start_matches([' ', '-']).len() + 2;
    text.lines().map(|line| wrapped(line, indent(line)) + "\n").collect()
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
            row_by_row(&headings, 1..3, &rows, 18),
            "read-out\n  n 30;\n  median 1.5 ms\ndecode\n  n 7; note\n  emulated\n"
        );
        assert_eq!(
            row_by_row(&headings, 1..3, &rows, 40),
            "read-out\n  n 30; median 1.5 ms\ndecode\n  n 7; note emulated\n"
        );
    }

    #[test]
    fn a_table_folds_text_then_leaves_out_columns_then_is_written_row_by_row() {
        let headings = ["board", "MB/s", "CPU [%]", "note"];
        let cells = |row: [&str; 4]| row.map(str::to_owned).to_vec();
        let rows = [cells(["emu:l0", "295.5", "14.7", "emulated, ~ 204 us to 230 us"])];
        let shown = |columns| table_in(Some(columns), &headings, 1..3, &["CPU [%]"], &rows);
        assert_eq!(
            shown(45),
            " board    MB/s  CPU [%]  note\n emu:l0  295.5     14.7  emulated, ~ 204 us\n                         to 230 us\n"
        );
        assert_eq!(
            shown(34),
            " board    MB/s  note\n emu:l0  295.5  emulated, ~ 204 us\n                to 230 us\n left out: CPU [%]; see them with\n   --all or a wider terminal\n"
        );
        assert_eq!(
            shown(20),
            "emu:l0\n  MB/s 295.5;\n  CPU [%] 14.7; note\n  emulated, ~ 204 us\n  to 230 us\n"
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
