//! The external trigger and its acquisition, computed on demand from the time, without a thread.

use daqmeter_record::units::{periods, whole};

use crate::devices::board::TriggerAccount;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Idle,
    Armed,
    Sampling,
}

/// Trigger source and acquisition logic of one board. Times are nanoseconds of one clock.
#[derive(Debug, Default)]
pub(super) struct Trigger {
    epoch_ns: u64,
    period_ns: f64,
    next: u64,
    armed: bool,
    sampling_until_ns: Option<u64>,
    acquisition_ns: u64,
    account: TriggerAccount,
    /// Acquisitions begun so far, for the stamp in the data.
    pub(super) acquisitions: u64,
}

impl Trigger {
    pub(super) fn new(epoch_ns: u64, rate_hz: f64) -> Trigger {
        Trigger { epoch_ns, period_ns: 1e9 / rate_hz, ..Trigger::default() }
    }

    /// Changes the rate from `now_ns` on. Triggers still count from the epoch, so that boards of
    /// one crate share them regardless of when each is set.
    pub(super) fn set_rate(&mut self, rate_hz: f64, now_ns: u64) {
        *self = Trigger { acquisitions: self.acquisitions, ..Trigger::new(self.epoch_ns, rate_hz) };
        self.begin_account(now_ns);
    }

    fn at(&self, index: u64) -> u64 {
        // The first trigger comes one period after the epoch.
        self.epoch_ns.saturating_add(whole(self.period_ns * (index + 1) as f64))
    }

    /// Counts the triggers since the epoch.
    fn count(&self, now_ns: u64) -> u64 {
        periods(now_ns.saturating_sub(self.epoch_ns), self.period_ns)
    }

    /// Books the triggers until now: those while it samples, the one that it takes, and the others.
    pub(super) fn advance(&mut self, now_ns: u64) {
        let end = self.count(now_ns).max(self.next);
        self.account.issued += end - self.next;
        self.miss_while_sampling(now_ns, end);
        if self.armed && self.next < end {
            self.sampling_until_ns = Some(self.at(self.next) + self.acquisition_ns);
            (self.armed, self.next) = (false, self.next + 1);
            self.account.taken += 1;
            self.account.last_taken = self.next - 1;
            self.acquisitions += 1;
            self.miss_while_sampling(now_ns, end);
        }
        self.account.not_armed += end - self.next;
        self.next = end;
    }

    fn miss_while_sampling(&mut self, now_ns: u64, end: u64) {
        let next = self.next_not_sampling().min(end);
        self.account.sampling += next - self.next;
        self.next = next;
        self.sampling_until_ns = self.sampling_until_ns.filter(|until_ns| *until_ns > now_ns);
    }

    /// First trigger that does not come during the acquisition under way.
    fn next_not_sampling(&self) -> u64 {
        let until_ns = self.sampling_until_ns.unwrap_or(0);
        self.count(until_ns.saturating_sub(1)).max(self.next)
    }

    /// Arms for the next trigger; returns the end of that acquisition.
    pub(super) fn arm(&mut self, now_ns: u64, acquisition_ns: u64) -> u64 {
        self.advance(now_ns);
        self.armed = true;
        self.acquisition_ns = acquisition_ns;
        self.at(self.next_not_sampling()) + acquisition_ns
    }

    /// Starts at once, without a trigger; returns the end.
    pub(super) fn start(&mut self, now_ns: u64, acquisition_ns: u64) -> u64 {
        self.advance(now_ns);
        self.armed = false;
        self.acquisitions += 1;
        self.sampling_until_ns = Some(now_ns + acquisition_ns);
        now_ns + acquisition_ns
    }

    pub(super) fn asked_for(&self) -> u64 {
        self.acquisitions + u64::from(self.armed)
    }

    pub(super) fn reset(&mut self, now_ns: u64) {
        self.advance(now_ns);
        self.armed = false;
        self.sampling_until_ns = None;
    }

    pub(super) fn phase(&mut self, now_ns: u64) -> Phase {
        self.advance(now_ns);
        match (self.sampling_until_ns, self.armed) {
            (Some(_), _) => Phase::Sampling,
            (None, true) => Phase::Armed,
            (None, false) => Phase::Idle,
        }
    }

    pub(super) fn begin_account(&mut self, now_ns: u64) {
        self.advance(now_ns);
        self.account = TriggerAccount::default();
    }

    pub(super) fn account(&mut self, now_ns: u64) -> TriggerAccount {
        self.advance(now_ns);
        self.account
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Triggers at 100 Hz: 10, 20, 30 ... ms.
    fn source() -> Trigger {
        Trigger::new(0, 100.0)
    }

    fn account(issued: u64, taken: u64, not_armed: u64, sampling: u64) -> TriggerAccount {
        TriggerAccount { issued, taken, not_armed, sampling, last_taken: 0 }
    }

    fn counted(trigger: &mut Trigger, now_ns: u64) -> TriggerAccount {
        TriggerAccount { last_taken: 0, ..trigger.account(now_ns) }
    }

    #[test]
    fn an_armed_board_takes_the_next_trigger_and_is_done_after_the_acquisition() {
        let mut trigger = source();
        assert_eq!(trigger.arm(3 * MS, 4 * MS), 14 * MS);
        assert_eq!(trigger.phase(9 * MS), Phase::Armed);
        assert_eq!(trigger.phase(10 * MS), Phase::Sampling);
        assert_eq!(trigger.phase(14 * MS), Phase::Idle);
        assert_eq!(counted(&mut trigger, 14 * MS), account(1, 1, 0, 0));
    }

    #[test]
    fn triggers_that_find_the_board_unarmed_are_counted_as_missed() {
        let mut trigger = source();
        trigger.arm(0, MS);
        // Taken at 10 ms and armed again at 55 ms: 20, 30, 40 and 50 ms are missed.
        assert_eq!(trigger.arm(55 * MS, MS), 61 * MS);
        assert_eq!(counted(&mut trigger, 61 * MS), account(6, 2, 4, 0));
        assert_eq!(trigger.account(61 * MS).last_taken, 5, "the sixth");
    }

    #[test]
    fn triggers_during_sampling_are_counted_apart() {
        let mut trigger = source();
        trigger.arm(0, 25 * MS);
        trigger.advance(12 * MS);
        assert_eq!(
            trigger.arm(12 * MS, 5 * MS),
            45 * MS,
            "sampling until 35 ms, next trigger at 40 ms"
        );
        assert_eq!(counted(&mut trigger, 45 * MS), account(4, 2, 0, 2));
    }

    /// Regression: the first triggers of two boards came up to 38 ms apart.
    #[test]
    fn boards_of_one_crate_share_the_trigger_whenever_its_rate_is_set() {
        let (mut one, mut other) = (source(), source());
        one.set_rate(50.0, 3 * MS);
        other.set_rate(50.0, 47 * MS);
        assert_eq!(one.arm(50 * MS, 0), 60 * MS);
        assert_eq!(other.arm(50 * MS, 0), 60 * MS);
        assert_eq!(counted(&mut other, 50 * MS), account(0, 0, 0, 0));
    }

    #[test]
    fn a_software_start_needs_no_trigger() {
        let mut trigger = source();
        assert_eq!(trigger.start(MS, 2 * MS), 3 * MS);
        assert_eq!(trigger.phase(2 * MS), Phase::Sampling);
        assert_eq!(counted(&mut trigger, 3 * MS), account(0, 0, 0, 0));
        assert_eq!(trigger.acquisitions, 1);
    }

    #[test]
    fn a_fast_source_that_nobody_armed_for_long_comes_to_the_present_at_once() {
        // One by one, 10^13 triggers would take hours.
        let mut trigger = Trigger::new(0, 1e7);
        let day = 86_400 * 1_000 * MS;
        trigger.arm(day * 11, MS);
        assert_eq!(
            counted(&mut trigger, day * 11),
            account(11 * 864_000_000_000, 0, 11 * 864_000_000_000, 0)
        );
    }

    #[test]
    fn every_trigger_is_booked_exactly_once_whatever_happens() {
        let mut trigger = source();
        let mut now = 0;
        for step in 0_u64..500 {
            now += (step * 7919) % (17 * MS);
            match step % 5 {
                0 | 1 => drop(trigger.arm(now, (step % 23) * MS)),
                2 => trigger.reset(now),
                _ => drop(trigger.phase(now)),
            }
            let found = trigger.account(now);
            assert_eq!(found.issued, found.taken + found.not_armed + found.sampling);
            assert_eq!(found.issued, now / (10 * MS));
        }
    }
}
