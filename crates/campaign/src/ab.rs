//! Measures two sides alternately, in processes of their own, until their difference is decided.
//!
//! Two files of records differ mostly by the minutes in which they were made. Here both sides are
//! prepared, and work in slices of a fraction of a millisecond. Their order is A B B A or B A A B,
//! so that a disturbance of the host meets both. A block of slices gives the ratio of both levels
//! ([`daqmeter_stats::Level`]). Each block has fresh processes, with random shifts of stack and
//! heap, since the layout of memory causes differences too. The ratios go to a [`MedianSequence`],
//! which may be looked at after each.
//!
//! Begin with [`ask`]. `process.rs` is a side as its parent sees it, `side.rs` the side itself.

mod block;
mod process;
mod protocol;
mod side;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use daqmeter_harness::StopFlag;
use daqmeter_stats::{Decision, MedianSequence, Random, median};
use serde::Serialize;

pub use block::Block;
pub use protocol::SideRequest;
pub use side::serve;

/// Time after which a side that does not answer is ended.
pub const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub struct Question {
    pub sides: [AbSide; 2],
    /// Ratios up to this are ignored: 0.01 is 1 %.
    pub ignore: f64,
    /// Probability that any answer is wrong.
    pub alpha: f64,
    pub budget: Duration,
    pub patience: Duration,
    pub seed: u64,
}

#[derive(Clone, Debug)]
pub struct AbSide {
    pub program: PathBuf,
    /// Arguments that make the program a side.
    pub arguments: Vec<String>,
    pub request: SideRequest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AbVerdict {
    Same,
    Slower,
    Faster,
    Undecided,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    pub stage: String,
    pub verdict: AbVerdict,
    /// Median over all blocks of B's time over A's; `None` without a block.
    pub ratio: Option<f64>,
    /// Interval of the ratio that is valid at every look; `None` with too few blocks.
    pub interval: Option<(f64, f64)>,
    /// Median times of one operation in nanoseconds.
    pub a_ns: Option<f64>,
    pub b_ns: Option<f64>,
    /// Smallest difference that these blocks could have decided: 0.02 is 2 %. `None` with too few
    /// blocks.
    pub visible: Option<f64>,
    /// True if the blocks contradict each other: the difference itself changed meanwhile.
    pub wandered: bool,
    pub blocks: Vec<Block>,
}

/// Measures until every stage is decided, the budget is over, or `stop` is set.
///
/// # Errors
/// Names the side with the error in one line.
pub fn ask(question: &Question, stop: &StopFlag) -> Result<Vec<Answer>, String> {
    let began = Instant::now();
    let mut random = Random::new(question.seed);
    let mut stages = Vec::new();
    loop {
        match block::measure(question, &mut stages, &mut random, stop) {
            Err(_) if stop.is_set() => break,
            done => done?,
        }
        let is_over = stop.is_set() || began.elapsed() >= question.budget;
        if is_over || stages.iter().all(Tracked::is_decided) {
            break;
        }
    }
    Ok(stages.into_iter().map(Tracked::answer).collect())
}

/// Blocks of one stage so far.
struct Tracked {
    stage: String,
    /// Operations of a slice.
    operations: u64,
    ignore: f64,
    sequence: MedianSequence,
    blocks: Vec<Block>,
}

impl Tracked {
    fn new(stage: String, operations: u64, ignore: f64, alpha: f64) -> Tracked {
        let sequence = MedianSequence::new(alpha);
        Tracked { stage, operations, ignore, sequence, blocks: Vec::new() }
    }

    fn add(&mut self, block: Block) {
        if let Some(log_ratio) = block.log_ratio {
            self.sequence.push(log_ratio);
        }
        self.blocks.push(block);
    }

    fn is_decided(&self) -> bool {
        self.sequence.decision(self.ignore) != Decision::Undecided
    }

    fn answer(self) -> Answer {
        let (low, high) = self.sequence.interval();
        let is_interval = low.is_finite() && high.is_finite() && low <= high;
        let time = |of: fn(&Block) -> f64| {
            let counted = self.blocks.iter().filter(|block| block.log_ratio.is_some());
            let times: Vec<f64> = counted.map(of).collect();
            (!times.is_empty()).then(|| median(&times))
        };
        Answer {
            verdict: match self.sequence.decision(self.ignore) {
                Decision::Slower => AbVerdict::Slower,
                Decision::Faster => AbVerdict::Faster,
                Decision::Same => AbVerdict::Same,
                Decision::Undecided => AbVerdict::Undecided,
            },
            ratio: self.sequence.median().map(f64::exp),
            interval: is_interval.then(|| (low.exp(), high.exp())),
            a_ns: time(|block| block.a_ns),
            b_ns: time(|block| block.b_ns),
            visible: self.sequence.visible(self.ignore),
            wandered: self.sequence.is_contradictory(),
            stage: self.stage,
            blocks: self.blocks,
        }
    }
}

#[cfg(test)]
mod tests;
