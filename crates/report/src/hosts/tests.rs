use daqmeter_record::{Host, RunRecord, Slices};
use daqmeter_stats::Random;

use super::*;
use crate::examples::example;

/// A run of a host: six repetitions of conversions, which take longer by a factor.
fn run(name: &str, cpu: &str, factor: f64, number: usize) -> Vec<RunRecord> {
    let seed = name.bytes().chain([number as u8]).fold(0, |sum, byte| sum * 31 + u64::from(byte));
    let mut random = Random::new(seed);
    let own = factor * (0.003 * random.normal()).exp();
    let host =
        Host { name: name.into(), cpu_model: cpu.into(), logical_cpus: 4, ..Host::default() };
    let host = std::sync::Arc::new(host);
    let repetition = |at: u32| {
        let mut record = example();
        record.engine.name = "convert".into();
        record.command = "daqmeter digitizer emu:ku0 emu:l0 -S 3000000 --at 14:30 -N 3 -A 4".into();
        record.run_id = format!("{name} {number}");
        record.time_utc = format!("2026-11-21T{number:02}:00:0{at}.000Z");
        record.host = std::sync::Arc::clone(&host);
        for stage in record.lanes.iter_mut().flat_map(|lane| &mut lane.stages) {
            let ns = stage.sample_ns[1] as f64 * own * (1.0 + f64::from(at) * 2e-4);
            stage.sample_ns = vec![ns as u64; 20];
            let all = |value| vec![value; 20];
            stage.slices = Slices {
                samples: all(1),
                gap_ns: all(9000),
                chain_ns: all(3000),
                sibling_ns: all(1500),
                lost: Vec::new(),
            };
        }
        record
    };
    (0..6).map(repetition).collect()
}

fn file(name: &str, side: FarmSide, records: &[RunRecord], problem: &str) -> FarmFile {
    let problems = (!problem.is_empty()).then(|| problem.to_owned());
    FarmFile::of(name, name, side, records.to_vec(), problems.into_iter().collect())
}

fn add(farm: &mut Farm, name: &str, records: &[RunRecord]) {
    farm.add(file(name, FarmSide::Before, records, ""));
}

fn cpu(at: usize) -> &'static str {
    if at.is_multiple_of(2) { "Fast CPU" } else { "Slow CPU" }
}

/// Farm of two kinds of machine, each host with one run. The named one takes longer by a factor.
fn farm(hosts: usize, slow: &str, factor: f64) -> Farm {
    let mut farm = Farm::default();
    for at in 0..hosts {
        let name = format!("n{at:02}");
        let own = if at % 2 == 0 { 1.0 } else { 1.4 } * if name == slow { factor } else { 1.0 };
        add(&mut farm, &format!("farm/{name}.jsonl"), &run(&name, cpu(at), own, 0));
    }
    farm
}

fn verdict(found: &JudgedFarm, name: &str) -> HostVerdict {
    found.hosts.iter().find(|host| host.name == name).unwrap().verdict
}

#[test]
fn a_slow_host_of_two_kinds_is_named_with_its_group_and_size() {
    let expected = ["n03", "n99"].map(str::to_owned);
    let mut farm = farm(24, "n07", 1.06);
    assert_eq!(verdict(&judged(&farm, &[], 0.02), "n07"), HostVerdict::Unconfirmed);
    add(&mut farm, "again.jsonl", &run("n07", cpu(7), 1.4 * 1.06, 1));
    let found = judged(&farm, &expected, 0.02);
    assert_eq!(verdict(&found, "n07"), HostVerdict::Different);
    assert!(found.differs() && found.is_unseen(), "n99 is missing");
    assert_eq!(found.of(HostVerdict::Alike).len(), 23);
    assert_eq!(found.hosts[7].findings[0].kind, PointKind::Core);
    let (low, high) = found.hosts[7].findings[0].interval;
    assert!(low < 1.06 && 1.06 < high, "{low} {high}");
    insta::assert_snapshot!(found.frame().text(None));
    let page = found.page();
    assert!(page.contains("<th scope=\"row\">n07</th>") && !page.contains("<script>"));
}

#[test]
fn a_second_run_clears_a_host_whose_first_one_was_disturbed() {
    let mut farm = farm(24, "n07", 1.1);
    let found = judged(&farm, &[], 0.02);
    assert_eq!((verdict(&found, "n07"), found.is_unseen()), (HostVerdict::Unconfirmed, true));
    let text = found.frame().text(None);
    assert!(
        text.contains(
            "measure n07 once more: daqmeter digitizer emu:ku0 emu:l0 -S 3000000 -N 3 -A 4\n"
        ),
        "{text}"
    );
    add(&mut farm, "again.jsonl", &run("n07", cpu(7), 1.4, 1));
    assert_eq!(verdict(&judged(&farm, &[], 0.02), "n07"), HostVerdict::Alike);
}

#[test]
fn points_of_a_kind_tell_together_after_two_runs_beside_a_steady_one_that_is_not_slow() {
    let mut farm = Farm::default();
    let mut random = Random::new(11);
    for at in 0..12 {
        for number in 0..2 {
            let name = format!("n{at:02}");
            let mut records = run(&name, "CPU", 1.0, number);
            // The factors of a run: the first point is the steady one.
            let mut factors = [1.0; 4];
            for factor in &mut factors[1..] {
                *factor = (0.05 * random.normal()).exp() * if at == 4 { 20.0 } else { 1.0 };
            }
            for record in &mut records {
                let stages = record.lanes.iter_mut().flat_map(|lane| &mut lane.stages);
                for (stage, factor) in stages.zip(factors) {
                    let slower = |ns: &mut u64| *ns = (*ns as f64 * factor) as u64;
                    stage.sample_ns.iter_mut().for_each(slower);
                }
            }
            add(&mut farm, &format!("{name}.jsonl"), &records);
        }
    }
    let found = judged(&farm, &[], 0.02);
    assert_eq!(verdict(&found, "n04"), HostVerdict::Different, "{found:#?}");
    assert!(found.hosts[4].findings.iter().all(|found| found.point.is_some()), "{found:#?}");
    assert_eq!(found.of(HostVerdict::Alike).len(), 11);
}

#[test]
fn the_screen_has_thirty_lines_however_many_hosts_differ() {
    let mut farm = farm(200, "", 1.0);
    for at in 0..16 {
        let name = format!("slow{at}");
        for number in 0..1 + at % 2 {
            add(&mut farm, &name, &run(&name, cpu(at), 1.5 + 0.1 * at as f64, number));
        }
    }
    let expected: Vec<String> = (0..40).map(|at| format!("gone{at}")).collect();
    let text = judged(&farm, &expected, 0.02).frame().text(None);
    assert!((20..=30).contains(&text.lines().count()), "{text}");
    assert!(text.contains("more: --all") && text.contains("gone0, gone1"), "{text}");
}

#[test]
fn alike_hosts_do_not_differ() {
    let found = judged(&farm(24, "", 1.0), &[], 0.02);
    assert_eq!((found.differs(), found.is_unseen(), found.groups.len()), (false, false, 2));
}

#[test]
fn copies_of_a_file_count_once_and_a_second_run_is_one() {
    let mut farm = farm(8, "", 1.0);
    add(&mut farm, "copy.jsonl", &run("n01", cpu(1), 1.4, 0));
    add(&mut farm, "again.jsonl", &run("n03", cpu(1), 1.4, 5));
    let found = judged(&farm, &[], 0.02);
    let runs: Vec<usize> = found.hosts.iter().map(|host| host.runs).collect();
    assert_eq!(runs, [1, 1, 1, 2, 1, 1, 1, 1]);
}

#[test]
fn files_of_clones_with_one_name_are_pointed_at() {
    let mut farm = farm(8, "", 1.0);
    for number in 0..3 {
        add(&mut farm, &format!("farm/{number}.jsonl"), &run("debian", cpu(0), 1.0, number));
    }
    let found = judged(&farm, &[], 0.02);
    assert!(found.hosts[8].notes[0].contains("3 files, none with its name"), "{found:?}");
}

#[test]
fn hosts_that_share_a_name_are_told_apart_and_nameless_ones_have_their_file_s_name() {
    let mut farm = Farm::default();
    for at in 0..3 {
        let mut records = run("node", "CPU", 1.0, 0);
        records.iter_mut().for_each(|record| record.run_id = format!("run {at}"));
        add(&mut farm, &format!("node{at}"), &records);
        add(&mut farm, &format!("file{at}"), &run("localhost", "CPU", 1.0, at));
    }
    add(&mut farm, "other", &run("node", "another CPU", 1.0, 5));
    let found = judged(&farm, &[], 0.02);
    let names: Vec<&str> = found.hosts.iter().map(|host| host.name.as_str()).collect();
    let wanted = "node file0 node (node1) file1 node (node2) file2 node (other)";
    assert_eq!(names.join(" "), wanted);
}

#[test]
fn damaged_short_and_empty_files_are_named_and_the_others_are_compared() {
    let mut farm = farm(12, "", 1.0);
    farm.add(file("empty.jsonl", FarmSide::Before, &[], "line 1: no record"));
    let mut short = run("short", cpu(0), 1.0, 0);
    short.iter_mut().for_each(|record| record.lanes.truncate(1));
    farm.add(file("short.jsonl", FarmSide::Before, &short, "line 7: cut off"));
    let mut failed = run("failed", cpu(0), 1.0, 0);
    failed.iter_mut().for_each(|record| record.tool.version = "0.0.1".to_owned());
    let mut last = failed[0].clone();
    last.outcome = daqmeter_record::Outcome::Failed("bytes differ".into());
    failed.push(last);
    add(&mut farm, "failed.jsonl", &failed);
    let found = judged(&farm, &[], 0.02);
    assert_eq!(verdict(&found, "failed"), HostVerdict::Different);
    assert_eq!(found.missing, [("empty.jsonl".to_owned(), "line 1: no record".to_owned())]);
    let text = found.frame().text(None);
    for part in
        ["lacks 2 of 4 points; short.jsonl: line 7: cut off", "failed: bytes differ", "0.0.1"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn pairs_show_what_changed_everywhere_and_where_it_hurt_more() {
    let mut farm = Farm::paired();
    for at in 0..12 {
        let name = format!("n{at:02}");
        // Hosts differ, which does not matter.
        let own = 1.0 + 0.02 * at as f64;
        let after = if at == 4 { 1.2 } else { 1.05 };
        for number in 0..if at == 4 { 2 } else { 1 } {
            add(&mut farm, &name, &run(&name, "CPU", own, 3 + number));
            let records = run(&name, "CPU", own * after, 9 + number);
            farm.add(file(&name, FarmSide::After, &records, ""));
        }
    }
    add(&mut farm, "gone", &run("gone", "CPU", 1.0, 3));
    let found = judged(&farm, &[], 0.02);
    assert_eq!(verdict(&found, "n04"), HostVerdict::Different);
    assert_eq!(verdict(&found, "gone"), HostVerdict::NotSeen);
    assert_eq!(found.of(HostVerdict::Alike).len(), 11);
    let core = &found.groups[0].differences[0];
    assert_eq!(core.what, "core");
    assert!((1.04..1.06).contains(&core.ratio) && found.differs(), "{core:?}");
    insta::assert_snapshot!(found.frame().text(None));
}

#[test]
fn alike_cpus_are_divided_by_a_fact_that_matters_else_by_numbers() {
    let groups = |kernels: [&str; 3], factors: [f64; 3]| {
        let mut farm = Farm::default();
        for at in 0..30 {
            let name = format!("n{at:02}");
            let mut records = run(&name, "CPU", factors[at % 3], 0);
            for record in &mut records {
                let mut host = (*record.host).clone();
                // Memory says nothing here.
                host.memory_bytes = [1_u64 << 34, 1 << 35][at % 2];
                kernels[at % 3].clone_into(&mut host.kernel);
                record.host = host.into();
            }
            add(&mut farm, &name, &records);
        }
        let found = judged(&farm, &[], 0.02);
        assert_eq!(found.of(HostVerdict::Alike).len(), 30, "{found:?}");
        found.groups.iter().map(|group| (group.hosts, group.name.clone())).collect::<Vec<_>>()
    };
    let named = |groups: &[(usize, &str)]| -> Vec<(usize, String)> {
        groups.iter().map(|(hosts, name)| (*hosts, format!("CPU, 4 CPUs{name}"))).collect()
    };
    let kernels = ["6.1", "6.1", "6.12"];
    assert_eq!(groups(kernels, [1.0; 3]), named(&[(30, "")]));
    let by_kernel = named(&[(20, ", kernel 6.1"), (10, ", kernel 6.12")]);
    assert_eq!(groups(kernels, [1.0, 1.0, 1.1]), by_kernel);
    let by_numbers = groups(["6.1"; 3], [1.0, 1.0, 1.1]);
    assert_eq!(by_numbers[0], named(&[(20, ", core faster")])[0]);
    assert!(by_numbers[1].1.contains(" % slower"), "{by_numbers:?}");
}

#[test]
fn a_host_has_its_rank_among_others_of_its_kind() {
    let rank = |factor: f64| {
        let mut farm = farm(24, "", 1.0);
        let records = [3, 4].map(|number| run("n02", cpu(0), factor, number));
        farm.add_own(file("mine", FarmSide::Before, &records.concat(), ""));
        ranked(&farm, 0.02).unwrap()
    };
    let normal = rank(1.0);
    assert_eq!((normal.others, normal.verdict), (11, HostVerdict::Alike));
    let slow = rank(1.1);
    let core = slow.ranks.iter().find(|rank| rank.kind == PointKind::Core).unwrap();
    assert_eq!((slow.verdict, core.slower_than), (HostVerdict::Different, 1.0));
    insta::assert_snapshot!(slow.frame().text(None));
    let mut alone = farm(4, "", 1.0);
    alone.add_own(file("mine", FarmSide::Before, &run("x", "third CPU", 1.0, 3), ""));
    let alone = ranked(&alone, 0.02).unwrap();
    assert!(!alone.is_seen() && alone.frame().text(None).contains("too few"));
}
