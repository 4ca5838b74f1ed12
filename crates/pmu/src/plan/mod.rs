//! Plans: the events that fit at once, the share of the time of each, and an order that raises the
//! smallest share.
//! `driver` and `rules` model the counters of the driver; `schedule` models the kernel's
//! scheduling.

mod driver;
mod rules;
mod schedule;

use daqmeter_harness::Fault;
use daqmeter_record::Mesh;

use crate::event::PmuEvent;

pub use driver::Driver;
pub use rules::{CounterLimit, Rules};
use schedule::Schedule;

#[derive(Clone, Debug)]
pub struct CountPlan {
    pub shares: Vec<f64>,
    pub binding: Vec<(usize, CounterLimit)>,
    pub better: Option<(Vec<usize>, Vec<f64>)>,
}

pub fn plan(mesh: &Mesh, driver: Driver, groups: &[Vec<PmuEvent>]) -> Result<CountPlan, Fault> {
    let rules = Rules::new(mesh, driver);
    let demands = rules.demands(groups)?;
    let given: Vec<usize> = (0..groups.len()).collect();
    let schedule = Schedule::in_order(&rules, &demands, &given);
    let shares = schedule.shares();
    let order = schedule::better_order(&rules, &demands);
    let found = Schedule::in_order(&rules, &demands, &order).shares();
    let smallest = |shares: &[f64]| shares.iter().copied().fold(f64::INFINITY, f64::min);
    let better = (smallest(&found) > smallest(&shares) + 1e-9).then_some((order, found));
    Ok(CountPlan { shares, binding: schedule.binding, better })
}

#[cfg(test)]
mod tests;
