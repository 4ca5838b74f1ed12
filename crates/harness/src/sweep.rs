//! Axes times values: the points of a study, in an order that the machine's moods cannot follow.

use daqmeter_record::{Order, Param, Workload};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// A base workload, and the parameters that vary.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// What stays the same.
    pub base: Workload,
    /// Parameter name and its values.
    pub axes: Vec<(String, Vec<Param>)>,
}

/// One point of a sweep.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// What to ask of the engine.
    pub workload: Workload,
    /// Where it stands in the shuffled order.
    pub order: Order,
}

impl Sweep {
    /// A sweep without axes: one point.
    pub fn of(base: Workload) -> Self {
        Sweep { base, axes: Vec::new() }
    }

    /// The same with one more axis.
    #[must_use]
    pub fn over<P: Into<Param>>(mut self, name: &str, values: impl IntoIterator<Item = P>) -> Self {
        self.axes.push((name.to_owned(), values.into_iter().map(Into::into).collect()));
        self
    }

    /// All combinations, last axis fastest, unshuffled.
    pub fn workloads(&self) -> Vec<Workload> {
        self.axes.iter().fold(vec![self.base.clone()], |points, (name, values)| {
            let with_each = |point: Workload| values.iter().map(move |value| point.clone().with(name, value.clone()));
            points.into_iter().flat_map(with_each).collect()
        })
    }

    /// All combinations in an order shuffled by the seed, so that slow drift of the host does not look like an effect of an
    /// axis.
    pub fn points(&self, seed: u64) -> Vec<Point> {
        let mut workloads = self.workloads();
        shuffle(&mut workloads, seed);
        let of = workloads.len() as u64;
        let place = |(position, workload)| Point { workload, order: Order { seed, position: position as u64, of } };
        workloads.into_iter().enumerate().map(place).collect()
    }
}

/// Fisher and Yates's shuffle with a generator that is fixed for all time, so that a recorded seed gives the same order.
pub fn shuffle<T>(items: &mut [T], seed: u64) {
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
        Sweep::of(Workload::new("convert")).over("samples", [1_u64, 2, 3]).over("store", ["cached", "non-temporal"])
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
        let points = sweep().points(7);
        assert_eq!(points, sweep().points(7));
        assert_ne!(points, sweep().points(8));
        assert!(points.iter().enumerate().all(|(at, p)| p.order == Order { seed: 7, position: at as u64, of: 6 }));
        let mut found: Vec<String> = points.iter().map(|p| p.workload.to_string()).collect();
        let mut wanted: Vec<String> = sweep().workloads().iter().map(Workload::to_string).collect();
        found.sort();
        wanted.sort();
        assert_eq!(found, wanted);
    }
}
