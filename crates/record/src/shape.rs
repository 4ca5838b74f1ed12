//! What a model must know of a path: rows of threads from source to sink, the rings between them, and when blocks are due.

use crate::path::End;

/// A path without its devices and bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PathShape {
    /// The path in one line.
    pub line: String,
    /// Bytes of a block at the source.
    pub block_bytes: u64,
    /// Blocks of each ring.
    pub buffers: u64,
    /// Blocks that are due per second and stream; none where the source goes as fast as it can.
    pub rate_hz: Option<f64>,
    /// Whether the source waits for room, or loses what is due when there is none.
    pub lossless: bool,
    /// From source to sink; the threads of the first are the streams.
    pub rows: Vec<ShapeRow>,
}

/// Threads that do the same.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ShapeRow {
    /// What it is called in results.
    pub name: String,
    /// Its kind of work: the name under which a host's costs are found.
    pub work: String,
    /// How many threads there are.
    pub threads: usize,
    /// CPUs that they are pinned to in turn; empty leaves them free.
    pub cpus: Vec<u32>,
    /// Bytes of a block that it works on.
    pub bytes: u64,
    /// Which end of its element it is, where that has two.
    pub end: Option<End>,
    /// Work of each block that the path itself asks for, in nanoseconds: a stage that does not exist yet.
    pub added_ns: f64,
    /// Nanoseconds for which it sleeps with each block.
    pub asleep_ns: f64,
    /// Whether it works in the block that it took, and wants room only to hand it on.
    pub in_place: bool,
}

impl PathShape {
    /// Blocks that are due per second from all streams.
    pub fn total_hz(&self) -> Option<f64> {
        let streams = self.rows.first().map_or(1, |source| source.threads);
        self.rate_hz.map(|hz| hz * streams as f64)
    }

    /// Threads of all rows.
    pub fn threads(&self) -> usize {
        self.rows.iter().map(|row| row.threads).sum()
    }
}
