//! Search for the highest rate without loss, and the confidence of its result.
//!
//! A rate is stable if nothing is lost, no time is dead, and the backlog does not grow. A backlog
//! that would reach the BUSY mark within a minute, at its slope, is not stable, even without a
//! loss. The backlog is all data that no subscriber has acknowledged: in the card's FIFO, the ring,
//! pages and the network. Each of these hides a limit from a short run. The input less the growth
//! of the backlog is the rate that the chain carries: an estimate of the maximum. Near the maximum
//! each run is repeated and the majority counts, because the host disturbs runs. One long run
//! confirms the result.

use std::time::Duration;

use daqmeter_stats::median;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observation {
    /// Triggers x E-links lost for any reason but the emulators' own deficit.
    pub lost: u64,
    /// Share of what was due that was lost or stopped.
    pub lost_share: f64,
    pub dead_share: f64,
    /// Bytes that no subscriber has acknowledged over time, in seconds: in FIFO, ring, pages and
    /// network.
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
/// Growth that is noise, in seconds of input: the filling that a poll finds is less than one
/// millisecond of it.
const NOISE_S: f64 = 2e-3;

impl Observation {
    pub fn verdict(&self) -> Stability {
        match self.lost {
            _ if self.dead_share > 0.0 => Stability::Dead,
            1.. => Stability::Lost,
            0 if self.grows() => Stability::Growing,
            0 => Stability::Stable,
        }
    }

    /// Medians of time and backlog of the second quarter and of the last; `None` of few samples. A
    /// host that stops for a moment fills a ring, too, which empties again; medians leave that out.
    /// A probe of 0.1 s has ten samples, and fewer on a busy host.
    fn quarters(&self) -> Option<[(f64, f64); 2]> {
        let n = self.backlog.len();
        let middle = |part: &[(f64, f64)], of: fn(&(f64, f64)) -> f64| {
            median(&part.iter().map(of).collect::<Vec<_>>()).expect("a quarter of finite values")
        };
        let parts = [n / 4..n / 2, 3 * n / 4..n].map(|part| &self.backlog[part]);
        (n >= 4).then(|| parts.map(|part| (middle(part, |at| at.0), middle(part, |at| at.1))))
    }

    fn grows(&self) -> bool {
        let Some([from, to]) = self.quarters() else { return false };
        let slope = slope([from, to]);
        let soon = to.1 + slope * HORIZON_S > self.busy_at_bytes;
        to.1 - from.1 > NOISE_S * self.input_bytes_per_s
            && (soon || slope > LEFT_BEHIND * self.input_bytes_per_s)
    }

    /// Share of the input that was carried: neither stopped nor left in a buffer.
    pub fn carried(&self) -> f64 {
        let stopped = self.lost_share.max(self.dead_share);
        // A buffer that is full grew from the begin of the run.
        let begin = |from| if stopped > 0.0 { (0.0, 0.0) } else { from };
        let growth = self.quarters().map_or(0.0, |[from, to]| slope([begin(from), to]));
        1.0 - stopped - growth / self.input_bytes_per_s.max(1e-9)
    }
}

/// Bytes per second from one point of a backlog to another.
fn slope([(from_s, from), (to_s, to)]: [(f64, f64); 2]) -> f64 {
    (to - from) / (to_s - from_s).max(1e-9)
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
    /// Rates at which a probe passed.
    passed: Vec<f64>,
    /// Rate that was carried in the last run that was not stable, and the error of this estimate as
    /// a share.
    knee: (f64, f64),
}

/// A stable rate and one that is not, if they were found.
type Bracket = (Option<f64>, Option<f64>);

enum Stop<E> {
    Over,
    Failed(E),
}

/// Finds the highest stable rate: doubles the rate, goes on from the rate that an unstable run
/// carried, halves the interval, and confirms the result. It then runs once more at the rate above,
/// so that a failure by a disturbed host does not decide. `observe` runs the system at a rate for a
/// time; `None` ends the search, whose time is over.
pub fn highest_rate<E>(
    plan: &SearchPlan,
    observe: impl FnMut(f64, Duration) -> Result<Option<Observation>, E>,
) -> Result<SearchResult, E> {
    let mut search = Search {
        observe,
        plan,
        confirmations: 0,
        found: SearchResult::default(),
        passed: Vec::new(),
        knee: (f64::INFINITY, 0.0),
    };
    let is_cut = match search.run() {
        Ok(()) => false,
        Err(Stop::Over) => true,
        Err(Stop::Failed(error)) => return Err(error),
    };
    let [confirm_s, long_s] = [1, CONFIRM_TIMES].map(|times| (plan.confirm * times).as_secs_f64());
    let confidence = match search.found.rate_hz {
        None if is_cut => {
            "the search ended before a rate was confirmed: use a longer --time".to_owned()
        }
        None => "no rate was free of faults".to_owned(),
        Some(_) => format!(
            "confirmed in {long_s:.1} s without a fault: with 95 % confidence there is less than one fault in {confirm_s:.1} s"
        ),
    };
    Ok(SearchResult { is_cut, confidence, ..search.found })
}

impl<E, F: FnMut(f64, Duration) -> Result<Option<Observation>, E>> Search<'_, F> {
    fn run(&mut self) -> Result<(), Stop<E>> {
        let mut from_hz = self.plan.from_hz;
        for _ in 0..=RAISES {
            let before_hz = self.found.rate_hz;
            self.maximum(from_hz)?;
            let (Some(good), Some(bad)) = (self.found.rate_hz, self.found.unstable_hz) else {
                break;
            };
            // If two runs pass now, it failed because the host was disturbed.
            if before_hz == Some(good)
                || self.once(bad, self.plan.confirm)? != Stability::Stable
                || self.confirm(bad)? != Stability::Stable
            {
                break;
            }
            (self.found.unstable_hz, from_hz) = (None, bad);
        }
        Ok(())
    }

    /// Searches from a rate and confirms a result above the rate that was confirmed before.
    fn maximum(&mut self, from_hz: f64) -> Result<(), Stop<E>> {
        let lowest_hz = self.found.rate_hz.unwrap_or(self.plan.from_hz * LOWEST);
        let (good, bad) = self.bracket(from_hz, lowest_hz)?;
        self.found.unstable_hz = bad;
        let Some(mut good) = good else { return Ok(()) };
        let mut by_estimate = true;
        while let Some(bad) = self.found.unstable_hz.filter(|bad| self.is_wide(good, *bad, 0.75)) {
            let rate_hz = self.between(good, bad, by_estimate);
            let time = self.time_for((rate_hz / good).min(bad / rate_hz) - 1.0);
            if self.is_stable(rate_hz, time)? {
                good = rate_hz;
                // An estimate that was too low.
                self.knee.1 *= if rate_hz > self.knee.0 { 4.0 } else { 1.0 };
            } else {
                // Estimates could go down by a little each time.
                by_estimate = !by_estimate;
                self.found.unstable_hz = Some(rate_hz);
            }
        }
        // The estimate by the last run may be lower than the rates that this run tells apart.
        let below_hz = self.knee.0 / (1.0 + 0.25 * self.plan.resolution);
        let is_near = !self.is_wide(below_hz, good, 1.0);
        self.confirm_below(if is_near { good.min(below_hz) } else { good }, lowest_hz)
    }

    /// Confirms a rate or a lower one. A rate that fails is the upper end of an interval, which is
    /// halved down to the last rate that passed.
    fn confirm_below(&mut self, mut rate_hz: f64, lowest_hz: f64) -> Result<(), Stop<E>> {
        let mut failed_hz = 0.0;
        while rate_hz > lowest_hz && self.confirmations < MAX_CONFIRMATIONS {
            self.confirmations += 1;
            let good = match self.confirm(rate_hz)? {
                Stability::Stable => rate_hz,
                // The host may make one run fail, but not a backlog grow for long.
                Stability::Lost | Stability::Dead if failed_hz != rate_hz => {
                    failed_hz = rate_hz;
                    continue;
                }
                _ => {
                    self.found.unstable_hz = Some(rate_hz);
                    self.passed.retain(|passed| *passed < rate_hz);
                    let passed = self.passed.iter().copied().fold(lowest_hz, f64::max);
                    self.found.rate_hz.map_or(passed, |confirmed| confirmed.max(passed))
                }
            };
            // No rate above the estimate is stable.
            let highest = |bad: f64| bad.min(self.knee.0.max(good));
            let is_wide = |bad: &f64| self.is_wide(good, highest(*bad), 1.0);
            rate_hz = match self.found.unstable_hz.filter(is_wide) {
                Some(bad) => self.between(good, bad, true),
                None if self.found.rate_hz == Some(good) => break,
                None => good,
            };
        }
        Ok(())
    }

    /// Runs at a rate for long. A stable run confirms the rate.
    fn confirm(&mut self, rate_hz: f64) -> Result<Stability, Stop<E>> {
        let verdict = self.once(rate_hz, self.plan.confirm * CONFIRM_TIMES)?;
        if verdict == Stability::Stable {
            self.found.rate_hz = Some(rate_hz);
            self.found.confirmed = self.found.probes.len().checked_sub(1);
        }
        Ok(verdict)
    }

    /// True if an interval is wider than this part of the resolution.
    fn is_wide(&self, good: f64, bad: f64, part: f64) -> bool {
        bad / good - 1.0 > part * self.plan.resolution
    }

    /// Rate in an interval: just below or above the estimate of the maximum, or the middle.
    fn between(&self, good: f64, bad: f64, by_estimate: bool) -> f64 {
        let ((knee_hz, error), step) = (self.knee, 1.0 + self.plan.resolution / 8.0);
        let error = error.max(self.plan.resolution * 0.35);
        let around = [knee_hz / (1.0 + error), knee_hz * (1.0 + error)];
        let is_inside =
            |rate_hz: &f64| by_estimate && good * step < *rate_hz && *rate_hz * step < bad;
        around.into_iter().find(is_inside).unwrap_or((good * bad).sqrt())
    }

    /// Time of a run that tells rates apart whose ratio exceeds 1 by this: half of this share of
    /// the input, from the second quarter to the last, must exceed the noise.
    fn time_for(&self, ratio: f64) -> Duration {
        let longest = self.plan.confirm * CONFIRM_TIMES;
        let wanted = Duration::try_from_secs_f64(4.0 * NOISE_S / ratio).unwrap_or(longest);
        wanted.min(longest).max(self.plan.probe)
    }

    /// Goes down to a stable rate, or up to one that is not; returns both, if found.
    fn bracket(&mut self, from_hz: f64, lowest_hz: f64) -> Result<Bracket, Stop<E>> {
        let (mut rate_hz, mut good, mut bad) = (from_hz, None, None);
        loop {
            if self.is_stable(rate_hz, self.plan.probe)? {
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
        let observed = observed.ok_or(Stop::Over)?;
        let verdict = observed.verdict();
        if verdict != Stability::Stable {
            self.knee = (rate_hz * observed.carried(), NOISE_S / duration.as_secs_f64());
        }
        self.found.probes.push(Probe { rate_hz, verdict });
        Ok(verdict)
    }

    /// Decides by the majority of up to three runs; one that passes at once is enough.
    fn is_stable(&mut self, rate_hz: f64, time: Duration) -> Result<bool, Stop<E>> {
        let is_stable = self.once(rate_hz, time)? == Stability::Stable
            || self.once(rate_hz, time)? == Stability::Stable
                && self.once(rate_hz, time)? == Stability::Stable;
        if is_stable {
            self.passed.push(rate_hz);
        }
        Ok(is_stable)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use daqmeter_stats::Random;

    use super::*;

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
        // Regression: a probe on a busy host had seven samples, and was stable.
        let few = (0..7).map(|at| (f64::from(at) * 0.015, f64::from(at) * 1e6)).collect();
        assert_eq!(observation(few).verdict(), Stability::Growing);
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
            let mut random = Random::new(*seed);
            let found = found(move |_, _, duration| {
                let times = duration.div_duration_f64(PLAN.confirm);
                losing(random.uniform() > (-times).exp() && times > 1.0)
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
            assert_eq!(found.probes[found.confirmed.unwrap()].rate_hz, rate_hz);
            let is_near = (0.99..=1.0).contains(&(rate_hz / knee_hz));
            assert!(is_near, "{from} to {to}: {rate_hz}, {:?}", found.probes);
            assert!(found.unstable_hz.unwrap() > rate_hz);
        }
    }
}
