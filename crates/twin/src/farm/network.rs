//! A farm laid out: layers of equal queues, the ways through them, and their loads by arithmetic.

use super::topology::{Farm, Flow, Kind, Link, Pattern, Timing};
use crate::draw::Draw;
use crate::model::{Full, SECOND_PS};

/// What a layer is of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Work of the nodes on what they send.
    Send,
    /// Links upwards.
    Up,
    /// The same links downwards.
    Down,
    /// Work of the nodes on what they receive.
    Receive,
}

const PLACES: [Place; 4] = [Place::Send, Place::Up, Place::Down, Place::Receive];

/// Queues that are alike: one for each element of a kind.
#[derive(Clone, Debug)]
pub struct Layer {
    /// What it is called in tables.
    pub name: String,
    /// The kind whose elements have these queues.
    pub kind: usize,
    /// What they do for it.
    pub place: Place,
    /// Its first queue.
    pub(crate) first: usize,
    /// How many.
    pub queues: usize,
    /// Messages that each serves at once.
    pub servers: u32,
    pub(crate) service: Draw,
    pub(crate) per_byte_ps: f64,
    pub(crate) room_bytes: u64,
    pub(crate) full: Full,
    /// Share of its time that the busiest queue works, at the stated rates.
    pub load: f64,
    /// Mean of these.
    pub mean_load: f64,
    /// Whether several messages come to a queue at one moment.
    meets: bool,
    /// Whether messages pass without queueing, so that they are not simulated here.
    pub is_fluid: bool,
}

impl Layer {
    /// Mean time of a message.
    pub(crate) fn service_ps(&self, bytes: u32) -> f64 {
        self.service.moments().0 + self.per_byte_ps * f64::from(bytes)
    }
}

/// Below this load messages that do not come together do not wait: at most a fifth of a service time on average (M/D/1).
const FLUID_BELOW: f64 = 0.3;

/// Layers of a farm and the ways of its flows.
#[derive(Clone, Debug)]
pub struct Network {
    /// In the order of kinds and places; only those that messages pass.
    pub layers: Vec<Layer>,
    /// For each kind, its layers by place.
    of_kind: Vec<[Option<usize>; 4]>,
    pub(crate) ways: Vec<Way>,
    /// All queues.
    pub queues: usize,
}

/// The way of a flow up to the switch where it turns, and down.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    up: Ladder,
    down: Ladder,
    ups: usize,
    downs: usize,
    sends: Option<usize>,
    receives: Option<usize>,
    latency_ps: Vec<u64>,
}

/// From a node upwards: kinds with their layers.
#[derive(Clone, Debug)]
struct Ladder {
    counts: Vec<u32>,
    layers: Vec<Option<usize>>,
}

impl Ladder {
    /// The element so many links above a node: neighbours share a switch.
    fn element(&self, node: u32, height: usize) -> u32 {
        let step = |element: u32, counts: &[u32]| {
            let above = u64::from(element) * u64::from(counts[1]) / u64::from(counts[0]);
            u32::try_from(above).expect("less than the count of the kind above")
        };
        self.counts[..=height].windows(2).fold(node, step)
    }
}

impl Way {
    fn new(farm: &Farm, of_kind: &[[Option<usize>; 4]], flow: &Flow) -> Way {
        let ladder = |kind: usize, place: Place| {
            let chain = farm.chain(kind);
            Ladder {
                counts: chain.iter().map(|kind| farm.kinds[*kind].count).collect(),
                layers: chain.iter().map(|kind| of_kind[*kind][place as usize]).collect(),
            }
        };
        let (ups, downs) = farm.meeting(flow.from, flow.to).expect("checked");
        let latency = |kind: usize| farm.up(kind).map_or(0, |link| link.latency_ps);
        let sum = |kinds: &[usize]| kinds.iter().map(|kind| latency(*kind)).sum::<u64>();
        let (left, right) = (farm.chain(flow.from), farm.chain(flow.to));
        let turns = ups..left.len();
        Way {
            up: ladder(flow.from, Place::Up),
            down: ladder(flow.to, Place::Down),
            ups,
            downs,
            sends: of_kind[flow.from][Place::Send as usize],
            receives: of_kind[flow.to][Place::Receive as usize],
            latency_ps: turns
                .map(|top| sum(&left[..top]) + sum(&right[..top - ups + downs]))
                .collect(),
        }
    }

    /// How many kinds above the lowest common one this pair turns: where both are below the same switch. Switches without any above are
    /// one fabric.
    pub(crate) fn turn(&self, sender: u32, receiver: u32) -> u8 {
        let top = self.up.counts.len() - 1;
        let is_common = |more: usize| {
            self.ups + more == top
                || self.up.element(sender, self.ups + more)
                    == self.down.element(receiver, self.downs + more)
        };
        let more = (0..=top - self.ups).find(|more| is_common(*more));
        u8::try_from(more.expect("the top is common")).expect("fewer than 256 kinds")
    }

    /// The layer and the element of a step of the way, with what is passed without any; none behind the last.
    pub(crate) fn step(
        &self,
        step: u8,
        turn: u8,
        sender: u32,
        receiver: u32,
    ) -> Option<(Option<usize>, u32)> {
        let (ups, downs) = (self.ups + usize::from(turn), self.downs + usize::from(turn));
        match usize::from(step) {
            0 => Some((self.sends, sender)),
            at if at <= ups => {
                let height = at - 1;
                Some((self.up.layers[height], self.up.element(sender, height)))
            }
            at if at <= ups + downs => {
                let height = downs - (at - ups);
                Some((self.down.layers[height], self.down.element(receiver, height)))
            }
            at if at == ups + downs + 1 => Some((self.receives, receiver)),
            _ => None,
        }
    }

    pub(crate) fn latency_ps(&self, turn: u8) -> u64 {
        self.latency_ps[usize::from(turn)]
    }
}

impl Network {
    /// Lays out a farm that was checked.
    pub fn new(farm: &Farm) -> Network {
        let mut network = Network {
            layers: Vec::new(),
            of_kind: vec![[None; 4]; farm.kinds.len()],
            ways: Vec::new(),
            queues: 0,
        };
        for kind in 0..farm.kinds.len() {
            for place in PLACES {
                network.add(farm, kind, place);
            }
        }
        let of_kind = &network.of_kind;
        let ways = farm.flows.iter().map(|flow| Way::new(farm, of_kind, flow));
        network.ways = ways.collect();
        network.add_loads(farm);
        network.at(1.0)
    }

    /// The same where all rates are so many times as high: what is fluid depends on it.
    #[must_use]
    pub(crate) fn at(mut self, factor: f64) -> Network {
        for layer in &mut self.layers {
            let is_unused = layer.load == 0.0;
            layer.is_fluid = is_unused || (layer.load * factor < FLUID_BELOW && !layer.meets);
        }
        self
    }

    /// All layers are simulated: what the fluid ones are checked against.
    #[must_use]
    pub fn without_fluid(mut self) -> Network {
        self.layers.iter_mut().for_each(|layer| layer.is_fluid = false);
        self
    }

    fn add(&mut self, farm: &Farm, at: usize, place: Place) {
        let kind = &farm.kinds[at];
        let is_passed = |flow: &Flow| match place {
            Place::Send => flow.from == at,
            Place::Receive => flow.to == at,
            Place::Up | Place::Down => true,
        };
        let layer = match place {
            Place::Send | Place::Receive => worked(kind, place),
            Place::Up | Place::Down => farm.up(at).map(|link| linked(farm, link, place)),
        };
        if let Some(mut layer) = layer.filter(|_| farm.flows.iter().any(is_passed)) {
            layer.kind = at;
            layer.first = self.queues;
            self.queues += layer.queues;
            self.of_kind[at][place as usize] = Some(self.layers.len());
            self.layers.push(layer);
        }
    }

    /// Loads of all queues at the stated rates, kept as the largest and the mean of each layer; and at which layers messages of several
    /// senders or of a burst meet at one moment. The memory is one number for each queue.
    fn add_loads(&mut self, farm: &Farm) {
        let mut loads = vec![0.0; self.queues];
        for (flow, way) in farm.flows.iter().zip(&self.ways) {
            let (senders, receivers) = (farm.kinds[flow.from].count, farm.kinds[flow.to].count);
            let is_one = flow.pattern == Pattern::Fixed;
            let share = if is_one { 1.0 } else { 1.0 / f64::from(receivers) };
            let per_s = flow.messages_per_s() * share;
            for sender in 0..senders {
                let fixed = fixed_receiver(sender, senders, receivers);
                let all = if is_one { fixed..fixed + 1 } else { 0..receivers };
                for receiver in all {
                    self.add_pair(way, flow, (sender, receiver), per_s, &mut loads);
                }
            }
            for layer in &mut self.layers {
                layer.meets |= meet(farm, flow, layer);
            }
        }
        for layer in &mut self.layers {
            let loads = &loads[layer.first..layer.first + layer.queues];
            layer.load = loads.iter().copied().fold(0.0, f64::max);
            layer.mean_load = loads.iter().sum::<f64>() / loads.len() as f64;
        }
    }

    fn add_pair(
        &self,
        way: &Way,
        flow: &Flow,
        (sender, receiver): (u32, u32),
        per_s: f64,
        loads: &mut [f64],
    ) {
        let turn = way.turn(sender, receiver);
        let steps = (0..=u8::MAX).map_while(|step| way.step(step, turn, sender, receiver));
        for (layer, element) in steps {
            let Some(layer) = layer.map(|at| &self.layers[at]) else {
                continue;
            };
            let service_s = layer.service_ps(flow.bytes) / SECOND_PS as f64;
            loads[layer.first + element as usize] += per_s * service_s / f64::from(layer.servers);
        }
    }

    /// The factor on all rates at which the busiest queue works all the time, and its layer.
    pub fn bound(&self) -> (f64, usize) {
        let all = self.layers.iter().enumerate();
        let largest = all.max_by(|one, other| one.1.load.total_cmp(&other.1.load));
        let (at, layer) = largest.expect("messages pass links");
        (1.0 / layer.load, at)
    }
}

/// The receiver of a sender that always has the same: neighbours share one.
pub(crate) fn fixed_receiver(sender: u32, senders: u32, receivers: u32) -> u32 {
    match senders >= receivers {
        true => {
            let share = u64::from(sender) * u64::from(receivers) / u64::from(senders);
            u32::try_from(share).expect("less than the receivers")
        }
        false => sender,
    }
}

/// Whether several messages of a flow come to a queue of this layer at one moment. A sender's own are behind each other there already,
/// unless they come as a burst.
fn meet(farm: &Farm, flow: &Flow, layer: &Layer) -> bool {
    let is_own = layer.kind == flow.from && matches!(layer.place, Place::Send | Place::Up);
    let together = flow.timing == Timing::Trigger && farm.kinds[flow.from].count > 1;
    match is_own {
        true => flow.burst > 1,
        false => flow.burst > 1 || together,
    }
}

fn worked(kind: &Kind, place: Place) -> Option<Layer> {
    let work = kind.work.as_ref()?;
    let what = if place == Place::Send { "sends" } else { "receives" };
    Some(Layer {
        name: format!("{} {what}", kind.name),
        kind: 0,
        place,
        first: 0,
        queues: kind.count as usize,
        servers: work.servers,
        service: work.service.clone(),
        per_byte_ps: work.per_byte_ps,
        room_bytes: kind.buffer_bytes,
        full: if place == Place::Send { Full::Wait } else { kind.full },
        load: 0.0,
        mean_load: 0.0,
        meets: false,
        is_fluid: false,
    })
}

/// Links one way. The queue before them is in the element that sends over them: below when it goes up, above when it goes down.
fn linked(farm: &Farm, link: &Link, place: Place) -> Layer {
    let (below, above) = (&farm.kinds[link.from], &farm.kinds[link.to]);
    let (name, holds) = match place {
        Place::Up => (format!("{} -> {}", below.name, above.name), below),
        _ => (format!("{} -> {}", above.name, below.name), above),
    };
    Layer {
        name,
        kind: 0,
        place,
        first: 0,
        queues: below.count as usize,
        servers: link.links,
        service: Draw::Constant(0),
        per_byte_ps: link.per_byte_ps,
        room_bytes: holds.buffer_bytes,
        // A node does not lose what it sends itself.
        full: if holds.ports.is_none() { Full::Wait } else { holds.full },
        load: 0.0,
        mean_load: 0.0,
        meets: false,
        is_fluid: false,
    }
}
