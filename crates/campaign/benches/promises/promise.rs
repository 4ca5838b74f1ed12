//! A promise, and the figure that it is held to.

use statrs::distribution::{Beta, ContinuousCDF};

use daqmeter_stats::FALSE_ALARM;

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
