//! Text of a TOML file, and messages that name its file, line and field.

use std::fmt::Display;
use std::ops::Range;

use serde::de::DeserializeOwned;

use crate::did_you_mean;

#[derive(Clone, Debug)]
pub struct TomlText {
    pub name: String,
    pub text: String,
}

impl TomlText {
    /// Returns the line of a place in the text, from 1.
    pub fn line(&self, span: Range<usize>) -> usize {
        self.text[..span.start.min(self.text.len())].matches('\n').count() + 1
    }

    pub fn error(&self, span: Range<usize>, field: &str, problem: impl Display) -> String {
        format!("{}:{}: {field}: {problem}", self.name, self.line(span))
    }

    /// Reads the whole text.
    ///
    /// # Errors
    /// Gives one line with file, line and problem, and the nearest name for an unknown one.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, String> {
        toml::from_str(&self.text).map_err(|error| {
            let line = self.line(error.span().unwrap_or(0..0));
            let message = error.message().replace('\n', " ");
            let hint = nearest_of(&message);
            format!("{}:{line}: {message}{hint}", self.name)
        })
    }
}

/// Finds the nearest name: serde quotes the unknown name and then the expected ones in backticks.
pub fn nearest_of(message: &str) -> String {
    let names: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    match names.split_first() {
        Some((wrong, expected)) if message.starts_with("unknown ") => did_you_mean(wrong, expected),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        #[allow(dead_code, reason = "only read")]
        title: String,
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line_and_the_nearest_name() {
        let text =
            TomlText { name: "a.toml".to_owned(), text: "# a comment\ntitel = \"x\"\n".to_owned() };
        let error = text.parse::<File>().unwrap_err();
        assert_eq!(
            error,
            "a.toml:2: unknown field `titel`, expected `title`; did you mean `title`?"
        );
        assert_eq!(text.error(12..13, "titel", "no"), "a.toml:2: titel: no");
    }
}
