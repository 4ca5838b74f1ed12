//! Messages of a failed verb: lines on stderr, and the exit code.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use daqmeter_record::sanitise;

use crate::eb_tools;

const COULD_NOT_RUN: u8 = 2;
pub(crate) const FAILED: u8 = 1;
pub(crate) const CANNOT_TELL: u8 = 3;
/// Exit code after Ctrl-C, as shells have it: 128 + SIGINT.
pub(crate) const INTERRUPTED: u8 = 130;

/// Exit code after the reader of the output has closed it, as shells have it: 128 + SIGPIPE.
const UNREAD: u8 = 141;

/// End of a verb: its exit code, or a message.
pub(crate) type Ended = Result<ExitCode, Failure>;

#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) line: String,
    code: u8,
}

impl Failure {
    pub(crate) fn refused(line: impl Display) -> Failure {
        Failure { line: line.to_string(), code: COULD_NOT_RUN }
    }

    pub(crate) fn tool(line: impl Display) -> Failure {
        Failure { line: line.to_string(), code: FAILED }
    }

    pub(crate) fn interrupted() -> Failure {
        Failure { line: "interrupted; what was measured is kept".to_owned(), code: INTERRUPTED }
    }

    /// Failure after the reader of standard output has closed it (`| head`). It has no message, as
    /// in other filters.
    pub(crate) fn unread() -> Failure {
        Failure { line: String::new(), code: UNREAD }
    }

    pub(crate) fn report(self) -> ExitCode {
        if !self.line.is_empty() {
            // A closed stderr takes no message.
            tell(&format!("daqmeter: {}", self.line));
        }
        ExitCode::from(self.code)
    }
}

/// Every error that has a text refuses the verb.
impl<E: Display> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure::refused(error)
    }
}

pub(crate) fn tell(line: &str) {
    let _ = writeln!(io::stderr(), "{}", sanitise::text(&eb_tools::renamed(line)));
}

pub(crate) fn tell_lines(text: &str) {
    let _ = write!(io::stderr(), "{}", sanitise::lines(text));
}
