//! The kernel's schedule of groups that do not all fit (kernel/events/core.c, `merge_sched_in`,
//! `rotate_ctx`).
//! The kernel walks the list from the head and stops at the first group that does not fit. At each
//! tick of the multiplexing timer the head goes to the tail. So a group that does not fit keeps
//! later groups waiting, even on free crosspoints.

use std::collections::BTreeMap;

use super::rules::{CounterLimit, Demand, Rules};

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Schedule {
    groups: usize,
    ticks: Vec<Vec<usize>>,
    /// Groups that wait in some tick, with the limits that stopped them.
    pub(super) binding: Vec<(usize, CounterLimit)>,
}

impl Schedule {
    pub(super) fn in_order(rules: &Rules<'_>, groups: &[Vec<Demand>], order: &[usize]) -> Schedule {
        let count = order.len();
        let (mut ticks, mut binding) = (Vec::with_capacity(count), Vec::new());
        for head in 0..count.max(1) {
            let mut taken = rules.nothing();
            let mut running = Vec::new();
            for group in (0..count).map(|step| order[(head + step) % count]) {
                match rules.take_group(&mut taken, &groups[group]) {
                    Ok(()) => running.push(group),
                    Err((_, limit)) => {
                        binding.push((group, limit));
                        break;
                    }
                }
            }
            let is_all = running.len() == count;
            ticks.push(running);
            if is_all {
                break;
            }
        }
        binding.sort_by_key(|(group, _)| *group);
        binding.dedup();
        Schedule { groups: count, ticks, binding }
    }

    fn ran(&self) -> Vec<u32> {
        let mut ran = vec![0_u32; self.groups];
        self.ticks.iter().flatten().for_each(|group| ran[*group] += 1);
        ran
    }

    pub(super) fn shares(&self) -> Vec<f64> {
        let ticks = self.ticks.len().max(1) as f64;
        self.ran().into_iter().map(|ran| f64::from(ran) / ticks).collect()
    }

    fn score(&self) -> (u32, u32) {
        let ran = self.ran();
        (ran.iter().min().copied().unwrap_or(0), ran.iter().sum())
    }
}

/// Returns an order of the groups that raises the smallest share, and among equals the sum of all.
/// It is the given order when none is better.
pub(super) fn better_order(rules: &Rules<'_>, groups: &[Vec<Demand>]) -> Vec<usize> {
    let count = groups.len();
    let given: Vec<usize> = (0..count).collect();
    let schedule = Schedule::in_order(rules, groups, &given);
    if schedule.ticks.len() == 1 {
        // All groups count all the time.
        return given;
    }
    let better = |best: ((u32, u32), Vec<usize>), order: Vec<usize>| {
        let score = Schedule::in_order(rules, groups, &order).score();
        if score > best.0 { (score, order) } else { best }
    };
    let mut best = better((schedule.score(), given), spread(groups));
    // Moves of one group to another place, as far as time allows: walking all rotations is
    // quadratic.
    let mut left = (400_000 / (count * count).max(1)).min(2000);
    loop {
        let before = best.0;
        let moves = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
        for (from, to) in moves.filter(|(from, to)| from != to) {
            if left == 0 {
                return best.1;
            }
            left -= 1;
            let mut order = best.1.clone();
            let group = order.remove(from);
            order.insert(to, group);
            best = better(best, order);
        }
        if best.0 == before {
            return best.1;
        }
    }
}

fn spread(groups: &[Vec<Demand>]) -> Vec<usize> {
    let mut by_monitor: BTreeMap<Vec<usize>, Vec<usize>> = BTreeMap::new();
    for (at, group) in groups.iter().enumerate() {
        let monitors = group.iter().flat_map(|demand| demand.monitors.clone());
        by_monitor.entry(monitors.collect()).or_default().push(at);
    }
    // The n-th of m in a class stands at (n + 1/2) / m of the way.
    let mut places: Vec<(f64, usize)> = Vec::new();
    for class in by_monitor.values() {
        let numbered = class.iter().enumerate();
        places.extend(numbered.map(|(nth, at)| ((nth as f64 + 0.5) / class.len() as f64, *at)));
    }
    places.sort_by(|a, b| a.0.total_cmp(&b.0));
    places.into_iter().map(|(_, at)| at).collect()
}
