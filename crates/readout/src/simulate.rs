//! Chains in simulated time: rings that fill at one rate and are emptied at another, poll by poll,
//! with the hysteresis of BUSY: the ring occupancy of the published study.

use daqmeter_record::units::whole;
use daqmeter_stats::Random;

use crate::busy::Hysteresis;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ring {
    /// Bytes at which BUSY is asserted, and below which it is released.
    pub marks: (f64, f64),
    /// Input in bytes per second.
    pub input: f64,
    /// Output in bytes per second while the reader works.
    pub drain: f64,
    pub filled: f64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Occupancy {
    pub samples: Vec<Vec<f64>>,
    pub dead_share: f64,
    pub first_busy_s: Option<f64>,
}

/// Several rings behind one trigger: BUSY of one stops the input of all.
#[derive(Clone, Debug)]
pub struct Rings {
    pub rings: Vec<Ring>,
    pub poll_s: f64,
    /// Random times by which polls come late, as a share of the interval; a host's scheduling.
    pub jitter: f64,
    /// Stops of a reader by the host per second, and the length of one.
    pub hiccups: (f64, f64),
    pub seed: u64,
}

impl Rings {
    pub fn run(&mut self, seconds: f64, samples: usize) -> Occupancy {
        let mut random = Random::new(self.seed);
        let mut uniform = || random.uniform();
        let marks =
            |ring: &Ring| Hysteresis { high: to_bytes(ring.marks.0), low: to_bytes(ring.marks.1) };
        let mut busy = vec![false; self.rings.len()];
        let mut done = Occupancy {
            samples: vec![Vec::with_capacity(samples); self.rings.len()],
            ..Occupancy::default()
        };
        let (mut now_s, mut dead_s) = (0.0, 0.0);
        let mut next_sample_s = seconds / samples as f64;
        while now_s < seconds {
            // A poll takes the data since the last one, as far as the time until the next one
            // allows.
            let late_s = self.poll_s * self.jitter * uniform();
            let stopped_s =
                if uniform() < self.hiccups.0 * self.poll_s { self.hiccups.1 } else { 0.0 };
            let step_s = self.poll_s + late_s + stopped_s;
            let any = busy.iter().any(|busy| *busy);
            let until_s = |ring: &Ring| (ring.marks.0 - ring.filled).max(0.0) / ring.input;
            let live_s = self.rings.iter().map(until_s).fold(step_s, f64::min);
            let live_s = if any { 0.0 } else { live_s };
            let sampled = now_s + step_s >= next_sample_s;
            for (ring, samples) in self.rings.iter_mut().zip(&mut done.samples) {
                ring.filled += ring.input * live_s;
                if sampled {
                    // At a random moment between two polls: the reader has taken a part of it.
                    let taken = (ring.drain * step_s * uniform()).min(ring.filled) * 0.5;
                    samples.push(ring.filled - taken);
                }
                ring.filled = (ring.filled - ring.drain * (step_s - stopped_s)).max(0.0);
            }
            if sampled {
                next_sample_s += seconds / samples as f64;
            }
            dead_s += step_s - live_s;
            if step_s > live_s && done.first_busy_s.is_none() {
                done.first_busy_s = Some(now_s + live_s);
            }
            for (busy, ring) in busy.iter_mut().zip(&self.rings) {
                let reached = ring.filled + ring.drain * (step_s - stopped_s) >= ring.marks.0;
                *busy = marks(ring).state(*busy || reached, to_bytes(ring.filled));
            }
            now_s += step_s;
        }
        done.dead_share = dead_s / now_s;
        done
    }
}

fn to_bytes(bytes: f64) -> usize {
    usize::try_from(whole(bytes)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use daqmeter_harness::search::{Observation, SearchPlan, highest_rate};

    use super::*;

    fn rings(input: f64) -> Rings {
        let ring = Ring { marks: (800e6, 768e6), input, drain: 1e9, filled: 0.0 };
        Rings { rings: vec![ring; 2], poll_s: 1e-4, jitter: 0.0, hiccups: (0.0, 0.0), seed: 1 }
    }

    #[test]
    fn below_its_limit_a_ring_holds_what_one_poll_brings() {
        let done = rings(0.99e9).run(10.0, 50);
        assert_eq!((done.dead_share, done.first_busy_s), (0.0, None));
        assert!(done.samples[0].iter().all(|bytes| *bytes < 0.2e6), "{:?}", done.samples[0]);
    }

    #[test]
    fn above_it_the_ring_fills_at_the_difference_and_the_surplus_is_dead_time() {
        let done = rings(1.05e9).run(60.0, 50);
        let first = done.first_busy_s.unwrap();
        assert!((first - 16.0).abs() < 0.1, "800 MB at 50 MB/s: {first}");
        // The surplus over the time after that, less the hysteresis that is not used up.
        let expected = (1.0 - 1.0 / 1.05) * (60.0 - 16.0) / 60.0;
        assert!((done.dead_share - expected).abs() < 0.012, "{} {expected}", done.dead_share);
    }

    /// Observes a buffer of a size that is emptied at a known rate. The host stops that for 5 ms
    /// 0.3 times a second. A full buffer stops the triggers.
    fn observed(
        (knee_hz, buffer, seed): (f64, f64, u64),
        rate_hz: f64,
        time: Duration,
    ) -> Observation {
        let event_bytes = 700.0;
        let input = rate_hz * event_bytes;
        let marks = (buffer, 0.96 * buffer);
        let ring = Ring { marks, input, drain: knee_hz * event_bytes, filled: 0.0 };
        let hiccups = (0.3, 5e-3);
        let mut rings = Rings { rings: vec![ring], poll_s: 1e-4, jitter: 0.5, hiccups, seed };
        let seconds = time.as_secs_f64();
        // As a reader does: a sample in 10 ms, 32 at most.
        let samples = usize::try_from(time.as_millis() / 10).unwrap().clamp(1, 32);
        let done = rings.run(seconds, samples);
        let at =
            |(step, bytes): (usize, &f64)| ((step as f64 + 1.0) * seconds / samples as f64, *bytes);
        Observation {
            dead_share: done.dead_share,
            backlog: done.samples[0].iter().enumerate().map(at).collect(),
            busy_at_bytes: 800e6,
            input_bytes_per_s: input,
            ..Observation::default()
        }
    }

    /// Issue 48: where a FIFO hid the limit from short probes, 74 kHz were good and none was
    /// confirmed, after 78 s.
    #[test]
    fn a_known_knee_is_found_within_1_percent_whatever_the_buffer_the_probe_and_the_noise() {
        // FIFOs, the network's queues, small and large rings.
        for (buffer, knee_hz) in [64e3, 1e6, 4e6, 50e6, 800e6]
            .into_iter()
            .flat_map(|one| [(one, 59e3), (one, 1.05e6), (one, 3.3e6)])
        {
            // Each holds the host's stops of 5 ms at its knee.
            let buffer = buffer + knee_hz * 700.0 * 10e-3;
            for (probe_ms, most_s) in [(100, 25.0), (500, 75.0)] {
                let probe = Duration::from_millis(probe_ms);
                let (from_hz, to_hz, confirm) = (50e3, 40e6, probe * 4);
                let plan = SearchPlan { from_hz, to_hz, resolution: 0.01, probe, confirm };
                let (mut seconds, mut seed) = (0.0, probe_ms);
                let found = highest_rate(&plan, |rate_hz, time| {
                    seconds += time.as_secs_f64();
                    seed += 1000;
                    Ok::<_, Infallible>(Some(observed((knee_hz, buffer, seed), rate_hz, time)))
                })
                .unwrap();
                let of = format!("{buffer} B, {knee_hz} Hz, {probe_ms} ms: {seconds} s {found:?}");
                let share = found.rate_hz.unwrap() / knee_hz;
                assert!((0.99..=1.005).contains(&share) && seconds < most_s, "{share}: {of}");
            }
        }
    }
}
