//! File of a path in TOML, and the reading of its parts. The format is described in
//! `docs/book/src/verbs/path.md`.

use std::collections::BTreeMap;
use std::ops::Range;

use daqmeter_harness::{TomlText, nearest_of};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::{Spanned, Value};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PathFile {
    pub(crate) title: String,
    #[serde(default)]
    pub(crate) about: String,
    pub(crate) block: Spanned<String>,
    #[serde(default)]
    pub(crate) buffers: Option<Spanned<u64>>,
    /// Pages of the blocks: `base`, `transparent` or `huge`.
    #[serde(default)]
    pub(crate) pages: Option<Spanned<String>>,
    /// Blocks or bytes due per second; without it the source goes as fast as it can.
    #[serde(default)]
    pub(crate) rate: Option<Spanned<String>>,
    /// True if the source waits for room; false if it loses due blocks without room.
    #[serde(default)]
    pub(crate) lossless: Option<Spanned<bool>>,
    #[serde(default)]
    pub(crate) serves: Option<Serves>,
    pub(crate) source: Part,
    #[serde(default)]
    pub(crate) stage: Vec<Part>,
    pub(crate) sink: Part,
}

/// Unit of the served load: a host's capacity follows from the rate of one.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Serves {
    /// Name of the unit: `boards at 14 Hz`.
    pub(crate) what: String,
    /// Rate of one: bytes (`84MB/s`) or events (`100kHz`).
    pub(crate) each: Spanned<String>,
}

/// A source, a stage or a sink: a table whose other fields depend on its `kind`.
pub(crate) type Part = Spanned<BTreeMap<String, Spanned<Value>>>;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Place {
    /// Threads that share the work, block by block.
    pub(crate) threads: Option<usize>,
    pub(crate) cpus: Vec<u32>,
}

const OF_PLACE: [&str; 2] = ["threads", "cpus"];

/// Part while it is read: messages name its lines.
pub(crate) struct Reading<'a> {
    pub(crate) text: &'a TomlText,
    pub(crate) what: String,
    pub(crate) part: &'a Part,
}

impl Reading<'_> {
    pub(crate) fn kind(&self) -> Result<&str, String> {
        let Some(kind) = self.part.as_ref().get("kind") else {
            return Err(self.text.error(self.part.span(), &self.what, "needs a `kind`"));
        };
        kind.as_ref().as_str().ok_or_else(|| self.error("kind", "a name is wanted"))
    }

    pub(crate) fn fields<T: DeserializeOwned>(&self) -> Result<T, String> {
        self.read(|name| name != "kind" && !OF_PLACE.contains(&name))
    }

    pub(crate) fn place(&self) -> Result<Place, String> {
        self.read(|name| OF_PLACE.contains(&name))
    }

    pub(crate) fn error(&self, field: &str, problem: impl std::fmt::Display) -> String {
        let what = format!("{}: {field}", self.what);
        self.text.error(self.span(field), &what, problem)
    }

    fn span(&self, field: &str) -> Range<usize> {
        let found = self.part.as_ref().get(field);
        found.map_or_else(|| self.part.span(), Spanned::span)
    }

    fn read<T: DeserializeOwned>(&self, is_wanted: impl Fn(&str) -> bool) -> Result<T, String> {
        let fields = self.part.as_ref().iter();
        let fields: toml::Table = fields
            .filter(|(name, _)| is_wanted(name))
            .map(|(name, value)| (name.clone(), value.as_ref().clone()))
            .collect();
        serde_path_to_error::deserialize(Value::Table(fields)).map_err(|error| {
            let message = error.inner().to_string().trim_end().replace('\n', " ");
            let unknown = message.split('`').nth(1).unwrap_or_default().to_owned();
            let path = error.path().to_string();
            let in_file = |name: &&str| self.part.as_ref().contains_key(*name);
            let field = [path.split(['.', '[']).next().unwrap_or_default(), &unknown]
                .into_iter()
                .find(in_file)
                .map(str::to_owned);
            let hint = nearest_of(&message);
            match field {
                Some(field) => self.error(&field, format!("{message}{hint}")),
                None => {
                    let problem = format!("{message}{hint}");
                    self.text.error(self.part.span(), &self.what, problem)
                }
            }
        })
    }
}
