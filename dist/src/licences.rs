//! Licences of all libraries in the program; distributors must pass them on, too.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use daqmeter_vm::shell::line;

const NAMES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"];

const HEAD: &str = "\
daqmeter: MIT or Apache-2.0, at your choice. The program holds these libraries, and Rust's standard library (MIT or Apache-2.0);
the static one holds the C library musl (MIT), too.

";

/// Returns every library with its licence, and then each text once with its libraries.
pub(super) fn text() -> Result<String> {
    let tree = line("cargo tree --package daqmeter-cli --edges normal,no-proc-macro --prefix none")
        .arg("--format={p}: {l}")
        .output()?;
    let lines = tree.lines().filter(|line| !line.starts_with("daqmeter"));
    let lines: BTreeSet<&str> = lines.map(|line| line.trim_end_matches(" (*)")).collect();
    let folders = folders()?;
    let mut texts: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    let mut out = HEAD.to_owned();
    for line in lines {
        out.push_str(&format!("{line}\n"));
        let name = line.split(':').next().unwrap_or_default();
        let folder = folders.get(name).with_context(|| format!("no folder of {name}"))?;
        for text in licences_of(folder)? {
            texts.entry(text).or_default().push(name);
        }
    }
    for (text, names) in texts {
        out.push_str(&format!("\n{}\n{}:\n\n{text}\n", "-".repeat(80), names.join(", ")));
    }
    Ok(out)
}

/// Returns the folder of each package by its name and version.
fn folders() -> Result<HashMap<String, PathBuf>> {
    let text = line("cargo metadata --format-version 1").output()?;
    let metadata: serde_json::Value = serde_json::from_str(&text)?;
    let packages = metadata["packages"].as_array().context("no packages")?;
    let folder = |package: &serde_json::Value| {
        let (name, version) = (package["name"].as_str()?, package["version"].as_str()?);
        let manifest = Path::new(package["manifest_path"].as_str()?);
        Some((format!("{name} v{version}"), manifest.parent()?.to_owned()))
    };
    Ok(packages.iter().filter_map(folder).collect())
}

fn licences_of(folder: &Path) -> Result<Vec<String>> {
    let mut texts = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        if NAMES.iter().any(|start| name.starts_with(start)) && path.is_file() {
            texts.push(fs::read_to_string(&path)?.trim().replace('\r', ""));
        }
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_several_libraries_have_is_found_by_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("LICENSE-MIT", "MIT\r\ntext\n");
        write("license.txt", "also one");
        write("lib.rs", "no licence");
        let mut texts = licences_of(folder.path()).unwrap();
        texts.sort();
        assert_eq!(texts, ["MIT\ntext", "also one"]);
    }
}
