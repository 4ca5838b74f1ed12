//! Tests of plans by their texts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use daqmeter_harness::StepPlan;
use daqmeter_record::Host;
use daqmeter_record::host::Cache;

use super::*;

const PLAN: &str = r#"
title = "Footprints"
about = "Where the caches end."
repetitions = 2
budget = "2m"
time = "40ms"
pin = [1]

[[sweep]]
study = "memory"
engine = "memory"
[sweep.workload]
read_lines = 1
[sweep.axes]
read_bytes = ["16KiB", "1MiB", 4096]
write_lines = [0, 1]
[[sweep.skip]]
read_bytes = "1MiB"
write_lines = 0

[[sweep]]
study = "chain"
engine = "readout"
reads = 1
repetitions = 1
points = [{ scenario = "gbt", rate_hz = "1MHz" }, { scenario = "full", rate_hz = 500e3 }]
[sweep.workload]
seconds = 0.1
"#;

#[test]
fn a_plan_becomes_points_in_shuffled_rounds() {
    let plan = Plan::parse(PLAN, "p.toml").unwrap();
    assert_eq!((plan.budget.time, plan.points.len()), (Some(Duration::from_secs(120)), 5 * 2 + 2));
    let memory = |point: &&PlannedPoint| point.study == "memory";
    assert_eq!(plan.points.iter().filter(memory).count(), 10);
    let first = plan.points.iter().find(memory).unwrap();
    assert_eq!(
        (first.steps, &first.pin[..]),
        (StepPlan::Timed(Duration::from_millis(40)), &[1][..])
    );
    let chain =
        plan.points.iter().find(|point| point.workload.text("scenario") == Ok("gbt")).unwrap();
    assert_eq!((chain.workload.float("rate_hz"), chain.steps), (Ok(1e6), StepPlan::ByStage(1)));
    // The first round holds every point once, before the second begins.
    let round = |points: &[PlannedPoint]| {
        points.iter().map(|point| point.workload.to_string()).collect::<BTreeSet<_>>()
    };
    assert_eq!(round(&plan.points[..7]).len(), 7);
    assert_eq!(round(&plan.points[7..]).len(), 5);
    let places = (0..12).map(|position| Place { seed: 1, position, of: 12 });
    assert!(plan.points.iter().map(|point| point.place.clone()).eq(places));
    assert_eq!((&*first.source, &*chain.source), ("p.toml:11: sweep 1", "p.toml:23: sweep 2"));
    let given = Plan::parse(&PLAN.replace("pin = [1]", "order = 'given'"), "p.toml").unwrap();
    let studies: Vec<&str> = given.points[4..6].iter().map(|point| &*point.study).collect();
    assert_eq!(studies, ["memory", "chain"]);
}

#[test]
fn a_point_is_the_same_however_its_request_is_written() {
    let written = |lines: &str| {
        let text = format!(
            "title = 't'\n[[sweep]]\nstudy = 's'\nengine = 'memory'\n[sweep.workload]\nread_lines = 1\nwrite_lines = 0\nread_bytes = 4096\n{lines}"
        );
        let plan = Plan::parse(&text, "p.toml").unwrap();
        plan.points[0].workload.clone()
    };
    assert_eq!(written("lanes = 1"), written(""));
    assert_ne!(written("lanes = 2"), written(""));
}

#[test]
fn includes_bring_their_sweeps_and_no_circle_is_entered() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("a.toml", &PLAN.replace("pin = [1]", "include = ['b.toml', 'quick']"));
    write("b.toml", "title = 'b'\n[[sweep]]\nstudy = 'b'\nengine = 'null'\n");
    let a = folder.path().join("a.toml").display().to_string();
    let plan = Plan::load(&a).unwrap();
    assert_eq!(plan.points.iter().filter(|point| point.study == "b").count(), 1);
    assert!(plan.points.len() > 13);
    write("b.toml", "title = 'b'\ninclude = ['a.toml']\n");
    let error = Plan::load(&a).unwrap_err();
    assert!(error.contains("b.toml:2: include"), "{error}");
    assert!(error.contains("a.toml is included already"), "{error}");
}

#[test]
fn what_is_wrong_is_named_with_file_line_and_field() {
    let refused =
        |from: &str, to: &str| Plan::parse(&PLAN.replacen(from, to, 1), "p.toml").unwrap_err();
    for (from, to, wanted) in [
        (
            "engine = \"memory\"",
            "engine = \"memry\"",
            "p.toml:11: sweep 1, engine: `memry` is not an engine; there are: null, memory",
        ),
        (
            "read_lines = 1",
            "read_line = 1",
            "p.toml:13: sweep 1, workload: `read_line` is not a parameter of memory; there are: lanes, read_bytes",
        ),
        ("\"16KiB\"", "\"16Kib\"", "p.toml:15: sweep 1, axes.read_bytes: "),
        ("\"1MHz\"", "\"1MHx\"", "p.toml:26: sweep 2, points.rate_hz: "),
        ("budget = \"2m\"", "budget = \"2 moons\"", "p.toml:5: budget: "),
        ("repetitions = 2", "repetition = 2", "p.toml:4: unknown field `repetition`"),
        (
            "reads = 1\n",
            "reads = 1\ntime = '1s'\n",
            "p.toml:23: sweep 2, time: set one of time, reads and passes",
        ),
        ("reads = 1\n", "reads = 0\n", "p.toml:23: sweep 2, reads: 0; 1 to "),
        (
            "reads = 1\n",
            "reads = 9007199254740991\n",
            "p.toml:23: sweep 2, reads: 9007199254740991; 1 to ",
        ),
        ("reads = 1\n", "reads = 1\nprofile_hz = 0\n", "p.toml:23: sweep 2, profile_hz: 0; 1 to "),
        ("time = \"40ms\"", "time = \"25h\"", "p.toml:6: time: the maximum time of a point is 24h"),
        ("seconds = 0.1", "seconds = [1]", "array is not a parameter"),
        ("[0, 1]", "[]", "p.toml:16: sweep 1, axes: `write_lines` has no value"),
        ("title = \"Footprints\"\n", "", "missing field `title`"),
        ("read_lines = 1", "read_lines = -1", "-1 is below zero"),
    ] {
        let error = refused(from, to);
        assert!(error.contains(wanted) && !error.contains('\n'), "{to}: {error}");
    }
    let error = Plan::load("/nonexistent.toml").unwrap_err();
    assert!(error.contains("No such file") && error.contains("memory"), "{error}");
    assert!(
        Plan::parse("title = 'empty'", "p.toml").unwrap_err().contains("the plan has no points")
    );
    let endless = refused("repetitions = 2", "repetitions = 9007199254740991");
    assert!(endless.contains("p.toml:11: sweep 1: "), "{endless}");
    assert!(endless.contains("at most 100000 points"), "{endless}");
}

fn product(axes: &[usize]) -> String {
    let names = ["read_bytes", "read_lines", "write_lines", "lanes"];
    let axis = |(name, length): (&str, &usize)| {
        format!("{name}={:?}", (1..=*length).collect::<Vec<_>>()).replace(' ', "")
    };
    let axes: Vec<String> = names.into_iter().zip(axes).map(axis).collect();
    format!("[[sweep]]\nstudy = 's'\nengine = 'memory'\n[sweep.axes]\n{}\n", axes.join("\n"))
}

/// Regression: each of these took all memory or all time before it was refused.
#[test]
fn points_are_counted_before_they_are_made() {
    let refused = |text: &str| Plan::parse(text, "p.toml").unwrap_err();
    let huge = refused(&format!("title = 't'\n{}", product(&[46, 46, 46, 1000])));
    assert!(huge.contains("p.toml:4: sweep 1: ") && huge.contains("97336000 points"), "{huge}");
    let many = refused(&format!("title = 't'\n{}", product(&[300, 300]).repeat(2)));
    assert!(many.contains("sweep 2: ") && many.contains("at most 100000"), "{many}");
    let wrapped =
        refused(&format!("title = 't'\nrepetitions = 9007199254740991\n{}", product(&[2])));
    assert!(wrapped.contains("sweep 1: "), "{wrapped}");
    let skips =
        format!("title = 't'\n{}{}", product(&[2]), "[[sweep.skip]]\nread_bytes = 1\n".repeat(101));
    assert!(refused(&skips).contains("at most 100 are compared"));
    let long = format!("title = 't'\npin = [{}]\n{}", "1,".repeat(60_000), product(&[300, 300]));
    assert!(refused(&long).contains("bytes"), "{}", refused(&long));
    assert!(Plan::parse(&format!("title = 't'\n{}", product(&[300, 300])), "p.toml").is_ok());
}

#[test]
fn points_and_files_are_counted_over_includes() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let load = || Plan::load(&folder.path().join("a.toml").display().to_string()).unwrap_err();
    let includes = |names: &[String]| format!("title = 'a'\ninclude = {names:?}\n");
    let names: Vec<String> = (0..64).map(|at| format!("{at}.toml")).collect();
    for name in &names {
        write(name, &format!("title = 'b'\n{}", product(&[100, 100])));
    }
    write("a.toml", &includes(&names[..20]));
    let points = load();
    assert!(points.contains("10.toml:4: sweep 1: "), "{points}");
    assert!(points.contains("at most 100000 points"), "{points}");
    names.iter().for_each(|name| write(name, "title = 'c'\n"));
    write("a.toml", &includes(&names));
    let files = load();
    assert!(files.contains("a.toml:2: include: a plan has at most 64 files"), "{files}");
}

#[test]
fn includes_that_are_no_texts_of_a_sane_size_are_refused() {
    let include = |name: &str| {
        Plan::parse(&format!("title = 't'\ninclude = ['{name}']\n"), "p.toml").unwrap_err()
    };
    for name in ["/dev/zero", "/proc", "/dev/null"] {
        let error = include(name);
        assert!(error.contains("p.toml:2: include: "), "{name}: {error}");
        assert!(error.contains("not a regular file"), "{name}: {error}");
    }
    let folder = tempfile::tempdir().unwrap();
    let long = folder.path().join("long.toml");
    std::fs::write(&long, "#".repeat((1 << 20) + 1)).unwrap();
    let error = include(&long.display().to_string());
    assert!(error.contains("longer than 1048576 bytes"), "{error}");
}

#[test]
fn every_shipped_plan_is_understood_and_its_points_open() {
    // Repetitions are one point, and plans share points.
    let mut seen = BTreeSet::new();
    for name in SHIPPED_PLANS.names() {
        let plan = Plan::load(name).unwrap();
        assert!(!plan.points.is_empty() && !plan.about.is_empty(), "{name}");
        for point in plan.points {
            if !seen.insert((point.engine.clone(), point.workload.key())) {
                continue;
            }
            let job = crate::engine(&point.engine).unwrap().parse(&point.workload).unwrap();
            // Sixteen rings are not allocated here.
            let is_small = job.memory_bytes.is_none_or(|bytes| bytes < 1 << 30);
            if is_small && job.waiver.is_none() {
                job.open().map(drop).unwrap_or_else(|fault| panic!("{name}: {fault}"));
            }
        }
    }
}

fn survey(name: &str, cache_bytes: u64, memory_bytes: u64) -> Vec<String> {
    let cache = Cache { level: 3, bytes: cache_bytes, ..Cache::default() };
    let host =
        Host { caches: vec![cache], memory_bytes, allowed_cpus: vec![0, 1], ..Host::default() };
    let site = Site { host, ..Site::default() };
    let plan = Plan::load_for(name, &site).unwrap();
    let key = |point: PlannedPoint| format!("{} {}", point.study, point.workload.key());
    plan.points.into_iter().map(key).collect()
}

#[test]
fn a_short_surveys_points_are_among_a_long_ones() {
    for (cache_bytes, memory_bytes) in [(0, 8 << 30), (105 << 20, 64 << 30)] {
        let short = survey("survey-short", cache_bytes, memory_bytes);
        let long = survey("survey", cache_bytes, memory_bytes);
        assert!(short.len() < long.len());
        assert!(short.iter().all(|key| long.contains(key)), "{short:#?}");
        let mut instances: BTreeMap<&String, usize> = BTreeMap::new();
        long.iter().for_each(|key| *instances.entry(key).or_default() += 1);
        assert!(instances.values().all(|count| [1, 6].contains(count)), "{instances:#?}");
    }
}

#[test]
fn a_surveys_footprints_reach_beyond_the_caches_of_the_host() {
    let largest = |cache_bytes| {
        let bytes = |key: &String| {
            let value = key.split("read_bytes=").nth(1)?.split(' ').next()?;
            value.parse::<u64>().ok()
        };
        let keys = survey("survey", cache_bytes, 64 << 30);
        keys.iter().filter_map(bytes).max()
    };
    assert_eq!(largest(0), Some(64 << 20));
    assert_eq!(largest(105 << 20), Some(256 << 20));
}

#[test]
fn threads_of_a_survey_are_pinned_to_the_last_cpus_first() {
    let site = Site {
        host: Host { allowed_cpus: vec![0, 2, 5], memory_bytes: 8 << 30, ..Host::default() },
        ..Site::default()
    };
    let pins = |site: &Site| Plan::load_for("survey", site).unwrap().points[0].pin.clone();
    assert_eq!(pins(&site), [5, 2, 0]);
    // Two threads of one core are not busy together while another core is free.
    let siblings =
        Site { host: Host { siblings: vec![vec![2, 5]], ..site.host.clone() }, ..Site::default() };
    assert_eq!(pins(&siblings), [5, 0, 2]);
    let site = Site { pin: Some(vec![2]), ..site };
    assert_eq!(pins(&site), [2]);
}
