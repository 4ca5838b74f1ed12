//! One file that describes a read-out: triggers, card, BUSY, faults, reader, network.
//!
//! Every field has a default; `daqmeter list scenarios` names those that ship.
//!
//! ```toml
//! [trigger]
//! source = "fixed"            # fixed, poisson
//! rate = "1MHz"
//! [card]
//! mode = "gbt"                # gbt, full
//! links = 3                   # per DMA channel
//! payload = "24B"
//! ring = "64MiB"
//! [[link]]                    # what is different about one link of every channel
//! link = 2
//! deficit = 0.0126
//! [busy]
//! assert_below = "14MiB"
//! [reader]
//! poll = "100us"
//! ```

mod check;
mod derived;
mod spec;

use std::path::Path;

use daqmeter_harness::text_file;

pub(crate) use self::check::MAX_PAYLOAD_BYTES;
pub use self::check::check_congestion;
pub use self::derived::{ElinkSpec, PartCounts};
pub use self::spec::{
    BlockSource, BusySettings, ByteSize, CardSettings, FaultKind, FaultSpec, Generation, Hertz,
    LinkSettings, Mode, Nanos, OnSlow, Publish, ReaderCompletion, ReaderMode, ReaderSettings,
    Scenario, TriggerKind, TriggerSettings,
};

/// Error in one line that names the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ScenarioError(pub String);

pub const SHIPPED: &[(&str, &str)] = &[
    ("gbt", include_str!("../scenarios/gbt.toml")),
    ("full", include_str!("../scenarios/full.toml")),
    ("felig", include_str!("../scenarios/felig.toml")),
    ("nikhef", include_str!("../scenarios/nikhef.toml")),
];

impl Scenario {
    /// Loads a scenario that ships, or that of a file.
    pub fn load(name: &str) -> Result<Scenario, ScenarioError> {
        if let Some((_, text)) = SHIPPED.iter().find(|(shipped, _)| *shipped == name) {
            return Scenario::parse(text, name);
        }
        let path = Path::new(name);
        let text = text_file(path).map_err(|error| {
            let names: Vec<&str> = SHIPPED.iter().map(|(name, _)| *name).collect();
            ScenarioError(format!(
                "cannot read the scenario {name}: {error}; shipped ones are {}",
                names.join(", ")
            ))
        })?;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        Scenario::parse(&text, &stem).map_err(|error| ScenarioError(format!("{name}: {error}")))
    }

    /// Parses a text; the name is for tables. The error names the field, and the line of a text
    /// that is no scenario.
    pub fn parse(text: &str, name: &str) -> Result<Scenario, ScenarioError> {
        let mut scenario: Scenario =
            toml::from_str(text).map_err(|error| ScenarioError(one_line(text, &error)))?;
        if scenario.name.is_empty() {
            name.clone_into(&mut scenario.name);
        }
        scenario.check()?;
        Ok(scenario)
    }
}

fn one_line(text: &str, error: &toml::de::Error) -> String {
    let message = error.message().replace('\n', " ");
    let before = error.span().and_then(|span| text.get(..span.start));
    before.map_or(message.clone(), |before| {
        let number = before.matches('\n').count();
        let line = text.lines().nth(number).unwrap_or("").trim();
        format!("line {} (`{line}`): {message}", number + 1)
    })
}

#[cfg(test)]
mod tests;
