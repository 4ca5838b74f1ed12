//! Files by the name under which daqmeter ships them, or by their path; messages name file, line
//! and field.

use std::fmt::{self, Display};
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use daqmeter_record::border::{refuse_infinite, refuse_large};
use schemars::JsonSchema;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::request::{did_you_mean, nearest_of};
use crate::text_file::{MAX_TEXT_BYTES, text_file, text_input};

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
        read: fn(&Path, u64) -> io::Result<String>,
    ) -> Result<TomlText, String> {
        if let Some(file) = self.shipped(name_or_path) {
            return Ok(file);
        }
        let text = read(Path::new(name_or_path), MAX_TEXT_BYTES).map_err(|error| {
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

/// A value that requests name: one that ships with daqmeter, or that of a TOML file.
pub trait Loaded: Sized {
    const SHIPPED: Shipped;
    /// False if a file without a table is one, and [`Loaded::read`] refuses what it must have.
    const HAS_TABLES: bool = true;

    /// # Errors
    /// One line with file, line, field and problem.
    fn read(file: &TomlText) -> Result<Self, String>;

    /// Digests of the files that it names.
    fn digests(&self) -> String {
        String::new()
    }
}

/// A loaded value with its name. The file is read once, when the name is parsed, so that all parts
/// of a run have one value, and a pipe is a file, too. Where a request is text, it is the name, and
/// behind `#` the digest of a file that does not ship: a changed file makes other points.
#[derive(Clone, JsonSchema)]
#[schemars(with = "String", bound = "")]
pub struct Resolved<T> {
    name: String,
    /// Digest of the file; empty for a shipped one.
    digest: String,
    value: Arc<T>,
}

impl<T> Resolved<T> {
    /// Name or path as it was given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Digest of its file; empty for a shipped one.
    pub fn digest(&self) -> &str {
        &self.digest
    }
}

impl<T: Loaded> Default for Resolved<T> {
    /// Returns the first value that ships.
    fn default() -> Self {
        T::SHIPPED.files[0].0.parse().expect("shipped files are tested")
    }
}

impl<T: Loaded> FromStr for Resolved<T> {
    type Err = String;

    /// Loads the value of a name, of a file, or of a file with the digest that it had.
    fn from_str(text: &str) -> Result<Resolved<T>, String> {
        let is_digest = |end: &str| end.len() == 16 && end.bytes().all(|c| c.is_ascii_hexdigit());
        let (name, wanted) = match text.rsplit_once('#') {
            Some((name, end)) if is_digest(end) => (name, end),
            _ => (text, ""),
        };
        let file = T::SHIPPED.get(name)?;
        if T::HAS_TABLES {
            let table: toml::Table = file.parse()?;
            if !table.values().any(|value| value.is_table() || value.is_array()) {
                return Err(format!("{name}: no table is in this file, or in this pipe any more"));
            }
        }
        let value = T::read(&file)?;
        let digest = match (T::SHIPPED.names().contains(&name), value.digests()) {
            (true, _) => String::new(),
            (false, named) if named.is_empty() => digest(&file.text),
            (false, named) => digest(&(digest(&file.text) + &named)),
        };
        if !wanted.is_empty() && wanted != digest {
            let kind = T::SHIPPED.kind;
            return Err(format!("{kind} {name} was changed: its digest is {digest}, not {wanted}"));
        }
        Ok(Resolved { name: name.to_owned(), digest, value: Arc::new(value) })
    }
}

impl<T> Display for Resolved<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Resolved { name, digest, .. } = self;
        if digest.is_empty() { f.write_str(name) } else { write!(f, "{name}#{digest}") }
    }
}

impl<T> fmt::Debug for Resolved<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(self, f)
    }
}

impl<T> PartialEq for Resolved<T> {
    fn eq(&self, other: &Self) -> bool {
        (&self.name, &self.digest) == (&other.name, &other.digest)
    }
}

impl<T> Eq for Resolved<T> {}

impl<T> Deref for Resolved<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Serialize for Resolved<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de, T: Loaded> Deserialize<'de> for Resolved<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// FNV-1a, 64 bits (draft-eastlake-fnv, section 2): tells changed files apart, and is no protection
/// against somebody who wants two files with one digest.
pub fn digest(text: &str) -> String {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        title: String,
        #[serde(default, rename = "table")]
        _table: toml::Table,
    }

    const TITLES: Shipped = Shipped {
        kind: "title",
        files: &[("first", "title = '1'"), ("second", "title = '2'\n[table]")],
    };

    impl Loaded for File {
        const SHIPPED: Shipped = TITLES;

        fn read(file: &TomlText) -> Result<File, String> {
            file.parse()
        }
    }

    #[test]
    fn digests_are_those_of_the_draft_s_test_vectors() {
        assert_eq!(digest(""), "cbf29ce484222325");
        assert_eq!(digest("foobar"), "85944171f73967e8");
    }

    /// Regression: a file was opened at each use, a pipe was empty then, and the defaults ran.
    #[test]
    fn a_name_is_loaded_once_and_its_text_tells_a_changed_file() {
        let load = |name: &str| name.parse::<Resolved<File>>();
        let shipped = load("second").unwrap();
        assert_eq!((shipped.title.as_str(), shipped.to_string().as_str()), ("2", "second"));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a#b.toml").display().to_string();
        std::fs::write(&path, "title = '3'\n[table]").unwrap();
        let first = load(&path).unwrap();
        assert_eq!(load(&first.to_string()), Ok(first.clone()));
        std::fs::write(&path, "title = '4'\n[table]").unwrap();
        assert_eq!(first.title, "3");
        assert_ne!(load(&path), Ok(first.clone()));
        let changed = load(&first.to_string()).unwrap_err();
        assert!(changed.contains(" was changed: its digest is "), "{changed}");
        std::fs::write(&path, "title = '5'\n").unwrap();
        assert!(load(&path).unwrap_err().contains("no table is in this file"));
    }

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
            "a.toml:2: unknown field `titel`, expected `title` or `table`; did you mean `title`?"
        );
        assert_eq!(text.error(12..13, "titel", "no"), "a.toml:2: titel: no");
    }
}
