//! `daqmeter readout emulate`: a card in a process of its own.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use daqmeter_readout::busy::Cause;
use daqmeter_readout::card::{Card, channel_ids};
use daqmeter_readout::{Chosen, chain, remote};
use daqmeter_record::units::{show_ns, significant};

use super::ledgers::cpu_seconds;
use super::options::{Instance, Length, Network, load, publish};
use super::verdict::Judgement;
use crate::metrics::Page;
use crate::output::{Failure, emit, tell};

/// Emulate a card for readers in other processes (tohost --card).
#[derive(Debug, Args)]
pub(crate) struct Arguments {
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

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let scenario = load(&arguments.chosen)?;
    let instance = Instance::begin(&arguments.network.metrics)?;
    let card = arguments.length.card(&scenario)?;
    let mut server = remote::CardServer::bind(card, &arguments.at).map_err(Failure::refused)?;
    chain::pin(arguments.pin).map_err(Failure::refused)?;
    let (at, channels) = (arguments.at.display(), channel_ids(&scenario).len());
    tell(&format!(
        "{}: {channels} channels at {at}; triggers begin when all have readers",
        scenario.name
    ));
    let name = format!("card {}", scenario.name);
    server.run(&instance.stop, |server| show_progress(server.card(), &name, &instance.page));
    let card = server.card();
    let (issued, now_ns) = (card.issued(), card.now_ns());
    let (dead, external) = (card.line().all(now_ns), card.line().dead(Cause::External, now_ns));
    let by_others = match external.count {
        0 => String::new(),
        _ => format!(", {} stopped by external BUSY", external.vetoed),
    };
    let line = match arguments.network.json {
        true => serde_json::json!({
            "name": name, "triggers": issued, "time_ns": now_ns, "stopped_by_busy": dead.vetoed,
            "stopped_by_external_busy": external.vetoed, "dead_ns": dead.ns,
        })
        .to_string(),
        false => format!(
            "{issued} triggers in {}, {} stopped by BUSY{by_others}, dead time {} %",
            show_ns(now_ns as f64),
            dead.vetoed,
            significant(dead.ns as f64 / now_ns.max(1) as f64 * 100.0, 3),
        ),
    };
    emit(&format!("{line}\n"))?;
    Ok(Judgement::Passed.exit(instance.is_stopped()))
}

pub(super) fn show_progress(card: &Card, name: &str, page: &Page) {
    let dead = card.line().all(card.now_ns());
    let values = [
        ("daqmeter_triggers_total", card.issued() as f64),
        ("daqmeter_dead_seconds_total", dead.ns as f64 * 1e-9),
        ("daqmeter_vetoed_triggers_total", dead.vetoed as f64),
        ("daqmeter_ring_bytes", card.filled_bytes().into_iter().max().unwrap_or(0) as f64),
        ("daqmeter_ring_size_bytes", card.scenario().card.ring.0 as f64),
        ("daqmeter_cpu_seconds_total", cpu_seconds()),
    ];
    publish(page, name, &values);
}
