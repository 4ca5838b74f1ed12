//! What is asked of the engines: a scenario, what replaces parts of it, how long and where.

use std::time::Duration;

use clap::{ArgAction, Args, builder::BoolishValueParser, builder::TypedValueParser};
use daqmeter_harness::{Problem, Request};
use daqmeter_record::units::{self, UnitError};
use daqmeter_sys::host::parse_cpu_list;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::card::channel_ids;
use crate::scenario::{
    Bytes, Completion, Hertz, Nanos, ReaderMode, Scenario, ScenarioError, SourceKind,
};
use crate::source::Source;

/// A scenario, and what replaces parts of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema, Args)]
pub struct Chosen {
    /// Scenario: a name that ships, or a TOML file
    #[arg(default_value = "gbt")]
    pub scenario: String,
    /// Trigger rate
    #[arg(long = "rate", value_name = "RATE", value_parser = units::parse_rate_hz, help_heading = REPLACED)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_hz: Option<f64>,
    /// Polling interval; 0us never sleeps
    #[arg(long = "poll", value_name = "TIME", value_parser = microseconds, help_heading = REPLACED)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poll_us: Option<f64>,
    /// Sleep until the card's interrupt
    #[arg(
        id = "interrupt",
        long,
        action = ArgAction::SetTrue,
        value_parser = BoolishValueParser::new().map(|on| on.then_some(Completion::Interrupt)),
        conflicts_with = "poll_us",
        help_heading = REPLACED
    )]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion: std::option::Option<Completion>,
    /// Bytes of a chunk
    #[arg(long = "payload", value_name = "SIZE", value_parser = units::parse_bytes, help_heading = REPLACED)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_bytes: Option<u64>,
    /// Send blocks from the ring instead of copying chunks
    #[arg(
        id = "zero_copy",
        long = "zero-copy",
        action = ArgAction::SetTrue,
        value_parser = BoolishValueParser::new().map(|on| on.then_some(ReaderMode::ZeroCopy)),
        help_heading = REPLACED
    )]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: std::option::Option<ReaderMode>,
    /// tcp, or zenoh where that was built in
    #[arg(long, value_name = "NAME", help_heading = REPLACED)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// DMA channels of each device of the card
    #[arg(skip)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channels: Option<u16>,
    /// Triggers by their times and numbers, instead of at a rate
    #[arg(long, value_name = "FILE", conflicts_with = "rate_hz", help_heading = REPLACED)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger_file: Option<String>,
    /// BUSY from outside: 10ms/5%, or a file of times with on and off
    #[arg(long, value_name = "PATTERN", help_heading = REPLACED)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_pattern: Option<String>,
    /// Blocks of a recorded file; without --rate as fast as they are taken
    #[arg(long, value_name = "FILE", conflicts_with = "payload_bytes", help_heading = REPLACED)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<String>,
    /// Replay it over and over until the time is over
    #[arg(long = "loop", requires = "replay", help_heading = REPLACED)]
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replay_loop: bool,
}

const REPLACED: &str = "Instead of the scenario's";

fn microseconds(text: &str) -> Result<f64, UnitError> {
    units::parse_duration(text).map(|time| time.as_nanos() as f64 / 1e3)
}

fn nanoseconds(text: &str) -> Result<u64, String> {
    let time = units::parse_duration(text).map_err(|error| error.to_string())?;
    u64::try_from(time.as_nanos()).map_err(|_| format!("`{text}` is too long"))
}

fn seconds(text: &str) -> Result<f64, UnitError> {
    units::parse_duration(text).map(|time| time.as_secs_f64())
}

/// Longest polling interval.
const MAX_POLL_US: f64 = 1e6;

impl Chosen {
    /// The scenario with all that.
    ///
    /// # Errors
    /// When there is none, or the parts do not go together.
    pub fn load(&self) -> Result<Scenario, ScenarioError> {
        let mut scenario = self.outline()?;
        scenario.external_busy()?;
        if scenario.trigger.source == SourceKind::Times {
            let period_ns = Source::new(&scenario.trigger)?.period_ns();
            scenario.trigger.rate = Hertz(1e9 / period_ns);
        }
        if let Some(path) = &self.replay {
            let is_paced = self.rate_hz.is_some() || self.trigger_file.is_some();
            scenario.replay(path, is_paced, self.replay_loop)?;
        }
        scenario.check()?;
        Ok(scenario)
    }

    /// The same without the bytes of a recorded file.
    ///
    /// # Errors
    /// As [`Chosen::load`].
    pub fn outline(&self) -> Result<Scenario, ScenarioError> {
        self.check_replay()?;
        let mut scenario = Scenario::load(&self.scenario)?;
        if let Some(rate_hz) = self.rate_hz {
            scenario.trigger.rate = Hertz(rate_hz);
        }
        if let Some(poll_us) = self.poll_us {
            scenario.reader.poll = nanos(poll_us)?;
        }
        if let Some(bytes) = self.payload_bytes {
            scenario.card.payload = Bytes(usize::try_from(bytes).unwrap_or(usize::MAX));
        }
        if let Some(channels) = self.channels {
            scenario.card.channels = channels;
        }
        if let Some(mode) = self.mode {
            scenario.reader.mode = mode;
        }
        if let Some(completion) = self.completion {
            scenario.reader.completion = completion;
        }
        if let Some(transport) = &self.transport {
            scenario.publish.transport.clone_from(transport);
        }
        if let Some(path) = &self.trigger_file {
            scenario.trigger.source = SourceKind::Times;
            scenario.trigger.file = Some(path.clone());
        }
        if let Some(pattern) = &self.busy_pattern {
            scenario.trigger.external_busy = Some(pattern.clone());
        }
        if scenario.trigger.source == SourceKind::Times && self.rate_hz.is_some() {
            return Err(ScenarioError(
                "`rate_hz` does not go with a trigger file, which says when triggers come"
                    .to_owned(),
            ));
        }
        if self.replay.is_some() {
            (scenario.card.devices, scenario.card.channels) = (1, 1);
        }
        scenario.check()?;
        Ok(scenario)
    }

    /// Bytes of the recorded file, which is held in memory.
    pub fn replayed_bytes(&self) -> u64 {
        let path = self.replay.as_deref();
        let about = path.and_then(|path| std::fs::metadata(path).ok());
        about.map_or(0, |about| about.len())
    }

    fn check_replay(&self) -> Result<(), ScenarioError> {
        let excluded = [
            ("payload_bytes", self.payload_bytes.is_some()),
            ("channels", self.channels.is_some_and(|channels| channels > 1)),
        ];
        let refused = |what: String| Err(ScenarioError(what));
        match excluded.iter().find(|(_, is_there)| *is_there) {
            Some((name, _)) if self.replay.is_some() => refused(format!(
                "`{name}` does not go with `replay`: the file says what its one channel gives"
            )),
            _ if self.replay_loop && self.replay.is_none() => {
                refused("`replay_loop` does nothing without `replay`".to_owned())
            }
            _ => Ok(()),
        }
    }
}

fn nanos(poll_us: f64) -> Result<Nanos, ScenarioError> {
    let poll = Duration::try_from_secs_f64(poll_us / 1e6).ok();
    poll.filter(|_| poll_us <= MAX_POLL_US)
        .and_then(|poll| u64::try_from(poll.as_nanos()).ok())
        .map(Nanos)
        .ok_or_else(|| {
            ScenarioError(format!("`poll_us` is {poll_us}; 0 to {MAX_POLL_US} is wanted"))
        })
}

/// How many receivers there are, and where they run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema, Args)]
pub struct Receivers {
    /// Receivers, at most one per reader; one per reader without it
    #[arg(long, value_name = "N")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receivers: Option<usize>,
    /// CPUs of the receivers, in turn
    #[arg(
        long = "receiver-pin",
        value_name = "CPUS",
        value_parser = listed_cpus,
        help_heading = "Placement"
    )]
    #[serde(
        default,
        alias = "receiver_cpus",
        deserialize_with = "number_or_list",
        skip_serializing_if = "Option::is_none"
    )]
    pub peer_cpu: Option<String>,
}

/// A list of CPUs, or one as a number.
fn number_or_list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Cpus {
        One(u32),
        List(String),
    }
    Ok(Some(match Cpus::deserialize(deserializer)? {
        Cpus::One(cpu) => cpu.to_string(),
        Cpus::List(list) => list,
    }))
}

/// A list of CPUs as workloads write it: single ones, in turn.
fn listed_cpus(text: &str) -> Result<String, String> {
    let is_whole = text.split(',').all(|part| !parse_cpu_list(part).is_empty());
    if !is_whole {
        return Err(format!("`{text}` is not a list of CPUs such as 0,1 or 0-3"));
    }
    let cpus: Vec<String> = parse_cpu_list(text).iter().map(u32::to_string).collect();
    Ok(cpus.join(","))
}

impl Receivers {
    /// Their CPUs; none where they run anywhere.
    pub fn cpus(&self) -> Vec<u32> {
        self.peer_cpu.as_deref().map_or(Vec::new(), parse_cpu_list)
    }

    fn check(&self) -> Result<(), Problem> {
        if let Some(text) = self.peer_cpu.as_deref().filter(|text| !text.is_empty()) {
            listed_cpus(text)
                .map_err(|why| Problem::new("peer_cpu", format!("is wrong: {why}")))?;
        }
        Problem::unless_cpus_exist("peer_cpu", &self.cpus())
    }
}

/// Where the threads of a search run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// On the CPUs that are named.
    Pinned,
    /// Where the kernel puts them.
    Free,
}

/// A whole chain: emulated card, readers, receivers. A lane is a reader of one DMA channel; its one operation is the whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema, Args)]
#[serde(deny_unknown_fields)]
pub struct ReadoutRequest {
    /// The scenario
    #[command(flatten)]
    #[serde(flatten)]
    pub chosen: Chosen,
    /// Time for which triggers come
    #[arg(long = "time", value_name = "TIME", value_parser = seconds, default_value = "2s")]
    pub seconds: f64,
    /// The receivers
    #[command(flatten)]
    #[serde(flatten)]
    pub receivers: Receivers,
    /// Set sched_migration_cost_ns for the run, then put it back (root)
    #[arg(
        id = "migration_cost_ns",
        long = "migration-cost",
        value_name = "TIME",
        value_parser = nanoseconds,
        help_heading = "Placement"
    )]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration_cost_ns: Option<u64>,
    /// Whether a search pinned its threads
    #[arg(skip)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// No limit is measured beside it
    #[arg(skip)]
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub probe: bool,
}

/// Largest migration cost: with more, no task would ever be moved.
const MAX_MIGRATION_COST_NS: u64 = 1_000_000_000;

/// Longest run: a day.
const MAX_SECONDS: f64 = 86400.0;

impl Request for ReadoutRequest {
    const KIND: &'static str = "readout";

    fn check(&self) -> Result<(), Problem> {
        if !(self.seconds > 0.0 && self.seconds <= MAX_SECONDS) {
            let why = format!("is {}; above 0 and at most {MAX_SECONDS} is wanted", self.seconds);
            return Err(Problem::new("seconds", why));
        }
        if let Some(ns) = self.migration_cost_ns {
            Problem::unless_within("migration_cost_ns", ns, 0..=MAX_MIGRATION_COST_NS)?;
        }
        if let Some(receivers) = self.receivers.receivers {
            // A scenario that cannot be had is refused where it is loaded.
            let scenario = self.chosen.outline();
            let readers = scenario.map_or(usize::MAX, |one| channel_ids(&one).len());
            Problem::unless_within("receivers", receivers as u64, 1..=readers as u64)?;
        }
        self.receivers.check()
    }
}

/// Blocks of a scenario into descriptors of their subchunks. One operation is one pass over them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DecodeRequest {
    /// Read-out chain whose blocks are decoded
    pub scenario: String,
    /// Bytes of blocks, at most 16 GiB
    pub bytes: u64,
    /// DMA channels of each device of the card
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channels: Option<u16>,
    /// Bytes of a chunk
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_bytes: Option<u64>,
}

impl DecodeRequest {
    /// The scenario whose blocks are decoded.
    pub(crate) fn load(&self) -> Result<Scenario, ScenarioError> {
        let chosen = Chosen {
            scenario: self.scenario.clone(),
            channels: self.channels,
            payload_bytes: self.payload_bytes,
            ..Chosen::default()
        };
        chosen.load()
    }
}

impl Request for DecodeRequest {
    const KIND: &'static str = "decode";

    fn check(&self) -> Result<(), Problem> {
        Problem::unless_within("bytes", self.bytes, 1..=1 << 34)
    }
}

#[cfg(test)]
mod tests {
    use daqmeter_record::{Param, Workload};

    use super::*;

    fn workload() -> Workload {
        Workload::new("readout").with("scenario", "gbt").with("seconds", 0.5)
    }

    fn error(name: &str, value: Param) -> String {
        match ReadoutRequest::of(&workload().with(name, value)) {
            Ok(request) => request.chosen.load().unwrap_err().0,
            Err(error) => error.0,
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (name, value, wanted) in [
            ("poll_us", Param::Float(2e6), "`poll_us` is 2000000; 0 to"),
            ("poll_us", Param::Float(-1.0), "`poll_us` is -1; 0 to"),
            ("mode", "fast".into(), "`mode` is wrong: unknown variant `fast`"),
            ("completion", "polled".into(), "`completion` is wrong"),
            ("rate_hz", "1MHz".into(), "`rate_hz` is wrong: invalid type"),
            ("seconds", Param::Int(0), "`seconds` is 0; above 0"),
            (
                "migration_cost_ns",
                Param::Int(1_000_000_001),
                "`migration_cost_ns` is 1000000001; 0 to",
            ),
            ("receivers", Param::Int(0), "`receivers` is 0; 1 to 1"),
            ("receivers", Param::Int(100), "`receivers` is 100; 1 to 1"),
            ("speed", Param::Int(1), "unknown field `speed`"),
            ("peer_cpu", "a".into(), "is not a list of CPUs"),
            ("peer_cpu", "1022".into(), "no such CPU"),
            ("receiver_cpus", "1022".into(), "`peer_cpu` is 1022"),
        ] {
            let error = error(name, value);
            assert!(error.contains(wanted), "{name}: {error}");
        }
    }

    #[test]
    fn a_workload_of_before_is_read_and_keeps_what_it_did_not_say_unsaid() {
        let old = workload()
            .with("mode", "zero-copy")
            .with("channels", 2_u64)
            .with("poll_us", 100_u64)
            .with("receiver_cpus", "");
        let request = ReadoutRequest::of(&old).unwrap();
        assert_eq!(request.chosen.load().unwrap().reader.poll, Nanos(100_000));
        assert_eq!(
            request.workload().to_string(),
            "readout channels=2 mode=zero-copy peer_cpu='' poll_us=100 scenario=gbt seconds=0.5"
        );
    }

    #[test]
    fn the_parameters_of_a_flattened_request_are_listed() {
        let names: Vec<String> = daqmeter_harness::request::parameters::<ReadoutRequest>()
            .into_iter()
            .filter(|parameter| !parameter.about.is_empty())
            .map(|parameter| parameter.name)
            .collect();
        for name in ["scenario", "rate_hz", "completion", "peer_cpu", "seconds"] {
            assert!(names.iter().any(|known| known == name), "{name}: {names:?}");
        }
    }
}
