//! Programs that a copying neighbour disturbs: image filters and sorts like those of the study
//! (section 2.5). They follow the published algorithms; a seed makes their inputs.

mod quicksort;
mod susan;

use daqmeter_harness::Fault;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use quicksort::{Point, Word};
use susan::Image;

pub(crate) enum Victim {
    Smooth(Image, Image),
    Edges(Image, susan::Edges),
    Corners(Image, susan::Corners),
    Words { input: Vec<Word>, work: Vec<Word> },
    Points { input: Vec<Point>, work: Vec<Point> },
}

pub const TESTS: [&str; 11] = [
    "susan[s]_small",
    "susan[e]_small",
    "susan[c]_small",
    "susan[s]_large",
    "susan[e]_large",
    "susan[c]_large",
    "susan[s]_huge",
    "susan[e]_huge",
    "susan[c]_huge",
    "qsort_small",
    "qsort_large",
];

/// Seed of every input, so that all hosts use equal bytes.
const SEED: u64 = 2012;

impl Victim {
    /// Makes a test by name; allocates and touches its memory.
    ///
    /// # Errors
    /// Unknown names.
    pub(crate) fn new(test: &str) -> Result<Victim, Fault> {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(SEED);
        let size = test.rsplit('_').next().unwrap_or("");
        let image = |random: &mut Xoshiro256PlusPlus| match size {
            "small" => susan::scene(76, 95, random),
            "large" => susan::scene(384, 288, random),
            _ => susan::scene(1024, 1024, random),
        };
        let victim = match test.split('_').next().unwrap_or("") {
            _ if !TESTS.contains(&test) => {
                return Err(Fault::new(format!(
                    "there is no test `{test}`; choose among {}",
                    TESTS.join(", ")
                )));
            }
            "susan[s]" => {
                let image = image(&mut random);
                let out = image.clone();
                Victim::Smooth(image, out)
            }
            "susan[e]" => {
                let image = image(&mut random);
                let work = susan::Edges::of(&image);
                Victim::Edges(image, work)
            }
            "susan[c]" => {
                let image = image(&mut random);
                let work = susan::Corners::of(&image);
                Victim::Corners(image, work)
            }
            _ if size == "small" => {
                let input: Vec<Word> = (0..10_000).map(|_| word(&mut random)).collect();
                Victim::Words { work: input.clone(), input }
            }
            _ => {
                let input: Vec<Point> = (0..50_000).map(|_| Point::random(&mut random)).collect();
                Victim::Points { work: input.clone(), input }
            }
        };
        Ok(victim)
    }

    pub(crate) fn run(&mut self) {
        match self {
            Victim::Smooth(image, out) => susan::smooth(image, out),
            Victim::Edges(image, work) => work.find(image),
            Victim::Corners(image, work) => work.find(image),
            Victim::Words { input, work } => {
                work.copy_from_slice(input);
                quicksort::sort(work, |a, b| b.cmp(a));
            }
            Victim::Points { input, work } => {
                work.copy_from_slice(input);
                quicksort::sort(work, |a, b| a.distance_squared().cmp(&b.distance_squared()));
            }
        }
        std::hint::black_box(self);
    }

    /// Checks the last result as far as possible without repeating the run.
    pub(crate) fn check(&self) -> Result<(), String> {
        let right = match self {
            Victim::Smooth(image, out) => out.mean_step() < image.mean_step(),
            Victim::Edges(_, work) => (1..work.pixels() / 4).contains(&work.count()),
            Victim::Corners(_, work) => (1..500).contains(&work.count()),
            Victim::Words { work, .. } => work.is_sorted_by(|a, b| a >= b),
            Victim::Points { work, .. } => work.is_sorted_by_key(Point::distance_squared),
        };
        if right { Ok(()) } else { Err("its result is wrong".to_owned()) }
    }
}

fn word(random: &mut Xoshiro256PlusPlus) -> Word {
    let mut word = [0; 128];
    let length = 3 + random.next_u64() % 10;
    for letter in word.iter_mut().take(usize::try_from(length).unwrap_or(3)) {
        *letter = b'a' + u8::try_from(random.next_u64() % 26).unwrap_or(0);
    }
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_test_runs_and_checks() {
        // The huge tests are slow in a debug build and run the code of the small ones.
        for test in TESTS.iter().filter(|test| !test.ends_with("huge")) {
            let mut victim = Victim::new(test).unwrap();
            victim.run();
            victim.check().unwrap_or_else(|error| panic!("{test}: {error}"));
        }
        assert!(
            Victim::new("susan[x]_small").err().unwrap().0.contains("choose among susan[s]_small")
        );
    }

    #[test]
    fn inputs_have_the_studys_sizes() {
        let bytes = |test: &str| match Victim::new(test).unwrap() {
            Victim::Smooth(image, _) | Victim::Edges(image, _) | Victim::Corners(image, _) => {
                image.pixels.len()
            }
            Victim::Words { input, .. } => size_of_val(input.as_slice()),
            Victim::Points { input, .. } => size_of_val(input.as_slice()),
        };
        assert_eq!(bytes("susan[e]_small"), 7220);
        assert_eq!(bytes("susan[s]_large"), 110_592);
        assert_eq!(bytes("susan[c]_huge"), 1 << 20);
        assert_eq!(bytes("qsort_small"), 1_280_000);
        assert_eq!(bytes("qsort_large"), 600_000);
    }
}
