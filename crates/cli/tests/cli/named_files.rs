//! Files that a command line names, such as scenarios, paths and profiles: each is read once.

use std::io::Write;
use std::process::Stdio;

use serde_json::Value;

use crate::common::{Folder, command, ends_with, stderr, stdout};

const SCENARIO: &str = "[card]\nlinks = 1\nring = \"2MiB\"\npayload = \"512\"\n";
const PATH: &str = "title = \"p\"\nblock = \"4KiB\"\n[source]\nkind = \"memory\"\n\
                    [[stage]]\nkind = \"copy\"\n[sink]\nkind = \"read\"\n";
const BRIDGE: &str = "about = \"a bridge\"\n";
const PROFILE: &str = include_str!("../../../digitizer/profiles/ess-2017.toml");

/// Runs a command line with a pipe as its standard input, which holds the text once.
fn piped(line: &str, text: &str) -> (Option<i32>, String, String) {
    let mut command = command(line);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A command that refuses its options does not read.
    let _ = child.stdin.take().unwrap().write_all(text.as_bytes());
    let output = child.wait_with_output().unwrap();
    (output.status.code(), stdout(&output), stderr(&output))
}

/// Regression: the second of four openings of a pipe was empty, and the default scenario ran.
#[test]
fn a_pipe_is_a_file_for_every_verb_that_takes_one() {
    for (line, text) in [
        ("readout run /dev/stdin --rate 1kHz --time 50ms --json", SCENARIO),
        ("readout sweep /dev/stdin --from 1kHz --to 1kHz --probe 1ms --no-curves --json", SCENARIO),
        ("path run /dev/stdin --time 20ms --json", PATH),
        ("path run /dev/stdin --max --keep 20ms --json", PATH),
        ("path explain /dev/stdin --json", PATH),
        ("digitizer emu:l0 -S 320 --profile /dev/stdin --json", PROFILE),
        ("eb perf emu//dev/stdin -n 2 --json", BRIDGE),
    ] {
        let (code, out, said) = piped(line, text);
        assert!(matches!(code, Some(0 | 3)), "{line}: {code:?} {out}{said}");
        let record: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
        let ledgers = &record["ledgers"][0];
        assert!(line.starts_with("path explain") || ledgers.is_object(), "{line}: {record}");
        let address = record["workload"]["params"]["address"].as_str().unwrap_or("emu/x#0");
        assert!(address.contains('#'), "{line}: a digest in {address}");
    }
    let line = "readout run /dev/stdin --rate 1kHz --time 100ms --json";
    let record: Value = serde_json::from_str(&piped(line, SCENARIO).1).unwrap();
    let bytes = record["lanes"][0]["stages"][0]["carried_bytes"].as_f64().unwrap();
    // 100 triggers for the 8 E-links of a link, 512 bytes each and a trailer.
    assert!((400e3..600e3).contains(&bytes), "{bytes}");
}

#[test]
fn a_file_without_a_table_is_refused() {
    let (_, said) = ends_with(2, "readout run /dev/null --time 10ms");
    assert!(said.contains("no table is in this file"), "{said}");
    ends_with(2, "readout sweep /dev/null --probe 1ms");
    ends_with(2, "path run /dev/null");
}

/// Regression: a scenario that was changed gave the same points, and "same" for 18 times the bytes.
#[test]
fn a_changed_file_makes_other_points() {
    let folder = Folder::new();
    folder.write(
        "p.toml",
        "title = \"p\"\nblock = \"1KiB\"\n[source]\nkind = \"felix\"\nscenario = \"./s.toml\"\n\
         [sink]\nkind = \"read\"\n",
    );
    folder.write(
        "plan.toml",
        "title = \"t\"\n[[sweep]]\nstudy = \"s\"\nengine = \"decode\"\nreads = 3\n\
         workload = { scenario = \"./s.toml\", bytes = 65536 }\n",
    );
    let mut digests = Vec::new();
    for name in ["a", "b"] {
        let text = if name == "a" { SCENARIO } else { &SCENARIO.replace("512", "24") };
        folder.write("s.toml", text);
        folder.done(&format!("readout run ./s.toml --rate 1kHz --time 20ms --records {name}"));
        let run = folder.done("path run p.toml --time 20ms --json");
        let record: Value = serde_json::from_str(run.lines().last().unwrap()).unwrap();
        digests.push(record["workload"]["params"]["digest"].clone());
        let said = folder.done("run plan.toml --records plan --resume");
        assert!(!said.contains("are in the file already"), "{name}: {said}");
    }
    assert!(digests[0].is_string() && digests[0] != digests[1], "{digests:?}");
    let (_, said) = folder.ends_with(2, "compare a b");
    assert!(said.contains("no measured point in common"), "{said}");
}

/// Regression: a setting with a `;` in a command was divided there.
#[test]
fn a_setting_holds_any_value() {
    let folder = Folder::new();
    let program = "kind = \"program\"\ncommand = [\"cat\"]";
    folder.write("p.toml", PATH.replace("kind = \"copy\"", program));
    let set = r#"--set 'stage.1.command=["sh", "-c", "cat; true"]'"#;
    let text = folder.done(&format!("path run p.toml --time 20ms {set}"));
    assert!(text.contains("program sh -c cat; true"), "{text}");
}
