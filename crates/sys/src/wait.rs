//! Waiting: the interrupt line of an emulated board (a timerfd that the kernel's clock signals, or an eventfd that another thread
//! or process signals), and sleep that is as short as was asked.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
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
        let fd = unsafe {
            libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK)
        };
        if fd < 0 {
            return Err(SysError::last("timerfd_create"));
        }
        // SAFETY: the descriptor was just created and is owned by nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(IrqLine { fd })
    }

    /// A line that another thread or process fires by [`IrqLine::signal`] (eventfd).
    ///
    /// # Errors
    /// When the process has no descriptors left.
    pub fn event() -> Result<IrqLine, SysError> {
        // SAFETY: creates a new descriptor; the flags are constants.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(SysError::last("eventfd"));
        }
        // SAFETY: the descriptor was just created and is owned by nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(IrqLine { fd })
    }

    /// The other end of an event line, as it came from another process.
    pub fn of_fd(fd: OwnedFd) -> IrqLine {
        IrqLine { fd }
    }

    /// The descriptor, to pass on.
    pub fn share(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Fires an event line.
    pub fn signal(&self) {
        let one = 1_u64.to_ne_bytes();
        // A full counter is a signal already.
        // SAFETY: the descriptor is open and non-blocking; 8 bytes are read from `one`.
        unsafe { libc::write(self.fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Sets the line to fire at `at_ns` of the monotonic clock; at once when that has passed.
    pub fn fire_at(&self, at_ns: u64) {
        let at_ns = at_ns.max(1); // zero would disarm
        #[allow(
            clippy::cast_possible_wrap,
            reason = "seconds and nanoseconds of the monotonic clock are far below 2^63"
        )]
        let value = libc::timespec {
            tv_sec: (at_ns / 1_000_000_000) as i64,
            tv_nsec: (at_ns % 1_000_000_000) as i64,
        };
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

/// Makes the calling thread's sleeps end when they should: the default slack of 50 us is longer than a polling interval.
pub fn without_timer_slack() {
    // SAFETY: takes integers only; 1 ns is the smallest slack.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64) };
}

/// Sleeps until that time of the monotonic clock; a signal ends it early.
pub fn sleep_until(at_ns: u64) {
    #[allow(
        clippy::cast_possible_wrap,
        reason = "seconds and nanoseconds of the monotonic clock are far below 2^63"
    )]
    let at = libc::timespec {
        tv_sec: (at_ns / 1_000_000_000) as i64,
        tv_nsec: (at_ns % 1_000_000_000) as i64,
    };
    // SAFETY: a valid time; what would remain is not asked for.
    unsafe {
        libc::clock_nanosleep(
            libc::CLOCK_MONOTONIC,
            libc::TIMER_ABSTIME,
            &raw const at,
            std::ptr::null_mut(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_line_is_fired_from_outside() {
        let line = IrqLine::event().unwrap();
        let other = IrqLine::of_fd(line.share().try_clone_to_owned().unwrap());
        other.signal();
        other.signal();
        assert!(line.wait(Duration::from_secs(5)).unwrap());
        assert!(!line.wait(Duration::ZERO).unwrap());
    }

    #[test]
    fn a_sleep_until_the_past_does_not_sleep() {
        without_timer_slack();
        sleep_until(1);
    }

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
