//! A scenario from its name or its file.

use std::io::Read;
use std::path::Path;

use daqmeter_record::units;

use super::place::{Origin, one_line};
use super::spec::{Scenario, ScenarioError};

pub const SHIPPED: &[(&str, &str)] = &[
    ("gbt", include_str!("../../scenarios/gbt.toml")),
    ("full", include_str!("../../scenarios/full.toml")),
    ("felig", include_str!("../../scenarios/felig.toml")),
    ("nikhef", include_str!("../../scenarios/nikhef.toml")),
];

/// Longest file of a scenario: shipped ones are below 2 KiB.
const MAX_SCENARIO_BYTES: u64 = 1 << 20;

/// Reads a text file of at most `max_bytes`. Devices and pipes may never end.
pub(crate) fn read_text(path: &Path, max_bytes: u64) -> std::io::Result<String> {
    let mut text = String::new();
    let got = std::fs::File::open(path)?.take(max_bytes + 1).read_to_string(&mut text)?;
    if got as u64 > max_bytes {
        let what = format!("longer than {}", units::show_bytes(max_bytes));
        return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, what));
    }
    Ok(text)
}

impl Scenario {
    pub fn load(name: &str) -> Result<Scenario, ScenarioError> {
        if let Some((_, text)) = SHIPPED.iter().find(|(shipped, _)| *shipped == name) {
            return Scenario::parse(text, name);
        }
        let path = Path::new(name);
        let text = read_text(path, MAX_SCENARIO_BYTES).map_err(|error| {
            let names: Vec<&str> = SHIPPED.iter().map(|(name, _)| *name).collect();
            ScenarioError(format!(
                "cannot read the scenario {name}: {error}; shipped ones are {}",
                names.join(", ")
            ))
        })?;
        let stem =
            path.file_stem().map_or(name.to_owned(), |stem| stem.to_string_lossy().into_owned());
        let named = |error| ScenarioError(format!("{name}: {error}"));
        let mut scenario = Scenario::parse(&text, &stem).map_err(named)?;
        scenario.origin.file = Some(name.to_owned());
        Ok(scenario)
    }

    /// Parses a text; the name is for tables. The error names line and field.
    pub fn parse(text: &str, name: &str) -> Result<Scenario, ScenarioError> {
        let mut scenario: Scenario =
            toml::from_str(text).map_err(|error| ScenarioError(one_line(text, &error)))?;
        if scenario.name.is_empty() {
            name.clone_into(&mut scenario.name);
        }
        scenario.origin = Origin { file: None, text: text.into() };
        scenario.find_wrong().map_err(|wrong| ScenarioError(scenario.origin.located(&wrong)))?;
        Ok(scenario)
    }
}
