//! Source `memory`: a pattern, copied from memory of that many bytes.

use std::sync::{Arc, Mutex};

use daqmeter_harness::{Fault, locked};
use daqmeter_record::units::show_bytes;
use daqmeter_record::written::ByteSize;
use daqmeter_sys::memory::{Buffer, Pages};
use serde::Deserialize;

use crate::definition::flow::{Flow, Place, bytes};
use crate::definition::kind::{Facts, Named, SourceElement};
use crate::element::{Filled, Source, most_keys};
use crate::last::{Last, made};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Memory {
    #[serde(default = "bytes::<{ 16 << 20 }>")]
    span: ByteSize,
}

impl SourceElement for Memory {
    fn check(&mut self, _place: &Place, flow: &mut Flow) -> Result<Facts, Fault> {
        flow.whole_blocks(&mut self.span)?;
        let span_bytes = self.span.0;
        let facts = Facts::of(format!("memory, {}", show_bytes(span_bytes as u64)));
        Ok(Facts { span_bytes, ..facts.beside_memory(span_bytes, 1, 0) })
    }

    fn sources(&self, name: &str, block_bytes: usize) -> Result<Vec<Named>, Fault> {
        let fill = |into: &mut [u8]| {
            pattern(into);
            Ok(())
        };
        let bank = Bank::of(&format!("{self:?}"), self.span.0, block_bytes, fill)?;
        Ok(vec![(name.to_owned(), Box::new(bank))])
    }
}

static BLOCKS: Last<Arc<Buffer>> = Mutex::new(None);
/// Most bytes of blocks that stay in memory for the next run.
const MAX_KEPT_BYTES: usize = 64 << 20;
/// Bytes before the first block. The blocks that they are copied into begin a page: copies of 1 KiB
/// between places that are whole pages apart took 1.4 to 1.7 times as long on a Zen 4.
const APART_BYTES: usize = 512;

/// Frees the blocks of a path that ended, if they are many: the next run may need their memory.
pub(crate) fn free_blocks(span_bytes: usize) {
    if span_bytes > MAX_KEPT_BYTES {
        *locked(&BLOCKS) = None;
    }
}

/// Blocks in memory, copied one after the other and again from the first. In cache lines that no
/// other thread writes to.
#[repr(align(128))]
pub(crate) struct Bank {
    blocks: Arc<Buffer>,
    /// Number of the blocks.
    all: usize,
    block_bytes: usize,
    next: usize,
    /// Blocks of a run, and those of others after it.
    run: usize,
    others: usize,
    /// Blocks that are left of this run.
    left: usize,
}

impl Bank {
    /// Fills memory with blocks, unless the last run had the same.
    pub(crate) fn of(
        key: &str,
        bytes: usize,
        block_bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), Fault>,
    ) -> Result<Bank, Fault> {
        let blocks = made(&BLOCKS, key, || {
            let mut blocks = Buffer::new(APART_BYTES + bytes, Pages::Transparent)?;
            fill(&mut blocks.slice_mut(APART_BYTES + bytes)[APART_BYTES..])?;
            Ok(Arc::new(blocks))
        })?;
        let all = bytes / block_bytes;
        Ok(Bank { blocks, all, block_bytes, next: 0, run: 1, others: 0, left: 1 })
    }

    fn bytes(&self) -> &[u8] {
        &self.blocks.slice(APART_BYTES + self.all * self.block_bytes)[APART_BYTES..]
    }
}

/// Makes a pattern in which no two words of a run are alike: the words of a counter, mixed.
fn pattern(out: &mut [u8]) {
    let mixed = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    let (words, rest) = out.as_chunks_mut::<8>();
    let last = mixed(words.len() as u64);
    for (n, word) in (0..).zip(words) {
        *word = mixed(n);
    }
    rest.copy_from_slice(&last[..rest.len()]);
}

impl Source for Bank {
    fn fill(&mut self, into: &mut [u8]) -> Result<Filled, Fault> {
        let key = self.next;
        let at = key * self.block_bytes;
        into.copy_from_slice(&self.bytes()[at..at + self.block_bytes]);
        (self.next, self.left) = (key + 1, self.left - 1);
        if self.left == 0 {
            (self.next, self.left) = (self.next + self.others, self.run);
        }
        if self.next >= self.all {
            self.next %= self.all;
        }
        Ok(Filled { key: (key < most_keys(self.block_bytes)).then_some(key), ..Filled::default() })
    }

    fn contents(&mut self) -> Result<Vec<Vec<u8>>, Fault> {
        let blocks = self.bytes().chunks_exact(self.block_bytes);
        let blocks = blocks.take(most_keys(self.block_bytes));
        Ok(blocks.map(<[u8]>::to_vec).collect())
    }

    fn divided(&self, workers: usize, run: usize) -> Result<Option<Vec<Box<dyn Source>>>, Fault> {
        let part = |at| -> Box<dyn Source> {
            let (blocks, others) = (self.blocks.clone(), (workers - 1) * run);
            Box::new(Bank { blocks, next: at * run % self.all, run, others, left: run, ..*self })
        };
        Ok(Some((0..workers).map(part).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_the_words_of_a_counter_mixed() {
        let words = (0_u64..4).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let all: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        for bytes in [0, 8, 24, 27] {
            let mut made = vec![0; bytes];
            pattern(&mut made);
            assert_eq!(made, all[..bytes]);
        }
    }
}
