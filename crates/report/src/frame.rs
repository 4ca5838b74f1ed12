//! Screen of every verb that measures: the answer, what disturbed it, tables, and notes.

use daqmeter_record::sanitise;
use daqmeter_record::units::plural;

use crate::aligned::{asks_all, wrapped};

/// Most notes of a screen; `--all` prints the rest.
const MAX_NOTES: usize = 3;

/// Parts of a screen, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Sentences of the answer, the first of which has the number.
    pub answer: Vec<String>,
    /// Tables, which fit the window.
    pub tables: String,
    /// Notes on the numbers, the most important first.
    pub notes: Vec<String>,
}

impl Frame {
    /// Frame of tables and notes, whose answer follows from the records.
    pub(crate) fn of(tables: String, notes: Vec<String>) -> Frame {
        Frame { tables, notes, ..Frame::default() }
    }

    /// Writes the screen. `disturbed` says what took time from the measurement.
    pub fn text(&self, disturbed: Option<String>) -> String {
        let answer = self.answer.iter().cloned().chain(disturbed);
        let answer: String = answer.map(|line| wrapped(&line, 2) + "\n").collect();
        let shown = if asks_all() { self.notes.len() } else { MAX_NOTES.min(self.notes.len()) };
        let (shown, left) = self.notes.split_at(shown);
        let left = (!left.is_empty())
            .then(|| format!("{}: --all", plural(left.len() as u64, "more note")));
        let notes = shown.iter().cloned().chain(left);
        let notes = notes.map(|note| wrapped(&format!(" {}", sanitise::text(&note)), 3) + "\n");
        answer + &self.tables + &notes.collect::<String>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_has_three_notes() {
        let notes = (0..5).map(|at| format!("note {at}")).collect();
        let text = Frame { notes, ..Frame::default() }.text(None);
        assert_eq!(text, " note 0\n note 1\n note 2\n 2 more notes: --all\n");
    }
}
