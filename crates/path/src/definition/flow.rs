//! Blocks on their way from element to element while a path is read, and the fields of a table.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;

use daqmeter_harness::{Fault, Problem, Resolved, nearest_of};
use daqmeter_readout::Scenario;
use daqmeter_record::written::ByteSize;
use daqmeter_sys::net::check_congestion;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::Value;

/// Memory that a source makes blocks from, and the largest file of a sink.
pub(crate) const SPAN_BYTES: RangeInclusive<usize> = 64..=16 << 30;

/// Content of blocks, by its name.
pub(crate) type Unit = &'static str;
pub(crate) const BYTES: Unit = "bytes";
pub(crate) const SAMPLES: Unit = "samples";
pub(crate) const NUMBERS: Unit = "converted samples";
pub(crate) const FELIX: Unit = "FELIX blocks";
pub(crate) const TIMES: Unit = "times";
/// FELIX blocks in the ring into which a card writes them.
pub(crate) const RING: Unit = "a card's ring";
pub(crate) const PAGES: Unit = "pages";
pub(crate) const SENT: Unit = "pages that were sent";

pub(crate) const OF_CARD: &str = "needs the source `card`, whose ring is read out live";
pub(crate) const BEHIND_CARD: &str =
    "a card is read out by `to-host`, then `tcp`, then the sink `receiver`";
const IN_TO_HOST: &str = "this part works in the threads of `to-host`: say it there";

/// Fields of every element.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Place {
    pub(crate) cpus: Vec<u32>,
    /// True if a sink takes the blocks in the order of the source.
    pub(crate) ordered: bool,
}

impl Place {
    /// Refuses CPUs: a card and its publisher work in the threads of their reader.
    pub(crate) fn without_thread(&self) -> Result<(), Fault> {
        unless(self.cpus.is_empty(), "cpus", IN_TO_HOST)
    }
}

/// Refuses the value of a table's key, unless it is sound.
pub(crate) fn unless(is_sound: bool, key: &str, problem: impl Display) -> Result<(), Fault> {
    if is_sound { Ok(()) } else { wrong(key, problem) }
}

/// Refuses the value of a table's key.
pub(crate) fn wrong<T>(key: &str, problem: impl Display) -> Result<T, Fault> {
    Err(Fault::new(format!("{key}: {problem}")))
}

/// Reads a value; the error names its key and the nearest name for an unknown one.
pub(crate) fn fields<T: DeserializeOwned>(value: Value) -> Result<T, Fault> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let message = error.inner().message().replace('\n', " ");
        let problem = format!("{message}{}", nearest_of(&message));
        let key = error.path().iter().next_back().map(ToString::to_string);
        Fault::new(match key.filter(|key| !["?", ".", ""].contains(&key.as_str())) {
            Some(key) => format!("{key}: {problem}"),
            None => problem,
        })
    })
}

/// Numbers of a block.
#[derive(Clone, Debug)]
pub(crate) struct Numbers {
    /// Type, as numpy writes it: `<u2`.
    pub(crate) dtype: &'static str,
    /// Channels and samples, or samples alone.
    pub(crate) shape: Vec<usize>,
}

/// Blocks on their way from element to element.
pub(crate) struct Flow {
    pub(crate) bytes: usize,
    pub(crate) unit: Unit,
    /// Samples or numbers of a block, if they are of one type.
    pub(crate) numbers: Option<Numbers>,
    /// Scenario of blocks that a card would make.
    pub(crate) scenario: Option<Resolved<Scenario>>,
    /// Scenario of a card that is read out live.
    pub(crate) live: Option<Box<Scenario>>,
    pub(crate) names: BTreeMap<String, usize>,
    /// Names of the streams of the source.
    pub(crate) streams: Vec<String>,
}

impl Flow {
    pub(crate) fn of(bytes: usize) -> Flow {
        Flow {
            bytes,
            unit: BYTES,
            numbers: None,
            scenario: None,
            live: None,
            names: BTreeMap::new(),
            streams: Vec::new(),
        }
    }

    /// Blocks in the rings of a card.
    pub(crate) fn of_card(scenario: Scenario) -> Flow {
        let bytes = scenario.card.ring.0;
        Flow { unit: RING, live: Some(Box::new(scenario)), ..Flow::of(bytes) }
    }

    /// Name of the next element of that kind, with a number if there was one before.
    pub(crate) fn name(&mut self, kind: &str) -> String {
        let seen = self.names.entry(kind.to_owned()).or_insert(0);
        *seen += 1;
        match *seen {
            1 => kind.to_owned(),
            n => format!("{kind} {n}"),
        }
    }

    /// Refuses behind a card what is no part of its read-out.
    pub(crate) fn takes_kind(&self, name: &str) -> Result<(), Fault> {
        let is_of_card = ["to-host", "tcp", "receiver"].contains(&name);
        unless(self.live.is_none() || is_of_card, "kind", BEHIND_CARD)
    }

    /// Numbers of a block, if no stage made something else of them.
    pub(crate) fn known_numbers(&self) -> Option<Numbers> {
        self.numbers.clone().filter(|_| [SAMPLES, NUMBERS].contains(&self.unit))
    }

    /// Refuses blocks of another unit. Bytes may be anything.
    pub(crate) fn takes(&self, wanted: Unit) -> Result<(), Fault> {
        let problem = format_args!("takes {wanted}, but {} come", self.unit);
        unless(self.unit == wanted || self.unit == BYTES, "kind", problem)
    }

    /// Checks a span of memory, and rounds it to whole blocks.
    pub(crate) fn whole_blocks(&self, span: &mut ByteSize) -> Result<(), Fault> {
        Problem::unless_within("span", span.0, SPAN_BYTES)?;
        span.0 = span.0.max(self.bytes) / self.bytes * self.bytes;
        Ok(())
    }
}

/// Default of a size.
pub(crate) fn bytes<const N: usize>() -> ByteSize {
    ByteSize(N)
}

/// Refuses a congestion control that this host's kernel does not have.
pub(crate) fn known_congestion(name: Option<&String>) -> Result<(), Fault> {
    name.map_or(Ok(()), |name| check_congestion(name))
        .or_else(|problem| wrong("congestion", problem))
}

/// Congestion control that differs from the host's own, in a text.
pub(crate) fn by(congestion: Option<&String>) -> String {
    congestion.map_or_else(String::new, |name| format!(", {name}"))
}
