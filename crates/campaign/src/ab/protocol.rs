//! Lines of JSON between a side and its parent: a [`SideRequest`], then an [`Ask`] at a time; the
//! side answers each with a [`Reply`].

use std::collections::BTreeMap;

use daqmeter_record::{Param, Slice, Workload};
use serde::{Deserialize, Serialize};
use toml::Value;

/// Protocol version. Two binaries are compared only if their versions are equal.
pub(super) const VERSION: u32 = 3;
/// Microseconds of a slice. Disturbances every few milliseconds, as by the kernel's timer, meet few
/// of them.
const SLICE_US: u64 = 150;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SideRequest {
    pub version: u32,
    pub workload: Workload,
    pub cpu: Option<u32>,
    pub slice_us: u64,
    /// Bytes by which the heap is shifted before anything is opened.
    pub shift_bytes: usize,
    /// Operations of a slice by the name of the stage. A side finds the number itself for other
    /// stages.
    pub operations: BTreeMap<String, u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Ask {
    Slice { stage: usize, operations: u64 },
    Verify,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reply {
    /// Protocol version, and the stages with the operations of their slices.
    Ready {
        version: u32,
        stages: Vec<(String, u64)>,
    },
    Slice(Slice),
    /// Braces make it an object, as every reply is.
    Verified {},
    Refused(String),
}

impl SideRequest {
    /// Parses a request such as `convert function=3 samples=3000000 isa=avx2`; `cpu=1` sets its
    /// CPU.
    pub fn parse(text: &str) -> Result<SideRequest, String> {
        let mut words = text.split_whitespace();
        let kind = words.next().ok_or("a point begins with the name of an engine")?;
        let mut request = SideRequest::new(Workload::new(kind), None);
        for word in words {
            let (name, value) = word.split_once('=').ok_or_else(|| {
                format!("`{word}` is not a parameter: ENGINE NAME=VALUE ... is wanted")
            })?;
            if name == "cpu" {
                let cpu = value.parse().map_err(|_| format!("cpu={value}: no CPU number"))?;
                request.cpu = Some(cpu);
            } else {
                request.workload.params.insert(name.to_owned(), param(name, value)?);
            }
        }
        Ok(request)
    }

    pub fn new(workload: Workload, cpu: Option<u32>) -> SideRequest {
        let operations = BTreeMap::new();
        let (version, slice_us, shift_bytes) = (VERSION, SLICE_US, 0);
        SideRequest { version, workload, cpu, slice_us, shift_bytes, operations }
    }
}

/// Reads a value as in plans.
fn param(name: &str, text: &str) -> Result<Param, String> {
    let flag = text.parse().map(Value::Boolean);
    let number = || text.parse().map(Value::Integer).or_else(|_| text.parse().map(Value::Float));
    let value = flag.or_else(|_| number()).unwrap_or_else(|_| Value::String(text.to_owned()));
    crate::plan::param(name, &value).map_err(|problem| format!("{name}: {problem}"))
}
