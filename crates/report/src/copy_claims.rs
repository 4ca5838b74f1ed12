//! The study of copies: its sample records beside this host, what it states, and what its figures ask, by this host's records.

use std::collections::BTreeMap;

use daqmeter_record::RunRecord;
use daqmeter_record::study::{Comparison, Finding, Measured, Published, Question, Statement};
use daqmeter_record::units::{show_bytes, show_ns, significant};
use serde::Deserialize;

use crate::copy::model::{DSA, pays_from, points_of as of, times};
use crate::copy::{CopyRow, PollutionRow, copy_rows, pollution_rows};

/// What the document has in numbers and words.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    sample: Sample,
    statement: BTreeMap<String, Statement>,
    question: BTreeMap<String, Question>,
}

/// Its sample records.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sample {
    mean_1_ns: Published,
    median_1_ns: Published,
    time_64_ns: Published,
    channel_mb_per_s: Published,
    total_mb_per_s: Published,
    qsort_us: Published,
    miss_percent: Published,
}

impl Default for Document {
    fn default() -> Self {
        toml::from_str(include_str!("../data/ioat-cftu-published.toml"))
            .expect("ships with the binary and is tested")
    }
}

impl Document {
    fn statement(&self, name: &str) -> &Statement {
        self.statement
            .get(name)
            .expect("the shipped statements are tested")
    }

    fn question(&self, name: &str) -> &Question {
        self.question
            .get(name)
            .expect("the shipped questions are tested")
    }
}

/// Times of the four channels in the sample records of section 3.4.1, in ns: 300 copies of 1 KiB each.
const SAMPLE_NS: [f64; 4] = [108_743.0, 93_960.0, 105_561.0, 95_522.0];
/// Cache misses and references of the sample record of section 3.5.1.
const SAMPLE_MISSES: (f64, f64) = (982.0, 157_283.0);

/// The rate of a channel as the document defines it: MB of 2^20 bytes over its own time.
fn sample_mb_per_s(ns: f64) -> f64 {
    300.0 * 1024.0 / (ns * 1e-9) / 1_048_576.0
}

/// The document's sample records: times beside this host's, rates and shares beside our definitions of them.
pub fn rows(records: &[RunRecord]) -> Vec<Comparison> {
    let (sample, here) = (Document::default().sample, Here::of(records));
    let cpu_to =
        |bytes: u64| of(&here.rows, "cpu", "to", false).find(move |row| row.block_bytes == bytes);
    let time = |name: &str, published: Published, bytes: u64, value: fn(&CopyRow) -> f64| {
        let measured = cpu_to(bytes).and_then(|row| here.copies(&["cpu"], value(row)));
        Comparison::new("sample records: latency", name, published, "ns")
            .measured(measured)
            .of_this_host()
    };
    let qsort = here
        .programs
        .iter()
        .find(|row| row.test == "qsort_small" && row.neighbour == "ideal");
    let qsort = qsort.and_then(|row| here.pollution(row.mean_ns / 1e3));
    let of_rate = |name: &str, published: Published, model: f64| {
        Comparison::new("sample records: bandwidth", name, published, "MB/s").model(model)
    };
    vec![
        time("copy of 1 B, mean", sample.mean_1_ns, 1, |row| row.mean_ns),
        time("copy of 1 B, median", sample.median_1_ns, 1, |row| {
            row.median_ns
        }),
        time(
            "copy of 64 B (here the median)",
            sample.time_64_ns,
            64,
            |row| row.median_ns,
        ),
        of_rate(
            "300 x 1 KiB on channel 0, by our definition",
            sample.channel_mb_per_s,
            sample_mb_per_s(SAMPLE_NS[0]),
        ),
        of_rate(
            "all four channels, by our definition",
            sample.total_mb_per_s,
            SAMPLE_NS.map(sample_mb_per_s).iter().sum(),
        ),
        Comparison::new(
            "sample records: programs",
            "qsort_small alone, mean time",
            sample.qsort_us,
            "us",
        )
        .measured(qsort)
        .of_this_host(),
        Comparison::new(
            "sample records: programs",
            "qsort_small, misses, by our definition",
            sample.miss_percent,
            "%",
        )
        .model(SAMPLE_MISSES.0 / SAMPLE_MISSES.1 * 100.0),
    ]
}

/// What was measured here and did not fail.
struct Here {
    records: Vec<RunRecord>,
    rows: Vec<CopyRow>,
    programs: Vec<PollutionRow>,
}

impl Here {
    fn of(records: &[RunRecord]) -> Here {
        let records: Vec<RunRecord> = records
            .iter()
            .filter(|record| record.outcome.is_ok())
            .cloned()
            .collect();
        Here {
            rows: copy_rows(&records),
            programs: pollution_rows(&records),
            records,
        }
    }

    /// A value from the copies of these contexts.
    fn copies(&self, contexts: &[&str], value: f64) -> Option<Measured> {
        let is_of = |record: &&RunRecord| {
            record.engine.name == "copy"
                && record
                    .workload
                    .text("context")
                    .is_ok_and(|context| contexts.contains(&context))
        };
        Measured::over(self.records.iter().filter(is_of), value)
    }

    /// A value from programs beside neighbours.
    fn pollution(&self, value: f64) -> Option<Measured> {
        let measured = Measured::over(
            self.records
                .iter()
                .filter(|record| record.engine.name == "pollution"),
            value,
        )?;
        let simulated = self.programs.iter().any(|row| row.simulated);
        Some(if simulated {
            measured.of_emulation()
        } else {
            measured
        })
    }
}

/// Every statement and question of the study, by this host's records.
pub fn findings(records: &[RunRecord]) -> Vec<Finding> {
    let (document, here) = (Document::default(), Here::of(records));
    vec![
        small(&document, &here),
        cold(&document, &here),
        predictable(&document, &here),
        crossover(document.question("from"), &here, "from"),
        crossover(document.question("to"), &here, "to"),
        shared(&document, &here),
        priority(&document, &here),
        total(&document, &here),
        polluted(&document, &here),
        controls(&document, &here),
        traced(&document, &here),
    ]
}

fn small(document: &Document, here: &Here) -> Finding {
    let cpu = times(&here.rows, "cpu", "to", false);
    let at = |bytes: u64| here.copies(&["cpu"], cpu.iter().find(|(size, _)| *size == bytes)?.1);
    document
        .question("small")
        .answered([at(1), at(64)], |[one, line]| {
            format!(
                "copy_to_user by the CPU: 1 B {}, 64 B {} (ratio {})",
                show_ns(one),
                show_ns(line),
                significant(line / one, 3)
            )
        })
}

fn cold(document: &Document, here: &Here) -> Finding {
    let question = document.question("cold");
    let (warm, cold) = (
        times(&here.rows, "cpu", "from", false),
        times(&here.rows, "cpu", "from", true),
    );
    let ratios: Vec<(u64, f64)> = cold
        .iter()
        .filter_map(|(bytes, ns)| {
            Some((*bytes, ns / warm.iter().find(|(size, _)| size == bytes)?.1))
        })
        .collect();
    let smallest = ratios.iter().min_by(|a, b| a.1.total_cmp(&b.1));
    let largest = ratios.iter().max_by(|a, b| a.1.total_cmp(&b.1));
    let (Some(smallest), Some(largest)) = (smallest, largest) else {
        return question.cannot_tell("no size was measured both ways");
    };
    let ratio = |of: &(u64, f64)| here.copies(&["cpu"], of.1);
    question.answered([ratio(smallest), ratio(largest)], |[low, high]| {
        let (low, high) = (significant(low, 3), significant(high, 3));
        let (low_at, high_at) = (show_bytes(smallest.0), show_bytes(largest.0));
        format!(
            "times without cache are {low} (at {low_at}) to {high} (at {high_at}) of those with"
        )
    })
}

/// Standard deviation over mean.
fn spread(row: &CopyRow) -> f64 {
    row.variance.sqrt() / row.mean_ns
}

fn predictable(document: &Document, here: &Here) -> Finding {
    let question = document.question("predictable");
    let engine = |cpu: &CopyRow| {
        of(&here.rows, "exclusive", "from", false).find(|row| row.block_bytes == cpu.block_bytes)
    };
    let pairs: Vec<(&CopyRow, &CopyRow)> = of(&here.rows, "cpu", "from", false)
        .filter_map(|cpu| Some((cpu, engine(cpu)?)))
        .collect();
    if pairs.is_empty() {
        return question.cannot_tell("no size was measured by both");
    }
    let count = |holds: fn(&CopyRow, &CopyRow) -> bool| {
        let sizes = pairs
            .iter()
            .filter(|(cpu, engine)| holds(cpu, engine))
            .count();
        here.copies(&["cpu", "exclusive"], sizes as f64)
    };
    let higher = count(|cpu, engine| engine.mean_ns > cpu.mean_ns);
    let steadier = count(|cpu, engine| spread(engine) < spread(cpu));
    question.answered([higher, steadier], |[higher, steadier]| {
        format!(
            "of {} sizes the engine's mean is higher at {higher}, its deviation over the mean lower at {steadier}",
            pairs.len()
        )
    })
}

fn crossover(question: &Question, here: &Here, direction: &'static str) -> Finding {
    let cpu = times(&here.rows, "cpu", direction, false);
    let engine = times(&here.rows, "exclusive", direction, false);
    if cpu.len() < 2 || engine.len() < 2 {
        return question.cannot_tell("too few sizes were measured by both");
    }
    let at = |bytes: u64| {
        engine
            .iter()
            .find(|(size, _)| *size == bytes)
            .map(|(_, ns)| *ns)
    };
    let show = |size: Option<u64>| {
        size.map_or("at no size measured".to_owned(), |size| {
            format!("from {}", show_bytes(size))
        })
    };
    let (measured, modelled) = (
        pays_from(&cpu, at),
        pays_from(&cpu, |bytes| Some(DSA.ns(bytes))),
    );
    let sizes = here.copies(&["cpu", "exclusive"], engine.len() as f64);
    question.answered([sizes], |[sizes]| {
        format!(
            "pays {}, of {sizes} sizes; MODELLED, {}: {}",
            show(measured),
            DSA.source,
            show(modelled)
        )
    })
}

fn shared(document: &Document, here: &Here) -> Finding {
    let question = document.question("shared");
    let ratios: Vec<f64> = of(&here.rows, "exclusive", "from", false)
        .filter_map(|one| {
            let other = of(&here.rows, "shared", "from", false)
                .find(|row| row.block_bytes == one.block_bytes)?;
            Some(other.median_ns / one.median_ns)
        })
        .collect();
    if ratios.is_empty() {
        return question.cannot_tell("no size was measured under both");
    }
    question.answered(
        [here.copies(&["exclusive", "shared"], mean(&ratios))],
        |[mean]| {
            format!(
                "times, shared over exclusive: {} (geometric mean of {} sizes)",
                significant(mean, 3),
                ratios.len()
            )
        },
    )
}

/// The quantum and the window of the priority policy, as they were.
fn gate(records: &[RunRecord]) -> Option<String> {
    records.iter().rev().find_map(|record| {
        let windows = record
            .counter("gate-windows")
            .filter(|windows| *windows > 0.0)?;
        let (high, low) = (
            record.counter("gate-high")? / windows,
            record.counter("gate-low")? / windows,
        );
        Some(format!(
            "; the quantum was {} of {}",
            show_ns(high),
            show_ns(high + low)
        ))
    })
}

fn priority(document: &Document, here: &Here) -> Finding {
    let statement = document.statement("priority");
    let of_several = |row: &&CopyRow| row.context == "priority" && row.lanes_bytes_per_s.len() > 1;
    let Some(row) = here
        .rows
        .iter()
        .filter(of_several)
        .max_by_key(|row| row.block_bytes)
    else {
        return statement.cannot_tell("the policy was not measured with several channels");
    };
    let (high, low) = (
        row.lanes_bytes_per_s[0],
        row.lanes_bytes_per_s[1..]
            .iter()
            .copied()
            .fold(0.0, f64::max),
    );
    statement.judged(
        [high, low].map(|rate| here.copies(&["priority"], rate)),
        |[high, low]| {
            let mib = |rate: f64| significant(rate / 1_048_576.0, 4);
            let (size, gate) = (
                show_bytes(row.block_bytes),
                gate(&here.records).unwrap_or_default(),
            );
            let evidence = format!(
                "at {size}: high {} MB/s, best of the others {} MB/s{gate}",
                mib(high),
                mib(low)
            );
            ((high > low).into(), evidence)
        },
    )
}

/// Whether the sum of the rates is what all channels really moved in the time of all.
fn total(document: &Document, here: &Here) -> Finding {
    let statement = document.statement("total");
    let several = here
        .rows
        .iter()
        .filter(|row| row.lanes_bytes_per_s.len() > 1 && row.union_bytes_per_s > 0.0);
    let largest = several.max_by(|one, other| excess(one).total_cmp(&excess(other)));
    let Some(row) = largest else {
        return statement.cannot_tell("nothing was measured on several CPUs or channels");
    };
    statement.judged([here.copies(&[&row.context], excess(row))], |[excess]| {
        let evidence = format!(
            "the sum of the rates is up to {} of bytes over the time of all ({}, {}); up to 1.05 counts",
            significant(excess, 3),
            row.context,
            show_bytes(row.block_bytes)
        );
        ((excess < 1.05).into(), evidence)
    })
}

fn excess(row: &CopyRow) -> f64 {
    row.total_bytes_per_s() / row.union_bytes_per_s
}

fn against(rows: &[PollutionRow], neighbour: &str) -> Option<f64> {
    let alone = |row: &PollutionRow| {
        rows.iter().find(|ideal| {
            ideal.test == row.test && ideal.copies == row.copies && ideal.neighbour == "ideal"
        })
    };
    let of = rows
        .iter()
        .filter(|row| row.neighbour == neighbour && !row.simulated);
    let ratios: Vec<f64> = of
        .filter_map(|row| Some(row.p10_ns? / alone(row)?.p10_ns?))
        .collect();
    (!ratios.is_empty()).then(|| mean(&ratios))
}

fn mean(ratios: &[f64]) -> f64 {
    (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len().max(1) as f64).exp()
}

fn polluted(document: &Document, here: &Here) -> Finding {
    let question = document.question("pollution");
    let missed = |neighbour: &str| {
        let of = here
            .programs
            .iter()
            .filter(|row| row.neighbour == neighbour);
        let misses: Vec<f64> = of.filter_map(PollutionRow::miss_percent).collect();
        here.pollution(misses.iter().sum::<f64>() / misses.len() as f64)
    };
    let all = ["ideal", "cpu", "dma"].map(missed);
    if all.iter().any(Option::is_none) {
        let missing = "no cache counters here: a cache model counts under QEMU (cargo xtask copy-vm --pollution)";
        return question.cannot_tell(missing);
    }
    let simulated = if here.programs.iter().any(|row| row.simulated) {
        ", SIMULATED by a cache model"
    } else {
        ""
    };
    question.answered(all, |misses| {
        let [ideal, cpu, dma] = misses.map(|percent| significant(percent, 3));
        format!("mean misses: alone {ideal} %, beside the CPU's copies {cpu} %, beside the engine's {dma} %{simulated}")
    })
}

fn controls(document: &Document, here: &Here) -> Finding {
    let ratios = ["cpu", "spin", "null-call"];
    let ratios = ratios.map(|neighbour| {
        against(&here.programs, neighbour).and_then(|ratio| here.pollution(ratio))
    });
    if ratios.iter().any(Option::is_none) {
        return document
            .question("time")
            .cannot_tell("programs beside all of them were not measured");
    }
    document.question("time").answered(ratios, |ratios| {
        let [cpu, spin, null] = ratios.map(|ratio| significant(ratio, 4));
        format!("10th percentiles over alone, geometric mean: copies {cpu}, spin {spin}, null call {null}")
    })
}

fn traced(document: &Document, here: &Here) -> Finding {
    let statement = document.statement("sizes");
    let Some(record) = here
        .records
        .iter()
        .rev()
        .find(|record| record.engine.name == "trace")
    else {
        return statement
            .cannot_tell("no trace: the tracer (kmod/daqmeter_trace.ko) is not loaded");
    };
    let mut sizes: Vec<(u64, f64)> = Vec::new();
    for operation in crate::copy::TRACED {
        for (bytes, calls) in crate::copy::traced_sizes(record, operation) {
            match sizes.iter_mut().find(|(size, _)| *size == bytes) {
                Some(known) => known.1 += calls,
                None => sizes.push((bytes, calls)),
            }
        }
    }
    sizes.sort_by(|a, b| b.1.total_cmp(&a.1));
    let calls = sizes.iter().map(|(_, calls)| calls).sum();
    let top: Vec<String> = sizes
        .iter()
        .take(5)
        .map(|(bytes, _)| show_bytes(*bytes))
        .collect();
    statement.judged([Measured::of(record, calls)], |[calls]| {
        let is_there = sizes.iter().take(5).any(|(bytes, _)| *bytes == 16);
        (
            is_there.into(),
            format!("most often of {calls} calls: {}", top.join(", ")),
        )
    })
}

/// What a reader of the comparison must know.
pub const REMARKS: &[&str] = &[
    "the values of the study's 50 figures are in pictures: what they show is asked of this host and compared with nothing",
    "its sample records are of an Apple Xserve of 2006; times of this host stand beside them and are not judged",
    "by our definition: the document's own times and counts, put through the formulas that our tables use",
    "an engine that is emulated (engine-thread) says nothing about hardware",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::tests::example;

    fn finding(records: &[RunRecord], text: &str) -> Finding {
        findings(records)
            .into_iter()
            .find(|finding| finding.text.contains(text))
            .unwrap()
    }

    #[test]
    fn findings_are_told_only_from_what_was_measured() {
        let document = Document::default();
        let none = findings(&[]);
        assert_eq!(
            none.len(),
            document.statement.len() + document.question.len()
        );
        assert!(
            none.iter()
                .all(|finding| finding.verdict.to_string() == "cannot tell"),
            "{none:?}"
        );
        let records = [
            example("cpu", "from", 64, &[100, 200]),
            example("cpu", "from", 1 << 20, &[90_000, 91_000]),
            example("exclusive", "from", 64, &[900, 901]),
            example("exclusive", "from", 1 << 20, &[40_000, 40_001]),
        ];
        let crossover = finding(&records, "copy_from_user");
        assert_eq!(crossover.verdict.to_string(), "this host (emulated)");
        assert!(
            crossover
                .evidence
                .contains("pays from 1 MiB, of 2 sizes; MODELLED"),
            "{}",
            crossover.evidence
        );
        let real = records.map(|mut record| {
            record.engine.emulated = false;
            record
        });
        assert_eq!(
            finding(&real, "copy_from_user").verdict.to_string(),
            "this host"
        );
        let failed = real.map(|mut record| {
            record.outcome = daqmeter_record::Outcome::Failed("wrong bytes".into());
            record
        });
        assert_eq!(
            finding(&failed, "copy_from_user").verdict.to_string(),
            "cannot tell"
        );
    }

    #[test]
    fn the_sum_of_rates_is_judged_by_records_and_not_by_the_sample() {
        let two = |ends: [u64; 2]| {
            let mut record = example("shared", "from", 1024, &[500]);
            let lane = record.lanes[0].clone();
            record.lanes = ends
                .map(|end_ns| {
                    let mut lane = lane.clone();
                    lane.stages[0].end_ns = end_ns;
                    lane.stages[0].start_ns = end_ns - 500;
                    lane
                })
                .into();
            finding(&[record], "the sum of the rates")
                .verdict
                .to_string()
        };
        assert_eq!(two([600, 600]), "confirmed (emulated)");
        assert_eq!(
            two([600, 1100]),
            "refuted (emulated)",
            "one after the other, the sum is twice what was moved"
        );
    }

    #[test]
    fn the_samples_rates_come_out_by_our_definition() {
        for line in rows(&[]).into_iter().filter(|line| line.model.is_some()) {
            let off = line
                .published
                .as_ref()
                .unwrap()
                .difference(line.model.unwrap().value());
            assert!(off.abs() < 1e-6, "{line:?}");
        }
        let here = rows(&[example("cpu", "to", 1, &[400, 500, 600])]);
        assert_eq!(
            here[0].verdict().to_string(),
            "this host",
            "another machine's time is never judged"
        );
        assert_eq!(here[0].measured.unwrap().value(), 500.0);
    }
}
