//! Settings of a run, and the state that all its threads share.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::definition::Path;
use crate::definition::layout::{Group, Layout};

#[derive(Clone, Debug, Default)]
pub(crate) struct PathSettings {
    pub(crate) time_ns: u64,
    /// Blocks of each stream after which its source ends, if that is before its time.
    pub(crate) most_blocks: Option<u64>,
    pub(crate) rate_hz: Option<f64>,
    /// True if the source's own times do not count, either.
    pub(crate) is_unpaced: bool,
    pub(crate) lossless: bool,
    /// Elements, and the work that is added to each of their blocks, in nanoseconds.
    pub(crate) slowed: Vec<(u64, f64)>,
    /// True if the parts of a card's read-out that share a thread are told apart.
    pub(crate) is_watched: bool,
    /// CPUs for the threads in turn, instead of the path's own.
    pub(crate) cpus: Vec<u32>,
    /// Size of the last-level cache, for the choice of stores.
    pub(crate) last_level_bytes: u64,
    /// Groups of the layout, and its name.
    pub(crate) groups: Vec<Group>,
    pub(crate) layout: String,
    /// Scheduler's migration cost for the run, if it is changed.
    pub(crate) migration_cost_ns: Option<u64>,
}

/// Seconds of a run: up to a day.
pub(crate) const SECONDS: RangeInclusive<f64> = 1e-4..=24.0 * 3600.0;

/// Nanoseconds of a positive time; a time beyond 64 bits is the longest.
pub(crate) fn time_ns(seconds: f64) -> u64 {
    let time = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl PathSettings {
    /// Layout of a run. Fails with the reason for which the path cannot have it.
    pub(crate) fn laid_out(
        path: &Path,
        layout: &Layout,
        cpus: &[u32],
    ) -> Result<PathSettings, String> {
        let chosen = BTreeSet::from_iter(cpus).len() as f64;
        let available = daqmeter_sys::available::cpus();
        let most = if cpus.is_empty() { available } else { available.min(chosen) };
        let layout = path.layout_of_run(layout, most);
        let groups = path.groups(&layout)?;
        Ok(PathSettings {
            groups,
            layout: layout.to_string(),
            cpus: cpus.to_vec(),
            ..PathSettings::default()
        })
    }

    /// Tests if each thread works through all elements.
    pub(crate) fn is_fused(&self) -> bool {
        self.groups.len() == 1
    }

    pub(crate) fn added_ns(&self, element: usize) -> f64 {
        let own = self.slowed.iter().filter(|(at, _)| *at == element as u64);
        own.map(|(_, ns)| ns).sum()
    }
}

/// What a worker has of the blocks of a source that several share: runs of them, of each `of` runs
/// that from `at` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) source: usize,
    pub(crate) at: u64,
    pub(crate) of: u64,
    pub(crate) run: u64,
}

impl Share {
    /// Number of a worker's block among those of the source.
    pub(crate) fn number(&self, own: u64) -> u64 {
        let Share { at, of, run, .. } = *self;
        if run == 1 { at + own * of } else { (own / run * of + at) * run + own % run }
    }
}

/// Sums that the known contents of each source must have at the sink. Empty if a stage makes bytes
/// that only it knows.
pub(crate) type Sums = Vec<Vec<u64>>;

#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) is_over: AtomicBool,
    /// True while a sink makes sure of what it took.
    pub(crate) is_confirming: AtomicBool,
    /// Time at which the threads were released; `None` if they do not run. They wait for it.
    pub(crate) begin_ns: OnceLock<Option<u64>>,
    /// Set once all are done: the CPU time of an ended thread cannot be read.
    pub(crate) may_end: OnceLock<()>,
    pub(crate) how: PathSettings,
    pub(crate) expected: Sums,
    /// Names of the elements, from source to sink.
    pub(crate) elements: Vec<String>,
    /// Names of the sources, each of which has an account, and the share in one of each stream.
    pub(crate) sources: Vec<String>,
    pub(crate) streams: Vec<Share>,
    /// Blocks of a ring.
    pub(crate) buffers: usize,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Each block of the source belongs to one worker, and a worker's come in their order.
        #[test]
        fn workers_share_all_blocks_and_none_twice(of in 1_u64..9, run in 1_u64..70) {
            let own = |at| {
                let share = Share { source: 0, at, of, run };
                (0..run * 3).map(move |own| share.number(own)).collect::<Vec<_>>()
            };
            let all: Vec<Vec<u64>> = (0..of).map(own).collect();
            prop_assert!(all.iter().all(|own| own.is_sorted()));
            let mut all = all.concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..run * 3 * of).collect::<Vec<_>>());
        }
    }
}
