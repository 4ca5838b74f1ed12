//! Farms of the twin: any text is one that can be laid out or is refused in one line; a small one runs to its end.
#![no_main]

use daqmeter_twin::SECOND_PS;
use daqmeter_twin::farm::{Farm, Network, simulate};
use libfuzzer_sys::fuzz_target;

/// Of simulated time: even one message per ps of each sender is few events.
const TIME_PS: u64 = SECOND_PS / 100_000_000;

fn is_small(farm: &Farm) -> bool {
    farm.kinds.iter().all(|kind| kind.count <= 8)
        && farm.flows.len() <= 4
        && farm.flows.iter().all(|flow| flow.burst <= 16 && flow.gap_ps >= 1000)
}

fuzz_target!(|text: &str| {
    match Farm::parse(text, "fuzz") {
        Ok(mut farm) => {
            assert_eq!(farm.check(), Ok(()));
            if is_small(&farm) {
                farm.time_ps = farm.time_ps.min(TIME_PS);
                farm.warm_up_ps = 0;
                if let Ok(run) = simulate(&farm, &Network::new(&farm), 1) {
                    let all = run.totals();
                    let known = all.received + all.lost + all.refused + run.under_way.1;
                    assert_eq!(all.offered, known);
                }
            }
        }
        Err(error) => assert!(!error.to_string().contains('\n')),
    }
});
