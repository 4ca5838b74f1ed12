//! Which events fit at once, what share of the time each will get, and an order that raises the smallest share.
//!
//! Two things are modelled. What the driver has to give: counters of debug/trace controllers (DTC) and monitors (DTM),
//! watchpoints, filters (Linux drivers/perf/arm-cmn.c, `arm_cmn_event_add`, `arm_cmn_validate_group`). And how the kernel hands
//! it out: it walks the list of groups from the head and stops at the first that does not fit; at each tick of the multiplexing
//! timer the head goes to the tail (kernel/events/core.c, `merge_sched_in`, `rotate_ctx`). So a group that does not fit keeps
//! those behind it waiting, even on crosspoints that are free.

use std::collections::BTreeMap;

use daqmeter_record::Mesh;

use crate::event::{Event, OnMesh};
use crate::mesh::nodes::{self, DTC, RND, RNI, WATCHPOINT, XP};

/// Whose rules hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// Mainline Linux: four counters in each monitor, each chained to one of eight of the controller.
    Mainline,
    /// The driver of the N1SDP's software release: two pairs of counters in each monitor.
    N1sdp,
}

impl Driver {
    /// Events of one monitor at a time.
    pub fn monitor_counters(self) -> usize {
        match self {
            Driver::Mainline => 4,
            Driver::N1sdp => 2,
        }
    }

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Driver::Mainline => "mainline",
            Driver::N1sdp => "n1sdp",
        }
    }
}

/// Counters of one debug/trace controller.
pub const CONTROLLER_COUNTERS: usize = 8;

/// What one event takes while it counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Controllers of which it takes a counter.
    controllers: Vec<usize>,
    /// Monitors of which it takes a counter, once for each node.
    monitors: Vec<usize>,
    /// Crosspoint's comparators: monitor, direction (0 up, 2 down), combination.
    watchpoint: Option<(u64, u64)>,
    /// Filter that its nodes are set to: which of them, the nodes, the value.
    filter: Option<(Filter, Vec<usize>, u64)>,
    /// It takes the cycle counter of a controller.
    cycles: bool,
}

/// The filters of a node: each has one value for all events that it counts at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Filter {
    /// What occupies a queue: reads, writes, atomics, ...
    Occupancy,
    /// Quality-of-service class.
    Class,
    /// Group and direction of throttled memory requests.
    Throttle,
    /// Transactions that come from home, or pass the local one (S3).
    HomeOrLocal,
    /// Requests to memory or to another home (S3).
    MemoryOrHome,
}

/// The filter that an event of a node is counted through, also when its value is 0: the driver's `arm_cmn_filter_sel`.
fn filter_of(on: &OnMesh) -> Option<Filter> {
    match (on.type_code, on.event_id) {
        (0x1, 0x5 | 0xc | 0xd | 0xe) | (0x5 | 0x200, 0xf) => Some(Filter::Occupancy),
        (0x5 | 0x200, 0x26..=0x29) | (0x200, 0x3c) => Some(Filter::Class),
        (0x5 | 0x200, 0x2a | 0x2b) => Some(Filter::Throttle),
        (0x200, 0x1..=0x7 | 0xa | 0xb) => Some(Filter::HomeOrLocal),
        (0x200, 0xd | 0x3b) => Some(Filter::MemoryOrHome),
        // Asked for by number, and not known: the first is what most have.
        (code, _) if on.occup_id != 0 && code != WATCHPOINT => Some(Filter::Occupancy),
        _ => None,
    }
}

/// The limit that stands in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Limit {
    /// All counters of a controller are taken.
    Controller(usize),
    /// All counters of a monitor are taken: crosspoint's NodeID.
    Monitor(u16),
    /// Both comparators of a direction are taken: crosspoint's NodeID.
    Watchpoint(u16),
    /// A node's filter is set to another value.
    Filter(u16),
    /// All cycle counters are taken.
    Cycles,
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Limit::Controller(number) => {
                write!(f, "the {CONTROLLER_COUNTERS} counters of DTC {number}")
            }
            Limit::Monitor(node) => write!(f, "the counters of the monitor at XP {node:#x}"),
            Limit::Watchpoint(node) => write!(f, "the watchpoints of XP {node:#x}"),
            Limit::Filter(node) => write!(f, "the one filter of node {node:#x}"),
            Limit::Cycles => write!(f, "one cycle counter in each DTC"),
        }
    }
}

/// Why an event cannot be opened at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Not an event of a mesh.
    #[error("`{event}` is no event of a mesh: what it shares with others is not known")]
    NotOnMesh {
        /// The event.
        event: String,
    },
    /// The mesh has no node of the type.
    #[error("`{event}`: {mesh} has no node of type {kind}")]
    NoType {
        /// The event.
        event: String,
        /// The mesh.
        mesh: String,
        /// The type.
        kind: String,
    },
    /// It has, but not with that NodeID.
    #[error("`{event}`: {mesh} has no {kind} with NodeID {node:#x}; {there}")]
    NoNode {
        /// The event.
        event: String,
        /// The mesh.
        mesh: String,
        /// The type.
        kind: String,
        /// The NodeID.
        node: u16,
        /// What there is instead.
        there: String,
    },
    /// A group that can never be counted together.
    #[error("group of {members}: `{event}` does not fit beside those before it: {limit}")]
    Group {
        /// Number of its events.
        members: usize,
        /// The one that does not fit.
        event: String,
        /// Why not.
        limit: Limit,
    },
}

/// What a mesh has to give, and what is taken.
#[derive(Clone, Debug)]
struct Taken {
    controllers: Vec<usize>,
    monitors: Vec<usize>,
    watchpoints: BTreeMap<(usize, u64), u64>,
    filters: BTreeMap<(Filter, usize), u64>,
    cycles: usize,
}

/// A mesh under the rules of a driver.
#[derive(Debug)]
pub struct Rules<'a> {
    mesh: &'a Mesh,
    driver: Driver,
    /// For each crosspoint: the number of its first monitor.
    first_monitor: Vec<usize>,
    monitors: usize,
    /// NodeID of the crosspoint of each monitor.
    monitor_at: Vec<u16>,
}

impl<'a> Rules<'a> {
    /// The rules for a mesh.
    pub fn new(mesh: &'a Mesh, driver: Driver) -> Rules<'a> {
        let mut rules = Rules {
            mesh,
            driver,
            first_monitor: Vec::new(),
            monitors: 0,
            monitor_at: Vec::new(),
        };
        for xp in &mesh.crosspoints {
            rules.first_monitor.push(rules.monitors);
            // One monitor for two ports, where the mesh is built so.
            let here = if mesh.multi_dtm {
                xp.ports.len().div_ceil(2).max(1)
            } else {
                1
            };
            rules.monitors += here;
            rules
                .monitor_at
                .extend(std::iter::repeat_n(xp.node_id, here));
        }
        rules
    }

    fn monitor_of(&self, crosspoint: u32, port: u8) -> usize {
        let at = crosspoint as usize;
        let first = self.first_monitor.get(at).copied().unwrap_or(0);
        let next = self
            .first_monitor
            .get(at + 1)
            .copied()
            .unwrap_or(self.monitors);
        // A watchpoint may name a port that the crosspoint does not have.
        let last = next.saturating_sub(1).max(first);
        if self.mesh.multi_dtm {
            (first + usize::from(port) / 2).min(last)
        } else {
            first
        }
    }

    /// What an event takes.
    ///
    /// # Errors
    /// When the mesh has no such node.
    pub fn demand(&self, event: &Event) -> Result<Demand, PlanError> {
        let on = event.on_mesh.as_ref().ok_or_else(|| PlanError::NotOnMesh {
            event: event.name.clone(),
        })?;
        if on.type_code == DTC {
            return Ok(Demand {
                cycles: true,
                ..Demand::default()
            });
        }
        let nodes = self.nodes(event, on)?;
        let mut controllers: Vec<usize> = nodes
            .iter()
            .map(|(crosspoint, ..)| self.controller_of(*crosspoint))
            .collect();
        // CMN-600 does not tell the domains: an event takes the same counter in all of them.
        if self.mesh.crosspoints.iter().any(|xp| xp.dtc.is_none()) {
            controllers = (0..self.mesh.dtcs()).collect();
        }
        controllers.sort_unstable();
        controllers.dedup();
        let port_of = |port: u8| {
            // A watchpoint looks at one pair of ports.
            if on.type_code == WATCHPOINT {
                u8::try_from(on.wp_device).unwrap_or(0)
            } else {
                port
            }
        };
        let monitors = nodes
            .iter()
            .map(|(crosspoint, port, _)| self.monitor_of(*crosspoint, port_of(*port)))
            .collect();
        Ok(Demand {
            controllers,
            monitors,
            watchpoint: (on.type_code == WATCHPOINT).then_some((on.event_id, on.occup_id)),
            filter: filter_of(on).map(|filter| {
                (
                    filter,
                    nodes.iter().map(|(.., number)| *number).collect(),
                    on.occup_id,
                )
            }),
            cycles: false,
        })
    }

    fn controller_of(&self, crosspoint: u32) -> usize {
        self.mesh
            .crosspoints
            .get(crosspoint as usize)
            .and_then(|xp| xp.dtc)
            .map_or(0, usize::from)
    }

    /// The nodes that an event counts: crosspoint, port, number of the node.
    fn nodes(&self, event: &Event, on: &OnMesh) -> Result<Vec<(u32, u8, usize)>, PlanError> {
        let kind = match on.type_code {
            WATCHPOINT => "XP".to_owned(),
            code => nodes::of_code(code)
                .map_or_else(|| format!("{code:#x}"), |node| node.name.to_owned()),
        };
        let all: Vec<(u16, (u32, u8, usize))> = if on.type_code == XP || on.type_code == WATCHPOINT
        {
            let xps = self.mesh.crosspoints.iter().zip(0_u32..);
            xps.map(|(xp, at)| (xp.node_id, (at, 0, usize::MAX - at as usize)))
                .collect()
        } else {
            let same = |code: u16| code == on.type_code || (code == RND && on.type_code == RNI);
            let nodes = self
                .mesh
                .nodes
                .iter()
                .enumerate()
                .filter(|(_, node)| same(node.type_code));
            nodes
                .map(|(number, node)| (node.node_id, (node.crosspoint, node.port, number)))
                .collect()
        };
        if all.is_empty() {
            return Err(PlanError::NoType {
                event: event.name.clone(),
                mesh: self.mesh.name.clone(),
                kind,
            });
        }
        let Some(wanted) = on.node_id else {
            return Ok(all.into_iter().map(|(_, place)| place).collect());
        };
        let found: Vec<_> = all
            .iter()
            .filter(|(id, _)| *id == wanted)
            .map(|(_, place)| *place)
            .collect();
        if !found.is_empty() {
            return Ok(found);
        }
        let ids: Vec<String> = all.iter().map(|(id, _)| format!("{id:#x}")).collect();
        let others: Vec<&str> = self
            .mesh
            .nodes
            .iter()
            .filter(|node| node.node_id == wanted)
            .map(|node| node.kind.as_str())
            .collect();
        let there = if others.is_empty() {
            format!("those of the type are {}", ids.join(", "))
        } else {
            format!(
                "{wanted:#x} is a {}; those of the type are {}",
                others.join(" and a "),
                ids.join(", ")
            )
        };
        Err(PlanError::NoNode {
            event: event.name.clone(),
            mesh: self.mesh.name.clone(),
            kind,
            node: wanted,
            there,
        })
    }

    fn nothing(&self) -> Taken {
        Taken {
            controllers: vec![0; self.mesh.dtcs()],
            monitors: vec![0; self.monitors],
            watchpoints: BTreeMap::new(),
            filters: BTreeMap::new(),
            cycles: 0,
        }
    }

    /// Takes what an event needs, or says what is missing and leaves everything as it was.
    fn take(&self, taken: &mut Taken, demand: &Demand) -> Result<(), Limit> {
        if demand.cycles {
            if taken.cycles >= self.mesh.dtcs() {
                return Err(Limit::Cycles);
            }
            taken.cycles += 1;
            return Ok(());
        }
        if let Some(full) = demand
            .controllers
            .iter()
            .find(|at| taken.controllers[**at] >= CONTROLLER_COUNTERS)
        {
            return Err(Limit::Controller(*full));
        }
        for (at, monitor) in demand.monitors.iter().enumerate() {
            let before = demand.monitors[..at]
                .iter()
                .filter(|other| *other == monitor)
                .count();
            if taken.monitors[*monitor] + before >= self.driver.monitor_counters() {
                return Err(Limit::Monitor(self.monitor_at[*monitor]));
            }
        }
        if let Some((direction, combine)) = demand.watchpoint {
            for monitor in &demand.monitors {
                let free = |slot: u64| !taken.watchpoints.contains_key(&(*monitor, slot));
                // Two comparators for each direction; a combination takes its place in the pair as the driver numbers it.
                let slot = direction + u64::from(!free(direction));
                let agrees = taken
                    .watchpoints
                    .get(&(*monitor, direction))
                    .is_none_or(|other| *other == combine);
                if !free(slot) || !agrees {
                    return Err(Limit::Watchpoint(self.monitor_at[*monitor]));
                }
            }
        }
        if let Some((filter, nodes, value)) = &demand.filter
            && let Some(node) = nodes.iter().find(|node| {
                taken
                    .filters
                    .get(&(*filter, **node))
                    .is_some_and(|set| set != value)
            })
        {
            let id = self.mesh.nodes.get(*node).map_or(0, |node| node.node_id);
            return Err(Limit::Filter(id));
        }
        demand
            .controllers
            .iter()
            .for_each(|at| taken.controllers[*at] += 1);
        demand
            .monitors
            .iter()
            .for_each(|at| taken.monitors[*at] += 1);
        if let Some((direction, combine)) = demand.watchpoint {
            for monitor in &demand.monitors {
                let second = u64::from(taken.watchpoints.contains_key(&(*monitor, direction)));
                taken
                    .watchpoints
                    .insert((*monitor, direction + second), combine);
            }
        }
        if let Some((filter, nodes, value)) = &demand.filter {
            taken
                .filters
                .extend(nodes.iter().map(|node| ((*filter, *node), *value)));
        }
        Ok(())
    }

    /// Takes a whole group or nothing.
    fn take_group(&self, taken: &mut Taken, group: &[Demand]) -> Result<(), (usize, Limit)> {
        // Only groups need to be taken back.
        let before = (group.len() > 1).then(|| taken.clone());
        for (member, demand) in group.iter().enumerate() {
            if let Err(limit) = self.take(taken, demand) {
                if let Some(before) = before {
                    *taken = before;
                }
                return Err((member, limit));
            }
        }
        Ok(())
    }

    /// Demands of groups; a group that can never be counted is refused, as the driver does when its last member is opened.
    ///
    /// # Errors
    /// Names the event and the limit.
    pub fn demands(&self, groups: &[Vec<Event>]) -> Result<Vec<Vec<Demand>>, PlanError> {
        let mut all = Vec::new();
        for group in groups {
            let demands: Result<Vec<Demand>, PlanError> =
                group.iter().map(|event| self.demand(event)).collect();
            let demands = demands?;
            let refuse = |(member, limit): (usize, Limit)| PlanError::Group {
                members: group.len(),
                event: group
                    .get(member)
                    .map_or(String::new(), |event| event.name.clone()),
                limit,
            };
            // Two cycle counters in one group are refused whatever the mesh has.
            if demands.iter().filter(|demand| demand.cycles).count() > 1 {
                let second = demands
                    .iter()
                    .enumerate()
                    .filter(|(_, demand)| demand.cycles)
                    .nth(1);
                return Err(refuse((second.map_or(0, |(at, _)| at), Limit::Cycles)));
            }
            self.take_group(&mut self.nothing(), &demands)
                .map_err(refuse)?;
            all.push(demands);
        }
        Ok(all)
    }

    /// Which groups count in each tick of the kernel's rotation, until it repeats, and which limit stopped each that waited.
    pub fn schedule(&self, groups: &[Vec<Demand>]) -> Schedule {
        let count = groups.len();
        let order: Vec<usize> = (0..count).collect();
        let (ticks, waits) = self.ticks(groups, &order);
        let mut binding: Vec<(usize, Limit)> = waits;
        binding.sort_by_key(|(group, _)| *group);
        binding.dedup();
        Schedule {
            groups: count,
            ticks,
            binding,
        }
    }

    /// Walks all rotations of the order.
    fn ticks(
        &self,
        groups: &[Vec<Demand>],
        order: &[usize],
    ) -> (Vec<Vec<usize>>, Vec<(usize, Limit)>) {
        let count = order.len();
        let (mut ticks, mut waits) = (Vec::with_capacity(count), Vec::new());
        for head in 0..count.max(1) {
            let mut taken = self.nothing();
            let mut running = Vec::new();
            for step in 0..count {
                let group = order[(head + step) % count];
                match self.take_group(&mut taken, &groups[group]) {
                    Ok(()) => running.push(group),
                    Err((_, limit)) => {
                        waits.push((group, limit));
                        break;
                    }
                }
            }
            let all = running.len() == count;
            ticks.push(running);
            if all {
                break;
            }
        }
        (ticks, waits)
    }

    fn smallest_share(&self, groups: &[Vec<Demand>], order: &[usize]) -> (usize, usize, usize) {
        let (ticks, _) = self.ticks(groups, order);
        let mut ran = vec![0; groups.len()];
        ticks.iter().flatten().for_each(|group| ran[*group] += 1);
        // As parts of the number of groups; all at once is the whole.
        let whole = ticks.len();
        let (least, sum) = (ran.iter().min().copied().unwrap_or(0), ran.iter().sum());
        if whole == 1 {
            (groups.len(), sum * groups.len(), 1)
        } else {
            (least, sum, 0)
        }
    }

    /// An order of the groups that raises the smallest share, and among equals the sum of all; the given one when none is better.
    pub fn better_order(&self, groups: &[Vec<Demand>]) -> Vec<usize> {
        let mut best: Vec<usize> = (0..groups.len()).collect();
        let mut score = self.smallest_share(groups, &best);
        if score.2 == 1 {
            return best;
        }
        for candidate in self.candidates(groups) {
            let found = self.smallest_share(groups, &candidate);
            if found > score {
                (best, score) = (candidate, found);
            }
        }
        // Moves of one group to another place, as far as time allows: walking all rotations is quadratic.
        let count = groups.len();
        let mut left = (400_000 / (count * count).max(1)).min(2000);
        let mut improved = true;
        while improved && left > 0 {
            improved = false;
            'moves: for from in 0..count {
                for to in (0..count).filter(|to| *to != from) {
                    if left == 0 {
                        break 'moves;
                    }
                    left -= 1;
                    let mut candidate = best.clone();
                    let group = candidate.remove(from);
                    candidate.insert(to, group);
                    let found = self.smallest_share(groups, &candidate);
                    if found > score {
                        (best, score, improved) = (candidate, found, true);
                    }
                }
            }
        }
        best
    }

    /// Orders worth a look: groups of the same monitors spread evenly, and packed so that neighbours fit together.
    fn candidates(&self, groups: &[Vec<Demand>]) -> Vec<Vec<usize>> {
        let key = |at: &usize| {
            groups[*at]
                .iter()
                .flat_map(|demand| demand.monitors.clone())
                .collect::<Vec<_>>()
        };
        let mut by_monitor: BTreeMap<Vec<usize>, Vec<usize>> = BTreeMap::new();
        for at in 0..groups.len() {
            by_monitor.entry(key(&at)).or_default().push(at);
        }
        // The n-th of m in a class stands at (n + 1/2) / m of the way.
        let mut spread: Vec<(f64, usize)> = Vec::new();
        for class in by_monitor.values() {
            let places = class.iter().enumerate();
            spread.extend(places.map(|(nth, at)| ((nth as f64 + 0.5) / class.len() as f64, *at)));
        }
        spread.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut packed: Vec<usize> = Vec::new();
        let mut rest: Vec<usize> = (0..groups.len()).collect();
        while !rest.is_empty() {
            let mut taken = self.nothing();
            let before = packed.len();
            rest.retain(|at| {
                let fits = self.take_group(&mut taken, &groups[*at]).is_ok();
                if fits {
                    packed.push(*at);
                }
                !fits
            });
            if packed.len() == before {
                break;
            }
        }
        let mut all = vec![spread.into_iter().map(|(_, at)| at).collect::<Vec<_>>()];
        if packed.len() == groups.len() {
            all.push(packed);
        }
        all
    }
}

/// What the kernel will do with a list of groups.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    groups: usize,
    /// Groups that count, by tick; the whole repeats.
    pub ticks: Vec<Vec<usize>>,
    /// Groups that wait in some tick, and the limits that stopped them.
    pub binding: Vec<(usize, Limit)>,
}

impl Schedule {
    /// Share of the time that each group counts.
    pub fn shares(&self) -> Vec<f64> {
        let mut ran = vec![0_u32; self.groups];
        self.ticks
            .iter()
            .flatten()
            .for_each(|group| ran[*group] += 1);
        ran.into_iter()
            .map(|ran| f64::from(ran) / self.ticks.len().max(1) as f64)
            .collect()
    }

    /// True when everything counts all the time.
    pub fn fits(&self) -> bool {
        self.ticks.len() == 1 && self.ticks[0].len() == self.groups
    }
}

/// A plan for events on one mesh.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Share of each group in the order given.
    pub shares: Vec<f64>,
    /// What stands in the way of whom.
    pub binding: Vec<(usize, Limit)>,
    /// A better order of the groups, and the share of each (by its number in the given order); none when the given is as good.
    pub better: Option<(Vec<usize>, Vec<f64>)>,
}

/// Plans groups of events on a mesh.
///
/// # Errors
/// Names the event that cannot be opened and why.
pub fn plan(mesh: &Mesh, driver: Driver, groups: &[Vec<Event>]) -> Result<Plan, PlanError> {
    let rules = Rules::new(mesh, driver);
    let demands = rules.demands(groups)?;
    let given = rules.schedule(&demands);
    let shares = given.shares();
    let least = |shares: &[f64]| shares.iter().copied().fold(f64::INFINITY, f64::min);
    let order = rules.better_order(&demands);
    let ordered: Vec<Vec<Demand>> = order.iter().map(|at| demands[*at].clone()).collect();
    let found = rules.schedule(&ordered).shares();
    let better = (least(&found) > least(&shares) + 1e-9).then(|| {
        let mut by_group = vec![0.0; order.len()];
        order
            .iter()
            .zip(&found)
            .for_each(|(at, share)| by_group[*at] = *share);
        (order, by_group)
    });
    Ok(Plan {
        shares,
        binding: given.binding,
        better,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Source;
    use crate::mesh::topology::shipped;
    use proptest::prelude::*;

    pub(crate) fn event(type_code: u16, event_id: u64, node_id: Option<u16>) -> Event {
        let on = OnMesh {
            type_code,
            event_id,
            occup_id: 0,
            node_id,
            wp_device: 0,
        };
        Event {
            name: format!("{type_code:#x}/{event_id:#x}@{node_id:?}"),
            pmu: "arm_cmn_0".into(),
            sources: Vec::<Source>::new(),
            unit: String::new(),
            scale: 1.0,
            on_mesh: Some(on),
        }
    }

    fn alone(events: &[Event]) -> Vec<Vec<Event>> {
        events.iter().map(|event| vec![event.clone()]).collect()
    }

    fn shares(driver: Driver, groups: &[Vec<Event>]) -> Vec<f64> {
        plan(&shipped("n1sdp").unwrap(), driver, groups)
            .unwrap()
            .shares
    }

    fn rnd(number: u64, node: u16) -> Event {
        event(RNI, number, Some(node))
    }

    fn hnf(number: u64, node: u16) -> Event {
        event(0x5, number, Some(node))
    }

    #[test]
    fn the_documents_four_rnd_events_get_half_the_time_and_all_of_it_in_mainline() {
        let four = alone(&[rnd(5, 0x8), rnd(5, 0xc), rnd(4, 0x8), rnd(4, 0xc)]);
        assert_eq!(shares(Driver::N1sdp, &four), [0.5; 4]);
        assert_eq!(shares(Driver::Mainline, &four), [1.0; 4]);
        let more = |count: u64| {
            alone(
                &(1..=count)
                    .map(|number| rnd(number, 0x8))
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(shares(Driver::Mainline, &more(5)), [0.8; 5]);
        assert!(
            shares(Driver::Mainline, &more(6))
                .iter()
                .all(|share| (share - 4.0 / 6.0).abs() < 1e-12)
        );
    }

    #[test]
    fn the_documents_eight_events_fit_under_both_drivers() {
        let nodes = [0x24, 0x28, 0x44, 0x48];
        let eight: Vec<Event> = [0xd, 0xc]
            .into_iter()
            .flat_map(|number| nodes.map(|node| hnf(number, node)))
            .collect();
        assert_eq!(shares(Driver::Mainline, &alone(&eight)), [1.0; 8]);
        assert_eq!(shares(Driver::N1sdp, &alone(&eight)), [1.0; 8]);
    }

    #[test]
    fn percentages_that_perf_showed_are_predicted() {
        // Measured with perf on the emulated N1SDP: 87,87,87,87,49,62,74,87; interleaved 74,75,75,86-87 five times.
        let mut events: Vec<Event> = (1..=5).map(|number| rnd(number, 0x8)).collect();
        events.extend([hnf(0xd, 0x24), hnf(0xd, 0x28), hnf(0xd, 0x44)]);
        assert_eq!(
            shares(Driver::Mainline, &alone(&events)),
            [0.875, 0.875, 0.875, 0.875, 0.5, 0.625, 0.75, 0.875]
        );
        let [first, second] = [&events[..5], &events[5..]].map(<[Event]>::to_vec);
        let groups = vec![
            [&first[..4], &second[..]].concat(),
            [&first[4..], &[hnf(1, 0x24), hnf(1, 0x28), hnf(1, 0x44)]].concat(),
        ];
        assert_eq!(shares(Driver::Mainline, &groups), [0.5, 0.5]);
        // Five events over all home nodes: each takes a counter in every monitor.
        let all: Vec<Event> = (1..=5).map(|number| event(0x5, number, None)).collect();
        assert_eq!(shares(Driver::Mainline, &alone(&all)), [0.8; 5]);
    }

    #[test]
    fn a_better_order_is_found_and_keeps_what_it_promises() {
        let mut events: Vec<Event> = (1..=5).map(|number| rnd(number, 0x8)).collect();
        events.extend([hnf(0xd, 0x24), hnf(0xd, 0x28), hnf(0xd, 0x44)]);
        let plan = plan(
            &shipped("n1sdp").unwrap(),
            Driver::Mainline,
            &alone(&events),
        )
        .unwrap();
        let (order, promised) = plan.better.unwrap();
        assert!(promised.iter().all(|share| *share >= 0.75), "{promised:?}");
        let ordered: Vec<Vec<Event>> = order.iter().map(|at| vec![events[*at].clone()]).collect();
        let kept = shares(Driver::Mainline, &ordered);
        assert!(
            order
                .iter()
                .zip(&kept)
                .all(|(at, share)| promised[*at] == *share)
        );
        assert!(
            plan.binding
                .iter()
                .any(|(_, limit)| *limit == Limit::Monitor(0x8)),
            "{:?}",
            plan.binding
        );
    }

    #[test]
    fn two_domains_have_eight_counters_each() {
        let mesh = shipped("cmn700").unwrap();
        let of = |dtc: u8| -> Vec<u16> {
            let nodes = mesh.nodes.iter().filter(|node| node.kind == "HN-F");
            nodes
                .filter(|node| mesh.crosspoint_of(node).unwrap().dtc == Some(dtc))
                .map(|node| node.node_id)
                .collect()
        };
        let eight = |dtc| {
            of(dtc)
                .into_iter()
                .cycle()
                .take(8)
                .enumerate()
                .map(|(at, node)| hnf(at as u64 + 1, node))
                .collect::<Vec<_>>()
        };
        let sixteen = [eight(0), eight(1)].concat();
        assert!(
            plan(&mesh, Driver::Mainline, &alone(&sixteen))
                .unwrap()
                .shares
                .iter()
                .all(|share| *share == 1.0)
        );
        // Twelve on three crosspoints of one domain: two thirds, bound by the controller.
        let twelve: Vec<Event> = of(0)[..3]
            .iter()
            .flat_map(|node| (1..=4).map(|number| hnf(number, *node)))
            .collect();
        let plan = plan(&mesh, Driver::Mainline, &alone(&twelve)).unwrap();
        assert!(
            plan.shares
                .iter()
                .all(|share| (share - 2.0 / 3.0).abs() < 0.01),
            "{:?}",
            plan.shares
        );
        assert!(
            plan.binding
                .iter()
                .all(|(_, limit)| *limit == Limit::Controller(0))
        );
    }

    #[test]
    fn what_can_never_be_opened_is_refused_with_the_reason() {
        let mesh = shipped("n1sdp").unwrap();
        let refused = |groups: &[Vec<Event>]| {
            plan(&mesh, Driver::Mainline, groups)
                .unwrap_err()
                .to_string()
        };
        let group: Vec<Event> = (1..=5).map(|number| rnd(number, 0x8)).collect();
        assert!(refused(&[group]).contains(
            "group of 5: `0xa/0x5@Some(8)` does not fit beside those before it: the counters of the monitor at XP 0x8"
        ));
        let cycles = event(DTC, 0, None);
        assert!(
            refused(&[vec![cycles.clone(), cycles.clone()]])
                .contains("one cycle counter in each DTC")
        );
        assert!(
            refused(&alone(&[hnf(1, 0x99)]))
                .contains("no HN-F with NodeID 0x99; those of the type are 0x24")
        );
        assert!(refused(&alone(&[hnf(1, 0x8)])).contains("0x8 is a RN-D"));
        assert!(refused(&alone(&[event(0x200, 1, None)])).contains("has no node of type HN-S"));
        let filter = |value| {
            let mut event = hnf(0xf, 0x24);
            event.on_mesh.as_mut().unwrap().occup_id = value;
            event
        };
        assert!(refused(&[vec![filter(1), filter(2)]]).contains("the one filter of node 0x24"));
        assert!(plan(&mesh, Driver::Mainline, &[vec![filter(1), filter(1)]]).is_ok());
        // A class is another filter than an occupancy.
        let mut class = hnf(0x26, 0x24);
        class.on_mesh.as_mut().unwrap().occup_id = 3;
        assert!(plan(&mesh, Driver::Mainline, &[vec![filter(1), class]]).is_ok());
        // `all` is a value of the filter like the others.
        assert!(refused(&[vec![filter(0), filter(2)]]).contains("the one filter of node 0x24"));
        let watch = |direction| event(WATCHPOINT, direction, Some(0x8));
        assert!(
            refused(&[vec![watch(0), watch(0), watch(0)]]).contains("the watchpoints of XP 0x8")
        );
        assert!(
            plan(
                &mesh,
                Driver::Mainline,
                &[vec![watch(0), watch(0), watch(2), watch(2)]]
            )
            .is_ok()
        );
        // A watchpoint at a port that is not there takes the last monitor's.
        let mut beyond = event(WATCHPOINT, 0, Some(0x78));
        beyond.on_mesh.as_mut().unwrap().wp_device = 7;
        assert!(
            plan(
                &shipped("cmn700").unwrap(),
                Driver::Mainline,
                &alone(&[beyond])
            )
            .is_ok()
        );
        // By themselves, two cycle events share the one counter.
        assert_eq!(
            shares(Driver::Mainline, &alone(&[cycles.clone(), cycles])),
            [0.5, 0.5]
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_tick_takes_more_than_there_is_and_nobody_starves(
            picks in proptest::collection::vec((0_u64..16, any::<prop::sample::Index>(), any::<bool>()), 1..24)
        ) {
            let mesh = shipped("cmn700").unwrap();
            let events: Vec<Event> = picks.iter().map(|(number, node, rnd_wanted)| {
                let kind = if *rnd_wanted { "RN-D" } else { "HN-F" };
                let ids: Vec<u16> = mesh.nodes.iter().filter(|node| node.kind == kind).map(|node| node.node_id).collect();
                event(if *rnd_wanted { RNI } else { 0x5 }, *number, Some(ids[node.index(ids.len())]))
            }).filter(|event| event.on_mesh.as_ref().is_some_and(|on| on.event_id != 0xf)).collect();
            prop_assume!(!events.is_empty());
            let rules = Rules::new(&mesh, Driver::Mainline);
            let demands = rules.demands(&alone(&events)).unwrap();
            let schedule = rules.schedule(&demands);
            for tick in &schedule.ticks {
                let mut controllers = [0; 2];
                let mut monitors = BTreeMap::new();
                for group in tick {
                    for demand in &demands[*group] {
                        demand.controllers.iter().for_each(|at| controllers[*at] += 1);
                        demand.monitors.iter().for_each(|at| *monitors.entry(*at).or_insert(0) += 1);
                    }
                }
                prop_assert!(controllers.iter().all(|count| *count <= 8) && monitors.values().all(|count| *count <= 4));
            }
            prop_assert!(schedule.shares().iter().all(|share| *share > 0.0));
            let least = |shares: &[f64]| shares.iter().copied().fold(f64::INFINITY, f64::min);
            let found = plan(&mesh, Driver::Mainline, &alone(&events)).unwrap();
            if let Some((_, shares)) = found.better {
                prop_assert!(least(&shares) > least(&found.shares));
            }
        }
    }
}
