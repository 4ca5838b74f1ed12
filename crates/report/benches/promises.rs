//! Holds `daqmeter compare` and `history` to their promises on files of an unchanged host.
//!
//! `cargo bench -p daqmeter-report --bench promises -- QUIET [BUSY]`: every file of a folder is one
//! invocation of `daqmeter run quick`, or of `daqmeter survey`; those of BUSY ran beside other
//! programs. All pairs are compared as they are, and those of QUIET with the times of B multiplied.
//! Files that constants were fitted to prove nothing.
//!
//! `-- slower A B`: each file of A with each of B, a build with
//! `RUSTFLAGS='--cfg daqmeter_slower="3"'`, whose copies do 3 % of their bytes twice.
//!
//! `-- ab PROGRAM TIME COUNT A B` runs `PROGRAM ab A B --ignore 0.2% --time TIME` as often as
//! COUNT says, and counts the answers.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a benchmark prints and may stop; times are positive and far below 2^53"
)]

use std::collections::BTreeMap;
use std::path::Path;

use daqmeter_record::{RunRecord, jsonl};
use daqmeter_report::cmp::{
    Compared, ComparedPoint, Conclusion, Gate, PointUse, PointVerdict, cmp,
};
use daqmeter_report::history::trends;

/// Most pairs: they are spread evenly over all.
const PAIRS: usize = 1000;
const IGNORE: f64 = 0.02;
/// Nights that a file is compared with.
const NIGHTS: usize = 10;
const SLOWER: [f64; 3] = [0.02, 0.03, 0.1];

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    if let [ab, program, budget, count, a, b] = &words[..]
        && ab == "ab"
    {
        return in_turn(program, budget, count.parse().unwrap(), [a, b]);
    }
    let folders = |words: &[String]| words.iter().map(|it| read_all(it)).collect::<Vec<_>>();
    if let [slower, rest @ ..] = &words[..]
        && slower == "slower"
        && let [a, b] = &folders(rest)[..]
    {
        return injected(a, b);
    }
    let files = folders(&words);
    let Some(quiet) = files.first() else { return println!("name a folder of files") };
    println!("{:?} files of each folder", files.iter().map(Vec::len).collect::<Vec<_>>());
    let between = |a: &'static str, b: &'static str, pairs: Vec<_>| unchanged(a, b, &pairs);
    between("quiet", "quiet", all_pairs(quiet));
    if let Some(busy) = files.get(1) {
        between("busy", "busy", all_pairs(busy));
        let all = quiet.iter().flat_map(|a| busy.iter().map(move |b| (a, b)));
        between("quiet", "busy", few(all.collect()));
        let all = busy.iter().flat_map(|a| quiet.iter().map(move |b| (a, b)));
        between("busy", "quiet", few(all.collect()));
    }
    SLOWER.iter().for_each(|slower| found(&few(all_pairs(quiet)), *slower));
    nights(&files.concat());
    steps(quiet);
}

fn all_pairs(files: &[Vec<RunRecord>]) -> Vec<Pair<'_>> {
    let of = |(at, a)| files[at + 1..].iter().map(move |b| (a, b));
    few(files.iter().enumerate().flat_map(of).collect())
}

fn few(all: Vec<Pair<'_>>) -> Vec<Pair<'_>> {
    let step = all.len().div_ceil(PAIRS).max(1);
    all.into_iter().step_by(step).collect()
}

/// Counts the answers of `ab` to one question.
fn in_turn(program: &str, budget: &str, count: usize, [a, b]: [&str; 2]) {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..count {
        let mut command = std::process::Command::new(program);
        command.args(["ab", a, b, "--ignore", "0.2%", "--time", budget, "--json"]);
        let said = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let is = |verdict: &str| said.contains(&format!("\"verdict\":\"{verdict}\""));
        let answer =
            ["slower", "faster", "bounded", "not-comparable"].into_iter().find(|one| is(one));
        *counts.entry(answer.unwrap_or("failed").to_owned()).or_default() += 1;
    }
    println!("{a} | {b}, {budget}: {counts:?}");
}

fn read_all(folder: &str) -> Vec<Vec<RunRecord>> {
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|it| it.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "jsonl"));
    paths.sort();
    paths.iter().map(|path| read(path)).collect()
}

/// Judges files whose copies do more work: how often that is found, and by how much.
fn injected(files: &[Vec<RunRecord>], slower: &[Vec<RunRecord>]) {
    let mut points: BTreeMap<String, Vec<ComparedPoint>> = BTreeMap::new();
    for (a, b) in files.iter().flat_map(|a| slower.iter().map(move |b| (a, b))) {
        for point in cmp(a, b, &[], IGNORE).points {
            points.entry(point.point.clone()).or_default().push(point);
        }
    }
    for (name, all) in points {
        let count = |verdict| all.iter().filter(|point| point.verdict == verdict).count();
        let [slower, faster] = [PointVerdict::Slower, PointVerdict::Faster].map(count);
        let mean = all.iter().map(|point| point.ratio).sum::<f64>() / all.len() as f64;
        println!("{name}: of {} pairs {slower} slower, {faster} faster; {mean:.3}", all.len());
    }
}

fn read(path: &Path) -> Vec<RunRecord> {
    let file = std::fs::File::open(path).unwrap();
    jsonl::read(std::io::BufReader::new(file)).unwrap().records
}

type Pair<'a> = (&'a Vec<RunRecord>, &'a Vec<RunRecord>);

/// Judges pairs without a change: names of differences, bounds by kind, gates.
fn unchanged(a: &str, b: &str, pairs: &[Pair<'_>]) {
    let (mut named, mut missed, mut gates) = (0, 0, [0; 2]);
    let mut bounds: BTreeMap<PointUse, Vec<f64>> = BTreeMap::new();
    let mut points: BTreeMap<String, usize> = BTreeMap::new();
    for (a, b) in pairs {
        let found = cmp(a, b, &[], IGNORE);
        named += usize::from(found.conclusion == Conclusion::Different);
        let is_missed = |point: &ComparedPoint| point.joint.0 > 1.0 || point.joint.1 < 1.0;
        missed += usize::from(found.points.iter().any(is_missed));
        let core = Compared {
            points: found
                .points
                .iter()
                .filter(|point| point.uses == PointUse::Cpu)
                .cloned()
                .collect(),
            ..found.clone()
        };
        gates[0] += usize::from(core.gate(0.1) == Gate::Passed);
        gates[1] += usize::from(found.gate(0.1) == Gate::Passed);
        for point in &found.points {
            bounds.entry(point.uses).or_default().push(point.bound);
            if matches!(point.verdict, PointVerdict::Slower | PointVerdict::Faster) {
                *points.entry(format!("{} {:.2}", point.point, point.ratio)).or_default() += 1;
            }
        }
    }
    let share = |count: usize| format!("{:.2} %", count as f64 / pairs.len() as f64 * 100.0);
    println!(
        "{a} {b}: {} pairs, a difference named in {}, an interval without 1 in {}, --fail-on 10% passes in {} at core points, {} at all",
        pairs.len(),
        share(named),
        share(missed),
        share(gates[0]),
        share(gates[1])
    );
    for (uses, mut own) in bounds {
        own.sort_by(f64::total_cmp);
        let at = |share: f64| 100.0 * own[(share * (own.len() - 1) as f64) as usize];
        let within = |most: f64| own.iter().filter(|own| **own <= most).count() as f64;
        let [three, six, twenty, thirty] =
            [0.03, 0.06, 0.2, 0.3].map(|most| 100.0 * within(most) / own.len() as f64);
        println!(
            "  {uses:?}: {} bounds, middle {:.1} %, 90th {:.1}, 98th {:.1}; {three:.1} % of them to 3 %, {six:.1} to 6 %, {twenty:.1} to 20 %, {thirty:.1} to 30 %",
            own.len(),
            at(0.5),
            at(0.9),
            at(0.98)
        );
    }
    points.iter().for_each(|(point, times)| println!("  named {times} times: {point}"));
}

/// Judges pairs whose B takes longer by that fraction.
fn found(pairs: &[Pair<'_>], slower: f64) {
    let mut counts: BTreeMap<PointUse, (usize, usize)> = BTreeMap::new();
    for (a, b) in pairs {
        for point in cmp(a, &slowed(b, slower), &[], IGNORE).points {
            let (found, all) = counts.entry(point.uses).or_default();
            *found += usize::from(point.verdict == PointVerdict::Slower);
            *all += 1;
        }
    }
    for (uses, (found, all)) in counts {
        let share = found as f64 / all as f64 * 100.0;
        println!("times {:.0} % longer found, {uses:?}: {share:.1} % of {all}", slower * 100.0);
    }
}

/// Compares each file with those of the ten nights before it, as `daqmeter nightly` does.
fn nights(files: &[Vec<RunRecord>]) {
    let mut gates: BTreeMap<&str, usize> = BTreeMap::new();
    for at in NIGHTS..files.len() {
        let before = |last: usize| files[at - NIGHTS..last].concat();
        let usual = cmp(&before(at - 1), &files[at - 1], &[], 0.0);
        let night = cmp(&before(at), &files[at], &[], IGNORE).gated_by(&usual, 0.1);
        let gate = match night.gate(0.1) {
            Gate::Passed => "passed",
            Gate::Failed => "failed",
            Gate::Open(_) => "open",
        };
        *gates.entry(gate).or_default() += 1;
    }
    println!("nights: {gates:?}");
}

fn slowed(records: &[RunRecord], by: f64) -> Vec<RunRecord> {
    let mut records = records.to_vec();
    let stages =
        records.iter_mut().flat_map(|record| &mut record.lanes).flat_map(|lane| &mut lane.stages);
    for ns in stages.flat_map(|stage| &mut stage.sample_ns) {
        *ns = (*ns as f64 * (1.0 + by)).round() as u64;
    }
    records
}

fn is_of(files: &[Vec<RunRecord>], run_id: &str) -> bool {
    files.iter().flatten().any(|record| record.run_id == run_id)
}

/// Judges the files as a history: steps without a change, and a step of 1 % in the middle.
fn steps(files: &[Vec<RunRecord>]) {
    let middle = files.len() / 2;
    let quiet = trends(&files.concat(), 0.005);
    let levels = || quiet.iter().filter(|trend| trend.time == "level");
    let false_changes: usize = levels().map(|trend| trend.changes.len()).sum();
    println!("history: {false_changes} steps in {} rows of an unchanged host", levels().count());
    let changed: Vec<RunRecord> = files
        .iter()
        .enumerate()
        .flat_map(|(at, file)| slowed(file, if at < middle { 0.0 } else { 0.01 }))
        .collect();
    let changed = trends(&changed, 0.005);
    for trend in changed.iter().filter(|trend| trend.time == "level") {
        let first_changed = trend.runs.iter().position(|run| is_of(&files[middle..], &run.run_id));
        let first_changed = first_changed.unwrap_or(trend.runs.len());
        let at = trend.changes.iter().map(|step| step.at.abs_diff(first_changed)).min();
        println!(
            "history, 1 % at file {middle}: {}: {}",
            trend.point,
            at.map_or("not found".to_owned(), |off| format!("{off} files off"))
        );
    }
}
