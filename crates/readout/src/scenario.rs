//! One file that describes a read-out: triggers, card, BUSY, faults, reader, network.
//!
//! Every field has a default; `daqmeter list scenarios` names those that ship.
//!
//! ```toml
//! [trigger]
//! source = "fixed"            # fixed, poisson
//! rate = "1MHz"              # or times = "FILE"
//! [card]
//! mode = "gbt"                # gbt, full
//! links = 3                   # per DMA channel
//! payload = "24B"
//! ring = "64MiB"
//! deficits = [0, 0, 0.0126]   # share of triggers for which each link has no fragment
//! [busy]
//! assert_below = "14MiB"
//! outside = "FILE"            # intervals of BUSY of other detectors
//! [reader]
//! poll = "100us"
//! ```

mod check;
mod derived;
mod spec;

use std::path::Path;

use daqmeter_harness::{Loaded, Resolved, Shipped, TomlText};

pub(crate) use self::check::{MAX_CHANNELS, MAX_ELINKS};
pub use self::derived::ElinkSpec;
pub use self::spec::{
    BlockSource, BusySettings, CardSettings, FaultKind, FaultSpec, Generation, Mode, OnSlow,
    Publish, ReaderCompletion, ReaderSettings, Scenario, TriggerKind, TriggerSettings,
};

impl Scenario {
    /// Loads a scenario that ships, or that of a file.
    pub fn load(name: &str) -> Result<Scenario, String> {
        name.parse().map(|found: Resolved<Scenario>| Scenario::clone(&found))
    }

    /// Parses a text; the name is for tables.
    pub fn parse(text: &str, name: &str) -> Result<Scenario, String> {
        Scenario::read(&TomlText::new(name, text))
    }
}

impl Loaded for Scenario {
    const SHIPPED: Shipped = Shipped {
        kind: "scenario",
        files: &[
            ("gbt", include_str!("../scenarios/gbt.toml")),
            ("full", include_str!("../scenarios/full.toml")),
            ("felig", include_str!("../scenarios/felig.toml")),
            ("nikhef", include_str!("../scenarios/nikhef.toml")),
        ],
    };

    fn read(file: &TomlText) -> Result<Scenario, String> {
        let mut scenario: Scenario = file.parse()?;
        if scenario.name.is_empty() {
            let stem = Path::new(&file.name).file_stem().unwrap_or_default();
            scenario.name = stem.to_string_lossy().into_owned();
        }
        scenario.take_rate();
        scenario.check().map_err(|error| format!("{}: {error}", file.name))?;
        Ok(scenario)
    }

    fn digests(&self) -> String {
        let named = [&self.trigger.times, &self.busy.outside];
        named.into_iter().flatten().map(Resolved::digest).collect()
    }
}

#[cfg(test)]
mod tests;
