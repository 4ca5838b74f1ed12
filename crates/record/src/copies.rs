//! Counters of copies, and of programs that run beside them.

use crate::RunRecord;

/// Names of the series of the single runs, and of the counters of their sums.
pub const REFERENCES: &str = "victim-cache-references";
pub const MISSES: &str = "victim-cache-misses";

/// Returns misses in percent of references; `None` without a reference, or with more misses.
pub fn miss_percent((references, misses): (f64, f64)) -> Option<f64> {
    (references > 0.0 && misses <= references).then(|| misses / references * 100.0)
}

impl RunRecord {
    /// Returns the mean quantum and window of the priority policy in nanoseconds, as counted.
    pub fn gate_ns(&self) -> Option<(f64, f64)> {
        let windows = self.counter("gate-windows").filter(|windows| *windows > 0.0)?;
        let (high, low) = (self.counter("gate-high")?, self.counter("gate-low")?);
        Some((high / windows, (high + low) / windows))
    }

    /// Iterates over function, bytes and number of the calls of a trace, whose counters are
    /// `copy_from_user:16`.
    pub fn calls(&self) -> impl Iterator<Item = (&str, u64, f64)> {
        self.counters.iter().filter_map(|counter| {
            let (name, bytes) = counter.name.split_once(':')?;
            Some((name, bytes.parse().ok()?, counter.value))
        })
    }

    /// Returns references and misses of each run; empty if runs were not counted one by one.
    pub fn cache_counts(&self) -> Vec<Option<(f64, f64)>> {
        let values = |name: &str| self.series(name).map_or(&[][..], |series| &series.values);
        let runs = values(REFERENCES).iter().zip(values(MISSES));
        runs.map(|(references, misses)| references.zip(*misses)).collect()
    }

    /// Returns misses in percent of references, as in the study: the mean over the runs of each
    /// one's percentage. With sums alone, the percentage of these.
    pub fn miss_percent(&self) -> Option<f64> {
        let of_runs = self.cache_counts().into_iter().flatten().filter_map(miss_percent);
        let of_runs: Vec<f64> = of_runs.collect();
        match of_runs.len() {
            0 => miss_percent((self.counter(REFERENCES)?, self.counter(MISSES)?)),
            runs => Some(of_runs.iter().sum::<f64>() / runs as f64),
        }
    }
}
