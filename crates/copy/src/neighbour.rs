//! The neighbour of a program: a thread on another CPU that copies, or runs without memory traffic.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use clap::ValueEnum;
use daqmeter_harness::{Fault, locked};
use daqmeter_sys::affinity;
use daqmeter_sys::copies::null_call;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::request::CopyRequest;

/// What the neighbour does: the study's three systems, and two controls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Neighbour {
    /// Nothing: the program is alone
    Ideal,
    /// Copies by CPU
    Cpu,
    /// Copies by an engine
    Dma,
    /// Counts: no memory, no kernel
    Spin,
    /// System calls without work
    NullCall,
}

daqmeter_harness::displayed!(Neighbour);

#[derive(Debug, Default)]
struct NeighbourState {
    stop: AtomicBool,
    has_begun: AtomicBool,
    bytes: AtomicU64,
    fault: Mutex<Option<Fault>>,
}

pub(crate) struct Running {
    shared: Arc<NeighbourState>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// Starts the neighbour, pinned to the CPU or free, and waits until it is at work.
    pub(crate) fn start(
        neighbour: Neighbour,
        copies: CopyRequest,
        cpu: Option<u32>,
    ) -> Result<Running, Fault> {
        let shared = Arc::new(NeighbourState::default());
        let work = shared.clone();
        let thread = std::thread::Builder::new()
            .name("neighbour".to_owned())
            .spawn(move || {
                let fault = work.run(neighbour, &copies, cpu).err();
                *locked(&work.fault) = fault;
            })
            .map_err(|error| Fault::new(format!("start the neighbour: {error}")))?;
        let running = Running { shared, thread: Some(thread) };
        while !running.shared.has_begun.load(Ordering::Acquire) && !running.has_ended() {
            std::thread::yield_now();
        }
        running.check()?;
        Ok(running)
    }

    pub(crate) fn copied(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed)
    }

    fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// # Errors
    /// The failure of its thread.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        // Tested first, because a thread that fails stores its fault before it ends.
        if !self.has_ended() {
            return Ok(());
        }
        match locked(&self.shared.fault).clone() {
            Some(fault) => Err(fault.context("the neighbour")),
            None => Err(Fault::new(
                "the neighbour's thread panicked: a bug in daqmeter, please report it",
            )),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread has reported its own panic.
            let _ = thread.join();
        }
    }
}

impl NeighbourState {
    fn run(
        &self,
        neighbour: Neighbour,
        copies: &CopyRequest,
        cpu: Option<u32>,
    ) -> Result<(), Fault> {
        if let Some(cpu) = cpu {
            affinity::pin_to(cpu)?;
        }
        match neighbour {
            Neighbour::Ideal => Ok(()),
            Neighbour::Cpu | Neighbour::Dma => self.copy(copies),
            Neighbour::Spin => self.repeat(|| {
                std::hint::spin_loop();
                Ok(0)
            }),
            Neighbour::NullCall => self.repeat(|| {
                null_call();
                Ok(0)
            }),
        }
    }

    fn copy(&self, copies: &CopyRequest) -> Result<(), Fault> {
        let mut lanes = copies.path.open(copies)?;
        let mover = &mut lanes[0];
        mover.prepare()?;
        let parts = copies.direction.parts();
        let bytes = (copies.block_bytes * parts.len()) as u64;
        self.repeat(|| {
            for direction in parts {
                mover.copy(*direction)?;
            }
            Ok(bytes)
        })
    }

    fn repeat(&self, mut once: impl FnMut() -> Result<u64, Fault>) -> Result<(), Fault> {
        self.bytes.fetch_add(once()?, Ordering::Relaxed);
        self.has_begun.store(true, Ordering::Release);
        while !self.stop.load(Ordering::Relaxed) {
            // The neighbour is the only writer, so the line stays in its cache.
            self.bytes.fetch_add(once()?, Ordering::Relaxed);
        }
        Ok(())
    }
}
