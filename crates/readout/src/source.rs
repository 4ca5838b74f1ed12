//! The trigger source: the times of triggers, and their count, which is made here and nowhere else.

use std::collections::VecDeque;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::scenario::{ScenarioError, TriggerKind, TriggerSettings};
use crate::triggers::Listed;

pub(crate) const NEVER: u64 = u64::MAX;

/// Triggers in the order of time. Times are ns since the source's start.
#[derive(Debug)]
pub struct TriggerSource {
    gaps: Gaps,
    issued: u64,
    end_ns: u64,
    most: u64,
    /// Times of sources that must be stepped which were computed already.
    ahead: VecDeque<u64>,
    last_ns: f64,
}

#[derive(Debug)]
enum Gaps {
    Fixed {
        period_ns: f64,
    },
    Poisson {
        period_ns: f64,
        random: Xoshiro256PlusPlus,
    },
    /// Times of a file, and their number.
    Times(Listed),
}

impl TriggerSource {
    pub fn new(trigger: &TriggerSettings) -> Result<TriggerSource, ScenarioError> {
        let period_ns = 1e9 / trigger.rate.0;
        let gaps = match trigger.source {
            TriggerKind::Fixed => Gaps::Fixed { period_ns },
            TriggerKind::Poisson => {
                Gaps::Poisson { period_ns, random: Xoshiro256PlusPlus::seed_from_u64(trigger.seed) }
            }
            TriggerKind::Times => {
                let path = trigger.file.as_deref().unwrap_or("");
                let read = Listed::read(path);
                Gaps::Times(read.map_err(|what| ScenarioError(format!("trigger.file: {what}")))?)
            }
        };
        let most = match &gaps {
            Gaps::Times(listed) => listed.times_ns.len() as u64,
            _ => u64::MAX,
        };
        let ahead = VecDeque::with_capacity(1024);
        Ok(TriggerSource { gaps, issued: 0, end_ns: NEVER, most, ahead, last_ns: 0.0 })
    }

    pub fn end_at(&mut self, ns: u64) {
        self.end_ns = ns;
    }

    pub fn end_after(&mut self, triggers: u64) {
        self.most = self.most.min(triggers);
    }

    pub fn end_ns(&self) -> u64 {
        self.end_ns
    }

    pub fn issued(&self) -> u64 {
        self.issued
    }

    /// Number of the last issued trigger, if the triggers of the file have numbers of their own.
    pub(crate) fn number(&self) -> Option<u64> {
        match &self.gaps {
            Gaps::Times(listed) => Some((listed.first + self.issued).saturating_sub(1)),
            _ => None,
        }
    }

    pub(crate) fn left(&self) -> u64 {
        self.most.saturating_sub(self.issued)
    }

    pub fn period_ns(&self) -> f64 {
        match &self.gaps {
            Gaps::Fixed { period_ns } | Gaps::Poisson { period_ns, .. } => *period_ns,
            Gaps::Times(listed) => listed.period_ns(),
        }
    }

    /// Time of the n-th trigger from now, from 1; `NEVER` when the source ends before.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "times are positive and below 2^53 ns"
    )]
    pub fn ahead(&mut self, n: u64) -> u64 {
        if self.issued.saturating_add(n) > self.most {
            return NEVER;
        }
        let at_ns = match &self.gaps {
            Gaps::Fixed { period_ns } => ((self.issued + n) as f64 * period_ns) as u64,
            Gaps::Times(listed) => {
                // The list holds as many triggers as `most`.
                let place = usize::try_from(self.issued + n - 1).expect("a place in the file");
                listed.times_ns[place]
            }
            _ => {
                while (self.ahead.len() as u64) < n {
                    self.last_ns += self.gap();
                    self.ahead.push_back(self.last_ns as u64);
                }
                self.ahead[usize::try_from(n - 1).expect("a place in the queue")]
            }
        };
        if at_ns > self.end_ns { NEVER } else { at_ns }
    }

    pub fn is_over(&self, now_ns: u64) -> bool {
        self.issued >= self.most || now_ns >= self.end_ns
    }

    pub fn issue(&mut self, n: u64) {
        self.issued += n;
        for _ in 0..n.min(self.ahead.len() as u64) {
            self.ahead.pop_front();
        }
    }

    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "times are positive and below 2^53 ns"
    )]
    pub fn due(&mut self, now_ns: u64) -> u64 {
        let now_ns = now_ns.min(self.end_ns);
        if let Gaps::Fixed { period_ns } = &self.gaps {
            let mut total = (now_ns as f64 / period_ns) as u64;
            // The division's rounding must agree with the product's.
            while ((total + 1) as f64 * period_ns) as u64 <= now_ns {
                total += 1;
            }
            while total > 0 && (total as f64 * period_ns) as u64 > now_ns {
                total -= 1;
            }
            return total.min(self.most).saturating_sub(self.issued);
        }
        let mut n = 0;
        while n < self.left() && self.ahead(n + 1) <= now_ns {
            n += 1;
        }
        n
    }

    fn gap(&mut self) -> f64 {
        match &mut self.gaps {
            Gaps::Fixed { period_ns } => *period_ns,
            Gaps::Times(listed) => listed.period_ns(),
            Gaps::Poisson { period_ns, random } => {
                // 53 random bits, never zero.
                let uniform = ((random.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
                -uniform.ln() * *period_ns
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Hertz;

    fn source(kind: TriggerKind) -> TriggerSource {
        TriggerSource::new(&TriggerSettings {
            source: kind,
            rate: Hertz(1e6),
            ..TriggerSettings::default()
        })
        .unwrap()
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
        })
        .unwrap();
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
    fn times_of_a_file_are_kept_and_its_end_is_the_end() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "10 7\n10 8\n500ns 9\n").unwrap();
        let trigger = TriggerSettings {
            source: TriggerKind::Times,
            file: Some(file.path().to_str().unwrap().to_owned()),
            ..TriggerSettings::default()
        };
        let mut source = TriggerSource::new(&trigger).unwrap();
        source.end_after(1000);
        assert_eq!((source.due(9), source.due(10), source.due(NEVER)), (0, 2, 3));
        assert_eq!(times(&mut source, 2), [10, 10]);
        assert_eq!((source.number(), source.is_over(400)), (Some(8), false));
        assert_eq!(times(&mut source, 1), [500]);
        assert_eq!((source.number(), source.ahead(1)), (Some(9), NEVER));
        assert!(source.is_over(500));
    }

    #[test]
    fn it_ends_by_count_and_by_time() {
        let mut idle =
            TriggerSource::new(&TriggerSettings { rate: Hertz(0.1), ..TriggerSettings::default() })
                .unwrap();
        idle.end_at(1_000_000_000);
        assert_eq!(
            (idle.due(NEVER), idle.is_over(999_999_999), idle.is_over(1_000_000_000)),
            (0, false, true)
        );
        let mut by_count = source(TriggerKind::Poisson);
        by_count.end_after(3);
        assert_eq!(by_count.due(NEVER - 1), 3);
        let mut by_time = source(TriggerKind::Fixed);
        by_time.end_at(2500);
        assert_eq!((by_time.due(NEVER), by_time.ahead(2), by_time.ahead(3)), (2, 2000, NEVER));
    }
}
