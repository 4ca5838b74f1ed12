//! Interface between a way to copy and the engine.

use daqmeter_harness::{DeviceTime, Fault};
use daqmeter_kernels::copy::flush;
use daqmeter_record::Counter;
use daqmeter_sys::memory::DeviceMemory;

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

    /// Flushes both sides from the caches. Returns false on a CPU without an instruction for that.
    fn flush(&mut self) -> Result<bool, Fault>;

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

/// Memory of a lane's two sides for an engine that copies between them.
pub(crate) struct Pair {
    pub(crate) user: DeviceMemory,
    pub(crate) kernel: DeviceMemory,
}

impl Pair {
    /// Allocates and touches both sides.
    pub(crate) fn new(bytes: usize) -> Result<Pair, Fault> {
        let touched = || -> Result<DeviceMemory, Fault> {
            let mut memory = DeviceMemory::sparse(bytes)?;
            memory.write(0, &vec![0; bytes]);
            Ok(memory)
        };
        Ok(Pair { user: touched()?, kernel: touched()? })
    }

    pub(crate) fn side(&mut self, side: Side) -> &mut DeviceMemory {
        if side == Side::User { &mut self.user } else { &mut self.kernel }
    }

    /// Returns the source and the destination of a copy.
    pub(crate) fn ends(&mut self, to_user: bool) -> (&mut DeviceMemory, &mut DeviceMemory) {
        let Pair { user, kernel } = self;
        if to_user { (kernel, user) } else { (user, kernel) }
    }

    pub(super) fn flush(&self) -> bool {
        self.user.with_bytes(flush) && self.kernel.with_bytes(flush)
    }
}

/// Times of a priority gate and its number of windows, since the engine started.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gate {
    pub(crate) high_ns: u64,
    pub(crate) low_ns: u64,
    pub(crate) windows: u64,
}

impl Gate {
    /// Returns the increase of the counters since `before`, or `None` if they began again
    /// meanwhile.
    pub(super) fn counters_since(self, before: Gate) -> Option<[Counter; 3]> {
        Some([
            ns("gate-high", self.high_ns.checked_sub(before.high_ns)?),
            ns("gate-low", self.low_ns.checked_sub(before.low_ns)?),
            Counter::count("gate-windows", self.windows.checked_sub(before.windows)?),
        ])
    }
}

pub(super) fn ns(name: &str, value: u64) -> Counter {
    Counter::measured(name, value as f64, "ns")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_that_began_again_has_no_counters_and_panics_nowhere() {
        let gate = |high_ns, low_ns, windows| Gate { high_ns, low_ns, windows };
        let counters = gate(60, 90, 3).counters_since(gate(20, 30, 1)).unwrap();
        assert_eq!(counters.map(|counter| counter.value), [40.0, 60.0, 2.0]);
        assert!(gate(5, 90, 3).counters_since(gate(20, 30, 1)).is_none());
    }
}
