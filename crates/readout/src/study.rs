//! The published study (Nikhef): its numbers beside arithmetic, a model, and this host.
//!
//! Works on records alone for what is measured. Every row says what it is: computed from the inputs by arithmetic, simulated, or
//! measured here; and the band in which it must lie.

use daqmeter_record::{Comparison, RunRecord, Workload};
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
pub struct Published {
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
    blocks: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Gbt {
    payload: usize,
    khz: f64,
    dma_mb_per_s: f64,
    net_gbit_per_s: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Output {
    reader_ns_at_800_khz: f64,
    reader_ns_at_1_mhz: f64,
    receiver_ns_turano: f64,
    receiver_ns_agogna: f64,
    agogna_gbit_per_s: f64,
    turano_gbit_per_s: f64,
    full_khz: f64,
    full_host_gbit_per_s: f64,
    full_payload: usize,
    full_reader_cpu_percent: f64,
    full_receiver_cpu_percent: f64,
    occupancy_1050_mean_bytes: f64,
    occupancy_1100_mean_bytes: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Idle {
    poll_us: f64,
    cpu_percent: f64,
}

impl Default for Published {
    fn default() -> Self {
        toml::from_str(include_str!("../data/nikhef.toml")).expect("ships with the binary and is tested")
    }
}

/// What a row's number of ours is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Arithmetic from the inputs.
    Computed,
    /// The model in counted time.
    Simulated,
    /// This host, for comparison: no band.
    Measured,
}

impl Kind {
    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Computed => "computed",
            Kind::Simulated => "simulated",
            Kind::Measured => "measured here",
        }
    }
}

/// A row of the comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Published, ours by model or arithmetic, measured.
    pub line: Comparison,
    /// What ours is.
    pub kind: Kind,
    /// Where the model's value must lie.
    pub band: Option<(f64, f64)>,
}

impl Row {
    /// Whether it is where it must be; none where there is no band.
    pub fn is_within(&self) -> Option<bool> {
        let (low, high) = self.band?;
        let value = self.line.model?;
        Some((low..=high).contains(&value))
    }
}

/// Time of one measured point.
const SECONDS: f64 = 1.0;

/// What is measured on this host: chains at the published rates, and idle readers.
pub fn plan(published: &Published, receiver_cpus: &str) -> Vec<Workload> {
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
        chain("full", published.output.full_khz, published.output.full_payload, published.input.full_poll_us),
    ];
    // A trigger per second is as good as none, and ends the run.
    plan.extend(published.idle.iter().map(|idle| chain("gbt", 1e-3, 24, idle.poll_us)));
    plan
}

/// Every row, with what the records of [`plan`] have.
pub fn rows(published: &Published, records: &[RunRecord]) -> Vec<Row> {
    let mut rows = totals(published);
    rows.extend(gbt(published));
    rows.extend(bandwidth(published));
    rows.extend(full(published));
    rows.extend(occupancy(published));
    rows.extend(costs(published, records));
    rows
}

fn row(table: &str, name: String, kind: Kind, published: f64, unit: &'static str) -> Row {
    let line = Comparison { table: table.to_owned(), row: name, published, model: None, measured: None, unit };
    Row { line, kind, band: None }
}

impl Row {
    fn model(mut self, value: f64) -> Row {
        self.line.model = Some(value);
        self
    }

    fn measured(mut self, value: Option<f64>) -> Row {
        self.line.measured = value;
        self
    }

    fn within(mut self, low: f64, high: f64) -> Row {
        self.band = Some((low, high));
        self
    }
}

fn format(published: &Published) -> Format {
    let kib = u8::try_from(published.input.block_bytes / 1024).unwrap_or(1);
    Format::phase2(kib).expect("the data file has blocks of whole KiB")
}

/// Blocks from the published counts of chunks: exact.
fn totals(published: &Published) -> Vec<Row> {
    let (format, input) = (format(published), &published.input);
    let of = |run: &Run| {
        let links: u64 = run.links.iter().map(|chunks| input.elinks_per_link * blocks_of(format, 24, *chunks)).sum();
        let blocks = (links + blocks_of(format, TTC_BYTES, run.ttc)) as f64;
        let exact = run.blocks as f64;
        let share = run.ttc as f64 / run.pittrigger as f64;
        let name = format!("{}, {:.4} of the triggers seen by the TTC E-link", run.name, share);
        row("blocks of device 0, DMA 0", name, Kind::Computed, exact, "blocks").model(blocks).within(exact, exact)
    };
    published.run.iter().map(of).collect()
}

/// Bytes of blocks per chunk, in the long run.
fn block_share(format: Format, payload: usize) -> f64 {
    const MANY: u64 = 1 << 24;
    blocks_of(format, payload, MANY) as f64 * format.block_bytes as f64 / MANY as f64
}

fn gbt(published: &Published) -> Vec<Row> {
    let (format, input) = (format(published), &published.input);
    let elinks = (input.links_per_channel * input.elinks_per_link) as f64;
    let mut rows = Vec::new();
    for at in &published.gbt {
        let chunks_per_s = elinks * at.khz * 1e3;
        let name = format!("{} B, {} kHz", at.payload, at.khz);
        let dma = chunks_per_s * block_share(format, at.payload) / 1e6;
        rows.push(
            row("GBT, one channel: DMA", name.clone(), Kind::Computed, at.dma_mb_per_s, "MB/s")
                .model(dma)
                .within(at.dma_mb_per_s * 0.999, at.dma_mb_per_s * 1.001),
        );
        let net = chunks_per_s * (at.payload + 1) as f64 * 8e-9;
        rows.push(
            row("GBT, one channel: network, with status byte", name, Kind::Computed, at.net_gbit_per_s, "Gb/s")
                .model(net)
                .within(at.net_gbit_per_s - 0.01, at.net_gbit_per_s + 0.01),
        );
    }
    rows
}

fn bandwidth(published: &Published) -> Vec<Row> {
    let (input, output) = (&published.input, &published.output);
    let elinks = (input.links_per_channel * input.elinks_per_link) as f64;
    let channel = |payload: f64| elinks * 1e6 * (payload + 1.0) * 8e-9;
    let (first, second) = (channel(24.0), channel(20.0));
    // Channel 0 of each device has the TTC E-link, too: two of those that go to agogna are of the first device.
    let ttc = 1e6 * (TTC_BYTES + 1) as f64 * 8e-9;
    let of = |name: &str, published: f64, model: f64| {
        row("1 MHz, 16 readers: network", name.to_owned(), Kind::Computed, published, "Gb/s")
            .model(model)
            .within(published - 1.0, published + 1.0)
    };
    vec![
        of("agogna: 8 channels of 24 B, 4 of 20 B", output.agogna_gbit_per_s, 8.0 * first + 4.0 * second + 2.0 * ttc),
        of("turano: 4 channels of 20 B", output.turano_gbit_per_s, 4.0 * second),
    ]
}

fn full(published: &Published) -> Vec<Row> {
    let (input, output, format) = (&published.input, &published.output, format(published));
    let rate_hz = output.full_khz * 1e3;
    let chunk = output.full_host_gbit_per_s * 1e9 / 8.0 / input.full_links_per_host / rate_hz;
    let links = input.links_per_channel as f64;
    let table = "FULL mode, 1050 kHz";
    vec![
        row(table, "chunk with status byte, from 72 Gb/s per host".to_owned(), Kind::Computed, 357.0, "B")
            .model(chunk)
            .within(354.0, 360.0),
        row(table, "chunks of one channel".to_owned(), Kind::Computed, 3.15, "M/s")
            .model(links * rate_hz / 1e6)
            .within(3.149, 3.151),
        row(table, "DMA of one channel".to_owned(), Kind::Computed, 1.143, "GB/s")
            .model(links * rate_hz * block_share(format, output.full_payload) / 1e9)
            .within(1.138, 1.148),
    ]
}

/// Rings in FULL mode at a rate: what is taken is limited per trigger by the network, just above 1050 kHz.
fn simulate(published: &Published, khz: f64, seconds: f64) -> Occupancy {
    let (input, output, format) = (&published.input, &published.output, format(published));
    let event = input.links_per_channel as f64 * block_share(format, output.full_payload);
    let ttc = block_share(format, TTC_BYTES);
    let ring = |at: usize| {
        // The first channel of each device of four has the trigger system's E-link.
        let bytes = event + if at.is_multiple_of(4) { ttc } else { 0.0 };
        // The reserve is there for late polls; a load beyond the limit finds none.
        let limit_khz = if khz > output.full_khz { output.full_khz } else { output.full_khz * (1.0 + input.reserve) };
        let input_bytes = bytes * khz * 1e3;
        let marks = (input.busy_used_bytes, input.busy_release_bytes);
        Ring { marks, input: input_bytes, drain: bytes * limit_khz * 1e3, filled: 0.0 }
    };
    let rings = (0..input.channels).map(ring).collect();
    let poll_s = input.full_poll_us * 1e-6;
    Rings { rings, poll_s, jitter: input.late_polls, hiccups: (0.0, 0.0), seed: 1 }.run(seconds, 30)
}

fn occupancy(published: &Published) -> Vec<Row> {
    let (input, output) = (&published.input, &published.output);
    let table = "ring occupancy, FULL mode, 16 channels";
    let low = simulate(published, 1050.0, 30.0);
    let samples: Vec<f64> = low.samples.iter().flatten().copied().collect();
    let mean = samples.iter().sum::<f64>() / samples.len().max(1) as f64;
    let most = samples.iter().copied().fold(0.0, f64::max);
    let high = simulate(published, 1100.0, 30.0);
    let last: Vec<f64> = high.samples.iter().filter_map(|ring| ring.last().copied()).collect();
    let mean_last = last.iter().sum::<f64>() / last.len().max(1) as f64;
    let fullest = last.iter().copied().fold(0.0, f64::max);
    let first_busy = high.first_busy_s.unwrap_or(f64::INFINITY);
    let dead = high.dead_share * 30.0 / (30.0 - first_busy) * 100.0;
    let of = |name: &str, published: f64, unit| row(table, name.to_owned(), Kind::Simulated, published, unit);
    vec![
        of("1050 kHz: mean", output.occupancy_1050_mean_bytes / 1e6, "MB").model(mean / 1e6).within(0.3, 1.6),
        of("1050 kHz: most of 480 samples", 1.565, "MB").model(most / 1e6).within(0.3, 2.0),
        of("1050 kHz: time with BUSY", 0.0, "%").model(low.dead_share * 100.0).within(0.0, 0.0),
        of("1100 kHz: mean after 30 s", output.occupancy_1100_mean_bytes / 1e6, "MB")
            .model(mean_last / 1e6)
            .within(output.occupancy_1100_mean_bytes / 1e6 * 0.97, output.occupancy_1100_mean_bytes / 1e6 * 1.03),
        of("1100 kHz: fullest ring after 30 s", input.busy_used_bytes / 1e6, "MB")
            .model(fullest / 1e6)
            .within(input.busy_used_bytes / 1e6 * 0.99, input.busy_used_bytes / 1e6 * 1.01),
        of("1100 kHz: share of the ring", 100.0 * input.busy_used_bytes / input.ring_bytes, "%")
            .model(100.0 * fullest / input.ring_bytes)
            .within(77.0, 79.0),
        of("1100 kHz: time until BUSY", 15.0, "s").model(first_busy).within(13.0, 17.0),
        of("1100 kHz: time with BUSY, once it came", 4.5, "%").model(dead).within(3.5, 5.5),
    ]
}

/// A record of the plan, by its scenario and polling interval.
fn find<'a>(records: &'a [RunRecord], scenario: &str, poll_us: f64, idle: bool) -> Option<&'a RunRecord> {
    records.iter().find(|record| {
        let workload = &record.workload;
        workload.text("scenario").is_ok_and(|name| name == scenario)
            && workload.float("poll_us").is_ok_and(|us| us == poll_us)
            && workload.float("rate_hz").is_ok_and(|hz| (hz < 100.0) == idle)
            && record.outcome.is_ok()
    })
}

/// CPU time per chunk of reader and receiver, in ns.
fn ns_per_chunk(record: &RunRecord) -> Option<(f64, f64)> {
    let chunks = record.counter("chunks")?;
    let seconds = record.counter("triggers")? / record.counter("trigger-rate")?;
    let ns = |cpu: f64| cpu * seconds * 1e9 / chunks;
    Some((ns(record.counter("reader-cpu-ppm")? * 1e-6), ns(record.counter("receiver-cpu")?)))
}

fn costs(published: &Published, records: &[RunRecord]) -> Vec<Row> {
    let (output, input) = (&published.output, &published.input);
    let chunks_per_s = |khz: f64| (input.links_per_channel * input.elinks_per_link) as f64 * khz * 1e3;
    let at_800 = find(records, "gbt", 10.0, false).and_then(ns_per_chunk);
    let at_1000 = find(records, "gbt", 100.0, false).and_then(ns_per_chunk);
    let full = find(records, "full", input.full_poll_us, false);
    let table = "CPU of one core, per chunk";
    let budget = |name: &str, published: f64, model: f64, measured: Option<f64>| {
        row(table, name.to_owned(), Kind::Computed, published, "ns")
            .model(model)
            .within(published * 0.995, published * 1.005)
            .measured(measured)
    };
    let mut rows = vec![
        budget(
            "reader, 20 B at 800 kHz, 10 us polling (budget of a core)",
            output.reader_ns_at_800_khz,
            1e9 / chunks_per_s(800.0),
            at_800.map(|ns| ns.0),
        ),
        budget(
            "reader, 24 B at 1 MHz (budget of a core)",
            output.reader_ns_at_1_mhz,
            1e9 / chunks_per_s(1000.0),
            at_1000.map(|ns| ns.0),
        ),
        row(table, "receiver, turano".to_owned(), Kind::Measured, output.receiver_ns_turano, "ns")
            .measured(at_800.map(|ns| ns.1)),
        row(table, "receiver, agogna".to_owned(), Kind::Measured, output.receiver_ns_agogna, "ns")
            .measured(at_800.map(|ns| ns.1)),
    ];
    let seconds = |record: &RunRecord| Some(record.counter("triggers")? / record.counter("trigger-rate")?);
    let percent = |record: &RunRecord, cpu: f64| seconds(record).map(|_| cpu * 100.0);
    rows.push(
        row(
            "FULL mode, 1050 kHz",
            "CPU of a reader of 3 links (below)".to_owned(),
            Kind::Measured,
            output.full_reader_cpu_percent,
            "%",
        )
        .measured(full.and_then(|record| percent(record, record.counter("reader-cpu-ppm")? * 1e-6))),
    );
    rows.push(
        row(
            "FULL mode, 1050 kHz",
            "CPU of a receiver of 6 links (here 3)".to_owned(),
            Kind::Measured,
            output.full_receiver_cpu_percent,
            "%",
        )
        .measured(full.and_then(|record| percent(record, record.counter("receiver-cpu")?))),
    );
    // One cost of a poll explains all three intervals.
    for idle in &published.idle {
        let record = find(records, "gbt", idle.poll_us, true);
        let here = record.and_then(|record| Some(record.counter("reader-cpu-ppm")? * 1e-4));
        let name = format!("polling every {} us: CPU x interval", idle.poll_us);
        let per_poll = idle.cpu_percent / 100.0 * idle.poll_us;
        rows.push(
            row("idle reader", name, Kind::Computed, per_poll, "us")
                .model(per_poll)
                .within(5.49, 7.01)
                .measured(here.map(|percent| percent / 100.0 * idle.poll_us)),
        );
    }
    rows
}

/// What a reader of the comparison must know.
pub const REMARKS: &[&str] = &[
    "computed rows follow from the inputs by arithmetic; the published chunk counts give the published block totals exactly",
    "simulated rows come from rings in counted time; the late polls are a fit to the occupancy at \
     1050 kHz (crates/readout/data/nikhef.toml), what happens at 1100 kHz is not fitted",
    "measured here: one reader and one receiver of this host, scaled per chunk; CPUs, kernel and virtualisation differ from the study's",
    "the text says that links differ by about 0.05 %, its table by up to 1.26 %; the table is used",
    "20 bytes of the 800 kHz run are taken as payload; 28 and 24 of the 1 MHz run include the 4-byte trailer, as the bandwidths show",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_computed_and_simulated_row_is_within_its_band() {
        let rows = rows(&Published::default(), &[]);
        for row in &rows {
            assert_ne!(row.is_within(), Some(false), "{row:?}");
        }
        assert!(rows.iter().filter(|row| row.is_within() == Some(true)).count() >= 28, "{}", rows.len());
        assert_eq!(rows[0].line.model, Some(3_458_957.0));
        assert_eq!(rows[1].line.model, Some(34_262_333.0));
    }
}
