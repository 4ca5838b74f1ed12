//! How a path is run, and what all threads of a run look at.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::expected::{Known, Sums};

/// How a path is run.
#[derive(Clone, Debug)]
pub(crate) struct How {
    /// Time for which the source goes.
    pub(crate) time_ns: u64,
    /// Blocks of each stream after which it ends at the latest.
    pub(crate) most_blocks: u64,
    pub(crate) rate_hz: Option<f64>,
    pub(crate) lossless: bool,
    /// Elements, and the work that is added to each of their blocks, in nanoseconds.
    pub(crate) slowed: Vec<(u64, f64)>,
    /// Whether the parts of a card's read-out that share a thread are told apart.
    pub(crate) is_watched: bool,
    /// An element whose work is left out.
    pub(crate) left_out: Option<usize>,
    /// CPUs for the threads in turn, instead of the path's own.
    pub(crate) cpus: Vec<u32>,
    /// For the choice of stores.
    pub(crate) last_level_bytes: u64,
    /// The scheduler's migration cost for the run, instead of what it is.
    pub(crate) migration_cost_ns: Option<u64>,
    /// Sums of the paths that were run before.
    pub(crate) known: Known,
}

impl How {
    /// Work that is added to each block of an element, in nanoseconds.
    pub(crate) fn added_ns(&self, element: usize) -> f64 {
        let own = self.slowed.iter().filter(|(at, _)| *at == element as u64);
        own.map(|(_, ns)| ns).sum()
    }
}

/// What all threads of a run look at.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// The source is to end.
    pub(crate) is_over: AtomicBool,
    pub(crate) begin_ns: AtomicU64,
    /// Time after which the source ends.
    pub(crate) time_ns: u64,
    /// Blocks of each stream after which it ends.
    pub(crate) most_blocks: u64,
    pub(crate) rate_hz: Option<f64>,
    pub(crate) lossless: bool,
    /// Sums that blocks must have at the sink, by key; empty where nobody knows them.
    pub(crate) expected: Arc<Sums>,
}

impl Shared {
    /// Before the path is released.
    pub(crate) fn new(how: &How, expected: Arc<Sums>) -> Shared {
        Shared {
            time_ns: how.time_ns,
            most_blocks: how.most_blocks,
            rate_hz: how.rate_hz,
            lossless: how.lossless,
            expected,
            ..Shared::default()
        }
    }
}
