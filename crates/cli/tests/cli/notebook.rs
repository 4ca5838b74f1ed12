//! Plans, comparisons, history, export and serving for users.

use std::io::{Read, Write};

use crate::common::{Folder, Running, stdout};

const PLAN: &str = "title = 'Tiny'\nabout = 'For tests.'\nrepetitions = 2\ntime = '2ms'\n[[sweep]]\nstudy = 'tiny'\nengine = 'memory'\n\
                    workload = { read_lines = 1, write_lines = 0 }\naxes = { read_bytes = ['4KiB', '16KiB'] }\n";

fn planned() -> Folder {
    let folder = Folder::new();
    folder.write("plan.toml", PLAN);
    folder
}

fn measured() -> Folder {
    let folder = planned();
    folder.done("run plan.toml --records a.jsonl");
    folder
}

fn first_record(folder: &Folder) -> serde_json::Value {
    serde_json::from_str(folder.read("a.jsonl").lines().next().unwrap()).unwrap()
}

#[test]
fn an_interrupted_plan_is_gone_on_with_where_it_stopped() {
    let folder = measured();
    let text = folder.read("a.jsonl");
    assert_eq!(text.lines().count(), 4);
    // A crash would cut the third line off.
    let two: usize = text.lines().take(2).map(|line| line.len() + 1).sum();
    folder.write("a.jsonl", &text[..two + 100]);
    let resume = "run plan.toml --records a.jsonl --resume";
    let (_, said) = folder.ends_with(0, resume);
    assert!(said.contains("2 of 4 points are in the file already"), "{said}");
    assert!(said.contains("line 3: cut off in the middle"), "{said}");
    let shown = folder.done("report a.jsonl --format csv");
    // Two points were whole, and two were measured again; a memory point has a row for each kind of
    // read.
    let rows = shown.lines().count() - 1;
    assert!(rows >= 4 && rows.is_multiple_of(4), "{rows} rows");
    let (_, said) = folder.ends_with(0, resume);
    assert!(said.contains("4 of 4 points are in the file already"), "{said}");
}

#[test]
fn a_budget_ends_a_plan_between_points_and_says_how_to_go_on() {
    let (_, said) = planned().ends_with(0, "run plan.toml --records out.jsonl --time 1ns");
    assert!(
        said.contains("0 of 4 points measured") && said.contains("to continue: daqmeter run"),
        "{said}"
    );
}

#[test]
fn a_list_shows_points_and_runs_nothing() {
    let folder = planned();
    for (line, wanted) in [
        ("list plan.toml", &["4 points, 2 of them different", "ready"][..]),
        ("list plans", &["digitizer-2017", "survey-short"]),
        ("list survey-short", &["survey/felix", "survey/memory", "; 20 s for all"]),
    ] {
        let listed = folder.done(line);
        assert!(wanted.iter().all(|wanted| listed.contains(wanted)), "{line}: {listed}");
    }
}

#[test]
fn what_this_host_lacks_is_waived_and_what_is_refused_costs_no_other_point() {
    let folder = planned();
    let absent = if cfg!(target_arch = "x86_64") { "neon" } else { "avx512" };
    let sweep = |engine: &str, workload: &str| {
        format!("{PLAN}[[sweep]]\nstudy = 's'\nengine = '{engine}'\nworkload = {{ {workload} }}\n")
    };
    let waived = sweep("convert", &format!("samples = 1000, function = 3, isa = '{absent}'"));
    folder.write("plan.toml", waived);
    let why = format!("this CPU has no {absent}");
    let listed = folder.done("list plan.toml");
    assert!(listed.contains(&format!("waived: {why}")), "{listed}");
    assert!(folder.done("run plan.toml").contains(&why));
    folder.write("plan.toml", sweep("copy", "path = 'by-hand', block_bytes = 64"));
    let (_, said) = folder.ends_with(2, "run plan.toml --records out.jsonl");
    assert_eq!(folder.read("out.jsonl").lines().count(), 4, "{said}");
    assert!(
        said.contains("by-hand") && said.contains("2 of 6 points could not be measured"),
        "{said}"
    );
}

#[test]
fn two_runs_do_not_write_one_file() {
    let folder = planned();
    let held = std::fs::File::create(folder.path("out.jsonl")).unwrap();
    held.lock().unwrap();
    let run = "run plan.toml --records out.jsonl";
    folder.refuses(run, "is being written by another run");
    drop(held);
    folder.done(run);
}

#[test]
fn a_gate_fails_on_what_became_slower_and_on_nothing_else() {
    let folder = measured();
    // Our own samples: the test is of the comparison, not of this host.
    for (name, ns, has_clock) in [
        ("before", 10_000, true),
        ("after", 10_800, true),
        ("same", 10_001, true),
        // Without the clock, a file a side says little, and a gate reports that.
        ("one", 10_000, false),
        ("other", 10_800, false),
    ] {
        let mut lines = String::new();
        for at in 0..5 {
            let mut record = first_record(&folder);
            record["run_id"] = name.into();
            for stage in record["lanes"][0]["stages"].as_array_mut().unwrap() {
                stage["sample_ns"] = (0..20).map(|_| ns + at).collect::<Vec<u64>>().into();
                let all = |value: u64| vec![value; 20];
                stage["slices"] = serde_json::json!({ "samples": all(1), "gap_ns": all(9) });
                if has_clock {
                    stage["slices"]["chain_ns"] = all(3000).into();
                    stage["slices"]["sibling_ns"] = all(1500).into();
                }
            }
            lines.push_str(&format!("{record}\n"));
        }
        folder.write(name, lines);
    }
    for (code, line) in [
        (1, "before after"),
        (0, "before same"),
        (1, "before after --fail-on 5%"),
        (0, "before after --fail-on 15%"),
        // Faster is not a regression.
        (0, "after before --fail-on 5%"),
        (3, "one other"),
        (3, "one other --fail-on 5%"),
        (0, "before same --history after"),
    ] {
        let (text, said) = folder.ends_with(code, &format!("compare {line}"));
        assert_eq!(said.contains("--fail-on is undecided"), line == "one other --fail-on 5%");
        let is_same = text.starts_with("nothing is slower: ");
        assert_eq!(is_same, code == 0 && line.contains("same"), "{line}: {text}");
    }
    let (json, _) = folder.ends_with(1, "compare before after --json");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["points"][0]["verdict"], "slower");
}

#[test]
fn each_night_is_a_file_and_is_compared_with_those_before() {
    let folder = Folder::new();
    let sweep = "[[sweep]]\nstudy = 's'\nengine = 'null'\n";
    folder.write("p.toml", format!("title = 't'\nrepetitions = 5\ntime = '1ms'\n{sweep}"));
    let night = "nightly nights --plan p.toml --ignore 900% --fail-on 900%";
    assert!(folder.done(night).starts_with("the first night of this host"));
    // A busy host is not ten times as slow as itself, but others may have its CPU for a whole night.
    let mut nights = 1;
    let compared = loop {
        nights += 1;
        let out = stdout(&folder.command(night).output().unwrap());
        if !out.contains("others used the CPU") || nights == 30 {
            break out;
        }
    };
    assert!(compared.starts_with("nothing is slower: 1 point by no more than "), "{compared}");
    let files = std::fs::read_dir(folder.path("nights")).unwrap();
    let names: Vec<_> =
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(names.iter().filter(|name| name.ends_with(".jsonl")).count(), nights, "{names:?}");
    let summary = folder.read("nights/summary.md");
    assert!(summary.contains("| the tool's own loop |"), "{summary}");
    let junit = folder.read("nights/junit.xml");
    assert!(junit.contains(r#"tests="1" failures="0" skipped="0""#), "{junit}");
}

#[test]
fn a_step_between_revisions_is_found() {
    let folder = measured();
    for day in 1..=12 {
        let mut record = first_record(&folder);
        record["time_utc"] = format!("2026-11-{day:02}T00:00:00.000Z").into();
        record["run_id"] = format!("run-{day}").into();
        record["tool"]["git_revision"] = if day <= 6 { "aaaaaaa" } else { "bbbbbbb" }.into();
        for stage in record["lanes"][0]["stages"].as_array_mut().unwrap() {
            let ns = if day <= 6 { 1000 } else { 1200 };
            stage["sample_ns"] = (0..20).map(|at| ns + (at + day) % 4).collect::<Vec<u64>>().into();
            // Those of the measured samples do not belong to these.
            stage.as_object_mut().unwrap().remove("slices");
        }
        folder.write(&format!("host/2026-11-{day:02}.jsonl"), format!("{record}\n"));
    }
    let found = folder.done("history host");
    let step = "slower since 2026-11-07T00:00 (between aaaaaaa and bbbbbbb; z ";
    assert!(found.contains(step), "{found}");
}

/// Issue 50: the records were read before.
#[cfg(not(feature = "parquet"))]
#[test]
fn a_build_without_parquet_says_so_at_once() {
    let without = "this program was built without Parquet: write .csv, or build it with";
    crate::common::fail_with(2, &[("report nothing.jsonl -o x.parquet", without)]);
}

#[cfg(feature = "parquet")]
#[test]
fn parquet_begins_and_ends_as_parquet_does() {
    let folder = measured();
    folder.done("report a.jsonl --rows samples -o a.parquet");
    let bytes = std::fs::read(folder.path("a.parquet")).unwrap();
    assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"));
    assert!(!folder.path("a.parquet.part").exists());
}

#[cfg(feature = "parquet")]
#[test]
fn a_data_set_has_a_part_for_each_file_and_host_and_is_replaced_whole() {
    let folder = measured();
    let of = |host: &str| {
        let mut record = first_record(&folder);
        record["host"]["name"] = host.into();
        format!("{record}\n")
    };
    folder.write("farm/_a.jsonl", of("lab7") + &of("lab 8/\u{e4}") + "{\n");
    folder.write("farm/sub/_a.jsonl", of("lab7"));
    let parts = |wanted: &[&str]| {
        let hosts = std::fs::read_dir(folder.path("set.parquet")).unwrap();
        let files = hosts.flat_map(|host| std::fs::read_dir(host.unwrap().path()).unwrap());
        let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        files.sort();
        assert_eq!(files, wanted.iter().map(|part| folder.path(part)).collect::<Vec<_>>());
    };
    let (_, said) = folder.ends_with(0, "report farm -o set.parquet/");
    assert!(said.ends_with("wrote set.parquet/\n"), "{said}");
    assert_eq!(said.matches("line 3").count(), 1, "{said}");
    let [other, part] =
        ["host=lab%208%2F%C3%A4", "host=lab7"].map(|it| "set.parquet/".to_owned() + it);
    let [other, part, next] =
        [other + "/%5Fa.parquet", part.clone() + "/%5Fa-.parquet", part + "/%5Fa.parquet"];
    parts(&[&other, &part, &next]);
    folder.done("report farm/sub --format parquet -o set.parquet");
    parts(&[&next]);
    // Without any row of this kind the set stays.
    folder.refuses("report farm --rows series -o set.parquet/", "without any row of Series");
    folder.refuses("report farm --study no -o set.parquet/", "without any row of Stages");
    folder.refuses("report - -o set.parquet/", "- is no file of records");
    folder.write("set.parquet/notes.txt", "");
    let why = "set.parquet/notes.txt is no part of a data set";
    folder.refuses("report farm -o set.parquet/", why);
    folder.refuses("report farm --format parquet -o farm", "_a.jsonl is no part of a data set");
}

#[test]
fn a_line_of_a_hundred_megabytes_costs_only_itself() {
    let folder = measured();
    let long = vec![b'x'; 100 << 20];
    folder.write("long.jsonl", [&long[..], b"\n", folder.read("a.jsonl").as_bytes()].concat());
    let (text, said) = folder.ends_with(0, "report long.jsonl --format text");
    assert!(said.contains("line 1: longer than") && text.contains("read"), "{said}");
}

#[test]
fn a_browser_gets_the_index_and_a_report_and_a_signal_ends_the_server() {
    let folder = measured();
    std::os::unix::fs::symlink("/dev/zero", folder.path("zero.jsonl")).unwrap();
    let mut server = Running::start(&format!("serve {} --port 0", folder.path("").display()));
    let said = server.printed();
    let address = said.strip_prefix("serving 1 file at http://").unwrap().trim_end_matches('/');
    let get = |path: &str| {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    let index = get("/");
    assert!(index.starts_with("HTTP/1.1 200") && index.contains("a.jsonl"), "{index}");
    let page = index.split("<a href=\"").nth(1).unwrap().split('"').next().unwrap();
    assert!(get(page).contains("read 4 KiB"));
    assert!(get("/report/1").starts_with("HTTP/1.1 404"));
    server.signal("TERM");
    assert_eq!(server.end().0, Some(130));
}
