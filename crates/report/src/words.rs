//! Words for a request, its stage and its parameters. `words.json` lists them by engine and name.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use daqmeter_record::units::{show_bytes, show_ns};
use daqmeter_record::{Param, Workload};
use serde::Deserialize;

use crate::families::functions;
use crate::family::prefixed;

/// Engine, values of parameters, and the words for such requests.
type RequestWords = (String, BTreeMap<String, Vec<Param>>, String);

#[derive(Deserialize)]
struct PointWords {
    /// The first whose values fit, and whose parameters are there, names a request.
    points: Vec<RequestWords>,
    /// Words around the value of a parameter. Others have their name before it.
    parameters: BTreeMap<String, String>,
    /// Words for values.
    values: BTreeMap<String, String>,
}

static WORDS: LazyLock<PointWords> = LazyLock::new(|| {
    serde_json::from_str(include_str!("words.json")).expect("tests name points of each engine")
});

/// Returns the words for a stage of a request; for all its stages if it is empty.
pub fn label(asked: &Workload, stage: &str) -> String {
    let stage = functions::label(asked, stage);
    let all = asked.clone().with("stage", stage.as_str());
    let is = |(name, values): (&String, &Vec<Param>)| {
        all.params.get(name).is_some_and(|own| values.contains(own))
    };
    let of_engine = WORDS.points.iter().filter(|(engine, ..)| *engine == asked.kind);
    let mut own = of_engine.filter(|(_, wanted, _)| wanted.iter().all(is));
    let words = own.find_map(|(.., words)| filled(words, &all));
    let words = words.unwrap_or(if stage.is_empty() { plain(&asked.kind) } else { plain(&stage) });
    let label = words.trim_end_matches(", ");
    match asked.int("lanes") {
        Ok(lanes @ 2..) => format!("{label}, {lanes} lanes"),
        _ => label.to_owned(),
    }
}

/// Puts parameters into words; `None` without one of them.
fn filled(words: &str, asked: &Workload) -> Option<String> {
    let mut parts = words.split('{');
    let first = parts.next()?.to_owned();
    parts.try_fold(first, |out, part| {
        let (name, rest) = part.split_once('}')?;
        Some(out + &shown(name, asked.params.get(name)?) + rest)
    })
}

/// Writes a text of a request or a host without what only programs need: digests, `_` and `=`.
pub(crate) fn plain(text: &str) -> String {
    text.split('#').next().unwrap_or_default().replace(['_', '='], " ")
}

/// Writes the value of a parameter.
fn shown(name: &str, value: &Param) -> String {
    match (value, parts(name).1) {
        (Param::Int(number), "function") => functions::of_number(*number),
        (Param::Int(bytes), "bytes") => show_bytes(*bytes),
        (Param::Int(ns), "ns") => show_ns(*ns as f64),
        (Param::Float(us), "us") => show_ns(us * 1e3),
        (Param::Float(hz), "hz") => prefixed(*hz, "Hz"),
        (Param::Text(text), _) => match (WORDS.values.get(text), text.strip_prefix("fused x ")) {
            (Some(words), _) => words.clone(),
            (_, Some(cpus)) => format!("on {cpus} CPUs"),
            _ => plain(text).replace(';', ", "),
        },
        _ => value.to_string(),
    }
}

/// Splits the name of a parameter into its stem and its unit; one without a unit is both.
fn parts(name: &str) -> (&str, &str) {
    match name.rsplit_once('_') {
        Some((stem, unit @ ("bytes" | "hz" | "ns" | "us"))) => (stem, unit),
        _ => (name, name),
    }
}

/// Writes a parameter in words; nothing for one that is off.
pub(crate) fn words(name: &str, value: &Param) -> String {
    let is_off = match value {
        Param::Int(0) => ["bytes", "function"].contains(&parts(name).1),
        value => *value == Param::Flag(false) || *value == Param::from("none"),
    };
    match (value, WORDS.parameters.get(name)) {
        _ if is_off => String::new(),
        (Param::Flag(_), _) => plain(name),
        (_, Some(words)) => words.replace("{}", &shown(name, value)),
        (_, None) => format!("{} {}", plain(parts(name).0), shown(name, value)),
    }
}
