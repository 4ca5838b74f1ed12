//! Outputs for people and scripts: files that are named once, answers before tables, metrics during
//! a run.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use crate::common::{self, Folder, stderr};

pub(crate) const RECORDS: &str = include_str!("../../../record/testdata/v1/digitizer.jsonl");

#[test]
fn a_device_and_another_output_take_what_a_verb_writes() {
    let folder = Folder::new();
    let texts = [("r.jsonl", RECORDS), ("page.html", "<!doctype html>"), ("p.toml", PLAN)];
    texts.iter().for_each(|(name, text)| folder.write(name, text));
    for line in [
        "report r.jsonl --format csv -o /dev/null",
        "report r.jsonl --format csv -o /dev/stdout",
        "report r.jsonl -o -",
        "report r.jsonl -o page.html",
        "run p.toml --records /dev/null",
    ] {
        folder.done(line);
    }
}

/// Issue 50: the line about the host was folded for the window, also in Markdown.
#[test]
fn what_programs_read_is_the_same_in_every_window() {
    let folder = Folder::new();
    folder.write("p.toml", PLAN);
    folder.done("run p.toml --records r.jsonl -q");
    for line in [
        "report r.jsonl --format md",
        "report r.jsonl --format csv",
        "report r.jsonl --format json",
        "report r.jsonl -o -",
        "compare r.jsonl r.jsonl --json",
        "history r.jsonl --json",
        "list --json",
        "list quick --json",
        "pmu list --json",
        "eb ls emu/gige --json",
    ] {
        let of = |columns: &str| folder.command(line).env("COLUMNS", columns).output().unwrap();
        let (narrow, broad) = (of("40"), of("400"));
        assert_eq!(common::stdout(&narrow), common::stdout(&broad), "{line}");
    }
    // Without slices that can be used there is no line about the host.
    let text = folder.done("report r.jsonl --format md");
    assert!(text.lines().any(|line| line.starts_with("- ") || line.len() > 100), "{text}");
}

#[test]
fn each_row_of_what_is_looked_up_is_a_line_of_json() {
    let rows = |line: &str| -> Vec<serde_json::Value> {
        let text = common::done(line);
        text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
    };
    let is_row = |row: &serde_json::Value, fields: &[&str]| {
        let row = row.as_object().unwrap();
        row.len() == fields.len() && fields.iter().all(|field| row[*field].is_string())
    };
    for (line, fields) in [
        ("doctor --json", &["state", "what", "found", "what_to_do"][..]),
        ("list devices --json", &["device", "driver", "description"]),
        ("list engines --json", &["engine", "state", "description"]),
        ("list plans --json", &["plan", "points", "title"]),
        ("list paths --json", &["path", "title"]),
        ("list bridges --json", &["bridge", "kind", "model"]),
        ("list copies --json", &["path", "description", "state"]),
        ("list quick --json", &["study", "engine", "parameters", "steps", "times", "state"]),
        ("eb ls emu/gige --json", &["path", "vendor", "device", "first", "last", "name"]),
    ] {
        let rows = rows(line);
        assert!(rows.len() > 2 && rows.iter().all(|row| is_row(row, fields)), "{line}: {rows:?}");
    }
    let scenario = &rows("list scenarios --json")[0];
    assert_eq!(
        (&scenario["scenario"], &scenario["devices_x_channels"]),
        (&"gbt".into(), &"1 x 1".into())
    );
    let found = rows("eb ls emu/gige --find 0x651:0xb2afc251 --json");
    assert_eq!((found.len(), &found[0]["first"]), (1, &"0x101000".into()));
    let read = rows("eb read emu/gige 0x101018/4 --json");
    assert!(
        is_row(&read[0], &["address", "bytes", "value"]) && read[0]["bytes"] == "4",
        "{read:?}"
    );
    common::fail_with(2, &[("list felix-card --json", "--toml prints its file")]);
}

/// Issue 50: the pipe was opened for reading, which never ended.
#[test]
fn records_go_into_a_pipe_line_by_line() {
    let folder = Folder::new();
    folder.write("p.toml", PLAN);
    assert!(Command::new("mkfifo").arg(folder.path("pipe")).status().unwrap().success());
    let path = folder.path("pipe");
    let reader = std::thread::spawn(move || std::fs::read(path).unwrap());
    folder.done("run p.toml --records pipe");
    let read = daqmeter_record::jsonl::read(&reader.join().unwrap()[..]).unwrap();
    assert_eq!((read.records.len(), read.errors.len()), (1, 0));
}

const BOOK: &str = include_str!("../../../../docs/book/src/verbs/index.md");

#[test]
fn each_exit_code_of_the_book_is_that_of_its_example() {
    let folder = Folder::new();
    folder.write("r.jsonl", RECORDS);
    let row = |line: &'static str| {
        let mut cells = line.split('|').map(str::trim).skip(1);
        let (code, _, example) = (cells.next()?, cells.next()?, cells.next()?);
        let example = example.strip_prefix("`daqmeter ")?.split(['`', '\\']).next()?;
        Some((code.parse::<i32>().ok()?, example))
    };
    let rows: Vec<_> = BOOK.lines().filter_map(row).collect();
    for (code, example) in &rows {
        let ended = match code {
            130 => {
                let mut child = common::Running::start(example);
                child.printed();
                child.signal("INT");
                child.end().0
            }
            141 => {
                let (_, closed) = std::io::pipe().unwrap();
                folder.command(example).stdout(closed).status().unwrap().code()
            }
            _ => folder.command(example).output().unwrap().status.code(),
        };
        assert_eq!(ended, Some(*code), "{example}");
    }
    assert!(rows.iter().map(|(code, _)| *code).eq([0, 1, 2, 3, 130, 141]), "{rows:?}");
}

/// A reader that closes the pipe (`| head -1`) ends the run as it ends other programs. The measured
/// points are in the file.
#[test]
fn a_closed_pipe_is_no_success_and_costs_no_record() {
    let folder = Folder::new();
    folder.write("p.toml", format!("{PLAN}repetitions = 100\n"));
    let start = |line: &str| -> Child {
        let mut command: Command = folder.command(line);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut child = start("run p.toml --json --records r.jsonl");
    let mut first = String::new();
    let mut reader = BufReader::with_capacity(16, child.stdout.take().unwrap());
    reader.read_line(&mut first).unwrap();
    drop(reader);
    let out = child.wait_with_output().unwrap();
    assert_eq!((out.status.code(), stderr(&out).as_str()), (Some(141), ""));
    let kept = folder.read("r.jsonl");
    assert!(kept.starts_with(&first) && kept.lines().count() > 1);
    let mut child = start("readout record gbt --triggers 1M -o -");
    child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
    let out = child.wait_with_output().unwrap();
    assert_eq!((out.status.code(), stderr(&out).as_str()), (Some(141), ""));
}

#[test]
fn help_is_a_verb_and_folders_are_read_by_every_verb_of_records() {
    let folder = Folder::new();
    for verbs in ["", "readout run", "compare"] {
        let as_verb = folder.done(&format!("help {verbs}"));
        assert_eq!(as_verb.trim(), folder.done(&format!("{verbs} --help")).trim());
        assert!(as_verb.contains("Usage: daqmeter"));
    }
    folder.write("day/r.jsonl", RECORDS);
    for format in ["text", "csv"] {
        let of_file = folder.done(&format!("report day/r.jsonl --format {format}"));
        assert_eq!(folder.done(&format!("report day --format {format}")), of_file);
    }
    let (text, _) = folder.ends_with(3, "compare day/r.jsonl day/r.jsonl --all");
    assert!(text.contains("records of"), "{text}");
    let of_folder = text.replace("day/r.jsonl", "day");
    assert_eq!(folder.ends_with(3, "compare day day --all").0, of_folder);
}

pub(crate) const PLAN: &str = "
title = 't'
time = '5ms'
[[sweep]]
study = 'a'
engine = 'null'
";

#[test]
fn records_are_appended_and_quiet_prints_nothing() {
    let folder = Folder::new();
    folder.write("p.toml", PLAN);
    for lines in 1..=2 {
        assert!(folder.done("run p.toml --records r.jsonl").contains("the tool's own loop"));
        assert_eq!(folder.read("r.jsonl").lines().count(), lines);
    }
    let quiet = folder.ends_with(0, "run p.toml -q --records r.jsonl");
    assert_eq!(quiet, (String::new(), String::new()));
}

#[test]
fn a_record_has_the_slices_that_its_level_is_judged_by() {
    let folder = Folder::new();
    folder.write("p.toml", PLAN);
    let record: serde_json::Value =
        serde_json::from_str(&folder.done("run p.toml --json")).unwrap();
    let slices = &record["lanes"][0]["stages"][0]["slices"];
    let of = |column: &str| slices[column].as_array().map_or(0, Vec::len);
    assert!(of("samples") > 0 && of("gap_ns") == of("samples"), "{slices}");
    let probed = if record["clock"]["chain_cycles"] == 0 { 0 } else { of("samples") };
    assert_eq!((of("chain_ns"), of("sibling_ns")), (probed, probed), "{slices}");
}

/// A survey of little time reports the points that it left out, and prints its screen without tables.
#[test]
fn a_survey_answers_first_and_ends_with_its_budget() {
    let out = Folder::new().command("survey --time 1").output().unwrap();
    let (text, said) = (common::stdout(&out), stderr(&out));
    assert!(matches!(out.status.code(), Some(0 | 1)), "{said}");
    assert!(text.contains("left out for lack of time"), "{text}");
    assert!(!text.contains("spread [%]") && text.contains(" points in "), "{text}");
}

/// Regression: a survey in such a folder measured for a minute first.
#[test]
fn a_survey_in_a_folder_that_takes_no_files_is_refused_at_once() {
    let out = common::command("survey").current_dir("/proc").output().unwrap();
    assert_eq!((out.status.code(), out.stdout.len()), (Some(2), 0));
    assert!(stderr(&out).starts_with("daqmeter: cannot write report.html: "), "{}", stderr(&out));
}

/// Width of the broadest line of what a command line prints.
fn broadest(line: &str, columns: Option<&str>) -> usize {
    let folder = Folder::new();
    folder.write("a.jsonl", RECORDS);
    let mut command = folder.command(line);
    match columns {
        Some(columns) => command.env("COLUMNS", columns),
        None => command.env_remove("COLUMNS"),
    };
    let out = command.output().unwrap();
    let text = common::stdout(&out);
    assert!(out.stdout.is_ascii() && !text.is_empty(), "{line}: {text}{}", stderr(&out));
    text.lines().map(|line| line.chars().count()).max().unwrap()
}

#[test]
fn text_fits_the_columns_that_are_set_and_else_100_and_is_ascii() {
    let lines = [
        "-h",
        "digitizer emu:l0..9 -S 3000 -N 2 -A 99 --unpaced",
        "doctor",
        "list",
        "list quick",
        "report a.jsonl --format text",
        "reproduce digitizer --no-measurement",
        "copy latency --repeat 2 --sizes 1",
        "eb perf loop/udp -m 1 -l 1 -n 5",
    ];
    let check = |line: &str, set, most| {
        let columns = broadest(line, set);
        assert!(columns <= most, "{line} with COLUMNS={set:?}: {columns}");
    };
    for line in lines {
        check(line, None, 100);
        // Below 40 columns nothing can be read.
        check(line, Some("9"), 40);
    }
    // Text that is not a number is ignored.
    for (set, most) in [("80", 80), ("x", 100)] {
        check("doctor", Some(set), most);
    }
    assert!(broadest("report a.jsonl --format md -o -", Some("40")) > 40);
    assert!(broadest("report a.jsonl --format text --columns all", Some("40")) > 40);
}

#[test]
fn a_narrow_table_names_the_columns_that_it_leaves_out_and_others_can_be_chosen() {
    let folder = Folder::new();
    folder.write("a.jsonl", RECORDS);
    let shown = |line: &str| {
        let out = folder.command(line).env("COLUMNS", "60").output().unwrap();
        common::stdout(&out)
    };
    let text = shown("report a.jsonl --format text");
    assert!(text.contains("left out: CPU [%]") && text.contains("cast, all"), "{text}");
    let chosen = shown("report a.jsonl --format text --columns device,n,rate_bytes_per_s");
    assert!(chosen.contains(" device      n   MB/s\n"), "{chosen}");
}

/// A full disk takes no output. What was measured is printed, and the line says which file failed.
#[test]
fn a_full_disk_is_a_failure_in_one_line_and_what_was_measured_is_printed() {
    let folder = Folder::new();
    folder.write("a.jsonl", RECORDS);
    folder.write("p.toml", format!("{PLAN}repetitions = 50\n"));
    for (line, is_printed) in [
        ("digitizer emu:l0 -S 3000 --records /dev/full", true),
        ("digitizer emu:l0 -S 3000 --records /dev/full --json", true),
        ("digitizer emu:l0 -S 3000 --output /dev/full", true),
        ("run p.toml --records /dev/full", true),
        ("pmu stat -e page-faults --count 1 -I 10ms --records /dev/full", true),
        ("reproduce pmu --no-measurement -o /dev/full", true),
        ("path run pattern --max --time 1s --records /dev/full", true),
        ("readout sweep gbt --probe 10ms --no-curves --records /dev/full", true),
        ("survey --time 1s --records /dev/full --output /dev/null", true),
        ("report a.jsonl -o /dev/full", false),
    ] {
        let (out, said) = folder.ends_with(1, line);
        let why = "cannot write /dev/full: ";
        assert!(said.contains(why) && said.contains("No space left on device"), "{line}: {said}");
        assert_eq!((said.lines().count(), !out.is_empty()), (1, is_printed), "{line}: {out}");
    }
    for line in
        ["digitizer emu:l0 -S 3000 -o-page.html", "list", "report a.jsonl --format csv -o -"]
    {
        let line = line.replace("-o-page.html", "--output page.html");
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let out = folder.command(&line).stdout(full).output().unwrap();
        let said = stderr(&out);
        assert_eq!(out.status.code(), Some(2), "{line}: {said}");
        assert!(said.contains("cannot write to stdout: No space left on device"), "{line}: {said}");
    }
    assert!(folder.path("page.html").is_file());
}

/// A terminal of 40 columns in a locale without UTF-8: only ASCII, the bar of progress, too.
#[test]
fn a_narrow_terminal_without_utf_8_and_without_colour_gets_ascii_that_fits() {
    let program = format!("{} digitizer emu:l0..3 -S 300000 -N 30", common::PROGRAM);
    for (name, value) in [("LC_ALL", "C"), ("NO_COLOR", "1"), ("CLICOLOR_FORCE", "0")] {
        let folder = Folder::new();
        let mut script = Command::new("script");
        script.args(["-qec", &format!("stty cols 40; {program}"), "out"]).env_remove("COLUMNS");
        script.env(name, value).current_dir(folder.path("")).stdin(Stdio::null());
        let done = script.output().expect("script(1) of util-linux gives a terminal");
        assert!(done.status.success(), "{}", stderr(&done));
        let text = folder.read("out");
        assert!(text.is_ascii() && text.contains("left out: "), "{text}");
        let lines =
            text.lines().filter(|line| !line.contains('\u{1b}') && !line.contains("Script"));
        assert!(lines.map(str::len).max().unwrap() <= 40, "{text}");
        // The bar moves the cursor and colours nothing.
        assert!(!text.contains("\u{1b}[3") && !text.contains("\u{1b}[1m"), "{text}");
    }
}
