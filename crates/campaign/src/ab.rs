//! Two sides measured in turns, in processes of their own on one CPU, until it is decided whether they differ.
//!
//! What differs between two files of records is mostly the minute in which each was made. Here both sides are prepared, and then work
//! in slices of about a millisecond in the order A B B A or B A A B, so that whatever the host does meanwhile meets both. A group of four
//! in which a slice lost its CPU is left out, on both sides alike, and counted. The logarithm of B's time over A's of one such group is
//! one value; the median over a block of groups is what a pair of processes says. Each block has fresh processes, begun in a random
//! order with stacks and heaps shifted at random: where memory came to lie is otherwise a difference that has nothing to do with
//! the sides. The blocks' medians go to a [`MedianSequence`], which may be looked at after each.

mod block;
mod protocol;
mod side;

use std::time::{Duration, Instant};

use daqmeter_harness::StopFlag;
use daqmeter_stats::{Decision, MedianSequence};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;
use serde::Serialize;

pub use block::{Command, Switch};
pub use protocol::Request;
pub use side::serve;

use block::Block;

/// What is compared, and for how long.
#[derive(Debug)]
pub struct Question {
    /// How the process of each side is started.
    pub sides: [Command; 2],
    /// Ratios up to this are to be ignored: 0.01 is 1 %.
    pub ignore: f64,
    /// Chance that the answer for one stage is wrong.
    pub alpha: f64,
    /// Time in which the question is to be decided.
    pub budget: Duration,
    /// Time of a block, without starting its processes.
    pub block: Duration,
    /// Seed of all orders.
    pub seed: u64,
    /// A setting of the host that is put to one value or the other before each slice.
    pub switch: Option<Switch>,
}

/// The answer for one stage.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// The stage's name.
    pub stage: String,
    /// `same`, `slower`, `faster` or `undecided`: B against A.
    pub verdict: &'static str,
    /// B's time over A's: the median of all blocks; none without a block.
    pub ratio: Option<f64>,
    /// Interval of the ratio that holds whenever one looks; none while there are too few blocks.
    pub interval: Option<(f64, f64)>,
    /// Blocks, each of two fresh processes.
    pub blocks: usize,
    /// Groups of four slices that count.
    pub groups: u64,
    /// Groups that were left out, because one of their slices lost its CPU.
    pub left_out: u64,
    /// Median time of one operation of A, in nanoseconds.
    pub a_ns: Option<f64>,
    /// Of B.
    pub b_ns: Option<f64>,
    /// Smallest difference that could have been decided with these blocks: 0.02 is 2 %.
    pub visible: Option<f64>,
    /// How many seconds more would probably decide; none when it is decided or cannot be told.
    pub missing_s: Option<f64>,
}

/// One stage while it is measured.
struct Tracked {
    stage: String,
    sequence: MedianSequence,
    groups: u64,
    left_out: u64,
    times_ns: [Vec<f64>; 2],
}

/// Measures until every stage is decided, the budget is over, or it is asked to stop. The callback is called after each block.
///
/// # Errors
/// When a side cannot be started, refuses its work, ends, hangs or answers what is no answer: one line that names the side.
pub fn ask(
    question: &Question,
    stop: &StopFlag,
    mut progress: impl FnMut(Duration),
) -> Result<Vec<Answer>, String> {
    let began = Instant::now();
    let mut random = Xoshiro256PlusPlus::seed_from_u64(question.seed);
    let mut tracked: Vec<Tracked> = Vec::new();
    loop {
        let mut block = Block::start(question, &mut random)?;
        if tracked.is_empty() {
            tracked = block
                .stages()
                .iter()
                .map(|stage| Tracked::new(stage, question))
                .collect();
        }
        block.measure(question, &mut random, stop, |stage, found| {
            tracked[stage].add(found)
        })?;
        block.end()?;
        progress(began.elapsed());
        let is_decided = |stage: &Tracked| stage.decision(question) != Decision::Undecided;
        let is_over = began.elapsed() >= question.budget || stop.is_set();
        if is_over || tracked.iter().all(is_decided) {
            break;
        }
    }
    let took_s = began.elapsed().as_secs_f64();
    Ok(tracked
        .iter()
        .map(|stage| stage.answer(question, took_s))
        .collect())
}

/// What a block says of one stage.
pub(crate) struct Found {
    /// Logarithms of B's time over A's, of each group that counts.
    pub(crate) log_ratios: Vec<f64>,
    /// Times of one operation in these groups, of A and of B.
    pub(crate) times_ns: [Vec<f64>; 2],
    pub(crate) left_out: u64,
}

impl Tracked {
    fn new(stage: &str, question: &Question) -> Tracked {
        Tracked {
            stage: stage.to_owned(),
            sequence: MedianSequence::new(question.alpha),
            groups: 0,
            left_out: 0,
            times_ns: [Vec::new(), Vec::new()],
        }
    }

    fn add(&mut self, found: Found) {
        self.groups += found.log_ratios.len() as u64;
        self.left_out += found.left_out;
        if found.log_ratios.is_empty() {
            return;
        }
        self.sequence
            .push(daqmeter_stats::median(&found.log_ratios));
        for (all, times) in self.times_ns.iter_mut().zip(&found.times_ns) {
            all.push(daqmeter_stats::median(times));
        }
    }

    fn decision(&self, question: &Question) -> Decision {
        self.sequence.decision(question.ignore)
    }

    fn answer(&self, question: &Question, took_s: f64) -> Answer {
        let (low, high) = self.sequence.interval();
        let decision = self.decision(question);
        let time = |side: usize| {
            let times = &self.times_ns[side];
            (!times.is_empty()).then(|| daqmeter_stats::median(times))
        };
        let blocks = self.sequence.len();
        let missing = self.sequence.missing(question.ignore);
        let missing = missing.filter(|_| decision == Decision::Undecided);
        Answer {
            stage: self.stage.clone(),
            verdict: match decision {
                Decision::Slower => "slower",
                Decision::Faster => "faster",
                Decision::Same => "same",
                Decision::Undecided => "undecided",
            },
            ratio: self.sequence.median().map(f64::exp),
            interval: (low.is_finite() && high.is_finite()).then(|| (low.exp(), high.exp())),
            blocks,
            groups: self.groups,
            left_out: self.left_out,
            a_ns: time(0),
            b_ns: time(1),
            visible: self.sequence.visible(question.ignore),
            missing_s: missing.map(|missing| missing as f64 * took_s / blocks.max(1) as f64),
        }
    }
}
