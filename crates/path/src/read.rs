//! A path's file as a [`Path`]: every size, name and unit is checked before anything is opened.

mod kinds;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path as FilePath;

use daqmeter_digitizer::daq;
use daqmeter_harness::{TomlText, did_you_mean, text_input};
use daqmeter_record::path::{Brings, Served};
use daqmeter_record::units::{parse_bytes, parse_rate_hz};
use daqmeter_sys::memory::Pages;

use self::kinds::{
    Flow, Live, MAX_THREADS, NoFields, OF_CARD, card, convert, copy, cpus, decode, digitizer,
    etherbone, felix, file_sink, live_stage, memory, program, remote, replay, stand_in, tcp,
    to_usize, udp, within, zenoh,
};
use crate::definition::{
    Element, MAX_BUFFERS, Path, SinkKind, SourceKind, StageKind, Unit, digest, parse_rate,
};
use crate::file::{PathFile, Place, Reading, Serves};
use crate::setting::apply;

/// Paths that ship: one file in `paths/`, one line here.
pub const SHIPPED: &[(&str, &str)] = &[
    ("digitizer-crate", include_str!("../paths/digitizer-crate.toml")),
    ("copy-to-user", include_str!("../paths/copy-to-user.toml")),
    ("felix-card", include_str!("../paths/felix-card.toml")),
    ("felix-readout", include_str!("../paths/felix-readout.toml")),
    ("file-replay", include_str!("../paths/file-replay.toml")),
    ("pattern", include_str!("../paths/pattern.toml")),
    ("register-control", include_str!("../paths/register-control.toml")),
];

/// Reason for which a path cannot be used; one line that names file, line and field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PathError(String);

/// Bytes of a block: a page is the shortest that makes sense; the longest keeps all buffers below a
/// few GiB.
const BLOCK_BYTES: RangeInclusive<u64> = 64..=256 << 20;
const BUFFERS: RangeInclusive<u64> = 1..=MAX_BUFFERS as u64;
/// Default number of blocks: enough that neither thread waits for the other's wake-up.
const USUAL_BUFFERS: u64 = 8;
const MAX_STAGES: usize = 32;

const SOURCES: [&str; 6] = ["memory", "file", "digitizer", "felix", "etherbone", "card"];
const STAGES: [&str; 12] = [
    "copy", "convert", "decode", "checksum", "program", "tcp", "udp", "unix", "zenoh", "work",
    "wait", "to-host",
];
const SINKS: [&str; 5] = ["read", "file", "receiver", "tcp", "udp"];

impl Path {
    /// Loads a path by the name of a shipped one, or from a file. The error names file, line and
    /// field.
    pub fn load(name_or_path: &str) -> Result<Path, PathError> {
        Path::load_with(name_or_path, &[])
    }

    /// Loads it with other values for some fields, `FIELD=VALUE`: `block=128KiB`,
    /// `stage.1.threads=2`. Fields are `block`, `buffers`, `rate`, `lossless`, `pages`, and those
    /// of a source, a stage or a sink.
    pub fn load_with(name_or_path: &str, with: &[String]) -> Result<Path, PathError> {
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

    /// Parses the text of a path; `name` is for messages.
    pub fn parse(text: &str, name: &str) -> Result<Path, PathError> {
        Path::parse_with(text, name, &[])
    }

    pub(crate) fn parse_with(text: &str, name: &str, with: &[String]) -> Result<Path, PathError> {
        let text = TomlText { name: name.to_owned(), text: text.to_owned() };
        Reader { text: &text, with }.path().map_err(PathError)
    }
}

struct Reader<'a> {
    text: &'a TomlText,
    with: &'a [String],
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
        let stages: Result<Vec<_>, String> =
            (0..file.stage.len()).map(|at| self.stage(&file, at, &mut flow)).collect();
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
            with: self.with.to_vec(),
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
                false => Err(format!("is {bytes}; whole cache lines of 64 bytes are wanted")),
            });
        bytes.map(to_usize).map_err(|problem| self.text.error(given.span(), "block", problem))
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

    /// Refuses fields of blocks between threads: a card's reader has its ring instead.
    fn without_blocks(&self, file: &PathFile) -> Result<(), String> {
        let buffers = file.buffers.as_ref().map(|given| ("buffers", given.span()));
        let lossless = file.lossless.as_ref().map(|given| ("lossless", given.span()));
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
        let reading = Reading { text: self.text, what: "source".to_owned(), part: &file.source };
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
            SourceKind::Card { scenario, .. } => Some(Live::of(scenario)),
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
        let reading =
            Reading { text: self.text, what: format!("stage {}", at + 1), part: &file.stage[at] };
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
            "udp" => udp(&reading)?,
            "zenoh" => zenoh(&reading, flow)?,
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
        let reading = Reading { text: self.text, what: "sink".to_owned(), part: &file.sink };
        let name = known(&reading, &SINKS)?;
        let place = reading.place()?;
        let channels = flow.live.as_ref().map(|live| live.channels);
        match (place.threads, channels) {
            (Some(threads), Some(channels)) => {
                within(threads as u64, 1..=channels as u64)
                    .map_err(|problem| reading.error("threads", problem))?;
            }
            (Some(2..) | Some(0), None) => {
                return Err(reading.error("threads", "a sink has 1: leave the field out"));
            }
            _ => {}
        }
        let threads = place.threads.or(channels).unwrap_or(1);
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
            "tcp" | "udp" => remote(&reading, name)?,
            plain => {
                reading.fields::<NoFields>()?;
                match plain {
                    "read" => SinkKind::Read,
                    _ => SinkKind::Receiver,
                }
            }
        };
        // Source and sink may have one name.
        let name =
            if flow.names.contains_key(name) { format!("{name} sink") } else { name.to_owned() };
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

/// Threads of a stage: as many as before it, or one on either side.
fn threads(
    reading: &Reading<'_>,
    place: &Place,
    kind: &StageKind,
    flow: &mut Flow,
) -> Result<usize, String> {
    let threads = place.threads.unwrap_or(1);
    if !(1..=MAX_THREADS).contains(&threads) {
        return Err(reading.error("threads", format!("is {threads}; 1 to {MAX_THREADS} is wanted")));
    }
    if kind.has_two_ends() && threads > 1 {
        return Err(reading.error("threads", "this stage has one at each end: leave the field out"));
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

fn known<'a>(reading: &Reading<'_>, kinds: &[&'a str]) -> Result<&'a str, String> {
    let kind = reading.kind()?;
    kinds.iter().find(|known| **known == kind).copied().ok_or_else(|| {
        let hint = did_you_mean(kind, kinds);
        let problem = format!("there is no `{kind}`; there are {}{hint}", kinds.join(", "));
        reading.error("kind", problem)
    })
}
