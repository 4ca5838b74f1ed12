//! Plans: TOML in, points out. The format is described in `docs/book/src/formats/plans.md`.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use daqmeter_harness::{Engine, StepPlan, ordered, text_file, text_input};
use daqmeter_record::units::{parse_bytes, parse_duration, parse_rate_hz};
use daqmeter_record::{Order as Place, Param, Workload};
use schemars::JsonSchema;
use serde::Deserialize;
use toml::{Spanned, Value};

use crate::SHIPPED;
use crate::size::{Room, SweepSize};

/// Includes that include one another go this deep at most.
const MAX_DEPTH: usize = 8;
/// Time after which one point has gone on for longer than anyone meant.
const MAX_TIME: Duration = Duration::from_secs(24 * 3600);
/// Operations or passes of a point.
const MAX_STEPS: u64 = 1 << 40;
/// Samples of a profile per second of CPU time, as much as the kernel takes (`kernel.perf_event_max_sample_rate`).
const MAX_PROFILE_HZ: u64 = 100_000;
/// Time of a point when the plan says nothing.
const USUAL_TIME: Duration = Duration::from_millis(300);

/// A plan cannot be used; one line that names file, line and field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PlanError(String);

/// In which order points are measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Each repetition is a round over all points, and each round is shuffled by the seed: slow drift of the host does not look
    /// like an effect of a parameter, nor like a difference between repetitions.
    #[default]
    Random,
    /// As written, repetition by repetition.
    Given,
}

/// One point, once.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedPoint {
    /// Study of its record.
    pub study: String,
    /// Name of the engine.
    pub engine: String,
    /// What is asked.
    pub workload: Workload,
    /// How often.
    pub steps: StepPlan,
    /// CPUs for its threads; empty leaves them free.
    pub pin: Vec<u32>,
    /// Samples of what takes the time, per second of CPU time.
    pub profile_hz: Option<u64>,
    /// Place in the order.
    pub place: Place,
    /// Where it comes from, for messages: file, line and number of its sweep.
    pub source: Arc<str>,
}

/// A plan, understood.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What it is.
    pub title: String,
    /// What it asks, and how its result is read.
    pub about: String,
    /// Time after which no further point is begun.
    pub budget: Option<Duration>,
    /// Points in the order in which they are measured.
    pub points: Vec<PlannedPoint>,
}

/// The file.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PlanFile {
    /// What it is.
    title: String,
    /// What it asks, and how its result is read.
    #[serde(default)]
    about: String,
    /// Plans whose sweeps are measured as well: paths relative to this file, or names of plans that ship with daqmeter.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    include: Vec<Spanned<String>>,
    /// `random` shuffles each repetition by the seed, `given` keeps the order of the file.
    #[serde(default)]
    order: Order,
    /// Seed of the random order.
    #[serde(default = "one")]
    seed: u64,
    /// How often each point is measured; three or more let `daqmeter cmp` see small differences.
    #[serde(default = "one")]
    repetitions: u64,
    /// Time after which no further point is begun: `60s`, `10m`. What is left is measured by `--resume`.
    #[schemars(with = "Option<String>")]
    budget: Option<Spanned<String>>,
    /// Time of each point, unless its sweep says otherwise: `300ms`.
    #[schemars(with = "Option<String>")]
    time: Option<Spanned<String>>,
    /// CPUs for the threads, in turn, unless the sweep says otherwise.
    #[serde(default)]
    pin: Vec<u32>,
    /// What is measured.
    #[serde(default)]
    sweep: Vec<SweepFile>,
}

type Params = BTreeMap<Spanned<String>, Spanned<Value>>;

/// Points of one engine.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SweepFile {
    /// Name under which records, figures and comparisons find the points.
    study: String,
    /// Engine, as `daqmeter list engines` names it.
    #[schemars(with = "String")]
    engine: Spanned<String>,
    /// How often each point is measured, if not as often as the plan says.
    repetitions: Option<u64>,
    /// Time of each point.
    #[schemars(with = "Option<String>")]
    time: Option<Spanned<String>>,
    /// Instead of a time: operations of each stage.
    reads: Option<u64>,
    /// Instead of a time: passes over all stages.
    passes: Option<u64>,
    /// CPUs for the threads, in turn.
    pin: Option<Vec<u32>>,
    /// Samples per second of CPU time of what takes the time.
    profile_hz: Option<u64>,
    /// Parameters that stay the same. Sizes and rates may be text with a unit: `64KiB`, `1MHz`.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, serde_json::Value>")]
    workload: Params,
    /// Parameters that vary: each a list; all combinations are measured.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, Vec<serde_json::Value>>")]
    axes: BTreeMap<Spanned<String>, Vec<Spanned<Value>>>,
    /// Parameters of points that no product of axes gives; each is combined with the axes.
    #[serde(default)]
    #[schemars(with = "Vec<BTreeMap<String, serde_json::Value>>")]
    points: Vec<Params>,
    /// Combinations that are left out: a point that has all of these values.
    #[serde(default)]
    #[schemars(with = "Vec<BTreeMap<String, serde_json::Value>>")]
    skip: Vec<Params>,
}

fn one() -> u64 {
    1
}

/// The JSON Schema of plan files, for editors.
pub fn json_schema() -> String {
    let mut schema =
        serde_json::to_value(schemars::schema_for!(PlanFile)).expect("a schema is plain data");
    schema["title"] = "A plan of daqmeter".into();
    let mut text = serde_json::to_string_pretty(&schema).expect("plain data");
    text.push('\n');
    text
}

impl Plan {
    /// Loads a plan by the name of a shipped one, or from a file.
    ///
    /// # Errors
    /// When it cannot be read or used; one line with file, line and field.
    pub fn load(name_or_path: &str) -> Result<Plan, PlanError> {
        let source = Source::find(name_or_path, None).map_err(PlanError)?;
        Plan::of(&source)
    }

    /// Parses the text of a plan that is called so in messages. Includes are sought beside the working directory.
    ///
    /// # Errors
    /// As [`Plan::load`].
    pub fn parse(text: &str, name: &str) -> Result<Plan, PlanError> {
        Plan::of(&Source {
            name: name.to_owned(),
            text: text.to_owned(),
            folder: None,
        })
    }

    fn of(source: &Source) -> Result<Plan, PlanError> {
        let engines = crate::engines(0);
        let reader = Reader {
            engines: &engines,
            room: Cell::new(Room::default()),
        };
        let file = reader.file(source)?;
        let sweeps = reader.sweeps(source, &file, &mut BTreeSet::from([source.name.clone()]))?;
        let budget = file
            .budget
            .as_ref()
            .map(|text| source.duration("budget", text))
            .transpose()?;
        if sweeps.iter().all(|(repetitions, _)| *repetitions == 0) {
            return Err(PlanError(format!(
                "{}: no point is left: give it a [[sweep]] or an include",
                source.name
            )));
        }
        let points = in_order(&sweeps, file.order, file.seed);
        Ok(Plan {
            title: file.title,
            about: file.about.trim().to_owned(),
            budget,
            points,
        })
    }
}

/// Rounds over all points: in each, the points that are repeated so often.
fn in_order(sweeps: &[(u64, PlannedPoint)], order: Order, seed: u64) -> Vec<PlannedPoint> {
    let mut points = Vec::new();
    let mut left: Vec<&(u64, PlannedPoint)> = sweeps.iter().collect();
    for round in 0.. {
        left.retain(|(repetitions, _)| round < *repetitions);
        if left.is_empty() {
            break;
        }
        let in_round: Vec<PlannedPoint> = left.iter().map(|(_, point)| point.clone()).collect();
        match order {
            Order::Given => points.extend(in_round),
            Order::Random => points.extend(
                ordered(in_round, seed.wrapping_add(round))
                    .into_iter()
                    .map(|(_, point)| point),
            ),
        }
    }
    let of = points.len() as u64;
    for (position, point) in (0_u64..).zip(&mut points) {
        point.place = Place { seed, position, of };
    }
    points
}

/// The text of a plan and where it came from.
struct Source {
    name: String,
    text: String,
    folder: Option<PathBuf>,
}

impl Source {
    fn find(name_or_path: &str, beside: Option<&Path>) -> Result<Source, String> {
        if let Some((name, text)) = SHIPPED.iter().find(|(name, _)| *name == name_or_path) {
            return Ok(Source {
                name: (*name).to_owned(),
                text: (*text).to_owned(),
                folder: None,
            });
        }
        let path = beside.map_or_else(
            || PathBuf::from(name_or_path),
            |folder| folder.join(name_or_path),
        );
        // What was named on the command line may be a pipe; what a file names may not.
        let read = if beside.is_some() {
            text_file
        } else {
            text_input
        };
        let text = read(&path).map_err(|error| {
            let shipped: Vec<&str> = SHIPPED.iter().map(|(name, _)| *name).collect();
            format!(
                "plan {}: {error}; plans that ship with daqmeter: {}",
                path.display(),
                shipped.join(", ")
            )
        })?;
        Ok(Source {
            name: path.display().to_string(),
            text,
            folder: path.parent().map(Path::to_owned),
        })
    }

    fn line(&self, span: std::ops::Range<usize>) -> usize {
        self.text[..span.start.min(self.text.len())]
            .matches('\n')
            .count()
            + 1
    }

    fn error(
        &self,
        span: std::ops::Range<usize>,
        field: &str,
        problem: impl std::fmt::Display,
    ) -> PlanError {
        PlanError(format!(
            "{}:{}: {field}: {problem}",
            self.name,
            self.line(span)
        ))
    }

    fn duration(&self, field: &str, text: &Spanned<String>) -> Result<Duration, PlanError> {
        let parsed =
            parse_duration(text.as_ref()).map_err(|error| self.error(text.span(), field, error))?;
        if parsed.is_zero() {
            Err(self.error(text.span(), field, "a time above zero is wanted"))
        } else {
            Ok(parsed)
        }
    }

    /// The time of a point.
    fn time(&self, field: &str, text: &Spanned<String>) -> Result<Duration, PlanError> {
        let time = self.duration(field, text)?;
        if time > MAX_TIME {
            Err(self.error(text.span(), field, "a point takes at most 24h"))
        } else {
            Ok(time)
        }
    }
}

/// Reads files with the engines at hand.
struct Reader<'a> {
    engines: &'a [Box<dyn Engine>],
    /// What the plan may still take, over all its files.
    room: Cell<Room>,
}

impl Reader<'_> {
    fn file(&self, source: &Source) -> Result<PlanFile, PlanError> {
        toml::from_str(&source.text).map_err(|error| {
            let line = source.line(error.span().unwrap_or(0..0));
            PlanError(format!(
                "{}:{line}: {}",
                source.name,
                error.message().replace('\n', " ")
            ))
        })
    }

    fn take(&self, part: impl FnOnce(&mut Room) -> Result<(), String>) -> Result<(), String> {
        let mut room = self.room.take();
        let taken = part(&mut room);
        self.room.set(room);
        taken
    }

    /// Points of this file and of those that it includes, each with its repetitions.
    fn sweeps(
        &self,
        source: &Source,
        file: &PlanFile,
        above: &mut BTreeSet<String>,
    ) -> Result<Vec<(u64, PlannedPoint)>, PlanError> {
        let mut points = Vec::new();
        for include in &file.include {
            let refuse = |problem: String| source.error(include.span(), "include", problem);
            self.take(Room::include).map_err(refuse)?;
            // A plan without a file includes from the working directory.
            let beside = source.folder.as_deref().unwrap_or(Path::new(""));
            let other = Source::find(include.as_ref(), Some(beside)).map_err(refuse)?;
            if above.len() >= MAX_DEPTH || !above.insert(other.name.clone()) {
                return Err(refuse(format!(
                    "{} is included by itself, or too deep",
                    other.name
                )));
            }
            let included = self.file(&other)?;
            points.extend(self.sweeps(&other, &included, above)?);
            above.remove(&other.name);
        }
        for (at, sweep) in file.sweep.iter().enumerate() {
            let repetitions = sweep.repetitions.unwrap_or(file.repetitions);
            let steps = steps(source, file, sweep, at)?;
            let pin = sweep.pin.as_ref().unwrap_or(&file.pin);
            let refuse =
                |problem| source.error(sweep.engine.span(), &format!("sweep {}", at + 1), problem);
            // Before anything is multiplied: the product may not fit anywhere.
            self.take(|room| room.sweep(&size_of_sweep(sweep, pin, repetitions)))
                .map_err(refuse)?;
            let from: Arc<str> = format!(
                "{}:{}: sweep {}",
                source.name,
                source.line(sweep.engine.span()),
                at + 1
            )
            .into();
            for workload in self.workloads(source, sweep, at)? {
                let point = PlannedPoint {
                    study: sweep.study.clone(),
                    engine: sweep.engine.as_ref().clone(),
                    workload,
                    steps,
                    pin: pin.clone(),
                    profile_hz: sweep.profile_hz,
                    place: Place::default(),
                    source: Arc::clone(&from),
                };
                points.push((repetitions, point));
            }
        }
        Ok(points)
    }

    fn workloads(
        &self,
        source: &Source,
        sweep: &SweepFile,
        at: usize,
    ) -> Result<Vec<Workload>, PlanError> {
        let field = |name: &str| format!("sweep {}, {name}", at + 1);
        let Some(engine) = self
            .engines
            .iter()
            .find(|engine| engine.name() == sweep.engine.as_ref())
        else {
            let names: Vec<&str> = self.engines.iter().map(|engine| engine.name()).collect();
            let problem = format!(
                "`{}` is no engine; there are: {}",
                sweep.engine.as_ref(),
                names.join(", ")
            );
            return Err(source.error(sweep.engine.span(), &field("engine"), problem));
        };
        let known = |name: &Spanned<String>, of: &str| {
            let parameters = engine.parameters();
            if parameters
                .iter()
                .any(|parameter| parameter.name == *name.as_ref())
            {
                return Ok(());
            }
            let names: Vec<&str> = parameters
                .iter()
                .map(|parameter| parameter.name.as_str())
                .collect();
            let problem = format!(
                "`{}` is no parameter of {}; there are: {}",
                name.as_ref(),
                engine.name(),
                names.join(", ")
            );
            Err(source.error(name.span(), &field(of), problem))
        };
        let param = |name: &Spanned<String>, value: &Spanned<Value>, of: &str| {
            known(name, of)?;
            param(name.as_ref(), value.as_ref()).map_err(|problem| {
                source.error(
                    value.span(),
                    &field(&format!("{of}.{}", name.as_ref())),
                    problem,
                )
            })
        };
        let with = |mut workload: Workload, params: &Params, of: &str| {
            for (name, value) in params {
                workload
                    .params
                    .insert(name.as_ref().clone(), param(name, value, of)?);
            }
            Ok(workload)
        };
        let base = with(Workload::new(engine.name()), &sweep.workload, "workload")?;
        let mut workloads = if sweep.points.is_empty() {
            vec![base]
        } else {
            sweep
                .points
                .iter()
                .map(|params| with(base.clone(), params, "points"))
                .collect::<Result<_, _>>()?
        };
        for (name, values) in &sweep.axes {
            let values: Vec<Param> = values
                .iter()
                .map(|value| param(name, value, "axes"))
                .collect::<Result<_, _>>()?;
            if values.is_empty() {
                return Err(source.error(
                    name.span(),
                    &field("axes"),
                    format!("`{}` has no value", name.as_ref()),
                ));
            }
            let with_each = |workload: Workload| {
                values
                    .iter()
                    .map(move |value| workload.clone().with(name.as_ref(), value.clone()))
            };
            workloads = workloads.into_iter().flat_map(with_each).collect();
        }
        for params in &sweep.skip {
            let skipped = with(Workload::new(engine.name()), params, "skip")?;
            workloads.retain(|workload| {
                !skipped
                    .params
                    .iter()
                    .all(|(name, value)| workload.params.get(name) == Some(value))
            });
        }
        Ok(workloads)
    }
}

fn steps(
    source: &Source,
    file: &PlanFile,
    sweep: &SweepFile,
    at: usize,
) -> Result<StepPlan, PlanError> {
    let field = |name: &str| format!("sweep {}, {name}", at + 1);
    let refuse =
        |name: &str, problem: String| Err(source.error(sweep.engine.span(), &field(name), problem));
    for (name, value, max) in [
        ("reads", sweep.reads, MAX_STEPS),
        ("passes", sweep.passes, MAX_STEPS),
        ("profile_hz", sweep.profile_hz, MAX_PROFILE_HZ),
    ] {
        if let Some(value) = value.filter(|value| !(1..=max).contains(value)) {
            return refuse(name, format!("{value}; 1 to {max} is wanted"));
        }
    }
    match (&sweep.time, sweep.reads, sweep.passes) {
        (None, Some(reads), None) => Ok(StepPlan::ByStage(reads)),
        (None, None, Some(passes)) => Ok(StepPlan::ByPass(passes)),
        (Some(time), None, None) => Ok(StepPlan::Timed(source.time(&field("time"), time)?)),
        (None, None, None) => match &file.time {
            Some(time) => Ok(StepPlan::Timed(source.time("time", time)?)),
            None => Ok(StepPlan::Timed(USUAL_TIME)),
        },
        _ => refuse("time", "one of time, reads and passes is wanted".to_owned()),
    }
}

/// What a sweep comes to, from the lengths of its lists alone.
fn size_of_sweep(sweep: &SweepFile, pin: &[u32], repetitions: u64) -> SweepSize {
    let texts = |params: &Params| {
        params
            .values()
            .map(|value| text_bytes(value.as_ref()))
            .sum::<usize>()
    };
    let axes = sweep
        .axes
        .values()
        .map(|values| values.iter().map(|value| text_bytes(value.as_ref())).max());
    let point_bytes = sweep.study.len()
        + size_of_val(pin)
        + texts(&sweep.workload)
        + sweep.points.iter().map(texts).max().unwrap_or(0)
        + axes.map(|longest| longest.unwrap_or(0)).sum::<usize>();
    let lists = sweep
        .axes
        .values()
        .map(Vec::len)
        .chain([sweep.points.len().max(1)]);
    SweepSize {
        points: lists.fold(1, |all, values| all.saturating_mul(values as u64)),
        repetitions,
        skips: sweep.skip.len(),
        text_bytes: point_bytes,
    }
}

fn text_bytes(value: &Value) -> usize {
    value.as_str().map_or(0, str::len)
}

/// A value of the file as a parameter: sizes and rates may carry their unit.
fn param(name: &str, value: &Value) -> Result<Param, String> {
    match value {
        Value::Boolean(flag) => Ok(Param::Flag(*flag)),
        Value::Integer(number) => u64::try_from(*number)
            .map(Param::Int)
            .map_err(|_| format!("{number} is below zero")),
        Value::Float(number) if number.is_finite() => Ok(Param::Float(*number)),
        Value::String(text) if name.ends_with("bytes") => parse_bytes(text)
            .map(Param::Int)
            .map_err(|error| error.to_string()),
        Value::String(text) if name.ends_with("_hz") => parse_rate_hz(text)
            .map(Param::Float)
            .map_err(|error| error.to_string()),
        Value::String(text) => Ok(Param::Text(text.clone())),
        other => Err(format!(
            "{} is no parameter: a number, a name, true or false is wanted",
            other.type_str()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = r#"
title = "Footprints"
about = "Where the caches end."
repetitions = 2
budget = "2m"
time = "40ms"
pin = [1]

[[sweep]]
study = "memory"
engine = "memory"
[sweep.workload]
read_lines = 1
[sweep.axes]
read_bytes = ["16KiB", "1MiB", 4096]
write_lines = [0, 1]
[[sweep.skip]]
read_bytes = "1MiB"
write_lines = 0

[[sweep]]
study = "chain"
engine = "readout"
reads = 1
repetitions = 1
points = [{ scenario = "gbt", rate_hz = "1MHz" }, { scenario = "full", rate_hz = 500e3 }]
[sweep.workload]
seconds = 0.1
"#;

    #[test]
    fn a_plan_becomes_points_in_shuffled_rounds() {
        let plan = Plan::parse(PLAN, "p.toml").unwrap();
        assert_eq!(
            (plan.budget, plan.points.len()),
            (Some(Duration::from_secs(120)), 5 * 2 + 2)
        );
        let memory = |point: &&PlannedPoint| point.study == "memory";
        assert_eq!(plan.points.iter().filter(memory).count(), 10);
        let first = plan.points.iter().find(memory).unwrap();
        assert_eq!(
            (first.steps, &first.pin[..]),
            (StepPlan::Timed(Duration::from_millis(40)), &[1][..])
        );
        let chain = plan
            .points
            .iter()
            .find(|point| point.workload.text("scenario") == Ok("gbt"))
            .unwrap();
        assert_eq!(
            (chain.workload.float("rate_hz"), chain.steps),
            (Ok(1e6), StepPlan::ByStage(1))
        );
        // The first round holds every point once, before the second begins.
        let round = |points: &[PlannedPoint]| {
            points
                .iter()
                .map(|point| point.workload.to_string())
                .collect::<BTreeSet<_>>()
        };
        assert_eq!(round(&plan.points[..7]).len(), 7);
        assert_eq!(round(&plan.points[7..]).len(), 5);
        assert!(plan.points.iter().enumerate().all(|(at, point)| point.place
            == Place {
                seed: 1,
                position: at as u64,
                of: 12
            }));
        assert_eq!(
            (&*first.source, &*chain.source),
            ("p.toml:11: sweep 1", "p.toml:23: sweep 2")
        );
        let given = Plan::parse(&PLAN.replace("pin = [1]", "order = 'given'"), "p.toml").unwrap();
        assert!(
            given.points[..5]
                .iter()
                .all(|point| point.study == "memory")
                && given.points[5].study == "chain"
        );
    }

    #[test]
    fn includes_bring_their_sweeps_and_no_circle_is_entered() {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write(
            "a.toml",
            &PLAN.replace(
                "[[sweep]]\nstudy = \"memory\"",
                "include = ['b.toml', 'quick']\n[[sweep]]\nstudy = \"memory\"",
            ),
        );
        write(
            "b.toml",
            "title = 'b'\n[[sweep]]\nstudy = 'b'\nengine = 'null'\n",
        );
        let a = folder.path().join("a.toml").display().to_string();
        let plan = Plan::load(&a).unwrap();
        assert_eq!(
            plan.points
                .iter()
                .filter(|point| point.study == "b")
                .count(),
            1
        );
        assert!(plan.points.len() > 13);
        write("b.toml", "title = 'b'\ninclude = ['a.toml']\n");
        let error = Plan::load(&a).unwrap_err().to_string();
        assert!(
            error.contains("b.toml:2: include") && error.contains("by itself"),
            "{error}"
        );
    }

    #[test]
    fn what_is_wrong_is_named_with_file_line_and_field() {
        let refused = |from: &str, to: &str| {
            Plan::parse(&PLAN.replacen(from, to, 1), "p.toml")
                .unwrap_err()
                .to_string()
        };
        for (from, to, wanted) in [
            (
                "engine = \"memory\"",
                "engine = \"memry\"",
                "p.toml:11: sweep 1, engine: `memry` is no engine; there are: null, memory",
            ),
            (
                "read_lines = 1",
                "read_line = 1",
                "p.toml:13: sweep 1, workload: `read_line` is no parameter of memory; there are: lanes, read_bytes",
            ),
            (
                "\"16KiB\"",
                "\"16Kib\"",
                "p.toml:15: sweep 1, axes.read_bytes: ",
            ),
            (
                "\"1MHz\"",
                "\"1MHx\"",
                "p.toml:26: sweep 2, points.rate_hz: ",
            ),
            (
                "budget = \"2m\"",
                "budget = \"2 moons\"",
                "p.toml:5: budget: ",
            ),
            (
                "repetitions = 2",
                "repetition = 2",
                "p.toml:4: unknown field `repetition`",
            ),
            (
                "reads = 1\n",
                "reads = 1\ntime = '1s'\n",
                "p.toml:23: sweep 2, time: one of time, reads and passes",
            ),
            (
                "reads = 1\n",
                "reads = 0\n",
                "p.toml:23: sweep 2, reads: 0; 1 to ",
            ),
            (
                "reads = 1\n",
                "reads = 9223372036854775807\n",
                "p.toml:23: sweep 2, reads: 9223372036854775807; 1 to ",
            ),
            (
                "reads = 1\n",
                "reads = 1\nprofile_hz = 0\n",
                "p.toml:23: sweep 2, profile_hz: 0; 1 to ",
            ),
            (
                "time = \"40ms\"",
                "time = \"25h\"",
                "p.toml:6: time: a point takes at most 24h",
            ),
            ("seconds = 0.1", "seconds = [1]", "array is no parameter"),
            (
                "[0, 1]",
                "[]",
                "p.toml:16: sweep 1, axes: `write_lines` has no value",
            ),
            ("title = \"Footprints\"\n", "", "missing field `title`"),
            ("read_lines = 1", "read_lines = -1", "-1 is below zero"),
        ] {
            let error = refused(from, to);
            assert!(
                error.contains(wanted) && !error.contains('\n'),
                "{to}: {error}"
            );
        }
        let error = Plan::load("/nonexistent.toml").unwrap_err().to_string();
        assert!(
            error.contains("No such file") && error.contains("memory"),
            "{error}"
        );
        assert!(
            Plan::parse("title = 'empty'", "p.toml")
                .unwrap_err()
                .to_string()
                .contains("no point is left")
        );
        let endless = refused("repetitions = 2", "repetitions = 9000000000000000000");
        assert!(
            endless.contains("p.toml:11: sweep 1: ") && endless.contains("at most 100000 points"),
            "{endless}"
        );
    }

    /// A sweep of memory with axes of these lengths.
    fn product(axes: &[usize]) -> String {
        let names = ["read_bytes", "read_lines", "write_lines", "lanes"];
        let list = |length: usize| {
            (1..=length)
                .map(|value| value.to_string())
                .collect::<Vec<_>>()
                .join(",")
        };
        let axes: Vec<String> = names
            .iter()
            .zip(axes)
            .map(|(name, length)| format!("{name} = [{}]", list(*length)))
            .collect();
        format!(
            "[[sweep]]\nstudy = 's'\nengine = 'memory'\n[sweep.axes]\n{}\n",
            axes.join("\n")
        )
    }

    /// Each of these took all memory or all time before it was refused.
    #[test]
    fn points_are_counted_before_they_are_made() {
        let refused = |text: &str| Plan::parse(text, "p.toml").unwrap_err().to_string();
        let huge = refused(&format!("title = 't'\n{}", product(&[46, 46, 46, 1000])));
        assert!(
            huge.contains("p.toml:4: sweep 1: ") && huge.contains("97336000 points"),
            "{huge}"
        );
        let many = refused(&format!(
            "title = 't'\n{}",
            product(&[300, 300]).repeat(200)
        ));
        assert!(
            many.contains("sweep 2: ") && many.contains("at most 100000"),
            "{many}"
        );
        let wrapped = refused(&format!(
            "title = 't'\nrepetitions = 9223372036854775807\n{}",
            product(&[2])
        ));
        assert!(wrapped.contains("sweep 1: "), "{wrapped}");
        let skips = format!(
            "title = 't'\n{}{}",
            product(&[2]),
            "[[sweep.skip]]\nread_bytes = 1\n".repeat(101)
        );
        assert!(refused(&skips).contains("at most 100 are compared"));
        let long = format!(
            "title = 't'\npin = [{}]\n{}",
            "1,".repeat(60_000),
            product(&[300, 300])
        );
        assert!(refused(&long).contains("bytes"), "{}", refused(&long));
        assert!(Plan::parse(&format!("title = 't'\n{}", product(&[300, 300])), "p.toml").is_ok());
    }

    #[test]
    fn points_and_files_are_counted_over_includes() {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let load = || {
            Plan::load(&folder.path().join("a.toml").display().to_string())
                .unwrap_err()
                .to_string()
        };
        let includes = |name: &str, times: usize| {
            format!("include = [{}]\n", format!("'{name}',").repeat(times))
        };
        write(
            "a.toml",
            &format!("title = 'a'\n{}", includes("b.toml", 20)),
        );
        write("b.toml", &format!("title = 'b'\n{}", product(&[100, 100])));
        let points = load();
        assert!(
            points.contains("b.toml:4: sweep 1: ") && points.contains("at most 100000 points"),
            "{points}"
        );
        write(
            "b.toml",
            &format!("title = 'b'\n{}", includes("c.toml", 20)),
        );
        write("c.toml", "title = 'c'\n");
        let files = load();
        assert!(
            files.contains(".toml:2: include: a plan has at most 64 files"),
            "{files}"
        );
    }

    #[test]
    fn includes_that_are_no_texts_of_a_sane_size_are_refused() {
        let include = |name: &str| {
            Plan::parse(&format!("title = 't'\ninclude = ['{name}']\n"), "p.toml")
                .unwrap_err()
                .to_string()
        };
        for name in ["/dev/zero", "/proc", "/dev/null"] {
            let error = include(name);
            assert!(
                error.contains("p.toml:2: include: ") && error.contains("not a regular file"),
                "{name}: {error}"
            );
        }
        let folder = tempfile::tempdir().unwrap();
        let long = folder.path().join("long.toml");
        std::fs::write(&long, "#".repeat((1 << 20) + 1)).unwrap();
        let error = include(&long.display().to_string());
        assert!(error.contains("longer than 1048576 bytes"), "{error}");
    }
}
