//! A descriptor to wait on: the interrupt line of an emulated board, a timerfd that the kernel's clock signals.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use crate::SysError;

/// An interrupt line: readable when it fired. Signals before the wait are kept, so none is lost between arm and wait.
#[derive(Debug)]
pub struct IrqLine {
    fd: OwnedFd,
}

impl IrqLine {
    /// A line that fires at a set time (timerfd): the kernel's timer interrupt stands for the card's. It is read like an
    /// eventfd, but needs no thread to signal it, whose CPU time would be counted as ours.
    ///
    /// # Errors
    /// When the process has no descriptors left.
    pub fn timer() -> Result<IrqLine, SysError> {
        // SAFETY: creates a new descriptor; the flags are constants.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) };
        if fd < 0 {
            return Err(SysError::last("timerfd_create"));
        }
        // SAFETY: the descriptor was just created and is owned by nobody else.
        Ok(IrqLine { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Sets the line to fire at `at_ns` of the monotonic clock; at once when that has passed.
    pub fn fire_at(&self, at_ns: u64) {
        let at_ns = at_ns.max(1); // zero would disarm
        #[allow(
            clippy::cast_possible_wrap,
            reason = "seconds and nanoseconds of the monotonic clock are far below 2^63"
        )]
        let value = libc::timespec { tv_sec: (at_ns / 1_000_000_000) as i64, tv_nsec: (at_ns % 1_000_000_000) as i64 };
        let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let setting = libc::itimerspec { it_interval: none, it_value: value };
        // SAFETY: the descriptor is open, `setting` is valid, the old value is not asked for.
        unsafe {
            libc::timerfd_settime(
                self.fd.as_raw_fd(),
                libc::TFD_TIMER_ABSTIME,
                &raw const setting,
                std::ptr::null_mut(),
            );
        }
    }

    /// Forgets a signal that nobody waited for.
    pub fn clear(&self) {
        let mut count = [0_u8; 8];
        // SAFETY: the descriptor is open and non-blocking; `count` takes the 8 bytes.
        unsafe { libc::read(self.fd.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }

    /// Waits until the line has fired and takes the signal. False on timeout.
    ///
    /// # Errors
    /// When the descriptor cannot be polled. A signal to the process ends the wait as a timeout.
    pub fn wait(&self, timeout: Duration) -> Result<bool, SysError> {
        let mut poll = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let limit = libc::timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        // SAFETY: one valid pollfd, a valid timeout, no signal mask.
        let ready = unsafe { libc::ppoll(&raw mut poll, 1, &raw const limit, std::ptr::null()) };
        match ready {
            0 => Ok(false),
            1 => {
                self.clear();
                Ok(true)
            }
            _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => Ok(false),
            _ => Err(SysError::last("ppoll")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_before_the_wait_is_kept_and_wakes_one_wait() {
        let line = IrqLine::timer().unwrap();
        line.fire_at(1);
        assert!(line.wait(Duration::from_secs(5)).unwrap());
        assert!(!line.wait(Duration::ZERO).unwrap());
    }

    #[test]
    fn a_cleared_signal_wakes_nobody() {
        let line = IrqLine::timer().unwrap();
        line.fire_at(1);
        line.clear();
        assert!(!line.wait(Duration::ZERO).unwrap());
    }
}
