//! `daqmeter readout tohost`: readers of a card's rings, which publish their data.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::Args;
use daqmeter_readout::accounts::{FinalAccount, SubscriptionAccount};
use daqmeter_readout::card::{CardView, channel_ids};
use daqmeter_readout::chain::Reader;
use daqmeter_readout::port::{Port, Pump, Unpumped, inline};
use daqmeter_readout::receive::elink_of;
use daqmeter_readout::remote::RemoteError;
use daqmeter_readout::scenario::Publish;
use daqmeter_readout::tohost::ToHost;
use daqmeter_readout::transport::bus::{self, Announcement, Entry};
use daqmeter_readout::{Chosen, Scenario, accounts, chain, remote};
use daqmeter_record::units::{show_ns, significant};

use super::ledgers::{cpu_seconds, elink_name, ledger_text, not_closed};
use super::options::{Length, Network, load};
use super::verdict::{Found, Judgement, Measure, OfTohost, Verdict};
use super::waiting::Waiting;
use crate::arguments::CpuList;
use crate::arguments::{cpu_list, duration};
use crate::metrics::Page;
use crate::output::{Failure, emit, tell};
use crate::runner::on_ctrl_c;

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
    limits: OfTohost,
    #[command(flatten)]
    network: Network,
}

impl Arguments {
    /// What became of a channel's triggers.
    fn verdict(&self, account: &FinalAccount, view: &CardView) -> Verdict {
        let mut found = Found::default();
        let ledgers = account.ledgers();
        if account.card_is_lost {
            found.fails(CARD_IS_LOST);
        } else {
            found.fault(not_closed(&ledgers), "accounts that do not close");
        }
        let open = account.subscriptions.iter().filter(|subscription| subscription.gap() != 0);
        found.fault(open.count() as u64, "subscriptions that do not close");
        let sum = |name: &str| {
            ledgers.iter().filter_map(|(_, ledger)| ledger.losses.get(name)).sum::<u64>()
        };
        let unheard = if self.no_wait { sum(accounts::NOT_SUBSCRIBED) } else { 0 };
        let [issued, delivered] =
            ledgers.iter().fold([0, 0], |[issued, delivered], (_, ledger)| {
                [issued + ledger.issued, delivered + ledger.delivered]
            });
        if issued > unheard && delivered == 0 {
            found.fails("no event was delivered");
        }
        found.value(Measure::Loss, account.lost_on_the_way() - unheard, account.due());
        found.value(Measure::Flags, sum(accounts::FLAGGED), issued);
        found.value(Measure::Dead, view.dead[2].ns, view.now_ns);
        found.verdict(&self.limits.fail_on)
    }
}

const CARD_IS_LOST: &str =
    "the card's process ended before its triggers did: what it counted last is not known";

/// Both sides of a channel, with its place.
type Channel = (usize, Box<dyn Port>, Box<dyn Pump>);

/// A reader before it runs.
struct Ready {
    name: String,
    reader: Reader,
    _announcement: Option<Announcement>,
}

/// Asks for a channel of a card, and waits for the card; none when it is to stop.
fn reach(
    path: &Path,
    scenario: &Scenario,
    channel: usize,
    patience: Duration,
    stop: &AtomicBool,
) -> Result<Option<Box<dyn Port>>, Failure> {
    let mut waiting = Waiting::new(patience);
    while !stop.load(Ordering::Relaxed) {
        match remote::connect(path, scenario, channel) {
            Ok(port) => return Ok(Some(Box::new(port))),
            Err(RemoteError::Absent(_)) if !waiting.is_over() => {
                waiting.say(|| format!("a card at {}", path.display()));
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(error) => return Err(Failure::refused(error)),
        }
    }
    Ok(None)
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut scenario = load(&arguments.chosen)?;
    if let Some(address) = &arguments.address {
        scenario.publish.address.clone_from(address);
    }
    let stop = Arc::new(AtomicBool::new(false));
    on_ctrl_c(&stop)?;
    let page = arguments.network.metrics.served()?.unwrap_or_default();
    let wanted = arguments.wanted_channels(channel_ids(&scenario).len())?;
    let channels = match &arguments.card {
        Some(path) => remote_channels(path, &scenario, wanted, arguments.patience, &stop)?,
        None => own_channels(&mut scenario, arguments.length).map(Some)?,
    };
    let Some(channels) = channels else {
        return Ok(Judgement::Passed.exit(true));
    };
    let ready: Result<Vec<Ready>, Failure> = channels
        .into_iter()
        .enumerate()
        .map(|(nth, channel)| Ready::new(&scenario, channel, nth, &arguments.network))
        .collect();
    let mut judgement = Judgement::Passed;
    for done in arguments.read(ready?, &page, &stop) {
        let done = done?;
        let verdict = arguments.verdict(&done.account, &done.view);
        judgement = judgement.max(verdict.judgement());
        show_account(&done, &verdict, arguments.network.json)?;
    }
    Ok(judgement.exit(stop.load(Ordering::Relaxed)))
}

impl Arguments {
    fn wanted_channels(&self, count: usize) -> Result<Vec<usize>, Failure> {
        let Some(channels) = self.channels.clone() else {
            return Ok((0..count).collect());
        };
        if let Some(missing) = channels.iter().find(|channel| **channel >= count) {
            return Err(Failure::refused(format!(
                "no channel {missing}; the scenario has 0 to {}",
                count - 1
            )));
        }
        if self.card.is_none() && channels.len() < count {
            return Err(Failure::refused(
                "a card in this process has all its channels read; --channels needs --card",
            ));
        }
        Ok(channels)
    }

    /// Runs each reader in a thread of its own to its end.
    fn read(
        &self,
        ready: Vec<Ready>,
        page: &Page,
        stop: &AtomicBool,
    ) -> Vec<Result<ReadDone, Failure>> {
        let cpus = self.pin.as_ref().map_or(&[][..], |list| &list.0);
        let wait = (!self.no_wait).then_some(self.wait);
        let panicked =
            |_| Err(Failure::refused("a reader panicked: a bug in daqmeter, please report it"));
        std::thread::scope(|scope| {
            let threads: Vec<_> = ready
                .into_iter()
                .enumerate()
                .map(|(nth, ready)| {
                    let cpu = cpus.get(nth % cpus.len().max(1)).copied();
                    scope.spawn(move || read(ready, cpu, wait, page, stop))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
        })
    }
}

/// Channels of a card in another process; none when it is to stop.
fn remote_channels(
    path: &Path,
    scenario: &Scenario,
    wanted: Vec<usize>,
    patience: Duration,
    stop: &AtomicBool,
) -> Result<Option<Vec<Channel>>, Failure> {
    let mut channels: Vec<Channel> = Vec::new();
    for at in wanted {
        let Some(port) = reach(path, scenario, at, patience, stop)? else {
            return Ok(None);
        };
        channels.push((at, port, Box::new(Unpumped)));
    }
    Ok(Some(channels))
}

/// All channels of a card in this process. The scenario becomes that of the ring that there is.
fn own_channels(scenario: &mut Scenario, length: Length) -> Result<Vec<Channel>, Failure> {
    let (card, rings) = length.card(scenario)?;
    *scenario = card.scenario().clone();
    let card = Arc::new(Mutex::new(card));
    let channel = |(at, ring)| -> Result<Channel, Failure> {
        let (port, pump) = inline(card.clone(), ring).map_err(Failure::refused)?;
        Ok((at, Box::new(port), Box::new(pump)))
    };
    rings.into_iter().enumerate().map(channel).collect()
}

impl Ready {
    /// A reader that publishes at the nth address.
    fn new(
        scenario: &Scenario,
        (at, port, pump): Channel,
        nth: usize,
        network: &Network,
    ) -> Result<Ready, Failure> {
        let publish = Publish {
            address: nth_address(&scenario.publish.address, nth)?,
            ..scenario.publish.clone()
        };
        let (reader, facts) =
            chain::reader_of(scenario, port, pump, at, &publish).map_err(Failure::refused)?;
        let id = channel_ids(scenario)[at];
        let name = format!("tohost {}:{}.{}", scenario.name, id.device, id.channel);
        let facts: Vec<String> =
            facts.iter().map(|(name, value)| format!("{name} {value}")).collect();
        let facts = match facts.is_empty() {
            true => String::new(),
            false => format!(" ({})", facts.join(", ")),
        };
        let address = reader.tohost.address();
        tell(&format!("{name} publishes at {address}{facts}"));
        let announcement = announce(network, scenario, at, address)?;
        Ok(Ready { name, reader, _announcement: announcement })
    }
}

/// The next ports for further channels; a port that the host chooses serves all.
fn nth_address(address: &str, nth: usize) -> Result<String, Failure> {
    let Some((host, port)) = address.rsplit_once(':') else {
        return Ok(address.to_owned());
    };
    let Ok(port) = port.parse::<u16>() else {
        return Ok(address.to_owned());
    };
    if port == 0 {
        return Ok(address.to_owned());
    }
    let next = u16::try_from(nth).ok().and_then(|nth| port.checked_add(nth));
    let next =
        next.ok_or_else(|| Failure::refused(format!("{address}: no port left for channel {nth}")))?;
    Ok(format!("{host}:{next}"))
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
    // Listening everywhere says nothing to others: they get the name of this host.
    for any in ["0.0.0.0:", "[::]:"] {
        if let Some(port) = address.strip_prefix(any) {
            let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            address = format!("{}:{port}", host.trim());
        }
    }
    let entry = Entry { address, stream: hello.stream, tags: hello.tags };
    bus::announce(directory, &entry).map(Some).map_err(Failure::refused)
}

/// A reader that has ended.
struct ReadDone {
    name: String,
    account: FinalAccount,
    view: CardView,
}

/// The E-links that nobody has subscribed to: how many, and the first of them.
fn without_subscriber(reader: &ToHost) -> String {
    const MAX_NAMED: usize = 4;
    let missing = reader.without_subscriber();
    let mut named: Vec<String> =
        missing.iter().take(MAX_NAMED).map(|elink| format!("{:#05x}", elink.number())).collect();
    if missing.len() > MAX_NAMED {
        named.push("...".to_owned());
    }
    format!("{} E-links ({})", missing.len(), named.join(", "))
}

fn read(
    mut ready: Ready,
    cpu: Option<u32>,
    wait: Option<Duration>,
    page: &Page,
    stop: &AtomicBool,
) -> Result<ReadDone, Failure> {
    chain::pin(cpu).map_err(|error| {
        // The others would wait for this one's channel.
        stop.store(true, Ordering::Relaxed);
        Failure::refused(error)
    })?;
    let name = ready.name;
    let mut turns = 0_u32;
    let mut waiting = Waiting::new(wait.unwrap_or_default());
    let mut given_up = None;
    let account = ready.reader.run(stop, wait.is_some(), |reader| {
        if wait.is_some() && !reader.has_begun() && given_up.is_none() {
            waiting.say(|| format!("subscribers of {} of {name}", without_subscriber(reader)));
            if waiting.is_over() {
                given_up = Some(without_subscriber(reader));
                stop.store(true, Ordering::Relaxed);
            }
        }
        for note in reader.take_notes() {
            tell(&format!("{name}: {note}"));
        }
        turns += 1;
        if turns.is_multiple_of(10) {
            show_progress(reader, &name, page);
        }
    });
    let reader = &mut ready.reader.tohost;
    for note in reader.take_notes() {
        tell(&format!("{name}: {note}"));
    }
    if let Some(elinks) = given_up {
        let within = waiting.limit_text();
        return Err(Failure::refused(format!(
            "{name}: nobody subscribed to {elinks} within {within}; subscribe to all, give --wait more time, or begin without them by --no-wait"
        )));
    }
    Ok(ReadDone { name, account, view: reader.card() })
}

fn show_progress(reader: &ToHost, name: &str, page: &Page) {
    let (stats, view) = (reader.stats(), reader.card());
    let errors = stats.bad_blocks + stats.unknown_blocks + stats.missing_blocks;
    let dead = view.dead[2];
    for (metric, value) in [
        ("daqmeter_blocks_total", stats.blocks as f64),
        ("daqmeter_chunks_total", stats.chunks as f64),
        ("daqmeter_bytes_total", stats.bytes as f64),
        ("daqmeter_errors_total", errors as f64),
        ("daqmeter_subscribers", stats.subscribers as f64),
        ("daqmeter_ring_bytes", reader.filled_bytes() as f64),
        ("daqmeter_ring_size_bytes", reader.ring_bytes() as f64),
        ("daqmeter_fifo_bytes", view.fifo_bytes as f64),
        ("daqmeter_busy", (view.flags & 3) as f64),
        ("daqmeter_triggers_total", view.account.issued as f64),
        ("daqmeter_vetoed_triggers_total", dead.vetoed as f64),
        ("daqmeter_dead_seconds_total", dead.ns as f64 * 1e-9),
        ("daqmeter_cpu_seconds_total", cpu_seconds()),
    ] {
        page.set(metric, name, value);
    }
}

/// The accounts of a channel: all E-links added up, and each that does not close or lost something of its own.
fn show_account(done: &ReadDone, verdict: &Verdict, json: bool) -> Result<(), Failure> {
    let ReadDone { name, account, view, .. } = done;
    let ledgers = account.ledgers();
    if json {
        let each: Vec<serde_json::Value> = ledgers
            .iter()
            .map(|(tag, ledger)| serde_json::json!({ "elink": elink_of(*tag).map(|e| e.number()), "tag": format!("{tag:#x}"), "ledger": ledger, "closes": ledger.closes() }))
            .collect();
        let line = serde_json::json!({
            "name": name, "elinks": each, "subscriptions": account.subscriptions, "closes": account.closes(), "card_is_lost": account.card_is_lost,
            "dead": view.dead, "time_ns": view.now_ns, "verdict": verdict,
        });
        return emit(&format!("{line}\n")).map(drop);
    }
    let mut out = format!("{name}\n");
    if account.card_is_lost {
        let read = account.readers.iter().map(|elink| elink.chunks).sum::<u64>();
        let _ = writeln!(out, " {read} chunks read; no ledger can close without the card");
    } else {
        out.push_str(&ledger_text(&ledgers));
    }
    out.push_str(&subscriptions_text(account));
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
    emit(&out).map(drop)
}

/// How many subscriptions there were, and those whose account does not close.
fn subscriptions_text(account: &FinalAccount) -> String {
    let (closed, open): (Vec<&SubscriptionAccount>, Vec<_>) =
        account.subscriptions.iter().partition(|subscription| subscription.gap() == 0);
    let mut out =
        format!(" subscriptions that close: {} of {}\n", closed.len(), account.subscriptions.len());
    for subscription in open {
        let _ = writeln!(
            out,
            "  E-link {}, receiver {:#x}: {} of {} chunks offered are not accounted for",
            elink_name(subscription.tag),
            subscription.receiver,
            subscription.gap(),
            subscription.offered
        );
    }
    out
}
