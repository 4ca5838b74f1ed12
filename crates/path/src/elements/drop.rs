//! Stage `drop`: loses blocks at random, as a link or a buffer without room does. The account says
//! how many.

use daqmeter_harness::Fault;
use daqmeter_record::units::significant;
use serde::Deserialize;

use crate::definition::flow::{Flow, Place, unless};
use crate::definition::kind::{Facts, StageElement};
use crate::element::{Label, Work};
use daqmeter_hostio::sum::sum;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Dropped {
    /// Share of the blocks that are lost.
    share: f64,
    /// Seed of the choice, which is the same for a block in each run.
    #[serde(default)]
    seed: u64,
}

impl StageElement for Dropped {
    fn check(&mut self, _place: &Place, _flow: &mut Flow) -> Result<Facts, Fault> {
        let share = self.share;
        let problem = format_args!("is {share}; a share of the blocks, 0 to 1, is wanted");
        unless((0.0..=1.0).contains(&share), "share", problem)?;
        Ok(Facts::of(format!("drop {} %", significant(share * 100.0, 3))))
    }

    fn work(&self, _in_bytes: usize, _last_level_bytes: u64) -> Result<Work, Fault> {
        let Dropped { share, seed } = *self;
        Ok(Work::Lose(Box::new(move |label| chance(seed, label) < share)))
    }
}

/// Number from 0 to 1 of a block.
fn chance(seed: u64, label: &Label) -> f64 {
    let numbers = [seed, label.stream as u64, label.sequence].map(u64::to_le_bytes);
    // A double has 53 bits.
    (sum(numbers.as_flattened()) >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use daqmeter_harness::StopFlag;
    use proptest::prelude::*;

    use super::*;
    use crate::Path;
    use crate::chain::Chain;
    use crate::chain::outcome::Ended;
    use crate::chain::shared::PathSettings;

    /// Two stages around one that makes blocks and one whose bytes leave the program.
    const STAGES: &str = "[[stage]]\nkind = \"drop\"\nshare = 0.1\n\
        [[stage]]\nkind = \"copy\"\n[[stage]]\nkind = \"unix\"\n\
        [[stage]]\nkind = \"drop\"\nshare = 0.5\nseed = 7\n";
    const BLOCKS: u64 = 4000;

    fn carried(layout: &str) -> Ended {
        let text = format!(
            "title = \"t\"\nblock = \"4KiB\"\n[source]\nkind = \"memory\"\nspan = \"64KiB\"\n{STAGES}[sink]\nkind = \"read\"\n"
        );
        let path = Path::parse(&text, "t").unwrap();
        let how = PathSettings::laid_out(&path, &layout.parse().unwrap(), &[]).unwrap();
        let (time_ns, most_blocks) = (10_000_000_000, Some(BLOCKS));
        let how = PathSettings { time_ns, most_blocks, lossless: true, ..how };
        let stop = StopFlag::default();
        Chain::start(&path, &how, &stop, true).unwrap().run(&stop)
    }

    #[test]
    fn lost_blocks_are_counted_by_stage_and_are_the_same_ones_in_each_layout() {
        let label = |sequence| Label { sequence, ..Label::default() };
        let (first, left): (Vec<u64>, Vec<u64>) =
            (0..BLOCKS).partition(|n| chance(0, &label(*n)) < 0.1);
        let second = left.iter().filter(|n| chance(7, &label(**n)) < 0.5).count() as u64;
        for layout in [
            "pipeline",
            "fused",
            "[memory] [drop, copy] x 2 [unix] [drop 2] [read]",
            "[memory, drop, copy] [unix, drop 2, read]",
        ] {
            let Ended { fault, run, ledgers, .. } = carried(layout);
            let ledger = &ledgers[0];
            assert!(fault.is_none() && ledger.closes(), "{layout}: {fault:?}, {ledger:?}");
            let losses = ["lost by drop", "lost by drop 2"].map(|why| ledger.losses[why]);
            assert_eq!(losses, [first.len() as u64, second], "{layout}");
            assert_eq!(run.blocks, left.len() as u64 - second, "{layout}");
            assert_eq!((ledger.issued, run.verified_blocks), (BLOCKS, run.blocks), "{layout}");
        }
    }

    proptest! {
        /// The binomial distribution: five standard deviations.
        #[test]
        fn the_share_of_lost_blocks_is_the_stated_one(share in 0.0..=1.0_f64, seed: u64, stream in 0_usize..64) {
            let of = |sequence| Label { stream, sequence, ..Label::default() };
            let lost = (0..BLOCKS).filter(|n| chance(seed, &of(*n)) < share).count() as f64;
            let expected = BLOCKS as f64 * share;
            let deviation = (expected * (1.0 - share)).sqrt();
            prop_assert!((lost - expected).abs() <= 5.0 * deviation + 1.0, "{lost} of {expected}");
        }
    }
}
