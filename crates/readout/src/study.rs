//! The published study (Nikhef): its numbers beside arithmetic, a model, and this host.
//!
//! Works on records alone for what is measured. Where nothing is published for a row, the row says so and gets no verdict.

use daqmeter_record::study::{Comparison, Derived, Measured, Published};
use daqmeter_record::{RunRecord, Workload};
use daqmeter_wire::felix::Format;
use daqmeter_wire::felix::encoder::blocks_of;
use daqmeter_wire::felix::payload::TTC_BYTES;
use serde::Deserialize;

use crate::simulate::{Occupancy, Ring, Rings};

/// Study of all records here.
pub const STUDY: &str = "reproduce/readout";

/// The data file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    input: Input,
    run: Vec<Run>,
    gbt: Vec<Gbt>,
    output: Output,
    idle: Vec<Idle>,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Input {
    channels: usize,
    links_per_channel: u64,
    elinks_per_link: u64,
    block_bytes: usize,
    ring_bytes: f64,
    busy_used_bytes: f64,
    busy_release_bytes: f64,
    full_poll_us: f64,
    full_links_per_host: f64,
    full_khz: f64,
    full_payload: usize,
    full_host_gbit_per_s: f64,
    poll_cost_us: f64,
    late_polls: f64,
    reserve: f64,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Run {
    name: String,
    pittrigger: u64,
    links: Vec<u64>,
    ttc: u64,
    blocks: Published,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Gbt {
    payload: usize,
    khz: f64,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Output {
    reader_800_percent: Published,
    receiver_turano_percent: Published,
    receiver_agogna_percent: Published,
    agogna_gbit_per_s: Published,
    turano_gbit_per_s: Published,
    full_reader_percent: Published,
    full_receiver_percent: Published,
    busy_1050_percent: Published,
    busy_1100_after_s: Published,
    occupancy_1050_bytes: Vec<Published>,
    occupancy_1100_bytes: Vec<Published>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Idle {
    poll_us: f64,
    cpu_percent: Published,
}

impl Default for Document {
    fn default() -> Self {
        toml::from_str(include_str!("../data/nikhef.toml"))
            .expect("ships with the binary and is tested")
    }
}

/// Time of one measured point.
const SECONDS: f64 = 1.0;

/// What is measured on this host: chains at the published rates, and idle readers.
pub fn plan(published: &Document, receiver_cpus: &str) -> Vec<Workload> {
    let chain = |scenario: &str, khz: f64, payload: usize, poll_us: f64| {
        let mut workload = Workload::new("readout")
            .with("scenario", scenario)
            .with("rate_hz", khz * 1e3)
            .with("seconds", SECONDS)
            .with("payload_bytes", payload as u64)
            .with("poll_us", poll_us)
            .with("probe", true);
        if !receiver_cpus.is_empty() {
            workload = workload.with("receiver_cpus", receiver_cpus);
        }
        workload
    };
    let mut plan = vec![
        chain("gbt", 800.0, 20, 10.0),
        chain("gbt", 1000.0, 24, 100.0),
        chain(
            "full",
            published.input.full_khz,
            published.input.full_payload,
            published.input.full_poll_us,
        ),
    ];
    // A trigger per second is as good as none, and ends the run.
    plan.extend(
        published
            .idle
            .iter()
            .map(|idle| chain("gbt", 1e-3, 24, idle.poll_us)),
    );
    plan
}

/// Every row, with what the records of [`plan`] have.
pub fn rows(published: &Document, records: &[RunRecord]) -> Vec<Comparison> {
    let mut rows = totals(published);
    rows.extend(gbt(published));
    rows.extend(bandwidth(published));
    rows.extend(full(published));
    rows.extend(occupancy(published));
    rows.extend(loads(published, records));
    rows.extend(costs(published, records));
    rows
}

fn format(published: &Document) -> Format {
    let kib = u8::try_from(published.input.block_bytes / 1024).unwrap_or(1);
    Format::phase2(kib).expect("the data file has blocks of whole KiB")
}

/// Blocks from the published counts of chunks: exact.
fn totals(published: &Document) -> Vec<Comparison> {
    let (format, input) = (format(published), &published.input);
    let of = |run: &Run| {
        let links: u64 = run
            .links
            .iter()
            .map(|chunks| input.elinks_per_link * blocks_of(format, 24, *chunks))
            .sum();
        let blocks = (links + blocks_of(format, TTC_BYTES, run.ttc)) as f64;
        let share = run.ttc as f64 / run.pittrigger as f64;
        let name = format!(
            "{}, {:.4} of the triggers seen by the TTC E-link",
            run.name, share
        );
        Comparison::new(
            "blocks of device 0, DMA 0",
            name,
            run.blocks.clone(),
            "blocks",
        )
        .model(blocks)
    };
    published.run.iter().map(of).collect()
}

/// Bytes of blocks per chunk, in the long run.
fn block_share(format: Format, payload: usize) -> f64 {
    const MANY: u64 = 1 << 24;
    blocks_of(format, payload, MANY) as f64 * format.block_bytes as f64 / MANY as f64
}

/// Rates of one channel, for which nothing is published.
fn gbt(published: &Document) -> Vec<Comparison> {
    let (format, input) = (format(published), &published.input);
    let elinks = (input.links_per_channel * input.elinks_per_link) as f64;
    let mut rows = Vec::new();
    for at in &published.gbt {
        let chunks_per_s = elinks * at.khz * 1e3;
        let row = |quantity: &str, value: f64, unit, how: &str| {
            let name = format!("{quantity}, {} B, {} kHz", at.payload, at.khz);
            let how = format!("{elinks} E-links x {} kHz x {how}", at.khz);
            Comparison::new("GBT, one channel", name, None, unit)
                .derived(Derived::computed(value, how))
        };
        let dma = chunks_per_s * block_share(format, at.payload) / 1e6;
        rows.push(row("DMA", dma, "MB/s", "bytes of blocks for each chunk"));
        let net = chunks_per_s * (at.payload + 1) as f64 * 8e-9;
        rows.push(row("network", net, "Gb/s", "payload and status byte"));
    }
    rows
}

fn bandwidth(published: &Document) -> Vec<Comparison> {
    let (input, output) = (&published.input, &published.output);
    let elinks = (input.links_per_channel * input.elinks_per_link) as f64;
    let channel = |payload: f64| elinks * 1e6 * (payload + 1.0) * 8e-9;
    let (first, second) = (channel(24.0), channel(20.0));
    // Channel 0 of each device has the TTC E-link, too: two of those that go to agogna are of the first device.
    let ttc = 1e6 * (TTC_BYTES + 1) as f64 * 8e-9;
    let of = |name: &str, figure: &Published, model: f64| {
        Comparison::new("1 MHz, 16 readers: network", name, figure.clone(), "Gb/s").model(model)
    };
    vec![
        of(
            "agogna: 8 channels of 24 B, 4 of 20 B",
            &output.agogna_gbit_per_s,
            8.0 * first + 4.0 * second + 2.0 * ttc,
        ),
        of(
            "turano: 4 channels of 20 B",
            &output.turano_gbit_per_s,
            4.0 * second,
        ),
    ]
}

/// What follows from the rates of FULL mode; nothing is published for one channel.
fn full(published: &Document) -> Vec<Comparison> {
    let (input, format) = (&published.input, format(published));
    let (rate_hz, links) = (input.full_khz * 1e3, input.links_per_channel as f64);
    let chunk = input.full_host_gbit_per_s * 1e9 / 8.0 / input.full_links_per_host / rate_hz;
    let dma = links * rate_hz * block_share(format, input.full_payload) / 1e9;
    let of = |name: &str, value: f64, unit, how: &str| {
        Comparison::new("FULL mode, 1050 kHz", name, None, unit)
            .derived(Derived::computed(value, how))
    };
    vec![
        of(
            "chunk with status byte",
            chunk,
            "B",
            "\"about 72 Gb/s via each 100 GbE link\" / 24 links / 1050 kHz",
        ),
        of(
            "chunks of one channel",
            links * rate_hz / 1e6,
            "M/s",
            "3 links x \"~ 1050 kHz\"",
        ),
        of(
            "DMA of one channel",
            dma,
            "GB/s",
            "3 links x 1050 kHz x bytes of blocks for each chunk",
        ),
    ]
}

/// Rings in FULL mode at a rate: what is taken is limited per trigger by the network, just above 1050 kHz.
fn simulate(published: &Document, khz: f64, seconds: f64) -> Occupancy {
    let (input, format) = (&published.input, format(published));
    let event = input.links_per_channel as f64 * block_share(format, input.full_payload);
    let ttc = block_share(format, TTC_BYTES);
    let ring = |at: usize| {
        // The first channel of each device of four has the trigger system's E-link.
        let bytes = event + if at.is_multiple_of(4) { ttc } else { 0.0 };
        // The reserve is there for late polls; a load beyond the limit finds none.
        let limit_khz = if khz > input.full_khz {
            input.full_khz
        } else {
            input.full_khz * (1.0 + input.reserve)
        };
        let input_bytes = bytes * khz * 1e3;
        let marks = (input.busy_used_bytes, input.busy_release_bytes);
        Ring {
            marks,
            input: input_bytes,
            drain: bytes * limit_khz * 1e3,
            filled: 0.0,
        }
    };
    let rings = (0..input.channels).map(ring).collect();
    let poll_s = input.full_poll_us * 1e-6;
    Rings {
        rings,
        poll_s,
        jitter: input.late_polls,
        hiccups: (0.0, 0.0),
        seed: 1,
    }
    .run(seconds, 30)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn occupancy(published: &Document) -> Vec<Comparison> {
    let mut rows = below_the_limit(published);
    rows.extend(above_the_limit(published));
    rows
}

const RINGS: &str = "ring occupancy, FULL mode, 16 channels";

/// At 1050 kHz the network carries what comes.
fn below_the_limit(published: &Document) -> Vec<Comparison> {
    let output = &published.output;
    let seen = &output.occupancy_1050_bytes;
    let simulated = simulate(published, 1050.0, 30.0);
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
        Comparison::new(
            RINGS,
            "1050 kHz: time with BUSY",
            output.busy_1050_percent.clone(),
            "%",
        )
        .model(simulated.dead_share * 100.0),
    ]
}

/// At 1100 kHz the rings fill until BUSY stops the triggers.
fn above_the_limit(published: &Document) -> Vec<Comparison> {
    let (input, output) = (&published.input, &published.output);
    let seen = &output.occupancy_1100_bytes;
    let simulated = simulate(published, 1100.0, 30.0);
    let last: Vec<f64> = simulated
        .samples
        .iter()
        .filter_map(|ring| ring.last().copied())
        .collect();
    let (fullest, emptiest) = (
        last.iter().copied().fold(0.0, f64::max),
        last.iter().copied().fold(f64::INFINITY, f64::min),
    );
    let first_busy = simulated.first_busy_s.unwrap_or(f64::INFINITY);
    let dead = simulated.dead_share * 30.0 / (30.0 - first_busy) * 100.0;
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
        of(
            "1100 kHz: time until BUSY",
            Some(&output.busy_1100_after_s),
            "s",
        )
        .model(first_busy),
        of("1100 kHz: time with BUSY, once it came", None, "%")
            .derived(Derived::computed(
                (1.0 - 1050.0 / 1100.0) * 100.0,
                "1 - 1050 kHz / 1100 kHz",
            ))
            .model(dead),
    ]
}

/// A record of the plan, by its scenario and polling interval.
fn find<'a>(
    records: &'a [RunRecord],
    scenario: &str,
    poll_us: f64,
    idle: bool,
) -> Option<&'a RunRecord> {
    records.iter().find(|record| {
        let workload = &record.workload;
        workload.text("scenario").is_ok_and(|name| name == scenario)
            && workload.float("poll_us").is_ok_and(|us| us == poll_us)
            && workload
                .float("rate_hz")
                .is_ok_and(|hz| (hz < 100.0) == idle)
            && record.outcome.is_ok()
    })
}

/// CPU time per chunk of reader and receiver, in ns.
fn ns_per_chunk(record: &RunRecord) -> Option<(f64, f64)> {
    let chunks = record.counter("chunks")?;
    let seconds = record.counter("triggers")? / record.counter("trigger-rate")?;
    let ns = |cpu: f64| cpu * seconds * 1e9 / chunks;
    Some((
        ns(record.counter("reader-cpu-ppm")? * 1e-6),
        ns(record.counter("receiver-cpu")?),
    ))
}

fn reader_percent(record: &RunRecord) -> Option<Measured> {
    Measured::of_processor(record, record.counter("reader-cpu-ppm")? * 1e-4)
}

/// CPU use as published. It is of the study's server; of one here it is this host's own.
fn loads(published: &Document, records: &[RunRecord]) -> Vec<Comparison> {
    let (output, input) = (&published.output, &published.input);
    let full = find(records, "full", input.full_poll_us, false);
    let receiver = full
        .and_then(|record| Measured::of_processor(record, record.counter("receiver-cpu")? * 100.0));
    let of = |name: &str, published: &Published| {
        Comparison::new("CPU of one core", name, published.clone(), "%").of_this_host()
    };
    let mut rows = vec![
        of(
            "reader, GBT, 20 B at 800 kHz, 10 us polling",
            &output.reader_800_percent,
        )
        .measured(find(records, "gbt", 10.0, false).and_then(reader_percent)),
        of(
            "reader of 3 links, FULL, 1050 kHz",
            &output.full_reader_percent,
        )
        .measured(full.and_then(reader_percent)),
        of(
            "receiver of 6 links (here 3), FULL, 1050 kHz",
            &output.full_receiver_percent,
        )
        .measured(receiver),
    ];
    // One cost of a poll explains all three intervals.
    rows.extend(published.idle.iter().map(|idle| {
        of(
            &format!("idle reader, polling every {} us", idle.poll_us),
            &idle.cpu_percent,
        )
        .model(input.poll_cost_us / idle.poll_us * 100.0)
        .measured(find(records, "gbt", idle.poll_us, true).and_then(reader_percent))
    }));
    rows
}

/// CPU time per chunk, which is not published: it follows from a load and a rate.
fn costs(published: &Document, records: &[RunRecord]) -> Vec<Comparison> {
    let (output, input) = (&published.output, &published.input);
    let elinks = (input.links_per_channel * input.elinks_per_link) as f64;
    let at_800 = find(records, "gbt", 10.0, false);
    let at_1000 = find(records, "gbt", 100.0, false);
    let ns = |record: Option<&RunRecord>, of: fn((f64, f64)) -> f64| {
        record.and_then(|record| Measured::of_processor(record, of(ns_per_chunk(record)?)))
    };
    let row = |name: &str, derived: Derived| {
        Comparison::new("CPU of one core, per chunk", name, None, "ns")
            .derived(derived)
            .of_this_host()
    };
    let receiver = |load: &Published| {
        let how = format!("{load} % of a core / 48 E-links / 800 kHz");
        load.derived(how, |percent| {
            percent / 100.0 * 1e9 / (2.0 * elinks * 800e3)
        })
    };
    let full_core = |khz: f64, how: &str| Derived::computed(1e6 / (elinks * khz), how);
    vec![
        row(
            "reader, 20 B at 800 kHz, 10 us polling",
            full_core(800.0, "a full core / 24 E-links / 800 kHz"),
        )
        .measured(ns(at_800, |(reader, _)| reader)),
        row(
            "reader, 24 B at 1 MHz",
            full_core(
                1000.0,
                "at most a full core / 24 E-links / 1 MHz (\"just possible\")",
            ),
        )
        .measured(ns(at_1000, |(reader, _)| reader)),
        row(
            "receiver, turano",
            receiver(&output.receiver_turano_percent),
        )
        .measured(ns(at_800, |(_, receiver)| receiver)),
        row(
            "receiver, agogna",
            receiver(&output.receiver_agogna_percent),
        )
        .measured(ns(at_800, |(_, receiver)| receiver)),
    ]
}

/// What a reader of the comparison must know.
pub const REMARKS: &[&str] = &[
    "model: blocks and bandwidths by arithmetic from the published counts and rates; the published chunk counts give the block totals exactly",
    "model: rings in counted time; the late polls and the reserve are fits to the occupancy at \
     1050 kHz (crates/readout/data/nikhef.toml), what happens at 1100 kHz is not fitted",
    "model: one cost of a poll, 6.3 us, is a fit to the three idle readers",
    "derived: nothing is published for one channel or one chunk; the figure follows as said in its row and is compared with nothing",
    "measured here: one reader and one receiver of this host; CPUs, kernel and virtualisation differ from the study's",
    "the text says that links differ by about 0.05 %, its table by up to 1.26 %; the table is used",
    "20 bytes of the 800 kHz run are taken as payload; 28 and 24 of the 1 MHz run include the 4-byte trailer, as the bandwidths show",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_modelled_row_is_within_its_band() {
        let rows = rows(&Document::default(), &[]);
        let check = |row: &str, low: f64, high: f64| {
            let line = rows
                .iter()
                .find(|line| line.row.starts_with(row))
                .expect("a row of that name");
            let value = line.model.expect("a model").value();
            assert!((low..=high).contains(&value), "{row}: {value}");
        };
        check("5 s", 3_458_957.0, 3_458_957.0);
        check("50 s", 34_262_333.0, 34_262_333.0);
        check("agogna", 54.0, 56.0);
        check("turano", 15.0, 17.0);
        check("1050 kHz: mean", 0.3e6, 1.6e6);
        check("1050 kHz: fullest", 0.3e6, 2.0e6);
        check("1050 kHz: time with BUSY", 0.0, 0.0);
        check("1100 kHz: fullest ring", 830e6, 847e6);
        check("1100 kHz: emptiest ring", 797e6, 830e6);
        check("1100 kHz: mean", 797e6, 847e6);
        check("1100 kHz: time until BUSY", 13.0, 17.0);
        check("1100 kHz: time with BUSY", 3.5, 5.5);
        let differs = rows.iter().find(|line| {
            line.verdict()
                .grade()
                .is_some_and(|grade| grade.contradicts())
        });
        assert_eq!(differs, None);
    }

    #[test]
    fn what_no_document_states_is_derived_and_gets_no_verdict() {
        let rows = rows(&Document::default(), &[]);
        let computed = rows
            .iter()
            .find(|line| line.row == "DMA, 16 B, 800 kHz")
            .unwrap();
        assert_eq!(computed.published, None, "385.5 MB/s stands in no document");
        assert_eq!(computed.derived.as_ref().unwrap().to_string(), "385.5");
        assert_eq!(computed.verdict().to_string(), "nothing published");
        for line in &rows {
            assert!(
                line.published.is_some() || line.derived.is_some(),
                "{line:?}"
            );
        }
    }

    #[test]
    fn the_costs_of_a_chunk_follow_from_the_published_loads() {
        let rows = rows(&Document::default(), &[]);
        let of = |name: &str| {
            rows.iter()
                .find(|line| line.row == name)
                .unwrap()
                .derived
                .as_ref()
                .unwrap()
                .to_string()
        };
        assert_eq!(of("reader, 20 B at 800 kHz, 10 us polling"), "52.08");
        assert_eq!(of("receiver, turano"), "25.63 to 25.99");
        assert_eq!(of("receiver, agogna"), "22.6 to 23.28");
    }
}
