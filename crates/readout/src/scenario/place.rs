//! Places of a scenario's fields in its file.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    pub(super) field: String,
    what: String,
}

impl Wrong {
    pub(crate) fn new(field: impl Into<String>, what: impl Into<String>) -> Wrong {
        Wrong { field: field.into(), what: what.into() }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.what)
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Origin {
    pub(super) file: Option<String>,
    pub(super) text: Arc<str>,
}

impl Origin {
    pub(super) fn located(&self, wrong: &Wrong) -> String {
        match span_of(&self.text, &wrong.field) {
            Some(span) => format!("{}: {wrong}", line_at(&self.text, span.start)),
            None => wrong.to_string(),
        }
    }

    pub(crate) fn located_in_file(&self, wrong: &Wrong) -> String {
        let line = self.located(wrong);
        self.file.as_ref().map_or_else(|| line.clone(), |file| format!("{file}: {line}"))
    }
}

pub(super) fn one_line(text: &str, error: &toml::de::Error) -> String {
    let message = error.message().replace('\n', " ");
    match error.span() {
        Some(span) => format!("{}: {message}", line_at(text, span.start)),
        None => message,
    }
}

fn line_at(text: &str, position: usize) -> String {
    let before = text.get(..position.min(text.len())).unwrap_or("");
    let number = before.matches('\n').count();
    let line = text.lines().nth(number).unwrap_or("").trim();
    format!("line {} (`{line}`)", number + 1)
}

fn span_of(text: &str, field: &str) -> Option<Range<usize>> {
    let document = DeTable::parse(text).ok()?;
    let mut table = document.get_ref();
    let mut found = None;
    for part in field.split('.') {
        let (name, index) = match part.split_once('[') {
            Some((name, index)) => (name, index.trim_end_matches(']').parse::<usize>().ok()),
            None => (part, None),
        };
        let Some(value) = element(table, name, index) else {
            break;
        };
        found = Some(value.span());
        let Some(inner) = value.get_ref().as_table() else {
            break;
        };
        table = inner;
    }
    found
}

fn element<'t, 'i>(
    table: &'t DeTable<'i>,
    name: &str,
    index: Option<usize>,
) -> Option<&'t Spanned<DeValue<'i>>> {
    let value = table.get(name)?;
    match index {
        Some(index) => value.get_ref().as_array()?.get(index),
        None => Some(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(field: &str, line: Option<&str>) {
        let text =
            "[card]\nlinks = 2 # two\nring = \"1MiB\"\n[[link]]\nlink = 0\n[[link]]\n  link = 1\n";
        let origin = Origin { file: None, text: text.into() };
        let wrong = Wrong::new(field, "bad");
        let expected = line.map_or(format!("{field}: bad"), |line| format!("{line}: {field}: bad"));
        assert_eq!(origin.located(&wrong), expected);
    }

    #[test]
    fn a_field_is_found_where_it_stands_or_its_table_is() {
        check("card.ring", Some("line 3 (`ring = \"1MiB\"`)"));
        check("link[1].link", Some("line 7 (`link = 1`)"));
        check("link[0].deficit", Some("line 4 (`[[link]]`)"));
        check("card.fifo", Some("line 1 (`[card]`)"));
        check("reader.poll", None);
        check("link[7].link", None);
    }
}
