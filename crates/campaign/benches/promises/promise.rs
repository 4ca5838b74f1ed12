//! Promises of comparisons, measured on simulated hosts whose truth is known.

use statrs::distribution::{Beta, ContinuousCDF};

use daqmeter_stats::{Comparison, FALSE_ALARM, Random, Verdict, compare};

use crate::simulated::{Host, Kind, Layout};

const OCCASIONS: [f64; 5] = [0.001, 0.003, 0.01, 0.03, 0.1];
const LAYOUTS: [Layout; 4] = [
    Layout::Single { history: 30 },
    Layout::Single { history: 0 },
    Layout::InTurn(10),
    Layout::OneAfterTheOther(5),
];
const POINTS: usize = 6;
const IGNORE: f64 = 0.02;
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
}

/// Probability outside of the intervals of figures.
const UNPROVED: f64 = 0.05;

impl Promise {
    /// Allows 1 wrong comparison of 100.
    pub(crate) fn false_ones(name: String, wrong: usize, of: usize) -> Promise {
        let found = wrong as f64 / of.max(1) as f64;
        Promise { name, found, bounds: (0.0, FALSE_ALARM), of }
    }

    pub(crate) fn right_ones(name: String, right: usize, of: usize, least: f64) -> Promise {
        Promise { bounds: (least, 1.0), ..Promise::false_ones(name, right, of) }
    }

    /// Tests if the 95 % interval of the figure reaches the bounds.
    pub(crate) fn is_kept(&self) -> bool {
        let ((low, high), (least, most)) = (self.interval(), self.bounds);
        low <= most && high >= least
    }

    /// 95 % interval of the figure (Clopper and Pearson 1934).
    fn interval(&self) -> (f64, f64) {
        let n = self.of as f64;
        let hits = self.found * n;
        let quantile = |a: f64, b: f64, at: f64| Beta::new(a, b).map(|beta| beta.inverse_cdf(at));
        let low = quantile(hits, n - hits + 1.0, UNPROVED / 2.0).unwrap_or(0.0);
        let high = quantile(hits + 1.0, n - hits, 1.0 - UNPROVED / 2.0).unwrap_or(1.0);
        (low, high)
    }

    pub(crate) fn line(&self) -> String {
        let ((low, high), (least, most)) = (self.interval(), self.bounds);
        let verdict = if self.is_kept() { "kept" } else { "BROKEN" };
        let [found, low, high, least, most] =
            [self.found, low, high, least, most].map(|share| share * 100.0);
        format!(
            "{:66} {found:6.2} % ({low:.2} to {high:.2}) of {}; promised {least:.0} to {most:.0}: {verdict}",
            self.name, self.of
        )
    }
}

fn alarms(name: String, found: &[Comparison]) -> Promise {
    let alarms = found.iter().filter(|one| one.differs()).count();
    Promise::false_ones(name, alarms, found.len())
}

fn coverage(name: &str, found: &[Comparison]) -> Promise {
    let intervals: Vec<(f64, f64)> =
        found.iter().flat_map(|one| &one.effects).map(|effect| effect.interval).collect();
    let cover = intervals.iter().filter(|(low, high)| (*low..=*high).contains(&1.0)).count();
    Promise { bounds: COVERAGE, ..Promise::false_ones(name.to_owned(), cover, intervals.len()) }
}

/// Holds comparisons to their promises: `each` of them for every kind of host, occasion effect and
/// layout.
pub(crate) fn measured(each: usize) -> Vec<Promise> {
    let mut random = Random::new(17);
    let mut promises = Vec::new();
    let mut all = Vec::new();
    for kind in Kind::ALL {
        let of_kind = compared(kind, each, &mut random);
        let name = format!("cmp, nothing changed, false comparisons: {}", kind.name());
        promises.push(alarms(name, &of_kind));
        all.extend(of_kind);
    }
    promises.push(coverage("cmp, 95 % intervals that cover the truth, all hosts", &all));
    let name = "cmp, nothing changed, false comparisons: in turn, occasions of 50 %".to_owned();
    promises.push(alarms(name, &noisy_in_turn(each, &mut random)));
    promises.push(power(each * 20, &mut random));
    promises
}

/// Comparisons of sides in turn, with noise far above the ignored difference, so that it hides no
/// false one.
fn noisy_in_turn(each: usize, random: &mut Random) -> Vec<Comparison> {
    let mut found = Vec::new();
    for (kind, occasions) in Kind::ALL.into_iter().flat_map(|kind| [(kind, 5), (kind, 10)]) {
        let layout = Layout::InTurn(occasions);
        let host = Host { kind, occasion: 0.5, layout, points: POINTS, slower: 1.0 };
        found.extend((0..2 * each).map(|_| compare(&host.draw(random), IGNORE)));
    }
    found
}

fn compared(kind: Kind, each: usize, random: &mut Random) -> Vec<Comparison> {
    let mut found = Vec::new();
    for (occasion, layout) in
        OCCASIONS.into_iter().flat_map(|occasion| LAYOUTS.map(|layout| (occasion, layout)))
    {
        let host = Host { kind, occasion, layout, points: POINTS, slower: 1.0 };
        found.extend((0..each).map(|_| compare(&host.draw(random), IGNORE)));
    }
    found
}

/// Compares a slowdown of 5 % at one point, in noise of 1 %, with ten occasions a side in turn.
fn power(comparisons: usize, random: &mut Random) -> Promise {
    let (kind, layout) = (Kind::Independent, Layout::InTurn(10));
    let host = Host { kind, occasion: 0.01, layout, points: POINTS, slower: SLOWER };
    let is_found =
        |_: &usize| compare(&host.draw(random), IGNORE).effects[0].verdict == Verdict::Slower;
    let found = (0..comparisons).filter(is_found).count();
    let name = "cmp, 5 % in occasions of 1 %, ten a side in turn, found".to_owned();
    Promise::right_ones(name, found, comparisons, FOUND)
}
