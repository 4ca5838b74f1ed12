//! `daqmeter readout emulate`: a card in a process of its own.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use daqmeter_readout::card::{Card, channel_ids};
use daqmeter_readout::chain::busy_by_channel;
use daqmeter_readout::{Chosen, chain, remote};
use daqmeter_record::units::{show_ns, significant};
use daqmeter_report::felix::asserted_by;

use super::ledgers::show_card;
use crate::arguments::{count, duration};
use crate::interrupt;
use crate::metrics::{Metrics, SHOW, is_due};
use crate::output::{Ended, emit, tell};

/// Emulate a card for readers in other processes (tohost --card).
#[derive(Debug, Args)]
#[command(
    mut_arg("poll_us", |option| option.conflicts_with("at").hide(true)),
    mut_arg("interrupt", |option| option.conflicts_with("at").hide(true)),
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    chosen: Chosen,
    /// Socket at which readers ask for their channels
    #[arg(long, value_name = "PATH")]
    at: PathBuf,
    /// Time of the triggers [default: 10s without --triggers]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    time: Option<Duration>,
    /// Number of triggers
    #[arg(long, value_name = "N", value_parser = count)]
    triggers: Option<u64>,
    /// CPU of the card
    #[arg(long, value_name = "CPU")]
    pin: Option<u32>,
    #[command(flatten)]
    metrics: Metrics,
}

const DEFAULT_TIME: Duration = Duration::from_secs(10);

pub(crate) fn run(arguments: &Arguments) -> Ended {
    let scenario = arguments.chosen.completed()?;
    let stop = interrupt::flag();
    let (mut card, _) = Card::new(&scenario)?;
    let time = arguments.time.or(arguments.triggers.is_none().then_some(DEFAULT_TIME));
    card.source.limit(time, arguments.triggers);
    let mut server = remote::CardServer::bind(card, &arguments.at)?;
    chain::pin(arguments.pin)?;
    let (at, channels) = (arguments.at.display(), channel_ids(&scenario).len());
    let name = &scenario.name;
    tell(&format!(
        "{name}: {channels} channels at {at}; triggers begin when each channel has a reader"
    ));
    let (page, mut shown) = (arguments.metrics.served(|_| {})?, None);
    server.run(&stop.0, |card| {
        if let Some(page) = page.as_ref().filter(|_| is_due(&mut shown, SHOW)) {
            let view = card.view();
            show_card(page, name, &view);
            page.ledger(name, &view.account.ledger());
        }
    });
    let view = server.card.view();
    let (issued, now_ns, [.., dead, _]) = (view.account.issued, view.now_ns, view.dead);
    let percent = significant(dead.ns as f64 / now_ns.max(1) as f64 * 100.0, 3);
    let (time, vetoed) = (show_ns(now_ns as f64), dead.vetoed);
    let by = asserted_by(&busy_by_channel(&view));
    emit(&format!(
        "{issued} triggers in {time}, {vetoed} stopped by BUSY, dead time {percent} %{by}\n"
    ))
}
