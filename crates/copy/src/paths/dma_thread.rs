//! An emulated DMA engine: a thread that copies for its channels. It lets the policies run on any
//! host; records state that a CPU copies.
//!
//! Memory is registered before a copy, in place of pinning and mapping. A copy is a few numbers
//! written to the channel; its end is a word to poll or an interrupt line. The engine takes pieces
//! of its channels in turn, as channels share a bus. Under the priority policy low channels wait
//! until the high ones' quantum is over.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use daqmeter_harness::{Fault, locked};
use daqmeter_sys::clock;
use daqmeter_sys::memory::device_copy;
use daqmeter_sys::wait::IrqLine;

use super::mover::{Gate, Pair};
use crate::request::{CopyCompletion, CopyContext, CopyRequest, Direction};

pub(crate) const MAX_CHANNELS: usize = 64;
const PIECE_BYTES: usize = 64 << 10;
/// Piece under the priority policy: a long one would overrun the quantum.
const GATED_PIECE_BYTES: usize = 4 << 10;
/// Polls of a client before it yields its CPU, which the engine may need.
const LOOKS: u32 = 20_000;

const FREE: u32 = 0;
const CLAIMED: u32 = 1;
const SUBMITTED: u32 = 2;
const DONE: u32 = 3;

/// One channel: a descriptor and its owner. The client writes the descriptor while the state is
/// CLAIMED and publishes it with SUBMITTED (release). The engine reads it after that (acquire) and
/// publishes the bytes with DONE (release).
struct Channel {
    state: AtomicU32,
    pair: AtomicUsize,
    to_user: AtomicBool,
    bytes: AtomicUsize,
    wakes: AtomicBool,
    line: IrqLine,
    copies: AtomicU64,
}

impl Channel {
    fn new() -> Result<Channel, Fault> {
        Ok(Channel {
            state: AtomicU32::new(FREE),
            pair: AtomicUsize::new(0),
            to_user: AtomicBool::new(false),
            bytes: AtomicUsize::new(0),
            wakes: AtomicBool::new(false),
            line: IrqLine::event()?,
            copies: AtomicU64::new(0),
        })
    }
}

struct Shared {
    channels: Vec<Channel>,
    pairs: Vec<OnceLock<Arc<Mutex<Pair>>>>,
    request: CopyRequest,
    stop: AtomicBool,
    turn: AtomicUsize,
    high_ns: AtomicU64,
    low_ns: AtomicU64,
    windows: AtomicU64,
}

pub(crate) struct Engine {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// Starts an engine for the lanes of a request.
    ///
    /// # Errors
    /// Too many channels, no thread, or no descriptor for its interrupt lines.
    pub(crate) fn start(request: &CopyRequest) -> Result<Engine, Fault> {
        let channels = match request.channels {
            0 => request.lanes.min(MAX_CHANNELS),
            channels => channels,
        };
        if channels > MAX_CHANNELS {
            return Err(Fault::new(format!(
                "{channels} channels: an emulated engine has {MAX_CHANNELS} at most"
            )));
        }
        let shared = Arc::new(Shared {
            channels: (0..channels).map(|_| Channel::new()).collect::<Result<_, Fault>>()?,
            pairs: (0..request.lanes).map(|_| OnceLock::new()).collect(),
            request: request.clone(),
            stop: AtomicBool::new(false),
            turn: AtomicUsize::new(0),
            high_ns: AtomicU64::new(0),
            low_ns: AtomicU64::new(0),
            windows: AtomicU64::new(0),
        });
        let work = shared.clone();
        let thread = std::thread::Builder::new()
            .name("dma-engine".to_owned())
            .spawn(move || work.run())
            .map_err(|error| Fault::new(format!("start the engine's thread: {error}")))?;
        Ok(Engine { shared, thread: Some(thread) })
    }

    pub(crate) fn register(&self, lane: usize, pair: Arc<Mutex<Pair>>) {
        let _ = self.shared.pairs[lane].set(pair);
    }

    pub(crate) fn channels(&self) -> usize {
        self.shared.channels.len()
    }

    pub(crate) fn copies(&self, channel: usize) -> u64 {
        self.shared.channels[channel].copies.load(Ordering::Relaxed)
    }

    pub(crate) fn gate(&self) -> Gate {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Gate {
            high_ns: of(&self.shared.high_ns),
            low_ns: of(&self.shared.low_ns),
            windows: of(&self.shared.windows),
        }
    }

    /// Copies a lane's registered memory; returns when the bytes have arrived.
    pub(crate) fn copy(
        &self,
        lane: usize,
        direction: Direction,
        bytes: usize,
        completion: CopyCompletion,
    ) {
        let channel = self.claim(lane);
        channel.pair.store(lane, Ordering::Relaxed);
        channel.to_user.store(direction == Direction::To, Ordering::Relaxed);
        channel.bytes.store(bytes, Ordering::Relaxed);
        let interrupt = completion == CopyCompletion::Interrupt;
        channel.wakes.store(interrupt, Ordering::Relaxed);
        channel.state.store(SUBMITTED, Ordering::Release);
        if interrupt {
            // The limit of 100 ms lets the lane notice that the engine's thread has ended.
            while channel.state.load(Ordering::Acquire) != DONE {
                let _ = channel.line.wait(Duration::from_millis(100));
                channel.line.clear();
                self.check_alive();
            }
        } else {
            self.wait_until(|| channel.state.load(Ordering::Acquire) == DONE);
        }
        channel.state.store(FREE, Ordering::Release);
    }

    fn claim(&self, lane: usize) -> &Channel {
        let channels = &self.shared.channels;
        let take = |channel: &Channel| {
            channel
                .state
                .compare_exchange(FREE, CLAIMED, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        };
        if self.shared.request.context != CopyContext::Shared {
            let own = &channels[lane % channels.len()];
            self.wait_until(|| take(own));
            return own;
        }
        let mut taken = None;
        self.wait_until(|| {
            let turn = self.shared.turn.fetch_add(1, Ordering::Relaxed);
            let order = (0..channels.len()).map(|at| &channels[(turn + at) % channels.len()]);
            taken = order.into_iter().find(|channel| take(channel));
            taken.is_some()
        });
        taken.expect("the wait ends with a channel")
    }

    fn wait_until(&self, mut done: impl FnMut() -> bool) {
        let mut looks = 0;
        while !done() {
            looks += 1;
            if looks % LOOKS == 0 {
                self.check_alive();
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Panics when the engine's thread has panicked, which fails the waiting lane.
    fn check_alive(&self) {
        let is_dead = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        assert!(!is_dead, "the engine's thread has ended");
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The engine has reported its own panic.
            let _ = thread.join();
        }
    }
}

/// State of the gate, which the engine's thread turns.
struct Turn {
    high_only: bool,
    changed_ns: u64,
}

impl Shared {
    fn run(&self) {
        let mut moved = [0_usize; MAX_CHANNELS];
        let mut gate = Turn { high_only: true, changed_ns: clock::monotonic_ns() };
        let mut idle = 0_u32;
        while !self.stop.load(Ordering::Relaxed) {
            let mut worked = false;
            for (at, channel) in self.channels.iter().enumerate() {
                if self.request.context == CopyContext::Priority {
                    self.turn_gate(&mut gate);
                    if gate.high_only && self.request.high_channels & (1 << at) == 0 {
                        continue;
                    }
                }
                if channel.state.load(Ordering::Acquire) == SUBMITTED {
                    self.piece(channel, &mut moved[at]);
                    worked = true;
                }
            }
            idle = if worked { 0 } else { idle.saturating_add(1) };
            if idle > LOOKS {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    fn turn_gate(&self, gate: &mut Turn) {
        let now = clock::monotonic_ns();
        let CopyRequest { quantum_ns, window_ns, .. } = self.request;
        let due = if gate.high_only { quantum_ns } else { window_ns - quantum_ns };
        let lasted = now - gate.changed_ns;
        if lasted < due {
            return;
        }
        if gate.high_only {
            self.high_ns.fetch_add(lasted, Ordering::Relaxed);
        } else {
            self.low_ns.fetch_add(lasted, Ordering::Relaxed);
            self.windows.fetch_add(1, Ordering::Relaxed);
        }
        *gate = Turn { high_only: !gate.high_only, changed_ns: now };
    }

    fn piece(&self, channel: &Channel, moved: &mut usize) {
        let pair = self.pairs[channel.pair.load(Ordering::Relaxed)]
            .get()
            .expect("registered before the first copy");
        // The lock is free, because the lane waits for this copy.
        let mut pair = locked(pair);
        let bytes = channel.bytes.load(Ordering::Relaxed);
        let is_gated = self.request.context == CopyContext::Priority;
        let max = if is_gated { GATED_PIECE_BYTES } else { PIECE_BYTES };
        let piece = (bytes - *moved).min(max);
        let (from, to) = pair.ends(channel.to_user.load(Ordering::Relaxed));
        device_copy(from, *moved, to, *moved, piece);
        *moved += piece;
        if *moved < bytes {
            return;
        }
        *moved = 0;
        channel.copies.fetch_add(1, Ordering::Relaxed);
        let wakes = channel.wakes.load(Ordering::Relaxed);
        channel.state.store(DONE, Ordering::Release);
        if wakes {
            channel.line.signal();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::CopyPath;

    fn request(lanes: usize, context: CopyContext) -> CopyRequest {
        CopyRequest {
            lanes,
            context,
            ..CopyRequest::new(CopyPath::EngineThread, Direction::To, 64)
        }
    }

    fn pair(bytes: usize) -> Arc<Mutex<Pair>> {
        Arc::new(Mutex::new(Pair::new(bytes).unwrap()))
    }

    #[test]
    fn nobody_waits_for_an_engine_whose_thread_has_panicked() {
        for completion in [CopyCompletion::Poll, CopyCompletion::Interrupt] {
            let engine = Engine::start(&request(1, CopyContext::Exclusive)).unwrap();
            // An unregistered lane is a bug, for which the engine's thread panics.
            let copied = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                engine.copy(0, Direction::To, 64, completion);
            }));
            assert!(copied.is_err(), "{completion:?}");
        }
    }

    #[test]
    fn lanes_share_fewer_channels() {
        let one_channel = CopyRequest { channels: 1, ..request(3, CopyContext::Shared) };
        let engine = Engine::start(&one_channel).unwrap();
        (0..3).for_each(|lane| engine.register(lane, pair(5000)));
        std::thread::scope(|scope| {
            for lane in 0..3 {
                let engine = &engine;
                scope.spawn(move || {
                    (0..50)
                        .for_each(|_| engine.copy(lane, Direction::To, 5000, CopyCompletion::Poll));
                });
            }
        });
        assert_eq!(engine.copies(0), 150);
    }

    #[test]
    fn the_gate_is_accounted() {
        let priority = CopyRequest {
            quantum_ns: 50_000,
            window_ns: 150_000,
            ..request(2, CopyContext::Priority)
        };
        let engine = Engine::start(&priority).unwrap();
        engine.register(1, pair(4096));
        // A low channel copies only while the gate is open, so a few copies take a window.
        while engine.gate().windows < 3 {
            engine.copy(1, Direction::From, 4096, CopyCompletion::Poll);
        }
        let Gate { high_ns, low_ns, windows } = engine.gate();
        assert!(
            high_ns >= windows * 50_000 && low_ns >= windows * 100_000,
            "{high_ns} {low_ns} {windows}"
        );
    }
}
