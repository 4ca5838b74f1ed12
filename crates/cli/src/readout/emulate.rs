//! `daqmeter readout emulate`: a card in a process of its own.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use daqmeter_readout::busy::Cause;
use daqmeter_readout::card::{Card, channel_ids};
use daqmeter_readout::{Chosen, chain, remote};
use daqmeter_record::units::{show_ns, significant};

use super::ledgers::cpu_seconds;
use super::options::{Length, Network, load};
use super::verdict::Judgement;
use crate::metrics::Page;
use crate::output::{Failure, emit, tell};
use crate::runner::on_ctrl_c;

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
    let stop = Arc::new(AtomicBool::new(false));
    on_ctrl_c(&stop)?;
    let (card, rings) = arguments.length.card(&scenario)?;
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
    server.run(&stop, |server| show_progress(server.card(), &name, &page));
    let card = server.card();
    let dead = card.line().all(card.now_ns());
    let external = card.line().dead(Cause::External, card.now_ns());
    let by_others = match external.count {
        0 => String::new(),
        _ => format!(", {} stopped by external BUSY", external.vetoed),
    };
    if arguments.network.json {
        let line = serde_json::json!({
            "name": name, "triggers": card.issued(), "time_ns": card.now_ns(),
            "stopped_by_busy": dead.vetoed, "stopped_by_external_busy": external.vetoed,
            "dead_ns": dead.ns,
        });
        emit(&format!("{line}\n"))?;
        return Ok(Judgement::Passed.exit(stop.load(Ordering::Relaxed)));
    }
    let line = format!(
        "{} triggers in {}, {} stopped by BUSY{by_others}, dead time {} %\n",
        card.issued(),
        show_ns(card.now_ns() as f64),
        dead.vetoed,
        significant(dead.ns as f64 / card.now_ns().max(1) as f64 * 100.0, 3),
    );
    emit(&line)?;
    Ok(Judgement::Passed.exit(stop.load(Ordering::Relaxed)))
}

pub(super) fn show_progress(card: &Card, name: &str, page: &Page) {
    let dead = card.line().all(card.now_ns());
    page.set("daqmeter_triggers_total", name, card.issued() as f64);
    page.set("daqmeter_dead_seconds_total", name, dead.ns as f64 * 1e-9);
    page.set("daqmeter_vetoed_triggers_total", name, dead.vetoed as f64);
    page.set(
        "daqmeter_ring_bytes",
        name,
        card.filled_bytes().into_iter().max().unwrap_or(0) as f64,
    );
    page.set("daqmeter_ring_size_bytes", name, card.scenario().card.ring.0 as f64);
    page.set("daqmeter_cpu_seconds_total", name, cpu_seconds());
}
