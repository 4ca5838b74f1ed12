//! The read-out chain between hosts: card and reader on one, receivers on two others.
//! Faults are a rate limit, loss, delay, a killed receiver, a cut link, and a publisher that is
//! ended or stopped. The accounts must close without a hang, and nothing passes without them.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use daqmeter_record::{Ledger, RunRecord};
use serde::Deserialize;
use serde_json::Value;

use super::{Background, Hosts, booked, daqmeter_on, drop_packets, last_line, on, until};
use crate::files::rows;
use crate::shell::{line, scratch, tried};

const SERVER: &str = "dqm-server";
const RECEIVERS: [&str; 2] = ["dqm-recv1", "dqm-recv2"];
/// Addresses of the publisher for a receiver: its own, and a relay's on the receiver's host.
const DIRECT: &str = "10.78.0.1:12350";
const RELAYED: &str = "127.0.0.1:12350";
/// Passes a receiver's connection on, 20 ms late.
const RELAY: &str = "python3 vm/peers/delay_relay.py 12350 10.78.0.1 12350 0.02";
/// Halves of the E-links of the scenario `gbt`, one for each receiver.
const HALVES: [&str; 2] = [
    "0x008,0x00c,0x010,0x014,0x018,0x01c,0x020,0x024,0x048,0x04c,0x050,0x054",
    "0x058,0x05c,0x060,0x064,0x088,0x08c,0x090,0x094,0x098,0x09c,0x0a0,0x0a4",
];

/// Longest wait of a receiver.
const WAIT: &str = "20s";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadoutCase {
    name: String,
    paced: String,
    /// True if a relay on the receiver's host passes its connection on.
    #[serde(default)]
    is_relayed: bool,
    meanwhile: Option<Meanwhile>,
    /// Reasons for which triggers may be lost.
    #[serde(default)]
    losses: Vec<String>,
    /// True if the first reason must have cost some.
    #[serde(default)]
    must_lose: bool,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Meanwhile {
    DropPackets,
    LimitRate,
    RestartReceiver,
    CutShortly,
    CutLong,
}

impl Meanwhile {
    fn happen(self, receivers: &mut [Background]) -> Result<()> {
        match self {
            Meanwhile::DropPackets => {
                drop_packets(RECEIVERS[0], "tcp sport 12350 numgen random mod 100 < 1")
            }
            Meanwhile::LimitRate => {
                let shape = "tc qdisc add dev to0 root tbf rate 100mbit burst 128kb latency 100ms";
                on(SERVER, shape).run()
            }
            Meanwhile::RestartReceiver => {
                flows_to(0)?;
                receivers[0].kill()?;
                given_up(0)?;
                flows_to(1)?;
                receivers[0] = receiver(0, DIRECT)?;
                Ok(())
            }
            Meanwhile::CutShortly => {
                flows_to(0)?;
                let before = sent_again()?;
                link("down")?;
                let is_again = || Ok(sent_again()? >= before + 2);
                until("data that are sent again", Duration::from_secs(60), is_again)?;
                link("up")
            }
            Meanwhile::CutLong => {
                flows_to(0)?;
                link("down")?;
                given_up(0)?;
                flows_to(1)?;
                receivers[0].end("the receiver that is cut off")?;
                ensure!(lacks_account(0)?, "it passed or failed without its publisher's account");
                link("up")
            }
        }
    }
}

fn cases() -> Result<Vec<ReadoutCase>> {
    rows(include_str!("readout.toml"), "case")
}

pub(crate) fn all() -> Result<()> {
    cases()?.iter().try_for_each(|case| tried(|| one(case).with_context(|| case.name.clone())))?;
    tried(limited_search)
}

fn receiver(at: usize, address: &str) -> Result<Background> {
    let receive = format!("readout receive {address} --elinks {} --json --wait {WAIT}", HALVES[at]);
    let file = scratch(&format!("receive{at}.json"));
    Background::into_file(daqmeter_on(RECEIVERS[at], &receive), &file)
}

/// Starts a card and its reader.
fn published(paced: &str) -> Result<[Background; 2]> {
    let socket = scratch("card.sock");
    // The socket of an earlier run would be found at once, without a listener.
    let _ = fs::remove_file(&socket);
    let card = daqmeter_on(SERVER, "readout emulate gbt --at").arg(&socket).words(paced);
    let card = Background::start(card)?;
    until("the emulated card", Duration::from_secs(10), || Ok(socket.exists()))?;
    let reader = daqmeter_on(SERVER, "readout tohost gbt --card").arg(&socket);
    let reader = reader.words(&format!("--address {DIRECT} --json"));
    Ok([card, Background::into_file(reader, &scratch("tohost.json"))?])
}

/// Tests if a receiver's verdict misses its publisher's account.
fn lacks_account(at: usize) -> Result<bool> {
    let report: Value = serde_json::from_str(&last_line(&format!("receive{at}.json"))?)?;
    Ok(report["verdict"]["undecided"].to_string().contains("the account of"))
}

fn one(case: &ReadoutCase) -> Result<()> {
    // Each case has its own network, because a cut link leaves traces.
    let _hosts = Hosts::up("10.78.0", &[SERVER, RECEIVERS[0], RECEIVERS[1]])?;
    let [_card, mut reader] = published(&case.paced)?;
    let relayed = RECEIVERS.iter().filter(|_| case.is_relayed);
    let relays = relayed.map(|host| Background::start(on(host, RELAY)));
    let _relays: Vec<Background> = relays.collect::<Result<_>>()?;
    let address = if case.is_relayed { RELAYED } else { DIRECT };
    let mut receivers = [receiver(0, address)?, receiver(1, address)?];
    case.meanwhile.map_or(Ok(()), |what| what.happen(&mut receivers))?;
    reader.end("the reader")?;
    receivers.iter_mut().try_for_each(|receiver| receiver.end("a receiver"))?;
    judge(case)
}

/// Checks that the account of each E-link closes, and that only expected reasons cost triggers.
fn judge(case: &ReadoutCase) -> Result<()> {
    let account: Value = serde_json::from_str(&last_line("tohost.json")?)?;
    let elinks = account["elinks"].as_array().context("no E-links")?;
    ensure!(elinks.len() == 24, "{} E-links", elinks.len());
    let mut all = Ledger::new("triggers");
    for elink in elinks {
        let ledger: Ledger = serde_json::from_value(elink["ledger"].clone())?;
        let known: u64 = case.losses.iter().map(|reason| booked(&ledger, reason)).sum();
        ensure!(ledger.closes() && known == ledger.lost(), "{ledger}");
        all.add(&ledger);
    }
    let Ledger { issued, delivered, .. } = all;
    let first = case.losses.first().map_or(0, |reason| booked(&all, reason));
    ensure!(!case.must_lose || first > 0, "no trigger was lost by `{}`", case.losses[0]);
    let mut chunks = 0;
    for at in 0..RECEIVERS.len() {
        // A receiver that was given up leaves no report.
        let report = last_line(&format!("receive{at}.json")).unwrap_or_default();
        let report: Value = serde_json::from_str(&report).unwrap_or_default();
        ensure!(report["faults"]["payload"].as_u64().unwrap_or(0) == 0, "wrong payloads: {report}");
        chunks += report["chunks"].as_u64().unwrap_or(0);
    }
    let all_came = chunks == issued || delivered < issued && chunks > 0;
    ensure!(all_came, "receivers had {chunks} of {issued}");
    println!("closed: {}: {issued} issued, {delivered} delivered", case.name);
    Ok(())
}

/// Waits until a megabyte has left by the bridge's port to a receiver: data flow, and triggers
/// come.
fn flows_to(receiver: usize) -> Result<()> {
    let sent = || -> Result<u64> {
        let bytes = format!("cat /sys/class/net/to{receiver}/statistics/tx_bytes");
        Ok(on(SERVER, &bytes).output()?.trim().parse()?)
    };
    let before = sent()?;
    let flowing = || Ok(sent()? >= before + 1_000_000);
    until(&format!("data to receiver {receiver}"), Duration::from_secs(60), flowing)
}

/// Waits until the publisher has given a receiver up: no process has a connection to it any more.
fn given_up(receiver: usize) -> Result<()> {
    let to = format!("ss -Htnp dst 10.78.0.{}", receiver + 2);
    let gone = || Ok(!on(SERVER, &to).output()?.contains("users:"));
    until(&format!("the end of receiver {receiver}'s connection"), Duration::from_secs(60), gone)
}

/// Changes the bridge's port to the first receiver.
fn link(state: &str) -> Result<()> {
    line("ip -n").arg(SERVER).words("link set to0").arg(state).run()
}

/// Returns the number of segments that the publisher's host has sent again.
fn sent_again() -> Result<u64> {
    let table = on(SERVER, "nstat -asz TcpRetransSegs").output()?;
    Ok(table.split_whitespace().nth(2).context("no TcpRetransSegs")?.parse()?)
}

/// Network's limit in a search for the maximum rate.
const LIMIT_BIT_PER_S: f64 = 160e6;

/// Checks that a search finds a limit in the network: data in sockets' buffers do not count as
/// carried.
fn limited_search() -> Result<()> {
    let _hosts = Hosts::up("10.78.0", &[SERVER])?;
    // Segments on the loopback device have up to 64 KiB, which a burst must hold.
    let limit = format!("rate {LIMIT_BIT_PER_S} burst 192kb latency 100ms");
    on(SERVER, &format!("tc qdisc add dev lo root tbf {limit}")).run()?;
    let search = "readout sweep gbt --from 10kHz --to 100kHz --probe 100ms --resolution 0.02 \
                  --no-curves --json";
    let lines = daqmeter_on(SERVER, search).output()?;
    let record: RunRecord = serde_json::from_str(lines.lines().last().context("no record")?)?;
    ensure!(record.study == "readout/maximum", "the last record is {}", record.study);
    let value = |name: &str| record.counter(name).with_context(|| format!("no counter `{name}`"));
    let maximum_hz = value("maximum rate")?;
    let event_bytes = value("network")? / value("trigger-rate")?;
    let share = maximum_hz * event_bytes * 8.0 / LIMIT_BIT_PER_S;
    // A token bucket is full at first: 1.4 times the limit was confirmed before.
    ensure!((0.9..=1.01).contains(&share), "{maximum_hz} Hz are {share:.3} of the network's limit");
    println!("closed: a limit in the network: {maximum_hz:.0} Hz, {share:.3} of it");
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn cases_that_must_lose_name_the_reason() {
        let cases = super::cases().unwrap();
        assert_eq!(cases.len(), 7);
        assert!(cases.iter().all(|case| !case.must_lose || !case.losses.is_empty()));
    }
}
