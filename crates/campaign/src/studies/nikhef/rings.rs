//! The rings of the published server in counted time, beside their published occupancy.

use daqmeter_readout::simulate::{Occupancy, Ring, Rings};
use daqmeter_record::study::{Comparison, Derived, Published};
use daqmeter_wire::felix::payload::TTC_BYTES;

use super::Document;
use super::arithmetic::{block_share, format};

/// Rings in FULL mode at a rate: what is taken is limited per trigger by the network, just above 1050 kHz.
fn simulate(published: &Document, khz: f64, seconds: f64) -> Occupancy {
    let (input, format) = (&published.input, format(published));
    let event = input.links_per_channel as f64 * block_share(format, input.full_payload);
    let ttc = block_share(format, TTC_BYTES);
    let ring = |at: usize| {
        // The first channel of each device of four has the trigger system's E-link.
        let bytes = event + if at.is_multiple_of(CHANNELS) { ttc } else { 0.0 };
        // The reserve is there for late polls; a load beyond the limit finds none.
        let limit_khz = if khz > input.full_khz {
            input.full_khz
        } else {
            input.full_khz * (1.0 + input.reserve)
        };
        let input_bytes = bytes * khz * 1e3;
        let marks = (input.busy_used_bytes, input.busy_release_bytes);
        Ring { marks, input: input_bytes, drain: bytes * limit_khz * 1e3, filled: 0.0 }
    };
    let rings = (0..input.channels).map(ring).collect();
    let poll_s = input.full_poll_us * 1e-6;
    Rings { rings, poll_s, jitter: input.late_polls, hiccups: (0.0, 0.0), seed: 1 }.run(seconds, 30)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

pub(super) fn rows(published: &Document) -> Vec<Comparison> {
    let below = simulate(published, 1050.0, SECONDS);
    let above = simulate(published, 1100.0, SECONDS);
    let mut rows = below_the_limit(published, &below);
    rows.extend(above_the_limit(published, &above));
    rows.extend(by_channel(published, &below, &above));
    rows
}

/// As long as the document's run at 1100 kHz.
const SECONDS: f64 = 30.0;

/// Each channel beside its ring in the model. At 1050 kHz the two snapshots of a channel differ by up to four times, so that there
/// only devices are compared.
fn by_channel(published: &Document, below: &Occupancy, above: &Occupancy) -> Vec<Comparison> {
    let output = &published.output;
    let channels = published.input.channels;
    let device = |device: usize| {
        let own = |at: &usize| (at % channels) / CHANNELS == device;
        let seen = &output.occupancy_1050_bytes;
        let seen: Vec<Published> = (0..seen.len()).filter(own).map(|at| seen[at].clone()).collect();
        let rings = &below.samples[device * CHANNELS..][..CHANNELS];
        let samples: Vec<f64> = rings.iter().flatten().copied().collect();
        let place = format!(
            "FULL mode tests, usage in bytes @ 1050 KHz, smallest and largest of device {device} in both snapshots"
        );
        let row = format!("1050 kHz, device {device}: mean of its channels");
        Comparison::new(BY_CHANNEL, row, Published::span(&seen, &place), "B").model(mean(&samples))
    };
    let channel = |(at, seen): (usize, &Published)| {
        let (device, channel) = (at / CHANNELS, at % CHANNELS);
        let row = format!("1100 kHz after 30 s, device {device}, channel {channel}");
        Comparison::new(BY_CHANNEL, row, seen.clone(), "B").model(above.samples[at].last().copied())
    };
    let devices = (0..channels / CHANNELS).map(device);
    let all = output.occupancy_1100_bytes.iter().enumerate().map(channel);
    devices.chain(all).collect()
}

/// Channels of each device of the published server.
const CHANNELS: usize = 4;
const BY_CHANNEL: &str = "ring occupancy by channel, FULL mode";

const RINGS: &str = "ring occupancy, FULL mode, 16 channels";

/// At 1050 kHz the network carries what comes.
fn below_the_limit(published: &Document, simulated: &Occupancy) -> Vec<Comparison> {
    let output = &published.output;
    let seen = &output.occupancy_1050_bytes;
    let samples: Vec<f64> = simulated.samples.iter().flatten().copied().collect();
    let place =
        "FULL mode tests, usage in bytes @ 1050 KHz, smallest and largest of both snapshots";
    let largest = seen.iter().max_by(|one, other| one.order(other)).cloned();
    vec![
        Comparison::new(RINGS, "1050 kHz: mean", Published::span(seen, place), "B")
            .derived(Derived::mean(seen, "mean of the 32 published values"))
            .model(mean(&samples)),
        Comparison::new(RINGS, "1050 kHz: fullest", largest, "B")
            .model(samples.iter().copied().fold(0.0, f64::max)),
        Comparison::new(RINGS, "1050 kHz: time with BUSY", output.busy_1050_percent.clone(), "%")
            .model(simulated.dead_share * 100.0),
    ]
}

/// At 1100 kHz the rings fill until BUSY stops the triggers.
fn above_the_limit(published: &Document, simulated: &Occupancy) -> Vec<Comparison> {
    let (input, output) = (&published.input, &published.output);
    let seen = &output.occupancy_1100_bytes;
    let last: Vec<f64> = simulated.samples.iter().filter_map(|ring| ring.last().copied()).collect();
    let (fullest, emptiest) = (
        last.iter().copied().fold(0.0, f64::max),
        last.iter().copied().fold(f64::INFINITY, f64::min),
    );
    let first_busy = simulated.first_busy_s.unwrap_or(f64::INFINITY);
    let dead = simulated.dead_share * SECONDS / (SECONDS - first_busy) * 100.0;
    let largest = seen.iter().max_by(|one, other| one.order(other));
    let smallest = seen.iter().min_by(|one, other| one.order(other));
    let of_ring = |bytes: f64| bytes / input.ring_bytes * 100.0;
    let of = |name: &str, published: Option<&Published>, unit| {
        Comparison::new(RINGS, name, published.cloned(), unit)
    };
    vec![
        of("1100 kHz: fullest ring after 30 s", largest, "B").model(fullest),
        of("1100 kHz: emptiest ring after 30 s", smallest, "B").model(emptiest),
        of("1100 kHz: mean after 30 s", None, "B")
            .derived(Derived::mean(seen, "mean of the 16 published values"))
            .model(mean(&last)),
        of("1100 kHz: fullest, share of the ring", None, "%")
            .derived(largest.map(|largest| largest.derived("its bytes / 1 GiB", of_ring)))
            .model(of_ring(fullest)),
        of("1100 kHz: time until BUSY", Some(&output.busy_1100_after_s), "s").model(first_busy),
        of("1100 kHz: time with BUSY, once it came", None, "%")
            .derived(Derived::computed((1.0 - 1050.0 / 1100.0) * 100.0, "1 - 1050 kHz / 1100 kHz"))
            .model(dead),
    ]
}
