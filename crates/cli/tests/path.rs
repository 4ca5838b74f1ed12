//! `daqmeter path` for scripts: output, records, exit codes, one clear line for errors.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;

use common::{are_refused, daqmeter, stderr, stdout};
use daqmeter_path::predict::{
    CostPoint, Fitted, HeldBackPath, HostProfile, PredictedAndMeasured, WorkCost,
};
use daqmeter_record::{Host, Tool};

fn path(arguments: &[&str]) -> std::process::Output {
    daqmeter("path", arguments)
}

#[test]
fn help_for_people() {
    for verb in ["", "run", "explain", "serve", "predict"] {
        let mut settings = insta::Settings::clone_current();
        let name = if verb.is_empty() { "path" } else { verb };
        settings.set_snapshot_suffix(name);
        let arguments: Vec<&str> = [verb, "-h"].into_iter().filter(|a| !a.is_empty()).collect();
        settings.bind(|| insta::assert_snapshot!("help", stdout(&path(&arguments))));
    }
}

#[test]
fn paths_are_drawn_before_anything_runs() {
    let toml = stdout(&daqmeter("list", &["felix-card", "--toml"]));
    assert!(toml.contains("[[stage]]\nkind = \"tcp\""), "{toml}");
}

#[test]
fn a_run_is_a_record_with_its_threads() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.jsonl");
    let out = file.to_str().unwrap();
    let output = path(&["run", "pattern", "--time", "20ms", "--records", out]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("MB/s sustained") && text.contains("memory -> copy"), "{text}");
    assert!(text.contains("1 of 1 ledgers close"), "{text}");
    let line = std::fs::read_to_string(file).unwrap();
    assert!(line.contains("\"elsewhere_ns\""), "{line}");
}

#[test]
fn a_path_that_ends_at_a_receiver_is_accounted_for_at_both_ends() {
    use std::io::{BufRead, BufReader};
    for transport in ["tcp", "udp"] {
        let mut receiver = std::process::Command::new(common::PROGRAM)
            .args(["path", "serve", "127.0.0.1:0", "--senders", "1"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(receiver.stdout.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        let to = first.strip_prefix("listening on ").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("remote.toml");
        let text = format!(
            "title = \"x\"\nblock = \"4KiB\"\nrate = \"1kHz\"\n[source]\nkind = \"memory\"\n[sink]\nkind = \"{transport}\"\nto = \"{to}\"\n"
        );
        std::fs::write(&file, text).unwrap();
        let output = path(&["run", file.to_str().unwrap(), "--time", "20ms"]);
        assert!(output.status.success(), "{}", stderr(&output));
        let shown = stdout(&output);
        assert!(shown.contains("1 of 1 ledgers close"), "{shown}");
        let has_buffer = shown.contains("UDP        4 MiB of socket buffer asked for");
        assert_eq!(has_buffer, transport == "udp", "{shown}");
        let reported: Vec<String> = lines.map(Result::unwrap).collect();
        assert!(receiver.wait().unwrap().success());
        assert_eq!(reported.len(), 1);
        let end = "20 blocks, 80 KiB, the bytes of 20 compared";
        assert!(reported[0].ends_with(end), "{reported:?}");
    }
}

#[test]
fn a_card_that_is_read_out_live_says_what_became_of_its_triggers() {
    let output = path(&["run", "felix-readout", "--time", "20ms", "--rate", "20kHz"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    for wanted in [
        "card gbt -> to-host -> published over tcp -> receiver",
        "from the oldest trigger of a page to its receipt",
        "24 of 24 ledgers close",
        "BUSY       0 % of the time (0 % by DMA",
    ] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    are_refused(
        "path",
        &[(
            &["run", "felix-readout", "--lossy", "--rate", "20kHz"][..],
            "does not go with the source `card`",
        )],
    );
}

#[test]
fn a_card_that_is_read_out_live_is_explained_with_what_shares_the_reader_s_thread() {
    let folder = tempfile::tempdir().unwrap();
    let [scenario, file] = ["card.toml", "path.toml"].map(|name| folder.path().join(name));
    // The ring is soon full.
    let card = "[trigger]\nrate = \"100kHz\"\n[card]\nmode = \"gbt\"\nlinks = 1\nring = \"2MiB\"\n";
    std::fs::write(&scenario, card).unwrap();
    let text = format!(
        "title = \"a card\"\nblock = \"1KiB\"\n[source]\nkind = \"card\"\nscenario = \"{}\"\n[[stage]]\nkind = \"to-host\"\n[[stage]]\nkind = \"tcp\"\n[sink]\nkind = \"receiver\"\n",
        scenario.display()
    );
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let output = path(&["explain", file, "--budget", "1s"]);
    let text = stdout(&output);
    assert!(output.status.success(), "{}", stderr(&output));
    for wanted in ["  limit ", " of the time at work of to-host: card ", "\n card ", "\n receiver "]
    {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
}

fn small(folder: &std::path::Path) -> String {
    let file = folder.join("small.toml");
    let text = "title = \"small\"\nblock = \"4KiB\"\nbuffers = 2\n[source]\nkind = \"memory\"\nspan = \"64KiB\"\n[sink]\nkind = \"read\"\n";
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn the_largest_rate_is_stated_with_its_confidence() {
    let folder = tempfile::tempdir().unwrap();
    let file = small(folder.path());
    let output = path(&["run", &file, "--time", "12ms", "--max"]);
    let text = stdout(&output);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(text.contains("small.toml: largest rate without loss: "), "{text}");
    assert!(text.contains("95 % confidence") || text.contains("no rate was stable"), "{text}");
}

#[test]
fn an_explanation_has_a_slope_for_each_part_and_an_answer() {
    let folder = tempfile::tempdir().unwrap();
    let file = small(folder.path());
    let records = folder.path().join("explained.jsonl");
    let output =
        path(&["explain", &file, "--budget", "1s", "--records", records.to_str().unwrap()]);
    let text = stdout(&output);
    assert!(output.status.success(), "{}", stderr(&output));
    for part in ["\n memory ", "\n read "] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.contains("  limit "), "{text}");
    // The last record is a run of the path with the answer, for pages and tables.
    let records = std::fs::read_to_string(records).unwrap();
    let last: serde_json::Value = serde_json::from_str(records.lines().last().unwrap()).unwrap();
    assert_eq!(last["study"], "path/explain");
    assert!(last["path"]["limit"]["runs"].as_u64() > Some(20), "{last}");
    let shown = stdout(&daqmeter(
        "report",
        &[folder.path().join("explained.jsonl").to_str().unwrap(), "--format", "text"],
    ));
    let limit = shown.lines().find(|line| line.starts_with("  limit "));
    assert!(limit.is_some_and(|line| line.contains(" runs")), "{shown}");
}

#[test]
fn a_field_of_the_file_gets_another_value_and_the_record_says_which() {
    let folder = tempfile::tempdir().unwrap();
    let file = small(folder.path());
    let records = folder.path().join("run.jsonl");
    let records = records.to_str().unwrap();
    let run = ["run", &file, "--time", "5ms", "--set", "block=8KiB", "--set", "pages=base"];
    let output = path(&[&run[..], &["--records", records]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("8 KiB -> memory"), "{}", stdout(&output));
    let shown = stdout(&daqmeter("report", &[records, "--format", "text"]));
    assert!(shown.contains("small.toml --set block=8KiB --set pages=base"), "{shown}");
}

#[test]
fn a_path_is_listed_by_its_name_or_its_file_and_what_is_wrong_with_it_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = small(folder.path());
    let listed = stdout(&daqmeter("list", &[&file]));
    assert!(listed.contains("memory, 64 KiB  (1 thread)"), "{listed}");
    std::fs::write(&file, "[source]\nkind = \"memroy\"\n").unwrap();
    are_refused("list", &[(&[&*file][..], "small.toml: missing field")]);
    assert!(stdout(&daqmeter("list", &["paths"])).contains("register-control"));
}

#[test]
fn bad_input_gives_one_clear_line_and_exit_2() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bad.toml");
    let text =
        "title = \"x\"\nblock = \"4KiB\"\n[source]\nkind = \"memroy\"\n[sink]\nkind = \"read\"\n";
    std::fs::write(&file, text).unwrap();
    let bad = file.to_str().unwrap();
    are_refused(
        "path",
        &[
            (&["run", bad][..], "bad.toml: source: kind: unknown variant `memroy`"),
            (&["run", "patern"], "did you mean `pattern`?"),
            (&["run", "pattern", "--rate", "much"], "--rate:"),
            (&["run", "pattern", "--rate", "1Hz", "--max"], "cannot be used with"),
            (&["run", "pattern", "--lossy"], "loses nothing without a rate"),
            (&["run", "pattern", "--pin", "4000"], "`cpus` is 4000: there is no such CPU"),
            (&["run", "pattern", "--time", "0s"], "`seconds` is 0"),
            (&["serve", "here"], "here: "),
            (&["run", "pattern", "--set", "blocks=1"], "unknown field `blocks`"),
            (&["run", "pattern", "--set", "block=100"], "pattern: block: is 100"),
            (&["explain", "pattern", "--budget", "0s"], "no time to measure in"),
            (&["predict"], "PATH"),
        ],
    );
}

/// A profile in which a byte costs 1 ns and nothing else costs anything; runs were 2 % faster.
fn host_profile() -> HostProfile {
    let host = Host { allowed_cpus: vec![0, 1], ..Host::default() };
    let mut profile = HostProfile::new("2026-11-24T00:00:00Z".to_owned(), Tool::default(), host);
    let point = |block_bytes: u64| CostPoint { block_bytes, cpu_ns: block_bytes as f64 };
    let cost =
        |work: &str| WorkCost { work: work.to_owned(), points: vec![point(4096), point(1 << 20)] };
    profile.works = ["memory", "copy memcpy", "read"].map(cost).into();
    profile.fitted = Fitted { sharing: 1.0, ..Fitted::default() };
    let pair = PredictedAndMeasured { predicted: 1.0, measured: 1.02 };
    let run = |rate_hz| HeldBackPath {
        threads: 3,
        rate_hz,
        rate: pair,
        p50_ns: pair,
        p99_ns: pair,
        cpu: vec![pair],
        ..HeldBackPath::default()
    };
    profile.held_back = (0..40).map(|at| run((at % 2 == 1).then_some(1.0))).collect();
    profile
}

#[test]
fn a_path_is_predicted_from_a_profile_and_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (profile, records) = (file("host.json"), file("both.jsonl"));
    std::fs::write(&profile, host_profile().text()).unwrap();
    let output = path(&["predict", "pattern", "--host", &profile, "--records", &records]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    // A block takes 65,536 bytes in 1.5 x 65,536 ns, and 2 % faster.
    for wanted in ["largest rate [MB/s]         680        680   680", "limit: all CPUs together"] {
        assert!(text.contains(wanted), "{text}");
    }
    let record = std::fs::read_to_string(&records).unwrap();
    assert!(record.contains("\"study\":\"path/predict\""), "{record}");
    let page = file("page.html");
    assert!(daqmeter("report", &[&records, "-o", &page]).status.success());
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("predictions-title") && page.contains("CPU of memory [%]"), "{page}");
    let lines = stdout(&path(&["predict", "pattern", "pattern", "--host", &profile, "--json"]));
    assert_eq!(lines.lines().count(), 2);
    let json: serde_json::Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert_eq!(json["prediction"]["parts"][1]["name"], "copy");
    are_refused(
        "path",
        &[
            (
                &["predict", "pattern", "--host", &file("none.json")][..],
                "measure one with daqmeter path predict --calibrate",
            ),
            (
                &["predict", "digitizer-crate", "--host", &profile],
                "digitizer-crate cannot be predicted: source digitizer",
            ),
            (
                &["predict", "pattern", "--host", &profile, "--set", "block=64"],
                "outside of what was calibrated",
            ),
        ],
    );
}
