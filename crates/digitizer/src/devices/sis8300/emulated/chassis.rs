//! Shared parts of a crate's boards: the uplink and the trigger.

use std::sync::{Arc, Mutex};

use daqmeter_sys::clock;

use super::profile::Profile;
use super::uplink::Uplink;

#[derive(Debug)]
pub struct EmulatedCrate {
    pub(super) profile: Profile,
    /// `None` when unpaced: boards then move data as fast as memory does.
    pub(super) uplink: Option<Mutex<Uplink>>,
    pub(super) epoch_ns: u64,
}

impl EmulatedCrate {
    pub fn new(profile: Profile, paced: bool) -> Arc<EmulatedCrate> {
        let uplink = paced.then(|| Mutex::new(Uplink::new(profile.uplink)));
        Arc::new(EmulatedCrate { profile, uplink, epoch_ns: clock::monotonic_ns() })
    }

    pub fn profile(&self) -> &Profile {
        &self.profile
    }
}
