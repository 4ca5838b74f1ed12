//! Promises of comparisons, measured on simulated hosts whose truth is known.

use statrs::distribution::{Beta, ContinuousCDF, Normal};

use daqmeter_stats::{Asked, Comparison, FALSE_ALARM, Random, Verdict, change_points, compare};

use crate::simulated::{Host, Kind, Layout, null_row};

const OCCASIONS: [f64; 5] = [0.001, 0.003, 0.01, 0.03, 0.1];
const LAYOUTS: [Layout; 4] = [
    Layout::Single { history: 30 },
    Layout::Single { history: 0 },
    Layout::InTurn(10),
    Layout::OneAfterTheOther(5),
];
const POINTS: usize = 6;
/// Shares of an occasion's effect on a point that its control sees.
const SEEN: [f64; 3] = [0.3, 0.8, 0.98];
const COVERAGE: (f64, f64) = (0.93, 0.97);
/// Slowdown that has to be found, and the share of comparisons that has to find it.
const SLOWER: f64 = 1.05;
const FOUND: f64 = 0.95;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Promise {
    pub(crate) name: String,
    /// Share of 1.
    pub(crate) found: f64,
    pub(crate) bounds: (f64, f64),
    pub(crate) of: usize,
    /// Number of independent comparisons, since rounds share comparisons; `None` if all are
    /// independent.
    pub(crate) independent: Option<usize>,
}

const EXCLUDED: f64 = 0.1;
/// Factor by which a figure may look worse than its promise where few comparisons are independent.
/// With 36 of them, a host that keeps it exceeds this about once in ten times, and CI tries again.
const WORSE: f64 = 3.0;
/// Chance that a figure of too few comparisons is within its bounds although the truth is not.
const UNPROVED: f64 = 0.05;

impl Promise {
    /// Allows 1 wrong comparison of 100 in real work.
    pub(crate) fn false_ones(name: String, wrong: usize, of: usize, independent: usize) -> Promise {
        Promise {
            name,
            found: wrong as f64 / of.max(1) as f64,
            bounds: (0.0, FALSE_ALARM),
            of,
            independent: Some(independent),
        }
    }

    /// Requires this share of right comparisons in real work, each with its own measurement.
    pub(crate) fn right_ones(name: String, right: usize, of: usize, least: f64) -> Promise {
        Promise { bounds: (least, 1.0), ..Promise::false_ones(name, right, of, of) }
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.is_within() && self.is_of_enough()
    }

    /// Returns true if the figure is within its bounds, for any number of comparisons. If
    /// comparisons share data, its interval has to reach the bounds, and the figure exceeds them by
    /// [`WORSE`] at most.
    fn is_within(&self) -> bool {
        let (least, most) = self.bounds;
        let is_in = |low: f64, high: f64| low <= most && high >= least;
        match self.independent {
            Some(_) => {
                let (low, high) = self.interval();
                let missed = 1.0 - self.found;
                let is_near = self.found <= WORSE * most && missed <= WORSE * (1.0 - least);
                is_in(low, high) && is_near
            }
            None => is_in(self.found, self.found),
        }
    }

    fn is_of_enough(&self) -> bool {
        self.independent.unwrap_or(self.of) as f64 >= self.needed()
    }

    /// 95 % interval of the figure (Clopper and Pearson 1934), with as many comparisons as are
    /// independent (Korn and Graubard 1998).
    pub(crate) fn interval(&self) -> (f64, f64) {
        let n = self.independent.unwrap_or(self.of) as f64;
        let hits = self.found * n;
        let quantile = |a: f64, b: f64, at: f64| Beta::new(a, b).map(|beta| beta.inverse_cdf(at));
        let low = quantile(hits, n - hits + 1.0, UNPROVED / 2.0).unwrap_or(0.0);
        let high = quantile(hits + 1.0, n - hits, 1.0 - UNPROVED / 2.0).unwrap_or(1.0);
        (low, high)
    }

    /// Fewest comparisons that can show the promise with 95 %, by the binomial distribution. On a
    /// host at the bound, the best figure has a chance of 5 %. This takes 299 comparisons for at
    /// most 1 %, 149 for at most 2 %, 59 for at least 95 %. Between two bounds, 95 % of the figures
    /// of a host in their middle have to be within them. By the normal approximation this takes 457
    /// for 93 to 97 %.
    ///
    /// Real work has no time for that: 36 comparisons, all of them right, exclude [`EXCLUDED`].
    fn needed(&self) -> f64 {
        let (least, most) = self.bounds;
        if self.independent.is_some() {
            return ((UNPROVED / 2.0).ln() / (1.0 - EXCLUDED).ln()).ceil();
        }
        let one_sided = |share: f64| (UNPROVED.ln() / share.ln()).ceil();
        match (least, most) {
            (least, most) if least <= 0.0 => one_sided(1.0 - most),
            (least, most) if most >= 1.0 => one_sided(least),
            _ => {
                let middle = f64::midpoint(least, most);
                let errors = Normal::standard().inverse_cdf(1.0 - UNPROVED / 2.0) / (most - middle);
                (middle * (1.0 - middle) * errors.powi(2)).ceil()
            }
        }
    }

    pub(crate) fn line(&self) -> String {
        let per_cent = |share: f64| format!("{:.2}", share * 100.0);
        let (least, most) = self.bounds;
        let wanted = match (least, most) {
            (least, most) if least <= 0.0 => format!("at most {}", per_cent(most)),
            (least, most) if most >= 1.0 => format!("at least {}", per_cent(least)),
            _ => format!("{} to {}", per_cent(least), per_cent(most)),
        };
        let verdict = match (self.is_within(), self.is_of_enough()) {
            (true, true) => "kept".to_owned(),
            (false, _) => "BROKEN".to_owned(),
            (true, false) => format!("BROKEN, too few: {} needed", self.needed()),
        };
        let (low, high) = self.interval();
        format!(
            "{:66} {:>7} %  {:>15}   {wanted:16} {:>6} {:>11}   {verdict}",
            self.name,
            per_cent(self.found),
            format!("{} to {}", per_cent(low), per_cent(high)),
            self.of,
            self.independent.unwrap_or(self.of)
        )
    }

    pub(crate) fn head() -> String {
        format!(
            "{:66} {:>9}  {:>15}   {:16} {:>6} {:>11}",
            "promise", "measured", "95 %", "promised [%]", "of", "independent"
        )
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    comparisons: usize,
    alarms: usize,
    intervals: usize,
    cover: usize,
}

impl Counted {
    fn add(&mut self, found: &Comparison) {
        self.comparisons += 1;
        self.alarms += usize::from(found.differs());
        self.intervals += found.effects.len();
        let covers = found
            .effects
            .iter()
            .filter(|effect| effect.interval.0 <= 1.0 && 1.0 <= effect.interval.1);
        self.cover += covers.count();
    }

    fn and(self, other: Counted) -> Counted {
        Counted {
            comparisons: self.comparisons + other.comparisons,
            alarms: self.alarms + other.alarms,
            intervals: self.intervals + other.intervals,
            cover: self.cover + other.cover,
        }
    }

    fn alarms(self, name: String) -> Promise {
        Promise {
            name,
            found: self.alarms as f64 / self.comparisons as f64,
            bounds: (0.0, FALSE_ALARM),
            of: self.comparisons,
            independent: None,
        }
    }

    fn coverage(self, name: &str, bounds: (f64, f64)) -> Promise {
        Promise {
            name: name.to_owned(),
            found: self.cover as f64 / self.intervals as f64,
            bounds,
            of: self.intervals,
            independent: None,
        }
    }
}

/// Holds comparisons to their promises: `each` of them for every kind of host, occasion effect and
/// layout. All intervals are `width` times as wide as they should be, 1 unless a test makes the
/// statistics wrong.
pub(crate) fn measured(each: usize, width: f64) -> Vec<Promise> {
    let asked = Asked { width, ..Asked::ignoring(0.02) };
    let mut random = Random::new(17);
    let mut promises = Vec::new();
    let mut all = Counted::default();
    for kind in Kind::ALL {
        let of_kind = counted(kind, 0.0, each, asked, &mut random);
        promises.push(
            of_kind.alarms(format!("cmp, nothing changed, false comparisons: {}", kind.name())),
        );
        all = all.and(of_kind);
    }
    promises.push(all.coverage("cmp, 95 % intervals that cover the truth, all hosts", COVERAGE));
    promises.push(
        noisy_in_turn(each, asked, &mut random).alarms(
            "cmp, nothing changed, false comparisons: in turn, occasions of 50 %".to_owned(),
        ),
    );
    promises.push(power(each * 20, asked, &mut random));
    let mut with_controls = Counted::default();
    for (kind, seen) in Kind::ALL.into_iter().zip(SEEN.into_iter().cycle()) {
        with_controls = with_controls.and(counted(kind, seen, each, asked, &mut random));
    }
    promises.push(
        with_controls.alarms("cmp, nothing changed, false comparisons: with controls".to_owned()),
    );
    promises.push(
        with_controls.coverage("cmp, 95 % intervals that cover the truth, with controls", COVERAGE),
    );
    promises
}

/// Comparisons of sides in turn, with noise far above the ignored difference, so that it hides no
/// false one.
fn noisy_in_turn(each: usize, asked: Asked, random: &mut Random) -> Counted {
    let mut found = Counted::default();
    for (kind, occasions) in Kind::ALL.into_iter().flat_map(|kind| [(kind, 5), (kind, 10)]) {
        let host = Host {
            kind,
            occasion: 0.5,
            layout: Layout::InTurn(occasions),
            points: POINTS,
            slower: 1.0,
            seen: 0.0,
        };
        (0..2 * each).for_each(|_| found.add(&compare(&host.draw(random), asked)));
    }
    found
}

fn counted(kind: Kind, seen: f64, each: usize, asked: Asked, random: &mut Random) -> Counted {
    let mut of_kind = Counted::default();
    for (occasion, layout) in
        OCCASIONS.into_iter().flat_map(|occasion| LAYOUTS.map(|layout| (occasion, layout)))
    {
        let host = Host { kind, occasion, layout, points: POINTS, slower: 1.0, seen };
        (0..each).for_each(|_| of_kind.add(&compare(&host.draw(random), asked)));
    }
    of_kind
}

/// Compares a slowdown of 5 % at one point, in noise of 1 %, with ten occasions a side in turn.
fn power(comparisons: usize, asked: Asked, random: &mut Random) -> Promise {
    let host = Host {
        kind: Kind::Independent,
        occasion: 0.01,
        layout: Layout::InTurn(10),
        points: POINTS,
        slower: SLOWER,
        seen: 0.0,
    };
    let is_found =
        |_: &usize| compare(&host.draw(random), asked).effects[0].verdict == Verdict::Slower;
    let found = (0..comparisons).filter(is_found).count();
    Promise {
        name: "cmp, 5 % in occasions of 1 %, ten a side in turn, found".to_owned(),
        found: found as f64 / comparisons as f64,
        bounds: (FOUND, 1.0),
        of: comparisons,
        independent: None,
    }
}

/// Kinds of rows with dependent runs that `history` promises to bear.
const ROWS: [Kind; 6] = [
    Kind::Independent,
    Kind::Correlated(0.3),
    Kind::Correlated(0.5),
    Kind::TwoModes,
    Kind::Skewed,
    Kind::Bursts,
];
/// Largest share of rows without a step that may show one.
const FALSE_STEPS: f64 = 0.02;
const RUNS: usize = 60;

/// Holds histories to their promises. `rows` rows of each kind have no step, and further rows have
/// a step of 5 % in noise of 1 %, five runs ago.
pub(crate) fn histories(rows: usize) -> Vec<Promise> {
    let mut random = Random::new(23);
    let mut promises: Vec<Promise> = Vec::new();
    for kind in ROWS {
        let has_step =
            |_: &usize| !change_points(&null_row(kind, RUNS, &mut random), 0.02, 1).is_empty();
        promises.push(Promise {
            name: format!("history, rows without a step that show one: {}", kind.name()),
            found: (0..rows).filter(has_step).count() as f64 / rows as f64,
            bounds: (0.0, FALSE_STEPS),
            of: rows,
            independent: None,
        });
    }
    let is_found = |_: &usize| {
        // The simulated noise is 2 %.
        let quiet = null_row(Kind::Independent, RUNS, &mut random).into_iter();
        let after = RUNS - 5;
        let values =
            quiet.enumerate().map(|(at, x)| x.sqrt() * if at < after { 1.0 } else { SLOWER });
        let steps = change_points(&values.collect::<Vec<f64>>(), 0.02, 1);
        steps.iter().any(|step| step.at.abs_diff(after) <= 2)
    };
    promises.push(Promise {
        name: "history, 5 % in runs of 1 % found within five runs".to_owned(),
        found: (0..rows).filter(is_found).count() as f64 / rows as f64,
        bounds: (FOUND, 1.0),
        of: rows,
        independent: None,
    });
    promises
}
