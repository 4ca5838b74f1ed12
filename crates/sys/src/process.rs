//! Child processes, as far as `std` does not have them.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Child;
use std::time::Duration;

use crate::SysError;

/// Asks a child to end (SIGTERM). One that has ended already is left alone.
///
/// # Errors
/// When the kernel refuses, which it does for programs of other users only.
pub fn terminate(child: &mut Child) -> Result<(), SysError> {
    // A child that was waited for has no process any more; another may have its number.
    if matches!(child.try_wait(), Ok(Some(_))) {
        return Ok(());
    }
    let Ok(pid) = libc::pid_t::try_from(child.id()) else {
        return Ok(());
    };
    // SAFETY: sends a signal and touches no memory. The child was not waited for, which nobody else can do: it is borrowed.
    if unsafe { libc::kill(pid, libc::SIGTERM) } == 0 {
        return Ok(());
    }
    Err(SysError::last(format!("end process {pid}")))
}

/// Waits until a child has ended, at most so long, without the delay of asking again and again. It is still to be waited for. False
/// on timeout, and when a signal came.
///
/// # Errors
/// When the kernel has no descriptor for the process (before Linux 5.3), or none is left.
pub fn ends_within(child: &Child, limit: Duration) -> Result<bool, SysError> {
    // SAFETY: takes integers only. The child was not waited for, which nobody else can do: its number is still its own.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, child.id(), 0) };
    let Some(fd) = i32::try_from(fd).ok().filter(|fd| *fd >= 0) else {
        return Err(SysError::last("pidfd_open"));
    };
    // SAFETY: the descriptor was just created and is owned by nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let limit = libc::timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(limit.subsec_nanos()),
    };
    // SAFETY: one valid pollfd, a valid timeout, no signal mask.
    match unsafe { libc::ppoll(&raw mut poll, 1, &raw const limit, std::ptr::null()) } {
        1 => Ok(true),
        0 => Ok(false),
        _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => Ok(false),
        _ => Err(SysError::last("ppoll")),
    }
}

/// Ends a child that is the first of its process group, and all processes of that group, at once
/// (SIGKILL). This includes processes that the child left behind when it ended. Does nothing for a
/// child that was waited for, as its number may be another's by now.
pub fn kill_group(child: &Child) {
    let Ok(pid) = libc::pid_t::try_from(child.id()) else {
        return;
    };
    // WNOWAIT leaves an ended child as it is, with its number: waitid(2).
    let looks = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: a zeroed siginfo_t is valid, and the call writes to it alone.
    let is_ours = unsafe {
        let mut found: libc::siginfo_t = std::mem::zeroed();
        libc::waitid(libc::P_PID, child.id(), &raw mut found, looks) == 0
    };
    if is_ours {
        // SAFETY: sends a signal and touches no memory. The child was not waited for, so that its number is still its own.
        unsafe { libc::kill(-pid, libc::SIGKILL) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_child_is_asked_to_end_once() {
        // Waits for input that never comes.
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
        // Its pipe closes when the last one that holds it ends.
        let mut pipe = child.stdout.take().unwrap();
        assert_eq!(pipe.read_to_end(&mut Vec::new()).unwrap(), 0);
        assert!(child.wait().unwrap().success());
    }
}
