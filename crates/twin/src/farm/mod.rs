//! A farm: kinds of nodes and switches with counts, the links between them, and flows from senders to receivers.
//!
//! Links lead upwards, from nodes to switches and from switches to switches, each kind to one other; so there is one way between two
//! nodes, down from the lowest switch that both are below. [`Farm`] is read from a file (`file.rs`) and laid out in layers of queues
//! (`network.rs`), whose loads follow from arithmetic; where queues form, messages are simulated one by one (`events.rs`).
//! [`answer()`] asks both what a person asks before buying. Begin there.
//!
//! What it leaves out: protocols (no retransmission, no congestion control), frames (a message goes over a link as a whole), and choice
//! of links by hash (a message takes any link of its group that is free).

mod answer;
mod events;
mod file;
mod network;
mod topology;

pub use answer::{
    Answer, Beginning, Gain, LayerAnswer, Need, Questions, Simulated, SlowReceiver, answer,
};
pub use events::{FarmOutcome, FlowOutcome, LayerOutcome, simulate};
pub use file::SHIPPED_FARMS;
pub use network::{Layer, Network, Place};
pub use topology::{
    Basis, Farm, FarmError, Flow, Kind, Link, MAX_KINDS, MAX_OF_A_KIND, Pattern, Timing, Work,
};

#[cfg(test)]
mod tests;
