//! Child processes, as far as `std` does not have them.

use std::os::fd::AsFd;
use std::process::Child;
use std::time::Duration;

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, pidfd_open,
    waitid,
};

use crate::net::is_readable_within;
use crate::{SysError, failed};

/// Asks a child to end (SIGTERM); does nothing if it has ended.
///
/// # Errors
/// EPERM for programs of other users.
pub fn terminate(child: &mut Child) -> Result<(), SysError> {
    // A child that was waited for has no process, and its number may be reused.
    if matches!(child.try_wait(), Ok(Some(_))) {
        return Ok(());
    }
    let call = format!("end process {}", child.id());
    kill_process(Pid::from_child(child), Signal::TERM).map_err(failed(call))
}

/// Waits up to `limit` until a child has ended; it must still be waited for. Returns false on
/// timeout and after a signal.
///
/// # Errors
/// `pidfd_open(2)` fails before Linux 5.3.
pub fn ends_within(child: &Child, limit: Duration) -> Result<bool, SysError> {
    let fd = pidfd_open(Pid::from_child(child), PidfdFlags::empty());
    is_readable_within(fd.map_err(failed("pidfd_open"))?.as_fd(), limit)
}

/// Ends a child that leads its process group, and that whole group, by SIGKILL. This includes
/// processes that an ended child left behind. Does nothing for a child that was waited for, because
/// its number may be reused.
pub fn kill_group(child: &Child) {
    let pid = Pid::from_child(child);
    // NOWAIT leaves an ended child as it is, with its number: waitid(2).
    let looks = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    if waitid(WaitId::Pid(pid), looks).is_ok() {
        let _ = kill_process_group(pid, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_child_is_asked_to_end_once() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        terminate(&mut child).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
        terminate(&mut child).unwrap();
    }

    #[test]
    fn the_end_of_a_child_is_seen_and_a_group_is_ended_whole() {
        use std::os::unix::process::CommandExt;
        let mut child = Command::new("sh")
            .args(["-c", "cat; true"])
            .stdin(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        assert!(!ends_within(&child, Duration::from_millis(1)).unwrap());
        kill_group(&child);
        assert!(ends_within(&child, Duration::from_secs(20)).unwrap());
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
        kill_group(&child);
    }

    #[test]
    fn what_a_child_left_behind_is_ended_with_its_group() {
        use std::io::Read;
        use std::os::unix::process::CommandExt;
        let mut child = Command::new("sh")
            .args(["-c", "sleep 1000 & true"])
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        assert!(ends_within(&child, Duration::from_secs(20)).unwrap());
        kill_group(&child);
        let mut pipe = child.stdout.take().unwrap();
        assert_eq!(pipe.read_to_end(&mut Vec::new()).unwrap(), 0);
        assert!(child.wait().unwrap().success());
    }
}
