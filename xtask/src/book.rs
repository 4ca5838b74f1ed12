//! The documentation site with its links, and the tests of the wheel.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use daqmeter_dist::venv;
use daqmeter_vm::shell::{Line, StepDone, line, root, started, target, there};

/// Version of mdBook; if not installed, it is built once, unoptimised, into `target/tools`.
const MDBOOK: &str = "0.5.4";

pub(crate) fn book() -> Result<StepDone> {
    let site = root().join("target/ci/book");
    mdbook()?.arg("build").arg(root().join("docs/book")).arg("-d").arg(&site).run()?;
    let faults = broken_links(&site)?;
    ensure!(faults.is_empty(), "links that lead nowhere:\n{}", faults.join("\n"));
    Ok(StepDone::Ran)
}

fn mdbook() -> Result<Line> {
    if there("mdbook") {
        return Ok(line("mdbook"));
    }
    let tools = target().join("tools");
    let own = tools.join("bin/mdbook");
    if !own.exists() {
        line("cargo install mdbook --locked --no-default-features --debug --quiet --version")
            .arg(MDBOOK)
            // The tool is not debugged: it needs no debug data.
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .arg("--root")
            .arg(tools)
            .run()?;
    }
    Ok(started(&own))
}

/// Returns the linked files and anchors that are missing. Links to other hosts are not followed: CI
/// may have no network.
fn broken_links(site: &Path) -> Result<Vec<String>> {
    let mut pages = Vec::new();
    collect(site, &mut pages)?;
    let read = |page: &PathBuf| Ok((page.clone(), fs::read_to_string(page)?));
    let texts: Pages = pages.iter().map(read).collect::<Result<_>>()?;
    // print.html holds all pages once more; toc.html is a frame with links of its own base.
    let skipped = ["print.html", "toc.html", "404.html"];
    let own = texts.iter().filter(|(page, _)| !skipped.iter().any(|name| page.ends_with(name)));
    let mut faults: Vec<String> = own
        .flat_map(|(page, text)| links(text).filter_map(|link| broken(page, link, &texts)))
        .collect();
    faults.sort();
    faults.dedup();
    Ok(faults)
}

type Pages = HashMap<PathBuf, String>;

fn links(text: &str) -> impl Iterator<Item = &str> {
    let outside = |link: &&str| {
        link.contains("://") || link.starts_with("mailto:") || link.starts_with("data:")
    };
    let all = attributes(text, "href=\"").chain(attributes(text, "src=\""));
    all.filter(move |link| !outside(link))
}

fn broken(page: &Path, link: &str, texts: &Pages) -> Option<String> {
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = if path.is_empty() { page.to_owned() } else { page.parent()?.join(path) };
    let Ok(target) = target.canonicalize() else {
        return Some(format!("{}: {link}", page.display()));
    };
    let text = texts.get(&target).filter(|_| !anchor.is_empty())?;
    let is_there = text.contains(&format!("id=\"{anchor}\""));
    let (page, target) = (page.display(), target.display());
    (!is_there).then(|| format!("{page}: no place #{anchor} in {target}"))
}

fn attributes<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(name).skip(1).filter_map(|rest| rest.split('"').next())
}

fn collect(folder: &Path, pages: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, pages)?;
        } else if path.extension().is_some_and(|extension| extension == "html") {
            pages.push(path.canonicalize()?);
        }
    }
    Ok(())
}

fn python(words: &str) -> Result<()> {
    started(&venv("python")).words(words).run()
}

/// Runs the wheel's tests, its type checks, and the notebook; none judges a time.
pub(crate) fn python_tests() -> Result<StepDone> {
    python("-m pytest -q -p no:cacheprovider python/tests")?;
    started(&venv("mypy"))
        .words("--strict --ignore-missing-imports --cache-dir /dev/null python/package/daqmeter")
        .run()?;
    started(&venv("jupyter"))
        .words("nbconvert --to html --execute --log-level ERROR docs/notebook.ipynb --output")
        .arg(root().join("target/ci/notebook"))
        .run()?;
    Ok(StepDone::Ran)
}
