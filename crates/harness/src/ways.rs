//! The fastest of a session's ways to do its work, by measurement.

use daqmeter_sys::clock::monotonic_ns;

use crate::{Fault, Session};

/// Turns of which the fastest counts for each way: whatever else the host does only adds to a time.
const TURNS: usize = 5;
/// No further turn begins after this time.
const WITHIN_NS: u64 = 500_000_000;
/// A way is preferred to the first one where it takes less than this share of its time.
const CLEARLY_FASTER: f64 = 0.98;

/// Tries all ways in turn, and leaves the session with the fastest. For sessions that are prepared, in the thread that runs them.
///
/// # Errors
/// When a step cannot be done.
pub fn choose(session: &mut dyn Session) -> Result<(), Fault> {
    let ways = session.ways();
    if ways < 2 {
        return Ok(());
    }
    let mut best_ns = vec![u64::MAX; ways];
    let end_ns = monotonic_ns() + WITHIN_NS;
    for turn in 0..TURNS {
        for (way, best_ns) in best_ns.iter_mut().enumerate() {
            session.use_way(way);
            *best_ns = once_ns(session)?.min(*best_ns);
        }
        if turn > 0 && monotonic_ns() > end_ns {
            break;
        }
    }
    session.use_way(fastest(&best_ns));
    Ok(())
}

/// One operation of each stage; waits for a device, which move no bytes, do not count.
fn once_ns(session: &mut dyn Session) -> Result<u64, Fault> {
    let mut sum_ns = 0;
    for (stage, spec) in session.stages().iter().enumerate() {
        let begin_ns = monotonic_ns();
        session.step(stage, 1)?;
        if spec.bytes_per_op > 0 {
            sum_ns += monotonic_ns() - begin_ns;
        }
    }
    Ok(sum_ns)
}

/// The first way, unless another is clearly faster.
fn fastest(best_ns: &[u64]) -> usize {
    let fastest = (0..best_ns.len()).min_by_key(|way| best_ns[*way]);
    let is_faster = |way: &usize| (best_ns[*way] as f64) < CLEARLY_FASTER * best_ns[0] as f64;
    fastest.filter(is_faster).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{StageSpec, Tally};

    /// Each way takes so many steps of arithmetic.
    struct Many {
        steps: Vec<u64>,
        way: usize,
    }

    impl Session for Many {
        fn device(&self) -> String {
            "test".to_owned()
        }

        fn stages(&self) -> Vec<StageSpec> {
            vec![StageSpec::new("work", 1, 1)]
        }

        fn prepare(&mut self) -> Result<(), Fault> {
            Ok(())
        }

        fn ways(&self) -> usize {
            self.steps.len()
        }

        fn use_way(&mut self, way: usize) {
            self.way = way;
        }

        fn step(&mut self, _stage: usize, _operations: u64) -> Result<(), Fault> {
            for step in 0..self.steps[self.way] {
                std::hint::black_box(step);
            }
            Ok(())
        }

        fn verify(&mut self) -> Result<(), Fault> {
            Ok(())
        }

        fn tally(&mut self) -> Tally {
            Tally::default()
        }
    }

    fn chosen(steps: &[u64]) -> usize {
        let mut session = Many { steps: steps.to_vec(), way: 0 };
        choose(&mut session).unwrap();
        session.way
    }

    #[test]
    fn the_way_that_takes_least_is_used() {
        assert_eq!(chosen(&[400_000, 1_000, 200_000]), 1);
        assert_eq!(chosen(&[1_000, 400_000]), 0);
        assert_eq!(chosen(&[1_000]), 0);
    }

    #[test]
    fn a_way_that_is_hardly_faster_does_not_replace_the_first() {
        assert_eq!(fastest(&[1000, 990, 1100]), 0);
        assert_eq!(fastest(&[1000, 900, 890]), 2);
    }
}
