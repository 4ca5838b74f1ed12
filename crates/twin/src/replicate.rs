//! Many runs at once: replications with other seeds, points of a sweep. The order of results is that of the jobs, whoever computed them.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use daqmeter_stats::student_interval;

use crate::model::{Model, ModelError};
use crate::outcome::Outcome;
use crate::simulate::run;

/// A mean over independent replications, and the interval that holds the true one with 95 % confidence (Student's t).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Mean of the replications.
    pub mean: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

const CONFIDENCE: f64 = 0.95;

/// The mean of one value of each replication; none below two replications, or where one has no value.
pub fn estimate(outcomes: &[Outcome], value: impl Fn(&Outcome) -> Option<f64>) -> Option<Estimate> {
    let values: Option<Vec<f64>> = outcomes.iter().map(value).collect();
    let (mean, low, high) = student_interval(&values?, CONFIDENCE)?;
    Some(Estimate { mean, low, high })
}

/// Runs a model with the seeds from `seed` on.
///
/// # Errors
/// As [`run`].
pub fn replicate(
    model: &Model,
    seed: u64,
    replications: usize,
    threads: usize,
) -> Result<Vec<Outcome>, ModelError> {
    let jobs: Vec<(&Model, u64)> =
        (0..replications).map(|at| (model, seed.wrapping_add(at as u64))).collect();
    run_all(&jobs, threads)
}

/// Runs models, each with its seed, on so many threads.
///
/// # Errors
/// As [`run`], of the first job that has one.
pub fn run_all(jobs: &[(&Model, u64)], threads: usize) -> Result<Vec<Outcome>, ModelError> {
    let run = |at: usize| run(jobs[at].0, jobs[at].1);
    in_parallel(jobs.len(), threads, run).into_iter().collect()
}

/// The results of so many jobs, in their order, done on so many threads.
pub(crate) fn in_parallel<T: Send + Sync>(
    jobs: usize,
    threads: usize,
    job: impl Fn(usize) -> T + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let done: Vec<OnceLock<T>> = (0..jobs).map(|_| OnceLock::new()).collect();
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(place) = done.get(at) else {
                return;
            };
            let is_first = place.set(job(at)).is_ok();
            debug_assert!(is_first, "each job has one number");
        }
    };
    std::thread::scope(|scope| {
        (1..threads.min(jobs)).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    let results = done.into_iter().map(OnceLock::into_inner);
    results.map(|result| result.expect("every job was done")).collect()
}
