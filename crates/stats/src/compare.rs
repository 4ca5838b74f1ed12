//! Two sides of many points: which differ, by how much, and which differences could not have been seen.
//!
//! A side of a point is one or more runs, each with its samples. Samples of one run share its memory, its neighbours and its
//! minute: they tell how well the run's median is known, and little of what another run would give. So:
//!
//! - with three runs or more on each side, each run counts as one value, the logarithm of its median, or of its mean ([`Level`]);
//!   With eight or more the fastest and the slowest fifth are trimmed (Yuen 1974), so that runs that something disturbed weigh little;
//!   with fewer that would take two kinds of runs (memory that lay well or badly) for a difference of the sides;
//! - with fewer on a side, what changes between runs is added (and a single run's values are the medians of eight consecutive blocks):
//!   estimated from how much the points of this very comparison scatter, since most of them are alike on both sides, or, with fewer
//!   than eight points, allowed for.
//!
//! Variances of few values are poor; each is drawn towards the median variance of all points, as if that had two degrees of
//! freedom (after Smyth 2004, "Linear models and empirical Bayes methods"; the mean is geometric and the freedom fixed, because
//! points of one comparison differ in noise by orders of magnitude). Intervals are Student's
//! at 95 % over *all* points together (Bonferroni), and a difference counts when its interval lies beyond what is to be ignored.

use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

use crate::{median_ci_at, quantile, sorted};

/// Chance of one false difference in a whole comparison.
const FALSE_ALARM: f64 = 0.05;
/// Weight of the median variance of all points, in degrees of freedom.
const PRIOR_FREEDOM: f64 = 2.0;
/// Most freedom that is believed of few runs.
const FEW_FREEDOM: f64 = 3.0;
/// Least standard deviation that is believed of a few equal values.
const LEAST_DEVIATION: f64 = 1e-3;
/// Runs from which on the ends are trimmed.
const TRIM_FROM: usize = 8;
/// Runs from which on they tell themselves what changes between them.
const ENOUGH_RUNS: usize = 3;
/// Blocks that a single run is cut into.
const BLOCKS: usize = 8;
/// Points from which on their scatter tells what changes between runs.
const SCATTER_POINTS: usize = 8;
/// What single runs are allowed to differ by when there are too few points to tell, as a standard deviation of one run.
pub(crate) const ALLOWED: f64 = 0.02;

/// One side of a point: runs, each with its samples in the order in which they were taken.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Side {
    /// Samples of each run, all above zero.
    pub runs: Vec<Vec<f64>>,
    /// What of a run's samples stands for the run; the same on both sides of a point.
    pub level: Level,
}

/// What of many samples stands for all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// The median: what one operation takes, whatever disturbed others.
    #[default]
    Median,
    /// The mean: all the time that all operations took, which a sustained rate is made of.
    Mean,
}

impl Level {
    /// The level of samples in any order; NaN without any.
    pub fn of(self, samples: &[f64]) -> f64 {
        match self {
            Level::Median => crate::median(samples),
            Level::Mean => mean(samples),
        }
    }
}

/// Logarithms that stand for the side, and how many runs they come from.
struct Values {
    logs: Vec<f64>,
    middle: f64,
    few: bool,
}

impl Values {
    /// Values trimmed from each end.
    fn trimmed(&self) -> usize {
        if self.logs.len() >= TRIM_FROM && !self.few {
            self.logs.len() / 5
        } else {
            0
        }
    }

    fn kept(&self) -> usize {
        self.logs.len() - 2 * self.trimmed()
    }

    fn trimmed_mean(&self) -> f64 {
        let trimmed = self.trimmed();
        mean(&sorted(&self.logs)[trimmed..self.logs.len() - trimmed])
    }

    /// Sum of squares of the winsorised values around their mean.
    fn squares(&self) -> f64 {
        let (sorted, trimmed) = (sorted(&self.logs), self.trimmed());
        let (least, most) = (sorted[trimmed], sorted[sorted.len() - 1 - trimmed]);
        let drawn: Vec<f64> = sorted.iter().map(|x| x.clamp(least, most)).collect();
        drawn.iter().map(|x| (x - mean(&drawn)).powi(2)).sum()
    }
}

impl Side {
    fn values(&self) -> Option<Values> {
        let usable =
            |run: &&Vec<f64>| !run.is_empty() && run.iter().all(|x| x.is_finite() && *x > 0.0);
        let runs: Vec<&Vec<f64>> = self.runs.iter().filter(usable).collect();
        let levels: Vec<f64> = runs.iter().map(|run| self.level.of(run)).collect();
        let middle = crate::median(&levels);
        let (logs, few) = match runs[..] {
            [] => return None,
            [only] => {
                let blocks = BLOCKS.min(only.len()).max(1);
                let bounds = |at: usize| at * only.len() / blocks;
                let block = |at: usize| self.level.of(&only[bounds(at)..bounds(at + 1)]).ln();
                ((0..blocks).map(block).collect(), true)
            }
            _ => (
                levels.iter().map(|level| level.ln()).collect(),
                runs.len() < ENOUGH_RUNS,
            ),
        };
        Some(Values { logs, middle, few })
    }
}

/// What was found of one point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// B takes longer, beyond what is to be ignored.
    Slower,
    /// B takes less time, beyond what is to be ignored.
    Faster,
    /// The interval lies within what is to be ignored.
    Same,
    /// The interval is too wide to say: more runs would tell.
    Unclear,
    /// One side has no usable samples.
    Missing,
}

/// Time of B over time of A of one point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effect {
    /// Level of A, in the unit of the samples: the median of its runs.
    pub a: f64,
    /// Level of B.
    pub b: f64,
    /// B over A.
    pub ratio: f64,
    /// Interval of the ratio; all intervals of a comparison hold together with 95 %.
    pub interval: (f64, f64),
    /// What it means.
    pub verdict: Verdict,
}

/// Two sides compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// One effect for each point, in their order.
    pub effects: Vec<Effect>,
    /// Median of all ratios with its interval at 99 %; none below eight points.
    pub overall: Option<(f64, f64, f64)>,
    /// True when that interval lies beyond what is to be ignored: everything together became slower or faster.
    pub shifted: bool,
    /// Standard deviation of the logarithm that was added for what changes between single runs; 0 where runs were repeated.
    pub between_runs: f64,
}

impl Comparison {
    /// Points with that verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.effects
            .iter()
            .filter(|effect| effect.verdict == verdict)
            .count()
    }

    /// True when something differs.
    pub fn differs(&self) -> bool {
        self.shifted
            || self
                .effects
                .iter()
                .any(|effect| matches!(effect.verdict, Verdict::Slower | Verdict::Faster))
    }
}

/// A point with usable samples on both sides.
struct Pair {
    at: usize,
    a: Values,
    b: Values,
}

impl Pair {
    fn effect(&self) -> f64 {
        self.b.trimmed_mean() - self.a.trimmed_mean()
    }

    fn freedom(&self) -> f64 {
        (self.a.kept() + self.b.kept()).saturating_sub(2) as f64
    }

    /// Variance of one kept value, from both sides: of all values with those that are trimmed drawn in (winsorised).
    fn variance(&self) -> f64 {
        let variance = (self.a.squares() + self.b.squares()) / self.freedom().max(1.0);
        variance.max(LEAST_DEVIATION.powi(2))
    }

    fn few(&self) -> bool {
        self.a.few || self.b.few
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Quantile of the standard normal distribution.
pub(crate) fn normal_quantile(probability: f64) -> f64 {
    Normal::standard().inverse_cdf(probability)
}

/// Compares sides point by point. Differences up to `ignore` (0.02 is 2 %) are not of interest.
pub fn compare(points: &[(Side, Side)], ignore: f64) -> Comparison {
    let pairs: Vec<Pair> = points
        .iter()
        .enumerate()
        .filter_map(|(at, (a, b))| {
            Some(Pair {
                at,
                a: a.values()?,
                b: b.values()?,
            })
        })
        .collect();
    let between_runs = if pairs.iter().any(Pair::few) {
        scatter(&pairs)
    } else {
        0.0
    };
    let variances: Vec<f64> = pairs
        .iter()
        .filter(|pair| pair.freedom() > 0.0)
        .map(Pair::variance)
        .collect();
    let prior = if variances.len() >= 3 {
        Some(quantile(&sorted(&variances), 0.5))
    } else {
        None
    };
    let border = (1.0 + ignore).ln();
    let missing = Effect {
        a: f64::NAN,
        b: f64::NAN,
        ratio: f64::NAN,
        interval: (f64::NAN, f64::NAN),
        verdict: Verdict::Missing,
    };
    let mut effects = vec![missing; points.len()];
    for pair in &pairs {
        let half = half_width(pair, prior, between_runs, pairs.len());
        let (low, high) = (pair.effect() - half, pair.effect() + half);
        let verdict = match (low, high) {
            _ if low > border => Verdict::Slower,
            _ if high < -border => Verdict::Faster,
            _ if low >= -border && high <= border => Verdict::Same,
            _ => Verdict::Unclear,
        };
        let ratio = pair.effect().exp();
        effects[pair.at] = Effect {
            a: pair.a.middle,
            b: pair.b.middle,
            ratio,
            interval: (low.exp(), high.exp()),
            verdict,
        };
    }
    let overall = overall(&pairs);
    let shifted = overall.is_some_and(|(_, low, high)| low.ln() > border || high.ln() < -border);
    Comparison {
        effects,
        overall,
        shifted,
        between_runs,
    }
}

/// Half the width of the interval of the effect.
fn half_width(pair: &Pair, prior: Option<f64>, between_runs: f64, points: usize) -> f64 {
    let (own, freedom) = (pair.variance(), pair.freedom());
    let (variance, freedom) = match prior {
        Some(prior) => {
            let logs =
                (PRIOR_FREEDOM * prior.ln() + freedom * own.ln()) / (PRIOR_FREEDOM + freedom);
            // A geometric mean lies low: only half of the prior counts.
            (logs.exp(), PRIOR_FREEDOM / 2.0 + freedom)
        }
        None => (own, freedom.max(1.0)),
    };
    let counts = 1.0 / pair.a.kept() as f64 + 1.0 / pair.b.kept() as f64;
    let within = variance * counts;
    // A scatter of as many points has about as much freedom, but runs differ from point to point: it is not believed that far.
    let (squared, freedom) = if pair.few() {
        (within + between_runs.powi(2), freedom.min(FEW_FREEDOM))
    } else {
        (within, freedom)
    };
    let tail = FALSE_ALARM / 2.0 / points as f64;
    let student = StudentsT::new(0.0, 1.0, freedom).map_or(f64::INFINITY, |t| -t.inverse_cdf(tail));
    student * squared.sqrt()
}

/// What single runs differ by although nothing changed, as a standard deviation: nine of ten points stay within 1.645 of it. Not
/// the middle of the points but their noisy end sets it, because points differ in noise by orders of magnitude.
fn scatter(pairs: &[Pair]) -> f64 {
    let allowed = ALLOWED * std::f64::consts::SQRT_2;
    if pairs.len() < SCATTER_POINTS {
        return allowed;
    }
    let effects = sorted(&pairs.iter().map(Pair::effect).collect::<Vec<_>>());
    let middle = quantile(&effects, 0.5);
    let away = sorted(
        &effects
            .iter()
            .map(|effect| (effect - middle).abs())
            .collect::<Vec<_>>(),
    );
    quantile(&away, 0.9) / normal_quantile(0.95)
}

/// Median of all ratios and its interval at 99 %.
fn overall(pairs: &[Pair]) -> Option<(f64, f64, f64)> {
    if pairs.len() < SCATTER_POINTS {
        return None;
    }
    let effects = sorted(&pairs.iter().map(Pair::effect).collect::<Vec<_>>());
    let (low, high) = median_ci_at(&effects, 0.99);
    Some((quantile(&effects, 0.5).exp(), low.exp(), high.exp()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_xoshiro::Xoshiro256PlusPlus;
    use rand_xoshiro::rand_core::{Rng, SeedableRng};

    /// A host that differs from run to run by some per cent, whose samples scatter and sometimes take twice as long.
    struct Host {
        generator: Xoshiro256PlusPlus,
        between: f64,
        within: f64,
    }

    impl Host {
        fn new(seed: u64) -> Host {
            Host {
                generator: Xoshiro256PlusPlus::seed_from_u64(seed),
                between: 0.01,
                within: 0.02,
            }
        }

        /// Noise of a point: of one host, points differ by two orders of magnitude.
        fn of_point(mut self, at: usize) -> Host {
            self.between = 0.0005 * 100_f64.powf((at * 7 % 10) as f64 / 9.0);
            self
        }

        fn uniform(&mut self) -> f64 {
            (f64::from(self.generator.next_u32()) + 0.5) / 4_294_967_296.0
        }

        fn normal(&mut self) -> f64 {
            normal_quantile(self.uniform())
        }

        fn run(&mut self, level: f64) -> Vec<f64> {
            let level = level * (self.between * self.normal()).exp();
            let sample = |host: &mut Host| {
                let disturbed = if host.uniform() < 0.03 { 2.0 } else { 1.0 };
                level * disturbed * (host.within * host.normal()).exp()
            };
            (0..40).map(|_| sample(self)).collect()
        }

        fn side(&mut self, runs: usize, level: f64) -> Side {
            Side {
                runs: (0..runs).map(|_| self.run(level)).collect(),
                ..Side::default()
            }
        }

        fn points(
            &mut self,
            count: usize,
            runs: usize,
            slower: impl Fn(usize) -> f64,
        ) -> Vec<(Side, Side)> {
            (0..count)
                .map(|at| (self.side(runs, 100.0), self.side(runs, 100.0 * slower(at))))
                .collect()
        }
    }

    fn of_100(
        count: usize,
        runs: usize,
        slower: impl Fn(usize) -> f64 + Copy,
        found: impl Fn(&Comparison) -> bool,
    ) -> usize {
        (0..100)
            .filter(|&seed| found(&compare(&Host::new(seed).points(count, runs, slower), 0.01)))
            .count()
    }

    #[test]
    fn the_same_host_twice_raises_no_alarm() {
        for (count, runs) in [(1, 1), (6, 1), (140, 1), (6, 5), (30, 3), (1, 5)] {
            let alarms = of_100(count, runs, |_| 1.0, Comparison::differs);
            assert!(
                alarms <= 5,
                "{count} points, {runs} runs: {alarms} false alarms of 100"
            );
        }
    }

    #[test]
    fn points_of_very_different_noise_raise_no_alarm_either_and_the_quiet_ones_stay_sharp() {
        let comparison = |seed: u64, runs: usize| {
            let mut generator = Host::new(seed).generator;
            let mut pair = |at: usize| {
                let mut host = Host {
                    generator: generator.clone(),
                    ..Host::new(0)
                }
                .of_point(at);
                let pair = (host.side(runs, 100.0), host.side(runs, 100.0));
                generator = host.generator;
                pair
            };
            compare(&(0..30).map(&mut pair).collect::<Vec<_>>(), 0.02)
        };
        for runs in [1, 2, 3, 5, 10] {
            let found: Vec<Comparison> = (0..100).map(|seed| comparison(seed, runs)).collect();
            let alarms = found.iter().filter(|found| found.differs()).count();
            assert!(alarms <= 5, "{runs} runs: {alarms} false alarms of 100");
            if runs == 5 {
                let same: usize = found.iter().map(|found| found.count(Verdict::Same)).sum();
                assert!(
                    same >= 100 * 8,
                    "{same} points of 3000 are known to be the same"
                );
            }
        }
    }

    #[test]
    fn what_only_the_slow_half_does_is_seen_by_the_mean_alone() {
        // A disk whose slow reads, two of five, take twice as long in B; the median read is a fast one on both sides.
        let run = |slow: f64| {
            (0..500)
                .map(|at| if at % 5 < 3 { 1.0 } else { slow })
                .collect::<Vec<f64>>()
        };
        let found = |level: Level| {
            let side = |slow: f64| Side {
                runs: (0..5)
                    .map(|at| run(slow * (1.0 + 1e-3 * f64::from(at))))
                    .collect(),
                level,
            };
            compare(&[(side(50.0), side(100.0))], 0.02).effects[0]
        };
        assert_eq!(found(Level::Median).verdict, Verdict::Same);
        let mean = found(Level::Mean);
        assert!(
            mean.verdict == Verdict::Slower && (1.9..2.0).contains(&mean.ratio),
            "{mean:?}"
        );
    }

    #[test]
    fn disturbed_runs_hide_nothing_when_there_are_ten() {
        let found = |seed: u64| {
            let mut host = Host {
                between: 0.004,
                ..Host::new(seed)
            };
            let mut points = host.points(4, 10, |at| if at == 1 { 1.05 } else { 1.0 });
            for (a, b) in &mut points {
                // Two runs of each side were in a bad minute.
                for run in [3, 8] {
                    a.runs[run]
                        .iter_mut()
                        .chain(&mut b.runs[run - 1])
                        .for_each(|ns| *ns *= 1.3);
                }
            }
            compare(&points, 0.02)
                .effects
                .iter()
                .map(|effect| effect.verdict == Verdict::Slower)
                .collect::<Vec<_>>()
        };
        let right = (0..100)
            .filter(|&seed| found(seed) == [false, true, false, false])
            .count();
        assert!(right >= 90, "{right} of 100");
    }

    #[test]
    fn five_per_cent_are_found_with_five_runs_wherever_they_are() {
        let one = of_100(
            8,
            5,
            |at| if at == 3 { 1.05 } else { 1.0 },
            |found| found.effects[3].verdict == Verdict::Slower,
        );
        assert!(one >= 90, "one point: {one} of 100");
        let all = of_100(8, 5, |_| 1.05, |found| found.count(Verdict::Slower) >= 6);
        assert!(all >= 90, "all points: {all} of 100");
        let faster = of_100(8, 5, |_| 0.95, |found| found.count(Verdict::Faster) >= 6);
        assert!(faster >= 90, "all points: {faster} of 100");
    }

    #[test]
    fn five_per_cent_of_everything_are_found_with_one_run_and_many_points() {
        let found = of_100(140, 1, |_| 1.05, |found| found.shifted);
        assert!(found >= 90, "{found} of 100");
    }

    #[test]
    fn what_is_the_same_is_said_to_be_the_same_and_not_only_unclear() {
        let mut host = Host {
            between: 0.001,
            within: 0.002,
            ..Host::new(7)
        };
        let found = compare(&host.points(10, 5, |_| 1.0), 0.02);
        assert_eq!(found.count(Verdict::Same), 10);
        let mut wild = Host {
            between: 0.2,
            ..Host::new(7)
        };
        let found = compare(&wild.points(10, 3, |_| 1.0), 0.02);
        assert!(found.count(Verdict::Unclear) >= 9);
    }

    #[test]
    fn samples_that_are_no_times_are_missing_and_not_a_panic() {
        let side = |runs| Side {
            runs,
            ..Side::default()
        };
        let bad = [vec![], vec![0.0], vec![f64::NAN, 1.0], vec![-1.0]];
        for runs in bad {
            let points = [(side(vec![runs]), side(vec![vec![1.0, 1.0]]))];
            assert_eq!(compare(&points, 0.02).effects[0].verdict, Verdict::Missing);
        }
        assert_eq!(compare(&[], 0.02).effects, []);
        let equal = [(side(vec![vec![5.0]]), side(vec![vec![5.0]]))];
        assert_eq!(compare(&equal, 0.02).effects[0].ratio, 1.0);
    }
}
