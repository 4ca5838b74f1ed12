//! The first SIGINT or SIGTERM ends every verb soon: its results are kept and reported, and the
//! exit code is 130.

use std::io::{BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{Running, command, signal, until};
use daqmeter_record::jsonl;

#[derive(Clone, Copy, Debug)]
enum Begun {
    TookOver,
    Lane,
    Record,
    Says(&'static str),
    Prints,
}

fn wait_until(running: &Running, begun: Begun) {
    let (pid, folder) = (running.child.id(), running.folder.path());
    match begun {
        Begun::TookOver => until("no signal is taken over", || has_taken_over(pid)),
        Begun::Lane => until("no lane", || has_thread(pid, "lane-")),
        Begun::Record => until("no record", || records(folder).0 > 0),
        Begun::Says(text) => drop(running.said(text)),
        Begun::Prints => drop(running.printed()),
    }
}

fn has_taken_over(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    // SIGINT is bit 1, SIGTERM bit 14, SIGHUP, the last that is taken over, bit 0.
    caught & 0x4003 == 0x4003
}

fn has_thread(pid: u32, prefix: &str) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let name = |task: std::fs::DirEntry| {
        std::fs::read_to_string(task.path().join("comm")).unwrap_or_default()
    };
    tasks.into_iter().any(|task| name(task).starts_with(prefix))
}

fn records(folder: &Path) -> (usize, usize) {
    let Ok(file) = std::fs::File::open(folder.join("records.jsonl")) else {
        return (0, 0);
    };
    let contents = jsonl::read(BufReader::new(file)).unwrap();
    (contents.records.len(), contents.errors.len())
}

/// Each verb with a long job: the moment of the signal, and the presence of a record afterwards.
const CASES: [(&str, Begun, bool); 20] = [
    (
        "digitizer emu:l0 -S 3200 -N 18446744073709551615 --unpaced --records records.jsonl",
        Begun::Lane,
        true,
    ),
    ("digitizer emu:l0 -S 320 -l 1000000000 --rate 1e7 --records records.jsonl", Begun::Lane, true),
    ("digitizer emu:l0 -S 320 -l 10 --rate 0.0001 --records records.jsonl", Begun::Lane, true),
    ("digitizer emu:l0 -S 320 -l 10 --rate 0.0001 -i --records records.jsonl", Begun::Lane, true),
    (
        "copy latency --sizes 64,4KiB,64KiB,1MiB --repeat 20000 --records records.jsonl",
        Begun::Record,
        true,
    ),
    (
        "copy bandwidth --sizes 64,4KiB,64KiB,1MiB --lanes 2 --repeat 20000 --records records.jsonl",
        Begun::Record,
        true,
    ),
    ("reproduce copy --repeat 20000 --records records.jsonl", Begun::Record, true),
    ("copy verify --times 1000000", Begun::TookOver, false),
    ("survey --time 1h --records records.jsonl", Begun::Record, true),
    ("run conversion --records records.jsonl", Begun::Record, true),
    ("run conversion --at +1h --records records.jsonl", Begun::Says("starts at"), false),
    ("reproduce etherbone --records records.jsonl", Begun::Record, true),
    ("eb perf loop/udp --records records.jsonl", Begun::Record, true),
    ("eb tunnel 0", Begun::Says("tunnel on TCP port"), false),
    ("eb snoop 0 0x1000-0x1fff", Begun::Says("serving on port"), false),
    (
        "pmu stat --emulated n1sdp -e arm_cmn/hnf_mc_reqs/ -I 50ms --records records.jsonl",
        Begun::Prints,
        true,
    ),
    ("pmu stat --emulated n1sdp -e arm_cmn/hnf_mc_reqs/ --step", Begun::TookOver, false),
    ("pmu verify net --time 1h", Begun::TookOver, false),
    ("history -", Begun::TookOver, false),
    ("report -", Begun::TookOver, false),
];

#[test]
fn a_signal_ends_every_verb_and_what_was_measured_is_kept() {
    for (at, (arguments, begun, is_recorded)) in CASES.into_iter().enumerate() {
        let mut running = Running::start(arguments);
        wait_until(&running, begun);
        running.signal(["INT", "TERM"][at % 2]);
        let (code, text) = running.end();
        assert_eq!(code, Some(130), "{arguments}: {text}");
        let (whole, torn) = records(running.folder.path());
        assert_eq!((whole > 0 || !is_recorded, torn), (true, 0), "{arguments}: {text}");
        let left = std::fs::read_dir(running.folder.path()).unwrap().flatten();
        let unfinished =
            |file: &std::fs::DirEntry| file.file_name().to_string_lossy().ends_with(".part");
        assert_eq!(left.filter(unfinished).count(), 0, "{arguments}");
        if arguments.starts_with("survey") {
            assert!(running.folder.path().join("report.html").is_file(), "{text}");
        }
    }
}

/// Regression: runs of minutes printed nothing.
#[test]
fn work_of_more_than_five_seconds_is_announced_and_its_progress_is_told() {
    for (line, said) in [
        ("path run pattern --time 60s", "daqmeter: about 60 s"),
        ("path run pattern --max --json", "daqmeter: about 50 s"),
        ("readout run gbt --rate 10kHz --time 1m", "daqmeter: about 60 s"),
        ("run conversion", " points, about "),
        ("copy latency", "daqmeter: 312 points, about 47 s"),
        ("copy verify --times 1000", "daqmeter: "),
        ("ab null null --time 1m", "daqmeter: about 60 s"),
        ("pmu stat -e page-faults --count 1 -I 20s", "daqmeter: about 20 s"),
    ] {
        let mut running = Running::start(line);
        running.said(said);
        running.signal("INT");
        assert_eq!(running.end().0, Some(130), "{line}");
    }
}

#[test]
fn a_second_signal_is_no_crash() {
    let mut running = Running::start("pmu stat --emulated n1sdp -e arm_cmn/hnf_mc_reqs/ -I 50ms");
    running.printed();
    // Two signals may come before the verb has looked; the second then ends the program.
    running.signal("INT");
    let second = Command::new("kill").args(["-TERM", &running.child.id().to_string()]).output();
    assert!(second.is_ok());
    assert_eq!(running.end().0, Some(130));
}

/// Regression: the run ended with 0, and said how to continue it from the file.
#[test]
fn records_that_are_removed_in_a_run_end_it() {
    let mut running = Running::start("run conversion --records records.jsonl");
    wait_until(&running, Begun::Record);
    std::fs::remove_file(running.folder.path().join("records.jsonl")).unwrap();
    let said = running.said("was removed");
    assert!(said.ends_with("was removed during the run, with the records in it"), "{said}");
    assert_eq!(running.end().0, Some(1));
}

/// Regression: a signal ended it only after 8 s, by force.
#[test]
fn a_server_whose_output_nothing_reads_ends_at_a_signal() {
    let (reader, output) = std::io::pipe().unwrap();
    let mut full = output.try_clone().unwrap();
    std::thread::spawn(move || while full.write_all(b"something else\n").is_ok() {});
    let mut serve = command("path serve 127.0.0.1:0");
    let child = serve.stdout(output).stderr(Stdio::piped()).spawn().unwrap();
    until("no printer", || has_thread(child.id(), "printer"));
    signal(child.id(), "INT");
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!((ended.status.code(), &*said), (Some(130), ""));
    drop(reader);
}
