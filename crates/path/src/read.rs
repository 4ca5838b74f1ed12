//! A path's file as a [`Path`]: every size, name and unit is checked before anything is opened.
//! The format is described in `docs/book/src/verbs/path.md`.

use std::ops::RangeInclusive;
use std::sync::Arc;

use daqmeter_digitizer::daq;
use daqmeter_harness::{Fault, Problem, Shipped, TomlText, digest};
use daqmeter_readout::{Chosen, Scenario};
use daqmeter_record::path::{Brings, Served};
use daqmeter_record::written::ByteSize;
use daqmeter_sys::memory::Pages;
use serde::Deserialize;
use toml::{Table, Value};

use crate::definition::flow::{Flow, Place, fields, unless, wrong};
use crate::definition::kind::{ElementType, Facts, SinkElement, StageElement};
use crate::definition::layout::Layout;
use crate::definition::setting::Setting;
use crate::definition::{Element, MAX_BUFFERS, Path, parse_rate};
use crate::elements::card::Card;
use crate::elements::file::kept_block_bytes;
use crate::elements::receiver::CardReceiver;
use crate::elements::to_host::ToHostStage;
use crate::elements::{SINKS, SOURCES, STAGES, Tcp};
use crate::readout::request::Receivers;

/// Paths that ship: one file in `paths/`, one line here.
pub const SHIPPED_PATHS: Shipped = Shipped {
    kind: "path",
    files: &[
        ("digitizer-crate", include_str!("../paths/digitizer-crate.toml")),
        ("copy-to-user", include_str!("../paths/copy-to-user.toml")),
        ("felix-card", include_str!("../paths/felix-card.toml")),
        ("felix-readout", include_str!("../paths/felix-readout.toml")),
        ("file-replay", include_str!("../paths/file-replay.toml")),
        ("pattern", include_str!("../paths/pattern.toml")),
        ("register-control", include_str!("../paths/register-control.toml")),
    ],
};

/// A page is the shortest block that makes sense; the longest keeps all buffers below a few GiB.
const BLOCK_BYTES: RangeInclusive<usize> = 64..=256 << 20;
/// Default number of blocks: enough that neither thread waits for the other's wake-up.
const USUAL_BUFFERS: usize = 8;
const MAX_STAGES: usize = 32;
const OF_SINK: &str = "is a field of the sink";
const OWN_RING: &str =
    "a card that is read out has its scenario's ring and BUSY instead: leave the field out";
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PathFile {
    title: String,
    #[serde(default)]
    about: String,
    /// Default: that of the kept run that is the source.
    block: Option<ByteSize>,
    buffers: Option<usize>,
    /// Which thread does what: see `definition/layout.rs`.
    layout: Option<Layout>,
    /// Pages of the blocks: `base`, `transparent` or `huge`.
    pages: Option<String>,
    /// Blocks or bytes due per second; without it the source goes as fast as it can.
    rate: Option<String>,
    /// True if the source waits for room; false if it loses due blocks without room.
    lossless: Option<bool>,
    serves: Option<Serves>,
    source: Table,
    #[serde(default)]
    stage: Vec<Table>,
    sink: Table,
}

/// Unit of the served load: a host's capacity follows from the rate of one.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Serves {
    /// Name of the unit: `boards at 14 Hz`.
    what: String,
    /// Rate of one: bytes (`84MB/s`) or events (`100kHz`).
    each: String,
}

impl PartialEq for Path {
    fn eq(&self, other: &Path) -> bool {
        (&self.name, &self.digest, &self.with) == (&other.name, &other.digest, &other.with)
    }
}

impl Path {
    /// Loads a path by the name of a shipped one, or from a file. The error names file, table and
    /// key.
    pub fn load(name_or_path: &str) -> Result<Path, Fault> {
        Path::load_with(name_or_path, &[])
    }

    /// Loads it with other values for some fields.
    pub fn load_with(name_or_path: &str, with: &[Setting]) -> Result<Path, Fault> {
        Path::of(&SHIPPED_PATHS.get(name_or_path)?, with)
    }

    /// Parses the text of a path; `name` is for messages.
    pub fn parse(text: &str, name: &str) -> Result<Path, Fault> {
        Path::of(&TomlText::new(name, text), &[])
    }

    pub(crate) fn of(text: &TomlText, with: &[Setting]) -> Result<Path, Fault> {
        let mut table: Table = text.parse()?;
        for setting in with {
            let set = setting.apply(&mut table);
            set.map_err(|problem| format!("with `{setting}`: {problem}"))?;
        }
        path(table, text, with).map_err(|fault| fault.context(&text.name))
    }

    /// Makes the path of the engine `readout`, whose request has a card's scenario and receivers.
    pub(crate) fn of_card(
        chosen: &Chosen,
        scenario: &Scenario,
        receivers: &Receivers,
    ) -> Result<Path, Fault> {
        let (mut flow, free) = (Flow::of_card(scenario.clone()), Place::default());
        let mut elements = Vec::new();
        let mut place = |name: &str, facts, cpus: &[u32], flow: &Flow| {
            elements.push(placed(name.to_owned(), facts, cpus.to_vec(), flow)?);
            Ok::<(), Fault>(())
        };
        let source = Card { chosen: chosen.clone() };
        place("card", source.facts(), &[], &flow)?;
        let mut to_host = ToHostStage {};
        place("to-host", to_host.check(&free, &mut flow)?, &[], &flow)?;
        let mut publisher = Tcp { congestion: None };
        place("tcp", publisher.check(&free, &mut flow)?, &[], &flow)?;
        let mut sink = CardReceiver { threads: receivers.receivers };
        place("receiver", sink.check(&free, &mut flow)?, receivers.cpus(), &flow)?;
        let layout = receivers.layout.clone().unwrap_or_default();
        Ok(Path {
            name: "readout".to_owned(),
            title: "a card that is read out".to_owned(),
            about: String::new(),
            block_bytes: scenario.card.block.0,
            buffers: USUAL_BUFFERS,
            rate_hz: None,
            lossless: true,
            served: None,
            with: Vec::new(),
            pages: Pages::Transparent,
            layout,
            is_ordered: false,
            digest: String::new(),
            text: String::new(),
            source: Arc::new(source),
            stages: vec![Arc::new(to_host), Arc::new(publisher)],
            sink: Arc::new(sink),
            elements,
            scenario: flow.live,
        })
    }
}

/// Reads the table of an element: its kind's name, the element with its properties, its place.
fn element<T: ?Sized>(
    types: &'static [ElementType<T>],
    mut table: Table,
    flow: &mut Flow,
) -> Result<(String, Arc<T>, Facts, Place), Fault> {
    let Some(kind) = table.remove("kind") else {
        return Err(Fault::new("needs a `kind`"));
    };
    let Value::String(name) = kind else {
        return wrong("kind", "a name is wanted");
    };
    let of_place = ["cpus", "ordered"].into_iter();
    let place: Table =
        of_place.filter_map(|field| Some((field.to_owned(), table.remove(field)?))).collect();
    let place = fields(place.into())?;
    let (kind, facts) = (ElementType::find(types, &name)?.read)(table, &place, flow)?;
    Ok((name, kind, facts, place))
}

fn path(table: Table, text: &TomlText, with: &[Setting]) -> Result<Path, Fault> {
    let file: PathFile = fields(table.into())?;
    let block_bytes = file.block.map(|bytes| bytes.0).or_else(|| kept_block_bytes(&file.source));
    let block_bytes = block_bytes.ok_or_else(|| Fault::new("missing field `block`"))?;
    Problem::unless_within("block", block_bytes, BLOCK_BYTES)?;
    let problem = format_args!("is {block_bytes}; whole cache lines of 64 bytes are wanted");
    unless(block_bytes.is_multiple_of(64), "block", problem)?;
    let buffers = file.buffers.unwrap_or(USUAL_BUFFERS);
    Problem::unless_within("buffers", buffers, 1..=MAX_BUFFERS)?;
    Problem::unless_within("stage", file.stage.len(), 0..=MAX_STAGES)?;
    let mut flow = Flow::of(block_bytes);
    let source = inner(SOURCES, file.source, &mut flow);
    let (source, first) = source.map_err(|fault| fault.context("source"))?;
    flow.streams.clone_from(&first.facts.boards);
    if flow.streams.is_empty() {
        flow.streams.push(first.name.clone());
    }
    for (key, is_given) in
        [("buffers", file.buffers.is_some()), ("lossless", file.lossless.is_some())]
    {
        unless(!is_given || flow.live.is_none(), key, OWN_RING)?;
    }
    let (mut stages, mut elements) = (Vec::new(), vec![first]);
    for (number, table) in (1..).zip(file.stage) {
        let stage = inner(STAGES, table, &mut flow);
        let (stage, place) = stage.map_err(|fault| fault.context(format!("stage {number}")))?;
        stages.push(stage);
        elements.push(place);
    }
    let sink = sink(file.sink, &mut flow);
    let (sink, place, is_ordered) = sink.map_err(|fault| fault.context("sink"))?;
    elements.push(place);
    let mut path = Path {
        name: text.name.clone(),
        title: file.title,
        about: file.about,
        block_bytes,
        buffers,
        rate_hz: None,
        lossless: file.lossless.unwrap_or(true),
        served: file.serves.map(served).transpose()?,
        with: with.to_vec(),
        pages: match file.pages.as_deref() {
            Some("base") => Pages::Base,
            None | Some("transparent") => Pages::Transparent,
            Some("huge") => Pages::HugeTlb,
            Some(other) => {
                let problem = format!("is `{other}`; base, transparent or huge is wanted");
                return wrong("pages", problem);
            }
        },
        layout: file.layout.unwrap_or_default(),
        is_ordered,
        digest: digest(&text.text),
        text: text.text.clone(),
        source,
        stages,
        sink,
        elements,
        scenario: flow.live,
    };
    let named: String = path.elements.iter().map(|one| one.facts.digest.as_str()).collect();
    if !named.is_empty() {
        path.digest = digest(&(path.digest + &named));
    }
    path.groups(&path.layout).or_else(|problem| wrong("layout", problem))?;
    if let Some(rate) = file.rate {
        let hz = path.parse_rate(&rate).or_else(|problem| wrong("rate", problem))?;
        daq::check_trigger_rate(hz).or_else(|fault| wrong("rate", fault.0))?;
        path.rate_hz = Some(hz);
    }
    Ok(path)
}

fn served(serves: Serves) -> Result<Served, Fault> {
    let rate = parse_rate(&serves.each, 1.0).or_else(|problem| wrong("serves: each", problem))?;
    unless(rate > 0.0, "serves: each", "is nothing; a rate above zero is wanted")?;
    let each = match serves.each.ends_with("/s") {
        true => Brings::BytesPerS(rate),
        false => Brings::EventsPerS(rate),
    };
    Ok(Served { name: serves.what, each })
}

/// Makes the place of an element that gives the blocks of the flow.
fn placed(name: String, facts: Facts, cpus: Vec<u32>, flow: &Flow) -> Result<Element, Fault> {
    Problem::unless_cpus_exist("cpus", &cpus)?;
    Ok(Element { name, cpus, out_bytes: flow.bytes, unit: flow.unit, facts })
}

/// Reads a source or a stage.
fn inner<T: ?Sized>(
    types: &'static [ElementType<T>],
    table: Table,
    flow: &mut Flow,
) -> Result<(Arc<T>, Element), Fault> {
    let (name, kind, facts, place) = element(types, table, flow)?;
    unless(!place.ordered, "ordered", OF_SINK)?;
    let name = flow.name(&name);
    Ok((kind, placed(name, facts, place.cpus, flow)?))
}

/// Reads the sink, and whether it is ordered.
fn sink(table: Table, flow: &mut Flow) -> Result<(Arc<dyn SinkElement>, Element, bool), Fault> {
    let (name, kind, facts, place) = element(SINKS, table, flow)?;
    // Source and sink may have one name.
    let is_taken = flow.names.contains_key(&name);
    let own = if is_taken { format!("{name} sink") } else { name };
    Ok((kind, placed(own, facts, place.cpus, flow)?, place.ordered))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(with: &str) -> Result<Path, String> {
        let all = with.split(';').filter(|one| !one.is_empty()).map(str::parse);
        let all: Vec<Setting> = all.collect::<Result<_, _>>()?;
        Path::load_with("felix-card", &all).map_err(|error| error.to_string())
    }

    #[test]
    fn a_field_gets_another_value_and_all_that_follows_from_it() {
        let path = with("block=128KiB;buffers=4;stage.1.scenario=gbt;pages=base").unwrap();
        assert_eq!((path.block_bytes, path.buffers), (128 << 10, 4));
        assert_eq!(path.pages, Pages::Base);
        assert_eq!(path.elements[2].out_bytes, 128 << 10);
        let paced = with("rate=2kHz;lossless=false").unwrap();
        assert_eq!((paced.rate_hz, paced.lossless), (Some(2000.0), false));
        // File and text are equal: only the changes differ.
        let as_it_is = with("").unwrap();
        assert_eq!((&path.digest, &path.text), (&as_it_is.digest, &as_it_is.text));
        assert!(as_it_is.with.is_empty());
    }

    #[test]
    fn what_does_not_fit_names_the_setting_or_the_table_and_key() {
        for (setting, wanted) in [
            ("block", "FIELD=VALUE is wanted, such as block=128KiB"),
            ("speed=3", "felix-card: speed: unknown field `speed`"),
            ("front.speed=3", "with `front.speed=3`: there is no front"),
            ("stage.9.by=memcpy", "there is no stage.9"),
            ("stage.0.by=memcpy", "there is no stage.0"),
            ("buffers=many", "felix-card: buffers: invalid type"),
            ("lossless=perhaps", "felix-card: lossless: invalid type"),
            ("rate=fast", "felix-card: rate: "),
            ("buffers=0", "felix-card: buffers: is 0"),
            ("pages=large", "felix-card: pages: is `large`"),
            ("block=100", "felix-card: block: is 100; whole cache lines"),
            ("stage.1.threads=2", "stage 1: threads: unknown field `threads`"),
            ("stage.2.congestion=none9", "stage 2: congestion: `none9` is not available here"),
            ("sink.path=x", "sink: path: unknown field `path`"),
        ] {
            let error = with(setting).err().unwrap_or_else(|| panic!("{setting}"));
            assert!(error.contains(wanted), "{setting}: {error}");
        }
    }
}
