//! Plans: TOML in, points out. The format is described in `docs/book/src/formats/plans.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use daqmeter_harness::{Engine, StepPlan, ordered};
use daqmeter_record::units::{parse_bytes, parse_duration, parse_rate_hz};
use daqmeter_record::{Order as Place, Param, Workload};
use schemars::JsonSchema;
use serde::Deserialize;
use toml::{Spanned, Value};

use crate::SHIPPED;

/// Includes that include one another go this deep at most.
const MOST_INCLUDES: usize = 8;
/// More points than anyone waits for are a slip of the pen.
const MOST_POINTS: usize = 100_000;
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
    let mut schema = serde_json::to_value(schemars::schema_for!(PlanFile)).expect("a schema is plain data");
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
        Plan::of(&Source { name: name.to_owned(), text: text.to_owned(), folder: None })
    }

    fn of(source: &Source) -> Result<Plan, PlanError> {
        let engines = crate::engines(0);
        let reader = Reader { engines: &engines };
        let file = reader.file(source)?;
        let sweeps = reader.sweeps(source, &file, &mut BTreeSet::from([source.name.clone()]))?;
        let budget = file.budget.as_ref().map(|text| source.duration("budget", text)).transpose()?;
        // Before they are laid out: a billion repetitions would not fit anywhere.
        let all = sweeps.iter().fold(0_u64, |all, (repetitions, _)| all.saturating_add(*repetitions));
        if all == 0 {
            return Err(PlanError(format!("{}: no point is left: give it a [[sweep]] or an include", source.name)));
        }
        if all > MOST_POINTS as u64 {
            return Err(PlanError(format!(
                "{}: {all} points with their repetitions; at most {MOST_POINTS} are measured in one plan",
                source.name
            )));
        }
        let points = in_order(&sweeps, file.order, file.seed);
        Ok(Plan { title: file.title, about: file.about.trim().to_owned(), budget, points })
    }
}

/// Rounds over all points: in each, the points that are repeated so often.
fn in_order(sweeps: &[(u64, PlannedPoint)], order: Order, seed: u64) -> Vec<PlannedPoint> {
    let rounds = sweeps.iter().map(|(repetitions, _)| *repetitions).max().unwrap_or(0);
    let mut points = Vec::new();
    for round in 0..rounds {
        let in_round: Vec<PlannedPoint> =
            sweeps.iter().filter(|(repetitions, _)| round < *repetitions).map(|(_, point)| point.clone()).collect();
        match order {
            Order::Given => points.extend(in_round),
            Order::Random => {
                points.extend(ordered(in_round, seed.wrapping_add(round)).into_iter().map(|(_, point)| point))
            }
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
            return Ok(Source { name: (*name).to_owned(), text: (*text).to_owned(), folder: None });
        }
        let path = beside.map_or_else(|| PathBuf::from(name_or_path), |folder| folder.join(name_or_path));
        let text = std::fs::read_to_string(&path).map_err(|error| {
            let shipped: Vec<&str> = SHIPPED.iter().map(|(name, _)| *name).collect();
            format!("plan {}: {error}; plans that ship with daqmeter: {}", path.display(), shipped.join(", "))
        })?;
        Ok(Source { name: path.display().to_string(), text, folder: path.parent().map(Path::to_owned) })
    }

    fn line(&self, span: std::ops::Range<usize>) -> usize {
        self.text[..span.start.min(self.text.len())].matches('\n').count() + 1
    }

    fn error(&self, span: std::ops::Range<usize>, field: &str, problem: impl std::fmt::Display) -> PlanError {
        PlanError(format!("{}:{}: {field}: {problem}", self.name, self.line(span)))
    }

    fn duration(&self, field: &str, text: &Spanned<String>) -> Result<Duration, PlanError> {
        let parsed = parse_duration(text.as_ref()).map_err(|error| self.error(text.span(), field, error))?;
        if parsed.is_zero() { Err(self.error(text.span(), field, "a time above zero is wanted")) } else { Ok(parsed) }
    }
}

/// Reads files with the engines at hand.
struct Reader<'a> {
    engines: &'a [Box<dyn Engine>],
}

impl Reader<'_> {
    fn file(&self, source: &Source) -> Result<PlanFile, PlanError> {
        toml::from_str(&source.text).map_err(|error| {
            let line = source.line(error.span().unwrap_or(0..0));
            PlanError(format!("{}:{line}: {}", source.name, error.message().replace('\n', " ")))
        })
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
            let other = Source::find(include.as_ref(), source.folder.as_deref()).map_err(refuse)?;
            if above.len() >= MOST_INCLUDES || !above.insert(other.name.clone()) {
                return Err(refuse(format!("{} is included by itself, or too deep", other.name)));
            }
            let included = self.file(&other)?;
            points.extend(self.sweeps(&other, &included, above)?);
            above.remove(&other.name);
        }
        for (at, sweep) in file.sweep.iter().enumerate() {
            let repetitions = sweep.repetitions.unwrap_or(file.repetitions);
            let steps = steps(source, file, sweep, at)?;
            for workload in self.workloads(source, sweep, at)? {
                let point = PlannedPoint {
                    study: sweep.study.clone(),
                    engine: sweep.engine.as_ref().clone(),
                    workload,
                    steps,
                    pin: sweep.pin.clone().unwrap_or_else(|| file.pin.clone()),
                    profile_hz: sweep.profile_hz,
                    place: Place::default(),
                };
                points.push((repetitions, point));
            }
        }
        Ok(points)
    }

    fn workloads(&self, source: &Source, sweep: &SweepFile, at: usize) -> Result<Vec<Workload>, PlanError> {
        let field = |name: &str| format!("sweep {}, {name}", at + 1);
        let Some(engine) = self.engines.iter().find(|engine| engine.name() == sweep.engine.as_ref()) else {
            let names: Vec<&str> = self.engines.iter().map(|engine| engine.name()).collect();
            let problem = format!("`{}` is no engine; there are: {}", sweep.engine.as_ref(), names.join(", "));
            return Err(source.error(sweep.engine.span(), &field("engine"), problem));
        };
        let known = |name: &Spanned<String>, of: &str| {
            let parameters = engine.parameters();
            if parameters.iter().any(|parameter| parameter.name == name.as_ref()) {
                return Ok(());
            }
            let names: Vec<&str> = parameters.iter().map(|parameter| parameter.name).collect();
            let problem =
                format!("`{}` is no parameter of {}; there are: {}", name.as_ref(), engine.name(), names.join(", "));
            Err(source.error(name.span(), &field(of), problem))
        };
        let param = |name: &Spanned<String>, value: &Spanned<Value>, of: &str| {
            known(name, of)?;
            param(name.as_ref(), value.as_ref())
                .map_err(|problem| source.error(value.span(), &field(&format!("{of}.{}", name.as_ref())), problem))
        };
        let with = |mut workload: Workload, params: &Params, of: &str| {
            for (name, value) in params {
                workload.params.insert(name.as_ref().clone(), param(name, value, of)?);
            }
            Ok(workload)
        };
        let base = with(Workload::new(engine.name()), &sweep.workload, "workload")?;
        let mut workloads = if sweep.points.is_empty() {
            vec![base]
        } else {
            sweep.points.iter().map(|params| with(base.clone(), params, "points")).collect::<Result<_, _>>()?
        };
        for (name, values) in &sweep.axes {
            let values: Vec<Param> = values.iter().map(|value| param(name, value, "axes")).collect::<Result<_, _>>()?;
            if values.is_empty() {
                return Err(source.error(name.span(), &field("axes"), format!("`{}` has no value", name.as_ref())));
            }
            let with_each = |workload: Workload| {
                values.iter().map(move |value| workload.clone().with(name.as_ref(), value.clone()))
            };
            workloads = workloads.into_iter().flat_map(with_each).collect();
            if workloads.len() > MOST_POINTS {
                return Err(source.error(name.span(), &field("axes"), format!("more than {MOST_POINTS} points")));
            }
        }
        for params in &sweep.skip {
            let skipped = with(Workload::new(engine.name()), params, "skip")?;
            workloads.retain(|workload| {
                !skipped.params.iter().all(|(name, value)| workload.params.get(name) == Some(value))
            });
        }
        Ok(workloads)
    }
}

fn steps(source: &Source, file: &PlanFile, sweep: &SweepFile, at: usize) -> Result<StepPlan, PlanError> {
    let field = format!("sweep {}, time", at + 1);
    match (&sweep.time, sweep.reads, sweep.passes) {
        (None, Some(reads), None) if reads > 0 => Ok(StepPlan::ByStage(reads)),
        (None, None, Some(passes)) if passes > 0 => Ok(StepPlan::ByPass(passes)),
        (Some(time), None, None) => Ok(StepPlan::Timed(source.duration(&field, time)?)),
        (None, None, None) => match &file.time {
            Some(time) => Ok(StepPlan::Timed(source.duration("time", time)?)),
            None => Ok(StepPlan::Timed(USUAL_TIME)),
        },
        _ => Err(source.error(sweep.engine.span(), &field, "one of time, reads and passes is wanted, above zero")),
    }
}

/// A value of the file as a parameter: sizes and rates may carry their unit.
fn param(name: &str, value: &Value) -> Result<Param, String> {
    match value {
        Value::Boolean(flag) => Ok(Param::Flag(*flag)),
        Value::Integer(number) => u64::try_from(*number).map(Param::Int).map_err(|_| format!("{number} is below zero")),
        Value::Float(number) if number.is_finite() => Ok(Param::Float(*number)),
        Value::String(text) if name.ends_with("bytes") => {
            parse_bytes(text).map(Param::Int).map_err(|error| error.to_string())
        }
        Value::String(text) if name.ends_with("_hz") => {
            parse_rate_hz(text).map(Param::Float).map_err(|error| error.to_string())
        }
        Value::String(text) => Ok(Param::Text(text.clone())),
        other => Err(format!("{} is no parameter: a number, a name, true or false is wanted", other.type_str())),
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
        assert_eq!((plan.budget, plan.points.len()), (Some(Duration::from_secs(120)), 5 * 2 + 2));
        let memory = |point: &&PlannedPoint| point.study == "memory";
        assert_eq!(plan.points.iter().filter(memory).count(), 10);
        let first = plan.points.iter().find(memory).unwrap();
        assert_eq!((first.steps, &first.pin[..]), (StepPlan::Timed(Duration::from_millis(40)), &[1][..]));
        let chain = plan.points.iter().find(|point| point.workload.text("scenario") == Ok("gbt")).unwrap();
        assert_eq!((chain.workload.float("rate_hz"), chain.steps), (Ok(1e6), StepPlan::ByStage(1)));
        // The first round holds every point once, before the second begins.
        let round =
            |points: &[PlannedPoint]| points.iter().map(|point| point.workload.to_string()).collect::<BTreeSet<_>>();
        assert_eq!(round(&plan.points[..7]).len(), 7);
        assert_eq!(round(&plan.points[7..]).len(), 5);
        assert!(
            plan.points
                .iter()
                .enumerate()
                .all(|(at, point)| point.place == Place { seed: 1, position: at as u64, of: 12 })
        );
        let given = Plan::parse(&PLAN.replace("pin = [1]", "order = 'given'"), "p.toml").unwrap();
        assert!(given.points[..5].iter().all(|point| point.study == "memory") && given.points[5].study == "chain");
    }

    #[test]
    fn includes_bring_their_sweeps_and_no_circle_is_entered() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write(
            "a.toml",
            &PLAN.replace(
                "[[sweep]]\nstudy = \"memory\"",
                "include = ['b.toml', 'quick']\n[[sweep]]\nstudy = \"memory\"",
            ),
        );
        write("b.toml", "title = 'b'\n[[sweep]]\nstudy = 'b'\nengine = 'null'\n");
        let a = folder.path().join("a.toml").display().to_string();
        let plan = Plan::load(&a).unwrap();
        assert_eq!(plan.points.iter().filter(|point| point.study == "b").count(), 1);
        assert!(plan.points.len() > 13);
        write("b.toml", "title = 'b'\ninclude = ['a.toml']\n");
        let error = Plan::load(&a).unwrap_err().to_string();
        assert!(error.contains("b.toml:2: include") && error.contains("by itself"), "{error}");
    }

    #[test]
    fn what_is_wrong_is_named_with_file_line_and_field() {
        let refused =
            |from: &str, to: &str| Plan::parse(&PLAN.replacen(from, to, 1), "p.toml").unwrap_err().to_string();
        for (from, to, wanted) in [
            (
                "engine = \"memory\"",
                "engine = \"memry\"",
                "p.toml:11: sweep 1, engine: `memry` is no engine; there are: null, memory",
            ),
            (
                "read_lines = 1",
                "read_line = 1",
                "p.toml:13: sweep 1, workload: `read_line` is no parameter of memory; there are: read_bytes",
            ),
            ("\"16KiB\"", "\"16Kib\"", "p.toml:15: sweep 1, axes.read_bytes: "),
            ("\"1MHz\"", "\"1MHx\"", "p.toml:26: sweep 2, points.rate_hz: "),
            ("budget = \"2m\"", "budget = \"2 moons\"", "p.toml:5: budget: "),
            ("repetitions = 2", "repetition = 2", "p.toml:4: unknown field `repetition`"),
            ("reads = 1\n", "reads = 1\ntime = '1s'\n", "p.toml:23: sweep 2, time: one of time, reads and passes"),
            ("seconds = 0.1", "seconds = [1]", "array is no parameter"),
            ("[0, 1]", "[]", "p.toml:16: sweep 1, axes: `write_lines` has no value"),
            ("title = \"Footprints\"\n", "", "missing field `title`"),
            ("read_lines = 1", "read_lines = -1", "-1 is below zero"),
        ] {
            let error = refused(from, to);
            assert!(error.contains(wanted) && !error.contains('\n'), "{to}: {error}");
        }
        let error = Plan::load("/nonexistent.toml").unwrap_err().to_string();
        assert!(error.contains("No such file") && error.contains("memory"), "{error}");
        assert!(Plan::parse("title = 'empty'", "p.toml").unwrap_err().to_string().contains("no point is left"));
        let endless = refused("repetitions = 2", "repetitions = 9000000000000000000");
        assert!(endless.contains("at most 100000 are measured"), "{endless}");
    }
}
