//! Debian's perf for another architecture, with its libraries.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::shell::line;

use crate::debian;
use crate::files::mesh_folder;

/// The program and its libraries: file here, name in the guest.
pub(crate) struct Perf {
    pub(crate) files: Vec<(PathBuf, String)>,
}

pub(crate) fn fetch() -> Result<Perf> {
    let place = mesh_folder().join("perf");
    let names = debian::closure("linux-perf", "arm64")?;
    // Shared libraries come in library packages; interpreters and their modules are not started.
    let wanted: Vec<String> = names
        .into_iter()
        .filter(|name| ["lib", "zlib", "linux-perf"].iter().any(|start| name.starts_with(start)))
        .filter(|name| {
            !name.ends_with(":all") && !name.contains("stdlib") && !name.contains("minimal")
        })
        .collect();
    debian::unpack(&wanted, &place)?;
    let programs = names_below(&place.join("usr/bin"))?;
    let program =
        programs.into_iter().filter(|name| name.starts_with("perf")).max_by_key(String::len);
    let program = place.join("usr/bin").join(program.context("linux-perf brings no perf")?);
    let mut files = vec![(program.clone(), "bin/perf".to_owned())];
    let (mut open, mut seen) = (vec![program], BTreeSet::new());
    while let Some(file) = open.pop() {
        for name in needed(&file)? {
            if !seen.insert(name.clone()) {
                continue;
            }
            let directories =
                ["lib/aarch64-linux-gnu", "usr/lib/aarch64-linux-gnu", "lib", "usr/lib"];
            let found = directories
                .iter()
                .map(|directory| place.join(directory).join(&name))
                .find(|path| path.exists());
            let found = found
                .with_context(|| format!("{name}, which perf needs, is in none of the packages"))?;
            files.push((found.clone(), format!("lib/{name}")));
            open.push(found);
        }
    }
    ensure!(files.len() > 5, "{} files only", files.len());
    Ok(Perf { files })
}

fn names_below(directory: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    Ok(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

fn needed(file: &Path) -> Result<Vec<String>> {
    let text = line("readelf -d -l").arg(file).output()?;
    let name = |line: &str, before: &str| {
        Some(line.split_once(before)?.1.split(']').next()?.trim().to_owned())
    };
    let libraries =
        text.lines().filter(|line| line.contains("(NEEDED)")).filter_map(|line| name(line, "["));
    // The loader is named by its whole path.
    let loader = text.lines().filter_map(|line| name(line, "interpreter: "));
    let loader = loader.filter_map(|path| path.rsplit('/').next().map(str::to_owned));
    Ok(libraries.chain(loader).collect())
}
