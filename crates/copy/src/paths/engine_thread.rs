//! Copies by the emulated engine ([`super::dma_thread`]).

use std::sync::{Arc, Mutex, MutexGuard};

use daqmeter_harness::{Fault, locked};
use daqmeter_record::Counter;

use super::dma_thread::Engine;
use super::mover::{Gate, Mover, Pair, Side, each};
use crate::request::{CopyContext, CopyRequest, Direction};

struct EngineMover {
    request: CopyRequest,
    lane: usize,
    engine: Arc<Engine>,
    pair: Option<Arc<Mutex<Pair>>>,
    before: (Gate, u64),
    cpus: usize,
}

pub(super) fn lanes(request: &CopyRequest) -> Result<Vec<Box<dyn Mover>>, Fault> {
    if request.context == CopyContext::Cpu {
        return Err(Fault::new(
            "engine-thread copies by channels: choose context exclusive, shared or priority",
        ));
    }
    let engine = Arc::new(Engine::start(request)?);
    // Counted before the lanes' threads are pinned: all CPUs of the process.
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    each(request, |lane| {
        Ok(EngineMover {
            request: request.clone(),
            lane,
            engine: engine.clone(),
            pair: None,
            before: (Gate::default(), 0),
            cpus,
        })
    })
}

impl EngineMover {
    /// Locks the lane's memory. The engine's thread holds it only during a copy of this lane.
    fn pair(&self) -> MutexGuard<'_, Pair> {
        locked(self.pair.as_ref().expect("prepared before the first copy"))
    }

    fn now(&self) -> (Gate, u64) {
        (self.engine.gate(), self.engine.copies(self.lane % self.engine.channels()))
    }
}

impl Mover for EngineMover {
    fn device(&self) -> String {
        match self.request.context {
            CopyContext::Shared => {
                format!("emulated engine, {} channels shared", self.engine.channels())
            }
            _ => format!("emulated engine, channel {}", self.lane % self.engine.channels()),
        }
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        let pair = Arc::new(Mutex::new(Pair::new(self.request.block_bytes)?));
        self.engine.register(self.lane, pair.clone());
        self.pair = Some(pair);
        Ok(())
    }

    #[inline]
    fn copy(&mut self, direction: Direction) -> Result<(), Fault> {
        let CopyRequest { block_bytes, completion, .. } = self.request;
        self.engine.copy(self.lane, direction, block_bytes, completion);
        Ok(())
    }

    fn put(&mut self, side: Side, bytes: &[u8]) -> Result<(), Fault> {
        self.pair().side(side).write(0, bytes);
        Ok(())
    }

    fn get(&mut self, side: Side, into: &mut [u8]) -> Result<(), Fault> {
        self.pair().side(side).read(0, into);
        Ok(())
    }

    fn flush(&mut self) -> Result<bool, Fault> {
        Ok(self.pair().flush())
    }

    fn begin(&mut self) {
        self.before = self.now();
    }

    fn counters(&mut self) -> Vec<Counter> {
        let ((gate, copies), (gate_before, copies_before)) = (self.now(), self.before);
        let name = format!("copies of lane {}", self.lane);
        let mut counters = vec![Counter::count(name, copies - copies_before)];
        // The gate belongs to the engine, so only the first lane counts it.
        if self.request.context == CopyContext::Priority && self.lane == 0 {
            counters.extend(gate.counters_since(gate_before).into_iter().flatten());
        }
        counters
    }

    fn warnings(&mut self) -> Vec<String> {
        let (cpus, lanes) = (self.cpus, self.request.lanes);
        let warning = (lanes + 1 > cpus).then(|| {
            format!(
                "the emulated engine's thread shares {cpus} CPUs with {lanes} lanes: its times are of a crowded host"
            )
        });
        warning.into_iter().collect()
    }
}
