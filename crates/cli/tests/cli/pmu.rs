//! The counters' verbs for scripts: output, exit codes, one clear line for errors. They run on
//! emulated meshes and on counters that every host has.

use std::io::Write;

use crate::common::{Folder, Running, done, ends_with, run, stderr, stdout, until};

fn said(arguments: &str) -> String {
    done(&format!("pmu {arguments}"))
}

#[test]
fn the_map_of_the_n1sdp_has_the_documents_rows() {
    let text = said("list --mesh --emulated n1sdp");
    insta::assert_snapshot!(text);
    // The saved map is read again.
    let folder = Folder::new();
    folder.write("n1sdp.json", said("list --mesh --emulated n1sdp --json"));
    assert_eq!(folder.done("pmu list --mesh --map n1sdp.json"), text);
}

#[test]
fn the_documents_figures_are_computed_again() {
    insta::assert_snapshot!(done("reproduce pmu --no-measurement"));
}

#[test]
fn a_plan_names_what_binds_and_a_better_order() {
    let names =
        ["s0_rdata_beats", "s1_rdata_beats", "s2_rdata_beats", "rxdat_flits", "txdat_flits"];
    let rnd = names.map(|name| format!("-e arm_cmn/rnid_{name},nodeid=8,bynodeid=1/"));
    let nodes = ["0x24", "0x28", "0x44"];
    let hnf = nodes.map(|node| format!("-e arm_cmn/hnf_mc_reqs,nodeid={node},bynodeid=1/"));
    let events = [&rnd[..], &hnf].concat().join(" ");
    insta::assert_snapshot!(said(&format!("stat --plan --emulated n1sdp {events}")));
}

#[test]
fn the_documents_four_events_get_half_the_time_with_its_driver() {
    let events = [
        "txdat_flits,nodeid=8",
        "txdat_flits,nodeid=12",
        "rxdat_flits,nodeid=8",
        "rxdat_flits,nodeid=12",
    ];
    let events = events.map(|event| format!("-e arm_cmn/rnid_{event}/")).join(" ");
    let plan =
        |driver| ends_with(0, &format!("pmu stat --plan --emulated n1sdp {driver} {events}"));
    let (text, warned) = plan("--driver n1sdp");
    assert_eq!(text.matches("50.0 %").count(), 5, "{text}");
    assert_eq!(warned, "", "this driver takes a node alone");
    let (_, warned) = plan("");
    assert!(warned.contains("bynodeid=1 was added; the same for 3 more"), "{warned}");
}

#[test]
fn an_emulated_mesh_is_counted_recorded_and_replayed() {
    let folder = Folder::new();
    let grid = folder.done(
        "pmu stat --emulated n1sdp --heat hnf_mc_reqs -I 5ms --count 3 --records r.jsonl -o p.html",
    );
    assert_eq!(grid.matches("XP 0x08").count(), 3, "{grid}");
    assert!(grid.contains("HN-F 0x24") && grid.contains("/s"), "{grid}");
    let shown = folder.done("pmu stat --from r.jsonl --bytes both");
    assert!(shown.contains("XP 0x68") && shown.contains("3 intervals"), "{shown}");
    let page = folder.read("p.html");
    assert!(page.contains("id=\"mesh-0\"") && page.matches("class=\"heat\"").count() >= 4);
}

#[test]
fn perfs_format_is_written_and_read() {
    let event = "arm_cmn/hnf_mc_reqs,nodeid=0x24,bynodeid=1/";
    let folder = Folder::new();
    let text = said(&format!("stat --emulated n1sdp -e {event} -I 5ms --count 2 -x ;"));
    folder.write("perf", &text);
    let table = folder.done("pmu stat --from perf");
    assert!(table.contains("2 intervals") && table.contains(event), "{text}{table}");
    assert_eq!(folder.done("pmu stat --from perf -x ;"), text);
}

/// Issue 16: the document's formulas are computed from perf's own output.
#[test]
fn groups_compute_their_rates_from_perfs_output() {
    let folder = Folder::new();
    folder.write(
        "document.txt",
        "     4.000522271         84,743,908      arm_cmn/rnid_s0_wdata_beats,nodeid=0xc/\n     5.000680754         84,746,976      arm_cmn/rnid_s0_wdata_beats,nodeid=0xc/\n",
    )
    ;
    let (text, warnings) = folder.ends_with(0, "pmu stat --from document.txt --group pcie");
    assert!(text.contains("in: from devices to memory: 2711."), "{text}");
    assert!(warnings.contains("its first interval is 1.000 s long"), "{warnings}");
    let ignored = "1 event(s) such as `arm_cmn/rnid_s0_wdata_beats,nodeid=0xc/` name a node";
    assert!(warnings.contains(ignored), "{warnings}");
    let (_, refused) = folder.ends_with(2, "pmu stat --from document.txt --group memory");
    assert!(refused.contains("there is no arm_cmn/hnf_mc_reqs/"), "{refused}");
}

/// An idle second, and one without a part, are in no mean of ratios: not in the table, nor in a
/// replay, nor in a report.
#[test]
fn a_ratio_of_a_run_is_the_same_wherever_it_is_shown() {
    let folder = Folder::new();
    let row = |at, count: &str, event| {
        format!("{at}.000000000;{count};;arm_cmn/hnf_{event}/;1000000000;100.00;;\n")
    };
    let seconds = [("10", "10"), ("1000000000", "1000000"), ("0", "0"), ("7", "<not counted>")];
    let rows = seconds.iter().zip(1..).map(|((access, miss), at)| {
        row(at, access, "slc_sf_cache_access") + &row(at, miss, "cache_miss")
    });
    folder.write("perf", rows.collect::<String>());
    let shown = folder.done("pmu stat --from perf -g slc --records r");
    let whole = "miss rate: 0.001, of 3 of 4 intervals";
    assert!(shown.contains(whole) && shown.contains("miss rate: 0 of 0"), "{shown}");
    assert!(folder.done("pmu stat --from r").contains(whole));
    let report = folder.done("report r --format text");
    assert!(report.contains("miss rate 0.001, of 3 of 4 intervals"), "{report}");
    // Two outputs in a file are two runs, each by its own time.
    let run = |count, seconds| {
        format!(
            " Performance counter stats for 'x':\n\n      {count}      page-faults\n\n {seconds} seconds time elapsed\n"
        )
    };
    folder.write("perf", run(1000, "1.000000000") + &run(444, "0.201400000"));
    let shown = folder.done("pmu stat --from perf");
    assert!(shown.contains("1 interval, 0.201 s") && shown.contains("2205"), "{shown}");
}

#[test]
fn perf_stats_own_options_are_taken_as_typed_and_the_exit_code_is_that_of_the_command() {
    for (script, code) in [("exit 7", 7), ("kill -9 $$", 137), ("true", 0)] {
        let line = format!("pmu stat -a -I 600000 -e vmstat.pgfault -- sh -c '{script}'");
        assert!(ends_with(code, &line).0.contains("vmstat.pgfault"));
    }
}

#[test]
fn a_count_that_is_killed_keeps_what_was_counted() {
    let mut running = Running::start("pmu stat -e vmstat.pgfault -I 50ms --records o.jsonl");
    let out = running.folder.path().join("o.jsonl");
    let text = || std::fs::read_to_string(&out).unwrap_or_default();
    until("no second part", || text().matches('\n').count() >= 2);
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    let shown = said(&format!("stat --from {}", out.display()));
    // Both parts belong to one count, whose first interval appears once.
    assert_eq!(shown.matches(" intervals, ").count(), 1, "{shown}");
    // The end of each interval is a line such as `0.050 s`.
    let is_end =
        |line: &&str| line.strip_suffix(" s").is_some_and(|end| end.parse::<f64>().is_ok());
    let intervals = shown.lines().filter(is_end).count();
    assert!(intervals >= 30 && shown.contains(&format!("{intervals} intervals, ")), "{shown}");
}

#[test]
fn a_recording_is_exported_and_shown() {
    let folder = Folder::new();
    for (path, count) in [("a", "4000"), ("b", "5000")] {
        folder.write("perf", format!("1.000000000;{count};;page-faults;2002000000;100.00;;\n"));
        folder.done(&format!("pmu stat --from perf --records {path}"));
    }
    let table = folder.done("report a --format csv --rows series");
    assert!(table.lines().next().unwrap().contains(",series,time_ns,value,"), "{table}");
    assert!(table.contains(",page-faults,1000000000,4000,"), "{table}");
    let counters = folder.done("report a --format csv --rows counters");
    assert!(counters.contains(",page-faults,4000,"), "{counters}");
    let shown = folder.done("report a b --format text");
    assert!(shown.contains("page-faults 4,000") && shown.contains("page-faults 5,000"), "{shown}");
}

#[test]
fn a_plan_is_made_for_the_map_of_another_machine() {
    let folder = Folder::new();
    folder.write("lab7.json", said("list --mesh --emulated cmn700 --json"));
    let (text, warned) =
        folder.ends_with(0, "pmu stat --plan --map lab7.json --driver 6.1 -g memory -g slc");
    assert!(text.contains("arm_cmn_0, 6.1 driver: not all events fit"), "{text}{warned}");
    assert!(warned.contains("before Linux 6.7 loses counts"), "{warned}");
    assert!(folder.done("pmu list --groups --map lab7.json").contains("slc (here)"));
}

#[test]
fn groups_are_here_where_their_events_are() {
    for mesh in ["n1sdp", "s3"] {
        let text = said(&format!("list --groups --emulated {mesh}"));
        for group in ["memory (here)", "memory-nodes (here)", "slc (here)", "imc (not here: "] {
            assert!(text.contains(group), "{mesh}: {text}");
        }
    }
}

#[test]
fn counters_of_the_system_are_there_on_every_host() {
    let text = said("stat -e vmstat.pgpgin,vmstat.pgpgout -I 2ms --count 2");
    assert!(text.contains("vmstat.pgpgin") && text.contains("2 intervals"), "{text}");
    for (line, wanted) in [
        ("list", "virtual memory"),
        ("list --groups", "memory ("),
        ("list --events vmstat.pgpgin", "vmstat.pgpgin"),
        ("list --emulated n1sdp --events hnf_mc", "arm_cmn_0/hnf_mc_reqs/"),
    ] {
        assert!(said(line).contains(wanted), "{line}");
    }
}

#[test]
fn steps_end_at_lines_on_stdin() {
    let mut running = Running::start("pmu stat --step -x ; -e vmstat.pgpgin");
    running.child.stdin.take().unwrap().write_all(b"\n\n\n").unwrap();
    let (_, text) = running.end();
    assert_eq!(text.lines().count(), 3, "{text}");
}

#[test]
fn any_verb_counts_meanwhile_and_its_record_says_so() {
    let folder = Folder::new();
    folder.done(
        "copy latency --sizes 64 --repeat 3 --path memcpy --contexts cpu --observe vmstat.pgfault@1ms --records o.jsonl",
    );
    let text = folder.read("o.jsonl");
    let record: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    let observed = &record["sections"]["observed"];
    assert_eq!(observed["events"][0]["name"], "vmstat.pgfault");
    assert!(observed["end_ns"].as_array().is_some_and(|ends| !ends.is_empty()));
    assert!(folder.done("pmu stat --from o.jsonl").contains("vmstat.pgfault"));
}

#[test]
fn known_loads_are_counted_exactly_where_the_host_counts_them() {
    for (load, wanted) in [("net --time 20ms", "net.lo.rx_bytes"), ("memory --time 1ms", "")] {
        let output = run(&format!("pmu verify {load}"));
        assert!(matches!(output.status.code(), Some(0 | 1)), "{}", stderr(&output));
        assert!(stdout(&output).contains(wanted), "{}{}", stdout(&output), stderr(&output));
    }
}
