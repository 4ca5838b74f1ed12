//! What a verb says when something is wrong: lines on stderr, and the exit code.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use daqmeter_record::sanitise;

/// Exit code when the work could not be done at all.
const COULD_NOT_RUN: u8 = 2;
/// The name that the program was called by, if it is that of a C tool.
pub(crate) fn program_name() -> &'static str {
    static NAME: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    NAME.get_or_init(|| tool_name().map_or("daqmeter".to_owned(), |tool| format!("eb-{tool}")))
}

/// `read`, when the program was called as `eb-read`.
pub(crate) fn tool_name() -> Option<String> {
    let called = std::env::args_os().next()?;
    let name = Path::new(&called).file_name()?.to_str()?;
    name.strip_prefix("eb-").map(str::to_owned)
}

/// Exit code when something measured failed.
pub(crate) const FAILED: u8 = 1;
/// Exit code when what was measured does not say.
pub(crate) const CANNOT_TELL: u8 = 3;
/// Exit code after Ctrl-C, as shells have it: 128 + SIGINT.
pub(crate) const INTERRUPTED: u8 = 130;

/// Exit code after the reader of the output has closed it, as shells have it: 128 + SIGPIPE.
const UNREAD: u8 = 141;

/// Why the verb ends without success: one line.
#[derive(Debug)]
pub(crate) struct Failure {
    line: String,
    code: u8,
}

impl Failure {
    /// Bad input or a missing prerequisite.
    pub(crate) fn refused(line: impl Display) -> Failure {
        Failure { line: line.to_string(), code: COULD_NOT_RUN }
    }

    /// Any error of a C tool: they have one exit code.
    pub(crate) fn tool(line: impl Display) -> Failure {
        Failure { line: line.to_string(), code: FAILED }
    }

    /// Ctrl-C, where there is no result to go with what was measured.
    pub(crate) fn interrupted() -> Failure {
        Failure { line: "interrupted; what was measured is kept".to_owned(), code: INTERRUPTED }
    }

    /// Failure after the reader of standard output has closed it (`| head`). Nothing is printed
    /// about it, as other filters do.
    pub(crate) fn unread() -> Failure {
        Failure { line: String::new(), code: UNREAD }
    }

    /// The line.
    pub(crate) fn line(&self) -> &str {
        &self.line
    }

    /// Prints the line and gives the exit code.
    pub(crate) fn report(self) -> ExitCode {
        if !self.line.is_empty() {
            // If stderr is closed too, no message can be printed.
            let _ = writeln!(io::stderr(), "{}: {}", program_name(), sanitise::text(&self.line));
        }
        ExitCode::from(self.code)
    }
}

impl From<daqmeter_harness::Refusal> for Failure {
    fn from(refusal: daqmeter_harness::Refusal) -> Self {
        Failure::refused(refusal)
    }
}

impl From<daqmeter_harness::Fault> for Failure {
    fn from(fault: daqmeter_harness::Fault) -> Self {
        Failure::refused(fault)
    }
}

/// A line for people, on stderr.
pub(crate) fn tell(line: &str) {
    let _ = writeln!(io::stderr(), "{}", sanitise::text(line));
}

/// The same for text of several lines.
pub(crate) fn tell_lines(text: &str) {
    let _ = write!(io::stderr(), "{}", sanitise::lines(text));
}
