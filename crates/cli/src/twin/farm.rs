//! `daqmeter twin farm`: servers behind switches: what they carry, where loss or back-pressure begins, what to add.

use std::fmt::Write;
use std::process::ExitCode;

use clap::Args;
use daqmeter_record::units::{plural, show_bytes, show_ns, significant};
use daqmeter_report::table::{numbers_from, plain, wrapped};
use daqmeter_twin::Estimate;
use daqmeter_twin::farm::{Answer, Farm, LayerAnswer, Questions, answer};

use super::run::with_interval;
use crate::output::{Failure, emit};

/// Predict a farm: nodes behind switches, and what is sent between them. Nothing is measured.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Layers whose queues stay empty by arithmetic are not simulated; all others are, message by message. Each figure is a mean over\nthe replications with its 95 % interval (Student's t).\n\nExample:\n\n  $ daqmeter twin farm felix-phase-2 --slow 3"
)]
pub(crate) struct Arguments {
    /// Farm: one that ships, or a TOML file
    #[arg(value_name = "FARM")]
    farm: String,
    /// Independent replications, whose spread gives the intervals
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..=1000))]
    replications: u32,
    /// Seed of the first replication
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// How many times as long one receiver takes, in the question of what a slow one does to all
    #[arg(long, value_name = "FACTOR", default_value_t = 2.0, value_parser = slow_factor)]
    slow: f64,
    /// Capacity to be left over at the stated rates
    #[arg(long, value_name = "PERCENT", default_value = "20%", value_parser = percent)]
    spare: f64,
    /// Print a JSON line instead of tables
    #[arg(long, help_heading = "Output")]
    json: bool,
}

fn slow_factor(text: &str) -> Result<f64, String> {
    let factor = text.parse::<f64>().ok();
    factor
        .filter(|factor| (1.0..=1000.0).contains(factor))
        .ok_or_else(|| "a factor from 1 to 1000 is wanted, such as 2".to_owned())
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim().strip_suffix('%').map(str::trim_end);
    let percent = number.and_then(|number| number.parse::<f64>().ok());
    percent
        .filter(|percent| (0.0..=900.0).contains(percent))
        .map(|percent| percent / 100.0)
        .ok_or_else(|| "0% to 900% is wanted, such as 20%".to_owned())
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let farm = Farm::load(&arguments.farm).map_err(Failure::refused)?;
    let questions = Questions {
        seed: arguments.seed,
        replications: arguments.replications as usize,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        slow: arguments.slow,
        spare: arguments.spare,
    };
    let refused = |error| Failure::refused(format!("farm {}: {error}", arguments.farm));
    let answer = answer(&farm, &questions).map_err(refused)?;
    emit(&match arguments.json {
        true => json(arguments, &farm, &answer),
        false => text(arguments, &farm, &answer),
    })
}

fn text(arguments: &Arguments, farm: &Farm, answer: &Answer) -> String {
    let mut out = format!("{}\n\n", farm.title);
    let runs = plural(u64::from(arguments.replications), "replication");
    let counted_s = (farm.time_ps - farm.warm_up_ps) as f64 * 1e-12;
    let _ = writeln!(
        out,
        "{} million messages/s, {} GB/s to be sent; {} % received; {runs} of {}\n{}",
        significant(answer.offered_per_s / 1e6, 4),
        significant(answer.offered_bytes_per_s / 1e9, 4),
        share(answer.received_share),
        show_ns(counted_s * 1e9),
        latency(answer)
    );
    out.push_str(&layers(&answer.layers));
    for line in [begins(answer), slow(farm, answer), adds(arguments, answer)] {
        let _ = write!(out, "\n{}\n", wrapped(&line, 0));
    }
    out.push_str(&needs(answer));
    out.push('\n');
    out.push_str(&gains(answer));
    if !farm.basis.is_empty() {
        let _ = write!(out, "\n{}", bases(farm));
    }
    out
}

fn latency(answer: &Answer) -> String {
    let show = |found: Option<Estimate>| {
        found.map_or("-".to_owned(), |found| with_interval(found, |seconds| show_ns(seconds * 1e9)))
    };
    let (half, late) = (show(answer.latency_p50_s), show(answer.latency_p99_s));
    format!("latency, from when a message was to be sent: p50 {half}, p99 {late}\n")
}

/// In per cent, with its interval.
fn share(found: Estimate) -> String {
    let percent =
        Estimate { mean: found.mean * 100.0, low: found.low * 100.0, high: found.high * 100.0 };
    number(percent)
}

fn number(found: Estimate) -> String {
    with_interval(found, |value| significant(value, 4))
}

fn layers(layers: &[LayerAnswer]) -> String {
    let row = |layer: &LayerAnswer| {
        let simulated = layer.simulated.as_ref();
        let of = |value: fn(&daqmeter_twin::farm::Simulated) -> String| {
            simulated.map_or("-".to_owned(), value)
        };
        vec![
            layer.name.clone(),
            layer.queues.to_string(),
            significant(layer.mean_load * 100.0, 3),
            significant(layer.load * 100.0, 3),
            of(|found| share(found.load)),
            of(|found| number(found.queue)),
            of(|found| show_bytes(found.max_bytes)),
            of(|found| number(found.lost_per_s)),
            of(|found| number(found.held_per_s)),
        ]
    };
    let headings = [
        "layer",
        "queues",
        "load [%]",
        "busiest [%]",
        "simulated [%]",
        "queue [messages]",
        "fullest",
        "lost [/s]",
        "held up [/s]",
    ];
    numbers_from(1, &headings, layers.iter().map(row))
}

fn begins(answer: &Answer) -> String {
    let begins = &answer.begins;
    let what = if begins.is_loss { "loss" } else { "back-pressure" };
    format!(
        "Limit: {what} begins at {} times the stated rates ({} GB/s), at `{}`. By arithmetic the busiest layer works all the time at {} times.",
        number(begins.at),
        significant(answer.offered_bytes_per_s * begins.at.mean / 1e9, 4),
        begins.layer,
        significant(begins.bound, 4)
    )
}

fn slow(farm: &Farm, answer: &Answer) -> String {
    let slow = &answer.slow;
    let others = slow
        .others
        .map_or(String::new(), |others| format!(", all others together {} %", share(others)));
    format!(
        "One slow receiver: a `{}` that takes {} times as long receives {} % of what it receives otherwise{others}; of all messages {} % are lost or refused and {} % pile up.",
        farm.kinds[farm.flows[0].to].name,
        significant(slow.factor, 3),
        share(slow.own),
        share(slow.lost),
        share(slow.piled_up)
    )
}

fn adds(arguments: &Arguments, answer: &Answer) -> String {
    let spare = significant(arguments.spare * 100.0, 3);
    let mut all = answer.layers.iter();
    let first = all.next().map(|first| {
        all.fold(first, |most, layer| if layer.load > most.load { layer } else { most })
    });
    let binds = first.map_or(String::new(), |layer| {
        format!(" `{}` binds first, at {} %.", layer.name, significant(layer.load * 100.0, 3))
    });
    match answer.needs.is_empty() {
        true => format!("To add for {spare} % to spare: nothing.{binds}"),
        false => format!("To add for {spare} % to spare:{binds}"),
    }
}

fn needs(answer: &Answer) -> String {
    if answer.needs.is_empty() {
        return String::new();
    }
    let row = |need: &daqmeter_twin::farm::Need| {
        let what = if need.is_links { "links" } else { "servers of a node" };
        vec![
            need.name.clone(),
            what.to_owned(),
            need.has.to_string(),
            need.needs.to_string(),
            need.added.to_string(),
        ]
    };
    let headings = ["layer", "what", "each has", "each needs", "to add in all"];
    format!("\n{}", numbers_from(2, &headings, answer.needs.iter().map(row)))
}

fn gains(answer: &Answer) -> String {
    let row = |gain: &daqmeter_twin::farm::Gain| {
        vec![gain.name.clone(), gain.links.to_string(), significant(gain.bytes_per_s / 1e6, 3)]
    };
    let headings = ["one more link for each", "links", "brings for each link [MB/s]"];
    numbers_from(1, &headings, answer.gains.iter().map(row))
}

fn bases(farm: &Farm) -> String {
    let row = |basis: &daqmeter_twin::farm::Basis| {
        let word = if basis.is_known { "known" } else { "assumed" };
        vec![basis.what.clone(), word.to_owned(), basis.why.clone()]
    };
    plain(&["number", "is", "source, or reason"], farm.basis.iter().map(row).collect::<Vec<_>>())
}

fn json(arguments: &Arguments, farm: &Farm, answer: &Answer) -> String {
    let figure = |found: Estimate| serde_json::json!({ "mean": found.mean, "low": found.low, "high": found.high });
    let layer = |layer: &LayerAnswer| {
        serde_json::json!({
            "name": layer.name,
            "queues": layer.queues,
            "load": layer.mean_load,
            "busiest_load": layer.load,
            "simulated_load": layer.simulated.map(|found| figure(found.load)),
            "queue_messages": layer.simulated.map(|found| figure(found.queue)),
            "max_bytes": layer.simulated.map(|found| found.max_bytes),
            "lost_per_s": layer.simulated.map(|found| figure(found.lost_per_s)),
            "held_per_s": layer.simulated.map(|found| figure(found.held_per_s)),
        })
    };
    let need = |need: &daqmeter_twin::farm::Need| {
        serde_json::json!({
            "layer": need.name, "is_links": need.is_links, "has": need.has, "needs": need.needs, "added": need.added,
        })
    };
    let gain = |gain: &daqmeter_twin::farm::Gain| serde_json::json!({ "links": gain.name, "added": gain.links, "bytes_per_s_of_each": gain.bytes_per_s });
    let begins = &answer.begins;
    let slow = &answer.slow;
    let line = serde_json::json!({
        "title": farm.title,
        "seed": arguments.seed,
        "replications": arguments.replications,
        "events": answer.events,
        "offered_per_s": answer.offered_per_s,
        "offered_bytes_per_s": answer.offered_bytes_per_s,
        "received_share": figure(answer.received_share),
        "latency_p50_s": answer.latency_p50_s.map(figure),
        "latency_p99_s": answer.latency_p99_s.map(figure),
        "layers": answer.layers.iter().map(layer).collect::<Vec<_>>(),
        "limit": {
            "rate_factor": figure(begins.at), "bound": begins.bound, "is_loss": begins.is_loss, "layer": begins.layer,
        },
        "slow_receiver": {
            "factor": slow.factor, "own_share": figure(slow.own), "others_share": slow.others.map(figure),
            "lost_share": figure(slow.lost), "piled_up_share": figure(slow.piled_up),
        },
        "needs": answer.needs.iter().map(need).collect::<Vec<_>>(),
        "gains": answer.gains.iter().map(gain).collect::<Vec<_>>(),
    });
    format!("{line}\n")
}
