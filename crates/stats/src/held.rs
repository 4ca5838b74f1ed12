//! Fewest values that intervals from ranks of errors must hold.

use statrs::function::factorial::ln_binomial;

use crate::sequential::log_beta;

/// Probability of too few values within correct intervals.
const UNLUCKY: f64 = 1e-3;

/// Returns the rank, from 1 from either end, of the bounds that hold the next error with at least
/// 90 %. All errors must be drawn in one way. `None` below 19 errors.
///
/// The next error lies in each of the n + 1 gaps of the n sorted errors with equal probability,
/// 1/(n + 1).
pub fn outer_rank(errors: usize) -> Option<usize> {
    let rank = (errors + 1) / 20;
    (rank > 0).then_some(rank)
}

/// Returns the fewest of `values` further values that lie within such an interval of `errors`
/// errors, except once in a thousand.
///
/// The share that one interval holds is itself random, Beta(n + 1 - 2k, 2k) for the ranks k. Of 20
/// values 10 may lie within an interval of 19 errors, and 12 within one of 60.
pub fn fewest_held(errors: usize, values: usize) -> usize {
    let Some(rank) = outer_rank(errors) else {
        return 0;
    };
    let inside = (errors + 1 - 2 * rank) as f64;
    let outside = (2 * rank) as f64;
    let chance = |held: usize| {
        let log = ln_binomial(values as u64, held as u64)
            + log_beta(held as f64 + inside, (values - held) as f64 + outside)
            - log_beta(inside, outside);
        log.exp()
    };
    let mut at_most = 0.0;
    for held in 0..values {
        at_most += chance(held);
        if at_most > UNLUCKY {
            return held;
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    #[test]
    fn so_few_are_held_once_in_a_thousand() {
        let (errors, values) = (39, 20);
        let rank = outer_rank(errors).unwrap();
        assert_eq!(rank, 2);
        let fewest = fewest_held(errors, values);
        let mut random = Random::new(3);
        let mut fewer = [0; 2];
        let tries = 40_000;
        for _ in 0..tries {
            let mut drawn: Vec<f64> = (0..errors).map(|_| random.uniform()).collect();
            drawn.sort_by(f64::total_cmp);
            let within = drawn[rank - 1]..=drawn[errors - rank];
            let held = (0..values).filter(|_| within.contains(&random.uniform()));
            let held = held.count();
            fewer[0] += u32::from(held < fewest);
            fewer[1] += u32::from(held <= fewest);
        }
        let share = fewer.map(|fewer| f64::from(fewer) / f64::from(tries));
        assert!(share[0] <= 1.5e-3 && share[1] > 0.8e-3, "{fewest}: {share:?}");
    }

    #[test]
    fn more_errors_and_more_values_ask_for_more() {
        let shares = [(19, 20), (60, 20), (60, 200), (400, 200)]
            .map(|(errors, values)| fewest_held(errors, values) as f64 / values as f64);
        assert_eq!(shares[..2], [0.5, 0.6]);
        assert!(shares.is_sorted() && shares[3] < 0.9, "{shares:?}");
        assert_eq!((outer_rank(18), fewest_held(18, 20)), (None, 0));
    }
}
