//! Text of others in all output of daqmeter: nothing of it acts on a terminal, begins a line, or is
//! a formula.

use std::collections::BTreeSet;

use crate::common::{Folder, stderr, stdout};
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

/// Returns hostile records: one of each engine and study, and one that failed, was waived and
/// warned.
fn hostile(changed: Changed) -> String {
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
    lines.join("\n") + "\n"
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

fn run(folder: &Folder, line: &str) -> String {
    let output = folder.command(line).output().unwrap();
    is_harmless(line, &stderr(&output));
    is_harmless(line, &stdout(&output));
    stdout(&output)
}

#[test]
fn a_hostile_record_is_only_text_in_everything_that_is_made_of_it() {
    for changed in [Changed::Notes, Changed::All] {
        let folder = Folder::new();
        folder.write("a.jsonl", hostile(changed));
        folder.write("b.jsonl", folder.read("a.jsonl"));
        let run = |line: &str| run(&folder, line);
        assert!(run("report a.jsonl --format text").contains(r"\u001b[2J"));
        let table = run("report a.jsonl --format md -o -");
        let pipes = |line: &str| line.replace("\\\\", "").replace("\\|", "").matches('|').count();
        // The table comes first, and below it a list of errors.
        let (rows, below): (Vec<&str>, Vec<&str>) =
            table.lines().partition(|line| line.starts_with('|'));
        assert!(rows.len() > 6 && rows.iter().all(|line| pipes(line) == pipes(rows[0])), "{table}");
        assert!(below.iter().all(|line| line.is_empty() || line.starts_with("- ")), "{table}");
        assert!(!table.contains("|<script>") && !table.contains(" <script>"), "{table}");
        for more in ["-o -", "", "--rows samples", "--rows counters"] {
            let csv = run(&format!("report a.jsonl --format csv {more}"));
            assert!(csv.lines().count() > 1, "{more}");
            let formula = csv.lines().find(|line| {
                line.starts_with(['=', '"']) || line.contains(",=") || line.contains(",\"=")
            });
            assert!(formula.is_none_or(|line| line.starts_with("\"'")), "{more}: {formula:?}");
        }
        for line in run("report a.jsonl --format json -o -").lines() {
            assert!(jsonl::parse_line(line.as_bytes(), 1).is_ok(), "{line}");
        }
        run("report a.jsonl -o page.html");
        let page = folder.read("page.html");
        is_harmless("the page", &page);
        assert!(!page.contains("|<script>"));
        run("compare a.jsonl b.jsonl --all");
        let json = run("compare a.jsonl b.jsonl --json");
        assert!(serde_json::from_str::<Value>(&json).is_ok(), "{json}");
        run("history a.jsonl b.jsonl");
        run("history a.jsonl b.jsonl --json");
        run("report a.jsonl --study 'no such study'");
    }
}

#[test]
fn hostile_names_of_files_and_lines_that_are_no_records_are_only_text() {
    let folder = Folder::new();
    let name = format!("{}.jsonl", HOSTILE.replace(['\0', '/'], ""));
    folder.write(&name, format!("{{\"schema\":1,\"{}\":3}}\n", "\u{9b}\u{202e}"));
    for line in [
        format!("report '{name}' -o -"),
        format!("report none '--{name}'"),
        format!("report '{name}'"),
        "history .".to_owned(),
        format!("report '{name}' --format csv"),
        format!("compare '{name}' '{name}'"),
    ] {
        run(&folder, &line);
    }
}

#[test]
fn a_hostile_plan_is_only_text() {
    let folder = Folder::new();
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
        folder.write(name, text);
        for line in ["list NAME", "run NAME", "readout run NAME --time 1ms"] {
            run(&folder, &line.replace("NAME", name));
        }
    }
    let measured = run(&folder, "run study.toml --json");
    let is_kept =
        jsonl::parse_line(measured.as_bytes(), 1).is_ok_and(|record| record.study == HOSTILE);
    assert!(is_kept, "{measured}");
    let shown = run(&folder, "run study.toml");
    assert!(shown.contains("memory"), "{shown}");
}

#[test]
fn what_lies_beside_a_page_is_not_written_to() {
    let folder = Folder::new();
    folder.write("a.jsonl", hostile(Changed::Notes));
    folder.write("victim", "precious");
    std::os::unix::fs::symlink("victim", folder.path("page.html.part")).unwrap();
    run(&folder, "report a.jsonl -o page.html");
    assert_eq!(folder.read("victim"), "precious");
    assert!(folder.read("page.html").trim_end().ends_with("</html>"));
    assert_eq!(folder.files(), 4);
    // Only files are replaced; others are written to directly.
    assert!(run(&folder, "report a.jsonl --format md -o /dev/stdout").starts_with("| "));
}
