//! Cost of a path over a chain that is written by hand: `cargo bench -p daqmeter-path --bench
//! handover [-- SECONDS [ring]]`, each side for SECONDS [20] at each size.
//!
//! - Hand-over of a block by distance (one CPU, siblings of a core, a common last-level cache,
//!   others), by the bytes that one thread writes and the other reads, and by the blocks of the
//!   ring; then of one whose bytes nobody touches: the ring with its account, compared
//!   with channels without one. `ring` runs this part alone.
//! - A card read out live: `felix-readout` beside the read-out's own chain of two threads, at more
//!   triggers than it carries. Also CPU time at a rate that it does carry.
//!
//! The sides run in turns; the order of each pair changes. Prints medians and the ratio with its 95
//! % interval over the pairs; judges nothing, because shared machines are noisy. Target: 1.05 or
//! less.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, and may stop when the host refuses"
)]

use std::sync::atomic::AtomicBool;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

use daqmeter_harness::{Context, Request, Settings, StepPlan, measure};
use daqmeter_path::{Path, PathRequest};
use daqmeter_readout::Scenario;
use daqmeter_record::RunRecord;
use daqmeter_record::path::PathThread;
use daqmeter_record::written::Hertz;
use daqmeter_stats::trimmed_interval;
use daqmeter_sys::affinity::{pin_to, process_cpus, unpin};
use daqmeter_sys::memory::{Buffer, Pages};
use daqmeter_sys::probe::{CHAIN_CYCLES, probe};
use rtrb::{Consumer, Producer, RingBuffer};

#[path = "../../readout/tests/readout/by_hand.rs"]
#[allow(dead_code, reason = "tests look at more of it")]
mod by_hand;

// The ring is private to the crate: these are its files.
#[path = "../src/element.rs"]
#[allow(dead_code, unused_imports, reason = "the ring uses less of it")]
mod element;
#[path = "../src/chain"]
#[allow(dead_code, unused_imports, reason = "threads use more of it")]
mod chain {
    pub(crate) mod account;
    pub(crate) mod ring;
}

use chain::account::Account;
use chain::ring::{Blocks, link};
use element::Label;

const BUFFERS: usize = 8;
const ROUNDS: usize = 40;
/// More triggers than one reader carries: BUSY stops the rest.
const TOO_MANY_HZ: f64 = 10e6;
const CARRIED_HZ: f64 = 500e3;

fn record(request: &PathRequest) -> RunRecord {
    let settings = Settings::new(StepPlan::ByStage(1), "bench");
    let context = Context::default();
    let record = measure(&request.job().unwrap(), &settings, &context, &[], &mut []).unwrap();
    assert!(record.outcome.is_ok(), "{:?}", record.outcome);
    record
}

#[derive(Clone, Copy)]
struct PerChunk {
    /// Time of the card over the chunks that came to the receiver.
    wall_ns: f64,
    cpu_ns: f64,
}

impl PerChunk {
    /// Costs of chunks in that time, during which both threads together used this many CPUs.
    fn of(card_ns: f64, chunks: u64, cpus: f64) -> PerChunk {
        let wall_ns = card_ns / chunks as f64;
        PerChunk { wall_ns, cpu_ns: wall_ns * cpus }
    }
}

fn chain_by_hand(hz: f64, time: Duration) -> PerChunk {
    let mut scenario = Scenario::load("gbt").unwrap();
    scenario.trigger.rate = Hertz(hz);
    let (placement, stop) = (by_hand::Placement::default(), AtomicBool::new(false));
    let done = by_hand::run(&scenario, &placement, time, None, &stop).unwrap();
    assert!(done.closes());
    let chunks: u64 = done.receivers.iter().map(|one| one.chunks()).sum();
    let cpus = done.readers[0].cpu + done.receivers[0].cpu;
    PerChunk::of(done.readers[0].view.now_ns as f64, chunks, cpus)
}

fn chain_as_path(hz: f64, time: Duration) -> PerChunk {
    let path = Path::load("felix-readout").unwrap();
    let record =
        record(&PathRequest { rate_hz: Some(hz), ..PathRequest::new(&path, time.as_secs_f64()) });
    let counter = |name| record.counter(name).unwrap();
    let card_ns = counter("triggers") / counter("trigger-rate") * 1e9;
    let cpus = counter("reader-cpu-ppm") * 1e-6 + counter("receiver-cpu");
    PerChunk::of(card_ns, record.sections.path.as_deref().unwrap().events, cpus)
}

fn in_turns<T>(mut hand: impl FnMut() -> T, mut path: impl FnMut() -> T) -> Vec<(T, T)> {
    let pair = |round: usize| match round % 2 {
        0 => {
            let first = hand();
            (first, path())
        }
        _ => {
            let first = path();
            (hand(), first)
        }
    };
    (0..ROUNDS).map(pair).collect()
}

fn show(what: &str, unit: &str, pairs: &[(f64, f64)]) {
    let median = |values: Vec<f64>| daqmeter_stats::median(&values).unwrap();
    let (hand, path): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let ratios: Vec<f64> = pairs.iter().map(|(hand, path)| path / hand).collect();
    let (mean, low, high) = trimmed_interval(&ratios, 0.95).unwrap();
    println!(
        "{what}: by hand {:.1} ns per {unit}, ours {:.1} ns, ratio {mean:.3} ({low:.3} to {high:.3})",
        median(hand),
        median(path)
    );
}

fn chunks(time: Duration) {
    let pairs = in_turns(
        || chain_by_hand(TOO_MANY_HZ, time).wall_ns,
        || chain_as_path(TOO_MANY_HZ, time).wall_ns,
    );
    show("felix-readout, as fast as it goes", "chunk", &pairs);
    let pairs = in_turns(
        || chain_by_hand(CARRIED_HZ, time).cpu_ns,
        || chain_as_path(CARRIED_HZ, time).cpu_ns,
    );
    show("felix-readout at 500 kHz, CPU time", "chunk", &pairs);
}

/// Nanoseconds per block. `give` sends an empty block on with a number, `take` gives the next one
/// back and returns its number; they close the ring when they are dropped.
fn handed_over(
    cpus: [u32; 2],
    time: Duration,
    mut give: impl FnMut(u64) + Send + 'static,
    mut take: impl FnMut() -> Option<u64>,
) -> f64 {
    pin_to(cpus[1]).unwrap();
    let producer = thread::spawn(move || {
        pin_to(cpus[0]).unwrap();
        let begin = Instant::now();
        (0..).take_while(|at| at % 64 > 0 || begin.elapsed() < time).for_each(&mut give);
        drop(give);
    });
    // The time begins once both threads run.
    assert_eq!(take(), Some(0));
    let (begin, mut blocks) = (Instant::now(), 0);
    while let Some(number) = take() {
        blocks += 1;
        assert_eq!(number, blocks);
    }
    let elapsed = begin.elapsed();
    producer.join().unwrap();
    elapsed.as_nanos() as f64 / blocks as f64
}

type Block = Box<element::Block>;

fn empty_blocks() -> impl Iterator<Item = Block> {
    let buffers = Buffer::several(BUFFERS, 4096, Pages::Base).unwrap();
    let block = |buffer| element::Block { buffer, label: Label::default() };
    buffers.into_iter().map(block).map(Box::new)
}

fn numbered(mut block: Block, number: u64) -> Block {
    block.label.sequence = number;
    block
}

fn ours(cpus: [u32; 2], time: Duration) -> f64 {
    ours_of(cpus, time, BUFFERS, 0)
}

/// Each thread touches `touched` bytes of each of `count` blocks.
fn ours_of(cpus: [u32; 2], time: Duration, count: usize, touched: usize) -> f64 {
    let names = [String::new()];
    let blocks = Blocks { count, bytes: touched.max(4096), pages: Pages::Base };
    let (mut outlets, mut inlets) = link(&names, &names, blocks);
    let (mut outlet, mut inlet) = (outlets.remove(0), inlets.remove(0));
    let begin = || Account::begin(PathThread::default());
    let (mut giver, mut taker) = (None, None);
    let give = move |number| {
        let account = giver.get_or_insert_with(|| {
            outlet.prepare().unwrap();
            begin()
        });
        let mut block = outlet.empty(account).unwrap();
        block.buffer.slice_mut::<u8>(touched).fill(7);
        outlet.send(numbered(block, number));
        account.done_block();
    };
    handed_over(cpus, time, give, || {
        let account = taker.get_or_insert_with(begin);
        let (at, block) = inlet.next(account)?;
        let number = block.label.sequence;
        std::hint::black_box(
            block.buffer.slice::<u8>(touched).iter().fold(0, |sum, byte| sum ^ byte),
        );
        inlet.give_back(at, block);
        account.done_block();
        Some(number)
    })
}

/// Hands blocks over by two channels, one for each direction.
macro_rules! over_channels {
    ($name:ident, $channel:expr) => {
        #[allow(unused_mut, reason = "some channels are shared")]
        fn $name(cpus: [u32; 2], time: Duration) -> f64 {
            let (mut full_in, mut full) = $channel();
            let (mut empty_in, mut empty) = $channel();
            empty_blocks().for_each(|block| empty_in.send(block).unwrap());
            let give = move |at| full_in.send(numbered(empty.recv().unwrap(), at)).unwrap();
            handed_over(cpus, time, give, || {
                let block: Block = full.recv().ok()?;
                let number = block.label.sequence;
                // The producer may have ended.
                let _ = empty_in.send(block);
                Some(number)
            })
        }
    };
}

over_channels!(over_std, || sync_channel(BUFFERS));
over_channels!(over_crossbeam, || crossbeam_channel::bounded(BUFFERS));
over_channels!(over_rtrb, || {
    let (giver, taker) = RingBuffer::new(BUFFERS);
    (Spinning(giver), Spinning(taker))
});

/// `rtrb` has no wait: its ends spin.
struct Spinning<End>(End);

impl Spinning<Producer<Block>> {
    fn send(&mut self, block: Block) -> Result<(), ()> {
        self.0.push(block).map_err(drop)
    }
}

impl Spinning<Consumer<Block>> {
    fn recv(&mut self) -> Result<Block, ()> {
        loop {
            match self.0.pop() {
                Ok(block) => return Ok(block),
                Err(_) if self.0.is_abandoned() => return self.0.pop().map_err(drop),
                Err(_) => std::hint::spin_loop(),
            }
        }
    }
}

/// A CPU at each distance from the first one.
fn distances(cpus: &[u32]) -> Vec<(&'static str, u32)> {
    let with = |what: &str| {
        let file = format!("/sys/devices/system/cpu/cpu{}/{what}", cpus[0]);
        let text = std::fs::read_to_string(file).unwrap_or_default();
        daqmeter_sys::host::parse_cpu_list(text.trim())
    };
    let (core, cache) =
        (with("topology/thread_siblings_list"), with("cache/index3/shared_cpu_list"));
    let of = |cpu: &u32| match *cpu {
        cpu if cpu == cpus[0] => "one CPU",
        cpu if core.contains(&cpu) => "siblings of a core",
        cpu if cache.contains(&cpu) => "a common last-level cache",
        _ => "different last-level caches",
    };
    let mut all: Vec<(&'static str, u32)> = cpus.iter().map(|cpu| (of(cpu), *cpu)).collect();
    all.dedup_by_key(|(distance, _)| *distance);
    all
}

type HandOver = fn([u32; 2], Duration) -> f64;

fn rings(time: Duration) {
    let given = process_cpus();
    let cycles_per_ns =
        CHAIN_CYCLES as f64 / (0..99).map(|_| probe().chain_ns).min().unwrap() as f64;
    println!("{cycles_per_ns:.2} cycles per ns");
    let one = [given[0]; 2];
    let two = [given[0], given[given.len() - 1]];
    for (distance, cpu) in distances(given) {
        for (count, touched) in
            [1, 8, 64].iter().flat_map(|&of| [0, 1024, 16_384, 65_536].map(|bytes| (of, bytes)))
        {
            let each = |_| ours_of([given[0], cpu], time, count, touched);
            let ns = daqmeter_stats::median(&(0..5).map(each).collect::<Vec<_>>()).unwrap();
            println!(
                "{distance}: {count} blocks, {touched} bytes touched: {ns:.0} ns, {:.0} cycles",
                ns * cycles_per_ns
            );
        }
    }
    for (cpus, place) in [(two, "two CPUs"), (one, "one CPU")] {
        let rivals: [(&str, HandOver); 3] =
            [("sync_channel", over_std), ("crossbeam", over_crossbeam), ("rtrb", over_rtrb)];
        // Nothing that spins may share its CPU.
        for (name, rival) in rivals.into_iter().filter(|(name, _)| cpus == two || *name != "rtrb") {
            let pairs = in_turns(|| rival(cpus, time), || ours(cpus, time));
            show(&format!("{place}, ring beside {name}"), "block", &pairs);
        }
    }
    unpin();
}

fn main() {
    let seconds = std::env::args().skip(1).find_map(|text| text.parse::<f64>().ok());
    let time = Duration::from_secs_f64(seconds.unwrap_or(20.0) / ROUNDS as f64);
    rings(time);
    if !std::env::args().any(|text| text == "ring") {
        chunks(time);
    }
}
