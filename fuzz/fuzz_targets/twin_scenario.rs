//! Scenarios of the twin: any text is one that can run or is refused in one line; a short one runs to its end.
#![no_main]

use daqmeter_twin::{Arrivals, MAX_STATIONS, Model, SECOND_PS, Scenario, run};
use libfuzzer_sys::fuzz_target;

/// Of simulated time: even one item per ps is few events.
const TIME_PS: u64 = SECOND_PS / 100_000_000;

/// Whether it has few events: items that do not go in circles, and few at once.
fn is_short(model: &Model) -> bool {
    let mut stations = model.stations.iter().enumerate();
    let is_forward =
        stations.all(|(at, station)| station.to.iter().chain(&station.lost_to).all(|to| *to > at));
    let is_few =
        |arrivals: &Arrivals| matches!(arrivals, Arrivals::Open { burst, .. } if *burst <= 100);
    is_forward
        && model.stations.len() + model.sources.len() < 16
        && model.sources.iter().all(|source| is_few(&source.arrivals) && source.to.len() < 16)
}

fuzz_target!(|text: &str| {
    match Scenario::parse(text, "fuzz") {
        Ok(scenario) => {
            let mut model = scenario.model;
            assert_eq!(model.check(), Ok(()));
            assert!(model.stations.len() <= MAX_STATIONS);
            if is_short(&model) {
                model.time_ps = model.time_ps.min(TIME_PS);
                model.warm_up_ps = 0;
                drop(run(&model, 1));
            }
        }
        Err(error) => assert!(!error.to_string().contains('\n')),
    }
});
