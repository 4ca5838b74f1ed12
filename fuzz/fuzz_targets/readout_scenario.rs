//! Scenarios: any text is one or is refused in one line, and one that is taken has sizes that go together.
#![no_main]

use daqmeter_readout::Scenario;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match Scenario::parse(text, "fuzz") {
        Ok(scenario) => {
            assert!(scenario.format().is_some() && scenario.pointer_gap() < scenario.card.ring.0 / 2);
            assert!(!scenario.elinks(0, 0).is_empty());
        }
        Err(error) => assert!(!error.to_string().contains('\n')),
    }
});
