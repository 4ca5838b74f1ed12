//! The first SIGINT or SIGTERM ends every verb soon: its results are kept and reported, and the
//! exit code is 130.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use common::PROGRAM;
use daqmeter_record::jsonl;

const PATIENCE: Duration = Duration::from_secs(120);
/// Longest time until the end: 2 s are promised, but a busy host needs more.
const END: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug)]
enum Begun {
    TookOver,
    Lane,
    Record,
    Says(&'static str),
    Prints,
}

struct Running {
    child: Child,
    folder: tempfile::TempDir,
    stdout: Receiver<String>,
    stderr: Receiver<String>,
}

impl Running {
    fn start(arguments: &str) -> Running {
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new(PROGRAM)
            .args(arguments.split(' ').map(|argument| argument.replace("OUT", "records.jsonl")))
            .current_dir(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdout, stderr) =
            (lines(child.stdout.take().unwrap()), lines(child.stderr.take().unwrap()));
        Running { child, folder, stdout, stderr }
    }

    fn wait_until(&mut self, begun: Begun) {
        let (pid, folder) = (self.child.id(), self.folder.path().to_owned());
        match begun {
            Begun::TookOver => self.poll(|| has_taken_over(pid)),
            Begun::Lane => self.poll(|| has_lane(pid)),
            Begun::Record => self.poll(|| records(&folder).0 > 0),
            Begun::Says(text) => {
                while !self.stderr.recv_timeout(PATIENCE).unwrap().contains(text) {}
            }
            Begun::Prints => drop(self.stdout.recv_timeout(PATIENCE).unwrap()),
        }
    }

    fn poll(&mut self, has_begun: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !has_begun() {
            assert!(Instant::now() < deadline, "nothing begins");
            assert!(self.child.try_wait().unwrap().is_none(), "ended early: {:?}", self.said());
            std::thread::yield_now();
        }
    }

    fn signal(&self, name: &str) {
        let sent =
            Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    fn end(&mut self) -> ExitStatus {
        let deadline = Instant::now() + END;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "still running {} s after the signal: {:?}",
                END.as_secs(),
                self.said()
            );
            std::thread::yield_now();
        }
    }

    fn said(&self) -> Vec<String> {
        self.stderr.try_iter().collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A failed test leaves nothing running.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    receive
}

fn has_taken_over(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    // SIGINT is bit 1, SIGTERM bit 14, SIGHUP, the last that is taken over, bit 0.
    caught & 0x4003 == 0x4003
}

fn has_lane(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let name = |task: std::fs::DirEntry| {
        std::fs::read_to_string(task.path().join("comm")).unwrap_or_default()
    };
    tasks.into_iter().any(|task| name(task).starts_with("lane-"))
}

fn records(folder: &Path) -> (usize, usize) {
    let Ok(file) = std::fs::File::open(folder.join("records.jsonl")) else {
        return (0, 0);
    };
    let contents = jsonl::read(BufReader::new(file)).unwrap();
    (contents.records.len(), contents.errors.len())
}

/// Each verb with a long job: the moment of the signal, and the presence of a record afterwards.
const CASES: [(&str, Begun, bool); 19] = [
    ("digitizer emu:l0 -S 3200 -N 18446744073709551615 --unpaced --records OUT", Begun::Lane, true),
    ("digitizer emu:l0 -S 320 -l 1000000000 --rate 1e7 --records OUT", Begun::Lane, true),
    ("digitizer emu:l0 -S 320 -l 10 --rate 0.0001 --records OUT", Begun::Lane, true),
    ("digitizer emu:l0 -S 320 -l 10 --rate 0.0001 -i --records OUT", Begun::Lane, true),
    ("copy latency --sizes 64,4KiB,64KiB,1MiB --reps 20000 --records OUT", Begun::Record, true),
    (
        "copy bandwidth --sizes 64,4KiB,64KiB,1MiB --lanes 2 --reps 20000 --records OUT",
        Begun::Record,
        true,
    ),
    ("reproduce copy --reps 20000 --records OUT", Begun::Record, true),
    ("copy verify --times 1000000", Begun::TookOver, false),
    ("survey --budget 1h --records OUT", Begun::Record, true),
    ("run conversion --records OUT", Begun::Record, true),
    ("reproduce etherbone --records OUT", Begun::Record, true),
    ("eb perf loop/udp --records OUT", Begun::Record, true),
    ("eb tunnel 0", Begun::Says("tunnel on TCP port"), false),
    ("eb snoop 0 0x1000-0x1fff", Begun::Says("serving on port"), false),
    (
        "pmu stat --emulated n1sdp -e arm_cmn/hnf_mc_reqs/ -I 50ms --records OUT",
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
        running.wait_until(begun);
        running.signal(["-INT", "-TERM"][at % 2]);
        let status = running.end();
        assert_eq!(status.code(), Some(130), "{arguments}: {status}: {:?}", running.said());
        let (whole, torn) = records(running.folder.path());
        assert_eq!(
            (whole > 0 || !is_recorded, torn),
            (true, 0),
            "{arguments}: {:?}",
            running.said()
        );
        let left = std::fs::read_dir(running.folder.path())
            .unwrap()
            .flatten()
            .map(|entry| entry.file_name());
        let unfinished = left.filter(|name| name.to_string_lossy().ends_with(".part")).count();
        assert_eq!(unfinished, 0, "{arguments}");
    }
}

#[test]
fn an_interrupted_survey_still_writes_its_page() {
    let mut running = Running::start("survey --budget 1h --records OUT");
    running.wait_until(Begun::Record);
    running.signal("-INT");
    assert_eq!(running.end().code(), Some(130));
    assert!(running.folder.path().join("report.html").is_file(), "{:?}", running.said());
}

#[test]
fn a_second_signal_is_no_crash() {
    let mut running = Running::start("pmu stat --emulated n1sdp -e arm_cmn/hnf_mc_reqs/ -I 50ms");
    running.wait_until(Begun::Prints);
    // Two signals may come before the verb has looked; the second then ends the program.
    running.signal("-INT");
    let _ = Command::new("kill")
        .args(["-TERM", &running.child.id().to_string()])
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert_eq!(running.end().code(), Some(130));
}
