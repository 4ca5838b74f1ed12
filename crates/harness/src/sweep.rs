//! Points of a study: axes times values, in an order that drifts of the machine cannot follow.

use daqmeter_record::{Order, Param, Workload};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

#[derive(Clone, Debug)]
pub struct Sweep {
    pub base: Workload,
    pub axes: Vec<(String, Vec<Param>)>,
}

impl Sweep {
    /// Creates a sweep without axes: one point.
    pub fn of(base: Workload) -> Self {
        Sweep { base, axes: Vec::new() }
    }

    #[must_use]
    pub fn over<P: Into<Param>>(mut self, name: &str, values: impl IntoIterator<Item = P>) -> Self {
        self.axes.push((name.to_owned(), values.into_iter().map(Into::into).collect()));
        self
    }

    /// Returns all combinations, last axis fastest, unshuffled.
    pub fn workloads(&self) -> Vec<Workload> {
        self.axes.iter().fold(vec![self.base.clone()], |points, (name, values)| {
            let with_each = |point: Workload| {
                values.iter().map(move |value| point.clone().with(name, value.clone()))
            };
            points.into_iter().flat_map(with_each).collect()
        })
    }
}

/// Shuffles points by the seed and numbers them, so that slow drift of the host does not look like
/// an effect of a parameter.
pub fn ordered<T>(mut points: Vec<T>, seed: u64) -> Vec<(Order, T)> {
    shuffle(&mut points, seed);
    let of = points.len() as u64;
    points
        .into_iter()
        .enumerate()
        .map(|(at, point)| (Order { seed, position: at as u64, of }, point))
        .collect()
}

/// Shuffles by Fisher and Yates with a fixed generator, so that a recorded seed always gives one
/// order.
fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut generator = Xoshiro256PlusPlus::seed_from_u64(seed);
    for last in (1..items.len()).rev() {
        let drawn = (u128::from(generator.next_u64()) * (last as u128 + 1)) >> 64;
        items.swap(last, usize::try_from(drawn).expect("not above `last`"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep() -> Sweep {
        Sweep::of(Workload::new("convert"))
            .over("samples", [1_u64, 2, 3])
            .over("store", ["cached", "non-temporal"])
    }

    #[test]
    fn all_combinations_once() {
        let workloads = sweep().workloads();
        assert_eq!(workloads.len(), 6);
        assert_eq!(workloads[1].text("store"), Ok("non-temporal"));
        assert_eq!(Sweep::of(Workload::new("null")).workloads().len(), 1);
    }

    #[test]
    fn the_seed_fixes_the_order_and_is_recorded() {
        let points = |seed| ordered(sweep().workloads(), seed);
        assert_eq!(points(7), points(7));
        assert_ne!(points(7), points(8));
        let in_place = |(at, (order, _)): (usize, &(Order, Workload))| {
            *order == Order { seed: 7, position: at as u64, of: 6 }
        };
        assert!(points(7).iter().enumerate().all(in_place));
        let mut found: Vec<String> =
            points(7).iter().map(|(_, workload)| workload.to_string()).collect();
        let mut wanted: Vec<String> = sweep().workloads().iter().map(Workload::to_string).collect();
        found.sort();
        wanted.sort();
        assert_eq!(found, wanted);
    }
}
