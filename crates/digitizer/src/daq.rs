//! Driving a board: setup, arming, the wait for the end, and an account of every trigger.

use std::time::Duration;

use daqmeter_harness::{Fault, StopFlag};
use daqmeter_record::ledger::TRIGGERS;
use daqmeter_record::units::TRIGGER_RATES_HZ;
use daqmeter_record::{Counter, Ledger};
use daqmeter_sys::clock;

use crate::devices::board::{Board, BoardCommands, TriggerAccount};
use crate::events::Taken;
use crate::intervals::Intervals;

/// Limit of the first wait for an interrupt if no period was given; a look at the status register
/// follows. The ESS driver forgets a DAQ-done that comes between arm and wait, and some firmware
/// raises none.
const FIRST_SLICE: Duration = Duration::from_millis(10);
const MAX_SLICE: Duration = Duration::from_secs(1);
/// Wait after a lost interrupt, until one comes again; the driver counts whole milliseconds.
const SLICE_AFTER_LOSS: Duration = Duration::from_millis(1);

/// Maximum of the triggers whose numbers are kept: 512 KiB of them, as many as samples of a stage.
const MAX_NUMBERS: usize = 1 << 16;

const MAX_SLEEP: Duration = Duration::from_millis(100);

/// Refuses a rate outside [`TRIGGER_RATES_HZ`].
pub fn check_trigger_rate(rate_hz: f64) -> Result<(), Fault> {
    if TRIGGER_RATES_HZ.contains(&rate_hz) {
        return Ok(());
    }
    let (min, max) = TRIGGER_RATES_HZ.into_inner();
    Err(Fault::new(format!(
        "a trigger rate of {rate_hz:e} Hz; {min} Hz to {max} Hz is wanted, e.g. 14 Hz"
    )))
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DaqCounts {
    pub register_reads: u64,
    pub interrupts: u64,
    /// Acquisitions that the status register showed done without an interrupt.
    pub lost_interrupts: u64,
    pub acquisitions: u64,
    pub read_out: u64,
}

#[derive(Debug, Default)]
pub struct Daq {
    /// Sleep between two looks at the status, zero for none; `None` waits for the interrupt.
    polls: Option<Duration>,
    timeout: Duration,
    /// `None` without a known rate.
    intervals: Option<Intervals>,
    /// Account of the source, cut at the end of the last wait: triggers that come while the last
    /// data are read out belong to no pass.
    source: Option<TriggerAccount>,
    /// Time of the last status read that showed the acquisition not done.
    not_done_ns: u64,
    /// True if no interrupt came at the end of the last acquisition.
    has_lost: bool,
    /// Checked during the wait for a trigger, which may be long.
    stop: StopFlag,
    pub counts: DaqCounts,
    /// Number of the trigger that was taken last, if it is known.
    number: Option<u64>,
    /// Numbers of the first triggers that were taken; `None` once one is unknown.
    taken: Option<Vec<u64>>,
}

impl Daq {
    /// Makes a driver for triggers at `rate_hz`, 1e-4 Hz to 1e7 Hz. Waits at least a second, as the
    /// original does, or three periods.
    pub fn new(polls: Option<Duration>, rate_hz: Option<f64>) -> Daq {
        // A rate near zero gives an infinite period: the wait is then the longest possible.
        let period =
            rate_hz.map(|rate| Duration::try_from_secs_f64(1.0 / rate).unwrap_or(Duration::MAX));
        let timeout = period
            .map_or(Duration::ZERO, |period| period.saturating_mul(3))
            .max(Duration::from_secs(1));
        Daq { polls, timeout, intervals: period.map(Intervals::new), ..Daq::default() }
    }

    pub fn set_stop_flag(&mut self, stop: &StopFlag) {
        self.stop = stop.clone();
    }

    /// Limit of one wait for an interrupt: one and a half periods, so that a regular run never
    /// reads the status. Observed ends do not affect it, because lost interrupts delay them.
    fn slice(&self) -> Duration {
        if self.has_lost {
            return SLICE_AFTER_LOSS;
        }
        let period = self.intervals.map(|intervals| intervals.period);
        let slice = period.map_or(FIRST_SLICE, |period| period.saturating_add(period / 2));
        slice.clamp(SLICE_AFTER_LOSS, MAX_SLICE).min(self.timeout)
    }

    /// Arms and waits until the acquisition is done.
    ///
    /// # Errors
    /// No trigger within the timeout, a stop, or the board is gone.
    pub fn acquire(&mut self, board: &mut dyn Board) -> Result<(), Fault> {
        let done = self.arm_and_wait(board.commands()?);
        self.source = board.trigger_account();
        done?;
        self.counts.acquisitions += 1;
        let now_ns = clock::monotonic_ns();
        let is_told = self.polls.is_none() && !self.has_lost;
        let unsure_ns = if is_told { 0 } else { now_ns - self.not_done_ns };
        let number = match (self.source, &mut self.intervals) {
            (Some(source), _) => Some(source.last_taken),
            (None, Some(intervals)) => intervals.ended(now_ns, unsure_ns),
            (None, None) => None,
        };
        self.number = number;
        self.taken = self.taken.take().filter(|_| number.is_some());
        if let Some(taken) = self.taken.as_mut().filter(|taken| taken.len() < MAX_NUMBERS) {
            taken.extend(number);
        }
        Ok(())
    }

    fn arm_and_wait(&mut self, board: &mut dyn BoardCommands) -> Result<(), Fault> {
        board.arm()?;
        let timeout_ns = u64::try_from(self.timeout.as_nanos()).unwrap_or(u64::MAX);
        self.not_done_ns = clock::monotonic_ns();
        let deadline_ns = self.not_done_ns.saturating_add(timeout_ns);
        match self.polls {
            Some(interval) => self.poll(board, interval, deadline_ns),
            None => self.interrupt(board, deadline_ns),
        }
    }

    fn is_done(&mut self, board: &mut dyn BoardCommands) -> Result<bool, Fault> {
        self.counts.register_reads += 1;
        let now_ns = clock::monotonic_ns();
        let is_done = board.is_done()?;
        if !is_done {
            self.not_done_ns = now_ns;
        }
        Ok(is_done)
    }

    fn poll(
        &mut self,
        board: &mut dyn BoardCommands,
        interval: Duration,
        deadline_ns: u64,
    ) -> Result<(), Fault> {
        while !self.is_done(board)? {
            self.check_deadline(board, deadline_ns)?;
            if !interval.is_zero() {
                std::thread::sleep(interval.min(MAX_SLEEP));
            }
        }
        Ok(())
    }

    fn interrupt(&mut self, board: &mut dyn BoardCommands, deadline_ns: u64) -> Result<(), Fault> {
        loop {
            if board.wait(self.slice())? {
                self.counts.interrupts += 1;
                // One read distinguishes this acquisition's interrupt from an old one's.
                if self.is_done(board)? {
                    self.has_lost = false;
                    return Ok(());
                }
            } else if self.is_done(board)? {
                self.counts.lost_interrupts += 1;
                self.has_lost = true;
                return Ok(());
            }
            self.check_deadline(board, deadline_ns)?;
        }
    }

    fn check_deadline(&self, board: &mut dyn BoardCommands, deadline_ns: u64) -> Result<(), Fault> {
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

    /// Begins the account. The first pass should follow at once, because triggers before it count
    /// as missed.
    pub fn begin_account(&mut self, board: &mut dyn Board) {
        board.begin_account();
        (self.counts, self.source) = (DaqCounts::default(), None);
        self.taken = Some(Vec::with_capacity(MAX_NUMBERS));
        self.intervals = self.intervals.map(|before| Intervals::new(before.period));
    }

    /// Number of the trigger that was taken last, by its source or by its time; `None` if unknown.
    pub fn number(&self) -> Option<u64> {
        self.number
    }

    /// Accounts for triggers: issued at the source = read out + each kind of loss.
    pub fn ledger(&self) -> Ledger {
        let DaqCounts { acquisitions, read_out, .. } = self.counts;
        let (unit, issued, taken, missed) = match (self.source, self.missed()) {
            (Some(source), _) => {
                let missed = vec![
                    ("missed: not armed", source.not_armed),
                    ("missed: still sampling", source.sampling),
                ];
                (TRIGGERS[0], source.issued, source.taken, missed)
            }
            (None, Ok(missed)) => {
                let issued = acquisitions + missed;
                let missed = vec![("missed: inferred from the intervals", missed)];
                (TRIGGERS[1], issued, acquisitions, missed)
            }
            (None, Err(_)) => ("acquisitions", acquisitions, acquisitions, Vec::new()),
        };
        let mut ledger = Ledger { issued, delivered: read_out, ..Ledger::new(unit) };
        missed.into_iter().for_each(|(reason, count)| ledger.lose(reason, count));
        ledger.lose("taken, not read out", taken.saturating_sub(read_out));
        ledger
    }

    /// Returns the triggers that were taken; `None` if their numbers are unknown.
    pub(crate) fn taken(&self, board: &dyn Board) -> Option<Taken> {
        let first = |intervals: Intervals| Some((intervals.first_ns?, intervals.period));
        let first = self.intervals.and_then(first).filter(|_| self.source.is_none());
        let is_known = self.source.is_some() || self.missed().is_ok();
        let numbers = self.taken.clone().filter(|_| is_known)?;
        Some(Taken { device: board.identity().device.clone(), first, numbers })
    }

    /// Returns the missed triggers of a board that counts none, or why they are unknown.
    fn missed(&self) -> Result<u64, String> {
        let intervals = self.intervals.as_ref();
        intervals.ok_or("give the trigger rate with --rate".to_owned())?.missed()
    }

    pub fn counters(&self) -> Vec<Counter> {
        let DaqCounts { register_reads, interrupts, lost_interrupts, .. } = self.counts;
        vec![
            Counter::count("register-reads", register_reads),
            Counter::count("interrupts", interrupts),
            Counter::count("lost-interrupts", lost_interrupts),
        ]
    }

    pub fn warnings(&self, board: &dyn Board) -> Vec<String> {
        let DaqCounts { lost_interrupts: lost, acquisitions, .. } = self.counts;
        let device = &board.identity().device;
        let late = match lost {
            0 => None,
            _ if lost == acquisitions => {
                Some("no DAQ interrupt comes; poll instead: leave out -i".to_owned())
            }
            _ => Some(format!(
                "{lost} of {acquisitions} DAQ interrupts were lost; their data were found late. Polling loses none: leave out -i"
            )),
        };
        let unknown = match (self.missed(), self.intervals) {
            _ if acquisitions < 2 || self.source.is_some() => None,
            (Err(why), _) => Some(format!("missed triggers are unknown: {why}")),
            (Ok(_), Some(Intervals { since: 1.., .. })) => Some(
                "missed triggers before the last acquisition are unknown: its end was seen late"
                    .to_owned(),
            ),
            _ => None,
        };
        late.into_iter().chain(unknown).map(|warning| format!("{device}: {warning}")).collect()
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
        for polls in [Some(Duration::from_micros(1)), None] {
            let mut board = board(2000.0);
            let mut daq = Daq::new(polls, Some(2000.0));
            board.commands().unwrap().configure(320).unwrap();
            daq.begin_account(&mut *board);
            for _ in 0..20 {
                daq.acquire(&mut *board).unwrap();
                daq.counts.read_out += 1;
            }
            let ledger = daq.ledger();
            assert!(ledger.closes(), "{ledger}");
            assert_eq!(ledger.delivered, 20);
            assert!(daq.counts.register_reads >= 20);
            assert_eq!(daq.counts.lost_interrupts, 0);
        }
    }

    /// Regression: the account ran on while other boards and the comparison were waited for, so
    /// that 14 passes at 14 Hz had missed 5 triggers.
    #[test]
    fn triggers_after_the_last_pass_are_in_no_account() {
        let mut board = board(2000.0);
        let mut daq = Daq::new(None, None);
        board.commands().unwrap().configure(320).unwrap();
        daq.begin_account(&mut *board);
        for _ in 0..5 {
            daq.acquire(&mut *board).unwrap();
            daq.counts.read_out += 1;
        }
        // Data that nothing has read out are a loss of their own.
        daq.counts.read_out -= 1;
        let ledger = daq.ledger();
        assert_eq!(ledger.losses["taken, not read out"], 1);
        while board.trigger_account().unwrap().issued < ledger.issued + 10 {}
        assert!(ledger.closes(), "{ledger}");
        assert_eq!(daq.ledger(), ledger);
        let taken = daq.taken(&*board).unwrap();
        assert_eq!((taken.numbers.len(), taken.first), (5, None));
    }

    struct Timed {
        identity: Identity,
        period: Duration,
        left: Duration,
        forgets: bool,
        passed: Duration,
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
                passed: Duration::ZERO,
                looks: 0,
                waits: 0,
            }
        }
    }

    impl Board for Timed {
        fn identity(&self) -> &Identity {
            &self.identity
        }
        fn commands(&mut self) -> Result<&mut dyn BoardCommands, Fault> {
            Ok(self)
        }
        fn wait(&mut self, timeout: Duration) -> Result<bool, Fault> {
            self.waits += 1;
            let comes = timeout >= self.left && !self.forgets;
            self.passed += if comes { self.left } else { timeout };
            self.left = self.left.saturating_sub(timeout);
            Ok(comes)
        }
        fn read(&mut self, _: u64, _: &mut [u8]) -> Result<usize, Fault> {
            unreachable!("nothing is read out here")
        }
    }

    impl BoardCommands for Timed {
        fn configure(&mut self, _: u64) -> Result<(), Fault> {
            Ok(())
        }
        fn arm(&mut self) -> Result<(), Fault> {
            self.left = self.period;
            Ok(())
        }
        fn is_done(&mut self) -> Result<bool, Fault> {
            self.looks += 1;
            Ok(self.left.is_zero())
        }
        fn disarm(&mut self) -> Result<(), Fault> {
            Ok(())
        }
        fn write(&mut self, _: u64, _: &[u8]) -> Result<usize, Fault> {
            unreachable!("nothing is written here")
        }
    }

    /// A slice of 50 ms under a period of 71 ms read the status register twice (issue 14, A12).
    #[test]
    fn at_14_hz_an_interrupt_costs_one_wait_and_one_look_at_the_status_register() {
        let mut board = Timed::new(71);
        let mut daq = Daq::new(None, Some(14.0));
        for _ in 0..10 {
            daq.acquire(&mut board).unwrap();
        }
        assert_eq!((board.waits, board.looks, daq.counts.register_reads), (10, 10, 10));
        assert_eq!((daq.counts.interrupts, daq.counts.lost_interrupts), (10, 0));
    }

    #[test]
    fn an_interrupt_that_the_driver_forgot_costs_a_period_and_a_half_and_is_counted() {
        let mut board = Timed { forgets: true, ..Timed::new(71) };
        let mut daq = Daq::new(None, Some(14.0));
        daq.acquire(&mut board).unwrap();
        assert_eq!((board.waits, daq.counts.lost_interrupts, daq.counts.interrupts), (1, 1, 0));
        // Each millisecond now has a status read, until an interrupt comes.
        daq.acquire(&mut board).unwrap();
        assert_eq!((board.waits, daq.counts.lost_interrupts), (1 + 71, 2));
        board.forgets = false;
        daq.acquire(&mut board).unwrap();
        let waits = board.waits;
        daq.acquire(&mut board).unwrap();
        assert_eq!((board.waits, daq.counts.interrupts), (waits + 1, 2));
    }

    /// Regression: the wait grew by half with each lost interrupt, up to a second, and 15 of 113
    /// triggers were taken.
    #[test]
    fn a_wait_does_not_grow_from_ends_that_it_found_late() {
        let mut board = Timed { forgets: true, ..Timed::new(71) };
        let mut daq = Daq::new(None, None);
        let mut late = Duration::ZERO;
        for _ in 0..100 {
            board.passed = Duration::ZERO;
            daq.acquire(&mut board).unwrap();
            late = late.max(board.passed - board.period);
        }
        assert!(late <= FIRST_SLICE, "{late:?}");
        assert_eq!(daq.counts.lost_interrupts, 100);
        let ledger = daq.ledger();
        assert!(
            ledger.unit == "acquisitions" && !ledger.to_string().contains("missed"),
            "{ledger}"
        );
        let said = daq.warnings(&board).join(" ");
        assert!(said.contains("no DAQ interrupt comes"), "{said}");
        assert!(said.contains("missed triggers are unknown: give"), "{said}");
    }

    #[test]
    fn waits_follow_the_period_that_was_given() {
        let slice = |rate_hz: Option<f64>| Daq::new(None, rate_hz).slice().as_micros();
        assert_eq!(
            [slice(None), slice(Some(10.0)), slice(Some(100.0)), slice(Some(1e6))],
            [10_000, 150_000, 15_000, 1000]
        );
        assert_eq!(
            [slice(Some(0.1)), slice(Some(1e-20))],
            [1_000_000, 1_000_000],
            "it stays possible to stop"
        );
    }

    #[test]
    fn a_wait_for_a_trigger_ends_when_it_is_to_stop() {
        for polls in [Some(Duration::from_secs(3600)), None] {
            let mut board = board(1e-4);
            let mut daq = Daq::new(polls, Some(1e-4));
            board.commands().unwrap().configure(320).unwrap();
            daq.stop.set();
            let fault = daq.acquire(&mut *board).unwrap_err();
            assert_eq!(fault, Fault::interrupted());
        }
    }

    #[test]
    fn samples_that_no_board_can_hold_are_refused() {
        let mut board = board(14.0);
        let mut refused = |samples: u64| board.commands().unwrap().configure(samples);
        assert!(refused(u64::MAX / 640 * 640).unwrap_err().0.contains("length register"));
        assert_eq!(refused(3200), Ok(()));
        // 1 MiB: channels lay 52,448 samples apart, and the last one had 52,256.
        for samples in [524_288, 0, u64::MAX] {
            let said = refused(samples).unwrap_err().0;
            assert!(said.contains("stride") && said.contains("a multiple of 640 bytes"), "{said}");
        }
    }
}
