//! Null distribution of the largest of many differences if nothing changed, by simulation. Each
//! difference over its standard error has Student's distribution with the freedom of its own
//! variance. Points of one group share their records and move together; all points of a host share
//! a part of their noise. The largest of all is drawn many times, on a scale that makes points of
//! different freedom comparable (Wallace 1959). Its quantile is the one border for the whole
//! comparison.

use crate::Random;

/// Number of draws: 20 of them lie beyond the quantile of 1 %.
const DRAWS: usize = 2000;
/// Fixed seed, so that equal comparisons give equal borders.
const SEED: u64 = 0x0da9;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Drawn {
    pub(crate) group: usize,
    pub(crate) freedom: f64,
}

/// Returns the bound of the largest normal score of all points at that probability, if `shared` of
/// the variance is common to all.
pub(crate) fn border(points: &[Drawn], shared: f64, probability: f64) -> f64 {
    let mut groups: Vec<Drawn> = points.to_vec();
    // A group moves together and counts once, with its least freedom, which has the widest tails.
    groups.sort_by(|a, b| a.group.cmp(&b.group).then(a.freedom.total_cmp(&b.freedom)));
    groups.dedup_by_key(|point| point.group);
    if groups.is_empty() {
        return f64::INFINITY;
    }
    let mut random = Random::new(SEED);
    let (common, own) = (shared.sqrt(), (1.0 - shared).sqrt());
    let largest = |random: &mut Random| {
        let host = random.normal();
        let scores = groups.iter().map(|point| {
            let normal = common * host + own * random.normal();
            let scale = (random.chi_squared(point.freedom) / point.freedom).sqrt();
            score((normal / scale).abs(), point.freedom)
        });
        scores.fold(0.0, f64::max)
    };
    let largest: Vec<f64> = (0..DRAWS).map(|_| largest(&mut random)).collect();
    crate::quantile(&crate::sorted(&largest), probability)
}

/// Converts Student's t to the normal deviate of nearly the same probability (Wallace 1959, "Bounds
/// on normal approximations to Student's").
fn score(t: f64, freedom: f64) -> f64 {
    (8.0 * freedom + 1.0) / (8.0 * freedom + 3.0) * (freedom * (t * t / freedom).ln_1p()).sqrt()
}

pub(crate) fn student(score: f64, freedom: f64) -> f64 {
    let root = score * (8.0 * freedom + 3.0) / (8.0 * freedom + 1.0);
    (freedom * (root * root / freedom).exp_m1()).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use statrs::distribution::{ContinuousCDF, StudentsT};

    fn alike(count: usize, freedom: f64) -> Vec<Drawn> {
        (0..count).map(|group| Drawn { group, freedom }).collect()
    }

    #[test]
    fn a_single_point_has_the_border_of_the_tables() {
        for freedom in [2.0, 5.0, 30.0] {
            let found = student(border(&alike(1, freedom), 0.0, 0.95), freedom);
            let table = StudentsT::new(0.0, 1.0, freedom).unwrap().inverse_cdf(0.975);
            assert!((found / table - 1.0).abs() < 0.06, "{freedom}: {found} {table}");
        }
    }

    #[test]
    fn independent_points_need_sidak_and_points_that_move_as_one_nothing_more() {
        let normal = |points: &[Drawn], shared| border(points, shared, 0.99);
        let many = normal(&alike(14, 1e4), 0.0);
        // 0.99 to the fourteenth root, two-sided.
        assert!((many - 3.38).abs() < 0.15, "{many}");
        let one = normal(&alike(1, 1e4), 0.0);
        let together: Vec<Drawn> =
            alike(14, 1e4).into_iter().map(|point| Drawn { group: 7, ..point }).collect();
        assert!((normal(&together, 0.0) - one).abs() < 1e-9);
        let shared = normal(&alike(14, 1e4), 0.9);
        assert!(one < shared && shared < many, "{one} {shared} {many}");
    }

    #[test]
    fn the_scale_has_an_inverse() {
        for (t, freedom) in [(0.0, 3.0), (2.5, 1.5), (12.0, 4.0), (4.0, 100.0)] {
            assert!((student(score(t, freedom), freedom) - t).abs() < 1e-9 * (1.0 + t));
        }
    }
}
