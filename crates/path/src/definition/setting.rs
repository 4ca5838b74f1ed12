//! Fields of a path's file that get another value: `block=128KiB`, `stage.1.by=memcpy`.

use std::fmt::{self, Display};
use std::str::FromStr;

use daqmeter_harness::TomlText;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};
use toml::{Table, Value};

/// A field and its value, which is TOML, or else a text without quotes.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    field: String,
    value: Value,
}

impl Setting {
    pub(crate) fn new(field: &str, value: impl Into<Value>) -> Setting {
        Setting { field: field.to_owned(), value: value.into() }
    }

    /// Sets the field in the table of a file. Elements are counted from 1.
    pub(crate) fn apply(&self, file: &mut Table) -> Result<(), String> {
        let (place, field) = self.field.rsplit_once('.').unwrap_or(("", &self.field));
        let table = match place.split_once('.') {
            None if place.is_empty() => Some(file),
            None => file.get_mut(place).and_then(Value::as_table_mut),
            Some((part, number)) => {
                let at = number.parse::<usize>().ok().and_then(|at| at.checked_sub(1));
                let parts = file.get_mut(part).and_then(Value::as_array_mut);
                at.zip(parts).and_then(|(at, parts)| parts.get_mut(at)?.as_table_mut())
            }
        };
        let table = table.ok_or_else(|| format!("there is no {place}"))?;
        table.insert(field.to_owned(), self.value.clone());
        Ok(())
    }
}

fn value(text: &str) -> Value {
    let read = TomlText::new("", &format!("value = {text}")).parse::<Table>().ok();
    // A text of several lines sets more than one field.
    let read = read.filter(|table| table.len() == 1).and_then(|mut all| all.remove("value"));
    read.unwrap_or_else(|| Value::String(text.to_owned()))
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Setting, String> {
        let wanted = || "FIELD=VALUE is wanted, such as block=128KiB".to_owned();
        let (field, text) = text.split_once('=').ok_or_else(wanted)?;
        Ok(Setting::new(field.trim(), value(text)))
    }
}

impl Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Setting { field, value: own } = self;
        match own {
            // Blanks at the ends would be lost.
            Value::String(text)
                if value(text) == *own && text.trim() == text && !text.contains(SEPARATING) =>
            {
                write!(f, "{field}={text}")
            }
            // In one line: quoted as in JSON, which TOML reads.
            Value::String(text) => write!(f, "{field}={}", serde_json::json!(text)),
            other => write!(f, "{field}={other}"),
        }
    }
}

/// Characters by which settings in one text are divided, or not.
const SEPARATING: [char; 7] = [';', '"', '\'', '[', ']', '{', '}'];

/// Parts between the `;` of a text that are in no quotes and brackets.
fn parts(text: &str) -> Vec<&str> {
    let (mut quote, mut is_escaped, mut depth) = (None, false, 0_i64);
    let parts = text.split(|c| {
        match (quote, c) {
            (Some('"'), '\\') if !is_escaped => {
                is_escaped = true;
                return false;
            }
            (Some(open), _) if c == open && !is_escaped => quote = None,
            (None, '"' | '\'') => quote = Some(c),
            (None, '[' | '{') => depth += 1,
            (None, ']' | '}') => depth -= 1,
            _ => {}
        }
        is_escaped = false;
        c == ';' && quote.is_none() && depth == 0
    });
    parts.map(str::trim).filter(|part| !part.is_empty()).collect()
}

/// Writes settings as one text with `;` between them, as records and plans have them.
pub(crate) fn serialize<S: Serializer>(all: &[Setting], to: S) -> Result<S::Ok, S::Error> {
    let all: Vec<String> = all.iter().map(Setting::to_string).collect();
    to.serialize_str(&all.join(";"))
}

pub(crate) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Vec<Setting>, D::Error> {
    let text = String::deserialize(from)?;
    parts(&text)
        .into_iter()
        .map(str::parse)
        .collect::<Result<_, String>>()
        .map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize, serde::Serialize)]
    struct Request {
        #[serde(with = "super")]
        with: Vec<Setting>,
    }

    fn again(with: &[Setting]) -> (String, Vec<Setting>) {
        let text = serde_json::to_string(&Request { with: with.to_vec() }).unwrap();
        let read: Request = serde_json::from_str(&text).unwrap();
        (text, read.with)
    }

    /// Regression: a `;` in a command divided it.
    #[test]
    fn a_value_with_the_separator_in_quotes_is_one_value() {
        let text = r#"stage.1.command=["sh", "-c", "cat; true"]"#;
        let own: Setting = text.parse().unwrap();
        assert_eq!(own.value.as_array().map(Vec::len), Some(3));
        let all = [own, "block=128KiB".parse().unwrap(), "title=a; b".parse().unwrap()];
        let (written, read) = again(&all);
        assert_eq!(read, all);
        assert!(written.contains("block=128KiB;title="), "{written}");
    }

    proptest! {
        #[test]
        fn settings_are_read_as_they_were_written(values in prop::collection::vec("[ -~\n]{0,12}", 1..4)) {
            let all: Vec<Setting> =
                values.iter().map(|text| Setting::new("a.1.b", value(text))).collect();
            prop_assert_eq!(again(&all).1, all);
        }
    }
}
