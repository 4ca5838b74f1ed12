//! A scenario of which a request replaces parts.

use std::time::Duration;

use clap::{ArgAction, Args, builder::BoolishValueParser, builder::TypedValueParser};
use daqmeter_harness::Resolved;
use daqmeter_record::units;
use daqmeter_record::written::{ByteSize, Hertz, Nanos};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::pattern::Pattern;
use crate::scenario::{ReaderCompletion, Scenario};

/// A scenario, and what replaces parts of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema, Args)]
pub struct Chosen {
    /// Scenario: a shipped name or a TOML file
    #[arg(default_value = "gbt")]
    pub scenario: Resolved<Scenario>,
    /// Trigger rate
    #[arg(long = "rate", value_name = "RATE", value_parser = units::parse_rate_hz, help_heading = REPLACED)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_hz: Option<f64>,
    /// Polling interval; 0us never sleeps
    #[arg(long = "poll", value_name = "TIME", value_parser = units::parse_us, help_heading = REPLACED)]
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
    /// Times of the triggers: a file, or trains
    #[arg(long, value_name = "FILE", conflicts_with = "rate_hz", help_heading = REPLACED, hide_short_help = true)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger_times: Option<Resolved<Pattern>>,
    /// Intervals of BUSY from outside: a file of begins and ends
    #[arg(long, value_name = "FILE", help_heading = REPLACED, hide_short_help = true)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_outside: Option<Resolved<Pattern>>,
    /// Bytes of a chunk
    #[arg(long = "payload", value_name = "SIZE", value_parser = units::parse_bytes, help_heading = REPLACED)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_bytes: Option<u64>,
    /// DMA channels of each device of the card
    #[arg(skip)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channels: Option<u16>,
}

const REPLACED: &str = "Instead of the scenario's";

const MAX_POLL_US: f64 = 1e6;

impl Chosen {
    /// Digests of all files that it names.
    pub fn digests(&self) -> String {
        let files = [&self.trigger_times, &self.busy_outside].into_iter().flatten();
        files.fold(self.scenario.digest().to_owned(), |all, file| all + file.digest())
    }

    /// Returns the scenario with all replaced parts. Fails if they do not go together.
    pub fn completed(&self) -> Result<Scenario, String> {
        let mut scenario = Scenario::clone(&self.scenario);
        let times = self.trigger_times.clone().or(scenario.trigger.times.take());
        scenario.trigger.times = times;
        scenario.take_rate();
        let Scenario { trigger, card, busy, reader, .. } = &mut scenario;
        busy.outside = self.busy_outside.clone().or(busy.outside.take());
        trigger.rate = self.rate_hz.map_or(trigger.rate, Hertz);
        reader.poll = self.poll_us.map_or(Ok(reader.poll), nanos)?;
        reader.completion = self.completion.unwrap_or(reader.completion);
        let bytes = |bytes| ByteSize(usize::try_from(bytes).unwrap_or(usize::MAX));
        card.payload = self.payload_bytes.map_or(card.payload, bytes);
        card.channels = self.channels.unwrap_or(card.channels);
        scenario.check()?;
        Ok(scenario)
    }
}

fn nanos(poll_us: f64) -> Result<Nanos, String> {
    let poll = Duration::try_from_secs_f64(poll_us / 1e6).ok();
    poll.filter(|_| poll_us <= MAX_POLL_US)
        .and_then(|poll| u64::try_from(poll.as_nanos()).ok())
        .map(Nanos)
        .ok_or_else(|| format!("`poll_us` is {poll_us}; 0 to {MAX_POLL_US} is wanted"))
}
