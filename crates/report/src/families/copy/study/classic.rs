//! Files of the original study's daemons, field by field, for scripts that read them.
//!
//! Latency (section 3.3.1): `micro-benchmark_{from,to,from_nc,to_nc}_<x>.dat` with CPU, bytes,
//! clock before, after, elapsed; and `..._synth.dat` with bytes, fastest, slowest, mean, variance,
//! median. Bandwidth (3.4.1): `measures_{from,to,from_to}.dat`. Pollution (3.5.1): `measure_X.dat`,
//! `synthesis_<x>.dat`. Tabs separate fields; clocks are CLOCK_MONOTONIC. An unknown value of a
//! line is `n/a`, because a mean of other lines would be no raw data. Beside a file of single times
//! a file `.json` of the same name holds its [`FileConditions`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use daqmeter_record::border::sum;
use daqmeter_record::copies::miss_percent;
use daqmeter_record::{Lane, RunRecord, Stage};
use daqmeter_stats::Summary;
use serde::{Deserialize, Serialize};

use super::super::pollution::{self, pollution_row};
use super::super::rows::{self, CopyRow, copied};
use crate::copy::MIB;
use crate::family::of_engine;
use crate::rate;

/// Contents by file name; contexts other than the first get their own folder, because the original
/// ran one at a time.
pub type StudyFiles = BTreeMap<String, String>;

/// Conditions of a file that none of its fields holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileConditions {
    pub path: Option<String>,
    pub load: Option<String>,
    pub emulated: bool,
}

impl FileConditions {
    fn insert(files: &mut StudyFiles, name: &str, record: &RunRecord) {
        let path = record.workload.text("path").ok().map(str::to_owned);
        let load = Some(record.workload.text("load").unwrap_or("light").to_owned());
        let conditions = FileConditions { path, load, emulated: record.engine.emulated };
        let json = serde_json::to_string(&conditions).expect("two texts and a flag");
        files.insert(format!("{name}.json"), json + "\n");
    }
}

/// Returns the file's name of an operation: the document calls both directions at once `from_to`.
fn operation(row: &CopyRow<'_>) -> String {
    row.operation().replace("both", "from_to")
}

/// Returns the menu number of the largest block: 1 is 2 MB, 10 is 1024 MB; smaller ones count as 1.
fn menu(largest_bytes: u64) -> u32 {
    let mib = largest_bytes.div_ceil(1 << 20).max(2);
    mib.next_power_of_two().trailing_zeros()
}

/// Returns the records that were done and verified: the files cannot mark a failed point.
fn done<'a>(records: &'a [RunRecord], engine: &'a str) -> impl Iterator<Item = &'a RunRecord> {
    of_engine(records, engine).filter(|record| rate::is_done(record))
}

fn copies(records: &[RunRecord]) -> Vec<CopyRow<'_>> {
    let mut rows: Vec<CopyRow<'_>> = done(records, rows::ENGINE).filter_map(rows::row).collect();
    rows.sort_by_key(|row| row.block_bytes);
    rows
}

fn folder(rows: &[CopyRow<'_>], row: &CopyRow<'_>) -> String {
    let is_alone = rows.iter().all(|other| other.context == row.context);
    if is_alone { String::new() } else { format!("{}/", row.context) }
}

/// Returns the clock before and after each sample, and its time.
fn spans(record: &RunRecord, stage: &Stage) -> impl Iterator<Item = (u64, u64, u64)> {
    let starts = stage.sample_starts_ns().map(|start| start.saturating_add(record.origin_ns));
    starts.zip(&stage.sample_ns).map(|(start, ns)| (start, start + ns, *ns))
}

pub fn latency(records: &[RunRecord]) -> StudyFiles {
    let rows = copies(records);
    let x = menu(rows.last().map_or(0, |row| row.block_bytes));
    let mut files = StudyFiles::new();
    for row in &rows {
        let (bytes, record) = (row.block_bytes, row.record);
        let name = format!("{}micro-benchmark_{}_{x}", folder(&rows, row), operation(row));
        FileConditions::insert(&mut files, &name, record);
        let raw = files.entry(format!("{name}.dat")).or_default();
        for (lane, stage) in record.lanes.iter().zip(copied(record)) {
            let cpu = match lane.seen_cpus[..] {
                [cpu] => cpu.to_string(),
                _ => NOT_KNOWN.to_owned(),
            };
            for (before, after, ns) in spans(record, stage) {
                let _ = writeln!(raw, "{cpu}\t{bytes}\t{before}\t{after}\t{ns}");
            }
        }
        let Summary { min, max, mean, variance, median, .. } = row.times;
        let synth = files.entry(format!("{name}_synth.dat")).or_default();
        let _ =
            writeln!(synth, "{bytes}\t{min:.0}\t{max:.0}\t{mean:.4}\t{variance:.4}\t{median:.4}");
    }
    files
}

/// Returns the first field of each lane's line: its channel, else the CPU that copied. Unknown or
/// equal ones are replaced by the number of the lane.
fn channels(record: &RunRecord) -> Vec<u32> {
    let is_by_cpu = record.workload.text("context") == Ok("cpu");
    let own = |lane: &Lane| {
        let channel = lane.device.rsplit_once("channel ").and_then(|(_, of)| of.parse().ok());
        channel.or(match &lane.seen_cpus[..] {
            [cpu] if is_by_cpu => Some(*cpu),
            _ => None,
        })
    };
    let found: Option<Vec<u32>> = record.lanes.iter().map(own).collect();
    let is_unique = |found: &Vec<u32>| found.iter().collect::<BTreeSet<_>>().len() == found.len();
    found.filter(is_unique).unwrap_or_else(|| (0..).take(record.lanes.len()).collect())
}

/// Returns the files of the bandwidth benchmark: channel, bytes of a copy, copies, clock before and
/// after, time spent in the copies, rate.
///
/// The rate of a line is bytes x copies / time, in MB of 2^20 bytes. In `from_to` a copy is one
/// way, so that 300 times both ways are 600 copies. The time is `after - before`, except for `_nc`,
/// whose caches are emptied in between, and for the kernel module, whose clock leaves out pinning
/// and mapping. The total is the sum over the channels.
pub fn bandwidth(records: &[RunRecord]) -> StudyFiles {
    let rows = copies(records);
    let mut files = StudyFiles::new();
    for row in &rows {
        let (record, bytes) = (row.record, row.block_bytes.max(1));
        let name = format!("{}measures_{}", folder(&rows, row), operation(row));
        FileConditions::insert(&mut files, &name, record);
        let lines = copied(record).zip(channels(record)).map(|(stage, channel)| {
            let [before, after] =
                [stage.start_ns, stage.end_ns].map(|ns| record.origin_ns.saturating_add(ns));
            let operations = stage.sample_ns.len() as u64 * stage.ops_per_sample;
            let copies = operations * (stage.bytes_per_op / bytes);
            let (ns, rate) = (sum(&stage.sample_ns), stage.rate_bytes_per_s() / MIB);
            format!("{channel}\t{bytes}\t{copies}\t{before}\t{after}\t{ns}\t{rate:.6}")
        });
        let lines = lines.collect::<Vec<_>>().join("\n");
        let total = row.total_bytes_per_s() / MIB;
        let file = files.entry(format!("{name}.dat")).or_default();
        let _ = writeln!(file, "{lines}\ttotal_band= {total:.6}");
    }
    files
}

/// Text for an unknown value: a zero would be a result.
pub(super) const NOT_KNOWN: &str = "n/a";

/// Returns the files of the pollution benchmark, with a result name. References, misses and their
/// percentage are `n/a` without a counter, and in the lines of single runs if only sums were
/// counted. The percentage of no references is also `n/a`.
pub fn pollution(records: &[RunRecord], name: &str) -> StudyFiles {
    let shown = |value: Option<f64>, digits: usize| {
        value.map_or(NOT_KNOWN.to_owned(), |value| format!("{value:.digits$}"))
    };
    let mut files = StudyFiles::new();
    for row in done(records, pollution::ENGINE).filter_map(pollution_row) {
        let (test, runs) = (row.test, row.record.cache_counts());
        let folder = format!("{}_{}_{}/", row.neighbour, row.direction, row.block_bytes);
        FileConditions::insert(&mut files, &format!("{folder}measure_{name}"), row.record);
        let raw = files.entry(format!("{folder}measure_{name}.dat")).or_default();
        for stage in copied(row.record) {
            for (at, (before, after, ns)) in spans(row.record, stage).enumerate() {
                let run = runs.get(at).copied().flatten();
                let references = shown(run.map(|(references, _)| references), 0);
                let misses = shown(run.map(|(_, misses)| misses), 0);
                let percent = shown(run.and_then(miss_percent), 6);
                let _ = writeln!(
                    raw,
                    "{test}\t{before}\t{after}\t{ns}\t{references}\t{misses}\t{percent}"
                );
            }
        }
        let synthesis = files.entry(format!("{folder}synthesis_{name}.dat")).or_default();
        let (n, mean_us, max_us) = (row.times.n, row.times.mean / 1e3, row.times.max / 1e3);
        let (references, percent) = (shown(row.references, 4), shown(row.miss_percent, 6));
        let _ =
            writeln!(synthesis, "{test}\t{n}\t{mean_us:.4}\t{max_us:.0}\t{references}\t{percent}");
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::tests::example;

    #[test]
    fn a_latency_run_leaves_the_documents_files_and_fields() {
        let mut cold = example("cpu", "from", 64, &[108]);
        cold.set_param("cold", true);
        cold.lanes[0].stages[0].sample_start_ns = vec![500];
        let files = latency(&[example("cpu", "to", 64, &[108, 110]), cold]);
        let names: Vec<&String> = files.keys().collect();
        assert_eq!(
            names,
            [
                "micro-benchmark_from_nc_1.dat",
                "micro-benchmark_from_nc_1.json",
                "micro-benchmark_from_nc_1_synth.dat",
                "micro-benchmark_to_1.dat",
                "micro-benchmark_to_1.json",
                "micro-benchmark_to_1_synth.dat"
            ]
        );
        for (name, lines) in [
            ("to_1", "3\t64\t1000100\t1000208\t108\n3\t64\t1000208\t1000318\t110\n"),
            ("to_1_synth", "64\t108\t110\t109.0000\t2.0000\t109.0000\n"),
        ] {
            assert_eq!(files[&format!("micro-benchmark_{name}.dat")], lines);
        }
        assert!(files["micro-benchmark_from_nc_1.dat"].starts_with("3\t64\t1000500\t1000608\t108"));
        let mut moved = example("cpu", "to", 64, &[108]);
        moved.lanes[0].seen_cpus = vec![3, 4];
        assert!(latency(&[moved])["micro-benchmark_to_1.dat"].starts_with("n/a\t64\t"));
    }

    #[test]
    fn a_copy_of_both_ways_at_once_is_one_way() {
        let mut both = example("exclusive", "both", 1024, &[1000, 1210, 990]);
        let stage = &mut both.lanes[0].stages[0];
        (stage.bytes_per_op, stage.ops_per_sample) = (2048, 100);
        let files = bandwidth(&[both]);
        assert!(files["measures_from_to.dat"].starts_with("0\t1024\t600\t"), "{files:?}");
    }

    #[test]
    fn what_no_counter_counted_is_said_to_be_missing() {
        let mut record = example("cpu", "from", 224, &[5000, 6000]);
        record.engine.name = "pollution".into();
        record.set_param("test", "qsort_small");
        record.set_param("neighbour", "cpu");
        let sums =
            [("victim-runs", 2), ("victim-cache-references", 400), ("victim-cache-misses", 4)];
        let sums = sums.map(|(name, value)| daqmeter_record::Counter::count(name, value));
        // The sums of all runs are of no single one.
        for (counters, synthesis) in [(&[][..], "n/a\tn/a"), (&sums, "200.0000\t1.000000")] {
            record.counters = counters.to_vec();
            let files = pollution(std::slice::from_ref(&record), "x");
            let mut lines = files["cpu_from_224/measure_x.dat"].lines();
            assert!(lines.all(|line| line.ends_with("\tn/a\tn/a\tn/a")), "{files:?}");
            let line = &files["cpu_from_224/synthesis_x.dat"];
            assert!(line.ends_with(&format!("\t{synthesis}\n")), "{line}");
        }
    }

    #[test]
    fn a_line_names_its_channel_or_the_cpu_that_copied() {
        let first = |record: RunRecord| -> Vec<String> {
            let files = bandwidth(&[record]);
            let lines = files["measures_to.dat"].lines();
            lines.map(|line| line.split('\t').next().unwrap().to_owned()).collect()
        };
        let of = |context: &str, devices: [&str; 2], cpus: [&[u32]; 2]| {
            let mut record = example(context, "to", 64, &[9]);
            let lane = record.lanes[0].clone();
            record.lanes = vec![lane.clone(), lane];
            for (lane, (device, cpus)) in record.lanes.iter_mut().zip(devices.into_iter().zip(cpus))
            {
                (lane.device, lane.seen_cpus) = (device.into(), cpus.to_vec());
            }
            first(record)
        };
        let one = [&[5][..], &[7]];
        let channels = ["module, softdma channel 2", "module, softdma channel 0"];
        assert_eq!(of("exclusive", channels, one), ["2", "0"]);
        assert_eq!(of("cpu", ["module, CPU"; 2], one), ["5", "7"]);
        // A lane without a channel of its own, or on changing CPUs, gets its number.
        assert_eq!(of("shared", ["module, softdma shared channels"; 2], one), ["0", "1"]);
        assert_eq!(of("cpu", ["pread"; 2], [&[5, 6], &[7]]), ["0", "1"]);
        assert_eq!(of("exclusive", ["emulated engine, channel 0"; 2], one), ["0", "1"]);
    }
}
