//! `daqmeter readout emulate`, `tohost` and `receive`: the parts of a chain as processes of their own.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::Args;
use daqmeter_readout::accounts::SubscriptionAccount;
use daqmeter_readout::card::{Card, CardView, channel_ids};
use daqmeter_readout::port::{InlinePort, Port};
use daqmeter_readout::receive::{LookUp, Receiver, Report, elink_of};
use daqmeter_readout::remote::RemoteError;
use daqmeter_readout::scenario::{Publish, check_congestion};
use daqmeter_readout::tohost::{FinalAccount, ToHost};
use daqmeter_readout::transport::bus::{self, Announcement, Entry};
use daqmeter_readout::{Chosen, Scenario, accounts, chain, remote, transport};
use daqmeter_record::Ledger;
use daqmeter_record::units::{show_bytes, show_ns, significant};
use daqmeter_sys::cpu_time;

use super::verdict::{Found, Measure, OfReceive, OfTohost, Verdict};
use super::waiting::Waiting;
use super::{Length, Network, elink, exit, load};
use crate::arguments::{cpu_list, duration};
use crate::metrics::Page;
use crate::output::{Failure, emit, tell};
use crate::run::{CpuList, on_ctrl_c};

/// Emulate a card for readers in other processes (tohost --card).
#[derive(Debug, Args)]
pub(crate) struct EmulateArguments {
    #[command(flatten)]
    chosen: Chosen,
    /// Socket at which readers ask for their channels
    #[arg(long, value_name = "PATH")]
    at: PathBuf,
    #[command(flatten)]
    length: Length,
    /// CPU of the card
    #[arg(long, value_name = "CPU")]
    pin: Option<u32>,
    #[command(flatten)]
    network: Network,
}

/// A card whose triggers end as was asked; without a word, after ten seconds.
fn card(
    scenario: &Scenario,
    length: Length,
) -> Result<(Card, Vec<daqmeter_sys::ring::Consumer>), Failure> {
    let (mut card, rings) = Card::new(scenario).map_err(Failure::refused)?;
    if let Some(triggers) = length.triggers {
        card.source().end_after(triggers);
    }
    let time = length
        .time
        .or((length.triggers.is_none()).then_some(Duration::from_secs(10)));
    if let Some(time) = time {
        card.source()
            .end_at(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX - 1));
    }
    Ok((card, rings))
}

pub(crate) fn emulate(arguments: &EmulateArguments) -> Result<ExitCode, Failure> {
    let scenario = load(&arguments.chosen)?;
    let stop = Arc::new(AtomicBool::new(false));
    on_ctrl_c(&stop)?;
    let (card, rings) = card(&scenario, arguments.length)?;
    drop(rings);
    let page = arguments.network.metrics.served()?.unwrap_or_default();
    let mut server = remote::Server::bind(card, &arguments.at).map_err(Failure::refused)?;
    chain::pin(arguments.pin).map_err(Failure::refused)?;
    let at = arguments.at.display();
    tell(&format!(
        "{}: {} channels at {at}; triggers begin when all have readers",
        scenario.name,
        channel_ids(&scenario).len()
    ));
    let name = format!("card {}", scenario.name);
    server.run(&stop, |server| {
        let (card, now_ns) = (server.card(), server.card().now_ns());
        page.set("daqmeter_triggers_total", &name, card.issued() as f64);
        let dead = card.line().all(now_ns);
        page.set("daqmeter_dead_seconds_total", &name, dead.ns as f64 * 1e-9);
        page.set("daqmeter_vetoed_triggers_total", &name, dead.vetoed as f64);
        page.set(
            "daqmeter_ring_bytes",
            &name,
            card.filled_bytes().into_iter().max().unwrap_or(0) as f64,
        );
        page.set(
            "daqmeter_ring_size_bytes",
            &name,
            card.scenario().card.ring.0 as f64,
        );
        page.set("daqmeter_cpu_seconds_total", &name, cpu_seconds());
    });
    let card = server.card();
    let dead = card.line().all(card.now_ns());
    let line = format!(
        "{} triggers in {}, {} stopped by BUSY, dead time {} %\n",
        card.issued(),
        show_ns(card.now_ns() as f64),
        dead.vetoed,
        significant(dead.ns as f64 / card.now_ns().max(1) as f64 * 100.0, 3),
    );
    emit(&line)?;
    Ok(exit(true, stop.load(Ordering::Relaxed)))
}

/// CPU time of the calling thread.
fn cpu_seconds() -> f64 {
    let usage = cpu_time::of_thread();
    (usage.user_ns + usage.system_ns) as f64 * 1e-9
}

/// Read rings and publish their data; a reader per DMA channel.
#[derive(Debug, Args)]
pub(crate) struct TohostArguments {
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

impl TohostArguments {
    /// What became of a channel's triggers.
    fn verdict(&self, account: &FinalAccount, view: &CardView) -> Verdict {
        let mut found = Found::default();
        let ledgers = account.ledgers();
        found.fault(open(&ledgers), "accounts that do not close");
        let open = account
            .subscriptions
            .iter()
            .filter(|subscription| subscription.gap() != 0);
        found.fault(open.count() as u64, "subscriptions that do not close");
        let sum = |name: &str| {
            ledgers
                .iter()
                .filter_map(|(_, ledger)| ledger.losses.get(name))
                .sum::<u64>()
        };
        let unheard = if self.no_wait {
            sum(accounts::NOT_SUBSCRIBED)
        } else {
            0
        };
        let issued = ledgers.iter().map(|(_, ledger)| ledger.issued).sum();
        found.value(Measure::Loss, account.lost_on_the_way() - unheard, issued);
        found.value(Measure::Flags, sum(accounts::FLAGGED), issued);
        found.value(Measure::Dead, view.dead[2].ns, view.now_ns);
        found.verdict(&self.limits.fail_on)
    }
}

/// Accounts that do not close.
fn open(ledgers: &[(u64, Ledger)]) -> u64 {
    ledgers
        .iter()
        .filter(|(_, ledger)| !ledger.closes())
        .count() as u64
}

/// A reader before it runs.
struct Ready {
    name: String,
    reader: ToHost,
    _announcement: Option<Announcement>,
}

/// Asks for a channel of a card, and waits for the card; none when it is to stop.
fn reach(
    path: &std::path::Path,
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

pub(crate) fn tohost(arguments: &TohostArguments) -> Result<ExitCode, Failure> {
    let mut scenario = load(&arguments.chosen)?;
    if let Some(address) = &arguments.address {
        scenario.publish.address.clone_from(address);
    }
    let stop = Arc::new(AtomicBool::new(false));
    on_ctrl_c(&stop)?;
    let page = arguments.network.metrics.served()?.unwrap_or_default();
    let count = channel_ids(&scenario).len();
    let channels = arguments
        .channels
        .clone()
        .unwrap_or_else(|| (0..count).collect());
    if let Some(missing) = channels.iter().find(|channel| **channel >= count) {
        return Err(Failure::refused(format!(
            "no channel {missing}; the scenario has 0 to {}",
            count - 1
        )));
    }
    if arguments.card.is_none() && channels.len() < count {
        return Err(Failure::refused(
            "a card in this process has all its channels read; --channels needs --card",
        ));
    }
    let mut ports: Vec<(usize, Box<dyn Port>)> = Vec::new();
    match &arguments.card {
        Some(path) => {
            for at in channels {
                let Some(port) = reach(path, &scenario, at, arguments.patience, &stop)? else {
                    return Ok(exit(true, true));
                };
                ports.push((at, port));
            }
        }
        None => {
            let (card, rings) = card(&scenario, arguments.length)?;
            scenario = card.scenario().clone();
            let card = Arc::new(Mutex::new(card));
            for (at, ring) in rings.into_iter().enumerate() {
                ports.push((
                    at,
                    Box::new(InlinePort::new(card.clone(), ring).map_err(Failure::refused)?),
                ));
            }
        }
    }
    let mut ready = Vec::new();
    for (nth, (at, port)) in ports.into_iter().enumerate() {
        let publish = Publish {
            address: nth_address(&scenario.publish.address, nth)?,
            ..scenario.publish.clone()
        };
        let (reader, facts) =
            chain::reader_of(&scenario, port, at, &publish).map_err(Failure::refused)?;
        let id = channel_ids(&scenario)[at];
        let name = format!("tohost {}:{}.{}", scenario.name, id.device, id.channel);
        let facts: Vec<String> = facts
            .iter()
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        tell(&format!(
            "{name} publishes at {}{}",
            reader.address(),
            if facts.is_empty() {
                String::new()
            } else {
                format!(" ({})", facts.join(", "))
            }
        ));
        let announcement = announce(&arguments.network, &scenario, at, &reader)?;
        ready.push(Ready {
            name,
            reader,
            _announcement: announcement,
        });
    }
    let cpus = arguments
        .pin
        .as_ref()
        .map(|list| list.0.clone())
        .unwrap_or_default();
    let wait = (!arguments.no_wait).then_some(arguments.wait);
    let (page, stop) = (&page, &stop);
    let accounts: Vec<Result<ReadDone, Failure>> = std::thread::scope(|scope| {
        let threads: Vec<_> = ready
            .into_iter()
            .enumerate()
            .map(|(nth, ready)| {
                let cpu = cpus.get(nth % cpus.len().max(1)).copied();
                scope.spawn(move || read(ready, cpu, wait, page, stop))
            })
            .collect();
        let panicked = |_| {
            Err(Failure::refused(
                "a reader panicked: a bug in daqmeter, please report it",
            ))
        };
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(panicked))
            .collect()
    });
    let mut good = true;
    for done in accounts {
        let ReadDone {
            name,
            account,
            view,
            card_is_lost,
        } = done?;
        let verdict = arguments.verdict(&account, &view);
        good &= !card_is_lost && verdict.is_passed();
        show_account(&name, &account, &view, &verdict, arguments.network.json)?;
    }
    Ok(exit(good, stop.load(Ordering::Relaxed)))
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
    let next = u16::try_from(nth)
        .ok()
        .and_then(|nth| port.checked_add(nth));
    let next =
        next.ok_or_else(|| Failure::refused(format!("{address}: no port left for channel {nth}")))?;
    Ok(format!("{host}:{next}"))
}

fn announce(
    network: &Network,
    scenario: &Scenario,
    at: usize,
    reader: &ToHost,
) -> Result<Option<Announcement>, Failure> {
    let Some(directory) = &network.bus_dir else {
        return Ok(None);
    };
    std::fs::create_dir_all(directory).map_err(|error| {
        Failure::refused(format!("bus directory {}: {error}", directory.display()))
    })?;
    let hello = chain::hello(scenario, at);
    // Listening everywhere says nothing to others: they get the name of this host.
    let mut address = reader.address();
    for any in ["0.0.0.0:", "[::]:"] {
        if let Some(port) = address.strip_prefix(any) {
            let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            address = format!("{}:{port}", host.trim());
        }
    }
    let entry = Entry {
        address,
        stream: hello.stream,
        tags: hello.tags,
    };
    bus::announce(directory, &entry)
        .map(Some)
        .map_err(Failure::refused)
}

/// A reader that has ended.
struct ReadDone {
    name: String,
    account: FinalAccount,
    view: CardView,
    card_is_lost: bool,
}

/// The E-links that nobody has subscribed to: how many, and the first of them.
fn without_subscriber(reader: &ToHost) -> String {
    const MAX_NAMED: usize = 4;
    let missing = reader.without_subscriber();
    let mut named: Vec<String> = missing
        .iter()
        .take(MAX_NAMED)
        .map(|elink| format!("{:#05x}", elink.number()))
        .collect();
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
    let name = ready.name.clone();
    let ring_bytes = ready.reader.ring_bytes() as f64;
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
        if !turns.is_multiple_of(10) {
            return;
        }
        let (stats, view) = (reader.stats(), reader.card());
        page.set("daqmeter_blocks_total", &name, stats.blocks as f64);
        page.set("daqmeter_chunks_total", &name, stats.chunks as f64);
        page.set("daqmeter_bytes_total", &name, stats.bytes as f64);
        page.set(
            "daqmeter_errors_total",
            &name,
            (stats.bad_blocks + stats.unknown_blocks + stats.missing_blocks) as f64,
        );
        page.set("daqmeter_subscribers", &name, stats.subscribers as f64);
        page.set("daqmeter_ring_bytes", &name, reader.filled_bytes() as f64);
        page.set("daqmeter_ring_size_bytes", &name, ring_bytes);
        page.set("daqmeter_fifo_bytes", &name, view.fifo_bytes as f64);
        page.set("daqmeter_busy", &name, (view.flags & 3) as f64);
        page.set("daqmeter_triggers_total", &name, view.account.issued as f64);
        page.set(
            "daqmeter_vetoed_triggers_total",
            &name,
            view.dead[2].vetoed as f64,
        );
        page.set(
            "daqmeter_dead_seconds_total",
            &name,
            view.dead[2].ns as f64 * 1e-9,
        );
        page.set("daqmeter_cpu_seconds_total", &name, cpu_seconds());
    });
    for note in ready.reader.take_notes() {
        tell(&format!("{}: {note}", ready.name));
    }
    if let Some(elinks) = given_up {
        let within = waiting.limit_text();
        return Err(Failure::refused(format!(
            "{name}: nobody subscribed to {elinks} within {within}; subscribe to all, give --wait more time, or begin without them by --no-wait"
        )));
    }
    let (view, card_is_lost) = (ready.reader.card(), ready.reader.card_is_lost());
    Ok(ReadDone {
        name: ready.name,
        account,
        view,
        card_is_lost,
    })
}

/// The accounts of a channel: all E-links added up, and each that does not close or lost something of its own.
fn show_account(
    name: &str,
    account: &FinalAccount,
    view: &CardView,
    verdict: &Verdict,
    json: bool,
) -> Result<(), Failure> {
    let ledgers = account.ledgers();
    if json {
        let each: Vec<serde_json::Value> = ledgers
            .iter()
            .map(|(tag, ledger)| serde_json::json!({ "elink": elink_of(*tag).map(|e| e.number()), "tag": format!("{tag:#x}"), "ledger": ledger, "closes": ledger.closes() }))
            .collect();
        let line = serde_json::json!({
            "name": name, "elinks": each, "subscriptions": account.subscriptions, "closes": account.closes(),
            "dead": view.dead, "time_ns": view.now_ns, "verdict": verdict,
        });
        return emit(&format!("{line}\n")).map(drop);
    }
    let mut out = format!("{name}\n");
    out.push_str(&ledger_text(&ledgers));
    out.push_str(&subscriptions_text(account));
    let share = |ns: u64| significant(ns as f64 / view.now_ns.max(1) as f64 * 100.0, 3);
    let [dma, fifo, any] = view.dead;
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
    let (closed, open): (Vec<&SubscriptionAccount>, Vec<_>) = account
        .subscriptions
        .iter()
        .partition(|subscription| subscription.gap() == 0);
    let mut out = format!(
        " subscriptions that close: {} of {}\n",
        closed.len(),
        account.subscriptions.len()
    );
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

fn elink_name(tag: u64) -> String {
    elink_of(tag).map_or_else(
        || format!("{tag:#x}"),
        |elink| format!("{:#05x}", elink.number()),
    )
}

fn ledger_text(ledgers: &[(u64, Ledger)]) -> String {
    let mut all = Ledger::new("triggers x E-links");
    for (_, ledger) in ledgers {
        all.add(&Ledger {
            unit: all.unit.clone(),
            ..ledger.clone()
        });
    }
    // What did not happen is left out; that the sum closes says that it was watched.
    let mut shown = all.clone();
    shown.losses.retain(|_, count| *count > 0);
    let mut out = format!(" ledger: {shown}\n");
    let closed = ledgers.len() as u64 - open(ledgers);
    let _ = writeln!(
        out,
        " accounts that close: {closed} of {} E-links",
        ledgers.len()
    );
    for (tag, ledger) in ledgers.iter().filter(|(_, ledger)| !ledger.closes()) {
        let _ = writeln!(out, "  E-link {}: {ledger}", elink_name(*tag));
    }
    out
}

/// Subscribe to publishers and check all that comes: a software read-out driver for tests.
#[derive(Debug, Clone, Args)]
pub(crate) struct ReceiveArguments {
    /// Publishers: host:port; those of --bus-dir without it
    #[arg(required_unless_present = "bus_dir")]
    publishers: Vec<String>,
    /// E-links to subscribe to; all without it
    #[arg(long, value_name = "ELINK,..", value_delimiter = ',', value_parser = elink)]
    elinks: Vec<u16>,
    /// Devices of those E-links
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "0")]
    devices: Vec<u16>,
    /// Wait so long for publishers that are not there (yet, or any more)
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10s")]
    patience: Duration,
    /// Wait so long for the first data
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10m")]
    wait: Duration,
    /// Dawdle so long after each page, as a slow consumer
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "0s")]
    slow: Duration,
    /// tcp, or zenoh where that was built in
    #[arg(long, value_name = "NAME", default_value = "tcp")]
    transport: String,
    /// Congestion control of the sockets
    #[arg(long, value_name = "NAME", default_value = "reno")]
    congestion: String,
    /// CPU of the receiver
    #[arg(long, value_name = "CPU")]
    pin: Option<u32>,
    #[command(flatten)]
    limits: OfReceive,
    #[command(flatten)]
    network: Network,
}

impl ReceiveArguments {
    /// What came, and what did not.
    fn verdict(&self, report: &Report) -> Verdict {
        let mut found = Found::default();
        let faults = report.faults();
        if report.chunks() == 0 {
            found.fails("no event came");
        }
        found.fault(open(&report.ledgers), "accounts that do not close");
        found.fault(faults.payload, "events with wrong bytes");
        found.fault(faults.wrong_elink, "events of another E-link");
        found.fault(report.bad_pages, "pages that cannot be read");
        found.fault(report.refused.len() as u64, "publishers that refused");
        let cut = report
            .streams
            .iter()
            .map(|stream| stream.truncated)
            .sum::<u64>();
        // What went before this receiver came is not its loss. What its counters and the accounts say are the same events.
        let lost = |ledger: &Ledger| {
            accounts::lost_on_the_way(ledger)
                - ledger
                    .losses
                    .get(accounts::NOT_SUBSCRIBED)
                    .copied()
                    .unwrap_or(0)
        };
        let booked = report
            .ledgers
            .iter()
            .map(|(_, ledger)| lost(ledger))
            .sum::<u64>();
        let loss = booked.max(faults.missing + cut);
        found.value(Measure::Loss, loss, report.chunks() + loss - cut);
        found.value(
            Measure::Order,
            faults.duplicates + faults.out_of_order,
            report.chunks(),
        );
        found.value(Measure::Connections, report.lost, 0);
        let flagged = report
            .streams
            .iter()
            .map(|stream| stream.flagged)
            .sum::<u64>();
        found.value(Measure::Flags, cut + flagged, report.chunks());
        found.value(Measure::Resets, faults.resets, report.chunks());
        found.verdict(&self.limits.fail_on)
    }

    fn tags(&self) -> Vec<u64> {
        use daqmeter_wire::felix::Elink;
        use daqmeter_wire::felix::payload::Fid;
        let of = |device: &u16| {
            let device = *device;
            self.elinks
                .iter()
                .map(move |number| Fid::of_elink(0, device, Elink::new(*number)).to_u64())
        };
        self.devices.iter().flat_map(of).collect()
    }

    /// Who has what is wanted.
    fn wanted(&self) -> Result<Vec<(Publish, Vec<u64>)>, Failure> {
        let publish = |address: &str| Publish {
            transport: self.transport.clone(),
            address: address.to_owned(),
            congestion: self.congestion.clone(),
            ..Publish::default()
        };
        let tags = self.tags();
        let Some(directory) = &self.network.bus_dir else {
            return Ok(self
                .publishers
                .iter()
                .map(|address| (publish(address), tags.clone()))
                .collect());
        };
        let found = bus::find(directory, &tags).map_err(Failure::refused)?;
        Ok(found
            .iter()
            .map(|(address, tags)| (publish(address), tags.clone()))
            .collect())
    }

    /// Connects, and waits for publishers that are not there yet.
    fn connect(&self, stop: &AtomicBool) -> Result<Receiver, Failure> {
        let mut waiting = Waiting::new(self.patience);
        let quit = || stop.load(Ordering::Relaxed);
        loop {
            let tried = self.wanted().and_then(|wanted| {
                let way = transport::named(&self.transport).map_err(Failure::refused)?;
                Receiver::connect_unless(way, &wanted, &quit).map_err(Failure::refused)
            });
            match tried {
                Ok(receiver) => return Ok(receiver),
                Err(failure) if waiting.is_over() || quit() => return Err(failure),
                Err(failure) => waiting.say(|| format!("publishers: {}", failure.line())),
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// The same in a thread of its own: names are resolved there, which may take long. None when it is to stop.
    fn connect_meanwhile(&self, stop: &Arc<AtomicBool>) -> Result<Option<Receiver>, Failure> {
        let (ended, connected) = std::sync::mpsc::channel();
        let (arguments, asked) = (self.clone(), stop.clone());
        // When nobody waits any more, the program ends.
        std::thread::spawn(move || drop(ended.send(arguments.connect(&asked))));
        loop {
            match connected.recv_timeout(Duration::from_millis(50)) {
                _ if stop.load(Ordering::Relaxed) => return Ok(None),
                Ok(receiver) => return receiver.map(Some),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::refused(
                        "a connecting thread panicked: a bug in daqmeter, please report it",
                    ));
                }
            }
        }
    }

    /// Where a publisher is that came back, by the bus directory.
    fn look_up(&self) -> Option<LookUp> {
        let directory = self.network.bus_dir.clone()?;
        Some(Arc::new(move |tags: &[u64]| bus::holder(&directory, tags)))
    }
}

pub(crate) fn receive(arguments: &ReceiveArguments) -> Result<ExitCode, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    on_ctrl_c(&stop)?;
    let page = arguments.network.metrics.served()?.unwrap_or_default();
    chain::pin(arguments.pin).map_err(Failure::refused)?;
    check_congestion(&arguments.congestion)
        .map_err(|what| Failure::refused(format!("--congestion: {what}")))?;
    let Some(mut receiver) = arguments.connect_meanwhile(&stop)? else {
        tell("daqmeter: interrupted before a publisher was reached");
        return Ok(exit(true, true));
    };
    receiver.dawdle = arguments.slow;
    receiver.look_up = arguments.look_up();
    let name = format!("receiver {}", std::process::id());
    let (mut waiting, ended) = (Waiting::new(arguments.wait), AtomicBool::new(false));
    let report = receiver.run(&ended, arguments.patience, |receiver| {
        let is_waiting = !receiver.has_data();
        if is_waiting {
            waiting.say(|| {
                "data: a publisher begins when each of its E-links has a subscriber".to_owned()
            });
        }
        ended.store(
            stop.load(Ordering::Relaxed) || is_waiting && waiting.is_over(),
            Ordering::Relaxed,
        );
        for note in receiver.take_notes() {
            tell(&format!("daqmeter: {note}"));
        }
        let report = receiver.report();
        let faults = report.faults();
        page.set("daqmeter_chunks_total", &name, report.chunks() as f64);
        page.set("daqmeter_bytes_total", &name, report.bytes as f64);
        let errors = faults.missing + faults.payload + faults.wrong_elink + report.bad_pages;
        page.set("daqmeter_errors_total", &name, errors as f64);
        page.set("daqmeter_lost_connections_total", &name, report.lost as f64);
        if let Some(ns) = report.latency_ns.supported_quantile(0.99) {
            page.set("daqmeter_latency_p99_seconds", &name, ns as f64 * 1e-9);
        }
        page.set("daqmeter_cpu_seconds_total", &name, cpu_seconds());
    });
    if report.chunks() == 0
        && let Some(why) = report.refused.first()
    {
        return Err(Failure::refused(why));
    }
    if report.pages == 0
        && report.accounts.is_empty()
        && waiting.is_over()
        && !stop.load(Ordering::Relaxed)
    {
        let within = waiting.limit_text();
        return Err(Failure::refused(format!(
            "no data came within {within}: a publisher begins when each of its E-links has a subscriber, or by --no-wait"
        )));
    }
    report
        .refused
        .iter()
        .for_each(|why| tell(&format!("daqmeter: {why}")));
    let verdict = arguments.verdict(&report);
    show_report(&name, &report, &verdict, arguments.network.json)?;
    Ok(exit(verdict.is_passed(), stop.load(Ordering::Relaxed)))
}

fn show_report(name: &str, report: &Report, verdict: &Verdict, json: bool) -> Result<(), Failure> {
    let (seconds, faults) = (report.span_ns as f64 * 1e-9, report.faults());
    let rate = |count: u64| {
        if seconds > 0.0 {
            count as f64 / seconds
        } else {
            0.0
        }
    };
    let latency = &report.latency_ns;
    if json {
        let line = serde_json::json!({
            "name": name, "chunks": report.chunks(), "pages": report.pages, "bytes": report.bytes, "seconds": seconds,
            "streams": report.streams, "faults": faults, "lost_connections": report.lost, "bad_pages": report.bad_pages,
            "publishers_ended": report.accounts.len(),
            "accounts": { "closed": report.ledgers.len() as u64 - open(&report.ledgers), "of": report.ledgers.len() },
            "verdict": verdict,
            "latency_ns": { "p50": latency.quantile(0.5), "p90": latency.supported_quantile(0.9), "p99": latency.supported_quantile(0.99), "max": latency.max() },
        });
        return emit(&format!("{line}\n")).map(drop);
    }
    let mut out = format!(
        "{name}\n {} chunks of {} E-links in {} pages",
        report.chunks(),
        report.streams.len(),
        report.pages
    );
    let _ = writeln!(
        out,
        ", {} over {}: {} M chunks/s, {} Gb/s",
        show_bytes(report.bytes),
        show_ns(report.span_ns as f64),
        significant(rate(report.chunks()) / 1e6, 4),
        significant(rate(report.bytes) * 8e-9, 4)
    );
    if latency.count() > 0 {
        let at = |share: f64| {
            latency
                .supported_quantile(share)
                .map_or("-".to_owned(), |ns| show_ns(ns as f64))
        };
        let _ = writeln!(
            out,
            " oldest trigger of a page to its receipt: p50 {}, p90 {}, p99 {}, p99.9 {}, max {}",
            at(0.5),
            at(0.9),
            at(0.99),
            at(0.999),
            show_ns(latency.max() as f64)
        );
    }
    let sum = |of: fn(&daqmeter_readout::receive::StreamReport) -> u64| {
        report.streams.iter().map(of).sum::<u64>()
    };
    let _ = writeln!(
        out,
        " events missing {}, twice {}, late {}, counters reset {}, wrong payloads {}, of another E-link {}, cut off {}, flagged {}, bad pages {}, connections lost {}",
        faults.missing,
        faults.duplicates,
        faults.out_of_order,
        faults.resets,
        faults.payload,
        faults.wrong_elink,
        sum(|stream| stream.truncated),
        sum(|stream| stream.flagged),
        report.bad_pages,
        report.lost
    );
    if !report.accounts.is_empty() {
        out.push_str(&ledger_text(&report.ledgers));
    }
    let _ = writeln!(out, " {verdict}");
    emit(&out).map(drop)
}
