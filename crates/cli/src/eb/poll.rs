//! `eb read --every`: a register that is read periodically, over one connection.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use daqmeter_etherbone::EbError;
use daqmeter_harness::facts::utc_now_us;

use super::{accessed, number};
use crate::arguments::budget;
use crate::output::{Ended, Failure};

/// Reads without an answer, one after the other, that end the reading.
const MAX_UNANSWERED: u32 = 3;

#[derive(Debug, Args)]
pub(super) struct Polling {
    /// Read again in each such period, and print value, time of the answer and missed periods
    #[arg(long, value_name = "TIME", value_parser = budget, conflicts_with = "output")]
    every: Option<Duration>,
    /// End when the register, or its bits under the mask, have this value
    #[arg(long, value_name = "VALUE[/MASK]", value_parser = wanted, requires = "every")]
    until: Option<(u64, u64)>,
    /// Give up after this time, with exit code 1
    #[arg(long, value_name = "TIME", value_parser = budget, requires = "until")]
    within: Option<Duration>,
}

fn wanted(text: &str) -> Result<(u64, u64), String> {
    let (value, mask) = text.split_once('/').unwrap_or((text, "0xffffffffffffffff"));
    let (value, mask) = (number(value)?, number(mask)?);
    match value & !mask {
        0 => Ok((value, mask)),
        never => Err(format!("the bits {never:#x} of the value are outside of the mask")),
    }
}

impl Polling {
    /// Reads and shows a register once, or in each period. Periods are counted from the first
    /// read, so that none drifts; one that ends before its turn is missed, not made up for.
    pub(super) fn run(
        &self,
        mut read: impl FnMut() -> Result<u64, EbError>,
        show: impl Fn(Option<u64>, Option<[String; 2]>) -> Ended,
    ) -> Ended {
        let Some(every) = self.every else { return show(Some(accessed(read())?), None) };
        let begin = Instant::now();
        let (mut period, mut missed, mut unanswered) = (0, 0, 0);
        loop {
            let value = match read() {
                Err(EbError::Timeout(_)) if unanswered + 1 < MAX_UNANSWERED => None,
                result => Some(accessed(result)?),
            };
            unanswered = if value.is_none() { unanswered + 1 } else { 0 };
            show(value, Some([utc_now_us(), missed.to_string()]))?;
            if self.until.zip(value).is_some_and(|((wanted, mask), value)| value & mask == wanted) {
                return Ok(ExitCode::SUCCESS);
            }
            let next = begin.elapsed().as_nanos() / every.as_nanos() + 1;
            (missed, period) = (next - period - 1, next);
            let due = Duration::from_nanos_u128(period * every.as_nanos());
            if let Some(within) = self.within.filter(|within| due > *within) {
                let why = format!("the register did not become --until within {within:?}");
                return Err(Failure::tool(why));
            }
            std::thread::sleep(due.saturating_sub(begin.elapsed()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Polls values of which `None` is a loss; reading one of them takes a time.
    fn polled(
        polling: &Polling,
        values: &[Option<u64>],
        slow: (usize, Duration),
    ) -> (Vec<u64>, Ended) {
        let (mut values, rows) = (values.iter().enumerate(), RefCell::new(Vec::new()));
        let read = || {
            let (at, value) = values.next().unwrap();
            let begin = Instant::now();
            while at == slow.0 && begin.elapsed() < slow.1 {}
            value.ok_or(EbError::Timeout(Duration::ZERO))
        };
        let ended = polling.run(read, |_, when| {
            rows.borrow_mut().push(when.unwrap()[1].parse().unwrap());
            Ok(ExitCode::SUCCESS)
        });
        (rows.into_inner(), ended)
    }

    #[test]
    fn periods_are_counted_from_the_first_read_and_missed_ones_are_told() {
        let every = Duration::from_millis(4);
        let polling = Polling { every: Some(every), until: Some((4, 0xc)), within: None };
        let values = [Some(0), None, None, Some(8), Some(3), Some(7)];
        let begin = Instant::now();
        let (missed, ended) = polled(&polling, &values, (3, every * 5 / 2));
        assert_eq!((missed.len(), ended.unwrap()), (6, ExitCode::SUCCESS));
        assert!(missed[4] >= 2, "{missed:?}");
        let periods = 5 + u32::try_from(missed.iter().sum::<u64>()).unwrap();
        // The periods that were read and those that were missed are all of the time.
        let took = begin.elapsed();
        assert!(took >= every * periods, "{took:?}, {periods} periods");
    }

    #[test]
    fn a_silent_slave_and_a_value_that_does_not_come_end_the_reading() {
        let polling =
            Polling { every: Some(Duration::from_micros(100)), until: None, within: None };
        let (rows, ended) = polled(&polling, &[Some(1), None, None, None], (9, Duration::ZERO));
        assert_eq!((rows.len(), ended.unwrap_err().line.as_str()), (3, "no answer within 0ns"));
        let within = Some(Duration::from_micros(150));
        let polling = Polling { until: Some((2, !0)), within, ..polling };
        let (rows, ended) = polled(&polling, &[Some(1); 4], (9, Duration::ZERO));
        let line = "the register did not become --until within 150µs";
        assert!((1..=2).contains(&rows.len()));
        assert_eq!(ended.unwrap_err().line, line);
    }

    #[test]
    fn a_value_has_no_bits_beside_its_mask() {
        assert_eq!(wanted("5"), Ok((5, u64::MAX)));
        assert_eq!(wanted("0x10/0x30"), Ok((0x10, 0x30)));
        assert!(wanted("5/4").unwrap_err().contains("the bits 0x1"));
    }
}
