//! A model as a TOML file. The format is described in `docs/book/src/verbs/twin.md`; units are required, and what is wrong is named with
//! file, line and field.

use std::collections::BTreeMap;
use std::path::Path;

use daqmeter_harness::{TomlText, did_you_mean, text_input};
use serde::Deserialize;
use toml::{Spanned, Value};

use crate::draw::Draw;
use crate::model::{Arrivals, Busy, Full, Model, Poll, Rest, Room, Source, Station, Takes};
use crate::quantity::{bytes, gap_ps, item_bytes, per_byte_ps, share, time_ps};

/// Scenarios that ship: one file in `scenarios/`, one line here.
pub const SHIPPED: &[(&str, &str)] = &[
    ("bursts", include_str!("../scenarios/bursts.toml")),
    ("felix-reader", include_str!("../scenarios/felix-reader.toml")),
    ("lossy-link", include_str!("../scenarios/lossy-link.toml")),
];

/// A scenario cannot be used; one line that names file, line and field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ScenarioError(pub(crate) String);

/// A model with its title.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What it is.
    pub title: String,
    /// What it asks.
    pub about: String,
    /// The model.
    pub model: Model,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    title: String,
    #[serde(default)]
    about: String,
    time: Spanned<String>,
    warm_up: Option<Spanned<String>>,
    source: Vec<Spanned<SourceFields>>,
    station: Vec<Spanned<StationFields>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SourceFields {
    name: String,
    every: Option<Spanned<Value>>,
    rate: Option<Spanned<String>>,
    #[serde(default)]
    arrivals: Option<Spanned<Pattern>>,
    population: Option<Spanned<u32>>,
    burst: Option<Spanned<u32>>,
    first: Option<Spanned<String>>,
    bytes: Spanned<Value>,
    to: Spanned<Names>,
    #[serde(default)]
    each: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Pattern {
    Periodic,
    Poisson,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a name or a list of names is wanted")]
enum Names {
    One(String),
    Several(Vec<String>),
}

impl Names {
    fn all(&self) -> &[String] {
        match self {
            Names::One(name) => std::slice::from_ref(name),
            Names::Several(names) => names,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StationFields {
    name: String,
    servers: Option<Spanned<Value>>,
    service: Option<Spanned<Value>>,
    speed: Option<Spanned<String>>,
    buffer: Option<Spanned<String>>,
    full: Option<Spanned<FullWord>>,
    busy: Option<Spanned<BusyFields>>,
    poll: Option<Spanned<PollFields>>,
    loss: Option<Spanned<String>>,
    lost_to: Option<Spanned<String>>,
    to: Option<Spanned<Names>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FullWord {
    Wait,
    Lose,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BusyFields {
    above: Spanned<String>,
    below: Spanned<String>,
    stops: Spanned<Names>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PollFields {
    timer: Option<Spanned<String>>,
    sleep: Option<Spanned<Value>>,
    look: Spanned<String>,
    #[serde(default)]
    takes: TakesWord,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum TakesWord {
    #[default]
    Found,
    All,
}

impl Scenario {
    /// Loads a scenario by the name of a shipped one, or from a file.
    ///
    /// # Errors
    /// When it cannot be read or used; one line with file, line and field.
    pub fn load(name_or_path: &str) -> Result<Scenario, ScenarioError> {
        if let Some((name, text)) = SHIPPED.iter().find(|(name, _)| *name == name_or_path) {
            return Scenario::parse(text, name);
        }
        let text = text_input(Path::new(name_or_path)).map_err(|error| {
            let names: Vec<&str> = SHIPPED.iter().map(|(name, _)| *name).collect();
            let hint = did_you_mean(name_or_path, &names);
            let names = names.join(", ");
            ScenarioError(format!(
                "scenario {name_or_path}: {error}; scenarios that ship with daqmeter: {names}{hint}"
            ))
        })?;
        Scenario::parse(&text, name_or_path)
    }

    /// Reads the text of a scenario that is called so in messages.
    ///
    /// # Errors
    /// As [`Scenario::load`].
    pub fn parse(text: &str, name: &str) -> Result<Scenario, ScenarioError> {
        let text = TomlText { name: name.to_owned(), text: text.to_owned() };
        Reader::scenario(&text).map_err(ScenarioError)
    }
}

/// Reads one file; knows which names there are.
pub(crate) struct Reader<'a> {
    pub(crate) text: &'a TomlText,
    pub(crate) stations: Vec<&'a str>,
    pub(crate) sources: Vec<&'a str>,
}

/// A source or station while it is read.
pub(crate) struct Part<'a> {
    pub(crate) reader: &'a Reader<'a>,
    pub(crate) what: String,
}

pub(crate) type Read<T> = Result<T, String>;

impl Reader<'_> {
    fn scenario(text: &TomlText) -> Read<Scenario> {
        let file: File = text.parse()?;
        let reader = Reader {
            text,
            stations: file.station.iter().map(|at| at.as_ref().name.as_str()).collect(),
            sources: file.source.iter().map(|at| at.as_ref().name.as_str()).collect(),
        };
        reader.names_differ(&file)?;
        let part = Part { reader: &reader, what: String::new() };
        let time_ps = part.quantity("time", &file.time, time_ps)?;
        let warm_up_ps =
            part.optional("warm_up", file.warm_up.as_ref(), crate::quantity::time_ps)?;
        let stations: Read<Vec<Station>> =
            file.station.iter().map(|at| reader.station(at)).collect();
        let sources: Read<Vec<Source>> = file.source.iter().map(|at| reader.source(at)).collect();
        let model = Model {
            stations: stations?,
            sources: sources?,
            time_ps,
            // A tenth is usual, so that a queue that starts empty does not count.
            warm_up_ps: warm_up_ps.unwrap_or(time_ps / 10),
            samples: 0,
        };
        reader.check(&file, &model)?;
        Ok(Scenario { title: file.title, about: file.about, model })
    }

    fn names_differ(&self, file: &File) -> Read<()> {
        let all = file.station.iter().map(|at| (&at.as_ref().name, at.span()));
        let all = all.chain(file.source.iter().map(|at| (&at.as_ref().name, at.span())));
        let mut seen = BTreeMap::new();
        for (name, span) in all {
            let line = self.text.line(span.clone());
            if let Some(before) = seen.insert(name, line) {
                let problem = format!("`{name}` is the name of another one, in line {before}");
                return Err(self.text.error(span, "name", problem));
            }
        }
        Ok(())
    }

    /// What only the whole model shows, with the line of the part that it names.
    fn check(&self, file: &File, model: &Model) -> Read<()> {
        let Err(error) = model.check() else {
            return self.is_reached(file, model);
        };
        let station = file.station.iter().find(|at| at.as_ref().name == error.what);
        let source = file.source.iter().find(|at| at.as_ref().name == error.what);
        let span = station.map(Spanned::span).or(source.map(Spanned::span));
        let span = span.unwrap_or_else(|| file.time.span());
        Err(self.text.error(span, &error.what, error.problem))
    }

    /// A station that nothing comes to is a link that was forgotten.
    fn is_reached(&self, file: &File, model: &Model) -> Read<()> {
        let stations = model.stations.iter();
        let onward = stations.flat_map(|station| station.to.iter().chain(&station.lost_to));
        let reached: Vec<usize> =
            model.sources.iter().flat_map(|source| &source.to).chain(onward).copied().collect();
        let forgotten = (0..model.stations.len()).find(|at| !reached.contains(at));
        forgotten.map_or(Ok(()), |at| {
            let name = &model.stations[at].name;
            let problem = "nothing comes here: no `to` names it";
            Err(self.text.error(file.station[at].span(), name, problem))
        })
    }

    fn station(&self, fields: &Spanned<StationFields>) -> Read<Station> {
        let (span, fields) = (fields.span(), fields.as_ref());
        let part = Part { reader: self, what: format!("station `{}`: ", fields.name) };
        if fields.service.is_none() && fields.speed.is_none() {
            let problem = "how long does it take? give a `service` time or a `speed`";
            return Err(self.text.error(span, &fields.name, problem));
        }
        let service = fields.service.as_ref();
        let service = service.map_or(Ok(Draw::Constant(0)), |given| part.draw("service", given))?;
        let to = fields.to.as_ref();
        Ok(Station {
            name: fields.name.clone(),
            servers: part.servers(fields.servers.as_ref())?,
            service,
            per_byte_ps: part.optional("speed", fields.speed.as_ref(), per_byte_ps)?.unwrap_or(0.0),
            room: part.optional("buffer", fields.buffer.as_ref(), room)?.unwrap_or_default(),
            full: part.full(fields)?,
            poll: fields.poll.as_ref().map(|poll| part.poll(poll)).transpose()?,
            busy: fields.busy.as_ref().map(|busy| part.busy(busy.as_ref())).transpose()?,
            loss: part.optional("loss", fields.loss.as_ref(), share)?.unwrap_or(0.0),
            lost_to: part.lost_to(fields)?,
            to: to.map_or(Ok(Vec::new()), |to| part.stations(to))?,
        })
    }

    fn source(&self, fields: &Spanned<SourceFields>) -> Read<Source> {
        let (span, fields) = (fields.span(), fields.as_ref());
        let part = Part { reader: self, what: format!("source `{}`: ", fields.name) };
        Ok(Source {
            name: fields.name.clone(),
            arrivals: part.arrivals(span, fields)?,
            bytes: part.sizes(&fields.bytes)?,
            to: part.stations(&fields.to)?,
            each: fields.each,
        })
    }
}

/// `64MiB` or `100 items`.
fn room(text: &str) -> Read<Room> {
    let room = Room::default();
    let items = text.trim().strip_suffix("items").or(text.trim().strip_suffix("item"));
    match items {
        Some(number) => match number.trim().parse() {
            Ok(items) => Ok(Room { items, ..room }),
            Err(_) => Err(format!("`{text}` is not a number of items such as 100 items")),
        },
        None => Ok(Room { bytes: bytes(text)?, ..room }),
    }
}

impl Part<'_> {
    pub(crate) fn error<T>(
        &self,
        field: &str,
        given: &Spanned<T>,
        problem: impl std::fmt::Display,
    ) -> String {
        let field = format!("{}{field}", self.what);
        self.reader.text.error(given.span(), &field, problem)
    }

    pub(crate) fn quantity<T>(
        &self,
        field: &str,
        given: &Spanned<String>,
        parse: impl Fn(&str) -> Read<T>,
    ) -> Read<T> {
        parse(given.as_ref()).map_err(|problem| self.error(field, given, problem))
    }

    pub(crate) fn optional<T>(
        &self,
        field: &str,
        given: Option<&Spanned<String>>,
        parse: impl Fn(&str) -> Read<T>,
    ) -> Read<Option<T>> {
        given.map(|given| self.quantity(field, given, parse)).transpose()
    }

    fn servers(&self, given: Option<&Spanned<Value>>) -> Read<Option<u32>> {
        let Some(given) = given else {
            return Ok(Some(1));
        };
        match given.as_ref() {
            Value::String(word) if word == "all" => Ok(None),
            Value::Integer(number) => u32::try_from(*number)
                .map(Some)
                .map_err(|_| self.error("servers", given, "is not a number of servers")),
            _ => Err(self.error("servers", given, "a number or \"all\" is wanted")),
        }
    }

    fn full(&self, fields: &StationFields) -> Read<Full> {
        match &fields.full {
            Some(full) if fields.buffer.is_none() => {
                let problem =
                    "a station without `buffer` is never full: give one, or leave this out";
                Err(self.error("full", full, problem))
            }
            Some(full) if *full.as_ref() == FullWord::Lose => Ok(Full::Lose),
            _ => Ok(Full::Wait),
        }
    }

    fn lost_to(&self, fields: &StationFields) -> Read<Option<usize>> {
        match (&fields.lost_to, &fields.loss) {
            (Some(lost_to), None) => {
                Err(self.error("lost_to", lost_to, "nothing is lost: give `loss` as well"))
            }
            (Some(lost_to), _) => self.station_at("lost_to", lost_to, lost_to.as_ref()).map(Some),
            (None, _) => Ok(None),
        }
    }

    fn poll(&self, given: &Spanned<PollFields>) -> Read<Poll> {
        let fields = given.as_ref();
        let rest = match (&fields.timer, &fields.sleep) {
            (Some(timer), None) => Rest::Timer(self.quantity("poll.timer", timer, time_ps)?),
            (None, Some(sleep)) => Rest::Sleep(self.draw("poll.sleep", sleep)?),
            _ => {
                let problem = "one of `timer` and `sleep` is wanted";
                return Err(self.error("poll", given, problem));
            }
        };
        let look_ps = self.quantity("poll.look", &fields.look, time_ps)?;
        let takes = match fields.takes {
            TakesWord::Found => Takes::Found,
            TakesWord::All => Takes::All,
        };
        Ok(Poll { rest, look_ps, takes })
    }

    fn busy(&self, fields: &BusyFields) -> Read<Busy> {
        let stops = fields.stops.as_ref().all().iter().map(|name| {
            self.find("busy.stops", &fields.stops, name, &self.reader.sources, "source")
        });
        Ok(Busy {
            stops: stops.collect::<Read<Vec<usize>>>()?,
            above_bytes: self.quantity("busy.above", &fields.above, bytes)?,
            below_bytes: self.quantity("busy.below", &fields.below, bytes)?,
        })
    }

    fn stations(&self, given: &Spanned<Names>) -> Read<Vec<usize>> {
        let names = given.as_ref().all().iter();
        names.map(|name| self.station_at("to", given, name)).collect()
    }

    fn station_at<T>(&self, field: &str, given: &Spanned<T>, name: &str) -> Read<usize> {
        self.find(field, given, name, &self.reader.stations, "station")
    }

    pub(crate) fn find<T>(
        &self,
        field: &str,
        given: &Spanned<T>,
        name: &str,
        all: &[&str],
        kind: &str,
    ) -> Read<usize> {
        all.iter().position(|other| *other == name).ok_or_else(|| {
            let hint = did_you_mean(name, all);
            self.error(field, given, format!("no {kind} is called `{name}`{hint}"))
        })
    }

    fn arrivals(&self, span: std::ops::Range<usize>, fields: &SourceFields) -> Read<Arrivals> {
        if let Some(population) = &fields.population {
            let open = fields.every.is_some() || fields.rate.is_some() || fields.burst.is_some();
            if open || fields.first.is_some() || fields.arrivals.is_some() {
                let problem = "items that come again when they left have no `every`, `rate`, `first`, `burst` or `arrivals`";
                return Err(self.error("population", population, problem));
            }
            return Ok(Arrivals::Closed(*population.as_ref()));
        }
        let mut gap = match (&fields.every, &fields.rate) {
            (Some(every), None) => self.draw("every", every)?,
            (None, Some(rate)) => Draw::Constant(self.quantity("rate", rate, gap_ps)?),
            (Some(_), Some(rate)) => {
                return Err(self.error(
                    "rate",
                    rate,
                    "`every` says it already: give one of the two",
                ));
            }
            (None, None) => {
                let problem = "when do items come? give `rate`, `every` or `population`";
                return Err(self.reader.text.error(span, &fields.name, problem));
            }
        };
        if let Some(pattern) = &fields.arrivals
            && *pattern.as_ref() == Pattern::Poisson
        {
            let Draw::Constant(mean_ps) = gap else {
                let problem = "`every` has a distribution already: give one of the two";
                return Err(self.error("arrivals", pattern, problem));
            };
            gap = Draw::Exponential(mean_ps);
        }
        Ok(Arrivals::Open {
            first_ps: self.optional("first", fields.first.as_ref(), time_ps)?,
            gap,
            burst: fields.burst.as_ref().map_or(1, |burst| *burst.as_ref()),
        })
    }

    /// `4KiB`, or several sizes that come in turn.
    fn sizes(&self, given: &Spanned<Value>) -> Read<Draw> {
        match given.as_ref() {
            Value::String(text) => {
                let bytes =
                    item_bytes(text).map_err(|problem| self.error("bytes", given, problem))?;
                Ok(Draw::Constant(bytes))
            }
            Value::Array(_) => {
                self.values("bytes", given, given.as_ref(), item_bytes).map(Draw::Trace)
            }
            _ => Err(self.error(
                "bytes",
                given,
                "has no unit: write \"100B\", \"4KiB\" or a list of them",
            )),
        }
    }

    /// A time, or a table that names a distribution of times.
    pub(crate) fn draw(&self, field: &str, given: &Spanned<Value>) -> Read<Draw> {
        match given.as_ref() {
            Value::String(text) => {
                let time = time_ps(text).map_err(|problem| self.error(field, given, problem))?;
                Ok(Draw::Constant(time))
            }
            Value::Table(table) => self.distribution(field, given, table),
            _ => Err(self.error(
                field,
                given,
                "has no unit: write \"10ns\", \"3ms\" or a distribution",
            )),
        }
    }

    fn distribution(&self, field: &str, given: &Spanned<Value>, table: &toml::Table) -> Read<Draw> {
        let names: Vec<&str> = table.keys().map(String::as_str).collect();
        let time = |value: &Value| match value.as_str().map(time_ps) {
            Some(Ok(time)) => Ok(time),
            Some(Err(problem)) => Err(self.error(field, given, problem)),
            None => Err(self.error(field, given, "a time such as \"10ns\" is wanted")),
        };
        match names.as_slice() {
            ["exponential"] => Ok(Draw::Exponential(time(&table["exponential"])?)),
            ["sampled"] => self.values(field, given, &table["sampled"], time_ps).map(Draw::Sampled),
            ["trace"] => self.values(field, given, &table["trace"], time_ps).map(Draw::Trace),
            ["uniform"] => match *self.values(field, given, &table["uniform"], time_ps)? {
                [from, to] if from <= to => Ok(Draw::Uniform(from, to)),
                _ => Err(self.error(field, given, "`uniform` needs two times, the shorter first")),
            },
            ["erlang", "mean"] => {
                let phases = table["erlang"].as_integer().and_then(|n| u32::try_from(n).ok());
                let phases = phases.filter(|phases| (1..=1000).contains(phases));
                let phases = phases.ok_or_else(|| {
                    self.error(field, given, "`erlang` is a number from 1 to 1000")
                })?;
                Ok(Draw::Erlang(phases, time(&table["mean"])?))
            }
            _ => {
                let known = "{ exponential = \"1us\" }, { uniform = [\"1us\", \"2us\"] }, { erlang = 4, mean = \"1us\" }, { sampled = [...] } or { trace = [...] }";
                Err(self.error(field, given, format!("is not {known}")))
            }
        }
    }

    fn values(
        &self,
        field: &str,
        given: &Spanned<Value>,
        list: &Value,
        parse: fn(&str) -> Read<u64>,
    ) -> Read<std::sync::Arc<[u64]>> {
        let list = list.as_array().filter(|list| !list.is_empty());
        let list = list.ok_or_else(|| self.error(field, given, "a list with values is wanted"))?;
        let read = |value: &Value| match value.as_str().map(parse) {
            Some(read) => read.map_err(|problem| self.error(field, given, problem)),
            None => Err(self.error(field, given, "each value is a text with its unit")),
        };
        list.iter().map(read).collect()
    }
}
