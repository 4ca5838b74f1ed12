//! Links of the documentation site. Those to other hosts are not followed: CI may have no network.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use daqmeter_vm::shell::line;

/// Pages that hold others once more, or links of another base.
const SKIPPED: [&str; 3] = ["print.html", "toc.html", "404.html"];

/// Checks that the files and anchors that the pages of a folder link to are there.
pub(crate) fn check(site: &Path) -> Result<()> {
    let paths = line("find").arg(site.canonicalize()?).words("-name *.html").output()?;
    let read = |path: &str| Ok((PathBuf::from(path), fs::read_to_string(path)?));
    let pages: HashMap<PathBuf, String> = paths.lines().map(read).collect::<Result<_>>()?;
    let mut faults = BTreeSet::new();
    for (page, text) in
        pages.iter().filter(|(page, _)| !SKIPPED.iter().any(|name| page.ends_with(name)))
    {
        let links = text.split(" href=\"").chain(text.split(" src=\"")).skip(1);
        for link in links.filter_map(|rest| rest.split('"').next()) {
            let is_ours = !["<", "://", "mailto:", "data:"].iter().any(|part| link.contains(part));
            if is_ours && !leads(page, link, &pages)? {
                faults.insert(format!("{}: {link}", page.display()));
            }
        }
    }
    ensure!(faults.is_empty(), "links that lead nowhere:\n{faults:#?}");
    println!("the links of {} pages lead somewhere", pages.len());
    Ok(())
}

fn leads(page: &Path, link: &str, pages: &HashMap<PathBuf, String>) -> Result<bool> {
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let folder = page.parent().context("a page has a folder")?;
    let target = if path.is_empty() { page.to_owned() } else { folder.join(path) };
    let Ok(target) = target.canonicalize() else { return Ok(false) };
    let id = format!("id=\"{anchor}\"");
    Ok(anchor.is_empty() || pages.get(&target).is_none_or(|text| text.contains(&id)))
}
