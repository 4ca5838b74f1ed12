//! The file of a plan, as TOML has it. The format is described in `docs/book/src/formats/plans.md`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use toml::{Spanned, Value};

use crate::budget::Spend;
use crate::site::Range;

/// In which order points are measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum PlanOrder {
    /// Each repetition is a round over all points, and each round is shuffled by the seed: slow
    /// drift of the host does not look like an effect of a parameter, nor like a difference between
    /// repetitions.
    #[default]
    Random,
    /// As written, repetition by repetition.
    Given,
}

/// CPUs for the threads, in turn.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "a list of CPUs or \"last-first\" is wanted")]
pub(super) enum Pin {
    /// These.
    List(Vec<u32>),
    /// By what this process may run on.
    Allowed(Allowed),
}

impl Default for Pin {
    fn default() -> Pin {
        Pin::List(Vec::new())
    }
}

/// CPUs of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Allowed {
    /// All that are allowed: a core for each thread while there is one, the last first, for CPU 0
    /// takes most interrupts.
    LastFirst,
}

/// The file.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "A plan of daqmeter")]
pub(super) struct PlanFile {
    /// What it is.
    pub(super) title: String,
    /// What it asks, and how its result is read.
    #[serde(default)]
    pub(super) about: String,
    /// Plans whose sweeps are measured as well: paths relative to this file, or names of plans that
    /// ship with daqmeter.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub(super) include: Vec<Placed>,
    /// `random` shuffles each repetition by the seed, `given` keeps the order of the file.
    #[serde(default)]
    pub(super) order: PlanOrder,
    /// Seed of the random order.
    #[serde(default = "daqmeter_harness::one::<u64>")]
    pub(super) seed: u64,
    /// How often each point is measured; `daqmeter compare` needs three or more to see small
    /// differences.
    #[serde(default = "daqmeter_harness::one::<u64>")]
    pub(super) repetitions: u64,
    /// Time of the whole: `60s`, `10m`. No further point is begun after it, unless `spend` says
    /// otherwise.
    #[schemars(with = "Option<String>")]
    pub(super) budget: Option<Placed>,
    /// `stop` begins no point after the budget, and `--resume` measures what is left; `share`
    /// measures every point, each for its share of the budget: times are then what a point gets
    /// when all take what the plan says.
    #[serde(default)]
    pub(super) spend: Spend,
    /// Time of each point, unless its sweep says otherwise: `300ms`.
    #[schemars(with = "Option<String>")]
    pub(super) time: Option<Placed>,
    /// CPUs for the threads, in turn, unless the sweep says otherwise: a list, or `last-first` for
    /// all that are allowed.
    #[serde(default)]
    pub(super) pin: Pin,
    /// What is measured.
    #[serde(default)]
    pub(super) sweep: Vec<SweepFile>,
}

/// Text with its place in the file.
pub(super) type Placed = Spanned<String>;
pub(super) type Params = BTreeMap<Placed, Spanned<Value>>;

/// Points of one engine.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SweepFile {
    /// Name under which records, figures and comparisons find the points.
    pub(super) study: String,
    /// Engine, as `daqmeter list engines` names it.
    #[schemars(with = "String")]
    pub(super) engine: Placed,
    /// How often each point is measured, if not as often as the plan says.
    pub(super) repetitions: Option<u64>,
    /// Time of each point.
    #[schemars(with = "Option<String>")]
    pub(super) time: Option<Placed>,
    /// Instead of a time: operations of each stage.
    pub(super) reads: Option<u64>,
    /// Instead of a time: passes over all stages.
    pub(super) passes: Option<u64>,
    /// What a point takes of a shared budget, where its time does not say it: `600ms`.
    #[schemars(with = "Option<String>")]
    pub(super) takes: Option<Placed>,
    /// Parameter of the workload that says how long a point lasts: it grows with the point's share
    /// of the budget.
    #[schemars(with = "Option<String>")]
    pub(super) extent: Option<Placed>,
    /// CPUs for the threads, in turn.
    pub(super) pin: Option<Pin>,
    /// Samples per second of CPU time of what takes the time.
    pub(super) profile_hz: Option<u64>,
    /// Parameters that stay the same. Sizes and rates may be text with a unit: `64KiB`, `1MHz`.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, serde_json::Value>")]
    pub(super) workload: Params,
    /// Parameters that vary: each a list; all combinations are measured.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, Vec<serde_json::Value>>")]
    pub(super) axes: BTreeMap<Placed, Vec<Spanned<Value>>>,
    /// Parameters that vary over sizes, each a multiple of the one before: `{ from = "16KiB", to =
    /// "4x last-level-cache", factor = 4 }`.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, Range>")]
    pub(super) ranges: BTreeMap<Placed, Spanned<Range>>,
    /// Parameters of points that no product of axes gives; each is combined with the axes.
    #[serde(default)]
    #[schemars(with = "Vec<BTreeMap<String, serde_json::Value>>")]
    pub(super) points: Vec<Params>,
    /// Combinations that are left out: a point that has all of these values.
    #[serde(default)]
    #[schemars(with = "Vec<BTreeMap<String, serde_json::Value>>")]
    pub(super) skip: Vec<Params>,
}

pub fn json_schema() -> String {
    let schema = serde_json::to_value(schemars::schema_for!(PlanFile)).expect("plain data");
    serde_json::to_string_pretty(&schema).expect("plain data") + "\n"
}
