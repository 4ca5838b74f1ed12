//! The command for a user: exit codes, one clear line for bad input, kept records, printed text.

use crate::common::{Folder, done, ends_with, fail_with};

const QUICK: &str = "digitizer emu:l0 -S 3200 --unpaced";

#[test]
fn every_letter_of_the_original_works_as_typed_before_and_after_devices() {
    let text = done(
        "digitizer -S 30000 emu:l0 -N 3 -o 1 emu:l1 -f 10 -O -1e-5 -F -7e-05 -B 0 -A1 --unpaced --format classic",
    );
    for expected in [
        " function        1",
        " nreads          3",
        " dec_offset      1",
        " dec_factor      10",
        " scale_offset    -0.000010",
        " scale_factor    -0.000070",
        " ndevices        2",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert_eq!(text.matches("func_decsca").count(), 2);
    assert_eq!(text.matches("func_readout").count(), 2);
}

#[test]
fn a_trigger_loop_accounts_for_every_trigger_by_polling_and_by_interrupt() {
    for more in ["", "-i"] {
        let text = done(&format!("{QUICK} -l 8 --rate 1kHz --json {more}"));
        let record: serde_json::Value = serde_json::from_str(&text).unwrap();
        let named = |list: &str, key: &str, name: &str| {
            let all = record[list].as_array().unwrap();
            all.iter().find(|one| one[key] == name).unwrap().clone()
        };
        let triggers = named("ledgers", "unit", "triggers");
        let losses = triggers["losses"].as_object().unwrap().values();
        let lost: u64 = losses.map(|count| count.as_u64().unwrap()).sum();
        assert_eq!(triggers["issued"].as_u64(), Some(8 + lost));
        assert_eq!(triggers["delivered"], 8);
        assert!(named("counters", "name", "register-reads")["value"].as_f64() >= Some(8.0));
    }
}

#[test]
fn a_board_that_disappears_fails_its_row_and_the_run_with_exit_1() {
    let line = "digitizer emu:l0:gone-after=4 emu:l1 -S 3200 -N 9 --unpaced";
    fail_with(1, &[(&format!("{line} -q"), "FAILED: emu:l0:gone-after=4: the board is gone")]);
    let (text, _) = ends_with(1, line);
    assert!(text.contains("FAILED emu:l0:gone-after=4"), "{text}");
    let is_whole = |row: &str| row.contains("emu:l1") && !row.contains("FAILED");
    assert!(text.lines().any(is_whole), "{text}");
    // Thirteen reads of 6400 bytes, nine of the other board; the last of this one failed.
    let ledger = "ledger: 83200 bytes issued = 76800 delivered + 6400 not transferred";
    assert!(text.contains(ledger), "{text}");
}

#[test]
fn a_short_read_is_a_named_loss() {
    let (text, _) = ends_with(1, "digitizer emu:l0:short-read-at=3 -S 3200 -N 9 --unpaced");
    assert!(text.contains("+ 3200 short read"), "{text}");
}

#[test]
fn more_threads_than_cores_are_reported() {
    let text = done("digitizer emu:l0..40 -S 1600 --unpaced");
    assert!(text.contains("41 threads share"), "{text}");
}

fn recorded() -> Folder {
    let folder = Folder::new();
    for function in [0, 4] {
        folder.done(&format!("{QUICK} -N 5 -A {function} --records records.jsonl"));
    }
    folder
}

#[test]
fn records_can_be_shown_and_reported_in_every_format() {
    let folder = recorded();
    let shown = |format: &str| folder.done(&format!("report records.jsonl --format {format}"));
    assert!(shown("text").contains("read-out"));
    assert!(shown("md").starts_with("| point |"));
    assert!(shown("csv").starts_with("run_id,time_utc,study"));
    assert_eq!(shown("json").lines().count(), 2);
    folder.done("report records.jsonl -o page.html");
    assert!(folder.read("page.html").contains("class=\"chart\""));
    // A page that cannot be written leaves nothing behind.
    folder.refuses("report records.jsonl -o missing/page.html", "missing/page.html");
    assert_eq!(folder.files(), 2);
}

#[test]
fn a_cut_file_gives_what_is_whole_and_a_foreign_one_is_refused() {
    let folder = recorded();
    let text = folder.read("records.jsonl");
    folder.write("records.jsonl", &text[..text.len() - 40]);
    let (_, said) = folder.ends_with(0, "report records.jsonl --format text");
    assert!(said.contains("line 2: cut off"), "{said}");
    folder.write("foreign.txt", "hello\n");
    let (_, said) = folder.ends_with(2, "report foreign.txt --format text");
    assert!(said.contains("holds no record"), "{said}");
}

#[test]
fn lists_completions_and_manual_pages_are_printed() {
    for (line, expected) in [
        ("list", "emu:ku0"),
        ("list engines", "digitizer"),
        ("doctor --all", "vector kernels"),
        ("help --completions bash", "daqmeter"),
        ("help --man digitizer", ".TH"),
    ] {
        assert!(done(line).contains(expected), "{line}");
    }
}

#[test]
fn several_studies_are_totals_and_a_page() {
    let folder = Folder::new();
    let text = folder.done("reproduce etherbone pmu --no-measurement -o all.html");
    assert!(text.contains(": 27 rows: ") && text.contains(": 18 rows: "), "{text}");
    let html = folder.read("all.html");
    for part in ["study-etherbone", "study-pmu", "daqmeter reproduce etherbone"] {
        assert!(html.contains(part), "{part}");
    }
}

#[test]
fn records_that_failed_end_a_reproduction_with_1() {
    let example = include_str!("../../../record/testdata/v1/digitizer.jsonl");
    let mut record: serde_json::Value =
        serde_json::from_str(example.lines().next().unwrap()).unwrap();
    let folder = Folder::new();
    for (outcome, code) in [
        (serde_json::json!({ "status": "ok" }), 0),
        (serde_json::json!({ "status": "failed", "reason": "bytes differ" }), 1),
    ] {
        record["outcome"] = outcome;
        folder.write("records.jsonl", format!("{record}\n"));
        folder.ends_with(code, "reproduce digitizer --from records.jsonl");
    }
}
