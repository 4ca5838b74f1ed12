//! Reads any text as addresses, descriptions of buses and of bridges.
#![no_main]

use daqmeter_etherbone::Address;
use daqmeter_etherbone::bus::Description;
use daqmeter_etherbone::transport::Bridge;
use daqmeter_harness::TomlText;
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
    let _ = Bridge::parse(&file);
});
