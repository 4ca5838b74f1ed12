//! Expected sums at the sink, by the plainest code for each stage.

use std::sync::Mutex;

use daqmeter_harness::Fault;

use crate::chain::shared::Sums;
use crate::definition::Path;
use crate::definition::kind::Named;
use crate::element::Work;
use crate::last::{Last, made};
use crate::sum::sum;

static SUMS: Last<Sums> = Mutex::new(None);

/// Sums of the known contents. Those of a file are new for each run: it may have changed.
pub(crate) fn expected(path: &Path, sources: &mut [Named]) -> Result<Sums, Fault> {
    let Path { block_bytes, source, stages, .. } = path;
    if source.kind.may_change() {
        return computed(path, sources);
    }
    let kinds = Vec::from_iter(stages.iter().map(|stage| &stage.kind));
    let key = format!("{block_bytes} {:?} {kinds:?}", source.kind);
    made(&SUMS, &key, || computed(path, sources))
}

fn computed(path: &Path, sources: &mut [Named]) -> Result<Sums, Fault> {
    let mut turns = Vec::new();
    let mut bytes = path.source.out_bytes;
    for stage in &path.stages {
        // It alone knows its output.
        if stage.kind.is_unknown() {
            return Ok(Sums::default());
        }
        // The plainest code stores through the cache, for any size.
        if !stage.kind.has_two_ends()
            && let Work::Transform(turn) = stage.kind.work(bytes, 0)?
        {
            turns.push(turn);
        }
        bytes = stage.out_bytes;
    }
    let turned = |content| {
        sum(&turns.iter().fold(content, |content: Vec<u8>, turn| turn.reference(&content)))
    };
    let of = |(_, source): &mut Named| Ok(source.contents()?.into_iter().map(turned).collect());
    sources.iter_mut().map(of).collect()
}
