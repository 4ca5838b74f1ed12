//! The highest rate at which nothing is lost, and how sure that is.
//!
//! A point is stable when no more was lost and no more time was dead than is allowed, and when its ring does not fill: a ring that
//! would reach the BUSY mark within a minute at the slope at which it filled is not stable, though nothing is lost yet. Near the knee
//! points are repeated and the majority counts, because the host disturbs them; the result is confirmed by longer runs.

use std::time::Duration;

use daqmeter_stats::{most_events, quantile, sorted};

/// What was seen at one rate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observation {
    /// Triggers lost, for whatever reason but the emulators' own deficit, in triggers x E-links.
    pub lost: u64,
    /// Share of the time that was dead.
    pub dead_share: f64,
    /// Bytes in the fullest ring over time, in seconds.
    pub filling: Vec<(f64, f64)>,
    /// Bytes at which BUSY comes.
    pub busy_at_bytes: f64,
    /// Bytes that come per second and ring.
    pub input_bytes_per_s: f64,
}

/// What is allowed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Allowed {
    /// Triggers x E-links that may be lost.
    pub lost: u64,
    /// Share of the time that may be dead.
    pub dead_share: f64,
}

/// Why a point is not stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is.
    Stable,
    /// More was lost than is allowed.
    Lost,
    /// More time was dead than is allowed.
    Dead,
    /// The ring fills.
    Filling,
}

/// A ring that would reach its mark within this time is not stable.
const HORIZON_S: f64 = 60.0;
/// Nor is one that keeps more than this share of what comes.
const LEFT_BEHIND: f64 = 0.01;

impl Observation {
    /// Whether it could go on like this.
    pub fn verdict(&self, allowed: Allowed) -> Verdict {
        if self.dead_share > allowed.dead_share {
            Verdict::Dead
        } else if self.lost > allowed.lost && allowed.dead_share == 0.0 {
            Verdict::Lost
        } else if self.fills() {
            Verdict::Filling
        } else {
            Verdict::Stable
        }
    }

    /// Median of the second quarter against that of the last, and the slope between: medians, because a host that stops for a moment
    /// fills a ring, too, and it empties again.
    fn fills(&self) -> bool {
        let n = self.filling.len();
        if n < 8 {
            return false;
        }
        let median = |part: &[(f64, f64)], of: fn(&(f64, f64)) -> f64| {
            quantile(&sorted(&part.iter().map(of).collect::<Vec<_>>()), 0.5)
        };
        let (early, late) = (&self.filling[n / 4..n / 2], &self.filling[3 * n / 4..]);
        let (from, to) = (median(early, |at| at.1), median(late, |at| at.1));
        let slope = (to - from) / (median(late, |at| at.0) - median(early, |at| at.0)).max(1e-9);
        // Less than a millisecond of input is what a poll finds.
        let noise = self.input_bytes_per_s * 2e-3;
        let soon = to + slope * HORIZON_S > self.busy_at_bytes;
        to - from > noise && (soon || slope > LEFT_BEHIND * self.input_bytes_per_s)
    }
}

/// Something that can be run at a rate.
pub trait System {
    /// Why it could not be run.
    type Error;

    /// Runs it for so long.
    ///
    /// # Errors
    /// When it cannot be run.
    fn observe(&mut self, rate_hz: f64, duration: Duration) -> Result<Observation, Self::Error>;
}

/// How to search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// Where to begin.
    pub from_hz: f64,
    /// Never beyond.
    pub to_hz: f64,
    /// Share to which the result is narrowed down.
    pub resolution: f64,
    /// Time of a probe.
    pub probe: Duration,
    /// Time of a confirmation.
    pub confirm: Duration,
    /// Confirmations, all of which must be stable.
    pub confirmations: u32,
    /// What is allowed.
    pub allowed: Allowed,
}

impl Default for Plan {
    fn default() -> Self {
        Plan {
            from_hz: 50e3,
            to_hz: 40e6,
            resolution: 0.005,
            probe: Duration::from_millis(500),
            confirm: Duration::from_secs(2),
            confirmations: 3,
            allowed: Allowed {
                lost: 0,
                dead_share: 0.0,
            },
        }
    }
}

/// One probe.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Probe {
    /// Rate.
    pub rate_hz: f64,
    /// What it was.
    pub verdict: Verdict,
    /// It was to confirm the result.
    pub confirms: bool,
}

/// The result.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The highest rate that was confirmed; none when even the first was not stable.
    pub rate_hz: Option<f64>,
    /// The lowest rate above it that was not stable; none when the search ended at its upper end.
    pub unstable_hz: Option<f64>,
    /// All probes in their order.
    pub probes: Vec<Probe>,
    /// Time of all confirmations at that rate in seconds, those that failed included.
    pub confirmed_s: f64,
    /// Confirmations at that rate that failed.
    pub failed: u32,
    /// Times that a confirmation failed and the rate was lowered.
    pub lowered: u32,
}

impl Found {
    /// With what confidence the result may be used, in a sentence: faults in the time of all confirmations are counted events, whose
    /// rate has an upper bound ([`most_events`]).
    pub fn confidence(&self) -> String {
        let every_s = self.confirmed_s / most_events(u64::from(self.failed));
        let seen = match self.failed {
            0 => "without a fault".to_owned(),
            1 => "with 1 fault".to_owned(),
            n => format!("with {n} faults"),
        };
        match self.rate_hz {
            None => "no rate was stable".to_owned(),
            Some(_) => format!(
                "confirmed for {:.1} s {seen}: with 95 % confidence faults are rarer than one in {every_s:.1} s",
                self.confirmed_s
            ),
        }
    }
}

struct Search<'a, S: System> {
    system: &'a mut S,
    plan: Plan,
    probes: Vec<Probe>,
}

impl<S: System> Search<'_, S> {
    fn once(
        &mut self,
        rate_hz: f64,
        duration: Duration,
        confirms: bool,
    ) -> Result<Verdict, S::Error> {
        let verdict = self
            .system
            .observe(rate_hz, duration)?
            .verdict(self.plan.allowed);
        self.probes.push(Probe {
            rate_hz,
            verdict,
            confirms,
        });
        Ok(verdict)
    }

    fn confirm(&mut self, rate_hz: f64) -> Result<bool, S::Error> {
        Ok(self.once(rate_hz, self.plan.confirm, true)? == Verdict::Stable)
    }

    /// The majority of up to three; one that passes at once needs no second. A ring that seems to fill may be emptying after the host
    /// stopped for a moment: a longer look tells.
    fn is_stable(&mut self, rate_hz: f64) -> Result<bool, S::Error> {
        let duration = match self.once(rate_hz, self.plan.probe, false)? {
            Verdict::Stable => return Ok(true),
            Verdict::Filling => self.plan.confirm,
            Verdict::Lost | Verdict::Dead => self.plan.probe,
        };
        let second = self.once(rate_hz, duration, false)? == Verdict::Stable;
        Ok(second && self.once(rate_hz, duration, false)? == Verdict::Stable)
    }
}

/// Finds the highest stable rate: by doubling, by halving the interval, and by confirming.
///
/// # Errors
/// When the system cannot be run.
pub fn highest_rate<S: System>(system: &mut S, plan: &Plan) -> Result<Found, S::Error> {
    let mut search = Search {
        system,
        plan: *plan,
        probes: Vec::new(),
    };
    let mut good = plan.from_hz;
    let mut bad = None;
    // Down to something that works, up to something that does not.
    while !search.is_stable(good)? {
        bad = Some(good);
        good /= 2.0;
        if good < plan.from_hz / 1024.0 {
            let probes = search.probes;
            return Ok(Found {
                rate_hz: None,
                unstable_hz: bad,
                probes,
                confirmed_s: 0.0,
                failed: 0,
                lowered: 0,
            });
        }
    }
    while bad.is_none() && good < plan.to_hz {
        let next = (good * 2.0).min(plan.to_hz);
        if search.is_stable(next)? {
            good = next
        } else {
            bad = Some(next)
        }
    }
    if let Some(limit) = &mut bad {
        while *limit / good - 1.0 > plan.resolution {
            let middle = (*limit * good).sqrt();
            if search.is_stable(middle)? {
                good = middle
            } else {
                *limit = middle
            }
        }
    }
    let mut lowered = 0;
    'lower: loop {
        for _ in 0..plan.confirmations {
            // A confirmation that fails once may be the host's fault; twice it is not.
            if !search.confirm(good)? && !search.confirm(good)? {
                bad = Some(good);
                good *= 1.0 - 2.0 * plan.resolution;
                lowered += 1;
                if good < plan.from_hz / 1024.0 {
                    let probes = search.probes;
                    return Ok(Found {
                        rate_hz: None,
                        unstable_hz: bad,
                        probes,
                        confirmed_s: 0.0,
                        failed: 0,
                        lowered,
                    });
                }
                continue 'lower;
            }
        }
        break;
    }
    let (confirmed, failed) = confirmations(&search.probes, good);
    Ok(Found {
        rate_hz: Some(good),
        unstable_hz: bad,
        probes: search.probes,
        confirmed_s: f64::from(confirmed) * plan.confirm.as_secs_f64(),
        failed,
        lowered,
    })
}

/// Confirmations at that rate, and how many of them failed.
fn confirmations(probes: &[Probe], rate_hz: f64) -> (u32, u32) {
    let at_rate = probes
        .iter()
        .filter(|probe| probe.confirms && probe.rate_hz == rate_hz);
    at_rate.fold((0, 0), |(all, failed), probe| {
        let is_fault = probe.verdict != Verdict::Stable;
        (all + 1, failed + u32::from(is_fault))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::Simulated;

    fn observation(filling: Vec<(f64, f64)>) -> Observation {
        Observation {
            filling,
            busy_at_bytes: 800e6,
            input_bytes_per_s: 1e9,
            ..Observation::default()
        }
    }

    #[test]
    fn a_ring_that_still_fills_is_not_stable_and_one_that_jumps_is() {
        let fills: Vec<(f64, f64)> = (0..100)
            .map(|at| (f64::from(at) * 0.01, f64::from(at) * 0.3e6))
            .collect();
        let allowed = Plan::default().allowed;
        assert_eq!(observation(fills).verdict(allowed), Verdict::Filling);
        let jumps: Vec<(f64, f64)> = (0..100)
            .map(|at| {
                (
                    f64::from(at) * 0.01,
                    if at == 90 {
                        50e6
                    } else {
                        f64::from(at % 7) * 1e5
                    },
                )
            })
            .collect();
        assert_eq!(observation(jumps.clone()).verdict(allowed), Verdict::Stable);
        let dead = Observation {
            dead_share: 0.001,
            ..observation(jumps.clone())
        };
        assert_eq!(dead.verdict(allowed), Verdict::Dead);
        assert_eq!(
            dead.verdict(Allowed {
                dead_share: 0.01,
                lost: 0
            }),
            Verdict::Stable
        );
        assert_eq!(
            Observation {
                lost: 1,
                ..observation(jumps)
            }
            .verdict(allowed),
            Verdict::Lost
        );
    }

    #[test]
    fn a_known_knee_is_found_within_1_percent_whatever_the_noise() {
        for (seed, knee_hz) in [
            (1, 1.05e6),
            (2, 1.05e6),
            (3, 1.05e6),
            (4, 137e3),
            (5, 3.3e6),
        ] {
            let mut system = Simulated {
                knee_hz,
                hiccups_per_s: 0.3,
                seed,
                ..Simulated::default()
            };
            let found = highest_rate(&mut system, &Plan::default()).unwrap();
            let rate = found.rate_hz.unwrap();
            assert!(
                (rate / knee_hz - 1.0).abs() < 0.01,
                "{seed}: {rate} for {knee_hz}: {:?}",
                found.probes
            );
            assert!(found.probes.len() < 60 && found.confirmed_s >= 6.0);
        }
    }

    /// Loses something in each confirmation whose number is listed.
    struct Faulty {
        confirmed: u32,
        at: &'static [u32],
    }

    impl System for Faulty {
        type Error = std::convert::Infallible;

        fn observe(&mut self, _: f64, duration: Duration) -> Result<Observation, Self::Error> {
            let mut seen = Observation::default();
            if duration == Plan::default().confirm {
                self.confirmed += 1;
                seen.lost = u64::from(self.at.contains(&self.confirmed));
            }
            Ok(seen)
        }
    }

    #[test]
    fn confirmations_that_failed_count_with_their_time() {
        let confidence = |at| {
            let found = highest_rate(&mut Faulty { confirmed: 0, at }, &Plan::default()).unwrap();
            (found.failed, found.confidence())
        };
        let (failed, text) = confidence(&[]);
        assert!(failed == 0 && text.contains("confirmed for 6.0 s without a fault"));
        let (failed, text) = confidence(&[1, 3]);
        assert_eq!(failed, 2);
        assert!(
            text.contains("confirmed for 10.0 s with 2 faults") && text.contains("one in 1.6 s"),
            "{text}"
        );
    }

    #[test]
    fn a_system_that_never_works_and_one_that_always_does() {
        let mut never = Simulated {
            knee_hz: 1.0,
            ..Simulated::default()
        };
        assert_eq!(
            highest_rate(&mut never, &Plan::default()).unwrap().rate_hz,
            None
        );
        let mut always = Simulated {
            knee_hz: 1e12,
            ..Simulated::default()
        };
        let found = highest_rate(&mut always, &Plan::default()).unwrap();
        assert_eq!((found.rate_hz, found.unstable_hz), (Some(40e6), None));
        assert!(found.confidence().contains("rarer than one in 2.0 s"));
    }
}
