//! The steps of CI, each a function; the table says what each needs of the machine and what it comes after.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use daqmeter_campaign::studies::study;
use daqmeter_record::study::Comparison;
use daqmeter_record::{Outcome, RunRecord, jsonl};

use super::schedule::Load::{Alone, Build, OneCpu};
use super::{Done, Step, page, ran, step};
use crate::shell::{
    daqmeter, need, output, output_with, program, root, run, run_with, there, tried,
};
use crate::{book, fuzz, hosts, miri, peers, pmu, readout, tidy, vm};

/// The release build of the tool, which most steps run.
const PROGRAM: &str = "program";
const FUZZ_BUILD: &str = "fuzz targets build";
const GUESTS: &str = "guests: kernels, modules, programs";
const MESH_GUESTS: &str = "mesh guests: kernels, programs";
const COPY_MACHINES: &str = "copies: the kernel modules under Debian's kernels in QEMU";
const PEERS_BUILD: &str = "other makers' Etherbone: programs";
const WHEEL: &str = "Python: wheel";
const SURVEY: &str = "survey, and its page in a browser";
const ZENOH_BUILD: &str = "read-out over Zenoh: build";
const BENCHES: &str = "benchmarks build";
const FUSE_BUILD: &str = "real-device path: build";
const NEON_BUILD: &str = "kernels on AArch64: build";
/// Files below `target/ci` with the paths of test programs.
const FUSE_TESTS: &str = "fuse.programs";
const NEON_TESTS: &str = "neon.programs";

/// All steps. Builds are in the order in which they are made: first those that long steps wait for.
pub(super) const STEPS: &[Step] = &[
    step(PROGRAM, Build, &[], || {
        ran(run("cargo", &["build", "--release", "--quiet"]))
    }),
    step(MESH_GUESTS, Build, &[], || match pmu::missing() {
        Some(why) => Ok(Done::LeftOut(why)),
        None => ran(pmu::prepare()),
    }),
    step(GUESTS, Build, &[PROGRAM], || match vm::missing() {
        Some(why) => Ok(Done::LeftOut(why)),
        None => ran(vm::prepare()),
    }),
    step(FUZZ_BUILD, Build, &[], || ran(fuzz::build())),
    step(FUSE_BUILD, Build, &[], || {
        ran(build_tests(
            FUSE_TESTS,
            &["-p", "daqmeter-digitizer", "--test", "fuse"],
            &[],
        ))
    }),
    step("clippy", Build, &[], || {
        ran(run(
            "cargo",
            &[
                "clippy",
                "--workspace",
                "--all-targets",
                "--quiet",
                "--",
                "-D",
                "warnings",
            ],
        ))
    }),
    step("docs", Build, &[], docs),
    step(ZENOH_BUILD, Build, &[], || ran(zenoh(&["--no-run"]))),
    step(BENCHES, Build, &[PROGRAM], || ran(benches())),
    step(WHEEL, Build, &[PROGRAM], book::wheel),
    step(PEERS_BUILD, Build, &[], || ran(peers::prepare())),
    step("documentation site and its links", Build, &[], book::book),
    step(NEON_BUILD, Build, &[], build_neon),
    step("format", OneCpu, &[], format),
    step("tidy", OneCpu, &[], || ran(tidy::run())),
    step("schema", OneCpu, &[], || ran(schema(true))),
    step(
        "kernels on AArch64 (NEON) under qemu",
        OneCpu,
        &[NEON_BUILD],
        neon,
    ),
    step(
        "real-device path against FUSE files",
        OneCpu,
        &[FUSE_BUILD],
        fuse,
    ),
    step(
        "counters: the mesh's PMU without silicon, in QEMU, 6.1",
        OneCpu,
        &[MESH_GUESTS],
        || mesh_machines("6.1"),
    ),
    step(
        "counters: the mesh's PMU without silicon, in QEMU, 6.12",
        OneCpu,
        &[MESH_GUESTS],
        || mesh_machines("6.12"),
    ),
    step(COPY_MACHINES, OneCpu, &[GUESTS], || match vm::missing() {
        Some(why) => Ok(Done::LeftOut(why)),
        None => ran(vm::all().and_then(|()| tried(|| vm::pollution(false)))),
    }),
    step(
        "read-out: the published run's 384 E-links",
        OneCpu,
        &[PROGRAM],
        published_run,
    ),
    step(
        "Miri: record, stats, wire, portable kernels, rings",
        Build,
        &[],
        miri::run,
    ),
    step("fuzz", OneCpu, &[FUZZ_BUILD], || {
        ran(fuzz::run_all(fuzz::CI_SECONDS, None))
    }),
    step(SURVEY, Alone, &[PROGRAM], || ran(tried(survey))),
    step(
        "Python: tests, notebook, rate",
        Alone,
        &[WHEEL, SURVEY],
        book::python,
    ),
    step(
        "other makers' Etherbone",
        Alone,
        &[PROGRAM, PEERS_BUILD],
        || match hosts::missing() {
            Some(why) => Ok(Done::LeftOut(why)),
            None => ran(tried(peers::all)),
        },
    ),
    step(
        "read-out between hosts",
        Alone,
        &[PROGRAM],
        || match hosts::missing() {
            Some(why) => Ok(Done::LeftOut(why)),
            None => ran(readout::all()),
        },
    ),
    step(
        "the document's tables on emulated boards",
        Alone,
        &[PROGRAM],
        || ran(tried(reproduce)),
    ),
    step(
        "the Etherbone study on emulated bridges",
        Alone,
        &[PROGRAM],
        || ran(etherbone()),
    ),
    step(
        "read-out: maximum rate and study",
        Alone,
        &[PROGRAM],
        || ran(tried(read_out)),
    ),
    step("read-out over Zenoh", Alone, &[ZENOH_BUILD], || {
        ran(tried(|| zenoh(&["zenoh"])))
    }),
    step(
        "copies: the study's figures and claims",
        Alone,
        &[PROGRAM, COPY_MACHINES],
        || ran(tried(copies)),
    ),
    step("counters: a mesh on a page", Alone, &[PROGRAM], mesh_page),
    step(
        "cmp: no false alarm, and 5 % are found, 100 times each",
        Alone,
        &[BENCHES],
        || {
            ran(tried(|| {
                run(
                    "cargo",
                    &[
                        "bench",
                        "-q",
                        "-p",
                        "daqmeter-campaign",
                        "--bench",
                        "promises",
                    ],
                )
            }))
        },
    ),
];

fn mesh_machines(series: &str) -> Result<Done> {
    match pmu::missing() {
        Some(why) => Ok(Done::LeftOut(why)),
        None => ran(pmu::machines(false, series, "")),
    }
}

/// The workspace and the two packages outside of it.
fn format() -> Result<Done> {
    for package in ["Cargo.toml", "fuzz/Cargo.toml", "python/Cargo.toml"] {
        let manifest = root().join(package).display().to_string();
        run(
            "cargo",
            &["fmt", "--all", "--check", "--manifest-path", &manifest],
        )?;
    }
    Ok(Done::Ran)
}

/// All benchmarks compile and link, in the profile of the tests, which shares their builds; the one that CI runs, optimised.
/// Targets that are benchmarks only: `--benches` alone would build every library's tests once more.
fn benches() -> Result<()> {
    run(
        "cargo",
        &["build", "--workspace", "--bench", "*", "--quiet"],
    )?;
    run(
        "cargo",
        &[
            "bench",
            "-p",
            "daqmeter-campaign",
            "--bench",
            "promises",
            "--no-run",
            "--quiet",
        ],
    )
}

/// The tests over Zenoh. Its three hundred crates are compiled without optimisation, which takes half the time.
fn zenoh(more: &[&str]) -> Result<()> {
    let test = [
        "test",
        "--quiet",
        "-p",
        "daqmeter-readout",
        "--features",
        "zenoh",
        "--test",
        "readout",
    ];
    let plain = [
        "--config",
        "profile.dev.package.\"*\".opt-level=0",
        "--config",
        "profile.dev.package.\"*\".debug=false",
    ];
    run("cargo", &[&test[..], &plain, more].concat())
}

fn docs() -> Result<Done> {
    let environment = [("RUSTDOCFLAGS", "-D warnings")];
    ran(run_with(
        "cargo",
        &[
            "doc",
            "--workspace",
            "--no-deps",
            "--document-private-items",
            "--quiet",
        ],
        &environment,
    ))
}

/// Writes the schemas of records and plans, or compares them with what is checked in.
pub(crate) fn schema(check: bool) -> Result<()> {
    let all = [
        ("run-record.v1.json", daqmeter_record::json_schema()),
        ("plan.v1.json", daqmeter_campaign::json_schema()),
    ];
    for (name, generated) in all {
        let path = root().join("docs/schema").join(name);
        if check {
            let found = fs::read_to_string(&path).unwrap_or_default();
            ensure!(
                found == generated,
                "docs/schema/{name} is not the types' schema: run cargo xtask schema"
            );
            continue;
        }
        fs::create_dir_all(path.parent().expect("a file in docs/schema"))?;
        fs::write(path, generated)?;
    }
    Ok(())
}

/// Builds test programs and leaves their paths for the step that runs them: `cargo test` itself would wait there for builds.
fn build_tests(name: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    let build = [
        &[
            "test",
            "--no-run",
            "--quiet",
            "--message-format=json-render-diagnostics",
        ],
        arguments,
    ]
    .concat();
    let messages = output_with("cargo", &build, environment)?;
    let program = |line: &str| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        message["profile"]["test"].as_bool().filter(|test| *test)?;
        message["executable"].as_str().map(str::to_owned)
    };
    let programs: Vec<String> = messages.lines().filter_map(program).collect();
    ensure!(
        !programs.is_empty(),
        "cargo built no test program for {}",
        arguments.join(" ")
    );
    fs::create_dir_all(root().join("target/ci"))?;
    Ok(fs::write(
        root().join("target/ci").join(name),
        programs.join("\n"),
    )?)
}

/// The programs that [`build_tests`] left under that name.
fn built_tests(name: &str) -> Result<Vec<String>> {
    let path = root().join("target/ci").join(name);
    let text = fs::read_to_string(&path)
        .with_context(|| format!("{} is missing: build first", path.display()))?;
    Ok(text.lines().map(str::to_owned).collect())
}

fn fuse() -> Result<Done> {
    if !Path::new("/dev/fuse").exists() {
        return Ok(Done::LeftOut(
            "no /dev/fuse here (modprobe fuse)".to_owned(),
        ));
    }
    if output("id", &["-u"])?.trim() != "0" {
        need("fusermount3", &["fuse3"])?;
    }
    for program in built_tests(FUSE_TESTS)? {
        run_with(&program, &[], &[("DAQMETER_FUSE_TESTS", "1")])?;
    }
    Ok(Done::Ran)
}

const NEON_TARGET: &str = "aarch64-unknown-linux-gnu";

fn build_neon() -> Result<Done> {
    if cfg!(target_arch = "aarch64") {
        return Ok(Done::LeftOut(
            "this host is AArch64: cargo test ran them already".to_owned(),
        ));
    }
    need(
        "aarch64-linux-gnu-gcc",
        &["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"],
    )?;
    need("qemu-aarch64-static", &["qemu-user-static"])?;
    if !there("rustup") || run("rustup", &["target", "add", NEON_TARGET]).is_err() {
        return Ok(Done::LeftOut(format!(
            "rustup cannot add the target {NEON_TARGET}"
        )));
    }
    let linker = [(
        "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER",
        "aarch64-linux-gnu-gcc",
    )];
    ran(build_tests(
        NEON_TESTS,
        &[
            "-p",
            "daqmeter-kernels",
            "--lib",
            "--tests",
            "--target",
            NEON_TARGET,
        ],
        &linker,
    ))
}

fn neon() -> Result<Done> {
    let Ok(programs) = built_tests(NEON_TESTS) else {
        return Ok(Done::LeftOut(
            "the tests for AArch64 could not be built here".to_owned(),
        ));
    };
    for program in programs {
        let arguments = ["-L", "/usr/aarch64-linux-gnu", program.as_str()];
        run_with(
            "qemu-aarch64-static",
            &arguments,
            &[("PROPTEST_CASES", "32")],
        )?;
    }
    Ok(Done::Ran)
}

fn records(path: &Path) -> Result<Vec<RunRecord>> {
    let contents = jsonl::read(std::io::BufReader::new(fs::File::open(path)?))?;
    ensure!(
        contents.errors.is_empty(),
        "{}: {:?}",
        path.display(),
        contents.errors
    );
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
    let failed: Vec<_> = records
        .iter()
        .filter(|record| matches!(record.outcome, Outcome::Failed(_)))
        .collect();
    ensure!(
        failed.is_empty(),
        "{:?}",
        failed
            .iter()
            .map(|record| (&record.study, &record.outcome))
            .collect::<Vec<_>>()
    );
    ensure!(records.len() > 50, "{} points only", records.len());
    page::page(html.as_ref())
}

/// Emulated bridges take the time of their model, and the page has the study's four figures.
///
/// What else runs on a shared machine adds time only. So a row has several tries, and in each it may take as much longer as a bridge
/// without any delay takes at that time, which is the client's and the emulation's own work. A row that is faster than its model is
/// wrong at once.
fn etherbone() -> Result<()> {
    const TRIES: u32 = 6;
    let (out, html) = (scratch("etherbone.jsonl")?, scratch("etherbone.html")?);
    let mut slow: Option<BTreeSet<String>> = None;
    for attempt in 1..=TRIES {
        scratch("etherbone.jsonl")?;
        let software_us = cycle_without_delay_us()?;
        daqmeter(&["eb", "reproduce", "--out", &out, "-o", &html])?;
        let study = study("etherbone").context("no study of that name")?;
        let lines = study.compare(&records(out.as_ref())?);
        ensure!(lines.len() > 25, "{} lines only", lines.len());
        let still = rows_off_the_model(&lines, software_us)?;
        let left = slow.map_or(still.clone(), |before| {
            before.intersection(&still).cloned().collect()
        });
        if left.is_empty() {
            return page::page(html.as_ref());
        }
        println!(
            "!!! try {attempt} of {TRIES}, slower than the model and {software_us:.2} us of software: {left:?}"
        );
        slow = Some(left);
    }
    bail!("slower than the model in each of {TRIES} tries: {slow:?}")
}

/// Mean time of a blocking cycle over an emulated bridge that adds no delay.
fn cycle_without_delay_us() -> Result<f64> {
    const BRIDGE: &str = "[[bridge]]\nname = 'none'\nabout = 'adds no delay'\nstream = true\n\
        request = { latency_ns = 0, bytes_per_s = 1e15 }\nreply = { latency_ns = 0, bytes_per_s = 1e15 }\n\
        timing = { read_ns = 0, write_ns = 0 }\n";
    let (file, out) = (scratch("no-delay.toml")?, scratch("no-delay.jsonl")?);
    fs::write(&file, BRIDGE)?;
    let slave = format!("emu/{file}");
    output(
        &program(),
        &[
            "eb",
            "perf",
            &slave,
            "--payload",
            "tlu",
            "--method",
            "blocking",
            "-m",
            "1",
            "--out",
            &out,
        ],
    )?;
    let records = records(out.as_ref())?;
    let stage = records
        .first()
        .and_then(|record| record.lanes.first()?.stages.first())
        .context("no samples")?;
    let mean_ns = stage.sample_ns.iter().sum::<u64>() as f64 / stage.sample_ns.len() as f64;
    let cycle_us = mean_ns / stage.ops_per_sample as f64 / 1e3;
    ensure!(
        cycle_us > 0.0 && cycle_us < 50.0,
        "a cycle without any delay took {cycle_us} us"
    );
    Ok(cycle_us)
}

/// Rows that took longer than their model and that much software, by more than 5 %; one that was faster by that much is an error.
fn rows_off_the_model(lines: &[Comparison], software_us: f64) -> Result<BTreeSet<String>> {
    let mut slow = BTreeSet::new();
    for line in lines {
        let name = format!("{} {} [{}]", line.table, line.row, line.unit);
        let (Some(model), Some(off)) = (line.model, line.difference_from_model()) else {
            bail!("{name}: no model or not measured: {line:?}");
        };
        // Time of the row's cycle or timestamp, and how much longer than the model's it was.
        let (model_us, longer) = match line.unit {
            "us" => (model.value(), off),
            "kHz" => (1e3 / model.value(), 1.0 / (1.0 + off) - 1.0),
            "Mbit/s" => (64.0 / model.value(), 1.0 / (1.0 + off) - 1.0),
            // The emulation's own count of nanoseconds, in which no software is.
            "ns" => (f64::INFINITY, off),
            // A gain is a small difference of two times, both of which may be longer: within five of its percents, either way.
            "%" => (f64::INFINITY, off.abs() * model.value() / 100.0),
            unit => bail!("{name}: no rule for {unit}"),
        };
        ensure!(
            longer >= -0.05,
            "{name}: faster than the model allows: {line:?}"
        );
        if longer > 0.05 + software_us / model_us {
            slow.insert(name);
        }
    }
    Ok(slow)
}

/// Paced boards give the document's read-out tables, mean per table, within 3 %.
fn reproduce() -> Result<()> {
    let out = scratch("reproduce.jsonl")?;
    daqmeter(&["digitizer", "reproduce", "--out", &out])?;
    let text = output(&program(), &["digitizer", "reproduce", "--from", &out])?;
    let mut tables = 0;
    let mut wide = Vec::new();
    for line in text.lines().filter(|line| line.contains(" mean ")) {
        // derived, model, measured, "+0.1 %": the last figure is the difference.
        let Some(percent) = line
            .split(" %")
            .next()
            .and_then(|head| head.split_whitespace().last()?.parse::<f64>().ok())
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
    ensure!(
        wide.is_empty(),
        "read-out tables further than 3 % from the document:\n{}",
        wide.join("\n")
    );
    let limit = 3295.7e6;
    for record in records(out.as_ref())?
        .iter()
        .filter(|record| record.study.contains("mb"))
    {
        let bytes = record
            .ledgers
            .iter()
            .find(|ledger| ledger.unit == "bytes")
            .map_or(0, |ledger| ledger.delivered);
        let readouts = record.lanes.iter().filter_map(|lane| lane.stages.first());
        let end_ns = readouts.map(|stage| stage.end_ns).max().unwrap_or(1);
        let rate = bytes as f64 / end_ns as f64 * 1e9;
        ensure!(
            rate <= limit,
            "{}: {rate:.0} B/s exceed the uplink's limit",
            record.study
        );
    }
    Ok(())
}

/// The sweep finds a rate and draws its figures, and no row of the study's model contradicts the document.
fn read_out() -> Result<()> {
    let (out, html) = (scratch("sweep.jsonl")?, scratch("sweep.html")?);
    daqmeter(&[
        "readout",
        "sweep",
        "gbt",
        "--probe",
        "200ms",
        "--resolution",
        "0.05",
        "--out",
        &out,
        "-o",
        &html,
    ])?;
    page::page(html.as_ref())?;
    let records = records(out.as_ref())?;
    let open: Vec<_> = records
        .iter()
        .filter(|record| !record.outcome.is_ok())
        .map(|record| &record.outcome)
        .collect();
    ensure!(open.is_empty(), "{open:?}");
    ensure!(
        records
            .iter()
            .filter(|record| record.study == "readout/sweep")
            .count()
            == 24,
        "{} points",
        records.len()
    );
    daqmeter(&["readout", "reproduce"])
}

/// Triggers in the 50 s of the published run, and each E-link's chunks by its link.
const TRIGGERS: u64 = 49_748_082;
const CHUNKS: [u64; 3] = [49_648_974, 49_724_208, 49_118_639];
/// Blocks of device 0, DMA 0.
const BLOCKS: u64 = 34_262_333;

/// One channel of the published card: how many E-links it has and how many blocks it made.
fn published_channel(channel: &serde_json::Value) -> Result<(usize, u64)> {
    let rows = channel["checked"]["rows"].as_array().context("no rows")?;
    for (nth, row) in rows.iter().enumerate() {
        let wanted = CHUNKS.get(nth / 8).copied().unwrap_or(TRIGGERS);
        ensure!(row["chunks"] == wanted, "{row}");
    }
    Ok((
        rows.len(),
        channel["checked"]["blocks"].as_u64().context("no blocks")?,
    ))
}

fn checked_channels(more: &[&str]) -> Result<Vec<serde_json::Value>> {
    let check = [
        "readout",
        "check",
        "--scenario",
        "nikhef",
        "--level",
        "2",
        "--json",
    ];
    let text = output(&program(), &[&check[..], more].concat())?;
    Ok(text
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?)
}

/// 50 s worth of the published data of two channels, made and checked: their counts are the published ones. All sixteen channels are
/// made for a second's worth; [`published_run_whole`] makes all of them for the whole time.
fn published_run() -> Result<Done> {
    for (channel, elinks) in [("0.0", 25), ("3.1", 24)] {
        let found =
            checked_channels(&["--triggers", &TRIGGERS.to_string(), "--channels", channel])?;
        ensure!(found.len() == 1, "{} channels", found.len());
        let (rows, blocks) = published_channel(&found[0]).with_context(|| channel.to_owned())?;
        ensure!(rows == elinks, "{channel}: {rows} E-links");
        ensure!(
            channel != "0.0" || blocks == BLOCKS,
            "{blocks} blocks instead of the published {BLOCKS}"
        );
        println!(
            "channel {channel}: {rows} E-links, each with the published count; {blocks} blocks"
        );
    }
    let all = checked_channels(&["--triggers", "1M"])?;
    let elinks: usize = all
        .iter()
        .filter_map(|channel| Some(channel["checked"]["rows"].as_array()?.len()))
        .sum();
    ensure!(
        (all.len(), elinks) == (16, 384 + 4),
        "{} channels with {elinks} E-links",
        all.len()
    );
    println!("{elinks} E-links of 16 channels for 1M triggers: nothing missing, nothing wrong");
    Ok(Done::Ran)
}

/// All channels of the published run for all of its 50 s: about eight minutes of CPU.
pub(crate) fn published_run_whole() -> Result<()> {
    let channels = checked_channels(&["--triggers", &TRIGGERS.to_string()])?;
    let counts: Vec<(usize, u64)> = channels
        .iter()
        .map(published_channel)
        .collect::<Result<_>>()?;
    let elinks: usize = counts.iter().map(|(rows, _)| rows).sum();
    ensure!(
        (counts.len(), elinks) == (16, 384 + 4),
        "{} channels with {elinks} E-links",
        counts.len()
    );
    ensure!(
        counts[0].1 == BLOCKS,
        "{} blocks instead of the published {BLOCKS}",
        counts[0].1
    );
    println!("{elinks} E-links, each with the published count; {BLOCKS} blocks in device 0, DMA 0");
    Ok(())
}

/// Latency, bandwidth and pollution at a few sizes fill figures that a browser draws; every claim gets a verdict.
fn copies() -> Result<()> {
    let (out, html) = (scratch("copies.jsonl")?, scratch("copies.html")?);
    let common = ["--reps", "20", "--out", &out];
    let sizes = ["--sizes", "1,64,4KiB,64KiB,1MiB"];
    daqmeter(&[&["copy", "latency"], &common[..], &sizes[..]].concat())?;
    daqmeter(
        &[
            &["copy", "latency", "--load", "heavy", "--contexts", "cpu"],
            &common[..],
            &sizes[..],
        ]
        .concat(),
    )?;
    daqmeter(
        &[
            &["copy", "bandwidth"],
            &common[..],
            &["--sizes", "4KiB,64KiB"],
        ]
        .concat(),
    )?;
    daqmeter(
        &[
            &["copy", "pollution"],
            &common[..],
            &[
                "--tests",
                "qsort_small,susan[e]_small",
                "--copies",
                "from:16064",
            ],
        ]
        .concat(),
    )?;
    daqmeter(&["copy", "trace", "--time", "1s", "--out", &out])?;
    let simulated = vm::folder().join("pollution.jsonl").display().to_string();
    let mut files = vec![out.as_str()];
    if Path::new(&simulated).exists() {
        files.push(&simulated);
    }
    daqmeter(&[&["copy", "figures"], &files[..], &["-o", &html]].concat())?;
    page::page(html.as_ref())?;
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
    let common = [
        "pmu",
        "stat",
        "--emulated",
        "cmn700",
        "--heat",
        "hnf_mc_reqs",
        "-I",
        "20ms",
        "--count",
        "30",
    ];
    output(&program(), &[&common[..], &["-o", &html]].concat())?;
    page::page(html.as_ref())?;
    // Others may use the disk meanwhile.
    ran(tried(|| daqmeter(&["pmu", "verify", "--time", "500ms"])))
}
