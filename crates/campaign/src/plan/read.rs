//! Makes points of the files of plans, checked against the engines.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use daqmeter_harness::{Engine, StepPlan, TomlText, placement};
use daqmeter_record::units::{parse_bytes, parse_duration, parse_rate_hz};
use daqmeter_record::{Order, Param, Workload};
use toml::{Spanned, Value};

use super::SHIPPED_PLANS;
use super::file::{Allowed, Params, Pin, Placed, PlanFile, SweepFile};
use crate::engines::engine;
use crate::point::PlannedPoint;
use crate::site::{OfHost, Site};

/// Most points of a plan, and bytes of their texts, which are parts of its files.
const MAX_POINTS: u64 = 100_000;
const MAX_BYTES: u64 = 1 << 29;
/// Bytes of a point without its texts.
const POINT_BYTES: u64 = 1 << 10;
/// Most files of a plan, each of which is included once.
const MAX_FILES: usize = 64;
/// Most combinations that a sweep leaves out: each point is compared with each of them.
const MAX_SKIPS: usize = 100;
const MAX_TIME: Duration = Duration::from_secs(24 * 3600);
const MAX_STEPS: u64 = 1 << 40;
/// Largest number of samples of a profile per second of CPU time, as in the kernel
/// (`kernel.perf_event_max_sample_rate`).
const MAX_PROFILE_HZ: u64 = 100_000;
const USUAL_TIME: Duration = Duration::from_millis(300);

pub(super) type Repeated = Vec<(u64, PlannedPoint)>;

pub(super) struct Reader<'a> {
    site: &'a Site,
    files: BTreeSet<String>,
    points_left: u64,
    bytes_left: u64,
}

impl<'a> Reader<'a> {
    pub(super) fn new(site: &'a Site) -> Reader<'a> {
        let files = BTreeSet::new();
        Reader { site, files, points_left: MAX_POINTS, bytes_left: MAX_BYTES }
    }

    /// Counts points whose texts are parts of a file of this length, before they are made.
    fn count(&mut self, points: u64, text_bytes: usize) -> Result<(), String> {
        self.points_left = self.points_left.checked_sub(points).ok_or_else(|| {
            format!(
                "{points} points with their repetitions; a plan has at most {MAX_POINTS} points"
            )
        })?;
        let bytes = points.saturating_mul(POINT_BYTES + text_bytes as u64);
        self.bytes_left = self.bytes_left.checked_sub(bytes).ok_or_else(|| {
            format!("{points} points of a file of {text_bytes} bytes: divide the file")
        })?;
        Ok(())
    }

    pub(super) fn sweeps(
        &mut self,
        source: &TomlText,
        file: &PlanFile,
    ) -> Result<Repeated, String> {
        self.files.insert(source.name.clone());
        let mut points = Vec::new();
        for include in &file.include {
            points.extend(self.included(source, include)?);
        }
        for (at, sweep) in file.sweep.iter().enumerate() {
            points.extend(self.sweep(source, file, sweep, at)?);
        }
        Ok(points)
    }

    fn included(&mut self, source: &TomlText, include: &Placed) -> Result<Repeated, String> {
        let refuse = |problem: String| source.error(include.span(), "include", problem);
        let name = include.as_ref();
        let other = match SHIPPED_PLANS.shipped(name) {
            Some(shipped) => shipped,
            None => {
                let path = Path::new(&source.name).with_file_name(name);
                SHIPPED_PLANS.get_regular(&path.to_string_lossy()).map_err(refuse)?
            }
        };
        if self.files.contains(&other.name) {
            return Err(refuse(format!("{} is included already", other.name)));
        }
        if self.files.len() >= MAX_FILES {
            return Err(refuse(format!("a plan has at most {MAX_FILES} files")));
        }
        self.sweeps(&other, &other.parse()?)
    }

    fn sweep(
        &mut self,
        source: &TomlText,
        file: &PlanFile,
        sweep: &SweepFile,
        at: usize,
    ) -> Result<Repeated, String> {
        let repetitions = sweep.repetitions.unwrap_or(file.repetitions);
        let name = format!("sweep {}", at + 1);
        let refuse = |why| source.error(sweep.engine.span(), &format!("{name}, engine"), why);
        let engine = engine(sweep.engine.as_ref()).map_err(refuse)?;
        let pin = self.pin(sweep.pin.as_ref().unwrap_or(&file.pin));
        let sweep = Sweep { source, sweep, name, site: self.site, pin, engine };
        let steps = sweep.steps(file)?;
        let takes = sweep.sweep.takes.as_ref();
        let takes = takes.map(|text| point_time(source, &sweep.field("takes"), text));
        let takes = takes.transpose()?;
        let ranges = sweep.ranges()?;
        // Precedes any multiplication, since the product may fit nowhere.
        let taken = self.count(sweep.points(&ranges, repetitions), source.text.len());
        taken.map_err(|problem| sweep.refuse("", problem))?;
        let point = PlannedPoint {
            study: sweep.sweep.study.clone(),
            engine: sweep.engine.name.to_owned(),
            workload: Workload::default(),
            steps,
            takes,
            extent: sweep.sweep.extent.as_ref().map(|name| name.as_ref().clone()),
            pin: sweep.pin.clone(),
            profile_hz: sweep.sweep.profile_hz,
            place: Order::default(),
            source: sweep.place().into(),
        };
        let workloads = sweep.workloads(&ranges)?.into_iter();
        let planned = |workload| PlannedPoint { workload, ..point.clone() };
        Ok(workloads.map(|workload| (repetitions, planned(workload))).collect())
    }

    fn pin(&self, of_plan: &Pin) -> Vec<u32> {
        match (&self.site.pin, of_plan) {
            (Some(pin), _) | (None, Pin::List(pin)) => pin.clone(),
            (None, Pin::Allowed(Allowed::LastFirst)) => placement::order(&self.site.host),
        }
    }
}

type Values<'a> = (&'a Placed, Vec<u64>);

struct Sweep<'a> {
    source: &'a TomlText,
    sweep: &'a SweepFile,
    /// Name in messages.
    name: String,
    site: &'a Site,
    pin: Vec<u32>,
    engine: &'static Engine,
}

impl Sweep<'_> {
    fn field(&self, name: &str) -> String {
        if name.is_empty() { self.name.clone() } else { format!("{}, {name}", self.name) }
    }

    fn error(&self, span: std::ops::Range<usize>, field: &str, problem: impl Display) -> String {
        self.source.error(span, &self.field(field), problem)
    }

    /// Reports a problem at the line of the engine, where a sweep has its place.
    fn refuse(&self, field: &str, problem: impl Display) -> String {
        self.error(self.sweep.engine.span(), field, problem)
    }

    fn place(&self) -> String {
        let line = self.source.line(self.sweep.engine.span());
        format!("{}:{line}: {}", self.source.name, self.name)
    }

    fn steps(&self, file: &PlanFile) -> Result<StepPlan, String> {
        let sweep = self.sweep;
        for (name, value, max) in [
            ("reads", sweep.reads, MAX_STEPS),
            ("passes", sweep.passes, MAX_STEPS),
            ("profile_hz", sweep.profile_hz, MAX_PROFILE_HZ),
        ] {
            if let Some(value) = value.filter(|value| !(1..=max).contains(value)) {
                let problem = format!("{value}; 1 to {max} is wanted");
                return Err(self.refuse(name, problem));
            }
        }
        match (&sweep.time, sweep.reads, sweep.passes, &file.time) {
            (None, Some(reads), None, _) => Ok(StepPlan::ByStage(reads)),
            (None, None, Some(passes), _) => Ok(StepPlan::ByPass(passes)),
            (Some(time), None, None, _) => {
                let time = point_time(self.source, &self.field("time"), time)?;
                Ok(StepPlan::Timed(time))
            }
            (None, None, None, Some(time)) => {
                Ok(StepPlan::Timed(point_time(self.source, "time", time)?))
            }
            (None, None, None, None) => Ok(StepPlan::Timed(USUAL_TIME)),
            _ => Err(self.refuse("time", "set one of time, reads and passes")),
        }
    }

    /// Counts the points with their repetitions; points without one are made all the same.
    fn points(&self, ranges: &[Values<'_>], repetitions: u64) -> u64 {
        let lists = self.sweep.axes.values().map(Vec::len);
        let lists = lists.chain(ranges.iter().map(|(_, values)| values.len()));
        let lists = lists.chain([self.sweep.points.len().max(1)]);
        lists.fold(repetitions.max(1), |all, values| all.saturating_mul(values as u64))
    }

    fn ranges(&self) -> Result<Vec<Values<'_>>, String> {
        let of_host = |(name, range): (_, &Spanned<crate::site::Range>)| {
            let values = range.as_ref().values(&self.site.host);
            Ok((name, values.map_err(|problem| self.error(range.span(), "ranges", problem))?))
        };
        self.sweep.ranges.iter().map(of_host).collect()
    }

    /// Returns all combinations but the excluded ones; `None` if the host lacks the object of the
    /// sweep.
    fn workloads(&self, ranges: &[Values<'_>]) -> Result<Vec<Workload>, String> {
        let Some(base) = self.base()? else { return Ok(Vec::new()) };
        let mut workloads = vec![base.clone()];
        if !self.sweep.points.is_empty() {
            let points = self.sweep.points.iter();
            let point = |values| self.with(base.clone(), values, "points");
            workloads = points.map(point).collect::<Result<_, _>>()?;
        }
        for (name, values) in &self.sweep.axes {
            workloads = over(workloads, name, &self.axis(name, values)?);
        }
        for (name, values) in ranges {
            self.check_name(name, "ranges")?;
            let values: Vec<Param> = values.iter().copied().map(Param::Int).collect();
            workloads = over(workloads, name, &values);
        }
        if self.sweep.skip.len() > MAX_SKIPS {
            let count = self.sweep.skip.len();
            let problem =
                format!("{count} combinations are left out; at most {MAX_SKIPS} are compared");
            return Err(self.refuse("skip", problem));
        }
        for values in &self.sweep.skip {
            let skipped = self.with(Workload::default(), values, "skip")?.params;
            let is_skipped = |workload: &Workload| {
                let mut values = skipped.iter();
                values.all(|(name, value)| workload.params.get(name) == Some(value))
            };
            workloads.retain(|workload| !is_skipped(workload));
        }
        self.check_extent(&workloads)?;
        Ok(workloads.into_iter().map(|workload| self.as_the_engine_writes_it(workload)).collect())
    }

    /// Returns the workload as the command line records it, so that both are one point. A default
    /// extent stays, too.
    fn as_the_engine_writes_it(&self, workload: Workload) -> Workload {
        let Ok(mut canonical) = self.engine.canonical(&workload) else {
            // Its measurement reports this error.
            return workload;
        };
        let extent = self.sweep.extent.as_ref().map(Spanned::as_ref);
        if let Some((name, value)) = extent.and_then(|name| workload.params.get_key_value(name)) {
            canonical.params.insert(name.clone(), value.clone());
        }
        canonical
    }

    fn check_extent(&self, workloads: &[Workload]) -> Result<(), String> {
        let Some(name) = &self.sweep.extent else { return Ok(()) };
        let is_number = |workload: &Workload| {
            let value = workload.params.get(name.as_ref());
            matches!(value, Some(Param::Int(_) | Param::Float(_)))
        };
        if workloads.iter().all(is_number) {
            return Ok(());
        }
        let problem = format!("`{}` is not a number in every point", name.as_ref());
        Err(self.error(name.span(), "extent", problem))
    }

    fn check_name(&self, name: &Placed, table: &str) -> Result<(), String> {
        let parameters = self.engine.parameters();
        if parameters.iter().any(|parameter| parameter.name == *name.as_ref()) {
            return Ok(());
        }
        let names: Vec<&str> = parameters.iter().map(|parameter| parameter.name.as_str()).collect();
        let problem = format!(
            "`{}` is not a parameter of {}; there are: {}",
            name.as_ref(),
            self.engine.name,
            names.join(", ")
        );
        Err(self.error(name.span(), table, problem))
    }

    fn param(&self, name: &Placed, value: &Spanned<Value>, table: &str) -> Result<Param, String> {
        self.check_name(name, table)?;
        param(name.as_ref(), value.as_ref()).map_err(|problem| {
            self.error(value.span(), &format!("{table}.{}", name.as_ref()), problem)
        })
    }

    fn with(
        &self,
        mut workload: Workload,
        params: &Params,
        table: &str,
    ) -> Result<Workload, String> {
        for (name, value) in params {
            let value = self.param(name, value, table)?;
            workload.params.insert(name.as_ref().clone(), value);
        }
        Ok(workload)
    }

    fn base(&self) -> Result<Option<Workload>, String> {
        let mut workload = Workload::new(self.engine.name);
        for (name, value) in &self.sweep.workload {
            let Value::Table(table) = value.as_ref() else {
                let value = self.param(name, value, "workload")?;
                workload.params.insert(name.as_ref().clone(), value);
                continue;
            };
            self.check_name(name, "workload")?;
            let property: OfHost = table.clone().try_into().map_err(|error: toml::de::Error| {
                let field = format!("workload.{}", name.as_ref());
                self.error(value.span(), &field, error.message().replace('\n', " "))
            })?;
            match property.param(&self.pin) {
                Some(value) => workload.params.insert(name.as_ref().clone(), value),
                None => return Ok(None),
            };
        }
        Ok(Some(workload))
    }

    fn axis(&self, name: &Placed, values: &[Spanned<Value>]) -> Result<Vec<Param>, String> {
        if values.is_empty() {
            let problem = format!("`{}` has no value", name.as_ref());
            return Err(self.error(name.span(), "axes", problem));
        }
        let values = values.iter();
        values.map(|value| self.param(name, value, "axes")).collect()
    }
}

fn over(workloads: Vec<Workload>, name: &Placed, values: &[Param]) -> Vec<Workload> {
    let with_each = |workload: Workload| {
        let values = values.iter().cloned();
        values.map(move |value| workload.clone().with(name.as_ref(), value))
    };
    workloads.into_iter().flat_map(with_each).collect()
}

pub(super) fn duration(source: &TomlText, field: &str, text: &Placed) -> Result<Duration, String> {
    match parse_duration(text.as_ref()) {
        Err(error) => Err(source.error(text.span(), field, error)),
        Ok(time) if time.is_zero() => {
            Err(source.error(text.span(), field, "use a time above zero"))
        }
        Ok(time) => Ok(time),
    }
}

fn point_time(source: &TomlText, field: &str, text: &Placed) -> Result<Duration, String> {
    let time = duration(source, field, text)?;
    if time > MAX_TIME {
        Err(source.error(text.span(), field, "the maximum time of a point is 24h"))
    } else {
        Ok(time)
    }
}

/// Reads a parameter: sizes and rates may have a unit.
pub(crate) fn param(name: &str, value: &Value) -> Result<Param, String> {
    match value {
        Value::Boolean(flag) => Ok(Param::Flag(*flag)),
        Value::Integer(number) => {
            u64::try_from(*number).map(Param::Int).map_err(|_| format!("{number} is below zero"))
        }
        Value::Float(number) if number.is_finite() => Ok(Param::Float(*number)),
        Value::Float(number) => Err(format!("{number} is not a finite number")),
        Value::String(text) if name.ends_with("bytes") => parse_bytes(text).map(Param::Int),
        Value::String(text) if name.ends_with("_hz") => parse_rate_hz(text).map(Param::Float),
        Value::String(text) => Ok(Param::Text(text.clone())),
        other => Err(format!(
            "{} is not a parameter: a number, a name, true or false is wanted",
            other.type_str()
        )),
    }
}
