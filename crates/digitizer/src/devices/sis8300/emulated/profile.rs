//! Timing of a crate as data: a TOML file each.

use std::path::Path;

use daqmeter_harness::text_file;
use serde::Deserialize;

use super::uplink::UplinkModel;
use crate::daq::TRIGGER_RATES_HZ;
use crate::devices::sis8300::regs::Model;

const ESS_2017: &str = include_str!("../../../../profiles/ess-2017.toml");

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    pub name: String,
    pub source: String,
    #[serde(skip)]
    pub(crate) file: String,
    pub uplink: UplinkModel,
    pub acquisition: Acquisition,
    pub board: Vec<BoardRate>,
    pub cpu: CpuModel,
    pub conversion_ns_per_raw_byte: ConversionCost,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Acquisition {
    pub sample_rate_hz: f64,
    /// External trigger, unless the user sets another.
    pub trigger_rate_hz: f64,
    /// Time for which one register read holds the processor.
    pub register_read_ns: u64,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BoardRate {
    pub model: String,
    pub own_bytes_per_s: f64,
}

/// CPU use in per cent of one core per board: `poll * (1 - rate * read time)` when polling, `+
/// fixed + per_mb * MB`.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuModel {
    pub poll: f64,
    pub fixed: f64,
    /// Cost per MB (1e6 bytes) read per trigger.
    pub per_mb: f64,
}

/// Nanoseconds per raw byte of each operation.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConversionCost {
    pub cast: f64,
    pub decimate_1: f64,
    pub decimate_10: f64,
    pub scale: f64,
    pub scale_decimate_1: f64,
    pub unsigned_f64: f64,
    pub signed_f64: f64,
}

#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    #[error("profile `{0}` is neither shipped (ess-2017) nor a file that can be read: {1}")]
    Missing(String, std::io::Error),
    #[error("profile `{0}`: {1}")]
    Malformed(String, String),
    #[error("profile `{profile}`: {field} is {found}; it must be {wanted}")]
    Impossible {
        profile: String,
        field: &'static str,
        found: f64,
        /// Permitted range in words.
        wanted: &'static str,
    },
}

impl Default for Profile {
    fn default() -> Self {
        Profile::parse("ess-2017", ESS_2017).expect("the shipped profile is tested")
    }
}

impl Profile {
    /// Loads the shipped profile of that name, or the file at that path.
    pub fn load(name: &str) -> Result<Profile, ProfileError> {
        if name == "ess-2017" {
            return Ok(Profile::default());
        }
        let text = text_file(Path::new(name))
            .map_err(|error| ProfileError::Missing(name.to_owned(), error))?;
        Profile::parse(name, &text)
    }

    /// Parses and checks a profile.
    ///
    /// # Errors
    /// The line of malformed TOML, or the impossible field.
    pub fn parse(name: &str, text: &str) -> Result<Profile, ProfileError> {
        let mut profile: Profile = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(0, |span| text[..span.start].lines().count().max(1));
            ProfileError::Malformed(name.to_owned(), format!("line {line}: {}", error.message()))
        })?;
        name.clone_into(&mut profile.file);
        let positive = "a finite number above zero";
        let mut fields = vec![
            ("uplink.limit_bytes_per_s", profile.uplink.limit_bytes_per_s, positive),
            ("uplink.knee", profile.uplink.knee, positive),
            ("acquisition.sample_rate_hz", profile.acquisition.sample_rate_hz, positive),
            ("acquisition.trigger_rate_hz", profile.acquisition.trigger_rate_hz, positive),
        ];
        fields.extend(
            profile
                .board
                .iter()
                .map(|board| ("board.own_bytes_per_s", board.own_bytes_per_s, positive)),
        );
        let rate_hz = profile.acquisition.trigger_rate_hz;
        let rate = ("acquisition.trigger_rate_hz", rate_hz, "0.0001 to 10000000");
        let rate = Some(rate).filter(|_| !TRIGGER_RATES_HZ.contains(&rate_hz));
        match fields.into_iter().find(|(_, value, _)| !(value.is_finite() && *value > 0.0)).or(rate)
        {
            None => Ok(profile),
            Some((field, found, wanted)) => {
                Err(ProfileError::Impossible { profile: name.to_owned(), field, found, wanted })
            }
        }
    }

    pub fn own_bytes_per_s(&self, model: Model) -> Option<f64> {
        let name = match model {
            Model::Sis8300 => "8300",
            Model::L => "l",
            Model::L2 => "l2",
            Model::Ku => "ku",
        };
        self.board.iter().find(|board| board.model == name).map(|board| board.own_bytes_per_s)
    }

    /// Computes the CPU use of `boards` boards on the document's host, in per cent of one core.
    pub fn cpu_percent(
        &self,
        boards: u32,
        bytes: u64,
        read_s: f64,
        rate_hz: f64,
        polling: bool,
    ) -> f64 {
        let polled = if polling { self.cpu.poll * (1.0 - rate_hz * read_s).max(0.0) } else { 0.0 };
        f64::from(boards) * (polled + self.cpu.fixed + self.cpu.per_mb * bytes as f64 / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_shipped_profile_has_all_three_models() {
        let profile = Profile::default();
        for model in [Model::L, Model::L2, Model::Ku] {
            assert!(profile.own_bytes_per_s(model).unwrap() > 6e8);
        }
    }

    #[test]
    fn mistakes_are_named_with_line_or_field() {
        let error = Profile::parse("mine", "name = 'x'\nnonsense = 1\n").unwrap_err().to_string();
        assert!(error.contains("line"), "{error}");
        let text = ESS_2017.replace("limit_bytes_per_s = 3295.7e6", "limit_bytes_per_s = -1.0");
        let error = Profile::parse("mine", &text).unwrap_err().to_string();
        assert!(error.contains("uplink.limit_bytes_per_s is -1"), "{error}");
        for rate in ["1e-20", "1e308"] {
            let text =
                ESS_2017.replace("trigger_rate_hz = 14.0", &format!("trigger_rate_hz = {rate}"));
            let error = Profile::parse("mine", &text).unwrap_err().to_string();
            assert!(error.contains("acquisition.trigger_rate_hz"), "{error}");
        }
        assert!(Profile::load("/nonexistent/p.toml").unwrap_err().to_string().contains("ess-2017"));
    }

    #[test]
    fn the_cpu_model_gives_the_four_published_cases() {
        // 17, 4, 100 and 44 % in the document; read times from its tables.
        let profile = Profile::default();
        let cases = [(1, 600_000, 0.00125, true, 16.8), (1, 600_000, 0.00125, false, 4.0)];
        for (boards, bytes, read_s, polling, expected) in cases {
            let found = profile.cpu_percent(boards, bytes, read_s, 14.0, polling);
            assert!((found - expected).abs() < 0.3, "{found} against {expected}");
        }
        assert!((profile.cpu_percent(5, 6_000_000, 0.0108, 14.0, true) - 99.3).abs() < 0.6);
        assert!((profile.cpu_percent(5, 6_000_000, 0.0108, 14.0, false) - 44.0).abs() < 0.3);
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in "[ -~\n]{0,200}") {
            let _ = Profile::parse("fuzz", &text);
        }
    }
}
