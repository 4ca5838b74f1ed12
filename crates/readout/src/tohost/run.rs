//! The loop around the reader: it looks, reads, gives back and sleeps until the card has finished.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::wait::{sleep_until, without_timer_slack};

use super::dest::Dest;
use super::reader::ToHost;
use crate::accounts::FinalAccount;
use crate::card::words::CardState;
use crate::scenario::ReaderCompletion;

/// Interval at which subscribers that owe acknowledgements, or that the card waits for, are served.
const SERVICE_NS: u64 = 1_000_000;
/// Interval for other subscribers, and for new ones.
const IDLE_SERVICE_NS: u64 = 20_000_000;
const EACH_NS: u64 = 10_000_000;
/// Interval of a reader that waits for an interrupt.
const INTERRUPT_SERVICE: Duration = Duration::from_millis(100);
const SLICE_NS: u64 = 100_000_000;

impl ToHost {
    /// Does all present work and never waits; returns true if there was any.
    pub fn turn(&mut self) -> bool {
        let now_ns = monotonic_ns();
        self.port.look();
        if now_ns >= self.serviced_ns + IDLE_SERVICE_NS
            || now_ns >= self.serviced_ns + SERVICE_NS && (!self.begun || self.is_owed())
        {
            self.serviced_ns = now_ns;
            self.serve(now_ns);
        }
        self.stats.polls += 1;
        let found = self.port.consumer().filled() as u64;
        let worked = self.read_all(now_ns);
        if worked {
            self.stats.busy_polls += 1;
            self.stats.found_bytes += found;
        }
        self.flush(now_ns, false);
        worked
    }

    /// Reads until the ring is empty, or subscribers must be served; returns true if it read any.
    fn read_all(&mut self, now_ns: u64) -> bool {
        let mut worked = false;
        while self.read_batch(now_ns) {
            worked = true;
            // Under full load the ring is never empty: subscribers are served all the same.
            if monotonic_ns() >= self.serviced_ns + SERVICE_NS {
                break;
            }
        }
        worked
    }

    /// Reads until the card has finished and all is delivered, or it is asked to stop. `each` is
    /// called every 10 ms or so. If `wait` is true, it first waits until all E-links have
    /// subscribers.
    pub fn run(
        &mut self,
        stop: &AtomicBool,
        wait: bool,
        mut each: impl FnMut(&mut ToHost),
    ) -> FinalAccount {
        without_timer_slack();
        let mut reported_ns = 0;
        while !stop.load(Ordering::Relaxed) {
            if !self.begun && (!wait || self.without_subscriber().is_empty()) {
                self.begun = true;
                self.port.go();
            }
            let begin_ns = monotonic_ns();
            let worked = self.turn();
            if begin_ns >= reported_ns + EACH_NS {
                reported_ns = begin_ns;
                each(self);
            }
            if self.has_all() {
                break;
            }
            self.rest(begin_ns, worked, stop, &mut each);
        }
        if self.port.is_lost() {
            self.notes
                .push("the process of the card ended before all triggers: the data it had not written are missing".into());
        }
        if stop.load(Ordering::Relaxed) {
            self.port.stop();
        }
        let account = self.conclude(stop);
        each(self);
        account
    }

    fn rest(
        &mut self,
        begin_ns: u64,
        worked: bool,
        stop: &AtomicBool,
        each: &mut impl FnMut(&mut ToHost),
    ) {
        match self.settings.completion {
            _ if !self.begun => sleep_until(begin_ns + SERVICE_NS),
            ReaderCompletion::Interrupt if !worked => {
                let timeout = self.longest_wait();
                self.port.wait(timeout);
            }
            ReaderCompletion::Interrupt => {}
            // Data that came meanwhile waits for the next interval, unless that is over.
            ReaderCompletion::Poll => {
                let until_ns = begin_ns + self.settings.poll.0;
                let mut next_ns = begin_ns;
                while next_ns < until_ns && !stop.load(Ordering::Relaxed) {
                    next_ns = until_ns.min(next_ns + SLICE_NS);
                    sleep_until(next_ns);
                    if next_ns < until_ns {
                        each(self);
                    }
                }
            }
        }
    }

    fn has_all(&self) -> bool {
        let filled = self.filled_bytes();
        let is_empty = filled == 0 || self.port.is_lost() && filled < self.format.block_bytes;
        self.port.state() == CardState::Finished && is_empty
    }

    fn is_owed(&self) -> bool {
        self.dests.iter().flatten().any(Dest::is_owed)
    }

    fn longest_wait(&self) -> Duration {
        let is_open = |dest: &Dest| !dest.page.is_empty() || dest.has_queue();
        let open = self.dests.iter().flatten().any(is_open);
        let timeout = Duration::from_nanos(self.settings.timeout.0.max(10_000));
        if open { timeout.min(INTERRUPT_SERVICE) } else { INTERRUPT_SERVICE }
    }
}
