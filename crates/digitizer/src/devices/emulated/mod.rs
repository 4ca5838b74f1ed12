//! Boards that do not exist, in a crate that does not exist, with the timing of one that did.

mod device;
mod profile;
mod trigger;
pub mod uplink;

use std::sync::{Arc, Mutex};

use daqmeter_harness::Fault;
use daqmeter_sys::clock;

pub use device::{EmulatedBoard, Faults, pattern_sample};
pub use profile::{Profile, ProfileError};
use uplink::Uplink;

use super::sis8300::regs::Model;

/// A crate of emulated boards that share an uplink and a trigger.
#[derive(Debug)]
pub struct EmulatedCrate {
    profile: Profile,
    /// None when unpaced: boards then move data as fast as memory does.
    uplink: Option<Mutex<Uplink>>,
    /// Time zero of the trigger source.
    epoch_ns: u64,
}

impl EmulatedCrate {
    /// A crate with the timing of the profile, or without any.
    pub fn new(profile: Profile, paced: bool) -> Arc<EmulatedCrate> {
        let uplink = paced.then(|| Mutex::new(Uplink::new(profile.uplink)));
        Arc::new(EmulatedCrate {
            profile,
            uplink,
            epoch_ns: clock::monotonic_ns(),
        })
    }

    /// Its profile.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Plugs a board in: `l0`, `l2-1`, `ku0`, with faults behind a colon (`l0:gone-after=5`).
    ///
    /// # Errors
    /// When the name is no board, or the profile has no such model.
    pub fn board(self: &Arc<Self>, device: &str, name: &str) -> Result<EmulatedBoard, Fault> {
        let (name, faults) = name.split_once(':').unwrap_or((name, ""));
        let wrong = || {
            Fault::new(format!(
                "`{device}` is no emulated board; write emu:l0, emu:l2-0 or emu:ku0 (any number), or a range emu:l0..4"
            ))
        };
        let (model, slot) = parse_name(name).ok_or_else(wrong)?;
        let faults =
            Faults::parse(faults).map_err(|why| Fault::new(format!("`{device}`: {why}")))?;
        let own = self.profile.own_bytes_per_s(model);
        let own = own.ok_or_else(|| {
            Fault::new(format!(
                "profile {} has no {}",
                self.profile.name,
                model.name()
            ))
        })?;
        EmulatedBoard::new(device, model, slot, own, faults, Arc::clone(self))
    }
}

/// `l2-1` before `l2`: the first is board 1 of model L2, the second board 2 of model L.
fn parse_name(name: &str) -> Option<(Model, u32)> {
    let stems = [("l2-", Model::L2), ("ku", Model::Ku), ("l", Model::L)];
    stems
        .into_iter()
        .find_map(|(stem, model)| Some((model, name.strip_prefix(stem)?.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn board_names() {
        assert_eq!(parse_name("l0"), Some((Model::L, 0)));
        assert_eq!(parse_name("l2"), Some((Model::L, 2)));
        assert_eq!(parse_name("l2-1"), Some((Model::L2, 1)));
        assert_eq!(parse_name("ku12"), Some((Model::Ku, 12)));
        assert_eq!(parse_name("x0"), None);
        assert_eq!(parse_name("l"), None);
    }

    #[test]
    fn a_name_that_is_no_board_is_refused_with_an_example() {
        let crate_ = EmulatedCrate::new(Profile::default(), false);
        let error = crate_.board("emu:q1", "q1").err().unwrap();
        assert!(error.0.contains("emu:l0"), "{error}");
    }
}
