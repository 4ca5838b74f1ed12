//! What limits a path, proved by slowing it (Coz, SOSP 2015, turned round: a part that is slowed by a known time moves the whole by as
//! much where it is the limit, and by nothing where it waits for others).
//!
//! Each element gets known work added to each of its blocks, and the time per block of the whole path is compared with that of the
//! runs right before and right after, without the work. The ratio of both is the element's slope: 1 for the limit, 0 for what has time
//! to spare, in between where elements share what is the limit.

use daqmeter_stats::student_interval;

/// A path that can be run with one element slowed.
pub trait Slowed {
    /// Why it could not be run.
    type Error;

    /// Runs it; the element by its number, and the work that is added to each of its blocks in nanoseconds. Returns the time
    /// per block in nanoseconds.
    ///
    /// # Errors
    /// When it cannot be run.
    fn block_ns(&mut self, slowed: Option<(usize, f64)>) -> Result<f64, Self::Error>;
}

/// Shares of the time per block that are added.
pub const SHARES: [f64; 3] = [0.05, 0.1, 0.2];
/// Fewest rounds with which an interval is stated.
pub const MIN_ROUNDS: usize = 3;
/// The confidence of all intervals of an answer together.
const CONFIDENCE: f64 = 0.95;

/// How far the whole follows one element.
#[derive(Clone, Debug, PartialEq)]
pub struct Slope {
    /// The element.
    pub name: String,
    /// Added time per block of the whole, over that which was added to the element.
    pub slope: f64,
    /// Lower end of its interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// What limits a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// This element: slowing it slows the whole one for one, and slowing the others does not.
    Limit(usize),
    /// None of them alone: no element moves the whole one for one.
    NoSingle,
    /// The intervals are too wide for either.
    CannotTell,
}

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Explained {
    /// One for each element, from source to sink.
    pub slopes: Vec<Slope>,
    /// What follows from them.
    pub answer: Answer,
    /// Time per block without added work: the median of all such runs, in nanoseconds.
    pub block_ns: f64,
    /// Runs in all.
    pub runs: usize,
}

/// An element and how many threads share its blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its name.
    pub name: String,
    /// Its threads.
    pub threads: usize,
}

/// Slows each part in turn, in as many rounds.
///
/// # Errors
/// When a run fails.
pub fn explain<S: Slowed>(
    system: &mut S,
    parts: &[Part],
    rounds: usize,
) -> Result<Explained, S::Error> {
    let mut bases = vec![system.block_ns(None)?];
    let mut found: Vec<Vec<f64>> = vec![Vec::new(); parts.len()];
    let mut runs = 1;
    for round in 0..rounds.max(MIN_ROUNDS) {
        let mut sums = vec![(0.0, 0.0); parts.len()];
        let all: Vec<(usize, f64)> = (0..parts.len())
            .flat_map(|part| SHARES.map(|share| (part, share)))
            .collect();
        for (_, (part, share)) in daqmeter_harness::ordered(all, round as u64 + 1) {
            let before = bases[bases.len() - 1];
            let added = share * before;
            // Threads that share the blocks share the work, too.
            let slowed = system.block_ns(Some((part, added * parts[part].threads as f64)))?;
            let after = system.block_ns(None)?;
            bases.push(after);
            runs += 2;
            let response = slowed - (before + after) / 2.0;
            let (products, squares) = &mut sums[part];
            *products += response * added;
            *squares += added * added;
        }
        for (slopes, (products, squares)) in found.iter_mut().zip(sums) {
            slopes.push(products / squares);
        }
    }
    let slopes = slopes(parts, &found);
    Ok(Explained {
        answer: answer(&slopes),
        slopes,
        block_ns: daqmeter_stats::median(&bases),
        runs,
    })
}

/// One slope for each part, from those of the rounds. All intervals together hold with [`CONFIDENCE`] (Bonferroni).
fn slopes(parts: &[Part], found: &[Vec<f64>]) -> Vec<Slope> {
    let confidence = 1.0 - (1.0 - CONFIDENCE) / parts.len().max(1) as f64;
    let slope = |(part, slopes): (&Part, &Vec<f64>)| {
        let interval = student_interval(slopes, confidence);
        let (slope, low, high) = interval.unwrap_or((f64::NAN, f64::NEG_INFINITY, f64::INFINITY));
        Slope {
            name: part.name.clone(),
            slope,
            low,
            high,
        }
    };
    parts.iter().zip(found).map(slope).collect()
}

/// One for one is nearer to 1 than to nothing, with all of the interval.
const MOSTLY: f64 = 0.5;
/// An element whose whole interval is below this does not move the path one for one.
const NOT_ONE_FOR_ONE: f64 = 0.9;

fn answer(slopes: &[Slope]) -> Answer {
    let is_limit = |at: &usize| {
        let own = &slopes[*at];
        let mut others = slopes.iter().enumerate().filter(|(other, _)| other != at);
        own.low > MOSTLY
            && own.high >= NOT_ONE_FOR_ONE
            && others.all(|(_, other)| other.high < own.low)
    };
    match (0..slopes.len()).find(is_limit) {
        Some(at) => Answer::Limit(at),
        None if slopes.iter().all(|slope| slope.high < NOT_ONE_FOR_ONE) => Answer::NoSingle,
        None => Answer::CannotTell,
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use daqmeter_stats::simulated::Random;

    use super::*;

    /// Parts in line with a CPU each, or on shared CPUs; noise as a share of the time per block, and a host that slows down.
    struct Simulated {
        needs_ns: Vec<f64>,
        threads: Vec<usize>,
        cpus: Option<f64>,
        noise: f64,
        drift: f64,
        random: Random,
        runs: u32,
    }

    impl Simulated {
        fn new(needs_ns: &[f64], noise: f64) -> Simulated {
            Simulated {
                needs_ns: needs_ns.to_vec(),
                threads: vec![1; needs_ns.len()],
                cpus: None,
                noise,
                drift: 0.0,
                random: Random::new(7),
                runs: 0,
            }
        }

        fn explained(mut self, rounds: usize) -> Explained {
            let part = |(at, &threads): (usize, &usize)| Part {
                name: format!("part {at}"),
                threads,
            };
            let parts: Vec<Part> = self.threads.iter().enumerate().map(part).collect();
            explain(&mut self, &parts, rounds).unwrap()
        }
    }

    impl Slowed for Simulated {
        type Error = Infallible;

        fn block_ns(&mut self, slowed: Option<(usize, f64)>) -> Result<f64, Infallible> {
            self.runs += 1;
            let drift = 1.0 + self.drift * f64::from(self.runs);
            let mut needs: Vec<f64> = self.needs_ns.iter().map(|ns| ns * drift).collect();
            if let Some((part, ns)) = slowed {
                needs[part] += ns;
            }
            let each = needs.iter().zip(&self.threads);
            let slowest = each
                .map(|(ns, &threads)| ns / threads as f64)
                .fold(0.0, f64::max);
            let shared = self
                .cpus
                .map_or(0.0, |cpus| needs.iter().sum::<f64>() / cpus);
            let noise = 1.0 + self.noise * self.random.normal();
            Ok(slowest.max(shared) * noise)
        }
    }

    #[test]
    fn the_slowest_part_is_named_whatever_the_noise_and_the_drift() {
        for slow in 0..4 {
            let mut needs = [1000.0, 1100.0, 900.0, 1050.0];
            needs[slow] = 1600.0;
            let mut system = Simulated::new(&needs, 0.01);
            system.drift = 0.001;
            let explained = system.explained(8);
            assert_eq!(explained.answer, Answer::Limit(slow), "{explained:?}");
            let slope = &explained.slopes[slow];
            assert!(slope.low < 1.0 && 1.0 < slope.high + 0.1, "{slope:?}");
        }
    }

    #[test]
    fn a_part_with_several_threads_is_slowed_by_its_share() {
        let mut system = Simulated::new(&[1000.0, 4800.0, 900.0], 0.005);
        system.threads = vec![1, 3, 1];
        assert_eq!(system.explained(8).answer, Answer::Limit(1));
    }

    #[test]
    fn parts_that_share_cpus_are_no_single_limit() {
        let mut system = Simulated::new(&[1000.0, 1000.0, 1000.0, 1000.0], 0.005);
        system.cpus = Some(2.0);
        let explained = system.explained(8);
        assert_eq!(explained.answer, Answer::NoSingle, "{explained:?}");
        assert!(
            explained
                .slopes
                .iter()
                .all(|slope| (slope.slope - 0.5).abs() < 0.2)
        );
    }

    #[test]
    fn too_much_noise_gives_no_answer() {
        let explained = Simulated::new(&[1000.0, 1600.0, 900.0], 0.4).explained(3);
        assert_eq!(explained.answer, Answer::CannotTell, "{explained:?}");
    }
}
