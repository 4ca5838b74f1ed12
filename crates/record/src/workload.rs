//! What is asked of an engine, as plain data: a kind and named parameters. Sweeps vary them, records keep them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::LazyLock;

use schemars::JsonSchema;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// One request to an engine. Parameter names carry their unit last (`block_bytes`, `rate_hz`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Workload {
    /// What kind of work, e.g. `convert`, `digitizer`.
    pub kind: String,
    /// The parameters by name.
    pub params: BTreeMap<String, Param>,
}

/// One value of a parameter.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
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

/// By its own visitor: the derived one keeps each value aside and tries the kinds one after the other, with an error for each that
/// does not fit.
impl<'de> Deserialize<'de> for Param {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Param, D::Error> {
        source.deserialize_any(ParamVisitor)
    }
}

struct ParamVisitor;

impl Visitor<'_> for ParamVisitor {
    type Value = Param;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("true, false, a number or a text")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Param, E> {
        Ok(Param::Flag(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Param, E> {
        Ok(Param::Int(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Param, E> {
        Ok(u64::try_from(value).map_or(Param::Float(value as f64), Param::Int))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Param, E> {
        Ok(Param::Float(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Param, E> {
        Ok(Param::Text(value.to_owned()))
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Param, E> {
        Ok(Param::Text(value))
    }
}

impl std::fmt::Display for Param {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Param::Flag(value) => write!(f, "{value}"),
            Param::Int(value) => write!(f, "{value}"),
            Param::Float(value) => write!(f, "{value}"),
            Param::Text(value) => write!(f, "{value}"),
        }
    }
}

/// `convert dec_factor=10 function=1`: kind and parameters in order of their names, quoted where a value holds a blank.
impl std::fmt::Display for Workload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let params = self.params.iter();
        f.write_str(&self.text_of(params.map(|(name, value)| (name.as_str(), value))))
    }
}

/// Parameters that are not part of what a point is. The length of a run (`seconds`), how often was measured (`passes`,
/// `reads`), where the data were written (`dump`), and a measured rate, which records of version 0.1 hold (`limit_bytes_per_s`). A new parameter of that
/// kind is added here, or two runs of one point can never be compared.
pub const NOT_IN_KEY: [&str; 5] = ["dump", "limit_bytes_per_s", "passes", "reads", "seconds"];

/// Parameters that had another name in records of before, with the one of today: both are the same point.
const RENAMED: [(&str, &str); 5] = [
    ("neighbour_cpu", "peer_cpu"),
    ("receiver_cpus", "peer_cpu"),
    ("sender_cpu", "peer_cpu"),
    ("server_cpu", "peer_cpu"),
    ("threads", "lanes"),
];

/// How a completion without interrupts is called today; of copies it was `polled`.
static POLL: LazyLock<Param> = LazyLock::new(|| Param::Text("poll".to_owned()));

fn value_of_today(value: &Param) -> &Param {
    match value {
        Param::Text(text) if text == "polled" => &POLL,
        _ => value,
    }
}

/// The name that a parameter has today.
pub fn name_of_today(name: &str) -> &str {
    let renamed = RENAMED.iter().find(|(before, _)| *before == name);
    renamed.map_or(name, |(_, today)| today)
}

macro_rules! param_from {
    ($($from:ty => $variant:ident),* $(,)?) => {$(
        impl From<$from> for Param {
            fn from(value: $from) -> Self { Param::$variant(value.into()) }
        }
    )*};
}
impl Param {
    /// Adds its text, in quotes where there is a blank in it or nothing.
    fn push_to(&self, out: &mut String) {
        let quote = match self {
            Param::Text(text) if text.is_empty() || text.contains(char::is_whitespace) => "'",
            _ => "",
        };
        let text = match self {
            Param::Flag(true) => "true",
            Param::Flag(false) => "false",
            Param::Text(text) => text,
            Param::Int(_) | Param::Float(_) => "",
        };
        out.extend([quote, text, quote]);
        if matches!(self, Param::Int(_) | Param::Float(_)) {
            let _ = write!(out, "{self}");
        }
    }
}
param_from!(bool => Flag, u64 => Int, u32 => Int, f64 => Float, String => Text, &str => Text);

/// A parameter that is missing, of the wrong type or out of range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} workload: parameter `{name}` {problem}")]
pub struct ParamError {
    kind: String,
    name: String,
    problem: String,
}

impl Workload {
    /// A workload without parameters.
    pub fn new(kind: impl Into<String>) -> Self {
        Workload { kind: kind.into(), params: BTreeMap::new() }
    }

    /// The same with one more parameter.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Param>) -> Self {
        self.params.insert(name.to_owned(), value.into());
        self
    }

    /// An error about one of this workload's parameters.
    pub fn error(&self, name: &str, problem: impl Into<String>) -> ParamError {
        ParamError { kind: self.kind.clone(), name: name.to_owned(), problem: problem.into() }
    }

    /// What makes two workloads the same point: all of it but [`NOT_IN_KEY`], under the names of today, written as by `Display`.
    pub fn key(&self) -> String {
        self.key_without(&[])
    }

    /// The same without the parameters of these names, in which points of one comparison differ.
    pub fn key_without(&self, names: &[&str]) -> String {
        let part_of_it = |name: &&str| !NOT_IN_KEY.contains(name) && !names.contains(name);
        let params = self.params.iter();
        let params = params.map(|(name, value)| (name_of_today(name), value_of_today(value)));
        let mut params: Vec<(&str, &Param)> = params.filter(|(name, _)| part_of_it(name)).collect();
        // Of two that have one name today, the later one counts.
        params.sort_by_key(|(name, _)| *name);
        let is_last = |at: usize| params.get(at + 1).is_none_or(|next| next.0 != params[at].0);
        let last = (0..params.len()).filter(|at| is_last(*at));
        self.text_of(last.map(|at| params[at]))
    }

    /// A number that equal workloads have in common, within one process.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.kind.hash(&mut hasher);
        for (name, value) in &self.params {
            name.hash(&mut hasher);
            match value {
                Param::Flag(value) => value.hash(&mut hasher),
                Param::Int(value) => value.hash(&mut hasher),
                // Zero has two forms, which are equal.
                Param::Float(value) => (value + 0.0).to_bits().hash(&mut hasher),
                Param::Text(value) => value.hash(&mut hasher),
            }
        }
        hasher.finish()
    }

    /// The kind and these parameters in their order.
    fn text_of<'a>(&self, params: impl Iterator<Item = (&'a str, &'a Param)>) -> String {
        let mut out = String::with_capacity(64 * (1 + self.params.len()) / 2);
        out.push_str(&self.kind);
        for (name, value) in params {
            out.extend([" ", name, "="]);
            value.push_to(&mut out);
        }
        out
    }

    fn wrong(&self, name: &str, wanted: &str) -> ParamError {
        match self.params.get(name) {
            None => self.error(name, format!("is missing; {wanted} is wanted")),
            Some(found) => self.error(name, format!("is `{found}`; {wanted} is wanted")),
        }
    }

    /// A count or size.
    ///
    /// # Errors
    /// When the parameter is missing or not a whole number.
    pub fn int(&self, name: &str) -> Result<u64, ParamError> {
        match self.params.get(name) {
            Some(Param::Int(value)) => Ok(*value),
            _ => Err(self.wrong(name, "a whole number")),
        }
    }

    /// A number.
    ///
    /// # Errors
    /// When the parameter is missing or not a number.
    pub fn float(&self, name: &str) -> Result<f64, ParamError> {
        match self.params.get(name) {
            Some(Param::Float(value)) => Ok(*value),
            // A float without a fraction is written by JSON readers and by people as a whole number.
            Some(Param::Int(value)) => Ok(*value as f64),
            _ => Err(self.wrong(name, "a number")),
        }
    }

    /// A name.
    ///
    /// # Errors
    /// When the parameter is missing or not text.
    pub fn text(&self, name: &str) -> Result<&str, ParamError> {
        match self.params.get(name) {
            Some(Param::Text(value)) => Ok(value),
            _ => Err(self.wrong(name, "a name")),
        }
    }

    /// A switch; absent means off.
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
        let error = workload.int("samples").unwrap_err().to_string();
        assert_eq!(
            error,
            "convert workload: parameter `samples` is `many`; a whole number is wanted"
        );
        assert!(workload.text("isa").unwrap_err().to_string().contains("is missing"));
    }

    #[test]
    fn the_key_holds_what_was_asked_and_not_how_long_or_what_came_out() {
        let asked = Workload::new("copy").with("block_bytes", 64_u64).with("path", "a b");
        let run = asked.clone().with("seconds", 0.4).with("reads", 30_u64).with("passes", 0_u64);
        let run = run.with("limit_bytes_per_s", 1.5e10);
        assert_eq!(run.key(), "copy block_bytes=64 path='a b'");
        assert_eq!(run.key(), asked.to_string());
        assert!(run.to_string().contains("limit_bytes_per_s=15000000000"), "{run}");
        assert_ne!(run.key(), asked.with("block_bytes", 128_u64).key());
    }

    #[test]
    fn a_parameter_that_was_renamed_is_the_same_point() {
        let point = |name: &str| {
            Workload::new("etherbone")
                .with("address", "loop/udp")
                .with("payload", "tlu")
                .with(name, 1_u64)
        };
        assert_eq!(point("server_cpu").key(), point("peer_cpu").key());
        assert_ne!(point("server_cpu").to_string(), point("peer_cpu").to_string());
    }

    #[test]
    fn a_value_that_was_renamed_is_the_same_point() {
        let point = |completion: &str| Workload::new("copy").with("completion", completion);
        assert_eq!(point("polled").key(), point("poll").key());
        assert_ne!(point("interrupt").key(), point("poll").key());
    }

    #[test]
    fn whole_numbers_serve_as_numbers() {
        let workload = Workload::new("x").with("factor", 2_u64);
        assert_eq!(workload.float("factor"), Ok(2.0));
        assert!(!workload.flag("factor"));
    }
}
