//! The read-out chain between hosts that are network namespaces: card and reader on one, receivers
//! on two others.
//! Faults are rate limits, loss, delay, a killed receiver and a cut link. The accounts must close
//! without a hang.

use std::path::PathBuf;
use std::time::Duration;

use crate::shell::{line, need, program, root, tried};
use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::namespaces::{Background, Hosts, until};

const SERVER: &str = "dqm-server";
const RECEIVERS: [&str; 2] = ["dqm-recv1", "dqm-recv2"];
/// Halves of the E-links of the scenario `gbt`, one for each receiver.
const HALVES: [&str; 2] = [
    "0x008,0x00c,0x010,0x014,0x018,0x01c,0x020,0x024,0x048,0x04c,0x050,0x054",
    "0x058,0x05c,0x060,0x064,0x088,0x08c,0x090,0x094,0x098,0x09c,0x0a0,0x0a4",
];

struct Case {
    name: &'static str,
    rate: &'static str,
    time: &'static str,
    address: &'static str,
    meanwhile: fn(&mut Chain) -> Result<()>,
    expect: fn(&Outcome) -> Result<()>,
}

struct Chain {
    /// Card; it ends with its reader, or with the failed case.
    _card: Background,
    address: &'static str,
    readers: Background,
    receivers: Vec<Background>,
}

struct Outcome {
    issued: u64,
    delivered: u64,
    losses: Value,
    received: Vec<(u64, u64)>,
}

impl Outcome {
    fn lost(&self, reason: &str) -> u64 {
        self.losses[reason].as_u64().unwrap_or(0)
    }
}

fn place(name: &str) -> PathBuf {
    root().join("target/ci").join(name)
}

impl Chain {
    fn start(case: &Case) -> Result<Chain> {
        let socket = place("card.sock");
        // The socket of an earlier run would be found at once, without a listener.
        if socket.exists() {
            std::fs::remove_file(&socket)?;
        }
        let (tool, at) = (program().display().to_string(), socket.display().to_string());
        let emulate = ["readout", "emulate", "gbt", "--at", &at];
        let paced = ["--rate", case.rate, "--time", case.time];
        let card = Background::start(SERVER, &tool, &[&emulate[..], &paced].concat())?;
        let tohost = ["readout", "tohost", "gbt", "--card", &at, "--address", DIRECT, "--json"];
        let readers = until("the emulated card", Duration::from_secs(10), || {
            ensure!(socket.exists(), "no socket yet");
            Background::into_file(SERVER, &tool, &tohost, &place("tohost.json"))
        })?;
        let mut chain =
            Chain { _card: card, address: case.address, readers, receivers: Vec::new() };
        for at in 0..RECEIVERS.len() {
            let receiver = chain.receiver(at, &format!("receive{at}.json"))?;
            chain.receivers.push(receiver);
        }
        Ok(chain)
    }

    fn receiver(&self, at: usize, file: &str) -> Result<Background> {
        let receive = ["readout", "receive", self.address, "--elinks", HALVES[at]];
        let arguments = [&receive[..], &["--json", "--wait", "20s"]].concat();
        let tool = program().display().to_string();
        Background::into_file(RECEIVERS[at], &tool, &arguments, &place(file))
    }

    fn outcome(&mut self) -> Result<Outcome> {
        ensure!(self.readers.ends_within(Duration::from_secs(40))?, "the reader hangs");
        for receiver in &mut self.receivers {
            ensure!(receiver.ends_within(Duration::from_secs(30))?, "a receiver hangs");
        }
        let account = read_json("tohost.json")?;
        let elinks = account["elinks"].as_array().context("no E-links")?;
        ensure!(elinks.len() == 24, "{} E-links", elinks.len());
        let open: Vec<&Value> = elinks.iter().filter(|elink| elink["closes"] != true).collect();
        ensure!(open.is_empty(), "accounts that do not close: {open:?}");
        let ledgers: Vec<&Value> = elinks.iter().map(|elink| &elink["ledger"]).collect();
        let sum = |of: &dyn Fn(&Value) -> &Value| -> u64 {
            ledgers.iter().map(|ledger| of(ledger).as_u64().unwrap_or(0)).sum()
        };
        let reasons = ledgers[0]["losses"].as_object().context("no losses")?.keys();
        let loss =
            |reason: &String| (reason.clone(), sum(&|ledger| &ledger["losses"][reason]).into());
        let received = (0..RECEIVERS.len()).map(|at| received(&format!("receive{at}.json")));
        Ok(Outcome {
            issued: sum(&|ledger| &ledger["issued"]),
            delivered: sum(&|ledger| &ledger["delivered"]),
            losses: Value::Object(reasons.map(loss).collect()),
            received: received.collect(),
        })
    }
}

fn read_json(name: &str) -> Result<Value> {
    let text = std::fs::read_to_string(place(name))?;
    serde_json::from_str(text.trim()).with_context(|| format!("{name} holds `{text}`"))
}

fn received(name: &str) -> (u64, u64) {
    let report = read_json(name).unwrap_or_default();
    let count = |value: &Value| value.as_u64().unwrap_or(0);
    (count(&report["chunks"]), count(&report["faults"]["payload"]))
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    until(what, Duration::from_secs(60), || {
        ensure!(is_so()?, "not so far");
        Ok(())
    })
}

fn asked(words: &str) -> Result<String> {
    line("ip netns exec").arg(SERVER).words(words).output()
}

/// Waits until a megabyte has left by the bridge's port to a receiver: data flow, and triggers
/// come.
fn flows_to(receiver: usize) -> Result<()> {
    let sent = || -> Result<u64> {
        let bytes = asked(&format!("cat /sys/class/net/to{receiver}/statistics/tx_bytes"))?;
        bytes.trim().parse().context("no number of bytes")
    };
    let before = sent()?;
    wait_for(&format!("data to receiver {receiver}"), || Ok(sent()? >= before + 1_000_000))
}

/// Waits until the publisher has given a receiver up: no process has a connection to it any more.
fn given_up(receiver: usize) -> Result<()> {
    let to = format!("ss -Htnp dst 10.78.0.{}", receiver + 2);
    wait_for(&format!("the end of receiver {receiver}'s connection"), || {
        Ok(!asked(&to)?.contains("users:"))
    })
}

/// Returns the segments that the publisher's host has sent again (`Tcp:` of `/proc/net/snmp`,
/// RetransSegs).
fn sent_again() -> Result<u64> {
    let text = asked("cat /proc/net/snmp")?;
    let mut lines = text.lines().filter(|line| line.starts_with("Tcp:"));
    let (names, values) = (lines.next(), lines.next());
    let (names, values) = names.zip(values).context("no counts of TCP")?;
    let mut pairs = names.split(' ').zip(values.split(' '));
    let (_, value) = pairs.find(|(name, _)| *name == "RetransSegs").context("no RetransSegs")?;
    value.parse().context("no number of segments")
}

fn on(host: &str, words: &str) -> Result<()> {
    line("ip netns exec").arg(host).words(words).run()
}

fn link(state: &str) -> Result<()> {
    line("ip -n").arg(SERVER).words("link set to0").arg(state).run()
}

fn nothing(_: &mut Chain) -> Result<()> {
    Ok(())
}

fn all_there(outcome: &Outcome) -> Result<()> {
    let Outcome { issued, delivered, losses, received } = outcome;
    ensure!(delivered == issued, "{delivered} of {issued}: {losses}");
    let chunks: u64 = received.iter().map(|(chunks, _)| chunks).sum();
    ensure!(chunks == *issued, "receivers had {chunks} of {issued}");
    ensure!(received.iter().all(|(_, wrong)| *wrong == 0), "wrong payloads");
    Ok(())
}

const BUSY: &str = "stopped by BUSY-by-DMA";
const UNSUBSCRIBED: &str = "not subscribed";

/// Checks that only these reasons cost triggers.
fn only(outcome: &Outcome, reasons: &[&str]) -> Result<()> {
    let lost: u64 = reasons.iter().map(|reason| outcome.lost(reason)).sum();
    ensure!(outcome.delivered + lost == outcome.issued, "{}", outcome.losses);
    Ok(())
}

fn only_busy(outcome: &Outcome) -> Result<()> {
    only(outcome, &[BUSY])
}

/// Checks that the chunks of an absent receiver are booked as missed, and that it received some.
fn missed_by(outcome: &Outcome, receiver: usize) -> Result<()> {
    ensure!(outcome.lost(UNSUBSCRIBED) > 0, "nothing was booked as missed: {}", outcome.losses);
    ensure!(outcome.received[receiver].0 > 0, "receiver {receiver} got nothing");
    only(outcome, &[UNSUBSCRIBED, "network", BUSY])
}

/// Addresses of the publisher: directly, or through a relay on the receiver's own host.
const DIRECT: &str = "10.78.0.1:12350";
const RELAYED: &str = "127.0.0.1:12351";

const CASES: &[Case] = &[
    Case {
        name: "three hosts",
        rate: "100kHz",
        time: "3s",
        address: DIRECT,
        meanwhile: nothing,
        expect: all_there,
    },
    Case {
        name: "100 Mbit/s to one receiver (tbf)",
        rate: "100kHz",
        time: "3s",
        address: DIRECT,
        meanwhile: |_| {
            on(SERVER, "tc qdisc add dev to0 root tbf rate 100mbit burst 128kb latency 100ms")
        },
        expect: |outcome| {
            let held = outcome.lost(BUSY) > 0;
            ensure!(held, "a link of a third of the data did not hold the card back");
            only_busy(outcome)
        },
    },
    Case {
        name: "1 % of the packets lost (nftables)",
        rate: "20kHz",
        time: "3s",
        address: DIRECT,
        meanwhile: |_| {
            let nft = |rule: &str| on(RECEIVERS[0], &format!("nft {rule}"));
            nft("add table inet dqm")?;
            nft("add chain inet dqm in { type filter hook input priority 0; }")?;
            nft("add rule inet dqm in tcp sport 12350 numgen random mod 100 < 1 drop")
        },
        expect: only_busy,
    },
    Case {
        name: "20 ms of delay (relay)",
        rate: "50kHz",
        time: "3s",
        address: RELAYED,
        meanwhile: nothing,
        expect: only_busy,
    },
    Case {
        name: "a receiver killed and restarted",
        rate: "50kHz",
        time: "6s",
        address: DIRECT,
        meanwhile: |chain| {
            flows_to(0)?;
            chain.receivers[0].kill()?;
            given_up(0)?;
            flows_to(1)?;
            chain.receivers[0] = chain.receiver(0, "receive0.json")?;
            Ok(())
        },
        expect: |outcome| missed_by(outcome, 0),
    },
    Case {
        name: "a link cut until data were sent again twice",
        rate: "20kHz",
        time: "6s",
        address: DIRECT,
        meanwhile: |_| {
            flows_to(0)?;
            let before = sent_again()?;
            link("down")?;
            // Retransmissions double their distance. The first comes after 0.2 s or, after a slow
            // link, 0.4 or 0.8 s. The third comes seven times as late, before the receiver is given
            // up.
            wait_for("data that are sent again", || Ok(sent_again()? >= before + 2))?;
            link("up")
        },
        expect: only_busy,
    },
    Case {
        name: "a link cut for longer than a receiver is waited for",
        rate: "20kHz",
        time: "14s",
        address: DIRECT,
        meanwhile: |_| {
            flows_to(0)?;
            link("down")?;
            given_up(0)?;
            flows_to(1)?;
            link("up")
        },
        expect: |outcome| missed_by(outcome, 1),
    },
];

pub(crate) fn all() -> Result<()> {
    need("nft")?;
    need("tc")?;
    std::fs::create_dir_all(place(""))?;
    for case in CASES {
        tried(|| one(case))?;
    }
    tried(limited_search)
}

/// Network's limit in a search for the maximum rate.
const LIMIT_BIT_PER_S: f64 = 160e6;

/// Checks that a search finds a limit in the network: data in sockets' buffers do not count as
/// carried.
fn limited_search() -> Result<()> {
    let _hosts = Hosts::up("10.78.0", &[SERVER])?;
    // Segments on the loopback device have up to 64 KiB, which a burst must hold.
    on(
        SERVER,
        &format!("tc qdisc add dev lo root tbf rate {LIMIT_BIT_PER_S} burst 192kb latency 100ms"),
    )?;
    let tool = program().display().to_string();
    let search = "readout sweep gbt --from 10kHz --to 100kHz --no-curves --json";
    let lines = asked(&format!("{tool} {search}"))?;
    let record: Value = serde_json::from_str(lines.lines().last().context("no record")?)?;
    ensure!(record["study"] == "readout/maximum", "the last record is {}", record["study"]);
    let counter = |name: &str| {
        let counters = record["counters"].as_array().into_iter().flatten();
        let mut values = counters.filter(|counter| counter["name"] == name);
        values.find_map(|counter| counter["value"].as_f64())
    };
    let value = |name: &str| counter(name).with_context(|| format!("no counter `{name}`"));
    let maximum_hz = value("maximum rate")?;
    let event_bytes = value("network")? / value("trigger-rate")?;
    let share = maximum_hz * event_bytes * 8.0 / LIMIT_BIT_PER_S;
    // A token bucket is full at first: 1.4 times the limit was confirmed before.
    ensure!((0.9..=1.01).contains(&share), "{maximum_hz} Hz are {share:.3} of the network's limit");
    println!("closed: a limit in the network: {maximum_hz:.0} Hz, {share:.3} of it");
    Ok(())
}

fn one(case: &Case) -> Result<()> {
    // Each case has its own network, because a cut link leaves traces.
    let _hosts = Hosts::up("10.78.0", &[SERVER, RECEIVERS[0], RECEIVERS[1]])?;
    let _relays: Vec<Background> = if case.address == RELAYED {
        RECEIVERS.map(relay).into_iter().collect::<Result<_>>()?
    } else {
        Vec::new()
    };
    let mut chain = Chain::start(case)?;
    let done = (case.meanwhile)(&mut chain).and_then(|()| chain.outcome());
    let outcome = done.with_context(|| case.name)?;
    (case.expect)(&outcome).with_context(|| case.name)?;
    println!("closed: {}: {} issued, {} delivered", case.name, outcome.issued, outcome.delivered);
    Ok(())
}

/// Relays a receiver's connection with a delay of 20 ms.
fn relay(host: &str) -> Result<Background> {
    let script = root().join("vm/peers/delay_relay.py").display().to_string();
    Background::start(host, "python3", &[&script, "12351", "10.78.0.1", "12350", "20"])
}
