//! Request to the engine: the slave, the payload and the method.

use std::fmt::{self, Display};
use std::str::FromStr;

use clap::{Args, ValueEnum};
use daqmeter_harness::{Problem, usual};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::address::{Address, parse_number};
use crate::pingpong::Protocol;
use daqmeter_record::units::parse_duration;

/// Most words of one operation's payload; longer cycles fit streams only.
const MAX_COUNT: u64 = 100_000;

const MAX_CYCLES: u64 = 1 << 20;

/// Highest base of a payload in addresses of 32 bits: 64 KiB are read.
pub(super) const MAX_NARROW_BASE: u64 = (1 << 32) - (1 << 16);
/// Highest base of a payload: records hold whole numbers below 2^53.
const MAX_BASE: u64 = (1 << 53) - (1 << 16);

/// Highest channel of a timestamp latch: its core counts them in 5 bits.
const MAX_CHANNEL: u64 = 31;

const MAX_RETRIES: u64 = 1000;

const MAX_TIMEOUT_MS: u64 = 600_000;

const EMULATED_MEMORY: u64 = 0x10000;

const USUAL_CYCLES: u64 = 90;

/// Cycles over Etherbone. One operation is one cycle's worth of the payload, whatever the method.
///
/// On slaves that are not ours nothing is written but what `tlu` needs, and that only for the
/// channel that `pop_channel` gives away; `memory` needs a `base` and is read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, Args)]
#[serde(deny_unknown_fields)]
pub struct EtherboneRequest {
    /// Slave; loop/udp and loop/tcp start an emulated slave in this process
    #[arg(value_name = "SLAVE", default_value = "loop/udp")]
    pub address: SlaveAddress,
    /// How operations are sent: convenience, blocking or pipelined
    #[arg(skip = Method::Pipelined)]
    pub method: Method,
    /// What is read
    #[arg(long, value_enum, default_value = "timestamps")]
    pub payload: Payload,
    /// Timestamps, or words of memory, per cycle
    #[arg(skip = 1_u64)]
    #[serde(default = "daqmeter_harness::one::<u64>")]
    pub count: u64,
    /// Cycles of a series
    #[arg(short = 'n', long, value_name = "N", default_value_t = USUAL_CYCLES)]
    #[serde(default = "usual::<USUAL_CYCLES>")]
    pub cycles: u64,
    /// First address of --payload memory [default: the memory of loop/ and emu/], or of the device
    /// to read, if the bus has several
    #[arg(long, value_name = "ADDRESS", value_parser = parse_number)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<u64>,
    /// Channel of the timestamp latch that --payload tlu reads and empties
    #[arg(long, value_name = "N")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pop_channel: Option<u64>,
    /// Deadline of a cycle [default: 5s]
    #[arg(long = "timeout", value_name = "TIME", value_parser = whole_ms)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Times that lost cycles are sent again; the times then hold the wait
    #[arg(long, value_name = "N", default_value_t = 0, hide_short_help = true)]
    #[serde(default, skip_serializing_if = "daqmeter_harness::is_default")]
    pub retries: u64,
    /// Speak the dialect of LiteX, which reads memory a packet at a time
    #[arg(long)]
    #[serde(default, skip_serializing_if = "daqmeter_harness::is_default")]
    pub litex: bool,
    /// CPU of the server of loop/ [default: that of the client]
    #[arg(long = "server-pin", value_name = "CPU", help_heading = "Placement")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_cpu: Option<u32>,
}

/// How operations are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Each operation a round trip
    Convenience,
    /// Each cycle a round trip
    Blocking,
    /// Many cycles on their way at once
    Pipelined,
}

impl Method {
    pub const ALL: [Method; 3] = [Method::Convenience, Method::Blocking, Method::Pipelined];
}

daqmeter_harness::displayed!(Method);

/// What is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Payload {
    /// 64-bit times of the ECA
    Timestamps,
    /// 3 reads and 1 write of the timestamp latch, which drops a stamp
    Tlu,
    /// Words of memory
    Memory,
}

fn whole_ms(text: &str) -> Result<u64, String> {
    let time = parse_duration(text)?;
    u64::try_from(time.as_millis()).map_err(|_| format!("`{text}` is too long"))
}

/// Slave of a request: its address, or an emulated one that is started in this process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct SlaveAddress {
    /// As it was given, and of a bridge in a file with its digest.
    text: String,
    pub(super) target: Target,
}

impl FromStr for SlaveAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<SlaveAddress, String> {
        let target = match text {
            "loop/udp" => Target::Loop(Protocol::Udp),
            "loop/tcp" => Target::Loop(Protocol::Tcp),
            other => Target::At(Address::parse(other).map_err(|error| error.to_string())?),
        };
        let text = match &target {
            Target::At(emulated @ Address::Emulated(_)) => emulated.to_string(),
            _ => text.to_owned(),
        };
        Ok(SlaveAddress { text, target })
    }
}

daqmeter_harness::by_text!(SlaveAddress);

impl Display for SlaveAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl SlaveAddress {
    pub fn is_emulated(&self) -> bool {
        self.target.is_ours()
    }

    /// Digest of the file of an emulated bridge; empty for any other slave.
    pub fn digest(&self) -> &str {
        match &self.target {
            Target::At(Address::Emulated(bridge)) => bridge.digest(),
            _ => "",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Target {
    Loop(Protocol),
    At(Address),
}

impl Target {
    pub(super) fn is_ours(&self) -> bool {
        matches!(self, Target::Loop(_) | Target::At(Address::Emulated(_)))
    }
}

impl EtherboneRequest {
    pub(super) fn base(&self) -> u64 {
        self.base.unwrap_or(EMULATED_MEMORY)
    }

    pub(super) fn channel(&self) -> u64 {
        self.pop_channel.unwrap_or(0)
    }

    /// Returns the bytes that one operation is counted as: timestamps of 8, words of 4.
    pub(super) fn counted_bytes(&self) -> u64 {
        match self.payload {
            Payload::Timestamps => 8 * self.count,
            Payload::Tlu => 16,
            Payload::Memory => 4 * self.count,
        }
    }

    pub(super) fn batch(&self) -> u64 {
        match self.method {
            Method::Pipelined => self.cycles,
            Method::Convenience | Method::Blocking => 1,
        }
    }

    pub(super) fn checked(&self) -> Result<(), Problem> {
        let is_ours = self.address.target.is_ours();
        let is_latch = self.payload == Payload::Tlu;
        let is_unsaid = is_latch && !is_ours && self.pop_channel.is_none();
        let text = "is missing: the cycle drops stamps; say of which channel of the latch that may be done";
        Problem::when(is_unsaid, "pop_channel", text)?;
        let text = "is for the payload tlu: leave it out";
        Problem::when(!is_latch && self.pop_channel.is_some(), "pop_channel", text)?;
        let text = "would drop stamps twice: leave it out with the payload tlu";
        Problem::when(is_latch && self.retries > 0, "retries", text)?;
        Problem::unless_within("retries", self.retries, 0..=MAX_RETRIES)?;
        let text =
            "reads memory, a packet at a time: use it with payload memory and method blocking";
        let is_other = self.payload != Payload::Memory || self.method != Method::Blocking;
        Problem::when(self.litex && is_other, "litex", text)?;
        let text = format!("is {}; a packet of LiteX has 255 words at most", self.count);
        Problem::when(self.litex && self.count > 255, "count", text)?;
        let is_unsaid = self.payload == Payload::Memory && !is_ours && self.base.is_none();
        let text = "is missing: say which addresses of the slave may be read";
        Problem::when(is_unsaid, "base", text)?;
        Problem::unless_within("base", self.base(), 0..=MAX_BASE)?;
        Problem::unless_within("pop_channel", self.channel(), 0..=MAX_CHANNEL)?;
        let timeout_ms = self.timeout_ms.unwrap_or(MAX_TIMEOUT_MS);
        Problem::unless_within("timeout_ms", timeout_ms, 1..=MAX_TIMEOUT_MS)?;
        Problem::unless_within("count", self.count, 1..=MAX_COUNT)?;
        Problem::unless_within("cycles", self.cycles, 1..=MAX_CYCLES)?;
        Problem::unless_cpus_exist("peer_cpu", self.peer_cpu.as_slice())
    }
}
