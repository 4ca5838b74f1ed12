//! Runs of the program as scripts make them.

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test program uses its part; a test stops where it fails"
)]

use std::process::{Command, Output};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_daqmeter");

pub(crate) fn daqmeter(verb: &str, arguments: &[&str]) -> Output {
    Command::new(PROGRAM).arg(verb).args(arguments).output().unwrap()
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Runs a command line of words without spaces.
pub(crate) fn run(line: &str) -> Output {
    Command::new(PROGRAM).args(line.split_whitespace()).output().unwrap()
}

/// Returns what a command line prints that must succeed.
pub(crate) fn done(line: &str) -> String {
    let output = run(line);
    assert!(output.status.success(), "{line}: {}", stderr(&output));
    stdout(&output)
}

/// Checks that each command line ends with this code, has its message on stderr, and prints nothing
/// else.
pub(crate) fn fail_with(code: i32, calls: &[(&str, &str)]) {
    for (line, wanted) in calls {
        let output = run(line);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{line}: {said}");
        assert!(said.contains(wanted), "{line}: {said}");
        assert!(stdout(&output).is_empty(), "{line}: {}", stdout(&output));
        let is_ours = said.starts_with("daqmeter: ");
        assert!(!is_ours || said.lines().count() == 1, "{line}: {said}");
    }
}

/// Checks that each call ends with 2, has its message on stderr, and prints nothing else.
pub(crate) fn are_refused(verb: &str, calls: &[(&[&str], &str)]) {
    for (arguments, wanted) in calls {
        let output = daqmeter(verb, arguments);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(wanted), "{arguments:?}: {said}");
        assert!(stdout(&output).is_empty(), "{arguments:?}: {}", stdout(&output));
    }
}
