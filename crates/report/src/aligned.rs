//! Aligned tables of text.

use comfy_table::{CellAlignment, Table, presets::NOTHING};
use daqmeter_record::sanitise;

/// A table whose columns of these places are at the right: numbers.
pub(crate) fn aligned(
    headings: &[&str],
    numbers: std::ops::Range<usize>,
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    let mut table = Table::new();
    table
        .load_style(NOTHING)
        .set_header(headings.iter().copied());
    for row in rows {
        // Each cell on one line.
        let cells = row.iter().map(|cell| sanitise::text(cell));
        table.add_row(cells);
    }
    for column in numbers {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    trimmed(&table.to_string())
}

/// A small aligned table of any text, for the verbs that list things.
pub fn plain(headings: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    numbers_from(headings.len(), headings, rows)
}

/// An aligned table whose columns from that one on are numbers, at the right of their column.
pub fn numbers_from(
    first: usize,
    headings: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    aligned(headings, first..headings.len(), rows)
}

/// Without trailing spaces, which mail and snapshots mangle.
fn trimmed(text: &str) -> String {
    text.lines().fold(String::new(), |mut out, line| {
        out.push_str(line.trim_end());
        out.push('\n');
        out
    })
}
