//! Variation between occasions of an unchanged point: from its sides and its history, or from a
//! stated prior.

use crate::sides::{Point, Side, Value, in_order, location_of, trimmed};
use crate::{change_points, median, sorted};

/// Standard deviation of one occasion if only the scatter of its repetitions is known: a floor, and
/// a multiple of that scatter. Both values and the freedom come from stored occasions of one
/// virtual host, see METHODOLOGY.
pub(crate) const PRIOR_DEVIATION: f64 = 0.03;
pub(crate) const PRIOR_OVER_WITHIN: f64 = 1.5;
/// Degrees of freedom of that prior: the variation of points around it.
const PRIOR_FREEDOM: f64 = 2.0;
/// Weight of the median variance of all points of a comparison, in degrees of freedom.
const POOLED_FREEDOM: f64 = 2.0;
/// Weight of the prior of the correlation, in occasions.
const CORRELATION_WEIGHT: f64 = 8.0;
/// Correlation of neighbouring occasions if there are too few for an estimate.
const PRIOR_CORRELATION: f64 = 0.3;
/// Least standard deviation for a few equal values.
const LEAST_DEVIATION: f64 = 2e-4;
/// Effect of one bad hour of a host, as a factor: the allowed difference of sides that were not
/// recorded in turn.
const BAD_HOUR: f64 = 1.5;
/// Occasions of history without a worse hour that reduce the allowance.
const HOURS_KNOWN: f64 = 20.0;
/// Greatest allowed factor of a new occasion over the worst of the history.
const BEYOND_WORST: f64 = 1.25;
/// Fewest occasions a side for sides in turn. Suppose that three of ten occasions are in another
/// mode. With three a side, that mode covers exactly one side in 2 of 100 comparisons of a point;
/// with five, in 1 of 1000.
const IN_TURN: usize = 5;
/// Fewest changes between sides in the order of time.
const CHANGES: usize = 3;

#[derive(Clone, Debug)]
pub(crate) struct Pair {
    pub(crate) group: usize,
    pub(crate) a: Vec<Value>,
    pub(crate) b: Vec<Value>,
    /// History at one level, without steps.
    pub(crate) history: Vec<Value>,
    /// Measured levels of A and B.
    pub(crate) levels: (f64, f64),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Fit {
    pub(crate) effect: f64,
    pub(crate) error: f64,
    pub(crate) freedom: f64,
    /// Possible effect of a bad hour; 0 for sides that were recorded in turn.
    pub(crate) allowed: f64,
    pub(crate) in_turn: bool,
}

impl Pair {
    pub(crate) fn of(point: &Point) -> Option<Pair> {
        let usable = |side: &Side| Some(side.values()).filter(|values| !values.is_empty());
        let (a, b) = (usable(&point.a)?, usable(&point.b)?);
        let history = without_steps(in_order(&point.history, point.a.level));
        let levels = (location(&a), location(&b));
        Some(Pair { group: point.group, a, b, history, levels })
    }

    /// Tests if sides take turns in time, so that no hour belongs to one of them.
    fn is_in_turn(&self) -> bool {
        let sides =
            |values: &[Value], of: u8| values.iter().map(move |value| (value.at, of)).collect();
        let mut all: Vec<(f64, u8)> = sides(&self.a, 0);
        all.extend::<Vec<_>>(sides(&self.b, 1));
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        let changes = all.windows(2).filter(|pair| pair[0].1 != pair[1].1).count();
        self.a.len().min(self.b.len()) >= IN_TURN && changes >= CHANGES
    }

    fn effect(&self) -> f64 {
        location(&self.b) - location(&self.a)
    }

    fn within(&self) -> f64 {
        let of: Vec<f64> = self.a.iter().chain(&self.b).filter_map(|value| value.within).collect();
        if of.is_empty() { 0.0 } else { median(&of) }
    }

    fn rows(&self) -> [&[Value]; 3] {
        [&self.a, &self.b, &self.history]
    }

    /// Returns the variance of one occasion and its freedom at that correlation of neighbours.
    /// `None` without two occasions in any row. For a trimmed side it is the variance behind the
    /// error of the trimmed mean.
    fn own_variance(&self, correlation: f64) -> Option<(f64, f64)> {
        let (mut sum, mut freedom) = (0.0, 0.0);
        let rows = [(&self.a, true), (&self.b, true), (&self.history, false)];
        for (row, is_trimmed) in rows.into_iter().filter(|(row, _)| row.len() > 1) {
            let n = row.len() as f64;
            let (kept, squares) = squares(row, is_trimmed);
            // Correlated neighbours lie nearer to their mean than to that of another hour.
            let share = expected_squares(row.len(), correlation) / (n - 1.0);
            sum += squares / share * n / kept;
            freedom += kept - 1.0;
        }
        let thinned = (1.0 - correlation.powi(2)) / (1.0 + correlation.powi(2));
        (freedom > 0.0).then(|| {
            let variance = (sum / freedom).max(LEAST_DEVIATION.powi(2));
            (variance, (freedom * thinned).max(1.0))
        })
    }

    fn factor(&self, correlation: f64, in_turn: bool) -> f64 {
        if !in_turn {
            return mean_variance(self.a.len(), correlation)
                + mean_variance(self.b.len(), correlation);
        }
        let weigh = |values: &[Value], weight: f64| -> Vec<(f64, f64)> {
            values.iter().map(|value| (value.at, weight)).collect()
        };
        let mut row = weigh(&self.a, -1.0 / self.a.len() as f64);
        row.extend(weigh(&self.b, 1.0 / self.b.len() as f64));
        row.sort_by(|x, y| x.0.total_cmp(&y.0));
        let weights: Vec<f64> = row.into_iter().map(|(_, weight)| weight).collect();
        quadratic(&weights, correlation)
    }

    /// Returns the possible effect of a bad hour for sides that were not recorded in turn. A longer
    /// history reduces it.
    fn allowed(&self) -> f64 {
        let unseen = BAD_HOUR.ln() * (HOURS_KNOWN / self.history.len().max(1) as f64).min(1.0);
        let middle = median(&self.history.iter().map(|value| value.log).collect::<Vec<_>>());
        let away = self.history.iter().map(|value| (value.log - middle).abs());
        unseen.max(BEYOND_WORST * away.fold(0.0, f64::max))
    }
}

pub(crate) fn fit(pairs: &[Pair]) -> Vec<Fit> {
    let apart = correlation(pairs, PRIOR_CORRELATION);
    // Correlated neighbours narrow the difference of sides in turn; only an observed correlation
    // counts.
    let in_turn = correlation(pairs, 0.0);
    let of = |pair: &Pair| if pair.is_in_turn() { in_turn } else { apart };
    let own: Vec<Option<(f64, f64)>> =
        pairs.iter().map(|pair| pair.own_variance(of(pair))).collect();
    let known: Vec<f64> = own.iter().flatten().map(|(variance, _)| *variance).collect();
    let pooled = (known.len() >= 3).then(|| median(&known));
    let fitted = |(pair, own): (&Pair, &Option<(f64, f64)>)| {
        let (variance, freedom) = believed(*own, pooled, pair.within());
        let (in_turn, correlation) = (pair.is_in_turn(), of(pair));
        Fit {
            effect: pair.effect(),
            error: (variance * pair.factor(correlation, in_turn)).sqrt(),
            freedom,
            allowed: if in_turn { 0.0 } else { pair.allowed() },
            in_turn,
        }
    };
    pairs.iter().zip(&own).map(fitted).collect()
}

/// Returns a variance of few values, shrunk towards that of all points (after Smyth 2004), else
/// towards the prior. The common one is a geometric mean, because the noise of points differs by
/// orders of magnitude.
fn believed(own: Option<(f64, f64)>, pooled: Option<f64>, within: f64) -> (f64, f64) {
    let prior = PRIOR_DEVIATION.powi(2) + (PRIOR_OVER_WITHIN * within).powi(2);
    let Some((own, freedom)) = own else {
        return (prior, PRIOR_FREEDOM);
    };
    let (prior, weight) = pooled.map_or((prior, PRIOR_FREEDOM), |pooled| (pooled, POOLED_FREEDOM));
    let log = (weight * prior.ln() + freedom * own.ln()) / (weight + freedom);
    // A geometric mean is biased low, so only half of the prior counts.
    (log.exp(), weight / 2.0 + freedom)
}

/// Returns the correlation of neighbouring occasions: one for the host, from all rows, shrunk
/// towards a prior.
fn correlation(pairs: &[Pair], prior: f64) -> f64 {
    let (mut sum, mut weight, mut longest) = (0.0, 0.0, 0.0_f64);
    for row in pairs.iter().flat_map(|pair| pair.rows()).filter(|row| row.len() >= 5) {
        let n = row.len() as f64;
        let residuals = residuals(row);
        let squares: f64 = residuals.iter().map(|x| x * x).sum();
        if squares <= 0.0 {
            continue;
        }
        let products: f64 = residuals.windows(2).map(|pair| pair[0] * pair[1]).sum();
        // The mean is the row's own: the estimate is low by (1 + 4 r) / n (Kendall 1954).
        let unbiased = (products / squares + 1.0 / n) / (1.0 - 4.0 / n).max(0.2);
        sum += n * unbiased;
        weight += n;
        longest = longest.max(n);
    }
    let found = if weight > 0.0 { sum / weight } else { 0.0 };
    // Points share their host: together they are worth no more than the longest row.
    let believed = (CORRELATION_WEIGHT * prior + longest * found) / (CORRELATION_WEIGHT + longest);
    believed.clamp(0.0, 0.9)
}

/// Returns the share of the variance that is common to all points: the mean correlation of the
/// residuals of their histories, or zero.
pub(crate) fn shared(pairs: &[Pair]) -> f64 {
    const ENOUGH: usize = 8;
    let length = pairs.first().map_or(0, |pair| pair.history.len());
    let alike = pairs.iter().all(|pair| pair.history.len() == length);
    if !alike || length < ENOUGH || pairs.len() < 2 {
        return 0.0;
    }
    let scaled: Vec<Vec<f64>> = pairs.iter().map(|pair| unit(&residuals(&pair.history))).collect();
    // The square of a sum contains all products, so no loop over pairs is needed.
    let total: f64 =
        (0..length).map(|at| scaled.iter().map(|row| row[at]).sum::<f64>().powi(2)).sum();
    let n = pairs.len() as f64;
    ((total - n) / (n * (n - 1.0))).clamp(0.0, 0.9)
}

fn unit(values: &[f64]) -> Vec<f64> {
    let length = values.iter().map(|x| x * x).sum::<f64>().sqrt();
    values.iter().map(|x| if length > 0.0 { x / length } else { 0.0 }).collect()
}

fn residuals(values: &[Value]) -> Vec<f64> {
    let mean = values.iter().map(|value| value.log).sum::<f64>() / values.len() as f64;
    values.iter().map(|value| value.log - mean).collect()
}

/// Removes the steps of a history, which are changes of the program or the host, not noise.
fn without_steps(mut values: Vec<Value>) -> Vec<Value> {
    let times: Vec<f64> = values.iter().map(|value| value.log.exp()).collect();
    let changes = change_points(&times, 0.0, 1);
    let inner = changes.iter().map(|change| change.at);
    let bounds: Vec<usize> = [0].into_iter().chain(inner).chain([values.len()]).collect();
    for bounds in bounds.windows(2) {
        let level = &mut values[bounds[0]..bounds[1]];
        let middle = median(&level.iter().map(|value| value.log).collect::<Vec<_>>());
        level.iter_mut().for_each(|value| value.log -= middle);
    }
    values
}

fn logs(values: &[Value]) -> Vec<f64> {
    values.iter().map(|value| value.log).collect()
}

pub(crate) fn location(values: &[Value]) -> f64 {
    location_of(&logs(values))
}

/// Counts the values that are kept, and sums the squares of the winsorised values.
fn squares(values: &[Value], is_trimmed: bool) -> (f64, f64) {
    let trimmed = if is_trimmed { trimmed(values.len()) } else { 0 };
    let sorted = sorted(&logs(values));
    let (least, most) = (sorted[trimmed], sorted[sorted.len() - 1 - trimmed]);
    let drawn: Vec<f64> = sorted.iter().map(|x| x.clamp(least, most)).collect();
    let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
    let kept = values.len() - 2 * trimmed;
    (kept as f64, drawn.iter().map(|x| (x - mean).powi(2)).sum())
}

/// Returns the variance of a weighted sum of an AR(1) process of variance 1.
fn quadratic(weights: &[f64], correlation: f64) -> f64 {
    let with = |lag: usize| -> f64 {
        let products = weights.iter().zip(&weights[lag..]).map(|(x, y)| x * y);
        products.sum::<f64>() * if lag == 0 { 1.0 } else { 2.0 }
    };
    let mut power = 1.0;
    let mut sum = 0.0;
    for lag in 0..weights.len() {
        sum += power * with(lag);
        power *= correlation;
    }
    sum
}

fn mean_variance(n: usize, correlation: f64) -> f64 {
    quadratic(&vec![1.0 / n as f64; n], correlation)
}

/// Returns the expected sum of squares around the mean of `n` neighbours.
fn expected_squares(n: usize, correlation: f64) -> f64 {
    n as f64 * (1.0 - mean_variance(n, correlation))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;
    use crate::simulated::{Kind, null_row};

    fn values(times: &[f64]) -> Vec<Value> {
        let value =
            |(at, time): (usize, &f64)| Value { at: at as f64, log: time.ln(), within: None };
        times.iter().enumerate().map(value).collect()
    }

    #[test]
    fn the_variance_of_neighbours_is_the_double_sum() {
        let weights = [-0.5, 0.25, 0.25, -0.5, 0.5];
        for correlation in [0.0_f64, 0.3, 0.8] {
            let mut sum = 0.0;
            for (at, x) in weights.iter().enumerate() {
                for (other, y) in weights.iter().enumerate() {
                    sum += x * y * correlation.powi(i32::try_from(at.abs_diff(other)).unwrap());
                }
            }
            assert!((quadratic(&weights, correlation) - sum).abs() < 1e-12);
        }
        assert!((expected_squares(10, 0.0) - 9.0).abs() < 1e-12);
    }

    #[test]
    fn the_correlation_of_a_host_is_found() {
        for truth in [0.0, 0.5, 0.8] {
            let mut random = Random::new(3);
            let pairs: Vec<Pair> = (0..12)
                .map(|group| Pair {
                    group,
                    a: values(&[1.0]),
                    b: values(&[1.0]),
                    history: values(&null_row(Kind::Correlated(truth), 80, &mut random)),
                    levels: (0.0, 0.0),
                })
                .collect();
            let found = correlation(&pairs, PRIOR_CORRELATION);
            assert!((found - truth).abs() < 0.12, "{truth}: {found}");
        }
    }

    #[test]
    fn a_step_in_the_history_is_no_noise() {
        let mut random = Random::new(5);
        let mut times = null_row(Kind::Independent, 60, &mut random);
        times[30..].iter_mut().for_each(|time| *time *= 1.5);
        let left = without_steps(values(&times));
        let most = left.iter().map(|value| value.log.abs()).fold(0.0, f64::max);
        assert!(most < 0.1, "{most}");
    }
}
