//! Choice of the fastest variant of a session's work, by measurement.

use daqmeter_sys::clock::monotonic_ns;

use crate::{Fault, Session};

/// Number of rounds, of which the fastest counts for each variant: disturbances only add to a time.
const ROUNDS: usize = 5;
const WITHIN_NS: u64 = 500_000_000;
/// Share of the first variant's time below which another one is preferred.
const CLEARLY_FASTER: f64 = 0.98;

/// Tries all variants of a prepared session, in the thread that runs it, and selects the fastest.
pub fn choose(session: &mut dyn Session) -> Result<(), Fault> {
    let mut best_ns = vec![u64::MAX; session.variants()];
    if best_ns.len() < 2 {
        return Ok(());
    }
    let end_ns = monotonic_ns() + WITHIN_NS;
    for round in 0..ROUNDS {
        for (variant, best_ns) in best_ns.iter_mut().enumerate() {
            session.use_variant(variant);
            *best_ns = once_ns(session)?.min(*best_ns);
        }
        if round > 0 && monotonic_ns() > end_ns {
            break;
        }
    }
    session.use_variant(fastest(&best_ns));
    Ok(())
}

/// Returns the time of one operation of each stage, without waits for a device, which move no
/// bytes.
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

fn fastest(best_ns: &[u64]) -> usize {
    let fastest = (0..best_ns.len()).min_by_key(|variant| best_ns[*variant]);
    let is_faster = |at: &usize| (best_ns[*at] as f64) < CLEARLY_FASTER * best_ns[0] as f64;
    fastest.filter(is_faster).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{StageSpec, Tally};

    struct Many {
        steps: Vec<u64>,
        variant: usize,
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

        fn variants(&self) -> usize {
            self.steps.len()
        }

        fn use_variant(&mut self, variant: usize) {
            self.variant = variant;
        }

        fn step(&mut self, _stage: usize, _operations: u64) -> Result<(), Fault> {
            for step in 0..self.steps[self.variant] {
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
        let mut session = Many { steps: steps.to_vec(), variant: 0 };
        choose(&mut session).unwrap();
        session.variant
    }

    #[test]
    fn the_variant_that_takes_least_is_used() {
        assert_eq!(chosen(&[400_000, 1_000, 200_000]), 1);
        assert_eq!(chosen(&[1_000, 400_000]), 0);
        assert_eq!(chosen(&[1_000]), 0);
    }

    #[test]
    fn a_variant_that_is_hardly_faster_does_not_replace_the_first() {
        assert_eq!(fastest(&[1000, 990, 1100]), 0);
        assert_eq!(fastest(&[1000, 900, 890]), 2);
    }
}
