//! Blocks of one stage, and their answer at the end.

use daqmeter_stats::{Decision, MedianSequence, median};
use serde::Serialize;

use super::block::Block;

const MIN_KNOWN: usize = 5;

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
    pub a_ns: Option<f64>,
    pub b_ns: Option<f64>,
    pub operations: u64,
    /// Smallest difference that these blocks could have decided: 0.02 is 2 %. `None` with too few
    /// blocks.
    pub visible: Option<f64>,
    pub missing_s: Option<f64>,
    /// True if the blocks contradict each other: the difference itself changed meanwhile.
    pub wandered: bool,
    pub blocks: Vec<Block>,
}

impl Answer {
    pub fn sum(&self, of: impl Fn(&Block) -> u64) -> u64 {
        self.blocks.iter().map(of).sum()
    }
}

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
        Tracked { stage, operations, ignore, sequence, blocks: Vec::new() }
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

    /// Returns the best number of groups of a block, if the start of its processes takes as long as
    /// `start_groups` groups. It weighs the start and the variance of groups against the further
    /// variance of blocks (Kalibera and Jones, ISMM 2013, section 4). `None` with too few blocks.
    pub(super) fn wanted_groups(&self, start_groups: f64) -> Option<f64> {
        let counted = || self.blocks.iter().filter(|block| block.log_ratio.is_some());
        let of_groups: Vec<f64> = counted().map(|block| block.spread).collect();
        let between: Vec<f64> = counted().filter_map(|block| block.log_ratio).collect();
        if between.len() < MIN_KNOWN {
            return None;
        }
        let middle = median(&between);
        let apart: Vec<f64> = between.iter().map(|value| (value - middle).abs()).collect();
        let groups: Vec<f64> = counted().map(|block| block.groups as f64).collect();
        let (group, all) = (median(&of_groups).powi(2), median(&apart).powi(2));
        // A median of n values has about pi / 2n of their variance.
        let own = std::f64::consts::FRAC_PI_2 * group / median(&groups).max(1.0);
        let blocks = (all - own).max(all / 16.0);
        (blocks > 0.0).then(|| (start_groups * std::f64::consts::FRAC_PI_2 * group / blocks).sqrt())
    }

    pub(super) fn answer(self, block_s: f64) -> Answer {
        let (low, high) = self.sequence.interval();
        let is_interval = low.is_finite() && high.is_finite() && low <= high;
        let missing = self.sequence.missing(self.ignore).filter(|_| !self.is_decided());
        let time = |of: &dyn Fn(&Block) -> f64| {
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

    /// Answers for blocks with this ratio and a little noise that is equal in each call.
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
            (1.0, 0.001, 40, AbVerdict::Same),
            (1.05, 0.001, 40, AbVerdict::Slower),
            (0.95, 0.001, 40, AbVerdict::Faster),
            (1.0, 0.1, 40, AbVerdict::Undecided),
            (1.05, 0.001, 10, AbVerdict::Undecided),
        ] {
            let found = answer(ratio, noise, blocks);
            assert_eq!(found.verdict, wanted, "{ratio} {noise} {blocks}");
            assert_eq!(found.missing_s.is_some(), wanted == AbVerdict::Undecided);
            assert_eq!(
                (found.sum(|block| block.groups), found.a_ns),
                (u64::from(blocks) * 4, Some(10.0))
            );
        }
        // One block of half a second is missing.
        assert_eq!(answer(1.05, 0.001, 10).missing_s, Some(0.5));
        assert_eq!(answer(1.05, 0.001, 10).visible, None);
    }

    #[test]
    fn a_block_is_as_long_as_what_varies_and_what_starting_costs_ask_for() {
        let wanted = |spread: f64, between: f64| {
            let mut tracked = Tracked::new("copy".to_owned(), 3, 0.01, 0.01);
            for at in 0..5 {
                tracked.add(Block {
                    log_ratio: Some(between * (f64::from(at) - 2.0)),
                    spread,
                    groups: 100,
                    ..Block::default()
                });
            }
            tracked.wanted_groups(200.0)
        };
        // Processes and groups vary equally: the root of the start cost, times pi / 2 for the
        // median.
        let alike = wanted(0.01, 0.01).unwrap();
        assert!((alike - 17.9).abs() < 0.2, "{alike}");
        // Larger differences of processes make shorter blocks. If groups explain all, a block is
        // four times as long as by the blocks' whole scatter.
        assert!(wanted(0.01, 0.1).unwrap() < 2.0);
        let longest = wanted(0.1, 0.01).unwrap();
        assert!((700.0..720.0).contains(&longest), "{longest}");
        assert_eq!(wanted(0.0, 0.0), None);
        assert_eq!(Tracked::new("copy".to_owned(), 3, 0.01, 0.01).wanted_groups(200.0), None);
    }

    #[test]
    fn a_block_that_says_nothing_is_kept_and_decides_nothing() {
        let mut tracked = Tracked::new("copy".to_owned(), 3, 0.01, 0.01);
        tracked.add(Block { left_out: 7, ..Block::default() });
        let found = tracked.answer(1.0);
        assert_eq!((found.ratio, found.a_ns, found.verdict), (None, None, AbVerdict::Undecided));
        assert_eq!(found.sum(|block| block.left_out), 7);
    }
}
