//! What a server counts, for other threads.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::slave::SlaveCounts;

/// What a server did so far, for other threads to look at while it runs. Each number is right by itself; they are not of one instant.
#[derive(Debug, Default)]
pub struct LiveCounts {
    probes: AtomicU64,
    cycles: AtomicU64,
    operations: AtomicU64,
    litex: AtomicU64,
    refused: AtomicU64,
    connections: AtomicU64,
}

impl LiveCounts {
    pub(super) fn set(&self, counts: &SlaveCounts, connections: usize) {
        let SlaveCounts { probes, cycles, operations, litex, refused } = *counts;
        let pairs = [
            (&self.probes, probes),
            (&self.cycles, cycles),
            (&self.operations, operations),
            (&self.litex, litex),
            (&self.refused, refused),
            (&self.connections, connections as u64),
        ];
        pairs.iter().for_each(|(place, count)| place.store(*count, Ordering::Relaxed));
    }

    /// What the slave did.
    pub fn counts(&self) -> SlaveCounts {
        let of = |place: &AtomicU64| place.load(Ordering::Relaxed);
        SlaveCounts {
            probes: of(&self.probes),
            cycles: of(&self.cycles),
            operations: of(&self.operations),
            litex: of(&self.litex),
            refused: of(&self.refused),
        }
    }

    /// Streams that are connected now.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }
}
