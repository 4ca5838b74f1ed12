//! Results of parts of a chain as text: the counts of their lines of JSON, and ledgers.

use std::fmt::Write as _;

use daqmeter_readout::receive::elink_name;
use daqmeter_record::Ledger;
use daqmeter_sys::cpu_time;
use serde_json::Value;

pub(super) fn cpu_seconds() -> f64 {
    let usage = cpu_time::of_thread();
    (usage.user_ns + usage.system_ns) as f64 * 1e-9
}

pub(super) fn not_closed(ledgers: &[(u64, Ledger)]) -> u64 {
    ledgers.iter().filter(|(_, ledger)| !ledger.closes()).count() as u64
}

/// Numbers of a line of JSON, by their names, without zeros.
pub(super) fn listed(line: &Value) -> String {
    fn list(value: &Value, name: &str, out: &mut String) {
        match value {
            Value::Number(number) if number.as_f64() != Some(0.0) => {
                let _ = writeln!(out, " {name:<24} {number:>16}");
            }
            Value::Object(fields) => {
                for (field, value) in fields {
                    list(value, format!("{name} {field}").trim(), out);
                }
            }
            _ => {}
        }
    }
    let mut out = String::new();
    list(line, "", &mut out);
    out.replace('_', " ")
}

pub(super) fn ledger_text(ledgers: &[(u64, Ledger)]) -> String {
    let mut all = Ledger::new("triggers x E-links");
    for (_, ledger) in ledgers {
        all.add(&Ledger { unit: all.unit.clone(), ..ledger.clone() });
    }
    // Zero counts are left out; the closed sum says that they were watched.
    let mut shown = all.clone();
    shown.losses.retain(|_, count| *count > 0);
    let mut out = format!(" ledger: {shown}\n");
    let closed = ledgers.len() as u64 - not_closed(ledgers);
    let _ = writeln!(out, " accounts that close: {closed} of {} E-links", ledgers.len());
    for (tag, ledger) in ledgers.iter().filter(|(_, ledger)| !ledger.closes()) {
        let _ = writeln!(out, "  E-link {}: {ledger}", elink_name(*tag));
    }
    out
}
