//! Files by the name under which daqmeter ships them, or by their path; messages name file, line
//! and field.

use std::fmt::Display;
use std::io;
use std::ops::Range;
use std::path::Path;

use daqmeter_record::border::{refuse_infinite, refuse_large};
use serde::de::DeserializeOwned;

use crate::request::{did_you_mean, nearest_of};
use crate::{text_file, text_input};

/// Files of one kind that ship with daqmeter.
#[derive(Clone, Copy, Debug)]
pub struct Shipped {
    /// Word of messages: `plan`.
    pub kind: &'static str,
    /// Name and text of each.
    pub files: &'static [(&'static str, &'static str)],
}

impl Shipped {
    pub fn names(&self) -> Vec<&'static str> {
        self.files.iter().map(|(name, _)| *name).collect()
    }

    pub fn all(&self) -> impl Iterator<Item = TomlText> {
        self.files.iter().map(|(name, text)| TomlText::new(name, text))
    }

    pub fn shipped(&self, name: &str) -> Option<TomlText> {
        self.all().find(|file| file.name == name)
    }

    /// Returns the file of a name or path of the command line, which may be a pipe; at most 1 MiB.
    ///
    /// # Errors
    /// Gives one line with the name, the problem, all names, and the nearest name.
    pub fn get(&self, name_or_path: &str) -> Result<TomlText, String> {
        self.read(name_or_path, text_input)
    }

    /// Returns the file of a name or path that another file gives: a regular file.
    pub fn get_regular(&self, name_or_path: &str) -> Result<TomlText, String> {
        self.read(name_or_path, text_file)
    }

    fn read(
        &self,
        name_or_path: &str,
        read: fn(&Path) -> io::Result<String>,
    ) -> Result<TomlText, String> {
        if let Some(file) = self.shipped(name_or_path) {
            return Ok(file);
        }
        let text = read(Path::new(name_or_path)).map_err(|error| {
            let names = self.names();
            let (kind, hint) = (self.kind, did_you_mean(name_or_path, &names));
            let names = names.join(", ");
            format!("{kind} {name_or_path}: {error}; shipped with daqmeter: {names}{hint}")
        })?;
        Ok(TomlText { name: name_or_path.to_owned(), text })
    }
}

/// Fields with whole numbers of any size: addresses and identities of a bus, seeds, and what each
/// engine checks itself.
const FREE: [&str; 8] = ["address", "axes", "first", "last", "sdb", "seed", "vendor", "workload"];

/// Text of a TOML file.
#[derive(Clone, Debug)]
pub struct TomlText {
    /// Its name, or path, in messages.
    pub name: String,
    pub text: String,
}

impl TomlText {
    pub fn new(name: &str, text: &str) -> TomlText {
        TomlText { name: name.to_owned(), text: text.to_owned() }
    }

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
    /// Gives one line with file, line and problem, and the nearest name for an unknown one. A whole
    /// number that no run reaches, and one that is not finite, is refused by its field.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, String> {
        let wrong = |error: toml::de::Error| {
            let line = self.line(error.span().unwrap_or(0..0));
            let message = error.message().replace('\n', " ");
            let hint = nearest_of(&message);
            format!("{}:{line}: {message}{hint}", self.name)
        };
        let parsed = toml::from_str(&self.text).map_err(wrong)?;
        let numbers = toml::from_str(&self.text).map_err(wrong)?;
        refuse_large(&numbers, &FREE.map(|name| (name, u64::MAX)))
            .and_then(|()| refuse_infinite(&numbers))
            .map_err(|why| format!("{}: {why}", self.name))?;
        Ok(parsed)
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        title: String,
    }

    const TITLES: Shipped =
        Shipped { kind: "title", files: &[("first", "title = '1'"), ("second", "title = '2'")] };

    #[test]
    fn a_file_is_found_by_name_or_path_and_errors_name_the_known_and_the_nearest() {
        assert_eq!(TITLES.get("second").unwrap().parse::<File>().unwrap().title, "2");
        let path = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&path, "title = '3'").unwrap();
        let path = path.path().display().to_string();
        for file in [TITLES.get(&path).unwrap(), TITLES.get_regular(&path).unwrap()] {
            assert_eq!((file.name.as_str(), file.text.as_str()), (&*path, "title = '3'"));
        }
        let error = TITLES.get("secnd").unwrap_err();
        assert!(error.starts_with("title secnd: No such file"), "{error}");
        let end = "; shipped with daqmeter: first, second; did you mean `second`?";
        assert!(error.ends_with(end), "{error}");
        let error = TITLES.get_regular("/dev/null").unwrap_err();
        assert!(error.contains("not a regular file"), "{error}");
    }

    /// Regression: an access time of 292 years in a bus ended three threads by an overflow.
    #[test]
    fn a_number_that_no_run_reaches_is_refused_in_every_file_but_not_an_address() {
        let read = |field: &str, number: i64| {
            let text = format!("timing = {{ {field} = {number} }}");
            TomlText::new("a.toml", &text).parse::<toml::Table>().map(drop)
        };
        for (number, is_read) in
            [(0, true), ((1 << 53) - 1, true), (1 << 53, false), (i64::MAX, false), (-1, true)]
        {
            assert_eq!(read("read_ns", number).is_ok(), is_read, "{number}");
            assert_eq!(read("address", number), Ok(()));
        }
        let refused = read("read_ns", i64::MAX).unwrap_err();
        assert!(refused.starts_with("a.toml: timing.read_ns is 922337"), "{refused}");
    }

    #[test]
    fn an_error_names_line_and_nearest_field() {
        let text = TomlText::new("a.toml", "# a comment\ntitel = \"x\"\n");
        let error = text.parse::<File>().unwrap_err();
        assert_eq!(
            error,
            "a.toml:2: unknown field `titel`, expected `title`; did you mean `title`?"
        );
        assert_eq!(text.error(12..13, "titel", "no"), "a.toml:2: titel: no");
    }
}
