//! Request to an engine, as one typed struct. It gives the record's workload, the plan's check, the
//! list of parameters, and through `clap::Args` the options of the command line.
//!
//! Plans and records hold a [`Workload`], engines work with their requests; only this file converts
//! between them.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::OnceLock;

use daqmeter_record::{Param, Workload};
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::engine::{Fault, Job, Parameter, Session, max_lanes};
use crate::settings::cpu_list;

/// Request to one engine. Field names are those of the parameters, with their unit last. The first
/// line of a field's comment is its text in lists and help. Optional fields have
/// `#[serde(default)]`, and `skip_serializing_if` if a record may omit the usual value.
/// `#[serde(deny_unknown_fields)]` refuses misspelt names.
pub trait Request:
    Clone + Debug + PartialEq + Serialize + DeserializeOwned + JsonSchema + 'static
{
    const KIND: &'static str;
    const DESCRIPTION: &'static str;

    fn example() -> Self;

    /// Checks conditions beyond the types of the fields: bounds, and values that exclude each
    /// other.
    ///
    /// # Errors
    /// Names the parameter, its value and the wanted one.
    fn check(&self) -> Result<(), Problem> {
        Ok(())
    }

    fn workload(&self) -> Workload {
        workload_of(self)
    }

    /// Returns the work of the request. Files that it names are read here, once; no device is
    /// opened.
    fn job(&self) -> Result<Job, Fault>;

    /// Reads and checks a workload.
    ///
    /// # Errors
    /// Names the parameter that is missing, unknown, of the wrong type or out of bounds.
    fn of(workload: &Workload) -> Result<Self, Fault> {
        let request = read::<Self>(workload)?;
        request.check().map_err(|problem| problem.of(workload))?;
        Ok(request)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Engine {
    pub name: &'static str,
    pub description: &'static str,
    example: fn() -> Workload,
    parameters: fn() -> Vec<Parameter>,
    canonical: fn(&Workload) -> Result<Workload, Fault>,
    parse: fn(&Workload) -> Result<Job, Fault>,
}

impl Engine {
    pub const fn of<R: Request>() -> Engine {
        Engine {
            name: R::KIND,
            description: R::DESCRIPTION,
            example: || R::example().workload(),
            parameters: parameters::<R>,
            canonical: |workload| Ok(read::<R>(workload)?.workload()),
            parse: |workload| R::of(workload)?.job(),
        }
    }

    pub fn example(&self) -> Workload {
        (self.example)()
    }

    pub fn parameters(&self) -> Vec<Parameter> {
        (self.parameters)()
    }

    /// Returns the workload as the command line records it, so that equal requests have equal keys.
    /// Bounds are not checked.
    pub fn canonical(&self, workload: &Workload) -> Result<Workload, Fault> {
        (self.canonical)(workload)
    }

    /// Reads and checks a workload: all measurements parse it here.
    ///
    /// # Errors
    /// Names the parameter that is missing, unknown, of the wrong type or out of bounds,
    /// or the file that cannot be read.
    pub fn parse(&self, workload: &Workload) -> Result<Job, Fault> {
        (self.parse)(workload)
    }
}

impl Job {
    /// Creates a job of real work on `target` without special needs. `open` makes one session for
    /// each lane and allocates nothing large: [`Session::prepare`] does that in the thread that
    /// uses it.
    pub fn new<R: Request>(
        request: &R,
        target: impl Into<String>,
        open: impl Fn(&R) -> Result<Vec<Box<dyn Session>>, Fault> + 'static,
    ) -> Job {
        let own = request.clone();
        Job::untyped(request.workload(), target, move || open(&own))
    }
}

/// Options by the name of their parameter, as they were typed.
static TYPED: OnceLock<BTreeMap<String, String>> = OnceLock::new();

/// Sets the options of the command line, such as `--rate 300M` for `rate_hz`: problems name them in
/// place of the parameter.
pub fn set_typed(options: BTreeMap<String, String>) {
    // A process has one command line.
    let _ = TYPED.set(options);
}

fn typed(name: &str) -> Option<&'static str> {
    TYPED.get()?.get(name).map(String::as_str)
}

/// Units by the last part of a parameter's name, which an option does not have.
const UNITS: [(&str, &str); 7] = [
    ("hz", " Hz"),
    ("ns", " ns"),
    ("ms", " ms"),
    ("us", " us"),
    ("s", " s"),
    ("seconds", " s"),
    ("bytes", " B"),
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub name: &'static str,
    /// Present and wanted value, after the name: `is 0; 1 or more is wanted`.
    pub text: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match typed(self.name) {
            Some(option) => write!(f, "{option} {}", self.text),
            None => write!(f, "`{}` {}", self.name, self.text),
        }
    }
}

impl Problem {
    pub fn new(name: &'static str, text: impl Into<String>) -> Problem {
        Problem { name, text: text.into() }
    }

    /// Makes the error of a workload, which names its kind unless the parameter was typed.
    pub fn of(self, workload: &Workload) -> Fault {
        match typed(self.name) {
            Some(_) => Fault::new(self.to_string()),
            None => workload.error(self.name, self.text).into(),
        }
    }

    pub fn when(
        is_wrong: bool,
        name: &'static str,
        text: impl Into<String>,
    ) -> Result<(), Problem> {
        if is_wrong { Err(Problem::new(name, text)) } else { Ok(()) }
    }

    pub fn unless_within<T: PartialOrd + std::fmt::Display>(
        name: &'static str,
        value: T,
        bounds: std::ops::RangeInclusive<T>,
    ) -> Result<(), Problem> {
        if bounds.contains(&value) {
            return Ok(());
        }
        let (least, greatest) = (bounds.start(), bounds.end());
        let last = name.rsplit('_').next();
        let unit = UNITS.iter().find(|(of, _)| last == Some(of)).map_or("", |(_, unit)| unit);
        // An option is shown with its value.
        let text = match typed(name) {
            Some(_) => format!("is not within {least} to {greatest}{unit}"),
            None => format!("is {value}; {least} to {greatest} is wanted"),
        };
        Err(Problem::new(name, text))
    }

    /// Refuses CPUs that this process may not run on.
    ///
    /// # Errors
    /// Also fails if the kernel does not say.
    pub fn unless_cpus_exist(name: &'static str, cpus: &[u32]) -> Result<(), Problem> {
        if cpus.is_empty() {
            return Ok(());
        }
        let allowed = daqmeter_sys::affinity::allowed_cpus()
            .map_err(|error| Problem::new(name, format!("cannot be checked: {error}")))?;
        let Some(cpu) = cpus.iter().find(|cpu| !allowed.contains(cpu)) else { return Ok(()) };
        let here = cpu_list(&allowed);
        let text = format!(
            "is {cpu}: there is no such CPU, or it is not allowed here; choose among {here}"
        );
        Err(Problem::new(name, text))
    }
}

/// Returns every field of a request as a parameter.
///
/// # Panics
/// Panics if a field is neither a boolean, a number, nor text: a fault of the program, which every
/// engine's test would find.
pub fn workload_of<R: Request>(request: &R) -> Workload {
    let value = serde_json::to_value(request).expect("a request is plain data");
    let params: BTreeMap<String, Option<Param>> =
        serde_json::from_value(value).expect("a parameter is a flag, a number or a text");
    let given = params.into_iter().filter_map(|(name, param)| Some((name, param?)));
    Workload { kind: R::KIND.to_owned(), params: given.collect() }
}

/// Checks a request's number of lanes: at least 1, at most [`crate::MAX_LANES`] and the threads
/// that this process may still start.
pub fn check_lanes(name: &'static str, lanes: usize) -> Result<(), Problem> {
    Problem::unless_within(name, lanes as u64, 1..=max_lanes())
}

fn value(param: &Param) -> Value {
    match param {
        // JSON has no such number: it becomes text, which no field of a number accepts.
        Param::Float(float) if !float.is_finite() => float.to_string().into(),
        param => serde_json::to_value(param).expect("a parameter is plain data"),
    }
}

pub(crate) fn read<R: Request>(workload: &Workload) -> Result<R, Fault> {
    let fields: Map<String, Value> =
        workload.params.iter().map(|(name, param)| (name.clone(), value(param))).collect();
    serde_path_to_error::deserialize(Value::Object(fields.clone())).map_err(|error| {
        let name = error.path().to_string();
        let problem = with_nearest::<R>(error.inner().to_string());
        let name = Some(name).filter(|name| name != ".");
        match name.or_else(|| culprit::<R>(&fields)) {
            None => Fault::new(format!("{} workload: {problem}", R::KIND)),
            Some(name) => workload.error(&name, format!("is wrong: {problem}")).into(),
        }
    })
}

/// Finds the known parameter whose absence makes the others readable: for a field in a flattened
/// struct, serde gives no path.
fn culprit<R: Request>(fields: &Map<String, Value>) -> Option<String> {
    let readable_without = |name: &&String| {
        let mut others = fields.clone();
        others.remove(*name);
        serde_path_to_error::deserialize::<_, R>(Value::Object(others)).is_ok()
    };
    let known: Vec<Parameter> = parameters::<R>();
    let is_known = |name: &&String| known.iter().any(|parameter| parameter.name == **name);
    fields.keys().filter(is_known).find(readable_without).cloned()
}

/// Adds the nearest name. For a flattened struct, serde does not list the known fields.
fn with_nearest<R: Request>(problem: String) -> String {
    let field = problem.strip_prefix("unknown field `").and_then(|rest| rest.split('`').next());
    let hint = match field {
        Some(wrong) => {
            let fields = parameters::<R>();
            let names: Vec<&str> = fields.iter().map(|field| field.name.as_str()).collect();
            did_you_mean(wrong, &names)
        }
        None => nearest_of(&problem),
    };
    problem + &hint
}

/// Finds the nearest name: serde quotes the unknown name and then the expected ones in backticks.
pub fn nearest_of(message: &str) -> String {
    let names: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    match names.split_first() {
        Some((wrong, expected)) if message.starts_with("unknown ") => did_you_mean(wrong, expected),
        _ => String::new(),
    }
}

/// Returns the known name that was probably meant, as the end of an error's line; empty without a
/// near one.
pub fn did_you_mean(wrong: &str, known: &[&str]) -> String {
    // Likeness measure and limit of clap's own suggestions, so that options and parameters are
    // found alike.
    const MIN_LIKENESS: f64 = 0.7;
    let likeness = |name: &&str| strsim::jaro(wrong, name);
    let near = known.iter().copied().filter(|name| likeness(name) > MIN_LIKENESS);
    let nearest = near.max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    nearest.map_or(String::new(), |name| format!("; did you mean `{name}`?"))
}

/// Tests if a field takes texts, by its schema in the whole one.
fn is_text(field: &Value, whole: &Value) -> bool {
    let named = field["$ref"].as_str().and_then(|name| whole.pointer(name.strip_prefix('#')?));
    let of_kind = |kind: &Value| kind == "string";
    match &named.unwrap_or(field)["type"] {
        Value::Array(kinds) => kinds.iter().any(of_kind),
        kind => of_kind(kind),
    }
}

/// Returns the fields of a request with the first lines of their comments.
pub fn parameters<R: Request>() -> Vec<Parameter> {
    let schema = SchemaGenerator::default().into_root_schema_for::<R>();
    let fields = schema.get("properties").and_then(Value::as_object);
    let parameter = |(name, field): (&String, &Value)| Parameter {
        name: name.clone(),
        about: field["description"]
            .as_str()
            .and_then(|text| text.lines().next())
            .unwrap_or_default()
            .to_owned(),
        is_text: is_text(field, schema.as_value()),
    };
    fields.into_iter().flatten().map(parameter).collect()
}

/// Shows an enum by its name in options and records.
#[macro_export]
macro_rules! displayed {
    ($($word:ty),*) => {$(
        impl std::fmt::Display for $word {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let value = clap::ValueEnum::to_possible_value(self).expect("no value is hidden");
                f.write_str(value.get_name())
            }
        }
    )*};
}

/// Reads and writes a type in records and workloads by its text, as options do.
#[macro_export]
macro_rules! by_text {
    ($word:ty) => {
        impl TryFrom<String> for $word {
            type Error = String;

            fn try_from(text: String) -> Result<$word, String> {
                text.parse()
            }
        }

        impl From<$word> for String {
            fn from(own: $word) -> String {
                own.to_string()
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    enum Way {
        #[default]
        ThereOnly,
        Back,
    }

    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default)]
    struct Crew {
        /// Sailors on board
        #[serde(skip_serializing_if = "crate::is_default")]
        sailors: u64,
    }

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    struct Ferry {
        /// Bytes of one crossing
        ///
        /// More about them.
        block_bytes: u64,
        /// Which way
        #[serde(default)]
        way: Way,
        /// Crossings per second
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rate_hz: Option<f64>,
        /// At night
        #[serde(default, skip_serializing_if = "crate::is_default")]
        night: bool,
        #[serde(flatten)]
        crew: Crew,
    }

    impl Request for Ferry {
        const KIND: &'static str = "ferry";
        const DESCRIPTION: &'static str = "crosses a river";

        fn example() -> Ferry {
            Ferry::of(&workload()).unwrap()
        }

        fn job(&self) -> Result<Job, Fault> {
            Ok(Job::new(self, "river", |_| Err(Fault::new("the bridge is open"))))
        }

        fn check(&self) -> Result<(), Problem> {
            Problem::unless_within("block_bytes", self.block_bytes, 1..=64)
        }
    }

    fn workload() -> Workload {
        Workload::new("ferry").with("block_bytes", 8_u64)
    }

    #[test]
    fn a_request_survives_its_workload() {
        let request = Ferry::of(&workload().with("rate_hz", 2.5).with("night", true)).unwrap();
        assert_eq!(request.way, Way::ThereOnly);
        let written = request.workload();
        assert_eq!(
            written.to_string(),
            "ferry block_bytes=8 night=true rate_hz=2.5 way=there-only"
        );
        assert_eq!(Ferry::of(&written).unwrap(), request);
        // A number without a fraction is written as a whole one.
        let whole = Ferry::of(&workload().with("rate_hz", 2_u64)).unwrap();
        assert_eq!(whole.rate_hz, Some(2.0));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let refused = |name: &str, param: Param| {
            Ferry::of(&workload().with(name, param)).unwrap_err().to_string()
        };
        let text = |text: &str| Param::Text(text.into());
        for (name, param, wanted) in [
            ("way", text("up"), "unknown variant `up`, expected `there-only` or `back`"),
            ("way", text("ther-only"), "or `back`; did you mean `there-only`?"),
            ("block_bytes", Param::Int(65), "`block_bytes` is 65; 1 to 64 is wanted"),
            ("block_bytes", text("x"), "wrong: invalid type: string \"x\", expected u64"),
            ("block_byte", Param::Int(1), "did you mean `block_bytes`?"),
            ("rate_hz", Param::Float(f64::NAN), "`rate_hz` is wrong"),
            ("speed", Param::Int(1), "ferry workload: unknown field `speed`"),
            ("sailors", text("x"), "`sailors` is wrong: invalid type: string \"x\""),
        ] {
            let error = refused(name, param);
            assert!(error.contains(wanted) && !error.contains('\n'), "{error}");
        }
        let far = refused("speed", Param::Int(1));
        assert!(!far.contains("did you mean"), "{far}");
        let missing = Ferry::of(&Workload::new("ferry")).unwrap_err().to_string();
        assert!(missing.contains("missing field `block_bytes`"), "{missing}");
    }

    #[test]
    fn more_lanes_than_a_host_can_run_are_refused() {
        assert_eq!(check_lanes("lanes", 1), Ok(()));
        for lanes in [0, 1025, usize::MAX] {
            let problem = check_lanes("lanes", lanes).unwrap_err();
            assert_eq!(problem.name, "lanes");
            assert!(problem.text.contains("; 1 to "), "{}", problem.text);
        }
    }

    #[test]
    fn parameters_are_the_fields_with_their_comments() {
        let found = parameters::<Ferry>();
        let found: Vec<(&str, &str)> = found
            .iter()
            .map(|parameter| (parameter.name.as_str(), parameter.about.as_str()))
            .collect();
        assert!(found.contains(&("block_bytes", "Bytes of one crossing")), "{found:?}");
        assert!(found.contains(&("way", "Which way")), "{found:?}");
        assert!(found.contains(&("sailors", "Sailors on board")), "{found:?}");
        assert_eq!(found.len(), 5);
    }
}
