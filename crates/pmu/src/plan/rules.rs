//! Counters of a driver on a mesh, the counters of an event, and groups that are refused when they
//! are opened.
//! The driver has two checks. [`Rules::take`] hands out counters when events are scheduled
//! (`arm_cmn_event_add`). [`Rules::check_group`] judges a group when its members are opened
//! (`arm_cmn_validate_group`). It is coarser and refuses some groups that would fit.

use std::collections::BTreeMap;

use daqmeter_harness::Fault;
use daqmeter_record::Mesh;
use daqmeter_record::units::joined;

use super::driver::{Driver, Filter, filter_of};
use crate::event::{OnMesh, PmuEvent, wrong};
use crate::mesh::nodes::{self, DTC, RND, RNI, WATCHPOINT, XP};

pub(super) const CONTROLLER_COUNTERS: usize = 8;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Demand {
    controllers: Vec<usize>,
    /// Monitors of which it takes a counter, once for each node.
    pub(super) monitors: Vec<usize>,
    /// Monitors in the check of groups: for a watchpoint the first of the crosspoint, whatever its
    /// port.
    booked: Vec<usize>,
    watchpoint: Option<Watchpoint>,
    filter: Option<(Filter, Vec<usize>, u64)>,
    cycles: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Watchpoint {
    /// Comparators 0 and 1 look up, 2 and 3 down.
    direction: u64,
    group: u64,
    combine: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CounterLimit {
    /// All counters of a controller are taken.
    #[error("the {CONTROLLER_COUNTERS} counters of DTC {0}")]
    Controller(usize),
    /// All counters of a monitor are taken: crosspoint's NodeID.
    #[error("the counters of the monitor at XP {0:#x}")]
    Monitor(u16),
    /// Both comparators of a direction are taken: crosspoint's NodeID.
    #[error("the watchpoints of XP {0:#x}")]
    Watchpoint(u16),
    /// A node's filter is set to another value.
    #[error("the one filter of node {0:#x}")]
    Filter(u16),
    #[error("one cycle counter in each DTC")]
    Cycles,
    /// The events would fit, but the driver refuses to open them as one group.
    #[error("{0}, as this driver counts when a group is opened; as separate events they fit")]
    AtOpen(Box<CounterLimit>),
}

#[derive(Debug)]
pub(super) struct Taken {
    controllers: Vec<usize>,
    monitors: Vec<usize>,
    watchpoints: BTreeMap<(usize, u64), u64>,
    /// Values of filters, by node; in the check of groups by monitor.
    filters: BTreeMap<(Filter, usize), u64>,
    cycles: usize,
}

#[derive(Clone, Copy)]
struct EventPlace {
    crosspoint: usize,
    port: u8,
    /// Number of the node in the mesh; crosspoints have none, and no filters.
    node: Option<usize>,
}

#[derive(Debug)]
pub struct Rules<'a> {
    mesh: &'a Mesh,
    driver: Driver,
    first_monitor: Vec<usize>,
    monitor_at: Vec<u16>,
}

impl<'a> Rules<'a> {
    pub fn new(mesh: &'a Mesh, driver: Driver) -> Rules<'a> {
        let (mut first_monitor, mut monitor_at) = (Vec::new(), Vec::new());
        for xp in &mesh.crosspoints {
            first_monitor.push(monitor_at.len());
            // One monitor serves two ports, if the mesh is built so.
            let ports = if mesh.multi_dtm { xp.ports.len() } else { 1 };
            let here = ports.div_ceil(2).max(1);
            monitor_at.extend(std::iter::repeat_n(xp.node_id, here));
        }
        Rules { mesh, driver, first_monitor, monitor_at }
    }

    fn first_monitor_of(&self, crosspoint: usize) -> usize {
        self.first_monitor.get(crosspoint).copied().unwrap_or(0)
    }

    fn monitor_of(&self, crosspoint: usize, port: u8) -> usize {
        let first = self.first_monitor_of(crosspoint);
        if !self.mesh.multi_dtm {
            return first;
        }
        let next = self.first_monitor.get(crosspoint + 1);
        // A watchpoint may name a port that the crosspoint does not have.
        let last = next.map_or(self.monitor_at.len(), |next| *next).saturating_sub(1);
        (first + usize::from(port) / 2).min(last.max(first))
    }

    pub(super) fn demand(&self, event: &PmuEvent) -> Result<Demand, Fault> {
        let on = event.on_mesh.as_ref().ok_or_else(|| {
            wrong(
                &event.name,
                " is not an event of a mesh: what it shares with others is not known",
            )
        })?;
        if on.type_code == DTC {
            return Ok(Demand { cycles: true, ..Demand::default() });
        }
        let places = self.places(event, on)?;
        let is_watchpoint = on.type_code == WATCHPOINT;
        let monitor = |place: &EventPlace| {
            let watched = u8::try_from(on.wp_device).unwrap_or(u8::MAX);
            self.monitor_of(place.crosspoint, if is_watchpoint { watched } else { place.port })
        };
        let monitors: Vec<usize> = places.iter().map(monitor).collect();
        let booked = if is_watchpoint {
            places.iter().map(|place| self.first_monitor_of(place.crosspoint)).collect()
        } else {
            monitors.clone()
        };
        let numbers = || places.iter().filter_map(|place| place.node).collect();
        Ok(Demand {
            controllers: self.controllers(&places),
            monitors,
            booked,
            watchpoint: is_watchpoint.then_some(Watchpoint {
                direction: on.event_id,
                group: on.wp_group,
                combine: on.occup_id,
            }),
            filter: filter_of(&self.mesh.part, on).map(|filter| (filter, numbers(), on.occup_id)),
            cycles: false,
        })
    }

    fn controllers(&self, places: &[EventPlace]) -> Vec<usize> {
        let domain = |place: &EventPlace| {
            let xp = self.mesh.crosspoints.get(place.crosspoint);
            xp.and_then(|xp| xp.dtc).map(usize::from)
        };
        let domains: Option<Vec<usize>> = places.iter().map(domain).collect();
        let mut domains = match domains {
            Some(domains) if !self.driver.takes_all_controllers() => domains,
            _ => (0..self.mesh.dtcs()).collect(),
        };
        domains.sort_unstable();
        domains.dedup();
        domains
    }

    /// Returns all nodes of the type, with their NodeIDs.
    fn of_type(&self, type_code: u16) -> Vec<(u16, EventPlace)> {
        if type_code == XP || type_code == WATCHPOINT {
            let xps = self.mesh.crosspoints.iter().enumerate();
            let place = |crosspoint| EventPlace { crosspoint, port: 0, node: None };
            return xps.map(|(at, xp)| (xp.node_id, place(at))).collect();
        }
        let wanted = match type_code {
            RND if self.driver.knows_rnd() => RNI,
            code => code,
        };
        let nodes = self.mesh.nodes.iter().enumerate();
        nodes
            .filter(|(_, node)| wanted != RND && nodes::counts_as(node.type_code, wanted))
            .map(|(number, node)| {
                let crosspoint = node.crosspoint as usize;
                (node.node_id, EventPlace { crosspoint, port: node.port, node: Some(number) })
            })
            .collect()
    }

    fn places(&self, event: &PmuEvent, on: &OnMesh) -> Result<Vec<EventPlace>, Fault> {
        let (all, mesh) = (self.of_type(on.type_code), &self.mesh.name);
        let kind = self.kind(on.type_code);
        if all.is_empty() {
            return Err(wrong(&event.name, &format!(": {mesh} has no node of type {kind}")));
        }
        let Some(wanted) = on.node_id else {
            return Ok(all.into_iter().map(|(_, place)| place).collect());
        };
        let found = all.iter().find(|(id, _)| *id == wanted).map(|(_, place)| vec![*place]);
        found.ok_or_else(|| {
            let there = self.instead_of(wanted, &all);
            wrong(&event.name, &format!(": {mesh} has no {kind} with NodeID {wanted:#x}; {there}"))
        })
    }

    fn kind(&self, type_code: u16) -> String {
        match type_code {
            WATCHPOINT => "XP".to_owned(),
            RND if !self.driver.knows_rnd() => {
                "RN-D for this driver, which counts it as RN-I (type=0xa)".to_owned()
            }
            code => nodes::name_of(code).map_or_else(|| format!("{code:#x}"), str::to_owned),
        }
    }

    fn instead_of(&self, wanted: u16, all: &[(u16, EventPlace)]) -> String {
        let ids = joined(all.iter().map(|(id, _)| format!("{id:#x}")), ", ").unwrap_or_default();
        let same_id = self.mesh.nodes.iter().filter(|node| node.node_id == wanted);
        let others = joined(same_id.map(|node| node.kind.as_str()), " and a ");
        let is = others.map_or(String::new(), |others| format!("{wanted:#x} is a {others}; "));
        format!("{is}those of the type are {ids}")
    }

    pub(super) fn nothing(&self) -> Taken {
        Taken {
            controllers: vec![0; self.mesh.dtcs()],
            monitors: vec![0; self.monitor_at.len()],
            watchpoints: BTreeMap::new(),
            filters: BTreeMap::new(),
            cycles: 0,
        }
    }

    fn take(&self, taken: &mut Taken, demand: &Demand) -> Result<(), CounterLimit> {
        if demand.cycles {
            taken.cycles += 1;
            let fits = taken.cycles <= self.mesh.dtcs();
            return if fits { Ok(()) } else { Err(CounterLimit::Cycles) };
        }
        for at in &demand.controllers {
            taken.controllers[*at] += 1;
            if taken.controllers[*at] > CONTROLLER_COUNTERS {
                return Err(CounterLimit::Controller(*at));
            }
        }
        for at in &demand.monitors {
            taken.monitors[*at] += 1;
            if taken.monitors[*at] > self.driver.monitor_counters() {
                return Err(CounterLimit::Monitor(self.monitor_at[*at]));
            }
        }
        self.take_watchpoint(taken, demand)?;
        self.take_filter(taken, demand)
    }

    fn take_watchpoint(&self, taken: &mut Taken, demand: &Demand) -> Result<(), CounterLimit> {
        let Some(watchpoint) = demand.watchpoint else {
            return Ok(());
        };
        for monitor in &demand.monitors {
            let slot = self.comparator(taken, *monitor, watchpoint);
            let agrees = |slot: u64| {
                let other = taken.watchpoints.get(&(*monitor, slot ^ 1));
                other.is_none_or(|other| *other == watchpoint.combine)
            };
            let Some(slot) = slot.filter(|slot| agrees(*slot)) else {
                return Err(CounterLimit::Watchpoint(self.monitor_at[*monitor]));
            };
            taken.watchpoints.insert((*monitor, slot), watchpoint.combine);
        }
        Ok(())
    }

    fn comparator(&self, taken: &Taken, monitor: usize, watchpoint: Watchpoint) -> Option<u64> {
        let Watchpoint { direction, group, .. } = watchpoint;
        let is_free = |slot: &u64| !taken.watchpoints.contains_key(&(monitor, *slot));
        if self.driver.fixes_watchpoints() {
            return Some(direction + group).filter(is_free);
        }
        [direction, direction + 1].into_iter().find(is_free)
    }

    fn take_filter(&self, taken: &mut Taken, demand: &Demand) -> Result<(), CounterLimit> {
        let Some((filter, nodes, value)) = &demand.filter else {
            return Ok(());
        };
        for node in nodes {
            if taken.filters.insert((*filter, *node), *value).is_some_and(|set| set != *value) {
                return Err(CounterLimit::Filter(self.mesh.nodes[*node].node_id));
            }
        }
        Ok(())
    }

    pub(super) fn take_group(
        &self,
        taken: &mut Taken,
        group: &[Demand],
    ) -> Result<(), (usize, CounterLimit)> {
        let take = |(member, demand)| self.take(taken, demand).map_err(|limit| (member, limit));
        group.iter().enumerate().try_for_each(take)
    }

    /// Compares counts with `==`, as the driver does. So a monitor that an event of several nodes
    /// pushed beyond the limit is not seen as full.
    fn check_group(&self, group: &[Demand]) -> Result<(), (usize, CounterLimit)> {
        let mut booked = self.nothing();
        for (member, demand) in group.iter().enumerate() {
            if member > 0 {
                let refused = |limit| (member, CounterLimit::AtOpen(Box::new(limit)));
                self.check_member(&booked, demand).map_err(refused)?;
            }
            self.book(&mut booked, demand);
        }
        Ok(())
    }

    fn check_member(&self, taken: &Taken, demand: &Demand) -> Result<(), CounterLimit> {
        if demand.cycles {
            let refused = taken.cycles > 0 && self.driver.refuses_second_cycles();
            return if refused { Err(CounterLimit::Cycles) } else { Ok(()) };
        }
        let is_full = |at: &usize| taken.controllers[*at] == CONTROLLER_COUNTERS;
        let mut full = (0..taken.controllers.len()).filter(is_full);
        let any = self.driver.stops_at_any_full_controller();
        if let Some(at) = full.find(|at| any || demand.controllers.contains(at)) {
            return Err(CounterLimit::Controller(at));
        }
        demand.booked.iter().try_for_each(|monitor| self.check_monitor(taken, demand, *monitor))
    }

    fn check_monitor(&self, taken: &Taken, demand: &Demand, at: usize) -> Result<(), CounterLimit> {
        if taken.monitors[at] == self.driver.monitor_counters() {
            return Err(CounterLimit::Monitor(self.monitor_at[at]));
        }
        if let Some((filter, _, value)) = &demand.filter
            && taken.filters.get(&(*filter, at)).is_some_and(|set| set != value)
        {
            return Err(CounterLimit::Filter(self.monitor_at[at]));
        }
        let Some(watchpoint) = demand.watchpoint else {
            return Ok(());
        };
        let slot = self.comparator(taken, at, watchpoint);
        let agrees = |slot: u64| match taken.watchpoints.get(&(at, slot ^ 1)) {
            None => true,
            Some(other) if self.driver.fixes_watchpoints() => *other == watchpoint.combine,
            // Newer drivers compare only that both are combined, not the kind.
            Some(other) => (*other > 0) == (watchpoint.combine > 0),
        };
        match slot {
            Some(slot) if agrees(slot) => Ok(()),
            _ => Err(CounterLimit::Watchpoint(self.monitor_at[at])),
        }
    }

    fn book(&self, taken: &mut Taken, demand: &Demand) {
        taken.cycles += usize::from(demand.cycles);
        for at in &demand.controllers {
            taken.controllers[*at] += 1;
        }
        for at in &demand.booked {
            taken.monitors[*at] += 1;
            if let Some((filter, _, value)) = &demand.filter {
                taken.filters.insert((*filter, *at), *value);
            }
            if let Some(watchpoint) = demand.watchpoint
                && let Some(slot) = self.comparator(taken, *at, watchpoint)
            {
                taken.watchpoints.insert((*at, slot), watchpoint.combine);
            }
        }
    }

    pub(super) fn demands(&self, groups: &[Vec<PmuEvent>]) -> Result<Vec<Vec<Demand>>, Fault> {
        groups.iter().map(|group| self.demands_of(group)).collect()
    }

    fn demands_of(&self, group: &[PmuEvent]) -> Result<Vec<Demand>, Fault> {
        let demands: Result<Vec<Demand>, Fault> =
            group.iter().map(|event| self.demand(event)).collect();
        let demands = demands?;
        let fits = self
            .take_group(&mut self.nothing(), &demands)
            .and_then(|()| self.check_group(&demands));
        let refused = |(member, limit): (usize, CounterLimit)| {
            let (members, event) = (group.len(), &group[member].name);
            Fault::new(format!(
                "group of {members}: `{event}` does not fit beside those before it: {limit}"
            ))
        };
        fits.map(|()| demands).map_err(refused)
    }

    pub fn check(&self, groups: &[Vec<PmuEvent>]) -> Result<(), Fault> {
        self.demands(groups).map(drop)
    }
}
