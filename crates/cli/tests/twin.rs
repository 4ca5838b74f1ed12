//! `daqmeter twin` as scripts meet it.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;

use common::{are_refused, daqmeter, stderr, stdout};
use daqmeter_record::{Host, Tool};
use daqmeter_twin::{Check, CostPoint, Pair, Profile, Sharing, WorkCost};

fn twin(arguments: &[&str]) -> std::process::Output {
    daqmeter("twin", arguments)
}

#[test]
fn help_for_people() {
    for verb in ["", "run", "documents", "calibrate", "predict", "validate", "farm", "links"] {
        let mut settings = insta::Settings::clone_current();
        settings.set_snapshot_suffix(if verb.is_empty() { "twin" } else { verb });
        let arguments: Vec<&str> = [verb, "-h"].into_iter().filter(|a| !a.is_empty()).collect();
        settings.bind(|| insta::assert_snapshot!("help", stdout(&twin(&arguments))));
    }
}

#[test]
fn scenarios_are_listed_simulated_and_the_same_everywhere() {
    insta::assert_snapshot!("list", stdout(&twin(&["list"])));
    for name in ["felix-reader", "lossy-link", "bursts"] {
        let mut settings = insta::Settings::clone_current();
        settings.set_snapshot_suffix(name);
        let output = twin(&["run", name, "--replications", "4"]);
        assert!(output.status.success(), "{}", stderr(&output));
        settings.bind(|| insta::assert_snapshot!("run", stdout(&output)));
    }
    assert!(stdout(&twin(&["show", "bursts"])).contains("burst = 200"));
}

/// Two senders, one receiver; short.
const FARM: &str = "title = \"x\"\ntime = \"2ms\"\n[[node]]\nname = \"a\"\ncount = 2\n[[node]]\nname = \"b\"\ncount = 1\n[[switch]]\nname = \"s\"\ncount = 1\nports = 4\nbuffer = \"1MiB\"\n[[link]]\nfrom = \"a\"\nto = \"s\"\nrate = \"8Gbit/s\"\n[[link]]\nfrom = \"b\"\nto = \"s\"\nrate = \"8Gbit/s\"\nassumed = { rate = \"a test\" }\n[[flow]]\nname = \"f\"\nfrom = \"a\"\nto = \"b\"\nbytes = \"1000B\"\nrate = \"450kHz\"\n";

#[test]
fn a_farm_is_answered_in_tables_and_as_json() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("farm.toml");
    std::fs::write(&file, FARM).unwrap();
    let file = file.to_str().unwrap();
    let output = twin(&["farm", file]);
    assert!(output.status.success(), "{}", stderr(&output));
    insta::assert_snapshot!("farm", stdout(&output));
    let line = stdout(&twin(&["farm", file, "--json", "--replications", "2"]));
    let json: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(json["limit"]["layer"], "s -> b");
    assert_eq!(json["needs"][0]["needs"], 2);
    assert!(stdout(&twin(&["show", "felix-phase-2"])).contains("4.6 TB/s"));
}

#[test]
fn a_farm_that_cannot_be_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let farm = |name: &str, change: (&str, &str)| {
        assert!(FARM.contains(change.0), "{change:?}");
        let file = folder.path().join(name);
        std::fs::write(&file, FARM.replacen(change.0, change.1, 1)).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let unit = farm("unit.toml", ("\"8Gbit/s\"", "\"8G\""));
    let lost = farm("lost.toml", ("to = \"b\"", "to = \"c\""));
    let none = farm("none.toml", ("count = 2", "count = 0"));
    are_refused(
        "twin",
        &[
            (&["farm", unit.as_str()], "200Gbit/s"),
            (&["farm", lost.as_str()], "flow `f`: to: no node or switch is called `c`"),
            (&["farm", none.as_str()], "a count of 1"),
            (&["farm", "felix-phase-3"], "felix-phase-2"),
            (&["links", "full", "--max", "2"], "at least 3 are wanted"),
            (&["links", "full", "--max", "27"], "1 to 8: give a smaller --max"),
        ],
    );
}

#[test]
fn links_are_counted_by_few_probes_and_threads_placed() {
    let folder = tempfile::tempdir().unwrap();
    let pins = folder.path().join("pins.toml");
    let options = ["links", "full", "--rate", "1kHz", "--max", "6", "--probe", "50ms", "--pins"];
    let output = twin(&[&options[..], &[pins.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("links are carried"), "{}", stdout(&output));
    let written = std::fs::read_to_string(pins).unwrap();
    assert!(written.contains("--receiver-pin"), "{written}");
}

#[test]
fn documents_are_set_beside_formula_and_simulation() {
    let output = twin(&["documents"]);
    assert!(output.status.success(), "{}", stderr(&output));
    insta::assert_snapshot!("documents", stdout(&output));
    let places = stdout(&twin(&["documents", "etherbone", "--places"]));
    assert!(places.contains("Blocking Operation via PCIe"), "{places}");
}

#[test]
fn formulas_and_documents_are_validated_as_text_and_as_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let output = twin(&["validate", "--no-live", "--html", page.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stdout(&output));
    insta::assert_snapshot!("validate", stdout(&output));
    let page = std::fs::read_to_string(page).unwrap();
    for wanted in ["token bucket", "1100 kHz: time until BUSY", "known miss"] {
        assert!(page.contains(wanted), "{wanted}");
    }
}

#[test]
fn json_has_each_figure_with_its_interval() {
    let line = stdout(&twin(&["run", "bursts", "--replications", "3", "--json"]));
    let json: serde_json::Value = serde_json::from_str(&line).unwrap();
    let lost = &json["stations"][0]["lost_full_per_s"];
    let [low, mean, high] = ["low", "mean", "high"].map(|end| lost[end].as_f64().unwrap());
    assert!(low <= mean && mean <= high && mean > 0.0, "{line}");
    assert_eq!(json["replications"], 3);
}

#[test]
fn bad_input_gives_one_clear_line_and_exit_2() {
    let folder = tempfile::tempdir().unwrap();
    let scenario = |name: &str, change: (&str, &str)| {
        let text = "title = \"x\"\ntime = \"10ms\"\n[[source]]\nname = \"s\"\nrate = \"1kHz\"\nbytes = \"1KiB\"\nto = \"q\"\n[[station]]\nname = \"q\"\nservice = \"1us\"\n";
        assert!(text.contains(change.0), "{change:?}");
        let file = folder.path().join(name);
        std::fs::write(&file, text.replace(change.0, change.1)).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let unit = scenario("unit.toml", ("\"1us\"", "\"1\""));
    let link = scenario("link.toml", ("to = \"q\"", "to = \"qq\""));
    let field = scenario("field.toml", ("service", "servise"));
    let twice = scenario("twice.toml", ("rate = \"1kHz\"", "rate = \"1kHz\"\nevery = \"1ms\""));
    let endless = scenario("endless.toml", ("\"10ms\"", "\"60d\""));
    let fits = scenario("fits.toml", ("service = \"1us\"", "service = \"1us\"\nbuffer = \"100B\""));
    let full = scenario("full.toml", ("service = \"1us\"", "service = \"1us\"\nfull = \"lose\""));
    are_refused(
        "twin",
        &[
            (&["run", &unit][..], "unit.toml:10: station `q`: service: `1` has no unit"),
            (&["run", &link], "link.toml:7: source `s`: to: no station is called `qq`"),
            (&["run", &field], "field.toml:10: unknown field `servise`"),
            (&["run", &twice], "`every` says it already"),
            (&["run", &endless], "endless.toml:2: time: `60d` is not a time"),
            (&["run", &fits], "fits.toml:8: q: an item of 1024 B never fits"),
            (&["run", &full], "never full"),
            (&["run", "felix-raeder"], "did you mean `felix-reader`?"),
            (&["run", "bursts", "--replications", "1"], "2..=1000"),
            (&["documents", "counters"], "possible values: copy, digitizer, etherbone, readout"),
        ],
    );
}

/// A profile of two CPUs on which each byte takes a nanosecond, as a file.
fn profile(folder: &std::path::Path, change: impl FnOnce(&mut Profile)) -> String {
    let host = Host {
        allowed_cpus: vec![0, 1],
        cpu_model: "a host of the tests".to_owned(),
        ..Host::default()
    };
    let point = |block_bytes: u64| CostPoint {
        block_bytes,
        cpu_ns: block_bytes as f64,
        low_ns: block_bytes as f64,
        high_ns: block_bytes as f64,
        apart_ns: 0.001,
        runs: 3,
    };
    let work = |work: &str| WorkCost {
        work: work.to_owned(),
        how: String::new(),
        points: vec![point(4096), point(1 << 20)],
    };
    let check = |at: usize| {
        let off = |predicted: f64| Pair {
            predicted,
            measured: predicted * (0.95 + 0.002 * (at / 2) as f64),
        };
        Check {
            line: format!("path {at}"),
            threads: 3,
            rate_hz: (at % 2 == 1).then_some(10.0),
            rate: off(1000.0),
            p50_ns: off(1e5),
            p99_ns: off(2e5),
            cpu: vec![off(0.5)],
            depth: vec![off(1.0)],
            ..Check::default()
        }
    };
    let mut profile = Profile::new("2026-11-22T00:00:00Z".to_owned(), Tool::default(), host, 2.0);
    profile.tool.profile = "test".into();
    profile.works = ["memory", "copy memcpy", "read"].map(work).into();
    profile.sharing = Sharing {
        wake_ns: vec![10_000],
        slice_ns: 3_000_000,
        points: 9,
        parameters: 3,
        ..Sharing::default()
    };
    profile.checks = (0..2 * 39).map(check).collect();
    change(&mut profile);
    let file = folder.join("host.json");
    std::fs::write(&file, profile.text()).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn a_path_is_predicted_with_intervals_as_a_table_a_sweep_and_json() {
    let folder = tempfile::tempdir().unwrap();
    let host = profile(folder.path(), |_| ());
    let predict = |more: &[&str]| {
        let output = twin(&[&["predict", "pattern", "--host", &host][..], more].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    insta::assert_snapshot!("predict", predict(&["--set", "rate=300MB/s"]));
    insta::assert_snapshot!("sweep", predict(&["--sweep", "stage.1.threads=1,2,4"]));
    let lines = predict(&["--sweep", "rate=100MB/s..900MB/s/9", "--json"]);
    assert_eq!(lines.lines().count(), 9);
    for line in lines.lines() {
        let json: serde_json::Value = serde_json::from_str(line).unwrap();
        let rate = &json["largest_blocks_per_s"];
        let [low, value, high] = ["low", "value", "high"].map(|end| rate[end].as_f64().unwrap());
        assert!(0.0 < low && low < value && value < high, "{line}");
    }
    let text = predict(&[]);
    assert!(text.contains("profile is of another host"), "{text}");
}

#[test]
fn a_prediction_is_recorded_and_shown_beside_runs_of_the_same_path() {
    let folder = tempfile::tempdir().unwrap();
    let host = profile(folder.path(), |_| ());
    let name = |file: &str| folder.path().join(file).to_str().unwrap().to_owned();
    let (records, html) = (name("both.jsonl"), name("page.html"));
    let output =
        twin(&["predict", "pattern", "--host", &host, "--records", &records, "--html", &html]);
    assert!(output.status.success(), "{}", stderr(&output));
    let page = std::fs::read_to_string(&html).unwrap();
    assert!(page.contains("nothing was measured of it"), "{page}");
    let run = [
        "run",
        "pattern",
        "--time",
        "20ms",
        "--profile",
        &host,
        "--records",
        &records,
        "-o",
        &html,
    ];
    let output = daqmeter("path", &run);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("largest rate [MB/s]"), "{}", stdout(&output));
    let lines = std::fs::read_to_string(&records).unwrap();
    assert_eq!(lines.lines().count(), 3);
    assert_eq!(lines.matches("\"role\":\"prediction\"").count(), 2);
    let output = daqmeter("report", &[&records, "-o", &html]);
    assert!(output.status.success(), "{}", stderr(&output));
    let page = std::fs::read_to_string(&html).unwrap();
    // One path and load: the newest prediction of it.
    assert_eq!(page.matches("svg class=\"path predicted\"").count(), 1);
    // A host that is disturbed just then gives a run that is not compared, and the page says so.
    let is_shown = page.contains("class=\"measured") || page.contains("1 run not compared: ");
    assert!(is_shown, "{page}");
}

#[test]
fn profiles_and_variations_that_cannot_be_used_are_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let host = profile(folder.path(), |_| ());
    let text = std::fs::read_to_string(&host).unwrap();
    let version = file("version.json", &text.replace("\"version\": 5", "\"version\": 7"));
    let unit = file("unit.json", &text.replace("cpu_ns", "cpu"));
    let few = file("few.json", &text.replace("\"runs\": 3", "\"runs\": 1"));
    let records = file("records.jsonl", "{\"schema\":1,\"workload\":{}}\n");
    let none = folder.path().join("none.json");
    fn predict<'a>(more: &[&'a str]) -> Vec<&'a str> {
        [&["predict", "pattern", "--host"][..], more].concat()
    }
    are_refused(
        "twin",
        &[
            (&predict(&[&version])[..], "has version 7; this program reads 5"),
            (&predict(&[&unit]), "unknown field `cpu`"),
            (&predict(&[&few]), "1 runs; 3 are wanted"),
            (&predict(&[&records]), "is a file of records, not a profile of a host"),
            (&predict(&[none.to_str().unwrap()]), "daqmeter twin calibrate"),
            (&predict(&[&host, "--set", "block=64B"]), "outside of what was calibrated"),
            (&predict(&[&host, "--set", "stage.1.kind=tcp"]), "`tcp out` was not calibrated"),
            (&predict(&[&host, "--set", "bufers=2"]), "bufers"),
            (&predict(&[&host, "--set", "stage.4.threads=2"]), "there is no stage 4; 1 to"),
            (&predict(&[&host, "--set", "buffers"]), "FIELD=VALUE is wanted"),
            (&predict(&[&host, "--sweep", "rate=1kHz..2MHz/3"]), "one unit"),
            (&["validate", "--profile", &version], "has version 7; this program reads 5"),
            (&["validate", "--no-live", "--profile", &host], "cannot be used with"),
            (
                &["predict", "register-control", "--host", &host],
                "etherbone: its rate is that of a device",
            ),
        ],
    );
}

#[test]
fn a_file_that_holds_no_runs_is_refused_before_anything_is_computed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("runs.jsonl");
    std::fs::write(&file, "{}\n").unwrap();
    let name = file.to_str().unwrap();
    let output = twin(&["validate", "--runs", name]);
    let found = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{found}");
    assert!(found.contains("is no file of runs"), "{found}");
    assert!(!found.contains("formulas"), "{found}");
}
