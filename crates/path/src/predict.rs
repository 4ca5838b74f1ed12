//! Largest rate, CPU time and latency of a path on a calibrated host, in closed form. A block takes
//! as long as the slowest stage or as the sum over the CPUs, whichever is longer. The errors for
//! held-back paths correct it and give the intervals (split conformal prediction: Vovk, Gammerman
//! and Shafer 2005). They hold for paths drawn as those were, on a host in the same state.

use std::collections::BTreeMap;

use daqmeter_record::prediction::{PartPrediction, Predicted, Prediction};
use daqmeter_record::units::significant;

pub use crate::profile::{
    CostPoint, Fitted, HeldBackPath, HostProfile, MIN_CHECKS, PredictedAndMeasured, WorkCost,
};
pub use crate::shape::{PathShape, ShapeRow, Work};

/// Times of a block, not corrected by held-back paths.
#[derive(Clone, Debug, PartialEq)]
pub struct ClosedForm {
    /// From block to block at the largest rate.
    pub period_ns: f64,
    /// Resource that allows no more.
    pub limit: String,
    /// Latency from due to done at the path's rate, or at full speed without one.
    pub latency_ns: f64,
    pub cpu_ns: Vec<f64>,
    /// Share of the CPU time that is spent on hand-overs between threads.
    pub hand_over: f64,
}

/// Least share of hand-overs that is worth a mention.
const WORTH_A_MENTION: f64 = 0.2;

impl ClosedForm {
    /// Computes the closed form. Fails for a kind of work or a size that was not calibrated.
    pub fn of(shape: &PathShape, profile: &HostProfile) -> Result<ClosedForm, String> {
        let cpus = profile.host.allowed_cpus.len() as f64;
        let Fitted { wake_cycles, apart, sharing } = profile.fitted;
        let wake_ns = wake_cycles / profile.clock_ghz;
        let each_wake_ns = wake_ns / shape.buffers.max(1) as f64;
        // Threads that do everything neither wait for one another nor move.
        let is_alone = shape.rows.len() == 1;
        let work_ns = |row: &ShapeRow, apart: Option<f64>| -> Result<f64, String> {
            let cycles = row.works.iter().map(|work| profile.cycles(work, apart));
            let cycles = cycles.sum::<Result<f64, String>>();
            let cycles = cycles.map_err(|error| format!("{}: {error}", row.name))?;
            Ok(cycles / profile.clock_ghz + row.added_ns)
        };
        let cpu_ns = shape.rows.iter().enumerate().map(|(at, row)| {
            let apart = shape.apart(at).unwrap_or(if cpus > 1.0 { apart } else { 0.0 });
            let wake_ns = if is_alone { 0.0 } else { each_wake_ns };
            Ok(work_ns(row, Some(apart))? + wake_ns)
        });
        let cpu_ns: Vec<f64> = cpu_ns.collect::<Result<_, String>>()?;
        let alone_ns = shape.rows.iter().map(|row| work_ns(row, None));
        let alone_ns = alone_ns.sum::<Result<f64, String>>()?;
        let mut all: Vec<(String, f64)> = Vec::new();
        let mut pinned: BTreeMap<u32, f64> = BTreeMap::new();
        for (row, cpu_ns) in shape.rows.iter().zip(&cpu_ns) {
            let threads = row.threads.max(1) as f64;
            all.push((row.name.clone(), (cpu_ns + row.asleep_ns) / threads));
            for at in 0..if row.cpus.is_empty() { 0 } else { row.threads } {
                *pinned.entry(row.cpus[at % row.cpus.len()]).or_default() += cpu_ns / threads;
            }
        }
        let sharing = if shape.is_pinned() || is_alone { 1.0 } else { sharing };
        let sum_ns = cpu_ns.iter().sum::<f64>() / cpus * sharing;
        all.extend(pinned.into_iter().map(|(cpu, ns)| (format!("CPU {cpu}"), ns)));
        all.push(("all CPUs together".to_owned(), sum_ns));
        let slowest = (0..all.len()).max_by(|a, b| all[*a].1.total_cmp(&all[*b].1));
        let at = slowest.unwrap_or(0);
        let (limit, period_ns) = all[at].clone();
        let once_ns: f64 = shape.rows.iter().zip(&cpu_ns).map(|(row, ns)| ns + row.asleep_ns).sum();
        let rings = shape.rows.len().saturating_sub(1);
        let is_late = shape.total_hz().is_none_or(|hz| hz * period_ns > 1e9);
        // Rings before the slowest part are full, and those behind it empty.
        let full = if is_late { at.min(rings) as f64 * shape.buffers as f64 } else { 0.0 };
        Ok(ClosedForm {
            hand_over: (1.0 - alone_ns / cpu_ns.iter().sum::<f64>()).max(0.0),
            limit,
            latency_ns: once_ns + rings as f64 * wake_ns + full * period_ns,
            period_ns,
            cpu_ns,
        })
    }

    pub fn largest_hz(&self) -> f64 {
        1e9 / self.period_ns.max(f64::MIN_POSITIVE)
    }

    pub fn cpus(&self, shape: &PathShape) -> Vec<f64> {
        let hz = shape.total_hz().map_or(self.largest_hz(), |hz| hz.min(self.largest_hz()));
        let rows = self.cpu_ns.iter().zip(&shape.rows);
        rows.map(|(ns, row)| (ns * hz * 1e-9 / row.threads.max(1) as f64).min(1.0)).collect()
    }
}

/// Predicts a path in the fastest of these shapes.
pub fn predict(shapes: &[PathShape], profile: &HostProfile) -> Result<Prediction, String> {
    let forms = shapes.iter().map(|shape| Ok((ClosedForm::of(shape, profile)?, shape)));
    let forms = forms.collect::<Result<Vec<_>, String>>()?;
    let fastest = forms.into_iter().min_by(|a, b| a.0.period_ns.total_cmp(&b.0.period_ns));
    let (form, shape) = fastest.ok_or("a path without a layout")?;
    let free = profile.like(false, shape);
    let alike = profile.like(shape.rate_hz.is_some(), shape);
    let ratio = |paths: &[&HeldBackPath], of: fn(&HeldBackPath) -> PredictedAndMeasured| {
        let pairs = paths.iter().map(|path| of(path));
        Spread::of(pairs.map(|pair| (pair.measured / pair.predicted).ln()).collect())
    };
    let largest_hz = ratio(&free, |path| path.rate)?.around(form.largest_hz());
    let cpu = alike.iter().flat_map(|path| &path.cpu);
    let cpu = Spread::of(cpu.map(|pair| pair.measured - pair.predicted).collect())?;
    let rows = shape.rows.iter().zip(&form.cpu_ns).zip(form.cpus(shape));
    let parts = rows.map(|((row, cost_ns), cpus)| PartPrediction {
        name: row.name.clone(),
        threads: row.threads,
        cost_ns: *cost_ns,
        cpu: cpu.beside(cpus),
    });
    let offered_hz = shape.total_hz();
    let lost = |hz: f64| offered_hz.map_or(0.0, |offered| (1.0 - hz / offered).clamp(0.0, 1.0));
    Ok(Prediction {
        line: shape.line.clone(),
        layout: shape.layout.clone(),
        block_bytes: shape.block_bytes,
        offered_hz,
        lost: Predicted {
            value: lost(largest_hz.value),
            low: lost(largest_hz.high),
            high: lost(largest_hz.low),
        },
        p50_ns: ratio(&alike, |path| path.p50_ns)?.around(form.latency_ns),
        p99_ns: ratio(&alike, |path| path.p99_ns)?.around(form.latency_ns),
        parts: parts.collect(),
        notes: notes(shape, profile, largest_hz),
        largest_hz,
        limit: match form.hand_over > WORTH_A_MENTION {
            true => format!(
                "{}, {} % of the work for hand-overs between threads",
                form.limit,
                significant(form.hand_over * 100.0, 2)
            ),
            false => form.limit,
        },
    })
}

fn notes(shape: &PathShape, profile: &HostProfile, largest_hz: Predicted) -> Vec<String> {
    let threads = shape.threads();
    let checked = profile.held_back.iter().map(|path| path.threads).max().unwrap_or(0);
    let mut notes = Vec::new();
    if threads > checked {
        notes.push(format!(
            "{threads} threads: the paths that were held back had at most {checked}, and the intervals were not checked beyond"
        ));
    }
    if shape.total_hz().unwrap_or(0.0) > largest_hz.low {
        notes.push(
            "the rate may be above the largest one: latency then depends on how long it lasts"
                .to_owned(),
        );
    }
    notes
}

/// Middle and outer tenth of the errors for held-back paths.
#[derive(Clone, Copy, Debug)]
struct Spread {
    middle: f64,
    low: f64,
    high: f64,
}

const NO_ERRORS: &str = "the profile: finite times of runs are wanted: calibrate again";

impl Spread {
    /// Spread of at least [`MIN_CHECKS`] errors, which a profile has.
    fn of(mut errors: Vec<f64>) -> Result<Spread, String> {
        let middle = daqmeter_stats::median(&errors).ok_or(NO_ERRORS)?;
        errors.sort_by(f64::total_cmp);
        let rank = (errors.len() + 1) / 20;
        let low = rank.saturating_sub(1);
        Ok(Spread { middle, low: errors[low], high: errors[errors.len() - 1 - low] })
    }

    /// Errors are logarithms of ratios.
    fn around(self, value: f64) -> Predicted {
        let times = |error: f64| value * error.exp();
        Predicted { value: times(self.middle), low: times(self.low), high: times(self.high) }
    }

    /// Errors are differences of shares.
    fn beside(self, value: f64) -> Predicted {
        let within = |error: f64| (value + error).clamp(0.0, 1.0);
        Predicted { value: within(self.middle), low: within(self.low), high: within(self.high) }
    }
}

/// Fits the three numbers of a profile to the rates of runs, in blocks per second. It searches
/// along each of them with shrinking steps, and sets their median error.
pub fn fit(profile: &mut HostProfile, runs: &[(PathShape, f64)]) -> Result<(), String> {
    let errors = |fitted: Fitted| -> Result<Vec<f64>, String> {
        let profile = HostProfile { fitted, ..profile.clone() };
        let forms = runs.iter().map(|(shape, hz)| Ok((ClosedForm::of(shape, &profile)?, hz)));
        forms.map(|found| found.map(|(form, hz)| (hz / form.largest_hz()).ln().abs())).collect()
    };
    let mean = |errors: &[f64]| errors.iter().sum::<f64>() / errors.len().max(1) as f64;
    let mut best = Fitted { wake_cycles: 10_000.0, apart: 0.3, sharing: 1.1 };
    let mut least = mean(&errors(best)?);
    let mut step: f64 = 4.0;
    while step > 1.02 {
        let before = least;
        for at in 0..3 {
            for factor in [step, 1.0 / step] {
                let mut tried = best;
                match at {
                    0 => tried.wake_cycles *= factor,
                    1 => tried.apart = (tried.apart * factor).min(1.0),
                    _ => tried.sharing = (tried.sharing * factor.sqrt()).max(1.0),
                }
                let found = mean(&errors(tried)?);
                if found < least {
                    (best, least) = (tried, found);
                }
            }
        }
        if least >= before {
            step = step.sqrt();
        }
    }
    profile.fit_error = daqmeter_stats::median(&errors(best)?).ok_or(NO_ERRORS)?;
    profile.fitted = best;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::tests::profile;

    fn shape() -> PathShape {
        let row = |work: &str| ShapeRow {
            name: work.to_owned(),
            works: vec![Work { name: work.to_owned(), bytes: 65_536, is_fused: false }],
            threads: 1,
            ..ShapeRow::default()
        };
        PathShape {
            block_bytes: 65_536,
            buffers: 8,
            streams: 1,
            rows: ["memory", "copy memcpy", "read"].map(row).into(),
            ..PathShape::default()
        }
    }

    #[test]
    fn the_slower_of_the_slowest_stage_and_the_sum_over_the_cpus_limits() {
        let limit = |shape: &PathShape, profile: &HostProfile| {
            let form = ClosedForm::of(shape, profile).unwrap();
            (form.limit, form.period_ns)
        };
        let mut profile = profile();
        // Three threads of 65,536 ns on two CPUs.
        assert_eq!(limit(&shape(), &profile), ("all CPUs together".to_owned(), 98_304.0));
        profile.host.allowed_cpus = (0..4).collect();
        profile.fitted.wake_cycles = 800.0;
        assert_eq!(limit(&shape(), &profile).1, 65_536.0 + 800.0 / 8.0);
        profile.fitted.apart = 0.5;
        assert_eq!(limit(&shape(), &profile).1, 1.5 * 65_536.0 + 100.0);
        let mut slow = shape();
        slow.rows[1].asleep_ns = 1e6;
        assert_eq!(limit(&slow, &profile).0, "copy memcpy");
        let mut pinned = shape();
        pinned.rows.iter_mut().for_each(|row| row.cpus = vec![2]);
        profile.fitted.sharing = 2.0;
        assert_eq!(limit(&pinned, &profile), ("CPU 2".to_owned(), 3.0 * (65_536.0 + 100.0)));
        // The source's blocks go to another CPU, and the sink's come from the same one.
        pinned.rows[0].cpus = vec![1];
        assert_eq!(limit(&pinned, &profile), ("CPU 2".to_owned(), 3.0 * 65_536.0 + 200.0));
        profile.clock_ghz = 2.0;
        assert_eq!(limit(&pinned, &profile).1, (3.0 * 65_536.0 + 200.0) / 2.0);
    }

    #[test]
    fn threads_that_do_everything_share_the_work_and_the_fastest_layout_is_predicted() {
        let mut fused = shape();
        let works = fused.rows.drain(1..).flat_map(|row| row.works).collect::<Vec<_>>();
        fused.rows[0].works.extend(works);
        fused.rows[0].works.iter_mut().for_each(|work| work.is_fused = true);
        (fused.rows[0].threads, fused.layout) = (2, "fused x 2".to_owned());
        // Without a hand-over a byte costs half.
        let form = ClosedForm::of(&fused, &profile()).unwrap();
        assert_eq!((form.period_ns, form.hand_over), (3.0 * 32_768.0 / 2.0, 0.0));
        let pipeline = predict(&[shape()], &profile()).unwrap();
        assert_eq!(
            pipeline.limit,
            "all CPUs together, 50 % of the work for hand-overs between threads"
        );
        let found = predict(&[shape(), fused], &profile()).unwrap();
        assert_eq!((found.layout.as_str(), found.parts.len()), ("fused x 2", 1));
    }

    #[test]
    fn held_back_paths_correct_a_prediction_and_give_its_interval() {
        let found = predict(&[shape()], &profile()).unwrap();
        // Ranks 2 and 38 of 39 errors of 0 to 38/1024, and the middle one.
        let wanted = [19.0, 1.0, 37.0].map(|error| 1e9 / 98_304.0 * (1.0 + error / 1024.0));
        let Predicted { value, low, high } = found.largest_hz;
        for (found, wanted) in [value, low, high].into_iter().zip(wanted) {
            assert!((found / wanted - 1.0).abs() < 1e-12, "{found} {wanted}");
        }
        assert!(found.notes.is_empty(), "{found:?}");
        let mut fast = shape();
        fast.rate_hz = Some(2.0 * value);
        fast.rows[0].threads = 1;
        let lossy = predict(&[fast], &profile()).unwrap();
        assert!((lossy.lost.value - 0.5).abs() < 1e-9 && lossy.lost.low < lossy.lost.high);
        assert!(lossy.notes[0].contains("may be above the largest"), "{lossy:?}");
        let mut many = shape();
        many.rows[1].threads = 4;
        assert!(predict(&[many.clone()], &profile()).unwrap().notes[0].contains("6 threads"));
        many.rows[1].works[0].name = "decode".to_owned();
        assert!(predict(&[many.clone()], &profile()).unwrap_err().contains("not calibrated"));
    }

    #[test]
    fn the_fit_gives_back_the_numbers_that_made_the_rates() {
        let mut profile = profile();
        let true_ones = Fitted { wake_cycles: 9000.0, apart: 0.4, sharing: 1.25 };
        profile.fitted = true_ones;
        let mut runs = Vec::new();
        for (bytes, buffers, cpus) in [
            (4096, 1, 4),
            (4096, 8, 4),
            (65_536, 1, 4),
            (65_536, 8, 4),
            (4096, 8, 2),
            (65_536, 8, 2),
        ] {
            let mut shape = shape();
            shape.buffers = buffers;
            shape.rows.iter_mut().for_each(|row| row.works[0].bytes = bytes);
            if cpus == 2 {
                shape.rows.extend(shape.rows.clone());
            }
            let hz = ClosedForm::of(&shape, &profile).unwrap().largest_hz();
            runs.push((shape, hz));
        }
        profile.fitted = Fitted::default();
        fit(&mut profile, &runs).unwrap();
        assert!(profile.fit_error < 0.02, "{:?}", profile.fitted);
    }

    /// Promise of conformal prediction: of errors drawn as those of the checks were, intervals hold
    /// 90 %.
    #[test]
    fn intervals_hold_nine_tenths_of_what_is_drawn_as_the_held_back_paths_were() {
        let mut random = daqmeter_stats::Random::new(5);
        let mut error = || random.uniform().powi(3);
        let (mut held, tries) = (0, 2000);
        for _ in 0..tries {
            let spread = Spread::of((0..59).map(|_| error()).collect()).unwrap();
            held += usize::from(spread.around(1.0).holds(error().exp()));
        }
        let share = held as f64 / f64::from(tries);
        assert!((0.88..0.93).contains(&share), "{share}");
    }
}
