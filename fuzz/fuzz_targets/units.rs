//! Reads any text as a number with a unit, a CPU list, a size of sysfs: no panic.
#![no_main]

use daqmeter_record::units;
use daqmeter_sys::host;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(count) = units::parse_count(text) {
        assert_eq!(units::parse_count(&count.to_string()), Ok(count));
    }
    let _ = (units::parse_bytes(text), units::parse_duration(text), units::parse_rate_hz(text));
    let _ = (host::parse_cpu_list(text).len(), host::parse_kib(text), host::bracketed(text));
});
