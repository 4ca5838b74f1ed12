//! Requests to engines, as plain data: a kind and named parameters. Sweeps vary them, records keep
//! them.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One request to an engine. Parameter names carry their unit last (`block_bytes`, `rate_hz`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Workload {
    /// Kind of work, e.g. `convert`, `digitizer`.
    pub kind: String,
    /// The parameters by name.
    pub params: BTreeMap<String, Param>,
}

/// One value of a parameter.
#[derive(Clone, Debug, PartialEq, PartialOrd, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Param {
    /// Yes or no.
    Flag(bool),
    /// A count or a size.
    Int(u64),
    /// A factor, an offset, a rate.
    Float(f64),
    /// A name.
    Text(String),
}

impl std::fmt::Display for Param {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Param::Flag(value) => value.fmt(f),
            Param::Int(value) => value.fmt(f),
            Param::Float(value) => value.fmt(f),
            Param::Text(value) => value.fmt(f),
        }
    }
}

/// Writes `convert dec_factor=10 function=1`: kind and parameters in order of their names, with
/// quotes around a value with a blank.
impl std::fmt::Display for Workload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let params = self.params.iter();
        f.write_str(&self.text_of(params.map(|(name, value)| (name.as_str(), value))))
    }
}

/// Parameters outside of the identity of a point: length of a run (`seconds`), repetitions
/// (`passes`, `reads`) and destination of the data (`dump`). A new parameter of that kind belongs
/// here, otherwise no two runs of a point could be compared.
pub const NOT_IN_KEY: [&str; 4] = ["dump", "passes", "reads", "seconds"];

macro_rules! param_from {
    ($($from:ty => $variant:ident),* $(,)?) => {$(
        impl From<$from> for Param {
            fn from(value: $from) -> Self { Param::$variant(value.into()) }
        }
    )*};
}
param_from!(bool => Flag, u64 => Int, u32 => Int, f64 => Float, String => Text, &str => Text);

impl Workload {
    pub fn new(kind: impl Into<String>) -> Self {
        Workload { kind: kind.into(), params: BTreeMap::new() }
    }

    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Param>) -> Self {
        self.params.insert(name.to_owned(), value.into());
        self
    }

    /// Returns the line of a problem with a parameter: its value, and what is wanted.
    pub fn error(&self, name: &str, problem: impl Display) -> String {
        format!("{} workload: parameter `{name}` {problem}", self.kind)
    }

    /// Returns the identity of a point: all but [`NOT_IN_KEY`], written as by `Display`.
    pub fn key(&self) -> String {
        self.key_without(&[])
    }

    /// Returns the key without these parameters, in which points of one comparison differ.
    pub fn key_without(&self, names: &[&str]) -> String {
        let params = self.params.iter().map(|(name, value)| (name.as_str(), value));
        self.text_of(params.filter(|(name, _)| !NOT_IN_KEY.contains(name) && !names.contains(name)))
    }

    fn text_of<'a>(&self, params: impl Iterator<Item = (&'a str, &'a Param)>) -> String {
        let mut out = self.kind.clone();
        for (name, value) in params {
            let needs_quotes = |text: &str| text.is_empty() || text.contains(char::is_whitespace);
            let quote = match value {
                Param::Text(text) if needs_quotes(text) => "'",
                _ => "",
            };
            let _ = write!(out, " {name}={quote}{value}{quote}");
        }
        out
    }

    fn wrong(&self, name: &str, wanted: &str) -> String {
        match self.params.get(name) {
            None => self.error(name, format!("is missing; {wanted} is wanted")),
            Some(found) => self.error(name, format!("is `{found}`; {wanted} is wanted")),
        }
    }

    pub fn int(&self, name: &str) -> Result<u64, String> {
        match self.params.get(name) {
            Some(Param::Int(value)) => Ok(*value),
            _ => Err(self.wrong(name, "a whole number")),
        }
    }

    pub fn float(&self, name: &str) -> Result<f64, String> {
        match self.params.get(name) {
            Some(Param::Float(value)) => Ok(*value),
            // People and JSON writers write a float without a fraction as a whole number.
            Some(Param::Int(value)) => Ok(*value as f64),
            _ => Err(self.wrong(name, "a number")),
        }
    }

    pub fn text(&self, name: &str) -> Result<&str, String> {
        match self.params.get(name) {
            Some(Param::Text(value)) => Ok(value),
            _ => Err(self.wrong(name, "a name")),
        }
    }

    pub fn flag(&self, name: &str) -> bool {
        matches!(self.params.get(name), Some(Param::Flag(true)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_parameter_is_named_with_what_was_found() {
        let workload = Workload::new("convert").with("samples", "many");
        let error = workload.int("samples").unwrap_err();
        assert_eq!(
            error,
            "convert workload: parameter `samples` is `many`; a whole number is wanted"
        );
        assert!(workload.text("isa").unwrap_err().contains("is missing"));
    }

    #[test]
    fn the_key_holds_what_was_asked_and_not_how_long_or_what_came_out() {
        let asked = Workload::new("copy").with("block_bytes", 64_u64).with("path", "a b");
        let run = asked.clone().with("seconds", 0.4).with("reads", 30_u64).with("passes", 0_u64);
        assert_eq!(run.key(), "copy block_bytes=64 path='a b'");
        assert_eq!(run.key(), asked.to_string());
        assert!(run.to_string().contains("reads=30 "), "{run}");
        assert_ne!(run.key(), asked.with("block_bytes", 128_u64).key());
    }

    #[test]
    fn whole_numbers_serve_as_numbers() {
        let workload = Workload::new("x").with("factor", 2_u64);
        assert_eq!(workload.float("factor"), Ok(2.0));
        assert!(!workload.flag("factor"));
    }
}
