//! What is measured by name: the engines of this program, and plans, which say which of their points to measure, how often and in
//! which order.
//!
//! Begin with [`Plan::load`]. Nothing here measures or prints: points go to `daqmeter_harness::measure`, one by one.

mod engines;
mod plan;
mod resume;
mod shipped;
mod size;
pub mod studies;

pub use engines::engines;
pub use plan::{Order, Plan, PlanError, PlannedPoint, json_schema};
pub use resume::left_to_measure;
pub use shipped::SHIPPED;
