//! `daqmeter readout tohost`: readers of a card's rings, which publish their data.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use daqmeter_harness::{CpuList, StopFlag};
use daqmeter_readout::accounts::{FinalAccount, NOT_SUBSCRIBED, of_all};
use daqmeter_readout::card::{CardView, channel_ids};
use daqmeter_readout::chain;
use daqmeter_readout::receive::elink_of;
use daqmeter_readout::remote::RemoteError;
use daqmeter_readout::transport::PublisherHello;
use daqmeter_readout::transport::bus::{self, Announcement, BusEntry};
use daqmeter_readout::{Chosen, Scenario, ToHost, remote};
use daqmeter_report::felix::asserted_by;
use serde_json::{Value, json};

use super::ledgers::{show, show_card};
use super::options::{Network, Waiting};
use crate::arguments::duration;
use crate::interrupt;
use crate::metrics::{Page, SHOW, is_due};
use crate::output::{Ended, Failure, tell};
use crate::verdict::{Findings, Judgement, Measure, Verdict};

/// Read rings and publish their data; a reader per DMA channel.
#[derive(Debug, Args)]
#[command(
    mut_arg("rate_hz", |option| option.conflicts_with("card").hide(true)),
    mut_arg("payload_bytes", |option| option.conflicts_with("card").hide(true)),
    mut_arg("trigger_times", |option| option.conflicts_with("card").hide(true)),
    mut_arg("busy_outside", |option| option.conflicts_with("card").hide(true)),
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    chosen: Chosen,
    /// Socket of the card (emulate --at)
    #[arg(long, value_name = "PATH")]
    card: PathBuf,
    /// Channels of the card, counted from 0 [default: all]
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    channels: Option<Vec<usize>>,
    /// Address of channel 0; the other channels take the next ports
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,
    /// Begin without subscribers; earlier data are lost
    #[arg(long)]
    no_wait: bool,
    /// Longest wait for the card's socket, and for subscribers of all E-links
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10m")]
    wait: Duration,
    /// CPUs of the readers, one each
    #[arg(long, value_name = "CPUS")]
    pin: Option<CpuList>,
    #[command(flatten)]
    network: Network,
}

struct Channel {
    name: String,
    reader: ToHost,
    announcement: Option<Announcement>,
}

pub(crate) fn run(arguments: &Arguments) -> Ended {
    let mut scenario = arguments.chosen.completed()?;
    if let Some(address) = &arguments.address {
        scenario.publish.address.clone_from(address);
    }
    let stop = interrupt::flag();
    let page = arguments.network.metrics.served(|_| {})?;
    let mut channels = arguments.channels(&scenario, &stop)?;
    let cpus = arguments.pin.as_ref().map_or(&[][..], |list| &list.0);
    let accounts: Vec<_> = std::thread::scope(|scope| {
        let threads = channels.iter_mut().enumerate().map(|(nth, channel)| {
            let cpu = cpus.get(nth % cpus.len().max(1)).copied();
            let (stop, page) = (&stop, page.as_ref());
            scope.spawn(move || arguments.read(channel, cpu, stop, page))
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().expect("readers do not panic")).collect()
    });
    let mut judgement = Judgement::Passed;
    for (channel, account) in channels.iter().zip(accounts) {
        let (account, view) = (account?, channel.reader.port.view());
        let verdict = arguments.verdict(&account, &view);
        judgement = judgement.max(verdict.judgement());
        let line = json_line(&channel.name, &account, &view, &verdict);
        let ledgers = if account.card_is_lost { Vec::new() } else { account.ledgers() };
        show(arguments.network.json, &line, &ledgers, &verdict)?;
    }
    Ok(judgement.code())
}

impl Arguments {
    /// Opens the card's channels; none after a signal.
    fn channels(&self, scenario: &Scenario, stop: &StopFlag) -> Result<Vec<Channel>, Failure> {
        let ids = channel_ids(scenario);
        let mut channels = Vec::new();
        let mut waiting = Waiting::new(self.wait);
        for at in self.channels.clone().unwrap_or_else(|| (0..ids.len()).collect()) {
            let port = loop {
                match remote::connect(&self.card, scenario, at) {
                    Err(RemoteError::Absent(_)) if !waiting.is_over() => {
                        waiting.say(|| format!("a card at {}", self.card.display()));
                        std::thread::sleep(Duration::from_millis(20));
                    }
                    port => break port?,
                }
                if stop.is_set() {
                    return Ok(Vec::new());
                }
            };
            let hello = chain::hello(scenario, at);
            let reader = chain::reader_of(scenario, port, at, &hello)?;
            let name = format!("tohost {}:{}.{}", scenario.name, ids[at].device, ids[at].channel);
            let address = reader.address();
            tell(&format!("{name} publishes at {address} ({})", reader.facts()));
            let announced = self.network.bus_dir.as_ref().map(|directory| {
                let PublisherHello { stream, tags } = hello;
                let entry = BusEntry { address: reachable(address), stream, tags };
                bus::announce(directory, &entry)
            });
            channels.push(Channel { name, reader, announcement: announced.transpose()? });
        }
        Ok(channels)
    }

    fn read(
        &self,
        channel: &mut Channel,
        cpu: Option<u32>,
        stop: &StopFlag,
        page: Option<&Page>,
    ) -> Result<FinalAccount, Failure> {
        // The others would wait for this one's channel.
        chain::pin(cpu).inspect_err(|_| stop.set())?;
        let Channel { name, reader, announcement } = channel;
        let (mut waiting, mut missing, mut shown) = (Waiting::new(self.wait), None, None);
        let account = reader.run(&stop.0, !self.no_wait, |reader| {
            if !self.no_wait && !reader.begun && missing.is_none() {
                waiting.say(|| format!("subscribers of {} of {name}", without_subscriber(reader)));
                if waiting.is_over() {
                    missing = Some(without_subscriber(reader));
                    stop.set();
                }
            }
            tell_notes(name, reader);
            if let Some(page) = page.filter(|_| is_due(&mut shown, SHOW)) {
                show_progress(reader, name, page);
            }
        });
        tell_notes(name, reader);
        *announcement = None;
        if let Some(elinks) = missing {
            let within = waiting.limit_text();
            return Err(Failure::refused(format!(
                "{name}: no subscriber of {elinks} within {within}; subscribe to all, use a longer --wait, or start without subscribers with --no-wait"
            )));
        }
        Ok(account)
    }

    fn verdict(&self, account: &FinalAccount, view: &CardView) -> Verdict {
        let ledgers = account.ledgers();
        let all = ledgers.iter().map(|(_, ledger)| ledger);
        let unheard = all.clone().filter_map(|ledger| ledger.losses.get(NOT_SUBSCRIBED));
        let mut findings = Findings::of_ledgers(all, if self.no_wait { unheard.sum() } else { 0 });
        if account.card_is_lost {
            // Its counts, to which those of the reader are compared, are too low.
            findings.faults.clear();
            findings.missing = vec![CARD_IS_LOST.to_owned()];
        }
        let open = account.open_subscriptions();
        findings.fault(open, "subscriptions that are not fully accounted for");
        findings.values.push((Measure::Dead, view.dead[2].ns, view.now_ns));
        findings.dead_by = asserted_by(&chain::busy_by_channel(view));
        findings.verdict(&self.network.limits)
    }
}

pub(super) const CARD_IS_LOST: &str =
    "missing: the last counts of the card, which ended before its triggers or did not end them";

/// Address for other hosts: one that listens everywhere gets the name of this host.
fn reachable(address: String) -> String {
    let everywhere = ["0.0.0.0:", "[::]:"];
    match everywhere.iter().find_map(|any| address.strip_prefix(any)) {
        Some(port) => {
            let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            format!("{}:{port}", host.trim())
        }
        None => address,
    }
}

fn tell_notes(name: &str, reader: &mut ToHost) {
    for note in reader.notes.drain(..) {
        tell(&format!("{name}: {note}"));
    }
}

fn without_subscriber(reader: &ToHost) -> String {
    const MAX_NAMED: usize = 4;
    let missing = reader.without_subscriber();
    let named = missing.iter().take(MAX_NAMED).map(|elink| format!("{:#05x}", elink.number()));
    let more = (missing.len() > MAX_NAMED).then(|| "...".to_owned());
    let named: Vec<String> = named.chain(more).collect();
    format!("{} E-links ({})", missing.len(), named.join(", "))
}

fn show_progress(reader: &ToHost, name: &str, page: &Page) {
    show_card(page, name, &reader.port.view());
    page.ledger(name, &of_all(&reader.account().ledgers()));
    let stats = reader.stats;
    let errors = stats.bad_blocks + stats.unknown_blocks + stats.missing_blocks;
    page.set("daqmeter_bytes_total", &[name], stats.bytes as f64);
    page.set("daqmeter_errors_total", &[name], errors as f64);
    page.set("daqmeter_ring_bytes", &[name], reader.filled_bytes() as f64);
    let ring_bytes = reader.port.consumer().ring_bytes();
    page.set("daqmeter_ring_size_bytes", &[name], ring_bytes as f64);
}

fn json_line(name: &str, account: &FinalAccount, view: &CardView, verdict: &Verdict) -> Value {
    let [by_dma, by_fifo, busy, outside] = view.dead;
    let ledgers = account.ledgers();
    let elinks = ledgers.iter().map(|(tag, ledger)| {
        json!({ "elink": elink_of(*tag).map(|elink| elink.number()), "tag": format!("{tag:#x}"), "ledger": ledger, "closes": ledger.closes() })
    });
    json!({
        "name": name, "time_ns": view.now_ns,
        "chunks": account.readers.iter().map(|elink| elink.chunks).sum::<u64>(),
        "dead": { "busy": busy, "by_dma": by_dma, "by_fifo": by_fifo, "outside": outside, "asserted": view.asserted },
        "elinks": elinks.collect::<Vec<_>>(), "subscriptions": account.subscriptions,
        "closes": account.closes(), "card_is_lost": account.card_is_lost, "verdict": verdict,
    })
}
