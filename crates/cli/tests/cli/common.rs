//! Runs of the program as scripts make them.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_daqmeter");

const PATIENCE: Duration = Duration::from_secs(120);
/// Longest time until the end: 2 s are promised, but a busy host needs more.
const END: Duration = Duration::from_secs(10);

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Returns the program with a command line of words; words in '' may hold spaces. Its output is
/// broad, so that tests find whole sentences in a line.
pub(crate) fn command(line: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.env("COLUMNS", "400");
    for (at, part) in line.split('\'').enumerate() {
        match at % 2 {
            0 => command.args(part.split_whitespace()),
            _ => command.arg(part),
        };
    }
    command
}

pub(crate) fn run(line: &str) -> Output {
    command(line).output().unwrap()
}

fn checked(code: i32, line: &str, output: &Output) -> (String, String) {
    let (out, said) = (stdout(output), stderr(output));
    assert_eq!(output.status.code(), Some(code), "{line}: {out}{said}");
    (out, said)
}

/// Checks that a command line ends with this code, and returns its two outputs.
pub(crate) fn ends_with(code: i32, line: &str) -> (String, String) {
    checked(code, line, &run(line))
}

/// Returns what a command line prints that must succeed.
pub(crate) fn done(line: &str) -> String {
    ends_with(0, line).0
}

/// A folder for the files of a test, in which the program runs.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        std::fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        std::fs::write(self.path(name), text).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    pub(crate) fn files(&self) -> usize {
        std::fs::read_dir(&self.0).unwrap().count()
    }

    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = command(line);
        command.current_dir(&self.0);
        command
    }

    pub(crate) fn ends_with(&self, code: i32, line: &str) -> (String, String) {
        checked(code, line, &self.command(line).output().unwrap())
    }

    pub(crate) fn done(&self, line: &str) -> String {
        self.ends_with(0, line).0
    }

    /// Checks that a command line ends with 2 and this message, and prints nothing else.
    pub(crate) fn refuses(&self, line: &str, wanted: &str) {
        let (out, said) = self.ends_with(2, line);
        assert!(said.contains(wanted) && out.is_empty(), "{line}: {out}{said}");
    }
}

/// Checks that each command line ends with this code, has its message on stderr, and prints nothing
/// else.
pub(crate) fn fail_with(code: i32, calls: &[(&str, &str)]) {
    for (line, wanted) in calls {
        let (out, said) = ends_with(code, line);
        assert!(said.contains(wanted), "{line}: {said}");
        assert!(out.is_empty(), "{line}: {out}");
        let is_ours = said.starts_with("daqmeter: ");
        assert!(!is_ours || said.lines().count() == 1, "{line}: {said}");
    }
}

pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        std::thread::yield_now();
    }
}

pub(crate) fn signal(pid: u32, name: &str) {
    let kill = format!("kill -{name} {pid}");
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
}

/// A program under way, in a folder of its own. It ends with the test, also with one that failed.
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) folder: tempfile::TempDir,
    stdout: Receiver<String>,
    stderr: Receiver<String>,
}

impl Running {
    pub(crate) fn start(line: &str) -> Running {
        let folder = tempfile::tempdir().unwrap();
        let mut command = command(line);
        command.current_dir(folder.path()).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = lines(child.stdout.take().unwrap());
        let stderr = lines(child.stderr.take().unwrap());
        Running { child, folder, stdout, stderr }
    }

    /// Waits for a line on stderr with this text, and returns it.
    pub(crate) fn said(&self, text: &str) -> String {
        loop {
            let line = self.stderr.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|_| panic!("it ended without `{text}`"));
            if line.contains(text) {
                return line;
            }
        }
    }

    /// Returns the next line on stdout.
    pub(crate) fn printed(&self) -> String {
        self.stdout.recv_timeout(PATIENCE).unwrap()
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// Waits for the end; returns the exit code and the lines on stdout that are left.
    pub(crate) fn end(&mut self) -> (Option<i32>, String) {
        let said = || self.stderr.try_iter().collect::<Vec<_>>().join("\n");
        let has_ended = daqmeter_sys::process::ends_within(&self.child, END).unwrap();
        assert!(has_ended, "still running: {}", said());
        let status = self.child.wait().unwrap();
        (status.code(), self.stdout.iter().map(|line| line + "\n").collect())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The program may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        let mut lines = BufReader::new(pipe).lines().map_while(Result::ok);
        // A test that has ended takes no more.
        lines.try_for_each(|line| send.send(line))
    });
    receive
}
