//! Interfaces of sources, stages and sinks to their threads. None of them reads a clock to measure
//! itself.

use daqmeter_harness::{Fault, StopFlag};
use daqmeter_record::path::PathKept;
use daqmeter_record::{Counter, Ledger};
use daqmeter_sys::memory::Buffer;

/// In cache lines of its own: another thread may have its neighbour.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Block {
    pub(crate) buffer: Buffer,
    pub(crate) label: Label,
}

impl Block {
    pub(crate) fn bytes(&self) -> &[u8] {
        self.buffer.slice(self.label.bytes)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Label {
    pub(crate) bytes: usize,
    pub(crate) events: u64,
    /// Number of its known contents at the source.
    pub(crate) key: Option<usize>,
    pub(crate) due_ns: u64,
    pub(crate) stream: usize,
    /// Number of its source.
    pub(crate) source: usize,
    pub(crate) sequence: u64,
    /// Number of its trigger, or of the block at its source, where lost ones count.
    pub(crate) number: u64,
    /// Stage that lost the block.
    pub(crate) lost_in: Option<usize>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Filled {
    pub(crate) events: u64,
    pub(crate) key: Option<usize>,
    /// Number of its trigger, if the device tells.
    pub(crate) number: Option<u64>,
    /// Time at which the device had it ready, if the device tells.
    pub(crate) ready_ns: Option<u64>,
}

/// Fills blocks, always whole ones.
pub(crate) trait Source: Send {
    /// Opens its device, in the thread that uses it.
    fn prepare(&mut self) -> Result<(), Fault> {
        Ok(())
    }

    fn set_stop_flag(&mut self, _stop: &StopFlag) {}

    fn fill(&mut self, into: &mut [u8]) -> Result<Filled, Fault>;

    /// Tests if it has no further block.
    fn is_over(&self) -> bool {
        false
    }

    /// Time after the begin of a run at which its next block is due; `None` without times of its
    /// own.
    fn due_after_ns(&self) -> Option<u64> {
        None
    }

    /// Contents of its blocks by key, if they are known beforehand; at most [`most_keys`].
    fn contents(&mut self) -> Result<Vec<Vec<u8>>, Fault> {
        Ok(Vec::new())
    }

    /// Divides its blocks among workers, which take runs of that length in turn; `None` if one
    /// alone can take them.
    fn divided(&self, _workers: usize, _run: usize) -> Result<Option<Vec<Box<dyn Source>>>, Fault> {
        Ok(None)
    }

    fn ledger(&mut self) -> Option<Ledger> {
        None
    }

    fn counters(&mut self) -> Vec<Counter> {
        Vec::new()
    }
}

/// Largest number of known contents of a stream: their sums are computed before each run, by
/// code of 50 MB/s or more.
pub(crate) fn most_keys(block_bytes: usize) -> usize {
    const MAX_BYTES: usize = 1 << 20;
    const MAX_KEYS: usize = 64;
    (MAX_BYTES / block_bytes).clamp(1, MAX_KEYS)
}

/// Looks at a block; returns the number of events that it found.
pub(crate) type Inspect = Box<dyn FnMut(&[u8]) -> Result<u64, Fault> + Send>;

/// Decides if a block is lost.
pub(crate) type Lose = Box<dyn FnMut(&Label) -> bool + Send>;

/// Work of a stage in one thread.
pub(crate) enum Work {
    Inspect(Inspect),
    Transform(Box<dyn Transform>),
    Lose(Lose),
}

pub(crate) trait Transform: Send {
    /// Turns the first `bytes` of one buffer into the start of another; returns the number of bytes
    /// made.
    fn transform(&mut self, from: &Buffer, bytes: usize, to: &mut Buffer) -> Result<usize, Fault>;

    /// Makes the expected output by the plainest code.
    fn reference(&self, from: &[u8]) -> Vec<u8> {
        from.to_vec()
    }
}

/// Sending end. The receiving one sees the end of the bytes once it is dropped.
pub(crate) type BlockSender = Box<dyn FnMut(&[u8]) -> Result<(), Fault> + Send>;

/// Receiving end, which gives the bytes of the blocks in order.
pub(crate) type BlockReceiver = Box<dyn FnMut(&mut [u8]) -> Result<(), Fault> + Send>;

/// Both ends of something that bytes go through.
pub(crate) type Ends = (BlockSender, BlockReceiver);

pub(crate) trait Sink: Send {
    fn prepare(&mut self) -> Result<(), Fault> {
        Ok(())
    }

    /// Takes one block, whose sum must be `expected` if that is given; returns the sum if it reads
    /// the bytes.
    /// It may leave another buffer of the same size in the block.
    fn take(&mut self, block: &mut Block, expected: Option<u64>) -> Result<Option<u64>, Fault>;

    /// Waits until the other end reports the arrived blocks. The wait is a part of the run, as some
    /// blocks are still on their way.
    fn confirm(&mut self) -> Result<Confirmed, Fault> {
        Ok(Confirmed::default())
    }

    /// Compares the blocks that the sink keeps with their sums, after the run and outside its time.
    /// Returns the number of blocks that were right.
    fn check(&mut self) -> Result<u64, Fault> {
        Ok(0)
    }

    /// Reason why blocks that the sink took are not delivered, although confirmed or without a
    /// confirmation.
    fn missing(&self, _is_confirmed: bool) -> Option<&'static str> {
        None
    }

    /// For each source, blocks that it took before it failed and does not keep, and their events.
    fn unkept(&mut self) -> Vec<(u64, u64)> {
        Vec::new()
    }

    /// Account of the blocks that it leaves in a folder.
    fn kept(&self) -> Option<PathKept> {
        None
    }

    fn counters(&self) -> Vec<Counter> {
        Vec::new()
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Confirmed {
    pub(crate) verified: u64,
    /// For each stream, blocks that it took and that were lost behind it, and their events.
    pub(crate) lost: Vec<(u64, u64)>,
}
