//! Results of parts of a chain as text: the counts of their lines of JSON, and ledgers.

use std::fmt::Write as _;

use daqmeter_readout::accounts::of_all;
use daqmeter_readout::card::CardView;
use daqmeter_readout::receive::elink_name;
use daqmeter_record::Ledger;
use daqmeter_report::felix::against_triggers;
use serde_json::Value;

use crate::metrics::Page;
use crate::output::{Failure, emit};
use crate::verdict::Verdict;

/// Shows the counts of a card as it publishes them.
pub(super) fn show_card(page: &Page, name: &str, view: &CardView) {
    let seconds = |ns: u64| ns as f64 * 1e-9;
    let [dma, fifo, all, outside] = view.dead;
    page.set("daqmeter_triggers_total", &[name], view.account.issued as f64);
    page.set("daqmeter_vetoed_triggers_total", &[name], all.vetoed as f64);
    page.set("daqmeter_dead_seconds_total", &[name], seconds(all.ns));
    for (cause, dead) in [("DMA", dma), ("FIFO", fifo), ("outside", outside)] {
        page.set("daqmeter_dead_seconds_by_cause_total", &[name, cause], seconds(dead.ns));
    }
    for busy in &view.asserted {
        let labels = [name, &*busy.channel.to_string()];
        page.set("daqmeter_busy", &labels, f64::from(busy.is_live));
        page.set("daqmeter_busy_intervals_total", &labels, busy.intervals as f64);
        page.set("daqmeter_busy_seconds_total", &labels, seconds(busy.ns));
    }
}

pub(super) fn not_closed(ledgers: &[(u64, Ledger)]) -> u64 {
    ledgers.iter().filter(|(_, ledger)| !ledger.closes()).count() as u64
}

/// Prints the result of a part of a chain: its line of JSON, or its numbers, ledgers and verdict.
pub(super) fn show(
    is_json: bool,
    line: &Value,
    ledgers: &[(u64, Ledger)],
    verdict: &Verdict,
) -> Result<(), Failure> {
    let name = line["name"].as_str().unwrap_or_default();
    emit(&match is_json {
        true => format!("{line}\n"),
        false => format!("{verdict}\n{name}\n{}{}", listed(line), ledger_text(ledgers)),
    })
    .map(|_| ())
}

/// Numbers of a line of JSON, by their names, without zeros.
fn listed(line: &Value) -> String {
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

fn ledger_text(ledgers: &[(u64, Ledger)]) -> String {
    if ledgers.is_empty() {
        return String::new();
    }
    let mut all = of_all(ledgers);
    // Zero counts are left out; the closed sum says that they were watched.
    all.losses.retain(|_, count| *count > 0);
    let mut out = format!(" ledger: {all}\n");
    let closed = ledgers.len() as u64 - not_closed(ledgers);
    let _ = writeln!(out, " fully accounted for: {closed} of {} E-links", ledgers.len());
    for (tag, ledger) in ledgers.iter().filter(|(_, ledger)| !ledger.closes()) {
        let _ = writeln!(out, "  E-link {}: {ledger}", elink_name(*tag));
    }
    let is_short = |of: &&(u64, Ledger)| of.1.closes() && of.1.lost() > 0 && of.1.issued > 0;
    let short = ledgers.iter().filter(is_short);
    out + &against_triggers(short.map(|(tag, of)| (elink_name(*tag), of.delivered, of.issued)))
}
