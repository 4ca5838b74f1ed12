//! Driving a board: set it up, arm it, wait until the DAQ is done, and account for every trigger.

use std::ops::RangeInclusive;
use std::time::Duration;

use daqmeter_harness::{Fault, StopFlag};
use daqmeter_record::Ledger;
use daqmeter_sys::clock;

use crate::devices::board::Board;

/// How the end of an acquisition is found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wait {
    /// Read the status register, sleep, read again.
    Poll {
        /// Sleep between reads; zero does not sleep at all.
        interval: Duration,
    },
    /// Wait for the DAQ-done interrupt.
    Interrupt,
}

/// A wait for an interrupt ends at times to look at the status register: the ESS driver forgets a DAQ-done that comes between
/// arm and wait, and a look turns a lost second into a late moment, which is counted. The wait is longer than a period, so that
/// nothing is looked at while all goes well; this is its length while no period is known, and its shortest and longest.
const FIRST_SLICE: Duration = Duration::from_millis(50);
const MAX_SLICE: Duration = Duration::from_secs(1);

/// Longest sleep between looks at the status register, so that a signal is seen.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);

/// Trigger rates that are taken: from one in three hours, whose wait can be counted, to ten times what any board can follow.
/// An emulated source walks through its triggers, so that a rate without a limit would never come to the present.
pub const TRIGGER_RATES_HZ: RangeInclusive<f64> = 1e-4..=1e7;

/// Refuses a rate that no source has.
///
/// # Errors
/// Says the rate and what is wanted.
pub fn check_trigger_rate(rate_hz: f64) -> Result<(), Fault> {
    if TRIGGER_RATES_HZ.contains(&rate_hz) {
        return Ok(());
    }
    let (min, max) = TRIGGER_RATES_HZ.into_inner();
    Err(Fault::new(format!(
        "a trigger rate of {rate_hz:e} Hz; {min} Hz to {max} Hz is wanted, e.g. 14 Hz"
    )))
}

/// What driving cost and what it found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DaqCounts {
    /// Register reads to find the end of acquisitions.
    pub register_reads: u64,
    /// Interrupts that woke us.
    pub interrupts: u64,
    /// Acquisitions that the status register showed done although no interrupt came.
    pub lost_interrupts: u64,
    /// Acquisitions that ended.
    pub acquisitions: u64,
    /// Acquisitions whose data were read out.
    pub read_out: u64,
}

/// Drives one board through acquisitions.
#[derive(Debug)]
pub struct Daq {
    wait: Wait,
    timeout: Duration,
    /// For boards that cannot tell their triggers: the period, and when the last acquisition ended.
    expected_period: Option<Duration>,
    last_done_ns: Option<u64>,
    /// Time between the last two acquisitions, where the period was not given.
    seen_period: Option<Duration>,
    inferred_missed: u64,
    /// Looked at while a trigger is waited for, which may take long.
    stop: StopFlag,
    /// What happened since the account began.
    pub counts: DaqCounts,
}

impl Daq {
    /// For triggers at `rate_hz`, 1e-4 Hz to 1e7 Hz. Waits at least a second, as the original does, or three periods.
    pub fn new(wait: Wait, rate_hz: Option<f64>) -> Daq {
        // A rate so low that its period is no time at all is waited for as long as can be.
        let period =
            rate_hz.map(|rate| Duration::try_from_secs_f64(1.0 / rate).unwrap_or(Duration::MAX));
        let timeout = period
            .map_or(Duration::ZERO, |period| period.saturating_mul(3))
            .max(Duration::from_secs(1));
        Daq {
            wait,
            timeout,
            expected_period: period,
            last_done_ns: None,
            seen_period: None,
            inferred_missed: 0,
            stop: StopFlag::default(),
            counts: DaqCounts::default(),
        }
    }

    /// Takes the flag that ends a wait for a trigger.
    pub fn heed(&mut self, stop: &StopFlag) {
        self.stop = stop.clone();
    }

    /// The longest single wait for an interrupt: half a period more than one.
    fn slice(&self) -> Duration {
        let period = self.expected_period.or(self.seen_period);
        let slice = period.map_or(FIRST_SLICE, |period| period.saturating_add(period / 2));
        slice.clamp(FIRST_SLICE, MAX_SLICE).min(self.timeout)
    }

    /// Arms and waits until the acquisition is done.
    ///
    /// # Errors
    /// When no trigger comes within the timeout, it is to stop, or the board is gone.
    pub fn acquire(&mut self, board: &mut dyn Board) -> Result<(), Fault> {
        board.arm()?;
        let timeout_ns = u64::try_from(self.timeout.as_nanos()).unwrap_or(u64::MAX);
        let deadline_ns = clock::monotonic_ns().saturating_add(timeout_ns);
        match self.wait {
            Wait::Poll { interval } => self.poll(board, interval, deadline_ns)?,
            Wait::Interrupt => self.interrupt(board, deadline_ns)?,
        }
        self.counts.acquisitions += 1;
        self.infer_missed();
        Ok(())
    }

    fn is_done(&mut self, board: &mut dyn Board) -> Result<bool, Fault> {
        self.counts.register_reads += 1;
        board.is_done()
    }

    fn poll(
        &mut self,
        board: &mut dyn Board,
        interval: Duration,
        deadline_ns: u64,
    ) -> Result<(), Fault> {
        while !self.is_done(board)? {
            self.check_deadline(board, deadline_ns)?;
            if !interval.is_zero() {
                std::thread::sleep(interval.min(LONGEST_SLEEP));
            }
        }
        Ok(())
    }

    fn interrupt(&mut self, board: &mut dyn Board, deadline_ns: u64) -> Result<(), Fault> {
        loop {
            if board.wait(self.slice())? {
                self.counts.interrupts += 1;
                // One read settles that it was this acquisition's interrupt and not an old one's.
                if self.is_done(board)? {
                    return Ok(());
                }
            } else if self.is_done(board)? {
                self.counts.lost_interrupts += 1;
                return Ok(());
            }
            self.check_deadline(board, deadline_ns)?;
        }
    }

    fn check_deadline(&self, board: &mut dyn Board, deadline_ns: u64) -> Result<(), Fault> {
        let is_stopped = self.stop.is_set();
        if !is_stopped && clock::monotonic_ns() < deadline_ns {
            return Ok(());
        }
        board.disarm()?;
        if is_stopped {
            return Err(Fault::interrupted());
        }
        let device = &board.identity().device;
        Err(Fault::new(format!(
            "{device}: no trigger within {} ms: is the trigger connected?",
            self.timeout.as_millis()
        )))
    }

    /// A board that cannot tell its triggers still shows them by the time between acquisitions.
    fn infer_missed(&mut self) {
        let now = clock::monotonic_ns();
        self.seen_period = self
            .last_done_ns
            .map(|last| Duration::from_nanos(now.saturating_sub(last)));
        if let (Some(period), Some(last)) = (self.expected_period, self.last_done_ns) {
            let periods = (now - last) as f64 / period.as_nanos() as f64;
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a small positive number"
            )]
            let periods = periods.round().max(1.0) as u64;
            self.inferred_missed += periods - 1;
        }
        self.last_done_ns = Some(now);
    }

    /// Starts all accounts at zero.
    pub fn begin_account(&mut self, board: &mut dyn Board) {
        board.begin_account();
        self.counts = DaqCounts::default();
        self.inferred_missed = 0;
        self.last_done_ns = None;
    }

    /// The account of triggers: issued at the source = read out + each kind of loss.
    pub fn ledger(&self, board: &mut dyn Board) -> Ledger {
        let delivered = self.counts.read_out;
        match board.trigger_account() {
            Some(source) => {
                let mut ledger = Ledger {
                    issued: source.issued,
                    delivered,
                    ..Ledger::new("triggers")
                };
                ledger.lose("missed: not armed", source.not_armed);
                ledger.lose("missed: still sampling", source.sampling);
                ledger.lose(
                    "taken, not read out",
                    source.taken.saturating_sub(delivered),
                );
                ledger
            }
            None => {
                let issued = self.counts.acquisitions + self.inferred_missed;
                let mut ledger = Ledger {
                    issued,
                    delivered,
                    ..Ledger::new("triggers (inferred)")
                };
                ledger.lose("missed: inferred from the intervals", self.inferred_missed);
                ledger.lose(
                    "taken, not read out",
                    self.counts.acquisitions.saturating_sub(delivered),
                );
                ledger
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::board::Identity;
    use crate::devices::sis8300::emulated::{EmulatedCrate, Profile};

    fn board(rate_hz: f64) -> Box<dyn Board> {
        let crate_ = EmulatedCrate::new(Profile::default(), false);
        let mut board = crate_.board("emu:l0", "l0").unwrap();
        board.set_trigger_rate(rate_hz);
        Box::new(board)
    }

    #[test]
    fn every_trigger_is_found_again_with_either_wait() {
        for wait in [
            Wait::Poll {
                interval: Duration::from_micros(1),
            },
            Wait::Interrupt,
        ] {
            let mut board = board(2000.0);
            let mut daq = Daq::new(wait, Some(2000.0));
            board.configure(320).unwrap();
            daq.begin_account(&mut *board);
            for _ in 0..20 {
                daq.acquire(&mut *board).unwrap();
                daq.counts.read_out += 1;
            }
            let ledger = daq.ledger(&mut *board);
            assert!(ledger.closes(), "{ledger}");
            assert_eq!(ledger.delivered, 20);
            assert!(daq.counts.register_reads >= 20);
            assert_eq!(daq.counts.lost_interrupts, 0);
        }
    }

    #[test]
    fn data_that_nobody_read_out_are_a_named_loss() {
        let mut board = board(5000.0);
        let mut daq = Daq::new(Wait::Interrupt, None);
        board.configure(320).unwrap();
        daq.begin_account(&mut *board);
        daq.acquire(&mut *board).unwrap();
        let ledger = daq.ledger(&mut *board);
        assert_eq!(ledger.losses["taken, not read out"], 1);
        assert!(ledger.closes(), "{ledger}");
    }

    /// A board with triggers a period apart, in counted time: no test waits for them.
    struct Timed {
        identity: Identity,
        period: Duration,
        left: Duration,
        forgets: bool,
        looks: u64,
        waits: u64,
    }

    impl Timed {
        fn new(period_ms: u64) -> Timed {
            let crate_ = EmulatedCrate::new(Profile::default(), false);
            let identity = crate_.board("emu:l0", "l0").unwrap().identity().clone();
            let period = Duration::from_millis(period_ms);
            Timed {
                identity,
                period,
                left: Duration::ZERO,
                forgets: false,
                looks: 0,
                waits: 0,
            }
        }
    }

    impl Board for Timed {
        fn identity(&self) -> &Identity {
            &self.identity
        }
        fn arm(&mut self) -> Result<(), Fault> {
            self.left = self.period;
            Ok(())
        }
        fn is_done(&mut self) -> Result<bool, Fault> {
            self.looks += 1;
            Ok(self.left.is_zero())
        }
        fn wait(&mut self, timeout: Duration) -> Result<bool, Fault> {
            self.waits += 1;
            let comes = timeout >= self.left && !self.forgets;
            self.left = self.left.saturating_sub(timeout);
            Ok(comes)
        }
        fn read(&mut self, _: u64, _: &mut [u8]) -> Result<usize, Fault> {
            unreachable!("nothing is read out here")
        }
    }

    /// A slice of 50 ms under a period of 71 ms looked twice at the status register (issue 14, A12).
    #[test]
    fn at_14_hz_an_interrupt_costs_one_wait_and_one_look_at_the_status_register() {
        let mut board = Timed::new(71);
        let mut daq = Daq::new(Wait::Interrupt, Some(14.0));
        for _ in 0..10 {
            daq.acquire(&mut board).unwrap();
        }
        assert_eq!(
            (board.waits, board.looks, daq.counts.register_reads),
            (10, 10, 10)
        );
        assert_eq!((daq.counts.interrupts, daq.counts.lost_interrupts), (10, 0));
    }

    #[test]
    fn an_interrupt_that_the_driver_forgot_costs_a_period_and_a_half_and_is_counted() {
        let mut board = Timed {
            forgets: true,
            ..Timed::new(71)
        };
        let mut daq = Daq::new(Wait::Interrupt, Some(14.0));
        daq.acquire(&mut board).unwrap();
        assert_eq!(
            (
                board.waits,
                daq.counts.lost_interrupts,
                daq.counts.interrupts
            ),
            (1, 1, 0)
        );
    }

    #[test]
    fn waits_follow_the_period_that_was_given_or_seen() {
        let slice = |rate_hz: Option<f64>| Daq::new(Wait::Interrupt, rate_hz).slice().as_millis();
        assert_eq!(
            [slice(None), slice(Some(14.0)), slice(Some(1000.0))],
            [50, 107, 50]
        );
        assert_eq!(
            [slice(Some(0.1)), slice(Some(1e-20))],
            [1000, 1000],
            "it stays possible to stop"
        );
        let mut daq = Daq::new(Wait::Interrupt, None);
        daq.last_done_ns = Some(clock::monotonic_ns() - 200_000_000);
        daq.infer_missed();
        assert!(
            (300..=1000).contains(&daq.slice().as_millis()),
            "{:?}",
            daq.slice()
        );
    }

    #[test]
    fn a_wait_for_a_trigger_ends_when_it_is_to_stop() {
        for wait in [
            Wait::Poll {
                interval: Duration::from_secs(3600),
            },
            Wait::Interrupt,
        ] {
            // The first trigger comes after nearly three hours.
            let mut board = board(1e-4);
            let mut daq = Daq::new(wait, Some(1e-4));
            board.configure(320).unwrap();
            daq.stop.set();
            let fault = daq.acquire(&mut *board).unwrap_err();
            assert_eq!(fault, Fault::interrupted());
        }
    }

    #[test]
    fn samples_that_no_board_can_hold_are_refused() {
        let mut board = board(14.0);
        assert!(board.configure(u64::MAX).is_err());
    }
}
