//! `daqmeter readout receive`: a subscriber that checks all that comes.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use clap::Args;
use daqmeter_readout::receive::{LookUp, Receiver, Report, StreamReport};
use daqmeter_readout::scenario::{Publish, check_congestion};
use daqmeter_readout::transport::bus;
use daqmeter_readout::{chain, transport};
use daqmeter_record::units::{show_bytes, show_ns, significant};

use super::ledgers::{cpu_seconds, ledger_text, not_closed};
use super::options::{Network, elink};
use super::verdict::{Found, Judgement, Measure, OfReceive, Verdict, fell_to_0};
use super::waiting::Waiting;
use crate::arguments::duration;
use crate::metrics::Page;
use crate::output::{Failure, emit, tell};
use crate::runner::on_ctrl_c;

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

impl Arguments {
    /// What came, and what did not.
    fn verdict(&self, report: &Report) -> Verdict {
        let mut found = Found::default();
        let faults = report.faults();
        if report.chunks() == 0 {
            found.fails("no event came");
        }
        found.fault(not_closed(&report.ledgers), "accounts that do not close");
        let lost_cards = report.accounts.iter().filter(|one| one.card_is_lost);
        found.fault(
            lost_cards.count() as u64,
            "publishers whose card ended before its triggers did",
        );
        found.fault(faults.payload, "events with wrong bytes");
        found.fault(faults.wrong_elink, "events of another E-link");
        found.fault(report.bad_pages, "pages that cannot be read");
        found.fault(report.refused.len() as u64, "publishers that refused");
        let cut = report.streams.iter().map(|stream| stream.truncated).sum::<u64>();
        found.value(Measure::Loss, faults.missing + cut, report.chunks() + faults.missing);
        fell_to_0(&mut found, faults.falls, faults.falls_missing);
        found.value(Measure::Order, faults.duplicates + faults.out_of_order, report.chunks());
        found.value(Measure::Connections, report.lost, 0);
        let flagged = report.streams.iter().map(|stream| stream.flagged).sum::<u64>();
        found.value(Measure::Flags, flagged, report.chunks());
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
        Ok(found.iter().map(|(address, tags)| (publish(address), tags.clone())).collect())
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

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    on_ctrl_c(&stop)?;
    let page = arguments.network.metrics.served()?.unwrap_or_default();
    chain::pin(arguments.pin).map_err(Failure::refused)?;
    check_congestion(&arguments.congestion)
        .map_err(|what| Failure::refused(format!("--congestion: {what}")))?;
    let Some(mut receiver) = arguments.connect_meanwhile(&stop)? else {
        tell("daqmeter: interrupted before a publisher was reached");
        return Ok(Judgement::Passed.exit(true));
    };
    receiver.dawdle = arguments.slow;
    receiver.look_up = arguments.look_up();
    let name = format!("receiver {}", std::process::id());
    let report = received(&mut receiver, arguments, &name, &page, &stop)?;
    for why in &report.refused {
        tell(&format!("daqmeter: {why}"));
    }
    let verdict = arguments.verdict(&report);
    match arguments.network.json {
        true => emit(&json_line(&name, &report, &verdict))?,
        false => emit(&report_text(&name, &report, &verdict))?,
    };
    Ok(verdict.judgement().exit(stop.load(Ordering::Relaxed)))
}

/// Receives to the end of the publishers, until it is to stop, or until no data came for too long.
fn received(
    receiver: &mut Receiver,
    arguments: &Arguments,
    name: &str,
    page: &Page,
    stop: &AtomicBool,
) -> Result<Report, Failure> {
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
        show_progress(&receiver.report(), name, page);
    });
    if report.chunks() == 0
        && let Some(why) = report.refused.first()
    {
        return Err(Failure::refused(why));
    }
    let nothing_came = report.pages == 0 && report.accounts.is_empty();
    if nothing_came && waiting.is_over() && !stop.load(Ordering::Relaxed) {
        let within = waiting.limit_text();
        return Err(Failure::refused(format!(
            "no data came within {within}: a publisher begins when each of its E-links has a subscriber, or by --no-wait"
        )));
    }
    Ok(report)
}

fn show_progress(report: &Report, name: &str, page: &Page) {
    let faults = report.faults();
    let errors = faults.missing + faults.payload + faults.wrong_elink + report.bad_pages;
    page.set("daqmeter_chunks_total", name, report.chunks() as f64);
    page.set("daqmeter_bytes_total", name, report.bytes as f64);
    page.set("daqmeter_errors_total", name, errors as f64);
    page.set("daqmeter_lost_connections_total", name, report.lost as f64);
    if let Some(ns) = report.latency_ns.supported_quantile(0.99) {
        page.set("daqmeter_latency_p99_seconds", name, ns as f64 * 1e-9);
    }
    page.set("daqmeter_cpu_seconds_total", name, cpu_seconds());
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
    let rate = |count: u64| match seconds > 0.0 {
        true => count as f64 / seconds,
        false => 0.0,
    };
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
    out.push_str(&latency_text(report));
    out.push_str(&faults_text(report));
    if !report.ledgers.is_empty() {
        out.push_str(&ledger_text(&report.ledgers));
    }
    let _ = writeln!(out, " {verdict}");
    out
}

fn latency_text(report: &Report) -> String {
    let latency = &report.latency_ns;
    if latency.count() == 0 {
        return String::new();
    }
    let at = |share: f64| {
        let ns = latency.supported_quantile(share);
        ns.map_or("-".to_owned(), |ns| show_ns(ns as f64))
    };
    format!(
        " oldest trigger of a page to its receipt: p50 {}, p90 {}, p99 {}, p99.9 {}, max {}\n",
        at(0.5),
        at(0.9),
        at(0.99),
        at(0.999),
        show_ns(latency.max() as f64)
    )
}

fn faults_text(report: &Report) -> String {
    let faults = report.faults();
    let sum = |of: fn(&StreamReport) -> u64| report.streams.iter().map(of).sum::<u64>();
    format!(
        " events missing {}, twice {}, late {}, counters reset {}, fallen to 0 {}, wrong payloads {}, of another E-link {}, cut off {}, flagged {}, bad pages {}, connections lost {}\n",
        faults.missing,
        faults.duplicates,
        faults.out_of_order,
        faults.resets,
        faults.falls,
        faults.payload,
        faults.wrong_elink,
        sum(|stream| stream.truncated),
        sum(|stream| stream.flagged),
        report.bad_pages,
        report.lost
    )
}
