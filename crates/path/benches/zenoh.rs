//! Cost of blocks and pages over Zenoh: `cargo bench -p daqmeter-path --features zenoh --bench
//! zenoh [-- SECONDS [ROUNDS]]`, each run of SECONDS [0.4].
//!
//! - Paths `memory -> zenoh -> read`, over TCP on loopback and through shared memory, beside
//!   `memory -> tcp -> read`.
//! - Bare Zenoh: a thread publishes one buffer again and again, without a copy of its own, and a
//!   callback counts the bytes.
//! - The transport of the read-out with pages of that size, which are framed, received and
//!   acknowledged.
//!
//! All sides run in turns, in another order in each round. Threads are placed by the scheduler;
//! Zenoh has threads of its own. Prints medians, and ratios to bare Zenoh with 95 % intervals over
//! the rounds; judges nothing, because shared machines are noisy.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, and may stop when the host refuses"
)]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small counts")]

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use daqmeter_harness::{Context, Request, Settings, StepPlan, measure};
use daqmeter_path::{Path, PathRequest};
use daqmeter_readout::scenario::Publish;
use daqmeter_readout::transport::zenoh::{SharedMemory, locator, session};
use daqmeter_readout::transport::{self, OutletEvent, PublisherHello, Sent, Subscription};
use daqmeter_stats::{quantile, sorted, trimmed_interval};
use daqmeter_wire::felix::page::{FelixFrame, FrameKind};
use zenoh::Wait;
use zenoh::bytes::ZBytes;
use zenoh::qos::CongestionControl;

const ROUNDS: usize = 15;
/// Pages for each acknowledgement: a reader holds as many back.
const PAGES: u64 = 16;

fn path(stage: &str, block_bytes: usize, time: Duration) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("path.toml");
    let text = format!(
        "title = \"bench\"\nblock = \"{block_bytes}\"\n[source]\nkind = \"memory\"\n[[stage]]\n{stage}\n[sink]\nkind = \"read\"\n"
    );
    std::fs::write(&file, text).unwrap();
    let path = Path::load(file.to_str().unwrap()).unwrap();
    let request = PathRequest::new(&path, time.as_secs_f64());
    let settings = Settings::new(StepPlan::ByStage(1), "bench");
    let context = Context::default();
    let record = measure(&request.job().unwrap(), &settings, &context, &[], &mut []).unwrap();
    assert!(record.outcome.is_ok(), "{:?}", record.outcome);
    assert!(record.ledgers.iter().all(|ledger| ledger.closes() && ledger.lost() == 0));
    let run = record.path.unwrap();
    // Small blocks have contents that are only partly known beforehand.
    assert!(run.verified_blocks > 0);
    run.wall_ns as f64 / run.blocks as f64
}

fn bare(memory: SharedMemory, bytes: usize, time: Duration) -> f64 {
    let inner = session("127.0.0.1:0", true, memory).unwrap();
    let outer = session(&locator(&inner, "127.0.0.1:0"), false, memory).unwrap();
    let came = Arc::new(AtomicU64::new(0));
    let counted = came.clone();
    let _subscriber = inner
        .declare_subscriber("bench")
        .callback(move |sample| {
            counted.fetch_add(sample.payload().len() as u64, Ordering::Release);
        })
        .wait()
        .unwrap();
    let publisher = outer
        .declare_publisher("bench")
        .congestion_control(CongestionControl::Block)
        .wait()
        .unwrap();
    while !publisher.matching_status().wait().unwrap().matching() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let page = ZBytes::from(pattern(bytes));
    let (begin, mut put) = (Instant::now(), 0);
    while begin.elapsed() < time {
        publisher.put(page.clone()).wait().unwrap();
        put += 1;
    }
    while came.load(Ordering::Acquire) < put * bytes as u64 {
        std::thread::sleep(Duration::from_micros(20));
    }
    let ns = begin.elapsed().as_nanos() as f64 / put as f64;
    outer.close().wait().unwrap();
    inner.close().wait().unwrap();
    ns
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| at.to_le_bytes()[0]).collect()
}

fn pages(bytes: usize, time: Duration) -> f64 {
    let zenoh = transport::named("zenoh").unwrap();
    let hello = PublisherHello { stream: 1, tags: vec![1], ..PublisherHello::default() };
    let settings = Publish {
        transport: "zenoh".to_owned(),
        address: "127.0.0.1:0".to_owned(),
        ..Publish::default()
    };
    let mut outlet = zenoh.publish(&settings, &hello).unwrap();
    let settings = Publish { address: outlet.address(), ..settings };
    let (sent, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let (all, ended) = (sent.clone(), is_over.clone());
    let receiver = std::thread::spawn(move || {
        let zenoh = transport::named("zenoh").unwrap();
        let subscription = Subscription::default();
        let inlet = zenoh.subscribe(&settings, &subscription, &|| false);
        let (mut inlet, mut had) = (inlet.unwrap(), 0);
        while !ended.load(Ordering::Acquire) || had < all.load(Ordering::Acquire) {
            if let Some((frame, body)) = inlet.receive(Duration::from_millis(5)).unwrap() {
                assert_eq!(body.len(), bytes);
                had = frame.sequence;
                if had.is_multiple_of(PAGES) {
                    inlet.acknowledge(had).unwrap();
                }
            }
        }
        Instant::now()
    });
    let mut events = Vec::new();
    while !events.iter().any(|event| matches!(event, OutletEvent::Subscribed { .. })) {
        outlet.poll(&mut events);
        std::thread::sleep(Duration::from_millis(1));
    }
    let page = pattern(bytes);
    let (begin, mut sequence) = (Instant::now(), 0);
    while begin.elapsed() < time {
        sequence += 1;
        let frame = FelixFrame {
            kind: FrameKind::Blocks,
            body_bytes: u32::try_from(bytes).unwrap(),
            count: 1,
            sequence,
            birth_ns: 0,
        };
        let one = outlet.send(0, &frame, &[IoSlice::new(&page)]);
        assert_eq!(one, Sent::Done);
        events.clear();
        outlet.poll(&mut events);
    }
    sent.store(sequence, Ordering::Release);
    is_over.store(true, Ordering::Release);
    let end = receiver.join().unwrap();
    (end - begin).as_nanos() as f64 / sequence as f64
}

type Side<'a> = (&'a str, Box<dyn Fn() -> f64 + 'a>);

/// Runs all sides in turns; gives the median of each and its ratio to the side that it is compared
/// with.
fn compared(title: &str, bytes: usize, rounds: usize, sides: &[Side<'_>], against: &[usize]) {
    let mut samples = vec![Vec::new(); sides.len()];
    for round in 0..=rounds {
        for step in 0..sides.len() {
            let at = (step + round) % sides.len();
            let ns = sides[at].1();
            if round > 0 {
                samples[at].push(ns);
            }
        }
    }
    println!("{title}");
    for (at, (name, _)) in sides.iter().enumerate() {
        let median = quantile(&sorted(&samples[at]), 0.5);
        let rate = bytes as f64 / median;
        print!("  {name}: {median:.0} ns, {rate:.3} GB/s");
        let bare = against[at];
        if bare != at {
            let ratios = samples[bare].iter().zip(&samples[at]);
            let ratios: Vec<f64> = ratios.map(|(bare, own)| bare / own).collect();
            let (mean, low, high) = trimmed_interval(&ratios, 0.95).unwrap();
            print!("; {mean:.3} ({low:.3} to {high:.3}) of {}", sides[bare].0);
        }
        println!();
    }
}

fn main() {
    let given: Vec<f64> = std::env::args().filter_map(|text| text.parse().ok()).collect();
    let time = Duration::from_secs_f64(given.first().copied().unwrap_or(0.4));
    let rounds = given.get(1).map_or(ROUNDS, |rounds| *rounds as usize);
    let network = "kind = \"zenoh\"";
    let shared = "kind = \"zenoh\"\nshared_memory = true";
    for bytes in [64 << 10, 256 << 10, 1 << 20] {
        let sides: Vec<Side<'_>> = vec![
            ("bare, loopback", Box::new(|| bare(SharedMemory::NotUsed, bytes, time))),
            ("bare, shared memory", Box::new(|| bare(SharedMemory::Used, bytes, time))),
            ("path over zenoh", Box::new(|| path(network, bytes, time))),
            ("path over zenoh, shared memory", Box::new(|| path(shared, bytes, time))),
            ("path over tcp", Box::new(|| path("kind = \"tcp\"", bytes, time))),
            ("pages of the read-out", Box::new(|| pages(bytes, time))),
        ];
        compared(&format!("{} KiB:", bytes >> 10), bytes, rounds, &sides, &[0, 1, 0, 1, 0, 1]);
    }
}
