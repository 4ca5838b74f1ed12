//! The trigger source: the times of triggers, and their count, which is made here and nowhere else.

use std::collections::VecDeque;
use std::time::Duration;

use daqmeter_harness::Resolved;
use daqmeter_record::units::{periods, whole};
use daqmeter_stats::Random;

use crate::pattern::Pattern;
use crate::scenario::{TriggerKind, TriggerSettings};

pub(crate) const NEVER: u64 = u64::MAX;
/// A rate of 0 is one trigger in 31 years.
const NO_RATE_HZ: f64 = 1e-9;

/// Triggers in the order of time. Times are ns since the source's start.
#[derive(Debug, Default)]
pub struct TriggerSource {
    pub period_ns: f64,
    /// Random numbers of a Poisson source, which is stepped.
    random: Option<Random>,
    times: Option<Resolved<Pattern>>,
    pub issued: u64,
    /// Time of the last one that was issued.
    pub(crate) issued_ns: u64,
    pub end_ns: u64,
    pub max_triggers: u64,
    /// Times of a Poisson source that were computed already.
    ahead: VecDeque<u64>,
    last_ns: f64,
}

impl TriggerSource {
    pub fn new(trigger: &TriggerSettings) -> TriggerSource {
        let is_random = trigger.source == TriggerKind::Poisson && trigger.times.is_none();
        TriggerSource {
            period_ns: 1e9 / trigger.rate.0.max(NO_RATE_HZ),
            random: is_random.then(|| Random::new(trigger.seed)),
            end_ns: NEVER,
            max_triggers: trigger.times.as_ref().map_or(u64::MAX, |times| times.count()),
            times: trigger.times.clone(),
            ahead: VecDeque::with_capacity(1024),
            ..TriggerSource::default()
        }
    }

    /// Ends the triggers after a time, or after a number of them.
    pub fn limit(&mut self, time: Option<Duration>, triggers: Option<u64>) {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(NEVER - 1);
        self.end_ns = time.map_or(self.end_ns, ns);
        self.max_triggers = triggers.unwrap_or(u64::MAX).min(self.max_triggers);
    }

    /// Time of the n-th trigger from now, from 1; `NEVER` when the source ends before.
    pub fn ahead(&mut self, n: u64) -> u64 {
        if self.issued.saturating_add(n) > self.max_triggers {
            return NEVER;
        }
        let at_ns = match (&self.times, &mut self.random) {
            (Some(times), _) => times.at(self.issued + n - 1).unwrap_or(NEVER),
            (None, None) => whole((self.issued + n) as f64 * self.period_ns),
            (None, Some(random)) => {
                while (self.ahead.len() as u64) < n {
                    self.last_ns -= random.uniform().ln() * self.period_ns;
                    self.ahead.push_back(whole(self.last_ns));
                }
                self.ahead[usize::try_from(n - 1).expect("a place in the queue")]
            }
        };
        if at_ns > self.end_ns { NEVER } else { at_ns }
    }

    pub(crate) fn is_over(&self, now_ns: u64) -> bool {
        self.issued >= self.max_triggers || now_ns >= self.end_ns
    }

    pub(crate) fn issue(&mut self, n: u64) {
        if n > 0 {
            self.issued_ns = self.ahead(n);
        }
        self.issued += n;
        let known = usize::try_from(n).map_or(self.ahead.len(), |n| n.min(self.ahead.len()));
        self.ahead.drain(..known);
    }

    pub(crate) fn due(&mut self, now_ns: u64) -> u64 {
        let now_ns = now_ns.min(self.end_ns);
        if self.random.is_none() && self.times.is_none() {
            let total = periods(now_ns, self.period_ns);
            return total.min(self.max_triggers).saturating_sub(self.issued);
        }
        let mut n = 0;
        while n < self.max_triggers.saturating_sub(self.issued) && self.ahead(n + 1) <= now_ns {
            n += 1;
        }
        n
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use daqmeter_record::written::Hertz;

    fn source(kind: TriggerKind) -> TriggerSource {
        let settings = TriggerSettings::default();
        TriggerSource::new(&TriggerSettings { source: kind, rate: Hertz(1e6), ..settings })
    }

    fn times(source: &mut TriggerSource, n: usize) -> Vec<u64> {
        let mut times = Vec::new();
        for _ in 0..n {
            times.push(source.ahead(1));
            source.issue(1);
        }
        times
    }

    #[test]
    fn a_fixed_source_may_be_jumped_and_counts_the_same() {
        let mut stepped = source(TriggerKind::Fixed);
        let all = times(&mut stepped, 1000);
        assert_eq!((all[0], all[999]), (1000, 1_000_000));
        let mut jumped = source(TriggerKind::Fixed);
        assert_eq!(
            (jumped.ahead(1000), jumped.due(1_000_000), jumped.due(999_999)),
            (1_000_000, 1000, 999)
        );
        jumped.issue(1000);
        assert_eq!(jumped.ahead(1), stepped.ahead(1));
    }

    #[test]
    fn rates_that_do_not_divide_a_second_neither_gain_nor_lose() {
        let mut source = TriggerSource::new(&TriggerSettings {
            rate: Hertz(1.05e6 / 3.7),
            ..TriggerSettings::default()
        });
        for step in 1..2000_u64 {
            let due = source.due(step * 777);
            assert!(due == 0 || source.ahead(due) <= step * 777);
            assert!(source.ahead(due + 1) > step * 777);
            source.issue(due);
        }
    }

    #[test]
    fn a_poisson_source_has_its_mean_and_its_spread() {
        let mut source = source(TriggerKind::Poisson);
        let all = times(&mut source, 100_000);
        let mean = all[99_999] as f64 / 1e5;
        assert!((mean - 1000.0).abs() < 15.0, "{mean}");
        let gaps: Vec<f64> = all.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.03, "{}", variance.sqrt());
    }

    #[test]
    fn it_ends_by_count_and_by_time() {
        let mut idle =
            TriggerSource::new(&TriggerSettings { rate: Hertz(0.1), ..TriggerSettings::default() });
        idle.end_ns = 1_000_000_000;
        assert_eq!(
            (idle.due(NEVER), idle.is_over(999_999_999), idle.is_over(1_000_000_000)),
            (0, false, true)
        );
        let mut by_count = source(TriggerKind::Poisson);
        by_count.max_triggers = 3;
        assert_eq!(by_count.due(NEVER - 1), 3);
        let mut by_time = source(TriggerKind::Fixed);
        by_time.end_ns = 2500;
        assert_eq!((by_time.due(NEVER), by_time.ahead(2), by_time.ahead(3)), (2, 2000, NEVER));
    }
}
