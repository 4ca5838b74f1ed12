//! Pages in headless Chromium: drawn completely, in both themes and on a phone's width.

use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use daqmeter_vm::shell::{Line, line, scratch};

const LIGHT: &str = "--blink-settings=preferredColorScheme=1";
const DARK: &str = "--blink-settings=preferredColorScheme=0";

/// Starts Chromium without a network. Parallel instances have profiles of their own.
fn chromium(profile: &str) -> Line {
    let profile = scratch("chromium").join(profile);
    line("chromium --headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run")
        .words("--disable-background-networking --disable-component-update --disable-sync")
        .words("--hide-scrollbars --virtual-time-budget=5000 --window-size=1100,5600")
        .arg("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
        .arg(format!("--user-data-dir={}", profile.display()))
}

pub(crate) fn check(path: &Path) -> Result<()> {
    let page = path.canonicalize().with_context(|| path.display().to_string())?;
    let text = fs::read_to_string(&page)?;
    let count = |what: &str| text.matches(what).count();
    let (figures, paths) = (count("class=\"chart\""), count("class=\"path\""));
    let url = format!("file://{}", page.display());
    // A single browser waits much during its start.
    std::thread::scope(|scope| {
        let others = scope.spawn(|| {
            picture(&url, "light", LIGHT, 0.8..1.0)?;
            picture(&url, "dark", DARK, 0.0..0.3)?;
            first_screens(&url, paths)
        });
        let first = drawn(&url, figures)
            .and_then(|()| picture(&url, "phone", "--window-size=390,7600", 0.8..1.0));
        others.join().expect("looking at a page does not panic").and(first)
    })?;
    println!("{figures} charts drawn; pictures in target/ci");
    Ok(())
}

/// Checks the first screen of a desktop, a tablet and a phone: every path is on it.
fn first_screens(url: &str, paths: usize) -> Result<()> {
    for scheme in [LIGHT, DARK] {
        for size in ["1400,900", "800,900", "390,844"] {
            let window = format!("--window-size={size}");
            let dom =
                chromium("first-screen").args([scheme, &window, "--dump-dom", url]).output()?;
            let seen = format!("data-seen=\"{paths} of {paths}\"");
            ensure!(
                dom.contains(&seen),
                "not all of {paths} paths are on the first screen, {size}"
            );
        }
    }
    Ok(())
}

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

/// Checks the picture coarsely: most of a page is paper in its theme, and not all.
fn picture(url: &str, theme: &str, option: &str, brightness: Range<f64>) -> Result<()> {
    let picture = scratch(&format!("page-{theme}.png"));
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
