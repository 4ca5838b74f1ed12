//! A command as a side: each run of it is one slice, from before its start until it has ended.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use daqmeter_harness::{Slice, StopFlag};
use daqmeter_sys::{affinity, process};

use super::process::SHIFT;
use super::question::letter;

const LOOK: Duration = Duration::from_millis(100);

pub(super) struct Run<'a> {
    pub(super) side: usize,
    pub(super) line: &'a str,
    pub(super) cpu: Option<u32>,
    /// Length of an environment variable that shifts its stack.
    pub(super) shift: usize,
    pub(super) patience: Duration,
}

impl Run<'_> {
    pub(super) fn once(&self, stop: &StopFlag) -> Result<Slice, String> {
        let begin = Instant::now();
        let mut child = Ended(self.start()?);
        while !process::ends_within(&child.0, LOOK).map_err(|error| self.wrong(error))? {
            if stop.is_set() {
                return Err(self.wrong("interrupted"));
            }
            if begin.elapsed() > self.patience {
                let seconds = self.patience.as_secs_f64();
                return Err(self.wrong(format!("did not end within {seconds} s and was ended")));
            }
        }
        let ns = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let status = child.0.wait().map_err(|error| self.wrong(error))?;
        match status.success() {
            true => Ok(Slice { ns, ..Slice::default() }),
            false => Err(self.wrong(format!("failed ({status})"))),
        }
    }

    fn wrong(&self, what: impl std::fmt::Display) -> String {
        format!("side {}: `{}` {what}", letter(self.side), self.line)
    }

    fn start(&self) -> Result<Child, String> {
        let mut command = Command::new("sh");
        command
            .args(["-c", self.line])
            .env(SHIFT, "x".repeat(self.shift))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        let spawn = |command: &mut Command| command.spawn().map_err(|error| self.wrong(error));
        let Some(cpu) = self.cpu else {
            return spawn(&mut command);
        };
        // A child has the signal mask of the thread that makes it; this thread exists only for
        // that.
        std::thread::scope(|scope| {
            let pinned = scope.spawn(move || {
                affinity::pin_to(cpu).map_err(|error| self.wrong(error))?;
                spawn(&mut command)
            });
            pinned.join().map_err(|_| self.wrong("could not be started"))?
        })
    }
}

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        process::kill_group(&self.0);
        // A child that cannot be waited for needs nothing more.
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(line: &str, patience: Duration) -> Result<Slice, String> {
        let run = Run { side: 1, line, cpu: None, shift: 5, patience };
        run.once(&StopFlag::default())
    }

    #[test]
    fn a_command_that_fails_or_hangs_is_named() {
        let long = Duration::from_secs(20);
        assert!(run("true", long).unwrap().ns > 0);
        assert!(
            run("exit 3", long)
                .unwrap_err()
                .starts_with("side B: `exit 3` failed (exit status: 3)")
        );
        let hangs = run("tail -f /dev/null", Duration::ZERO).unwrap_err();
        assert!(hangs.contains("did not end within 0 s"), "{hangs}");
        let cpu = affinity::allowed_cpus().unwrap()[0];
        let pinned = Run { side: 0, line: "true", cpu: Some(cpu), shift: 0, patience: long };
        assert!(pinned.once(&StopFlag::default()).is_ok());
        let nowhere = Run { cpu: Some(1023), ..pinned };
        assert!(nowhere.once(&StopFlag::default()).unwrap_err().contains("CPU 1023"));
    }
}
