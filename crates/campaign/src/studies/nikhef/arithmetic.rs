//! What follows from the published counts and rates by arithmetic.

use daqmeter_record::study::{Comparison, Derived, Published};
use daqmeter_wire::felix::BlockFormat;
use daqmeter_wire::felix::encoder::blocks_of;
use daqmeter_wire::felix::payload::TTC_BYTES;

use super::{Document, Run};

pub(super) fn rows(published: &Document) -> Vec<Comparison> {
    let mut rows = totals(published);
    rows.extend(gbt(published));
    rows.extend(bandwidth(published));
    rows.extend(full(published));
    rows
}

pub(super) fn format(published: &Document) -> BlockFormat {
    let kib = u8::try_from(published.input.block_bytes / 1024).unwrap_or(1);
    BlockFormat::phase2(kib).expect("the data file has blocks of whole KiB")
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
        let name = format!("{}, {:.4} of the triggers seen by the TTC E-link", run.name, share);
        Comparison::new("blocks of device 0, DMA 0", name, run.blocks.clone(), "blocks")
            .model(blocks)
    };
    published.run.iter().map(of).collect()
}

/// Bytes of blocks per chunk, in the long run.
pub(super) fn block_share(format: BlockFormat, payload: usize) -> f64 {
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
        of("turano: 4 channels of 20 B", &output.turano_gbit_per_s, 4.0 * second),
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
        of("chunks of one channel", links * rate_hz / 1e6, "M/s", "3 links x \"~ 1050 kHz\""),
        of(
            "DMA of one channel",
            dma,
            "GB/s",
            "3 links x 1050 kHz x bytes of blocks for each chunk",
        ),
    ]
}
