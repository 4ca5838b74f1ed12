//! What is known of one stage, block by block, and the answer at the end.

use daqmeter_stats::{Decision, MedianSequence, median};
use serde::Serialize;

use super::block::Block;

/// B against A.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// They differ by less than is to be ignored.
    Same,
    /// B takes longer, by more than is to be ignored.
    Slower,
    /// B takes less time, by more than is to be ignored.
    Faster,
    /// The time was not enough to tell.
    Undecided,
}

/// The answer for one stage.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// The stage's name.
    pub stage: String,
    /// B against A.
    pub verdict: Verdict,
    /// B's time over A's: the median of all blocks; none without a block.
    pub ratio: Option<f64>,
    /// Interval of the ratio that holds whenever one looks; none while there are too few blocks.
    pub interval: Option<(f64, f64)>,
    /// Median time of one operation of A, in nanoseconds.
    pub a_ns: Option<f64>,
    /// Of B.
    pub b_ns: Option<f64>,
    /// Operations of a slice.
    pub operations: u64,
    /// Smallest difference that these blocks could have decided: 0.02 is 2 %. None while there are too few.
    pub visible: Option<f64>,
    /// How many seconds more would probably decide; none when it is decided or cannot be told.
    pub missing_s: Option<f64>,
    /// Whether the blocks contradict each other: the difference itself changed meanwhile.
    pub wandered: bool,
    /// Each block, in order.
    pub blocks: Vec<Block>,
}

impl Answer {
    /// Sum over the blocks.
    pub fn sum(&self, of: impl Fn(&Block) -> u64) -> u64 {
        self.blocks.iter().map(of).sum()
    }
}

/// One stage while it is measured.
pub(super) struct Tracked {
    stage: String,
    operations: u64,
    ignore: f64,
    sequence: MedianSequence,
    blocks: Vec<Block>,
}

impl Tracked {
    pub(super) fn new(stage: String, operations: u64, ignore: f64, alpha: f64) -> Tracked {
        let sequence = MedianSequence::new(alpha);
        Tracked {
            stage,
            operations,
            ignore,
            sequence,
            blocks: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, block: Block) {
        if let Some(log_ratio) = block.log_ratio {
            self.sequence.push(log_ratio);
        }
        self.blocks.push(block);
    }

    pub(super) fn is_decided(&self) -> bool {
        self.sequence.decision(self.ignore) != Decision::Undecided
    }

    /// The answer, if each block took so long.
    pub(super) fn answer(self, block_s: f64) -> Answer {
        let (low, high) = self.sequence.interval();
        let is_interval = low.is_finite() && high.is_finite() && low <= high;
        let missing = self
            .sequence
            .missing(self.ignore)
            .filter(|_| !self.is_decided());
        let time = |of: &dyn Fn(&Block) -> f64| {
            let counted = self.blocks.iter().filter(|block| block.log_ratio.is_some());
            let times: Vec<f64> = counted.map(of).collect();
            (!times.is_empty()).then(|| median(&times))
        };
        Answer {
            verdict: match self.sequence.decision(self.ignore) {
                Decision::Slower => Verdict::Slower,
                Decision::Faster => Verdict::Faster,
                Decision::Same => Verdict::Same,
                Decision::Undecided => Verdict::Undecided,
            },
            ratio: self.sequence.median().map(f64::exp),
            interval: is_interval.then(|| (low.exp(), high.exp())),
            a_ns: time(&|block| block.a_ns),
            b_ns: time(&|block| block.b_ns),
            operations: self.operations,
            visible: self.sequence.visible(self.ignore),
            missing_s: missing.map(|blocks| blocks as f64 * block_s),
            wandered: self.sequence.is_contradictory(),
            stage: self.stage,
            blocks: self.blocks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks whose ratio is this, one after the other with a little noise that is the same each time.
    fn answer(ratio: f64, noise: f64, blocks: u32) -> Answer {
        let mut tracked = Tracked::new("copy".to_owned(), 3, 0.01, 0.01);
        for at in 0..blocks {
            let log_ratio = Some(f64::ln(ratio) + noise * (f64::from(at % 5) - 2.0));
            tracked.add(Block {
                log_ratio,
                a_ns: 10.0,
                b_ns: 10.0 * ratio,
                groups: 4,
                ..Block::default()
            });
        }
        tracked.answer(0.5)
    }

    #[test]
    fn each_of_the_four_answers_is_reached() {
        for (ratio, noise, blocks, wanted) in [
            (1.0, 0.001, 40, Verdict::Same),
            (1.05, 0.001, 40, Verdict::Slower),
            (0.95, 0.001, 40, Verdict::Faster),
            (1.0, 0.1, 40, Verdict::Undecided),
            (1.05, 0.001, 10, Verdict::Undecided),
        ] {
            let found = answer(ratio, noise, blocks);
            assert_eq!(found.verdict, wanted, "{ratio} {noise} {blocks}");
            assert_eq!(found.missing_s.is_some(), wanted == Verdict::Undecided);
            assert_eq!(
                (found.sum(|block| block.groups), found.a_ns),
                (u64::from(blocks) * 4, Some(10.0))
            );
        }
        // One block is lacking, of half a second.
        assert_eq!(answer(1.05, 0.001, 10).missing_s, Some(0.5));
        assert_eq!(answer(1.05, 0.001, 10).visible, None);
    }

    #[test]
    fn a_block_that_says_nothing_is_kept_and_decides_nothing() {
        let mut tracked = Tracked::new("copy".to_owned(), 3, 0.01, 0.01);
        tracked.add(Block {
            left_out: 7,
            ..Block::default()
        });
        let found = tracked.answer(1.0);
        assert_eq!(
            (found.ratio, found.a_ns, found.verdict),
            (None, None, Verdict::Undecided)
        );
        assert_eq!(found.sum(|block| block.left_out), 7);
    }
}
