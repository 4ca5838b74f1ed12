//! What CI runs after `cargo test`: everything that needs root, other packages, another CPU, a browser or time.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use daqmeter_etherbone::reproduce::{self, Document};
use daqmeter_record::{Outcome, RunRecord, jsonl};

use crate::shell::{need, output, root, run, run_with, there, tried};
use crate::{hosts, peers, pmu, readout, tidy, vm};

/// Seconds for each fuzz target in CI.
const FUZZ_SECONDS: u64 = 6;

type Step = (&'static str, fn() -> Result<Done>);

/// How a step ended, when it did not fail.
pub(crate) enum Done {
    Ran,
    /// Could not be run here; said loudly at the end.
    LeftOut(String),
}

/// All steps, or those with that in their name.
pub(crate) fn all(only: Option<&str>) -> Result<()> {
    let steps: &[Step] = &[
        ("format", || ran(run("cargo", &["fmt", "--all", "--check"]))),
        ("clippy", || {
            ran(run("cargo", &["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]))
        }),
        ("docs", docs),
        ("tidy", || ran(tidy::run())),
        ("schema", || ran(schema(true))),
        ("real-device path against FUSE files", fuse),
        ("kernels on AArch64 (NEON) under qemu", neon),
        // Targets that are benchmarks only: `--benches` alone would build every library's tests once more, optimised.
        ("benchmarks build", || ran(run("cargo", &["bench", "--workspace", "--bench", "*", "--no-run", "--quiet"]))),
        ("other makers' Etherbone", || match hosts::missing() {
            Some(why) => Ok(Done::LeftOut(why)),
            None => ran(tried(peers::all)),
        }),
        ("read-out between hosts", || match hosts::missing() {
            Some(why) => Ok(Done::LeftOut(why)),
            None => ran(readout::all()),
        }),
        ("survey, and its page in a browser", || ran(tried(survey))),
        ("the document's tables on emulated boards", || ran(tried(reproduce))),
        ("the Etherbone study on emulated bridges", || ran(tried(etherbone))),
        ("read-out: maximum rate and study", || ran(tried(read_out))),
        ("read-out: the published run's 384 E-links", published_run),
        ("read-out over Zenoh", || {
            let test =
                ["test", "--quiet", "-p", "daqmeter-readout", "--features", "zenoh", "--test", "readout", "zenoh"];
            ran(tried(|| run("cargo", &test)))
        }),
        ("copies: the kernel modules under Debian's kernels in QEMU", || match vm::missing() {
            Some(why) => Ok(Done::LeftOut(why)),
            None => ran(vm::all().and_then(|()| tried(|| vm::pollution(false)))),
        }),
        ("copies: the study's figures and claims", || ran(tried(copies))),
        ("counters: the mesh's PMU without silicon, in QEMU", || match pmu::missing() {
            Some(why) => Ok(Done::LeftOut(why)),
            None => ran(pmu::all(false, "")),
        }),
        ("counters: a mesh on a page", mesh_page),
        ("Python: wheel, tests, rate", crate::book::python),
        ("documentation site and its links", crate::book::book),
        ("cmp: no false alarm, and 5 % are found, 100 times each", || {
            ran(tried(|| run("cargo", &["bench", "-q", "-p", "daqmeter-campaign", "--bench", "promises"])))
        }),
        ("fuzz", || ran(fuzz(FUZZ_SECONDS, None))),
    ];
    let mut left_out = Vec::new();
    let chosen: Vec<&Step> = steps.iter().filter(|(name, _)| only.is_none_or(|only| name.contains(only))).collect();
    ensure!(!chosen.is_empty(), "no step has that in its name");
    for (name, step) in &chosen {
        println!("\n=== {name}");
        let began = Instant::now();
        match step().with_context(|| format!("step `{name}`"))? {
            Done::Ran => println!("=== {name}: passed in {:.0} s", began.elapsed().as_secs_f64()),
            Done::LeftOut(why) => left_out.push(format!("{name}: {why}")),
        }
    }
    println!("\nxtask ci: {} steps passed, {} left out", chosen.len() - left_out.len(), left_out.len());
    for line in &left_out {
        println!("!!! NOT RUN: {line}");
    }
    Ok(())
}

pub(crate) fn ran(result: Result<()>) -> Result<Done> {
    result.map(|()| Done::Ran)
}

fn docs() -> Result<Done> {
    let environment = [("RUSTDOCFLAGS", "-D warnings")];
    ran(run_with("cargo", &["doc", "--workspace", "--no-deps", "--document-private-items", "--quiet"], &environment))
}

/// Writes the schemas of records and plans, or compares them with what is checked in.
pub(crate) fn schema(check: bool) -> Result<()> {
    let all =
        [("run-record.v1.json", daqmeter_record::json_schema()), ("plan.v1.json", daqmeter_campaign::json_schema())];
    for (name, generated) in all {
        let path = root().join("docs/schema").join(name);
        if check {
            let found = fs::read_to_string(&path).unwrap_or_default();
            ensure!(found == generated, "docs/schema/{name} is not the types' schema: run cargo xtask schema");
            continue;
        }
        fs::create_dir_all(path.parent().expect("a file in docs/schema"))?;
        fs::write(path, generated)?;
    }
    Ok(())
}

fn fuse() -> Result<Done> {
    if !Path::new("/dev/fuse").exists() {
        return Ok(Done::LeftOut("no /dev/fuse here (modprobe fuse)".to_owned()));
    }
    if output("id", &["-u"])?.trim() != "0" {
        need("fusermount3", &["fuse3"])?;
    }
    ran(run_with("cargo", &["test", "-p", "daqmeter-digitizer", "--test", "fuse"], &[("DAQMETER_FUSE_TESTS", "1")]))
}

fn neon() -> Result<Done> {
    const TARGET: &str = "aarch64-unknown-linux-gnu";
    if cfg!(target_arch = "aarch64") {
        return Ok(Done::LeftOut("this host is AArch64: cargo test ran them already".to_owned()));
    }
    need("aarch64-linux-gnu-gcc", &["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"])?;
    need("qemu-aarch64-static", &["qemu-user-static"])?;
    if !there("rustup") || run("rustup", &["target", "add", TARGET]).is_err() {
        return Ok(Done::LeftOut(format!("rustup cannot add the target {TARGET}")));
    }
    let environment = [
        ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc"),
        ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", "qemu-aarch64-static -L /usr/aarch64-linux-gnu"),
        ("PROPTEST_CASES", "32"),
    ];
    ran(run_with("cargo", &["test", "-p", "daqmeter-kernels", "--target", TARGET], &environment))
}

fn daqmeter(arguments: &[&str]) -> Result<()> {
    run("cargo", &[&["run", "--release", "--quiet", "--"], arguments].concat())
}

fn records(path: &Path) -> Result<Vec<RunRecord>> {
    let contents = jsonl::read(std::io::BufReader::new(fs::File::open(path)?))?;
    ensure!(contents.errors.is_empty(), "{}: {:?}", path.display(), contents.errors);
    Ok(contents.records)
}

fn scratch(name: &str) -> Result<String> {
    let directory = root().join("target/ci");
    fs::create_dir_all(&directory)?;
    let path = directory.join(name);
    if path.exists() {
        fs::remove_file(&path)?;
    }
    Ok(path.display().to_string())
}

fn survey() -> Result<()> {
    let (out, html) = (scratch("survey.jsonl")?, scratch("survey.html")?);
    daqmeter(&["survey", "--budget", "20s", "--out", &out, "-o", &html])?;
    // The Python tests read what was exported.
    for name in ["export.parquet", "export.csv"] {
        daqmeter(&["export", &out, "-o", &scratch(name)?])?;
    }
    let records = records(out.as_ref())?;
    let failed: Vec<_> = records.iter().filter(|record| matches!(record.outcome, Outcome::Failed(_))).collect();
    ensure!(
        failed.is_empty(),
        "{:?}",
        failed.iter().map(|record| (&record.study, &record.outcome)).collect::<Vec<_>>()
    );
    ensure!(records.len() > 50, "{} points only", records.len());
    page(html.as_ref())
}

/// Opens a page in headless Chromium without a network, in both themes, and asks it how many charts it drew.
pub(crate) fn page(path: &Path) -> Result<()> {
    need("chromium", &["chromium"])?;
    let page = path.canonicalize().with_context(|| path.display().to_string())?;
    let figures = fs::read_to_string(&page)?.matches("class=\"chart\"").count();
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
    ensure!(dom.matches("<canvas").count() == figures, "a chart has no canvas");
    ensure!(dom.contains("data-faults=\"0\""), "an error on the page, or a request that its policy stopped");
    ensure!(dom.contains(&format!("data-saves=\"{figures}\"")), "a figure cannot be saved as CSV or SVG");
    need("convert", &["imagemagick"])?;
    let themes = [
        ("light", "--blink-settings=preferredColorScheme=1", 0.8..1.0),
        ("dark", "--blink-settings=preferredColorScheme=0", 0.0..0.3),
        ("phone", "--window-size=390,7600", 0.8..1.0),
    ];
    for (theme, option, brightness) in themes {
        let picture = root().join(format!("target/ci/page-{theme}.png"));
        let screenshot = format!("--screenshot={}", picture.display());
        let options: Vec<&str> = common.iter().copied().chain([option, screenshot.as_str(), url.as_str()]).collect();
        output("chromium", &options)?;
        let bytes = fs::metadata(&picture)?.len();
        ensure!(bytes > 50_000, "{} is only {bytes} bytes: an empty page?", picture.display());
        // Coarsely: of a page that is drawn in its theme, most is paper, and not all.
        let image = picture.display().to_string();
        let measured = output(
            "convert",
            &[&image, "-colorspace", "gray", "-format", "%[fx:mean] %[fx:standard_deviation]", "info:"],
        )?;
        let numbers: Vec<f64> = measured.split_whitespace().filter_map(|number| number.parse().ok()).collect();
        let [mean, deviation] = numbers[..] else { bail!("convert said `{measured}`") };
        ensure!(
            brightness.contains(&mean) && deviation > 0.03,
            "{image}: mean {mean:.2}, deviation {deviation:.2}: not the {theme} page"
        );
    }
    println!("{figures} charts drawn; pictures in target/ci");
    Ok(())
}

/// Emulated bridges take the time of their model, and the page has the study's four figures.
fn etherbone() -> Result<()> {
    let (out, html) = (scratch("etherbone.jsonl")?, scratch("etherbone.html")?);
    daqmeter(&["eb", "reproduce", "--out", &out, "-o", &html])?;
    page(html.as_ref())?;
    let lines = reproduce::compare(&Document::default(), &records(out.as_ref())?);
    ensure!(lines.len() > 25, "{} lines only", lines.len());
    let wide: Vec<String> = lines
        .iter()
        .filter(|line| {
            let off = line.difference_from_model();
            // A gain is a small difference of two times: within five of its percents.
            let five = line.model.map_or(0.0, |model| 5.0 / model.value());
            let band = if line.unit == "%" { five } else { 0.05 };
            off.is_none_or(|off| off.abs() > band)
        })
        .map(|line| format!("{} {}: model {:?}, measured {:?}", line.table, line.row, line.model, line.measured))
        .collect();
    ensure!(wide.is_empty(), "further than 5 % from the model:\n{}", wide.join("\n"));
    Ok(())
}

/// Paced boards give the document's read-out tables, mean per table, within 3 %.
fn reproduce() -> Result<()> {
    let out = scratch("reproduce.jsonl")?;
    daqmeter(&["digitizer", "reproduce", "--out", &out])?;
    let text = output("cargo", &["run", "--release", "--quiet", "--", "digitizer", "reproduce", "--from", &out])?;
    let mut tables = 0;
    let mut wide = Vec::new();
    for line in text.lines().filter(|line| line.contains(" mean ")) {
        // derived, model, measured, "+0.1 %": the last figure is the difference.
        let Some(percent) =
            line.split(" %").next().and_then(|head| head.split_whitespace().last()?.parse::<f64>().ok())
        else {
            bail!("cannot read the line `{line}`");
        };
        tables += 1;
        // The read-out tables come first; conversions are this host's own.
        if tables <= 8 && percent.abs() > 3.0 {
            wide.push(line.trim().to_owned());
        }
    }
    ensure!(tables == 15, "{tables} tables instead of 15");
    ensure!(wide.is_empty(), "read-out tables further than 3 % from the document:\n{}", wide.join("\n"));
    let limit = 3295.7e6;
    for record in records(out.as_ref())?.iter().filter(|record| record.study.contains("mb")) {
        let bytes = record.ledgers.iter().find(|ledger| ledger.unit == "bytes").map_or(0, |ledger| ledger.delivered);
        let readouts = record.lanes.iter().filter_map(|lane| lane.stages.first());
        let end_ns = readouts.map(|stage| stage.end_ns).max().unwrap_or(1);
        let rate = bytes as f64 / end_ns as f64 * 1e9;
        ensure!(rate <= limit, "{}: {rate:.0} B/s exceed the uplink's limit", record.study);
    }
    Ok(())
}

/// The sweep finds a rate and draws its figures, and no row of the study's model contradicts the document.
fn read_out() -> Result<()> {
    let (out, html) = (scratch("sweep.jsonl")?, scratch("sweep.html")?);
    daqmeter(&["readout", "sweep", "gbt", "--probe", "200ms", "--resolution", "0.05", "--out", &out, "-o", &html])?;
    page(html.as_ref())?;
    let records = records(out.as_ref())?;
    let open: Vec<_> = records.iter().filter(|record| !record.outcome.is_ok()).map(|record| &record.outcome).collect();
    ensure!(open.is_empty(), "{open:?}");
    ensure!(records.iter().filter(|record| record.study == "readout/sweep").count() == 24, "{} points", records.len());
    daqmeter(&["readout", "reproduce"])
}

/// 50 s worth of the published data, made and checked: the counts of device 0, DMA 0 are the published ones.
fn published_run() -> Result<Done> {
    const TRIGGERS: &str = "49748082";
    const CHUNKS: [u64; 3] = [49_648_974, 49_724_208, 49_118_639];
    let check = ["readout", "check", "--scenario", "nikhef", "--triggers", TRIGGERS, "--level", "2", "--json"];
    let text = output("cargo", &[&["run", "--release", "--quiet", "--"], &check[..]].concat())?;
    let channels: Vec<serde_json::Value> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    ensure!(channels.len() == 16, "{} channels", channels.len());
    let mut elinks = 0;
    for (at, channel) in channels.iter().enumerate() {
        let rows = channel["checked"]["rows"].as_array().context("no rows")?;
        elinks += rows.len();
        for (nth, row) in rows.iter().enumerate() {
            let wanted = CHUNKS.get(nth / 8).copied().unwrap_or(TRIGGERS.parse()?);
            ensure!(row["chunks"] == wanted, "channel {at}: {row}");
        }
    }
    ensure!(elinks == 384 + 4, "{elinks} E-links");
    let blocks = &channels[0]["checked"]["blocks"];
    ensure!(*blocks == 34_262_333, "{blocks} blocks instead of the published 34262333");
    println!("{elinks} E-links, each with the published count; {blocks} blocks in device 0, DMA 0");
    Ok(Done::Ran)
}

/// Latency, bandwidth and pollution at a few sizes fill figures that a browser draws; every claim gets a verdict.
fn copies() -> Result<()> {
    let (out, html) = (scratch("copies.jsonl")?, scratch("copies.html")?);
    let common = ["--reps", "20", "--out", &out];
    let sizes = ["--sizes", "1,64,4KiB,64KiB,1MiB"];
    daqmeter(&[&["copy", "latency"], &common[..], &sizes[..]].concat())?;
    daqmeter(&[&["copy", "latency", "--load", "heavy", "--contexts", "cpu"], &common[..], &sizes[..]].concat())?;
    daqmeter(&[&["copy", "bandwidth"], &common[..], &["--sizes", "4KiB,64KiB"]].concat())?;
    daqmeter(
        &[&["copy", "pollution"], &common[..], &["--tests", "qsort_small,susan[e]_small", "--copies", "from:16064"]]
            .concat(),
    )?;
    daqmeter(&["copy", "trace", "--time", "1s", "--out", &out])?;
    let simulated = vm::folder().join("pollution.jsonl").display().to_string();
    let mut files = vec![out.as_str()];
    if Path::new(&simulated).exists() {
        files.push(&simulated);
    }
    daqmeter(&[&["copy", "figures"], &files[..], &["-o", &html]].concat())?;
    page(html.as_ref())?;
    let open: Vec<String> = records(out.as_ref())?
        .iter()
        .filter(|record| !record.outcome.is_ok())
        .map(|record| format!("{}: {:?}", record.workload, record.outcome))
        .collect();
    ensure!(open.is_empty(), "{}", open.join("\n"));
    daqmeter(&["copy", "verify"])?;
    daqmeter(&["copy", "reproduce", "--reps", "30"])
}

/// An emulated mesh, counted, drawn in a browser; and known loads on this host.
fn mesh_page() -> Result<Done> {
    let html = scratch("mesh.html")?;
    let common = ["pmu", "stat", "--emulated", "cmn700", "--heat", "hnf_mc_reqs", "-I", "20ms", "--count", "30"];
    output("cargo", &[&["run", "--release", "--quiet", "--"], &common[..], &["-o", &html]].concat())?;
    page(html.as_ref())?;
    // Others may use the disk meanwhile.
    ran(tried(|| daqmeter(&["pmu", "verify", "--time", "500ms"])))
}

/// The fuzz targets.
const FUZZ_TARGETS: [&str; 14] = [
    "record_line",
    "units",
    "profile",
    "fluid",
    "eb_wire",
    "eb_slave",
    "eb_client",
    "eb_text",
    "felix",
    "felix_page",
    "readout_check",
    "readout_scenario",
    "copy_trace",
    "pmu_text",
];

/// Builds the fuzz targets with coverage by stable flags (no nightly toolchain, no cargo-fuzz) and runs each.
pub(crate) fn fuzz(seconds: u64, only: Option<&str>) -> Result<()> {
    need("g++", &["g++"])?;
    let target = output("rustc", &["-vV"])?;
    let target = target.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc names no host")?.to_owned();
    let flags = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
                 -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 -Cdebug-assertions";
    let build = ["build", "--release", "--manifest-path", "fuzz/Cargo.toml", "--target", &target];
    run_with("cargo", &build, &[("RUSTFLAGS", flags)])?;
    for name in FUZZ_TARGETS.iter().filter(|name| only.is_none_or(|only| name.contains(only))) {
        let corpus = root().join(format!("fuzz/corpus/{name}"));
        fs::create_dir_all(&corpus)?;
        let program = root().join(format!("fuzz/target/{target}/release/{name}"));
        let artifacts = format!("-artifact_prefix={}/", root().join("fuzz").display());
        let time = format!("-max_total_time={seconds}");
        let arguments = [
            &corpus.display().to_string(),
            &time,
            &artifacts,
            "-timeout=5",
            "-rss_limit_mb=2048",
            "-verbosity=0",
            "-print_final_stats=1",
        ];
        run(&program.display().to_string(), &arguments).with_context(|| format!("fuzz target {name}"))?;
    }
    Ok(())
}
