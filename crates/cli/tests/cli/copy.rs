//! The copy verbs for scripts: output, files, exit codes, one clear line for errors.

use crate::common::{Folder, done, fail_with};
use daqmeter_record::{RunRecord, jsonl};

#[test]
fn latency_leaves_the_studys_files() {
    let folder = Folder::new();
    // A pinned thread has one CPU, which each line then names.
    let cpu = daqmeter_sys::affinity::allowed_cpus().unwrap()[0].to_string();
    folder.done(&format!(
        "copy latency --path pread --classic . --sizes 1,64,4KiB --repeat 7 --contexts cpu --operations from,to --pin {cpu}"
    ));
    assert_eq!(folder.files(), 2 * 3);
    let raw = folder.read("micro-benchmark_to_1.dat");
    let rows: Vec<Vec<u64>> = raw
        .lines()
        .map(|line| line.split('\t').map(|field| field.parse().unwrap()).collect())
        .collect();
    assert_eq!(rows.len(), 3 * 7);
    assert!(rows.iter().all(|row| row.len() == 5 && row[3] - row[2] == row[4]), "{raw}");
    let synthesis = folder.read("micro-benchmark_to_1_synth.dat");
    let sizes: Vec<&str> = synthesis.lines().map(|line| line.split('\t').next().unwrap()).collect();
    assert_eq!(sizes, ["1", "64", "4096"]);
}

/// Regression: field 6 was 4 to 1000 times less than field 5 - field 4.
#[test]
fn the_time_of_a_bandwidth_is_from_the_clock_before_to_that_after() {
    let folder = Folder::new();
    for lanes in [1, 2] {
        folder.done(&format!(
            "copy bandwidth --path pread --classic . --sizes 4KiB,1MiB --repeat 30 --contexts cpu --operations to --lanes {lanes}"
        ));
        for line in folder.read("measures_to.dat").lines() {
            let fields: Vec<u64> =
                line.split('\t').skip(3).take(3).map(|field| field.parse().unwrap()).collect();
            assert_eq!(fields[1] - fields[0], fields[2], "{line}");
        }
    }
}

/// Regression: heavy load came back as light, an emulated engine as a real one, and one folder
/// without a neighbour refused all others.
#[test]
fn files_come_back_with_their_conditions_and_a_folder_that_says_too_little_is_left_out() {
    let folder = Folder::new();
    folder.done(
        "copy latency --engine engine-thread --load heavy --classic own --sizes 64 --repeat 5 --contexts shared --operations to",
    );
    let program = "susan[c]_small\t10\t90\t80\t100\t5\t5.0\n";
    let write = |name: &str, text: &str| folder.write(name, text);
    write("_Msg/risultati/micro-benchmark_to_5.dat", "0\t64\t10\t20\t10\n");
    write("_Cache_2CPU/measure_x.dat", program);
    write("spun_from_224/measure_x.dat", program);
    write("trace/__mem_trace_to.dat", "0 1 8 0 5000000000 5000000010 10 0xf CPU\n");
    write(
        "trace/mem_trace_from.dat",
        "1 1 8 0 9000000000 9000000010 10 0xf DMA\n0 1 16 0 10 20 10 0xa CPU\n",
    );
    let read = |options: &str| -> Vec<RunRecord> {
        let text = folder.done(&format!("copy import . --json {options}"));
        text.lines().map(|line| jsonl::parse_line(line.as_bytes(), 1).unwrap()).collect()
    };
    let records = read("");
    let of = |kind: &str| {
        records.iter().filter(|record| record.workload.kind == kind).collect::<Vec<_>>()
    };
    let loads: Vec<_> =
        of("copy").iter().map(|record| record.workload.text("load").unwrap().to_owned()).collect();
    assert_eq!(loads, ["unknown", "heavy"]);
    let emulated: Vec<bool> = of("copy").iter().map(|record| record.engine.emulated).collect();
    assert_eq!((emulated, of("pollution").len()), (vec![false, true], 0));
    let [trace] = of("trace")[..] else { panic!("one trace of two files") };
    assert_eq!((trace.wall_ns, trace.counter("traced")), (9_000_000_000, Some(9e9)));
    assert_eq!(trace.counter("copy_from_user by DMA"), Some(1.0));
    let records = read("--load light --neighbour ideal --copies from:224");
    let light = |record: &&RunRecord| record.workload.text("load") == Ok("light");
    let programs = records.iter().filter(|record| record.workload.kind == "pollution");
    assert_eq!((programs.count(), records.iter().filter(light).count()), (2, 3));
}

#[test]
fn bandwidth_names_contexts_the_quantum_and_an_emulated_engine() {
    let text = done(
        "copy bandwidth --engine engine-thread --sizes 4KiB --repeat 5 --lanes 2 --operations from --quantum 20us --all",
    );
    for wanted in [
        "exclusive (engine-thread)",
        "shared (engine-thread)",
        "priority (engine-thread)",
        "(asked 20 us of each 90 us)",
        "engine-thread is emulated",
    ] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
}

#[test]
fn records_fill_figures_and_missing_ones_name_their_command() {
    let folder = Folder::new();
    folder.done(
        "copy latency --path pread --sizes 1,4KiB --repeat 5 --contexts cpu --records r.jsonl",
    );
    let text = folder.done("report r.jsonl --format copy-figures -o figures.html");
    assert_eq!(text.lines().filter(|line| line.trim_end().ends_with("drawn")).count(), 4, "{text}");
    assert!(text.contains("daqmeter copy pollution --copies from:224"), "{text}");
    let title = "2.1 copy_from_user: mean latency, light load";
    assert!(folder.read("figures.html").contains(title));
    let text = folder.done("reproduce copy --from r.jsonl --all");
    assert!(text.contains("cannot tell") && text.contains("2694.138933"), "{text}");
    let json = folder.done("reproduce copy --from r.jsonl --json -o figures.html");
    let study: serde_json::Value = serde_json::from_str(&json).expect("one study");
    let place = "3.3.1, sample record of a synthesis, field d";
    // Another machine's time is not judged.
    let row = &study["rows"][0];
    assert_eq!((&row["place"], &row["verdict"]), (&place.into(), &"this host".into()));
    assert!(folder.read("figures.html").contains(place));
}

#[test]
fn verify_checks_every_way_of_this_host() {
    let text = done("copy verify --path engine-thread --up-to 70000 --json");
    let cases: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(cases.len(), 3 * 2 * 2, "three policies, two completions, two directions");
    let verified = |case: &serde_json::Value| case["outcome"]["verified"].clone();
    assert!(cases.iter().all(|case| verified(case)["copies"] == 33), "{cases:?}");
    assert!(cases.iter().all(|case| verified(case)["largest_bytes"] == 70_000), "{cases:?}");
}

#[test]
fn without_the_tracer_a_trace_is_refused() {
    if !std::path::Path::new("/dev/daqmeter-trace").exists() {
        fail_with(2, &[("copy trace --time 50ms", "load the tracer (kmod/README.md)")]);
    }
}

/// Sample lines of sections 3.2.1, 3.3.1, 3.4.1 and 3.5.1 of the document.
#[test]
fn the_studys_own_files_become_records_of_another_host() {
    let folder = Folder::new();
    let write = |name: &str, text: &str| folder.write(name, text);
    write("exclusive/micro-benchmark_from_nc_5.dat", "3\t64\t2740081346085\t2740081346193\t108\n");
    write("exclusive/micro-benchmark_from_nc_5_synth.dat", "64 108 108 108 0 108\n");
    let channel = "0 1024 300 1384270020290328601 1384270020290437344 108743 2694.138933";
    write("measures_from.dat", &format!("{channel}\ntotal_band= 2694.138933\n"));
    let run = "qsort_small 55698518635 55702757592 4238957 157283 982 0.624352\n";
    write("cpu_from_224/measure_run7.dat", run);
    let traced = "0 1102 8 0 613326537662 613326537755 93 0xfffffffff8144c129 CPU\n";
    write("mem_trace_from.dat", traced);
    write("notes.txt", "not of the study\n");
    let import = |from: &str| format!("copy import {} --json", folder.path(from).display());
    let text = done(&import(""));
    let mut found: Vec<&str> = text
        .lines()
        .map(|line| line.split("\"study\":\"").nth(1).unwrap().split('"').next().unwrap())
        .collect();
    found.sort_unstable();
    assert_eq!(found, ["copy/bandwidth", "copy/latency", "copy/pollution", "copy/trace"]);
    assert!(text.contains("\"context\":\"exclusive\"") && text.contains("measured elsewhere"));
    write("cpu_to/measure_x.dat", run);
    for (from, wanted) in [
        ("notes.txt", "holds no file of the study"),
        ("measures_to.dat", "No such file"),
        ("cpu_to/measure_x.dat", "its folder must say neighbour and copies, as cpu_from_224"),
    ] {
        fail_with(2, &[(&import(from), wanted)]);
    }
}
