//! Whatever the schema of a record allows is written and read without a change of one bit.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]
#![allow(clippy::cast_possible_truncation, reason = "drawn numbers are within the type")]

use daqmeter_record::border::{MAX_STAMP_NS, MAX_WHOLE};
use daqmeter_record::{RunRecord, json_schema, jsonl};
use daqmeter_stats::Random;
use serde_json::{Map, Value, json};

/// Draws values that a JSON Schema allows.
struct Drawn {
    schema: Value,
    random: Random,
}

impl Drawn {
    /// Draws a whole number from 0 to `most`; small ones, the largest, and 0 are as likely as all
    /// others together.
    fn whole(&mut self, most: u64) -> u64 {
        let any = (self.random.uniform() * 2_f64.powi(64)) as u64;
        match any % 6 {
            0 => 0,
            1 => most,
            2 => (any >> 8) % most.min(10),
            _ => (any >> (any % 61)).min(most),
        }
    }

    fn float(&mut self) -> f64 {
        loop {
            let [high, low] = [(); 2].map(|()| (self.random.uniform() * 2_f64.powi(32)) as u64);
            let drawn = f64::from_bits(high << 32 | low);
            if drawn.is_finite() {
                return drawn;
            }
        }
    }

    fn one_of(&mut self, all: &Value) -> Value {
        let all = all.as_array().unwrap();
        let at = (self.random.uniform() * all.len() as f64) as usize;
        all[at].clone()
    }

    fn object(&mut self, of: &Value, maximum: u64) -> Value {
        let mut fields = Map::new();
        for (name, field) in of["properties"].as_object().into_iter().flatten() {
            let is_required =
                of["required"].as_array().is_some_and(|all| all.contains(&json!(name)));
            if is_required || self.random.uniform() < 0.7 {
                let maximum = match name.as_str() {
                    "workload" | "seed" | "host_cpu" | "process_cpu" => u64::MAX,
                    "origin_ns" => MAX_STAMP_NS,
                    _ => maximum,
                };
                fields.insert(name.clone(), self.value(field, maximum));
            }
        }
        let by_name = of["additionalProperties"].as_object().map(|of| ("key ", json!(of)));
        let by_number = of["patternProperties"]["^\\d+$"].as_object().map(|of| ("", json!(of)));
        for (prefix, field) in by_name.into_iter().chain(by_number) {
            for key in 0..self.whole(2) {
                fields.insert(format!("{prefix}{key}"), self.value(&field, maximum));
            }
        }
        if let Some(samples) = fields.get("sample_ns").map(|all| all.as_array().unwrap().len()) {
            let slices = |value: u32| vec![value; samples];
            let lost: Vec<usize> = (0..samples.min(1)).collect();
            let slices = json!({ "samples": slices(1), "gap_ns": slices(u32::MAX),
                "chain_ns": slices(3), "sibling_ns": [], "lost": lost });
            fields.insert("slices".to_owned(), slices);
        }
        fields.into()
    }

    fn value(&mut self, of: &Value, maximum: u64) -> Value {
        if let Some(name) = of["$ref"].as_str() {
            let schema = self.schema.pointer(&name[1..]).unwrap().clone();
            return self.value(&schema, maximum);
        }
        if !of["const"].is_null() {
            return of["const"].clone();
        }
        for choice in ["anyOf", "oneOf"] {
            if of[choice].is_array() {
                let chosen = self.one_of(&of[choice]);
                return self.value(&chosen, maximum);
            }
        }
        let kind =
            if of["type"].is_array() { self.one_of(&of["type"]) } else { of["type"].clone() };
        let maximum = match of["format"].as_str() {
            Some("uint32") => u32::MAX.into(),
            Some("uint16") => u16::MAX.into(),
            Some("uint8") => u8::MAX.into(),
            Some("int64") => maximum.min(i64::MAX.cast_unsigned()),
            _ => maximum,
        };
        match kind.as_str().unwrap() {
            "null" => Value::Null,
            "boolean" => (self.whole(1) == 1).into(),
            "integer" => self.whole(maximum).into(),
            "number" => self.float().into(),
            "string" if of["maxLength"] == 1 => "R".into(),
            "string" => self.one_of(&json!(["", "a", "\u{1b}[2J \" \\ \n µ", "null", "1"])),
            "array" => (0..self.whole(3)).map(|_| self.value(&of["items"], maximum)).collect(),
            "object" => self.object(of, maximum),
            other => panic!("a type of the schema that is not known here: {other}"),
        }
    }
}

/// Regression: a double came back with another last bit, and no record of a host that was up for
/// 104 days could be read.
#[test]
fn what_the_schema_allows_is_written_and_read_to_the_bit() {
    let schema: Value = serde_json::from_str(&json_schema()).unwrap();
    let mut drawn = Drawn { random: Random::new(1), schema };
    for number in 0..300 {
        let mut value = drawn.value(&drawn.schema.clone(), MAX_WHOLE);
        value["schema"] = 1.into();
        let before: RunRecord = serde_json::from_value(value).unwrap();
        let line = jsonl::to_line(&before);
        let after = jsonl::parse_line(&line, 1).unwrap_or_else(|error| {
            panic!("record {number}: {error}: {}", String::from_utf8_lossy(&line))
        });
        assert_eq!(after, before, "record {number}");
        assert_eq!(jsonl::to_line(&after), line, "record {number}, zeros with their signs");
    }
}
