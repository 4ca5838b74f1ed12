//! Expected sums at the sink, by the plainest code for each stage.

use std::sync::Mutex;

use daqmeter_harness::Fault;

use crate::chain::shared::Sums;
use crate::definition::Path;
use crate::definition::kind::Named;
use crate::element::Work;
use crate::last::{Last, made};
use daqmeter_hostio::sum::sum;

static SUMS: Last<Sums> = Mutex::new(None);

/// Sums of the known contents. Those of a file are new for each run: it may have changed.
pub(crate) fn expected(path: &Path, sources: &mut [Named]) -> Result<Sums, Fault> {
    let Path { block_bytes, source, stages, .. } = path;
    if path.source_facts().may_change {
        return computed(path, sources);
    }
    let key = format!("{block_bytes} {source:?} {stages:?}");
    made(&SUMS, &key, || computed(path, sources))
}

fn computed(path: &Path, sources: &mut [Named]) -> Result<Sums, Fault> {
    let mut turns = Vec::new();
    for (stage, pair) in path.stages.iter().zip(path.elements.windows(2)) {
        let [before, own] = pair else { continue };
        // It alone knows its output.
        if own.facts.is_unknown {
            return Ok(Sums::default());
        }
        // The plainest code stores through the cache, for any size.
        if !own.facts.has_two_ends
            && let Work::Transform(turn) = stage.work(before.out_bytes, 0)?
        {
            turns.push(turn);
        }
    }
    let turned = |content| {
        sum(&turns.iter().fold(content, |content: Vec<u8>, turn| turn.reference(&content)))
    };
    let of = |(_, source): &mut Named| Ok(source.contents()?.into_iter().map(turned).collect());
    sources.iter_mut().map(of).collect()
}
