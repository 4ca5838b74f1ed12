//! Requests to the engines: a scenario, replaced parts of it, a duration and a place.

use std::time::Duration;

use clap::{ArgAction, Args, builder::BoolishValueParser, builder::TypedValueParser};
use daqmeter_harness::{Fault, Job, Problem, Request};
use daqmeter_record::units::{self, UnitError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::decode;
use crate::scenario::{
    ByteSize, Hertz, Nanos, ReaderCompletion, ReaderMode, Scenario, ScenarioError,
};

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
        value_parser = BoolishValueParser::new().map(|on| on.then_some(ReaderCompletion::Interrupt)),
        conflicts_with = "poll_us",
        help_heading = REPLACED
    )]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion: std::option::Option<ReaderCompletion>,
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
    /// BUSY from outside, such as 10ms/5%
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

const MAX_POLL_US: f64 = 1e6;

impl Chosen {
    /// Loads the scenario with all replaced parts. Fails if they do not go together.
    pub fn load(&self) -> Result<Scenario, ScenarioError> {
        let mut scenario = self.outline()?;
        if let Some(path) = &self.replay {
            scenario.replay(path, self.rate_hz.is_some(), self.replay_loop)?;
        }
        scenario.check()?;
        Ok(scenario)
    }

    /// Loads the scenario without the bytes of a recorded file.
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
            scenario.card.payload = ByteSize(usize::try_from(bytes).unwrap_or(usize::MAX));
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
        if let Some(pattern) = &self.busy_pattern {
            scenario.trigger.external_busy = Some(pattern.clone());
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
    const DESCRIPTION: &'static str = "FELIX blocks to descriptors of their subchunks";

    fn example() -> DecodeRequest {
        DecodeRequest {
            scenario: "gbt".to_owned(),
            bytes: 1 << 20,
            channels: None,
            payload_bytes: None,
        }
    }

    fn job(&self) -> Result<Job, Fault> {
        decode::job(self)
    }

    fn check(&self) -> Result<(), Problem> {
        Problem::unless_within("bytes", self.bytes, 1..=1 << 34)
    }
}
