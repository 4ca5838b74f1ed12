//! Whether the buffers of a path hold what a source that cannot wait brings.

use daqmeter_record::PathRun;
use daqmeter_record::path::PathThread;

use crate::explain::SPARE;

/// What the runs with time to spare show of the buffers. A source that cannot wait loses what finds no room.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Room {
    /// Time from block to block of the whole path in the last of them, in nanoseconds.
    pub every_ns: f64,
    /// How long they took in all, in nanoseconds.
    pub watched_ns: f64,
    /// The longest time for which blocks that were due found no room, in nanoseconds.
    pub no_room_ns: f64,
    /// How full the rings behind the source were in all runs but one in ten, as a share of their blocks: a rate counts as one without
    /// loss though a run in so many loses a block.
    pub fullest: f64,
}

impl Room {
    /// Which share of the largest rate a source that cannot wait reaches without loss, where a ring holds so many blocks now and then.
    /// What waits at most grows as 1 / (1 - rate) near the largest rate (a queue in heavy traffic: Kingman, "On queues in heavy
    /// traffic", J. R. Stat. Soc. B 24(2), 1962); what comes while a thread is stopped grows with the rate.
    pub fn share_without_loss(&self, now: u64, then: u64) -> f64 {
        let full = self.fullest * now as f64 / then.max(1) as f64;
        match full > 1.0 {
            true => SPARE / full,
            false => 1.0 - (1.0 - SPARE) * full,
        }
    }

    /// Blocks that would have held what was due of one of several streams, where so many are there: twice what was seen, for the next
    /// wait may be longer, as a power of two. As many as there are where nothing waited.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "blocks of a wait, at most as many as fit into 64 bits"
    )]
    pub fn wanted(&self, buffers: u64, streams: f64) -> u64 {
        match self.no_room_ns > 0.0 {
            true => {
                let due = (self.no_room_ns / self.every_ns / streams).ceil() as u64;
                (2 * (buffers + due)).next_power_of_two()
            }
            false => buffers,
        }
    }
}

/// The largest of values but for such a share of them, rounded down.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "at most as many as there are"
)]
pub(crate) fn all_but(share: f64, mut values: Vec<f64>) -> f64 {
    values.sort_by(|a, b| b.total_cmp(a));
    let left_out = (values.len() as f64 * share) as usize;
    values.get(left_out).copied().unwrap_or(0.0)
}

/// Blocks that waited behind the source or were due at most, as a share of the blocks of their ring.
pub(crate) fn fullest(run: &PathRun) -> f64 {
    let sources: Vec<&PathThread> = run.threads.iter().filter(|one| one.element == 0).collect();
    let blocks_of_each = run.blocks as f64 / sources.len().max(1) as f64;
    let of_source = |source: &&PathThread| {
        let due = source.no_room_ns as f64 / run.wall_ns.max(1) as f64 * blocks_of_each;
        let rings = run.queues.iter().filter(|queue| queue.from == source.name);
        let full = rings.filter_map(|queue| {
            let most = queue.seen.iter().rposition(|&looks| looks > 0)?;
            Some((most as f64 + due) / (queue.seen.len() - 1).max(1) as f64)
        });
        full.fold(0.0, f64::max)
    };
    sources.iter().map(of_source).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fullest_ring_is_one_behind_the_source() {
        let thread = |element, name: &str| daqmeter_record::path::PathThread {
            name: name.to_owned(),
            element,
            ..Default::default()
        };
        let queue = |from: &str, seen: &[u64]| daqmeter_record::path::PathQueue {
            from: from.to_owned(),
            seen: seen.to_vec(),
            ..Default::default()
        };
        let mut run = PathRun {
            wall_ns: 1000,
            blocks: 10,
            threads: vec![thread(0, "memory"), thread(1, "copy")],
            queues: vec![queue("memory", &[7, 2, 1, 0, 0]), queue("copy", &[0, 0, 0, 0, 9])],
            ..PathRun::default()
        };
        assert_eq!(fullest(&run), 0.5);
        // Four blocks were due while there was no room.
        run.threads[0].no_room_ns = 400;
        assert_eq!(fullest(&run), 1.5);
    }

    #[test]
    fn one_of_ten_values_is_left_out() {
        assert_eq!(all_but(0.1, (0..20).map(f64::from).collect()), 17.0);
        assert_eq!(all_but(0.1, vec![3.0, 4.0]), 4.0);
    }
}
