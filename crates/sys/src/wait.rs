//! Waiting: the interrupt line of an emulated board (a timerfd that the kernel's clock signals, or
//! an eventfd that another thread or process signals), and sleep that is as short as was asked.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::thread::ClockId;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};

use crate::{SysError, failed};

/// Waits until a descriptor can be read. False on timeout, and after a signal to the process.
pub(crate) fn is_readable_within(fd: BorrowedFd<'_>, limit: Duration) -> Result<bool, SysError> {
    let limit = Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    };
    match rustix::event::poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&limit)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(failed("ppoll")(error)),
    }
}

/// A time of the monotonic clock.
fn timespec(at_ns: u64) -> Timespec {
    let part = |ns: u64| i64::try_from(ns).expect("at most 2^64 / 10^9");
    Timespec { tv_sec: part(at_ns / 1_000_000_000), tv_nsec: part(at_ns % 1_000_000_000) }
}

/// An interrupt line: readable when it fired. Signals before the wait are kept, so none is lost
/// between arm and wait.
#[derive(Debug)]
pub struct IrqLine {
    fd: OwnedFd,
}

impl IrqLine {
    /// A line that fires at a set time (timerfd): the kernel's timer interrupt stands for the
    /// card's. It is read like an eventfd, but needs no thread to signal it, whose CPU time would
    /// be counted as ours.
    ///
    /// # Errors
    /// When the process has no descriptors left.
    pub fn timer() -> Result<IrqLine, SysError> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let fd = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags);
        Ok(IrqLine { fd: fd.map_err(failed("timerfd_create"))? })
    }

    /// A line that another thread or process fires by [`IrqLine::signal`] (eventfd).
    ///
    /// # Errors
    /// When the process has no descriptors left.
    pub fn event() -> Result<IrqLine, SysError> {
        let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(IrqLine { fd: fd.map_err(failed("eventfd"))? })
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
        // A full counter is a signal already.
        let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
    }

    /// Sets the line to fire at `at_ns` of the monotonic clock; at once when that has passed.
    pub fn fire_at(&self, at_ns: u64) {
        // Zero would disarm.
        let setting = Itimerspec { it_interval: timespec(0), it_value: timespec(at_ns.max(1)) };
        let set = rustix::time::timerfd_settime(&self.fd, TimerfdTimerFlags::ABSTIME, &setting);
        set.expect("a timer takes any time");
    }

    /// Forgets an earlier signal.
    pub fn clear(&self) {
        // Nothing can be read where no signal came.
        let _ = rustix::io::read(&self.fd, &mut [0_u8; 8]);
    }

    /// Waits until the line has fired and takes the signal. False on timeout, and after a signal to
    /// the process.
    ///
    /// # Errors
    /// When the descriptor cannot be polled.
    pub fn wait(&self, timeout: Duration) -> Result<bool, SysError> {
        let fired = is_readable_within(self.fd.as_fd(), timeout)?;
        if fired {
            self.clear();
        }
        Ok(fired)
    }
}

/// Makes the calling thread's sleeps end when they should: the default slack of 50 us is longer
/// than a polling interval.
pub fn without_timer_slack() {
    // SAFETY: takes integers only; 1 ns is the smallest slack.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64) };
}

/// Sleeps until that time of the monotonic clock; a signal ends it early.
pub fn sleep_until(at_ns: u64) {
    let _ = rustix::thread::clock_nanosleep_absolute(ClockId::Monotonic, &timespec(at_ns));
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
