//! A path on a host that was calibrated: largest rate, what limits it, CPUs of its threads, queues, latency and loss, each with a 90 %
//! interval.
//!
//! Threads with the costs of the profile are simulated on its CPUs. By how much that is off for paths that were held back is in the
//! profile: the middle of these errors corrects a prediction, and their outer tenth is its interval (split conformal prediction: Vovk,
//! Gammerman and Shafer 2005; it holds for paths that are drawn as those were, while the host is as it was).

use daqmeter_record::prediction::{PartPrediction, Predicted, Prediction};
use daqmeter_record::shape::{PathShape, ShapeRow};

use crate::profile::{Check, MIN_CHECKS, Pair, Profile, ProfileError};
use crate::threads::{ThreadRow, Threads, ThreadsOutcome, run_threads};

/// Blocks that are simulated, and of these not counted: p99 rests on 27 blocks.
const BLOCKS: u64 = 3_000;
const WARM_UP: u64 = 300;
/// Bytes that a socket on loopback holds: the usual send buffer of a Unix socket, and about what TCP grows to.
const UNIX_BYTES: u64 = 212_992;
const TCP_BYTES: u64 = 2_000_000;

/// The model of a path with the costs of a profile.
///
/// # Errors
/// When a kind of work or a size was not calibrated.
pub fn model(shape: &PathShape, profile: &Profile) -> Result<Threads, ProfileError> {
    let rows: Result<Vec<ThreadRow>, ProfileError> =
        shape.rows.iter().map(|row| thread_row(row, profile)).collect();
    let sharing = &profile.sharing;
    Ok(Threads {
        rows: rows?,
        cpus: profile.host.allowed_cpus.clone(),
        buffers: shape.buffers,
        every_ns: shape.total_hz().map(|hz| 1e9 / hz),
        lossless: shape.lossless,
        wake_ns: sharing.wake_ns.clone().into(),
        sleep_cpu_ns: sharing.sleep_at(shape.buffers),
        timer_cpu_ns: sharing.timer_cpu_ns,
        near_wake_cpu_ns: sharing.near_wake_cpu_ns,
        far_wakes: sharing.far_wakes.iter().map(|far| (far.idle_ns, far.cpu_ns)).collect(),
        slice_ns: sharing.slice_ns,
        stay_ns: sharing.stay_ns,
        far_sleep_cpu_ns: sharing.far_sleep_cpu_ns,
        keeps_cpu: sharing.keeps_cpu,
        blocks: BLOCKS,
        warm_up: WARM_UP,
    })
}

fn thread_row(row: &ShapeRow, profile: &Profile) -> Result<ThreadRow, ProfileError> {
    let room = match row.work.as_str() {
        "unix out" => Some(UNIX_BYTES / row.bytes.max(1)),
        "tcp out" => Some(TCP_BYTES / row.bytes.max(1)),
        _ => None,
    };
    let cost = profile.cost(&row.work, row.bytes);
    let cost = cost.map_err(|error| ProfileError(format!("{}: {error}", row.name)))?;
    Ok(ThreadRow {
        threads: row.threads,
        cpus: row.cpus.clone(),
        work_ns: cost.cpu_ns + row.added_ns,
        apart_ns: cost.apart_ns,
        asleep_ns: row.asleep_ns,
        room,
        in_place: row.in_place,
    })
}

/// What a model says, not corrected by checks.
#[derive(Clone, Debug)]
pub struct Simulated {
    /// As fast as it goes.
    pub free: ThreadsOutcome,
    /// At the path's rate; as fast as it goes where it has none.
    pub at_rate: ThreadsOutcome,
}

/// Simulates a path on a host.
///
/// # Errors
/// As [`model`].
pub fn simulate(
    shape: &PathShape,
    profile: &Profile,
    seed: u64,
) -> Result<Simulated, ProfileError> {
    let model = model(shape, profile)?;
    let free = run_threads(&Threads { every_ns: None, ..model.clone() }, seed);
    let at_rate = match model.every_ns {
        Some(_) => run_threads(&model, seed),
        None => free.clone(),
    };
    Ok(Simulated { free, at_rate })
}

impl ThreadsOutcome {
    /// Blocks per second.
    pub fn rate_hz(&self) -> f64 {
        self.blocks as f64 / self.seconds.max(f64::MIN_POSITIVE)
    }
}

/// Predicts a path on a host.
///
/// # Errors
/// When the path holds what was not calibrated, or the profile cannot give intervals.
pub fn predict(
    shape: &PathShape,
    profile: &Profile,
    seed: u64,
) -> Result<Prediction, ProfileError> {
    let Simulated { free, at_rate } = simulate(shape, profile, seed)?;
    let model = model(shape, profile)?;
    let errors = Errors::of(shape, profile);
    let largest_hz = errors.ratio(false, |check| check.rate)?.around(free.rate_hz());
    let is_paced = shape.rate_hz.is_some();
    let latency = |share, of: fn(&Check) -> Pair| {
        let ns = at_rate.latency_ns.quantile(share) as f64;
        Ok::<_, ProfileError>(errors.ratio(is_paced, of)?.around(ns))
    };
    let (limit, limit_used) = limit(shape, &model, &free);
    Ok(Prediction {
        line: shape.line.clone(),
        block_bytes: shape.block_bytes,
        profile_time_utc: profile.time_utc.clone(),
        limit,
        limit_used,
        offered_hz: shape.total_hz(),
        lost: lost(shape.total_hz(), largest_hz),
        p50_ns: latency(0.5, |check| check.p50_ns)?,
        p99_ns: latency(0.99, |check| check.p99_ns)?,
        parts: parts(shape, &model, &at_rate, &errors)?,
        notes: notes(shape, profile, largest_hz),
        largest_hz,
    })
}

fn parts(
    shape: &PathShape,
    model: &Threads,
    at_rate: &ThreadsOutcome,
    errors: &Errors<'_>,
) -> Result<Vec<PartPrediction>, ProfileError> {
    let is_paced = shape.rate_hz.is_some();
    let cpu = errors.difference(is_paced, |check| &check.cpu)?;
    let depth = errors.difference(is_paced, |check| &check.depth)?;
    let row = |(at, row): (usize, &ShapeRow)| PartPrediction {
        name: row.name.clone(),
        threads: row.threads,
        cost_ns: model.rows[at].work_ns,
        cpu: cpu.beside(at_rate.cpu[at], 1.0),
        depth: (at > 0).then(|| depth.beside(at_rate.depth[at - 1], shape.buffers as f64)),
    };
    Ok(shape.rows.iter().enumerate().map(row).collect())
}

/// What is not carried of what is due.
fn lost(offered_hz: Option<f64>, largest_hz: Predicted) -> Predicted {
    let share = |hz: f64| offered_hz.map_or(0.0, |offered| (1.0 - hz / offered).clamp(0.0, 1.0));
    Predicted {
        value: share(largest_hz.value),
        low: share(largest_hz.high),
        high: share(largest_hz.low),
    }
}

/// The resource with the largest use while the path goes as fast as it can (utilisation law, Denning and Buzen 1978): threads of a row,
/// a CPU to which threads are pinned, or all CPUs together.
fn limit(shape: &PathShape, model: &Threads, free: &ThreadsOutcome) -> (String, f64) {
    let hz = free.rate_hz();
    let row = |(at, row): (usize, &ThreadRow)| {
        let asleep = row.asleep_ns * 1e-9 * hz / row.threads as f64;
        (shape.rows[at].name.clone(), free.cpu[at] + asleep)
    };
    let rows = model.rows.iter().enumerate().map(row);
    let total = |is_here: &dyn Fn(&ThreadRow) -> f64| -> f64 {
        let used = model.rows.iter().zip(&free.cpu);
        used.map(|(row, cpu)| cpu * is_here(row)).sum()
    };
    let all = total(&|row| row.threads as f64) / model.cpus.len() as f64;
    let pins: std::collections::BTreeSet<u32> =
        model.rows.iter().flat_map(|row| row.cpus.iter().copied()).collect();
    let pinned = pins.into_iter().map(|cpu| {
        let here = |row: &ThreadRow| {
            let places = (0..row.threads)
                .filter(|at| row.cpus.get(at % row.cpus.len().max(1)) == Some(&cpu));
            places.count() as f64
        };
        (format!("CPU {cpu}"), total(&here))
    });
    let all = [("all CPUs together".to_owned(), all)];
    let each = rows.chain(pinned).chain(all);
    each.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or_default()
}

fn notes(shape: &PathShape, profile: &Profile, largest_hz: Predicted) -> Vec<String> {
    let mut notes = Vec::new();
    let (threads, checked) = (shape.threads(), profile.max_threads());
    if threads > checked {
        notes.push(format!(
            "{threads} threads: the paths that were checked had at most {checked}, and the intervals were not checked beyond"
        ));
    }
    let pins = shape.rows.iter().any(|row| !row.cpus.is_empty());
    if pins && !profile.checks.iter().any(|check| check.is_pinned) {
        notes.push("threads are pinned: the paths that were checked were not, and the intervals are theirs".to_owned());
    }
    if profile.host.allowed_cpus.len() > 1 && !profile.knows_neighbours() {
        notes.push("the profile was measured on one CPU: what neighbours on other CPUs cost is not in it, and the intervals do not hold here".to_owned());
    }
    let offered = shape.total_hz().unwrap_or(0.0);
    if offered > largest_hz.low {
        notes.push(
            "the rate is above, or may be above, the largest one: latency and queues then depend on how long it lasts".to_owned(),
        );
    }
    notes
}

/// Errors of the checks that are like a path.
struct Errors<'a> {
    profile: &'a Profile,
    /// Whether its threads are pinned.
    is_pinned: bool,
}

/// The middle and the outer tenth of errors.
#[derive(Clone, Copy, Debug)]
struct Spread {
    middle: f64,
    low: f64,
    high: f64,
}

impl Spread {
    /// Errors are logarithms of ratios.
    fn around(self, value: f64) -> Predicted {
        Predicted {
            value: value * self.middle.exp(),
            low: value * self.low.exp(),
            high: value * self.high.exp(),
        }
    }

    /// Errors are differences; the result stays between 0 and the largest value that there can be.
    fn beside(self, value: f64, max: f64) -> Predicted {
        let within = |error: f64| (value + error).clamp(0.0, max);
        Predicted { value: within(self.middle), low: within(self.low), high: within(self.high) }
    }

    /// Of n errors the one at rank 0.05 (n + 1), and the one at rank 0.95 (n + 1), hold the next with 90 %.
    fn of(mut errors: Vec<f64>) -> Result<Spread, ProfileError> {
        let Some(rank) = daqmeter_stats::outer_rank(errors.len()) else {
            return Err(ProfileError(format!(
                "{} checks; {MIN_CHECKS} are wanted for an interval of 90 %: calibrate with a longer --budget",
                errors.len()
            )));
        };
        errors.sort_by(f64::total_cmp);
        Ok(Spread {
            middle: daqmeter_stats::quantile(&errors, 0.5),
            low: errors[rank - 1],
            high: errors[errors.len() - rank],
        })
    }
}

impl<'a> Errors<'a> {
    fn of(shape: &PathShape, profile: &'a Profile) -> Errors<'a> {
        Errors { profile, is_pinned: shape.rows.iter().any(|row| !row.cpus.is_empty()) }
    }

    fn checks(&self, is_paced: bool) -> Vec<&'a Check> {
        self.profile.checks_like(is_paced, self.is_pinned)
    }

    fn ratio(&self, is_paced: bool, of: impl Fn(&Check) -> Pair) -> Result<Spread, ProfileError> {
        let pairs = self.checks(is_paced).into_iter().map(of);
        Spread::of(pairs.map(|pair| (pair.measured / pair.predicted).ln()).collect())
    }

    fn difference(
        &self,
        is_paced: bool,
        of: impl Fn(&Check) -> &Vec<Pair>,
    ) -> Result<Spread, ProfileError> {
        let pairs = self.checks(is_paced).into_iter().flat_map(of);
        Spread::of(pairs.map(|pair| pair.measured - pair.predicted).collect())
    }
}

#[cfg(test)]
mod tests {
    use daqmeter_stats::simulated::Random;

    use super::*;
    use crate::profile::tests::profile;

    fn shape() -> PathShape {
        let row = |work: &str| ShapeRow {
            name: work.to_owned(),
            work: work.to_owned(),
            threads: 1,
            bytes: 65_536,
            ..ShapeRow::default()
        };
        PathShape {
            block_bytes: 65_536,
            buffers: 8,
            lossless: true,
            rows: ["memory", "copy memcpy", "read"].map(row).into(),
            ..PathShape::default()
        }
    }

    #[test]
    fn three_equal_threads_on_two_cpus_are_limited_by_these() {
        let found = predict(&shape(), &profile(), 1).unwrap();
        // 3 x 65,536 ns on two CPUs, and the checks were 1.9 % faster than predicted in the middle.
        let wanted = 1e9 / (1.5 * 65_536.0) * (1.0 + 19.0 / 1024.0);
        assert!((found.largest_hz.value / wanted - 1.0).abs() < 0.02, "{found:?}");
        assert_eq!(found.limit, "all CPUs together");
        assert!(found.limit_used > 0.97 && found.notes.is_empty(), "{found:?}");
        let Predicted { value, low, high } = found.largest_hz;
        assert!(low < value && value < high);
        // Ranks 2 and 38 of 39 errors of 0 to 38/1024.
        assert!((high / low - 1061.0 / 1025.0).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn a_slow_stage_is_the_limit_and_above_its_rate_blocks_are_lost() {
        let mut shape = shape();
        shape.rows[1].added_ns = 1e6;
        let largest = predict(&shape, &profile(), 1).unwrap();
        assert_eq!(largest.limit, "copy memcpy");
        shape.rate_hz = Some(2.0 * largest.largest_hz.value);
        let found = predict(&shape, &profile(), 1).unwrap();
        assert!((found.lost.value - 0.5).abs() < 0.01 && found.lost.low < found.lost.high);
        assert!(found.notes[0].contains("above, the largest"), "{found:?}");
    }

    #[test]
    fn what_was_not_calibrated_is_refused_and_what_was_not_checked_is_said() {
        let mut unknown = shape();
        unknown.rows[1].work = "decode".to_owned();
        assert!(predict(&unknown, &profile(), 1).is_err());
        let mut many = shape();
        many.rows[1].threads = 4;
        many.rows[2].cpus = vec![0];
        let notes = predict(&many, &profile(), 1).unwrap().notes;
        assert!(notes[0].contains("6 threads") && notes[1].contains("pinned"), "{notes:?}");
        assert!(Spread::of(vec![0.0; MIN_CHECKS - 1]).is_err());
    }

    #[test]
    fn a_profile_goes_to_other_cpus_and_one_that_knows_no_neighbours_says_that_on_several() {
        let mut alone = profile();
        alone.works.pop();
        let notes = |profile: Profile| predict(&shape(), &profile, 1).unwrap().notes;
        assert!(notes(profile()).is_empty() && notes(alone.clone().on(&[3])).is_empty());
        assert!(notes(alone)[0].contains("on one CPU"));
        let rate = |cpus: &[u32]| {
            let found = predict(&shape(), &profile().on(cpus), 1).unwrap();
            found.largest_hz.value
        };
        assert!((rate(&[0]) / rate(&[7]) - 1.0).abs() < 1e-9);
        assert!(rate(&[4, 5]) > 1.8 * rate(&[0]));
    }

    /// The promise itself: of errors drawn as those of the checks were, intervals hold 90 %.
    #[test]
    fn intervals_hold_nine_tenths_of_what_is_drawn_as_the_checks_were() {
        let mut random = Random::new(5);
        let mut error = || 0.1 * random.normal().exp();
        let (mut held, tries) = (0, 2000);
        for _ in 0..tries {
            let spread = Spread::of((0..59).map(|_| error()).collect()).unwrap();
            held += usize::from(spread.around(1.0).holds(error().exp()));
        }
        let share = held as f64 / tries as f64;
        assert!((0.88..0.93).contains(&share), "{share}");
    }
}
