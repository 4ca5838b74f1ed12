//! `daqmeter readout tohost`: readers of a card's rings, which publish their data.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::Args;
use daqmeter_readout::accounts::FinalAccount;
use daqmeter_readout::card::{CardView, channel_ids};
use daqmeter_readout::port::Port;
use daqmeter_readout::receive::elink_of;
use daqmeter_readout::remote::RemoteError;
use daqmeter_readout::scenario::Publish;
use daqmeter_readout::transport::bus::{self, Announcement, BusEntry};
use daqmeter_readout::{Chosen, Scenario, ToHost, accounts, chain, remote};
use daqmeter_record::units::{show_ns, significant};

use super::ledgers::{cpu_seconds, elink_name, ledger_text, not_closed};
use super::options::{Instance, Length, Network, Waiting, load, publish};
use super::verdict::{ChainLimits, Findings, Judgement, Measure, Verdict};
use crate::arguments::{CpuList, cpu_list, duration};
use crate::metrics::Page;
use crate::output::{Failure, emit, tell};

/// Read rings and publish their data; a reader per DMA channel.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    chosen: Chosen,
    /// Card of another process (emulate --at); a card in this process without it
    #[arg(long, value_name = "PATH", conflicts_with_all = ["time", "triggers"])]
    card: Option<PathBuf>,
    /// Channels of the card, from 0; all of them without it
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    channels: Option<Vec<usize>>,
    #[command(flatten)]
    length: Length,
    /// Where to publish; further channels take the next ports
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,
    /// Begin without subscribers; what comes before them is lost
    #[arg(long)]
    no_wait: bool,
    /// Wait so long for subscribers of every E-link
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10m", conflicts_with = "no_wait")]
    wait: Duration,
    /// Wait so long for the card's socket
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10s")]
    patience: Duration,
    /// CPUs of the readers, in turn
    #[arg(long, value_name = "CPUS", value_parser = cpu_list)]
    pin: Option<CpuList>,
    #[command(flatten)]
    limits: ChainLimits,
    #[command(flatten)]
    network: Network,
}

type Channel = (usize, Port);

struct Ready {
    name: String,
    reader: ToHost,
    _announcement: Option<Announcement>,
}

struct ReadDone {
    name: String,
    account: FinalAccount,
    view: CardView,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut scenario = load(&arguments.chosen)?;
    if let Some(address) = &arguments.address {
        scenario.publish.address.clone_from(address);
    }
    let instance = Instance::begin(&arguments.network.metrics)?;
    let wanted = arguments.wanted_channels(channel_ids(&scenario).len())?;
    let channels = match &arguments.card {
        Some(path) => remote_channels(path, &scenario, wanted, arguments.patience, &instance)?,
        None => own_channels(&mut scenario, arguments.length).map(Some)?,
    };
    let Some(channels) = channels else {
        return Ok(Judgement::Passed.exit(true));
    };
    let each = channels.into_iter().enumerate();
    let ready = each.map(|(nth, channel)| Ready::new(&scenario, channel, nth, &arguments.network));
    let mut judgement = Judgement::Passed;
    for done in arguments.read(ready.collect::<Result<_, _>>()?, &instance) {
        let done = done?;
        let verdict = arguments.verdict(&done.account, &done.view);
        judgement = judgement.max(verdict.judgement());
        let text = if arguments.network.json { json_line } else { account_text };
        emit(&text(&done, &verdict))?;
    }
    Ok(judgement.exit(instance.is_stopped()))
}

impl Arguments {
    fn wanted_channels(&self, count: usize) -> Result<Vec<usize>, Failure> {
        let Some(channels) = self.channels.clone() else {
            return Ok((0..count).collect());
        };
        if let Some(missing) = channels.iter().find(|channel| **channel >= count) {
            let last = count - 1;
            return Err(Failure::refused(format!(
                "no channel {missing}; the scenario has 0 to {last}"
            )));
        }
        if self.card.is_none() && channels.len() < count {
            return Err(Failure::refused(
                "a card in this process has all its channels read; --channels needs --card",
            ));
        }
        Ok(channels)
    }

    fn read(&self, ready: Vec<Ready>, instance: &Instance) -> Vec<Result<ReadDone, Failure>> {
        let cpus = self.pin.as_ref().map_or(&[][..], |list| &list.0);
        let panicked =
            |_| Err(Failure::refused("a reader panicked: a bug in daqmeter, please report it"));
        std::thread::scope(|scope| {
            let each = ready.into_iter().enumerate();
            let threads = each.map(|(nth, ready)| {
                let cpu = cpus.get(nth % cpus.len().max(1)).copied();
                scope.spawn(move || self.read_one(ready, cpu, instance))
            });
            let threads: Vec<_> = threads.collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
        })
    }

    fn read_one(
        &self,
        ready: Ready,
        cpu: Option<u32>,
        instance: &Instance,
    ) -> Result<ReadDone, Failure> {
        chain::pin(cpu).map_err(|error| {
            // The others would wait for this one's channel.
            instance.stop.store(true, Ordering::Relaxed);
            Failure::refused(error)
        })?;
        let Ready { name, mut reader, .. } = ready;
        let tell_notes = |reader: &mut ToHost| {
            for note in reader.take_notes() {
                tell(&format!("{name}: {note}"));
            }
        };
        let waits = !self.no_wait;
        let (mut turns, mut waiting, mut given_up) = (0_u32, Waiting::new(self.wait), None);
        let account = reader.run(&instance.stop, waits, |reader| {
            if waits && !reader.has_begun() && given_up.is_none() {
                waiting.say(|| format!("subscribers of {} of {name}", without_subscriber(reader)));
                if waiting.is_over() {
                    given_up = Some(without_subscriber(reader));
                    instance.stop.store(true, Ordering::Relaxed);
                }
            }
            tell_notes(reader);
            turns += 1;
            if turns.is_multiple_of(10) {
                show_progress(reader, &name, &instance.page);
            }
        });
        tell_notes(&mut reader);
        if let Some(elinks) = given_up {
            let within = waiting.limit_text();
            return Err(Failure::refused(format!(
                "{name}: nobody subscribed to {elinks} within {within}; subscribe to all, give --wait more time, or begin without them by --no-wait"
            )));
        }
        let view = reader.card();
        Ok(ReadDone { name, account, view })
    }

    fn verdict(&self, account: &FinalAccount, view: &CardView) -> Verdict {
        let mut findings = Findings::default();
        let ledgers = account.ledgers();
        if account.card_is_lost {
            findings.fails("the card's process ended before its triggers did: what it counted last is not known");
        } else {
            findings.fault(not_closed(&ledgers), "accounts that do not close");
        }
        let open = account.subscriptions.iter().filter(|subscription| subscription.gap() != 0);
        findings.fault(open.count() as u64, "subscriptions that do not close");
        let lost = |name: &str| -> u64 {
            ledgers.iter().filter_map(|(_, ledger)| ledger.losses.get(name)).sum()
        };
        let unheard = if self.no_wait { lost(accounts::NOT_SUBSCRIBED) } else { 0 };
        let issued = ledgers.iter().map(|(_, ledger)| ledger.issued).sum();
        if issued > unheard && ledgers.iter().all(|(_, ledger)| ledger.delivered == 0) {
            findings.fails("no event was delivered");
        }
        findings.values(&[
            (Measure::Loss, account.lost_on_the_way() - unheard, account.due()),
            (Measure::Flags, lost(accounts::FLAGGED), issued),
            (Measure::Dead, view.dead[2].ns, view.now_ns),
        ]);
        findings.verdict(&self.limits.fail_on)
    }
}

fn remote_channels(
    path: &Path,
    scenario: &Scenario,
    wanted: Vec<usize>,
    patience: Duration,
    instance: &Instance,
) -> Result<Option<Vec<Channel>>, Failure> {
    let mut channels = Vec::new();
    for at in wanted {
        let mut waiting = Waiting::new(patience);
        let port = loop {
            if instance.is_stopped() {
                return Ok(None);
            }
            match remote::connect(path, scenario, at) {
                Err(RemoteError::Absent(_)) if !waiting.is_over() => {
                    waiting.say(|| format!("a card at {}", path.display()));
                    std::thread::sleep(Duration::from_millis(20));
                }
                port => break port.map_err(Failure::refused)?,
            }
        };
        channels.push((at, port));
    }
    Ok(Some(channels))
}

/// Returns all channels of a card in this process. The scenario becomes that of the actual ring.
fn own_channels(scenario: &mut Scenario, length: Length) -> Result<Vec<Channel>, Failure> {
    let (card, rings) = length.card(scenario)?;
    *scenario = card.scenario().clone();
    let card = Arc::new(Mutex::new(card));
    let channel = |(at, ring)| Ok((at, Port::here(card.clone(), ring).map_err(Failure::refused)?));
    rings.into_iter().enumerate().map(channel).collect()
}

impl Ready {
    fn new(
        scenario: &Scenario,
        (at, port): Channel,
        nth: usize,
        network: &Network,
    ) -> Result<Ready, Failure> {
        let address = nth_address(&scenario.publish.address, nth)?;
        let publish = Publish { address, ..scenario.publish.clone() };
        let reader = chain::reader_of(scenario, port, at, &publish).map_err(Failure::refused)?;
        let id = channel_ids(scenario)[at];
        let name = format!("tohost {}:{}.{}", scenario.name, id.device, id.channel);
        let facts = reader.facts().into_iter().map(|(name, value)| format!("{name} {value}"));
        let facts = facts.collect::<Vec<_>>().join(", ");
        let facts = if facts.is_empty() { facts } else { format!(" ({facts})") };
        let address = reader.address();
        tell(&format!("{name} publishes at {address}{facts}"));
        let announcement = announce(network, scenario, at, address)?;
        Ok(Ready { name, reader, _announcement: announcement })
    }
}

/// Counts the port up for further channels; a port that the host chooses serves all.
fn nth_address(address: &str, nth: usize) -> Result<String, Failure> {
    let parts = address.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let Some((host, port @ 1..)) = parts else {
        return Ok(address.to_owned());
    };
    let next = u16::try_from(nth).ok().and_then(|nth| u16::checked_add(port, nth));
    let none = || Failure::refused(format!("{address}: no port left for channel {nth}"));
    Ok(format!("{host}:{}", next.ok_or_else(none)?))
}

fn announce(
    network: &Network,
    scenario: &Scenario,
    at: usize,
    mut address: String,
) -> Result<Option<Announcement>, Failure> {
    let Some(directory) = &network.bus_dir else {
        return Ok(None);
    };
    std::fs::create_dir_all(directory).map_err(|error| {
        Failure::refused(format!("bus directory {}: {error}", directory.display()))
    })?;
    let hello = chain::hello(scenario, at);
    // An address that listens everywhere says nothing to others: they get the name of this host.
    for any in ["0.0.0.0:", "[::]:"] {
        if let Some(port) = address.strip_prefix(any) {
            let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            address = format!("{}:{port}", host.trim());
        }
    }
    let entry = BusEntry { address, stream: hello.stream, tags: hello.tags };
    bus::announce(directory, &entry).map(Some).map_err(Failure::refused)
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
    let (stats, view) = (reader.stats(), reader.card());
    let errors = stats.bad_blocks + stats.unknown_blocks + stats.missing_blocks;
    let dead = view.dead[2];
    let values = [
        ("daqmeter_blocks_total", stats.blocks as f64),
        ("daqmeter_chunks_total", stats.chunks as f64),
        ("daqmeter_bytes_total", stats.bytes as f64),
        ("daqmeter_errors_total", errors as f64),
        ("daqmeter_subscribers", stats.subscribers as f64),
        ("daqmeter_ring_bytes", reader.filled_bytes() as f64),
        ("daqmeter_ring_size_bytes", reader.ring_bytes() as f64),
        ("daqmeter_fifo_bytes", view.fifo_bytes as f64),
        ("daqmeter_busy", view.busy as f64),
        ("daqmeter_triggers_total", view.account.issued as f64),
        ("daqmeter_vetoed_triggers_total", dead.vetoed as f64),
        ("daqmeter_dead_seconds_total", dead.ns as f64 * 1e-9),
        ("daqmeter_cpu_seconds_total", cpu_seconds()),
    ];
    publish(page, name, &values);
}

fn json_line(done: &ReadDone, verdict: &Verdict) -> String {
    let ReadDone { name, account, view } = done;
    let each: Vec<serde_json::Value> = account
        .ledgers()
        .iter()
        .map(|(tag, ledger)| serde_json::json!({ "elink": elink_of(*tag).map(|e| e.number()), "tag": format!("{tag:#x}"), "ledger": ledger, "closes": ledger.closes() }))
        .collect();
    let line = serde_json::json!({
        "name": name, "elinks": each, "subscriptions": account.subscriptions, "closes": account.closes(), "card_is_lost": account.card_is_lost,
        "dead": view.dead, "time_ns": view.now_ns, "verdict": verdict,
    });
    format!("{line}\n")
}

/// Text of the accounts of a channel: all E-links added up, and each that does not close or has a
/// loss of its own.
fn account_text(done: &ReadDone, verdict: &Verdict) -> String {
    let ReadDone { name, account, view } = done;
    let mut out = format!("{name}\n");
    if account.card_is_lost {
        let read = account.readers.iter().map(|elink| elink.chunks).sum::<u64>();
        let _ = writeln!(out, " {read} chunks read; no ledger can close without the card");
    } else {
        out.push_str(&ledger_text(&account.ledgers()));
    }
    let all = account.subscriptions.len();
    let open = || account.subscriptions.iter().filter(|subscription| subscription.gap() != 0);
    let _ = writeln!(out, " subscriptions that close: {} of {all}", all - open().count());
    for subscription in open() {
        let _ = writeln!(
            out,
            "  E-link {}, receiver {:#x}: {} of {} chunks offered are not accounted for",
            elink_name(subscription.tag),
            subscription.receiver,
            subscription.gap(),
            subscription.offered
        );
    }
    let share = |ns: u64| significant(ns as f64 / view.now_ns.max(1) as f64 * 100.0, 3);
    let [dma, fifo, any, external] = view.dead;
    if external.count > 0 {
        let _ = writeln!(
            out,
            " external BUSY, not in the dead time: {} % of the time, {} intervals; triggers stopped: {}",
            share(external.ns),
            external.count,
            external.vetoed,
        );
    }
    let _ = writeln!(
        out,
        " dead time: {} % of {} ({} by DMA, {} by FIFO), {} intervals, longest {}; triggers stopped: {}\n {verdict}",
        share(any.ns),
        show_ns(view.now_ns as f64),
        share(dma.ns),
        share(fifo.ns),
        any.count,
        show_ns(any.longest_ns as f64),
        any.vetoed,
    );
    out
}
