//! One block: fresh processes, slices in turn, and their levels.

use std::time::{Duration, Instant};

use daqmeter_harness::StopFlag;
use daqmeter_record::Slice;
use daqmeter_stats::{Level, Random, SliceTime, least_sibling, median};
use serde::Serialize;

use super::process::Process;
use super::{Question, Tracked};

/// Least time of a block for each stage, without the start of its processes: two dozen slices a
/// side. A block lasts as long as that start: longer ones tell little more, since the differences
/// between processes remain.
const MIN_BLOCK: Duration = Duration::from_millis(10);
/// Least number of blocks in the budget: more blocks show more differences between processes.
const MIN_BLOCKS: u32 = 25;

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Block {
    /// Logarithm of B's level over A's. `None` without a slice.
    pub log_ratio: Option<f64>,
    pub a_ns: f64,
    pub b_ns: f64,
    /// SlicedWork of both sides.
    pub slices: u64,
    /// True if the CPU or its core was shared in nearly all of them.
    pub is_shared: bool,
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
    let mut slices = vec![[Vec::new(), Vec::new()]; stages.len()];
    while !stop.is_set() {
        for &at in &open {
            let first = toss(random);
            for side in [first, 1 - first, 1 - first, first] {
                let slice = sides[side].slice(at, stages[at].operations)?;
                slices[at][side].push(slice_time(slice));
            }
        }
        if measuring.elapsed() >= time {
            break;
        }
    }
    sides.iter_mut().try_for_each(Process::verify)?;
    let least = least_sibling(slices.iter().flatten().flatten());
    for at in open {
        stages[at].add(concluded(&slices[at], least));
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

fn slice_time(slice: Slice) -> SliceTime {
    SliceTime {
        ns: slice.ns as f64,
        op_ns: slice.ns as f64 / slice.operations.max(1) as f64,
        chain_ns: slice.chain_ns.map(f64::from),
        sibling_ns: slice.sibling_ns.map(f64::from),
        is_lost: slice.is_lost,
    }
}

/// Returns the result of the slices of both sides.
fn concluded(sides: &[Vec<SliceTime>; 2], least: Option<f64>) -> Block {
    let level = |side: &Vec<SliceTime>| Level::of(std::slice::from_ref(side), least);
    let [Some(a), Some(b)] = sides.each_ref().map(level) else { return Block::default() };
    let unit = Level::steadier([&a, &b]);
    let chains: Vec<f64> = sides.iter().flatten().filter_map(|slice| slice.chain_ns).collect();
    let chain_ns = (!chains.is_empty()).then(|| median(&chains));
    Block {
        log_ratio: Some(b.located(unit).log - a.located(unit).log),
        a_ns: a.shown(chain_ns).0,
        b_ns: b.shown(chain_ns).0,
        slices: sides.iter().map(|side| side.len() as u64).sum(),
        is_shared: a.is_shared || b.is_shared,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(op_ns: f64, lost: usize) -> Vec<SliceTime> {
        let slice = |at: usize| {
            let is_lost = at < lost;
            let longer = if is_lost { 9.0 } else { 1.0 };
            let (ns, op_ns) = (150e3, op_ns * longer);
            SliceTime { ns, op_ns, chain_ns: Some(3e3), sibling_ns: Some(1.5e3), is_lost }
        };
        (0..24).map(slice).collect()
    }

    #[test]
    fn a_block_is_the_ratio_of_the_levels_without_slices_that_lost_their_cpu() {
        let found = concluded(&[side(100.0, 0), side(101.0, 12)], Some(0.5));
        assert!((found.log_ratio.unwrap() - 0.01_f64.ln_1p()).abs() < 1e-9, "{found:?}");
        assert!(found.slices == 48 && !found.is_shared && (found.a_ns - 100.0).abs() < 1e-9);
        assert_eq!(concluded(&[side(100.0, 0), Vec::new()], Some(0.5)), Block::default());
    }
}
