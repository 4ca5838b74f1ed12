//! The copy verbs for scripts: output, files, exit codes, one clear line for errors.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;

use common::{are_refused, daqmeter, stderr, stdout};

fn copy(arguments: &[&str]) -> std::process::Output {
    daqmeter("copy", arguments)
}

#[test]
fn bad_input_gives_one_clear_line_and_exit_2() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).display().to_string();
    let (none, empty) = (place("none.jsonl"), place("empty.jsonl"));
    std::fs::write(&empty, "").unwrap();
    are_refused(
        "copy",
        &[
            (&["latency", "--sizes", "0"][..], "at least one size of 1 B or more"),
            (&["latency", "--sizes", "100TiB"], "1 to 1099511627776 is wanted"),
            (&["latency", "--sizes", "1TiB"], "choose smaller --sizes"),
            (&["latency", "--sizes", "64", "--reps", "0"], "is 0; 1 to 65536 is wanted"),
            (&["latency", "--sizes", "64", "--depth", "0"], "`depth` is 0; 1 to 1024 is wanted"),
            (
                &["latency", "--depth", "4", "--format", "classic", "--out-dir", &none],
                "a line of the classic files is one copy",
            ),
            (&["latency", "--high", "99"], "channel from 0 to 63"),
            (&["latency", "--sizes", "many"], "many"),
            (&["latency", "--path", "nowhere"], "values: pread, tmpfs-huge"),
            (&["latency", "--contexts", "best"], "values: cpu, exclusive, shared, priority"),
            (&["latency", "--operations", "sideways"], "none of from, to, both"),
            (&["latency", "--pin", "1000", "--sizes", "64"], "CPU 1000 does not exist"),
            (&["latency", "--format", "classic", "--sizes", "64"], "--out-dir"),
            (&["latency", "--engine", "dsa", "--contexts", "shared", "--sizes", "64"], "DSA"),
            (&["bandwidth", "--lanes", "5000", "--sizes", "4KiB"], "`lanes` is 5000; 1 to "),
            (
                &["bandwidth", "--contexts", "priority", "--quantum", "90us", "--sizes", "4KiB"],
                "quantum_ns",
            ),
            (&["pollution", "--tests", "doom"], "values: susan[s]_small, "),
            (&["pollution", "--neighbours", "noisy"], "values: ideal, cpu, dma, spin, null-call"),
            (&["pollution", "--copies", "224"], "is not like from:224"),
            (&["pollution", "--copies", "from:0"], "copies of 1 B or more are wanted"),
            (&["pollution", "--reps", "0"], "1 to 65536 is wanted"),
            (&["verify", "--path", "nowhere"], "values: pread"),
            (&["verify", "--times", "0"], "0 is not in 1.."),
            (&["figures", &none], "No such file"),
            (&["figures", &empty], "holds no record"),
        ],
    );
}

#[test]
fn latency_leaves_the_studys_files() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().display().to_string();
    // A pinned thread has one CPU, which each line then names.
    let cpu = daqmeter_sys::affinity::allowed_cpus().unwrap()[0].to_string();
    let sizes = [
        "--sizes",
        "1,64,4KiB",
        "--reps",
        "7",
        "--contexts",
        "cpu",
        "--operations",
        "from,to",
        "--pin",
        &cpu,
    ];
    let output = copy(
        &[&["latency", "--path", "pread", "--format", "classic", "--out-dir", &place], &sizes[..]]
            .concat(),
    );
    assert!(output.status.success(), "{}", stderr(&output));
    let mut names: Vec<String> = std::fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "micro-benchmark_from_1.dat",
            "micro-benchmark_from_1_synth.dat",
            "micro-benchmark_to_1.dat",
            "micro-benchmark_to_1_synth.dat"
        ]
    );
    let raw = std::fs::read_to_string(directory.path().join(&names[2])).unwrap();
    let rows: Vec<Vec<u64>> = raw
        .lines()
        .map(|line| line.split('\t').map(|field| field.parse().unwrap()).collect())
        .collect();
    assert_eq!(rows.len(), 3 * 7);
    assert!(rows.iter().all(|row| row.len() == 5 && row[3] - row[2] == row[4]), "{raw}");
    let synthesis = std::fs::read_to_string(directory.path().join(&names[3])).unwrap();
    let sizes: Vec<&str> = synthesis.lines().map(|line| line.split('\t').next().unwrap()).collect();
    assert_eq!(sizes, ["1", "64", "4096"]);
}

fn contents(folder: &std::path::Path) -> std::collections::BTreeMap<String, String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let file = |path: std::path::PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, std::fs::read_to_string(path).unwrap())
    };
    entries.map(|entry| file(entry.unwrap().path())).collect()
}

#[test]
fn files_of_the_study_come_back_as_records_measured_elsewhere() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).display().to_string();
    for (verb, heading) in [
        ("latency", "copy_to_user: time of one copy, 7 repetitions"),
        ("bandwidth", "cpu (pread)  4 KiB"),
    ] {
        let (first, again) = (place(verb), place(&format!("{verb}-again")));
        let (own, read) = (place(&format!("{verb}.jsonl")), place(&format!("{verb}-read.jsonl")));
        let who = ["--contexts", "cpu", "--path", "pread", "--format", "classic"];
        let measured = [
            &[verb, "--sizes", "64,4KiB", "--reps", "7", "--operations", "to,from"],
            &who[..],
            &["--out-dir", &first, "--records", &own],
        ];
        let output = copy(&measured.concat());
        assert!(output.status.success(), "{}", stderr(&output));
        let from = [verb, "--from", &first];
        let output = copy(&[&from, &who[..], &["--out-dir", &again, "--records", &read]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        let text = stdout(&output);
        assert!(text.contains(heading), "{text}");
        assert!(text.contains("measured elsewhere: read from"), "{text}");
        assert_eq!(contents(again.as_ref()), contents(first.as_ref()), "{verb}");

        let shown = daqmeter("show", &[&read]);
        assert!(stdout(&shown).contains("measured elsewhere"), "{}", stdout(&shown));
        let page = place("page.html");
        let report = daqmeter("report", &[&read, "-o", &page]);
        assert!(report.status.success(), "{}", stderr(&report));
        let page = std::fs::read_to_string(&page).unwrap();
        assert!(page.contains("unknown (files of") && !page.contains("0 logical"));
        let compared = daqmeter("cmp", &[&own, &read]);
        let said = stdout(&compared) + &stderr(&compared);
        assert_ne!(compared.status.code(), Some(2), "the points are the same: {said}");
    }
}

#[test]
fn files_that_cannot_be_read_say_where_and_what_is_missing() {
    let directory = tempfile::tempdir().unwrap();
    let written = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let good = written("micro-benchmark_to_1.dat", "0 64 5 9 4\n");
    let bad = written("micro-benchmark_from_1.dat", "0 64 5 9 4\n0 64 5 x 4\n");
    let synthesis = written("micro-benchmark_to_1_synth.dat", "64 4 4 4.0 0.0 4.0\n");
    let bandwidth = written("measures_to.dat", "");
    let shared = written("shared/micro-benchmark_to_1.dat", "0 64 5 9 4\n");
    let program = written("measure_x.dat", "qsort_small 5 9 4 n/a n/a n/a\n");
    let empty = directory.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let empty = empty.display().to_string();
    let cpu = ["--contexts", "cpu"];
    are_refused(
        "copy",
        &[
            (&["latency", "--from", &good], "does not say who copied: add --contexts"),
            (
                &["latency", "--from", &bad, cpu[0], cpu[1]],
                "micro-benchmark_from_1.dat: line 2: `x` is no value of `ns after`",
            ),
            (&["latency", "--from", &synthesis], "a synthesis holds no single times"),
            (&["latency", "--from", &bandwidth], "is a file of `daqmeter copy bandwidth --from`"),
            (
                &["bandwidth", "--from", &bandwidth, cpu[0], cpu[1]],
                "measures_to.dat: holds no measurement",
            ),
            (&["latency", "--from", "/dev/zero"], "the name says what was measured"),
            (&["latency", "--from", &empty], "holds no micro-benchmark_"),
            (
                &["latency", "--from", &shared, cpu[0], cpu[1]],
                "lies in a folder shared, and --contexts says cpu",
            ),
            (&["latency", "--from", &good, "--contexts", "cpu,shared"], "name one"),
            (&["latency", "--from", &good, "--reps", "7"], "cannot be used with"),
            (&["pollution", "--from", &program], "add one of --neighbours and one of --copies"),
        ],
    );
    let output = copy(&["latency", "--from", &shared, "--json"]);
    let record: serde_json::Value = serde_json::from_str(stdout(&output).trim()).unwrap();
    assert_eq!(record["workload"]["params"]["context"], "shared", "{record}");
    assert_eq!(record["engine"]["target"], shared.as_str());
    let told = ["--neighbours", "cpu", "--copies", "from:224"];
    let output = copy(&[&["pollution", "--from", &program], &told[..]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("from 224  qsort_small"), "{}", stdout(&output));
}

#[test]
fn zeros_are_verified_and_held_against_a_fill() {
    let options = ["--path", "dev-zero"];
    let output = copy(&[&["verify", "--up-to", "5000"], &options[..]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("ok  dev-zero  cpu") && text.contains("ask for direction"), "{text}");
    let sweep = ["--contexts", "cpu", "--operations", "to", "--sizes", "4KiB", "--reps", "5"];
    for verb in ["latency", "bandwidth"] {
        let output = copy(&[&[verb], &options[..], &sweep[..]].concat());
        let text = stdout(&output);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(text.contains("clear_user") && text.contains("of memset"), "{text}");
        assert!(!text.contains("of memcpy"), "{text}");
    }
    are_refused("copy", &[]);
}

#[test]
fn bandwidth_says_who_copied_and_that_an_engine_is_emulated() {
    let output = copy(&[
        "bandwidth",
        "--engine",
        "thread",
        "--sizes",
        "4KiB",
        "--reps",
        "5",
        "--lanes",
        "2",
        "--operations",
        "from",
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    for wanted in [
        "exclusive (engine-thread)",
        "shared (engine-thread)",
        "priority (engine-thread)",
        "no hardware",
        "asked 30 us of 90 us",
    ] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
}

#[test]
fn records_fill_figures_and_missing_ones_name_their_command() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).display().to_string();
    let (records, page) = (place("copies.jsonl"), place("figures.html"));
    let latency = [
        "latency",
        "--path",
        "pread",
        "--sizes",
        "1,4KiB",
        "--reps",
        "5",
        "--contexts",
        "cpu",
        "--out",
        &records,
    ];
    assert!(copy(&latency).status.success());
    let output = copy(&["figures", &records, "-o", &page]);
    let text = stdout(&output);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(text.lines().filter(|line| line.trim_end().ends_with("drawn")).count(), 4, "{text}");
    assert!(text.contains("daqmeter copy pollution --copies from:224"), "{text}");
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.contains("2.1 copy_from_user: mean latency, light load"));
    let output = daqmeter("reproduce", &["copy", "--from", &records]);
    let text = stdout(&output);
    assert!(
        output.status.success() && text.contains("cannot tell") && text.contains("2694.138933"),
        "{text}"
    );
    let output = daqmeter("reproduce", &["copy", "--from", &records, "--json", "-o", &page]);
    let study: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("one study");
    assert_eq!(study["rows"][0]["place"], "3.3.1, sample record of a synthesis, field d");
    assert_eq!(
        study["rows"][0]["verdict"], "this host",
        "another machine's time is not judged: {study}"
    );
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.contains("3.3.1, sample record of a synthesis, field d"));
}

#[test]
fn verify_checks_every_way_of_this_host() {
    let output = copy(&["verify", "--path", "engine-thread", "--up-to", "70000", "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let cases: Vec<serde_json::Value> =
        stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(cases.len(), 3 * 2 * 2, "three policies, two completions, two directions");
    assert!(cases.iter().all(|case| case["outcome"]["verified"]["copies"] == 30), "{cases:?}");
}

#[test]
fn without_the_tracer_a_trace_says_what_it_can() {
    if std::path::Path::new("/dev/daqmeter-trace").exists() {
        return;
    }
    let output = copy(&["trace", "--time", "50ms", "--delay", "10ms"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("not single copies"), "{}", stdout(&output));
    assert!(stderr(&output).contains("without the tracer"), "{}", stderr(&output));
}

#[test]
fn traces_of_the_study_are_read_from_its_files() {
    let folder = tempfile::tempdir().unwrap();
    let line = |bytes: u64| {
        format!("0\t1102\t{bytes}\t0\t613326537662\t613326537755\t93\t0xffffffff8144c129\tCPU\n")
    };
    let file = folder.path().join("mem_trace_to.dat");
    std::fs::write(&file, line(16) + &line(16) + &line(4096)).unwrap();
    for path in [folder.path(), file.as_path()] {
        let output = copy(&["trace", "--from", path.to_str().unwrap()]);
        let text = stdout(&output);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(text.starts_with("3 copies in 0.0 s\n"), "{text}");
        assert!(text.contains("copy_to_user") && text.contains("0xffffffff8144c129"));
    }
    std::fs::write(&file, "1 2 3\n").unwrap();
    let wrong = copy(&["trace", "--from", file.to_str().unwrap()]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(stderr(&wrong).contains("mem_trace_to.dat: line 1: not the nine fields"));
    let other = copy(&["trace", "--from", "/dev/null"]);
    assert!(stderr(&other).contains("/dev/null: the name says which operation"));
}

#[test]
fn help_for_people() {
    for verb in ["latency", "bandwidth", "pollution", "trace", "verify", "figures"] {
        let text = stdout(&copy(&[verb, "-h"]));
        assert!(text.lines().count() <= 48, "{verb}: {} lines", text.lines().count());
        let mut settings = insta::Settings::clone_current();
        settings.set_snapshot_suffix(verb);
        settings.bind(|| insta::assert_snapshot!("help", text));
    }
    insta::assert_snapshot!("help", stdout(&copy(&["-h"])));
}

#[test]
fn a_trace_from_files_is_a_record_with_the_files_and_the_figures_of_one() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name).display().to_string();
    let line = "0\t1102\t8\t0\t613326537662\t613326537755\t93\t0xffffffff8144c129\tCPU\n";
    let long = "0\t1103\t8\t0\t613326539662\t613326539755\t93\t0xfffffffff8144c129\tCPU\n";
    let (file, again) = (place("mem_trace_from.dat"), place("again"));
    std::fs::write(&file, format!("{line}{long}")).unwrap();
    let (records, page) = (place("trace.jsonl"), place("trace.html"));
    let options = ["--format", "classic", "--out-dir", &again, "--records", &records, "-o", &page];
    let output = copy(&[&["trace", "--from", &file], &options[..]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("addresses of more than 16 digits: 1; their last 16 are used"), "{text}");
    let written = contents(again.as_ref());
    let short = long.replace("0xfffffffff", "0xffffffff");
    assert_eq!(written["mem_trace_from.dat"], format!("{line}{short}"));
    assert!(std::fs::read_to_string(&page).unwrap().contains("measured elsewhere"));
    let figures = copy(&["figures", &records, "-o", &place("figures.html")]);
    assert!(figures.status.success(), "{}", stderr(&figures));
    let drawn = stdout(&figures);
    let drawn: Vec<&str> =
        drawn.lines().map(str::trim).filter(|line| line.ends_with("drawn")).collect();
    assert_eq!(drawn.len(), 2, "{drawn:?}");
    assert!(drawn[0].starts_with("2.21 ") && drawn[1].starts_with("2.25 "), "{drawn:?}");
}
