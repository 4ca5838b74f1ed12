//! What a person asks of a farm: what it does at the stated rates, where loss or back-pressure begins, what one slow receiver does to
//! all, and what to add.

use daqmeter_stats::student_interval;

use super::events::{Change, FarmOutcome, FlowOutcome, LayerOutcome, simulate_changed};
use super::network::{Layer, Network, Place};
use super::topology::{Farm, FarmError, Flow};
use crate::replicate::{Estimate, in_parallel};

/// How it is asked.
#[derive(Clone, Copy, Debug)]
pub struct Questions {
    /// Seed of the first replication.
    pub seed: u64,
    /// Independent replications, at least 2.
    pub replications: usize,
    /// Runs at the same time.
    pub threads: usize,
    /// How many times as long one receiver takes.
    pub slow: f64,
    /// Capacity that is to be left over at the stated rates: 0.2 is a fifth more than is used.
    pub spare: f64,
}

/// What a farm does.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Messages to be sent, per second and in bytes per second.
    pub offered_per_s: f64,
    /// The same in bytes.
    pub offered_bytes_per_s: f64,
    /// Messages that arrive, relative to those that were to be sent.
    pub received_share: Estimate,
    /// Median time from when a message was to be sent until it was received, in seconds; none where too few arrived.
    pub latency_p50_s: Option<Estimate>,
    /// 99th percentile of these.
    pub latency_p99_s: Option<Estimate>,
    /// Those that messages pass, in the order of the network.
    pub layers: Vec<LayerAnswer>,
    /// Where loss or back-pressure begins.
    pub begins: Beginning,
    /// What one slow receiver does.
    pub slow: SlowReceiver,
    /// What another link of each element brings.
    pub gains: Vec<Gain>,
    /// What is to be added so that the wanted capacity is left over.
    pub needs: Vec<Need>,
    /// Events of all runs.
    pub events: u64,
}

/// A layer at the stated rates.
#[derive(Clone, Debug)]
pub struct LayerAnswer {
    /// Its name.
    pub name: String,
    /// Queues of it.
    pub queues: usize,
    /// Share of its time that the busiest queue works, by arithmetic; above 1 it cannot carry the rates.
    pub load: f64,
    /// The same, mean of all queues.
    pub mean_load: f64,
    /// What was simulated; none where messages do not queue.
    pub simulated: Option<Simulated>,
}

/// A layer in the simulation.
#[derive(Clone, Copy, Debug)]
pub struct Simulated {
    /// Share of the time of all its servers.
    pub load: Estimate,
    /// Messages in a queue, those in service included.
    pub queue: Estimate,
    /// Most bytes in a queue, of all replications.
    pub max_bytes: u64,
    /// Messages lost for want of room, per second.
    pub lost_per_s: Estimate,
    /// Messages that waited for room behind, per second.
    pub held_per_s: Estimate,
}

/// The first rate that is not carried, as a factor on the stated one.
#[derive(Clone, Debug)]
pub struct Beginning {
    /// The factor, to 1 % of it.
    pub at: Estimate,
    /// The factor at which the busiest queue works all the time, by arithmetic.
    pub bound: f64,
    /// Whether messages are lost there; else they pile up.
    pub is_loss: bool,
    /// Where.
    pub layer: String,
}

/// The farm with one receiver that takes longer.
#[derive(Clone, Copy, Debug)]
pub struct SlowReceiver {
    /// How many times as long.
    pub factor: f64,
    /// What it receives, relative to what it receives otherwise.
    pub own: Estimate,
    /// What all the others receive, relative to what they receive otherwise; none where there are none.
    pub others: Option<Estimate>,
    /// Share of all messages that are lost or refused.
    pub lost: Estimate,
    /// By how much what is under way grows, as a share of all messages.
    pub piled_up: Estimate,
}

/// One more link of each element of a kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Gain {
    /// The links.
    pub name: String,
    /// How many are added.
    pub links: u64,
    /// By how much the largest rate grows for each of them, in bytes per second, by arithmetic.
    pub bytes_per_s: f64,
}

/// A layer with too little capacity.
#[derive(Clone, Debug, PartialEq)]
pub struct Need {
    /// The layer.
    pub name: String,
    /// The kind whose elements have them.
    pub kind: usize,
    /// Links or servers that each element has.
    pub has: u32,
    /// What each needs.
    pub needs: u32,
    /// How many are added in all.
    pub added: u64,
    /// Whether these are links; else they are servers (threads, cores) of nodes.
    pub is_links: bool,
}

/// Messages that may pile up, as a share of those that were to be sent, before a farm is said not to carry a rate: what is under way at the
/// end of a short run differs from what was at its beginning.
const PILED_UP: f64 = 0.01;
/// Smallest part of the bound that is tried.
const MIN_PART: f64 = 0.02;
/// Where the search begins: most farms carry that much of the bound.
const LIKELY_PART: f64 = 0.8;

/// Answers all questions about a farm that was checked.
///
/// # Errors
/// When a run has too many events, or more messages wait than fit into memory.
pub fn answer(farm: &Farm, questions: &Questions) -> Result<Answer, FarmError> {
    let network = Network::new(farm);
    let seeds = |seed: usize| questions.seed.wrapping_add(seed as u64);
    let runs = |network: &Network, change: Change| {
        each(questions, |at| simulate_changed(farm, network, seeds(at), change))
    };
    let as_stated = runs(&network, Change::NONE)?;
    let found = each(questions, |at| beginning(farm, &network, seeds(at)))?;
    let slow_change = Change { slow: questions.slow, ..Change::NONE };
    // A queue that grows holds up what is before it, fluid or not.
    let slow = runs(&network.clone().without_fluid(), slow_change)?;
    let events = as_stated.iter().chain(&slow).map(|run| run.events).sum::<u64>();
    let searched = found.iter().map(|found| found.events).sum::<u64>();
    let messages = |flow: &Flow| flow.messages_per_s() * f64::from(farm.kinds[flow.from].count);
    Ok(Answer {
        offered_per_s: farm.flows.iter().map(messages).sum(),
        offered_bytes_per_s: farm.offered_bytes_per_s(),
        received_share: estimate(&as_stated, |run| received_share(&run.totals())),
        latency_p50_s: quantile(&as_stated, 0.5),
        latency_p99_s: quantile(&as_stated, 0.99),
        layers: layers(&network, &as_stated),
        begins: begins(&network, &found),
        slow: slow_receiver(farm, questions.slow, &as_stated, &slow),
        gains: gains(farm, &network),
        needs: needs(farm, &network, questions.spare),
        events: events + searched,
    })
}

/// One result for each replication, in their order.
fn each<T: Send + Sync>(
    questions: &Questions,
    job: impl Fn(usize) -> Result<T, FarmError> + Sync,
) -> Result<Vec<T>, FarmError> {
    let results = in_parallel(questions.replications, questions.threads, job);
    results.into_iter().collect()
}

fn estimate<T>(runs: &[T], value: impl Fn(&T) -> f64) -> Estimate {
    let values: Vec<f64> = runs.iter().map(value).collect();
    let (mean, low, high) =
        student_interval(&values, 0.95).unwrap_or((values[0], values[0], values[0]));
    Estimate { mean, low, high }
}

fn quantile(runs: &[FarmOutcome], share: f64) -> Option<Estimate> {
    let of = |run: &FarmOutcome| run.latency_ps.supported_quantile(share);
    let values: Option<Vec<u64>> = runs.iter().map(of).collect();
    Some(estimate(&values?, |ps| *ps as f64 * 1e-12))
}

/// Of what was to be sent and is not under way still.
fn received_share(totals: &FlowOutcome) -> f64 {
    let gone = totals.received + totals.lost + totals.refused;
    totals.received as f64 / gone.max(1) as f64
}

fn layers(network: &Network, runs: &[FarmOutcome]) -> Vec<LayerAnswer> {
    let of = |(at, layer): (usize, &Layer)| {
        let servers = layer.queues as f64 * f64::from(layer.servers);
        let rate = |count: fn(&LayerOutcome) -> u64| {
            estimate(runs, |run| count(&run.layers[at]) as f64 / run.seconds)
        };
        let fullest = runs.iter().map(|run| run.layers[at].max_bytes).max();
        LayerAnswer {
            name: layer.name.clone(),
            queues: layer.queues,
            load: layer.load,
            mean_load: layer.mean_load,
            simulated: (!layer.is_fluid).then(|| Simulated {
                load: estimate(runs, |run| run.layers[at].work_s / run.seconds / servers),
                queue: estimate(runs, |run| run.layers[at].mean_queue),
                max_bytes: fullest.unwrap_or(0),
                lost_per_s: rate(|layer| layer.lost),
                held_per_s: rate(|layer| layer.held),
            }),
        }
    };
    let all = network.layers.iter().enumerate();
    all.filter(|(_, layer)| layer.load > 0.0).map(of).collect()
}

/// What a search with one seed found.
struct Found {
    factor: f64,
    is_loss: bool,
    layer: usize,
    events: u64,
}

/// The first factor on all rates that is not carried, by halving between one that is and one that is not. The bound of arithmetic is not
/// carried for ever, whatever a short run shows.
fn beginning(farm: &Farm, network: &Network, seed: u64) -> Result<Found, FarmError> {
    let (bound, layer) = network.bound();
    // At higher rates another layer may queue.
    let loaded = network.clone().at(bound);
    let mut found = Found { factor: bound, is_loss: false, layer, events: 0 };
    let mut carried = MIN_PART * bound;
    let mut factor = LIKELY_PART * bound;
    while found.factor > carried * 1.01 {
        let change = Change { rate: factor, ..Change::NONE };
        let run = simulate_changed(farm, &loaded, seed, change)?;
        found.events += run.events;
        match fails(farm, &loaded, &run) {
            None => carried = factor,
            Some((is_loss, layer)) => {
                found = Found { factor, is_loss, layer, ..found };
            }
        }
        factor = (found.factor * carried).sqrt();
    }
    Ok(found)
}

/// Whether messages are lost, or pile up, and where.
fn fails(farm: &Farm, network: &Network, run: &FarmOutcome) -> Option<(bool, usize)> {
    let totals = run.totals();
    let all = 0..run.layers.len();
    if totals.lost > 0 {
        let layer = all.max_by_key(|at| run.layers[*at].lost);
        return Some((true, layer.unwrap_or(0)));
    }
    let grown = run.under_way.1.saturating_sub(run.under_way.0) + totals.refused;
    // One more trigger under way at the end than at the beginning is none too many.
    let at_once = |flow: &Flow| u64::from(farm.kinds[flow.from].count) * u64::from(flow.burst);
    let at_once = farm.flows.iter().map(at_once).sum::<u64>();
    if grown as f64 <= (totals.offered as f64 * PILED_UP).max(at_once as f64) {
        return None;
    }
    let used = |at: &usize| {
        let layer = &network.layers[*at];
        run.layers[*at].work_s / layer.queues as f64 / f64::from(layer.servers)
    };
    let layer = all.max_by(|one, other| used(one).total_cmp(&used(other)));
    Some((false, layer.unwrap_or(0)))
}

fn begins(network: &Network, found: &[Found]) -> Beginning {
    let times = |layer: usize| found.iter().filter(|one| one.layer == layer).count();
    let layer = found.iter().map(|one| one.layer).max_by_key(|layer| times(*layer));
    Beginning {
        at: estimate(found, |found| found.factor),
        bound: network.bound().0,
        is_loss: found.iter().filter(|one| one.is_loss).count() * 2 > found.len(),
        layer: layer.map_or(String::new(), |at| network.layers[at].name.clone()),
    }
}

fn slow_receiver(
    farm: &Farm,
    factor: f64,
    as_stated: &[FarmOutcome],
    slow: &[FarmOutcome],
) -> SlowReceiver {
    let pairs: Vec<(&FarmOutcome, &FarmOutcome)> = as_stated.iter().zip(slow).collect();
    let share = |(usual, slow): &(&FarmOutcome, &FarmOutcome), is_own: bool| {
        let sum = |run: &FarmOutcome| {
            let all = run.by_receiver.iter().enumerate();
            let chosen = all.filter(|(at, _)| (*at == 0) == is_own);
            chosen.map(|(_, count)| *count as f64).sum::<f64>()
        };
        sum(slow) / sum(usual).max(1.0)
    };
    let has_others = farm.kinds[farm.flows[0].to].count > 1;
    SlowReceiver {
        factor,
        own: estimate(&pairs, |pair| share(pair, true)),
        others: has_others.then(|| estimate(&pairs, |pair| share(pair, false))),
        lost: estimate(&pairs, |(_, slow)| {
            let totals = slow.totals();
            (totals.lost + totals.refused) as f64 / totals.offered.max(1) as f64
        }),
        piled_up: estimate(slow, |run| {
            let grown = run.under_way.1.saturating_sub(run.under_way.0);
            grown as f64 / run.totals().offered.max(1) as f64
        }),
    }
}

/// The largest factor on the rates with one more link for each element of a kind, for each kind that has links.
fn gains(farm: &Farm, network: &Network) -> Vec<Gain> {
    let (bound, _) = network.bound();
    let rate = farm.offered_bytes_per_s();
    let of = |at: usize| {
        let link = &farm.links[at];
        let mut larger = farm.clone();
        larger.links[at].links += 1;
        let links = u64::from(farm.kinds[link.from].count);
        let more = Network::new(&larger).bound().0 - bound;
        let (below, above) = (&farm.kinds[link.from].name, &farm.kinds[link.to].name);
        Gain {
            name: format!("{below} <-> {above}"),
            links,
            bytes_per_s: more.max(0.0) * rate / links as f64,
        }
    };
    (0..farm.links.len()).map(of).collect()
}

/// Links and servers so that each layer has capacity to spare.
fn needs(farm: &Farm, network: &Network, spare: f64) -> Vec<Need> {
    let mut needs: Vec<Need> = Vec::new();
    for layer in &network.layers {
        let wanted = layer.load * (1.0 + spare);
        if wanted <= 1.0 {
            continue;
        }
        let needed = (wanted * f64::from(layer.servers)).ceil();
        let is_links = matches!(layer.place, Place::Up | Place::Down);
        let added = u64::from(whole_u32(needed) - layer.servers);
        let need = Need {
            name: layer.name.clone(),
            has: layer.servers,
            kind: layer.kind,
            needs: whole_u32(needed),
            added: added * u64::from(farm.kinds[layer.kind].count),
            is_links,
        };
        // A link goes both ways: what it needs one way it has the other.
        let same =
            needs.iter_mut().find(|other| is_links && other.kind == need.kind && other.is_links);
        match same {
            Some(other) if other.needs < need.needs => *other = need,
            Some(_) => {}
            None => needs.push(need),
        }
    }
    needs
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float to an integer saturates"
)]
fn whole_u32(value: f64) -> u32 {
    value as u32
}
