//! A path's file as a [`Path`]: every size, name and unit is checked before anything is opened.
//! The format is described in `docs/book/src/verbs/path.md`.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;

use daqmeter_digitizer::{daq, devices};
use daqmeter_etherbone::{TIME_BYTES, Times};
use daqmeter_harness::{Fault, Problem, Request, Resolved, Shipped, TomlText, digest, nearest_of};
use daqmeter_hostio::{BlockRequest, SECTOR_BYTES};
use daqmeter_readout::card::channel_ids;
use daqmeter_readout::{Chosen, Scenario, transport};
use daqmeter_record::path::{Brings, Served};
use daqmeter_record::written::ByteSize;
use daqmeter_sys::memory::Pages;
use daqmeter_sys::net::check_congestion;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

use crate::definition::{
    BYTES, Element, FELIX, MAX_BUFFERS, MAX_THREADS, NUMBERS, PAGES, Path, RING, SAMPLES, SENT,
    TIMES, Unit, parse_rate,
};
use crate::kinds::{SinkKind, SourceKind, StageKind};
use crate::layout::Layout;
use crate::readout::request::Receivers;
use crate::setting::Setting;
use crate::udp::SOCKET_BUFFER_BYTES;

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
const SPAN_BYTES: RangeInclusive<usize> = 64..=16 << 30;
/// Default number of blocks: enough that neither thread waits for the other's wake-up.
const USUAL_BUFFERS: usize = 8;
const MAX_STAGES: usize = 32;
/// Time for each block of a stage that does not exist yet, in nanoseconds.
const STAND_IN_NS: RangeInclusive<u64> = 1..=1_000_000_000;
/// Bytes of a datagram, head included: some payload at least, and at most what IPv4 takes (RFC 768,
/// RFC 791).
const DATAGRAM_BYTES: RangeInclusive<usize> = 64..=65_507;
const OF_CARD: &str = "needs the source `card`, whose ring is read out live";
const BEHIND_CARD: &str =
    "a card is read out by `to-host`, then `tcp` or `zenoh`, then the sink `receiver`";
const OWN_RING: &str =
    "a card that is read out has its scenario's ring and BUSY instead: leave the field out";
const IN_TO_HOST: &str = "this part works in the threads of `to-host`: say it there";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PathFile {
    title: String,
    #[serde(default)]
    about: String,
    block: ByteSize,
    buffers: Option<usize>,
    /// Which thread does what: see `layout.rs`.
    layout: Option<String>,
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

/// Fields of every element.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Place {
    cpus: Vec<u32>,
    /// True if a sink takes the blocks in the order of the source.
    ordered: bool,
}

/// Refuses the value of a table's key, unless it is sound.
fn unless(is_sound: bool, key: &str, problem: impl Display) -> Result<(), Fault> {
    if is_sound { Ok(()) } else { wrong(key, problem) }
}

/// Refuses the value of a table's key.
fn wrong<T>(key: &str, problem: impl Display) -> Result<T, Fault> {
    Err(Fault::new(format!("{key}: {problem}")))
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

    fn of(text: &TomlText, with: &[Setting]) -> Result<Path, Fault> {
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
        let place = Place::default;
        let mut flow = Flow::of_card(scenario.clone());
        let kind = SourceKind::Card { chosen: Box::new(chosen.clone()) };
        let source = flow.next("card".to_owned(), kind, place())?;
        let transport = scenario.publish.transport.as_str();
        let published = match transport {
            "zenoh" => StageKind::Zenoh {},
            _ => StageKind::Tcp { congestion: None },
        };
        let stages = [("to-host", StageKind::ToHost {}), (transport, published)]
            .map(|(name, kind)| stage((name.to_owned(), kind, place()), &mut flow));
        let kind = SinkKind::Receiver { threads: receivers.receivers };
        let place = Place { cpus: receivers.cpus().to_vec(), ordered: false };
        let (sink, _) = sink(("receiver".to_owned(), kind, place), &mut flow)?;
        let layout = receivers.layout.as_deref().map_or(Ok(Layout::default()), Layout::parse)?;
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
            source,
            stages: stages.into_iter().collect::<Result<_, Fault>>()?,
            sink,
            scenario: flow.live,
        })
    }
}

/// Reads a value; the error names its key and the nearest name for an unknown one. A key that is
/// the name of the element's kind is left out.
fn fields<T: DeserializeOwned>(value: Value, kind: &str) -> Result<T, Fault> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let message = error.inner().message().replace('\n', " ");
        let problem = format!("{message}{}", nearest_of(&message));
        let key = error.path().iter().next_back().map(ToString::to_string);
        Fault::new(match key.filter(|key| !["?", ".", "", kind].contains(&key.as_str())) {
            Some(key) => format!("{key}: {problem}"),
            None if message.starts_with("unknown variant") => format!("kind: {problem}"),
            None => problem,
        })
    })
}

/// Name of an element's kind, the kind, and its place.
type Part<K> = (String, K, Place);

/// Reads the table of an element: its kind, with the name of that, and its place.
fn element<K: DeserializeOwned>(mut table: Table) -> Result<Part<K>, Fault> {
    let Some(kind) = table.remove("kind") else {
        return Err(Fault::new("needs a `kind`"));
    };
    let Value::String(name) = kind else {
        return wrong("kind", "a name is wanted");
    };
    let of_place = ["cpus", "ordered"].into_iter();
    let place: Table =
        of_place.filter_map(|field| Some((field.to_owned(), table.remove(field)?))).collect();
    let place = fields(place.into(), &name)?;
    // The kind is the name of a variant, and the rest its content: so errors have the key, which
    // serde's internal tags lose.
    let value = Table::from_iter([(name.clone(), table.into())]);
    let kind = fields(value.into(), &name)?;
    Ok((name, kind, place))
}

fn path(table: Table, text: &TomlText, with: &[Setting]) -> Result<Path, Fault> {
    let file: PathFile = fields(table.into(), "")?;
    Problem::unless_within("block", file.block.0, BLOCK_BYTES)?;
    let block_bytes = file.block.0;
    let problem = format_args!("is {block_bytes}; whole cache lines of 64 bytes are wanted");
    unless(block_bytes.is_multiple_of(64), "block", problem)?;
    let buffers = file.buffers.unwrap_or(USUAL_BUFFERS);
    Problem::unless_within("buffers", buffers, 1..=MAX_BUFFERS)?;
    Problem::unless_within("stage", file.stage.len(), 0..=MAX_STAGES)?;
    let source = element(file.source).and_then(|part| source(part, block_bytes));
    let (source, mut flow) = source.map_err(|fault| fault.context("source"))?;
    for (key, is_given) in
        [("buffers", file.buffers.is_some()), ("lossless", file.lossless.is_some())]
    {
        unless(!is_given || flow.live.is_none(), key, OWN_RING)?;
    }
    let mut stages = Vec::new();
    for (number, table) in (1..).zip(file.stage) {
        let stage = element(table).and_then(|part| stage(part, &mut flow));
        stages.push(stage.map_err(|fault| fault.context(format!("stage {number}")))?);
    }
    let sink = element(file.sink).and_then(|part| sink(part, &mut flow));
    let (sink, is_ordered) = sink.map_err(|fault| fault.context("sink"))?;
    let layout = file.layout.as_deref().map(Layout::parse).transpose();
    let layout = layout.or_else(|problem| wrong("layout", problem))?.unwrap_or_default();
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
        layout,
        is_ordered,
        digest: digest(&text.text),
        text: text.text.clone(),
        source,
        stages,
        sink,
        scenario: flow.live,
    };
    let named = path.stages.iter().map(|stage| stage.kind.digest());
    let named: String = [path.source.kind.digest()].into_iter().chain(named).collect();
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

/// Blocks on their way from element to element.
struct Flow {
    bytes: usize,
    unit: Unit,
    scenario: Option<Resolved<Scenario>>,
    live: Option<Box<Scenario>>,
    names: BTreeMap<String, usize>,
}

impl Flow {
    fn of(unit: Unit, bytes: usize) -> Flow {
        Flow { bytes, unit, scenario: None, live: None, names: BTreeMap::new() }
    }

    fn of_card(scenario: Scenario) -> Flow {
        let bytes = scenario.card.ring.0;
        Flow { live: Some(Box::new(scenario)), ..Flow::of(RING, bytes) }
    }

    fn name(&mut self, kind: &str) -> String {
        let seen = self.names.entry(kind.to_owned()).or_insert(0);
        *seen += 1;
        match *seen {
            1 => kind.to_owned(),
            n => format!("{kind} {n}"),
        }
    }

    /// Refuses blocks of another unit. Bytes may be anything.
    fn takes(&self, wanted: Unit) -> Result<(), Fault> {
        let problem = format_args!("takes {wanted}, but {} come", self.unit);
        unless(self.unit == wanted || self.unit == BYTES, "kind", problem)
    }

    /// Makes the element that is next in line.
    fn next<K>(&mut self, name: String, kind: K, place: Place) -> Result<Element<K>, Fault> {
        Problem::unless_cpus_exist("cpus", &place.cpus)?;
        unless(!place.ordered, "ordered", "is a field of the sink")?;
        let (out_bytes, unit) = (self.bytes, self.unit);
        Ok(Element { kind, name, cpus: place.cpus, out_bytes, unit })
    }
}

fn source(
    (name, mut kind, place): Part<SourceKind>,
    block_bytes: usize,
) -> Result<(Element<SourceKind>, Flow), Fault> {
    let mut flow = Flow::of(BYTES, block_bytes);
    match &mut kind {
        SourceKind::Memory { span } => whole_blocks(span, block_bytes)?,
        SourceKind::File { path, cached } => {
            let request =
                BlockRequest { path: path.clone(), block_bytes, cached: *cached, span_bytes: None };
            request.check().or_else(|problem| wrong("kind", format!("block {}", problem.text)))?;
        }
        SourceKind::Digitizer { devices, trigger, .. } => {
            *devices = boards(devices)?;
            if let Some(hz) = trigger {
                daq::check_trigger_rate(hz.0).or_else(|fault| wrong("trigger", fault.0))?;
            }
            flow.unit = SAMPLES;
        }
        SourceKind::Etherbone { address, count } => {
            Times::request(address, *count).check()?;
            let bytes = TIME_BYTES * usize::try_from(*count).unwrap_or(usize::MAX);
            let problem = format_args!(
                "cycles of {count} times bring {bytes} bytes; `block` holds whole ones"
            );
            unless(block_bytes.is_multiple_of(bytes), "count", problem)?;
            flow.unit = TIMES;
        }
        SourceKind::Felix { scenario, span } => {
            let card_bytes = scenario.card.block.0;
            let is_whole = card_bytes > 0 && block_bytes.is_multiple_of(card_bytes);
            let problem =
                format_args!("its blocks have {card_bytes} bytes; `block` holds whole ones");
            unless(is_whole, "scenario", problem)?;
            whole_blocks(span, block_bytes)?;
            flow.scenario = Some(scenario.clone());
            flow.unit = FELIX;
        }
        SourceKind::Card { chosen } => {
            let problem = "is the path's own field `rate`: say it there";
            unless(chosen.rate_hz.is_none(), "rate_hz", problem)?;
            let problem = "is the stage behind `to-host`: say it there";
            unless(chosen.transport.is_none(), "transport", problem)?;
            let scenario = chosen.completed().or_else(|error| wrong("scenario", error))?;
            let card_bytes = scenario.card.block.0;
            let problem = format_args!("its blocks have {card_bytes} bytes, and so must `block`");
            unless(block_bytes == card_bytes, "scenario", problem)?;
            without_thread(&place)?;
            flow = Flow::of_card(scenario);
        }
    }
    let own = flow.name(&name);
    let source = flow.next(own, kind, place)?;
    Ok((source, flow))
}

/// Checks a span, and rounds it to whole blocks.
fn whole_blocks(span: &mut ByteSize, block_bytes: usize) -> Result<(), Fault> {
    Problem::unless_within("span", span.0, SPAN_BYTES)?;
    span.0 = span.0.max(block_bytes) / block_bytes * block_bytes;
    Ok(())
}

fn boards(devices: &[String]) -> Result<Vec<String>, Fault> {
    let mut boards = Vec::new();
    for device in devices {
        boards.extend(devices::expand(device).or_else(|problem| wrong("devices", problem))?);
    }
    let are_some = (1..=MAX_THREADS).contains(&boards.len()) && !boards.contains(&String::new());
    let problem = format_args!("1 to {MAX_THREADS} boards are wanted, such as \"emu:l0..3\"");
    unless(are_some, "devices", problem)?;
    match (1..boards.len()).find(|&at| boards[..at].contains(&boards[at])) {
        Some(twice) => wrong("devices", format!("{} is there twice", boards[twice])),
        None => Ok(boards),
    }
}

/// A card and its publisher work in the threads of their reader.
fn without_thread(place: &Place) -> Result<(), Fault> {
    unless(place.cpus.is_empty(), "cpus", IN_TO_HOST)
}

fn stage(
    (name, mut kind, place): Part<StageKind>,
    flow: &mut Flow,
) -> Result<Element<StageKind>, Fault> {
    let own = flow.name(&name);
    if let Some(scenario) = &mut flow.live {
        match (flow.unit, &kind) {
            (RING, StageKind::ToHost {}) => {
                (flow.unit, flow.bytes) = (PAGES, scenario.reader.page.0);
            }
            (PAGES, StageKind::Tcp { congestion: None } | StageKind::Zenoh {}) => {
                transport::check(&name).or_else(|error| wrong("kind", error))?;
                without_thread(&place)?;
                scenario.publish.transport.clone_from(&name);
                (flow.unit, flow.bytes) = (SENT, 0);
            }
            _ => return wrong("kind", BEHIND_CARD),
        }
        return flow.next(own, kind, place);
    }
    match &mut kind {
        StageKind::ToHost {} | StageKind::Zenoh {} => return wrong("kind", OF_CARD),
        StageKind::Convert { function, request } => {
            flow.takes(SAMPLES)?;
            let problem = format_args!("blocks of {} bytes are not whole samples", flow.bytes);
            unless(flow.bytes.is_multiple_of(2), "kind", problem)?;
            request.check(flow.bytes as u64 / 2)?;
            let (conversion, decimation) = request.of(*function).expect("a conversion");
            flow.bytes = decimation.kept(flow.bytes / 2) * conversion.out_bytes();
            flow.unit = NUMBERS;
        }
        StageKind::Decode { scenario, format } => {
            flow.takes(FELIX)?;
            let Some(scenario) = scenario.as_ref().or(flow.scenario.as_ref()) else {
                let problem = "needs the scenario that its blocks are of, such as \"gbt\"";
                return wrong("scenario", problem);
            };
            let Some(found) = scenario.format() else {
                return wrong("scenario", "its card has no format of blocks");
            };
            let (bytes, whole) = (flow.bytes, found.block_bytes);
            let problem = format_args!("blocks of {bytes} bytes do not hold whole ones of {whole}");
            unless(bytes.is_multiple_of(whole), "kind", problem)?;
            *format = Some(found);
        }
        StageKind::Work { time } | StageKind::Wait { time } => {
            let problem = "is out of range; 1 ns to 1 s for each block is wanted";
            unless(STAND_IN_NS.contains(&time.0), "time", problem)?;
        }
        StageKind::Program { command, changes } => {
            let problem = "a program and its arguments are wanted, such as [\"cat\"]";
            unless(command.first().is_some_and(|name| !name.is_empty()), "command", problem)?;
            if *changes {
                flow.unit = BYTES;
            }
        }
        StageKind::Tcp { congestion } => known_congestion(congestion.as_ref())?,
        StageKind::Copy { .. } | StageKind::Checksum {} | StageKind::Unix {} => {}
    }
    flow.next(own, kind, place)
}

/// Refuses a congestion control that this host's kernel does not have.
fn known_congestion(name: Option<&String>) -> Result<(), Fault> {
    name.map_or(Ok(()), |name| check_congestion(name))
        .or_else(|problem| wrong("congestion", problem))
}

/// Reads the sink, and whether it is ordered.
fn sink(
    (name, mut kind, place): Part<SinkKind>,
    flow: &mut Flow,
) -> Result<(Element<SinkKind>, bool), Fault> {
    let is_ordered = place.ordered;
    match (&mut kind, &flow.live) {
        (SinkKind::Receiver { threads }, Some(scenario)) if flow.unit == SENT => {
            let channels = channel_ids(scenario).len();
            Problem::unless_within("threads", threads.unwrap_or(channels), 1..=channels)?;
        }
        (_, Some(_)) => return wrong("kind", BEHIND_CARD),
        (SinkKind::Receiver { .. }, None) => return wrong("kind", OF_CARD),
        (SinkKind::Read {}, None) => {}
        (SinkKind::File { max, direct, .. }, None) => {
            let bytes = flow.bytes;
            let problem = format_args!(
                "blocks of {bytes} bytes come; multiples of {SECTOR_BYTES} are wanted past the page cache"
            );
            unless(!*direct || bytes.is_multiple_of(SECTOR_BYTES), "direct", problem)?;
            Problem::unless_within("max", max.0, SPAN_BYTES)?;
            max.0 = max.0.max(bytes);
        }
        (SinkKind::Tcp { to, congestion }, None) => {
            known_congestion(congestion.as_ref())?;
            is_address(to)?;
        }
        (SinkKind::Udp { to, datagram, socket_buffer }, None) => {
            is_address(to)?;
            Problem::unless_within("datagram", datagram.0, DATAGRAM_BYTES)?;
            Problem::unless_within("socket_buffer", socket_buffer.0, SOCKET_BUFFER_BYTES)?;
        }
    }
    // Source and sink may have one name.
    let is_taken = flow.names.contains_key(&name);
    let own = if is_taken { format!("{name} sink") } else { name };
    let place = Place { ordered: false, ..place };
    Ok((flow.next(own, kind, place)?, is_ordered))
}

fn is_address(to: &str) -> Result<(), Fault> {
    let is_address = to.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0)
    });
    unless(is_address, "to", "a host and a port are wanted, such as \"daq7:5010\"")
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
        assert_eq!(path.stages[1].out_bytes, 128 << 10);
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
