use daqmeter_record::study::Published;
use daqmeter_wire::felix::payload::TTC_BYTES;

use super::Document;
use super::arithmetic::{block_share, format};

/// Polling every 1 ms at 1 MHz is "just possible", 45 % of a core are used in FULL mode, 24 E-links
/// cost a receiver `receiver_half_percent` at 800 kHz: the work for a trigger follows from each. The
/// rows are published figures that none of these went into.
#[test]
fn published_figures_follow_from_costs_that_were_fitted_to_others() {
    let published = Document::default();
    let (input, output) = (&published.input, &published.output);
    let look_us = input.poll_cost_us;
    let gbt_us = 1.0 - look_us / 1000.0;
    let full_share = 0.45 - look_us / input.full_poll_us;
    let receiver_us = 2.0 * output.computed.receiver_half_percent.value().unwrap() / 100.0 / 0.8;
    let cpu = |load: f64| (look_us / 10.0 + load).min(1.0) * 100.0;
    let bystander = |poll_us: f64| {
        let idle = published.idle.iter().find(|idle| idle.poll_us == poll_us).unwrap();
        idle.rngd_percent.value().unwrap() / 100.0
    };
    let event =
        input.links_per_channel as f64 * block_share(format(&published), input.full_payload);
    let ttc = block_share(format(&published), TTC_BYTES);
    let first_fills_s = input.busy_used_bytes / ((event + ttc) * (1100.0 - input.full_khz) * 1e3);
    let filled = |is_chosen: fn(usize) -> bool| {
        let seen = output.occupancy_1100_bytes.iter().enumerate();
        let chosen: Vec<Published> =
            seen.filter(|(at, _)| is_chosen(*at)).map(|(_, seen)| seen.clone()).collect();
        Published::span(&chosen, "after 30 s").unwrap()
    };
    let core_0 = |poll_us: f64, looks: f64| {
        let left = 1.0 - bystander(poll_us);
        (1.0 - looks / left) * 1e3 * left / gbt_us
    };
    for (name, published, computed, band) in [
        ("reader, 800 kHz, 10 us", &output.reader_800_percent, cpu(0.8 * gbt_us), 0.01),
        (
            "reader, 1050 kHz, 10 us",
            &output.computed.full_reader_10us_percent,
            cpu(full_share),
            0.01,
        ),
        ("48 E-links, 800 kHz", &output.receiver_turano_percent, receiver_us * 80.0, 0.05),
        ("core 0, 1 ms", &output.computed.largest_1ms_khz, core_0(1000.0, look_us / 1000.0), 0.02),
        ("core 0, 10 us", &output.computed.core_0_10us_khz, core_0(10.0, 0.0), 0.05),
        ("with receivers", &output.computed.largest_10us_khz, 1e3 / gbt_us.max(receiver_us), 0.05),
        ("until BUSY", &output.busy_1100_after_s, first_fills_s, 0.05),
        ("channel 0", &filled(|at| at % 4 == 0), input.busy_used_bytes, 0.01),
        ("others", &filled(|at| at % 4 != 0), input.busy_used_bytes * event / (event + ttc), 0.02),
    ] {
        let off = published.difference(computed).abs();
        assert!(off <= band, "{name}: {computed}, off by {off}");
    }
}
