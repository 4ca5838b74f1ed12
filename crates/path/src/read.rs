//! A path's file becomes a [`Path`]: every size, name and unit is checked before anything is opened.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path as FilePath;
use std::time::Duration;

use clap::ValueEnum;
use daqmeter_digitizer::conversion::ConversionRequest;
use daqmeter_digitizer::{daq, devices};
use daqmeter_etherbone::{TIME_BYTES, Times};
use daqmeter_harness::{Problem, Request, TomlText, did_you_mean, text_input};
use daqmeter_hostio::{BlockRequest, SECTOR_BYTES};
use daqmeter_kernels::copy::CopyKernel;
use daqmeter_readout::chain::Chain;
use daqmeter_readout::scenario::check_congestion;
use daqmeter_readout::{Scenario, transport};
use daqmeter_record::path::{Brings, Served};
use daqmeter_record::units::{parse_bytes, parse_duration, parse_rate_hz};
use daqmeter_sys::memory::Pages;
use serde::Deserialize;

use crate::definition::{
    Element, Path, SinkKind, SourceKind, StageKind, Unit, digest, function, parse_rate,
};
use crate::file::{PathFile, Place, Reading, Serves};
use crate::setting::apply;

/// Paths that ship: one file in `paths/`, one line here.
pub const SHIPPED: &[(&str, &str)] = &[
    (
        "digitizer-crate",
        include_str!("../paths/digitizer-crate.toml"),
    ),
    ("copy-to-user", include_str!("../paths/copy-to-user.toml")),
    ("felix-card", include_str!("../paths/felix-card.toml")),
    ("felix-readout", include_str!("../paths/felix-readout.toml")),
    ("file-replay", include_str!("../paths/file-replay.toml")),
    ("pattern", include_str!("../paths/pattern.toml")),
    (
        "register-control",
        include_str!("../paths/register-control.toml"),
    ),
];

/// A path cannot be used; one line that names file, line and field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PathError(String);

/// Bytes of a block: a page is the shortest that makes sense; the longest keeps all buffers below a few GiB.
const BLOCK_BYTES: RangeInclusive<u64> = 64..=256 << 20;
/// Blocks between two threads.
const BUFFERS: RangeInclusive<u64> = 1..=256;
/// Where the file does not say: enough that neither thread waits for the other's wake-up.
const USUAL_BUFFERS: u64 = 8;
/// Time for each block of a stage that does not exist yet.
const STAND_IN: RangeInclusive<Duration> = Duration::from_nanos(1)..=Duration::from_secs(1);
/// Stages.
const MAX_STAGES: usize = 32;
/// Threads of one element.
const MAX_THREADS: usize = 64;
/// Bytes of a pattern and of a sink's file.
const SPAN_BYTES: RangeInclusive<u64> = 64..=16 << 30;
const USUAL_SPAN_BYTES: u64 = 16 << 20;
const USUAL_FILE_BYTES: u64 = 256 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MemoryFields {
    span: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileFields {
    path: String,
    #[serde(default)]
    cached: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DigitizerFields {
    devices: Vec<String>,
    #[serde(default = "usual_profile")]
    profile: String,
    #[serde(default)]
    unpaced: bool,
    trigger: Option<String>,
}

fn usual_profile() -> String {
    "ess-2017".to_owned()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EtherboneFields {
    address: String,
    #[serde(default = "usual_count")]
    count: u64,
}

/// Times of a cycle: the study of 2018 reads as many.
fn usual_count() -> u64 {
    8
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FelixFields {
    scenario: String,
    span: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CopyFields {
    #[serde(default = "memcpy")]
    by: String,
}

fn memcpy() -> String {
    "memcpy".to_owned()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConvertFields {
    function: u64,
    #[serde(default)]
    dec_offset: u64,
    #[serde(default = "daqmeter_harness::one::<u64>")]
    dec_factor: u64,
    #[serde(default)]
    scale_offset: f64,
    #[serde(default = "one")]
    scale_factor: f64,
}

fn one() -> f64 {
    1.0
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StandInFields {
    time: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DecodeFields {
    scenario: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProgramFields {
    command: Vec<String>,
    #[serde(default)]
    changes: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TcpFields {
    congestion: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoFields {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileSinkFields {
    path: String,
    max: Option<String>,
    #[serde(default)]
    direct: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CardFields {
    scenario: String,
}

const SOURCES: [&str; 6] = ["memory", "file", "digitizer", "felix", "etherbone", "card"];
const STAGES: [&str; 11] = [
    "copy", "convert", "decode", "checksum", "program", "tcp", "unix", "work", "wait", "to-host",
    "zenoh",
];
const SINKS: [&str; 3] = ["read", "file", "receiver"];

impl Path {
    /// Loads a path by the name of a shipped one, or from a file.
    ///
    /// # Errors
    /// When it cannot be read or used; one line with file, line and field.
    pub fn load(name_or_path: &str) -> Result<Path, PathError> {
        Path::load_with(name_or_path, "")
    }

    /// The same with other values for some fields, `FIELD=VALUE` with `;` between them: `block=128KiB;stage.1.threads=2`. Fields are
    /// `block`, `buffers`, `pages`, and what a source, a stage or a sink takes.
    ///
    /// # Errors
    /// As [`Path::load`], and when there is no such field.
    pub fn load_with(name_or_path: &str, with: &str) -> Result<Path, PathError> {
        if let Some((name, text)) = SHIPPED.iter().find(|(name, _)| *name == name_or_path) {
            return Path::parse_with(text, name, with);
        }
        let text = text_input(FilePath::new(name_or_path)).map_err(|error| {
            let names: Vec<&str> = SHIPPED.iter().map(|(name, _)| *name).collect();
            let hint = did_you_mean(name_or_path, &names);
            PathError(format!(
                "path {name_or_path}: {error}; paths that ship with daqmeter: {}{hint}",
                names.join(", ")
            ))
        })?;
        Path::parse_with(&text, name_or_path, with)
    }

    /// Reads the text of a path that is called so in messages.
    ///
    /// # Errors
    /// As [`Path::load`].
    pub fn parse(text: &str, name: &str) -> Result<Path, PathError> {
        Path::parse_with(text, name, "")
    }

    pub(crate) fn parse_with(text: &str, name: &str, with: &str) -> Result<Path, PathError> {
        let text = TomlText {
            name: name.to_owned(),
            text: text.to_owned(),
        };
        Reader { text: &text, with }.path().map_err(PathError)
    }
}

struct Reader<'a> {
    text: &'a TomlText,
    /// Fields that are not as in the file.
    with: &'a str,
}

/// What the elements so far give to the next.
struct Flow {
    bytes: usize,
    unit: Unit,
    threads: usize,
    scenario: Option<String>,
    live: Option<Live>,
    names: BTreeMap<String, usize>,
}

/// A card that is read out.
struct Live {
    /// Each has a reader and a receiver.
    channels: usize,
    ring_bytes: usize,
    page_bytes: usize,
}

impl Live {
    fn of(scenario: &Scenario) -> Live {
        Live {
            channels: Chain::parts(scenario).channels,
            ring_bytes: scenario.card.ring.0,
            page_bytes: scenario.reader.page.0,
        }
    }
}

impl Flow {
    /// The name of the next element of that kind.
    fn name(&mut self, kind: &str) -> String {
        let seen = self.names.entry(kind.to_owned()).or_insert(0);
        *seen += 1;
        match *seen {
            1 => kind.to_owned(),
            n => format!("{kind} {n}"),
        }
    }
}

impl Reader<'_> {
    fn path(&self) -> Result<Path, String> {
        let mut file: PathFile = self.text.parse()?;
        apply(&mut file, self.with)?;
        let block_bytes = self.block_bytes(&file)?;
        let buffers = file.buffers.as_ref();
        let buffers = buffers.map_or(Ok(USUAL_BUFFERS), |given| {
            within(*given.as_ref(), BUFFERS)
                .map_err(|problem| self.text.error(given.span(), "buffers", problem))
        })?;
        if file.stage.len() > MAX_STAGES {
            let span = file.stage[MAX_STAGES].span();
            let problem = format!("at most {MAX_STAGES} stages");
            return Err(self.text.error(span, "stage", problem));
        }
        let (source, mut flow) = self.source(&file, block_bytes)?;
        if let SourceKind::Card { .. } = source.kind {
            self.without_blocks(&file)?;
        }
        let stages: Result<Vec<_>, String> = (0..file.stage.len())
            .map(|at| self.stage(&file, at, &mut flow))
            .collect();
        let stages = stages?;
        let sink = self.sink(&file, &mut flow)?;
        let pages = self.pages(&file)?;
        let rate = file.rate.as_ref();
        let rate_hz = rate.map(|given| {
            parse_rate(given.as_ref(), source.kind.due_bytes(block_bytes))
                .and_then(|hz| {
                    daq::check_trigger_rate(hz).map_err(|fault| fault.0)?;
                    Ok(hz)
                })
                .map_err(|problem| self.text.error(given.span(), "rate", problem))
        });
        let served = file.serves.as_ref().map(|serves| self.served(serves));
        Ok(Path {
            name: self.text.name.clone(),
            title: file.title,
            about: file.about,
            block_bytes,
            buffers: to_usize(buffers),
            rate_hz: rate_hz.transpose()?,
            lossless: file.lossless.as_ref().is_none_or(|given| *given.as_ref()),
            served: served.transpose()?,
            with: self.with.to_owned(),
            pages,
            digest: digest(&self.text.text),
            text: self.text.text.clone(),
            source,
            stages,
            sink,
        })
    }

    fn block_bytes(&self, file: &PathFile) -> Result<usize, String> {
        let given = &file.block;
        let bytes = parse_bytes(given.as_ref())
            .map_err(|error| error.to_string())
            .and_then(|bytes| within(bytes, BLOCK_BYTES))
            .and_then(|bytes| match bytes.is_multiple_of(64) {
                true => Ok(bytes),
                false => Err(format!(
                    "is {bytes}; whole cache lines of 64 bytes are wanted"
                )),
            });
        bytes
            .map(to_usize)
            .map_err(|problem| self.text.error(given.span(), "block", problem))
    }

    fn pages(&self, file: &PathFile) -> Result<Pages, String> {
        let Some(given) = &file.pages else {
            return Ok(Pages::Transparent);
        };
        match given.as_ref().as_str() {
            "base" => Ok(Pages::Base),
            "transparent" => Ok(Pages::Transparent),
            "huge" => Ok(Pages::HugeTlb),
            other => {
                let problem = format!("is `{other}`; base, transparent or huge is wanted");
                Err(self.text.error(given.span(), "pages", problem))
            }
        }
    }

    /// Refuses what is of blocks between threads: a card's reader has its ring instead.
    fn without_blocks(&self, file: &PathFile) -> Result<(), String> {
        let buffers = file.buffers.as_ref().map(|given| ("buffers", given.span()));
        let lossless = file
            .lossless
            .as_ref()
            .map(|given| ("lossless", given.span()));
        match buffers.or(lossless) {
            None => Ok(()),
            Some((field, span)) => {
                let problem = "a card that is read out has its scenario's ring and BUSY instead: leave the field out";
                Err(self.text.error(span, field, problem))
            }
        }
    }

    fn served(&self, serves: &Serves) -> Result<Served, String> {
        let text = serves.each.as_ref();
        let each = match text.strip_suffix("/s") {
            Some(bytes) => parse_bytes(bytes)
                .map(|bytes| Brings::BytesPerS(bytes as f64))
                .map_err(|error| error.to_string()),
            None => parse_rate_hz(text)
                .map(Brings::EventsPerS)
                .map_err(|error| format!("{error}; or bytes, such as 84MB/s")),
        };
        let each = each.and_then(|each| match each {
            Brings::BytesPerS(rate) | Brings::EventsPerS(rate) if rate <= 0.0 => {
                Err("is nothing; a rate above zero is wanted".to_owned())
            }
            each => Ok(each),
        });
        Ok(Served {
            name: serves.what.clone(),
            each: each
                .map_err(|problem| self.text.error(serves.each.span(), "serves: each", problem))?,
        })
    }

    fn source(
        &self,
        file: &PathFile,
        block_bytes: usize,
    ) -> Result<(Element<SourceKind>, Flow), String> {
        let reading = Reading {
            text: self.text,
            what: "source".to_owned(),
            part: &file.source,
        };
        let name = known(&reading, &SOURCES)?;
        let place = reading.place()?;
        let (kind, unit, own_threads) = match name {
            "memory" => memory(&reading, block_bytes)?,
            "file" => replay(&reading, block_bytes)?,
            "digitizer" => digitizer(&reading)?,
            "etherbone" => etherbone(&reading, block_bytes)?,
            "card" => card(&reading, &place, block_bytes)?,
            _ => felix(&reading, block_bytes)?,
        };
        if place.threads.is_some_and(|threads| threads != own_threads) {
            let problem = format!("this source has {own_threads}: leave the field out");
            return Err(reading.error("threads", problem));
        }
        let scenario = match &kind {
            SourceKind::Felix { scenario, .. } => Some(scenario.clone()),
            _ => None,
        };
        let live = match &kind {
            SourceKind::Card { scenario } => Some(Live::of(scenario)),
            _ => None,
        };
        let out_bytes = live.as_ref().map_or(block_bytes, |live| live.ring_bytes);
        let mut flow = Flow {
            bytes: block_bytes,
            unit,
            threads: own_threads,
            scenario,
            live,
            names: BTreeMap::new(),
        };
        let element = Element {
            kind,
            name: flow.name(name),
            threads: own_threads,
            cpus: cpus(&reading, place)?,
            out_bytes,
            unit,
        };
        Ok((element, flow))
    }

    fn stage(
        &self,
        file: &PathFile,
        at: usize,
        flow: &mut Flow,
    ) -> Result<Element<StageKind>, String> {
        let reading = Reading {
            text: self.text,
            what: format!("stage {}", at + 1),
            part: &file.stage[at],
        };
        let name = known(&reading, &STAGES)?;
        let place = reading.place()?;
        if let Some(stage) = live_stage(&reading, name, &place, flow)? {
            return Ok(stage);
        }
        let kind = match name {
            "copy" => copy(&reading)?,
            "convert" => convert(&reading, flow)?,
            "decode" => decode(&reading, flow)?,
            "program" => program(&reading, flow)?,
            "work" | "wait" => stand_in(&reading, name)?,
            "tcp" => tcp(&reading)?,
            plain => {
                reading.fields::<NoFields>()?;
                match plain {
                    "checksum" => StageKind::Checksum,
                    _ => StageKind::Unix,
                }
            }
        };
        let threads = threads(&reading, &place, &kind, flow)?;
        if let StageKind::Convert(function, request) = &kind {
            let (conversion, decimation) = request.of(*function).expect("a conversion");
            flow.bytes = decimation.kept(flow.bytes / 2) * conversion.out_bytes();
        }
        Ok(Element {
            kind,
            name: flow.name(name),
            threads,
            cpus: cpus(&reading, place)?,
            out_bytes: flow.bytes,
            unit: flow.unit,
        })
    }

    fn sink(&self, file: &PathFile, flow: &mut Flow) -> Result<Element<SinkKind>, String> {
        let reading = Reading {
            text: self.text,
            what: "sink".to_owned(),
            part: &file.sink,
        };
        let name = known(&reading, &SINKS)?;
        let place = reading.place()?;
        if place.threads.is_some_and(|threads| threads != 1) {
            return Err(reading.error("threads", "a sink has 1: leave the field out"));
        }
        match (name == "receiver", &flow.live, flow.unit) {
            (true, Some(_), Unit::Sent) | (false, None, _) => {}
            (true, None, _) => return Err(reading.error("kind", OF_CARD)),
            (_, Some(_), _) => {
                let problem = "a card is read out by `to-host`, then `tcp` or `zenoh`, then the sink `receiver`";
                return Err(reading.error("kind", problem));
            }
        }
        let kind = match name {
            "file" => file_sink(&reading, flow)?,
            plain => {
                reading.fields::<NoFields>()?;
                match plain {
                    "read" => SinkKind::Read,
                    _ => SinkKind::Receiver,
                }
            }
        };
        let threads = flow.live.as_ref().map_or(1, |live| live.channels);
        // Source and sink may be called alike.
        let name = if flow.names.contains_key(name) {
            format!("{name} sink")
        } else {
            name.to_owned()
        };
        Ok(Element {
            kind,
            name,
            threads,
            cpus: cpus(&reading, place)?,
            out_bytes: 0,
            unit: flow.unit,
        })
    }
}

type Source = (SourceKind, Unit, usize);

fn memory(reading: &Reading<'_>, block_bytes: usize) -> Result<Source, String> {
    let fields: MemoryFields = reading.fields()?;
    let span = size(reading, "span", fields.span.as_deref(), USUAL_SPAN_BYTES)?;
    let span_bytes = span.max(block_bytes) / block_bytes * block_bytes;
    Ok((SourceKind::Memory { span_bytes }, Unit::Bytes, 1))
}

fn replay(reading: &Reading<'_>, block_bytes: usize) -> Result<Source, String> {
    let FileFields { path, cached } = reading.fields()?;
    let request = BlockRequest {
        path: path.clone(),
        block_bytes,
        cached,
    };
    // Its parameter is this file's block.
    request
        .check()
        .map_err(|Problem { text, .. }| reading.error("kind", format!("block {text}")))?;
    Ok((SourceKind::File { path, cached }, Unit::Bytes, 1))
}

fn digitizer(reading: &Reading<'_>) -> Result<Source, String> {
    let fields: DigitizerFields = reading.fields()?;
    let mut boards = Vec::new();
    for device in &fields.devices {
        let more = devices::expand(device);
        boards.extend(more.map_err(|problem| reading.error("devices", problem))?);
    }
    if boards.is_empty() || boards.len() > MAX_THREADS || boards.iter().any(String::is_empty) {
        let problem = format!("1 to {MAX_THREADS} boards are wanted, such as \"emu:l0..3\"");
        return Err(reading.error("devices", problem));
    }
    if let Some(twice) = (1..boards.len()).find(|&at| boards[..at].contains(&boards[at])) {
        let problem = format!("{} is there twice", boards[twice]);
        return Err(reading.error("devices", problem));
    }
    let trigger = fields.trigger.as_deref().map(|text| {
        let hz = parse_rate_hz(text).map_err(|error| error.to_string())?;
        daq::check_trigger_rate(hz).map_err(|fault| fault.0)?;
        Ok(hz)
    });
    let trigger: Result<Option<f64>, String> = trigger.transpose();
    let trigger_hz = trigger.map_err(|problem| reading.error("trigger", problem))?;
    let threads = boards.len();
    let kind = SourceKind::Digitizer {
        profile: fields.profile,
        paced: !fields.unpaced,
        trigger_hz,
        devices: boards,
    };
    Ok((kind, Unit::Samples, threads))
}

fn felix(reading: &Reading<'_>, block_bytes: usize) -> Result<Source, String> {
    let fields: FelixFields = reading.fields()?;
    let scenario =
        Scenario::load(&fields.scenario).map_err(|error| reading.error("scenario", error))?;
    let card_bytes = scenario.card.block.0;
    if card_bytes == 0 || !block_bytes.is_multiple_of(card_bytes) {
        let problem = format!("its blocks have {card_bytes} bytes; `block` holds whole ones");
        return Err(reading.error("scenario", problem));
    }
    let span = size(reading, "span", fields.span.as_deref(), USUAL_SPAN_BYTES)?;
    let kind = SourceKind::Felix {
        scenario: fields.scenario,
        span_bytes: span.max(block_bytes) / block_bytes * block_bytes,
    };
    Ok((kind, Unit::Felix, 1))
}

const OF_CARD: &str = "needs the source `card`, whose ring is read out live";

fn card(reading: &Reading<'_>, place: &Place, block_bytes: usize) -> Result<Source, String> {
    let CardFields { scenario } = reading.fields()?;
    let scenario = Scenario::load(&scenario).map_err(|error| reading.error("scenario", error))?;
    let card_bytes = scenario.card.block.0;
    if block_bytes != card_bytes {
        let problem = format!("its blocks have {card_bytes} bytes, and so must `block`");
        return Err(reading.error("scenario", problem));
    }
    without_thread(reading, place)?;
    let scenario = Box::new(scenario);
    Ok((SourceKind::Card { scenario }, Unit::Ring, 0))
}

/// A card and its publisher work in the threads of their reader.
fn without_thread(reading: &Reading<'_>, place: &Place) -> Result<(), String> {
    let problem = "this part works in the threads of `to-host`: say it there";
    match (&place.threads, place.cpus.is_empty()) {
        (Some(_), _) => Err(reading.error("threads", problem)),
        (None, false) => Err(reading.error("cpus", problem)),
        (None, true) => Ok(()),
    }
}

/// A stage behind a card, where there is one: to-host, then one transport.
fn live_stage(
    reading: &Reading<'_>,
    name: &str,
    place: &Place,
    flow: &mut Flow,
) -> Result<Option<Element<StageKind>>, String> {
    let Some(live) = &flow.live else {
        return match name {
            "to-host" | "zenoh" => Err(reading.error("kind", OF_CARD)),
            _ => Ok(None),
        };
    };
    let (kind, unit, threads, out_bytes) = match (flow.unit, name) {
        (Unit::Ring, "to-host") => {
            let (channels, bytes) = (live.channels, live.page_bytes);
            if place.threads.is_some_and(|threads| threads != channels) {
                let problem = format!("is one for each DMA channel, {channels}: leave it out");
                return Err(reading.error("threads", problem));
            }
            (StageKind::ToHost, Unit::Pages, channels, bytes)
        }
        (Unit::Pages, "tcp" | "zenoh") => {
            transport::named(name).map_err(|error| reading.error("kind", error))?;
            without_thread(reading, place)?;
            (StageKind::Publish(name.to_owned()), Unit::Sent, 0, 0)
        }
        (Unit::Ring, _) => return Err(reading.error("kind", "a card's ring is read by `to-host`")),
        (Unit::Pages, _) => {
            return Err(reading.error("kind", "pages are published over `tcp` or `zenoh`"));
        }
        _ => return Err(reading.error("kind", "pages that were sent come to the sink `receiver`")),
    };
    reading.fields::<NoFields>()?;
    flow.unit = unit;
    Ok(Some(Element {
        kind,
        name: flow.name(name),
        threads,
        cpus: cpus(reading, place.clone())?,
        out_bytes,
        unit,
    }))
}

fn etherbone(reading: &Reading<'_>, block_bytes: usize) -> Result<Source, String> {
    let EtherboneFields { address, count } = reading.fields()?;
    Times::request(&address, count)
        .check()
        .map_err(|Problem { name, text }| reading.error(name, text))?;
    let cycle_bytes = TIME_BYTES as u64 * count;
    if !(block_bytes as u64).is_multiple_of(cycle_bytes) {
        let problem =
            format!("cycles of {count} times bring {cycle_bytes} bytes; `block` holds whole ones");
        return Err(reading.error("count", problem));
    }
    let kind = SourceKind::Etherbone { address, count };
    Ok((kind, Unit::Times, 1))
}

fn file_sink(reading: &Reading<'_>, flow: &Flow) -> Result<SinkKind, String> {
    let FileSinkFields { path, max, direct } = reading.fields()?;
    if direct && !flow.bytes.is_multiple_of(SECTOR_BYTES) {
        let problem = format!(
            "blocks of {} bytes come; multiples of {SECTOR_BYTES} are wanted past the page cache",
            flow.bytes
        );
        return Err(reading.error("direct", problem));
    }
    let max = size(reading, "max", max.as_deref(), USUAL_FILE_BYTES)?;
    Ok(SinkKind::File {
        path,
        span_bytes: max.max(flow.bytes),
        direct,
    })
}

fn copy(reading: &Reading<'_>) -> Result<StageKind, String> {
    let fields: CopyFields = reading.fields()?;
    let ways = daqmeter_copy::Path::value_variants();
    let names: Vec<String> = ways.iter().map(ToString::to_string).collect();
    let Some(at) = names.iter().position(|name| *name == fields.by) else {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let hint = did_you_mean(&fields.by, &names);
        let problem = format!("there is no way to copy called `{}`{hint}", fields.by);
        return Err(reading.error("by", problem));
    };
    ways[at].kernel().map(StageKind::Copy).ok_or_else(|| {
        let here: Vec<&str> = CopyKernel::available()
            .into_iter()
            .map(CopyKernel::name)
            .collect();
        let problem = format!(
            "`{}` does not copy between two blocks here; these do: {}",
            fields.by,
            here.join(", ")
        );
        reading.error("by", problem)
    })
}

fn convert(reading: &Reading<'_>, flow: &mut Flow) -> Result<StageKind, String> {
    let fields: ConvertFields = reading.fields()?;
    let Some(function) = function(fields.function) else {
        let problem = format!("is {}; 1 to 8 is wanted", fields.function);
        return Err(reading.error("function", problem));
    };
    unit(reading, flow, Unit::Samples)?;
    let request = ConversionRequest {
        dec_offset: fields.dec_offset,
        dec_factor: fields.dec_factor,
        scale_offset: fields.scale_offset,
        scale_factor: fields.scale_factor,
        ..ConversionRequest::default()
    };
    if flow.bytes < 2 || !flow.bytes.is_multiple_of(2) {
        let problem = format!("blocks of {} bytes are not whole samples", flow.bytes);
        return Err(reading.error("kind", problem));
    }
    request
        .check(flow.bytes as u64 / 2)
        .map_err(|Problem { name, text }| reading.error(name, text))?;
    flow.unit = Unit::Numbers;
    Ok(StageKind::Convert(function, Box::new(request)))
}

fn decode(reading: &Reading<'_>, flow: &Flow) -> Result<StageKind, String> {
    let fields: DecodeFields = reading.fields()?;
    unit(reading, flow, Unit::Felix)?;
    let Some(name) = fields.scenario.or_else(|| flow.scenario.clone()) else {
        let problem = "needs the scenario that its blocks are of, such as \"gbt\"";
        return Err(reading.error("scenario", problem));
    };
    let scenario = Scenario::load(&name).map_err(|error| reading.error("scenario", error))?;
    let format = scenario
        .format()
        .ok_or_else(|| reading.error("scenario", "its card has no format of blocks"))?;
    if !flow.bytes.is_multiple_of(format.block_bytes) {
        let problem = format!(
            "blocks of {} bytes do not hold whole ones of {}",
            flow.bytes, format.block_bytes
        );
        return Err(reading.error("kind", problem));
    }
    Ok(StageKind::Decode(format))
}

/// A stage that does not exist yet.
fn stand_in(reading: &Reading<'_>, name: &str) -> Result<StageKind, String> {
    let StandInFields { time } = reading.fields()?;
    let time = parse_duration(&time).map_err(|error| reading.error("time", error))?;
    if !STAND_IN.contains(&time) {
        let problem = "is out of range; 1 ns to 1 s for each block is wanted";
        return Err(reading.error("time", problem));
    }
    Ok(match name {
        "work" => StageKind::Work {
            ns: time.as_secs_f64() * 1e9,
        },
        _ => StageKind::Wait {
            ns: u64::try_from(time.as_nanos()).expect("a second at most"),
        },
    })
}

fn program(reading: &Reading<'_>, flow: &mut Flow) -> Result<StageKind, String> {
    let fields: ProgramFields = reading.fields()?;
    if fields.command.first().is_none_or(String::is_empty) {
        let problem = "a program and its arguments are wanted, such as [\"cat\"]";
        return Err(reading.error("command", problem));
    }
    if fields.changes {
        flow.unit = Unit::Bytes;
    }
    Ok(StageKind::Program {
        command: fields.command,
        same: !fields.changes,
    })
}

fn tcp(reading: &Reading<'_>) -> Result<StageKind, String> {
    let TcpFields { congestion } = reading.fields()?;
    if let Some(name) = &congestion {
        check_congestion(name).map_err(|problem| reading.error("congestion", problem))?;
    }
    Ok(StageKind::Tcp { congestion })
}

/// Refuses blocks that are something else. Bytes may be anything.
fn unit(reading: &Reading<'_>, flow: &Flow, wanted: Unit) -> Result<(), String> {
    if flow.unit == wanted || flow.unit == Unit::Bytes {
        return Ok(());
    }
    let problem = format!("takes {}, but {} come", wanted.name(), flow.unit.name());
    Err(reading.error("kind", problem))
}

/// Threads of a stage: as many as before it, or one on either side.
fn threads(
    reading: &Reading<'_>,
    place: &Place,
    kind: &StageKind,
    flow: &mut Flow,
) -> Result<usize, String> {
    let threads = place.threads.unwrap_or(1);
    if !(1..=MAX_THREADS).contains(&threads) {
        return Err(reading.error(
            "threads",
            format!("is {threads}; 1 to {MAX_THREADS} is wanted"),
        ));
    }
    if kind.has_two_ends() && threads > 1 {
        return Err(reading.error(
            "threads",
            "this stage has one at each end: leave the field out",
        ));
    }
    if threads > 1 && flow.threads > 1 && threads != flow.threads {
        let problem = format!(
            "is {threads} behind {} threads; 1 or {} is wanted",
            flow.threads, flow.threads
        );
        return Err(reading.error("threads", problem));
    }
    flow.threads = threads;
    Ok(threads)
}

fn cpus(reading: &Reading<'_>, place: Place) -> Result<Vec<u32>, String> {
    Problem::unless_cpus_exist("cpus", &place.cpus)
        .map_err(|Problem { text, .. }| reading.error("cpus", text))?;
    Ok(place.cpus)
}

fn known<'a>(reading: &Reading<'_>, kinds: &[&'a str]) -> Result<&'a str, String> {
    let kind = reading.kind()?;
    kinds
        .iter()
        .find(|known| **known == kind)
        .copied()
        .ok_or_else(|| {
            let hint = did_you_mean(kind, kinds);
            let problem = format!("there is no `{kind}`; there are {}{hint}", kinds.join(", "));
            reading.error("kind", problem)
        })
}

fn size(
    reading: &Reading<'_>,
    field: &str,
    given: Option<&str>,
    usual: u64,
) -> Result<usize, String> {
    let Some(text) = given else {
        return Ok(to_usize(usual));
    };
    parse_bytes(text)
        .map_err(|error| error.to_string())
        .and_then(|bytes| within(bytes, SPAN_BYTES))
        .map(to_usize)
        .map_err(|problem| reading.error(field, problem))
}

fn within(value: u64, bounds: RangeInclusive<u64>) -> Result<u64, String> {
    if bounds.contains(&value) {
        return Ok(value);
    }
    let (min, max) = bounds.into_inner();
    Err(format!("is {value}; {min} to {max} is wanted"))
}

fn to_usize(value: u64) -> usize {
    usize::try_from(value).expect("checked against bounds far below")
}
