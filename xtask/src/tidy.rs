//! The rules of ARCHITECTURE.md that a program can check.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::shell::{output, root};

/// Which of our rooms each room may import. What is not here is forbidden.
const IMPORTS: &[(&str, &[&str])] = &[
    ("record", &[]),
    ("stats", &[]),
    ("wire", &[]),
    ("kernels", &[]),
    ("sys", &[]),
    ("harness", &["record", "stats", "sys"]),
    ("copy", &["harness", "kernels", "record", "sys"]),
    ("digitizer", &["harness", "kernels", "record", "sys"]),
    ("etherbone", &["harness", "record", "sys", "wire"]),
    (
        "readout",
        &["harness", "kernels", "record", "stats", "sys", "wire"],
    ),
    ("pmu", &["harness", "kernels", "record", "sys"]),
    ("hostio", &["harness", "record", "sys"]),
    (
        "campaign",
        &[
            "copy",
            "digitizer",
            "etherbone",
            "harness",
            "hostio",
            "pmu",
            "readout",
            "record",
            "report",
            "sys",
            "wire",
        ],
    ),
    ("report", &["record", "stats"]),
    (
        "cli",
        &[
            "campaign",
            "copy",
            "digitizer",
            "etherbone",
            "harness",
            "hostio",
            "kernels",
            "pmu",
            "readout",
            "record",
            "report",
            "stats",
            "sys",
            "wire",
        ],
    ),
];

/// The only rooms that may hold unsafe code.
const UNSAFE_ROOMS: &[&str] = &["kernels", "sys"];

/// A file longer than this does more than one thing (flat tables excepted, none so far).
const MOST_LINES: usize = 900;

pub(crate) fn run() -> Result<()> {
    let mut faults = Vec::new();
    imports(&mut faults)?;
    for path in tracked()? {
        let Ok(text) = fs::read_to_string(root().join(&path)) else {
            continue;
        };
        unsafe_rooms(&path, &text, &mut faults);
        paths_of_one_machine(&path, &text, &mut faults);
        length(&path, &text, &mut faults);
    }
    files_that_must_be_there(&mut faults);
    if faults.is_empty() {
        println!("tidy: nothing to say");
        return Ok(());
    }
    bail!("{} untidy places:\n  {}", faults.len(), faults.join("\n  "))
}

fn tracked() -> Result<Vec<PathBuf>> {
    Ok(output(
        "git",
        &["ls-files", "--cached", "--others", "--exclude-standard"],
    )?
    .lines()
    .map(PathBuf::from)
    .collect())
}

fn imports(faults: &mut Vec<String>) -> Result<()> {
    for (room, allowed) in IMPORTS {
        let text = fs::read_to_string(root().join(format!("crates/{room}/Cargo.toml")))?;
        let dependencies = text
            .split("[dependencies]")
            .nth(1)
            .and_then(|rest| rest.split("\n[").next())
            .unwrap_or("");
        for line in dependencies.lines() {
            let Some(ours) = line
                .strip_prefix("daqmeter-")
                .and_then(|rest| rest.split(['.', ' ']).next())
            else {
                continue;
            };
            if !allowed.contains(&ours) {
                faults.push(format!(
                    "crates/{room} imports {ours}; ARCHITECTURE.md forbids it"
                ));
            }
        }
        if !text.contains("[lints]\nworkspace = true") {
            faults.push(format!(
                "crates/{room}/Cargo.toml does not take the workspace's lints"
            ));
        }
    }
    let rooms = fs::read_dir(root().join("crates"))?;
    for room in rooms
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
    {
        if !IMPORTS.iter().any(|(known, _)| *known == room) {
            faults.push(format!(
                "crates/{room} has no line in the import table of xtask/src/tidy.rs"
            ));
        }
    }
    Ok(())
}

fn unsafe_rooms(path: &Path, text: &str, faults: &mut Vec<String>) {
    let in_unsafe_room = UNSAFE_ROOMS
        .iter()
        .any(|room| path.starts_with(format!("crates/{room}")));
    let is_rust = path.extension().is_some_and(|extension| extension == "rs");
    // Split, so that this line is not found by itself.
    let words = [
        concat!("unsafe", " {"),
        concat!("unsafe", " fn"),
        concat!("unsafe", " impl"),
    ];
    if is_rust && !in_unsafe_room {
        for (number, line) in text.lines().enumerate() {
            if words.iter().any(|word| line.contains(word)) && !line.trim_start().starts_with("//")
            {
                faults.push(format!(
                    "{}:{}: unsafe outside {}",
                    path.display(),
                    number + 1,
                    UNSAFE_ROOMS.join(" and ")
                ));
            }
        }
    }
}

fn paths_of_one_machine(path: &Path, text: &str, faults: &mut Vec<String>) {
    let vendored =
        path.starts_with("crates/report/assets") && path.to_string_lossy().contains("uPlot");
    let prefixes = [
        concat!("/", "home/"),
        concat!("/", "root/"),
        concat!("/", "work/"),
    ];
    for (number, line) in text.lines().enumerate() {
        // A longer path may hold one of these in its middle.
        let names_one = prefixes.iter().any(|prefix| {
            line.match_indices(prefix).any(|(at, _)| {
                !line[..at].ends_with(|c: char| c.is_alphanumeric() || ".-_".contains(c))
            })
        });
        if names_one && !vendored {
            faults.push(format!(
                "{}:{}: names a path of one machine",
                path.display(),
                number + 1
            ));
        }
    }
}

fn length(path: &Path, text: &str, faults: &mut Vec<String>) {
    let lines = text.lines().count();
    let is_code = path
        .extension()
        .is_some_and(|extension| extension == "rs" || extension == "c");
    if is_code && lines > MOST_LINES {
        faults.push(format!(
            "{}: {lines} lines; a room that does everything is not a room",
            path.display()
        ));
    }
}

fn files_that_must_be_there(faults: &mut Vec<String>) {
    let wanted = [
        "README.md",
        "ARCHITECTURE.md",
        "METHODOLOGY.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "LICENSE-MIT",
        "LICENSE-APACHE",
        "deny.toml",
        "crates/report/assets/uPlot.LICENSE",
        "docs/schema/run-record.v1.json",
    ];
    for file in wanted {
        if !root().join(file).is_file() {
            faults.push(format!("{file} is missing"));
        }
    }
}
