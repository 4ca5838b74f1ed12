//! Search for the highest rate without loss, and the confidence of its result.
//!
//! A point is stable when nothing is lost, no time is dead, and its backlog does not grow. A
//! backlog that would reach the BUSY mark within a minute, at its slope, is not stable, even
//! without a loss. The backlog is all data that no subscriber has acknowledged: a limit in the
//! network fills pages and sockets long before the ring. Near the knee points are repeated and the
//! majority counts, because the host disturbs them. One long run confirms the result.

use std::time::Duration;

use daqmeter_stats::median;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observation {
    /// Triggers x E-links lost for any reason but the emulators' own deficit.
    pub lost: u64,
    pub dead_share: f64,
    /// Bytes that no subscriber has acknowledged over time, in seconds: in ring, pages and network.
    pub backlog: Vec<(f64, f64)>,
    pub busy_at_bytes: f64,
    /// Input in bytes per second and ring.
    pub input_bytes_per_s: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stability {
    Stable,
    Lost,
    Dead,
    Growing,
}

/// A backlog that would reach the ring's mark within this time is not stable.
const HORIZON_S: f64 = 60.0;
/// Maximum share of the input by which the backlog of a stable point may grow. With 1 %, a run of 6
/// s confirmed a rate at which 0.5 % stayed behind a network of 160 Mb/s. A probe of 0.4 s resolves
/// no less than 1 %: see the noise below.
const LEFT_BEHIND: f64 = 0.002;

impl Observation {
    pub fn verdict(&self) -> Stability {
        match self.lost {
            _ if self.dead_share > 0.0 => Stability::Dead,
            1.. => Stability::Lost,
            0 if self.grows() => Stability::Growing,
            0 => Stability::Stable,
        }
    }

    /// Compares the median of the second quarter with that of the last, and the slope between. A
    /// host that stops for a moment fills a ring, too, which empties again; medians leave that out.
    fn grows(&self) -> bool {
        let n = self.backlog.len();
        if n < 8 {
            return false;
        }
        let middle = |part: &[(f64, f64)], of: fn(&(f64, f64)) -> f64| {
            median(&part.iter().map(of).collect::<Vec<_>>()).expect("a quarter of finite values")
        };
        let (early, late) = (&self.backlog[n / 4..n / 2], &self.backlog[3 * n / 4..]);
        let (from, to) = (middle(early, |at| at.1), middle(late, |at| at.1));
        let slope = (to - from) / (middle(late, |at| at.0) - middle(early, |at| at.0)).max(1e-9);
        // Less than a millisecond of input is the filling that a poll finds.
        let noise = self.input_bytes_per_s * 2e-3;
        let soon = to + slope * HORIZON_S > self.busy_at_bytes;
        to - from > noise && (soon || slope > LEFT_BEHIND * self.input_bytes_per_s)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SearchPlan {
    pub from_hz: f64,
    pub to_hz: f64,
    pub resolution: f64,
    pub probe: Duration,
    /// Time in which a confirmed rate has less than one fault.
    pub confirm: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Probe {
    pub rate_hz: f64,
    pub verdict: Stability,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct SearchResult {
    /// Highest rate that was confirmed; `None` if even the first was not stable.
    pub rate_hz: Option<f64>,
    /// Index of the probe that confirmed it.
    pub confirmed: Option<usize>,
    /// Lowest rate above it that was not stable; `None` if the search ended at its upper end.
    pub unstable_hz: Option<f64>,
    pub probes: Vec<Probe>,
    /// True if the time was over before the search was.
    pub is_cut: bool,
    /// Sentence on the faults that a confirmed rate may have.
    pub confidence: String,
}

/// Times of [`SearchPlan::confirm`] that a run without a fault must last to confirm a rate, and the
/// number of such runs in a search. If faults come independently, once in that time, a run passes
/// with e^-6, and a search confirms a wrong rate in at most 16 e^-6 = 4 % of the cases.
pub const CONFIRM_TIMES: u32 = 6;
const MAX_CONFIRMATIONS: u32 = 16;

/// Times that a search goes on from a rate that failed before and is stable now.
const RAISES: u32 = 2;

/// Lowest rate of a search, as a part of the first one.
const LOWEST: f64 = 1.0 / 1024.0;

struct Search<'a, F> {
    observe: F,
    plan: &'a SearchPlan,
    confirmations: u32,
    found: SearchResult,
}

/// A rate that works and one that does not, where they were found.
type Bracket = (Option<f64>, Option<f64>);

enum Stop<E> {
    Over,
    Failed(E),
}

/// Finds the highest stable rate: by doubling, by halving the interval, and by confirming. The rate
/// above it is then run once more, so that a failure by a disturbed host does not decide. `observe`
/// runs the system at a rate for a time; `None` ends the search, whose time is over.
pub fn highest_rate<E>(
    plan: &SearchPlan,
    observe: impl FnMut(f64, Duration) -> Result<Option<Observation>, E>,
) -> Result<SearchResult, E> {
    let mut search = Search { observe, plan, confirmations: 0, found: SearchResult::default() };
    let is_cut = match search.run() {
        Ok(()) => false,
        Err(Stop::Over) => true,
        Err(Stop::Failed(error)) => return Err(error),
    };
    let confirm_s = plan.confirm.as_secs_f64();
    let confidence = match search.found.rate_hz {
        None if is_cut => "the search ended before a rate was confirmed".to_owned(),
        None => "no rate was free of faults".to_owned(),
        Some(_) => format!(
            "confirmed in {:.1} s without a fault: with 95 % confidence there is less than one fault in {confirm_s:.1} s",
            confirm_s * f64::from(CONFIRM_TIMES)
        ),
    };
    Ok(SearchResult { is_cut, confidence, ..search.found })
}

impl<E, F: FnMut(f64, Duration) -> Result<Option<Observation>, E>> Search<'_, F> {
    fn run(&mut self) -> Result<(), Stop<E>> {
        let mut from_hz = self.plan.from_hz;
        for _ in 0..=RAISES {
            let is_confirmed = self.maximum(from_hz)?;
            let Some(limit_hz) = self.found.unstable_hz.filter(|_| is_confirmed) else { break };
            if self.once(limit_hz, self.plan.confirm)? != Stability::Stable {
                break;
            }
            from_hz = limit_hz;
        }
        Ok(())
    }

    /// Searches from a rate and confirms what it finds; returns true if it is above what was
    /// confirmed before.
    fn maximum(&mut self, from_hz: f64) -> Result<bool, Stop<E>> {
        let lowest_hz = self.found.rate_hz.unwrap_or(self.plan.from_hz * LOWEST);
        let (good, mut bad) = self.bracket(from_hz, lowest_hz)?;
        let Some(mut good) = good else {
            self.found.unstable_hz = bad;
            return Ok(false);
        };
        while let Some(limit) = bad.filter(|limit| limit / good - 1.0 > self.plan.resolution) {
            let middle = (limit * good).sqrt();
            if self.is_stable(middle)? {
                good = middle;
            } else {
                bad = Some(middle);
            }
        }
        self.found.unstable_hz = bad;
        let mut tries = 0;
        while good > lowest_hz && self.confirmations < MAX_CONFIRMATIONS {
            self.confirmations += 1;
            if self.once(good, self.plan.confirm * CONFIRM_TIMES)? == Stability::Stable {
                self.found.rate_hz = Some(good);
                self.found.confirmed = self.found.probes.len().checked_sub(1);
                return Ok(true);
            }
            // The first run that fails may be the host's fault.
            tries += 1;
            if tries == 2 {
                tries = 0;
                self.found.unstable_hz = Some(good);
                good *= 1.0 - 2.0 * self.plan.resolution;
            }
        }
        Ok(false)
    }

    /// Goes down to a rate that works, or up to one that does not; returns both, if found.
    fn bracket(&mut self, from_hz: f64, lowest_hz: f64) -> Result<Bracket, Stop<E>> {
        let (mut rate_hz, mut good, mut bad) = (from_hz, None, None);
        loop {
            if self.is_stable(rate_hz)? {
                good = Some(rate_hz);
                if bad.is_some() || rate_hz >= self.plan.to_hz {
                    return Ok((good, bad));
                }
                rate_hz = (rate_hz * 2.0).min(self.plan.to_hz);
            } else {
                bad = Some(rate_hz);
                rate_hz /= 2.0;
                if good.is_some() || rate_hz < lowest_hz {
                    return Ok((good, bad));
                }
            }
        }
    }

    fn once(&mut self, rate_hz: f64, duration: Duration) -> Result<Stability, Stop<E>> {
        let observed = (self.observe)(rate_hz, duration).map_err(Stop::Failed)?;
        let verdict = observed.ok_or(Stop::Over)?.verdict();
        self.found.probes.push(Probe { rate_hz, verdict });
        Ok(verdict)
    }

    /// Decides by the majority of up to three runs; one that passes at once is enough. A filling
    /// ring may be emptying after a stop of the host: a longer run decides.
    fn is_stable(&mut self, rate_hz: f64) -> Result<bool, Stop<E>> {
        let duration = match self.once(rate_hz, self.plan.probe)? {
            Stability::Stable => return Ok(true),
            Stability::Growing => self.plan.confirm,
            Stability::Lost | Stability::Dead => self.plan.probe,
        };
        let second = self.once(rate_hz, duration)? == Stability::Stable;
        Ok(second && self.once(rate_hz, duration)? == Stability::Stable)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use rand_xoshiro::Xoshiro256PlusPlus;
    use rand_xoshiro::rand_core::{Rng, SeedableRng};

    use super::*;
    use crate::simulate::{Ring, Rings};

    const PLAN: SearchPlan = SearchPlan {
        from_hz: 50e3,
        to_hz: 40e6,
        resolution: 0.005,
        probe: Duration::from_millis(500),
        confirm: Duration::from_secs(2),
    };

    /// Searches a system by a function of the observation's number, rate and duration.
    fn found(mut observe: impl FnMut(u32, f64, Duration) -> Observation) -> SearchResult {
        let mut numbers = 0..;
        let observe = |rate_hz, duration| {
            Ok::<_, Infallible>(Some(observe(numbers.next().unwrap(), rate_hz, duration)))
        };
        highest_rate(&PLAN, observe).unwrap()
    }

    fn losing(is_lost: bool) -> Observation {
        Observation { lost: u64::from(is_lost), ..Observation::default() }
    }

    /// Ring whose reader keeps up to a known rate. The host stops it for 5 ms 0.3 times a second.
    fn simulated(knee_hz: f64, seed: u64) -> impl FnMut(u32, f64, Duration) -> Observation {
        move |number, rate_hz, duration| {
            let (event_bytes, busy_at) = (700.0, 50e6);
            let input = rate_hz * event_bytes;
            let ring =
                Ring { marks: (busy_at, 48e6), input, drain: knee_hz * event_bytes, filled: 0.0 };
            let seed = seed + 1000 * u64::from(number + 1);
            let hiccups = (0.3, 5e-3);
            let mut rings = Rings { rings: vec![ring], poll_s: 1e-4, jitter: 0.5, hiccups, seed };
            let seconds = duration.as_secs_f64();
            let done = rings.run(seconds, 100);
            let at = |(step, bytes): (usize, &f64)| ((step as f64 + 1.0) * seconds / 100.0, *bytes);
            Observation {
                lost: 0,
                dead_share: done.dead_share,
                backlog: done.samples[0].iter().enumerate().map(at).collect(),
                busy_at_bytes: busy_at,
                input_bytes_per_s: input,
            }
        }
    }

    fn observation(backlog: Vec<(f64, f64)>) -> Observation {
        Observation {
            backlog,
            busy_at_bytes: 800e6,
            input_bytes_per_s: 1e9,
            ..Observation::default()
        }
    }

    #[test]
    fn a_backlog_that_grows_is_not_stable_and_one_that_jumps_is() {
        let fills: Vec<(f64, f64)> =
            (0..100).map(|at| (f64::from(at) * 0.01, f64::from(at) * 0.3e6)).collect();
        assert_eq!(observation(fills).verdict(), Stability::Growing);
        // A rate that was confirmed: 0.5 % of the input stays behind, for 6 s.
        let slowly: Vec<(f64, f64)> =
            (0..32).map(|at| (f64::from(at) * 0.2, f64::from(at) * 1e6)).collect();
        assert_eq!(observation(slowly).verdict(), Stability::Growing);
        let jumps: Vec<(f64, f64)> = (0..100)
            .map(|at| (f64::from(at) * 0.01, if at == 90 { 50e6 } else { f64::from(at % 7) * 1e5 }))
            .collect();
        assert_eq!(observation(jumps.clone()).verdict(), Stability::Stable);
        let dead = Observation { dead_share: 0.001, ..observation(jumps.clone()) };
        assert_eq!(dead.verdict(), Stability::Dead);
        assert_eq!(Observation { lost: 1, ..observation(jumps) }.verdict(), Stability::Lost);
    }

    #[test]
    fn a_known_knee_is_found_within_1_percent_whatever_the_noise() {
        for (seed, knee_hz) in [(1, 1.05e6), (2, 1.05e6), (3, 1.05e6), (4, 137e3), (5, 3.3e6)] {
            let found = found(simulated(knee_hz, seed));
            let rate = found.rate_hz.unwrap();
            assert!((rate / knee_hz - 1.0).abs() < 0.01, "{seed}: {rate}: {:?}", found.probes);
            assert!(found.probes.len() < 60);
        }
    }

    #[test]
    fn a_confirmation_that_fails_costs_the_rate() {
        // Each search loses something in the first `failures` of its confirmations.
        let with = |failures: u32| {
            let mut confirmations = 0;
            found(move |_, _, duration| {
                confirmations += u32::from(duration > PLAN.confirm);
                losing(duration > PLAN.confirm && confirmations <= failures)
            })
        };
        assert_eq!((with(0).rate_hz, with(0).unstable_hz), (Some(40e6), None));
        assert!(with(0).confidence.contains("in 12.0 s without a fault: with"));
        assert!(with(1).probes.iter().any(|probe| probe.verdict == Stability::Lost));
        // A system that fails each confirmation, and one that never works.
        for never in [with(MAX_CONFIRMATIONS), found(|_, _, _| losing(true))] {
            assert_eq!(
                (never.rate_hz, never.confidence.as_str()),
                (None, "no rate was free of faults")
            );
        }
    }

    /// Issue 18: three confirmations could each be repeated once. Of 100 such searches 22 confirmed
    /// the first rate, and nearly all of them one below.
    #[test]
    fn a_fault_in_each_confirmation_s_time_is_confirmed_in_5_of_100_searches_at_most() {
        let confirmed = (0..1000).filter(|seed| {
            // Faults at random, one in the time of a confirmation on average. Probes see none.
            let mut random = Xoshiro256PlusPlus::seed_from_u64(*seed);
            let found = found(move |_, _, duration| {
                let uniform = (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
                let times = duration.div_duration_f64(PLAN.confirm);
                losing(times > 1.0 && uniform > (-times).exp())
            });
            found.rate_hz.is_some()
        });
        let confirmed = confirmed.count();
        assert!((20..=50).contains(&confirmed), "{confirmed} of 1000");
    }

    #[test]
    fn what_fails_while_the_host_is_disturbed_does_not_decide() {
        let knee_hz = 1e6;
        for (from, to) in [(0, 9), (3, 9), (5, 20), (8, 30), (12, 30), (0, 0)] {
            let found = found(|number, rate_hz, _| {
                losing((from..to).contains(&number) || rate_hz > knee_hz)
            });
            let rate_hz = found.rate_hz.unwrap();
            let is_near = (0.99..=1.0).contains(&(rate_hz / knee_hz));
            assert!(is_near, "{from} to {to}: {rate_hz}, {:?}", found.probes);
            assert!(found.unstable_hz.unwrap() > rate_hz);
        }
    }
}
