//! `daqmeter readout emulate`, `tohost` and `receive`: the parts of a chain as processes of their own.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::Args;
use daqmeter_readout::card::{Card, CardView, channel_ids};
use daqmeter_readout::port::{InlinePort, Port};
use daqmeter_readout::receive::{Receiver, Report, elink_of};
use daqmeter_readout::scenario::Publish;
use daqmeter_readout::tohost::{FinalAccount, ToHost};
use daqmeter_readout::transport::bus::{self, Announcement, Entry};
use daqmeter_readout::{Scenario, chain, remote, transport};
use daqmeter_record::Ledger;
use daqmeter_record::units::{show_bytes, show_ns, significant};
use daqmeter_sys::cpu_time;

use super::{Chosen, Length, Network, elink};
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
fn card(scenario: &Scenario, length: Length) -> Result<(Card, Vec<daqmeter_sys::ring::Consumer>), Failure> {
    let (mut card, rings) = Card::new(scenario).map_err(Failure::refused)?;
    if let Some(triggers) = length.triggers {
        card.source().end_after(triggers);
    }
    let time = length.time.or((length.triggers.is_none()).then_some(Duration::from_secs(10)));
    if let Some(time) = time {
        card.source().end_at(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX - 1));
    }
    Ok((card, rings))
}

pub(crate) fn emulate(arguments: &EmulateArguments) -> Result<ExitCode, Failure> {
    let scenario = arguments.chosen.load()?;
    let (card, rings) = card(&scenario, arguments.length)?;
    drop(rings);
    let stop = Arc::new(AtomicBool::new(false));
    on_ctrl_c(&stop)?;
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
        page.set("daqmeter_ring_bytes", &name, card.filled_bytes().into_iter().max().unwrap_or(0) as f64);
        page.set("daqmeter_ring_size_bytes", &name, card.scenario().card.ring.0 as f64);
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

fn exit(good: bool, interrupted: bool) -> ExitCode {
    match (interrupted, good) {
        (true, _) => ExitCode::from(130),
        (false, true) => ExitCode::SUCCESS,
        (false, false) => ExitCode::from(1),
    }
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
    /// CPUs of the readers, in turn
    #[arg(long, value_name = "CPUS", value_parser = cpu_list)]
    pin: Option<CpuList>,
    #[command(flatten)]
    network: Network,
}

/// A reader before it runs.
struct Ready {
    name: String,
    reader: ToHost,
    _announcement: Option<Announcement>,
}

pub(crate) fn tohost(arguments: &TohostArguments) -> Result<ExitCode, Failure> {
    let mut scenario = arguments.chosen.load()?;
    if let Some(address) = &arguments.address {
        scenario.publish.address.clone_from(address);
    }
    let stop = Arc::new(AtomicBool::new(false));
    on_ctrl_c(&stop)?;
    let page = arguments.network.metrics.served()?.unwrap_or_default();
    let count = channel_ids(&scenario).len();
    let channels = arguments.channels.clone().unwrap_or_else(|| (0..count).collect());
    if let Some(missing) = channels.iter().find(|channel| **channel >= count) {
        return Err(Failure::refused(format!("no channel {missing}; the scenario has 0 to {}", count - 1)));
    }
    if arguments.card.is_none() && channels.len() < count {
        return Err(Failure::refused("a card in this process has all its channels read; --channels needs --card"));
    }
    let mut ports: Vec<(usize, Box<dyn Port>)> = Vec::new();
    match &arguments.card {
        Some(path) => {
            for at in channels {
                let found = remote::connect(path, &scenario, at).map_err(Failure::refused)?;
                ports.push((at, Box::new(found)));
            }
        }
        None => {
            let (card, rings) = card(&scenario, arguments.length)?;
            scenario = card.scenario().clone();
            let card = Arc::new(Mutex::new(card));
            for (at, ring) in rings.into_iter().enumerate() {
                ports.push((at, Box::new(InlinePort::new(card.clone(), ring).map_err(Failure::refused)?)));
            }
        }
    }
    let mut ready = Vec::new();
    for (nth, (at, port)) in ports.into_iter().enumerate() {
        let publish = Publish { address: nth_address(&scenario.publish.address, nth)?, ..scenario.publish.clone() };
        let (reader, facts) = chain::reader_of(&scenario, port, at, &publish).map_err(Failure::refused)?;
        let id = channel_ids(&scenario)[at];
        let name = format!("tohost {}:{}.{}", scenario.name, id.device, id.channel);
        let facts: Vec<String> = facts.iter().map(|(name, value)| format!("{name} {value}")).collect();
        tell(&format!(
            "{name} publishes at {}{}",
            reader.address(),
            if facts.is_empty() { String::new() } else { format!(" ({})", facts.join(", ")) }
        ));
        let announcement = announce(&arguments.network, &scenario, at, &reader)?;
        ready.push(Ready { name, reader, _announcement: announcement });
    }
    let cpus = arguments.pin.as_ref().map(|list| list.0.clone()).unwrap_or_default();
    let wait = !arguments.no_wait;
    let (page, stop) = (&page, &stop);
    let accounts: Vec<Result<(String, FinalAccount, CardView), Failure>> = std::thread::scope(|scope| {
        let threads: Vec<_> = ready
            .into_iter()
            .enumerate()
            .map(|(nth, ready)| {
                let cpu = cpus.get(nth % cpus.len().max(1)).copied();
                scope.spawn(move || read(ready, cpu, wait, page, stop))
            })
            .collect();
        let panicked = |_| Err(Failure::refused("a reader panicked: a bug in daqmeter, please report it"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    });
    let mut good = true;
    for done in accounts {
        let (name, account, view) = done?;
        good &= account.ledgers().iter().all(|(_, ledger)| ledger.closes());
        show_account(&name, &account, Some(&view), arguments.network.json)?;
    }
    Ok(exit(good, stop.load(Ordering::Relaxed)))
}

/// The next ports for further channels; a port that the host chooses serves all.
fn nth_address(address: &str, nth: usize) -> Result<String, Failure> {
    let Some((host, port)) = address.rsplit_once(':') else { return Ok(address.to_owned()) };
    let Ok(port) = port.parse::<u16>() else { return Ok(address.to_owned()) };
    if port == 0 {
        return Ok(address.to_owned());
    }
    let next = u16::try_from(nth).ok().and_then(|nth| port.checked_add(nth));
    let next = next.ok_or_else(|| Failure::refused(format!("{address}: no port left for channel {nth}")))?;
    Ok(format!("{host}:{next}"))
}

fn announce(
    network: &Network,
    scenario: &Scenario,
    at: usize,
    reader: &ToHost,
) -> Result<Option<Announcement>, Failure> {
    let Some(directory) = &network.bus_dir else { return Ok(None) };
    std::fs::create_dir_all(directory)
        .map_err(|error| Failure::refused(format!("bus directory {}: {error}", directory.display())))?;
    let hello = chain::hello(scenario, at);
    // Listening everywhere says nothing to others: they get the name of this host.
    let mut address = reader.address();
    for any in ["0.0.0.0:", "[::]:"] {
        if let Some(port) = address.strip_prefix(any) {
            let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            address = format!("{}:{port}", host.trim());
        }
    }
    let entry = Entry { address, stream: hello.stream, tags: hello.tags };
    bus::announce(directory, &entry).map(Some).map_err(Failure::refused)
}

fn read(
    mut ready: Ready,
    cpu: Option<u32>,
    wait: bool,
    page: &Page,
    stop: &AtomicBool,
) -> Result<(String, FinalAccount, CardView), Failure> {
    chain::pin(cpu).map_err(|error| {
        // The others would wait for this one's channel.
        stop.store(true, Ordering::Relaxed);
        Failure::refused(error)
    })?;
    let name = ready.name.clone();
    let ring_bytes = ready.reader.ring_bytes() as f64;
    let mut turns = 0_u32;
    let account = ready.reader.run(stop, wait, |reader| {
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
        page.set("daqmeter_vetoed_triggers_total", &name, view.dead[2].vetoed as f64);
        page.set("daqmeter_dead_seconds_total", &name, view.dead[2].ns as f64 * 1e-9);
        page.set("daqmeter_cpu_seconds_total", &name, cpu_seconds());
    });
    for note in ready.reader.take_notes() {
        tell(&format!("{}: {note}", ready.name));
    }
    let view = ready.reader.card();
    Ok((ready.name, account, view))
}

/// The accounts of a channel: all E-links added up, and each that does not close or lost something of its own.
fn show_account(name: &str, account: &FinalAccount, view: Option<&CardView>, json: bool) -> Result<(), Failure> {
    let ledgers = account.ledgers();
    if json {
        let each: Vec<serde_json::Value> = ledgers
            .iter()
            .map(|(tag, ledger)| serde_json::json!({ "elink": elink_of(*tag).map(|e| e.number()), "tag": format!("{tag:#x}"), "ledger": ledger, "closes": ledger.closes() }))
            .collect();
        let dead = view.map(|view| view.dead);
        let line =
            serde_json::json!({ "name": name, "elinks": each, "dead": dead, "time_ns": view.map(|view| view.now_ns) });
        return emit(&format!("{line}\n")).map(drop);
    }
    let mut out = format!("{name}\n");
    out.push_str(&ledger_text(&ledgers));
    if let Some(view) = view {
        let share = |ns: u64| significant(ns as f64 / view.now_ns.max(1) as f64 * 100.0, 3);
        let [dma, fifo, any] = view.dead;
        let _ = writeln!(
            out,
            " dead time: {} % of {} ({} by DMA, {} by FIFO), {} intervals, longest {}; triggers stopped: {}",
            share(any.ns),
            show_ns(view.now_ns as f64),
            share(dma.ns),
            share(fifo.ns),
            any.count,
            show_ns(any.longest_ns as f64),
            any.vetoed,
        );
    }
    emit(&out).map(drop)
}

fn ledger_text(ledgers: &[(u64, Ledger)]) -> String {
    let mut all = Ledger::new("triggers x E-links");
    for (_, ledger) in ledgers {
        all.add(&Ledger { unit: all.unit.clone(), ..ledger.clone() });
    }
    // What did not happen is left out; that the sum closes says that it was watched.
    let mut shown = all.clone();
    shown.losses.retain(|_, count| *count > 0);
    let mut out = format!(" ledger: {shown}\n");
    let closed = ledgers.iter().filter(|(_, ledger)| ledger.closes()).count();
    let _ = writeln!(out, " accounts that close: {closed} of {} E-links", ledgers.len());
    for (tag, ledger) in ledgers.iter().filter(|(_, ledger)| !ledger.closes()) {
        let elink = elink_of(*tag).map_or_else(|| format!("{tag:#x}"), |elink| format!("{:#05x}", elink.number()));
        let _ = writeln!(out, "  E-link {elink}: {ledger}");
    }
    out
}

/// Subscribe to publishers and check all that comes: a software read-out driver for tests.
#[derive(Debug, Args)]
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
    network: Network,
}

impl ReceiveArguments {
    fn tags(&self) -> Vec<u64> {
        use daqmeter_wire::felix::Elink;
        use daqmeter_wire::felix::payload::Fid;
        let of = |device: &u16| {
            let device = *device;
            self.elinks.iter().map(move |number| Fid::of_elink(0, device, Elink::new(*number)).to_u64())
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
            return Ok(self.publishers.iter().map(|address| (publish(address), tags.clone())).collect());
        };
        let found = bus::find(directory, &tags).map_err(Failure::refused)?;
        Ok(found.iter().map(|(address, tags)| (publish(address), tags.clone())).collect())
    }

    /// Connects, and waits for publishers that are not there yet.
    fn connect(&self) -> Result<Receiver, Failure> {
        let begin = std::time::Instant::now();
        loop {
            let tried = self.wanted().and_then(|wanted| {
                let way = transport::named(&self.transport).map_err(Failure::refused)?;
                Receiver::connect(way, &wanted).map_err(Failure::refused)
            });
            match tried {
                Ok(receiver) => return Ok(receiver),
                Err(failure) if begin.elapsed() > self.patience => return Err(failure),
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    }
}

pub(crate) fn receive(arguments: &ReceiveArguments) -> Result<ExitCode, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    on_ctrl_c(&stop)?;
    let page = arguments.network.metrics.served()?.unwrap_or_default();
    chain::pin(arguments.pin).map_err(Failure::refused)?;
    let mut receiver = arguments.connect()?;
    receiver.dawdle = arguments.slow;
    let name = format!("receiver {}", std::process::id());
    let report = receiver.run(&stop, arguments.patience, |receiver| {
        for note in receiver.take_notes() {
            tell(&format!("daqmeter: {note}"));
        }
        let report = receiver.report();
        let faults = report.faults();
        page.set("daqmeter_chunks_total", &name, report.chunks() as f64);
        page.set("daqmeter_bytes_total", &name, report.bytes as f64);
        page.set("daqmeter_errors_total", &name, (faults.missing + faults.payload + report.bad_pages) as f64);
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
    report.refused.iter().for_each(|why| tell(&format!("daqmeter: {why}")));
    show_report(&name, &report, arguments.network.json)?;
    let bad = report.faults().payload + report.bad_pages > 0;
    Ok(exit(!bad && report.chunks() > 0, stop.load(Ordering::Relaxed)))
}

fn show_report(name: &str, report: &Report, json: bool) -> Result<(), Failure> {
    let (seconds, faults) = (report.span_ns as f64 * 1e-9, report.faults());
    let rate = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
    let latency = &report.latency_ns;
    if json {
        let line = serde_json::json!({
            "name": name, "chunks": report.chunks(), "pages": report.pages, "bytes": report.bytes, "seconds": seconds,
            "streams": report.streams, "faults": faults, "lost_connections": report.lost, "bad_pages": report.bad_pages,
            "publishers_ended": report.accounts.len(),
            "latency_ns": { "p50": latency.quantile(0.5), "p90": latency.supported_quantile(0.9), "p99": latency.supported_quantile(0.99), "max": latency.max() },
        });
        return emit(&format!("{line}\n")).map(drop);
    }
    let mut out =
        format!("{name}\n {} chunks of {} E-links in {} pages", report.chunks(), report.streams.len(), report.pages);
    let _ = writeln!(
        out,
        ", {} over {}: {} M chunks/s, {} Gb/s",
        show_bytes(report.bytes),
        show_ns(report.span_ns as f64),
        significant(rate(report.chunks()) / 1e6, 4),
        significant(rate(report.bytes) * 8e-9, 4)
    );
    if latency.count() > 0 {
        let at = |share: f64| latency.supported_quantile(share).map_or("-".to_owned(), |ns| show_ns(ns as f64));
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
    let sum = |of: fn(&daqmeter_readout::receive::StreamReport) -> u64| report.streams.iter().map(of).sum::<u64>();
    let _ = writeln!(
        out,
        " events missing {} ({} jumps), wrong payloads {}, cut off {}, flagged {}, bad pages {}, connections lost {}",
        faults.missing,
        faults.jumps,
        faults.payload,
        sum(|stream| stream.truncated),
        sum(|stream| stream.flagged),
        report.bad_pages,
        report.lost
    );
    if !report.accounts.is_empty() {
        let ledgers: Vec<(u64, Ledger)> = report.accounts.iter().flat_map(FinalAccount::ledgers).collect();
        out.push_str(&ledger_text(&ledgers));
    }
    emit(&out).map(drop)
}
