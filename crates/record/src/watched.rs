//! Receivers of a host, watched from outside: the way of their packets from the wire to a program.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Packets of somebody else's receivers, counted at each stage by the kernel and the card.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Watched {
    /// The program, port or host that was watched.
    pub target: String,
    /// Time of the counts, without that of trials, in ns.
    pub watch_ns: u64,
    /// Stages in the order in which packets pass them.
    pub stages: Vec<WatchedStage>,
    /// Losses, the largest first.
    pub losses: Vec<WatchedLoss>,
    /// Counts of each part of the time, in order.
    pub intervals: Vec<WatchedInterval>,
    /// Sockets of the target, those that dropped most first.
    pub sockets: Vec<WatchedSocket>,
    /// Sources that could not be read: what they would have shown, and why not.
    pub unseen: Vec<Unseen>,
    /// Events that limit what the counts say: a device that went, a counter that was reset.
    pub notes: Vec<String>,
}

/// Packets of a part of the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WatchedInterval {
    /// Time from the begin of the watch to the end of the interval, in ns.
    pub end_ns: u64,
    /// Packets at the entry of the first stage.
    pub came_in: u64,
    /// Packets that did not reach the program.
    pub lost: u64,
}

/// Place on the way of a packet, in order.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum WatchedPlace {
    /// The sender, and the network.
    BeforeThisHost,
    /// The network card, with its ring.
    Card,
    /// The driver, with its programs of XDP.
    Driver,
    /// The queue of a CPU from the driver to the protocols.
    Backlog,
    /// Policers, filters and queueing disciplines.
    TrafficControl,
    /// IP, with the firewall.
    Ip,
    /// UDP or TCP, up to the socket.
    Transport,
    /// The queue of a device for what this host sends.
    Exit,
    /// The buffer of a socket.
    Socket,
    /// The program that reads the socket.
    Program,
}

/// Count of packets at one place. It closes when `came_in = went_on + lost + other`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WatchedStage {
    pub place: WatchedPlace,
    /// Packets that this place counted at its entry.
    pub came_in: u64,
    /// Packets that the next place counted at its entry, or that the program read.
    pub went_on: u64,
    /// Packets whose loss was counted here.
    pub lost: u64,
    /// Packets of another kind, which leave the way here: other protocols, and what is still in
    /// memory. Negative when more went on than came in.
    pub other: i64,
}

/// Packets that one place lost for one reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WatchedLoss {
    pub place: WatchedPlace,
    /// Device, CPU or socket; empty for a whole network namespace.
    pub at: String,
    pub reason: String,
    pub packets: u64,
    pub effect: LossEffect,
    /// Counters that counted it, with the kernel's names.
    pub counted_by: String,
    /// Change that would avoid it, with its command.
    pub change: String,
    /// Why a socket's buffer was full, by packets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<WatchedCause>,
    /// Times in which the buffer was full.
    #[serde(default)]
    pub bursts: u64,
    /// Longest time from an empty buffer to a drop, in ns.
    #[serde(default)]
    pub longest_ns: u64,
    /// Size of the buffer that would have held the largest burst, in bytes; 0 if none would.
    #[serde(default)]
    pub enough_bytes: u64,
    /// Changes that were tried, in turns with the state before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trials: Vec<WatchedTrial>,
}

/// Losses of a socket with and without a change that was put back.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WatchedTrial {
    /// Change that was made, in words.
    pub change: String,
    /// It takes something away, so that the loss should grow if its cause is right.
    pub confirms: bool,
    /// Turns of each state, and the time of one in ns.
    pub turns: u64,
    pub turn_ns: u64,
    /// Turns without the change.
    pub before: TurnCounts,
    /// Turns with the change.
    pub after: TurnCounts,
    /// Share that is lost less with the change: the interval with a confidence of 99 %.
    pub less_low: f64,
    pub less_high: f64,
}

/// Packets that came to the sockets in the turns of one state, and those that the socket lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TurnCounts {
    pub packets: u64,
    pub lost: u64,
}

impl TurnCounts {
    pub fn share(self) -> f64 {
        self.lost as f64 / self.packets.max(1) as f64
    }
}

impl WatchedTrial {
    /// True if the loss became smaller, or larger where that confirms its cause.
    pub fn is_proven(&self) -> bool {
        if self.confirms { self.less_high < 0.0 } else { self.less_low > 0.0 }
    }
}

/// Why a socket's buffer was full.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WatchedCause {
    /// Short name of the cause, from a list.
    pub cause: String,
    pub text: String,
    pub change: String,
    pub bursts: u64,
    pub packets: u64,
    /// Packets of the burst that `text` describes.
    pub most_packets: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LossEffect {
    /// The program does not get it.
    Lost,
    /// The sender repeats it (TCP).
    Repeated,
    /// No program asked for it.
    Unwanted,
    /// This host sent it: it is lost to its receiver, unless TCP sends it again.
    Sent,
}

/// A socket of the target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WatchedSocket {
    /// Protocol and port, as `udp/5000`.
    pub name: String,
    pub pid: Option<u32>,
    pub process: String,
    /// Limit of the memory of waiting packets, in bytes.
    pub buffer_bytes: u64,
    /// Most memory that was seen in use, in bytes.
    pub most_filled_bytes: u64,
    pub drops: u64,
    /// A ring that it shares with its program takes its packets, and not all that it dropped are
    /// known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_ring: bool,
}

/// A source that could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Unseen {
    /// Losses that it would have shown.
    pub shows: String,
    /// Reason, with the command or right that opens it.
    pub why: String,
    /// Packets that may be lost there.
    #[serde(default)]
    pub packets: u64,
}

impl Watched {
    /// Packets that came, and those that were lost before.
    pub fn sent(&self) -> u64 {
        let is_before = |loss: &&WatchedLoss| loss.place == WatchedPlace::BeforeThisHost;
        let before = self.losses.iter().filter(is_before);
        self.came_in() + before.map(|loss| loss.packets).sum::<u64>()
    }

    /// Packets at the entry of the first stage.
    pub fn came_in(&self) -> u64 {
        self.stages.first().map_or(0, |stage| stage.came_in)
    }

    /// Packets that did not reach the program.
    pub fn lost(&self) -> u64 {
        let lost = self.losses.iter().filter(|loss| loss.effect == LossEffect::Lost);
        lost.fold(0, |sum, loss| sum.saturating_add(loss.packets))
    }
}
