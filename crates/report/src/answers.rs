//! What the records say in plain words: the first thing on the page and the last thing in the terminal.

use daqmeter_record::units::{show_bytes, show_ns, significant};
use daqmeter_record::{RunRecord, Stage};
use serde::Serialize;

use crate::figures::{Figure, figures};
use crate::rate;
use crate::rows::{median_ns, times_ns, tool_cost_ns};

/// One statement and the figure that it rests on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Answer {
    /// What was asked.
    pub question: &'static str,
    /// The answer, with its numbers.
    pub answer: String,
    /// Anchor of the figure, if there is one.
    pub figure: Option<&'static str>,
}

/// Every answer that the records support. What failed, and what is above its limit, supports none.
pub fn answers(all: &[RunRecord]) -> Vec<Answer> {
    let records = &*rate::usable(all);
    let figures = figures(records);
    let figure = |id: &str| figures.iter().find(|figure| figure.id == id);
    let answers = [
        limits(records),
        first_change(records),
        figure("readout").and_then(|figure| readout(records, figure)),
        figure("conversion").and_then(conversion),
        figure("stores").and_then(stores),
        figure("fusion").and_then(fusion),
        figure("completion").and_then(completion),
        digitizers(records),
        etherbone(records),
        felix(records),
        copies(records),
        // It tells itself what failed.
        counters(all),
        memory_traffic(records),
        tool(records),
        left_out(all),
    ];
    answers.into_iter().flatten().collect()
}

/// What the answers do not rest on; nothing where they rest on all that was measured.
fn left_out(records: &[RunRecord]) -> Option<Answer> {
    let count = |is: fn(&RunRecord) -> bool| records.iter().filter(|record| is(record)).count();
    let failed =
        count(|record| rate::undone(&record.outcome).is_some_and(|(how, _)| how == "failed"));
    let above = count(|record| rate::is_done(record) && rate::is_doubtful(record));
    let parts = [
        (failed, "failed"),
        (
            above,
            "with a rate above its limit, by more than the intervals allow",
        ),
    ];
    let said = parts
        .iter()
        .filter(|(points, _)| *points > 0)
        .map(|(points, what)| format!("{points} {what}"));
    let said: Vec<String> = said.collect();
    (!said.is_empty()).then(|| Answer {
        question: "Which points are used for no answer?",
        answer: said.join(", "),
        figure: None,
    })
}

/// The stage that gives out first, in the picture of the path.
fn limits(records: &[RunRecord]) -> Option<Answer> {
    let answer = crate::path::bottleneck(&crate::path::path(records))?;
    Some(Answer {
        question: "Which stage limits this host?",
        answer,
        figure: Some("path"),
    })
}

fn first_change(records: &[RunRecord]) -> Option<Answer> {
    // Advice is for hosts whose path was measured, not for a table of one run.
    if crate::path::path(records).is_empty() {
        return None;
    }
    let all = crate::advice::advice(records);
    let first = all.first()?;
    let evidence = first
        .evidence
        .as_deref()
        .map_or("without evidence from this run".to_owned(), |evidence| {
            format!("measured here: {evidence}")
        });
    let more = match all.len() - 1 {
        0 => String::new(),
        more => format!("; {more} more below"),
    };
    let answer = format!("{} ({evidence}){more}", first.what);
    Some(Answer {
        question: "What to change first?",
        answer,
        figure: Some("advice"),
    })
}

/// What was held against known loads.
fn counters(records: &[RunRecord]) -> Option<Answer> {
    let record = records
        .iter()
        .find(|record| record.engine.name == "pmu" && record.engine.target == "verify")?;
    // Each counter stands behind what was really moved.
    let pairs = record
        .counters
        .iter()
        .zip(record.counters.iter().skip(1))
        .step_by(2);
    let passed = pairs.map(|(payload, counted)| {
        format!(
            "{} saw {:.6} of the payload",
            counted.name,
            counted.value / payload.value.max(1.0)
        )
    });
    let failed = record
        .outcome
        .reason()
        .map(|reason| format!("FAILED: {reason}"));
    let there = record
        .workload
        .text("pmus")
        .ok()
        .filter(|pmus| !pmus.is_empty());
    let there = there.map(|pmus| format!("PMUs here: {pmus}"));
    let said: Vec<String> = there
        .into_iter()
        .chain(passed)
        .chain(failed)
        .chain(record.warnings.iter().cloned())
        .collect();
    let question = "What can be counted here, and does it count what is moved?";
    (!said.is_empty()).then(|| Answer {
        question,
        answer: said.join("; "),
        figure: None,
    })
}

/// Memory traffic while points were measured, where a counter of it exists.
fn memory_traffic(records: &[RunRecord]) -> Option<Answer> {
    let observed = records
        .iter()
        .filter_map(|record| Some((record, record.observed.as_ref()?)));
    let rates = observed.filter_map(|(record, observed)| {
        let metric = observed
            .metrics
            .iter()
            .find(|metric| metric.unit == "B/s")?;
        let most = metric.values.iter().flatten().copied().fold(0.0, f64::max);
        (most > 0.0).then_some((record, metric, most))
    });
    let (record, metric, most) = rates.max_by(|a, b| a.2.total_cmp(&b.2))?;
    Some(Answer {
        question: "What is the highest memory traffic that the counters saw?",
        answer: format!(
            "{} MB/s of `{}` during {}{}",
            significant(most / 1e6, 4),
            metric.name,
            record.study,
            if record.engine.emulated && record.engine.name == "pmu" {
                ", counted on an emulated mesh"
            } else {
                ""
            }
        ),
        figure: Some("counters"),
    })
}

fn sum(values: &[Option<f64>]) -> f64 {
    values.iter().flatten().sum()
}

/// Over the time in which all boards are read, as the sum of their rates while none has finished cannot be had from
/// averages: all bytes over the whole time of the run.
fn readout(records: &[RunRecord], figure: &Figure) -> Option<Answer> {
    let record = records.iter().find(|record| {
        record.command == figure.command && record.lanes.len() == figure.categories.len()
    })?;
    let stages = record.lanes.iter().filter_map(|lane| {
        lane.stages
            .iter()
            .find(|stage| stage.name == "func_readout")
    });
    let bytes: f64 = stages
        .clone()
        .map(|stage| stage.rate_bytes_per_s() * stage.seconds())
        .sum();
    let end_s = stages.map(|stage| stage.end_ns).max()? as f64 * 1e-9;
    let boards = figure.categories.len();
    let emulated = if figure.emulated { "emulated " } else { "" };
    let total = significant(bytes / end_s / 1e6, 4);
    let answer = match boards {
        1 => format!("one {emulated}board moves {total} MB/s"),
        _ => format!(
            "{boards} {emulated}boards move {total} MB/s together; alone they would move {} in all",
            significant(sum(&figure.series[1].ys), 4)
        ),
    };
    Some(Answer {
        question: "How fast is read-out?",
        answer,
        figure: Some("readout"),
    })
}

fn conversion(figure: &Figure) -> Option<Answer> {
    let pairs = figure.series[0]
        .ys
        .iter()
        .zip(&figure.series[1].ys)
        .zip(&figure.categories);
    let fractions: Vec<(f64, &String)> = pairs
        .filter_map(|((rate, limit), name)| Some(((*rate)? / (*limit)?, name)))
        .collect();
    let (worst, slowest) = fractions.iter().min_by(|a, b| a.0.total_cmp(&b.0))?;
    let at_limit = fractions
        .iter()
        .filter(|(fraction, _)| *fraction >= 0.9)
        .count();
    Some(Answer {
        question: "Is conversion limited by arithmetic or by memory?",
        answer: format!(
            "{at_limit} of {} conversions run within 10 % of what memory allows; furthest from it is {slowest} at {:.0} %",
            fractions.len(),
            worst * 100.0
        ),
        figure: Some("conversion"),
    })
}

fn stores(figure: &Figure) -> Option<Answer> {
    let curve = |label: &str| figure.series.iter().find(|series| series.label == label);
    let (cached, around) = (curve("cached")?, curve("non-temporal")?);
    let last = (0..figure.xs.len())
        .rev()
        .find(|&at| cached.ys[at].is_some() && around.ys[at].is_some())?;
    let gain = around.ys[last]? / cached.ys[last]?;
    let footprint = show_bytes(figure.xs[last] as u64);
    Some(Answer {
        question: "Should converted data bypass the caches?",
        answer: format!(
            "at {footprint} non-temporal stores run at {gain:.2} times the rate of cached ones"
        ),
        figure: Some("stores"),
    })
}

fn fusion(figure: &Figure) -> Option<Answer> {
    let (fused, plain) = (
        &figure.series.first()?.ys,
        figure.series.get(1)?.ys.iter().flatten().next()?,
    );
    let best = (0..fused.len())
        .filter(|&at| fused[at].is_some())
        .max_by(|&a, &b| fused[a].unwrap_or(0.0).total_cmp(&fused[b].unwrap_or(0.0)))?;
    Some(Answer {
        question: "What does fusing read-out and conversion gain?",
        answer: format!(
            "{:.2} times, in blocks of {}",
            fused[best]? / plain,
            show_bytes(figure.xs[best] as u64)
        ),
        figure: Some("fusion"),
    })
}

fn completion(figure: &Figure) -> Option<Answer> {
    let at = (0..figure.categories.len())
        .find(|&at| figure.series.iter().all(|series| series.ys[at].is_some()))?;
    let percent = |series: usize| figure.series[series].ys[at].unwrap_or(0.0);
    Some(Answer {
        question: "Polling or interrupt?",
        answer: format!(
            "with {}, polling costs {} % of a core and the interrupt {} %",
            figure.categories[at],
            significant(percent(0), 3),
            significant(percent(1), 3)
        ),
        figure: Some("completion"),
    })
}

/// How many boards this host could read and convert, by CPU alone: the time that copy and cast of one board's data take.
fn digitizers(records: &[RunRecord]) -> Option<Answer> {
    const RATE_HZ: f64 = 14.0;
    const BYTES: f64 = 6e6;
    let fused = records
        .iter()
        .filter(|record| record.study.contains("fusion") && !record.lanes.is_empty());
    let seconds_per_byte = |record: &RunRecord| {
        let ns: Option<f64> = record.lanes[0]
            .stages
            .iter()
            .map(|stage: &Stage| rate::mean_ns(stage))
            .sum();
        Some(ns? * 1e-9 / record.lanes[0].stages.first()?.bytes_per_op.max(1) as f64)
    };
    let best = fused.filter_map(seconds_per_byte).reduce(f64::min)?;
    let cores = records.first()?.host.allowed_cpus.len() as f64;
    let at = |bytes: f64, rate_hz: f64| {
        let boards = cores / (best * bytes * rate_hz);
        if boards >= 1.0 {
            significant(boards.floor(), 3)
        } else {
            "none".to_owned()
        }
    };
    let answer = format!(
        "copy and cast of 6 MB at {RATE_HZ} Hz take {} % of a core per board; by CPU the {cores} CPUs would do for {} boards of 6 MB at 14 Hz, {} at \
         100 Hz, {} at 1 kHz; of 0.6 MB for {}, {} and {}; uplinks give out long before (from memory rates; no PCIe was measured)",
        significant(best * BYTES * RATE_HZ * 100.0, 2),
        at(BYTES, 14.0),
        at(BYTES, 100.0),
        at(BYTES, 1000.0),
        at(BYTES / 10.0, 14.0),
        at(BYTES / 10.0, 100.0),
        at(BYTES / 10.0, 1000.0),
    );
    Some(Answer {
        question: "How many digitizers can this host serve?",
        answer,
        figure: Some("fusion"),
    })
}

fn etherbone(records: &[RunRecord]) -> Option<Answer> {
    let rows = crate::etherbone::cycle_rows(records);
    let rows = rows
        .iter()
        .filter(|row| row.address == "loop/udp" && row.payload == "timestamps");
    let blocking = rows
        .clone()
        .filter(|row| row.method == "blocking")
        .min_by_key(|row| row.count)?;
    let best = rows
        .filter(|row| row.method == "pipelined")
        .max_by(|a, b| a.rate_khz.total_cmp(&b.rate_khz))?;
    let limit = blocking
        .limit_us
        .map(|us| format!(" (a raw ping-pong {})", significant(us, 3)))
        .unwrap_or_default();
    Some(Answer {
        question: "What does reading registers over Etherbone cost?",
        answer: format!(
            "over UDP on loopback one 64-bit timestamp takes {} us{limit}; {} at a time in a pipeline of cycles take {} us each",
            significant(blocking.item_us, 3),
            best.count,
            significant(best.item_us, 2)
        ),
        figure: Some("eb-time"),
    })
}

/// From chains that lost nothing: how fast, and what a chunk costs.
fn felix(records: &[RunRecord]) -> Option<Answer> {
    let mut rows = crate::readout::chain_rows(records);
    rows.retain(|row| !row.is_probe);
    let clean = rows
        .iter()
        .filter(|row| row.lost == 0 && row.dead_share == 0.0 && row.closes);
    let best = clean.max_by(|a, b| a.mchunks_per_s.total_cmp(&b.mchunks_per_s))?;
    let decode = records
        .iter()
        .find(|record| record.engine.name == "decode")
        .and_then(|record| {
            let stage = record.lanes.first()?.stages.first()?;
            let per_pass = record.counter("subchunks per pass")?;
            let ns = median_ns(stage)? / per_pass;
            Some(format!(
                "; finding a chunk in its block takes {} ns",
                significant(ns, 2)
            ))
        });
    Some(Answer {
        question: "What trigger rate can this host read out?",
        answer: format!(
            "{} was carried at {} kHz for {} s without a loss ({} M chunks/s, {} ns of a reader's core each){}",
            best.chain,
            significant(best.rate_hz / 1e3, 4),
            significant(best.seconds, 2),
            significant(best.mchunks_per_s, 3),
            best.reader_ns_per_chunk
                .map_or("-".to_owned(), |ns| significant(ns, 3)),
            decode.unwrap_or_default() + &by_links(best.reader_ns_per_chunk)
        ),
        figure: Some("felix-cpu").filter(|_| rows.len() > 1),
    })
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

/// What a copy costs, and from which size an engine would pay: by a model, since few hosts have one.
fn copies(records: &[RunRecord]) -> Option<Answer> {
    let rows = crate::copy::copy_rows(records);
    let of = |bytes: u64| {
        let wanted = |row: &&crate::copy::CopyRow| {
            row.direction == "to"
                && row.context == "cpu"
                && row.null_ns.is_some()
                && !row.cold
                && row.block_bytes == bytes
        };
        rows.iter().find(wanted)
    };
    let (one, large) = (of(1)?, of(1 << 20)?);
    let plain = rows
        .iter()
        .find(|row| row.path == "memcpy" && row.block_bytes == large.block_bytes)?;
    let model = crate::copy_model::DSA;
    let pays = match crate::copy_model::modelled_crossover(records, model, "to", false)? {
        Some(bytes) => format!("would pay from {} on", show_bytes(bytes)),
        None => "would pay at no size measured".to_owned(),
    };
    Some(Answer {
        question: "What does a copy out of the kernel cost, and would a DMA engine pay?",
        answer: format!(
            "{} for 1 B (a call without work takes {}), {} of a plain copy's rate at {}; an engine {pays} (MODELLED: {}, {} ns and {} GB/s)",
            show_ns(one.median_ns),
            one.null_ns.map_or("-".to_owned(), show_ns),
            significant(large.bytes_per_s() / plain.bytes_per_s(), 2),
            show_bytes(large.block_bytes),
            model.source,
            significant(model.fixed_ns, 3),
            significant(model.bytes_per_ns, 3)
        ),
        figure: Some("copy-latency"),
    })
}

/// Records whose spread is looked at.
const SPREAD_RECORDS: usize = 4000;

fn tool(records: &[RunRecord]) -> Option<Answer> {
    let cost_ns = tool_cost_ns(records)?;
    let clock_ns = records.first()?.clock.overhead_ns;
    let noise = records.first()?.noise.relative_mad * 100.0;
    // The spread of a few thousand records is that of all.
    let stages = records
        .iter()
        .take(SPREAD_RECORDS)
        .flat_map(|record| &record.lanes)
        .flat_map(|lane| &lane.stages);
    let spreads = stages.map(|stage| daqmeter_stats::relative_spread(&times_ns(stage)));
    let worst = spreads
        .filter(|spread| spread.is_finite())
        .fold(0.0, f64::max)
        * 100.0;
    Some(Answer {
        question: "How far can these numbers be trusted?",
        answer: format!(
            "the tool itself costs {} ns per operation and {} ns per sample; equal work varies by {} % here, the widest \
             stage by {} %",
            significant(cost_ns, 2),
            significant(clock_ns, 2),
            significant(noise, 2),
            significant(worst, 2)
        ),
        figure: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::tests::example;

    #[test]
    fn what_failed_or_is_above_its_limit_supports_no_answer_and_is_counted() {
        let mut failed = example();
        failed.outcome = daqmeter_record::Outcome::Failed("bytes differ".into());
        let found = answers(&[failed, rate::tests::above_its_limit()]);
        let questions: Vec<&str> = found.iter().map(|answer| answer.question).collect();
        assert_eq!(questions, ["Which points are used for no answer?"]);
        assert_eq!(
            found[0].answer,
            "1 failed, 1 with a rate above its limit, by more than the intervals allow"
        );
    }

    #[test]
    fn answers_rest_on_the_records_that_are_there() {
        assert!(answers(&[]).is_empty());
        let found = answers(&[example()]);
        assert_eq!(found.len(), 2);
        assert!(
            found[1]
                .answer
                .contains("costs 0.54 ns per operation and 24 ns per sample"),
            "{}",
            found[1].answer
        );
        assert_eq!(
            found[0].answer,
            "2 emulated boards move 1196 MB/s together; alone they would move 2556 in all"
        );
    }
}
