//! One block: fresh processes, groups of four slices in turns, and their result.

use std::time::{Duration, Instant};

use daqmeter_harness::{Disturbed, Slice, StopFlag};
use daqmeter_stats::median;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::Rng;
use serde::Serialize;

use super::command::Run;
use super::question::{AbSide, Question};
use super::turns::{Operations, Turns};

/// Bound of the shifts of heaps and stacks: a page has every alignment that matters to a loop.
const MAX_SHIFT: u64 = 4096;
const BATCH: Duration = Duration::from_millis(50);
const MAX_GROUPS: usize = 32;
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
    pub spread: f64,
    pub a_ns: f64,
    pub b_ns: f64,
    pub groups: u64,
    /// Groups that do not count, because one of their slices lost its CPU.
    pub left_out: u64,
    pub preempted: u64,
    pub migrated: u64,
    pub stolen: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Group {
    op_ns: [f64; 2],
    is_disturbed: bool,
}

pub(super) struct Pair<'a> {
    question: &'a Question,
    turns: Option<Turns>,
    shifts: [usize; 2],
}

impl<'a> Pair<'a> {
    pub(super) fn start(
        question: &'a Question,
        operations: &Operations,
        random: &mut Xoshiro256PlusPlus,
    ) -> Result<Pair<'a>, String> {
        let shifts = [(); 4].map(|()| shift(random));
        let first = usize::from(random.next_u64() & 1 == 1);
        let is_command = matches!(question.sides[0], AbSide::Command { .. });
        let turns = (!is_command).then(|| Turns::start(question, first, shifts, operations));
        let turns = turns.transpose()?;
        Ok(Pair { question, turns, shifts: [shifts[0], shifts[1]] })
    }

    pub(super) fn stages(&self) -> Vec<(String, u64)> {
        let run = || vec![("run".to_owned(), 1)];
        self.turns.as_ref().map_or_else(run, |turns| turns.stages().to_vec())
    }

    pub(super) fn schemas(&self) -> [u32; 2] {
        self.turns.as_ref().map_or([0; 2], Turns::schemas)
    }

    fn is_one_group(&self) -> bool {
        self.turns.is_none()
    }

    pub(super) fn measure(
        &mut self,
        stages: &[usize],
        time: Duration,
        random: &mut Xoshiro256PlusPlus,
        stop: &StopFlag,
    ) -> Result<Vec<Block>, String> {
        let began = Instant::now();
        let mut found: Vec<(Vec<Group>, Block)> = vec![Default::default(); stages.len()];
        let mut groups = 1;
        while !stop.is_set() {
            let before = Instant::now();
            self.batch(stages, groups, random, stop, &mut found)?;
            if began.elapsed() >= time || self.is_one_group() {
                break;
            }
            let left = time.saturating_sub(began.elapsed()).min(BATCH).as_secs_f64();
            groups = fitting(groups, before.elapsed().as_secs_f64(), left);
        }
        if let Some(turns) = &mut self.turns {
            turns.verify()?;
        }
        Ok(found.into_iter().map(|(groups, block)| concluded(&groups, block)).collect())
    }

    fn batch(
        &mut self,
        stages: &[usize],
        groups: usize,
        random: &mut Xoshiro256PlusPlus,
        stop: &StopFlag,
        found: &mut [(Vec<Group>, Block)],
    ) -> Result<(), String> {
        let mut wanted = Vec::with_capacity(groups * stages.len() * 4);
        for _ in 0..groups {
            for stage in stages {
                let first = usize::from(random.next_u64() & 1 == 1);
                let order = [first, 1 - first, 1 - first, first];
                wanted.extend(order.map(|side| (side, *stage)));
            }
        }
        let slices = self.work(&wanted, stop)?;
        let operations: Vec<u64> = self.stages().iter().map(|(_, count)| *count).collect();
        for (at, (wanted, slices)) in wanted.chunks(4).zip(slices.chunks(4)).enumerate() {
            let (groups, block) = &mut found[at % stages.len()];
            groups.push(group(wanted, slices, operations[wanted[0].1], block));
        }
        Ok(())
    }

    fn work(&mut self, wanted: &[(usize, usize)], stop: &StopFlag) -> Result<Vec<Slice>, String> {
        if let (Some(turns), None) = (&mut self.turns, &self.question.switch) {
            return turns.work(wanted);
        }
        let mut slices = Vec::with_capacity(wanted.len());
        for wanted in wanted {
            if let Some(switch) = &self.question.switch {
                switch.set(wanted.0)?;
                // The effect of the setting may take a while to settle.
                self.one(*wanted, stop)?;
            }
            slices.push(self.one(*wanted, stop)?);
        }
        Ok(slices)
    }

    fn one(&mut self, wanted: (usize, usize), stop: &StopFlag) -> Result<Slice, String> {
        let side = wanted.0;
        match (&mut self.turns, &self.question.sides[side]) {
            (Some(turns), _) => Ok(turns.work(&[wanted])?[0]),
            (None, AbSide::Command { line, cpu }) => {
                let (shift, patience) = (self.shifts[side], self.question.patience);
                Run { side, line, cpu: *cpu, shift, patience }.once(stop)
            }
            (None, AbSide::Point { .. }) => {
                Err("a command cannot be compared with a point".to_owned())
            }
        }
    }
}

fn shift(random: &mut Xoshiro256PlusPlus) -> usize {
    usize::try_from(random.next_u64() % MAX_SHIFT).expect("small")
}

fn fitting(groups: usize, took_s: f64, left_s: f64) -> usize {
    let fitting = groups as f64 * left_s / took_s.max(1e-6);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
    let fitting = fitting.clamp(1.0, MAX_GROUPS as f64) as usize;
    fitting
}

fn group(wanted: &[(usize, usize)], slices: &[Slice], operations: u64, block: &mut Block) -> Group {
    let mut group = Group::default();
    for ((side, _), slice) in wanted.iter().zip(slices) {
        group.op_ns[*side] += slice.ns as f64 / operations as f64 / 2.0;
        group.is_disturbed |= slice.disturbed.any() && slice.ns < LONG_NS;
        let Disturbed { preempted, migrated, stolen } = slice.disturbed;
        block.preempted += u64::from(preempted);
        block.migrated += u64::from(migrated);
        block.stolen += u64::from(stolen);
    }
    group
}

/// Returns the result of the groups. Disturbed ones are left out on both sides, unless nearly all
/// are.
fn concluded(groups: &[Group], mut block: Block) -> Block {
    let mut counted: Vec<&Group> = groups.iter().filter(|group| !group.is_disturbed).collect();
    if counted.len() * MIN_SHARE < groups.len() {
        counted = groups.iter().collect();
    }
    block.groups = counted.len() as u64;
    block.left_out = groups.len() as u64 - block.groups;
    if counted.is_empty() {
        return block;
    }
    let middle = |of: &dyn Fn(&Group) -> f64| {
        median(&counted.iter().map(|group| of(group)).collect::<Vec<f64>>())
    };
    let log_ratio = |group: &Group| (group.op_ns[1] / group.op_ns[0]).ln();
    let of_block = middle(&log_ratio);
    block.log_ratio = Some(of_block);
    block.spread = middle(&|group| (log_ratio(group) - of_block).abs());
    block.a_ns = middle(&|group| group.op_ns[0]);
    block.b_ns = middle(&|group| group.op_ns[1]);
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDER: [(usize, usize); 4] = [(1, 0), (0, 0), (0, 0), (1, 0)];

    fn slices(ns: [u64; 4], preempted: bool) -> [Slice; 4] {
        let disturbed = Disturbed { preempted, ..Disturbed::default() };
        let mut slices = ns.map(|ns| Slice { ns, ..Slice::default() });
        slices[2].disturbed = disturbed;
        slices
    }

    #[test]
    fn a_group_cancels_what_changes_steadily() {
        let mut block = Block::default();
        let found = group(&ORDER, &slices([100, 110, 120, 130], false), 10, &mut block);
        assert_eq!((found.op_ns, found.is_disturbed), ([11.5, 11.5], false));
    }

    #[test]
    fn disturbed_groups_are_left_out_counted_and_kept_only_where_nearly_all_are() {
        let mut block = Block::default();
        let clean = group(&ORDER, &slices([100; 4], false), 1, &mut block);
        let disturbed = group(&ORDER, &slices([100, 100, 900, 100], true), 1, &mut block);
        assert_eq!(block.preempted, 1);
        let found = concluded(&[clean, disturbed, disturbed], block.clone());
        assert_eq!((found.groups, found.left_out, found.log_ratio), (1, 2, Some(0.0)));
        let found = concluded(&[disturbed, disturbed], block.clone());
        assert_eq!((found.groups, found.left_out), (2, 0));
        assert!(found.log_ratio.is_some_and(|ratio| ratio < -1.0), "{found:?}");
        assert_eq!(concluded(&[], block).log_ratio, None);
        // One operation is longer than any scheduler leaves alone.
        let long = group(&ORDER, &slices([LONG_NS; 4], true), 1, &mut Block::default());
        assert!(!long.is_disturbed);
    }

    #[test]
    fn as_many_groups_are_worked_as_fit() {
        assert_eq!(fitting(1, 0.004, 0.05), 12);
        assert_eq!(fitting(1, 2.0, 0.05), 1);
        assert_eq!(fitting(1, 0.0, 0.05), MAX_GROUPS);
    }
}
