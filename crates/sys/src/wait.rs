//! Interrupt lines of emulated boards, and sleep of exact length. A line is a timerfd that the
//! kernel's clock signals, or an eventfd that another thread or process signals.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::EventfdFlags;
use rustix::thread::ClockId;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};

use crate::net::{is_readable_within, timespec};
use crate::{SysError, failed};

/// An interrupt line that is readable once it fired. It keeps signals that come before the wait.
#[derive(Debug)]
pub struct IrqLine {
    fd: OwnedFd,
}

impl IrqLine {
    /// Makes a line that fires at a set time (timerfd): the kernel's timer interrupt stands for the
    /// card's. It needs no thread to signal it, whose CPU time would count as ours.
    pub fn timer() -> Result<IrqLine, SysError> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let fd = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags);
        Ok(IrqLine { fd: fd.map_err(failed("timerfd_create"))? })
    }

    pub fn event() -> Result<IrqLine, SysError> {
        let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(IrqLine { fd: fd.map_err(failed("eventfd"))? })
    }

    /// Takes the other end of an event line, received from another process.
    pub fn of_fd(fd: OwnedFd) -> IrqLine {
        IrqLine { fd }
    }

    pub fn share(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub fn signal(&self) {
        // A full counter counts as a signal.
        let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
    }

    pub fn fire_at(&self, at_ns: u64) {
        // Zero would disarm.
        let setting = Itimerspec {
            it_interval: timespec(Duration::ZERO),
            it_value: timespec(Duration::from_nanos(at_ns.max(1))),
        };
        let set = rustix::time::timerfd_settime(&self.fd, TimerfdTimerFlags::ABSTIME, &setting);
        set.expect("a timer takes any time");
    }

    pub fn clear(&self) {
        // `EAGAIN` means that no signal came.
        let _ = rustix::io::read(&self.fd, &mut [0_u8; 8]);
    }

    /// Waits until the line has fired and takes the signal. Returns false on timeout and after a
    /// signal to the process.
    pub fn wait(&self, timeout: Duration) -> Result<bool, SysError> {
        let fired = is_readable_within(self.fd.as_fd(), timeout)?;
        if fired {
            self.clear();
        }
        Ok(fired)
    }
}

/// Sets the timer slack of the calling thread to 1 ns: the default of 50 us is longer than a
/// polling interval.
pub fn without_timer_slack() {
    // SAFETY: takes integers only; 1 ns is the smallest slack.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64) };
}

pub fn sleep_until(at_ns: u64) {
    let _ = rustix::thread::clock_nanosleep_absolute(
        ClockId::Monotonic,
        &timespec(Duration::from_nanos(at_ns)),
    );
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::clock::monotonic_ns;

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
    fn a_sleep_ends_at_its_time_and_at_once_if_that_is_past() {
        without_timer_slack();
        let begin = Instant::now();
        sleep_until(1);
        assert!(begin.elapsed() < Duration::from_secs(1));
        let until_ns = monotonic_ns() + 2_000_000;
        sleep_until(until_ns);
        assert!(monotonic_ns() >= until_ns);
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
