//! A farm as a TOML file. The format is described in `docs/book/src/verbs/twin.md`; units are required, and what is wrong is named with
//! file, line and field.

use std::collections::BTreeMap;
use std::path::Path;

use daqmeter_harness::{TomlText, did_you_mean, text_input};
use serde::Deserialize;
use toml::{Spanned, Value};

use super::topology::{Basis, Farm, Flow, Kind, Link, Pattern, Timing, Work};
use crate::draw::Draw;
use crate::model::Full;
use crate::quantity::{bytes, gap_ps, item_bytes, link_per_byte_ps, per_byte_ps, time_ps};
use crate::scenario::{Part, Read, Reader, ScenarioError};

/// Farms that ship: one file in `farms/`, one line here.
pub const SHIPPED_FARMS: &[(&str, &str)] = &[
    ("event-builder", include_str!("../../farms/event-builder.toml")),
    ("felix-phase-2", include_str!("../../farms/felix-phase-2.toml")),
];

type Because = BTreeMap<String, Spanned<String>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    title: String,
    #[serde(default)]
    about: String,
    time: Spanned<String>,
    warm_up: Option<Spanned<String>>,
    node: Vec<Spanned<NodeFields>>,
    switch: Vec<Spanned<SwitchFields>>,
    link: Vec<Spanned<LinkFields>>,
    flow: Vec<Spanned<FlowFields>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeFields {
    name: String,
    count: u32,
    service: Option<Spanned<Value>>,
    speed: Option<Spanned<String>>,
    servers: Option<Spanned<u32>>,
    buffer: Option<Spanned<String>>,
    full: Option<Spanned<Word>>,
    #[serde(default)]
    known: Because,
    #[serde(default)]
    assumed: Because,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SwitchFields {
    name: String,
    count: u32,
    ports: u32,
    buffer: Spanned<String>,
    full: Option<Word>,
    #[serde(default)]
    known: Because,
    #[serde(default)]
    assumed: Because,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkFields {
    from: Spanned<String>,
    to: Spanned<String>,
    rate: Spanned<String>,
    links: Option<u32>,
    latency: Option<Spanned<String>>,
    #[serde(default)]
    known: Because,
    #[serde(default)]
    assumed: Because,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FlowFields {
    name: String,
    from: Spanned<String>,
    to: Spanned<String>,
    bytes: Spanned<String>,
    rate: Spanned<String>,
    burst: Option<u32>,
    #[serde(default)]
    arrivals: TimingWord,
    #[serde(default)]
    pattern: PatternWord,
    #[serde(default)]
    known: Because,
    #[serde(default)]
    assumed: Because,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Word {
    Wait,
    Lose,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum TimingWord {
    #[default]
    Trigger,
    Periodic,
    Poisson,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum PatternWord {
    #[default]
    Fixed,
    Turn,
    Event,
    Random,
}

/// What a node or switch without a buffer has.
const WITHOUT_LIMIT: u64 = u64::MAX / 2;

impl Farm {
    /// Loads a farm by the name of a shipped one, or from a file.
    ///
    /// # Errors
    /// When it cannot be read or used; one line with file, line and field.
    pub fn load(name_or_path: &str) -> Result<Farm, ScenarioError> {
        if let Some((name, text)) = SHIPPED_FARMS.iter().find(|(name, _)| *name == name_or_path) {
            return Farm::parse(text, name);
        }
        let text = text_input(Path::new(name_or_path)).map_err(|error| {
            let names: Vec<&str> = SHIPPED_FARMS.iter().map(|(name, _)| *name).collect();
            let hint = did_you_mean(name_or_path, &names);
            let names = names.join(", ");
            ScenarioError(format!(
                "farm {name_or_path}: {error}; farms that ship with daqmeter: {names}{hint}"
            ))
        })?;
        Farm::parse(&text, name_or_path)
    }

    /// Reads the text of a farm that is called so in messages.
    ///
    /// # Errors
    /// As [`Farm::load`].
    pub fn parse(text: &str, name: &str) -> Result<Farm, ScenarioError> {
        let text = TomlText { name: name.to_owned(), text: text.to_owned() };
        farm(&text).map_err(ScenarioError)
    }
}

fn farm(text: &TomlText) -> Read<Farm> {
    let file: File = text.parse()?;
    names_differ(text, &file)?;
    let nodes = file.node.iter().map(|node| node.as_ref().name.as_str());
    let switches = file.switch.iter().map(|at| at.as_ref().name.as_str());
    let reader = Reader { text, stations: nodes.chain(switches).collect(), sources: Vec::new() };
    let part = part(&reader, String::new());
    let time_ps = part.quantity("time", &file.time, time_ps)?;
    let warm_up_ps = part.optional("warm_up", file.warm_up.as_ref(), crate::quantity::time_ps)?;
    let nodes = file.node.iter().map(|at| node(&reader, at.as_ref()));
    let switches = file.switch.iter().map(|at| switch(&reader, at.as_ref()));
    let links = file.link.iter().map(|at| link(&reader, at.as_ref()));
    let flows = file.flow.iter().map(|at| flow(&reader, at.as_ref()));
    let farm = Farm {
        title: file.title.clone(),
        about: file.about.clone(),
        time_ps,
        warm_up_ps: warm_up_ps.unwrap_or(time_ps / 10),
        kinds: nodes.chain(switches).collect::<Read<_>>()?,
        links: links.collect::<Read<_>>()?,
        flows: flows.collect::<Read<_>>()?,
        basis: bases(text, &file)?,
    };
    check(text, &file, &farm)?;
    Ok(farm)
}

fn part<'a>(reader: &'a Reader<'a>, what: String) -> Part<'a> {
    Part { reader, what }
}

fn names_differ(text: &TomlText, file: &File) -> Read<()> {
    let nodes = file.node.iter().map(|at| (&at.as_ref().name, at.span()));
    let switches = file.switch.iter().map(|at| (&at.as_ref().name, at.span()));
    let mut seen = BTreeMap::new();
    for (name, span) in nodes.chain(switches) {
        let line = text.line(span.clone());
        if let Some(before) = seen.insert(name, line) {
            let problem = format!("`{name}` is the name of another one, in line {before}");
            return Err(text.error(span, "name", problem));
        }
    }
    Ok(())
}

/// What only the whole farm shows, with the line of the part that it names.
fn check(text: &TomlText, file: &File, farm: &Farm) -> Read<()> {
    let Err(error) = farm.check() else {
        return is_used(text, file, farm);
    };
    let node = file.node.iter().find(|at| at.as_ref().name == error.what);
    let switch = file.switch.iter().find(|at| at.as_ref().name == error.what);
    let flow = file.flow.iter().find(|at| at.as_ref().name == error.what);
    let span = node.map(Spanned::span).or(switch.map(Spanned::span)).or(flow.map(Spanned::span));
    let span = span.unwrap_or_else(|| file.time.span());
    Err(text.error(span, &error.what, error.problem))
}

/// Nodes that neither send nor receive are a flow that was forgotten.
fn is_used(text: &TomlText, file: &File, farm: &Farm) -> Read<()> {
    let is_idle = |at: &usize| !farm.flows.iter().any(|flow| flow.from == *at || flow.to == *at);
    let idle = (0..file.node.len()).find(is_idle);
    idle.map_or(Ok(()), |at| {
        let problem = "neither sends nor receives: no flow names it";
        Err(text.error(file.node[at].span(), &farm.kinds[at].name, problem))
    })
}

fn node(reader: &Reader<'_>, fields: &NodeFields) -> Read<Kind> {
    let part = part(reader, format!("node `{}`: ", fields.name));
    let speed = part.optional("speed", fields.speed.as_ref(), per_byte_ps)?;
    let service = fields.service.as_ref();
    let service = service.map(|given| part.draw("service", given)).transpose()?;
    if let Some(servers) = &fields.servers
        && speed.is_none()
        && service.is_none()
    {
        let problem = "a message takes no time here: give `service` or `speed` as well";
        return Err(part.error("servers", servers, problem));
    }
    if let Some(full) = &fields.full
        && fields.buffer.is_none()
    {
        let problem = "a node without `buffer` is never full: give one, or leave this out";
        return Err(part.error("full", full, problem));
    }
    let has_work = speed.is_some() || service.is_some();
    let buffer = part.optional("buffer", fields.buffer.as_ref(), bytes)?;
    Ok(Kind {
        name: fields.name.clone(),
        count: fields.count,
        ports: None,
        work: has_work.then(|| Work {
            service: service.unwrap_or(Draw::Constant(0)),
            per_byte_ps: speed.unwrap_or(0.0),
            servers: fields.servers.as_ref().map_or(1, |servers| *servers.as_ref()),
        }),
        buffer_bytes: buffer.unwrap_or(WITHOUT_LIMIT),
        full: full(fields.full.as_ref().map(|full| *full.as_ref())),
    })
}

fn switch(reader: &Reader<'_>, fields: &SwitchFields) -> Read<Kind> {
    let part = part(reader, format!("switch `{}`: ", fields.name));
    Ok(Kind {
        name: fields.name.clone(),
        count: fields.count,
        ports: Some(fields.ports),
        work: None,
        buffer_bytes: part.quantity("buffer", &fields.buffer, bytes)?,
        full: full(fields.full),
    })
}

fn full(word: Option<Word>) -> Full {
    match word {
        Some(Word::Lose) => Full::Lose,
        Some(Word::Wait) | None => Full::Wait,
    }
}

fn link(reader: &Reader<'_>, fields: &LinkFields) -> Read<Link> {
    let part = part(reader, format!("link from `{}`: ", fields.from.as_ref()));
    Ok(Link {
        from: kind(&part, "from", &fields.from)?,
        to: kind(&part, "to", &fields.to)?,
        links: fields.links.unwrap_or(1),
        per_byte_ps: part.quantity("rate", &fields.rate, link_per_byte_ps)?,
        latency_ps: part.optional("latency", fields.latency.as_ref(), time_ps)?.unwrap_or(0),
    })
}

fn kind(part: &Part<'_>, field: &str, given: &Spanned<String>) -> Read<usize> {
    let all = &part.reader.stations;
    part.find(field, given, given.as_ref(), all, "node or switch")
}

fn flow(reader: &Reader<'_>, fields: &FlowFields) -> Read<Flow> {
    let part = part(reader, format!("flow `{}`: ", fields.name));
    let size = part.quantity("bytes", &fields.bytes, item_bytes)?;
    Ok(Flow {
        name: fields.name.clone(),
        from: kind(&part, "from", &fields.from)?,
        to: kind(&part, "to", &fields.to)?,
        bytes: u32::try_from(size).expect("an item has at most 4 GiB"),
        gap_ps: part.quantity("rate", &fields.rate, gap_ps)?,
        timing: match fields.arrivals {
            TimingWord::Trigger => Timing::Trigger,
            TimingWord::Periodic => Timing::Periodic,
            TimingWord::Poisson => Timing::Poisson,
        },
        burst: fields.burst.unwrap_or(1),
        pattern: match fields.pattern {
            PatternWord::Fixed => Pattern::Fixed,
            PatternWord::Turn => Pattern::Turn,
            PatternWord::Event => Pattern::Event,
            PatternWord::Random => Pattern::Random,
        },
    })
}

/// What all parts say of where their numbers come from. A remark on a field that is not given is one on another number.
fn bases(text: &TomlText, file: &File) -> Read<Vec<Basis>> {
    let whole: toml::Table = text.parse()?;
    let mut all = Vec::new();
    let mut add = |section: &str, at: usize, name: &str, known: &Because, assumed: &Because| {
        let given = whole[section][at].as_table().expect("it was read as one");
        let both = known.iter().map(|one| (true, one));
        for (is_known, (field, why)) in both.chain(assumed.iter().map(|one| (false, one))) {
            let what = format!("{section} {name}: {field}");
            if !given.contains_key(field) {
                let problem = format!("`{field}` is not given here, so nothing is known of it");
                return Err(text.error(why.span(), &what, problem));
            }
            let why = why.as_ref().clone();
            all.push(Basis { what, is_known, why });
        }
        Ok(())
    };
    for (at, part) in file.node.iter().map(Spanned::as_ref).enumerate() {
        add("node", at, &part.name, &part.known, &part.assumed)?;
    }
    for (at, part) in file.switch.iter().map(Spanned::as_ref).enumerate() {
        add("switch", at, &part.name, &part.known, &part.assumed)?;
    }
    for (at, part) in file.link.iter().map(Spanned::as_ref).enumerate() {
        let name = format!("{} -> {}", part.from.as_ref(), part.to.as_ref());
        add("link", at, &name, &part.known, &part.assumed)?;
    }
    for (at, part) in file.flow.iter().map(Spanned::as_ref).enumerate() {
        add("flow", at, &part.name, &part.known, &part.assumed)?;
    }
    Ok(all)
}
