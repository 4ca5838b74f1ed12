//! Interface between a way to copy and the engine.

use daqmeter_harness::{DeviceTime, Fault};
use daqmeter_record::Counter;

use crate::request::{CopyRequest, Direction};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    User,
    Kernel,
}

impl Direction {
    pub(crate) fn sides(self) -> (Side, Side) {
        match self {
            Direction::To => (Side::Kernel, Side::User),
            _ => (Side::User, Side::Kernel),
        }
    }
}

pub(crate) trait Mover: Send {
    fn device(&self) -> String;

    /// Allocates and touches both sides, in the copying thread.
    fn prepare(&mut self) -> Result<(), Fault>;

    fn copy(&mut self, direction: Direction) -> Result<(), Fault>;

    /// Fills a side; the other side by means not under test if possible.
    fn put(&mut self, side: Side, bytes: &[u8]) -> Result<(), Fault>;

    fn get(&mut self, side: Side, into: &mut [u8]) -> Result<(), Fault>;

    fn blocks(&self) -> usize {
        1
    }

    /// True if the kernel clears the user's side instead of copying to it. The other side is then
    /// zeros and cannot be filled.
    fn is_clearing(&self) -> bool {
        false
    }

    fn is_consumed(&self) -> bool {
        false
    }

    /// Prepares the next operation in that direction, outside the clock.
    fn before_copy(&mut self, _direction: Direction) -> Result<(), Fault> {
        Ok(())
    }

    /// Flushes both sides from the caches as far as a program can; `None` when it cannot.
    fn flush(&mut self) -> Result<(), Fault>;

    /// Time and length of the last copy as the other side reports them.
    fn device_time(&self) -> Option<DeviceTime> {
        None
    }

    /// True if an operation is a system call, for comparison with an empty one.
    fn is_system_call(&self) -> bool {
        false
    }

    fn begin(&mut self) {}

    fn counters(&mut self) -> Vec<Counter> {
        Vec::new()
    }

    fn warnings(&mut self) -> Vec<String> {
        Vec::new()
    }

    fn numa_node(&self) -> Option<u32> {
        None
    }
}

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
