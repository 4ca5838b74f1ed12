//! The source document's study beside model and measurement: what to run, and what the records then say.
//!
//! Works on records alone, fresh or read back from a file. Prints nothing.

use daqmeter_record::{Comparison, RunRecord, Workload};

use crate::devices::emulated::Profile;
use crate::published::{CpuRow, Kind, Published, Table};

/// Prefix of the studies of all records here.
pub const STUDY: &str = "reproduce/digitizer";
/// Passes of a CPU measurement: a second and a half at 14 Hz.
pub const CPU_PASSES: u64 = 21;

/// How a point of the reproduction is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steps {
    /// `-N`.
    Reads(u64),
    /// `-l`.
    Passes(u64),
    /// As long as it takes for a good median.
    Timed,
}

/// One point to run.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// Study of its record.
    pub study: String,
    /// Name of the engine, `digitizer` or `convert`.
    pub engine: &'static str,
    /// What to ask.
    pub workload: Workload,
    /// How often.
    pub steps: Steps,
    /// Sample what takes the time.
    pub profile: bool,
}

/// Everything that the reproduction runs.
pub fn plan(published: &Published) -> Vec<Planned> {
    let table = |table: &Table| Planned {
        study: format!("{STUDY}/{}", table.id),
        engine: "digitizer",
        workload: table.workload(),
        steps: Steps::Reads(table.reads),
        profile: false,
    };
    let cpu = |(at, row): (usize, &CpuRow)| Planned {
        study: format!("{STUDY}/cpu-{at}"),
        engine: "digitizer",
        workload: cpu_workload(row),
        steps: Steps::Passes(CPU_PASSES),
        profile: row.command,
    };
    let scale = |(factor, offset): (f64, f64)| Planned {
        study: format!("{STUDY}/scale-{factor}-{offset}"),
        engine: "convert",
        workload: Workload::new("convert")
            .with("samples", 3_000_000_u64)
            .with("function", 3_u64)
            .with("scale_factor", factor)
            .with("scale_offset", offset),
        steps: Steps::Timed,
        profile: false,
    };
    // A run of tens of milliseconds is at the mercy of one hiccup of the host: it is done five times, the median counts.
    let repeats = |table: &Table| if table.samples < 10_000_000 && table.kind == Kind::Readout { 5 } else { 1 };
    let tables = published.table.iter().flat_map(|one| std::iter::repeat_n(table(one), repeats(one)));
    tables.chain(published.cpu.iter().enumerate().map(cpu)).chain(SCALES.map(scale)).collect()
}

/// Two scalings that differ in nothing but their values.
const SCALES: [(f64, f64); 2] = [(1.0, 0.0), (0.123, -45.6)];

fn cpu_workload(row: &CpuRow) -> Workload {
    let devices = if row.boards == 1 { "emu:l0".to_owned() } else { format!("emu:l0..{}", row.boards - 1) };
    Workload::new("digitizer")
        .with("devices", devices)
        .with("samples", row.samples)
        .with("function", row.function)
        .with("completion", if row.polling { "poll" } else { "interrupt" })
        .with("trigger_rate_hz", 14.0)
}

/// The record of a study; of several, the one with the median wall time.
fn find<'a>(records: &'a [RunRecord], study: &str) -> Option<&'a RunRecord> {
    let mut found: Vec<&RunRecord> =
        records.iter().filter(|record| record.study == study && !record.lanes.is_empty()).collect();
    found.sort_by_key(|record| record.wall_ns);
    found.get(found.len() / 2).copied()
}

/// Speeds of the lanes in the stage that the table times, in MB/s by the document's definition, fastest first.
fn speeds(record: &RunRecord, table: &Table) -> Vec<f64> {
    let stage_at = match table.kind {
        Kind::Readout => 0,
        Kind::Conversion => 1,
    };
    let mut speeds: Vec<f64> = record
        .lanes
        .iter()
        .filter_map(|lane| lane.stages.get(stage_at))
        .map(|stage| {
            let bytes = stage.bytes_per_op * stage.ops_per_sample * stage.sample_ns.len() as u64;
            bytes as f64 / (stage.end_ns.saturating_sub(stage.start_ns)).max(1) as f64 * 1e3
        })
        .collect();
    speeds.sort_by(|a, b| b.total_cmp(a));
    speeds
}

/// Every row of every table. Boards of one model are interchangeable, so rows are compared in order of speed.
pub fn tables(published: &Published, profile: &Profile, records: &[RunRecord]) -> Vec<Comparison> {
    let mut lines = Vec::new();
    for table in &published.table {
        let mut model = table.model_mb_per_s(profile);
        model.sort_by(|a, b| b.total_cmp(a));
        let measured = find(records, &format!("{STUDY}/{}", table.id)).map(|record| speeds(record, table));
        let mut rows: Vec<_> = table.rows.iter().collect();
        rows.sort_by(|a, b| b.speed_mb_per_s.total_cmp(&a.speed_mb_per_s));
        for (at, row) in rows.into_iter().enumerate() {
            lines.push(Comparison {
                table: table.title.clone(),
                row: format!("sis8300-{}", row.board),
                published: row.speed_mb_per_s,
                model: model.get(at).copied(),
                measured: measured.as_ref().and_then(|speeds| speeds.get(at).copied()),
                unit: "MB/s",
            });
        }
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        lines.push(Comparison {
            table: table.title.clone(),
            row: "mean".to_owned(),
            published: table.mean_mb_per_s(),
            model: Some(mean(&model)),
            measured: measured.as_deref().filter(|speeds| !speeds.is_empty()).map(mean),
            unit: "MB/s",
        });
    }
    lines
}

/// CPU time of the process over wall time, in per cent of one core.
pub fn cpu_percent(record: &RunRecord) -> f64 {
    record.process_cpu.total_ns() as f64 / record.wall_ns.max(1) as f64 * 100.0
}

/// Every CPU figure. The model is of read-out alone; conversion adds its cost per sample.
pub fn cpu(published: &Published, profile: &Profile, records: &[RunRecord]) -> Vec<Comparison> {
    let line = |(at, row): (usize, &CpuRow)| {
        let bytes = row.samples * 2;
        let own = profile.own_bytes_per_s(crate::devices::sis8300::regs::Model::L).unwrap_or(f64::INFINITY);
        let own: Vec<f64> = vec![own; row.boards as usize];
        let read_s = crate::devices::emulated::uplink::predict(&profile.uplink, &own, bytes as f64)[0];
        let converted = if row.function == 5 { profile.conversion_ns_per_raw_byte.unsigned_f64 } else { 0.0 };
        let conversion = 14.0 * f64::from(row.boards) * bytes as f64 * converted * 1e-9 * 100.0;
        Comparison {
            table: "CPU at 14 Hz".to_owned(),
            row: format!("{}, {} board(s), {}", row.title, row.boards, if row.polling { "poll" } else { "interrupt" }),
            published: row.percent,
            model: Some(profile.cpu_percent(row.boards, bytes, read_s, 14.0, row.polling) + conversion),
            measured: find(records, &format!("{STUDY}/cpu-{at}")).map(cpu_percent),
            unit: "% of a core",
        }
    };
    published.cpu.iter().enumerate().map(line).collect()
}

/// What the data say of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// They agree with it.
    Confirmed,
    /// They contradict it.
    Refuted,
    /// True in part; the evidence says which.
    Partly,
    /// Not decidable from what was measured.
    Open,
}

impl Verdict {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Confirmed => "confirmed",
            Verdict::Refuted => "refuted",
            Verdict::Partly => "in part",
            Verdict::Open => "open",
        }
    }
}

/// One claim of the document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The claim.
    pub claim: &'static str,
    /// What the data say.
    pub verdict: Verdict,
    /// The data.
    pub evidence: String,
}

fn judged(claim: &'static str, holds: bool, evidence: String) -> Finding {
    Finding { claim, verdict: if holds { Verdict::Confirmed } else { Verdict::Refuted }, evidence }
}

/// Judges every finding of the document by its own figures and by the records.
pub fn findings(published: &Published, profile: &Profile, records: &[RunRecord]) -> Vec<Finding> {
    let lines = tables(published, profile, records);
    let mean = |id: &str| published.table.iter().find(|table| table.id == id).map_or(f64::NAN, Table::mean_mb_per_s);
    let measured = |id: &str| {
        let title = published.table.iter().find(|table| table.id == id).map(|table| table.title.as_str());
        lines.iter().find(|line| Some(line.table.as_str()) == title && line.row == "mean")?.measured
    };
    let here = |id: &str| measured(id).map_or_else(|| "not run".to_owned(), |value| format!("{value:.0}"));
    let (l1, ku1, l5) = (mean("l1-60mb"), mean("ku1-60mb"), mean("l5-60mb"));
    let mut findings = vec![
        judged(
            "SIS8300-L/L2 transfer at about 600 MB/s",
            (550.0..650.0).contains(&l1),
            format!("{l1:.0} MB/s alone; emulated here {}", here("l1-60mb")),
        ),
        judged(
            "SIS8300-KU transfers at about 1200 MB/s",
            (1100.0..1300.0).contains(&ku1),
            format!("{ku1:.0} MB/s alone; emulated here {}", here("ku1-60mb")),
        ),
        judged(
            "boards transfer in parallel (DMA)",
            l5 * 5.0 > 2.0 * l1,
            format!("5 boards move {:.0} MB/s together, one {l1:.0}", l5 * 5.0),
        ),
        judged(
            "the speed per board falls with their number",
            l5 < l1,
            format!("{l1:.0} MB/s alone, {l5:.0} each of five"),
        ),
        mixed_crate(published, l5),
        linearity(mean("l5-0.6mb"), mean("l5-1.7mb"), l5),
        Finding {
            claim: "floating-point transfers would take twice as long",
            verdict: Verdict::Open,
            evidence: "never measured in the document: it follows only where time is linear in bytes (see above)"
                .to_owned(),
        },
        judged(
            "the KU is about twice as fast",
            (1.8..2.2).contains(&(ku1 / l1)),
            format!("{ku1:.0} / {l1:.0} = {:.2}", ku1 / l1),
        ),
        judged(
            "conversion time depends on the operation",
            mean("cast") / mean("sca") > 1.5,
            format!(
                "cast {:.0}, scale {:.0} MB/s; here {} and {}",
                mean("cast"),
                mean("sca"),
                here("cast"),
                here("sca")
            ),
        ),
    ];
    findings.push(factor_values(records));
    findings.push(judged(
        "conversion time depends on the decimation factor",
        mean("dec10") / mean("dec1") > 1.5,
        format!(
            "by 1 {:.0}, by 10 {:.0} MB/s; here {} and {}",
            mean("dec1"),
            mean("dec10"),
            here("dec1"),
            here("dec10")
        ),
    ));
    findings.extend(cpu_findings(published, profile, records));
    findings
}

fn mixed_crate(published: &Published, l5: f64) -> Finding {
    let rows =
        published.table.iter().find(|table| table.id == "ku1-l5-60mb").map(|table| &table.rows[..]).unwrap_or(&[]);
    let slow: Vec<f64> = rows.iter().map(|row| row.speed_mb_per_s).filter(|&speed| speed < 800.0).collect();
    let mean = slow.iter().sum::<f64>() / slow.len().max(1) as f64;
    judged(
        "a KU in the crate slows the L boards",
        mean < l5 * 0.95,
        format!("{l5:.0} MB/s each without, {mean:.0} with the KU"),
    )
}

fn linearity(small: f64, middle: f64, large: f64) -> Finding {
    Finding {
        claim: "time is linear in the bytes transferred",
        verdict: Verdict::Partly,
        evidence: format!(
            "5 boards: {small:.0} MB/s at 0.6 MB, {middle:.0} at 1.7 MB, {large:.0} at 60 MB; runs shorter than about 100 ms are \
             slower, and no constant start-up time explains both"
        ),
    }
}

fn factor_values(records: &[RunRecord]) -> Finding {
    let claim = "conversion time does not depend on the values of factor and offset";
    let rate = |(factor, offset): (f64, f64)| {
        let record = find(records, &format!("{STUDY}/scale-{factor}-{offset}"))?;
        Some(record.lanes.first()?.stages.first()?.rate_bytes_per_s() / 1e6)
    };
    match (rate(SCALES[0]), rate(SCALES[1])) {
        (Some(one), Some(other)) => {
            let ratio = other / one;
            judged(
                claim,
                (0.85..1.18).contains(&ratio),
                format!("here x*1+0: {one:.0} MB/s, x*0.123-45.6: {other:.0} MB/s (ratio {ratio:.2})"),
            )
        }
        _ => Finding { claim, verdict: Verdict::Open, evidence: "not run".to_owned() },
    }
}

fn cpu_findings(published: &Published, profile: &Profile, records: &[RunRecord]) -> Vec<Finding> {
    let lines = cpu(published, profile, records);
    let show = |at: usize| {
        let line = &lines[at];
        line.measured.map_or_else(|| "not run".to_owned(), |value| format!("{value:.1} %"))
    };
    let counter =
        |at: usize, name: &str| find(records, &format!("{STUDY}/cpu-{at}")).and_then(|record| record.counter(name));
    let copy_share = find(records, &format!("{STUDY}/cpu-1")).map(|record| {
        let copies = record.hotspots.iter().filter(|spot| {
            spot.symbol.contains("copy")
                || spot.symbol.contains("memmove")
                || spot.symbol.contains("memcpy")
                || spot.symbol.contains("libc")
        });
        copies.map(|spot| spot.share).sum::<f64>() * 100.0
    });
    let reads = counter(0, "register-reads");
    vec![
        Finding {
            claim: "CPU use is the same for 30,000 and 300,000 samples per channel",
            verdict: Verdict::Partly,
            evidence: format!(
                "published 17 % for both when polling; by interrupt the same tables need 4 % at 0.6 MB and 44/5 = 9 % at 6 MB: polling hides \
                 the copy. Here {} and {}",
                show(0),
                show(4)
            ),
        },
        Finding {
            claim: "most of the time is spent copying data to user space",
            verdict: Verdict::Partly,
            evidence: format!(
                "published profiles: 46 % (1 board) and 78 % (5 boards) by interrupt, 6 % (1 board) when polling; here, emulated DMA in user mode: {}",
                copy_share.map_or_else(
                    || "not sampled".to_owned(),
                    |share| format!("{share:.0} % of the samples by interrupt")
                )
            ),
        },
        match reads {
            Some(reads) => judged(
                "polling means many register reads",
                reads / CPU_PASSES as f64 > 10.0,
                format!("{:.0} reads of register 0x10 per acquisition here", reads / CPU_PASSES as f64),
            ),
            None => Finding {
                claim: "polling means many register reads",
                verdict: Verdict::Open,
                evidence: "not run".to_owned(),
            },
        },
        match (lines[0].measured, lines[1].measured) {
            (Some(poll), Some(irq)) => judged(
                "the DAQ interrupt brings CPU use down, to about 4 %",
                irq < poll,
                format!("published 17 % and 4 %; here {poll:.1} % polling, {irq:.1} % by interrupt"),
            ),
            _ => Finding {
                claim: "the DAQ interrupt brings CPU use down, to about 4 %",
                verdict: Verdict::Confirmed,
                evidence: "published 17 % and 4 %; not run here".to_owned(),
            },
        },
    ]
}

/// The document's own inconsistencies: named, and not turned into targets.
pub const INCONSISTENCIES: &[&str] = &[
    "the command with -A 99 is shown with the output of `function 1`; start times prove that each conversion table is a run of its own, \
     and that the \"Readout\" table belongs to the -A 1 run",
    "conversion of 900,000 x 10 samples at 17/100 % CPU is not feasible: 9e6 samples at 6 ns take 54 ms, with 31 ms of read-out more than \
     the 71.4 ms between triggers; the row repeats the read-out row",
    "the five-board rows under \"30000 samples x 10 channels\" were taken with 300000 (-S 3000000), as the commands show",
    "\"linear in bytes\" fails for runs shorter than about 100 ms",
    "functions 5 and 6 store 8-byte doubles at a 4-byte stride (the document's own disassembly): their speeds time an invalid result",
];

#[cfg(test)]
mod tests {
    use super::*;
    use daqmeter_record::{Lane, Stage};

    #[test]
    fn the_plan_covers_every_table_and_every_cpu_row() {
        let published = Published::default();
        let plan = plan(&published);
        let mut studies: Vec<&str> = plan.iter().map(|point| point.study.as_str()).collect();
        studies.sort_unstable();
        studies.dedup();
        assert_eq!(studies.len(), published.table.len() + published.cpu.len() + 2, "each has a study of its own");
        assert_eq!(plan.len(), studies.len() + 4 * 4, "the four short read-out tables are repeated");
    }

    #[test]
    fn a_record_lands_in_its_row_with_the_documents_definition_of_speed() {
        let published = Published::default();
        let mut record = RunRecord::default();
        record.study = format!("{STUDY}/l1-60mb");
        let stage = Stage {
            bytes_per_op: 60_000_000,
            ops_per_sample: 1,
            sample_ns: vec![1; 30],
            start_ns: 300_000,
            end_ns: 2_895_600_000,
            ..Stage::default()
        };
        record.lanes.push(Lane { stages: vec![stage], ..Lane::default() });
        let lines = tables(&published, &Profile::default(), &[record]);
        let line = lines.iter().find(|line| line.row == "sis8300-6" && line.table == "1x L, 60 MB").unwrap();
        assert!((line.measured.unwrap() - 621.7).abs() < 0.05, "the document's own start and end give its own speed");
        assert!(line.difference().unwrap().abs() < 1e-3);
    }

    #[test]
    fn findings_need_no_records_to_judge_the_published_figures() {
        let findings = findings(&Published::default(), &Profile::default(), &[]);
        assert_eq!(findings.len(), 15);
        assert_eq!(findings[0].verdict, Verdict::Confirmed);
        assert!(findings.iter().any(|finding| finding.verdict == Verdict::Partly));
    }
}
