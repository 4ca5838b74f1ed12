//! Published methods to find steps, written from their papers, for comparison with ours. Places are
//! the first values of new levels.

use daqmeter_stats::Random;
use statrs::distribution::{ContinuousCDF, StudentsT};

struct Distances {
    n: usize,
    sums: Vec<f64>,
}

impl Distances {
    fn of(values: &[f64]) -> Distances {
        let n = values.len();
        let mut found = Distances { n, sums: vec![0.0; (n + 1) * (n + 1)] };
        for length in 2..=n {
            for from in 0..=n - length {
                let to = from + length;
                let outer = (values[to - 1] - values[from]).abs();
                let inner =
                    found.sum(from, to - 1) + found.sum(from + 1, to) - found.sum(from + 1, to - 1);
                found.sums[from * (n + 1) + to] = outer + inner;
            }
        }
        found
    }

    fn sum(&self, from: usize, to: usize) -> f64 {
        self.sums[from * (self.n + 1) + to]
    }

    /// Returns the divergence of two ranges that touch, scaled by their lengths.
    fn divergence(&self, from: usize, at: usize, to: usize) -> f64 {
        let (left, right) = ((at - from) as f64, (to - at) as f64);
        let (within_left, within_right) = (self.sum(from, at), self.sum(at, to));
        let between = self.sum(from, to) - within_left - within_right;
        2.0 / (left + right)
            * (between
                - right / (left - 1.0).max(1.0) * within_left
                - left / (right - 1.0).max(1.0) * within_right)
    }

    /// Finds the split of a range with the largest divergence, and its size. Both sides have at
    /// least `least` values.
    fn best(&self, from: usize, to: usize, least: usize) -> Option<(usize, f64)> {
        let splits = (from + least..=to.saturating_sub(least))
            .flat_map(|at| (at + least..=to).map(move |end| (at, self.divergence(from, at, end))));
        splits.max_by(|a, b| a.1.total_cmp(&b.1))
    }
}

/// Returns bounds of the ranges between places, 0 and n included.
fn bounds(places: &[usize], n: usize) -> Vec<usize> {
    let mut bounds = vec![0, n];
    bounds.extend(places);
    bounds.sort_unstable();
    bounds
}

fn best_of_all(values: &[f64], bounds: &[usize], least: usize) -> Option<(usize, f64)> {
    let each = bounds.windows(2).filter_map(|range| {
        let distances = Distances::of(&values[range[0]..range[1]]);
        let (at, divergence) = distances.best(0, range[1] - range[0], least)?;
        Some((range[0] + at, divergence))
    });
    each.max_by(|a, b| a.1.total_cmp(&b.1))
}

/// E-divisive (Matteson and James 2014): divergence with exponent 1, 199 permutations inside of
/// ranges, 5 %, ranges of 30 values, which are the defaults of their R package. Shorter series use
/// a fifth of their length.
pub(crate) fn e_divisive(values: &[f64]) -> Vec<usize> {
    const PERMUTATIONS: usize = 199;
    let least = 30.min(values.len() / 5).max(2);
    let mut random = Random::new(1);
    let mut places = Vec::new();
    loop {
        let bounds = bounds(&places, values.len());
        let Some((at, divergence)) = best_of_all(values, &bounds, least) else {
            return places;
        };
        let as_large = |random: &mut Random| {
            let mut shuffled = values.to_vec();
            bounds.windows(2).for_each(|range| shuffle(&mut shuffled[range[0]..range[1]], random));
            best_of_all(&shuffled, &bounds, least).is_some_and(|(_, found)| found >= divergence)
        };
        // A twentieth of all permutations with as large a divergence ends the test.
        let mut larger = 0;
        for _ in 0..PERMUTATIONS {
            larger += usize::from(as_large(&mut random));
            if larger * 20 > PERMUTATIONS {
                return places;
            }
        }
        places.push(at);
    }
}

fn shuffle(values: &mut [f64], random: &mut Random) {
    for at in (1..values.len()).rev() {
        let other = (random.uniform() * (at + 1) as f64) as usize;
        values.swap(at, other.min(at));
    }
}

/// Returns the probability of such a difference of two means by chance: Student's t with a pooled
/// variance; 1 with too few values.
fn t_test(left: &[f64], right: &[f64]) -> f64 {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let squares = |values: &[f64]| values.iter().map(|x| (x - mean(values)).powi(2)).sum::<f64>();
    let freedom = (left.len() + right.len()) as f64 - 2.0;
    if freedom <= 0.0 {
        return 1.0;
    }
    let variance = (squares(left) + squares(right)) / freedom;
    let error = (variance * (1.0 / left.len() as f64 + 1.0 / right.len() as f64)).sqrt();
    let t = (mean(left) - mean(right)).abs() / error.max(f64::MIN_POSITIVE);
    StudentsT::new(0.0, 1.0, freedom).map_or(1.0, |student| 2.0 * student.cdf(-t))
}

/// Hunter (Fleming et al. 2023), which became Apache Otava: splits by divergence in windows of 50
/// that overlap by half, weak points at ten times the final p. The weakest are then removed until
/// all are below p = 0.001.
pub(crate) fn hunter(values: &[f64]) -> Vec<usize> {
    const WINDOW: usize = 50;
    const P: f64 = 0.001;
    let mut weak: Vec<usize> = Vec::new();
    let mut start = 0;
    while start < values.len() {
        let end = (start + WINDOW).min(values.len());
        let found = split(&values[start..end], 10.0 * P);
        let last = found.iter().max().map_or(0, |at| start + at);
        weak.extend(found.into_iter().map(|at| start + at));
        start = last.max(start + WINDOW / 2);
    }
    weak.sort_unstable();
    weak.dedup();
    loop {
        let bounds = bounds(&weak, values.len());
        let p = |at: usize| {
            let (left, right) =
                (&values[bounds[at]..bounds[at + 1]], &values[bounds[at + 1]..bounds[at + 2]]);
            t_test(left, right)
        };
        let weakest = (0..weak.len()).map(|at| (at, p(at))).max_by(|a, b| a.1.total_cmp(&b.1));
        match weakest {
            Some((at, p)) if p >= P => weak.remove(at),
            _ => return weak,
        };
    }
}

/// Returns splits of a window, strongest first, while the t-test of a split's two ranges stays
/// below p.
fn split(values: &[f64], p: f64) -> Vec<usize> {
    let mut places = Vec::new();
    loop {
        let bounds = bounds(&places, values.len());
        let Some((at, _)) = best_of_all(values, &bounds, 1) else {
            return places;
        };
        let after = bounds.partition_point(|bound| *bound <= at);
        if t_test(&values[bounds[after - 1]..at], &values[at..bounds[after]]) >= p {
            return places;
        }
        places.push(at);
    }
}

/// T-test of the twelve values before and the twelve after each place, t above 7, at the largest t
/// of each run of places: Perfherder's default.
pub(crate) fn t_tests(values: &[f64]) -> Vec<usize> {
    const WINDOW: usize = 12;
    const LEAST: f64 = 7.0;
    let t = |at: usize| {
        let (left, right) = (&values[at - WINDOW..at], &values[at..at + WINDOW]);
        let mean = |values: &[f64]| values.iter().sum::<f64>() / WINDOW as f64;
        let variance = |values: &[f64]| {
            let squares = values.iter().map(|x| (x - mean(values)).powi(2));
            squares.sum::<f64>() / (WINDOW - 1) as f64
        };
        let error = ((variance(left) + variance(right)) / WINDOW as f64).sqrt();
        (mean(left) - mean(right)).abs() / error.max(f64::MIN_POSITIVE)
    };
    let tested: Vec<(usize, f64)> =
        (WINDOW..(values.len() + 1).saturating_sub(WINDOW)).map(|at| (at, t(at))).collect();
    let runs = tested.split(|(_, t)| *t <= LEAST).filter(|run| !run.is_empty());
    let largest = runs.filter_map(|run| run.iter().max_by(|a, b| a.1.total_cmp(&b.1)));
    largest.map(|(at, _)| *at).collect()
}
