//! The TOML file of a study.

use std::collections::BTreeMap;

use daqmeter_record::study::{About, Published};
use serde::Deserialize;
use toml::{Table, Value};

use super::expression::{Expression, Select};
use super::finding::FindingSpec;
use super::formula::RingInputs;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StudyFile {
    pub(super) study: About,
    pub(super) plan: Option<String>,
    /// True if `--repeat` replaces the repetitions of its plan.
    #[serde(default)]
    pub(super) takes_repeat: bool,
    #[serde(default)]
    pub(super) records: BTreeMap<String, Select>,
    #[serde(default)]
    pub(super) value: BTreeMap<String, Expression>,
    #[serde(default)]
    pub(super) perf: BTreeMap<String, String>,
    pub(super) rings: Option<RingInputs>,
    #[serde(default)]
    template: BTreeMap<String, Vec<Section>>,
    #[serde(default)]
    pub(super) rows: Vec<Rows>,
    #[serde(default)]
    pub(super) finding: Vec<FindingSpec>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Section {
    #[serde(default)]
    once: bool,
    line: Vec<Value>,
}

/// Rows: written out, or a template with the values of its variables.
///
/// `"$name"` is replaced by the variable's value, `{name}` within a text by its text, `"$all.name"`
/// by the list of its values in all items.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Rows {
    pub(super) template: Option<String>,
    pub(super) with: Table,
    pub(super) each: Vec<Table>,
    line: Vec<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LineSpec {
    pub(super) table: String,
    pub(super) row: String,
    pub(super) unit: String,
    pub(super) published: Option<Published>,
    pub(super) derived: Option<DerivedSpec>,
    pub(super) model: Option<Expression>,
    pub(super) measured: Option<Expression>,
    #[serde(default)]
    pub(super) of_host: bool,
    /// True if model and emulated device were fitted to the figure.
    #[serde(default)]
    pub(super) fitted: bool,
}

/// A figure that follows from published ones: `of`, up to `to` where it is a range.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DerivedSpec {
    pub(super) of: Expression,
    pub(super) to: Option<Expression>,
    pub(super) how: String,
}

impl StudyFile {
    pub(super) fn lines(&self) -> Vec<LineSpec> {
        let values = self.rows.iter().flat_map(|rows| self.expanded(rows));
        let read = |value: Value| {
            let text = value.to_string();
            value.try_into().unwrap_or_else(|error| panic!("{error}: {text}"))
        };
        values.map(read).collect()
    }

    fn expanded(&self, rows: &Rows) -> Vec<Value> {
        let Some(name) = &rows.template else { return rows.line.clone() };
        let mut all = rows.with.clone();
        for name in rows.each.iter().flat_map(Table::keys) {
            let values = rows.each.iter().filter_map(|item| item.get(name).cloned()).collect();
            all.insert(format!("all.{name}"), Value::Array(values));
        }
        let mut lines = Vec::new();
        for section in &self.template[name] {
            let items = if section.once { &[Table::new()][..] } else { &rows.each };
            for item in items {
                let mut variables = all.clone();
                variables.extend(item.clone());
                lines.extend(section.line.iter().map(|line| filled(line, &variables)));
            }
        }
        lines
    }
}

fn filled(value: &Value, variables: &Table) -> Value {
    match value {
        Value::String(text) => match text.strip_prefix('$') {
            Some(name) => {
                variables.get(name).unwrap_or_else(|| panic!("no variable {name}")).clone()
            }
            None => Value::String(variables.iter().fold(text.clone(), |text, (name, value)| {
                let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                text.replace(&format!("{{{name}}}"), &shown)
            })),
        },
        Value::Array(values) => {
            Value::Array(values.iter().map(|value| filled(value, variables)).collect())
        }
        Value::Table(table) => {
            let filled = |(name, value): (&String, _)| (name.clone(), filled(value, variables));
            Value::Table(table.iter().map(filled).collect())
        }
        value => value.clone(),
    }
}
