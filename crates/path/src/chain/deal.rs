//! Sources and their blocks, shared among the workers of the first group.

use daqmeter_harness::Fault;

use crate::chain::shared::Share;
use crate::definition::kind::Named;
use crate::element::Source;

/// Sources of one worker, and its share of their blocks.
type Dealt = Vec<(Share, Box<dyn Source>)>;

/// Shares the blocks of a source among workers, and boards one each until there is none left.
pub(crate) fn deal(all: Vec<Named>, workers: usize, run: usize) -> Result<Vec<Dealt>, Fault> {
    let mut dealt: Vec<Dealt> = (0..workers).map(|_| Vec::new()).collect();
    let whole = |source| Share { source, at: 0, of: 1, run: 1 };
    if let ([(_, source)], 2..) = (&all[..], workers)
        && let Some(parts) = source.divided(workers, run)?
    {
        let (of, run) = (workers as u64, run as u64);
        for ((at, source), own) in (0..).zip(parts).zip(&mut dealt) {
            own.push((Share { source: 0, at, of, run }, source));
        }
        return Ok(dealt);
    }
    if all.len() < workers {
        return Err(Fault::new(format!(
            "{workers} threads cannot share {}: name a layout with fewer for it",
            all[0].0
        )));
    }
    for (at, (_, source)) in all.into_iter().enumerate() {
        dealt[at % workers].push((whole(at), source));
    }
    Ok(dealt)
}
