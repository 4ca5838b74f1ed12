//! Holds `daqmeter compare` and `history` to their promises on files of an unchanged host.
//!
//! `cargo bench -p daqmeter-report --bench promises -- FOLDER`: every file of FOLDER is one
//! invocation of `daqmeter run quick --pin N`. All pairs are compared as they are, and with the
//! times of B multiplied. Files that constants were fitted to prove nothing. With a second folder,
//! of a build with `RUSTFLAGS='--cfg daqmeter_slower="2"'`, each of its files is compared with each
//! of the first: its copies do 2 % of their bytes twice.
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
use daqmeter_report::cmp::{Compared, ComparedPoint, Conclusion, cmp};
use daqmeter_report::history::trends;

/// Most pairs: they are spread evenly over all.
const PAIRS: usize = 2000;
const IGNORE: f64 = 0.02;
const SLOWER: [f64; 6] = [0.01, 0.02, 0.03, 0.05, 0.15, 0.5];
/// Kinds of points, and the text that tells them.
const KINDS: [(&str, &[&str]); 3] = [
    ("memory", &["67108864", "non-temporal"]),
    ("round trips", &["etherbone"]),
    ("core, caches, system calls", &[""]),
];

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    if let [ab, program, budget, count, a, b] = &words[..]
        && ab == "ab"
    {
        return in_turn(program, budget, count.parse().unwrap(), [a, b]);
    }
    let files: Vec<_> = words.iter().map(|folder| read_all(folder)).collect();
    match &files[..] {
        [files] => unchanged_and_multiplied(files),
        [files, slower] => injected(files, slower),
        _ => println!("name a folder of files of `daqmeter run quick`, or two"),
    }
}

/// Counts the answers of `ab` to one question.
fn in_turn(program: &str, budget: &str, count: usize, [a, b]: [&str; 2]) {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..count {
        let mut command = std::process::Command::new(program);
        command.args(["ab", a, b, "--ignore", "0.2%", "--time", budget, "--json"]);
        let said = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let is = |verdict: &str| said.contains(&format!("\"verdict\":\"{verdict}\""));
        let answer = ["slower", "faster", "unclear", "same"].into_iter().find(|one| is(one));
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

fn unchanged_and_multiplied(files: &[Vec<RunRecord>]) {
    let all =
        files.iter().enumerate().flat_map(|(at, a)| files[at + 1..].iter().map(move |b| (a, b)));
    let all: Vec<_> = all.collect();
    let step = all.len().div_ceil(PAIRS).max(1);
    let pairs: Vec<_> = all.into_iter().step_by(step).collect();
    println!("{} files, {} pairs", files.len(), pairs.len());
    unchanged(&pairs);
    SLOWER.iter().for_each(|slower| found(&pairs, *slower));
    steps(files);
}

/// Judges files whose copies do more work: how often that is found, and by how much.
fn injected(files: &[Vec<RunRecord>], slower: &[Vec<RunRecord>]) {
    let mut points: BTreeMap<String, Vec<ComparedPoint>> = BTreeMap::new();
    for (a, b) in files.iter().flat_map(|a| slower.iter().map(move |b| (a, b))) {
        for point in cmp(a, b, &[], 0.0).points.into_iter().filter(|point| is_level(&point)) {
            points.entry(point.point.clone()).or_default().push(point);
        }
    }
    for (name, all) in points {
        let count = |verdict| all.iter().filter(|point| point.verdict == verdict).count();
        let [slower, faster] = ["slower", "faster"].map(count);
        println!("{name}: of {} pairs {slower} slower, {faster} faster", all.len());
    }
}

fn read(path: &Path) -> Vec<RunRecord> {
    let file = std::fs::File::open(path).unwrap();
    jsonl::read(std::io::BufReader::new(file)).unwrap().records
}

type Pairs<'a> = [(&'a Vec<RunRecord>, &'a Vec<RunRecord>)];

fn kind(point: &ComparedPoint) -> &'static str {
    let is = |words: &&[&str]| words.iter().any(|word| point.point.contains(word));
    KINDS.iter().find(|(_, words)| is(words)).map_or("", |(name, _)| name)
}

fn is_level(point: &&ComparedPoint) -> bool {
    point.time == "level"
}

/// Counts by kind: hits and all.
type Counts = BTreeMap<&'static str, (usize, usize)>;

fn count(counts: &mut Counts, compared: &Compared, is: impl Fn(&ComparedPoint) -> bool) {
    for point in compared.points.iter().filter(is_level) {
        let (hits, all) = counts.entry(kind(point)).or_default();
        *hits += usize::from(is(point));
        *all += 1;
    }
}

fn show(what: &str, counts: &Counts) {
    for (kind, (hits, all)) in counts {
        println!("{what}, {kind}: {:.2} % of {all}", *hits as f64 / *all as f64 * 100.0);
    }
}

/// Judges pairs without a change: names of differences, and points without an answer.
fn unchanged(pairs: &Pairs<'_>) {
    let (mut named, mut alarms, mut cannot) = (0, Counts::new(), Counts::new());
    let mut points: BTreeMap<String, usize> = BTreeMap::new();
    for (a, b) in pairs {
        let found = cmp(a, b, &[], IGNORE);
        named += usize::from(found.conclusion == Conclusion::Different);
        count(&mut alarms, &found, |point| matches!(point.verdict, "slower" | "faster"));
        count(&mut cannot, &found, |point| point.verdict == "unclear");
        for point in
            found.points.iter().filter(|point| matches!(point.verdict, "slower" | "faster"))
        {
            *points.entry(format!("{} {}", point.time, point.point)).or_default() += 1;
        }
    }
    println!("pairs with a difference named: {:.2} %", named as f64 / pairs.len() as f64 * 100.0);
    show("named", &alarms);
    show("cannot tell, 2 % ignored", &cannot);
    points.iter().for_each(|(point, times)| println!("  named {times} times: {point}"));
}

/// Judges pairs whose B takes longer by that fraction.
fn found(pairs: &Pairs<'_>, slower: f64) {
    let mut counts = Counts::new();
    for (a, b) in pairs {
        let b = slowed(b, slower);
        let found = cmp(a, &b, &[], 0.0);
        count(&mut counts, &found, |point| point.verdict == "slower");
    }
    show(&format!("{} % slower found", slower * 100.0), &counts);
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
