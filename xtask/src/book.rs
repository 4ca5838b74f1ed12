//! What is made for readers and for Python: the documentation site with its links, the wheel with its tests.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::ci::{Done, ran};
use crate::shell::{need, output, root, run, there, tried};

/// mdBook of this version; it is built once, unoptimised, into `target/tools` where it is not installed.
const MDBOOK: &str = "0.5.4";

/// Builds the site and follows every link in it that stays in it.
pub(crate) fn book() -> Result<Done> {
    let site = root().join("target/ci/book");
    let (source, target) = (
        root().join("docs/book").display().to_string(),
        site.display().to_string(),
    );
    run(&mdbook()?, &["build", &source, "-d", &target])?;
    let faults = broken_links(&site)?;
    ensure!(
        faults.is_empty(),
        "links that lead nowhere:\n{}",
        faults.join("\n")
    );
    ran(Ok(()))
}

fn mdbook() -> Result<String> {
    if there("mdbook") {
        return Ok("mdbook".to_owned());
    }
    let tools = root().join("target/tools");
    let own = tools.join("bin/mdbook");
    if !own.exists() {
        let tools = tools.display().to_string();
        run(
            "cargo",
            &[
                "install",
                "mdbook",
                "--version",
                MDBOOK,
                "--locked",
                "--no-default-features",
                "--debug",
                "--quiet",
                "--root",
                &tools,
            ],
        )?;
    }
    Ok(own.display().to_string())
}

/// Files and places in them that pages name and that are not there. Links to other hosts are not followed: CI may have no network.
fn broken_links(site: &Path) -> Result<Vec<String>> {
    let mut pages = Vec::new();
    collect(site, &mut pages)?;
    let texts: HashMap<PathBuf, String> = pages
        .iter()
        .map(|page| Ok((page.clone(), fs::read_to_string(page)?)))
        .collect::<Result<_>>()?;
    let mut faults = Vec::new();
    let mut seen = HashSet::new();
    // print.html holds all pages once more; toc.html is a frame with links of its own base.
    let skipped = ["print.html", "toc.html", "404.html"];
    for (page, text) in texts
        .iter()
        .filter(|(page, _)| !skipped.iter().any(|name| page.ends_with(name)))
    {
        for link in attributes(text, "href=\"").chain(attributes(text, "src=\"")) {
            if link.contains("://") || link.starts_with("mailto:") || link.starts_with("data:") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() {
                page.clone()
            } else {
                page.parent().unwrap_or(site).join(path)
            };
            let Ok(target) = target.canonicalize() else {
                faults.push(format!("{}: {link}", page.display()));
                continue;
            };
            if anchor.is_empty() || !seen.insert((target.clone(), anchor.to_owned())) {
                continue;
            }
            if texts
                .get(&target)
                .is_some_and(|text| !text.contains(&format!("id=\"{anchor}\"")))
            {
                faults.push(format!(
                    "{}: no place #{anchor} in {}",
                    page.display(),
                    target.display()
                ));
            }
        }
    }
    faults.sort();
    Ok(faults)
}

fn attributes<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(name)
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
}

fn collect(folder: &Path, pages: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, pages)?;
        } else if path
            .extension()
            .is_some_and(|extension| extension == "html")
        {
            pages.push(path.canonicalize()?);
        }
    }
    Ok(())
}

/// The virtual environment of Python's tools.
fn venv(program: &str) -> String {
    root()
        .join("target/ci/venv/bin")
        .join(program)
        .display()
        .to_string()
}

/// Builds the wheel in a virtual environment and installs it there.
pub(crate) fn wheel() -> Result<Done> {
    need("python3", &["python3", "python3-venv"])?;
    if output("python3", &["-c", "import venv, ensurepip"]).is_err() {
        run("apt-get", &["install", "-y", "-qq", "python3-venv"])?;
    }
    let pip = ["install", "--quiet", "--disable-pip-version-check"];
    if !Path::new(&venv("maturin")).exists() {
        run(
            "python3",
            &[
                "-m",
                "venv",
                &root().join("target/ci/venv").display().to_string(),
            ],
        )?;
        let wanted = root()
            .join("python/tests/requirements.txt")
            .display()
            .to_string();
        run(&venv("pip"), &[&pip[..], &["-r", &wanted]].concat())?;
    }
    let wheels = root().join("target/ci/wheels");
    let _ = fs::remove_dir_all(&wheels);
    let (manifest, into) = (
        root().join("python/Cargo.toml").display().to_string(),
        wheels.display().to_string(),
    );
    // The folder of the other builds: what both need is compiled once.
    let target = root().join("target").display().to_string();
    run(
        &venv("maturin"),
        &[
            "build",
            "--release",
            "--quiet",
            "--manifest-path",
            &manifest,
            "--out",
            &into,
            "--target-dir",
            &target,
        ],
    )?;
    let wheel = fs::read_dir(&wheels)?
        .next()
        .context("maturin made no wheel")??
        .path()
        .display()
        .to_string();
    ran(run(
        &venv("pip"),
        &[&pip[..], &["--force-reinstall", "--no-deps", &wheel]].concat(),
    ))
}

/// The wheel's tests, its types, the notebook, and the measurement of its rate.
pub(crate) fn python() -> Result<Done> {
    let tests = root().join("python/tests").display().to_string();
    run(
        &venv("python"),
        &["-m", "pytest", "-q", "-p", "no:cacheprovider", &tests],
    )?;
    let package = root().join("python/package/daqmeter").display().to_string();
    run(
        &venv("mypy"),
        &[
            "--strict",
            "--ignore-missing-imports",
            "--cache-dir",
            "/dev/null",
            &package,
        ],
    )?;
    let notebook = root().join("docs/notebook.ipynb").display().to_string();
    let made = root().join("target/ci/notebook").display().to_string();
    run(
        &venv("jupyter"),
        &[
            "nbconvert",
            "--to",
            "html",
            "--execute",
            "--log-level",
            "ERROR",
            "--output",
            &made,
            &notebook,
        ],
    )?;
    let rate = root().join("python/tests/rate.py").display().to_string();
    ran(tried(|| run(&venv("python"), &[&rate])))
}
