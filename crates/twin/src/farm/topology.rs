//! What a farm is made of, and whether it can be: see the module's head.

use crate::draw::Draw;
use crate::model::{Full, MAX_SERVERS, MAX_TIME_PS, SECOND_PS};

/// Nodes and switches of a kind.
pub const MAX_OF_A_KIND: u32 = 10_000;
/// Kinds, and flows.
pub const MAX_KINDS: usize = 64;
/// Pairs of sender and receiver over all flows: their loads are added up one by one.
const MAX_PAIRS: u64 = 50_000_000;
/// Messages that a node sends at once.
const MAX_BURST: u32 = 10_000;

/// Kinds, links and flows.
#[derive(Clone, Debug)]
pub struct Farm {
    /// What it is.
    pub title: String,
    /// What it asks.
    pub about: String,
    /// Time that is simulated where queues form.
    pub time_ps: u64,
    /// Its first part, which is not counted.
    pub warm_up_ps: u64,
    /// Nodes and switches.
    pub kinds: Vec<Kind>,
    /// Links of each kind upwards.
    pub links: Vec<Link>,
    /// What is sent.
    pub flows: Vec<Flow>,
    /// What is known of its numbers, and what is assumed, in the file's order.
    pub basis: Vec<Basis>,
}

/// Nodes, or switches, that are alike.
#[derive(Clone, Debug)]
pub struct Kind {
    /// Its name.
    pub name: String,
    /// How many there are.
    pub count: u32,
    /// Ports of each; none: they are nodes.
    pub ports: Option<u32>,
    /// What a message costs a node that sends or receives it; none: nothing.
    pub work: Option<Work>,
    /// Room of each of its queues, in bytes.
    pub buffer_bytes: u64,
    /// What becomes of a message from the network that finds no room.
    pub full: Full,
}

/// Time of a message in a node.
#[derive(Clone, Debug)]
pub struct Work {
    /// For each message.
    pub service: Draw,
    /// For each byte on top, in ps.
    pub per_byte_ps: f64,
    /// Messages that are worked on at once.
    pub servers: u32,
}

/// Links of each element of a kind to another kind, both ways.
#[derive(Clone, Debug)]
pub struct Link {
    /// The kind below.
    pub from: usize,
    /// The kind above.
    pub to: usize,
    /// How many each element has.
    pub links: u32,
    /// Time of a byte on one of them, in ps.
    pub per_byte_ps: f64,
    /// Time that a message is on its way.
    pub latency_ps: u64,
}

/// Messages from all nodes of a kind to nodes of another.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Its name.
    pub name: String,
    /// Who sends.
    pub from: usize,
    /// Who receives.
    pub to: usize,
    /// Bytes of a message.
    pub bytes: u32,
    /// Time between two messages, or bursts, of a sender.
    pub gap_ps: u64,
    /// When.
    pub timing: Timing,
    /// Messages at once.
    pub burst: u32,
    /// To whom.
    pub pattern: Pattern,
}

/// When senders send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timing {
    /// All at the same moments, as after a trigger.
    Trigger,
    /// At equal distances, each with a phase of its own.
    Periodic,
    /// After exponential gaps.
    Poisson,
}

/// Who gets a sender's next message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Always the same receiver.
    Fixed,
    /// All receivers in turn, each sender beginning with another.
    Turn,
    /// All receivers in turn, all senders the same: what belongs together arrives together.
    Event,
    /// Any receiver.
    Random,
}

/// Where a number comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Basis {
    /// Part and field: `node server: count`.
    pub what: String,
    /// Whether somebody published it; else it is assumed.
    pub is_known: bool,
    /// The source, or why it is assumed.
    pub why: String,
}

/// A farm that contradicts itself: the part, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {problem}")]
pub struct FarmError {
    /// Kind, link (by its lower kind) or flow.
    pub what: String,
    /// What is wrong.
    pub problem: String,
}

pub(super) fn wrong<T>(what: &str, problem: impl Into<String>) -> Result<T, FarmError> {
    Err(FarmError { what: what.to_owned(), problem: problem.into() })
}

impl Farm {
    /// Whether it can be laid out.
    ///
    /// # Errors
    /// Names the first part that cannot be, and why.
    pub fn check(&self) -> Result<(), FarmError> {
        if self.time_ps == 0 || self.time_ps > MAX_TIME_PS || self.warm_up_ps >= self.time_ps {
            return wrong("time", "must be above the warm-up and at most 53 days");
        }
        let parts = [self.kinds.len(), self.flows.len()];
        if parts.iter().any(|count| !(1..=MAX_KINDS).contains(count)) {
            return wrong("farm", format!("1 to {MAX_KINDS} kinds and flows are wanted"));
        }
        self.kinds.iter().try_for_each(check_kind)?;
        self.links.iter().try_for_each(|link| self.check_link(link))?;
        self.check_ways_up()?;
        (0..self.kinds.len()).try_for_each(|at| self.check_ports(at))?;
        self.flows.iter().try_for_each(|flow| self.check_flow(flow))?;
        let pairs = |flow: &Flow| {
            u64::from(self.kinds[flow.from].count) * u64::from(self.kinds[flow.to].count)
        };
        match self.flows.iter().map(pairs).sum::<u64>() > MAX_PAIRS {
            true => wrong("farm", format!("more than {MAX_PAIRS} pairs of sender and receiver")),
            false => Ok(()),
        }
    }

    fn check_link(&self, link: &Link) -> Result<(), FarmError> {
        let name = &self.kinds[link.from].name;
        if self.kinds[link.to].ports.is_none() {
            let above = &self.kinds[link.to].name;
            return wrong(name, format!("links lead to switches, and `{above}` is none"));
        }
        if !(1..=MAX_SERVERS).contains(&link.links) {
            return wrong(name, format!("1 to {MAX_SERVERS} links are wanted"));
        }
        match link.per_byte_ps.is_finite() && link.per_byte_ps > 0.0 {
            true => Ok(()),
            false => wrong(name, "a link needs a rate"),
        }
    }

    /// Each kind has one way up, and none leads back to itself.
    fn check_ways_up(&self) -> Result<(), FarmError> {
        for (at, kind) in self.kinds.iter().enumerate() {
            let ways = self.links.iter().filter(|link| link.from == at).count();
            if ways > 1 {
                return wrong(
                    &kind.name,
                    "has links to two kinds: give one of them, with `links = 2`",
                );
            }
            let mut above = at;
            for _ in 0..self.kinds.len() {
                match self.up(above) {
                    Some(link) => above = link.to,
                    None => break,
                }
            }
            if self.up(above).is_some() {
                return wrong(&kind.name, "its links lead round in a circle: leave one out");
            }
        }
        Ok(())
    }

    /// The links of a kind upwards.
    pub(crate) fn up(&self, kind: usize) -> Option<&Link> {
        self.links.iter().find(|link| link.from == kind)
    }

    /// Links of the fullest switch of a kind.
    fn check_ports(&self, at: usize) -> Result<(), FarmError> {
        let kind = &self.kinds[at];
        let Some(ports) = kind.ports else {
            return Ok(());
        };
        let below = self.links.iter().filter(|link| link.to == at).map(|link| {
            let elements = self.kinds[link.from].count;
            // Links of one element to several top switches are spread over them.
            match self.up(at).is_none() {
                true => (u64::from(elements) * u64::from(link.links)).div_ceil(kind.count.into()),
                false => u64::from(elements.div_ceil(kind.count)) * u64::from(link.links),
            }
        });
        let above = self.up(at).map_or(0, |link| u64::from(link.links));
        let used = below.sum::<u64>() + above;
        match used > u64::from(ports) {
            true => {
                let problem = format!("{used} links come to each, and each has {ports} ports");
                wrong(&kind.name, problem)
            }
            false => Ok(()),
        }
    }

    fn check_flow(&self, flow: &Flow) -> Result<(), FarmError> {
        for end in [flow.from, flow.to] {
            let kind = &self.kinds[end];
            if kind.ports.is_some() {
                let problem = format!("`{}` are switches, and flows go between nodes", kind.name);
                return wrong(&flow.name, problem);
            }
        }
        if flow.gap_ps == 0 || flow.bytes == 0 || !(1..=MAX_BURST).contains(&flow.burst) {
            let problem = format!("needs bytes, a rate, and bursts of 1 to {MAX_BURST}");
            return wrong(&flow.name, problem);
        }
        if self.meeting(flow.from, flow.to).is_none() {
            let (from, to) = (&self.kinds[flow.from].name, &self.kinds[flow.to].name);
            let problem =
                format!("no way from `{from}` to `{to}`: no links lead to a switch above both");
            return wrong(&flow.name, problem);
        }
        let burst = u64::from(flow.bytes) * u64::from(flow.burst);
        let sender = &self.kinds[flow.from];
        let all = self.kinds.iter();
        let least = all.min_by_key(|kind| kind.buffer_bytes);
        match least.filter(|kind| kind.buffer_bytes < u64::from(flow.bytes)) {
            Some(kind) => {
                let problem = format!("its messages never fit into the buffer of `{}`", kind.name);
                wrong(&flow.name, problem)
            }
            None if burst > sender.buffer_bytes => {
                let problem = format!("a burst never fits into the buffer of `{}`", sender.name);
                wrong(&flow.name, problem)
            }
            None => Ok(()),
        }
    }

    /// How many links up from each the lowest kind is that is above both.
    pub(crate) fn meeting(&self, from: usize, to: usize) -> Option<(usize, usize)> {
        let (left, right) = (self.chain(from), self.chain(to));
        let ups = left.iter().skip(1).position(|kind| right[1..].contains(kind));
        let ups = ups? + 1;
        let downs = right.iter().position(|kind| *kind == left[ups])?;
        Some((ups, downs))
    }

    /// A kind and what is above it.
    pub(crate) fn chain(&self, kind: usize) -> Vec<usize> {
        let mut chain = vec![kind];
        while let Some(link) = self.up(chain[chain.len() - 1]) {
            chain.push(link.to);
        }
        chain
    }

    /// Bytes per second of all flows.
    pub fn offered_bytes_per_s(&self) -> f64 {
        let of = |flow: &Flow| {
            let senders = f64::from(self.kinds[flow.from].count);
            senders * flow.bytes_per_s()
        };
        self.flows.iter().map(of).sum()
    }
}

impl Flow {
    /// Messages of one sender per second.
    pub(crate) fn messages_per_s(&self) -> f64 {
        f64::from(self.burst) * SECOND_PS as f64 / self.gap_ps as f64
    }

    /// Bytes of one sender per second.
    pub(crate) fn bytes_per_s(&self) -> f64 {
        self.messages_per_s() * f64::from(self.bytes)
    }
}

fn check_kind(kind: &Kind) -> Result<(), FarmError> {
    if !(1..=MAX_OF_A_KIND).contains(&kind.count) {
        return wrong(&kind.name, format!("a count of 1 to {MAX_OF_A_KIND} is wanted"));
    }
    if kind.ports == Some(0) || kind.buffer_bytes == 0 {
        return wrong(&kind.name, "needs ports and a buffer above 0");
    }
    let Some(work) = &kind.work else {
        return Ok(());
    };
    if !(1..=MAX_SERVERS).contains(&work.servers) {
        return wrong(&kind.name, format!("1 to {MAX_SERVERS} servers are wanted"));
    }
    match work.service.is_sound() && (0.0..=1e15).contains(&work.per_byte_ps) {
        true => Ok(()),
        false => wrong(&kind.name, "its service has no values"),
    }
}
