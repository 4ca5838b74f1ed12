//! Records of measured points. A [`RunRecord`] contains all inputs and results of one point:
//! request, engine, host, placement of the threads, raw samples, losses, and the command. Records
//! are JSON lines ([`jsonl`]), flushed line by line, so that a crash costs one point. This crate
//! measures nothing (`harness`), summarises nothing (`stats`) and prints nothing (`report`). It
//! contains the escapes for foreign text ([`sanitise`]), the replacement of files ([`mod@file`]),
//! and the thresholds of disturbances ([`conditions`]). Begin with [`RunRecord`].

pub mod border;
pub mod conditions;
pub mod copies;
pub mod file;
pub mod groups;
pub mod host;
pub mod jsonl;
pub mod ledger;
pub mod mesh;
pub mod observed;
pub mod path;
pub mod resources;
mod run;
pub mod sanitise;
mod sections;
pub mod study;
mod together;
pub mod units;
pub mod watched;
pub mod workload;
pub mod written;

pub use host::Host;
pub use ledger::Ledger;
pub use mesh::Mesh;
pub use observed::{Observations, TimeSeries};
pub use path::PathRun;
pub use run::{
    Clock, Counter, CpuTime, EngineInfo, HostCpu, Hotspot, Lane, Limit, LimitBasis, Memory, Order,
    Outcome, ProcessPart, ProcessUse, Role, RunRecord, Slices, Stage, Start, Tool,
};
pub use sections::{LossMap, Lost, Sections};
pub use together::{Together, together};
pub use workload::{Param, Workload};

/// Version of the record's schema. It changes if a released field changes its meaning or
/// disappears, not for a new optional field; none was released yet. `testdata/v<N>/` has a record
/// of each version, and a test reads them all.
pub(crate) const SCHEMA_VERSION: u32 = 1;

/// Tests if a field has its default value, which is left out of a record.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Serves `serde(default)` of numbers that are usually 1: factors, lanes.
pub fn one<T: From<u8>>() -> T {
    T::from(1)
}

/// Serves `serde(default)` of other numbers.
pub fn usual<const N: u64>() -> u64 {
    N
}

pub fn is_one<T: From<u8> + PartialEq>(value: &T) -> bool {
    *value == T::from(1)
}

/// Returns the JSON Schema of one record line, as in `docs/schema/run-record.v1.json`.
pub fn json_schema() -> String {
    let schema = schemars::schema_for!(RunRecord);
    serde_json::to_string_pretty(&schema).expect("a schema is plain JSON") + "\n"
}
