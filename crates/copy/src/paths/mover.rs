//! What a way to copy is to the engine.

use daqmeter_harness::{DeviceTime, Fault};
use daqmeter_record::Counter;

use crate::request::{CopyRequest, Direction};

/// The two ends of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    User,
    /// The kernel's, or what stands for it.
    Kernel,
}

impl Direction {
    /// Source and destination of a single direction.
    pub(crate) fn sides(self) -> (Side, Side) {
        match self {
            Direction::To => (Side::Kernel, Side::User),
            _ => (Side::User, Side::Kernel),
        }
    }
}

/// One lane's way to copy.
pub(crate) trait Mover: Send {
    /// What the lane works on, for the record.
    fn device(&self) -> String;

    /// Allocates and touches both sides, in the thread that copies.
    fn prepare(&mut self) -> Result<(), Fault>;

    /// One operation in one of the single directions.
    fn copy(&mut self, direction: Direction) -> Result<(), Fault>;

    /// Fills a side; the other side by other means than those under test where there are any.
    fn put(&mut self, side: Side, bytes: &[u8]) -> Result<(), Fault>;

    /// Reads a side.
    fn get(&mut self, side: Side, into: &mut [u8]) -> Result<(), Fault>;

    /// Blocks that one operation moves.
    fn blocks(&self) -> usize {
        1
    }

    /// Whether the kernel clears the user's side instead of copying to it: the other side is zeros,
    /// and nothing can be put there.
    fn is_clearing(&self) -> bool {
        false
    }

    /// Whether each operation needs [`Mover::before_copy`] before it.
    fn is_consumed(&self) -> bool {
        false
    }

    /// Makes the next operation in that direction possible, outside the clock.
    fn before_copy(&mut self, _direction: Direction) -> Result<(), Fault> {
        Ok(())
    }

    /// Empties the caches of both sides, as far as a program can; none when it cannot.
    fn flush(&mut self) -> Result<(), Fault>;

    /// Whether the other side says when it copied, and how long the last copy was.
    fn device_time(&self) -> Option<DeviceTime> {
        None
    }

    /// Whether an operation is a system call, so that the cost of an empty one says what the copy
    /// itself takes.
    fn is_system_call(&self) -> bool {
        false
    }

    /// Called when the timed region begins.
    fn begin(&mut self) {}

    /// What else was counted since then.
    fn counters(&mut self) -> Vec<Counter> {
        Vec::new()
    }

    /// What the reader must know.
    fn warnings(&mut self) -> Vec<String> {
        Vec::new()
    }

    /// NUMA node of the buffers.
    fn numa_node(&self) -> Option<u32> {
        None
    }
}

/// As many lanes as were asked for.
pub(super) fn each<M: Mover + 'static>(
    request: &CopyRequest,
    make: impl Fn(usize) -> Result<M, Fault>,
) -> Result<Vec<Box<dyn Mover>>, Fault> {
    (0..request.lanes).map(|lane| Ok(Box::new(make(lane)?) as Box<dyn Mover>)).collect()
}

pub(super) fn not_flushed() -> Fault {
    Fault::new(
        "this CPU has no instruction with which a program empties its caches: leave from_nc, to_nc and both_nc out of --operations",
    )
}
