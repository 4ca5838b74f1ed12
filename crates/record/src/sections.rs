//! Sections of a record: results of one kind of work. A new kind is a field here.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Observations, PathRun};

/// Results of one kind of work; those of other kinds are absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Sections {
    /// Threads, queues and latencies of a path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<Box<PathRun>>,
    /// Counters of the machine over time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed: Option<Box<Observations>>,
}

impl Sections {
    /// Adds the sections of another that are absent here.
    pub fn add(&mut self, Sections { path, observed }: Sections) {
        self.path = self.path.take().or(path);
        self.observed = self.observed.take().or(observed);
    }
}
