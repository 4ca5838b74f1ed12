//! FELIX-class read-out: chains, and the decoding of blocks by itself.

mod chains;
mod figures;

use daqmeter_record::RunRecord;
use daqmeter_record::units::significant;

use chains::chain_rows;
pub use chains::{chains_text, details_text};

use crate::family::{Answer, Family, Found, Measured, Place, Segment, Work, of_engine};
use crate::samples::{first_stage, median_ns};

pub(super) const FAMILY: Family = Family {
    engines: &[(chains::ENGINE, Work::Path), (DECODE, Work::Cpu)],
    figures: &[
        figures::cpu,
        figures::ring,
        figures::dead_time,
        figures::polling,
    ],
    answers: &[answer],
    segments: &[decoding],
    ..Family::EMPTY
};

const DECODE: &str = "decode";

/// From chains that lost nothing: how fast, and what a chunk costs.
fn answer(measured: &Measured<'_>) -> Option<Answer> {
    let mut rows = chain_rows(measured.usable);
    rows.retain(|row| !row.is_probe);
    let clean = rows
        .iter()
        .filter(|row| row.lost == 0 && row.dead_share == 0.0 && row.closes);
    let best = clean.max_by(|a, b| a.mchunks_per_s.total_cmp(&b.mchunks_per_s))?;
    let decode = decode_ns(measured.usable).map_or_else(String::new, |ns| {
        format!(
            "; finding a chunk in its block takes {} ns",
            significant(ns, 2)
        )
    });
    let ns = best.reader_ns_per_chunk;
    Some(Answer {
        question: "What trigger rate can this host read out?",
        answer: format!(
            "{} was carried at {} kHz for {} s without a loss ({} M chunks/s, {} ns of a reader's core each){decode}{}",
            best.chain,
            significant(best.rate_hz / 1e3, 4),
            significant(best.seconds, 2),
            significant(best.mchunks_per_s, 3),
            ns.map_or("-".to_owned(), |ns| significant(ns, 3)),
            by_links(ns)
        ),
        figure: Some("felix-cpu").filter(|_| rows.len() > 1),
    })
}

/// Time to find a chunk in its block.
fn decode_ns(records: &[RunRecord]) -> Option<f64> {
    let record = records.iter().find(|record| record.engine.name == DECODE)?;
    let per_pass = record.counter("subchunks per pass")?;
    Some(median_ns(first_stage(record)?)? / per_pass)
}

/// The highest trigger rate of one reader's core for a number of E-links, if chunks cost what they cost in the best chain.
fn by_links(ns_per_chunk: Option<f64>) -> String {
    let Some(ns) = ns_per_chunk.filter(|ns| *ns > 0.0) else {
        return String::new();
    };
    let khz = |links: f64| significant(1e6 / (links * ns), 2);
    format!(
        "; by its CPU a reader's core would do for 24 E-links up to {} kHz, 96 up to {}, 384 up to {}",
        khz(24.0),
        khz(96.0),
        khz(384.0)
    )
}

/// The slowest decoding.
fn decoding(records: &[RunRecord]) -> Option<Segment> {
    let all = of_engine(records, DECODE)
        .filter_map(|record| Some((record, Found::of(record, first_stage(record)?)?)));
    let (record, found) = all.min_by(|a, b| a.1.rate.total_cmp(&b.1.rate))?;
    let scenario = record.workload.text("scenario").unwrap_or("blocks");
    let by = format!("FELIX decoding, {scenario}");
    Some(Segment::new(Place::Chunks, by, found))
}
