//! `daqmeter readout receive`: a subscriber that checks all that comes.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use clap::Args;
use daqmeter_readout::receive::{Receiver, Report};
use daqmeter_readout::scenario::{Publish, check_congestion};
use daqmeter_readout::transport::bus;
use daqmeter_readout::{chain, transport};
use daqmeter_record::units::{show_bytes, show_ns, significant};
use daqmeter_wire::felix::Elink;
use daqmeter_wire::felix::payload::Fid;

use super::ledgers::{cpu_seconds, ledger_text, not_closed};
use super::options::{Instance, Network, Waiting, elink, publish};
use super::verdict::{Findings, Judgement, Measure, ReceiveLimits, Verdict};
use crate::arguments::duration;
use crate::metrics::Page;
use crate::output::{Failure, emit, tell};

/// Subscribe to publishers and check all that comes: a software read-out driver for tests.
#[derive(Debug, Clone, Args)]
pub(crate) struct Arguments {
    /// Publishers: host:port; those of --bus-dir without it
    #[arg(required_unless_present = "bus_dir")]
    publishers: Vec<String>,
    /// E-links to subscribe to; all without it
    #[arg(long, value_name = "ELINK,..", value_delimiter = ',', value_parser = elink)]
    elinks: Vec<u16>,
    /// Devices of those E-links
    #[arg(
        long,
        value_name = "N,..",
        value_delimiter = ',',
        default_value = "0",
        requires = "elinks"
    )]
    devices: Vec<u16>,
    /// Wait so long for publishers that are not there yet
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10s")]
    patience: Duration,
    /// Wait so long for the first data
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10m")]
    wait: Duration,
    /// Delay after each page, as of a slow consumer
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
    limits: ReceiveLimits,
    #[command(flatten)]
    network: Network,
}

impl Arguments {
    fn verdict(&self, report: &Report) -> Verdict {
        let mut findings = Findings::default();
        let (faults, chunks) = (report.faults(), report.chunks());
        if chunks == 0 {
            findings.fails("no event came");
        }
        let lost_cards = report.accounts.iter().filter(|one| one.card_is_lost).count();
        for (count, what) in [
            (not_closed(&report.ledgers), "accounts that do not close"),
            (lost_cards as u64, "publishers whose card ended before its triggers did"),
            (faults.payload, "events with wrong bytes"),
            (faults.wrong_elink, "events of another E-link"),
            (report.bad_pages, "pages that cannot be read"),
            (report.refused.len() as u64, "publishers that refused"),
        ] {
            findings.fault(count, what);
        }
        let cut = report.sum(|stream| stream.truncated);
        findings.values(&[
            (Measure::Loss, faults.missing + cut, chunks + faults.missing),
            (Measure::Order, faults.duplicates + faults.out_of_order, chunks),
            (Measure::Connections, report.lost, 0),
            (Measure::Flags, report.sum(|stream| stream.flagged), chunks),
            (Measure::Resets, faults.resets, chunks),
        ]);
        findings.fell_to_0(faults.falls, faults.falls_missing);
        findings.verdict(&self.limits.fail_on)
    }

    fn wanted(&self) -> Result<Vec<(Publish, Vec<u64>)>, Failure> {
        let tag = |device, number| Fid::of_elink(0, device, Elink::new(number)).to_u64();
        let elinks = &self.elinks;
        let of =
            |device: &u16| elinks.iter().map(|number| tag(*device, *number)).collect::<Vec<_>>();
        let tags: Vec<u64> = self.devices.iter().flat_map(of).collect();
        let found = match &self.network.bus_dir {
            Some(directory) => bus::find(directory, &tags).map_err(Failure::refused)?,
            None => self.publishers.iter().map(|at| (at.clone(), tags.clone())).collect(),
        };
        let publish = |address: String| Publish {
            transport: self.transport.clone(),
            address,
            congestion: self.congestion.clone(),
            ..Publish::default()
        };
        Ok(found.into_iter().map(|(address, tags)| (publish(address), tags)).collect())
    }

    fn connect(&self, stop: &AtomicBool) -> Result<Receiver, Failure> {
        let mut waiting = Waiting::new(self.patience);
        let quit = || stop.load(Ordering::Relaxed);
        loop {
            let tried = self.wanted().and_then(|wanted| {
                let way = transport::named(&self.transport).map_err(Failure::refused)?;
                Receiver::connect(way.as_ref(), &wanted, &quit).map_err(Failure::refused)
            });
            match tried {
                Err(failure) if !waiting.is_over() && !quit() => {
                    waiting.say(|| format!("publishers: {}", failure.line()));
                }
                tried => return tried,
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Connects in a thread of its own, since the resolution of names may take long. Returns `None`
    /// if it is to stop.
    fn connect_meanwhile(&self, stop: &Arc<AtomicBool>) -> Result<Option<Receiver>, Failure> {
        let (ended, connected) = std::sync::mpsc::channel();
        let (arguments, asked) = (self.clone(), stop.clone());
        // The thread ends with the program.
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
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let instance = Instance::begin(&arguments.network.metrics)?;
    chain::pin(arguments.pin).map_err(Failure::refused)?;
    check_congestion(&arguments.congestion)
        .map_err(|what| Failure::refused(format!("--congestion: {what}")))?;
    let Some(mut receiver) = arguments.connect_meanwhile(&instance.stop)? else {
        tell("daqmeter: interrupted before a publisher was reached");
        return Ok(Judgement::Passed.exit(true));
    };
    receiver.delay = arguments.slow;
    let name = format!("receiver {}", std::process::id());
    let report = received(&mut receiver, arguments, &name, &instance)?;
    for why in &report.refused {
        tell(&format!("daqmeter: {why}"));
    }
    let verdict = arguments.verdict(&report);
    let text = if arguments.network.json { json_line } else { report_text };
    emit(&text(&name, &report, &verdict))?;
    Ok(verdict.judgement().exit(instance.is_stopped()))
}

/// Receives to the end of the publishers, until it is to stop, or until no data came for too long.
fn received(
    receiver: &mut Receiver,
    arguments: &Arguments,
    name: &str,
    instance: &Instance,
) -> Result<Report, Failure> {
    let (mut waiting, ended) = (Waiting::new(arguments.wait), AtomicBool::new(false));
    const BEGINS: &str = "a publisher begins when each of its E-links has a subscriber";
    let report = receiver.run(&ended, |receiver| {
        let is_waiting = !receiver.has_data();
        if is_waiting {
            waiting.say(|| format!("data: {BEGINS}"));
        }
        let is_over = instance.is_stopped() || is_waiting && waiting.is_over();
        ended.store(is_over, Ordering::Relaxed);
        for note in receiver.take_notes() {
            tell(&format!("daqmeter: {note}"));
        }
        show_progress(&receiver.report(), name, &instance.page);
    });
    if report.chunks() == 0
        && let Some(why) = report.refused.first()
    {
        return Err(Failure::refused(why));
    }
    let nothing_came = report.pages == 0 && report.accounts.is_empty();
    if nothing_came && waiting.is_over() && !instance.is_stopped() {
        let within = waiting.limit_text();
        return Err(Failure::refused(format!(
            "no data came within {within}: {BEGINS}, or by --no-wait"
        )));
    }
    Ok(report)
}

fn show_progress(report: &Report, name: &str, page: &Page) {
    let faults = report.faults();
    let errors = faults.missing + faults.payload + faults.wrong_elink + report.bad_pages;
    let values = [
        ("daqmeter_chunks_total", report.chunks() as f64),
        ("daqmeter_bytes_total", report.bytes as f64),
        ("daqmeter_errors_total", errors as f64),
        ("daqmeter_lost_connections_total", report.lost as f64),
        ("daqmeter_cpu_seconds_total", cpu_seconds()),
    ];
    publish(page, name, &values);
    if let Some(ns) = report.latency_ns.supported_quantile(0.99) {
        page.set("daqmeter_latency_p99_seconds", name, ns as f64 * 1e-9);
    }
}

fn json_line(name: &str, report: &Report, verdict: &Verdict) -> String {
    let (latency, of) = (&report.latency_ns, report.ledgers.len());
    let line = serde_json::json!({
        "name": name, "chunks": report.chunks(), "pages": report.pages, "bytes": report.bytes, "seconds": report.span_ns as f64 * 1e-9,
        "streams": report.streams, "faults": report.faults(), "lost_connections": report.lost, "bad_pages": report.bad_pages,
        "publishers_ended": report.accounts.len(),
        "accounts": { "closed": of as u64 - not_closed(&report.ledgers), "of": of },
        "verdict": verdict,
        "latency_ns": { "p50": latency.quantile(0.5), "p90": latency.supported_quantile(0.9), "p99": latency.supported_quantile(0.99), "max": latency.max() },
    });
    format!("{line}\n")
}

fn report_text(name: &str, report: &Report, verdict: &Verdict) -> String {
    let seconds = report.span_ns as f64 * 1e-9;
    let rate = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
    let mut out = format!(
        "{name}\n {} chunks of {} E-links in {} pages, {} over {}: {} M chunks/s, {} Gb/s\n",
        report.chunks(),
        report.streams.len(),
        report.pages,
        show_bytes(report.bytes),
        show_ns(report.span_ns as f64),
        significant(rate(report.chunks()) / 1e6, 4),
        significant(rate(report.bytes) * 8e-9, 4)
    );
    let latency = &report.latency_ns;
    if latency.count() > 0 {
        let at = |(name, share): (&str, f64)| {
            let ns = latency.supported_quantile(share);
            format!("{name} {}, ", ns.map_or("-".to_owned(), |ns| show_ns(ns as f64)))
        };
        let shares = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)].map(at).concat();
        let max = show_ns(latency.max() as f64);
        let _ = writeln!(out, " oldest trigger of a page to its receipt: {shares}max {max}");
    }
    let faults = report.faults();
    let counts = [
        ("events missing", faults.missing),
        ("twice", faults.duplicates),
        ("late", faults.out_of_order),
        ("counters reset", faults.resets),
        ("fallen to 0", faults.falls),
        ("wrong payloads", faults.payload),
        ("of another E-link", faults.wrong_elink),
        ("cut off", report.sum(|stream| stream.truncated)),
        ("flagged", report.sum(|stream| stream.flagged)),
        ("bad pages", report.bad_pages),
        ("connections lost", report.lost),
    ];
    let counts = counts.map(|(what, count)| format!("{what} {count}")).join(", ");
    let _ = writeln!(out, " {counts}");
    if !report.ledgers.is_empty() {
        out.push_str(&ledger_text(&report.ledgers));
    }
    let _ = writeln!(out, " {verdict}");
    out
}
