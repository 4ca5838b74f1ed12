//! Predicts how data flows: stations with queues, simulated event by event, and closed forms where they are exact.
//!
//! [`Model`] says what there is, [`run`] simulates it with the random numbers of a seed, [`replicate()`] does so with many seeds on all
//! CPUs and gives intervals. The same model and seed give the same bits on every host. [`Scenario`] is a model as a file. [`closed`] has
//! the formulas that the simulator is checked against.
//!
//! Nothing here measures, prints, or reads a clock.

pub mod closed;
mod draw;
pub mod farm;
mod forms;
pub mod links;
mod model;
mod outcome;
mod predict;
mod profile;
mod quantity;
mod replicate;
mod scenario;
mod simulate;
mod threads;
mod tree;

pub use draw::Draw;
pub use forms::{Form, forms};
pub use model::{
    Arrivals, Busy, Full, MAX_AT_ONCE, MAX_SERVERS, MAX_STATIONS, MAX_TIME_PS, Model, ModelError,
    Poll, Rest, Room, SECOND_PS, Source, Station, Takes,
};
pub use outcome::{Outcome, SourceOutcome, StationOutcome};
pub use predict::{Simulated, model, predict, simulate};
pub use profile::{
    Check, Cost, CostPoint, FarWake, MIN_CHECKS, MIN_RUNS, Pair, Profile, ProfileError, Sharing,
    WorkCost,
};
pub use replicate::{Estimate, estimate, replicate, run_all};
pub use scenario::{SHIPPED, Scenario, ScenarioError};
pub use simulate::run;
pub use threads::{ThreadRow, Threads, ThreadsOutcome, run_threads};
