//! Reads any text as addresses, descriptions of buses and of bridges, and profiles of crates: no
//! panic, and an accepted profile can be computed with.
#![no_main]

use daqmeter_digitizer::devices::sis8300::emulated::Profile;
use daqmeter_etherbone::Address;
use daqmeter_etherbone::bus::Description;
use daqmeter_etherbone::transport::Bridge;
use daqmeter_harness::{Loaded, TomlText};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(address) = Address::parse(text) {
        let shown = address.to_string();
        assert_eq!(Address::parse(&shown).expect("what is shown can be read").to_string(), shown);
    }
    let file = TomlText::new("file", text);
    if let Ok(description) = Description::parse(&file) {
        let _ = description.build();
    }
    let _ = Bridge::read(&file);
    if let Ok(profile) = Profile::read(&file) {
        let own = profile.board.iter().map(|board| board.own_bytes_per_s).take(8);
        let own: Vec<f64> = own.collect();
        assert_eq!(profile.uplink.rates(&own).len(), own.len());
    }
});
