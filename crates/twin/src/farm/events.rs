//! The simulation of a farm, message by message, where queues form.
//!
//! As in `simulate.rs`, each queue and each sender has one event ahead, and a tournament finds the next. A message is 32 bytes; nothing is
//! kept of those that arrived, so memory grows with queues, senders and what waits. Layers that are fluid add their time and no event.

use std::collections::VecDeque;

use daqmeter_stats::LogHistogram;

use super::network::{Network, fixed_receiver};
use super::topology::{Farm, FarmError, Pattern, Timing, wrong};
use crate::draw::{Stream, exponential, whole};
use crate::model::{Full, SECOND_PS};
use crate::tree::{NEVER, Tournament};

/// What a run may take: some minutes.
const MAX_EVENTS: u64 = 2_000_000_000;
/// Messages under way at once: 200 MB for each of the runs that go at the same time.
const MAX_UNDER_WAY: u64 = 5_000_000;

/// What happened after the warm-up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FarmOutcome {
    /// Time that was counted, in seconds.
    pub seconds: f64,
    /// Events of the whole run.
    pub events: u64,
    /// In the order of the network.
    pub layers: Vec<LayerOutcome>,
    /// In the order of the farm.
    pub flows: Vec<FlowOutcome>,
    /// Messages that came to each receiver of the first flow.
    pub by_receiver: Vec<u64>,
    /// Time of a message from when it was to be sent until it was received, in ps, to about 3 %.
    pub latency_ps: LogHistogram,
    /// Messages under way when counting began, and at the end.
    pub under_way: (u64, u64),
}

/// A layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerOutcome {
    /// Messages served.
    pub done: u64,
    /// Messages that found no room.
    pub lost: u64,
    /// Times that a served message had to wait for room behind this layer.
    pub held: u64,
    /// Time of its servers at work, in seconds, over all queues.
    pub work_s: f64,
    /// Messages that wait or are served, mean over time and queues.
    pub mean_queue: f64,
    /// Most bytes in a queue.
    pub max_bytes: u64,
}

/// A flow.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FlowOutcome {
    /// Messages that were to be sent.
    pub offered: u64,
    /// Of which found the sender's buffer full.
    pub refused: u64,
    /// Messages that found no room on the way.
    pub lost: u64,
    /// Messages that arrived.
    pub received: u64,
}

impl FarmOutcome {
    /// Messages to be sent, refused, lost on the way and received, over all flows.
    pub fn totals(&self) -> FlowOutcome {
        let add = |sum: FlowOutcome, flow: &FlowOutcome| FlowOutcome {
            offered: sum.offered + flow.offered,
            refused: sum.refused + flow.refused,
            lost: sum.lost + flow.lost,
            received: sum.received + flow.received,
        };
        self.flows.iter().fold(FlowOutcome::default(), add)
    }
}

/// A change to a farm for one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Change {
    /// Factor on all rates.
    pub(crate) rate: f64,
    /// The first receiver of the first flow takes so many times as long.
    pub(crate) slow: f64,
}

impl Change {
    pub(crate) const NONE: Change = Change { rate: 1.0, slow: 1.0 };
}

#[derive(Clone, Copy, Debug)]
struct Message {
    /// When it was to be sent.
    born_ps: u64,
    /// What fluid layers and distances add.
    extra_ps: u64,
    sender: u32,
    receiver: u32,
    flow: u32,
    step: u8,
    turn: u8,
    /// Since its last queue.
    has_passed_fluid: bool,
}

/// A queue while it runs.
struct Live {
    layer: usize,
    waiting: VecDeque<Message>,
    /// In service, the first to end last.
    working: Vec<(u64, Message)>,
    /// Served, and waiting for room in a queue.
    held: Vec<(Message, usize)>,
    /// Queues that hold a message for this one, in their order.
    wanting: VecDeque<usize>,
    bytes: u64,
    slow: f64,
    trace_at: usize,
    stream: Stream,
}

/// A sender of a flow while it runs.
struct Sender {
    flow: usize,
    at: u32,
    next_ps: u64,
    turn: u32,
    stream: Stream,
}

struct Simulation<'a> {
    farm: &'a Farm,
    network: &'a Network,
    queues: Vec<Live>,
    senders: Vec<Sender>,
    gaps_ps: Vec<f64>,
    tree: Tournament,
    now_ps: u64,
    under_way: u64,
    /// Messages in each layer, and until when they are counted.
    filled: Vec<(u64, u64)>,
    freed: Vec<usize>,
    /// A message had passed a fluid layer when it had to wait for room: this run is no good.
    is_held_behind_fluid: bool,
    counted: FarmOutcome,
}

/// Simulates a farm that was checked with the random numbers of a seed.
///
/// # Errors
/// When it has too many events, or more messages wait than fit into memory.
pub fn simulate(farm: &Farm, network: &Network, seed: u64) -> Result<FarmOutcome, FarmError> {
    simulate_changed(farm, network, seed, Change::NONE)
}

pub(crate) fn simulate_changed(
    farm: &Farm,
    network: &Network,
    seed: u64,
    change: Change,
) -> Result<FarmOutcome, FarmError> {
    let mut simulation = Simulation::new(farm, network, seed, change);
    simulation.go()?;
    if simulation.is_held_behind_fluid {
        // What passes a layer without queueing would have had to wait in it.
        let all = network.clone().without_fluid();
        simulation = Simulation::new(farm, &all, seed, change);
        simulation.go()?;
        return Ok(simulation.end());
    }
    Ok(simulation.end())
}

/// The queue of a change's slow receiver: its work, or its link where it has none.
fn slow_queue(network: &Network) -> Option<usize> {
    let has_queue = |step: &(Option<usize>, u32)| step.0.is_some();
    let way = &network.ways[0];
    let turn = way.turn(0, 0);
    let steps = (0..=u8::MAX).map_while(|step| way.step(step, turn, 0, 0));
    let (layer, element) = steps.filter(has_queue).last()?;
    Some(network.layers[layer?].first + element as usize)
}

impl Simulation<'_> {
    fn new<'a>(farm: &'a Farm, network: &'a Network, seed: u64, change: Change) -> Simulation<'a> {
        let mut queues: Vec<Live> = Vec::with_capacity(network.queues);
        for (layer, of) in network.layers.iter().enumerate() {
            let from = queues.len();
            queues.extend((from..from + of.queues).map(|at| Live {
                layer,
                waiting: VecDeque::new(),
                working: Vec::new(),
                held: Vec::new(),
                wanting: VecDeque::new(),
                bytes: 0,
                slow: 1.0,
                trace_at: 0,
                stream: Stream::new(seed, at),
            }));
        }
        if let Some(at) = slow_queue(network).filter(|_| change.slow != 1.0) {
            queues[at].slow = change.slow;
        }
        let mut simulation = Simulation {
            farm,
            network,
            tree: Tournament::new(0),
            senders: Vec::new(),
            gaps_ps: farm.flows.iter().map(|flow| flow.gap_ps as f64 / change.rate).collect(),
            queues,
            now_ps: 0,
            under_way: 0,
            filled: vec![(0, 0); network.layers.len()],
            freed: Vec::new(),
            is_held_behind_fluid: false,
            counted: FarmOutcome::default(),
        };
        simulation.begin(seed);
        simulation
    }

    /// Every sender draws its first message.
    fn begin(&mut self, seed: u64) {
        for (flow, of) in self.farm.flows.iter().enumerate() {
            let senders = self.farm.kinds[of.from].count;
            let gap = self.gaps_ps[flow];
            for at in 0..senders {
                let number = self.queues.len() + self.senders.len();
                let mut stream = Stream::new(seed, number);
                let first = match of.timing {
                    Timing::Trigger => gap,
                    Timing::Periodic => gap * stream.uniform(),
                    Timing::Poisson => exponential(gap, &mut stream) as f64,
                };
                let receivers = self.farm.kinds[of.to].count;
                let begins = if of.pattern == Pattern::Turn { at % receivers } else { 0 };
                self.senders.push(Sender { flow, at, next_ps: whole(first), turn: begins, stream });
            }
        }
        self.tree = Tournament::new(self.queues.len() + self.senders.len());
        for at in 0..self.senders.len() {
            self.tree.set(self.queues.len() + at, self.senders[at].next_ps);
        }
        self.forget();
    }

    fn go(&mut self) -> Result<(), FarmError> {
        let mut warms_up = self.farm.warm_up_ps > 0;
        loop {
            let (time_ps, leaf) = self.tree.first();
            if warms_up && time_ps >= self.farm.warm_up_ps {
                warms_up = false;
                self.now_ps = self.farm.warm_up_ps;
                self.forget();
            }
            if time_ps > self.farm.time_ps || self.is_held_behind_fluid {
                self.now_ps = self.farm.time_ps;
                return Ok(());
            }
            self.now_ps = time_ps;
            self.counted.events += 1;
            if self.counted.events > MAX_EVENTS || self.under_way > MAX_UNDER_WAY {
                return self.too_much();
            }
            match leaf.checked_sub(self.queues.len()) {
                None => self.served(leaf),
                Some(sender) => self.send(sender),
            }
            self.settle();
        }
    }

    fn too_much(&self) -> Result<(), FarmError> {
        let at_s = self.now_ps as f64 / SECOND_PS as f64;
        let longest = (0..self.filled.len()).max_by_key(|layer| self.filled[*layer].0);
        let name = longest.map_or("", |layer| &self.network.layers[layer].name);
        let problem = match self.under_way > MAX_UNDER_WAY {
            true => {
                format!("more than {MAX_UNDER_WAY} messages wait at {at_s} s, most of them here")
            }
            false => format!("more than {MAX_EVENTS} events at {at_s} s"),
        };
        wrong(name, format!("{problem}: give smaller buffers, or a shorter `time`"))
    }

    /// The warm-up is over: counting begins.
    fn forget(&mut self) {
        let counted = &mut self.counted;
        counted.layers = vec![LayerOutcome::default(); self.network.layers.len()];
        counted.flows = vec![FlowOutcome::default(); self.farm.flows.len()];
        counted.by_receiver = vec![0; self.farm.kinds[self.farm.flows[0].to].count as usize];
        counted.latency_ps = LogHistogram::default();
        counted.under_way = (self.under_way, 0);
        for (_, until_ps) in &mut self.filled {
            *until_ps = self.now_ps;
        }
        for queue in &self.queues {
            // What began before counts from here on.
            let ahead = |(end, _): &(u64, Message)| (end - self.now_ps) as f64;
            let layer = &mut counted.layers[queue.layer];
            layer.work_s += queue.working.iter().map(ahead).sum::<f64>();
            layer.max_bytes = layer.max_bytes.max(queue.bytes);
        }
    }

    fn end(mut self) -> FarmOutcome {
        for layer in 0..self.filled.len() {
            self.count(layer, 0);
        }
        let seconds = (self.farm.time_ps - self.farm.warm_up_ps) as f64 / SECOND_PS as f64;
        for queue in &self.queues {
            // What goes on behind the end is not of this time.
            let behind = |(end, _): &(u64, Message)| (end - self.now_ps) as f64;
            self.counted.layers[queue.layer].work_s -=
                queue.working.iter().map(behind).sum::<f64>();
        }
        for (layer, of) in self.counted.layers.iter_mut().zip(&self.network.layers) {
            layer.work_s /= SECOND_PS as f64;
            layer.mean_queue /= seconds * SECOND_PS as f64 * of.queues as f64;
        }
        self.counted.seconds = seconds;
        self.counted.under_way.1 = self.under_way;
        self.counted
    }

    /// Adds the time since the last change to the mean of a layer, and changes what is in it.
    fn count(&mut self, layer: usize, change: i64) {
        let (items, until_ps) = &mut self.filled[layer];
        self.counted.layers[layer].mean_queue += *items as f64 * (self.now_ps - *until_ps) as f64;
        *items = items.checked_add_signed(change).expect("what left came before");
        *until_ps = self.now_ps;
    }

    /// A sender's messages of this moment.
    fn send(&mut self, at: usize) {
        let farm = self.farm;
        let gap = self.gaps_ps[self.senders[at].flow];
        let flow = &farm.flows[self.senders[at].flow];
        for _ in 0..flow.burst {
            let message = self.message(at);
            let counted = &mut self.counted.flows[message.flow as usize];
            counted.offered += 1;
            self.under_way += 1;
            if let Some((message, queue)) = self.next(message) {
                self.begin_way(message, queue);
            }
        }
        let sender = &mut self.senders[at];
        let gap = match flow.timing {
            Timing::Trigger | Timing::Periodic => whole(gap),
            Timing::Poisson => exponential(gap, &mut sender.stream),
        };
        sender.next_ps = sender.next_ps.saturating_add(gap.max(1));
        self.tree.set(self.queues.len() + at, sender.next_ps);
    }

    /// A new message at its first queue: the sender's own refuses it when it is full; one behind, past fluid layers, loses it.
    fn begin_way(&mut self, message: Message, queue: usize) {
        if self.has_room(queue, message) {
            return self.enter(queue, message);
        }
        let is_own = !message.has_passed_fluid;
        let layer = self.queues[queue].layer;
        let counted = &mut self.counted;
        if is_own {
            counted.flows[message.flow as usize].refused += 1;
        } else if self.network.layers[layer].full == Full::Lose {
            counted.layers[layer].lost += 1;
            counted.flows[message.flow as usize].lost += 1;
        } else {
            self.is_held_behind_fluid = true;
        }
        self.under_way -= 1;
    }

    fn message(&mut self, at: usize) -> Message {
        let sender = &mut self.senders[at];
        let flow = &self.farm.flows[sender.flow];
        let receivers = self.farm.kinds[flow.to].count;
        let receiver = match flow.pattern {
            Pattern::Fixed => {
                fixed_receiver(sender.at, self.farm.kinds[flow.from].count, receivers)
            }
            Pattern::Turn | Pattern::Event => sender.turn,
            Pattern::Random => u32::try_from(sender.stream.index(receivers as usize))
                .expect("less than the receivers"),
        };
        sender.turn = (sender.turn + 1) % receivers;
        let way = &self.network.ways[sender.flow];
        let turn = way.turn(sender.at, receiver);
        Message {
            born_ps: self.now_ps,
            extra_ps: way.latency_ps(turn),
            sender: sender.at,
            receiver,
            flow: u32::try_from(sender.flow).expect("few flows"),
            step: 0,
            turn,
            has_passed_fluid: false,
        }
    }

    /// The next queue of a message, past fluid layers; none when it has arrived, which is counted.
    fn next(&mut self, mut message: Message) -> Option<(Message, usize)> {
        let (network, flow) = (self.network, message.flow as usize);
        message.has_passed_fluid = false;
        loop {
            let way = &network.ways[flow];
            let step = way.step(message.step, message.turn, message.sender, message.receiver);
            let Some((layer, element)) = step else {
                self.arrived(message);
                return None;
            };
            message.step += 1;
            let Some(layer) = layer.map(|at| &network.layers[at]) else {
                continue;
            };
            if !layer.is_fluid {
                return Some((message, layer.first + element as usize));
            }
            message.has_passed_fluid = true;
            message.extra_ps += whole(layer.service_ps(self.farm.flows[flow].bytes));
        }
    }

    fn arrived(&mut self, message: Message) {
        self.under_way -= 1;
        self.counted.flows[message.flow as usize].received += 1;
        if message.flow == 0 {
            self.counted.by_receiver[message.receiver as usize] += 1;
        }
        let latency_ps = self.now_ps - message.born_ps + message.extra_ps;
        self.counted.latency_ps.add(latency_ps);
    }

    fn bytes(&self, message: Message) -> u64 {
        u64::from(self.farm.flows[message.flow as usize].bytes)
    }

    fn has_room(&self, queue: usize, message: Message) -> bool {
        let live = &self.queues[queue];
        live.bytes + self.bytes(message) <= self.network.layers[live.layer].room_bytes
    }

    /// A message that has room is served, or waits.
    fn enter(&mut self, queue: usize, message: Message) {
        let bytes = self.bytes(message);
        let live = &mut self.queues[queue];
        live.waiting.push_back(message);
        live.bytes += bytes;
        let (layer, filled) = (live.layer, live.bytes);
        let counted = &mut self.counted.layers[layer];
        counted.max_bytes = counted.max_bytes.max(filled);
        self.count(layer, 1);
        self.start(queue);
    }

    /// Servers that are free take what waits. A message that was served and finds no room keeps its server.
    fn start(&mut self, queue: usize) {
        let network = self.network;
        let live = &mut self.queues[queue];
        let layer = &network.layers[live.layer];
        while live.working.len() + live.held.len() < layer.servers as usize {
            let Some(message) = live.waiting.pop_front() else {
                break;
            };
            let bytes = f64::from(self.farm.flows[message.flow as usize].bytes);
            let drawn = layer.service.next(&mut live.trace_at, &mut live.stream) as f64;
            let service_ps = whole((drawn + layer.per_byte_ps * bytes) * live.slow).max(1);
            self.counted.layers[live.layer].work_s += service_ps as f64;
            let end_ps = self.now_ps.saturating_add(service_ps);
            let place = live.working.partition_point(|(other, _)| *other > end_ps);
            live.working.insert(place, (end_ps, message));
        }
        let next_ps = live.working.last().map_or(NEVER, |(end, _)| *end);
        self.tree.set(queue, next_ps);
    }

    /// A message was served: it goes on, gets lost, or waits for room.
    fn served(&mut self, queue: usize) {
        let live = &mut self.queues[queue];
        let (_, message) = live.working.pop().expect("it had an event");
        self.counted.layers[live.layer].done += 1;
        let Some((message, to)) = self.next(message) else {
            return self.leave(queue, message);
        };
        let layer = self.queues[to].layer;
        if self.has_room(to, message) {
            self.enter(to, message);
            self.leave(queue, message);
        } else if self.network.layers[layer].full == Full::Lose {
            self.counted.layers[layer].lost += 1;
            self.counted.flows[message.flow as usize].lost += 1;
            self.under_way -= 1;
            self.leave(queue, message);
        } else {
            self.is_held_behind_fluid |= message.has_passed_fluid;
            let live = &mut self.queues[queue];
            live.held.push((message, to));
            self.counted.layers[live.layer].held += 1;
            self.queues[to].wanting.push_back(queue);
            self.start(queue);
        }
    }

    /// A message is no longer in a queue, which has room again.
    fn leave(&mut self, queue: usize, message: Message) {
        let bytes = self.bytes(message);
        let live = &mut self.queues[queue];
        live.bytes -= bytes;
        let layer = live.layer;
        let is_wanted = !live.wanting.is_empty();
        self.count(layer, -1);
        self.start(queue);
        if is_wanted {
            self.freed.push(queue);
        }
    }

    /// Room that came free goes to who waits for it, in their order; that frees room behind them.
    fn settle(&mut self) {
        while let Some(queue) = self.freed.pop() {
            while let Some(from) = self.queues[queue].wanting.front().copied() {
                let held = &self.queues[from].held;
                let place = held.iter().position(|(_, to)| *to == queue);
                let place = place.expect("who wants holds a message");
                let message = held[place].0;
                if !self.has_room(queue, message) {
                    break;
                }
                self.queues[queue].wanting.pop_front();
                self.queues[from].held.remove(place);
                self.enter(queue, message);
                self.leave(from, message);
            }
        }
    }
}
