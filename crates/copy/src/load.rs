//! Heavy load beside the copies, defined and counted.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use daqmeter_harness::Observer;
use daqmeter_kernels::copy::CopyKernel;
use daqmeter_record::Counter;
use daqmeter_sys::copies::null_call;
use daqmeter_sys::memory::{Buffer, Pages};
use daqmeter_sys::{affinity, cpu_time};

const ROUND_BYTES: usize = 4 << 20;
const ROUND_STEPS: u64 = 500_000;
const ROUND_CALLS: u32 = 200;

/// Heavy load during a point: one thread on each allowed CPU at ordinary priority. Each round has
/// 500,000 integer steps, a copy of 4 MiB, and 200 system calls, without pause. The study does not
/// define its "heavy load".
#[derive(Debug, Default)]
pub(crate) struct HeavyLoad {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
    rounds_before: u64,
}

impl Observer for HeavyLoad {
    fn arm(&mut self) {
        let start = |cpu: u32| {
            let (stop, rounds) = (self.stop.clone(), self.rounds.clone());
            let work = move || {
                // Without pinning the kernel spreads the threads.
                let _ = affinity::pin_to(cpu);
                work(&stop, &rounds);
            };
            std::thread::Builder::new().name(format!("load-{cpu}")).spawn(work).ok()
        };
        let cpus = affinity::allowed_cpus().unwrap_or_default();
        self.threads = cpus.into_iter().filter_map(start).collect();
        // A thread without memory ends without a round.
        let at_work = || self.threads.iter().filter(|thread| !thread.is_finished()).count() as u64;
        while self.rounds.load(Ordering::Relaxed) < at_work() {
            std::thread::yield_now();
        }
    }

    fn start(&mut self) {
        self.rounds_before = self.rounds.load(Ordering::Relaxed);
    }

    fn stop(&mut self) -> Vec<Counter> {
        let rounds = self.rounds.load(Ordering::Relaxed) - self.rounds_before;
        let count = self.threads.len() as u64;
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // The thread has reported its own panic.
            let _ = thread.join();
        }
        vec![Counter::count("load-threads", count), Counter::count("load-rounds", rounds)]
    }
}

fn work(stop: &AtomicBool, rounds: &AtomicU64) {
    let Ok(mut buffer) = Buffer::new(2 * ROUND_BYTES, Pages::Base) else {
        return;
    };
    let mut number = cpu_time::peak_rss_bytes().unwrap_or(0) | 1;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..ROUND_STEPS {
            // Marsaglia's xorshift: a dependent chain that the compiler cannot shorten.
            number ^= number << 13;
            number ^= number >> 7;
            number ^= number << 17;
        }
        black_box(number);
        let (from, to) = buffer.slice_mut::<u8>(2 * ROUND_BYTES).split_at_mut(ROUND_BYTES);
        CopyKernel::Memcpy.copy(from, to);
        (0..ROUND_CALLS).for_each(|_| null_call());
        rounds.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_works_while_it_is_asked_and_says_how_much() {
        let mut load = HeavyLoad::default();
        load.arm();
        load.start();
        let before = load.rounds.load(Ordering::Relaxed);
        while load.rounds.load(Ordering::Relaxed) < before + 2 {
            std::thread::yield_now();
        }
        let counters = load.stop();
        assert!(counters[0].value >= 1.0 && counters[1].value >= 2.0);
        assert_eq!(load.stop()[0].value, 0.0);
    }
}
