//! Counters of the interconnect, and of everything else that Linux counts: seen, planned, measured,
//! verified.
//!
//! ```text
//! sysfs -> Pmu -> event texts -> EventSet -> Opener (kernel, emulated mesh) -> Count ->
//! Observations (record) debugfs | file -> Mesh -> plan (who fits, what share) ; map, heat map
//! (report) ```
//!
//! Begin with [`event`] and [`count`]; [`plan`] for what fits at once; [`emulated`] for meshes
//! without silicon. It draws and prints nothing.

pub mod count;
pub mod emulated;
pub mod event;
pub mod format;
pub mod groups;
pub mod host;
pub mod mesh;
pub mod observer;
pub mod part;
pub mod perf_format;
pub mod plan;
pub mod source;
pub mod sysfs;
pub mod system;
pub mod verify;

pub use count::{Count, Selection};
pub use event::{EventResolver, EventSet, PmuEvent};
pub use groups::MetricGroup;
pub use host::CountedHost;
pub use observer::PmuObserver;
pub use part::MachinePart;
pub use sysfs::{Pmu, discover};
