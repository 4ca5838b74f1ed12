//! Ledger of losses: each issued item is delivered or lost for a named reason.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::border::sum;

/// Loss at the source of a read-out chain: items that it did not give.
pub const NOT_GIVEN: &str = "emulator deficit";

/// Triggers of a read-out chain that BUSY stopped at the source, or XOFF at a link: they are dead
/// time, not losses.
pub const STOPPED: [&str; 4] = [
    "stopped by BUSY-by-DMA",
    "stopped by BUSY-by-FIFO",
    "stopped by BUSY from outside",
    "stopped by XOFF",
];

/// Units of the triggers of a board whose source is known: counted there, or inferred.
pub const TRIGGERS: [&str; 2] = ["triggers", "triggers (inferred)"];

/// Kinds that are no losses: faults that a scenario requests, arrivals with a flag, and data that
/// a user's signal left where they were.
pub const NOT_LOST: [&str; 4] = [
    "injected faults",
    "flagged error or CRC",
    "flagged at the source",
    "in the card when it was stopped",
];

/// Account of one kind of thing that moves along a path. It closes when `issued = delivered +
/// sum(losses)`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Ledger {
    /// Unit of the counts: `triggers`, `bytes`, `blocks`.
    pub unit: String,
    /// Device that it was counted at, where each has its own account; empty for all together.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub of: String,
    /// Counted at the source.
    pub issued: u64,
    /// Counted at the consumer.
    pub delivered: u64,
    /// Counted where they were lost, by reason; a reason with zero stays, so that a reader sees
    /// that it was watched.
    pub losses: BTreeMap<String, u64>,
}

impl Ledger {
    pub fn new(unit: impl Into<String>) -> Self {
        Ledger { unit: unit.into(), ..Ledger::default() }
    }

    pub fn lose(&mut self, reason: &str, count: u64) {
        let lost = self.losses.entry(reason.to_owned()).or_default();
        *lost = lost.saturating_add(count);
    }

    pub fn lost(&self) -> u64 {
        sum(self.losses.values())
    }

    pub fn not_given(&self) -> u64 {
        self.losses_of(&[NOT_GIVEN])
    }

    pub fn stopped(&self) -> u64 {
        self.losses_of(&STOPPED)
    }

    /// Sums the losses on the way: without [`NOT_GIVEN`], [`STOPPED`] and [`NOT_LOST`].
    pub fn lost_on_the_way(&self) -> u64 {
        [self.not_given(), self.stopped(), self.losses_of(&NOT_LOST)]
            .into_iter()
            .fold(self.lost(), u64::saturating_sub)
    }

    fn losses_of(&self, names: &[&str]) -> u64 {
        sum(names.iter().filter_map(|name| self.losses.get(*name)))
    }

    pub fn add(&mut self, other: &Ledger) {
        debug_assert_eq!((&self.unit, &self.of), (&other.unit, &other.of));
        self.issued = self.issued.saturating_add(other.issued);
        self.delivered = self.delivered.saturating_add(other.delivered);
        for (reason, &count) in &other.losses {
            self.lose(reason, count);
        }
    }

    /// Returns the missing items: positive if more were issued than accounted for, negative if some
    /// were counted twice.
    pub fn gap(&self) -> i128 {
        i128::from(self.issued) - i128::from(self.delivered) - i128::from(self.lost())
    }

    pub fn closes(&self) -> bool {
        self.gap() == 0
    }
}

impl std::fmt::Display for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let of = if self.of.is_empty() { String::new() } else { format!("{}: ", self.of) };
        write!(f, "{of}{} {} issued = {} delivered", self.issued, self.unit, self.delivered)?;
        for (reason, count) in self.losses.iter().filter(|(_, count)| **count > 0) {
            write!(f, " + {count} {reason}")?;
        }
        if self.closes() {
            Ok(())
        } else {
            write!(f, " (does not close: {} unaccounted for)", self.gap())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_closes_only_when_every_loss_is_named() {
        let mut ledger = Ledger { issued: 100, delivered: 97, ..Ledger::new("triggers") };
        assert!(!ledger.closes());
        assert_eq!(ledger.gap(), 3);
        ledger.lose("not armed", 3);
        assert!(ledger.closes());
        assert_eq!(ledger.to_string(), "100 triggers issued = 97 delivered + 3 not armed");
    }

    #[test]
    fn counting_twice_is_a_fault_too() {
        let ledger = Ledger { issued: 1, delivered: 2, ..Ledger::new("blocks") };
        assert_eq!(ledger.gap(), -1);
        assert!(ledger.to_string().contains("does not close"));
    }

    #[test]
    fn lanes_add_up_reason_by_reason() {
        let mut all = Ledger::new("bytes");
        for lost in [1, 2] {
            let mut lane = Ledger { issued: 10, delivered: 10 - lost, ..Ledger::new("bytes") };
            lane.lose("short read", lost);
            all.add(&lane);
        }
        assert_eq!((all.issued, all.delivered, all.losses["short read"]), (20, 17, 3));
        assert!(all.closes());
    }
}
