//! Paths with their sink on another host: over TCP and UDP, with lost packets, and with a receiver
//! that takes nothing. The ledger must close over both sides, and must include the losses of UDP.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use daqmeter_record::{Ledger, Outcome, RunRecord};

use super::{Background, Hosts, booked, daqmeter_on, drop_packets, last_line, on, until};
use crate::shell::{scratch, tried};

const SENDER: &str = "dqm-path";
const RECEIVER: &str = "dqm-sink";
const TO: &str = "10.79.0.2:5010";

struct Case {
    name: &'static str,
    sink: &'static str,
    /// Packets to the receiver that are dropped, as a rule of nftables.
    dropped: &'static str,
    /// Checks the outcome (`ok`, or another), and the ledger.
    expect: fn(&Outcome, &Ledger) -> bool,
}

const CASES: [Case; 3] = [
    Case {
        name: "TCP, 1 % of the packets lost",
        sink: "tcp",
        dropped: "tcp dport 5010 numgen random mod 100 < 1",
        expect: |outcome, ledger| outcome.is_ok() && ledger.lost() == 0,
    },
    Case {
        name: "UDP, 1 % of the packets lost",
        sink: "udp",
        dropped: "meta l4proto udp numgen random mod 100 < 1",
        expect: |outcome, ledger| outcome.is_ok() && booked(ledger, "lost on the way over UDP") > 0,
    },
    Case {
        name: "a receiver that takes nothing after the first megabyte",
        sink: "tcp",
        dropped: "tcp dport 5010 quota over 1 mbytes",
        expect: |outcome, ledger| {
            let unconfirmed = "sent, but the receiver did not say that they came";
            !outcome.is_ok() && ledger.delivered == 0 && booked(ledger, unconfirmed) > 0
        },
    },
];

pub(crate) fn all() -> Result<()> {
    CASES.iter().try_for_each(|case| tried(|| one(case).with_context(|| case.name)))
}

fn one(case: &Case) -> Result<()> {
    let _hosts = Hosts::up("10.79.0", &[SENDER, RECEIVER])?;
    let _serve = Background::start(daqmeter_on(RECEIVER, &format!("path serve {TO}")))?;
    drop_packets(RECEIVER, case.dropped)?;
    until("the receiver", Duration::from_secs(10), || {
        Ok(on(RECEIVER, "ss -Hltn").output()?.contains(":5010"))
    })?;
    let (file, records) = (scratch("remote.toml"), scratch("remote.jsonl"));
    let (sink, lossless) = (case.sink, case.sink == "tcp");
    fs::write(
        &file,
        format!(
            "title = \"to another host\"\nblock = \"16KiB\"\nrate = \"2kHz\"\nlossless = {lossless}\n\
             [source]\nkind = \"memory\"\n[sink]\nkind = \"{sink}\"\nto = \"{TO}\"\n"
        ),
    )?;
    fs::write(&records, "")?;
    let run = daqmeter_on(SENDER, "path run --time 2s").arg(file).arg("--records").arg(records);
    Background::start(run)?.end("the path")?;
    let RunRecord { outcome, ledgers, .. } = serde_json::from_str(&last_line("remote.jsonl")?)?;
    let ledger = ledgers.first().context("no ledger")?;
    let is_expected = ledger.issued > 0 && ledger.closes() && (case.expect)(&outcome, ledger);
    ensure!(is_expected, "outcome {outcome:?}, ledger {ledger}");
    println!("closed: {}: {ledger}", case.name);
    Ok(())
}
