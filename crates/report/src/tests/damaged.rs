//! Records with a number that no run has measured. Every output handles them, or the record is
//! refused by the name of the field. Nothing overflows.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use daqmeter_record::border::MAX_WHOLE;
use daqmeter_record::jsonl;
use serde_json::{Value, json};

use crate::families::path::tests::record as path;
use crate::{answers_text, cmp, examples, export, history, page, table};

fn shipped() -> Vec<Value> {
    let files = [
        include_str!("../../../record/testdata/v1/digitizer.jsonl"),
        include_str!("../../../record/testdata/v1/counters.jsonl"),
        include_str!("../../../../bench/record/genoa-vm-2cpu/2026-11-21.jsonl"),
    ];
    let mut seen = BTreeSet::new();
    let lines = files.iter().flat_map(|file| file.lines());
    let records = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut records: Vec<Value> =
        records.filter(|record| seen.insert(record["engine"]["name"].to_string())).collect();
    let made = [path(), examples::chain(1 << 20)];
    records.extend(made.map(|record| serde_json::to_value(record).unwrap()));
    records.iter_mut().for_each(shorten);
    records
}

fn shorten(value: &mut Value) {
    match value {
        Value::Array(values) => {
            values.truncate(3);
            values.iter_mut().for_each(shorten);
        }
        Value::Object(fields) => fields.values_mut().for_each(shorten),
        _ => {}
    }
}

/// Returns the places of all numbers; for a list of numbers only the first.
fn numbers(value: &Value, path: String, found: &mut Vec<String>) {
    match value {
        Value::Number(_) => found.push(path),
        Value::Array(values) => {
            for (at, value) in values.iter().enumerate() {
                if at == 0 || !value.is_number() {
                    numbers(value, format!("{path}/{at}"), found);
                }
            }
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                // RFC 6901, section 3.
                let name = name.replace('~', "~0").replace('/', "~1");
                numbers(value, format!("{path}/{name}"), found);
            }
        }
        _ => {}
    }
}

fn shown(records: &[daqmeter_record::RunRecord]) {
    table::stages(records).text(crate::disturbed(records));
    table::markdown(records);
    answers_text(records);
    page(records);
    for frame in [
        export::stages(records),
        export::samples(records),
        export::counters(records),
        export::series(records),
    ] {
        frame.csv(true);
    }
    cmp::cmp(&records[..1], &records[1..], &[], 0.02).frame(true).text(None);
    let trends = history::trends(records, 0.02);
    history::text(&trends);
}

#[test]
fn no_number_of_a_record_makes_anything_overflow() {
    let values = [json!(u64::MAX), json!(i64::MIN), json!(1e308), json!(MAX_WHOLE)];
    let (mut kept, mut panicked) = (0, Vec::new());
    for record in shipped() {
        let mut paths = Vec::new();
        numbers(&record, String::new(), &mut paths);
        let whole = jsonl::parse_line(record.to_string().as_bytes(), 1).unwrap();
        for path in paths {
            for value in &values {
                let mut damaged = record.clone();
                *damaged.pointer_mut(&path).unwrap() = value.clone();
                let Ok(read) = jsonl::parse_line(damaged.to_string().as_bytes(), 1) else {
                    continue;
                };
                kept += 1;
                let records = [whole.clone(), read];
                if catch_unwind(AssertUnwindSafe(|| shown(&records))).is_err() {
                    panicked.push(format!("{path} = {value}"));
                }
            }
        }
    }
    assert!(kept > 100, "{kept} records can be read");
    assert!(panicked.is_empty(), "{panicked:#?}");
}
