//! Paths with their sink on another host: over TCP and UDP, with lost packets, with a receiver that
//! takes nothing, with a cut cable, a stopped receiver, and senders that say hello and no more. The
//! ledger must close over both sides, and must include the losses of UDP.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use daqmeter_record::{Ledger, Outcome, RunRecord};

use super::{Background, Hosts, booked, daqmeter_on, drop_packets, last_line, on, until};
use crate::shell::{line, scratch, tried};

const SENDER: &str = "dqm-path";
const RECEIVER: &str = "dqm-sink";
const STOPPED: &str = "dqm-stop";
const TO: &str = "10.79.0.2:5010";
const TO_STOPPED: &str = "10.79.0.3:5010";
/// Reason of blocks that a path without the receiver's account books.
const UNCONFIRMED: &str = "sent, but the receiver did not say that they came";
/// Sixteen senders that send the frame of a greeting and nothing more.
const GREETERS: &str = r#"
import socket, time
greeting = b'DQMP' + bytes([12, 0, 0, 0, 1, 1]) + bytes(22) + b'{"udp":null}'
peers = [socket.create_connection(('10.79.0.3', 5010)) for _ in range(16)]
for peer in peers: peer.sendall(greeting)
time.sleep(60)
"#;

struct PathCase {
    name: &'static str,
    sink: &'static str,
    /// Packets to the receiver that are dropped, as a rule of nftables.
    dropped: &'static str,
    /// Checks the outcome (`ok`, or another), and the ledger.
    expect: fn(&Outcome, &Ledger) -> bool,
}

const CASES: [PathCase; 3] = [
    PathCase {
        name: "TCP, 1 % of the packets lost",
        sink: "tcp",
        dropped: "tcp dport 5010 numgen random mod 100 < 1",
        expect: |outcome, ledger| outcome.is_ok() && ledger.lost() == 0,
    },
    PathCase {
        name: "UDP, 1 % of the packets lost",
        sink: "udp",
        dropped: "meta l4proto udp numgen random mod 100 < 1",
        expect: |outcome, ledger| outcome.is_ok() && booked(ledger, "lost on the way over UDP") > 0,
    },
    PathCase {
        name: "a receiver that takes nothing after the first megabyte",
        sink: "tcp",
        dropped: "tcp dport 5010 quota over 1 mbytes",
        expect: is_unconfirmed,
    },
];

fn is_unconfirmed(outcome: &Outcome, ledger: &Ledger) -> bool {
    !outcome.is_ok() && ledger.delivered == 0 && booked(ledger, UNCONFIRMED) > 0
}

pub(crate) fn all() -> Result<()> {
    CASES.iter().try_for_each(|case| tried(|| one(case).with_context(|| case.name)))?;
    tried(gone_receivers)
}

fn serve(host: &str, to: &str, out: &str) -> Result<Background> {
    let serve = daqmeter_on(host, &format!("path serve {to}"));
    let serve = Background::into_file(serve, &scratch(out))?;
    until("the receiver", Duration::from_secs(10), || {
        Ok(on(host, "ss -Hltn").output()?.contains(":5010"))
    })?;
    Ok(serve)
}

/// Begins a path to a receiver; its record goes into `{name}.jsonl`.
fn path(name: &str, sink: &str, to: &str, time: &str) -> Result<Background> {
    let (file, records) = (scratch(&format!("{name}.toml")), scratch(&format!("{name}.jsonl")));
    let lossless = sink == "tcp";
    fs::write(
        &file,
        format!(
            "title = \"to another host\"\nblock = \"16KiB\"\nrate = \"2kHz\"\nlossless = {lossless}\n\
             [source]\nkind = \"memory\"\n[sink]\nkind = \"{sink}\"\nto = \"{to}\"\n"
        ),
    )?;
    fs::write(&records, "")?;
    let run = daqmeter_on(SENDER, &format!("path run --time {time}"));
    Background::start(run.arg(file).arg("--records").arg(records))
}

/// Waits for the end of a path, and checks its outcome and its ledger.
fn ended(
    mut path: Background,
    name: &str,
    expect: fn(&Outcome, &Ledger) -> bool,
) -> Result<Ledger> {
    path.end("the path")?;
    let record: RunRecord = serde_json::from_str(&last_line(&format!("{name}.jsonl"))?)?;
    let RunRecord { outcome, mut ledgers, .. } = record;
    ensure!(!ledgers.is_empty(), "no ledger");
    let ledger = ledgers.swap_remove(0);
    let is_expected = ledger.issued > 0 && ledger.closes() && expect(&outcome, &ledger);
    ensure!(is_expected, "outcome {outcome:?}, ledger {ledger}");
    Ok(ledger)
}

fn one(case: &PathCase) -> Result<()> {
    let _hosts = Hosts::up("10.79.0", &[SENDER, RECEIVER])?;
    let _serve = serve(RECEIVER, TO, "serve.txt")?;
    drop_packets(RECEIVER, case.dropped)?;
    let ledger = ended(path("remote", case.sink, TO, "2s")?, "remote", case.expect)?;
    println!("closed: {}: {ledger}", case.name);
    Ok(())
}

/// Cuts the cable to one receiver and stops the other, whose places were all held by senders
/// without a block. Both paths must end, and the receiver that was cut off must say so.
fn gone_receivers() -> Result<()> {
    let _hosts = Hosts::up("10.79.0", &[SENDER, RECEIVER, STOPPED])?;
    let _cut = serve(RECEIVER, TO, "cut.txt")?;
    let stopped = serve(STOPPED, TO_STOPPED, "stopped.txt")?;
    let _greeters = Background::start(on(SENDER, "python3 -c").arg(GREETERS))?;
    let connections = |host: &str, count: usize| {
        until("connections", Duration::from_secs(10), || {
            Ok(on(host, "ss -Htn sport = :5010").output()?.lines().count() >= count)
        })
    };
    connections(STOPPED, 16)?;
    let paths = [path("cut", "tcp", TO, "4s")?, path("stopped", "tcp", TO_STOPPED, "4s")?];
    connections(RECEIVER, 1)?;
    let says = |out: &str, what: &str, limit_s: u64| {
        until(what, Duration::from_secs(limit_s), || {
            Ok(fs::read_to_string(scratch(out))?.contains(what))
        })
    };
    says("stopped.txt", "its place was given to another sender", 10)?;
    std::thread::sleep(Duration::from_millis(500));
    on(SENDER, "ip link set to0 down").run()?;
    line("kill -STOP").arg(stopped.0.id().to_string()).run()?;
    for (path, name) in paths.into_iter().zip(["cut", "stopped"]) {
        let ledger = ended(path, name, is_unconfirmed)?;
        println!("closed: receiver {name}: {ledger}");
    }
    // Keepalive gives the sender up after 23 s, or the time-out of TCP before.
    says("cut.txt", "10.79.0.1:", 20)
}
