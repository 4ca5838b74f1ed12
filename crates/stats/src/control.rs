//! Correction of a difference by a control of the same resource. If the control moved with the
//! point between occasions, a part of the difference is the host's.
//!
//! A point is never divided by its control. Occasions of one side, with the same program, give an
//! estimate of the control's share in the point (a slope, shrunk towards zero). Only this share is
//! subtracted. A control that does not move with its point, such as arithmetic beside memory, has a
//! slope near zero and changes nothing.

use crate::sides::{Value, location_of};

/// Prior standard deviation of slopes around zero: 0.5 covers the range from 0 to 1.
const PRIOR_SLOPE: f64 = 0.5;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Controlled {
    /// Share of the control's movement in the point: 0 to 1.
    pub(crate) slope: f64,
    pub(crate) variance: f64,
    /// B's control over A's, as a logarithm.
    pub(crate) moved: f64,
    /// Standard error of `moved`; 0 without a reference.
    pub(crate) error: f64,
}

/// Standard errors above which a change of the control counts as movement.
const MOVES: f64 = 2.0;

impl Controlled {
    pub(crate) fn correction(self) -> f64 {
        self.slope * self.moved
    }

    /// Returns the control's movement beyond the correction and beyond its own noise, which a point
    /// cannot share.
    pub(crate) fn left(self) -> f64 {
        let left = self.moved - self.correction();
        (left.abs() - MOVES * self.error).max(0.0) * left.signum()
    }

    pub(crate) fn added_variance(self) -> f64 {
        self.variance * self.moved.powi(2)
    }
}

/// Subtracts from the values of a point the part that their control explains. `None` if a value of
/// a side has no control. A history without a control for each value is no evidence, and then
/// nothing is subtracted.
pub(crate) fn controlled(
    a: &mut [Value],
    b: &mut [Value],
    history: &mut [Value],
) -> Option<Controlled> {
    let (of_a, of_b) = (controls(a)?, controls(b)?);
    let moved = location_of(&of_b) - location_of(&of_a);
    let mut found = Controlled { moved, ..Controlled::default() };
    if controls(history).is_none() {
        return Some(found);
    }
    let sides = 1.0 / of_a.len() as f64 + 1.0 / of_b.len() as f64;
    found.error = (control_variance(&[a, b, history]) * sides).sqrt();
    (found.slope, found.variance) = slope(&[a, b, history]);
    let middle = f64::midpoint(location_of(&of_a), location_of(&of_b));
    let take = |values: &mut [Value], middle: f64| {
        for value in values {
            value.log -= found.slope * (value.control.unwrap_or(middle) - middle);
        }
    };
    take(a, middle);
    take(b, middle);
    let of_history = controls(history).unwrap_or_default();
    take(history, mean(&of_history));
    Some(found)
}

fn controls(values: &[Value]) -> Option<Vec<f64>> {
    values.iter().map(|value| value.control).collect()
}

/// Returns the variance of the control of one occasion, around the mean of each row; 0 without two
/// occasions in any row.
fn control_variance(rows: &[&[Value]; 3]) -> f64 {
    let (mut squares, mut freedom) = (0.0, 0.0);
    for row in rows.iter().filter(|row| row.len() > 1) {
        let controls = controls(row).unwrap_or_default();
        let middle = mean(&controls);
        squares += controls.iter().map(|x| (x - middle).powi(2)).sum::<f64>();
        freedom += row.len() as f64 - 1.0;
    }
    if freedom > 0.0 { squares / freedom } else { 0.0 }
}

/// Returns the slope of the values on their control, and its variance. It is least squares over all
/// rows, each around its own mean, with a prior around zero. The whole scatter of the values counts
/// as noise, because the slope would have to explain it.
fn slope(rows: &[&[Value]; 3]) -> (f64, f64) {
    let (mut products, mut squares, mut scatter, mut freedom) = (0.0, 0.0, 0.0, 0.0);
    for row in rows.iter().filter(|row| row.len() > 1) {
        let logs: Vec<f64> = row.iter().map(|value| value.log).collect();
        let controls = controls(row).unwrap_or_default();
        let (log, control) = (mean(&logs), mean(&controls));
        for (x, y) in controls.iter().zip(&logs) {
            products += (x - control) * (y - log);
            squares += (x - control).powi(2);
            scatter += (y - log).powi(2);
        }
        freedom += row.len() as f64 - 1.0;
    }
    if freedom <= 0.0 || squares <= 0.0 {
        return (0.0, 0.0);
    }
    let noise = scatter / freedom;
    let weight = squares + noise / PRIOR_SLOPE.powi(2);
    let slope = (products / weight).clamp(0.0, 1.0);
    // Variance of the estimate, not of the slope: [`Controlled::left`] handles the control's own
    // movement between the sides.
    let variance = noise * squares / weight.powi(2);
    (slope, if slope > 0.0 { variance } else { 0.0 })
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;
    use crate::simulated::{Host, Kind, Layout};
    use crate::{Asked, Comparison, Point, Verdict, compare};

    fn values(n: usize, share: f64, random: &mut Random) -> Vec<Value> {
        let value = |at: usize| {
            let control = 0.1 * random.normal();
            Value {
                at: at as f64,
                log: share * control + 0.01 * random.normal(),
                within: None,
                control: Some(control),
            }
        };
        (0..n).map(value).collect()
    }

    #[test]
    fn a_slope_is_found_where_there_is_one_and_none_is_made_up() {
        let mut random = Random::new(3);
        for (share, least, most) in [(0.0, 0.0, 0.15), (0.5, 0.4, 0.6), (-0.5, 0.0, 0.0)] {
            let mut row = values(20, share, &mut random);
            let (found, _) = slope(&[&row, &[], &[]]);
            assert!((least..=most).contains(&found), "{share}: {found}");
            // Two occasions a side get little weight.
            let (few, variance) = slope(&[&row[..2], &[], &[]]);
            assert!(few <= 0.35 && variance >= 0.0, "{few}");
            row[0].control = None;
            let (mut a, mut b) = (row.clone(), row);
            assert_eq!(controlled(&mut a, &mut b, &mut []), None);
        }
    }

    #[test]
    fn a_history_without_controls_is_no_witness() {
        let mut random = Random::new(4);
        let mut row = || values(10, 1.0, &mut random);
        let (mut a, mut b, mut history) = (row(), row(), row());
        history[3].control = None;
        let before = a[0].log;
        let found = controlled(&mut a, &mut b, &mut history).unwrap();
        assert_eq!((found.slope, a[0].log), (0.0, before));
        let found = controlled(&mut a, &mut b, &mut []).unwrap();
        assert!(found.slope > 0.8 && a[0].log != before, "{found:?}");
    }

    /// A host whose memory speed changes by a tenth from one occasion to the next.
    fn host(layout: Layout, seen: f64, slower: f64) -> Host {
        Host { kind: Kind::Correlated(0.5), occasion: 0.1, points: 4, layout, slower, seen }
    }

    fn all(host: Host, of: usize) -> Vec<(Vec<Point>, Comparison)> {
        let mut random = Random::new(11);
        let drawn = |_| {
            let points = host.draw(&mut random);
            let found = compare(&points, Asked::ignoring(0.02));
            (points, found)
        };
        (0..of).map(drawn).collect()
    }

    #[test]
    fn a_control_that_moves_with_its_point_shows_smaller_differences_and_names_no_false_ones() {
        let visible = |found: &Comparison| found.effects[0].visible;
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for (mut points, found) in all(host(Layout::InTurn(10), 0.98, 1.0), 60) {
            assert!(!found.differs(), "{found:?}");
            with.push(visible(&found));
            for point in &mut points {
                let sides = [&mut point.a.occasions, &mut point.b.occasions];
                let occasions = sides.into_iter().flatten();
                occasions.for_each(|occasion| occasion.control = None);
            }
            without.push(visible(&compare(&points, Asked::ignoring(0.02))));
        }
        let (with, without) = (crate::median(&with), crate::median(&without));
        assert!(with < 0.6 * without, "{with} {without}");
    }

    #[test]
    fn a_real_difference_is_not_hidden_by_a_control_that_it_does_not_move() {
        let found = |seen: f64, slower: f64| {
            let found = all(host(Layout::InTurn(20), seen, slower), 40);
            let is_found =
                |found: &&(Vec<Point>, Comparison)| found.1.effects[0].verdict == Verdict::Slower;
            found.iter().filter(is_found).count()
        };
        let (without, with) = (found(0.0, 1.15), found(0.98, 1.15));
        assert!(with >= 36 && with > without, "{with} {without}");
        // 5 % in occasions of 1 %, beside a control of pure noise.
        let quiet = |noise: f64| {
            let host = Host {
                kind: Kind::Independent,
                occasion: 0.01,
                ..host(Layout::InTurn(10), 0.0, 1.05)
            };
            let mut random = Random::new(12);
            let is_found = |_: &usize| {
                let mut points = host.draw(&mut random);
                let Point { a, b, .. } = &mut points[0];
                let sides = [a, b];
                for occasion in sides.into_iter().flat_map(|side| &mut side.occasions) {
                    occasion.control = Some((noise * random.normal()).exp());
                }
                let found = compare(&points, Asked::ignoring(0.02));
                found.effects[0].verdict == Verdict::Slower
            };
            (0..40).filter(is_found).count()
        };
        for noise in [0.001, 0.01, 0.1] {
            assert!(quiet(noise) >= 36, "{noise}: {}", quiet(noise));
        }
    }
}
