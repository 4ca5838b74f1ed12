//! The read-out chain between hosts that are network namespaces: card and reader on one, receivers on two others; rate limits, loss,
//! delay, a killed receiver, a cut link. The accounts must close, and nothing may hang.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::hosts::{Background, Hosts, until};
use crate::shell::{need, program, root, run, there, tried};

const SERVER: &str = "dqm-server";
const RECEIVERS: [&str; 2] = ["dqm-recv1", "dqm-recv2"];
/// Each receiver takes half of the E-links of the scenario `gbt`.
const HALVES: [&str; 2] = [
    "0x008,0x00c,0x010,0x014,0x018,0x01c,0x020,0x024,0x048,0x04c,0x050,0x054",
    "0x058,0x05c,0x060,0x064,0x088,0x08c,0x090,0x094,0x098,0x09c,0x0a0,0x0a4",
];

/// One run: what is done to the network or the receivers meanwhile, and what must come of it.
struct Case {
    name: &'static str,
    rate: &'static str,
    time: &'static str,
    /// Where receivers find the publisher.
    address: &'static str,
    meanwhile: fn(&mut Chain) -> Result<()>,
    expect: fn(&Outcome) -> Result<()>,
}

/// The processes of a run.
struct Chain {
    daqmeter: String,
    /// Ends with its reader, or with the case that failed.
    _card: Background,
    address: &'static str,
    readers: Background,
    receivers: Vec<Background>,
}

/// What the reader's account says, over all E-links.
struct Outcome {
    issued: u64,
    delivered: u64,
    losses: Value,
    /// Of each receiver: chunks, wrong payloads.
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
    fn start(daqmeter: &str, case: &Case) -> Result<Chain> {
        let card = place("card.sock").display().to_string();
        // The socket of a run before would be found at once, with nobody behind it.
        if place("card.sock").exists() {
            std::fs::remove_file(place("card.sock"))?;
        }
        let emulate = [
            "readout", "emulate", "gbt", "--at", &card, "--rate", case.rate, "--time", case.time,
        ];
        let card_process = Background::start(SERVER, daqmeter, &emulate)?;
        let tohost = [
            "readout",
            "tohost",
            "gbt",
            "--card",
            &card,
            "--address",
            "10.78.0.1:12350",
            "--json",
        ];
        let readers = until("the emulated card", Duration::from_secs(10), || {
            ensure!(place("card.sock").exists(), "no socket yet");
            Background::into_file(SERVER, daqmeter, &tohost, &place("tohost.json"))
        })?;
        let mut chain = Chain {
            daqmeter: daqmeter.to_owned(),
            _card: card_process,
            address: case.address,
            readers,
            receivers: Vec::new(),
        };
        for at in 0..RECEIVERS.len() {
            let receiver = chain.receiver(at, &format!("receive{at}.json"))?;
            chain.receivers.push(receiver);
        }
        Ok(chain)
    }

    fn receiver(&self, at: usize, file: &str) -> Result<Background> {
        let arguments = [
            "readout",
            "receive",
            self.address,
            "--elinks",
            HALVES[at],
            "--json",
            "--patience",
            "20s",
        ];
        Background::into_file(RECEIVERS[at], &self.daqmeter, &arguments, &place(file))
    }

    fn outcome(&mut self) -> Result<Outcome> {
        ensure!(
            self.readers.ends_within(Duration::from_secs(40))?,
            "the reader hangs"
        );
        for receiver in &mut self.receivers {
            ensure!(
                receiver.ends_within(Duration::from_secs(30))?,
                "a receiver hangs"
            );
        }
        let text = std::fs::read_to_string(place("tohost.json"))?;
        let account: Value = serde_json::from_str(text.trim())
            .with_context(|| format!("the reader said `{text}`"))?;
        let elinks = account["elinks"].as_array().context("no E-links")?;
        ensure!(elinks.len() == 24, "{} E-links", elinks.len());
        let open: Vec<&Value> = elinks
            .iter()
            .filter(|elink| elink["closes"] != true)
            .collect();
        ensure!(open.is_empty(), "accounts that do not close: {open:?}");
        let sum = |of: &dyn Fn(&Value) -> u64| {
            elinks.iter().map(|elink| of(&elink["ledger"])).sum::<u64>()
        };
        let mut losses = serde_json::Map::new();
        for reason in elinks[0]["ledger"]["losses"]
            .as_object()
            .context("no losses")?
            .keys()
        {
            losses.insert(
                reason.clone(),
                sum(&|ledger| ledger["losses"][reason].as_u64().unwrap_or(0)).into(),
            );
        }
        let mut received = Vec::new();
        for at in 0..RECEIVERS.len() {
            let text = std::fs::read_to_string(place(&format!("receive{at}.json")))?;
            let report: Value = serde_json::from_str(text.trim()).unwrap_or_default();
            let count = |value: &Value| value.as_u64().unwrap_or(0);
            received.push((
                count(&report["chunks"]),
                count(&report["faults"]["payload"]),
            ));
        }
        Ok(Outcome {
            issued: sum(&|ledger| ledger["issued"].as_u64().unwrap_or(0)),
            delivered: sum(&|ledger| ledger["delivered"].as_u64().unwrap_or(0)),
            losses: losses.into(),
            received,
        })
    }
}

fn sleep(seconds: f64) {
    std::thread::sleep(Duration::from_secs_f64(seconds));
}

fn nothing(_: &mut Chain) -> Result<()> {
    Ok(())
}

fn all_there(outcome: &Outcome) -> Result<()> {
    ensure!(
        outcome.delivered == outcome.issued,
        "{} of {}: {}",
        outcome.delivered,
        outcome.issued,
        outcome.losses
    );
    let received: u64 = outcome.received.iter().map(|(chunks, _)| chunks).sum();
    ensure!(
        received == outcome.issued,
        "receivers had {received} of {}",
        outcome.issued
    );
    ensure!(
        outcome.received.iter().all(|(_, wrong)| *wrong == 0),
        "wrong payloads"
    );
    Ok(())
}

/// Nothing but BUSY may cost triggers.
fn only_busy(outcome: &Outcome) -> Result<()> {
    let busy = outcome.lost("stopped by BUSY-by-DMA");
    ensure!(
        outcome.delivered + busy == outcome.issued,
        "{}",
        outcome.losses
    );
    Ok(())
}

const CASES: &[Case] = &[
    Case {
        name: "three hosts",
        rate: "100kHz",
        time: "3s",
        address: "10.78.0.1:12350",
        meanwhile: nothing,
        expect: all_there,
    },
    Case {
        name: "100 Mbit/s to one receiver (tbf)",
        rate: "100kHz",
        time: "3s",
        address: "10.78.0.1:12350",
        meanwhile: |_| {
            let tbf = "qdisc add dev to0 root tbf rate 100mbit burst 128kb latency 100ms";
            run(
                "ip",
                &[
                    &["netns", "exec", SERVER, "tc"][..],
                    &tbf.split(' ').collect::<Vec<_>>(),
                ]
                .concat(),
            )?;
            sleep(5.0);
            run(
                "ip",
                &[
                    "netns", "exec", SERVER, "tc", "qdisc", "del", "dev", "to0", "root",
                ],
            )
        },
        expect: |outcome| {
            ensure!(
                outcome.lost("stopped by BUSY-by-DMA") > 0,
                "a link of a third of the data did not hold the card back"
            );
            only_busy(outcome)
        },
    },
    Case {
        name: "1 % of the packets lost (nftables)",
        rate: "20kHz",
        time: "3s",
        address: "10.78.0.1:12350",
        meanwhile: |_| {
            let nft = |rule: &str| run("ip", &["netns", "exec", RECEIVERS[0], "nft", rule]);
            nft("add table inet dqm")?;
            nft("add chain inet dqm in { type filter hook input priority 0; }")?;
            nft("add rule inet dqm in tcp sport 12350 numgen random mod 100 < 1 drop")?;
            sleep(4.0);
            nft("delete table inet dqm")
        },
        expect: only_busy,
    },
    Case {
        name: "20 ms of delay (relay)",
        rate: "50kHz",
        time: "3s",
        address: "127.0.0.1:12351",
        meanwhile: nothing,
        expect: only_busy,
    },
    Case {
        name: "a receiver killed and restarted",
        rate: "50kHz",
        time: "6s",
        address: "10.78.0.1:12350",
        meanwhile: |chain| {
            sleep(2.0);
            run(
                "ip",
                &[
                    "netns",
                    "exec",
                    RECEIVERS[0],
                    "pkill",
                    "-9",
                    "-n",
                    "-f",
                    "readout receive",
                ],
            )?;
            sleep(1.0);
            chain.receivers[0] = chain.receiver(0, "receive0.json")?;
            Ok(())
        },
        expect: |outcome| {
            ensure!(
                outcome.lost("not subscribed") > 0,
                "nothing was lost while nobody subscribed: {}",
                outcome.losses
            );
            ensure!(outcome.received[0].0 > 0, "the second receiver got nothing");
            let lost: u64 = ["not subscribed", "network", "stopped by BUSY-by-DMA"]
                .iter()
                .map(|r| outcome.lost(r))
                .sum();
            ensure!(
                outcome.delivered + lost == outcome.issued,
                "{}",
                outcome.losses
            );
            Ok(())
        },
    },
    Case {
        name: "a link cut for 2 s",
        rate: "20kHz",
        time: "6s",
        address: "10.78.0.1:12350",
        meanwhile: |_| {
            sleep(2.0);
            run("ip", &["-n", SERVER, "link", "set", "to0", "down"])?;
            // Retransmissions double their distance: the one after 3 s comes before the receiver is given up.
            sleep(2.0);
            run("ip", &["-n", SERVER, "link", "set", "to0", "up"])
        },
        expect: only_busy,
    },
    Case {
        name: "a link cut for longer than a receiver is waited for",
        rate: "20kHz",
        time: "14s",
        address: "10.78.0.1:12350",
        meanwhile: |_| {
            sleep(2.0);
            run("ip", &["-n", SERVER, "link", "set", "to0", "down"])?;
            sleep(8.0);
            run("ip", &["-n", SERVER, "link", "set", "to0", "up"])
        },
        expect: |outcome| {
            let lost: u64 = ["not subscribed", "network", "stopped by BUSY-by-DMA"]
                .iter()
                .map(|r| outcome.lost(r))
                .sum();
            ensure!(
                outcome.lost("not subscribed") > 0,
                "the dead receiver held its E-links: {}",
                outcome.losses
            );
            ensure!(
                outcome.delivered + lost == outcome.issued,
                "{}",
                outcome.losses
            );
            ensure!(outcome.received[1].0 > 0, "the other receiver got nothing");
            Ok(())
        },
    },
];

/// All cases.
pub(crate) fn all() -> Result<()> {
    if !there("nft") {
        need("nft", &["nftables"])?;
    }
    need("tc", &["iproute2"])?;
    need("pkill", &["procps"])?;
    std::fs::create_dir_all(place(""))?;
    let daqmeter = program();
    let relay = root()
        .join("xtask/peers/delay_relay.py")
        .display()
        .to_string();
    for case in CASES {
        tried(|| one(case, &daqmeter, &relay))?;
    }
    Ok(())
}

fn one(case: &Case, daqmeter: &str, relay: &str) -> Result<()> {
    // A network of its own for each, as a cut link leaves traces.
    let _hosts = Hosts::up("10.78.0", &[SERVER, RECEIVERS[0], RECEIVERS[1]])?;
    let _relays: Vec<Background> = if case.address.ends_with("12351") {
        let arguments = [relay, "12351", "10.78.0.1", "12350", "20"];
        RECEIVERS
            .iter()
            .map(|host| Background::start(host, "python3", &arguments))
            .collect::<Result<_>>()?
    } else {
        Vec::new()
    };
    let mut chain = Chain::start(daqmeter, case)?;
    let done = (case.meanwhile)(&mut chain).and_then(|()| chain.outcome());
    let outcome = done.with_context(|| case.name)?;
    if let Err(error) = (case.expect)(&outcome) {
        bail!("{}: {error:#}", case.name);
    }
    println!(
        "closed: {}: {} issued, {} delivered",
        case.name, outcome.issued, outcome.delivered
    );
    Ok(())
}
