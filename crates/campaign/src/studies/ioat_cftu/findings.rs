//! What the study states, and what its figures ask, by this host's records.

use daqmeter_record::RunRecord;
use daqmeter_record::study::{Finding, Measured, Question, Statement};
use daqmeter_record::units::{show_bytes, show_ns, significant};
use daqmeter_report::copy::model::{DSA, pays_from, points_of, times};
use daqmeter_report::copy::{CopyRow, PollutionRow, TRACED, traced_sizes};
use daqmeter_stats::mean_interval;

use super::super::named;
use super::Document;
use super::claims::{Here, MIB};

impl Document {
    fn statement(&self, name: &str) -> &Statement {
        named(&self.statement, name)
    }

    fn question(&self, name: &str) -> &Question {
        named(&self.question, name)
    }
}

/// Every statement and question of the study, by this host's records.
pub(super) fn findings(document: &Document, records: &[RunRecord]) -> Vec<Finding> {
    let here = Here::of(records);
    vec![
        small(document, &here),
        cold(document, &here),
        predictable(document, &here),
        crossover(document.question("from"), &here, "from"),
        crossover(document.question("to"), &here, "to"),
        shared(document, &here),
        priority(document, &here),
        total(document, &here),
        polluted(document, &here),
        controls(document, &here),
        traced(document, &here),
    ]
}

fn small(document: &Document, here: &Here) -> Finding {
    let cpu = times(&here.rows, "cpu", "to", false);
    let at = |bytes: u64| here.copies(&["cpu"], cpu.iter().find(|(size, _)| *size == bytes)?.1);
    document.question("small").answered([at(1), at(64)], |[one, line]| {
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
    let (warm, cold) =
        (times(&here.rows, "cpu", "from", false), times(&here.rows, "cpu", "from", true));
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
        points_of(&here.rows, "exclusive", "from", false)
            .find(|row| row.block_bytes == cpu.block_bytes)
    };
    let pairs: Vec<(&CopyRow, &CopyRow)> = points_of(&here.rows, "cpu", "from", false)
        .filter_map(|cpu| Some((cpu, engine(cpu)?)))
        .collect();
    if pairs.is_empty() {
        return question.cannot_tell("no size was measured by both");
    }
    let count = |holds: fn(&CopyRow, &CopyRow) -> bool| {
        let sizes = pairs.iter().filter(|(cpu, engine)| holds(cpu, engine)).count();
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
    let at = |bytes: u64| engine.iter().find(|(size, _)| *size == bytes).map(|(_, ns)| *ns);
    let show = |size: Option<u64>| {
        size.map_or("at no size measured".to_owned(), |size| format!("from {}", show_bytes(size)))
    };
    let (measured, modelled) = (pays_from(&cpu, at), pays_from(&cpu, |bytes| Some(DSA.ns(bytes))));
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
    let ratios: Vec<f64> = points_of(&here.rows, "exclusive", "from", false)
        .filter_map(|one| {
            let other = points_of(&here.rows, "shared", "from", false)
                .find(|row| row.block_bytes == one.block_bytes)?;
            Some(other.median_ns / one.median_ns)
        })
        .collect();
    if ratios.is_empty() {
        return question.cannot_tell("no size was measured under both");
    }
    let sizes = ratios.len();
    let ratio = here.copies(&["exclusive", "shared"], mean(&ratios));
    question.answered([ratio], |[mean]| {
        format!(
            "times, shared over exclusive: {} (geometric mean of {sizes} sizes); {}",
            significant(mean, 3),
            cost(&ratios)
        )
    })
}

/// The cost of a policy that is worth a word.
const COSTS: f64 = 0.05;

/// What the ratios say of the cost of a policy: by the 95 % interval of their mean over the sizes.
fn cost(ratios: &[f64]) -> String {
    let Some((low, high)) = mean_interval(ratios) else {
        return "of one size there is no interval".to_owned();
    };
    let verdict = if low > 1.0 - COSTS && high < 1.0 + COSTS {
        "the policies cost the same within 5 %"
    } else if low > 1.0 + COSTS || high < 1.0 - COSTS {
        "the policies differ by more than 5 %"
    } else {
        "whether they are within 5 % cannot be told"
    };
    format!("{verdict} (95 % interval {} to {})", significant(low, 3), significant(high, 3))
}

/// The quantum and the window of the priority policy, as they were.
fn gate(records: &[RunRecord]) -> Option<String> {
    records.iter().rev().find_map(|record| {
        let windows = record.counter("gate-windows").filter(|windows| *windows > 0.0)?;
        let (high, low) =
            (record.counter("gate-high")? / windows, record.counter("gate-low")? / windows);
        Some(format!("; the quantum was {} of {}", show_ns(high), show_ns(high + low)))
    })
}

fn priority(document: &Document, here: &Here) -> Finding {
    let statement = document.statement("priority");
    let of_several = |row: &&CopyRow| row.context == "priority" && row.lanes_bytes_per_s.len() > 1;
    let Some(row) = here.rows.iter().filter(of_several).max_by_key(|row| row.block_bytes) else {
        return statement.cannot_tell("the policy was not measured with several channels");
    };
    let (high, low) =
        (row.lanes_bytes_per_s[0], row.lanes_bytes_per_s[1..].iter().copied().fold(0.0, f64::max));
    statement.judged([high, low].map(|rate| here.copies(&["priority"], rate)), |[high, low]| {
        let mib = |rate: f64| significant(rate / MIB, 4);
        let (size, gate) = (show_bytes(row.block_bytes), gate(&here.records).unwrap_or_default());
        let evidence = format!(
            "at {size}: high {} MB/s, best of the others {} MB/s{gate}",
            mib(high),
            mib(low)
        );
        ((high > low).into(), evidence)
    })
}

/// Rates of lanes that copy at the same time for less of the time than this are rates of different times: adding them up means
/// nothing.
const AT_ONCE: f64 = 0.9;
/// So far the sum may be from what was moved: as far as lanes get that are at half their rate in the rest of the time.
const SUM_WITHIN: f64 = 0.05;

/// Whether the sum of the rates is what all channels moved while every one copied ("nello stesso intorno temporale").
fn total(document: &Document, here: &Here) -> Finding {
    let statement = document.statement("total");
    let several = || here.rows.iter().filter_map(|row| Some((row, row.together?)));
    let Some(longest) = several().map(|(_, one)| one.share).reduce(f64::max) else {
        return statement.cannot_tell("nothing was measured on several CPUs or channels");
    };
    let at_once: Vec<(&CopyRow, f64)> = several()
        .filter(|(_, one)| one.share >= AT_ONCE)
        .map(|(row, one)| (row, one.sum_bytes_per_s / one.moved_bytes_per_s))
        .collect();
    let far = |ratio: &f64| ratio.ln().abs();
    let furthest = at_once.iter().max_by(|a, b| far(&a.1).total_cmp(&far(&b.1)));
    let Some((row, ratio)) = furthest else {
        return statement.cannot_tell(&format!(
            "the channels copied at the same time for at most {} % of the time, {} % are needed: repeat on a quiet host",
            significant(longest * 100.0, 3),
            AT_ONCE * 100.0
        ));
    };
    let points = at_once.len();
    statement.judged([here.copies(&[&row.context], *ratio)], |[ratio]| {
        let evidence = format!(
            "the sum of the rates is at the furthest {} of what all moved while every one copied ({}, {}; {points} of {} points); 0.95 to 1.05 count",
            significant(ratio, 3),
            row.context,
            show_bytes(row.block_bytes),
            several().count()
        );
        ((far(&ratio) < SUM_WITHIN).into(), evidence)
    })
}

fn against(rows: &[PollutionRow], neighbour: &str) -> Option<f64> {
    let alone = |row: &PollutionRow| {
        rows.iter().find(|ideal| {
            ideal.test == row.test && ideal.copies == row.copies && ideal.neighbour == "ideal"
        })
    };
    let of = rows.iter().filter(|row| row.neighbour == neighbour && !row.simulated);
    let ratios: Vec<f64> = of.filter_map(|row| Some(row.p10_ns? / alone(row)?.p10_ns?)).collect();
    (!ratios.is_empty()).then(|| mean(&ratios))
}

fn mean(ratios: &[f64]) -> f64 {
    (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len().max(1) as f64).exp()
}

fn polluted(document: &Document, here: &Here) -> Finding {
    let question = document.question("pollution");
    let missed = |neighbour: &str| {
        let of = here.programs.iter().filter(|row| row.neighbour == neighbour);
        let misses: Vec<f64> = of.filter_map(|row| row.miss_percent).collect();
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
    let Some(record) = here.records.iter().rev().find(|record| record.engine.name == "trace")
    else {
        return statement
            .cannot_tell("no trace: the tracer (kmod/daqmeter_trace.ko) is not loaded");
    };
    let mut sizes: Vec<(u64, f64)> = Vec::new();
    for operation in TRACED {
        for (bytes, calls) in traced_sizes(record, operation) {
            match sizes.iter_mut().find(|(size, _)| *size == bytes) {
                Some(known) => known.1 += calls,
                None => sizes.push((bytes, calls)),
            }
        }
    }
    sizes.sort_by(|a, b| b.1.total_cmp(&a.1));
    let calls = sizes.iter().map(|(_, calls)| calls).sum();
    let top: Vec<String> = sizes.iter().take(5).map(|(bytes, _)| show_bytes(*bytes)).collect();
    statement.judged([Measured::of(record, calls)], |[calls]| {
        let is_there = sizes.iter().take(5).any(|(bytes, _)| *bytes == 16);
        (is_there.into(), format!("most often of {calls} calls: {}", top.join(", ")))
    })
}
