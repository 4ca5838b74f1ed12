//! Reads any text as a crate's profile: no panic, and an accepted profile can be computed with.
#![no_main]

use daqmeter_digitizer::devices::sis8300::emulated::Profile;
use daqmeter_harness::{Loaded, TomlText};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(profile) = Profile::read(&TomlText::new("fuzz", text)) {
        let own: Vec<f64> =
            profile.board.iter().map(|board| board.own_bytes_per_s).take(8).collect();
        let rates = profile.uplink.rates(&own);
        assert_eq!(rates.len(), own.len());
    }
});
