//! Text of others in all output of daqmeter: nothing of it acts on a terminal, begins a line, or is
//! a formula.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;

use std::collections::BTreeSet;
use std::path::Path;

use common::{daqmeter, stderr, stdout};
use daqmeter_record::jsonl;
use serde_json::Value;

/// Begins a formula, clears the screen, rings, begins a line, turns the direction, colours by one
/// byte, ends a cell and opens a tag.
const HOSTILE: &str =
    "=1+1\u{1b}[2J\u{7}\0\r\nFAKE\u{202e}\u{2066}\u{200f}\u{61c}\u{9b}31m\u{7f}\u{2028}|<script>";

const MEASURED: [&str; 3] = [
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/record/genoa-vm-2cpu/2026-11-21.jsonl"),
    concat!(env!("CARGO_MANIFEST_DIR"), "/../record/testdata/v1/counters.jsonl"),
    concat!(env!("CARGO_MANIFEST_DIR"), "/../record/testdata/v1/digitizer.jsonl"),
];

#[derive(Clone, Copy, PartialEq)]
enum Changed {
    Notes,
    All,
}

/// Returns the value with every text made hostile that leaves the whole a record.
fn make_hostile(record: &Value, changed: Changed) -> Value {
    let mut paths = Vec::new();
    texts(record, String::new(), &mut paths);
    let mut out = record.clone();
    for path in paths {
        let is_choice = ["/engine/", "/workload/", "/stages/", "/counters/", "/study"]
            .iter()
            .any(|part| path.contains(part));
        if changed == Changed::Notes && is_choice {
            continue;
        }
        let mut tried = out.clone();
        let text = tried.pointer_mut(&path).unwrap();
        *text = Value::String(format!("{HOSTILE}{}", text.as_str().unwrap()));
        if jsonl::parse_line(tried.to_string().as_bytes(), 1).is_ok() {
            out = tried;
        }
    }
    out
}

fn texts(value: &Value, path: String, found: &mut Vec<String>) {
    match value {
        Value::String(_) => found.push(path),
        // The first few items of long lists show the treatment of all.
        Value::Array(values) => {
            values
                .iter()
                .take(4)
                .enumerate()
                .for_each(|(at, value)| texts(value, format!("{path}/{at}"), found));
        }
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| texts(value, format!("{path}/{name}"), found))
        }
        _ => {}
    }
}

/// Writes a file of hostile records: one of each engine and study, and one that failed, was waived
/// and warned.
fn write_hostile(path: &Path, changed: Changed) {
    let mut seen = BTreeSet::new();
    let mut lines = Vec::new();
    for line in MEASURED.map(|file| std::fs::read_to_string(file).unwrap()).concat().lines() {
        let record: Value = serde_json::from_str(line).unwrap();
        let kind = format!("{}{}", record["engine"]["name"], record["study"]);
        if seen.insert(kind) {
            lines.push(record);
        }
    }
    let mut failed = lines[0].clone();
    failed["outcome"] = serde_json::json!({ "status": "failed", "reason": "bytes differ" });
    failed["warnings"] = serde_json::json!(["beware", "of this"]);
    let mut waived = lines[0].clone();
    waived["outcome"] = serde_json::json!({ "status": "waived", "reason": "no card" });
    waived["lanes"] = serde_json::json!([]);
    lines.extend([failed, waived]);
    let lines: Vec<String> =
        lines.iter().map(|record| make_hostile(record, changed).to_string()).collect();
    assert!(lines.len() > 6 && lines.iter().all(|line| line.contains("FAKE")));
    std::fs::write(path, lines.join("\n") + "\n").unwrap();
}

/// Checks that nothing in the output acts, and that no line begins with text of a name.
fn is_harmless(what: &str, text: &str) {
    let acts = |c: char| {
        (c.is_control() && c != '\n' && c != '\t')
            || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if let Some(at) = text.find(acts) {
        let from = text[..at].rfind('\n').map_or(0, |at| at + 1);
        panic!("{what}: {:?}", text[from..].lines().next().unwrap_or(""));
    }
    assert!(!text.lines().any(|line| line.trim_start().starts_with("FAKE")), "{what}: {text}");
}

fn run(verb: &str, arguments: &[&str]) -> String {
    let output = daqmeter(verb, arguments);
    let what = format!("{verb} {arguments:?}");
    is_harmless(&what, &stderr(&output));
    is_harmless(&what, &stdout(&output));
    stdout(&output)
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }
}

fn folder() -> Folder {
    Folder(tempfile::tempdir().unwrap())
}

#[test]
fn a_hostile_record_is_only_text_in_everything_that_is_made_of_it() {
    for changed in [Changed::Notes, Changed::All] {
        let folder = folder();
        let file = folder.path("a.jsonl");
        write_hostile(Path::new(&file), changed);
        assert!(run("report", &[&file, "--format", "text"]).contains(r"\u001b[2J"));
        let table = run("report", &[&file, "--format", "md", "-o", "-"]);
        let pipes = |line: &str| line.replace("\\\\", "").replace("\\|", "").matches('|').count();
        // The table comes first, and below it a list of errors.
        let (rows, below): (Vec<&str>, Vec<&str>) =
            table.lines().partition(|line| line.starts_with('|'));
        assert!(rows.len() > 6 && rows.iter().all(|line| pipes(line) == pipes(rows[0])), "{table}");
        assert!(below.iter().all(|line| line.is_empty() || line.starts_with("- ")), "{table}");
        assert!(!table.contains("|<script>") && !table.contains(" <script>"), "{table}");
        for arguments in [
            &["report", &file, "--format", "csv", "-o", "-"][..],
            &["report", &file, "--format", "csv"],
            &["report", &file, "--format", "csv", "--rows", "samples"],
            &["report", &file, "--format", "csv", "--rows", "counters"],
        ] {
            let csv = run(arguments[0], &arguments[1..]);
            assert!(csv.lines().count() > 1, "{arguments:?}");
            let formula = csv.lines().find(|line| {
                line.starts_with(['=', '"']) || line.contains(",=") || line.contains(",\"=")
            });
            assert!(
                formula.is_none_or(|line| line.starts_with("\"'")),
                "{arguments:?}: {formula:?}"
            );
        }
        for line in run("report", &[&file, "--format", "json", "-o", "-"]).lines() {
            assert!(jsonl::parse_line(line.as_bytes(), 1).is_ok(), "{line}");
        }
        run("report", &[&file, "-o", &folder.path("page.html")]);
        let page = std::fs::read_to_string(folder.path("page.html")).unwrap();
        is_harmless("the page", &page);
        assert!(!page.contains("|<script>"));
        let other = folder.path("b.jsonl");
        std::fs::copy(&file, &other).unwrap();
        run("cmp", &[&file, &other, "--all"]);
        let json = run("cmp", &[&file, &other, "--json"]);
        assert!(serde_json::from_str::<Value>(&json).is_ok(), "{json}");
        run("history", &[&file, &other]);
        run("history", &[&file, &other, "--json"]);
        run("report", &[&file, "--study", "no such study"]);
    }
}

#[test]
fn hostile_names_of_files_and_lines_that_are_no_records_are_only_text() {
    let folder = folder();
    let name = format!("{}.jsonl", HOSTILE.replace(['\0', '/'], ""));
    std::fs::write(folder.path(&name), format!("{{\"schema\":1,\"{}\":3}}\n", "\u{9b}\u{202e}"))
        .unwrap();
    run("report", &[&folder.path(&name), "-o", "-"]);
    run("report", &[&folder.path("none"), &format!("--{name}")]);
    run("report", &[&folder.path(&name)]);
    run("history", &[&folder.path("")]);
    run("report", &[&folder.path(&name), "--format", "csv"]);
    run("cmp", &[&folder.path(&name), &folder.path(&name)]);
}

#[test]
fn a_hostile_plan_is_only_text() {
    let folder = folder();
    let escape = |text: &str| serde_json::to_string(text).unwrap().replace('\u{7f}', "\\u007F");
    let hostile = escape(HOSTILE);
    // The description of a plan may have several lines.
    let about = escape(&HOSTILE.replace('\n', " "));
    let good = format!(
        "title = {hostile}\nabout = {about}\ntime = '2ms'\n[[sweep]]\nstudy = {hostile}\nengine = 'memory'\n\
         workload = {{ read_lines = 1, write_lines = 0, read_bytes = '4KiB' }}\n"
    );
    let places = [
        ("study.toml", good.clone()),
        ("engine.toml", good.replace("'memory'", &hostile)),
        ("field.toml", good.replace("read_lines", &hostile)),
        ("value.toml", good.replace("'4KiB'", &hostile)),
        ("include.toml", format!("include = [{hostile}]\n{good}")),
        ("syntax.toml", format!("{good}\n{HOSTILE}")),
    ];
    for (name, text) in places {
        std::fs::write(folder.path(name), text).unwrap();
        run("list", &[&folder.path(name)]);
        run("run", &[&folder.path(name)]);
        run("readout", &["run", &folder.path(name), "--time", "1ms"]);
    }
    let measured = run("run", &[&folder.path("study.toml"), "--json"]);
    assert!(
        jsonl::parse_line(measured.as_bytes(), 1).is_ok_and(|record| record.study == HOSTILE),
        "{measured}"
    );
    let shown = run("run", &[&folder.path("study.toml")]);
    assert!(shown.contains("memory"), "{shown}");
}

#[test]
fn what_lies_beside_a_page_is_not_written_to() {
    let folder = folder();
    let (file, page, victim) =
        (folder.path("a.jsonl"), folder.path("page.html"), folder.path("victim"));
    write_hostile(Path::new(&file), Changed::Notes);
    std::fs::write(&victim, "precious").unwrap();
    std::os::unix::fs::symlink(&victim, folder.path("page.html.part")).unwrap();
    run("report", &[&file, "-o", &page]);
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
    assert!(std::fs::read_to_string(&page).unwrap().trim_end().ends_with("</html>"));
    let mut names: Vec<_> = std::fs::read_dir(folder.path(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["a.jsonl", "page.html", "page.html.part", "victim"]);
    // Only files are replaced; others are written to directly.
    assert!(run("report", &[&file, "--format", "md", "-o", "/dev/stdout"]).starts_with("| "));
}
