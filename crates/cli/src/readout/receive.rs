//! `daqmeter readout receive`: a subscriber that checks all that comes.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use daqmeter_harness::StopFlag;
use daqmeter_readout::accounts::FLAGGED;
use daqmeter_readout::chain;
use daqmeter_readout::receive::{Receiver, Report};
use daqmeter_readout::scenario::Publish;
use daqmeter_readout::transport::bus;
use daqmeter_record::Ledger;
use daqmeter_report::watched;
use daqmeter_wire::felix::Elink;
use daqmeter_wire::felix::payload::Fid;
use serde_json::{Value, json};

use super::ledgers::{not_closed, show};
use super::options::{Network, Waiting, elink};
use super::pages::KeepOptions;
use super::tohost::CARD_IS_LOST;
use crate::arguments::duration;
use crate::beside::OwnWatch;
use crate::interrupt;
use crate::metrics::{SHOW, is_due};
use crate::output::{Ended, Failure, tell};
use crate::verdict::{Findings, Judgement, Limits, Measure, Verdict};

/// Subscribe to publishers and check all that comes: a software read-out driver for tests.
#[derive(Debug, Clone, Args)]
pub(crate) struct Arguments {
    /// Publishers: host:port [default: those of --bus-dir]
    #[arg(required_unless_present = "bus_dir")]
    publishers: Vec<String>,
    /// E-links of device 0 [default: all E-links of all devices]
    #[arg(long, value_name = "ELINK,..", value_delimiter = ',', value_parser = elink)]
    elinks: Vec<u16>,
    /// Longest wait for publishers, and for data
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10m")]
    wait: Duration,
    /// CPU of the receiver
    #[arg(long, value_name = "CPU")]
    pin: Option<u32>,
    #[command(flatten)]
    keeping: KeepOptions,
    #[command(flatten)]
    network: Network,
}

/// Shows what a receiver found, and judges it.
pub(super) fn judge(
    name: &str,
    report: &Report,
    json: bool,
    limits: &Limits,
) -> Result<Judgement, Failure> {
    let verdict = verdict(report, limits);
    show(json, &json_line(name, report, &verdict), &report.ledgers, &verdict)?;
    Ok(verdict.judgement())
}

fn verdict(report: &Report, limits: &Limits) -> Verdict {
    let (faults, chunks) = (report.faults(), report.chunks());
    let mut findings = Findings::of(chunks, "event");
    let without = report.without_account.iter();
    let without = without.map(|address| format!("missing: the account of {address}"));
    let lost_cards = report.accounts.iter().filter(|one| one.card_is_lost);
    findings.missing.extend(without.chain(lost_cards.map(|_| CARD_IS_LOST.to_owned())));
    for (count, what) in [
        (not_closed(&report.ledgers), "streams that are not fully accounted for"),
        (faults.payload, "events with wrong bytes"),
        (faults.wrong_elink, "events of another E-link"),
        (report.bad_pages, "pages that cannot be read"),
        (report.refused.len() as u64, "publishers that refused"),
        (u64::from(report.unkept.is_some()), "recorders that failed"),
    ] {
        findings.fault(count, what);
    }
    let cut = report.sum(|stream| stream.truncated);
    findings.values = vec![
        (Measure::Loss, faults.missing + cut, chunks + faults.missing),
        (Measure::Order, faults.duplicates + faults.out_of_order, chunks),
        (Measure::Connections, report.lost, 0),
        (Measure::Flags, report.sum(|stream| stream.flagged), chunks),
        (Measure::Resets, faults.resets, chunks),
    ];
    findings.unclear = (faults.unclear, faults.unclear_missing);
    findings.verdict(limits)
}

impl Arguments {
    fn wanted(&self) -> Result<Vec<(Publish, Vec<u64>)>, Failure> {
        let tag = |number: &u16| Fid::of_elink(0, 0, Elink::new(*number)).to_u64();
        let tags: Vec<u64> = self.elinks.iter().map(tag).collect();
        let found = match &self.network.bus_dir {
            Some(directory) => bus::find(directory, &tags)?,
            None => self.publishers.iter().map(|at| (at.clone(), tags.clone())).collect(),
        };
        let publish = |address: String| Publish { address, ..Publish::default() };
        Ok(found.into_iter().map(|(address, tags)| (publish(address), tags)).collect())
    }

    fn connect(&self, waiting: &mut Waiting, quit: &dyn Fn() -> bool) -> Result<Receiver, Failure> {
        loop {
            let tried = self.wanted().and_then(|wanted| Ok(Receiver::connect(&wanted, quit)?));
            match tried {
                Err(failure) if !waiting.is_over() && !quit() => {
                    waiting.say(|| format!("publishers: {}", failure.line));
                    std::thread::sleep(Duration::from_millis(100));
                }
                tried => return tried,
            }
        }
    }

    /// Receives to the end of the publishers, until it is to stop, or until no data came for too
    /// long.
    fn receive(&self, stop: &StopFlag) -> Result<Report, Failure> {
        const SOME_SECONDS: Duration = Duration::from_secs(3);
        const BEGINS: &str = "a publisher begins when each of its E-links has a subscriber";
        let mut receiver = self.connect(&mut Waiting::new(self.wait), &|| stop.is_set())?;
        let recorder = self.keeping.pages(&mut receiver)?;
        let (mut waiting, ended) = (Waiting::new(self.wait), StopFlag::default());
        let (page, mut shown) = (self.network.metrics.served(|_| {})?, None);
        let (mut told, mut told_lost) = (None, 0);
        let mut report = receiver.run(&ended.0, |receiver| {
            if let Some((address, silent)) = receiver.silent() {
                waiting.heard(silent);
                match receiver.has_data() {
                    false => waiting.say(|| format!("data: {BEGINS}")),
                    true if silent < SOME_SECONDS => {}
                    true => waiting.say(|| format!("{address}, which has fallen silent")),
                }
            }
            if stop.is_set() || waiting.is_over() {
                ended.set();
            }
            if is_due(&mut shown, SHOW) {
                let (ledger, bytes) = so_far(&receiver.report());
                if let Some(page) = &page {
                    page.ledger("receiver", &ledger);
                    page.set("daqmeter_bytes_total", &["receiver"], bytes as f64);
                }
                if ledger.lost() > told_lost && is_due(&mut told, SOME_SECONDS) {
                    told_lost = ledger.lost();
                    tell(&format!("daqmeter: {}", lost_so_far(&ledger)));
                }
            }
            for note in receiver.notes.drain(..) {
                tell(&format!("daqmeter: {note}"));
            }
        });
        if let Some(why) = report.refused.first().filter(|_| report.chunks() == 0) {
            return Err(Failure::refused(why));
        }
        if let Some(recorder) = recorder {
            recorder.end(&mut report);
        }
        let nothing_came = report.pages == 0 && report.accounts.is_empty();
        if nothing_came && waiting.is_over() && !stop.is_set() {
            let within = waiting.limit_text();
            return Err(format!("no data came within {within}: {BEGINS}, or by --no-wait").into());
        }
        Ok(report)
    }
}

fn lost_so_far(ledger: &Ledger) -> String {
    let lost = ledger.losses.iter().filter(|(_, count)| **count > 0);
    let lost: Vec<_> = lost.map(|(cause, count)| format!("{count} {cause}")).collect();
    // The event counters wrap.
    format!("lost so far: at least {}; {} events came", lost.join(", "), ledger.delivered)
}

/// Ledger of a receiver before the accounts of its publishers came, and its bytes.
fn so_far(report: &Report) -> (Ledger, u64) {
    let (faults, chunks) = (report.faults(), report.chunks());
    let mut ledger = Ledger { issued: chunks + faults.missing, ..Ledger::new("events") };
    ledger.lose("missing", faults.missing);
    ledger.lose("truncated", report.sum(|stream| stream.truncated));
    ledger.lose(FLAGGED, report.sum(|stream| stream.flagged));
    ledger.lose("wrong bytes", faults.payload);
    ledger.lose("of another E-link", faults.wrong_elink);
    ledger.delivered = ledger.issued.saturating_sub(ledger.lost());
    (ledger, report.bytes)
}

pub(crate) fn run(arguments: &Arguments) -> Ended {
    let stop = interrupt::flag();
    chain::pin(arguments.pin)?;
    arguments.keeping.ready()?;
    let watch = OwnWatch::begin();
    let report = match arguments.receive(&stop) {
        Err(_) if stop.is_set() => return Ok(ExitCode::SUCCESS),
        received => received?,
    };
    for loss in watch.end().iter().flat_map(watched::own_losses) {
        tell(&format!("daqmeter: {loss}"));
    }
    for why in report.refused.iter().chain(&report.unkept) {
        tell(&format!("daqmeter: {why}"));
    }
    let Network { json, limits, .. } = &arguments.network;
    let name = format!("receiver {}", std::process::id());
    judge(&name, &report, *json, limits).map(Judgement::code)
}

/// Returns the rate of pages whose first and last are this time apart, which holds one page less.
/// `None` for a single page.
fn bytes_per_s(pages: u64, bytes: u64, span_ns: u64) -> Option<f64> {
    let after_first = bytes as f64 * pages.saturating_sub(1) as f64 / pages as f64;
    (pages > 1 && span_ns > 0).then(|| after_first / span_ns as f64 * 1e9)
}

fn json_line(name: &str, report: &Report, verdict: &Verdict) -> Value {
    let (latency, seconds) = (&report.latency_ns, report.span_ns as f64 * 1e-9);
    let quantile = |share| latency.supported_quantile(share);
    json!({
        "name": name, "chunks": report.chunks(), "pages": report.pages, "bytes": report.bytes,
        "seconds": seconds, "bytes_per_s": bytes_per_s(report.pages, report.bytes, report.span_ns),
        "latency_ns": { "p50": quantile(0.5), "p99": quantile(0.99), "max": latency.max() },
        "faults": report.faults(), "cut": report.sum(|stream| stream.truncated),
        "flagged": report.sum(|stream| stream.flagged), "bad_pages": report.bad_pages,
        "lost_connections": report.lost, "publishers_ended": report.accounts.len(),
        "streams": report.streams, "closes": report.closes(), "verdict": verdict,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: n pages were counted over the n - 1 times between them, and one page over 1 ns.
    #[test]
    fn pages_are_counted_over_the_times_between_them() {
        for (pages, bytes, span_ns, expected) in [
            (2, 200, 1_000_000_000, Some(100.0)),
            (101, 101_000, 1_000_000_000, Some(100_000.0)),
            (1, 100, 0, None),
            (0, 0, 0, None),
        ] {
            assert_eq!(bytes_per_s(pages, bytes, span_ns), expected, "{pages}");
        }
    }
}
