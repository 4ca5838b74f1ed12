//! Work of several lanes at one time.

use serde::Serialize;

use crate::Stage;

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Together {
    /// Time in which every lane worked, over the time from the first start to the last end.
    pub share: f64,
    /// Sum over the lanes of their bytes over the time from their first sample to their last.
    pub sum_bytes_per_s: f64,
    /// Bytes of all lanes during the time in which every lane worked, over that time.
    pub moved_bytes_per_s: f64,
}

pub fn together(lanes: &[&Stage]) -> Option<Together> {
    let first_end = lanes.iter().map(|stage| stage.end_ns).min()?;
    let last_end = lanes.iter().map(|stage| stage.end_ns).max()?;
    let first_start = lanes.iter().map(|stage| stage.start_ns).min()?;
    let last_start = lanes.iter().map(|stage| stage.start_ns).max()?;
    if lanes.len() < 2 || lanes.iter().any(|stage| stage.end_ns <= stage.start_ns) {
        return None;
    }
    let per_s = |bytes: f64, ns: u64| bytes / ns.max(1) as f64 * 1e9;
    let own = |stage: &&Stage| per_s(stage.bytes(), stage.end_ns - stage.start_ns);
    let common_ns = first_end.saturating_sub(last_start);
    let moved: f64 = lanes.iter().map(|stage| bytes_within(stage, last_start, first_end)).sum();
    Some(Together {
        share: common_ns as f64 / (last_end - first_start) as f64,
        sum_bytes_per_s: lanes.iter().map(own).sum(),
        moved_bytes_per_s: per_s(moved, common_ns),
    })
}

/// Returns the bytes that a stage moved between two times; a sample partly within counts in part.
fn bytes_within(stage: &Stage, begin: u64, end: u64) -> f64 {
    let samples = stage.sample_starts_ns().zip(&stage.sample_ns);
    let part = |(start, ns): (u64, &u64)| {
        let inside = start.saturating_add(*ns).min(end);
        inside.saturating_sub(start.max(begin)) as f64 / (*ns).max(1) as f64
    };
    samples.map(part).sum::<f64>() * stage.bytes_per_sample()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lanes_moved_at_the_same_time_leaves_out_what_one_did_alone() {
        let stage = |sample_ns: &[u64], start_ns: u64| Stage {
            ops_per_sample: 1,
            bytes_per_op: 1000,
            start_ns,
            end_ns: start_ns + sample_ns.iter().sum::<u64>(),
            sample_ns: sample_ns.to_vec(),
            ..Stage::default()
        };
        // The second lane copies at a tenth of the rate beside the first, and continues alone.
        let (fast, slow) = (stage(&[100; 10], 100), stage(&[1000, 1000, 100, 100], 100));
        let found = together(&[&fast, &slow]).unwrap();
        assert!((found.share - 1000.0 / 2200.0).abs() < 1e-9);
        assert!((found.moved_bytes_per_s / (11_000.0 / 1000.0 * 1e9) - 1.0).abs() < 1e-9);
        let sum = 10_000.0 / 1000.0 * 1e9 + 4000.0 / 2200.0 * 1e9;
        assert!((found.sum_bytes_per_s / sum - 1.0).abs() < 1e-9);
        let later = stage(&[100], 5000);
        let found = together(&[&fast, &later]).unwrap();
        assert_eq!((found.share, found.moved_bytes_per_s), (0.0, 0.0));
        assert_eq!(together(&[&fast]), None);
    }
}
