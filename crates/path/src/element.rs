//! What a source, a stage and a sink are to the threads that run them. None of them reads a clock
//! to measure itself.

use std::sync::mpsc::Receiver;

use daqmeter_harness::{Fault, StopFlag};
use daqmeter_record::{Counter, Ledger};
use daqmeter_sys::memory::Buffer;

/// A block on its way.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) buffer: Buffer,
    pub(crate) label: Label,
}

impl Block {
    pub(crate) fn bytes(&self) -> &[u8] {
        self.buffer.slice(self.label.bytes)
    }
}

/// What is known of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Label {
    /// Bytes in the buffer.
    pub(crate) bytes: usize,
    /// Bytes that the source delivered for it.
    pub(crate) payload_bytes: u64,
    pub(crate) events: u64,
    /// Which of the known contents it has at the source.
    pub(crate) key: Option<usize>,
    /// When it was due at the source.
    pub(crate) due_ns: u64,
    pub(crate) stream: usize,
    pub(crate) sequence: u64,
}

/// What a source put into a block.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Filled {
    pub(crate) events: u64,
    /// Which of the contents of [`Source::contents`] it is.
    pub(crate) key: Option<usize>,
    /// When the device had it ready, where the device says when that is.
    pub(crate) ready_ns: Option<u64>,
}

/// Fills blocks, always whole ones.
pub(crate) trait Source: Send {
    /// Allocates and opens what it needs, in the thread that uses it.
    fn prepare(&mut self) -> Result<(), Fault>;

    /// Takes the flag that ends a long wait for a device.
    fn heed(&mut self, _stop: &StopFlag) {}

    fn fill(&mut self, into: &mut [u8]) -> Result<Filled, Fault>;

    /// The contents of its blocks by key, where they are known beforehand; at most [`most_keys`].
    fn contents(&mut self) -> Result<Vec<Vec<u8>>, Fault>;

    /// Accounts of its own, such as triggers.
    fn ledger(&mut self) -> Option<Ledger> {
        None
    }

    fn counters(&mut self) -> Vec<Counter> {
        Vec::new()
    }
}

/// Contents of a stream that are known beforehand: their sums are computed before the run, which
/// takes time and memory.
pub(crate) fn most_keys(block_bytes: usize) -> usize {
    const MAX_BYTES: usize = 16 << 20;
    const MAX_KEYS: usize = 64;
    (MAX_BYTES / block_bytes).clamp(1, MAX_KEYS)
}

/// Work that a thread does by itself.
pub(crate) enum StageWork {
    /// In place, on a block that is passed on.
    Inspect(Box<dyn Inspect>),
    /// From one block into another.
    Transform(Box<dyn Transform>),
}

/// Work on blocks.
pub(crate) enum Work {
    Stage(StageWork),
    /// The bytes go somewhere and come back: a thread at each end.
    Away(Box<dyn BlockSender>, Box<dyn BlockReceiver>),
}

pub(crate) trait Inspect: Send {
    /// In the thread that looks, before the path is released.
    fn prepare(&mut self) {}

    fn inspect(&mut self, bytes: &[u8]) -> Result<u64, Fault>;
}

pub(crate) trait Transform: Send {
    /// Turns the first `bytes` of one buffer into the start of another; returns how many bytes
    /// these are.
    fn transform(&mut self, from: &Buffer, bytes: usize, to: &mut Buffer) -> Result<usize, Fault>;

    /// The same by the plainest code there is, for what must come out.
    fn reference(&self, from: &[u8]) -> Vec<u8>;
}

/// What a connection says of itself after a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionStats {
    pub(crate) counters: Vec<Counter>,
    /// What must be known to believe the rate.
    pub(crate) notes: Vec<String>,
    /// Threads of a library that worked for it.
    pub(crate) helpers: Vec<Helper>,
}

/// Threads that a library started, which do the same work in turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Helper {
    /// What they do.
    pub(crate) part: String,
    /// CPU time of all of them in the run.
    pub(crate) cpu_ns: u64,
}

/// The end into which bytes go.
pub(crate) trait BlockSender: Send {
    /// In the thread that writes, before the path is released.
    fn prepare(&mut self) -> Result<(), Fault> {
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Fault>;

    /// Waits until at most `most` of the blocks that were written are still read; returns how many
    /// are.
    fn unfinished(&mut self, _most: usize) -> Result<usize, Fault> {
        Ok(0)
    }

    /// Says that nothing more comes.
    fn end(&mut self);

    fn remarks(&self) -> ConnectionStats {
        ConnectionStats::default()
    }
}

/// The end from which they come back, in order.
pub(crate) trait BlockReceiver: Send {
    /// The bytes of the next block; false where they were lost on the way.
    fn read(&mut self, into: &mut [u8]) -> Result<bool, Fault>;

    /// Why it may lose blocks.
    fn loses(&self) -> Option<&'static str> {
        None
    }

    fn remarks(&self) -> ConnectionStats {
        ConnectionStats::default()
    }
}

/// Labels of the blocks that are away.
pub(crate) type Labels = Receiver<Label>;

/// Takes blocks.
pub(crate) trait Sink: Send {
    fn prepare(&mut self) -> Result<(), Fault>;

    /// Takes one block, whose bytes must have the sum that is expected where one is; returns the
    /// sum where it reads them.
    fn take(&mut self, block: &Block, expected: Option<u64>) -> Result<Option<u64>, Fault>;

    /// As [`BlockSender::unfinished`].
    fn unfinished(&mut self, _most: usize) -> Result<usize, Fault> {
        Ok(0)
    }

    /// Waits until the other end reports what arrived. The wait is a part of the run, as some
    /// blocks are still on their way.
    fn confirm(&mut self) -> Result<Confirmed, Fault> {
        Ok(Confirmed::default())
    }

    /// Compares the blocks that the sink keeps with these sums, after the run and outside its time.
    /// Returns the number of blocks that were right.
    fn check(&mut self, _expected: &[u64]) -> Result<u64, Fault> {
        Ok(0)
    }

    /// Reason why blocks that the sink took are not delivered where they are not confirmed.
    fn unconfirmed(&self) -> Option<&'static str> {
        None
    }

    /// Why it may lose blocks.
    fn loses(&self) -> Option<&'static str> {
        None
    }

    fn remarks(&self) -> ConnectionStats {
        ConnectionStats::default()
    }
}

/// Report of a sink at the end of the run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Confirmed {
    /// Blocks whose bytes were right.
    pub(crate) verified: u64,
    /// For each stream, blocks that it took and that were lost behind it, and their events.
    pub(crate) lost: Vec<(u64, u64)>,
}
