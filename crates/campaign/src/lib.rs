//! Measurements by name: the engines of this program, plans with their points, numbers and orders,
//! and the runner, which measures them.
//!
//! Begin with [`Plan::load`] and [`Runner::run`]. Nothing here prints or writes.

pub mod ab;
mod budget;
mod engines;
mod plan;
mod point;
mod resume;
mod run;
mod site;
pub mod studies;

pub use budget::{Budget, Spend};
pub use engines::{ENGINES, context, engine};
pub use plan::{Plan, SHIPPED_PLANS, json_schema};
pub use point::PlannedPoint;
pub use run::{Done, Runner, RunnerEvent};
pub use site::Site;
