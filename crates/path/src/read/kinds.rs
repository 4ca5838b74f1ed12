//! Fields of each kind of source, stage and sink in a path's file, and its output to the next.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use clap::ValueEnum;
use daqmeter_digitizer::conversion::ConversionRequest;
use daqmeter_digitizer::{daq, devices};
use daqmeter_etherbone::{TIME_BYTES, Times};
use daqmeter_harness::{Problem, Request, did_you_mean};
use daqmeter_hostio::{BlockRequest, SECTOR_BYTES};
use daqmeter_kernels::copy::CopyKernel;
use daqmeter_readout::chain::Chain;
use daqmeter_readout::scenario::check_congestion;
use daqmeter_readout::{Chosen, Scenario, transport};
use daqmeter_record::units::{parse_bytes, parse_duration, parse_rate_hz};
use serde::Deserialize;

use crate::definition::{Element, SinkKind, SourceKind, StageKind, Unit, function};
use crate::file::{Place, Reading};
use crate::remote::Over;
use crate::tcp::SendBy;
use crate::udp::{
    DATAGRAM_BYTES, SOCKET_BUFFER_BYTES, USUAL_DATAGRAM_BYTES, USUAL_SOCKET_BUFFER_BYTES, UdpWay,
};
use crate::zenoh::{WhenFull, ZenohWay, check};

/// Time for each block of a stage that does not exist yet.
const STAND_IN: RangeInclusive<Duration> = Duration::from_nanos(1)..=Duration::from_secs(1);
pub(super) const MAX_THREADS: usize = 64;
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

/// Times of a cycle: the number in the study of 2018.
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
    #[serde(flatten)]
    request: ConversionRequest,
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
    #[serde(default)]
    send: SendBy,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UdpFields {
    datagram: Option<String>,
    socket_buffer: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ZenohFields {
    #[serde(default)]
    congestion: WhenFull,
    #[serde(default)]
    shared_memory: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TcpSinkFields {
    to: String,
    congestion: Option<String>,
    #[serde(default)]
    send: SendBy,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UdpSinkFields {
    to: String,
    datagram: Option<String>,
    socket_buffer: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NoFields {}

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
    #[serde(flatten)]
    chosen: Chosen,
}

pub(super) struct Flow {
    pub(super) bytes: usize,
    pub(super) unit: Unit,
    pub(super) threads: usize,
    pub(super) scenario: Option<String>,
    pub(super) live: Option<Live>,
    pub(super) names: BTreeMap<String, usize>,
}

pub(super) struct Live {
    /// Each has a reader and a receiver.
    pub(super) channels: usize,
    pub(super) ring_bytes: usize,
    pub(super) page_bytes: usize,
}

impl Live {
    pub(super) fn of(scenario: &Scenario) -> Live {
        Live {
            channels: Chain::parts(scenario).channels,
            ring_bytes: scenario.card.ring.0,
            page_bytes: scenario.reader.page.0,
        }
    }
}

impl Flow {
    pub(super) fn name(&mut self, kind: &str) -> String {
        let seen = self.names.entry(kind.to_owned()).or_insert(0);
        *seen += 1;
        match *seen {
            1 => kind.to_owned(),
            n => format!("{kind} {n}"),
        }
    }
}

type Source = (SourceKind, Unit, usize);

pub(super) fn memory(reading: &Reading<'_>, block_bytes: usize) -> Result<Source, String> {
    let fields: MemoryFields = reading.fields()?;
    let span = size(reading, "span", fields.span.as_deref(), USUAL_SPAN_BYTES)?;
    let span_bytes = span.max(block_bytes) / block_bytes * block_bytes;
    Ok((SourceKind::Memory { span_bytes }, Unit::Bytes, 1))
}

pub(super) fn replay(reading: &Reading<'_>, block_bytes: usize) -> Result<Source, String> {
    let FileFields { path, cached } = reading.fields()?;
    let request = BlockRequest { path: path.clone(), block_bytes, cached };
    request
        .check()
        .map_err(|Problem { text, .. }| reading.error("kind", format!("block {text}")))?;
    Ok((SourceKind::File { path, cached }, Unit::Bytes, 1))
}

pub(super) fn digitizer(reading: &Reading<'_>) -> Result<Source, String> {
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

pub(super) fn felix(reading: &Reading<'_>, block_bytes: usize) -> Result<Source, String> {
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

pub(super) const OF_CARD: &str = "needs the source `card`, whose ring is read out live";

pub(super) fn card(
    reading: &Reading<'_>,
    place: &Place,
    block_bytes: usize,
) -> Result<Source, String> {
    let CardFields { chosen } = reading.fields()?;
    if chosen.rate_hz.is_some() {
        return Err(reading.error("rate_hz", "is the path's own field `rate`: say it there"));
    }
    if chosen.transport.is_some() {
        let problem = "is the stage behind `to-host`: say it there";
        return Err(reading.error("transport", problem));
    }
    let scenario = chosen.outline();
    let scenario = scenario.map_err(|error| reading.error("scenario", error))?;
    let card_bytes = scenario.card.block.0;
    if block_bytes != card_bytes {
        let problem = format!("its blocks have {card_bytes} bytes, and so must `block`");
        return Err(reading.error("scenario", problem));
    }
    without_thread(reading, place)?;
    let (chosen, scenario) = (Box::new(chosen), Box::new(scenario));
    Ok((SourceKind::Card { chosen, scenario }, Unit::Ring, 0))
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

/// Reads a stage behind a card, if there is one: to-host, then one transport.
pub(super) fn live_stage(
    reading: &Reading<'_>,
    name: &str,
    place: &Place,
    flow: &mut Flow,
) -> Result<Option<Element<StageKind>>, String> {
    let Some(live) = &flow.live else {
        return match name {
            "to-host" => Err(reading.error("kind", OF_CARD)),
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

pub(super) fn etherbone(reading: &Reading<'_>, block_bytes: usize) -> Result<Source, String> {
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

pub(super) fn file_sink(reading: &Reading<'_>, flow: &Flow) -> Result<SinkKind, String> {
    let FileSinkFields { path, max, direct } = reading.fields()?;
    if direct && !flow.bytes.is_multiple_of(SECTOR_BYTES) {
        let problem = format!(
            "blocks of {} bytes come; multiples of {SECTOR_BYTES} are wanted past the page cache",
            flow.bytes
        );
        return Err(reading.error("direct", problem));
    }
    let max = size(reading, "max", max.as_deref(), USUAL_FILE_BYTES)?;
    Ok(SinkKind::File { path, span_bytes: max.max(flow.bytes), direct })
}

pub(super) fn copy(reading: &Reading<'_>) -> Result<StageKind, String> {
    let fields: CopyFields = reading.fields()?;
    let ways = daqmeter_copy::CopyPath::value_variants();
    let names: Vec<String> = ways.iter().map(ToString::to_string).collect();
    let Some(at) = names.iter().position(|name| *name == fields.by) else {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let hint = did_you_mean(&fields.by, &names);
        let problem = format!("there is no way to copy called `{}`{hint}", fields.by);
        return Err(reading.error("by", problem));
    };
    ways[at].kernel().map(StageKind::Copy).ok_or_else(|| {
        let here: Vec<&str> = CopyKernel::available().into_iter().map(CopyKernel::name).collect();
        let problem = format!(
            "`{}` does not copy between two blocks here; these do: {}",
            fields.by,
            here.join(", ")
        );
        reading.error("by", problem)
    })
}

pub(super) fn convert(reading: &Reading<'_>, flow: &mut Flow) -> Result<StageKind, String> {
    let fields: ConvertFields = reading.fields()?;
    let Some(function) = function(fields.function) else {
        let problem = format!("is {}; 1 to 8 is wanted", fields.function);
        return Err(reading.error("function", problem));
    };
    unit(reading, flow, Unit::Samples)?;
    let request = fields.request;
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

pub(super) fn decode(reading: &Reading<'_>, flow: &Flow) -> Result<StageKind, String> {
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

pub(super) fn stand_in(reading: &Reading<'_>, name: &str) -> Result<StageKind, String> {
    let StandInFields { time } = reading.fields()?;
    let time = parse_duration(&time).map_err(|error| reading.error("time", error))?;
    if !STAND_IN.contains(&time) {
        let problem = "is out of range; 1 ns to 1 s for each block is wanted";
        return Err(reading.error("time", problem));
    }
    Ok(match name {
        "work" => StageKind::Work { ns: time.as_secs_f64() * 1e9 },
        _ => StageKind::Wait { ns: u64::try_from(time.as_nanos()).expect("a second at most") },
    })
}

pub(super) fn program(reading: &Reading<'_>, flow: &mut Flow) -> Result<StageKind, String> {
    let fields: ProgramFields = reading.fields()?;
    if fields.command.first().is_none_or(String::is_empty) {
        let problem = "a program and its arguments are wanted, such as [\"cat\"]";
        return Err(reading.error("command", problem));
    }
    if fields.changes {
        flow.unit = Unit::Bytes;
    }
    Ok(StageKind::Program { command: fields.command, same: !fields.changes })
}

pub(super) fn tcp(reading: &Reading<'_>) -> Result<StageKind, String> {
    let fields: TcpFields = reading.fields()?;
    of_tcp(reading, &fields)?;
    let TcpFields { congestion, send } = fields;
    Ok(StageKind::Tcp { congestion, send })
}

/// Refuses settings that this host's kernel does not have.
fn of_tcp(reading: &Reading<'_>, fields: &TcpFields) -> Result<(), String> {
    if let Some(name) = &fields.congestion {
        check_congestion(name).map_err(|problem| reading.error("congestion", problem))?;
    }
    let send = fields.send.check();
    send.map_err(|problem| reading.error("send", problem))
}

pub(super) fn udp(reading: &Reading<'_>) -> Result<StageKind, String> {
    let fields: UdpFields = reading.fields()?;
    of_udp(reading, &fields).map(StageKind::Udp)
}

fn of_udp(reading: &Reading<'_>, fields: &UdpFields) -> Result<UdpWay, String> {
    let bytes = |field: &str, given: &Option<String>, bounds, usual| {
        let Some(text) = given else { return Ok(usual) };
        parse_bytes(text)
            .map_err(|error| error.to_string())
            .and_then(|bytes| within(bytes, bounds))
            .map(to_usize)
            .map_err(|problem| reading.error(field, problem))
    };
    let (datagram, buffer) = (&fields.datagram, &fields.socket_buffer);
    Ok(UdpWay {
        datagram_bytes: bytes("datagram", datagram, DATAGRAM_BYTES, USUAL_DATAGRAM_BYTES)?,
        socket_buffer_bytes: bytes(
            "socket_buffer",
            buffer,
            SOCKET_BUFFER_BYTES,
            USUAL_SOCKET_BUFFER_BYTES,
        )?,
    })
}

pub(super) fn zenoh(reading: &Reading<'_>, flow: &Flow) -> Result<StageKind, String> {
    check().map_err(|problem| reading.error("kind", problem))?;
    // Zenoh receives in two threads for all sessions of a program, and each waits if there is no
    // room for its blocks.
    if flow.names.contains_key("zenoh") {
        return Err(reading.error("kind", "one stage of a path may go over Zenoh"));
    }
    let ZenohFields { congestion, shared_memory } = reading.fields()?;
    Ok(StageKind::Zenoh(ZenohWay { when_full: congestion, shared_memory }))
}

pub(super) fn remote(reading: &Reading<'_>, name: &str) -> Result<SinkKind, String> {
    let (to, over) = match name {
        "tcp" => {
            let TcpSinkFields { to, congestion, send } = reading.fields()?;
            let fields = TcpFields { congestion, send };
            of_tcp(reading, &fields)?;
            let TcpFields { congestion, send } = fields;
            (to, Over::Tcp { congestion, send })
        }
        _ => {
            let UdpSinkFields { to, datagram, socket_buffer } = reading.fields()?;
            let fields = UdpFields { datagram, socket_buffer };
            (to, Over::Udp(of_udp(reading, &fields)?))
        }
    };
    let parts = to.rsplit_once(':');
    let is_address = parts.is_some_and(|(host, port)| {
        !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0)
    });
    match is_address {
        true => Ok(SinkKind::Remote { to, over }),
        false => Err(reading.error("to", "a host and a port are wanted, such as \"daq7:5010\"")),
    }
}

/// Refuses blocks of another unit. Bytes may be anything.
fn unit(reading: &Reading<'_>, flow: &Flow, wanted: Unit) -> Result<(), String> {
    if flow.unit == wanted || flow.unit == Unit::Bytes {
        return Ok(());
    }
    let problem = format!("takes {}, but {} come", wanted.name(), flow.unit.name());
    Err(reading.error("kind", problem))
}

pub(super) fn cpus(reading: &Reading<'_>, place: Place) -> Result<Vec<u32>, String> {
    Problem::unless_cpus_exist("cpus", &place.cpus)
        .map_err(|Problem { text, .. }| reading.error("cpus", text))?;
    Ok(place.cpus)
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

pub(super) fn within(value: u64, bounds: RangeInclusive<u64>) -> Result<u64, String> {
    if bounds.contains(&value) {
        return Ok(value);
    }
    let (min, max) = bounds.into_inner();
    Err(format!("is {value}; {min} to {max} is wanted"))
}

pub(super) fn to_usize(value: u64) -> usize {
    usize::try_from(value).expect("checked against bounds far below")
}
