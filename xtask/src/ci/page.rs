//! Pages in headless Chromium: drawn completely, in both themes and on a phone's width; one that follows its file.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use shell::{Line, line, need, program, root};

use super::checks::PUBLISHED;

/// Chromium without a network. Those that run side by side have profiles of their own.
fn chromium(profile: &str) -> Line {
    let profile = root().join("target/ci/chromium").join(profile);
    line("chromium --headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run")
        .words("--disable-background-networking --disable-component-update --disable-sync")
        .words("--hide-scrollbars --virtual-time-budget=5000 --window-size=1100,5600")
        .arg("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
        .arg(format!("--user-data-dir={}", profile.display()))
}

/// Opens a page, in both themes, and asks it how many charts it drew.
pub(crate) fn page(path: &Path) -> Result<()> {
    need("chromium")?;
    need("identify")?;
    let page = path.canonicalize().with_context(|| path.display().to_string())?;
    let figures = fs::read_to_string(&page)?.matches("class=\"chart\"").count();
    let url = format!("file://{}", page.display());
    let scheme = |number| format!("--blink-settings=preferredColorScheme={number}");
    // A browser by itself waits much while it starts.
    std::thread::scope(|scope| {
        let others = scope.spawn(|| {
            picture(&url, "light", &scheme(1), 0.8..1.0)?;
            picture(&url, "dark", &scheme(0), 0.0..0.3)
        });
        let first = drawn(&url, figures)
            .and_then(|()| picture(&url, "phone", "--window-size=390,7600", 0.8..1.0));
        others.join().expect("looking at a page does not panic").and(first)
    })?;
    println!("{figures} charts drawn; pictures in target/ci");
    Ok(())
}

/// Every figure has its chart, nothing went wrong, everything can be saved.
fn drawn(url: &str, figures: usize) -> Result<()> {
    let dom = chromium("charts").arg("--dump-dom").arg(url).output()?;
    ensure!(figures > 0, "no figure on the page");
    let canvases = dom.matches("<canvas").count();
    ensure!(canvases == figures, "{canvases} canvases for {figures} figures");
    for (part, wrong) in [
        (format!("data-charts=\"{figures}\""), "the browser did not draw all figures"),
        ("data-faults=\"0\"".to_owned(), "an error, or a request that the page's policy stopped"),
        (format!("data-saves=\"{figures}\""), "a figure cannot be saved as CSV or SVG"),
    ] {
        ensure!(dom.contains(&part), "{wrong}");
    }
    Ok(())
}

/// Coarsely: of a page that is drawn in its theme, most is paper, and not all.
fn picture(url: &str, theme: &str, option: &str, brightness: Range<f64>) -> Result<()> {
    let picture = root().join(format!("target/ci/page-{theme}.png"));
    let screenshot = format!("--screenshot={}", picture.display());
    chromium(theme).arg(option).arg(screenshot).arg(url).output()?;
    let (bytes, picture) = (fs::metadata(&picture)?.len(), picture.display().to_string());
    ensure!(bytes > 50_000, "{picture} is only {bytes} bytes: an empty page?");
    let measured = line("identify -colorspace gray -format")
        .arg("%[fx:mean] %[fx:standard_deviation]")
        .arg(&picture)
        .output()?;
    let numbers = measured.split_whitespace().filter_map(|number| number.parse::<f64>().ok());
    let [mean, deviation] = numbers.collect::<Vec<_>>()[..] else {
        bail!("identify printed `{measured}`")
    };
    ensure!(
        brightness.contains(&mean) && deviation > 0.03,
        "{picture}: mean {mean:.2}, deviation {deviation:.2}: not the {theme} page"
    );
    Ok(())
}

/// Records of the file before its page is opened, and how many come while it is open.
const BEFORE: usize = 30;
const MORE: usize = 30;

/// The page of a file that grows: the browser has its new records without loading it again, and stops when the file does.
pub(crate) fn live() -> Result<()> {
    need("chromium")?;
    let records = fs::read_to_string(root().join(PUBLISHED))?;
    let lines: Vec<&str> = records.split_inclusive('\n').collect();
    let folder = root().join("target/ci/live");
    fs::create_dir_all(&folder)?;
    let path = folder.join("run.jsonl");
    fs::write(&path, lines[..BEFORE].concat())?;
    let (mut server, address) = serve(&folder)?;
    let url = format!("{address}report/0");
    let dom = std::thread::scope(|scope| {
        let writer = scope.spawn(|| grow(&path, &lines[BEFORE..BEFORE + MORE]));
        // Time stands still in the browser while it waits for events: it looks at the page when they have ended.
        let dom = chromium("live").arg("--dump-dom").arg(&url).output();
        writer.join().expect("appending does not panic")?;
        dom
    });
    server.kill()?;
    server.wait()?;
    let dom = dom?;
    for wanted in [
        &*format!("{} records", BEFORE + MORE),
        "data-updates=",
        "data-faults=\"0\"",
        "The file is not being written any more.",
    ] {
        ensure!(dom.contains(wanted), "the live page lacks `{wanted}`");
    }
    println!("{MORE} records came to the page while it was open");
    Ok(())
}

/// A server of the folder's records, and where it listens.
fn serve(folder: &Path) -> Result<(Child, String)> {
    let mut server = Command::new(program())
        .args(["serve", "--port", "0"])
        .arg(folder)
        .stdout(Stdio::piped())
        .spawn()?;
    let mut first = String::new();
    BufReader::new(server.stdout.take().expect("a pipe")).read_line(&mut first)?;
    let (_, address) = first
        .trim_end()
        .split_once(" at ")
        .with_context(|| format!("`serve` printed `{first}`"))?;
    Ok((server, address.to_owned()))
}

/// Appends a line from time to time.
fn grow(path: &Path, lines: &[&str]) -> Result<()> {
    let mut file = File::options().append(true).open(path)?;
    for line in lines {
        std::thread::sleep(Duration::from_millis(500));
        file.write_all(line.as_bytes())?;
    }
    Ok(())
}
