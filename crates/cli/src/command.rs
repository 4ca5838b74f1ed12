//! Commands of the user that a verb starts and waits for.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use daqmeter_sys::process::{ends_within, terminate};

use crate::output::Failure;

/// Starts a command; none without words.
pub(crate) fn start(command: &[String], output: Stdio) -> Result<Option<Child>, Failure> {
    let Some((program, arguments)) = command.split_first() else { return Ok(None) };
    let started = Command::new(program).args(arguments).stdout(output).spawn();
    Ok(Some(started.map_err(|error| format!("cannot start {program}: {error}"))?))
}

/// Returns the status of the command. After a signal it is asked to end, too, as in perf stat, and
/// soon killed.
pub(crate) fn end(mut program: Child) -> Result<ExitStatus, Failure> {
    if let Some(status) = program.try_wait()? {
        return Ok(status);
    }
    terminate(&mut program)?;
    if !ends_within(&program, Duration::from_secs(1))? {
        program.kill()?;
    }
    Ok(program.wait()?)
}

/// Returns the exit code of the command, as shells have it: 128 and the signal that ended it.
pub(crate) fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}
