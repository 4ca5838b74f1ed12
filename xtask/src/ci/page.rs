//! A page in headless Chromium: drawn completely, in both themes and on a phone's width.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::shell::{need, output, root};

/// Opens a page in headless Chromium without a network, in both themes, and asks it how many charts it drew.
pub(crate) fn page(path: &Path) -> Result<()> {
    need("chromium", &["chromium"])?;
    let page = path
        .canonicalize()
        .with_context(|| path.display().to_string())?;
    let figures = fs::read_to_string(&page)?
        .matches("class=\"chart\"")
        .count();
    let profile = root().join("target/ci/chromium");
    let profile = format!("--user-data-dir={}", profile.display());
    let url = format!("file://{}", page.display());
    let common = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--hide-scrollbars",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        "--virtual-time-budget=5000",
        "--window-size=1100,5600",
        &profile,
    ];
    let dom = output("chromium", &[&common[..], &["--dump-dom", &url]].concat())?;
    let drawn = format!("data-charts=\"{figures}\"");
    ensure!(
        figures > 0 && dom.contains(&drawn),
        "{figures} figures on the page, but the browser did not draw them all"
    );
    ensure!(
        dom.matches("<canvas").count() == figures,
        "a chart has no canvas"
    );
    ensure!(
        dom.contains("data-faults=\"0\""),
        "an error on the page, or a request that its policy stopped"
    );
    ensure!(
        dom.contains(&format!("data-saves=\"{figures}\"")),
        "a figure cannot be saved as CSV or SVG"
    );
    need("identify", &["imagemagick"])?;
    let themes = [
        ("light", "--blink-settings=preferredColorScheme=1", 0.8..1.0),
        ("dark", "--blink-settings=preferredColorScheme=0", 0.0..0.3),
        ("phone", "--window-size=390,7600", 0.8..1.0),
    ];
    for (theme, option, brightness) in themes {
        let picture = root().join(format!("target/ci/page-{theme}.png"));
        let screenshot = format!("--screenshot={}", picture.display());
        let options: Vec<&str> = common
            .iter()
            .copied()
            .chain([option, screenshot.as_str(), url.as_str()])
            .collect();
        output("chromium", &options)?;
        let bytes = fs::metadata(&picture)?.len();
        ensure!(
            bytes > 50_000,
            "{} is only {bytes} bytes: an empty page?",
            picture.display()
        );
        // Coarsely: of a page that is drawn in its theme, most is paper, and not all.
        let image = picture.display().to_string();
        let format = [
            "-colorspace",
            "gray",
            "-format",
            "%[fx:mean] %[fx:standard_deviation]",
        ];
        let measured = output("identify", &[&format[..], &[&image]].concat())?;
        let numbers: Vec<f64> = measured
            .split_whitespace()
            .filter_map(|number| number.parse().ok())
            .collect();
        let [mean, deviation] = numbers[..] else {
            bail!("identify said `{measured}`")
        };
        ensure!(
            brightness.contains(&mean) && deviation > 0.03,
            "{image}: mean {mean:.2}, deviation {deviation:.2}: not the {theme} page"
        );
    }
    println!("{figures} charts drawn; pictures in target/ci");
    Ok(())
}
