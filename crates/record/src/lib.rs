//! What one measured point leaves behind.
//!
//! A [`RunRecord`] is everything that is needed to judge a number later: what was asked, of which
//! engine, on which host, where the threads really ran, every raw sample, what was lost, and the
//! command that does it again. Records are written as JSON lines ([`jsonl`]), one flushed line per
//! point, so that a crash costs one point and no more.
//!
//! This room only describes. It measures nothing (`harness`), summarises nothing (`stats`) and
//! prints nothing (`report`); it has the one way in which text of others is made safe to show
//! ([`sanitise`]), and in which files are replaced ([`mod@file`]); and it says when what passed
//! beside a measurement makes it unsound ([`conditions`]). Begin with [`RunRecord`].

pub mod border;
pub mod conditions;
pub mod file;
pub mod host;
pub mod jsonl;
pub mod ledger;
pub mod mesh;
pub mod observed;
pub mod path;
pub mod prediction;
pub mod resources;
mod run;
pub mod sanitise;
pub mod study;
mod together;
pub mod units;
pub mod workload;

pub use host::Host;
pub use ledger::Ledger;
pub use mesh::Mesh;
pub use observed::{Observations, TimeSeries};
pub use path::PathRun;
pub use prediction::Prediction;
pub use run::{
    Clock, ControlSeries, Counter, CpuTime, EngineInfo, HostCpu, Hotspot, Lane, Limit, LimitBasis,
    Memory, NoiseFloor, Order, Outcome, ProcessPart, ProcessUse, Role, RunRecord, Stage, Tool,
};
pub use together::{Together, together};
pub use workload::{Param, ParamError, Workload};

/// Version of the record's schema. It is raised when a field changes its meaning or disappears; new
/// optional fields do not raise it. `testdata/v<N>/` keeps a record of each version, and a test
/// reads them all.
pub const SCHEMA_VERSION: u32 = 1;

/// The JSON Schema of one record line, generated from the types (checked in as
/// `docs/schema/run-record.v1.json`).
pub fn json_schema() -> String {
    let schema = schemars::schema_for!(RunRecord);
    let mut text = serde_json::to_string_pretty(&schema).expect("a schema is plain JSON");
    text.push('\n');
    text
}
