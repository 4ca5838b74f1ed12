//! Timing of a crate as data: a TOML file each.

use daqmeter_harness::{Loaded, Resolved, Shipped, TomlText};
use daqmeter_record::units::TRIGGER_RATES_HZ;
use serde::Deserialize;

use super::uplink::UplinkModel;
use crate::devices::sis8300::regs::Model;

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
    /// Time of function 5 in nanoseconds per raw byte.
    pub unsigned_f64_ns: f64,
}

impl Default for Profile {
    fn default() -> Self {
        Profile::clone(&Resolved::default())
    }
}

impl Loaded for Profile {
    /// The first is the crate of the source document.
    const SHIPPED: Shipped = Shipped {
        kind: "profile",
        files: &[("ess-2017", include_str!("../../../../profiles/ess-2017.toml"))],
    };

    /// Reads and checks a profile.
    fn read(file: &TomlText) -> Result<Profile, String> {
        let mut profile: Profile = file.parse()?;
        file.name.clone_into(&mut profile.file);
        let Profile { uplink, acquisition, board: boards, cpu, .. } = &profile;
        let positive = f64::MIN_POSITIVE..=f64::MAX;
        let mut fields = vec![
            ("uplink.limit_bytes_per_s", uplink.limit_bytes_per_s, positive.clone()),
            ("uplink.knee", uplink.knee, positive.clone()),
            ("acquisition.sample_rate_hz", acquisition.sample_rate_hz, positive.clone()),
            ("acquisition.trigger_rate_hz", acquisition.trigger_rate_hz, TRIGGER_RATES_HZ),
        ];
        let not_negative = [
            ("uplink.share", uplink.share),
            ("uplink.startup_ms", uplink.startup_ms),
            ("uplink.startup_ns_per_byte", uplink.startup_ns_per_byte),
            ("uplink.again_us", uplink.again_us),
            ("uplink.linger_us", uplink.linger_us),
            ("cpu.poll", cpu.poll),
            ("cpu.fixed", cpu.fixed),
            ("cpu.per_mb", cpu.per_mb),
            ("cpu.unsigned_f64_ns", cpu.unsigned_f64_ns),
        ];
        fields.extend(not_negative.map(|(name, value)| (name, value, 0.0..=f64::MAX)));
        let rates = boards.iter().map(|board| board.own_bytes_per_s);
        fields.extend(rates.map(|rate| ("board.own_bytes_per_s", rate, positive.clone())));
        match fields.into_iter().find(|(_, value, bounds)| !bounds.contains(value)) {
            None => Ok(profile),
            Some((field, found, bounds)) => {
                let (min, max) = bounds.into_inner();
                let name = &file.name;
                Err(format!("{name}: {field} is {found:e}; {min:e} to {max:e} is wanted"))
            }
        }
    }
}

impl Profile {
    pub fn own_bytes_per_s(&self, model: Model) -> Option<f64> {
        let board = self.board.iter().find(|board| board.model == model.in_profiles);
        board.map(|board| board.own_bytes_per_s)
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

    #[test]
    fn the_shipped_profile_has_all_three_models() {
        let profile = Profile::default();
        for model in [Model::L, Model::L2, Model::KU] {
            assert!(profile.own_bytes_per_s(model).unwrap() > 6e8);
        }
    }

    #[test]
    fn mistakes_are_named_with_line_or_field() {
        let refused = |text: &str| Profile::read(&TomlText::new("mine", text)).unwrap_err();
        let error = refused("name = 'x'\nnonsense = 1\n");
        assert!(error.starts_with("mine:2: unknown field `nonsense`"), "{error}");
        let shipped = Profile::SHIPPED.files[0].1;
        for (field, found, wrong) in [
            ("limit_bytes_per_s", "3295.7e6", "-1.0"),
            ("knee", "7.46", "inf"),
            ("trigger_rate_hz", "14.0", "1e-20"),
            ("trigger_rate_hz", "14.0", "1e308"),
        ] {
            let line = |value: &str| format!("{field} = {value}\n");
            let error = refused(&shipped.replace(&line(found), &line(wrong)));
            assert!(error.contains(&format!("{field} is ")), "{error}");
        }
        assert!(
            "/nonexistent/p.toml".parse::<Resolved<Profile>>().unwrap_err().contains("ess-2017")
        );
    }

    #[test]
    fn the_cpu_model_gives_the_four_published_cases() {
        // 17, 4, 100 and 44 % in the document; read times from its tables.
        let profile = Profile::default();
        for (boards, bytes, read_s, polling, expected) in [
            (1, 600_000, 0.00125, true, 16.8),
            (1, 600_000, 0.00125, false, 4.0),
            (5, 6_000_000, 0.0108, true, 99.3),
            (5, 6_000_000, 0.0108, false, 44.0),
        ] {
            let found = profile.cpu_percent(boards, bytes, read_s, 14.0, polling);
            assert!((found - expected).abs() < 0.3, "{found} against {expected}");
        }
    }
}
