//! Ways to compute `(float)((double)raw * F + O)`: [`super::Converter::new`] takes the first that
//! gives the oracle's bits for all 65,536 codes.
//!
//! - In single precision, [`Centred`]: `x * F + O` is `(x - c) * F + (O + c * F)`. With c near `-O
//!   / F` the new offset is so small that two fused multiply-adds keep enough of it. `x - c` is
//!   exact while c is a multiple of the right power of two.
//! - In doubles without conversions from integers: `2^52 + x` is made by its bits. One fused
//!   multiply-add takes `2^52 * F` off again: `x * F`, rounded once, as the oracle rounds it.
//! - In doubles like the oracle.

const CODES: f64 = 65_536.0;
const SINGLE_BITS: f64 = 24.0;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Scaling {
    Single(Centred),
    Fused,
    #[default]
    Doubles,
}

impl Scaling {
    pub(super) fn name(self) -> &'static str {
        match self {
            Scaling::Single(_) => "f32-centred",
            Scaling::Fused => "f64-fused",
            Scaling::Doubles => "f64",
        }
    }

    /// Lists all ways with a chance, the fastest first.
    pub(super) fn ladder(factor: f64, offset: f64) -> impl Iterator<Item = Scaling> {
        let single = Centred::candidates(factor, offset).map(Scaling::Single);
        single.chain([Scaling::Fused])
    }
}

/// Computes `fma(x - centre, high, fma(x - centre, low, offset))` with the factor `high + low` to
/// 48 bits.
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "only the x86-64 kernels scale in single precision")
)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Centred {
    pub(super) centre: f32,
    pub(super) high: f32,
    pub(super) low: f32,
    pub(super) offset: f32,
}

impl Centred {
    /// Lists candidates for the oracle's bits. Whole centres come first: they hit the code with
    /// result zero. Neighbours of the best centre follow, because one code on the wrong side of a
    /// rounding spoils a centre.
    fn candidates(factor: f64, offset: f64) -> impl Iterator<Item = Centred> {
        let zero = -offset / factor;
        let step = step(zero);
        let near = (zero / step).round();
        let steps = [0.0, 1.0, -1.0, 2.0, -2.0].map(|aside| (near + aside) * step);
        let centres = [zero.round()].into_iter().chain(steps);
        let exact = centres.filter(move |centre| step <= 1.0 && centre.is_finite());
        let all = [0.0].into_iter().chain(exact);
        all.map(move |centre| Centred::new(centre, factor, offset))
    }

    #[allow(
        clippy::cast_possible_truncation,
        reason = "the rounding to f32 is what splits the factor; the trial judges the rest"
    )]
    fn new(centre: f64, factor: f64, offset: f64) -> Centred {
        let high = factor as f32;
        Centred {
            centre: centre as f32,
            high,
            low: (factor - f64::from(high)) as f32,
            // Rounds twice, which matches the oracle at a whole centre.
            offset: (centre * factor + offset) as f32,
        }
    }
}

/// Returns the finest step of centres near `zero` with differences of at most 24 bits to every
/// code.
fn step(zero: f64) -> f64 {
    let reach = zero.abs().max((zero - CODES).abs());
    (reach.log2().ceil() - SINGLE_BITS).exp2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_less_a_centre_is_exact() {
        for (factor, offset) in [(0.123, -45.6), (3.1e-4, -10.01), (1e-3, 900.0), (-2.5, 7e6)] {
            for centred in Centred::candidates(factor, offset) {
                for code in [0_u16, 1, 370, 32_767, 32_768, 65_535] {
                    let single = f32::from(code) - centred.centre;
                    let double = f64::from(code) - f64::from(centred.centre);
                    assert_eq!(f64::from(single), double, "{centred:?} {code}");
                }
            }
        }
    }

    #[test]
    fn centres_are_tried_only_where_codes_stay_exact() {
        let count = |factor, offset| Centred::candidates(factor, offset).count();
        assert_eq!(count(0.1, -3.7), 7);
        // Whole numbers have gaps beyond 2^24; without a factor there is no centre.
        assert_eq!(count(1e-6, 100.0), 1);
        assert_eq!(count(0.0, 1.0), 1);
        assert_eq!(count(0.0, 0.0), 1);
    }
}
