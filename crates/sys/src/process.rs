//! Child processes, as far as `std` does not have them.

use std::process::Child;

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
}
