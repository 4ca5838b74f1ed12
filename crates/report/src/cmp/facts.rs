//! Differences between the hosts and the tools of two sets of records.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use daqmeter_record::{Host, RunRecord};
use serde::Serialize;
use serde_json::Value;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FactChange {
    pub name: String,
    pub a: String,
    pub b: String,
}

pub(crate) fn fact_changes(a: &[RunRecord], b: &[RunRecord]) -> Vec<FactChange> {
    let (a, b) = (facts(a), facts(b));
    let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let shown = |side: &Facts, name: &String| {
        side.get(name).map_or("-".to_owned(), |values| values.join(" | "))
    };
    let all = names.into_iter().map(|name| FactChange {
        name: name.clone(),
        a: shown(&a, name),
        b: shown(&b, name),
    });
    all.filter(|change| change.a != change.b).collect()
}

type Facts = BTreeMap<String, Vec<String>>;

fn facts(records: &[RunRecord]) -> Facts {
    let mut facts = Facts::new();
    let mut last: Option<&Arc<Host>> = None;
    for record in records {
        let tool = &record.tool;
        let version = format!("{} ({}, {})", tool.version, tool.git_revision, tool.profile);
        add(&mut facts, "tool", version);
        if last.is_some_and(|last| Arc::ptr_eq(last, &record.host)) {
            continue;
        }
        last = Some(&record.host);
        if let Ok(value) = serde_json::to_value(&*record.host) {
            flatten(&mut facts, "", &value);
        }
    }
    facts
}

/// Free pages change constantly; they are no facts of the host.
const FLEETING: [&str; 1] = ["huge_pages"];

fn flatten(facts: &mut Facts, name: &str, value: &Value) {
    if FLEETING.contains(&name) {
        return;
    }
    match value {
        Value::Object(fields) if name.is_empty() => {
            fields.iter().for_each(|(name, value)| flatten(facts, name, value))
        }
        Value::String(text) => add(facts, name, text.clone()),
        Value::Array(list) if list.iter().all(Value::is_string) => {
            add(facts, name, list.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "));
        }
        other => add(facts, name, other.to_string()),
    }
}

fn add(facts: &mut Facts, name: &str, value: String) {
    let values = facts.entry(name.to_owned()).or_default();
    if !values.contains(&value) {
        values.push(value);
    }
}
