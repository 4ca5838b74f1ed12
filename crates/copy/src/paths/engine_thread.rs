//! Copies by the emulated engine ([`crate::dma_thread`]).

use std::sync::{Arc, Mutex, MutexGuard};

use daqmeter_harness::Fault;
use daqmeter_record::Counter;
use daqmeter_sys::memory::DeviceMemory;

use super::mover::{Mover, Side};
use crate::dma_thread::{Engine, Pair, lock};
use crate::request::{CopyCompletion, CopyContext, CopyRequest, Direction};

struct EngineMover {
    lane: usize,
    lanes: usize,
    bytes: usize,
    engine: Arc<Engine>,
    completion: CopyCompletion,
    context: CopyContext,
    pair: Option<Arc<Mutex<Pair>>>,
    before: (u64, u64, u64, u64),
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
    let lane = |lane| -> Box<dyn Mover> {
        Box::new(EngineMover {
            lane,
            lanes: request.lanes,
            bytes: request.block_bytes,
            engine: engine.clone(),
            completion: request.completion,
            context: request.context,
            pair: None,
            before: (0, 0, 0, 0),
            cpus,
        })
    };
    Ok((0..request.lanes).map(lane).collect())
}

impl EngineMover {
    /// Locks the lane's memory. The engine's thread holds it only during a copy of this lane.
    fn pair(&self) -> MutexGuard<'_, Pair> {
        lock(self.pair.as_ref().expect("prepared before the first copy"))
    }

    fn now(&self) -> (u64, u64, u64, u64) {
        let (high_ns, low_ns, windows) = self.engine.gate();
        (high_ns, low_ns, windows, self.engine.copies(self.lane % self.engine.channels()))
    }
}

impl Mover for EngineMover {
    fn device(&self) -> String {
        match self.context {
            CopyContext::Shared => {
                format!("emulated engine, {} channels shared", self.engine.channels())
            }
            _ => format!("emulated engine, channel {}", self.lane % self.engine.channels()),
        }
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        let memory = || -> Result<DeviceMemory, Fault> {
            let mut memory = DeviceMemory::sparse(self.bytes)?;
            memory.write(0, &vec![0; self.bytes]);
            Ok(memory)
        };
        let pair = Arc::new(Mutex::new(Pair { user: memory()?, kernel: memory()? }));
        self.engine.register(self.lane, pair.clone());
        self.pair = Some(pair);
        Ok(())
    }

    #[inline]
    fn copy(&mut self, direction: Direction) -> Result<(), Fault> {
        self.engine.copy(self.lane, direction, self.bytes, self.completion);
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

    fn flush(&mut self) -> Result<(), Fault> {
        let pair = self.pair();
        if pair.user.with_bytes(daqmeter_kernels::copy::flush)
            && pair.kernel.with_bytes(daqmeter_kernels::copy::flush)
        {
            Ok(())
        } else {
            Err(super::mover::not_flushed())
        }
    }

    fn begin(&mut self) {
        self.before = self.now();
    }

    fn counters(&mut self) -> Vec<Counter> {
        let ((high, low, windows, copies), before) = (self.now(), self.before);
        let mut counters =
            vec![Counter::count(format!("copies of lane {}", self.lane), copies - before.3)];
        // The gate belongs to the engine, so only the first lane counts it.
        if self.context == CopyContext::Priority && self.lane == 0 {
            let ns = |name: &str, value: u64| Counter {
                unit: "ns".into(),
                ..Counter::count(name, value)
            };
            counters.push(ns("gate-high", high - before.0));
            counters.push(ns("gate-low", low - before.1));
            counters.push(Counter::count("gate-windows", windows - before.2));
        }
        counters
    }

    fn warnings(&mut self) -> Vec<String> {
        let cpus = self.cpus;
        let crowded = self.lanes + 1 > cpus;
        let warning = crowded.then(|| {
            format!(
                "the emulated engine's thread shares {cpus} CPUs with {} lanes: its times are of a crowded host",
                self.lanes
            )
        });
        warning.into_iter().collect()
    }
}
