//! One block: fresh processes, groups of four slices, and their result.

use std::time::{Duration, Instant};

use daqmeter_harness::{Slice, StopFlag};
use daqmeter_stats::{Random, median};
use serde::Serialize;

use super::process::Process;
use super::{Question, Tracked};

/// Least time of a block for each stage, without the start of its processes: a dozen groups. A
/// block lasts as long as that start: longer ones tell little more, since the differences between
/// processes remain.
const MIN_BLOCK: Duration = Duration::from_millis(10);
/// Least number of blocks in the budget: more blocks show more differences between processes.
const MIN_BLOCKS: u32 = 25;
/// Slices longer than this always count, since a scheduler with slices of 3 to 4 ms (EEVDF's base
/// slice) hardly ever leaves them alone.
const LONG_NS: u64 = 5_000_000;
/// Denominator of the least share of undisturbed groups. Below it the work itself gives the CPU
/// away, and all groups count.
const MIN_SHARE: usize = 8;

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Block {
    /// Logarithm of B's time over A's: the median of the groups that count. `None` without one.
    pub log_ratio: Option<f64>,
    pub a_ns: f64,
    pub b_ns: f64,
    pub groups: u64,
    /// Groups that do not count, because one of their slices lost its CPU.
    pub left_out: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Group {
    op_ns: [f64; 2],
    is_disturbed: bool,
}

/// Adds a block to each stage that is not decided. The first one finds the stages.
pub(super) fn measure(
    question: &Question,
    stages: &mut Vec<Tracked>,
    random: &mut Random,
    stop: &StopFlag,
) -> Result<(), String> {
    let began = Instant::now();
    let first = toss(random);
    let one = Process::start(question, first, stages, random)?;
    let other = Process::start(question, 1 - first, stages, random)?;
    let mut sides = if first == 0 { [one, other] } else { [other, one] };
    let time = began.elapsed().min(question.budget / MIN_BLOCKS);
    let common = common_stages(&sides)?;
    if stages.is_empty() {
        let alpha = question.alpha / common.len() as f64;
        let tracked = |(name, operations)| Tracked::new(name, operations, question.ignore, alpha);
        stages.extend(common.into_iter().map(tracked));
    }
    let open: Vec<usize> = (0..stages.len()).filter(|at| !stages[*at].is_decided()).collect();
    let time = time.max(MIN_BLOCK * u32::try_from(open.len()).unwrap_or(u32::MAX));
    let measuring = Instant::now();
    let mut groups = vec![Vec::new(); stages.len()];
    while !stop.is_set() {
        for &at in &open {
            let first = toss(random);
            let mut slices = [(0, Slice::default()); 4];
            for (slice, side) in slices.iter_mut().zip([first, 1 - first, 1 - first, first]) {
                *slice = (side, sides[side].slice(at, stages[at].operations)?);
            }
            groups[at].push(group(slices, stages[at].operations));
        }
        if measuring.elapsed() >= time {
            break;
        }
    }
    sides.iter_mut().try_for_each(Process::verify)?;
    for at in open {
        stages[at].add(concluded(&groups[at]));
    }
    Ok(())
}

fn toss(random: &mut Random) -> usize {
    usize::from(random.uniform() < 0.5)
}

/// Returns the stages of both with the smaller number of operations, so that both do equal work.
fn common_stages(sides: &[Process; 2]) -> Result<Vec<(String, u64)>, String> {
    let [a, b] = sides.each_ref().map(|side| &side.stages);
    let names = |stages: &[(String, u64)]| {
        stages.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
    };
    if names(a) != names(b) {
        return Err(format!("A has the stages {}, B has {}", names(a), names(b)));
    }
    Ok(a.iter().zip(b).map(|((name, a), (_, b))| (name.clone(), (*a).min(*b).max(1))).collect())
}

fn group(slices: [(usize, Slice); 4], operations: u64) -> Group {
    let mut group = Group::default();
    for (side, slice) in slices {
        group.op_ns[side] += slice.ns as f64 / operations as f64 / 2.0;
        group.is_disturbed |= slice.is_disturbed && slice.ns < LONG_NS;
    }
    group
}

/// Returns the result of the groups. Disturbed ones are left out on both sides, unless nearly all
/// are.
fn concluded(groups: &[Group]) -> Block {
    let mut counted: Vec<&Group> = groups.iter().filter(|group| !group.is_disturbed).collect();
    if counted.len() * MIN_SHARE < groups.len() {
        counted = groups.iter().collect();
    }
    let middle = |of: fn(&Group) -> f64| {
        median(&counted.iter().map(|group| of(group)).collect::<Vec<f64>>())
    };
    if counted.is_empty() {
        return Block::default();
    }
    Block {
        log_ratio: Some(middle(|group| (group.op_ns[1] / group.op_ns[0]).ln())),
        a_ns: middle(|group| group.op_ns[0]),
        b_ns: middle(|group| group.op_ns[1]),
        groups: counted.len() as u64,
        left_out: (groups.len() - counted.len()) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ns: [u64; 4], is_disturbed: bool) -> Group {
        let slice = |at: usize| ([1, 0, 0, 1][at], Slice { ns: ns[at], is_disturbed });
        group([slice(0), slice(1), slice(2), slice(3)], 10)
    }

    #[test]
    fn a_group_cancels_what_changes_steadily() {
        let found = of([100, 110, 120, 130], false);
        assert_eq!(found, Group { op_ns: [11.5, 11.5], is_disturbed: false });
    }

    #[test]
    fn disturbed_groups_are_left_out_counted_and_kept_only_where_nearly_all_are() {
        let (clean, disturbed) = (of([100; 4], false), of([100, 100, 900, 100], true));
        let found = concluded(&[clean, disturbed, disturbed]);
        assert_eq!((found.groups, found.left_out, found.log_ratio), (1, 2, Some(0.0)));
        let found = concluded(&[disturbed, disturbed]);
        assert_eq!((found.groups, found.left_out), (2, 0));
        assert!(found.log_ratio.is_some_and(|ratio| ratio < -1.0), "{found:?}");
        assert_eq!(concluded(&[]).log_ratio, None);
        // One operation is longer than any scheduler leaves alone.
        assert!(!of([LONG_NS; 4], true).is_disturbed);
    }
}
