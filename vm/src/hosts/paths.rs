//! Paths with their sink on another host, which is a network namespace: over TCP and UDP, with lost
//! packets, and with a killed receiver. The ledger must close over both sides, and must include the
//! losses of UDP.

use std::path::PathBuf;
use std::time::Duration;

use crate::shell::{line, need, program, root, tried};
use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::namespaces::{Background, Hosts, until};

const SENDER: &str = "dqm-path";
const RECEIVER: &str = "dqm-sink";
const TO: &str = "10.79.0.2:5010";

struct Case {
    name: &'static str,
    /// Lines of the sink beside its address.
    sink: &'static str,
    lossless: bool,
    /// Rule of nftables for packets to the receiver.
    rule: Option<&'static str>,
    expect: fn(&Outcome) -> Result<()>,
}

/// Record of the only stream.
struct Outcome {
    is_ok: bool,
    lost: u64,
    issued: u64,
    delivered: u64,
    lost_over_udp: u64,
    unconfirmed: u64,
}

fn place(name: &str) -> PathBuf {
    root().join("target/ci").join(name)
}

const CASES: &[Case] = &[
    Case { name: "TCP", sink: "kind = \"tcp\"", lossless: true, rule: None, expect: all_there },
    Case {
        name: "TCP, 1 % of the packets lost",
        sink: "kind = \"tcp\"",
        lossless: true,
        rule: Some("tcp dport 5010 numgen random mod 100 < 1 drop"),
        expect: all_there,
    },
    Case {
        name: "UDP, 1 % of the packets lost",
        sink: "kind = \"udp\"",
        lossless: false,
        rule: Some("meta l4proto udp numgen random mod 100 < 1 drop"),
        expect: |outcome| {
            ensure!(outcome.is_ok, "the run failed");
            let (delivered, lost) = (outcome.delivered, outcome.lost_over_udp);
            ensure!(lost > 0 && delivered > 0, "{lost} lost, {delivered} delivered");
            Ok(())
        },
    },
    Case {
        name: "a receiver that takes nothing any more",
        sink: "kind = \"tcp\"",
        lossless: true,
        // All packets after the first megabyte are dropped.
        rule: Some("tcp dport 5010 quota over 1 mbytes drop"),
        expect: |outcome| {
            ensure!(!outcome.is_ok, "the run did not fail");
            ensure!(outcome.unconfirmed > 0 && outcome.delivered == 0);
            Ok(())
        },
    },
];

fn all_there(outcome: &Outcome) -> Result<()> {
    ensure!(outcome.is_ok, "the run failed");
    ensure!(
        outcome.issued > 0 && outcome.delivered == outcome.issued,
        "{} of {}",
        outcome.delivered,
        outcome.issued
    );
    Ok(())
}

pub(crate) fn all() -> Result<()> {
    need("nft")?;
    std::fs::create_dir_all(place(""))?;
    for case in CASES {
        tried(|| one(case).with_context(|| case.name))?;
    }
    Ok(())
}

fn one(case: &Case) -> Result<()> {
    let _hosts = Hosts::up("10.79.0", &[SENDER, RECEIVER])?;
    let tool = program().display().to_string();
    let mut serve = Background::start(RECEIVER, &tool, &["path", "serve", TO])?;
    if let Some(rule) = case.rule {
        let nft =
            |rule: &str| line("ip netns exec").arg(RECEIVER).words(&format!("nft {rule}")).run();
        nft("add table inet dqm")?;
        nft("add chain inet dqm in { type filter hook input priority 0; }")?;
        nft(&format!("add rule inet dqm in {rule}"))?;
    }
    until("the receiver", Duration::from_secs(10), || {
        let listens = line("ip netns exec").arg(RECEIVER).words("ss -Hltn");
        ensure!(listens.output()?.contains(":5010"), "it does not listen");
        Ok(())
    })?;
    let outcome = run(case, &tool)?;
    let accounted = outcome.delivered + outcome.lost;
    ensure!(accounted == outcome.issued, "{accounted} of {} are accounted for", outcome.issued);
    (case.expect)(&outcome)?;
    serve.kill()?;
    println!(
        "closed: {}: {} issued, {} delivered, {} lost over UDP",
        case.name, outcome.issued, outcome.delivered, outcome.lost_over_udp
    );
    Ok(())
}

fn run(case: &Case, tool: &str) -> Result<Outcome> {
    let (file, record) = (place("remote.toml"), place("remote.jsonl"));
    let text = format!(
        "title = \"to another host\"\nblock = \"16KiB\"\nrate = \"2kHz\"\nlossless = {}\n[source]\nkind = \"memory\"\n[sink]\n{}\nto = \"{TO}\"\n",
        case.lossless, case.sink
    );
    std::fs::write(&file, text)?;
    if record.exists() {
        std::fs::remove_file(&record)?;
    }
    let (path, out) = (file.display().to_string(), record.display().to_string());
    let arguments = ["path", "run", &path, "--time", "2s", "--records", &out];
    let mut sends = Background::start(SENDER, tool, &arguments)?;
    ensure!(sends.ends_within(Duration::from_secs(40))?, "the path hangs");
    let text = std::fs::read_to_string(&record).context("no record")?;
    let line = text.lines().last().context("an empty record")?;
    let record: Value = serde_json::from_str(line)?;
    let ledger = &record["ledgers"][0];
    let count = |value: &Value| value.as_u64().unwrap_or(0);
    let losses = ledger["losses"].as_object().context("no losses")?;
    let lost = |why: &str| losses.get(why).map_or(0, count);
    Ok(Outcome {
        is_ok: record["outcome"]["status"] == "ok",
        lost: losses.values().map(count).sum(),
        issued: count(&ledger["issued"]),
        delivered: count(&ledger["delivered"]),
        lost_over_udp: lost("lost on the way over UDP"),
        unconfirmed: lost("sent, but the receiver did not say that they came"),
    })
}
